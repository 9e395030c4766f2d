//! Semaphores, permits with ids and latches: the scripts mean what the model does, no request that
//! comes again counts again, and every byte is Redisson's.

use std::time::Duration;

use lockkeeper::backend::model::State;
use lockkeeper::backend::redis::Redis;
use lockkeeper::backend::{
    Acquire, Attempt, Backend, Change, Changed, CountChange, Fault, Kind, PermitChange, Release,
    Released, Renew, Renewed, Resource, Ttl,
};
use lockkeeper::{ClientOptions, LockName, OwnerId, PermitId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use testkit::{Cli, RedisServer, Reply};
use uuid::Uuid;

use crate::check;
use crate::world::{Answer, Request, STEPS, Stored, TTLS, World, ask, same, same_stored};

const CASES: u32 = 600;
const LENGTH: usize = 40;

const NAMES: [&str; 2] = ["a", "b"];

/// More than a script counts.
const HUGE: u64 = 1 << 53;

const OWNERS: [&str; 4] = [
    "00000000-0000-4000-8000-00000000000a:100001",
    "00000000-0000-4000-8000-00000000000a:200002",
    "00000000-0000-4000-8000-00000000000b:300003",
    "00000000-0000-4000-8000-00000000000b:9223372036854775807",
];

/// The times of a kind. Answers are remembered for 60 s, which lies between the short steps and
/// away from all sums of them, as the times to live do; permits keep to the grid of the world.
struct Times {
    ttls: &'static [u64],
    steps: &'static [u64],
}

fn times(kind: Kind) -> Times {
    match kind {
        Kind::Permits => Times { ttls: &TTLS, steps: &STEPS },
        _ => Times { ttls: &[50_000, 110_000, 310_000], steps: &[40_000, 100_000] },
    }
}

fn named(kind: Kind, name: &str) -> Resource {
    Resource { kind, name: LockName::from(name) }
}

fn owner(index: usize) -> OwnerId {
    OWNERS[index].parse().expect("it is of the form <uuid>:<number>")
}

/// The permits of a hold, as the store counts them up.
fn ids(owner: OwnerId, count: u32) -> Vec<PermitId> {
    let text = owner.to_string();
    let number: u64 = text[37..].parse().expect("a number follows the uuid");
    let id = |i: u64| {
        let mut id = owner.client().into_bytes();
        id[8..].copy_from_slice(&number.wrapping_add(i).to_be_bytes());
        PermitId::from_bytes(id)
    };
    (0..u64::from(count)).map(id).collect()
}

fn change(kind: Kind) -> BoxedStrategy<CountChange> {
    let ttl = || prop::option::weighted(0.3, select(times(kind).ttls));
    let create = (1..6u64, ttl()).prop_map(|(count, ttl)| CountChange::Create { count, ttl });
    match kind {
        Kind::Latch => prop_oneof![
            3 => create,
            6 => Just(CountChange::Down),
            1 => Just(CountChange::Delete),
        ]
        .boxed(),
        Kind::Permits => prop_oneof![
            4 => create,
            2 => (-3..5i64).prop_map(CountChange::Add),
            2 => (0..7u64).prop_map(CountChange::Resize),
        ]
        .boxed(),
        _ => prop_oneof![
            4 => create,
            3 => (-3..5i64).prop_map(CountChange::Add),
            1 => Just(CountChange::Drain),
        ]
        .boxed(),
    }
}

/// What no counter of some kind, or none at all, can do.
fn bad_change() -> impl Strategy<Value = CountChange> {
    let edge = HUGE - 1;
    select(vec![
        CountChange::Create { count: 0, ttl: None },
        CountChange::Create { count: 1, ttl: Some(0) },
        CountChange::Create { count: HUGE, ttl: None },
        CountChange::Create { count: edge, ttl: None },
        CountChange::Add(i64::MIN),
        CountChange::Add(edge as i64),
        CountChange::Add(-(edge as i64)),
        CountChange::Resize(2),
        CountChange::Resize(HUGE),
        CountChange::Resize(edge),
        CountChange::Drain,
        CountChange::Down,
        CountChange::Delete,
    ])
}

#[derive(Clone, Debug)]
enum Step {
    Send(Request),
    /// Something else takes the name, if it is free.
    Plant(Resource),
    /// Whatever else it is, it goes.
    Uproot(Resource),
    Pass(u64),
}

fn request(kind: Kind) -> BoxedStrategy<Request> {
    let resource = || select(&NAMES[..]).prop_map(move |name| named(kind, name));
    let own = move || (resource(), (0..OWNERS.len()).prop_map(owner), 0..4u32);
    let ttl = || select(times(kind).ttls);
    let acquire = (own(), ttl()).prop_map(|((resource, owner, count), ttl)| {
        Request::Acquire(Acquire { count, ..Acquire::new(resource, owner, ttl) })
    });
    let release = (own(), prop::option::weighted(0.2, ttl()), any::<bool>());
    let release = release.prop_map(|((resource, owner, count), ttl, undo)| {
        let (keep, leave) = (u32::from(ttl.is_some()), ttl.is_some());
        Request::Release(Release { count, keep, ttl, leave, undo, ..Release::new(resource, owner) })
    });
    let renew = (own(), prop::option::of(ttl())).prop_map(|((resource, owner, count), ttl)| {
        Renew { count, ..Renew::new(resource, owner, ttl) }
    });
    let renew = vec(renew, 1..4).prop_map(Request::Renew);
    let changes = prop_oneof![8 => change(kind), 1 => bad_change()];
    let count = (own(), changes).prop_map(|((resource, id, _), change)| {
        Request::Adjust(Change::Count { resource, id, change })
    });
    let lease = prop::option::of(ttl());
    let by_id =
        (own(), own(), lease).prop_map(|((resource, one, count), (_, other, more), lease)| {
            let ids = [ids(one, count), ids(other, more / 2)].concat();
            let change = lease.map_or(PermitChange::Release, PermitChange::Lease);
            Request::Adjust(Change::Permits {
                resource,
                id: OwnerId::fresh(uuid::Uuid::nil()),
                ids,
                change,
            })
        });
    let inspect = resource().prop_map(Request::Inspect);
    match kind {
        Kind::Latch => prop_oneof![
            12 => count, 1 => acquire, 1 => release, 1 => by_id, 1 => inspect,
        ]
        .boxed(),
        Kind::Permits => prop_oneof![
            6 => acquire, 4 => release, 3 => renew, 4 => count, 2 => by_id, 1 => inspect,
        ]
        .boxed(),
        _ => prop_oneof![6 => acquire, 5 => release, 4 => count, 1 => by_id, 1 => inspect].boxed(),
    }
}

fn step(kind: Kind) -> impl Strategy<Value = Step> {
    let other = (select(&[Kind::Lock, Kind::Mutex][..]), select(&NAMES[..]));
    let other = other.prop_map(|(kind, name)| named(kind, name));
    prop_oneof![
        30 => request(kind).prop_map(Step::Send),
        1 => other.clone().prop_map(Step::Plant),
        2 => other.prop_map(Step::Uproot),
        3 => select(times(kind).steps).prop_map(Step::Pass),
    ]
}

fn agree(kind: Kind) {
    let mut world = World::new();
    check(CASES, vec(step(kind), 1..LENGTH), |steps| {
        world.reset();
        for step in steps {
            match step {
                Step::Send(request) => drop(world.send(request)?),
                Step::Plant(other) if world.kind(&other.name).is_none() => {
                    let acquire = Acquire::new(other.clone(), owner(0), TTLS[4]);
                    world.send(&Request::Acquire(acquire))?;
                }
                Step::Uproot(other) if world.kind(&other.name) == Some(other.kind) => {
                    world.send(&Request::ForceUnlock(other.clone()))?;
                }
                Step::Plant(_) | Step::Uproot(_) => {}
                Step::Pass(span) => world.pass(*span),
            }
        }
        for name in NAMES {
            let found = world.kind(&LockName::from(name));
            let other = found.filter(|kind| matches!(kind, Kind::Lock | Kind::Mutex));
            world.stored(&named(other.unwrap_or(kind), name))?;
        }
        Ok(())
    });
}

#[test]
fn the_scripts_of_the_semaphore_agree_with_the_model() {
    agree(Kind::Semaphore);
}

#[test]
fn the_scripts_of_the_permits_agree_with_the_model() {
    agree(Kind::Permits);
}

#[test]
fn the_scripts_of_the_latch_agree_with_the_model() {
    agree(Kind::Latch);
}

/// What an engine does, each with a fresh id.
#[derive(Clone, Debug)]
enum Act {
    Take {
        count: u32,
        ttl: u64,
    },
    /// Gives a hold back; knows that it was granted, or does not.
    Give {
        which: Index,
        undo: bool,
    },
    /// Undoes a request that has not arrived yet.
    UndoFirst {
        count: u32,
        ttl: u64,
    },
    Renew {
        which: Index,
        ttl: u64,
    },
    /// Gives a hold back by the ids of its permits.
    GiveByIds {
        which: Index,
    },
    Change(CountChange),
    /// A request that was answered arrives once more.
    Late(Index),
    Pass(u64),
}

fn act(kind: Kind) -> BoxedStrategy<Act> {
    let ttl = || select(times(kind).ttls);
    let which = any::<Index>;
    let change = change(kind).prop_map(Act::Change);
    let late = which().prop_map(Act::Late);
    let pass = select(times(kind).steps).prop_map(Act::Pass);
    if kind == Kind::Latch {
        return prop_oneof![6 => change, 4 => late, 1 => pass].boxed();
    }
    let by_ids = u32::from(kind == Kind::Permits) * 2;
    prop_oneof![
        5 => (1..4u32, ttl()).prop_map(|(count, ttl)| Act::Take { count, ttl }),
        4 => (which(), any::<bool>()).prop_map(|(which, undo)| Act::Give { which, undo }),
        1 => (1..3u32, ttl()).prop_map(|(count, ttl)| Act::UndoFirst { count, ttl }),
        by_ids => (which(), ttl()).prop_map(|(which, ttl)| Act::Renew { which, ttl }),
        by_ids => which().prop_map(|which| Act::GiveByIds { which }),
        4 => change,
        8 => late,
        2 => pass,
    ]
    .boxed()
}

/// A server to which the network repeats what it likes, and a model that hears everything once.
struct Play<'a> {
    world: &'a mut World,
    once: State,
    resource: Resource,
    client: Uuid,
    holds: Vec<(OwnerId, u32)>,
    past: Vec<(Request, Answer, u64)>,
}

