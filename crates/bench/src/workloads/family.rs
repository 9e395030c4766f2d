//! The other locks and the semaphores, against the plain lock of the same client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{Client, FairLock, FencedLock, Lock, PermitSemaphore, RwLock, Semaphore};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::Bench;
use crate::Result;
use crate::contenders::{Contender, Stop, drive};
use crate::form::Name;
use crate::probe::{Probe, Slice};
use crate::report::{Aim, Row};

const TASKS: usize = 64;

/// One of the family. The plain lock is the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Lock,
    Fenced,
    Fair,
    Read,
    Write,
    Semaphore,
    Permits,
}

const ALL: [Kind; 7] =
    [Kind::Lock, Kind::Fenced, Kind::Fair, Kind::Read, Kind::Write, Kind::Semaphore, Kind::Permits];

/// What many may hold at once.
const SHARED: [Kind; 4] = [Kind::Lock, Kind::Read, Kind::Semaphore, Kind::Permits];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Lock => "Lock",
            Kind::Fenced => "FencedLock",
            Kind::Fair => "FairLock",
            Kind::Read => "RwLock read",
            Kind::Write => "RwLock write",
            Kind::Semaphore => "Semaphore",
            Kind::Permits => "PermitSemaphore",
        }
    }
}

/// A handle of any of them.
enum Any {
    Lock(Lock),
    Fenced(FencedLock),
    Fair(FairLock),
    Read(RwLock),
    Write(RwLock),
    Semaphore(Semaphore),
    Permits(PermitSemaphore),
}

impl Any {
    /// Sets it up with `permits`, where there are any.
    async fn new(client: &Client, kind: Kind, name: &str, permits: u64) -> Result<Self> {
        Ok(match kind {
            Kind::Lock => Self::Lock(client.lock(name)),
            Kind::Fenced => Self::Fenced(client.fenced_lock(name)),
            Kind::Fair => Self::Fair(client.fair_lock(name)),
            Kind::Read => Self::Read(client.rw_lock(name)),
            Kind::Write => Self::Write(client.rw_lock(name)),
            Kind::Semaphore => {
                let semaphore = client.semaphore(name);
                semaphore.try_set_permits(permits).await?;
                Self::Semaphore(semaphore)
            }
            Kind::Permits => {
                let semaphore = client.permit_semaphore(name);
                semaphore.try_set_permits(permits).await?;
                Self::Permits(semaphore)
            }
        })
    }

    async fn pair(&self) -> lockkeeper::Result<()> {
        match self {
            Self::Lock(lock) => lock.lock().await?.release().await,
            Self::Fenced(lock) => lock.lock().await?.release().await,
            Self::Fair(lock) => lock.lock().await?.release().await,
            Self::Read(lock) => lock.read().await?.release().await,
            Self::Write(lock) => lock.write().await?.release().await,
            Self::Semaphore(semaphore) => semaphore.acquire(1).await?.release().await,
            Self::Permits(semaphore) => semaphore.acquire(1).await?.release().await,
        }
    }
}

/// One kind, on a name for each task or on one for all of them.
struct AnyLock {
    runtime: Handle,
    client: Client,
    kind: Kind,
    shared: bool,
}

impl Contender for AnyLock {
    fn name(&self) -> String {
        self.kind.name().into()
    }

    fn run(&mut self, tasks: usize, time: Duration) -> Result<u64> {
        drive(&self.runtime, tasks, time, |task, stop| {
            let number = if self.shared { 0 } else { task };
            let (client, kind) = (self.client.clone(), self.kind);
            let own = format!("{}:{}", self.shared, kind.name());
            let name = Name::of(&own, number).key;
            async move {
                let lock = Any::new(&client, kind, &name, TASKS as u64).await?;
                let mut pairs = 0;
                while !stop.reached() {
                    lock.pair().await?;
                    pairs += 1;
                }
                Ok(pairs)
            }
        })
    }
}

/// Every task on a name of its own.
pub(super) fn uncontended(bench: &mut Bench) -> Result<Vec<Row>> {
    measure(bench, "family: uncontended", &ALL, false)
}

