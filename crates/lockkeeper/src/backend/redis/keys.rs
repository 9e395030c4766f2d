//! Every key and channel name. A lock's name reaches Redis only through here.

use uuid::Uuid;

use crate::backend::Topic;
use crate::{LockName, OwnerId};

/// Derives a name with a prefix by Redisson's rule: braces are added, so that it is in the cluster
/// slot of the name, unless the name contains an opening brace.
fn prefixed(prefix: &str, name: &LockName) -> Vec<u8> {
    let name = name.as_bytes();
    let (open, close): (&[u8], &[u8]) =
        if name.contains(&b'{') { (b":", b"") } else { (b":{", b"}") };
    [prefix.as_bytes(), open, name, close].concat()
}

/// Derives a name with a suffix by Redisson's rule.
fn suffixed(name: &LockName, suffix: &str) -> Vec<u8> {
    [&tagged(name)[..], b":", suffix.as_bytes()].concat()
}

/// Returns the name in braces, unless it contains an opening brace. The keys of single readers
/// begin with it.
pub(super) fn tagged(name: &LockName) -> Vec<u8> {
    let name = name.as_bytes();
    if name.contains(&b'{') { name.to_vec() } else { [b"{", name, b"}"].concat() }
}

/// The queue of a fair lock: a list of owners.
pub(super) fn queue(name: &LockName) -> Vec<u8> {
    prefixed("redisson_lock_queue", name)
}

/// The expiry of queue positions of a fair lock, for Redisson: owner → ms.
pub(super) fn timeouts(name: &LockName) -> Vec<u8> {
    prefixed("redisson_lock_timeout", name)
}

/// The last heartbeats of our own waiters of a fair lock: owner → ms.
pub(super) fn seen(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_seen", name)
}

/// The grace period for stale waiters of a fair lock, after the server was stalled or unreachable.
pub(super) fn grace(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_grace", name)
}

/// The last fencing token of a lock.
pub(super) fn token(name: &LockName) -> Vec<u8> {
    prefixed("redisson_lock_token", name)
}

/// The waiting writers of a read/write lock: owner → ms of the last request.
pub(super) fn writers(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_writers", name)
}

/// How long readers have waited for a read/write lock, and whether it is their turn.
pub(super) fn patience(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_patience", name)
}

/// The answers to requests that must not run twice: id → answer.
pub(super) fn replies(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_replies", name)
}

/// The acquired permits of a permit semaphore with their expiry.
pub(super) fn permit_ends(name: &LockName) -> Vec<u8> {
    suffixed(name, "timeout")
}

/// Marks a temporary permit semaphore: created by an acquire, deleted with its last permit.
pub(super) fn temporary(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_temporary", name)
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

/// The channel for releases of a read/write lock.
pub(super) fn rw_channel(name: &LockName) -> Vec<u8> {
    prefixed("redisson_rwlock", name)
}

/// The channel for released permits.
pub(super) fn permits_channel(name: &LockName) -> Vec<u8> {
    prefixed("redisson_sc", name)
}

/// The channel for an opened latch. Redisson always adds braces here.
pub(super) fn latch_channel(name: &LockName) -> Vec<u8> {
    [b"redisson_countdownlatch__channel__{", name.as_bytes(), b"}"].concat()
}

/// The channel that notifies one waiter of a fair lock of its turn.
fn turn_channel(name: &LockName, owner: &OwnerId) -> Vec<u8> {
    let mut channel = channel(name);
    channel.push(b':');
    channel.extend_from_slice(owner.encode(&mut OwnerId::encode_buffer()));
    channel
}

/// The channel for releases of a lock or mutex.
pub(super) fn channel(name: &LockName) -> Vec<u8> {
    prefixed("redisson_lock__channel", name)
}

/// The recorded force-releases of a lock.
pub(super) fn forced(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_forced", name)
}

/// The announcement of a client.
pub(super) fn client(client: Uuid) -> Vec<u8> {
    format!("lockkeeper_client:{}", client.as_hyphenated()).into_bytes()
}

/// The announced clients: id → ms of expiry.
pub(super) fn clients() -> &'static [u8] {
    b"lockkeeper_clients"
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
        Topic::Freed(name) => Some(channel(name)),
        Topic::Turn(name, owner) => Some(turn_channel(name, owner)),
        Topic::Rw(name) => Some(rw_channel(name)),
        Topic::Permits(name) => Some(permits_channel(name)),
        Topic::Latch(name) => Some(latch_channel(name)),
        Topic::Notice(client) => Some(notice(*client)),
        Topic::Reconnected => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names_are_redissons() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(text(channel(&"order:7".into())), "redisson_lock__channel:{order:7}");
        assert_eq!(text(channel(&"{eu}:order:7".into())), "redisson_lock__channel:{eu}:order:7");
        assert_eq!(text(channel(&"foo{bar".into())), "redisson_lock__channel:foo{bar");
        assert_eq!(text(forced(&"a".into())), "lockkeeper_forced:{a}");
        assert_eq!(text(permit_ends(&"a".into())), "{a}:timeout");
        assert_eq!(text(permit_ends(&"{eu}:a".into())), "{eu}:a:timeout");
        assert_eq!(text(rw_channel(&"a".into())), "redisson_rwlock:{a}");
        let latch = latch_channel(&"{a}".into());
        assert_eq!(text(latch), "redisson_countdownlatch__channel__{{a}}");
        for name in ["a", "{eu}:a", "{a}"] {
            let key = permit_ends(&name.into());
            assert!(semaphores_of(&key).any(|of| of == name.as_bytes()), "{name}");
        }
        assert_eq!(semaphores_of(b"{a}:timeout").count(), 2);
        assert_eq!(semaphores_of(b"a:timeout").count(), 0);
        let owner: OwnerId = "6e0c0000-0000-4000-8000-000000000000:42".parse().unwrap();
        let turn = "redisson_lock__channel:{a}:6e0c0000-0000-4000-8000-000000000000:42";
        assert_eq!(text(turn_channel(&"a".into(), &owner)), turn);
    }
}
