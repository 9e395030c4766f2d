//! A process that was stopped for too long comes back and writes.

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

/// A store that takes longer to answer is waiting for somebody.
const ANSWER: Duration = Duration::from_millis(300);

pub(super) async fn act(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    stage.act("Fencing", "a process is stopped for longer than its lease, and goes on").await?;
    let ledger = Fence::new();
    let mut ann = Worker::start(&place.url(), NAME, LEASE).await?;
    let old = ann.token;
    let bob = place.client().await?;
    stop(&ann, &bob).await?;
    stage.tell("ann", &format!("has token {old}, and is stopped on her way to the ledger")).await?;

    let guard = bob.fenced_lock(NAME).try_lock_for(Duration::from_secs(20)).await?;
    let guard = guard.ok_or_else(|| Failure::internal("a stopped process kept its lock"))?;
    let new = guard.token();
    let admitted = ledger.admit(new);
    stage.tell("bob", &format!("got it when her lease had ended, and writes with {new}")).await?;
    stage.check(admitted.is_ok() && new > old, "a later token is greater, and admitted").await?;

    ann.write()?;
    ann.signal(Signal::CONT)?;
    let late: u64 = ann.hear("write ").await?.parse().unwrap_or_default();
    let refused = ledger.admit(late);
    stage
        .tell("ann", &format!("goes on as if nothing had happened, and writes with {late}"))
        .await?;
    let stale = refused.is_err_and(|stale| (stale.token, stale.highest) == (old, new));
    stage.check(stale, "the ledger refuses it: somebody newer has been there").await?;
    guard.release().await?;
    Ok(())
}

/// Stops her. Not in the middle of a change of the file, though: it would wait for her to go on, and
/// so would everybody who uses it.
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
