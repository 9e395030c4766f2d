//! Every key and channel that is derived from a lock's name, and all others. The key of a lock is its name.

use uuid::Uuid;

use super::command::{Argument, write_number};
use super::slot;
use crate::backend::Topic;
use crate::{LockName, OwnerId};

/// A key or channel derived from a lock's name. It is written into a request without a copy of its
/// own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Derived<'a>([&'a [u8]; 4]);

impl Derived<'_> {
    pub(super) fn to_vec(self) -> Vec<u8> {
        self.0.concat()
    }
}

impl Argument for Derived<'_> {
    #[inline(always)]
    fn write(&self, body: &mut Vec<u8>) {
        write_number(body, b'$', self.0.iter().map(|part| part.len() as u64).sum());
        for part in self.0 {
            body.extend_from_slice(part);
        }
        body.extend_from_slice(b"\r\n");
    }
}

/// Derives a name with a prefix by Redisson's rule: braces are added, so that it is in the cluster
/// slot of the name, unless the name contains an opening brace.
#[inline(always)]
fn prefixed<'a>(prefix: &'a str, name: &'a LockName) -> Derived<'a> {
    let Derived([open, name, close, _]) = tagged(name);
    Derived([prefix.as_bytes(), if open.is_empty() { b":" } else { b":{" }, name, close])
}

macro_rules! prefixed {
    ($($(#[$doc:meta])* $key:ident = $prefix:literal;)*) => {
        $($(#[$doc])*
        pub(super) fn $key(name: &LockName) -> Derived<'_> {
            prefixed($prefix, name)
        })*
    };
}

prefixed! {
    /// The queue of a fair lock: a list of owners.
    queue = "redisson_lock_queue";
    /// The expiry of queue positions of a fair lock, for Redisson: owner → ms.
    timeouts = "redisson_lock_timeout";
    /// The last heartbeats of our own waiters of a fair lock: owner → ms.
    seen = "lockkeeper_seen";
    /// The grace period for stale waiters of a fair lock, after the server was stalled or unreachable.
    grace = "lockkeeper_grace";
    /// The last fencing token of a lock.
    token = "redisson_lock_token";
    /// The waiting writers of a read/write lock: owner → ms of the last request.
    writers = "lockkeeper_writers";
    /// How long readers have waited for a read/write lock, and whether it is their turn.
    patience = "lockkeeper_patience";
    /// Never exists. In a slot that is being migrated, a script that declares it does not run.
    whole = "lockkeeper_whole";
    /// The answers to requests that must not run twice: id → answer.
    replies = "lockkeeper_replies";
    /// Marks a temporary permit semaphore: created by an acquire, deleted with its last permit.
    temporary = "lockkeeper_temporary";
    /// The channel for releases of a read/write lock.
    rw_channel = "redisson_rwlock";
    /// The channel for released permits.
    permits_channel = "redisson_sc";
    /// The channel for releases of a lock or mutex.
    channel = "redisson_lock__channel";
    /// The recorded force-releases of a lock.
    forced = "lockkeeper_forced";
}

/// Derives a name with a suffix by Redisson's rule.
fn suffixed<'a>(name: &'a LockName, suffix: &'a str) -> Derived<'a> {
    let Derived([open, name, close, _]) = tagged(name);
    Derived([open, name, if close.is_empty() { b":" } else { b"}:" }, suffix.as_bytes()])
}

/// Returns the name in braces, unless it contains an opening brace. The keys of single readers
/// begin with it.
pub(super) fn tagged(name: &LockName) -> Derived<'_> {
    let name = name.as_bytes();
    if name.contains(&b'{') {
        Derived([b"", name, b"", b""])
    } else {
        Derived([b"{", name, b"}", b""])
    }
}

/// One hold of a reader, which is valid while the key exists.
pub(super) fn read_hold(name: &LockName, owner: &OwnerId, number: u32) -> Vec<u8> {
    let mut key = tagged(name).to_vec();
    key.extend_from_slice(format!(":{owner}:rwlock_timeout:{number}").as_bytes());
    key
}

/// What a member of a quorum has kept since it joined.
pub(super) const MARKER: &str = "lockkeeper_quorum";

/// The acquired permits of a permit semaphore with their expiry.
pub(super) fn permit_ends(name: &LockName) -> Derived<'_> {
    suffixed(name, "timeout")
}

