//! Finding a byte string in streams that arrive in pieces.

use std::collections::HashMap;

use super::ConnId;

/// A needle, and per connection the end of what it has sent: the needle may lie across two reads.
#[derive(Debug)]
pub(super) struct Matcher {
    needle: Vec<u8>,
    /// At most one byte less than the needle each, so that no occurrence is counted twice.
    tails: HashMap<ConnId, Vec<u8>>,
}

impl Matcher {
    pub(super) fn new(needle: &[u8]) -> Self {
        assert!(!needle.is_empty(), "an empty needle is in everything");
        Self { needle: needle.to_vec(), tails: HashMap::new() }
    }

    /// How often the needle ends within `bytes`.
    pub(super) fn feed(&mut self, id: ConnId, bytes: &[u8]) -> usize {
        let tail = self.tails.entry(id).or_default();
        tail.extend_from_slice(bytes);
        let found = tail.windows(self.needle.len()).filter(|part| *part == self.needle).count();
        let surplus = tail.len().saturating_sub(self.needle.len() - 1);
        tail.drain(..surplus);
        found
    }

    pub(super) fn forget(&mut self, id: ConnId) {
        self.tails.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnId, Matcher};

    #[test]
    fn a_needle_is_found_across_reads_once_and_not_across_connections() {
        let (a, b) = (ConnId::nth(0), ConnId::nth(1));
        let mut matcher = Matcher::new(b"abc");
        assert_eq!(matcher.feed(a, b"xab"), 0);
        assert_eq!(matcher.feed(b, b"c"), 0);
        assert_eq!(matcher.feed(a, b"c"), 1);
        assert_eq!(matcher.feed(a, b"abcabc"), 2);
        assert_eq!(matcher.feed(a, b""), 0);
    }
}
