//! Contention: several workers, one counter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use lockkeeper::{Client, Lock};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::chart::{Chart, Turn, one_at_a_time};
use super::place::Place;
use super::stage::Stage;
use super::{NAMES, clients};
use crate::output::Stop;

const ROUNDS: u32 = 4;
const ALL: u32 = ROUNDS * NAMES.len() as u32;

/// The time between reading and writing.
const WORK: Duration = Duration::from_millis(15);

pub(super) async fn act(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    stage
        .act("Contention", "five workers read a counter, work, and write it back plus one")
        .await?;
    let clients = clients::<5>(place).await?;

    let (count, _) = count(&clients, false).await?;
    stage.report("", &format!("without a lock, {ALL} additions result in {count}")).await?;
    stage.check(count < ALL, "additions were lost").await?;

    let (count, turns) = self::count(&clients, true).await?;
    let alone = one_at_a_time(&turns);
    stage.chart(&Chart::new(&NAMES, turns)).await?;
    stage.report("", &format!("with a lock, {ALL} additions result in {count}")).await?;
    stage.check(count == ALL && alone, "one holder at a time, and no addition was lost").await
}

/// The final count, and all holds.
async fn count(clients: &[(&'static str, Client)], locked: bool) -> Result<(u32, Vec<Turn>), Stop> {
    let counter = Arc::new(AtomicU32::new(0));
    let mut workers = JoinSet::new();
    for (name, client) in clients {
        let lock = locked.then(|| client.lock("demo:counter"));
        workers.spawn(work(name, lock, Arc::clone(&counter)));
    }
    let mut turns = Vec::new();
    for done in workers.join_all().await {
        turns.extend(done?);
    }
    Ok((counter.load(SeqCst), turns))
}

async fn work(
    who: &'static str,
    lock: Option<Lock>,
    counter: Arc<AtomicU32>,
) -> lockkeeper::Result<Vec<Turn>> {
    let mut turns = Vec::new();
    for _ in 0..ROUNDS {
        let asked = Instant::now();
        let guard = match &lock {
            Some(lock) => Some(lock.lock().await?),
            None => None,
        };
        let got = Instant::now();
        let read = counter.load(SeqCst);
        sleep(WORK).await;
        counter.store(read + 1, SeqCst);
        turns.push(Turn { who, asked, got, gone: Instant::now() });
        if let Some(guard) = guard {
            guard.release().await?;
        }
    }
    Ok(turns)
}
