//! The read/write lock: the scripts agree with the model, also in whom they wake, and what they write
//! is Redisson's.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use lockkeeper::LockName;
use lockkeeper::backend::{
    Acquire, Attempt, Backend, Fault, Fenced, Kind, Release, Released, Renew, Renewed, Resource,
    Topic, Ttl,
};
use lockkeeper::stores::Redis;
use proptest::prelude::*;
use proptest::sample::select;
use testkit::{Cli, RedisServer};

use crate::agreement::{self, OWNERS, Step, id};
use crate::world::{Answer, Request, STEPS, TTLS, World};
use crate::{Outcome, check, in_time};

const CASES: u32 = 2_000;

const NAMES: [&str; 2] = ["a", "{b}:c"];

/// Their channels.
const CHANNELS: [&str; 2] = ["redisson_rwlock:{a}", "redisson_rwlock:{b}:c"];

/// An owner that uses the names for another kind.
const LOCK_OWNER: &str = "00000000-0000-4000-8000-00000000000c:1";

/// A writer is believed to wait for 2 s. What took longer on the server, whose clock nobody stops,
/// says nothing.
pub(crate) const SOON: Duration = Duration::from_millis(1_500);

/// Now and then a name is used as what it is not. Only to take and to force: a release goes to what was taken.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let side = (select(&[Kind::Read, Kind::Write][..]), select(&NAMES[..]));
    let side = side.prop_map(|(kind, name)| Resource { kind, name: LockName::from(name) });
    let any = (side.clone(), prop::bool::weighted(0.05));
    let any = any.prop_map(|(side, other)| match other {
        true => Resource { kind: Kind::Lock, ..side },
        false => side,
    });
    let steps = agreement::steps(any.boxed(), side.boxed(), (&TTLS, &STEPS));
    steps.prop_map(|mut steps| {
        for step in &mut steps {
            if let Step::Send(Request::Acquire(Acquire { resource, owner, count, from, .. })) = step
                && resource.kind == Kind::Lock
            {
                // An id is never that of two things.
                (*owner, *count, *from) = (id(LOCK_OWNER), 1, None);
            }
        }
        steps
    })
}

/// The stored state is that of the model, without keys of holds that do not exist.
pub(crate) fn compare(world: &mut World, name: &str) -> Outcome {
    let resource = Resource { kind: Kind::Read, name: LockName::from(name) };
    let cli = world.cli();
    if cli.cmd(&["HEXISTS", name, "mode"]).int() == 0 && cli.cmd(&["EXISTS", name]).int() == 1 {
        return world.stored(&Resource { kind: Kind::Lock, ..resource }).map(drop);
    }
    let stored = world.stored(&resource)?;
    let shared = stored.holders.iter().filter(|(id, _)| id.ends_with("shared"));
    let holds: u64 = shared.map(|(_, count)| count).sum();
    let tag = if name.contains('{') { name.to_owned() } else { format!("{{{name}}}") };
    let keys = world.cli().cmd(&["KEYS", &format!("{tag}:*:rwlock_timeout:*")]);
    if keys.array().len() as u64 != holds {
        return Err(world.failure(format!("{stored:?} with the keys {keys:?}")));
    }
    Ok(())
}

fn run(world: &mut World, steps: &[Step], cli: &mut Cli, listeners: &mut [Cli; 2]) -> Outcome {
    // What a run that failed has left.
    for (listener, channel) in listeners.iter_mut().zip(CHANNELS) {
        heard(listener, cli, channel);
    }
    agreement::agree(world, steps)?;
    for ((name, channel), listener) in NAMES.into_iter().zip(CHANNELS).zip(listeners) {
        compare(world, name)?;
        let heard = heard(listener, cli, channel);
        let topic = Topic::Rw(LockName::from(name));
        let woken = world.wakes.iter().filter(|wake| wake.topic == topic);
        let woken: Vec<_> = woken.map(|wake| wake.payload.to_vec()).collect();
        if woken != heard {
            return Err(world.failure(format!("the model wakes {woken:?}, Redis {heard:?}")));
        }
    }
    Ok(())
}

