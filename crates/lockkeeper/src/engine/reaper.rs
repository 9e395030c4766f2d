//! Completes the work of callers that dropped their futures.
//!
//! A dropped guard, a cancelled acquire, an abandoned release: each is a future that must still be
//! polled to its end. `Drop` sends it here over a channel; it never blocks and never spawns. If the
//! runtime has ended, no task receives it, and the lease expires.
//!
//! The reaper gets the future itself ([`RunToCompletion`]). An undo that is sent beside a request under way
//! would have to consider their order and the repetition after `NOSCRIPT`; this way no store has to.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use foldhash::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::{Executor, lock};
use crate::backend::{BoxFuture, Lane};

/// How many undo requests are under way at once in one lane: thousands of cancelled acquires must
/// not flood a store, least of all one that does not answer.
const UNDOING: usize = 4096;

enum Job {
    Work(BoxFuture<()>),
    /// Resolves when everything sent before it is done.
    Drained(oneshot::Sender<()>),
}

/// The handle to which abandoned futures are sent.
#[derive(Clone, Debug)]
pub(crate) struct Reaper {
    inner: Arc<ReaperState>,
}

#[derive(Debug)]
struct ReaperState {
    jobs: mpsc::UnboundedSender<Job>,
    executor: Arc<Executor>,
    undoing: Mutex<HashMap<Lane, Arc<Semaphore>>>,
}

impl Reaper {
    pub(crate) fn start(executor: Arc<Executor>) -> Self {
        let (jobs, inbox) = mpsc::unbounded_channel();
        tokio::spawn(reap(inbox));
        Self { inner: Arc::new(ReaperState { jobs, executor, undoing: Mutex::default() }) }
    }

    /// Returns the right to send one undo request to this lane. It limits requests and not jobs: a
    /// job may wait for another one, so all jobs must be polled.
    pub(crate) async fn undo_permit(&self, lane: Lane) -> Option<OwnedSemaphorePermit> {
        let new = || Arc::new(Semaphore::new(UNDOING));
        let undoing = Arc::clone(lock(&self.inner.undoing).entry(lane).or_insert_with(new));
        undoing.acquire_owned().await.ok()
    }

    pub(crate) fn adopt(&self, job: BoxFuture<()>) {
        if self.inner.executor.is_forked() {
            // The job belongs to the parent, which does it.
            return std::mem::forget(job);
        }
        // Fails only when the runtime has ended, and every lease with it.
        let _ = self.inner.jobs.send(Job::Work(job));
    }

    /// Whether the runtime has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.inner.jobs.is_closed()
    }

    /// Resolves when nothing is left to do. A job may leave another behind, so two passes in a row
    /// must find nothing new.
    pub(crate) async fn drained(&self) {
        for _ in 0..2 {
            let (done, wait) = oneshot::channel();
            if self.inner.jobs.send(Job::Drained(done)).is_err() || wait.await.is_err() {
                return;
            }
        }
    }
}

/// Ends when the last handle of the client is dropped and all work is done.
async fn reap(mut inbox: mpsc::UnboundedReceiver<Job>) {
    let mut running = JoinSet::new();
    // Callers that wait until all is done. All work starts at once: a job may wait for one that
    // came later, or that runs elsewhere.
    let mut waiting: Vec<oneshot::Sender<()>> = Vec::new();
    loop {
        if running.is_empty() {
            for done in waiting.drain(..) {
                let _ = done.send(());
            }
        }
        let job = tokio::select! {
            biased;
            Some(_) = running.join_next() => continue,
            job = inbox.recv() => job,
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

/// A future that the reaper completes if its caller drops it. Its output is then dropped, which
/// undoes it where the output is a guard of some kind.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct RunToCompletion<T: Send + 'static> {
    work: Option<BoxFuture<T>>,
    started: bool,
    reaper: Reaper,
}

impl<T: Send + 'static> RunToCompletion<T> {
    pub(crate) fn new(work: BoxFuture<T>, reaper: Reaper) -> Self {
        Self { work: Some(work), started: false, reaper }
    }

    /// Counts as started before the first poll: for work that must always be done.
    pub(crate) fn in_any_case(mut self) -> Self {
        self.started = true;
        self
    }
}

impl<T: Send + 'static> Future for RunToCompletion<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Self { work: slot, started, reaper } = &mut *self;
        *started = true;
        let _entered = reaper.inner.executor.enter();
        // Taken out while it is polled: work that panics is not polled again.
        let mut work = slot.take().expect("polled after it was ready");
        let poll = work.as_mut().poll(cx);
        if poll.is_pending() {
            *slot = Some(work);
        }
        poll
    }
}

impl<T: Send + 'static> Drop for RunToCompletion<T> {
    fn drop(&mut self) {
        // A future that was never polled has sent nothing.
        if let Some(work) = self.work.take().filter(|_| self.started) {
            self.reaper.adopt(Box::pin(async move { drop(work.await) }));
        }
    }
}
