//! Every key and channel name. A lock's name reaches Redis only through here.

use uuid::Uuid;

use crate::backend::Topic;
use crate::{LockName, OwnerId};

/// Redisson's rule for a name derived with a prefix: braces are added, so that it falls into the
/// name's cluster slot, unless the name has an opening brace of its own.
fn prefixed(prefix: &str, name: &LockName) -> Vec<u8> {
    let name = name.as_bytes();
    let (open, close): (&[u8], &[u8]) =
        if name.contains(&b'{') { (b":", b"") } else { (b":{", b"}") };
    [prefix.as_bytes(), open, name, close].concat()
}

/// Redisson's rule for a name derived with a suffix.
fn suffixed(name: &LockName, suffix: &str) -> Vec<u8> {
    [&tagged(name)[..], b":", suffix.as_bytes()].concat()
}

/// The name in braces, unless it has an opening brace of its own: what keys of single readers begin
/// with.
pub(super) fn tagged(name: &LockName) -> Vec<u8> {
    let name = name.as_bytes();
    if name.contains(&b'{') { name.to_vec() } else { [b"{", name, b"}"].concat() }
}

/// The queue of a fair lock: a list of owners.
pub(super) fn queue(name: &LockName) -> Vec<u8> {
    prefixed("redisson_lock_queue", name)
}

/// Until when the waiters of a fair lock keep their places: owner → ms.
pub(super) fn timeouts(name: &LockName) -> Vec<u8> {
    prefixed("redisson_lock_timeout", name)
}

/// When our own waiters of a fair lock were last heard of: owner → ms.
pub(super) fn seen(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_seen", name)
}

/// Until when silent waiters of a fair lock are not passed over, because nobody could be heard.
pub(super) fn grace(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_grace", name)
}

/// The last token of a fenced lock.
pub(super) fn token(name: &LockName) -> Vec<u8> {
    prefixed("redisson_lock_token", name)
}

/// Which writers wait for a read/write lock: owner → ms last heard of.
pub(super) fn writers(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_writers", name)
}

/// For how long readers have waited for a read/write lock, and whether it is their turn.
pub(super) fn patience(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_patience", name)
}

/// What was answered to requests that must not run twice: id → answer.
pub(super) fn replies(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_replies", name)
}

/// Which permits of a permit semaphore are taken until when.
pub(super) fn permit_ends(name: &LockName) -> Vec<u8> {
    suffixed(name, "timeout")
}

/// Marks a permit semaphore that acquires have made, and that goes when no permit is taken.
pub(super) fn temporary(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_temporary", name)
}

/// The semaphores whose [`permit_ends`] a key may be: `a` and `{a}` share one.
pub(super) fn semaphores_of(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let tagged = key.strip_suffix(b":timeout").filter(|tagged| tagged.contains(&b'{'));
    let bare = tagged.and_then(|tagged| tagged.strip_prefix(b"{")?.strip_suffix(b"}"));
    bare.filter(|bare| !bare.contains(&b'{')).into_iter().chain(tagged)
}

/// Whether a key is one of ours that stands beside locks and may look like one.
pub(super) fn is_beside(key: &[u8]) -> bool {
    let ours: [&[u8]; 2] = [b"lockkeeper_client:", b"lockkeeper_replies:"];
    ours.iter().any(|prefix| key.starts_with(prefix))
}

/// Where freed read/write locks are made known.
pub(super) fn rw_channel(name: &LockName) -> Vec<u8> {
    prefixed("redisson_rwlock", name)
}

/// Where freed permits are made known.
pub(super) fn permits_channel(name: &LockName) -> Vec<u8> {
    prefixed("redisson_sc", name)
}

/// Where an opened latch is made known. Braces in any case, which is Redisson's exception.
pub(super) fn latch_channel(name: &LockName) -> Vec<u8> {
    [b"redisson_countdownlatch__channel__{", name.as_bytes(), b"}"].concat()
}

/// Where one waiter of a fair lock is told that it is its turn.
fn turn_channel(name: &LockName, owner: &OwnerId) -> Vec<u8> {
    let mut channel = channel(name);
    channel.push(b':');
    channel.extend_from_slice(owner.encode(&mut OwnerId::encode_buffer()));
    channel
}

/// Where a freed lock or mutex is made known.
pub(super) fn channel(name: &LockName) -> Vec<u8> {
    prefixed("redisson_lock__channel", name)
}

/// Where forced unlocks of a lock are remembered.
pub(super) fn forced(name: &LockName) -> Vec<u8> {
    prefixed("lockkeeper_forced", name)
}

/// Who a client is.
pub(super) fn client(client: Uuid) -> Vec<u8> {
    format!("lockkeeper_client:{}", client.as_hyphenated()).into_bytes()
}

/// Which clients say who they are: id → ms until when.
pub(super) fn clients() -> &'static [u8] {
    b"lockkeeper_clients"
}

/// Words to one client.
fn notice(client: Uuid) -> Vec<u8> {
    format!("{NOTICE}{}", client.as_hyphenated()).into_bytes()
}

/// What the channels for words to one client begin with; the client's uuid follows.
pub(super) const NOTICE: &str = "lockkeeper_notice:";

/// The channel of a topic; nothing for one that Redis does not know.
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
