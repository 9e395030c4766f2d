//! What the clients of a simulated world do: short cycles over every kind, many of them dropped half-way.

use std::future::{Future, IntoFuture};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::{AnyGuard, AnyLock, Client, Clock, Error, Hold, LockName, MultiLock, Result};
use tokio::time::{sleep, timeout};

use super::Weather;
use super::checker::{Checker, Entry, Mode};

/// Of each kind; few, so that there is much waiting.
const NAMES: usize = 3;

/// Of each semaphore.
pub(super) const PERMITS: u64 = 5;

/// What may hold a name.
const KINDS: [&str; 6] = ["lock", "mutex", "fair", "rw", "fenced", "spin"];

/// The latch that every cycle counts down once, and its count.
pub(super) const EXACT: &str = "exact";
pub(super) const COUNT: u64 = 1 << 40;

/// One client, and what its tasks need.
#[derive(Clone)]
pub(super) struct Actor {
    pub(super) client: Client,
    pub(super) number: usize,
    pub(super) clock: Clock,
    pub(super) checker: Checker,
    pub(super) weather: Weather,
    pub(super) counts: Arc<Counts>,
}

/// What all tasks of a world count.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Operations: calls of the public API that were made.
    pub(super) operations: AtomicU64,
    /// Countdowns that were confirmed, and those whose outcome is unknown.
    pub(super) counted: AtomicU64,
    pub(super) uncertain: AtomicU64,
    /// From then on nothing is dropped or forced.
    pub(super) calm: AtomicU64,
    /// From then on no request may fail.
    pub(super) strict: AtomicU64,
    /// The tasks end.
    pub(super) ends: AtomicU64,
    /// Guards of fixed leases that are left to expire.
    kept: Mutex<Vec<AnyGuard>>,
}

impl Counts {
    fn keep(&self, guard: AnyGuard) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(guard);
    }

    /// Drops the guards that were left to expire.
    pub(super) fn drop_kept(&self) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        drop(kept);
    }
}

/// A guard, and its entry in the books, which ends first.
struct Holding<G> {
    entries: Vec<Entry>,
    guard: G,
}

impl<G> Holding<G> {
    /// The guard alone: its release begins.
    fn ending(self) -> G {
        drop(self.entries);
        self.guard
    }
}

pub(super) fn name(kind: &str) -> String {
    format!("{kind} {}", fastrand::usize(..NAMES))
}

/// All names of semaphores, plain and with ids.
pub(super) fn semaphores() -> impl Iterator<Item = (String, String)> {
    (0..NAMES).map(|n| (format!("semaphore {n}"), format!("permits {n}")))
}

/// All names of locks, with their kinds.
pub(super) fn locks() -> impl Iterator<Item = (&'static str, String)> {
    KINDS.iter().flat_map(|kind| (0..NAMES).map(move |n| (*kind, format!("{kind} {n}"))))
}

async fn pause(longest: u64) {
    sleep(Duration::from_micros(fastrand::u64(..longest * 1000))).await;
}

impl Actor {
    /// Works until the world says that it ends.
    pub(super) async fn work(self) {
        while self.counts.ends.load(Ordering::Relaxed) == 0 {
            self.cycle().await;
            self.count_down().await;
            pause(self.weather.rest).await;
        }
    }

    fn is_calm(&self) -> bool {
        self.counts.calm.load(Ordering::Relaxed) > 0
    }

    fn operation(&self) {
        self.counts.operations.fetch_add(1, Ordering::Relaxed);
    }

