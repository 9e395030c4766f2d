//! The engine and many clients in a simulated world, on one thread and in virtual time.
//!
//! A run has four parts: chaos, in which everything fails that a [`Weather`] has; a calm in which what the chaos left
//! ends; a strict calm, in which no request may fail and no task may wait for long; and the end, after which nothing may
//! be left in the store. One seed decides everything, so a failure is replayed by its seed.

mod checker;
mod network;
mod tasks;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use lockkeeper::backend::Resource;
use lockkeeper::{Client, ClientOptions, Clock, Kind, LockName};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use checker::{Checker, LEASE};
use network::{Network, RESPONSE};
use tasks::{Actor, COUNT, Counts, EXACT, PERMITS};

/// What may happen in a run, and how often: chances are per million requests.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    lanes: usize,
    /// The user may kill connections: a lost request takes no effect once a later one was answered.
    revokes: bool,
    /// The longest usual delay of a message, in microseconds.
    delay: u64,
    slow: u32,
    lost: u32,
    late: u32,
    twice: u32,
    /// The mean time between two outages of servers, deaths of clients, steps and jumps of clocks; none if zero.
    outages: u64,
    deaths: u64,
    steps: u64,
    jumps: u64,
    loses_data: bool,
    forces: bool,
    cancels: bool,
    /// The longest pauses of a task, in milliseconds: with a lock, and between two cycles.
    work: u64,
    rest: u64,
    clients: usize,
    tasks: usize,
}

impl Weather {
    fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut often = |most: u32| if rng.bool() { rng.u32(..most) } else { 0 };
        let (slow, lost, late, twice) = (often(5_000), often(8_000), often(4_000), often(20_000));
        let mut every = |least: u64| if rng.u8(..3) == 0 { rng.u64(least..10 * least) } else { 0 };
        let (outages, deaths, steps, jumps) =
            (every(3_000), every(4_000), every(8_000), every(5_000));
        Self {
            lanes: if rng.bool() { 1 } else { 3 },
            revokes: rng.u8(..4) > 0,
            delay: [200, 2_000, 20_000][rng.usize(..3)],
            slow,
            lost,
            late,
            twice,
            outages,
            deaths,
            steps,
            jumps,
            loses_data: rng.bool(),
            forces: rng.bool(),
            cancels: rng.u8(..4) > 0,
            work: [1, 5, 30][rng.usize(..3)],
            rest: [1, 10, 100][rng.usize(..3)],
            clients: rng.usize(2..5),
            tasks: rng.usize(2..9),
        }
    }

    /// Whether no permit without a lease is lost.
    fn keeps_permits(&self) -> bool {
        self.deaths == 0 && (self.outages == 0 || !self.loses_data)
    }

    /// The same without faults.
    fn calm(&self) -> Self {
        let (slow, lost, late, twice) = (0, 0, 0, 0);
        Self { slow, lost, late, twice, forces: false, cancels: false, ..self.clone() }
    }
}

/// What a run has shown.
#[derive(Debug, Default)]
pub struct Report {
    /// Calls of the public API.
    pub operations: u64,
    /// Holds that were granted.
    pub grants: u64,
    /// Requests that the servers executed.
    pub requests: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// The longest wait of a task in the calm.
    pub longest_wait: Duration,
    /// A hash of everything that happened.
    pub history: u64,
    /// What must not happen, with the last events of the names concerned if they were kept.
    pub violations: Vec<String>,
}

impl Report {
    /// Adds what another run has shown.
    pub fn add(&mut self, other: Report) {
        self.operations += other.operations;
        self.grants += other.grants;
        self.requests += other.requests;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.violations.extend(other.violations);
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }
}

/// The spans of the parts of a run.
const CHAOS: Duration = Duration::from_secs(30);
const CALM: Duration = Duration::from_secs(16);
const STRICT: Duration = Duration::from_secs(10);

/// The longest time in which all tasks end in the strict calm.
const ENDS: Duration = Duration::from_secs(30);

