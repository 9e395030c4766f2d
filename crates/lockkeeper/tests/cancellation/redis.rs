//! Thousands of acquires on a real server, dropped at random moments.

use std::time::{Duration, Instant};

use lockkeeper::{AnyGuard, AnyLock, Client, Error, MultiLock, RwLock};
use testkit::RedisServer;

use crate::fixture::Held;

/// Acquires of each run.
const ACQUIRES: usize = 8_000;

/// Tasks that make them.
const TASKS: usize = 64;

/// By then all of them are done, on any machine.
const ALL_DONE: Duration = Duration::from_secs(60);

/// Few enough that they meet.
const NAMES: usize = 24;

/// How many permits each semaphore has.
const PERMITS: u32 = 3;

/// The longest time after which an acquire is dropped, for most of them and for the patient.
const LONGEST: Duration = Duration::from_millis(6);
const PATIENT: Duration = Duration::from_millis(120);

/// The most turns of the runtime after which an acquire is dropped: finer than any timer, so that
/// some are dropped before they are sent, some while they are under way, some while they wait.
const TURNS: usize = 60;

/// What is acquired.
#[derive(Clone, Copy, Debug)]
enum Primitive {
    Plain,
    Fair,
    Fenced,
    Spin,
    ReadWrite,
    Semaphore,
    Permits,
    Latch,
    Multi,
}

const SORTS: [Primitive; 9] = [
    Primitive::Plain,
    Primitive::Fair,
    Primitive::Fenced,
    Primitive::Spin,
    Primitive::ReadWrite,
    Primitive::Semaphore,
    Primitive::Permits,
    Primitive::Latch,
    Primitive::Multi,
];

impl Primitive {
    /// The names, and what is locked under each when only one can hold it.
    fn names(self) -> impl Iterator<Item = String> {
        (0..NAMES).map(move |number| self.name(number))
    }

    fn name(self, number: usize) -> String {
        format!("{self:?} {number}")
    }

    fn any_name(self) -> String {
        self.name(fastrand::usize(..NAMES))
    }

    /// What must be there before anybody can ask for it.
    async fn set_up(self, client: &Client) {
        for name in self.names() {
            let made = match self {
                Primitive::Semaphore => {
                    client.semaphore(name).try_set_permits(PERMITS.into()).await
                }
                Primitive::Permits => {
                    client.permit_semaphore(name).try_set_permits(PERMITS.into()).await
                }
                Primitive::Latch => client.count_down_latch(name).try_set_count(1).await,
                _ => Ok(true),
            };
            assert!(made.unwrap());
        }
    }
}