/// What was published on the one channel of a listener.
fn heard(listener: &mut Cli, cli: &mut Cli, channel: &str) -> Vec<Vec<u8>> {
    cli.cmd(&["PUBLISH", channel, "end"]).ok();
    let mut messages = Vec::new();
    loop {
        let (_, message) = listener.next_message(Duration::from_secs(5)).expect("an end");
        if message == b"end" {
            return messages;
        }
        messages.push(message);
    }
}

#[test]
fn the_scripts_of_the_read_write_lock_agree_with_the_model() {
    let mut world = World::new();
    let (mut cli, mut listeners) = (world.connection(), [world.connection(), world.connection()]);
    for (listener, channel) in listeners.iter_mut().zip(CHANNELS) {
        listener.subscribe(&[channel]);
    }
    check(CASES, steps(), |steps| {
        in_time(SOON, || run(&mut world, steps, &mut cli, &mut listeners))
    });
}

/// A server, its store, and two sides of one lock on it.
struct Plain {
    server: RedisServer,
    store: Redis,
}

const READ: Kind = Kind::Read;
const WRITE: Kind = Kind::Write;

fn of(kind: Kind) -> Resource {
    Resource { kind, name: "a".into() }
}

fn taking(kind: Kind, owner: usize) -> Acquire {
    Acquire::new(of(kind), id(OWNERS[owner]), 30_000)
}

fn beside(kind: Kind, owner: usize, other: usize) -> Acquire {
    Acquire { beside: Some(id(OWNERS[other])), ..taking(kind, owner) }
}

impl Plain {
    async fn new() -> Self {
        let server = RedisServer::start();
        let store = Redis::connect(&server.url(), &crate::options()).await.unwrap();
        Self { server, store }
    }

    async fn grant(&self, acquire: Acquire) {
        assert_eq!(self.store.acquire(acquire).await, Ok(Attempt::GRANTED));
    }

    async fn busy(&self, acquire: Acquire) -> u64 {
        match self.store.acquire(acquire).await {
            Ok(Attempt::Busy { ttl: Some(Ttl::For(left)), .. }) => left.as_millis() as u64,
            other => panic!("not busy: {other:?}"),
        }
    }

    async fn release(&self, kind: Kind, owner: usize) -> Released {
        self.store.release(Release::new(of(kind), id(OWNERS[owner]))).await.unwrap()
    }

    async fn renew(&self, kind: Kind, owner: usize, ttl: Option<u64>) -> Result<Renewed, Fault> {
        let renew = Renew::new(of(kind), id(OWNERS[owner]), ttl);
        self.store.renew(vec![renew]).await.remove(0)
    }

    /// The hash, its fields sorted.
    fn fields(&self) -> Vec<(String, String)> {
        let fields = self.server.cli(&["HGETALL", "a"]);
        let pairs = fields.array().chunks(2);
        let pairs = pairs.map(|pair| (pair[0].text().to_owned(), pair[1].text().to_owned()));
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort();
        pairs
    }

    fn keys(&self) -> Vec<String> {
        let keys = self.server.cli(&["KEYS", "*"]);
        let mut keys: Vec<_> = keys.array().iter().map(|key| key.text().to_owned()).collect();
        keys.sort();
        keys
    }

    fn pttl(&self, key: &str) -> i64 {
        self.server.cli(&["PTTL", key]).int()
    }

    fn listen(&self) -> (Cli, Cli) {
        let mut listener = self.server.connection();
        listener.subscribe(&[CHANNELS[0]]);
        (listener, self.server.connection())
    }
}

fn near(left: i64, expected: i64) {
    assert!((expected - 1_000..=expected).contains(&left), "{left} is not about {expected}");
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut all: Vec<_> = all.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    all.sort();
    all
}

fn key_of(owner: usize, i: u32) -> String {
    format!("{{a}}:{}:rwlock_timeout:{i}", OWNERS[owner])
}

