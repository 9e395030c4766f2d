//! A process of the soak: its tasks lock, work and release, and write down what they see, a line for each grant and a
//! line for each end. It is killed and paused by its parent, so every line is written at once.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{AnyLock, Client, ClientOptions, Error, Hold, MultiLock, RedisOptions, Result};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

use super::Store;

/// The lease of renewed holds: short, so that a crash does not block the others for long.
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// Tasks of a process.
const TASKS: usize = 6;

/// Of each kind.
const NAMES: usize = 4;

/// Microseconds on a clock that all processes of a host share.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1_000
}

struct Worker {
    client: Client,
    store: Store,
    log: File,
    next: AtomicU64,
    ends: AtomicBool,
}

/// What a task has seen of a hold.
struct Seen {
    number: u64,
    /// When it was last known to be valid.
    valid: u64,
    /// When its loss was signalled.
    lost: Option<u64>,
}

/// The settings of a client of this store: no failover may lose a lock that it was granted.
pub(super) fn options(store: Store) -> ClientOptions {
    let options = ClientOptions::new().watchdog_timeout(LEASE).longest_lease(LEASE);
    let acknowledged = |n| RedisOptions::new().acknowledged_by(n, Duration::from_secs(1));
    match store {
        Store::Sentinel => options.redis(acknowledged(2)),
        Store::Cluster => options.redis(acknowledged(1)),
        _ => options,
    }
}

/// Works until its input ends.
pub fn run(url: &str, store: Store, log: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = loop {
            match Client::connect_with(url, options(store)).await {
                Ok(client) => break client,
                Err(error @ (Error::Invalid { .. } | Error::Denied { .. })) => return Err(error),
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        };
        let log =
            OpenOptions::new().create(true).append(true).open(log).expect("the log can be written");
        let (next, ends) = (AtomicU64::new(0), AtomicBool::new(false));
        let worker = Arc::new(Worker { client, store, log, next, ends });
        println!("working");
        let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(Arc::clone(&worker).work())).collect();
        let _ =
            tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
        worker.ends.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("a task has panicked");
        }
        worker.client.shutdown().await;
        println!("done");
        Ok(())
    })
}

impl Worker {
    fn write(&self, line: &str) {
        (&self.log).write_all(line.as_bytes()).expect("the log can be written");
    }

    async fn work(self: Arc<Self>) {
        while !self.ends.load(Ordering::Relaxed) {
            let since = now();
            if let Err(error) = self.cycle(since).await {
                let word = match error {
                    Error::Lost { .. } | Error::NotHeld { .. } => "lost",
                    Error::Unreachable { .. } | Error::Refused { .. } => "unreachable",
                    Error::Unconfirmed { .. } => "unconfirmed",
                    Error::Unacknowledged { .. } => "unacknowledged",
                    _ => "other",
                };
                self.write(&format!("F {word}\n"));
                if word == "other" {
                    println!("unexpected: {error}");
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// A lock of one of the kinds that the store has, its word, and whether others may share it.
    fn lock(&self) -> (&'static str, bool, AnyLock) {
        let (client, n) = (&self.client, fastrand::usize(..NAMES));
        let owner = client.new_owner();
        let kinds = if self.store.is_quorum() { 3 } else { 6 };
        match fastrand::u8(..kinds) {
            0 => ("lock", false, client.lock(format!("lock {n}")).as_owner(&owner).into()),
            1 => ("mutex", false, client.mutex(format!("mutex {n}")).into()),
            2 => ("fenced", false, client.fenced_lock(format!("fenced {n}")).into()),
            3 => ("fair", false, client.fair_lock(format!("fair {n}")).into()),
            4 => ("read", true, client.rw_lock(format!("rw {n}")).reader()),
            _ => ("write", false, client.rw_lock(format!("rw {n}")).writer()),
        }
    }

    async fn cycle(&self, since: u64) -> Result<()> {
        if fastrand::u8(..10) == 0 {
            let kinds = ["lock 0", "lock 1"].map(|name| AnyLock::from(self.client.lock(name)));
            let mutex = AnyLock::from(self.client.mutex("mutex 0"));
            let guard = MultiLock::new(kinds.into_iter().chain([mutex])).lock().await?;
            let mut seen: Vec<_> = guard
                .members()
                .iter()
                .map(|member| self.granted("multi", false, since, member))
                .collect();
            for (member, seen) in guard.members().iter().zip(&mut seen) {
                seen.look(member);
            }
            let released = guard.release().await;
            seen.iter().for_each(|seen| self.ended(seen, released.is_ok()));
            return released;
        }
        let (kind, shared, lock) = self.lock();
        let guard = lock.lock().await?;
        let mut seen = self.granted(kind, shared, since, &guard);
        // Most holds are very short; some outlast what happens meanwhile.
        let span = match fastrand::u16(..3000) {
            0 => fastrand::u64(500..4_000),
            1..50 => fastrand::u64(1..4),
            _ => 0,
        };
        let ends = now() + span * 1_000;
        while seen.look(&guard) && now() < ends {
            tokio::select! {
                _ = guard.lost() => seen.lost = Some(now()),
                () = sleep(Duration::from_millis(1)) => {}
            }
        }
        let released = match fastrand::u8(..8) {
            // The end of a dropped guard is not seen.
            0 => {
                drop(guard);
                self.ended(&seen, false);
                return Ok(());
            }
            _ => guard.release().await,
        };
        self.ended(&seen, released.is_ok());
        released
    }

    fn granted(&self, kind: &str, shared: bool, since: u64, hold: &Hold) -> Seen {
        let granted = now();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (name, token) = (hold.name().to_string().replace(' ', "-"), hold.token().unwrap_or(0));
        let shared = u8::from(shared);
        self.write(&format!("G {number} {name} {kind} {shared} {since} {granted} {token}\n"));
        Seen { number, valid: granted, lost: None }
    }

    fn ended(&self, Seen { number, valid, lost }: &Seen, released: bool) {
        let released = if released { now() } else { 0 };
        self.write(&format!("E {number} {valid} {} {released}\n", lost.unwrap_or(0)));
    }
}

impl Seen {
    /// Whether the hold is still valid; the clock is read before.
    fn look(&mut self, hold: &Hold) -> bool {
        let now = now();
        let is_valid = self.lost.is_none() && !hold.is_lost();
        if is_valid {
            self.valid = now;
        }
        is_valid
    }
}