/// Polls until the condition holds.
async fn eventually(what: &str, mut condition: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(found) = condition() {
        assert!(Instant::now() < deadline, "{what}: {found}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn texts(server: &RedisServer, command: &[&str]) -> Vec<String> {
    let reply = server.cli(command).ok();
    let mut texts: Vec<_> = reply.array().iter().map(|item| item.text().to_owned()).collect();
    texts.sort();
    texts
}

/// Whether a key stays though nobody holds anything: who a client is, what is remembered for a while
/// of answers and of those who waited, the last tokens, and the counters themselves.
fn stays(key: &str) -> bool {
    let counter =
        |primitive: &str| key.strip_prefix(primitive).is_some_and(|n| n.parse::<usize>().is_ok());
    let ours = [
        "lockkeeper_client",
        "lockkeeper_replies:",
        "lockkeeper_grace:",
        "lockkeeper_patience:",
        "redisson_lock_token:",
    ];
    ours.iter().any(|prefix| key.starts_with(prefix))
        || ["Semaphore ", "Permits ", "Latch "].iter().any(|primitive| counter(primitive))
}

/// No hold, no place in a queue and no permit is left, nobody listens, and everything can be had at
/// once.
async fn assert_nothing_left(server: &RedisServer, client: &Client, primitives: &[Primitive]) {
    eventually("keys left", || match texts(server, &["KEYS", "*"]) {
        keys if keys.iter().all(|key| stays(key)) => Ok(()),
        keys => Err(format!("{:?}", keys.iter().filter(|key| !stays(key)).collect::<Vec<_>>())),
    })
    .await;
    eventually("subscriptions left", || match texts(server, &["PUBSUB", "CHANNELS"]) {
        found if found.iter().all(|name| name.starts_with("lockkeeper_notice:")) => Ok(()),
        found => Err(format!("{found:?}")),
    })
    .await;
    let rival = Client::connect(&server.url()).await.unwrap();
    for primitive in primitives {
        for name in primitive.names() {
            for client in [client, &rival] {
                assert_free(client, *primitive, &name).await;
            }
        }
    }
}

async fn assert_free(client: &Client, primitive: Primitive, name: &str) {
    let locks: Vec<AnyLock> = match primitive {
        Primitive::Plain => {
            vec![client.lock(name).into(), client.mutex(format!("mutex {name}")).into()]
        }
        Primitive::Fair => vec![client.fair_lock(name).into()],
        Primitive::Fenced => vec![client.fenced_lock(name).into()],
        Primitive::Spin | Primitive::Multi => vec![client.spin_lock(name).into()],
        Primitive::ReadWrite => vec![client.rw_lock(name).writer(), client.rw_lock(name).reader()],
        Primitive::Permits => {
            let semaphore = client.permit_semaphore(name);
            let counts =
                (semaphore.available().await.unwrap(), semaphore.acquired().await.unwrap());
            assert_eq!(counts, (PERMITS.into(), 0), "{name}");
            let all = semaphore.try_acquire(PERMITS).await.unwrap();
            all.unwrap_or_else(|| panic!("{name} is held")).release().await.unwrap();
            Vec::new()
        }
        Primitive::Semaphore => {
            assert_eq!(
                client.semaphore(name).available().await.unwrap(),
                i64::from(PERMITS),
                "{name}"
            );
            Vec::new()
        }
        Primitive::Latch => Vec::new(),
    };
    for lock in locks {
        let guard = lock.try_lock().await.unwrap();
        guard.unwrap_or_else(|| panic!("{name} is held")).release().await.unwrap();
    }
}

/// How the acquires of one task went.
#[derive(Debug, Default)]
struct Count {
    dropped: usize,
    held: usize,
}

/// The outcome of `work`, if it comes before a random moment; one in 32 has all the time it needs.
async fn or_drop<T>(work: impl Future<Output = T>) -> Option<T> {
    let late = async {
        match fastrand::u8(..32) {
            0 => std::future::pending().await,
            1..8 => tokio::time::sleep(PATIENT.mul_f64(fastrand::f64())).await,
            8..16 => tokio::time::sleep(LONGEST.mul_f64(fastrand::f64())).await,
            _ => {
                for _ in 0..fastrand::usize(..TURNS) {
                    tokio::task::yield_now().await;
                }
            }
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = late => None,
    }
}

async fn acquire(client: &Client, primitive: Primitive) -> Option<Held> {
    let name = primitive.any_name();
    let long = Duration::from_secs(60);
    let lock: AnyLock = match (primitive, fastrand::u8(..4)) {
        (Primitive::Plain, 0) => client.lock(name).lease(long).into(),
        (Primitive::Plain, 1) => client.mutex(format!("mutex {name}")).into(),
        (Primitive::Plain, _) => client.lock(name).into(),
        (Primitive::Fair, 0) => client.fair_lock(name).fenced().into(),
        (Primitive::Fair, _) => client.fair_lock(name).into(),
        (Primitive::Fenced, _) => client.fenced_lock(name).into(),
        (Primitive::Spin, _) => client.spin_lock(name).into(),
        (Primitive::ReadWrite, 0 | 1) => return write(client.rw_lock(name)).await.map(Held::Guard),
        (Primitive::ReadWrite, _) => return read(client.rw_lock(name)).await.map(Held::Guard),
        (Primitive::Permits, n) => {
            let permits = 1 + u32::from(n) % PERMITS;
            let guard = or_drop(client.permit_semaphore(name).acquire(permits)).await?;
            return Some(Held::Guard(guard.unwrap().into()));
        }
        (Primitive::Semaphore, n) => {
            let permits = 1 + u32::from(n) % PERMITS;
            let permit = or_drop(client.semaphore(name).acquire(permits)).await?;
            return Some(Held::Permit(permit.unwrap()));
        }
        (Primitive::Latch, n) => {
            let latch = client.count_down_latch(name);
            if n == 0 {
                or_drop(Box::pin(latch.count_down())).await?.unwrap();
            } else if n == 1 {
                or_drop(Box::pin(latch.try_set_count(1))).await?.unwrap();
            } else {
                // It may stay closed, and a busy machine may not answer in time.
                let opened = or_drop(Box::pin(latch.wait_for(PATIENT))).await?;
                assert!(matches!(opened, Ok(_) | Err(Error::Unreachable { .. })), "{opened:?}");
            }
            return Some(Held::Nothing);
        }
        (Primitive::Multi, n) => {
            let other = primitive.any_name();
            if other == name {
                return None;
            }
            let kind = |name: String| match n {
                0 => AnyLock::from(client.fair_lock(name)),
                _ => AnyLock::from(client.lock(name)),
            };
            let both = or_drop(MultiLock::new([kind(name), kind(other)]).lock()).await?;
            return Some(Held::Multi(both.unwrap()));
        }
    };
    let guard = match fastrand::bool() {
        true => or_drop(lock.lock()).await?.unwrap(),
        false => {
            let guard = or_drop(lock.try_lock_for(long)).await?;
            guard.unwrap().expect("a minute has not passed")
        }
    };
    Some(Held::Guard(guard))
}

/// Acquires it for writing; reads beside that, or goes on reading.
async fn write(lock: RwLock) -> Option<AnyGuard> {
    let guard = or_drop(lock.write()).await?.unwrap();
    match fastrand::u8(..4) {
        0 => drop(or_drop(Box::pin(guard.read())).await),
        1 => return or_drop(Box::pin(guard.downgrade())).await?.ok().map(Into::into),
        _ => {}
    }
    Some(guard.into())
}

/// Acquires it for reading; goes on writing, if there is no other reader.
async fn read(lock: RwLock) -> Option<AnyGuard> {
    let guard = or_drop(lock.read()).await?.unwrap();
    match fastrand::u8(..4) {
        0 => match or_drop(Box::pin(guard.try_upgrade())).await? {
            Ok(guard) => Some(guard.into()),
            Err(error) => Some(error.into_guard().into()),
        },
        _ => Some(guard.into()),
    }
}

async fn acquire_and_cancel_at_random(
    clients: [Client; 2],
    primitives: &[Primitive],
    times: usize,
) -> Count {
    let mut count = Count::default();
    for _ in 0..times {
        let primitive = primitives[fastrand::usize(..primitives.len())];
        let held = acquire(&clients[fastrand::usize(..2)], primitive).await;
        let Some(held) = held else {
            count.dropped += 1;
            continue;
        };
        count.held += 1;
        match fastrand::u8(..3) {
            0 => drop(held),
            1 => drop(held.release()),
            _ => drop(or_drop(held.release()).await),
        }
    }
    count
}

async fn thousands_of_cancelled_acquires(primitives: &'static [Primitive]) {
    let server = RedisServer::start();
    let connect = async || Client::connect(&server.url()).await.unwrap();
    let clients = [connect().await, connect().await];
    for primitive in primitives {
        primitive.set_up(&clients[0]).await;
    }
    let times = ACQUIRES / TASKS;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| tokio::spawn(acquire_and_cancel_at_random(clients.clone(), primitives, times)))
        .collect();
    let mut total = Count::default();
    for task in tasks {
        let count = tokio::time::timeout(ALL_DONE, task).await.expect("somebody waits for ever");
        let count = count.unwrap();
        total.dropped += count.dropped;
        total.held += count.held;
    }
    println!("{total:?}");
    // On a busy machine few acquires succeed except the undisturbed ones.
    assert!(total.dropped > ACQUIRES / 20 && total.held > ACQUIRES / 100, "{total:?}");
    assert_nothing_left(&server, &clients[0], primitives).await;
}

/// Everything at once.
#[tokio::test]
async fn thousands_of_cancelled_acquires_leave_nothing_on_one_thread() {
    thousands_of_cancelled_acquires(&SORTS).await;
}

macro_rules! storms {
    ($($name:ident: $primitive:ident;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $name() {
            thousands_of_cancelled_acquires(&[Primitive::$primitive]).await;
        })*
    };
}

storms! {
    thousands_of_cancelled_acquires_leave_nothing_on_several_threads: Plain;
    thousands_of_cancelled_acquires_of_fair_locks_leave_nothing: Fair;
    thousands_of_cancelled_acquires_of_read_write_locks_leave_nothing: ReadWrite;
    thousands_of_cancelled_acquires_of_permits_leave_nothing: Semaphore;
    thousands_of_cancelled_acquires_of_permits_with_ids_leave_nothing: Permits;
    thousands_of_cancelled_waits_for_latches_leave_nothing: Latch;
    thousands_of_cancelled_acquires_of_several_at_once_leave_nothing: Multi;
}
