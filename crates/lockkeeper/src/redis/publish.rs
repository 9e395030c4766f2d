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
    use testkit::{RedisServer, Reply};
    use uuid::Uuid;

    use super::*;
    use crate::backend::{Acquire, Fenced, Kind, Release, Renew, Resource, Topic};
    use crate::redis::command::Command;
    use crate::redis::connection::subscriber::{Event, Mode, Subscriber};
    use crate::redis::testing::{cluster, run};
    use crate::redis::{fair, keys, lock, permits, rw, url};
    use crate::{ClientOptions, OwnerId};

    /// A listener of either kind.
    struct Listener(Subscriber, &'static str);

    impl Listener {
        async fn new(server: &RedisServer, mode: Mode, publish: &'static str) -> Self {
            let options = ClientOptions::new();
            let server = url::server(&server.url(), &options).unwrap();
            Self(Subscriber::open(&server, &options, mode).await.unwrap(), publish)
        }

        async fn listen(&mut self, channel: &[u8]) {
            self.0.subscribe(vec![channel.to_vec()]);
            assert_eq!(self.0.event().await.unwrap(), Event::Subscribed(channel.to_vec()));
        }

        /// How many messages have arrived on the channel, the last of them an end of our own.
        async fn heard(&mut self, server: &RedisServer, channel: &[u8]) -> u32 {
            server.cli(&[self.1.as_bytes(), channel, b"end"]).ok();
            let mut heard = 0;
            loop {
                match self.0.event().await.unwrap() {
                    Event::Message { payload, .. } if payload == b"end" => return heard,
                    Event::Message { .. } => heard += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    const ALL: [Wakes; 4] = [Wakes::Plain, Wakes::Classic, Wakes::Sharded, Wakes::Both];

    /// What acquires a lock, what releases it, and where that is published.
    fn pairs(wakes: Wakes) -> Vec<(Vec<Command>, Command, Topic)> {
        let client = Uuid::new_v4();
        let [one, other] = [(); 2].map(|()| OwnerId::fresh(client));
        let of = |kind: Kind, name: &str| Resource { kind, name: name.into() };
        let acquire = |resource: &Resource| Acquire::new(resource.clone(), one, 60_000);
        let release = |resource: &Resource| Release::new(resource.clone(), one);
        let (locked, mutex, fair) =
            (of(Kind::Lock, "lock"), of(Kind::Mutex, "mutex"), of(Kind::Fair, "fair"));
        let (queued, read, write) =
            (of(Kind::Fair, "queued"), of(Kind::Read, "read"), of(Kind::Write, "write"));
        let permits = of(Kind::Permits, "permits");
        let waiter = Acquire { owner: other, waits: true, ..acquire(&queued) };
        let (create, kept) =
            (Command::plain("SET").arg("permits").arg("1"), of(Kind::Fair, "kept"));
        let place = Acquire { owner: other, waits: true, ..acquire(&kept) };
        let renew = Renew { waiting: true, ..Renew::new(kept.clone(), other, None) };
        let free = Command::plain("DEL").arg("kept");
        vec![
            (
                vec![lock::acquire(&acquire(&locked), wakes)],
                lock::release(&release(&locked), wakes),
                Topic::Freed(locked.name),
            ),
            (
                vec![lock::acquire_mutex(&acquire(&mutex), false)],
                lock::release_mutex(&release(&mutex), wakes),
                Topic::Freed(mutex.name),
            ),
            (
                vec![fair::acquire(&acquire(&fair), wakes)],
                fair::release(&release(&fair), wakes),
                Topic::Freed(fair.name),
            ),
            (
                vec![fair::acquire(&acquire(&queued), wakes), fair::acquire(&waiter, wakes)],
                fair::release(&release(&queued), wakes),
                Topic::Turn(queued.name, other),
            ),
            (
                vec![fair::acquire(&acquire(&kept), wakes), fair::acquire(&place, wakes), free],
                fair::keep_places(&[&renew], wakes),
                Topic::Turn(kept.name.clone(), other),
            ),
            (
                vec![rw::acquire_read(&acquire(&read), wakes).unwrap()],
                rw::release_read(&release(&read), wakes),
                Topic::Rw(read.name),
            ),
            (
                vec![rw::acquire_write(&acquire(&write), wakes).unwrap()],
                rw::release_write(&release(&write), wakes),
                Topic::Rw(write.name),
            ),
            (
                vec![create, permits::acquire(&acquire(&permits), wakes).unwrap()],
                permits::release(&release(&permits), wakes).unwrap(),
                Topic::Permits(permits.name),
            ),
        ]
    }

    #[tokio::test]
    async fn a_release_reaches_the_listeners_of_its_way() {
        let server = cluster();
        for wakes in ALL {
            let plain = u32::from(wakes != Wakes::Sharded);
            let sharded = u32::from(matches!(wakes, Wakes::Sharded | Wakes::Both));
            for (before, release, topic) in pairs(wakes) {
                let channel = keys::topic_channel(&topic).unwrap();
                let mut classic = Listener::new(&server, Mode::Plain, "PUBLISH").await;
                let mut modern = Listener::new(&server, Mode::Sharded, "SPUBLISH").await;
                classic.listen(&channel).await;
                modern.listen(&channel).await;
                for command in before {
                    run(&server, command);
                }
                match run(&server, release) {
                    Reply::Int(told) => assert_eq!(told, 1, "{wakes:?} {topic:?}"),
                    Reply::Array(due) => assert_eq!(due[0].int(), -5, "it is its turn"),
                    other => panic!("{wakes:?} {topic:?}: {other:?}"),
                }
                let heard =
                    (classic.heard(&server, &channel).await, modern.heard(&server, &channel).await);
                assert_eq!(heard, (plain, sharded), "{wakes:?} {topic:?}");
            }
            server.cli(&["FLUSHALL"]).ok();
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
            let mut listener = Listener::new(&server, mode, "").await;
            let of = |kind: Kind, name: &str| Resource { kind, name: name.into() };
            let first = |resource: &Resource| {
                Acquire::new(resource.clone(), OwnerId::fresh(client), 60_000)
            };
            let waits = |resource: &Resource| Acquire { waits: true, ..first(resource) };
            let (locked, permits) = (of(Kind::Lock, "lock"), of(Kind::Permits, "permits"));
            listener.listen(&keys::channel(&locked.name).to_vec()).await;
            listener.listen(&keys::permits_channel(&permits.name).to_vec()).await;
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
