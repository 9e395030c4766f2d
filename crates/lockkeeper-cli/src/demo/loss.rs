//! A holder learns that it has lost the lock, and learns it in time.

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
    stage.act("Loss", "whoever loses a lock is told, before anybody else can have it").await?;
    by_force(stage, place).await?;
    by_silence(stage).await
}

/// Somebody takes it away.
async fn by_force(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    let (ann, operator) = (place.client().await?, place.client().await?);
    let guard = ann.lock(NAME).lock().await?;
    let lost = guard.lost();
    let lost = tokio::spawn(async move { (lost.await, Instant::now()) });
    // As after a while: by then she hears why it goes.
    sleep(Duration::from_secs(1)).await;
    let why = "the deployment is stuck";
    let forced = Instant::now();
    operator.inspector().force_unlock(NAME, Kind::Lock, why).await?;
    stage.tell("ops", &format!("takes it away from ann, and says why: {why}")).await?;
    let (told, at) = in_time(lost, "a holder was not told that its lock was taken away").await?;
    let told_after = at - forced;
    stage.tell("ann", &format!("is told: {told}")).await?;
    let by = operator.inspector().inspect(NAME).await?.forced;
    let by = by.first().map(|forced| display::text(&forced.by)).unwrap_or_default();
    stage.tell("", &format!("and who asks later is told it was {by}")).await?;
    let right = told == LostReason::Revoked(why.to_owned()) && guard.is_lost() && !by.is_empty();

    let claim = format!("the holder knew within {} ms, and why", told_after.as_millis() + 1);
    stage.check(right, &claim).await
}

/// The store cannot be reached any more.
async fn by_silence(stage: &mut Stage) -> Result<(), Stop> {
    let store = Memory::new();
    let wire = Wire::new(store.clone());
    let ann = Client::with_backend(wire.clone(), ClientOptions::new())?;
    let bob = Client::with_backend(store, ClientOptions::new())?;
    let asked = Instant::now();
    let guard = ann.lock(NAME).lease(lockkeeper::LeaseTime::Renewed(LEASE)).lock().await?;
    let got = Instant::now();
    let told = tokio::spawn(guard.lost());
    let waiting = tokio::spawn(async move {
        let asked = Instant::now();
        let guard = bob.lock(NAME).lock().await?;
        let got = Instant::now();
        guard.release().await?;
        Ok::<_, lockkeeper::Error>(Turn { who: "bob", asked, got, gone: Instant::now() })
    });
    wire.cut();
    // Nothing moves it any more. A machine that is busy may wake her up later than this, but whoever
    // looks at the guard knows by the clock.
    let over = guard.deadline();
    stage.tell("ann", "holds it again, and her line to the store is cut").await?;
    let reason = in_time(told, "a holder whose line is cut was not told").await?;
    let heir = in_time(waiting, "a lock outlived its lease").await??;
    let margin = heir.got.saturating_duration_since(over);
    let turns = vec![Turn { who: "ann", asked, got, gone: over }, heir];
    let apart = one_at_a_time(&turns) && over < heir.got;
    stage.chart(&Chart::new(&["ann", "bob"], turns)).await?;
    stage.tell("ann", &format!("was told: {reason}")).await?;
    let right = reason == LostReason::Unreachable && apart && guard.is_lost();
    let claim = format!("her hold was over {} ms before bob got his", margin.as_millis());
    stage.check(right, &claim).await
}

/// What a task comes to, unless that takes for ever.
async fn in_time<T>(task: JoinHandle<T>, otherwise: &str) -> Result<T, Failure> {
    match timeout(Duration::from_secs(20), task).await {
        Ok(Ok(outcome)) => Ok(outcome),
        _ => Err(Failure::internal(otherwise)),
    }
}
