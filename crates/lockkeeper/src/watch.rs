//! What comes, changes and goes among the locks of a store.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::LockName;
use crate::backend::BoxFuture;
use crate::error::Result;
use crate::inspector::{Inspector, Listing, LockInfo, is_hidden};

/// How often a watch looks, unless told otherwise.
const EVERY: Duration = Duration::from_secs(1);

/// How many locks a watch keeps in mind. Beyond that it says that it is incomplete.
const WATCHED_MAX: usize = 100_000;

/// Something that happened to a lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// It is there, and was not at the last look.
    Appeared(LockInfo),
    /// Other holders, other waiters, another count.
    Changed(LockInfo),
    /// It is there no longer; this is what it was.
    Gone(LockInfo),
}

/// A watch: see [`Inspector::watch`].
///
/// It looks again and again: what comes and goes between two looks is not seen.
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
    /// What comes, changes and goes among the locks whose names match a pattern.
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

    /// How often to look; once a second unless told otherwise.
    pub fn every(mut self, span: Duration) -> Self {
        self.every = span;
        self
    }

    /// What happens next. It may be dropped and called again, however soon: nothing is lost, and a
    /// look that was under way goes on.
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

    /// Waits until it is time and looks once; what happened is in [`locks`](Watch::locks), and comes
    /// out of [`next`](Watch::next).
    ///
    /// # Errors
    /// As any request; ask again to go on.
    pub async fn look(&mut self) -> Result<()> {
        let core = Arc::clone(self.inspector.core());
        let seen = core.anywhere(|| self.looked_around()).await?;
        let Seen { locks: seen, walked, complete } = seen;
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
        // What a look did not come to need not be gone.
        if walked || self.known.len() >= WATCHED_MAX * 2 {
            self.known.clear();
        }
        self.known.extend(seen);
        Ok(())
    }

    /// Sees what there is, in a look that outlives the caller: on a large store, or with a caller in a
    /// hurry, one that began anew each time would never come to its end.
    async fn looked_around(&mut self) -> Result<Seen> {
        let looking = self.looking.0.get_mut().unwrap_or_else(PoisonError::into_inner);
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

    /// What happened by the last look and was not told yet; never waits.
    pub fn happened(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What there was at the last look.
    pub fn locks(&self) -> impl Iterator<Item = &LockInfo> {
        self.known.values()
    }

    /// Whether the last look saw everything: see [`Listing::is_complete`](crate::Listing::is_complete).
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

/// What one look saw.
struct Seen {
    locks: HashMap<LockName, LockInfo>,
    /// What was known and is not among them is gone.
    walked: bool,
    /// There is nothing else.
    complete: bool,
}

async fn look_around(mut listing: Listing, mut hidden: Vec<LockInfo>) -> Result<Seen> {
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
    Ok(Seen { locks, walked, complete: walked && listing.is_complete() })
}

/// A look under way. Never locked: the mutex only lets a watch be shared between threads.
#[derive(Default)]
struct Looking(Mutex<Option<BoxFuture<Result<Seen>>>>);

impl fmt::Debug for Looking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Looking")
    }
}

/// Whether something happened, beside that time passed.
fn differs(old: &LockInfo, new: &LockInfo) -> bool {
    let who = |lock: &LockInfo| {
        let ids = lock.holders.iter().map(|holder| (holder.id.clone(), holder.hold_count));
        let mut ids: Vec<_> = ids.collect();
        ids.sort();
        ids
    };
    (old.kind, old.waiting, old.count, old.taken) != (new.kind, new.waiting, new.count, new.taken)
        || who(old) != who(new)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::OwnerId;
    use crate::backend::memory::Memory;
    use crate::backend::{Acquire, Backend, Kind, Resource};
    use crate::{Client, ClientOptions};

    #[tokio::test]
    async fn as_many_locks_as_a_watch_keeps_in_mind_are_all_of_them() {
        let store = Memory::new();
        let client = Client::with_backend(store.clone(), ClientOptions::new()).unwrap();
        let owner = OwnerId::fresh(Uuid::new_v4());
        let take = async |number: usize| {
            let resource = Resource { kind: Kind::Lock, name: number.to_string()[..].into() };
            store.acquire(Acquire::new(resource, owner, 600_000)).await.unwrap();
        };
        for number in 0..WATCHED_MAX {
            take(number).await;
        }
        let mut watch = client.inspector().watch("*").every(Duration::ZERO);
        watch.look().await.unwrap();
        assert!(watch.is_complete());
        assert_eq!(watch.locks().count(), WATCHED_MAX);
        take(WATCHED_MAX).await;
        watch.look().await.unwrap();
        assert!(!watch.is_complete(), "one more is too many");
    }
}
