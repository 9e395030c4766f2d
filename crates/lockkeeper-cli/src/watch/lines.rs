//! Prints a line for each change, for pipes and logs.

use std::io::Write;
use std::time::{Duration, SystemTime};

use lockkeeper::{Error, Event, LockInfo};
use serde::Serialize;

use crate::args::Global;
use crate::exit::{self, Code, Failure};
use crate::output::{Output, Stop};
use crate::row::Row;
use crate::{display, json, open, timestamp};

/// A change as JSON.
#[derive(Serialize)]
struct Line<'a> {
    event: &'a str,
    at: String,
    lock: json::Lock,
}

/// Runs until the output is closed.
pub(super) async fn run(
    global: &Global,
    pattern: Vec<u8>,
    every: Duration,
    as_json: bool,
) -> Result<Code, Failure> {
    let client = open::open(global).await?;
    let mut watch = client.inspector().watch(pattern).every(every);
    let mut output = Output::new(global);
    let mut outage = Outage::default();
    loop {
        if let Err(error) = watch.look().await {
            outage.failed(error)?.into_iter().for_each(exit::say);
            continue;
        }
        outage.answered(watch.is_complete()).into_iter().for_each(exit::say);
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
    output.flush()?;
    Ok(())
}

fn in_words(lock: &LockInfo) -> String {
    let mut words = vec![display::name(&lock.name), lock.kind.as_str().to_owned()];
    words.push(display::holders(lock));
    match Row::of(lock).holds() {
        0 | 1 => {}
        holds => words.push(format!("holds={holds}")),
    }
    if lock.ttl.is_some() {
        words.push(format!("ttl={}", display::ttl(lock.ttl)));
    }
    if let Some(count) = lock.count {
        words.push(format!("count={count}"));
    }
    if let Some(waiting) = lock.waiting {
        words.push(format!("waiters={waiting}"));
    }
    words.join(" ")
}

/// Reports an outage once when it begins and once when it ends.
#[derive(Default)]
struct Outage {
    failing: bool,
    incomplete: bool,
}

impl Outage {
    /// The message about a failed poll. Only an unreachable store is retried.
    fn failed(&mut self, error: Error) -> Result<Option<String>, Failure> {
        if Code::of(&error) != Code::UNREACHABLE {
            return Err(error.into());
        }
        let first = !std::mem::replace(&mut self.failing, true);
        Ok(first.then(|| format!("{error}; retrying")))
    }

    /// The messages about a successful poll.
    fn answered(&mut self, complete: bool) -> Vec<&'static str> {
        let mut messages = Vec::new();
        if std::mem::take(&mut self.failing) {
            messages.push("the store answers again");
        }
        if !complete && !std::mem::replace(&mut self.incomplete, true) {
            messages.push("the list may be incomplete");
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::Phase;

    use super::*;

    fn unreachable() -> Error {
        let (phase, detail) = (Phase::Inspect, "no route".to_owned());
        Error::Unreachable { lock: None, phase, detail, silent_for: None, source: None }
    }

    #[test]
    fn an_outage_is_reported_when_it_begins_and_when_it_ends() {
        let mut outage = Outage::default();
        assert_eq!(outage.answered(true), [""; 0]);
        assert!(outage.failed(unreachable()).unwrap().unwrap().contains("no route; retrying"));
        assert_eq!(outage.failed(unreachable()).unwrap(), None);
        assert_eq!(outage.answered(true), ["the store answers again"]);
        assert_eq!(outage.answered(true), [""; 0]);
        assert!(
            outage.failed(unreachable()).unwrap().is_some(),
            "the next outage is reported again"
        );
    }

    #[test]
    fn a_permanent_error_is_a_failure() {
        let detail = "no permission".to_owned();
        let denied = Error::Denied { lock: None, phase: Phase::Inspect, detail, source: None };
        assert_eq!(Outage::default().failed(denied).unwrap_err().code, Code::DENIED);
    }

    #[test]
    fn an_incomplete_list_is_reported_once() {
        let mut outage = Outage::default();
        assert_eq!(outage.answered(false), ["the list may be incomplete"]);
        assert_eq!(outage.answered(false), [""; 0]);
    }
}