#[tokio::test]
async fn readers_are_written_as_redisson_writes_them() {
    let lock = Plain::new().await;
    let (mut listener, mut cli) = lock.listen();
    lock.grant(taking(READ, 0)).await;
    lock.grant(Acquire { count: 2, ttl: 10_000, ..taking(READ, 0) }).await;
    lock.grant(Acquire { ttl: 60_000, ..taking(READ, 3) }).await;
    assert_eq!(lock.fields(), pairs(&[("mode", "read"), (OWNERS[0], "2"), (OWNERS[3], "1")]));
    let mut keys = vec!["a".to_owned(), key_of(0, 1), key_of(0, 2), key_of(3, 1)];
    keys.sort();
    assert_eq!(lock.keys(), keys);
    assert_eq!(lock.server.cli(&["GET", &key_of(0, 2)]).text(), "1");
    near(lock.pttl("a"), 60_000);
    near(lock.pttl(&key_of(0, 1)), 30_000);
    near(lock.pttl(&key_of(0, 2)), 30_000);
    // The TTL is that of the longest remaining hold.
    assert_eq!(lock.release(READ, 3).await, Released::Freed { listeners: Some(0) });
    near(lock.pttl("a"), 30_000);
    assert!(heard(&mut listener, &mut cli, CHANNELS[0]).is_empty(), "somebody holds it");
    assert_eq!(lock.release(READ, 0).await, Released::Freed { listeners: Some(1) });
    assert_eq!(heard(&mut listener, &mut cli, CHANNELS[0]), [b"0"]);
    assert!(lock.keys().is_empty());
}

#[tokio::test]
async fn a_writer_is_written_as_redisson_writes_it() {
    let lock = Plain::new().await;
    let (mut listener, mut cli) = lock.listen();
    let field = format!("{}:write", OWNERS[0]);
    lock.grant(taking(WRITE, 0)).await;
    lock.grant(Acquire { count: 2, ..taking(WRITE, 0) }).await;
    assert_eq!(lock.fields(), pairs(&[("mode", "write"), (&field, "2")]));
    assert_eq!(lock.keys(), ["a"]);
    near(lock.pttl("a"), 30_000);
    assert_eq!(lock.release(WRITE, 0).await, Released::Freed { listeners: Some(1) });
    assert_eq!(heard(&mut listener, &mut cli, CHANNELS[0]), [b"1"]);
    assert!(lock.keys().is_empty());
}

#[tokio::test]
async fn a_check_restores_the_ttl_that_a_redisson_reader_shortened() {
    let lock = Plain::new().await;
    lock.grant(Acquire { ttl: 120_000, ..taking(READ, 0) }).await;
    assert_eq!(lock.server.cli(&["PEXPIRE", "a", "30000"]).int(), 1);
    assert!(matches!(lock.renew(READ, 0, None).await, Ok(Renewed::Held(_))));
    near(lock.pttl("a"), 120_000);
    // A reader whose keys are gone is gone, whoever keeps the lock alive, and stays so.
    lock.grant(taking(READ, 3)).await;
    lock.server.cli(&["DEL", &key_of(3, 1)]).ok();
    assert_eq!(lock.renew(READ, 3, Some(30_000)).await, Ok(Renewed::Gone));
    let again = Acquire { count: 2, ..taking(READ, 3) };
    assert_eq!(lock.store.acquire(again).await, Ok(Attempt::Gone));
    let part = Release { keep: 1, ttl: Some(5_000), ..Release::new(of(READ), id(OWNERS[3])) };
    assert_eq!(lock.store.release(part).await, Ok(Released::Absent { holder: None }));
    assert!(!lock.keys().contains(&key_of(3, 1)));
}

