//! Clients that compete for names all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::{Client, Error};
use testkit::{History, Stopwatch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::primitives::{Handle, Held, Primitive, set_up};
use crate::support::*;

/// Clients that acquire and release, each name by a task of every client.
pub(crate) struct Load {
    history: History,
    stop: Arc<AtomicBool>,
    names: Vec<Arc<Progress>>,
    tasks: Vec<JoinHandle<()>>,
}

/// What has happened to a name.
struct Progress {
    name: String,
    primitive: Primitive,
    begun: Instant,
    grants: AtomicUsize,
    losses: AtomicUsize,
    /// Milliseconds from `begun` to the last grant, and the longest time between two grants.
    last: AtomicU64,
    longest: AtomicU64,
}

impl Progress {
    fn granted(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).expect("a short test");
        self.longest
            .fetch_max(now - self.last.swap(now, Ordering::SeqCst).min(now), Ordering::SeqCst);
        self.grants.fetch_add(1, Ordering::SeqCst);
    }
}

impl Load {
    /// Starts it; returns when every name has been acquired a few times. The primitives take turns. A hold
    /// lasts up to `longest`, most holds are much shorter.
    pub(crate) async fn start(
        clients: &[Client],
        primitives: &[Primitive],
        names: &[String],
        longest: Duration,
    ) -> Self {
        let mut load = Self {
            history: History::new(),
            stop: Arc::default(),
            names: Vec::new(),
            tasks: Vec::new(),
        };
        for (name, primitive) in names.iter().zip(primitives.iter().copied().cycle()) {
            set_up(&clients[0], primitive, name).await;
            let progress = Arc::new(Progress {
                name: name.clone(),
                primitive,
                begun: Instant::now(),
                grants: AtomicUsize::new(0),
                losses: AtomicUsize::new(0),
                last: AtomicU64::new(0),
                longest: AtomicU64::new(0),
            });
            for (number, client) in clients.iter().enumerate() {
                let competitor = Competitor {
                    handle: Handle::new(client, primitive, name),
                    progress: Arc::clone(&progress),
                    holder: format!("client {number}"),
                    longest,
                    history: load.history.clone(),
                    stop: Arc::clone(&load.stop),
                };
                load.tasks.push(tokio::spawn(competitor.compete()));
            }
            load.names.push(progress);
        }
        load.goes_on(PATIENCE).await;
        load
    }

    /// How often each name was acquired.
    pub(crate) fn grants(&self) -> Vec<usize> {
        self.names.iter().map(|name| name.grants.load(Ordering::SeqCst)).collect()
    }

    /// How often a hold of each name was lost.
    pub(crate) fn losses(&self) -> Vec<usize> {
        self.names.iter().map(|name| name.losses.load(Ordering::SeqCst)).collect()
    }

    /// Every name is acquired a few times more, which must be within `limit`.
    pub(crate) async fn goes_on(&self, limit: Duration) {
        let (before, watch) = (self.grants(), Stopwatch::start());
        let late = || {
            let now = self.grants().into_iter().zip(&before).zip(&self.names);
            let late = now.filter(|((now, before), _)| *now < *before + 3);
            late.map(|(_, late)| (late.primitive, late.name.clone())).collect::<Vec<_>>()
        };
        while !late().is_empty() {
            assert!(watch.elapsed() < limit, "not acquired within {limit:?}: {:?}", late());
            tokio::time::sleep(ms(5)).await;
        }
    }

    /// The name that no client acquired for the longest time, and that time.
    pub(crate) fn longest_gap(&self) -> (Primitive, String, Duration) {
        let longest = |name: &&Arc<Progress>| name.longest.load(Ordering::SeqCst);
        let name = self.names.iter().max_by_key(longest).expect("there are names");
        (name.primitive, name.name.clone(), ms(longest(&name)))
    }

    /// Ends it: no two clients held a name at the same time.
    pub(crate) async fn stop(self) {
        self.ended().await.assert_valid();
    }

    /// Ends it. Returns the history without a check.
    pub(crate) async fn ended(self) -> History {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            within(PATIENCE, "the end of a task", joined(task)).await;
        }
        self.history
    }
}

/// A client that acquires and releases a name.
struct Competitor {
    handle: Handle,
    progress: Arc<Progress>,
    holder: String,
    longest: Duration,
    history: History,
    stop: Arc<AtomicBool>,
}

impl Competitor {
    async fn compete(self) {
        let Self { history, progress, holder, .. } = &self;
        let name = &progress.name;
        while !self.stop.load(Ordering::SeqCst) {
            let held = match self.handle.acquire().await {
                Ok(held) => held,
                Err(
                    Error::Unreachable { .. }
                    | Error::Refused { .. }
                    | Error::Unacknowledged { .. },
                ) => {
                    continue;
                }
                Err(error) => panic!("{name}: {error:?}"),
            };
            history.granted(name, holder, held.guard().token());
            progress.granted();
            self.work(&held).await;
            if held.guard().is_lost() {
                history.lost(name, holder);
                progress.losses.fetch_add(1, Ordering::SeqCst);
            } else {
                history.released(name, holder);
            }
            let _ = held.release().await;
        }
    }

    /// Until it is done or the hold is lost.
    async fn work(&self, held: &Held) {
        if self.longest.is_zero() {
            return tokio::task::yield_now().await;
        }
        let longest = if fastrand::u8(..8) == 0 { self.longest } else { self.longest / 50 };
        let done = tokio::time::sleep(longest.mul_f64(fastrand::f64()));
        tokio::select! {
            biased;
            _ = held.guard().lost() => {}
            () = done => {}
        }
    }
}
