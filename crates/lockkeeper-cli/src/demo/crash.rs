//! Crash: a process dies while it holds the lock.

use std::time::Duration;

use lockkeeper::Remaining;
use tokio::time::Instant;

use super::place::Place;
use super::stage::Stage;
use super::worker::Worker;
use crate::exit::Failure;
use crate::output::Stop;

const NAME: &str = "demo:backup";
const LEASE: Duration = Duration::from_secs(2);

/// A timer may be late.
const SLACK: Duration = Duration::from_millis(20);

pub(super) async fn act(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    stage.act("Crash", "a process is killed while it holds a lock").await?;
    let ann = Worker::start(&place.url(), NAME, LEASE).await?;
    let pid = ann.pid();
    let bob = place.client().await?;
    stage
        .report("ann", &format!("is process {pid} and holds it; its lease of 2 s is renewed"))
        .await?;

    ann.kill()?;
    let killed = Instant::now();
    let left = bob.inspector().inspect(NAME).await?;
    let Remaining::For(rest) = left.remaining else {
        return Err(Failure::internal("a lock was free at once after a kill").into());
    };
    let rest_millis = rest.as_millis();
    let line = format!("is killed; her lease expires in {rest_millis} ms");
    stage.report("ann", &line).await?;

    let guard = bob.lock(NAME).try_lock_for(Duration::from_secs(20)).await?;
    let waited = killed.elapsed();
    let line = format!("waited, and acquires the lock {} ms after the kill", waited.as_millis());
    stage.report("bob", &line).await?;
    let in_time = guard.is_some() && waited + SLACK >= rest;
    stage.check(in_time, "not before the lease expired, and without any action").await?;
    if let Some(guard) = guard {
        guard.release().await?;
    }
    Ok(())
}