/// Returns the semaphores whose [`permit_ends`] a key may be: `a` and `{a}` share one.
pub(super) fn semaphores_of(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let tagged = key.strip_suffix(b":timeout").filter(|tagged| tagged.contains(&b'{'));
    let bare = tagged.and_then(|tagged| tagged.strip_prefix(b"{")?.strip_suffix(b"}"));
    bare.filter(|bare| !bare.contains(&b'{')).into_iter().chain(tagged)
}

/// Whether a key is an auxiliary key of ours that may look like a lock.
pub(super) fn is_beside(key: &[u8]) -> bool {
    let ours: [&[u8]; 2] = [b"lockkeeper_client:", b"lockkeeper_replies:"];
    ours.iter().any(|prefix| key.starts_with(prefix))
}

/// The channel for an opened latch. Redisson always adds braces here.
pub(super) fn latch_channel(name: &LockName) -> Derived<'_> {
    Derived([b"redisson_countdownlatch__channel__{", name.as_bytes(), b"}", b""])
}

/// The channel that notifies one waiter of a fair lock of its turn.
fn turn_channel(name: &LockName, owner: &OwnerId) -> Vec<u8> {
    let mut channel = channel(name).to_vec();
    channel.extend_from_slice(format!(":{owner}").as_bytes());
    channel
}

/// The announcement of a client.
pub(super) fn client(client: Uuid) -> Vec<u8> {
    format!("lockkeeper_client:{}", client.as_hyphenated()).into_bytes()
}

/// The announced clients: id → ms of expiry.
pub(super) fn clients() -> &'static [u8] {
    b"lockkeeper_clients"
}

/// A key that is written to wait for replicas. In a cluster, one of them is in a slot of each node.
pub(super) fn commit(number: usize) -> Vec<u8> {
    format!("lockkeeper_commit:{{{number}}}").into_bytes()
}

/// A key to wait for replicas in the slot of another key.
pub(super) fn commit_beside(key: &[u8]) -> Vec<u8> {
    [b"lockkeeper_commit:{", slot::tag(key).unwrap_or(key), b"}"].concat()
}

/// The channel for notices to one client.
fn notice(client: Uuid) -> Vec<u8> {
    format!("{NOTICE}{}", client.as_hyphenated()).into_bytes()
}

/// The prefix of the notice channels; the client's UUID follows.
pub(super) const NOTICE: &str = "lockkeeper_notice:";

/// Returns the channel of a topic; `None` for a topic that Redis does not know.
pub(super) fn topic_channel(topic: &Topic) -> Option<Vec<u8>> {
    match topic {
        Topic::Freed(name) => Some(channel(name).to_vec()),
        Topic::Turn(name, owner) => Some(turn_channel(name, owner)),
        Topic::Rw(name) => Some(rw_channel(name).to_vec()),
        Topic::Permits(name) => Some(permits_channel(name).to_vec()),
        Topic::Latch(name) => Some(latch_channel(name).to_vec()),
        Topic::Notice(client) => Some(notice(*client)),
        Topic::Reconnected => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names_are_redissons() {
        let text = |name: Derived<'_>| String::from_utf8(name.to_vec()).unwrap();
        assert_eq!(text(channel(&"order:7".into())), "redisson_lock__channel:{order:7}");
        assert_eq!(text(channel(&"{eu}:order:7".into())), "redisson_lock__channel:{eu}:order:7");
        assert_eq!(text(channel(&"foo{bar".into())), "redisson_lock__channel:foo{bar");
        assert_eq!(text(permit_ends(&"a".into())), "{a}:timeout");
        assert_eq!(text(permit_ends(&"{eu}:a".into())), "{eu}:a:timeout");
        assert_eq!(text(latch_channel(&"{a}".into())), "redisson_countdownlatch__channel__{{a}}");
        for name in ["a", "{eu}:a", "{a}"] {
            let name = LockName::from(name);
            let key = permit_ends(&name).to_vec();
            assert!(semaphores_of(&key).any(|of| of == name.as_bytes()), "{name}");
        }
        assert_eq!(semaphores_of(b"{a}:timeout").count(), 2);
        assert_eq!(semaphores_of(b"a:timeout").count(), 0);
        let mut encoded = Vec::new();
        channel(&"a".into()).write(&mut encoded);
        assert_eq!(encoded, b"$26\r\nredisson_lock__channel:{a}\r\n");
    }
}