#[tokio::test]
async fn a_key_that_is_not_a_read_write_lock_is_not_changed() {
    let lock = Plain::new().await;
    let data = [
        vec!["SET", "a", "x"],
        vec!["HSET", "a", OWNERS[0], "1"],
        vec!["HSET", "a", "mode", "dark", "user", "1000000000"],
        vec!["RPUSH", "a", "x"],
    ];
    for command in data {
        lock.server.cli(&["DEL", "a"]).ok();
        lock.server.cli(&command).ok();
        let dump = lock.server.cli(&["DUMP", "a"]);
        let wrong = |fault: Fault| assert!(matches!(fault, Fault::WrongKind { .. }), "{fault:?}");
        for kind in [READ, WRITE] {
            wrong(lock.store.acquire(taking(kind, 0)).await.unwrap_err());
            wrong(
                lock.store.acquire(Acquire { waits: true, ..taking(kind, 1) }).await.unwrap_err(),
            );
            wrong(lock.renew(kind, 0, Some(30_000)).await.unwrap_err());
            wrong(lock.store.inspect(of(kind)).await.unwrap_err());
            assert_eq!(lock.release(kind, 0).await, Released::Absent { holder: None });
            let change = lockkeeper::backend::Change::ForceUnlock {
                resource: of(kind),
                reason: String::new(),
                by: lockkeeper::backend::ClientInfo::of_this_process(),
                from: None,
            };
            wrong(lock.store.adjust(change).await.unwrap_err());
        }
        let hand = Acquire { from: Some(id(OWNERS[1])), ..taking(WRITE, 0) };
        assert_eq!(lock.store.acquire(hand).await, Ok(Attempt::Gone));
        assert_eq!(format!("{:?}", lock.server.cli(&["DUMP", "a"])), format!("{dump:?}"));
        assert_eq!(lock.keys(), ["a"]);
        assert_eq!(lock.pttl("a"), -1);
    }
}

#[tokio::test]
async fn a_token_or_intent_of_another_type_breaks_nothing() {
    let lock = Plain::new().await;
    lock.server.cli(&["RPUSH", "redisson_lock_token:{a}", "x"]).ok();
    let fenced = Acquire { fenced: Some(Fenced { ttl: None }), ..taking(WRITE, 0) };
    assert!(lock.store.acquire(fenced).await.is_err());
    assert_eq!(lock.keys(), ["redisson_lock_token:{a}"]);
    // What waiting writers wish is a courtesy.
    lock.server.cli(&["SET", "lockkeeper_writers:{a}", "x"]).ok();
    lock.grant(taking(READ, 0)).await;
    lock.busy(Acquire { waits: true, ..taking(WRITE, 1) }).await;
    assert_eq!(lock.release(READ, 0).await, Released::Freed { listeners: Some(0) });
    lock.grant(taking(WRITE, 1)).await;
    assert_eq!(lock.release(WRITE, 1).await, Released::Freed { listeners: Some(0) });
    assert_eq!(lock.server.cli(&["EXISTS", "a"]).int(), 0);
}

/// Readers listen on the same channel, but cannot acquire the lock before writers that wait: only these are a
/// crowd.
#[tokio::test]
async fn the_seventeenth_waiting_writer_does_not_subscribe() {
    let p = Plain::new().await;
    p.grant(taking(Kind::Write, 0)).await;
    // Not 8, 15 or 16: for these, `PUBSUB NUMSUB` of Valkey 9.1 answers a random number.
    let _listeners: Vec<_> = (0..18).map(|_| p.listen()).collect();
    let asks = async |kind| {
        p.store.acquire(Acquire { waits: true, ..taking(kind, 1) }).await.expect("it is answered")
    };
    let writers = "lockkeeper_writers:{a}";
    for (others, crowded) in [(14, false), (15, true)] {
        p.server.cli(&["DEL", writers]).ok();
        for other in 0..others {
            p.server.cli(&["ZADD", writers, "1e15", &other.to_string()]).ok();
        }
        let answer = asks(Kind::Write).await;
        assert_eq!(matches!(answer, Attempt::Busy { listeners: 18, .. }), crowded, "{answer:?}");
        assert!(matches!(asks(Kind::Read).await, Attempt::Busy { .. }), "a reader listens");
    }
}

