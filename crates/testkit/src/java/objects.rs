//! Redisson's objects, as a worker uses them. The methods are Redisson's.

mod latch;
mod lock;
mod permits;
mod semaphore;

use std::time::Duration;

pub use latch::Latch;
pub use lock::Lock;
pub use permits::Permits;
pub use semaphore::Semaphore;

use super::{Pending, Worker};
use crate::percent;

/// What came of a stress command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stress {
    /// How often the counter was read and written, over all threads.
    pub rounds: u64,
    /// The longest time that a thread had to wait.
    pub longest_wait: Duration,
}

/// One object, as one worker sees it.
#[derive(Clone, Debug)]
struct Handle<'a> {
    worker: Worker<'a>,
    kind: &'static str,
    /// Encoded.
    name: String,
}

impl<'a> Handle<'a> {
    fn new(worker: Worker<'a>, kind: &'static str, name: &str) -> Self {
        Self { worker, kind, name: percent::encoded(name) }
    }

    fn call<T>(&self, method: &str, args: &[&str], read: fn(&[String]) -> T) -> Pending<T> {
        self.worker.send(&[&[self.kind, method, &self.name], args].concat(), read)
    }

    fn stress(&self, counter: &str, rounds: u32, threads: u32) -> Pending<Stress> {
        let (rounds, threads) = (rounds.to_string(), threads.to_string());
        let counter = percent::encoded(counter);
        let words = ["stress", self.kind, &self.name, &counter, &rounds, &threads];
        self.worker.send(&words, |words| Stress {
            rounds: parsed(&words[0]),
            longest_wait: Duration::from_millis(parsed(&words[1])),
        })
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// A wait and perhaps a lease, as arguments.
fn times(wait: Duration, lease: Option<Duration>) -> Vec<String> {
    [Some(wait), lease].into_iter().flatten().map(millis).collect()
}

fn borrowed(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

fn nothing(words: &[String]) {
    assert!(words.is_empty(), "expected nothing, got {words:?}");
}

fn flag(words: &[String]) -> bool {
    parsed(&words[0])
}

fn count(words: &[String]) -> i64 {
    parsed(&words[0])
}

fn text(words: &[String]) -> String {
    words[0].clone()
}

fn optional_text(words: &[String]) -> Option<String> {
    (words[0] != "null").then(|| words[0].clone())
}

fn token(words: &[String]) -> u64 {
    parsed(&words[0])
}

fn optional_token(words: &[String]) -> Option<u64> {
    (words[0] != "null").then(|| parsed(&words[0]))
}

fn texts(words: &[String]) -> Vec<String> {
    words.to_vec()
}

#[track_caller]
fn parsed<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("the Java peer answers {word:?}"))
}
