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
    use testkit::Reply;
    use uuid::Uuid;

    use super::*;
    use crate::backend::{Acquire, Fenced, Kind, Release, Renew, Resource};
    use crate::redis::connection::subscriber::{Event, Mode, Subscriber};
    use crate::redis::testing::{arguments, cluster, run};
    use crate::redis::{fair, keys, lock, permits, rw, url};
    use crate::{ClientOptions, OwnerId};

    const ALL: [Wakes; 4] = [Wakes::Plain, Wakes::Classic, Wakes::Sharded, Wakes::Both];

    /// That it is heard there as well, the tests with Redisson prove, which has each of these ways.
    #[test]
    fn each_request_that_may_free_a_lock_carries_its_way_and_channel() {
        let owner = OwnerId::fresh(Uuid::new_v4());
        let of = |kind| Release::new(Resource { kind, name: "a".into() }, owner);
        let place = Renew { waiting: true, ..Renew::new(of(Kind::Fair).resource, owner, None) };
        let name = LockName::from("a");
        let channels = [keys::channel, keys::rw_channel, keys::permits_channel];
        let [freed, rw, permits] = channels.map(|channel| channel(&name).to_vec());
        for wakes in ALL {
            let permits_release = permits::release(&of(Kind::Permits), wakes).unwrap();
            for (arguments, channel) in [
                (arguments(lock::release(&of(Kind::Lock), wakes)), &freed),
                (arguments(lock::release_mutex(&of(Kind::Mutex), wakes)), &freed),
                (arguments(fair::release(&of(Kind::Fair), wakes)), &freed),
                (arguments(fair::keep_places(&[&place], wakes)), &freed),
                (arguments(rw::release_read(&of(Kind::Read), wakes)), &rw),
                (arguments(rw::release_write(&of(Kind::Write), wakes)), &rw),
                (arguments(permits_release), &permits),
            ] {
                let way = wakes.publish().as_bytes();
                assert!(arguments.iter().any(|one| one == way), "{wakes:?}: {arguments:?}");
                assert!(arguments.contains(channel), "{wakes:?}: {arguments:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_busy_answer_counts_listeners_where_one_server_knows_them_all() {
        let server = cluster();
        let client = Uuid::new_v4();
        for wakes in ALL {
            server.cli(&["FLUSHALL"]).ok();
            server.cli(&["SET", "permits", "1"]).ok();
            let mode = if wakes == Wakes::Sharded { Mode::Sharded } else { Mode::Plain };
            let options = ClientOptions::new();
            let address = url::server(&server.url(), &options).unwrap();
            let mut listener = Subscriber::open(&address, &options, mode).await.unwrap();
            let of = |kind: Kind, name: &str| Resource { kind, name: name.into() };
            let first = |resource: &Resource| {
                Acquire::new(resource.clone(), OwnerId::fresh(client), 60_000)
            };
            let waits = |resource: &Resource| Acquire { waits: true, ..first(resource) };
            let (locked, permits) = (of(Kind::Lock, "lock"), of(Kind::Permits, "permits"));
            for channel in [keys::channel(&locked.name), keys::permits_channel(&permits.name)] {
                listener.subscribe(vec![channel.to_vec()]);
                assert_eq!(listener.event().await, Ok(Event::Subscribed(channel.to_vec())));
            }
            run(&server, lock::acquire(&first(&locked), wakes));
            run(&server, permits::acquire(&first(&permits), wakes).unwrap());
            let fenced = Some(Fenced { ttl: None });
            let busy = [
                lock::acquire(&waits(&locked), wakes),
                lock::acquire(&Acquire { fenced, ..waits(&locked) }, wakes),
                permits::acquire(&waits(&permits), wakes).unwrap(),
            ];
            for busy in busy {
                match run(&server, busy) {
                    Reply::Array(parts) => {
                        assert!(wakes.counting().is_some(), "{wakes:?}");
                        assert_eq!(parts[1].int(), 1, "{wakes:?}");
                    }
                    Reply::Int(left) => {
                        assert!(left > 0 && wakes.counting().is_none(), "{wakes:?}");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_latch_whose_channel_is_in_another_slot_is_woken_plainly() {
        let ways = |name: &str| ALL.map(|wakes| wakes.of_latch(&name.into()));
        assert_eq!(ways("a"), ALL);
        let classic = Wakes::Classic;
        assert_eq!(ways("{eu}:a"), [Wakes::Plain, classic, classic, classic]);
    }
}
