//! What the peer will answer, and what it has answered.

use std::fmt;
use std::future::{self, Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::clock::Clock;
use super::switchboard::{Call, RawAnswer};

/// A command that was to be answered and is not after this is stuck.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// A command that has been sent. It can be waited for by blocking, or with `.await` where other tasks
/// of this thread must go on; either panics after twenty seconds, or when the peer has ended.
#[must_use = "the command has been sent, but its answer is unknown"]
pub struct Pending<T> {
    call: Arc<Call>,
    clock: Clock,
    read: fn(&[String]) -> T,
}

impl<T> Pending<T> {
    pub(super) fn new(call: Arc<Call>, clock: Clock, read: fn(&[String]) -> T) -> Self {
        Self { call, clock, read }
    }

    /// Whether there is no answer yet.
    pub fn is_pending(&self) -> bool {
        self.call.is_waiting()
    }

    /// The answer.
    ///
    /// # Panics
    ///
    /// If it does not come within twenty seconds, or the peer ends first.
    #[track_caller]
    pub fn answer(self) -> Answer<T> {
        self.read(self.call.wait(None))
    }

    /// The answer; `None` when it has not come within `limit`.
    ///
    /// # Panics
    ///
    /// If the peer ends first.
    #[track_caller]
    pub fn answer_within(&self, limit: Duration) -> Option<Answer<T>> {
        Some(self.read(self.call.wait_for(limit)?))
    }

    /// What the command returned.
    ///
    /// # Panics
    ///
    /// As [`answer`](Self::answer), and if it has thrown something.
    #[track_caller]
    pub fn ok(self) -> T {
        self.answer().ok()
    }

    /// What the command has thrown.
    ///
    /// # Panics
    ///
    /// As [`answer`](Self::answer), and if it has returned.
    #[track_caller]
    pub fn err(self) -> Thrown
    where
        T: fmt::Debug,
    {
        self.answer().err()
    }

    fn read(&self, raw: RawAnswer) -> Answer<T> {
        let command = self.call.command();
        Answer {
            command: command.to_owned(),
            result: match raw.result {
                Ok(words) => Ok((self.read)(&words)),
                Err((class, message)) => Err(Thrown { class, message }),
            },
            started: self.clock.instant(raw.start),
            ended: self.clock.instant(raw.end),
            wall: SystemTime::UNIX_EPOCH + Duration::from_millis(raw.wall_millis),
        }
    }
}

impl<T: 'static> IntoFuture for Pending<T> {
    type Output = Answer<T>;
    type IntoFuture = Pin<Box<dyn Future<Output = Answer<T>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let answer = future::poll_fn(|context| self.call.poll(context));
            let raw = tokio::time::timeout(LIMIT, answer).await;
            self.read(raw.unwrap_or_else(|_| self.call.is_late(LIMIT)))
        })
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_pending() { "pending" } else { "done" };
        write!(f, "Pending({}: {state})", self.call.command())
    }
}

/// What the peer answered, and when it did what it was told.
///
/// Its times are on our clocks, to within the peer's `clock_error`, so they can be compared with what happens here: the time that a pipe and a thread take does not count.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    /// What was asked.
    pub command: String,
    /// What it returned or threw.
    pub result: Result<T, Thrown>,
    /// When the worker called the library.
    pub started: Instant,
    /// When the library returned.
    pub ended: Instant,
    /// When the library returned, by the wall clock.
    pub wall: SystemTime,
}

impl<T> Answer<T> {
    /// What the command returned.
    ///
    /// # Panics
    ///
    /// If it has thrown something.
    #[track_caller]
    pub fn ok(self) -> T {
        self.result.unwrap_or_else(|thrown| panic!("{}: {thrown}", self.command))
    }

    /// What the command has thrown.
    ///
    /// # Panics
    ///
    /// If it has returned.
    #[track_caller]
    pub fn err(self) -> Thrown
    where
        T: fmt::Debug,
    {
        match self.result {
            Err(thrown) => thrown,
            Ok(value) => panic!("{}: was to throw, returned {value:?}", self.command),
        }
    }

    /// How long the library took.
    pub fn took(&self) -> Duration {
        self.ended - self.started
    }
}

/// An exception of the other language.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Thrown {
    class: String,
    message: String,
}

impl Thrown {
    /// The name of its class, with the package where there is one:
    /// `java.lang.IllegalMonitorStateException`.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// Its message, on one line, and what caused it.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether Java says so: that the caller does not hold the lock.
    pub fn is_not_owner(&self) -> bool {
        self.class == "java.lang.IllegalMonitorStateException"
    }

    /// Whether it says that the thread was interrupted, in a wait or (wrapped) in a request.
    pub fn is_interrupted(&self) -> bool {
        self.to_string().contains("java.lang.InterruptedException")
    }

    /// Whether it says that this Redisson has no such thing.
    pub fn is_missing(&self) -> bool {
        self.class == "peer.Missing"
    }
}

impl fmt::Display for Thrown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)
    }
}