#[tokio::test]
async fn a_force_release_deletes_the_lock_and_notifies_every_holder() {
    let lock = Plain::new().await;
    let client = OWNERS[0].split(':').next().unwrap();
    let mut notices = lock.server.connection();
    notices.subscribe(&[format!("lockkeeper_notice:{client}")]);
    let (mut listener, mut cli) = lock.listen();
    let force = |kind| lockkeeper::backend::Change::ForceUnlock {
        resource: of(kind),
        reason: "stuck".to_owned(),
        by: lockkeeper::backend::ClientInfo::of_this_process(),
        from: None,
    };
    for (kind, message) in [(READ, "1"), (WRITE, "1")] {
        lock.grant(taking(WRITE, 0)).await;
        lock.grant(beside(READ, 1, 0)).await;
        assert_eq!(lock.store.adjust(force(kind)).await, Ok(lockkeeper::backend::Changed::Done));
        assert_eq!(heard(&mut listener, &mut cli, CHANNELS[0]), [message.as_bytes()]);
        assert_eq!(lock.keys(), ["lockkeeper_forced:{a}"]);
        for owner in [OWNERS[0], OWNERS[1]] {
            let (_, line) = notices.next_message(Duration::from_secs(5)).expect("a notice");
            assert_eq!(String::from_utf8(line).unwrap(), format!("revoked {owner} stuck"));
        }
    }
    lock.grant(taking(READ, 3)).await;
    assert_eq!(lock.store.adjust(force(WRITE)).await, Ok(lockkeeper::backend::Changed::Done));
    assert_eq!(heard(&mut listener, &mut cli, CHANNELS[0]), [b"0"]);
}

/// The times of waiting writers are too short for the grid. Both sides are asked, and time passes by
/// small steps; what is left differs by what the test itself takes.
struct Small(World);

const SMALL: u64 = 120;

/// The quickest of many runs: one that failed while the machine was slow says nothing.
fn small(test: impl Fn(&mut Small)) {
    let mut small = Small(World::new());
    for _ in 0..200 {
        small.0.reset();
        let began = Instant::now();
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(&mut small))) else { return };
        if began.elapsed() < Duration::from_millis(SMALL) {
            resume_unwind(panic);
        }
    }
    panic!("each run took longer than {SMALL} ms");
}

impl Small {
    fn ask(&mut self, acquire: Acquire) -> Attempt {
        let (model, redis) = self.0.ask(&Request::Acquire(acquire));
        let (Answer::Acquire(Ok(model)), Answer::Acquire(Ok(redis))) = (&model, &redis) else {
            panic!("{}", self.0.failure(format!("{model:?}, {redis:?}")));
        };
        let same = match (model, redis) {
            (
                Attempt::Busy { ttl: Some(Ttl::For(a)), .. },
                Attempt::Busy { ttl: Some(Ttl::For(b)), .. },
            ) => a.abs_diff(*b) <= Duration::from_millis(SMALL),
            (a, b) => a == b,
        };
        assert!(same, "{}", self.0.failure(format!("{model:?}, {redis:?}")));
        model.clone()
    }

    /// How long a reader must wait.
    fn out(&mut self, owner: usize) -> Option<u64> {
        match self.ask(Acquire { waits: true, ..taking(READ, owner) }) {
            Attempt::Busy { ttl: Some(Ttl::For(left)), .. } => Some(left.as_millis() as u64),
            Attempt::Granted { .. } => None,
            other => panic!("{other:?}"),
        }
    }

    fn waits(&mut self, owner: usize) {
        let attempt = self.ask(Acquire { waits: true, ..taking(WRITE, owner) });
        assert!(matches!(attempt, Attempt::Busy { .. }), "{attempt:?}");
    }

    fn gives_up(&mut self, owner: usize) {
        let release = Release::new(of(WRITE), id(OWNERS[owner]));
        self.0.send(&Request::Release(release)).unwrap();
    }
}

