//! Who held which lock when, and whether that was allowed.
//!
//! Events are checked in the order in which they were recorded, so *when* a test records matters:
//! `granted` after the lock was obtained, `released` **before** the release is sent, `lost` before
//! the work is given up. Then a recorded hold lies within the real one, and an overlap of two
//! recorded holds is an overlap of two real ones: the checker cannot cry wolf.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A recorder of lock events; clones record into the same history.
#[derive(Clone, Debug)]
pub struct History {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    start: Instant,
    events: Mutex<Vec<Event>>,
}

#[derive(Clone, Debug)]
struct Event {
    at: Instant,
    lock: String,
    holder: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Granted { token: Option<u64> },
    Released,
    Lost,
}

impl History {
    /// An empty history.
    pub fn new() -> Self {
        let shared = Shared { start: Instant::now(), events: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// `holder` has obtained `lock`; a holder that has it already holds it once more.
    pub fn granted(&self, lock: &str, holder: &str, token: Option<u64>) {
        self.record(lock, holder, Kind::Granted { token });
    }

    /// `holder` is about to release `lock` (once).
    pub fn released(&self, lock: &str, holder: &str) {
        self.record(lock, holder, Kind::Released);
    }

    /// `holder` has been told that it lost `lock`, however often it held it.
    pub fn lost(&self, lock: &str, holder: &str) {
        self.record(lock, holder, Kind::Lost);
    }

    /// How many grants were recorded: a history without any proves nothing.
    pub fn grants(&self) -> usize {
        let granted = |event: &&Event| matches!(event.kind, Kind::Granted { .. });
        self.events().iter().filter(granted).count()
    }

    /// Checks that no two holders overlapped on one lock, that tokens grew from holder to holder, and
    /// that nobody released what it never held.
    ///
    /// # Errors
    ///
    /// All violations, one a line, with their times since the history began.
    pub fn check(&self) -> Result<(), String> {
        let mut locks: HashMap<String, LockState> = HashMap::new();
        let mut violations = Vec::new();
        for event in self.events() {
            let state = locks.entry(event.lock.clone()).or_default();
            for violation in state.apply(&event) {
                let at = event.at.duration_since(self.shared.start);
                violations.push(format!("{at:?} {}: {violation}", event.lock));
            }
        }
        if violations.is_empty() { Ok(()) } else { Err(violations.join("\n")) }
    }

    /// [`check`](Self::check) for the end of a test.
    ///
    /// # Panics
    ///
    /// If there is a violation; the message lists all.
    #[track_caller]
    pub fn assert_valid(&self) {
        if let Err(violations) = self.check() {
            panic!("the history is not that of a lock:\n{violations}");
        }
    }

    fn record(&self, lock: &str, holder: &str, kind: Kind) {
        let (lock, holder) = (lock.to_owned(), holder.to_owned());
        let mut events = crate::lock(&self.shared.events);
        // The clock is read under the mutex: times are in the order of the events.
        events.push(Event { at: Instant::now(), lock, holder, kind });
    }

    fn events(&self) -> Vec<Event> {
        crate::lock(&self.shared.events).clone()
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

/// One lock, as far as the events say.
#[derive(Debug, Default)]
struct LockState {
    /// How often each holder has it. More than one entry is a violation, reported once, at its start.
    holds: HashMap<String, u32>,
    /// Who lost it and has not been granted it since: a release that follows is merely late.
    losers: Vec<String>,
    newest: Option<Token>,
}

#[derive(Clone, Debug)]
struct Token {
    value: u64,
    holder: String,
}

impl LockState {
    fn apply(&mut self, event: &Event) -> Vec<String> {
        match event.kind {
            Kind::Granted { token } => self.grant(&event.holder, token),
            Kind::Released => self.release(&event.holder).into_iter().collect(),
            Kind::Lost => {
                self.holds.remove(&event.holder);
                self.losers.push(event.holder.clone());
                Vec::new()
            }
        }
    }

    fn grant(&mut self, holder: &str, token: Option<u64>) -> Vec<String> {
        let others = self.holds.keys().filter(|other| *other != holder);
        let mut violations: Vec<String> =
            others.map(|other| format!("granted to {holder} while {other} held it")).collect();
        violations.extend(token.and_then(|token| self.token(holder, token)));
        self.losers.retain(|loser| loser != holder);
        *self.holds.entry(holder.to_owned()).or_default() += 1;
        violations
    }

    /// A token must be greater than the one before; a re-entry may repeat its own hold's.
    fn token(&mut self, holder: &str, value: u64) -> Option<String> {
        let reentry = self.holds.contains_key(holder);
        let token = Token { value, holder: holder.to_owned() };
        let before = self.newest.replace(token)?;
        let repeated = reentry && before.holder == holder && before.value == value;
        (value <= before.value && !repeated).then(|| {
            format!("token {value} of {holder} after {} of {}", before.value, before.holder)
        })
    }

    fn release(&mut self, holder: &str) -> Option<String> {
        match self.holds.get_mut(holder) {
            Some(1) => {
                self.holds.remove(holder);
                None
            }
            Some(count) => {
                *count -= 1;
                None
            }
            None if self.losers.iter().any(|loser| loser == holder) => None,
            None => Some(format!("released by {holder}, who did not hold it")),
        }
    }
}
