//! The answer to a request: a future that needs no allocation where the store has answered at once,
//! or keeps the request itself. Every uncontended acquire and release is of that kind.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::BoxFuture;

/// The future of the answer `T` to a request `R`. Nothing is sent before it is polled.
pub struct Answer<R, T>(State<R, T>);

enum State<R, T> {
    /// Answered at once.
    Ready(Option<T>),
    Boxed(BoxFuture<T>),
    Kept {
        by: Arc<dyn Keep<R, T>>,
        request: R,
        progress: Progress,
    },
}

enum Progress {
    New,
    /// Under this number.
    Sent(usize),
    Done,
}

const DONE: &str = "polled after it was ready";

/// A store that keeps requests under numbers.
pub trait Keep<R, T>: Send + Sync {
    /// Sends a request. Returns its number, or the answer if it could not be sent.
    fn send(&self, request: &R, cx: &mut Context<'_>) -> Result<usize, T>;

    /// Returns the answer, or a future of it if the first reply does not suffice. The number is free
    /// then.
    fn poll(&self, request: &R, number: usize, cx: &mut Context<'_>) -> Poll<Reply<T>>;

    /// The caller is gone.
    fn abandon(&self, number: usize);
}

/// What a store has received for a request that it keeps.
pub enum Reply<T> {
    /// The answer.
    Answer(T),
    /// More requests are needed.
    More(BoxFuture<T>),
}

impl<R, T> Answer<R, T> {
    /// Wraps an answer that is there already.
    pub fn ready(answer: T) -> Self {
        Self(State::Ready(Some(answer)))
    }

    /// Wraps any other future.
    pub fn boxed(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(State::Boxed(Box::pin(future)))
    }

    /// Creates the answer to a request that `by` will send and keep.
    pub fn kept(by: Arc<dyn Keep<R, T>>, request: R) -> Self {
        Self(State::Kept { by, request, progress: Progress::New })
    }
}

impl<R, T> From<BoxFuture<T>> for Answer<R, T> {
    fn from(future: BoxFuture<T>) -> Self {
        Self(State::Boxed(future))
    }
}

impl<R: Unpin, T: Unpin> Future for Answer<R, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let (by, request, progress) = match &mut self.0 {
            State::Ready(answer) => {
                // A task that never waits must let others run, too.
                ready!(pin!(tokio::task::consume_budget()).poll(cx));
                return Poll::Ready(answer.take().expect(DONE));
            }
            State::Boxed(future) => return future.as_mut().poll(cx),
            State::Kept { by, request, progress } => (by, request, progress),
        };
        let reply = match progress {
            Progress::New => match by.send(request, cx) {
                Ok(number) => {
                    *progress = Progress::Sent(number);
                    return Poll::Pending;
                }
                Err(answer) => Reply::Answer(answer),
            },
            Progress::Sent(number) => ready!(by.poll(request, *number, cx)),
            Progress::Done => panic!("{DONE}"),
        };
        *progress = Progress::Done;
        match reply {
            Reply::Answer(answer) => Poll::Ready(answer),
            Reply::More(mut future) => {
                let polled = future.as_mut().poll(cx);
                self.0 = State::Boxed(future);
                polled
            }
        }
    }
}

impl<R, T> Drop for Answer<R, T> {
    fn drop(&mut self) {
        if let State::Kept { by, progress: Progress::Sent(number), .. } = &self.0 {
            by.abandon(*number);
        }
    }
}

impl<R, T> fmt::Debug for Answer<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}
