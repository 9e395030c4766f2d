//! A contender that is a process of its own, and what it costs.

use std::thread;
use std::time::{Duration, Instant};

use testkit::ChildProcess;

use super::library::{Built, Library};
use crate::Result;
use crate::probe::process_cpu;

/// Longer than any command takes: a benchmark that hangs should say so instead.
const SILENCE: Duration = Duration::from_secs(120);

/// The lease of a lock, unless a workload is about leases: the default of lockkeeper and Redisson.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A warm-up ends after so many windows in which no more was done than in one before, by a twentieth.
const WARM_STEADY: usize = 3;
const WARM_WINDOW: Duration = Duration::from_secs(1);

/// A running peer; killed when dropped.
pub(crate) struct Peer {
    library: Library,
    child: ChildProcess,
    version: String,
}

impl Peer {
    /// Starts it without waiting, so that several start at once; `ready` comes next.
    pub(crate) fn launch(
        library: Library,
        built: &Built,
        url: &str,
        lease: Duration,
    ) -> Result<Self> {
        let child = ChildProcess::from_command(library.command(built, url, lease)?);
        Ok(Self { library, child, version: String::new() })
    }

    /// Waits until it is ready.
    pub(crate) fn ready(&mut self) -> Result<()> {
        let line = self.line()?;
        match line.strip_prefix("ready ") {
            Some(version) => self.version = version.to_owned(),
            None => return Err(format!("{} says {line:?}", self.library.name()).into()),
        }
        Ok(())
    }

    /// Which library it is.
    pub(crate) fn library(&self) -> Library {
        self.library
    }

    /// Its version, as it says.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Sends a command; `answer` comes next.
    pub(crate) fn send(&mut self, command: &str) {
        self.child.write_line(command);
    }

    /// The numbers of the answer to the last command.
    pub(crate) fn answer(&mut self) -> Result<Vec<u64>> {
        let line = self.line()?;
        let Some(numbers) = line.strip_prefix("ok") else {
            return Err(format!("{} says {line:?}", self.library.name()).into());
        };
        Ok(numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    }

    /// Sends a command and waits for the answer.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Vec<u64>> {
        self.send(command);
        self.answer()
    }

    /// As `ask`, for commands with one number as the answer.
    pub(crate) fn number(&mut self, command: &str) -> Result<u64> {
        first(&self.ask(command)?)
    }

    /// Kills it without warning; returns when it is gone.
    pub(crate) fn kill(self) {
        self.child.kill();
    }

    /// CPU time that it has used.
    pub(crate) fn cpu(&self) -> Duration {
        process_cpu(self.pid())
    }

    /// Bytes of memory that it has.
    pub(crate) fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.map_or(f64::NAN, |kib| kib * 1024.0)
    }

    fn line(&mut self) -> Result<String> {
        let silent = || format!("{} does not answer, or has ended", self.library.name());
        self.child.next_line(SILENCE).ok_or_else(|| silent().into())
    }
}

/// The first number of an answer.
pub(crate) fn first(numbers: &[u64]) -> Result<u64> {
    numbers.first().copied().ok_or_else(|| "an answer without a number".into())
}

/// Nanoseconds of the clock that the peers' answers are in.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Several processes of one library.
pub(crate) struct Team {
    /// The processes.
    pub(crate) peers: Vec<Peer>,
}

impl Team {
    /// Starts so many at once.
    pub(crate) fn start(
        library: Library,
        size: usize,
        built: &Built,
        url: &str,
        lease: Duration,
    ) -> Result<Self> {
        let peers = (0..size).map(|_| Peer::launch(library, built, url, lease));
        let mut peers = peers.collect::<Result<Vec<_>>>()?;
        peers.iter_mut().try_for_each(Peer::ready)?;
        Ok(Self { peers })
    }

    /// Which library it is.
    pub(crate) fn library(&self) -> Library {
        self.peers[0].library()
    }

    /// The same command to all of them, at once.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Vec<Vec<u64>>> {
        self.peers.iter_mut().for_each(|peer| peer.send(command));
        self.peers.iter_mut().map(Peer::answer).collect()
    }

    /// CPU time that all of them have used.
    pub(crate) fn cpu(&self) -> Duration {
        self.peers.iter().map(Peer::cpu).sum()
    }

    /// Lets it work until it becomes no faster, if it is compiled while it runs.
    pub(crate) fn warm_up(&mut self, work: &str, workers: usize, longest: Duration) -> Result<()> {
        if !self.library().warms_up() {
            return Ok(());
        }
        let name = format!("bench:{}:warm", self.library().tag());
        self.ask(&format!("start {work} {name} {workers}"))?;
        let start = Instant::now();
        let (mut done, mut best, mut steady) = (0, 0, 0);
        while start.elapsed() < longest && steady < WARM_STEADY {
            thread::sleep(WARM_WINDOW);
            let counts = self.ask("count")?;
            let total: u64 = counts.iter().flat_map(|numbers| numbers.iter().skip(1)).sum();
            let window = total - done;
            steady = if window > best + best / 20 { 0 } else { steady + 1 };
            (done, best) = (total, best.max(window));
        }
        self.ask("stop").map(drop)
    }
}
