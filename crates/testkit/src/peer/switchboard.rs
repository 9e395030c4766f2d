//! Commands out, answers in, matched by their number.

use std::collections::HashMap;
use std::io::Write;
use std::process::ChildStdin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::pending::LIMIT;
use crate::{lock, percent};

/// The number of the answer to being started.
pub(super) const GREETING: u64 = 0;

pub(super) struct Switchboard {
    next: AtomicU64,
    /// `None` when it has been closed.
    input: Mutex<Option<ChildStdin>>,
    /// `None` when no answers will come any more.
    calls: Mutex<Option<HashMap<u64, Arc<Call>>>>,
}

impl Switchboard {
    pub(super) fn new(input: ChildStdin) -> Self {
        Self {
            next: AtomicU64::new(GREETING + 1),
            input: Mutex::new(Some(input)),
            calls: Mutex::new(Some(HashMap::new())),
        }
    }

    /// Sends a command; `words` are written as they are.
    pub(super) fn send(&self, worker: &str, words: &[&str]) -> Arc<Call> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let command = format!("{} {}", percent::encoded(worker), words.join(" "));
        let call = self.expect(number, &command);
        let mut input = lock(&self.input);
        let input = input.as_mut().expect("the peer's input is open");
        // One write, so that the peer never sees half a line. If it has gone, the call will say so.
        let _ = input.write_all(format!("{number} {command}\n").as_bytes());
        call
    }

    /// A call that will be answered with this number.
    pub(super) fn expect(&self, number: u64, command: &str) -> Arc<Call> {
        let call = Arc::new(Call::new(command));
        match lock(&self.calls).as_mut() {
            Some(calls) => {
                calls.insert(number, Arc::clone(&call));
            }
            None => call.resolve(State::Ended),
        }
        call
    }

    /// A line that the peer wrote.
    pub(super) fn answered(&self, line: &str) {
        let (number, answer) =
            parse(line).unwrap_or_else(|| panic!("the peer answers {line:?}, which is no answer"));
        let call = lock(&self.calls).as_mut().and_then(|calls| calls.remove(&number));
        let call = call.unwrap_or_else(|| panic!("the peer was not asked for {line:?}"));
        call.resolve(State::Answered(answer));
    }

    /// Nobody waits for ever for a peer that has gone.
    pub(super) fn ended(&self) {
        let calls = lock(&self.calls).take();
        calls.into_iter().flatten().for_each(|(_, call)| call.resolve(State::Ended));
    }

    pub(super) fn close(&self) {
        *lock(&self.input) = None;
    }
}

/// An answer as it came; times are the peer's.
#[derive(Clone, Debug)]
pub(super) struct RawAnswer {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) wall_millis: u64,
    /// The words of the result, or class and message of what was thrown.
    pub(super) result: Result<Vec<String>, (String, String)>,
}

/// `number start end wall ok word…`, or `number start end wall err class: message`.
fn parse(line: &str) -> Option<(u64, RawAnswer)> {
    let mut words = line.splitn(6, ' ');
    let number = words.next()?.parse().ok()?;
    let start = words.next()?.parse().ok()?;
    let end = words.next()?.parse().ok()?;
    let wall_millis = words.next()?.parse().ok()?;
    let outcome = words.next()?;
    let rest = words.next().unwrap_or_default();
    let result = match outcome {
        "ok" if rest.is_empty() => Ok(Vec::new()),
        "ok" => Ok(rest.split(' ').map(percent::decoded).collect::<Option<_>>()?),
        "err" => {
            let (class, message) = rest.split_once(": ")?;
            Err((class.to_owned(), message.to_owned()))
        }
        _ => return None,
    };
    Some((number, RawAnswer { start, end, wall_millis, result }))
}

/// A command that was sent.
#[derive(Debug)]
pub(super) struct Call {
    command: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    Waiting(Option<Waker>),
    Answered(RawAnswer),
    /// The peer ended without answering.
    Ended,
}

impl Call {
    fn new(command: &str) -> Self {
        Self {
            command: command.to_owned(),
            state: Mutex::new(State::Waiting(None)),
            changed: Condvar::new(),
        }
    }

    pub(super) fn command(&self) -> &str {
        &self.command
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(*lock(&self.state), State::Waiting(_))
    }

    /// The answer; `None` when it has not come within `limit`.
    #[track_caller]
    pub(super) fn wait_for(&self, limit: Duration) -> Option<RawAnswer> {
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.state);
        while matches!(*state, State::Waiting(_)) {
            let left = deadline.checked_duration_since(Instant::now())?;
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(self.answer(&state))
    }

    /// The answer, which must come within `limit`, or within [`LIMIT`].
    #[track_caller]
    pub(super) fn wait(&self, limit: Option<Duration>) -> RawAnswer {
        let limit = limit.unwrap_or(LIMIT);
        self.wait_for(limit).unwrap_or_else(|| self.is_late(limit))
    }

    #[track_caller]
    pub(super) fn is_late(&self, limit: Duration) -> ! {
        panic!("the peer has not answered for {limit:?}: {}", self.command)
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<RawAnswer> {
        let mut state = lock(&self.state);
        if let State::Waiting(waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(self.answer(&state))
    }

    #[track_caller]
    fn answer(&self, state: &State) -> RawAnswer {
        match state {
            State::Answered(answer) => answer.clone(),
            _ => panic!("the peer ended without an answer: {}", self.command),
        }
    }

    fn resolve(&self, state: State) {
        let before = std::mem::replace(&mut *lock(&self.state), state);
        self.changed.notify_all();
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn an_answer_is_taken_apart() {
        let (number, answer) = parse("7 -5 20 1700 ok a%20b null").unwrap();
        assert_eq!((number, answer.start, answer.end, answer.wall_millis), (7, -5, 20, 1700));
        assert_eq!(answer.result.unwrap(), ["a b", "null"]);
        let (_, answer) = parse("7 1 2 3 err java.lang.Error: not: this").unwrap();
        assert_eq!(answer.result.unwrap_err(), ("java.lang.Error".into(), "not: this".into()));
        assert_eq!(parse("7 1 2 3 ok").unwrap().1.result.unwrap(), Vec::<String>::new());
    }

    #[test]
    fn other_lines_are_no_answers() {
        for line in ["", "hello", "- 1 2 3 err x: y", "7 1 2 3", "7 1 2 3 maybe", "7 1 2 3 ok %ff"]
        {
            assert!(parse(line).is_none(), "{line}");
        }
    }
}
