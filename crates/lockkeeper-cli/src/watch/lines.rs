//! A line for each change, for pipes and logs.

use std::io::Write;
use std::time::{Duration, SystemTime};

use lockkeeper::{Error, Event, LockInfo, Remaining};
use serde::Serialize;

use crate::args::Global;
use crate::exit::{self, Code, Failure};
use crate::output::{Output, Stop};
use crate::{display, json, open, timestamp};

/// One change, as JSON.
#[derive(Serialize)]
struct Line<'a> {
    event: &'a str,
    at: String,
    lock: json::Lock,
}

/// Runs until nobody reads any more.
pub(super) async fn run(
    global: &Global,
    pattern: Vec<u8>,
    every: Duration,
    as_json: bool,
) -> Result<Code, Failure> {
    let client = open::open(global).await?;
    let mut watch = client.inspector().watch(pattern).every(every);
    let mut output = Output::new(global);
    let mut unheard = Unheard::default();
    loop {
        if let Err(error) = watch.look().await {
            unheard.failed(error)?.into_iter().for_each(exit::say);
            continue;
        }
        unheard.answered(watch.is_complete()).into_iter().for_each(exit::say);
        while let Some(event) = watch.try_next() {
            let (word, lock) = match &event {
                Event::Appeared(lock) => ("appeared", lock),
                Event::Changed(lock) => ("changed", lock),
                Event::Gone(lock) => ("gone", lock),
                _ => continue,
            };
            if let Err(stop) = print(&mut output, word, lock, as_json) {
                return stop.or(Code::OK);
            }
        }
    }
}

fn print(output: &mut Output, event: &str, lock: &LockInfo, as_json: bool) -> Result<(), Stop> {
    let now = SystemTime::now();
    let at = timestamp::exact(now);
    if as_json {
        json::write(&mut *output, &Line { event, at, lock: json::Lock::of(lock, now) })?;
        output.line("")?;
    } else {
        output.line(&format!("{at} {event} {}", in_words(lock)))?;
    }
    // Each is news.
    output.flush()?;
    Ok(())
}

fn in_words(lock: &LockInfo) -> String {
    let mut words = vec![display::name(&lock.name), lock.kind.as_str().to_owned()];
    words.push(display::holders(lock));
    match display::holds(lock) {
        0 | 1 => {}
        holds => words.push(format!("holds={holds}")),
    }
    if lock.remaining != Remaining::Free {
        words.push(format!("ttl={}", display::ttl(lock.remaining)));
    }
    if let Some(count) = lock.count {
        words.push(format!("count={count}"));
    }
    if let Some(waiting) = lock.waiting {
        words.push(format!("waiters={waiting}"));
    }
    words.join(" ")
}

/// What has been said of a store that does not answer, so that it is said once.
#[derive(Default)]
struct Unheard {
    silent: bool,
    incomplete: bool,
}

impl Unheard {
    /// What to say of a failure. A store that is away may come back; one that refuses will go on doing
    /// so.
    fn failed(&mut self, error: Error) -> Result<Option<String>, Failure> {
        if Code::of(&error) != Code::UNREACHABLE {
            return Err(error.into());
        }
        let first = !std::mem::replace(&mut self.silent, true);
        Ok(first.then(|| format!("{error}; trying on")))
    }

    /// What to say of an answer.
    fn answered(&mut self, complete: bool) -> Vec<&'static str> {
        let mut news = Vec::new();
        if std::mem::take(&mut self.silent) {
            news.push("the store answers again");
        }
        if !complete && !std::mem::replace(&mut self.incomplete, true) {
            news.push("there may be more locks than can be seen");
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::Phase;

    use super::*;

    fn away() -> Error {
        let (phase, detail) = (Phase::Inspect, "no route".to_owned());
        Error::Unreachable { lock: None, phase, detail, silent_for: None }
    }

    #[test]
    fn an_absence_is_told_when_it_begins_and_when_it_ends() {
        let mut unheard = Unheard::default();
        assert_eq!(unheard.answered(true), [""; 0]);
        assert!(unheard.failed(away()).unwrap().unwrap().contains("no route; trying on"));
        assert_eq!(unheard.failed(away()).unwrap(), None);
        assert_eq!(unheard.answered(true), ["the store answers again"]);
        assert_eq!(unheard.answered(true), [""; 0]);
        assert!(unheard.failed(away()).unwrap().is_some(), "the next one is news again");
    }

    #[test]
    fn what_cannot_pass_is_a_failure() {
        let detail = "no permission".to_owned();
        let denied = Error::Denied { lock: None, phase: Phase::Inspect, detail };
        assert_eq!(Unheard::default().failed(denied).unwrap_err().code, Code::DENIED);
    }

    #[test]
    fn that_not_all_is_seen_is_told_once() {
        let mut unheard = Unheard::default();
        assert_eq!(unheard.answered(false), ["there may be more locks than can be seen"]);
        assert_eq!(unheard.answered(false), [""; 0]);
    }
}
