//! Semaphores, permits with ids and latches on the wire: every byte is Redisson's, and what is not ours
//! stays as it is.

use std::time::Duration;

use lockkeeper::backend::{
    Acquire, Attempt, Backend, Change, Changed, CountChange, Fault, Kind, PermitChange, Release,
    Released, Renew, Renewed, Resource, Ttl,
};
use lockkeeper::stores::Redis;
use lockkeeper::{OwnerId, PermitId};
use testkit::{Cli, RedisServer, Reply};
use uuid::Uuid;

use crate::counters::{HUGE, ids, named};

/// A server, and our store on it.
struct Wire {
    server: RedisServer,
    store: Redis,
}

impl Wire {
    async fn start() -> Self {
        let server = RedisServer::start();
        let store = Redis::connect(&server.url(), &crate::options()).await.unwrap();
        Self { server, store }
    }

    fn get(&self, key: &str) -> Reply {
        self.server.cli(&["GET", key])
    }

    fn listen(&self, channel: &str) -> Cli {
        let mut cli = self.server.connection();
        cli.subscribe(&[channel]);
        cli
    }

    /// What was published since the last time.
    fn heard(&self, cli: &mut Cli, channel: &str) -> Vec<String> {
        self.server.cli(&["PUBLISH", channel, "end"]).ok();
        let messages = std::iter::from_fn(|| cli.next_message(Duration::from_secs(5)));
        let messages = messages.map(|(_, message)| String::from_utf8(message).unwrap());
        messages.take_while(|message| message != "end").collect()
    }

    async fn count(&self, resource: &Resource, change: CountChange) -> Result<Changed, Fault> {
        let (resource, id) = (resource.clone(), fresh());
        self.store.adjust(Change::Count { resource, id, change }).await
    }

    async fn create(&self, resource: &Resource, count: u64, ttl: Option<u64>) {
        let created = self.count(resource, CountChange::Create { count, ttl }).await;
        assert_eq!(created, Ok(Changed::Done));
    }

    async fn by_ids(
        &self,
        resource: &Resource,
        ids: Vec<PermitId>,
        change: PermitChange,
    ) -> Result<Changed, Fault> {
        let resource = resource.clone();
        self.store
            .adjust(Change::Permits {
                resource,
                id: OwnerId::fresh(uuid::Uuid::nil()),
                ids,
                change,
            })
            .await
    }

    async fn take(
        &self,
        resource: &Resource,
        owner: OwnerId,
        count: u32,
    ) -> Result<Attempt, Fault> {
        let acquire = Acquire { count, ..Acquire::new(resource.clone(), owner, 30_000) };
        self.store.acquire(acquire).await
    }

    async fn give(&self, resource: &Resource, owner: OwnerId, count: u32) -> Released {
        let release = Release { count, ..Release::new(resource.clone(), owner) };
        self.store.release(release).await.unwrap()
    }

    async fn renew(&self, resource: &Resource, owner: OwnerId, ttl: Option<u64>) -> Renewed {
        let renew = Renew::new(resource.clone(), owner, ttl);
        self.store.renew(vec![renew]).await.remove(0).unwrap()
    }

    /// Members and scores, as they are.
    fn ends(&self, key: &str) -> Vec<(Vec<u8>, u64)> {
        let reply = self.server.cli(&["ZRANGE", key, "0", "-1", "WITHSCORES"]).ok();
        let pairs = reply.array().chunks(2).map(|pair| match pair {
            [Reply::Bulk(id), score] => (id.clone(), score.text().parse().unwrap()),
            _ => panic!("not a member: {pair:?}"),
        });
        pairs.collect()
    }

    fn now(&self) -> u64 {
        let time = self.server.cli(&["TIME"]).ok();
        let part = |i: usize| time.array()[i].text().parse::<u64>().unwrap();
        part(0) * 1000 + part(1) / 1000
    }
}

fn fresh() -> OwnerId {
    OwnerId::fresh(Uuid::new_v4())
}

fn freed(listeners: u64) -> Released {
    Released::Freed { listeners: Some(listeners) }
}

