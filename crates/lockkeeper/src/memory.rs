//! The store inside this process: the model behind a mutex.
//!
//! It keeps time by tokio's clock, so that a test can pause it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tokio::time::Instant;

use crate::LockName;
use crate::backend::locked;
use crate::backend::subscriptions::Subscriptions;
use crate::backend::{
    Acquire, Answer, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, Fault, Finding,
    Kind, Lane, List, LockInfo, Page, Release, Released, Renew, Renewed, Resource, Subscription,
    Topic,
};
use crate::model::{self, State, Wake};

/// An embedded store. Clients that share it share its locks.
#[derive(Debug)]
pub struct Memory {
    state: Mutex<State>,
    started: Instant,
    /// The wall clock at `started`, in milliseconds, so that tokens of a later process are greater.
    epoch: u64,
    identity: Arc<str>,
    hub: Subscriptions,
}

impl Memory {
    /// Creates a separate store.
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let epoch = model::now_ms();
        Arc::new(Self {
            state: Mutex::default(),
            started: Instant::now(),
            epoch,
            identity: format!("memory:{}", NEXT.fetch_add(1, Ordering::Relaxed)).into(),
            hub: Subscriptions::new(|_, _| {}),
        })
    }

    /// Returns the store of this name in the process. It exists for as long as it is used.
    pub fn named(name: &str) -> Arc<Self> {
        static STORES: OnceLock<Mutex<HashMap<String, Weak<Memory>>>> = OnceLock::new();
        let stores = STORES.get_or_init(Mutex::default);
        let mut stores = locked(stores);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return store;
        }
        stores.retain(|_, store| store.strong_count() > 0);
        let store = Self::new();
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    /// Returns the number of stored locks and of topics with subscribers, for leak tests.
    pub fn usage(&self) -> (usize, usize) {
        (locked(&self.state).len(), self.hub.topic_count())
    }

    /// Notifies the clients that a lane has reconnected, or all lanes. For decorators that divide
    /// this store into lanes.
    pub fn reconnected(&self, lane: Option<Lane>) {
        let message = lane.map(Lane::message);
        self.hub.wake(&Topic::Reconnected, message.as_ref().map_or(&[], |lane| lane));
    }

    /// Returns the store's time in milliseconds, rounded down as a server's clock is.
    fn now(&self) -> u64 {
        self.epoch + self.started.elapsed().as_millis() as u64
    }

    /// Wakes up the subscribers and returns their number.
    fn wake(&self, wakes: &[Wake]) -> u64 {
        wakes.iter().map(|wake| self.hub.wake(&wake.topic, &wake.payload)).sum()
    }
}

/// Whether all listeners beside a refused waiter can acquire the resource it waits for. Not so for
/// a read/write lock: its readers and writers share a topic.
fn listens(request: &Acquire) -> bool {
    let rw = matches!(request.resource.kind, Kind::Read | Kind::Write);
    request.waits && request.from.is_none() && !rw
}

/// Wraps an answer that is available already. A task that never waits must let others run, too.
fn at_once<T: Send + 'static>(answer: T) -> BoxFuture<T> {
    Box::pin(async {
        tokio::task::consume_budget().await;
        answer
    })
}

impl Backend for Memory {
    fn capabilities(&self, _name: &LockName) -> Capabilities {
        let identity = Arc::clone(&self.identity);
        Capabilities { takes_together: true, ..Capabilities::new(true, identity) }
    }

    fn acquire(&self, request: Acquire) -> Answer<Attempt> {
        let (mut answer, wakes) = locked(&self.state).acquire(&request, self.now());
        self.wake(&wakes);
        if let Ok(Attempt::Busy { listeners, .. }) = &mut answer
            && let Some(topic) = Topic::shared_by(&request.resource).filter(|_| listens(&request))
        {
            *listeners = self.hub.subscribers(&topic);
        }
        at_once(answer)
    }

    fn release(&self, request: Release) -> Answer<Released> {
        let (mut answer, wakes) = locked(&self.state).release(&request, self.now());
        let woken = self.wake(&wakes);
        if let Ok(Released::Freed { listeners }) = &mut answer {
            *listeners = Some(woken);
        }
        at_once(answer)
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        let (answers, wakes) = locked(&self.state).renew(&batch, self.now());
        self.wake(&wakes);
        at_once(answers)
    }

    fn adjust(&self, change: Change) -> Answer<Changed> {
        let (answer, wakes) = locked(&self.state).adjust(&change, self.now());
        self.wake(&wakes);
        at_once(answer)
    }

    fn inspect(&self, resource: Resource) -> Answer<LockInfo> {
        at_once(locked(&self.state).inspect(&resource, self.now()))
    }

    fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
        let subscription = self.hub.join(topic.clone());
        // A confirmation wakes up all subscribers, which would wait behind the new one from then on.
        if !subscription.is_confirmed() {
            self.hub.confirm(&topic);
        }
        Box::pin(subscription.confirmed())
    }

    fn list(&self, request: List) -> Answer<Page> {
        let mut page = locked(&self.state).list(&request, self.now());
        for lock in page.iter_mut().flat_map(|page| &mut page.locks) {
            let topic = Topic::shared_by(&lock.resource());
            lock.waiting = lock.waiting.or_else(|| Some(self.hub.subscribers(&topic?)));
        }
        at_once(page)
    }

    fn check(&self) -> Answer<Vec<Finding>> {
        let detail =
            "embedded in this process: its locks exclude no other process, and end with this one";
        at_once(Ok(vec![Finding::fine("store", detail)]))
    }

    fn close(&self) -> BoxFuture<()> {
        at_once(())
    }
}