impl Play<'_> {
    fn act(&mut self, act: &Act, times: usize) -> Result<(), String> {
        let (resource, id) = (self.resource.clone(), OwnerId::fresh(self.client));
        match *act {
            Act::Take { count, ttl } => {
                let request =
                    Request::Acquire(Acquire { count, ..Acquire::new(resource, id, ttl) });
                let answer = self.send(&request, times)?;
                if matches!(answer, Answer::Acquire(Ok(Attempt::Granted { .. }))) {
                    self.holds.push((id, count));
                }
            }
            Act::Give { which, undo } => {
                let Some((id, count)) = self.hold(which) else { return Ok(()) };
                let release = Release { count, undo, ..Release::new(resource, id) };
                self.send(&Request::Release(release), times)?;
            }
            Act::UndoFirst { count, ttl } => {
                let release = Release { count, undo: true, ..Release::new(resource.clone(), id) };
                self.send(&Request::Release(release), times)?;
                let acquire = Acquire { count, ..Acquire::new(resource, id, ttl) };
                let gone = Answer::Acquire(Ok(Attempt::Gone));
                self.past.push((Request::Acquire(acquire), gone, self.world.now));
            }
            Act::Renew { which, ttl } => {
                let Some((id, count)) = self.hold(which) else { return Ok(()) };
                self.holds.push((id, count));
                let renew = Renew { count, ..Renew::new(resource, id, Some(ttl)) };
                self.send(&Request::Renew(vec![renew]), times)?;
            }
            Act::GiveByIds { which } => {
                let Some((id, count)) = self.hold(which) else { return Ok(()) };
                let (ids, change) = (ids(id, count), PermitChange::Release);
                self.send(
                    &Request::Adjust(Change::Permits {
                        resource,
                        id: OwnerId::fresh(uuid::Uuid::nil()),
                        ids,
                        change,
                    }),
                    times,
                )?;
            }
            Act::Change(change) => {
                self.send(&Request::Adjust(Change::Count { resource, id, change }), times)?;
            }
            Act::Late(index) => self.late(index)?,
            Act::Pass(span) => self.world.pass(span),
        }
        self.check()
    }

    fn hold(&mut self, which: Index) -> Option<(OwnerId, u32)> {
        let any = !self.holds.is_empty();
        any.then(|| self.holds.swap_remove(which.index(self.holds.len())))
    }

    /// The server hears it so many times.
    fn send(&mut self, request: &Request, times: usize) -> Result<Answer, String> {
        let expected = ask(&mut self.once, request, self.world.now);
        for time in 0..times {
            let answer = self.world.send(request)?;
            self.compare(&expected, &answer, time > 0)?;
            self.check()?;
        }
        self.past.push((request.clone(), expected.clone(), self.world.now));
        Ok(expected)
    }

    /// Within the time for which answers are remembered.
    fn late(&mut self, index: Index) -> Result<(), String> {
        let by_ids = self.resource.kind == Kind::Permits;
        let late = self.past.iter().filter(|(request, answer, at)| match (request, answer) {
            // It may be granted now, as it may if the engine sends it again.
            (_, Answer::Acquire(Ok(Attempt::Busy(_)))) => false,
            // Of permits with ids, it is the lease that ends what is granted late.
            (Request::Acquire(_) | Request::Renew(_), _) if by_ids => false,
            (_, Answer::Acquire(Err(_)) | Answer::Adjust(Err(_))) => false,
            _ => self.world.now - at <= 60_000,
        });
        let late: Vec<_> = late.cloned().collect();
        if late.is_empty() {
            return Ok(());
        }
        let (request, expected, _) = &late[index.index(late.len())];
        let answer = self.world.send(request)?;
        self.compare(expected, &answer, true)
    }

    fn compare(&self, first: &Answer, answer: &Answer, again: bool) -> Result<(), String> {
        let by_ids = self.resource.kind == Kind::Permits;
        let fits = same(first, answer)
            || again
                && match (first, answer) {
                    // Given back since.
                    (Answer::Acquire(_), Answer::Acquire(Ok(Attempt::Gone))) => true,
                    // Ids that are gone are gone.
                    (Answer::Release(_), Answer::Release(Ok(Released::Absent { .. })))
                    | (Answer::Adjust(_), Answer::Adjust(Ok(Changed::Nothing))) => by_ids,
                    (Answer::Renew(_), Answer::Renew(_)) => true,
                    _ => false,
                };
        if fits {
            return Ok(());
        }
        Err(self.world.failure(format!("first {first:?}, then {answer:?}")))
    }

    fn check(&mut self) -> Result<(), String> {
        let found = self.world.stored(&self.resource)?;
        let once = self.once.inspect(&self.resource, self.world.now);
        let once = Stored::from(once.expect("it is nothing else"));
        if same_stored(&once, &found) {
            return Ok(());
        }
        Err(self.world.failure(format!("heard once {once:?}, repeated {found:?}")))
    }
}

