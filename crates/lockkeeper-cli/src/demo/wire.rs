//! The line to a store, which can be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper::backend::{
    Acquire, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, Fault, Finding, List,
    Page, Release, Released, Renew, Renewed, Resource, Snapshot, Subscription, Topic,
};

/// A store behind a line.
#[derive(Debug)]
pub(super) struct Wire {
    store: Arc<dyn Backend>,
    cut: AtomicBool,
}

impl Wire {
    pub(super) fn new(store: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { store, cut: AtomicBool::new(false) })
    }

    /// From now on nothing gets through.
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    fn pass<T: 'static>(&self, call: BoxFuture<Result<T, Fault>>) -> BoxFuture<Result<T, Fault>> {
        if self.is_cut() { Box::pin(async { Err(broken()) }) } else { call }
    }
}

fn broken() -> Fault {
    Fault::Unreachable { maybe_ran: false, detail: "the line is cut".to_owned() }
}

impl Backend for Wire {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn acquire(&self, request: Acquire) -> BoxFuture<Result<Attempt, Fault>> {
        self.pass(self.store.acquire(request))
    }

    fn release(&self, request: Release) -> BoxFuture<Result<Released, Fault>> {
        self.pass(self.store.release(request))
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        if self.is_cut() {
            return Box::pin(async move { batch.iter().map(|_| Err(broken())).collect() });
        }
        self.store.renew(batch)
    }

    fn adjust(&self, change: Change) -> BoxFuture<Result<Changed, Fault>> {
        self.pass(self.store.adjust(change))
    }

    fn inspect(&self, resource: Resource) -> BoxFuture<Result<Snapshot, Fault>> {
        self.pass(self.store.inspect(resource))
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<Result<Subscription, Fault>> {
        self.pass(self.store.subscribe(topic))
    }

    fn list(&self, request: List) -> BoxFuture<Result<Page, Fault>> {
        self.pass(self.store.list(request))
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Fault>> {
        self.pass(self.store.check())
    }

    fn close(&self) -> BoxFuture<()> {
        self.store.close()
    }
}