/// Runs the world of this seed; with `tail` a violation is followed by the last events of its name.
#[must_use]
pub fn run(seed: u64, tail: bool) -> Report {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime without I/O");
    fastrand::seed(seed);
    runtime.block_on(play(seed, tail))
}

/// A client of the world, and its tasks.
struct Process {
    actor: Actor,
    tasks: JoinSet<()>,
}

/// The world, and who acts in it.
struct Stage {
    network: Network,
    checker: Checker,
    weather: Weather,
    counts: Arc<Counts>,
    processes: Vec<Process>,
    rng: Rng,
}

async fn play(seed: u64, tail: bool) -> Report {
    let weather = Weather::of(seed);
    let network = Network::new(seed, weather.calm(), tail);
    let events = tokio::spawn(network.clone().run());
    let checker = Checker::new(&network);
    let rng = Rng::with_seed(seed ^ 0x5eed);
    let counts = Arc::default();
    let mut stage = Stage { network, checker, weather, counts, processes: Vec::new(), rng };
    stage.set_up().await;
    for _ in 0..stage.weather.clients {
        stage.start();
    }
    stage.network.world().weather = stage.weather.clone();
    stage.chaos().await;
    stage.calm().await;
    let report = stage.end().await;
    events.abort();
    report
}

impl Stage {
    fn options(&self, clock: &Clock) -> ClientOptions {
        ClientOptions::new()
            .watchdog_timeout(LEASE)
            .response_timeout(RESPONSE)
            .unreachable_after(Duration::from_secs(4))
            .clock(clock.clone())
    }

    fn actor(&self) -> Actor {
        let clock = Clock::simulated();
        let (number, backend) = self.network.client();
        let client = Client::with_backend(backend, self.options(&clock)).expect("they are valid");
        let (checker, counts) = (self.checker.clone(), Arc::clone(&self.counts));
        Actor { client, number, clock, checker, weather: self.weather.clone(), counts }
    }

    /// Starts a process.
    fn start(&mut self) {
        let actor = self.actor();
        let mut tasks = JoinSet::new();
        for _ in 0..self.weather.tasks {
            tasks.spawn(actor.clone().work());
        }
        self.processes.push(Process { actor, tasks });
    }

    /// Sets up what is not there yet: at first, and after data were lost.
    async fn set_up(&self) {
        let actor = self.actor();
        for (semaphore, permits) in tasks::semaphores() {
            let _ = actor.client.semaphore(semaphore).try_set_permits(PERMITS, None).await;
            let _ = actor.client.permit_semaphore(permits).try_set_permits(PERMITS, None).await;
        }
        let _ = actor.client.count_down_latch(EXACT).try_set_count(COUNT).await;
        actor.client.shutdown().await;
    }

    /// Lets things fail, each at random times.
    async fn chaos(&mut self) {
        let mut left = CHAOS;
        while !left.is_zero() {
            let span = Duration::from_millis(self.rng.u64(20..400)).min(left);
            sleep(span).await;
            left -= span;
            let weather = self.weather.clone();
            let millis = span.as_millis() as u64;
            let mut happens = |every: u64| every > 0 && self.rng.u64(..every) < millis;
            let [outage, death, step, jump] =
                [weather.outages, weather.deaths, weather.steps, weather.jumps].map(&mut happens);
            let lane = self.rng.usize(..weather.lanes);
            if outage {
                let span = self.rng.u64(1_000..6_000_000);
                self.network.world().outage(lane, span);
            }
            if self.rng.u8(..20) == 0 {
                self.network.world().take_snapshot(lane);
            }
            if step {
                let millis = self.rng.i64(-4_000..4_000);
                self.network.world().step(lane, millis);
            }
            let process = self.rng.usize(..self.processes.len());
            if jump {
                let actor = &self.processes[process].actor;
                self.checker.jumped(actor.number);
                actor.clock.skip(Duration::from_millis(self.rng.u64(1..15_000)));
                self.network.world().fault("clocks of clients jumped");
            }
            if death {
                self.die(process);
            }
        }
    }

