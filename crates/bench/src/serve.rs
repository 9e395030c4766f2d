//! The side of a contender that is its own process: reads commands line by line, answers each with one line.
//! `peers/README.md` describes the protocol. The peer in Rust that is not part of this workspace includes
//! this file, so that both are driven by the same code.

use std::error::Error;
use std::future::Future;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

type Fault = Box<dyn Error + Send + Sync>;

/// Two workers, as the rest of the benchmark has.
const RUNTIME_WORKERS: usize = 2;

/// Tasks that acquire at once where many locks are to be held.
const ACQUIRERS: usize = 256;

/// Which lock a worker uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// The library's usual lock, exclusive.
    Plain,
    /// First come, first served.
    Fair,
    /// One side of a read/write lock.
    Read,
    /// The other side.
    Write,
}

/// A lock library, connected to one server.
pub(crate) trait Locks: Clone + Send + Sync + 'static {
    /// A handle of one lock.
    type Lock: Send + Sync + 'static;
    /// A held lock.
    type Guard: Send + 'static;

    /// Its version, or that of its package.
    fn version() -> String;

    /// A client that is ready; `lease` is for locks that are renewed, or are not, as the library does it.
    fn connect(url: String, lease: Duration) -> impl Future<Output = Result<Self, Fault>> + Send;

    /// A handle, or none if the library has no lock of this kind.
    fn lock(&self, kind: Kind, name: String) -> Option<Self::Lock>;

    /// Waits for the lock.
    fn acquire(lock: &Self::Lock) -> impl Future<Output = Result<Self::Guard, Fault>> + Send;

    /// Returns when the server has released it.
    fn release(guard: Self::Guard) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// One counter per cache line: workers must not slow each other down by counting.
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

/// Workers at work.
struct Crew {
    stop: Arc<AtomicBool>,
    counters: Arc<[Counter]>,
    tasks: JoinSet<Result<(), Fault>>,
}

/// Serves commands until the input ends.
pub(crate) fn serve<L: Locks>(url: &str, lease: Duration) -> Result<(), Fault> {
    let runtime =
        Builder::new_multi_thread().worker_threads(RUNTIME_WORKERS).enable_all().build()?;
    let mut server = Server {
        library: runtime.block_on(L::connect(url.to_owned(), lease))?,
        runtime,
        url: url.to_owned(),
        lease,
        crew: None,
        held: None,
        kept: Vec::new(),
    };
    say(&format!("ready {}", L::version()))?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split_whitespace().collect();
        match server.obey(&words) {
            Ok(answer) => say(&format!("ok {answer}"))?,
            Err(fault) => {
                say(&format!("error {fault}"))?;
                return Err(fault);
            }
        }
    }
    Ok(())
}

struct Server<L: Locks> {
    runtime: Runtime,
    library: L,
    url: String,
    lease: Duration,
    crew: Option<Crew>,
    held: Option<L::Guard>,
    kept: Vec<L::Guard>,
}

impl<L: Locks> Server<L> {
    fn obey(&mut self, words: &[&str]) -> Result<String, Fault> {
        match words {
            ["start", work, name, workers] => self.start(work, name, workers.parse()?),
            ["count"] => self.count(),
            ["stop"] => self.stop(),
            ["pairs", name, workers, pairs] => self.pairs(name, workers.parse()?, pairs.parse()?),
            ["acquire", name] => self.acquire(name),
            ["release"] => self.release(),
            ["wait", name] => self.wait(name),
            ["keep", name, count] => self.keep(name, count.parse()?),
            ["unkeep"] => self.unkeep(),
            ["connect", name] => self.connect(name),
            other => Err(format!("unknown command {other:?}").into()),
        }
    }