#[tokio::test]
async fn a_semaphore_is_redissons() {
    let (wire, semaphore) = (Wire::start().await, named(Kind::Semaphore, "s"));
    let mut channel = wire.listen("redisson_sc:{s}");
    wire.create(&semaphore, 3, Some(100_000)).await;
    assert_eq!(wire.get("s").text(), "3");
    let one = fresh();
    assert_eq!(wire.take(&semaphore, one, 2).await, Ok(Attempt::GRANTED));
    assert_eq!(wire.get("s").text(), "1");
    assert_eq!(
        wire.take(&semaphore, fresh(), 2).await,
        Ok(Attempt::Busy { ttl: None, listeners: 0 })
    );
    assert_eq!(wire.heard(&mut channel, "redisson_sc:{s}"), ["3"]);
    assert_eq!(wire.count(&semaphore, CountChange::Add(-4)).await, Ok(Changed::Count(-3)));
    assert_eq!(wire.give(&semaphore, one, 2).await, freed(0));
    assert_eq!(wire.count(&semaphore, CountChange::Drain).await, Ok(Changed::Count(0)));
    assert_eq!(wire.get("s").text(), "-1", "a debt stays");
    assert_eq!(wire.heard(&mut channel, "redisson_sc:{s}"), [""; 0], "never a negative number");
    assert_eq!(wire.count(&semaphore, CountChange::Add(6)).await, Ok(Changed::Count(5)));
    assert_eq!(wire.count(&semaphore, CountChange::Add(-1)).await, Ok(Changed::Count(4)));
    assert_eq!(wire.give(&semaphore, fresh(), 3).await, freed(1));
    assert_eq!(wire.heard(&mut channel, "redisson_sc:{s}"), ["5", "7"], "always the total");
    assert_eq!(wire.count(&semaphore, CountChange::Drain).await, Ok(Changed::Count(7)));
    assert_eq!(wire.get("s").text(), "0");
    let left = wire.server.cli(&["PTTL", "s"]).int();
    assert!((1..=100_000).contains(&left), "the time to live stays: {left}");
    let left = wire.server.cli(&["PTTL", "lockkeeper_replies:{s}"]).int();
    assert!((1..=60_000).contains(&left), "answers are remembered for a minute: {left}");
    let reply = wire.server.cli(&["HGET", "lockkeeper_replies:{s}", &one.to_string()]);
    let (at, answer) = reply.text().split_once(':').unwrap();
    assert!(wire.now() - at.parse::<u64>().unwrap() < 60_000 && answer == "GIVEN BACK");
}

#[tokio::test]
async fn releasing_permits_of_a_deleted_semaphore_does_not_recreate_it() {
    let wire = Wire::start().await;
    for (kind, name) in [(Kind::Semaphore, "s"), (Kind::Permits, "p")] {
        let (resource, owner) = (named(kind, name), fresh());
        let unset = wire.take(&resource, owner, 1).await;
        let detail = "the semaphore has no permits set: call try_set_permits first".into();
        assert_eq!(unset, Err(Fault::Invalid { detail }));
        assert!(matches!(
            wire.count(&resource, CountChange::Add(1)).await,
            Err(Fault::Invalid { .. })
        ));
        wire.create(&resource, 2, None).await;
        assert_eq!(wire.take(&resource, owner, 1).await, Ok(Attempt::GRANTED));
        wire.server.cli(&["DEL", name]).ok();
        wire.give(&resource, owner, 1).await;
        assert!(wire.get(name).is_nil(), "{kind}");
        // And a repetition is none of the next one's.
        wire.create(&resource, 2, None).await;
        assert_eq!(wire.give(&resource, owner, 1).await, Released::Absent { holder: None });
        assert_eq!(wire.get(name).text(), "2", "{kind}");
    }
}

#[tokio::test]
async fn more_than_can_be_counted_is_refused_before_anything_is_done() {
    let (wire, semaphore, owner) = (Wire::start().await, named(Kind::Semaphore, "s"), fresh());
    let most = HUGE - 1;
    wire.create(&semaphore, most, None).await;
    assert_eq!(wire.take(&semaphore, owner, 1).await, Ok(Attempt::GRANTED));
    assert_eq!(wire.get("s").text(), (most - 1).to_string(), "exactly");
    let drained = wire.count(&semaphore, CountChange::Drain).await;
    assert_eq!(drained, Ok(Changed::Count(most as i64 - 1)));
    wire.server.cli(&["SET", "s", &most.to_string()]).ok();
    let release = Release::new(semaphore.clone(), owner);
    assert!(matches!(wire.store.release(release).await, Err(Fault::Invalid { .. })));
    assert_eq!(wire.get("s").text(), most.to_string());
    wire.server.cli(&["SET", "s", "0"]).ok();
    assert_eq!(wire.give(&semaphore, owner, 1).await, freed(0), "it was not remembered as done");
    assert_eq!(wire.get("s").text(), "1");
}