    /// The outcome of `work`, if it is not dropped before.
    async fn or_drop<T>(&self, work: impl IntoFuture<Output = T>) -> Option<T> {
        self.operation();
        if !self.weather.cancels || self.is_calm() {
            return Some(work.await);
        }
        match fastrand::u8(..8) {
            0 => {
                let turns = async {
                    for _ in 0..fastrand::usize(..20) {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::select! {
                    biased;
                    done = work.into_future() => Some(done),
                    () = turns => None,
                }
            }
            1 => timeout(Duration::from_millis(fastrand::u64(..60)), work).await.ok(),
            2 => timeout(Duration::from_millis(fastrand::u64(..3000)), work).await.ok(),
            _ => Some(work.await),
        }
    }

    /// What may become of a request here.
    fn fine<T>(&self, name: &str, outcome: Result<T>) -> Option<T> {
        let strict = self.counts.strict.load(Ordering::Relaxed) > 0;
        match outcome {
            Ok(done) => Some(done),
            Err(Error::NotHeld { .. } | Error::Lost { .. } | Error::Closed { .. }) if !strict => {
                None
            }
            // The counter may have been lost with its server's data.
            Err(Error::Invalid { .. }) => None,
            Err(Error::Unconfirmed { .. } | Error::Unreachable { .. }) if !strict => None,
            Err(error) => {
                self.checker.fail(name, format!("client {}: {error}", self.number));
                None
            }
        }
    }

    /// The same for a hold that may end before its release.
    fn fine_or_lost(&self, name: &str, outcome: Result<()>, fixed: bool) {
        let lost = matches!(outcome, Err(Error::NotHeld { .. } | Error::Lost { .. }));
        if !(fixed && lost) {
            self.fine(name, outcome);
        }
    }

    fn holds<G: std::ops::Deref<Target = Hold>>(
        &self,
        guard: G,
        mode: Mode,
        group: u64,
    ) -> Holding<G> {
        let entry = self.checker.granted(self.number, mode, group, &guard);
        Holding { entries: vec![entry], guard }
    }

    fn lock(&self, kind: &str, name: &str) -> AnyLock {
        let (client, owner) = (&self.client, self.client.new_owner());
        match kind {
            "lock" if fastrand::bool() => client.lock(name).into(),
            "lock" => client.lock(name).as_owner(&owner).into(),
            "mutex" => client.mutex(name).into(),
            "fair" => client.fair_lock(name).into(),
            "fenced" => client.fenced_lock(name).into(),
            "spin" => client.spin_lock(name).into(),
            _ => client.rw_lock(name).fenced().as_owner(&owner).writer(),
        }
    }

    /// Waits for a grant, in the books.
    async fn wait<T>(&self, names: &[String], work: impl Future<Output = Result<T>>) -> Option<T> {
        let waiting = self.checker.waits(names.iter().map(|name| LockName::from(name.as_str())));
        let outcome = self.or_drop(work).await;
        let granted = outcome.and_then(|outcome| self.fine(&names[0], outcome));
        if granted.is_some() {
            waiting.served();
        }
        granted
    }

    async fn cycle(&self) {
        match fastrand::u8(..24) {
            0 if self.weather.forces && !self.is_calm() => self.force().await,
            1..=3 => self.hold_several().await,
            4 | 5 => self.use_permits_with_ids().await,
            // Permits without a lease are lost with the process that has acquired them, and with data.
            6 | 7 if self.weather.keeps_permits() => self.use_permits().await,
            8 | 9 => self.use_a_latch().await,
            10..=12 => self.sides().await,
            _ => {
                let kind = KINDS[fastrand::usize(..KINDS.len())];
                let name = name(kind);
                self.hold(&name, self.lock(kind, &name)).await;
            }
        }
    }

    /// A hold, or the attempt at one, that ends in one of many ways.
    async fn hold(&self, name: &str, lock: AnyLock) {
        let fixed = fastrand::u8(..4) == 0;
        let span = Duration::from_millis(fastrand::u64(50..2000));
        let lock = if fixed { lock.lease(span) } else { lock };
        let granted = match fastrand::u8(..6) {
            0 => self.fine(name, lock.try_lock().await).flatten(),
            1 => {
                let limit = Duration::from_millis(fastrand::u64(..500));
                let outcome = self.or_drop(lock.try_lock_for(limit)).await;
                outcome.and_then(|outcome| self.fine(name, outcome)).flatten()
            }
            _ => self.wait(&[name.to_owned()], lock.lock()).await,
        };
        let Some(guard) = granted else { return };
        let holding = self.holds(guard, Mode::Exclusive, fastrand::u64(..));
        pause(self.weather.work).await;
        self.end(name, holding, span, fixed).await;
    }

    async fn end(&self, name: &str, holding: Holding<AnyGuard>, span: Duration, fixed: bool) {
        self.operation();
        match fastrand::u8(..14) {
            0 => drop(holding),
            1 => drop(holding.ending().release()),
            2 => {
                let guard = holding.ending();
                let done = self.or_drop(guard.release()).await;
                done.into_iter().for_each(|done| self.fine_or_lost(name, done, fixed));
            }
            3 => {
                let again = self.or_drop(holding.guard.reenter()).await;
                pause(self.weather.work).await;
                drop(again);
            }
            4 => drop(self.or_drop(holding.guard.extend(span)).await),
            5 => {
                let left = holding.ending().leave_for(span).await;
                self.fine_or_lost(name, left, fixed);
            }
            6 if fixed => self.counts.keep(holding.ending()),
            7 => {
                // It works on, for as long as it may.
                let longest = Duration::from_millis(fastrand::u64(1..3000));
                drop(timeout(longest, holding.guard.lost()).await);
            }
            _ => {
                let done = holding.ending().release().await;
                self.fine_or_lost(name, done, fixed);
            }
        }
    }

    /// The sides of a read/write lock, one beside the other or one after the other.
    async fn sides(&self) {
        let (name, group) = (name("rw"), fastrand::u64(..));
        let rw = self.client.rw_lock(&name).as_owner(&self.client.new_owner());
        let names = [name.clone()];
        if fastrand::u8(..3) > 0 {
            let Some(reading) = self.wait(&names, rw.read()).await else { return };
            let reading = self.holds(reading, Mode::Shared, group);
            pause(self.weather.work).await;
            if fastrand::bool() {
                let done = reading.ending().release().await;
                self.fine(&name, done);
                return;
            }
            match self.or_drop(reading.ending().try_upgrade()).await {
                Some(Ok(writing)) => {
                    let writing = self.holds(writing, Mode::Exclusive, group);
                    pause(self.weather.work).await;
                    let done = self.or_drop(writing.ending().release()).await;
                    done.and_then(|done| self.fine(&name, done));
                }
                Some(Err(refused)) => drop(refused.into_guard()),
                None => {}
            }
        } else {
            let Some(writing) = self.wait(&names, rw.write()).await else { return };
            let writing = self.holds(writing, Mode::Exclusive, group);
            let nested =
                self.or_drop(writing.guard.read()).await.and_then(|read| self.fine(&name, read));
            let nested = nested.map(|read| self.holds(read, Mode::Shared, group));
            pause(self.weather.work).await;
            match fastrand::u8(..3) {
                0 => {
                    let reading = self.or_drop(writing.ending().downgrade()).await;
                    if let Some(reading) = reading.and_then(|reading| self.fine(&name, reading)) {
                        let reading = self.holds(reading, Mode::Shared, group);
                        pause(self.weather.work).await;
                        drop(reading);
                    }
                }
                1 => drop((writing, nested)),
                _ => drop((nested, writing)),
            }
        }
    }

    async fn hold_several(&self) {
        let mut all = Vec::new();
        for kind in KINDS {
            if fastrand::bool() {
                let name = name(kind);
                all.push((self.lock(kind, &name), name));
            }
        }
        if all.is_empty() {
            return;
        }
        let (locks, names): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let Some(guard) = self.wait(&names, MultiLock::new(locks).lock()).await else { return };
        let group = fastrand::u64(..);
        let granted =
            |member: &AnyGuard| self.checker.granted(self.number, Mode::Exclusive, group, member);
        let entries = guard.members().iter().map(granted).collect();
        let holding = Holding { entries, guard };
        pause(self.weather.work).await;
        match fastrand::u8(..4) {
            0 => drop(holding),
            1 => {
                let done = self.or_drop(holding.ending().release()).await;
                done.and_then(|done| self.fine(&names[0], done));
            }
            _ => {
                let done = holding.ending().release().await;
                self.fine(&names[0], done);
            }
        }
    }

    async fn use_permits(&self) {
        let name = name("semaphore");
        let semaphore = self.client.semaphore(&name);
        let count = fastrand::u32(1..=3);
        // Whether a dropped or unanswered request had acquired them is undone by the library, or counted.
        let Some(guard) = self.wait(std::slice::from_ref(&name), semaphore.acquire(count)).await
        else {
            return;
        };
        pause(self.weather.work).await;
        match fastrand::u8(..4) {
            0 => drop(guard),
            1 => drop(self.or_drop(guard.release()).await),
            _ => {
                self.fine(&name, guard.release().await);
            }
        }
    }

    async fn use_permits_with_ids(&self) {
        let name = name("permits");
        let semaphore = self.client.permit_semaphore(&name);
        let count = fastrand::u32(1..=3);
        let Some(guard) = self.wait(std::slice::from_ref(&name), semaphore.acquire(count)).await
        else {
            return;
        };
        let mode = Mode::Permits(u64::from(count), PERMITS);
        let holding = self.holds(guard, mode, fastrand::u64(..));
        pause(self.weather.work).await;
        match fastrand::u8(..4) {
            0 => drop(holding),
            1 => {
                let guard = holding.ending();
                let released = self.or_drop(semaphore.release(&guard.permit_ids())).await;
                released.and_then(|released| self.fine(&name, released));
            }
            _ => {
                let done = holding.ending().release().await;
                self.fine(&name, done);
            }
        }
    }

    async fn use_a_latch(&self) {
        let name = name("latch");
        let latch = self.client.count_down_latch(&name);
        let fine = |done: Option<Result<()>>| {
            done.and_then(|done| self.fine(&name, done));
        };
        match fastrand::u8(..5) {
            0 => fine(
                self.or_drop(latch.try_set_count(fastrand::u64(1..4)))
                    .await
                    .map(|set| set.map(drop)),
            ),
            1 => fine(timeout(Duration::from_millis(fastrand::u64(..90)), latch.wait()).await.ok()),
            2 => {
                let limit = Duration::from_millis(fastrand::u64(..90));
                fine(self.or_drop(latch.wait_for(limit)).await.map(|open| open.map(drop)));
            }
            3 => fine(self.or_drop(latch.delete()).await.map(|done| done.map(drop))),
            _ => fine(self.or_drop(latch.count_down()).await.map(|left| left.map(drop))),
        }
    }

    /// Counts down a latch whose count is known: each call counts once, or its outcome is reported as unknown.
    async fn count_down(&self) {
        self.operation();
        // The process may die before the answer.
        self.counts.uncertain.fetch_add(1, Ordering::Relaxed);
        if self.client.count_down_latch(EXACT).count_down().await.is_ok() {
            self.counts.uncertain.fetch_sub(1, Ordering::Relaxed);
            self.counts.counted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Only the first of each kind: on the others it would hide what was left behind.
    async fn force(&self) {
        let forced = match fastrand::u8(..4) {
            0 => self.client.lock("lock 0").force_unlock("for the test").await,
            1 => self.client.mutex("mutex 0").force_unlock("").await,
            2 => self.client.fair_lock("fair 0").force_unlock("").await,
            _ => self.client.rw_lock("rw 0").force_unlock("").await,
        };
        self.fine("force", forced);
    }
}
