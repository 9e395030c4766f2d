//! One request to several members at once.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Fault;

/// How long the last members may take once the others have answered an inspection.
const STRAGGLERS: Duration = Duration::from_millis(200);

/// Requests to several members. All of them are sent in the first poll, so that each member gets the
/// requests of a client in the order in which the engine made them.
pub(super) struct Fan<F: Future> {
    pending: Vec<(usize, F)>,
    pub(super) ready: VecDeque<(usize, F::Output)>,
}

impl<F: Future + Unpin> Fan<F> {
    pub(super) fn new(requests: impl IntoIterator<Item = (usize, F)>) -> Self {
        Self { pending: requests.into_iter().collect(), ready: VecDeque::new() }
    }

    /// Adds a request.
    pub(super) fn add(&mut self, request: (usize, F)) {
        self.pending.push(request);
    }

    /// The number of members that have not answered.
    pub(super) fn pending(&self) -> usize {
        self.pending.len() + self.ready.len()
    }

    /// The members that have not answered.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = usize> {
        self.pending.iter().map(|(member, _)| *member).chain(self.ready.iter().map(|(m, _)| *m))
    }

    /// The faults of the members that have not answered in time.
    pub(super) fn late(&self) -> impl Iterator<Item = (usize, Fault)> {
        self.unanswered().map(|member| (member, Fault::unanswered("no answer in time")))
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        let Self { pending, ready } = self;
        pending.retain_mut(|(member, request)| match Pin::new(request).poll(cx) {
            Poll::Ready(answer) => {
                ready.push_back((*member, answer));
                false
            }
            Poll::Pending => true,
        });
    }

    /// Sends the requests now, without waiting for answers.
    pub(super) fn send(&mut self) {
        self.poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Returns the next answer; `None` if there is none left.
    pub(super) async fn next(&mut self) -> Option<(usize, F::Output)> {
        poll_fn(|cx| {
            if self.ready.is_empty() {
                self.poll(cx);
            }
            match self.ready.pop_front() {
                None if !self.pending.is_empty() => Poll::Pending,
                next => Poll::Ready(next),
            }
        })
        .await
    }

    /// Returns all answers. Once `enough` members have answered, the others have little time left.
    pub(super) async fn gather(mut self, enough: usize) -> Vec<(usize, F::Output)> {
        let mut answers = Vec::with_capacity(self.pending());
        while answers.len() < enough {
            let Some(answer) = self.next().await else { return answers };
            answers.push(answer);
        }
        let limit = Instant::now() + STRAGGLERS;
        while let Some(answer) = self.next_by(limit).await {
            answers.push(answer);
        }
        answers
    }

    /// The same, but `None` also after `limit`.
    pub(super) async fn next_by(&mut self, limit: Instant) -> Option<(usize, F::Output)> {
        tokio::time::timeout_at(limit, self.next()).await.ok().flatten()
    }
}
