//! Loss: a holder is notified before the next holder acquires the lock.

use std::time::Duration;

use lockkeeper::backend::memory::Memory;
use lockkeeper::{Client, ClientOptions, Kind, LostReason};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::chart::{Chart, Turn, one_at_a_time};
use super::place::Place;
use super::stage::Stage;
use super::wire::Wire;
use crate::display;
use crate::exit::Failure;
use crate::output::Stop;

const NAME: &str = "demo:deploy";
const LEASE: Duration = Duration::from_millis(1500);

pub(super) async fn act(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    stage.act("Loss", "a holder learns of the loss before another can acquire the lock").await?;
    by_force(stage, place).await?;
    by_silence(stage).await
}

/// A force-release.
async fn by_force(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    let (ann, operator) = (place.client().await?, place.client().await?);
    let guard = ann.lock(NAME).lock().await?;
    let lost = guard.lost();
    let lost = tokio::spawn(async move { (lost.await, Instant::now()) });
    // Until her client has announced the hold, so that she gets the reason.
    sleep(Duration::from_secs(1)).await;
    let why = "the deployment is stuck";
    let forced = Instant::now();
    operator.inspector().force_unlock(NAME, Kind::Lock, why).await?;
    stage.report("ops", &format!("force-releases it, with a reason: {why}")).await?;
    let (reason, at) = in_time(lost, "a holder was not notified of a force-release").await?;
    let notified_after = at - forced;
    stage.report("ann", &format!("is notified: {reason}")).await?;
    let by = operator.inspector().inspect(NAME).await?.forced;
    let by = by.first().map(|forced| display::text(&forced.by)).unwrap_or_default();
    stage.report("", &format!("the store remembers that {by} did it")).await?;
    let right = reason == LostReason::Revoked(why.to_owned()) && guard.is_lost() && !by.is_empty();

    let claim = format!("the holder knew the reason within {} ms", notified_after.as_millis() + 1);
    stage.check(right, &claim).await
}

/// A loss of the connection to the store.
async fn by_silence(stage: &mut Stage) -> Result<(), Stop> {
    let store = Memory::new();
    let wire = Wire::new(store.clone());
    let ann = Client::with_backend(wire.clone(), ClientOptions::new())?;
    let bob = Client::with_backend(store, ClientOptions::new())?;
    let asked = Instant::now();
    let guard = ann.lock(NAME).lease(lockkeeper::LeaseTime::Renewed(LEASE)).lock().await?;
    let got = Instant::now();
    let lost = tokio::spawn(guard.lost());
    let waiting = tokio::spawn(async move {
        let asked = Instant::now();
        let guard = bob.lock(NAME).lock().await?;
        let got = Instant::now();
        guard.release().await?;
        Ok::<_, lockkeeper::Error>(Turn { who: "bob", asked, got, gone: Instant::now() })
    });
    wire.cut();
    // The deadline is final now. On a busy machine the notification may come later, but the guard
    // compares the clock with the deadline.
    let over = guard.deadline();
    stage.report("ann", "holds it again, and her connection to the store is cut").await?;
    let reason = in_time(lost, "a holder without a connection was not notified").await?;
    let next = in_time(waiting, "a lock outlived its lease").await??;
    let margin = next.got.saturating_duration_since(over);
    let turns = vec![Turn { who: "ann", asked, got, gone: over }, next];
    let apart = one_at_a_time(&turns) && over < next.got;
    stage.chart(&Chart::new(&["ann", "bob"], turns)).await?;
    stage.report("ann", &format!("was notified: {reason}")).await?;
    let right = reason == LostReason::Unreachable && apart && guard.is_lost();
    let claim = format!("her hold ended {} ms before bob acquired the lock", margin.as_millis());
    stage.check(right, &claim).await
}

/// The result of a task, within a time limit.
async fn in_time<T>(task: JoinHandle<T>, otherwise: &str) -> Result<T, Failure> {
    match timeout(Duration::from_secs(20), task).await {
        Ok(Ok(outcome)) => Ok(outcome),
        _ => Err(Failure::internal(otherwise)),
    }
}
