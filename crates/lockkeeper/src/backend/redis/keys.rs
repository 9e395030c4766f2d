//! Every key and channel name. A lock's name reaches Redis only through here.

use uuid::Uuid;

use crate::LockName;
use crate::backend::Topic;

/// Redisson's rule for a name derived with a prefix: braces are added, so that it falls into the
/// name's cluster slot, unless the name has an opening brace of its own.
fn prefixed(prefix: &str, name: &LockName) -> Vec<u8> {
    let name = name.as_bytes();
    let (open, close): (&[u8], &[u8]) =
        if name.contains(&b'{') { (b":", b"") } else { (b":{", b"}") };
    [prefix.as_bytes(), open, name, close].concat()
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
    }
}