/// All tasks on one name, which has room for all of them; but for the plain lock, which they hand
/// round and which stands here for what it costs not to share.
pub(super) fn shared(bench: &mut Bench) -> Result<Vec<Row>> {
    measure(bench, "family: shared", &SHARED, true)
}

fn measure(bench: &mut Bench, workload: &str, kinds: &[Kind], shared: bool) -> Result<Vec<Row>> {
    let runtime = bench.runtime.handle().clone();
    let client = runtime.block_on(Client::connect(&bench.url()))?;
    let member = |kind: &Kind| -> Box<dyn Contender> {
        let (runtime, client) = (runtime.clone(), client.clone());
        Box::new(AnyLock { runtime, client, kind: *kind, shared })
    };
    let mut members: Vec<_> = kinds.iter().map(member).collect();
    let slices = bench.interleave(members.len(), |probe, member, time| {
        let slice = probe.slice(|| members[member].run(TASKS, time))?;
        // Commands like SET are sent by scripts here and cannot be told from requests.
        Ok(Slice { calls: slice.scripts, ..slice })
    })?;
    let rows = members.iter().zip(&slices);
    let rows = rows
        .map(|(member, slices)| Row::rate(workload, &member.name(), "pairs/s", slices).by(TASKS));
    let rows: Vec<_> = rows.collect();
    let reference = rows[0].clone();
    let mut rows: Vec<_> = rows.into_iter().map(|row| row.against(&reference)).collect();
    if !shared {
        for row in &mut rows {
            row.aims = vec![Aim::at_most("requests/pair", [row.calls.unwrap_or(f64::NAN)], 2.05)];
        }
    }
    Ok(rows)
}

/// Handoffs of one fair lock while ever more tasks wait for it.
pub(super) fn fair(bench: &mut Bench) -> Result<Vec<Row>> {
    let sizes = [1, 100, 1_000];
    let runtime = bench.runtime.handle().clone();
    let client = runtime.block_on(Client::connect(&bench.url()))?;
    let slices = bench.interleave(sizes.len(), |probe, turn, time| {
        // One more than there are waiters: the holder.
        round(probe, &runtime, &client, sizes[turn] + 1, time)
    })?;
    let rows = sizes.iter().zip(&slices).map(|(size, slices)| {
        let workload = format!("fair handoff: {size} waiters");
        Row::rate(&workload, "FairLock", "handoffs/s", slices).by(size + 1)
    });
    let mut rows: Vec<_> = rows.collect();
    let first = rows[0].clone();
    for row in &mut rows {
        let calls = Aim::at_most("requests/handoff", [row.calls.unwrap_or(f64::NAN)], 3.1);
        row.aims = vec![Aim::at_least("ratio to 1 waiter", row.over(&first), 0.8), calls];
    }
    Ok(rows)
}

/// Lets `tasks` tasks line up again and again; measures only the middle, when all of them are there.
fn round(
    probe: &mut Probe,
    runtime: &Handle,
    client: &Client,
    tasks: usize,
    time: Duration,
) -> Result<Slice> {
    let (stop, passed) = (Stop::default(), Arc::new(AtomicU64::new(0)));
    let lock = client.fair_lock("bench:fair");
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (lock, stop, passed) = (lock.clone(), stop.clone(), Arc::clone(&passed));
        let task = async move {
            while !stop.reached() {
                let guard = lock.lock().await?;
                passed.fetch_add(1, Ordering::Relaxed);
                guard.release().await?;
            }
            Ok::<_, lockkeeper::Error>(())
        };
        running.spawn_on(task, runtime);
    }
    while runtime.block_on(lock.waiting())? + 1 < tasks {
        std::thread::sleep(Duration::from_millis(1));
    }
    let slice = probe.slice(|| {
        let before = passed.load(Ordering::Relaxed);
        std::thread::sleep(time);
        Ok(passed.load(Ordering::Relaxed) - before)
    })?;
    let slice = Slice { calls: slice.scripts, ..slice };
    stop.set();
    runtime.block_on(async {
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        Ok(slice)
    })
}