    /// A process is killed, or its runtime ends; another one starts.
    fn die(&mut self, process: usize) {
        let Process { actor, mut tasks } = self.processes.swap_remove(process);
        if self.rng.bool() {
            self.network.world().fault("processes killed");
            self.network.world().kill(actor.number);
        } else {
            self.network.world().fault("runtimes ended");
        }
        tasks.abort_all();
        actor.client.abandon();
        // Dead tasks are dropped by the runtime.
        tasks.detach_all();
        self.start();
    }

    async fn calm(&mut self) {
        self.network.world().weather = self.weather.calm();
        self.counts.calm.store(1, Ordering::Relaxed);
        // An outage that began in the chaos, and requests that are late.
        sleep(Duration::from_secs(6)).await;
        self.set_up().await;
        sleep(CALM).await;
        self.counts.strict.store(1, Ordering::Relaxed);
        self.checker.calm();
        sleep(STRICT).await;
    }

    /// Ends all tasks, and looks for what is left.
    async fn end(mut self) -> Report {
        let sums = self.checker.sums();
        self.counts.ends.store(1, Ordering::Relaxed);
        self.counts.drop_kept();
        let all = async {
            for process in &mut self.processes {
                while let Some(done) = process.tasks.join_next().await {
                    done.expect("a task has panicked");
                }
            }
        };
        if timeout(ENDS, all).await.is_err() {
            for (name, waited) in self.checker.still_waiting() {
                self.network
                    .world()
                    .fail(&name, format!("a task has waited for {name} for {waited:?}"));
            }
        } else {
            self.nothing_is_left().await;
        }
        let world = self.network.world();
        let mut violations: Vec<_> =
            world.violations.iter().map(|(_, what)| what.clone()).collect();
        if let Some((name, what)) = world.violations.first() {
            violations[0] = world.explain(name, what);
        }
        Report {
            operations: self.counts.operations.load(Ordering::Relaxed),
            grants: sums.grants,
            requests: world.requests,
            faults: world.faults.clone(),
            longest_wait: sums.longest_wait,
            history: world.history.hash,
            violations,
        }
    }

    /// Every lock is free after the longest lease, all permits are there, and each countdown counted once.
    async fn nothing_is_left(&self) {
        sleep(LEASE + 2 * RESPONSE).await;
        for (kind, name) in tasks::locks() {
            let kind = match kind {
                "mutex" => Kind::Mutex,
                "fair" => Kind::Fair,
                "rw" => Kind::Write,
                _ => Kind::Lock,
            };
            let name = LockName::from(name.as_str());
            let resource = Resource { kind, name: name.clone() };
            let mut world = self.network.world();
            match world.look(&name, |state, now| state.inspect(&resource, now)) {
                Ok(lock) if lock.holders.is_empty() && lock.queue.is_empty() => {}
                other => world.fail(&name, format!("{name} is not free at the end: {other:?}")),
            }
        }
        let actor = self.actor();
        for (semaphore, permits) in tasks::semaphores() {
            let free = actor.client.semaphore(&semaphore).available().await;
            self.expect(&semaphore, free.ok(), PERMITS as i64);
            let free = actor.client.permit_semaphore(&permits).available().await;
            self.expect(&permits, free.ok(), PERMITS as i64);
        }
        let count = actor.client.count_down_latch(EXACT).count().await;
        let done = count.map(|count| COUNT - count).unwrap_or(u64::MAX);
        let counted = self.counts.counted.load(Ordering::Relaxed);
        let most = counted + self.counts.uncertain.load(Ordering::Relaxed);
        let name = LockName::from(EXACT);
        let mut world = self.network.world();
        if !(counted..=most).contains(&done) && !world.lost_data(&name) {
            world.fail(&name, format!("{done} countdowns were counted, not {counted} to {most}"));
        }
    }

    fn expect(&self, name: &str, found: Option<i64>, expected: i64) {
        let name = LockName::from(name);
        let mut world = self.network.world();
        if found != Some(expected) && !world.lost_data(&name) {
            world.fail(&name, format!("{found:?} of {expected} permits are free at the end"));
        }
    }
}