#[test]
fn readers_wait_behind_a_writer_until_a_batch_is_admitted() {
    small(|small| {
        assert_eq!(small.out(0), None);
        small.waits(1);
        assert_eq!(small.out(2), Some(2_000));
        assert_eq!(small.out(0), None, "a repetition passes");
        small.ask(Acquire { count: 2, ..taking(READ, 0) });
        assert!(small.ask(beside(READ, 3, 4)).is_granted(), "so does who holds the other side");
        small.0.pass(1_000);
        assert_eq!(small.out(2), Some(1_000), "readers do not keep it up");
        for _ in 0..3 {
            small.waits(1);
            small.0.pass(1_000);
        }
        small.waits(1);
        small.0.pass(500);
        assert_eq!(small.out(2), Some(500), "4.5 s are over");
        small.0.pass(800);
        assert_eq!(small.out(2), None, "5.3 s are over");
        small.0.pass(125);
        assert_eq!(small.out(2), None, "a repetition");
        small.waits(1);
        small.0.send(&Request::Release(Release::new(of(READ), id(OWNERS[2])))).unwrap();
        assert_eq!(small.out(2), None, "the batch");
        small.0.send(&Request::Release(Release::new(of(READ), id(OWNERS[2])))).unwrap();
        small.0.pass(375);
        assert_eq!(small.out(2), Some(1_625), "the batch is over");
        small.0.pass(1_000);
        small.waits(1);
        assert_eq!(small.out(2), Some(2_000), "from the start");
        for _ in 0..12 {
            small.0.pass(1_000);
            small.waits(1);
        }
        assert_eq!(small.out(2), Some(2_000), "no second batch before the writer had its turn");
        for owner in [0, 3] {
            small.0.send(&Request::Release(Release::new(of(READ), id(OWNERS[owner])))).unwrap();
        }
        assert!(small.ask(taking(WRITE, 1)).is_granted());
        small.0.send(&Request::Release(Release::new(of(WRITE), id(OWNERS[1])))).unwrap();
        assert_eq!(small.out(0), None);
        small.waits(1);
        small.out(2);
        for _ in 0..5 {
            small.0.pass(1_050);
            small.waits(1);
        }
        assert_eq!(small.out(2), None, "and then there is one");
        small.0.send(&Request::Release(Release::new(of(READ), id(OWNERS[2])))).unwrap();
        small.0.pass(1_000);
        assert_eq!(small.out(2), Some(1_000), "which is over, too");
        small.0.pass(1_200);
        assert_eq!(small.out(2), None, "the writer was not heard of");
    });
}

#[test]
fn after_five_seconds_a_reader_precedes_writers() {
    small(|small| {
        let free = |small: &mut Small, resource, owner: usize| {
            let release = Release::new(of(resource), id(OWNERS[owner]));
            small.0.send(&Request::Release(release)).unwrap();
        };
        assert!(small.ask(taking(WRITE, 0)).is_granted());
        assert_eq!(small.out(2), Some(5_000), "it comes back when its turn may be");
        small.0.pass(4_000);
        free(small, WRITE, 0);
        assert!(small.ask(taking(WRITE, 1)).is_granted(), "not yet");
        assert_eq!(small.out(2), Some(1_000));
        small.0.pass(1_200);
        assert_eq!(small.out(2), Some(1_000), "now it is, as soon as the lock is free");
        small.0.pass(1_000);
        assert_eq!(small.out(2), Some(1_000), "and stays so while it waits");
        let hand_over = Acquire { from: Some(id(OWNERS[1])), ..taking(WRITE, 0) };
        assert!(matches!(small.ask(hand_over), Attempt::Busy { .. }), "freed, and not passed on");
        let refused = small.ask(taking(WRITE, 3));
        assert!(
            matches!(refused, Attempt::Busy { ttl: Some(Ttl::For(left)), .. }
                if left >= Duration::from_millis(2_300)),
            "{refused:?}"
        );
        assert_eq!(small.out(2), None);
        free(small, READ, 2);
        let refused = small.ask(taking(WRITE, 3));
        assert!(
            matches!(refused, Attempt::Busy { ttl: Some(Ttl::For(left)), .. }
                if (1..=250).contains(&left.as_millis())),
            "{refused:?}"
        );
        small.0.pass(500);
        assert!(small.ask(taking(WRITE, 3)).is_granted(), "the batch is over");
        // A single attempt requests no turn, and an unused turn expires.
        for _ in 0..3 {
            small.0.pass(2_500);
            assert!(matches!(small.ask(taking(READ, 2)), Attempt::Busy { .. }));
        }
        free(small, WRITE, 3);
        assert!(small.ask(taking(WRITE, 0)).is_granted());
        small.out(2);
        small.0.pass(5_200);
        small.out(2);
        free(small, WRITE, 0);
        assert!(matches!(small.ask(taking(WRITE, 1)), Attempt::Busy { .. }));
        small.0.pass(3_000);
        assert!(small.ask(taking(WRITE, 1)).is_granted());
    });
}

