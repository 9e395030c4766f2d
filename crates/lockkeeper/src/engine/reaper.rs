//! Completes the work of callers that dropped their futures.
//!
//! A dropped guard, a cancelled acquire, an abandoned release: each is a future that must still be
//! polled to its end. `Drop` sends it here over a channel; it never blocks and never spawns. If the
//! runtime has ended, no task receives it, and the lease expires.
//!
//! The reaper gets the future itself ([`Rescue`]). An undo that is sent beside a request under way
//! would have to consider their order and the repetition after `NOSCRIPT`; this way no store has to.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::task::JoinSet;

use super::Home;
use crate::backend::BoxFuture;

/// How many requests to undo something are under way at once: thousands of cancelled acquires must
/// not flood a store, least of all one that does not answer.
const UNDOING: usize = 4096;

enum Job {
    Work(BoxFuture<()>),
    /// Answers when everything sent before it is done.
    Drained(oneshot::Sender<()>),
}

/// Where to send what was left behind.
#[derive(Clone, Debug)]
pub(crate) struct Reaper {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    jobs: mpsc::UnboundedSender<Job>,
    home: Arc<Home>,
    undoing: Semaphore,
}

impl Reaper {
    pub(crate) fn start(home: Arc<Home>) -> Self {
        let (jobs, inbox) = mpsc::unbounded_channel();
        tokio::spawn(reap(inbox));
        let undoing = Semaphore::new(UNDOING);
        Self { inner: Arc::new(Inner { jobs, home, undoing }) }
    }

    /// The right to send one request that undoes something. It limits requests and not jobs: a job
    /// may wait for another one, and all jobs must be polled for that to end.
    pub(crate) async fn undo_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.inner.undoing.acquire().await.ok()
    }

    pub(crate) fn adopt(&self, job: BoxFuture<()>) {
        if self.inner.home.is_forked() {
            // It is the parent's job, and the parent does it.
            return std::mem::forget(job);
        }
        // Fails only when the runtime is gone, and every lease with it.
        let _ = self.inner.jobs.send(Job::Work(job));
    }

    /// Whether the runtime has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.inner.jobs.is_closed()
    }

    /// Resolves when nothing is left to do. A job may leave another behind, so one pass over the
    /// inbox is not enough: two in a row that found nothing new are.
    pub(crate) async fn drained(&self) {
        for _ in 0..2 {
            let (done, wait) = oneshot::channel();
            if self.inner.jobs.send(Job::Drained(done)).is_err() || wait.await.is_err() {
                return;
            }
        }
    }
}

/// Ends by itself when the last handle of the client is gone and all is done.
async fn reap(mut inbox: mpsc::UnboundedReceiver<Job>) {
    let mut running = JoinSet::new();
    // Callers that wait for everything to be done. All work is begun at once: a job may wait for
    // another one that came later, or that was begun elsewhere.
    let mut waiting: Vec<oneshot::Sender<()>> = Vec::new();
    loop {
        if running.is_empty() {
            for done in waiting.drain(..) {
                let _ = done.send(());
            }
        }
        let job = tokio::select! {
            job = inbox.recv() => job,
            Some(_) = running.join_next() => continue,
        };
        match job {
            Some(Job::Work(work)) => {
                running.spawn(work);
            }
            Some(Job::Drained(done)) => waiting.push(done),
            None => break,
        }
    }
    while running.join_next().await.is_some() {}
}

/// A future that is finished by the reaper if its caller walks away; its output is then dropped,
/// which undoes it where the output is a guard of some kind.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Rescue<T: Send + 'static> {
    work: Option<BoxFuture<T>>,
    started: bool,
    reaper: Reaper,
}

impl<T: Send + 'static> Rescue<T> {
    pub(crate) fn new(work: BoxFuture<T>, reaper: Reaper) -> Self {
        Self { work: Some(work), started: false, reaper }
    }

    /// Counts as started even before the first poll: for work that must be done in any case.
    pub(crate) fn in_any_case(mut self) -> Self {
        self.started = true;
        self
    }
}

impl<T: Send + 'static> Future for Rescue<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Self { work: slot, started, reaper } = &mut *self;
        *started = true;
        let _entered = reaper.inner.home.enter();
        // Taken out while it is polled: work that panics is not polled again.
        let mut work = slot.take().expect("polled after it was ready");
        let poll = work.as_mut().poll(cx);
        if poll.is_pending() {
            *slot = Some(work);
        }
        poll
    }
}

impl<T: Send + 'static> Drop for Rescue<T> {
    fn drop(&mut self) {
        // What was never polled was never sent.
        if let Some(work) = self.work.take().filter(|_| self.started) {
            self.reaper.adopt(Box::pin(async move { drop(work.await) }));
        }
    }
}
