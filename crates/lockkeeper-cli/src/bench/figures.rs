//! What is measured.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use lockkeeper::{Client, Lock, Result};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

/// How long the lock is held when the wake-up is measured: the other one must be waiting by then.
const HELD: Duration = Duration::from_millis(3);

/// One figure: what it is, and how it is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    /// For machines; it does not change.
    pub(super) id: &'static str,
    /// For people.
    pub(super) title: &'static str,
    pub(super) tasks: u32,
    /// Whether how many there are in a second says anything.
    pub(super) counted: bool,
    work: Work,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// Tasks lock and unlock, each a name of its own.
    Apart,
    /// Tasks lock and unlock the same name.
    InTurn,
    /// Two clients hand a lock to each other.
    WakeUp,
}

pub(super) const FIGURES: [Figure; 4] = [
    Figure {
        id: "uncontended",
        title: "lock and unlock, one task",
        tasks: 1,
        counted: true,
        work: Work::Apart,
    },
    Figure {
        id: "parallel",
        title: "lock and unlock, 64 tasks with a name each",
        tasks: 64,
        counted: true,
        work: Work::Apart,
    },
    Figure {
        id: "contended",
        title: "handoff, 8 tasks on one name",
        tasks: 8,
        counted: true,
        work: Work::InTurn,
    },
    Figure {
        id: "wake_up",
        title: "wake-up, from a release to another client's hold",
        tasks: 2,
        counted: false,
        work: Work::WakeUp,
    },
];

impl Figure {
    /// Measures for `time`, below `prefix`. Returns how long each repetition took, in nanoseconds: to lock
    /// and unlock, from one holder to the next, or to wake up.
    pub(super) async fn measure(
        &self,
        clients: &[Client; 2],
        prefix: &str,
        time: Duration,
    ) -> Result<Histogram<u64>> {
        let name = |task: u32| match self.work {
            Work::Apart => format!("{prefix}:{}:{task}", self.id),
            Work::InTurn | Work::WakeUp => format!("{prefix}:{}", self.id),
        };
        let spans = Shared::new(Mutex::new(Spans::new()));
        let has = Seen::default();
        let mut tasks = JoinSet::new();
        let end = Instant::now() + time;
        for task in 0..self.tasks {
            let client = match self.work {
                Work::WakeUp => &clients[task as usize % 2],
                Work::Apart | Work::InTurn => &clients[0],
            };
            let lock = client.lock(name(task));
            let spans = Arc::clone(&spans);
            match self.work {
                Work::Apart => tasks.spawn(pairs(lock, end, spans)),
                Work::InTurn => tasks.spawn(in_turn(lock, end, spans)),
                Work::WakeUp => {
                    tasks.spawn(wake_up(lock, task as usize % 2, end, spans, Arc::clone(&has)))
                }
            };
        }
        for done in tasks.join_all().await {
            done?;
        }
        let spans = spans.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(spans.nanos.clone())
    }
}

/// What the tasks of one figure write down.
struct Spans {
    nanos: Histogram<u64>,
    /// When it was taken or given back last.
    last: Option<Instant>,
}

impl Spans {
    /// Up to an hour, to within one percent.
    fn new() -> Self {
        let nanos = Histogram::new_with_max(3_600_000_000_000, 2).expect("the bounds are valid");
        Self { nanos, last: None }
    }

    fn record(&mut self, span: Duration) {
        self.nanos.saturating_record(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    }
}

type Shared = Arc<Mutex<Spans>>;

/// Who of two has the lock.
type Seen = Arc<[Notify; 2]>;

fn note(spans: &Shared, note: impl FnOnce(&mut Spans)) {
    note(&mut spans.lock().unwrap_or_else(PoisonError::into_inner));
}

async fn pairs(lock: Lock, end: Instant, spans: Shared) -> Result<()> {
    while Instant::now() < end {
        let start = Instant::now();
        lock.lock().await?.release().await?;
        note(&spans, |spans| spans.record(start.elapsed()));
    }
    Ok(())
}

async fn in_turn(lock: Lock, end: Instant, spans: Shared) -> Result<()> {
    while Instant::now() < end {
        let guard = lock.lock().await?;
        note(&spans, |spans| {
            let now = Instant::now();
            if let Some(last) = spans.last.replace(now) {
                spans.record(now - last);
            }
        });
        guard.release().await?;
    }
    Ok(())
}

/// Strictly in turn: a worker that released the lock asks for it again only when the other holds it, so
/// that each release wakes a waiter up.
async fn wake_up(lock: Lock, me: usize, end: Instant, spans: Shared, has: Seen) -> Result<()> {
    while Instant::now() < end {
        let guard = lock.lock().await?;
        note(&spans, |spans| {
            if let Some(released) = spans.last.take() {
                spans.record(released.elapsed());
            }
        });
        has[me].notify_one();
        sleep(HELD).await;
        note(&spans, |spans| spans.last = Some(Instant::now()));
        guard.release().await?;
        if timeout_at(end, has[1 - me].notified()).await.is_err() {
            break;
        }
    }
    Ok(())
}
