//! A process dies while it holds the lock.

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

/// How much the store's clock may differ from ours: none here, but a timer may be late.
const SLACK: Duration = Duration::from_millis(20);

pub(super) async fn act(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    stage.act("Crash", "a process is killed while it holds a lock").await?;
    let ann = Worker::start(&place.url(), NAME, LEASE).await?;
    let pid = ann.pid();
    let bob = place.client().await?;
    stage
        .tell("ann", &format!("is process {pid} and holds it; its lease of 2 s is renewed"))
        .await?;

    ann.kill()?;
    let killed = Instant::now();
    let left = bob.inspector().inspect(NAME).await?;
    let Remaining::For(rest) = left.remaining else {
        return Err(Failure::internal("a lock was free at once when its holder was killed").into());
    };
    let rest_millis = rest.as_millis();
    let line = format!("is killed. The store keeps her lock for {rest_millis} ms more");
    stage.tell("ann", &line).await?;

    let guard = bob.lock(NAME).try_lock_for(Duration::from_secs(20)).await?;
    let waited = killed.elapsed();
    let line = format!("waited for it, and has it {} ms after the kill", waited.as_millis());
    stage.tell("bob", &line).await?;
    let in_time = guard.is_some() && waited + SLACK >= rest;
    stage.check(in_time, "no sooner than the lease ends, and then by itself").await?;
    if let Some(guard) = guard {
        guard.release().await?;
    }
    Ok(())
}
