//! How wake-ups travel from the client that releases a lock to those that wait for it.

use crate::LockName;

/// How a store publishes wake-ups. Notices to clients are plain in every case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wakes {
    /// Outside of a cluster: one server has all subscribers.
    Plain,
    /// To all nodes of a cluster, as Redisson below 3.28 does.
    Classic,
    /// To the subscribers at the owner of the channel's slot.
    Sharded,
    /// In both ways, for a cluster with clients of either kind.
    Both,
    /// Not at all: of an acquire that is withdrawn and made once more.
    Silent,
}

impl Wakes {
    pub(super) fn is_cluster(self) -> bool {
        !matches!(self, Wakes::Plain | Wakes::Silent)
    }

    /// How wake-ups of a latch travel: plain if its name contains a brace, because the channel is then
    /// in another slot than the latch.
    pub(super) fn of_latch(self, name: &LockName) -> Self {
        match self.is_cluster() && name.as_bytes().contains(&b'{') {
            true => Wakes::Classic,
            false => self,
        }
    }

    /// The publish command for the scripts: see `notify.lua`.
    pub(super) fn publish(self) -> &'static str {
        match self {
            Wakes::Plain | Wakes::Classic => "PUBLISH",
            Wakes::Sharded => "SPUBLISH",
            Wakes::Both => "BOTH",
            Wakes::Silent => "",
        }
    }

    /// The form of `PUBSUB` that counts all listeners of a channel; `None` if no single server knows
    /// them all.
    pub(super) fn counting(self) -> Option<&'static str> {
        match self {
            Wakes::Plain => Some("NUMSUB"),
            Wakes::Sharded => Some("SHARDNUMSUB"),
            Wakes::Classic | Wakes::Both | Wakes::Silent => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Wakes; 4] = [Wakes::Plain, Wakes::Classic, Wakes::Sharded, Wakes::Both];

    #[test]
    fn a_latch_whose_channel_is_in_another_slot_is_woken_plainly() {
        let ways = |name: &str| ALL.map(|wakes| wakes.of_latch(&name.into()));
        assert_eq!(ways("a"), ALL);
        let classic = Wakes::Classic;
        assert_eq!(ways("{eu}:a"), [Wakes::Plain, classic, classic, classic]);
    }
}
