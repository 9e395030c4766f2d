//! The process and the runtime that made a client.
//!
//! Timers and connections need a tokio runtime. A future that is polled on a thread without one is
//! polled inside the client's own runtime, so that it works on any executor. In a forked child the
//! client is closed.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::runtime::{EnterGuard, Handle};

use super::Core;
use crate::error::{Error, Result};
use crate::fork::Origin;

#[derive(Debug)]
pub(crate) struct Executor {
    runtime: Handle,
    origin: Origin,
}

impl Executor {
    /// # Panics
    /// Outside of a tokio runtime.
    pub(super) fn here() -> Self {
        Self { runtime: Handle::current(), origin: Origin::here() }
    }

    /// Whether this is a forked child of the process that made the client. The child has none of
    /// the client's threads and must not touch its connections.
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_forked()
    }

    /// Enters the client's runtime for one poll, unless the calling thread is in a runtime already.
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        // Inside a task the id is cheaper than a clone of the handle, which all threads share.
        let is_inside = tokio::task::try_id().is_some() || Handle::try_current().is_ok();
        (!is_inside).then(|| self.runtime.enter())
    }
}

pin_project! {
    /// Runs on any executor. Fails with [`Error::Closed`] if the client's runtime has ended and the
    /// executor has none: the timers of a runtime that has ended panic.
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct Anywhere<F> {
        core: Arc<Core>,
        #[pin]
        work: F,
    }
}

impl Core {
    pub(crate) fn anywhere<F>(self: &Arc<Self>, work: F) -> Anywhere<F> {
        Anywhere { core: Arc::clone(self), work }
    }
}

impl<T, F: Future<Output = Result<T>>> Future for Anywhere<F> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.project();
        let Some(_entered) = this.core.executor.enter() else { return this.work.poll(cx) };
        if this.core.reaper.is_gone() {
            return Poll::Ready(Err(Error::Closed { lock: None }));
        }
        // The runtime may end during this poll.
        match catch_unwind(AssertUnwindSafe(|| this.work.poll(cx))) {
            Ok(polled) => polled,
            Err(panic) if is_of_shutdown(&*panic) => Poll::Ready(Err(Error::Closed { lock: None })),
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// Whether a timer panicked because its runtime is shutting down.
fn is_of_shutdown(panic: &(dyn Any + Send)) -> bool {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    said.is_some_and(|said| said.contains("is being shutdown"))
}
