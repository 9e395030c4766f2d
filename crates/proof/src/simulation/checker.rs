//! What must be true of a history: at each grant, at each wait, and at the end.
//!
//! A hold counts from its grant, as its task sees it, until its task begins to release it. So an overlap of two
//! recorded holds that both are not lost by their own clocks is one of two real ones. Holds that were granted before
//! their server lost data or time, or before a force-release, are excused until their lease must have ended or a
//! renewal must have told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper::{Hold, LockName};

use super::network::{Micros, Network, RESPONSE};

/// How a hold excludes others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mode {
    Exclusive,
    Shared,
    /// So many permits of so many.
    Permits(u64, u64),
}

/// The longest lease of a hold in the simulation.
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// After its clock has jumped, a process learns of a loss within this time.
const NOTICED: Micros = 260_000;

/// The longest time for which a lock is free while a task waits for it: less than a re-check, which would hide a lost
/// wake-up.
const FREE: Micros = 2_400_000;

#[derive(Clone)]
pub(super) struct Checker {
    network: Network,
    books: Arc<Mutex<Books>>,
}

#[derive(Default)]
struct Books {
    next: u64,
    held: HashMap<LockName, Vec<Held>>,
    tokens: HashMap<LockName, u64>,
    jumped: HashMap<usize, Micros>,
    waiting: HashMap<u64, (Micros, Vec<LockName>)>,
    /// From then on waits are judged.
    calm: Option<Micros>,
    grants: u64,
    longest_wait: Micros,
}

struct Held {
    number: u64,
    client: usize,
    mode: Mode,
    /// Holds of one owner do not exclude each other.
    group: u64,
    hold: Hold,
    granted: Micros,
    /// Set when `lost()` resolves; not every hold is watched.
    signal: Option<Arc<AtomicBool>>,
}

/// A hold in the books. Dropped before the hold is released.
pub(super) struct Entry {
    checker: Checker,
    name: LockName,
    number: u64,
}

/// A wait in the books.
pub(super) struct Waiting {
    checker: Checker,
    number: u64,
}

/// The sums of a history.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) grants: u64,
    pub(super) longest_wait: Duration,
}

