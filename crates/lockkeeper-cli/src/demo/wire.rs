//! A connection to a store that can be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper::LockName;
use lockkeeper::backend::{
    Acquire, AcquireAnswer, Answer, Backend, BoxFuture, Capabilities, Change, Changed, Fault,
    Finding, List, Page, Release, ReleaseAnswer, Renew, Renewed, Resource, Snapshot, Subscription,
    Topic,
};

/// A store behind a connection.
#[derive(Debug)]
pub(super) struct Wire {
    store: Arc<dyn Backend>,
    cut: AtomicBool,
}

impl Wire {
    pub(super) fn new(store: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { store, cut: AtomicBool::new(false) })
    }

    /// Makes all further requests fail.
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
    Fault::Unreachable { maybe_ran: false, detail: "the connection is cut".into() }
}

impl Backend for Wire {
    fn capabilities(&self, name: &LockName) -> Capabilities {
        self.store.capabilities(name)
    }

    fn acquire(&self, request: Acquire) -> AcquireAnswer {
        if self.is_cut() { Answer::ready(Err(broken())) } else { self.store.acquire(request) }
    }

    fn release(&self, request: Release) -> ReleaseAnswer {
        if self.is_cut() { Answer::ready(Err(broken())) } else { self.store.release(request) }
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
