//! The store inside this process: the model behind a mutex.
//!
//! It keeps time by tokio's clock, so that a test can pause it.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::time::Instant;

use super::model::{State, Wake};
use super::wake::Hub;
use super::{
    Acquire, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, Fault, Release, Released,
    Renew, Renewed, Resource, Snapshot, Subscription, Topic,
};

/// An embedded store. Clients that share it share its locks.
#[derive(Debug)]
pub struct Memory {
    state: Mutex<State>,
    started: Instant,
    hub: Hub,
}

impl Memory {
    /// A store of its own.
    pub fn new() -> Arc<Self> {
        let hub = Hub::new(|_, _| {});
        Arc::new(Self { state: Mutex::new(State::default()), started: Instant::now(), hub })
    }

    /// The store of this name within the process, for as long as anybody uses it.
    pub fn named(name: &str) -> Arc<Self> {
        static STORES: OnceLock<Mutex<HashMap<String, Weak<Memory>>>> = OnceLock::new();
        let stores = STORES.get_or_init(Mutex::default);
        let mut stores = stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return store;
        }
        stores.retain(|_, store| store.strong_count() > 0);
        let store = Self::new();
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    /// How many locks are stored, and how many topics are listened to: what a leak test counts.
    pub fn usage(&self) -> (usize, usize) {
        (self.state().len(), self.hub.topic_count())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store's time in milliseconds, rounded down as a server's clock is.
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn wake(&self, wake: &Wake) -> u64 {
        self.hub.wake(&wake.topic, &wake.payload)
    }
}

/// An answer that is there already.
fn at_once<T: Send + 'static>(answer: T) -> BoxFuture<T> {
    Box::pin(ready(answer))
}

impl Backend for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(true)
    }

    fn acquire(&self, request: Acquire) -> BoxFuture<Result<Attempt, Fault>> {
        at_once(self.state().acquire(&request, self.now()))
    }

    fn release(&self, request: Release) -> BoxFuture<Result<Released, Fault>> {
        let (mut answer, wake) = self.state().release(&request, self.now());
        if let (Ok(Released::Freed { listeners }), Some(wake)) = (&mut answer, wake) {
            *listeners = Some(self.wake(&wake));
        }
        at_once(answer)
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        let mut state = self.state();
        let now = self.now();
        at_once(batch.iter().map(|renew| state.renew(renew, now)).collect())
    }

    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>> {
        let (answer, wakes) = self.state().adjust(&change, self.now());
        for wake in &wakes {
            self.wake(wake);
        }
        at_once(answer)
    }

    fn inspect(&self, resource: Resource) -> BoxFuture<Result<Snapshot, Fault>> {
        at_once(self.state().inspect(&resource, self.now()))
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>> {
        let subscription = self.hub.join(topic.clone());
        self.hub.confirm(&topic);
        Box::pin(subscription.confirmed())
    }

    fn close(&self) -> BoxFuture<()> {
        at_once(())
    }
}