    fn start(&mut self, work: &str, name: &str, workers: usize) -> Result<String, Fault> {
        let counters: Arc<[Counter]> = (0..workers).map(|_| Counter::default()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for number in 0..workers {
            let worker = self.worker(work, name, number)?;
            let (stop, counters) = (Arc::clone(&stop), Arc::clone(&counters));
            let task = async move {
                let mut cycle = 0;
                while !stop.load(Ordering::Relaxed) {
                    L::release(L::acquire(worker.next(cycle)).await?).await?;
                    counters[number].0.fetch_add(1, Ordering::Relaxed);
                    cycle += 1;
                }
                Ok(())
            };
            tasks.spawn_on(task, self.runtime.handle());
        }
        self.crew = Some(Crew { stop, counters, tasks });
        Ok(String::new())
    }

    fn count(&mut self) -> Result<String, Fault> {
        Ok(self.crew.as_ref().ok_or("nothing was started")?.counts())
    }

    fn stop(&mut self) -> Result<String, Fault> {
        let mut crew = self.crew.take().ok_or("nothing was started")?;
        crew.stop.store(true, Ordering::Relaxed);
        self.runtime.block_on(async {
            while let Some(ended) = crew.tasks.join_next().await {
                ended??;
            }
            Ok::<_, Fault>(())
        })?;
        Ok(crew.counts())
    }

    /// A fixed number of pairs, for tools that count instructions.
    fn pairs(&mut self, name: &str, workers: usize, pairs: u64) -> Result<String, Fault> {
        let mut tasks = JoinSet::new();
        for number in 0..workers {
            let worker = self.worker("own", name, number)?;
            let own = pairs / workers as u64;
            let task = async move {
                for cycle in 0..own {
                    L::release(L::acquire(worker.next(cycle)).await?).await?;
                }
                Ok::<_, Fault>(())
            };
            tasks.spawn_on(task, self.runtime.handle());
        }
        self.runtime.block_on(async {
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            Ok(now().to_string())
        })
    }

    fn worker(&self, work: &str, name: &str, number: usize) -> Result<Worker<L>, Fault> {
        let (own, one) = (format!("{name}:{number:06}"), name.to_owned());
        let seed = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let only = |lock: Option<L::Lock>| {
            Some(Worker { lock: lock?, write: None, read_percent: 100, seed })
        };
        let worker = match work {
            "own" => only(self.library.lock(Kind::Plain, own)),
            "one" => only(self.library.lock(Kind::Plain, one)),
            "fair" => only(self.library.lock(Kind::Fair, one)),
            _ => {
                let read_percent = work.strip_prefix("rw").and_then(|rest| rest.parse().ok());
                let read_percent = read_percent.ok_or_else(|| format!("unknown work {work}"))?;
                let read = self.library.lock(Kind::Read, one.clone());
                let write = self.library.lock(Kind::Write, one);
                let sides = read.zip(write);
                sides.map(|(lock, write)| Worker { lock, write: Some(write), read_percent, seed })
            }
        };
        worker.ok_or_else(|| format!("the library has no lock for {work}").into())
    }

    fn acquire(&mut self, name: &str) -> Result<String, Fault> {
        let lock = self.plain(name)?;
        self.held = Some(self.on_a_worker(async move { L::acquire(&lock).await })?);
        Ok(now().to_string())
    }

    /// Answers with the moment before the release began.
    fn release(&mut self) -> Result<String, Fault> {
        let guard = self.held.take().ok_or("nothing is held")?;
        let start = self.on_a_worker(async move {
            let start = now();
            L::release(guard).await.map(|()| start)
        })?;
        Ok(start.to_string())
    }

    /// Answers with the moment at which the lock was held; it is free again by then.
    fn wait(&mut self, name: &str) -> Result<String, Fault> {
        let lock = self.plain(name)?;
        let acquired = self.on_a_worker(async move {
            let guard = L::acquire(&lock).await?;
            let acquired = now();
            L::release(guard).await.map(|()| acquired)
        })?;
        Ok(acquired.to_string())
    }

    fn keep(&mut self, name: &str, count: usize) -> Result<String, Fault> {
        let mut tasks = JoinSet::new();
        for first in 0..ACQUIRERS.min(count) {
            let numbers = (first..count).step_by(ACQUIRERS);
            let locks: Result<Vec<_>, _> =
                numbers.map(|number| self.plain(&format!("{name}:{number:06}"))).collect();
            let locks = locks?;
            let task = async move {
                let mut guards = Vec::with_capacity(locks.len());
                for lock in &locks {
                    guards.push(L::acquire(lock).await?);
                }
                Ok::<_, Fault>(guards)
            };
            tasks.spawn_on(task, self.runtime.handle());
        }
        self.runtime.block_on(async {
            while let Some(guards) = tasks.join_next().await {
                self.kept.extend(guards??);
            }
            Ok(self.kept.len().to_string())
        })
    }

    fn unkeep(&mut self) -> Result<String, Fault> {
        let mut tasks = JoinSet::new();
        let share = self.kept.len().div_ceil(ACQUIRERS).max(1);
        while !self.kept.is_empty() {
            let guards = self.kept.split_off(self.kept.len().saturating_sub(share));
            let task = async move {
                for guard in guards {
                    L::release(guard).await?;
                }
                Ok::<_, Fault>(())
            };
            tasks.spawn_on(task, self.runtime.handle());
        }
        self.runtime.block_on(async {
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            Ok(String::new())
        })
    }

    /// Nanoseconds from no client at all to a held lock.
    fn connect(&mut self, name: &str) -> Result<String, Fault> {
        let (url, lease, name) = (self.url.clone(), self.lease, name.to_owned());
        let span = self.on_a_worker(async move {
            let start = Instant::now();
            let library = L::connect(url, lease).await?;
            let lock = library.lock(Kind::Plain, name).ok_or("no plain lock")?;
            let guard = L::acquire(&lock).await?;
            let span = start.elapsed();
            L::release(guard).await.map(|()| span)
        })?;
        Ok(span.as_nanos().to_string())
    }

    fn plain(&self, name: &str) -> Result<L::Lock, Fault> {
        Ok(self.library.lock(Kind::Plain, name.to_owned()).ok_or("no plain lock")?)
    }

    /// Where a user's code would be.
    fn on_a_worker<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        self.runtime.block_on(self.runtime.spawn(work))?
    }
}

impl Crew {
    /// The time, and how often each worker had the lock.
    fn counts(&self) -> String {
        let mut answer = now().to_string();
        for counter in self.counters.iter() {
            answer.push(' ');
            answer.push_str(&counter.0.load(Ordering::Relaxed).to_string());
        }
        answer
    }
}

/// One worker's lock, or the two sides of it.
struct Worker<L: Locks> {
    lock: L::Lock,
    write: Option<L::Lock>,
    read_percent: u64,
    seed: u64,
}

impl<L: Locks> Worker<L> {
    /// The side for a cycle: a fixed share, in an order that looks random and is the same in each run.
    fn next(&self, cycle: u64) -> &L::Lock {
        let Some(write) = &self.write else { return &self.lock };
        let mut mixed = (self.seed ^ cycle).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0x94D0_49BB_1331_11EB);
        if (mixed >> 33) % 100 < self.read_percent { &self.lock } else { write }
    }
}

/// Nanoseconds of a clock that all processes of this machine share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn say(line: &str) -> Result<(), Fault> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", line.trim_end())?;
    Ok(output.flush()?)
}
