//! A program that holds rslock's locks and does what its input says: see README.md.

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use percent_encoding::percent_decode_str;
use rslock::{Lock, LockError, LockManager};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::mpsc;

const RETRY: Duration = Duration::from_millis(20);

type Outcome = Result<String, String>;

/// What one worker holds. It does one command after the other.
struct Worker {
    manager: LockManager,
    locks: HashMap<String, Lock>,
}

impl Worker {
    async fn obey(&mut self, words: &[String]) -> Outcome {
        let [command, name, times @ ..] = words else { return Err(format!("Unknown: {words:?}")) };
        let name = percent_decode_str(name).decode_utf8().map_err(said)?.into_owned();
        let times = times.iter().map(|time| time.parse().map(Duration::from_millis));
        let times: Vec<Duration> = times.collect::<Result<_, _>>().map_err(said)?;
        match (command.as_str(), &times[..]) {
            ("acquire", [lease]) => self.acquire(name, *lease, Duration::ZERO).await,
            ("acquire", [lease, wait]) => self.acquire(name, *lease, *wait).await,
            ("release", []) => {
                self.manager.unlock(self.held(&name)?).await;
                Ok(String::new())
            }
            ("extend", [lease]) => {
                let extended = self.once().extend(self.held(&name)?, *lease).await.map_err(said)?;
                self.locks.insert(name, extended);
                Ok(String::new())
            }
            _ => Err(format!("Unknown: {words:?}")),
        }
    }

    async fn acquire(&mut self, name: String, lease: Duration, wait: Duration) -> Outcome {
        let start = Instant::now();
        loop {
            match self.once().lock(name.as_str(), lease).await {
                Ok(lock) => {
                    self.locks.insert(name, lock);
                    return Ok("true".into());
                }
                Err(LockError::Unavailable) if start.elapsed() >= wait => return Ok("false".into()),
                Err(LockError::Unavailable) => tokio::time::sleep(RETRY).await,
                Err(error) => return Err(said(error)),
            }
        }
    }

    fn held(&self, name: &str) -> Result<&Lock, String> {
        self.locks.get(name).ok_or_else(|| format!("NotHeld: {name}"))
    }

    /// One try for each call.
    fn once(&self) -> LockManager {
        let mut manager = self.manager.clone();
        manager.set_retry(1, RETRY);
        manager
    }
}

fn said(error: impl Debug) -> String {
    format!("{error:?}: it failed")
}

/// One line an answer.
fn answer(begin: Instant, number: &str, started: Instant, outcome: Outcome) {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let (start, end) = ((started - begin).as_nanos(), begin.elapsed().as_nanos());
    let outcome = match outcome {
        Ok(words) => format!("ok {words}"),
        Err(error) => format!("err {error}"),
    };
    println!("{number} {start} {end} {wall} {}", outcome.trim_end());
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let begin = Instant::now();
    let manager = LockManager::new(std::env::args().skip(1).collect());
    // It connects when it is first used.
    let own = format!("rslock peer {}", std::process::id());
    let connected = match manager.lock(own.as_str(), Duration::from_secs(10)).await {
        Ok(lock) => {
            manager.unlock(&lock).await;
            Ok("0.10.0".into())
        }
        Err(error) => Err(said(error)),
    };
    answer(begin, "0", begin, connected);
    let mut workers: HashMap<String, mpsc::UnboundedSender<Vec<String>>> = HashMap::new();
    let mut lines = BufReader::new(stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut words: Vec<_> = line.split(' ').map(String::from).collect();
        if words[2] == "clock" {
            answer(begin, &words[0], Instant::now(), Ok(String::new()));
            continue;
        }
        let name = words.remove(1);
        let worker = workers.entry(name).or_insert_with(|| {
            let (sender, mut inbox) = mpsc::unbounded_channel::<Vec<String>>();
            let mut worker = Worker { manager: manager.clone(), locks: HashMap::new() };
            tokio::spawn(async move {
                while let Some(words) = inbox.recv().await {
                    let started = Instant::now();
                    let outcome = worker.obey(&words[1..]).await;
                    answer(begin, &words[0], started, outcome);
                }
            });
            sender
        });
        // Its task lives as long as this one.
        let _ = worker.send(words);
    }
}