fn repeat(kind: Kind) {
    let mut world = World::new();
    check(CASES, vec((act(kind), 1..3usize), 1..LENGTH), |acts| {
        world.reset();
        let mut play = Play {
            world: &mut world,
            once: State::default(),
            resource: named(kind, "a"),
            client: Uuid::new_v4(),
            holds: Vec::new(),
            past: Vec::new(),
        };
        acts.iter().try_for_each(|(act, times)| play.act(act, *times))
    });
}

#[test]
fn repeated_and_late_requests_count_once_at_a_semaphore() {
    repeat(Kind::Semaphore);
}

#[test]
fn repeated_and_late_requests_count_once_at_permits() {
    repeat(Kind::Permits);
}

#[test]
fn repeated_and_late_requests_count_once_at_a_latch() {
    repeat(Kind::Latch);
}

/// A server, and our store on it.
struct Wire {
    server: RedisServer,
    store: Redis,
}

impl Wire {
    async fn start() -> Self {
        let server = RedisServer::start();
        let store = Redis::connect(&server.url(), &ClientOptions::new()).await.unwrap();
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
    assert_eq!(wire.take(&semaphore, fresh(), 2).await, Ok(Attempt::Busy(None)));
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
async fn permits_of_a_semaphore_that_is_gone_make_no_new_one() {
    let wire = Wire::start().await;
    for (kind, name) in [(Kind::Semaphore, "s"), (Kind::Permits, "p")] {
        let (resource, owner) = (named(kind, name), fresh());
        let unset = wire.take(&resource, owner, 1).await;
        let detail = "the semaphore has no permits set: call try_set_permits first".to_owned();
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
async fn old_answers_are_swept_out() {
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
        Ok(Attempt::Busy(Some(Ttl::Millis(left)))) => assert!((1..=30_000).contains(&left)),
        other => panic!("{other:?}"),
    }
    assert_eq!(wire.heard(&mut channel, "redisson_sc:{p}"), ["3"]);
    // All of them, or none: the last is nobody's. The first is named twice and counts once.
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
    assert_eq!(wire.take(&permits, fresh(), 1).await, Ok(Attempt::Busy(None)));
    let snapshot = wire.store.inspect(permits.clone()).await.unwrap();
    assert_eq!((snapshot.count, snapshot.taken), (Some(0), 1));
    // It has ended, and whoever comes next sweeps it out.
    let mut channel = wire.listen("redisson_sc:{p}");
    wire.server.cli(&[&b"ZADD"[..], set.as_bytes(), b"1000", java]).ok();
    let snapshot = wire.store.inspect(permits.clone()).await.unwrap();
    assert_eq!((snapshot.count, snapshot.taken), (Some(1), 0));
    assert_eq!(wire.get("p").text(), "0", "a look writes nothing");
    assert!(matches!(wire.take(&permits, fresh(), 2).await, Ok(Attempt::Busy(_))));
    assert_eq!((wire.get("p").text(), wire.ends(set).len()), ("1", 0));
    assert_eq!(wire.heard(&mut channel, "redisson_sc:{p}"), ["1"]);
}

#[tokio::test]
async fn ended_permits_are_swept_out_by_the_hundred() {
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
    // The total knows of those that are not swept out yet.
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
async fn taken_permits_stay_as_long_as_their_semaphore() {
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
async fn what_gives_back_or_renews_works_without_memory() {
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

#[tokio::test]
async fn who_may_not_publish_gives_back_all_the_same() {
    let wire = Wire::start().await;
    let rules = ["ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels"];
    wire.server.cli(&rules).ok();
    let url = wire.server.url_with("mute", "secret");
    let store = Redis::connect(&url, &ClientOptions::new()).await.unwrap();
    let wire = Wire { store, ..wire };
    for (kind, name) in [(Kind::Semaphore, "s"), (Kind::Permits, "p")] {
        let (resource, owner) = (named(kind, name), fresh());
        wire.create(&resource, 2, None).await;
        assert_eq!(wire.take(&resource, owner, 1).await, Ok(Attempt::GRANTED));
        let unheard = Released::Freed { listeners: None };
        assert_eq!(wire.give(&resource, owner, 1).await, unheard);
        assert_eq!(wire.get(name).text(), "2");
    }
    let latch = named(Kind::Latch, "l");
    wire.create(&latch, 1, None).await;
    assert_eq!(wire.count(&latch, CountChange::Down).await, Ok(Changed::Count(0)));
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
async fn what_is_something_else_stays_as_it_is() {
    let (wire, owner) = (Wire::start().await, fresh());
    for other in OTHERS {
        wire.server.cli(&["FLUSHALL"]).ok();
        wire.create(&named(Kind::Permits, "x"), 2, None).await;
        assert_eq!(wire.take(&named(Kind::Permits, "x"), owner, 1).await, Ok(Attempt::GRANTED));
        wire.server.cli(&["DEL", "x", "lockkeeper_replies:{x}"]).ok();
        wire.server.cli(other).ok();
        finds_something_else(&wire, &[Kind::Semaphore, Kind::Permits, Kind::Latch], owner).await;
    }
    // Somebody's data in the place of the permits.
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
    assert!(matches!(answers[2], Ok(Renewed::Held(Ttl::Millis(_)))), "{answers:?}");
    assert_eq!(wire.server.commandstats("evalsha"), calls + 1, "none is asked about alone");
    assert!(wire.ends("{c}:timeout")[0].1 > wire.now() + 60_000);
}