#[tokio::test]
async fn old_answers_are_swept() {
    let (wire, semaphore) = (Wire::start().await, named(Kind::Semaphore, "s"));
    wire.create(&semaphore, 1, None).await;
    let fill = "for i = 1, 132000 do redis.call('HSET', KEYS[1], 'old' .. i, '1000:GRANTED') end";
    let key = "lockkeeper_replies:{s}";
    wire.server.cli(&["EVAL", fill, "1", key]).ok();
    for _ in 0..500 {
        wire.count(&semaphore, CountChange::Add(1)).await.unwrap();
    }
    let left = wire.server.cli(&["HLEN", key]).int();
    assert!((501..131_500).contains(&left), "{left} are left, of which 501 are young");
}

#[tokio::test]
async fn a_latch_is_redissons() {
    let (wire, latch) = (Wire::start().await, named(Kind::Latch, "{l}"));
    let name = "redisson_countdownlatch__channel__{{l}}";
    let mut channel = wire.listen(name);
    wire.create(&latch, 2, None).await;
    assert_eq!(wire.get("{l}").text(), "2");
    assert_eq!(wire.server.cli(&["PTTL", "{l}"]).int(), -1);
    let again = CountChange::Create { count: 9, ttl: None };
    assert_eq!(wire.count(&latch, again).await, Ok(Changed::Nothing));
    assert_eq!(wire.count(&latch, CountChange::Down).await, Ok(Changed::Count(1)));
    assert_eq!(wire.get("{l}").text(), "1");
    assert_eq!(wire.heard(&mut channel, name), ["1"]);
    assert_eq!(wire.count(&latch, CountChange::Down).await, Ok(Changed::Count(0)));
    assert!(wire.get("{l}").is_nil());
    assert_eq!(wire.count(&latch, CountChange::Down).await, Ok(Changed::Count(0)));
    assert_eq!(wire.count(&latch, CountChange::Delete).await, Ok(Changed::Nothing));
    assert_eq!(wire.heard(&mut channel, name), ["0"]);
    // Java's trySetCount(0) leaves this behind.
    wire.server.cli(&["SET", "{l}", "0"]).ok();
    assert_eq!(wire.count(&latch, again).await, Ok(Changed::Done));
    assert_eq!(wire.count(&latch, CountChange::Delete).await, Ok(Changed::Done));
    assert!(wire.get("{l}").is_nil());
    assert_eq!(wire.heard(&mut channel, name), ["1", "0"], "deleted, it lets everybody go");
}

