//! A separate process of this program that holds a lock.
//!
//! It reads orders from standard input and writes events to standard output, one per line. It ends with
//! its input, so that it cannot outlive the demo.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use lockkeeper::Client;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::exit::Failure;

/// The first argument of such a process.
pub(crate) const ARGUMENT: &str = "__demo-worker";

/// The time limit for an event.
const EVENT_LIMIT: Duration = Duration::from_secs(20);

/// A worker process, as the demo sees it. Killed on `Drop`.
pub(super) struct Worker {
    child: Child,
    input: ChildStdin,
    lines: mpsc::UnboundedReceiver<String>,
    /// The fencing token of its hold.
    pub(super) token: u64,
}

impl Worker {
    /// Starts a worker and returns when it holds the lock.
    pub(super) async fn start(url: &str, name: &str, lease: Duration) -> Result<Self, Failure> {
        let failed =
            |error: std::io::Error| Failure::internal(format!("cannot start a worker: {error}"));
        let mut child = Command::new(std::env::current_exe().map_err(failed)?)
            .args([ARGUMENT, url, name, &lease.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::internal("a worker has no pipes"));
        };
        let (sender, lines) = mpsc::unbounded_channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.for_each(|line| drop(sender.send(line)));
        });
        let mut worker = Self { child, input, lines, token: 0 };
        let held = worker.event("held ").await?;
        worker.token = held.parse().map_err(|_| Failure::internal("a worker has no token"))?;
        Ok(worker)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that begins with `word`; returns the rest of it.
    pub(super) async fn event(&mut self, word: &str) -> Result<String, Failure> {
        loop {
            match timeout(EVENT_LIMIT, self.lines.recv()).await {
                Ok(Some(line)) => {
                    if let Some(rest) = line.strip_prefix(word) {
                        return Ok(rest.to_owned());
                    }
                }
                _ => return Err(Failure::internal(format!("a worker did not report {word:?}"))),
            }
        }
    }

    /// Orders a write. The worker does not check whether it still holds the lock.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        let sent = self.input.write_all(b"write\n");
        sent.map_err(|error| Failure::internal(format!("cannot write to a worker: {error}")))
    }

    /// Stops or resumes the worker.
    pub(super) fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let sent = kill_process(Pid::from_child(&self.child), signal);
        sent.map_err(|error| Failure::internal(format!("cannot signal a worker: {error}")))
    }

    /// Kills the worker.
    pub(super) fn kill(mut self) -> Result<(), Failure> {
        self.signal(Signal::KILL)?;
        let ended = self.child.wait();
        ended.map(drop).map_err(|error| Failure::internal(format!("cannot kill a worker: {error}")))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The worker process.
pub(crate) fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(2).map(OsString::into_string).collect();
    let [Ok(url), Ok(name), Ok(millis)] = &args[..] else { return ExitCode::from(64) };
    let lease = Duration::from_millis(millis.parse().unwrap_or(1000));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return ExitCode::from(70) };
    match runtime.block_on(hold(url, name, lease)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Failure::from(error).report(),
    }
}

async fn hold(url: &str, name: &str, lease: Duration) -> lockkeeper::Result<()> {
    let client = Client::connect(url).await?;
    let guard =
        client.fenced_lock(name).lease(lockkeeper::LeaseTime::Renewed(lease)).lock().await?;
    let token = guard.token();
    say(format_args!("held {token}"));
    let (sender, mut orders) = mpsc::unbounded_channel();
    thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).for_each(|order| drop(sender.send(order)));
    });
    let mut lost = std::pin::pin!(guard.lost());
    let mut reported = false;
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(_) => say(format_args!("write {token}")),
                None => return Ok(()),
            },
            reason = &mut lost, if !reported => {
                reported = true;
                say(format_args!("lost {reason}"));
            }
        }
    }
}

/// Ignores errors: if the output is closed, the input is closed too.
fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
