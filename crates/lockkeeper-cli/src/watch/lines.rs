//! A line for each change, for pipes and logs.

use std::io::Write;
use std::time::{Duration, SystemTime};

use lockkeeper::{Error, Event, LockInfo, Remaining};
use serde::Serialize;

use crate::args::Global;
use crate::exit::{self, Code, Failure};
use crate::output::{Output, Stop};
use crate::{json, moment, open, person};

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
            unheard.failed(error)?;
            continue;
        }
        unheard.answered(watch.is_complete());
        while let Some(event) = watch.happened() {
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
    let at = moment::exact(now);
    if as_json {
        serde_json::to_writer(&mut *output, &Line { event, at, lock: json::Lock::of(lock, now) })?;
        output.line("")?;
    } else {
        output.line(&format!("{at} {event} {}", in_words(lock)))?;
    }
    // Each is news.
    output.flush()?;
    Ok(())
}

fn in_words(lock: &LockInfo) -> String {
    let mut words = vec![person::name(&lock.name), lock.kind.word().to_owned()];
    words.push(person::holders(lock));
    match person::holds(lock) {
        0 | 1 => {}
        holds => words.push(format!("holds={holds}")),
    }
    if lock.remaining != Remaining::Free {
        words.push(format!("ttl={}", person::ttl(lock.remaining)));
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
    /// A store that is away may come back; one that refuses will go on doing so.
    fn failed(&mut self, error: Error) -> Result<(), Failure> {
        if Code::of(&error) != Code::UNREACHABLE {
            return Err(error.into());
        }
        if !std::mem::replace(&mut self.silent, true) {
            exit::say(format_args!("{error}; trying on"));
        }
        Ok(())
    }

    fn answered(&mut self, complete: bool) {
        if std::mem::take(&mut self.silent) {
            exit::say("the store answers again");
        }
        if !complete && !std::mem::replace(&mut self.incomplete, true) {
            exit::say("there are more locks than can be seen");
        }
    }
}
