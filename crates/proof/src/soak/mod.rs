//! Processes that lock on real servers, while these and the processes are killed, paused and cut off; the logs of the
//! processes are merged and judged.
//!
//! Faults come in bursts of ten seconds; in the pauses between them wake-ups are judged. All of it is on loopback, ends
//! by itself and leaves nothing.

mod checker;
mod stand;
pub mod worker;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastrand::Rng;
use lockkeeper::Client;
use serde_json::{Value, json};
use testkit::ChildProcess;

use checker::Events;
use stand::Stand;
use worker::{LEASE, now};

/// The stores of a soak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Store {
    /// One server.
    Redis,
    /// Three servers, and three sentinels.
    Sentinel,
    /// Three shards with a replica each.
    Cluster,
    /// A quorum of three servers.
    Quorum3,
    /// A quorum of five.
    Quorum5,
    /// A file.
    File,
}

impl Store {
    /// All of them, with their names on the command line.
    pub const ALL: [(&str, Store); 6] = [
        ("redis", Store::Redis),
        ("sentinel", Store::Sentinel),
        ("cluster", Store::Cluster),
        ("quorum3", Store::Quorum3),
        ("quorum5", Store::Quorum5),
        ("file", Store::File),
    ];

    /// Finds it by its name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, store)| *store)
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, store)| *store == self).map_or("", |(name, _)| name)
    }

    fn is_quorum(self) -> bool {
        matches!(self, Store::Quorum3 | Store::Quorum5)
    }
}

/// Processes at a time.
const PROCESSES: usize = 4;

/// The length of a burst of faults, and of the pause after it, which is longer than what a burst leaves behind.
const BURST: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(25);

/// How long a process may take to end: it waits for locks, and for servers.
const ENDS: Duration = Duration::from_secs(60);

/// A process of the soak.
struct Process {
    number: usize,
    child: ChildProcess,
}

/// One soak.
struct Soak {
    program: PathBuf,
    store: Store,
    stand: Stand,
    logs: PathBuf,
    processes: Vec<Process>,
    started: usize,
    events: Events,
    faults: BTreeMap<&'static str, u64>,
    rng: Rng,
}

/// Soaks one store for so long, with processes of this program. Returns what it has shown as JSON, and the violations.
///
/// # Errors
/// If a process fails, or does not end.
pub fn run(program: &Path, store: Store, span: Duration) -> Result<(Value, Vec<String>), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut soak = Soak {
        program: program.to_owned(),
        store,
        stand: Stand::start(store),
        logs: folder.path().to_owned(),
        processes: Vec::new(),
        started: 0,
        events: Events::default(),
        faults: BTreeMap::new(),
        rng: Rng::new(),
    };
    let started = Instant::now();
    (0..PROCESSES).for_each(|_| soak.start());
    while started.elapsed() < span {
        soak.burst();
        std::thread::sleep(PAUSE.min(span.saturating_sub(started.elapsed())));
    }
    soak.end()?;
    soak.judge(started.elapsed())
}

impl Soak {
    fn start(&mut self) {
        let number = self.started;
        self.started += 1;
        let (url, log) = (self.stand.url(), self.log(number));
        let args =
            ["worker".to_owned(), url, self.store.name().to_owned(), log.display().to_string()];
        self.processes.push(Process { number, child: ChildProcess::spawn(&self.program, args) });
    }

    fn log(&self, number: usize) -> PathBuf {
        self.logs.join(number.to_string())
    }

    fn count(&mut self, what: &'static str) {
        *self.faults.entry(what).or_default() += 1;
    }

    /// Ten seconds in which one thing happens after the other.
    fn burst(&mut self) {
        let (begin, started) = (now(), Instant::now());
        while started.elapsed() < BURST {
            std::thread::sleep(Duration::from_millis(self.rng.u64(50..1_000)));
            let process = self.rng.usize(..self.processes.len());
            match self.rng.u8(..6) {
                0 => {
                    let Process { child, .. } = self.processes.swap_remove(process);
                    child.kill();
                    self.count("process killed");
                    self.start();
                }
                1 => {
                    let stop = now();
                    let Process { number, child } = &self.processes[process];
                    child.pause();
                    // Some outlast their leases.
                    let span =
                        if self.rng.u8(..4) == 0 { 11_000 } else { self.rng.u64(100..3_000) };
                    std::thread::sleep(Duration::from_millis(span));
                    child.resume();
                    self.events.stops.entry(*number).or_default().push((stop, now()));
                    self.count("process paused");
                }
                _ => {
                    let before = now();
                    let Some((what, loses)) = self.stand.happens(&mut self.rng) else { continue };
                    if loses {
                        self.events.losses.extend([before, now()]);
                    }
                    self.count(what);
                }
            }
        }
        self.events.faults.push((begin, now()));
    }

    /// Ends all processes.
    fn end(&mut self) -> Result<(), String> {
        self.processes.iter_mut().for_each(|process| process.child.write_line("end"));
        for process in &mut self.processes {
            match process.child.wait(ENDS) {
                Some(status) if status.success() => {}
                other => {
                    return Err(format!(
                        "process {} has not ended well: {other:?}",
                        process.number
                    ));
                }
            }
        }
        Ok(())
    }

    fn judge(self, took: Duration) -> Result<(Value, Vec<String>), String> {
        let read = |number| fs::read_to_string(self.log(number)).unwrap_or_default();
        let logs: Vec<_> = (0..self.started).map(read).collect();
        let (sums, met, mut violations) = checker::judge(&logs, &self.events);
        let orphans = orphans(&self.stand.url(), self.store)?;
        violations.extend(orphans.iter().map(|orphan| format!("left behind: {orphan}")));
        let sum = |of: fn(&checker::Sums) -> u64| sums.values().map(of).sum::<u64>();
        let kinds: BTreeMap<_, _> = sums
            .iter()
            .map(|(kind, sum)| {
                let row = json!({
                    "holds": sum.holds, "overlaps": sum.overlaps, "documented": sum.documented,
                    "late_signals": sum.late_signals, "lost_wakeups": sum.lost_wakeups,
                    "longest_wait_ms": sum.longest_wait / 1000, "tokens": sum.tokens, "tokens_back": sum.tokens_back,
                });
                (kind.clone(), row)
            })
            .collect();
        let row = json!({
            "store": self.store.name(), "seconds": took.as_secs(), "holds": sum(|sum| sum.holds),
            "faults": self.faults, "met": met, "orphans": orphans.len(), "kinds": kinds,
        });
        Ok((row, violations))
    }
}

/// What is held after all processes have ended, and the leases of those that were killed.
fn orphans(url: &str, store: Store) -> Result<Vec<String>, String> {
    std::thread::sleep(LEASE + Duration::from_secs(2));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let client = Client::connect_with(url, worker::options(store))
            .await
            .map_err(|error| error.to_string())?;
        let mut listing = client.inspector().list("*");
        let mut left = Vec::new();
        while let Some(page) = listing.next().await.map_err(|error| error.to_string())? {
            let held = page.into_iter().filter(|lock| !lock.holders.is_empty());
            left.extend(held.map(|lock| format!("{lock:?}")));
        }
        client.shutdown().await;
        Ok(left)
    })
}