impl Checker {
    pub(super) fn new(network: &Network) -> Self {
        Self { network: network.clone(), books: Arc::default() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A hold was granted.
    pub(super) fn granted(&self, client: usize, mode: Mode, group: u64, hold: &Hold) -> Entry {
        let mut world = self.network.world();
        let mut books = self.books();
        let (now, name, number) = (world.now(), hold.name().clone(), books.next);
        (books.next, books.grants) = (number + 1, books.grants + 1);
        let granted = world.granted_at(client, &hold.owner_id());
        world.note(&name, 17 + number, || {
            format!("client {client} has {name}: hold {number}, {mode:?}")
        });
        let doubtful = world.doubtful_since(&name);
        let excused = |granted: Micros| {
            let lease = (LEASE + 2 * RESPONSE).as_micros() as Micros;
            doubtful.is_some_and(|since| granted <= since && now <= since + lease)
        };
        let mut violations = Vec::new();
        let jumped = books.jumped.get(&client).is_some_and(|at| *at >= granted);
        if hold.is_lost() && !excused(granted) && !jumped {
            violations.push(format!("hold {number} was lost when it was granted"));
        }
        let others = books.held.get(&name).map_or(&[][..], Vec::as_slice);
        let mut permits = 0;
        for other in others {
            if let (Mode::Permits(..), Mode::Permits(count, _)) = (mode, other.mode) {
                permits += if other.hold.is_lost() || excused(other.granted) { 0 } else { count };
                continue;
            }
            let both_shared = (mode, other.mode) == (Mode::Shared, Mode::Shared);
            if both_shared || other.group == group || excused(other.granted) || excused(granted) {
                continue;
            }
            if !other.hold.is_lost() {
                violations.push(format!(
                    "hold {number} overlaps hold {} of client {}",
                    other.number, other.client
                ));
            }
            let jumped = books.jumped.get(&other.client).is_some_and(|at| now < at + NOTICED);
            let unsignalled = |signal: &Arc<AtomicBool>| !signal.load(Ordering::Relaxed);
            if !jumped && other.signal.as_ref().is_some_and(unsignalled) && other.hold.is_lost() {
                violations.push(format!(
                    "hold {} is lost, and was not signalled before hold {number}",
                    other.number
                ));
            }
        }
        if let Mode::Permits(count, total) = mode
            && permits + count > total
            && !excused(granted)
        {
            violations.push(format!("{} of {total} permits are held", permits + count));
        }
        if let Some(token) = hold.token()
            && mode == Mode::Exclusive
        {
            let last = books.tokens.insert(name.clone(), token);
            // A re-entry has the token of the first hold.
            let same = others_of(&books, &name).any(|other| other.group == group);
            if !same
                && last.is_some_and(|last| last >= token)
                && !excused(granted)
                && !world.was_doubtful(&name)
            {
                violations.push(format!("hold {number} has token {token}, after {last:?}"));
            }
        }
        violations.into_iter().for_each(|what| world.fail(&name, what));
        let signal = fastrand::bool().then(|| {
            let (signal, lost) = (Arc::new(AtomicBool::new(false)), hold.lost());
            let set = Arc::clone(&signal);
            tokio::spawn(async move {
                lost.await;
                set.store(true, Ordering::Relaxed);
            });
            signal
        });
        let held = Held { number, client, mode, group, hold: hold.clone(), granted, signal };
        books.held.entry(name.clone()).or_default().push(held);
        Entry { checker: self.clone(), name, number }
    }

    pub(super) fn fail(&self, name: &str, what: String) {
        self.network.world().fail(&LockName::from(name), what);
    }

    /// The clock of a client has jumped.
    pub(super) fn jumped(&self, client: usize) {
        let now = self.network.world().now();
        self.books().jumped.insert(client, now);
    }

    /// A task waits for these names.
    pub(super) fn waits(&self, names: impl IntoIterator<Item = LockName>) -> Waiting {
        let now = self.network.world().now();
        let mut books = self.books();
        let number = books.next;
        books.next += 1;
        books.waiting.insert(number, (now, names.into_iter().collect()));
        Waiting { checker: self.clone(), number }
    }

    /// From now on there are no faults, and waits are judged.
    pub(super) fn calm(&self) {
        let now = self.network.world().now();
        self.books().calm = Some(now);
    }

    pub(super) fn sums(&self) -> Sums {
        let books = self.books();
        let longest_wait = Duration::from_micros(books.longest_wait);
        Sums { grants: books.grants, longest_wait }
    }

    /// The waits that have not ended.
    pub(super) fn still_waiting(&self) -> Vec<(LockName, Duration)> {
        let now = self.network.world().now();
        let books = self.books();
        let mut all: Vec<_> = books
            .waiting
            .values()
            .flat_map(|(since, names)| {
                names.iter().map(move |name| (name.clone(), Duration::from_micros(now - since)))
            })
            .collect();
        all.sort();
        all
    }
}

fn others_of<'a>(books: &'a Books, name: &LockName) -> impl Iterator<Item = &'a Held> {
    books.held.get(name).into_iter().flatten()
}

impl Waiting {
    /// The wait has ended with a grant.
    pub(super) fn served(self) {
        let mut world = self.checker.network.world();
        let now = world.now();
        let mut books = self.checker.books();
        let Some((since, names)) = books.waiting.get(&self.number) else { return };
        let Some(since) = books.calm.map(|calm| calm.max(*since)) else { return };
        let waited = now - since;
        // Of several, each is waited for in turn; permits may be too few.
        if let [name] = &names[..]
            && let Some((freed, granted)) = world.was_free(name)
            && freed >= since
            && granted - freed > FREE
            && !name.as_bytes().starts_with(b"semaphore")
            && !name.as_bytes().starts_with(b"permits")
        {
            let free = Duration::from_micros(granted - freed);
            world.fail(name, format!("{name} was free for {free:?} while a task waited"));
        }
        books.longest_wait = books.longest_wait.max(waited);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.checker.books().waiting.remove(&self.number);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut world = self.checker.network.world();
        let number = self.number;
        world.note(&self.name, 19 + number, || format!("hold {number} ends"));
        drop(world);
        let mut books = self.checker.books();
        let Some(held) = books.held.get_mut(&self.name) else { return };
        let index = held.iter().position(|held| held.number == self.number);
        let ended = index.map(|index| held.remove(index));
        // The hold may be the last handle of its lease.
        drop(books);
        drop(ended);
    }
}
