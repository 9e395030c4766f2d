//! Changes among the locks of a store.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::LockName;
use crate::backend::unpoisoned;
use crate::backend::{BoxFuture, LockInfo};
use crate::error::Result;
use crate::inspector::{Inspector, Listing, is_hidden};

/// The default interval of a watch.
const EVERY: Duration = Duration::from_secs(1);

/// How many locks a watch tracks. Beyond that it is incomplete.
const WATCHED_MAX: usize = 100_000;

/// A change of a lock.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The lock is new since the last look.
    Appeared(LockInfo),
    /// Its holders, waiters or count have changed.
    Changed(LockInfo),
    /// The lock no longer exists; this is its last state.
    Gone(LockInfo),
}

/// A watch: see [`Inspector::watch`].
///
/// It polls: changes that are undone between two looks are not seen.
#[derive(Debug)]
pub struct Watch {
    inspector: Inspector,
    pattern: Vec<u8>,
    every: Duration,
    looked: Option<tokio::time::Instant>,
    looking: Looking,
    known: HashMap<LockName, LockInfo>,
    events: VecDeque<Event>,
    complete: bool,
}

impl Inspector {
    /// Watches the locks whose names match a pattern.
    pub fn watch(&self, pattern: impl Into<Vec<u8>>) -> Watch {
        Watch::new(self.clone(), pattern.into())
    }
}

impl Watch {
    pub(crate) fn new(inspector: Inspector, pattern: Vec<u8>) -> Self {
        Self {
            inspector,
            pattern,
            every: EVERY,
            looked: None,
            looking: Looking::default(),
            known: HashMap::new(),
            events: VecDeque::new(),
            complete: true,
        }
    }

    /// Sets the interval; one second by default.
    #[must_use = "it is the watch with the interval"]
    pub fn every(mut self, span: Duration) -> Self {
        self.every = span;
        self
    }

    /// Returns the next change. The future may be dropped and called again at any time: no change
    /// is lost, and a look in progress continues.
    ///
    /// # Errors
    /// As any request; ask again to go on.
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            self.look().await?;
        }
    }

    /// Waits for the interval and looks once. The result is in [`locks`](Watch::locks), the changes
    /// come from [`next`](Watch::next).
    ///
    /// # Errors
    /// As any request; ask again to go on.
    pub async fn look(&mut self) -> Result<()> {
        let core = Arc::clone(self.inspector.core());
        let seen = core.anywhere(self.looked_around()).await?;
        let WatchedLocks { locks: seen, walked, complete } = seen;
        self.complete = complete;
        for (name, lock) in &seen {
            match self.known.get(name) {
                None => self.events.push_back(Event::Appeared(lock.clone())),
                Some(old) if differs(old, lock) => {
                    self.events.push_back(Event::Changed(lock.clone()));
                }
                Some(_) => {}
            }
        }
        for (name, lock) in &self.known {
            if walked && !seen.contains_key(name) {
                self.events.push_back(Event::Gone(lock.clone()));
            }
        }
        // A lock that an incomplete look did not reach may still exist.
        if walked || self.known.len() >= WATCHED_MAX * 2 {
            self.known.clear();
        }
        self.known.extend(seen);
        Ok(())
    }

    /// Lists the locks, in a look that outlives the caller: on a large store, or with an impatient
    /// caller, a look that starts anew each time would never finish.
    async fn looked_around(&mut self) -> Result<WatchedLocks> {
        let looking = unpoisoned(self.looking.0.get_mut());
        let under_way = match looking {
            Some(under_way) => under_way,
            None => {
                self.inspector.ensure_open()?;
                if let Some(looked) = self.looked {
                    tokio::time::sleep_until(looked + self.every).await;
                }
                self.looked = Some(tokio::time::Instant::now());
                let listing = self.inspector.list(&self.pattern[..]);
                let hidden = self.known.values().filter(|lock| is_hidden(lock.kind));
                looking.insert(Box::pin(look_around(listing, hidden.cloned().collect())))
            }
        };
        let seen = under_way.await;
        *looking = None;
        seen
    }

    /// Returns the next change of the last look, if there is one; never waits.
    pub fn try_next(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The locks found by the last look.
    pub fn locks(&self) -> impl Iterator<Item = &LockInfo> {
        self.known.values()
    }

    /// Whether the last look was complete: see
    /// [`Listing::is_complete`](crate::Listing::is_complete).
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

/// The result of one look.
struct WatchedLocks {
    locks: HashMap<LockName, LockInfo>,
    /// Whether a known lock that is not among them no longer exists.
    walked: bool,
    /// Whether there are no other locks.
    complete: bool,
}

async fn look_around(mut listing: Listing, mut hidden: Vec<LockInfo>) -> Result<WatchedLocks> {
    let (mut locks, mut whole) = (HashMap::new(), true);
    let named = |lock: LockInfo| (lock.name.clone(), lock);
    while let Some(page) = listing.next().await? {
        locks.extend(page.into_iter().map(named));
        if locks.len() > WATCHED_MAX {
            whole = false;
            break;
        }
    }
    hidden.retain(|lock| !locks.contains_key(&lock.name));
    locks.extend(listing.still_held(&hidden).await?.into_iter().map(named));
    let walked = whole && listing.is_walked();
    Ok(WatchedLocks { locks, walked, complete: walked && listing.is_complete() })
}

/// A look in progress. The mutex is never locked: it only lets a watch be shared between threads.
#[derive(Default)]
struct Looking(Mutex<Option<BoxFuture<Result<WatchedLocks>>>>);

impl fmt::Debug for Looking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Looking")
    }
}

/// Whether more has changed than the time.
fn differs(old: &LockInfo, new: &LockInfo) -> bool {
    let holds = |lock: &LockInfo| {
        let ids = lock.holders.iter().map(|holder| (holder.id.clone(), holder.hold_count));
        let mut ids: Vec<_> = ids.collect();
        ids.sort();
        ids
    };
    (old.kind, old.waiting, old.count, old.taken) != (new.kind, new.waiting, new.count, new.taken)
        || holds(old) != holds(new)
}
