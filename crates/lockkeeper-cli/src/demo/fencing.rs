//! Fencing: a process that was stopped for longer than its lease resumes and writes.

use std::time::Duration;

use lockkeeper::{Client, Fence};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use super::place::Place;
use super::stage::Stage;
use super::worker::Worker;
use crate::exit::Failure;
use crate::output::Stop;

const NAME: &str = "demo:ledger";
const LEASE: Duration = Duration::from_secs(1);

/// A store that takes longer is blocked by the stopped process.
const ANSWER: Duration = Duration::from_millis(300);

pub(super) async fn act(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    stage.act("Fencing", "a process is stopped for longer than its lease, and resumes").await?;
    let ledger = Fence::new();
    let mut ann = Worker::start(&place.url(), NAME, LEASE).await?;
    let old = ann.token;
    let bob = place.client().await?;
    stop(&ann, &bob).await?;
    stage.report("ann", &format!("has token {old}, and is stopped before her write")).await?;

    let guard = bob.fenced_lock(NAME).try_lock_for(Duration::from_secs(20)).await?;
    let guard = guard.ok_or_else(|| Failure::internal("a stopped process kept its lock"))?;
    let new = guard.token();
    let admitted = ledger.admit(new);
    stage.report("bob", &format!("acquires it after her lease, and writes with {new}")).await?;
    stage.check(admitted.is_ok() && new > old, "the ledger accepts the greater token").await?;

    ann.write()?;
    ann.signal(Signal::CONT)?;
    let late: u64 = ann.event("write ").await?.parse().unwrap_or_default();
    let refused = ledger.admit(late);
    stage.report("ann", &format!("resumes without noticing, and writes with {late}")).await?;
    let stale = refused.is_err_and(|stale| (stale.token, stale.highest) == (old, new));
    stage.check(stale, "the ledger rejects it: it has seen a newer token").await?;
    guard.release().await?;
    Ok(())
}

/// Stops the worker, but not during a transaction on the file, which would block all other clients.
async fn stop(worker: &Worker, other: &Client) -> Result<(), Stop> {
    for _ in 0..50 {
        worker.signal(Signal::STOP)?;
        if timeout(ANSWER, other.lock("demo:answer").try_lock()).await.is_ok() {
            return Ok(());
        }
        worker.signal(Signal::CONT)?;
        sleep(Duration::from_millis(10)).await;
    }
    Err(Failure::internal("the store does not answer while a process is stopped").into())
}