#[test]
fn the_last_writer_that_leaves_wakes_readers() {
    small(|small| {
        let (mut listener, mut cli) = (small.0.connection(), small.0.connection());
        listener.subscribe(&[CHANNELS[0]]);
        let mut woken = move |world: &mut World| {
            let wakes = std::mem::take(&mut world.wakes);
            let wakes: Vec<_> = wakes.into_iter().map(|wake| wake.payload.into_owned()).collect();
            assert_eq!(heard(&mut listener, &mut cli, CHANNELS[0]), wakes);
            wakes
        };
        assert_eq!(small.out(0), None);
        small.waits(1);
        small.waits(3);
        small.gives_up(1);
        assert!(woken(&mut small.0).is_empty(), "another one waits");
        small.gives_up(1);
        assert_eq!(small.out(2), Some(2_000));
        small.gives_up(3);
        assert_eq!(woken(&mut small.0), [b"1"]);
        assert_eq!(small.out(2), None);
        small.gives_up(3);
        assert!(woken(&mut small.0).is_empty(), "a repetition");
        // One that is not heard of any more keeps nobody out, though another one kept the key.
        small.0.send(&Request::Release(Release::new(of(READ), id(OWNERS[2])))).unwrap();
        small.waits(1);
        small.0.pass(1_500);
        small.waits(3);
        small.0.pass(1_000);
        assert_eq!(small.out(2), Some(1_000));
        small.gives_up(3);
        assert_eq!(woken(&mut small.0), [b"1"]);
        assert_eq!(small.out(2), None);
        // Behind a writer that holds the lock readers wait anyway.
        for owner in [0, 2] {
            small.0.send(&Request::Release(Release::new(of(READ), id(OWNERS[owner])))).unwrap();
        }
        assert!(small.ask(taking(WRITE, 0)).is_granted());
        woken(&mut small.0);
        small.waits(1);
        small.gives_up(1);
        assert!(woken(&mut small.0).is_empty(), "it is held");
        // A granted writer no longer waits.
        small.waits(1);
        small.0.send(&Request::Release(Release::new(of(WRITE), id(OWNERS[0])))).unwrap();
        assert!(small.ask(taking(WRITE, 1)).is_granted());
        small.0.send(&Request::Release(Release::new(of(WRITE), id(OWNERS[1])))).unwrap();
        assert_eq!(woken(&mut small.0), [b"1", b"1"]);
        assert_eq!(small.out(2), None);
    });
}

#[test]
fn a_waiting_writer_is_noted_in_a_key_of_its_own() {
    small(|small| {
        let mut cli = small.0.connection();
        small.out(0);
        small.waits(1);
        let key = "lockkeeper_writers:{a}";
        let members = cli.cmd(&["ZRANGE", key, "0", "-1"]);
        let mut members: Vec<_> = members.array().iter().map(|member| member.text()).collect();
        members.sort_unstable();
        assert_eq!(members, [OWNERS[1]]);
        near(cli.cmd(&["PTTL", key]).int(), 2_000);
        let score = cli.cmd(&["ZSCORE", key, OWNERS[1]]).text().to_owned();
        assert!(score.len() == 13 && score.bytes().all(|digit| digit.is_ascii_digit()), "{score}");
        small.gives_up(1);
        assert_eq!(cli.cmd(&["EXISTS", key]).int(), 0);
    });
}