#[tokio::test]
async fn permits_with_ids_are_redissons() {
    let (wire, permits, owner) = (Wire::start().await, named(Kind::Permits, "p"), fresh());
    let mut channel = wire.listen("redisson_sc:{p}");
    wire.create(&permits, 3, Some(100_000)).await;
    let before = wire.now();
    assert_eq!(wire.take(&permits, owner, 2).await, Ok(Attempt::GRANTED));
    let after = wire.now();
    assert_eq!(wire.get("p").text(), "1");
    let ends = wire.ends("{p}:timeout");
    let stored: Vec<_> = ends.iter().map(|(id, _)| id.clone()).collect();
    let mut expected: Vec<_> = ids(owner, 2).iter().map(|id| id.as_bytes().to_vec()).collect();
    expected.sort();
    assert_eq!(stored, expected);
    assert!(ends.iter().all(|(_, end)| (before + 30_000..=after + 30_000).contains(end)));
    // The set first: time passes between the two.
    let [set, semaphore] = ["{p}:timeout", "p"].map(|key| wire.server.cli(&["PTTL", key]).int());
    assert!(set > 0 && set <= 100_000 && set >= semaphore, "{semaphore} and {set}");
    match wire.take(&permits, fresh(), 2).await {
        Ok(Attempt::Busy { ttl: Some(Ttl::For(left)), .. }) => {
            assert!((1..=30_000).contains(&left.as_millis()))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(wire.heard(&mut channel, "redisson_sc:{p}"), ["3"]);
    // All or none: the last does not exist. The first is named twice and counts once.
    let (mine, release) = (ids(owner, 2), PermitChange::Release);
    let none = wire.by_ids(&permits, vec![mine[0], ids(fresh(), 1)[0]], release).await;
    assert_eq!((none, wire.get("p").text()), (Ok(Changed::Nothing), "1"));
    let twice = vec![mine[0], mine[0]];
    assert_eq!(wire.by_ids(&permits, twice, release).await, Ok(Changed::Done));
    assert_eq!(wire.get("p").text(), "2");
    assert!(matches!(wire.by_ids(&permits, Vec::new(), release).await, Err(Fault::Invalid { .. })));
    assert_eq!(wire.give(&permits, owner, 2).await, freed(1), "what is left of it");
    assert_eq!(wire.get("p").text(), "3");
    assert_eq!(wire.heard(&mut channel, "redisson_sc:{p}"), ["2", "3"], "always the total");
    assert_eq!(wire.count(&permits, CountChange::Resize(2)).await, Ok(Changed::Done));
    assert_eq!(wire.heard(&mut channel, "redisson_sc:{p}"), [""; 0], "fewer wake nobody");
    assert_eq!(wire.count(&permits, CountChange::Resize(5)).await, Ok(Changed::Done));
    assert_eq!(wire.heard(&mut channel, "redisson_sc:{p}"), ["5"]);
    let left = wire.server.cli(&["PTTL", "p"]).int();
    assert!((1..=100_000).contains(&left), "the time to live stays: {left}");
}

#[tokio::test]
async fn permits_of_java_count() {
    let (wire, permits) = (Wire::start().await, named(Kind::Permits, "p"));
    let (set, java) = ("{p}:timeout", b"\x00\xff0123456789abcd");
    wire.server.cli(&["SET", "p", "0"]).ok();
    // One without a lease.
    wire.server.cli(&[&b"ZADD"[..], set.as_bytes(), b"922337203685477", java]).ok();
    assert_eq!(
        wire.take(&permits, fresh(), 1).await,
        Ok(Attempt::Busy { ttl: None, listeners: 0 })
    );
    let snapshot = wire.store.inspect(permits.clone()).await.unwrap();
    assert_eq!((snapshot.count, snapshot.taken), (Some(0), 1));
    // It has expired, and the next request sweeps it.
    let mut channel = wire.listen("redisson_sc:{p}");
    wire.server.cli(&[&b"ZADD"[..], set.as_bytes(), b"1000", java]).ok();
    let snapshot = wire.store.inspect(permits.clone()).await.unwrap();
    assert_eq!((snapshot.count, snapshot.taken), (Some(1), 0));
    assert_eq!(wire.get("p").text(), "0", "a look writes nothing");
    assert!(matches!(wire.take(&permits, fresh(), 2).await, Ok(Attempt::Busy { .. })));
    assert_eq!((wire.get("p").text(), wire.ends(set).len()), ("1", 0));
    assert_eq!(wire.heard(&mut channel, "redisson_sc:{p}"), ["1"]);
}

#[tokio::test]
async fn expired_permits_are_swept_in_batches() {
    let (wire, permits) = (Wire::start().await, named(Kind::Permits, "p"));
    // The second is the last permit of the first, which is swept out last.
    let [owner, late] = [1, 8000].map(|number| format!("{}:{number}", Uuid::nil()));
    let [owner, late] = [owner, late].map(|id| id.parse::<OwnerId>().unwrap());
    wire.create(&permits, 8001, None).await;
    assert_eq!(wire.take(&permits, owner, 8000).await, Ok(Attempt::GRANTED));
    let (mine, soon) = (ids(owner, 8000), PermitChange::Lease(1));
    assert_eq!(wire.by_ids(&permits, mine, soon).await, Ok(Changed::Done));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(wire.renew(&permits, fresh(), None).await, Renewed::Gone);
    assert_eq!(wire.get("p").text(), "101");
    // The total includes expired permits that are not swept yet.
    assert_eq!(wire.count(&permits, CountChange::Resize(8002)).await, Ok(Changed::Done));
    assert_eq!(wire.get("p").text(), "202");
    let snapshot = wire.store.inspect(permits.clone()).await.unwrap();
    assert_eq!((snapshot.count, snapshot.taken), (Some(8002), 0));
    // What is late does not take the place of what has ended and is not swept out.
    assert_eq!(wire.take(&permits, late, 1).await, Ok(Attempt::Gone));
    assert_eq!(wire.give(&permits, owner, 8000).await, freed(0));
    assert_eq!((wire.get("p").text(), wire.ends("{p}:timeout").len()), ("8002", 0));
    assert!(matches!(wire.take(&permits, owner, 10_001).await, Err(Fault::Invalid { .. })));
}

#[tokio::test]
async fn held_permits_remain_as_long_as_their_semaphore() {
    let (wire, permits) = (Wire::start().await, named(Kind::Permits, "p"));
    wire.create(&permits, 9, Some(50_000)).await;
    let (set, one) = ("{p}:timeout", fresh());
    assert_eq!(wire.take(&permits, one, 1).await, Ok(Attempt::GRANTED));
    wire.server.cli(&["PEXPIRE", "p", "90000"]).ok();
    assert_eq!(wire.take(&permits, fresh(), 1).await, Ok(Attempt::GRANTED));
    assert!(wire.server.cli(&["PTTL", set]).int() > 50_000);
    wire.server.cli(&["PERSIST", "p"]).ok();
    assert_eq!(wire.take(&permits, fresh(), 1).await, Ok(Attempt::GRANTED));
    assert_eq!(wire.server.cli(&["PTTL", set]).int(), -1);
    // Permits of an earlier semaphore are not the new one's.
    wire.server.cli(&["DEL", "p"]).ok();
    assert!(matches!(wire.renew(&permits, one, None).await, Renewed::Held(_)));
    wire.create(&permits, 2, None).await;
    assert_eq!(wire.renew(&permits, one, None).await, Renewed::Gone);
    assert_eq!(wire.give(&permits, one, 1).await, Released::Absent { holder: None });
    assert_eq!(wire.get("p").text(), "2");
}

#[tokio::test]
async fn releases_and_renewals_succeed_without_memory() {
    let wire = Wire::start().await;
    let [semaphore, permits, latch] =
        [(Kind::Semaphore, "s"), (Kind::Permits, "p"), (Kind::Latch, "l")]
            .map(|(kind, name)| named(kind, name));
    let (one, two, lost) = (fresh(), fresh(), fresh());
    for resource in [&semaphore, &permits, &latch] {
        wire.create(resource, 3, None).await;
    }
    for resource in [&semaphore, &permits] {
        assert_eq!(wire.take(resource, one, 1).await, Ok(Attempt::GRANTED));
        assert_eq!(wire.take(resource, two, 1).await, Ok(Attempt::GRANTED));
    }
    // Nothing is remembered any more, as after a minute.
    wire.server.cli(&["DEL", "lockkeeper_replies:{s}", "lockkeeper_replies:{l}"]).ok();
    wire.server.cli(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    for resource in [&semaphore, &permits] {
        let refused = wire.take(resource, fresh(), 1).await;
        assert!(matches!(refused, Err(Fault::Refused { .. })), "{refused:?}");
        assert_eq!(wire.get(std::str::from_utf8(resource.name.as_bytes()).unwrap()).text(), "1");
    }
    let undo = Release { undo: true, ..Release::new(semaphore.clone(), lost) };
    assert_eq!(wire.store.release(undo).await, Ok(Released::Absent { holder: None }));
    assert_eq!(wire.give(&semaphore, one, 1).await, freed(0));
    let lease = wire.by_ids(&permits, ids(two, 1), PermitChange::Lease(90_000)).await;
    assert_eq!(lease, Ok(Changed::Done));
    assert!(matches!(wire.renew(&permits, two, Some(200_000)).await, Renewed::Held(_)));
    assert_eq!(wire.give(&permits, one, 1).await, freed(0));
    assert_eq!(wire.count(&latch, CountChange::Down).await, Ok(Changed::Count(2)));
    assert_eq!(wire.count(&latch, CountChange::Delete).await, Ok(Changed::Done));
    wire.server.cli(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    assert_eq!(wire.take(&semaphore, lost, 1).await, Ok(Attempt::Gone), "it was cancelled");
    assert_eq!((wire.get("s").text(), wire.get("p").text()), ("2", "2"));
}

/// What stands under a name and is no counter: commands that put it there.
const OTHERS: [&[&str]; 7] = [
    &["SET", "x", "6e0c1b7a-3f0e-4a53-9c1d-7d8f0a2b4c6e:42"],
    &["SET", "x", ""],
    &["SET", "x", "007"],
    &["SET", "x", "1e3"],
    &["SET", "x", "9223372036854775807"],
    &["HSET", "x", "6e0c1b7a-3f0e-4a53-9c1d-7d8f0a2b4c6e:42", "1"],
    &["RPUSH", "x", "1"],
];

/// Every request of these kinds finds something else, and leaves everything as it is.
async fn finds_something_else(wire: &Wire, kinds: &[Kind], owner: OwnerId) {
    let keys = ["x", "{x}:timeout", "lockkeeper_replies:{x}"];
    let before = keys.map(|key| wire.server.cli(&["DUMP", key]));
    for kind in kinds {
        let resource = named(*kind, "x");
        let changes = match kind {
            Kind::Latch => vec![CountChange::Down, CountChange::Delete],
            Kind::Permits => vec![CountChange::Add(1), CountChange::Resize(3)],
            _ => vec![CountChange::Add(1), CountChange::Drain],
        };
        let create = CountChange::Create { count: 1, ttl: None };
        for change in changes.into_iter().chain([create]) {
            let answer = wire.count(&resource, change).await;
            assert!(matches!(answer, Err(Fault::WrongKind { .. })), "{change:?}: {answer:?}");
        }
        let answer = wire.store.inspect(resource.clone()).await;
        assert!(matches!(answer, Err(Fault::WrongKind { .. })), "{answer:?}");
        if *kind == Kind::Latch {
            continue;
        }
        let answer = wire.take(&resource, owner, 1).await;
        assert!(matches!(answer, Err(Fault::WrongKind { .. })), "{answer:?}");
        assert_eq!(wire.give(&resource, owner, 1).await, Released::Absent { holder: None });
        if *kind == Kind::Permits {
            for change in [PermitChange::Release, PermitChange::Lease(5)] {
                let answer = wire.by_ids(&resource, ids(owner, 1), change).await;
                assert!(matches!(answer, Err(Fault::WrongKind { .. })), "{answer:?}");
            }
        }
    }
    assert_eq!(keys.map(|key| wire.server.cli(&["DUMP", key])), before);
}

#[tokio::test]
async fn a_key_of_another_kind_is_not_changed() {
    let (wire, owner) = (Wire::start().await, fresh());
    for other in OTHERS {
        wire.server.cli(&["FLUSHALL"]).ok();
        wire.create(&named(Kind::Permits, "x"), 2, None).await;
        assert_eq!(wire.take(&named(Kind::Permits, "x"), owner, 1).await, Ok(Attempt::GRANTED));
        wire.server.cli(&["DEL", "x", "lockkeeper_replies:{x}"]).ok();
        wire.server.cli(other).ok();
        finds_something_else(&wire, &[Kind::Semaphore, Kind::Permits, Kind::Latch], owner).await;
    }
    // Other data in the key of the permits.
    wire.server.cli(&["FLUSHALL"]).ok();
    wire.server.cli(&["SET", "{x}:timeout", "data"]).ok();
    finds_something_else(&wire, &[Kind::Permits], owner).await;
    wire.server.cli(&["SET", "x", "4"]).ok();
    finds_something_else(&wire, &[Kind::Permits], owner).await;
}

#[tokio::test]
async fn one_bad_hold_does_not_spoil_the_renewal_of_the_others() {
    let (wire, owner) = (Wire::start().await, fresh());
    let all = ["a", "b", "c"].map(|name| named(Kind::Permits, name));
    for resource in &all {
        wire.create(resource, 1, None).await;
        assert_eq!(wire.take(resource, owner, 1).await, Ok(Attempt::GRANTED));
    }
    wire.server.cli(&["SET", "a", "data"]).ok();
    wire.server.cli(&["SET", "{b}:timeout", "data"]).ok();
    assert!(matches!(wire.renew(&all[2], owner, None).await, Renewed::Held(_)));
    let calls = wire.server.commandstats("evalsha");
    let batch = all.iter().map(|resource| Renew::new(resource.clone(), owner, Some(90_000)));
    let answers = wire.store.renew(batch.collect()).await;
    assert!(matches!(answers[0], Err(Fault::WrongKind { .. })), "{answers:?}");
    assert!(matches!(answers[1], Err(Fault::WrongKind { .. })), "{answers:?}");
    assert!(matches!(answers[2], Ok(Renewed::Held(Ttl::For(_)))), "{answers:?}");
    assert_eq!(wire.server.commandstats("evalsha"), calls + 1, "none is asked about alone");
    assert!(wire.ends("{c}:timeout")[0].1 > wire.now() + 60_000);
}
