//! Queue: a fair lock serves waiters in order.

use std::time::Duration;

use lockkeeper::{Client, OwnerId};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::chart::{Chart, Turn};
use super::place::Place;
use super::stage::Stage;
use super::{NAMES, clients};
use crate::exit::Failure;
use crate::output::Stop;

const NAME: &str = "demo:printer";
const WORK: Duration = Duration::from_millis(60);

pub(super) async fn act(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    stage.act("Queue", "a fair lock serves its waiters in the order of their requests").await?;
    let clients = clients::<5>(place).await?;
    let (first, rest) = (&clients[0], &clients[1..]);
    let asked = Instant::now();
    let guard = first.1.fair_lock(NAME).lock().await?;
    let got = Instant::now();

    let mut waiting = JoinSet::new();
    for (at, (name, client)) in rest.iter().enumerate() {
        waiting.spawn(wait_for_it(name, client.clone()));
        wait_for_queue(&first.1, at + 1).await?;
    }
    let queue = first.1.inspector().inspect(NAME).await?.queue;
    let queue: Vec<_> = queue.iter().map(|waiter| who(&clients, &waiter.id)).collect();
    stage.report("ann", &format!("holds it; the queue is {}", queue.join(", "))).await?;
    stage.check(queue == NAMES[1..], "the queue has the order of the requests").await?;

    let gone = Instant::now();
    guard.release().await?;
    let mut turns = vec![Turn { who: first.0, asked, got, gone }];
    for turn in waiting.join_all().await {
        turns.push(turn?);
    }
    turns.sort_by_key(|turn| turn.got);
    let served: Vec<_> = turns.iter().map(|turn| turn.who).collect();
    let slowest = turns.windows(2).map(|pair| pair[1].got - pair[0].gone).max().unwrap_or_default();
    stage.chart(&Chart::new(&NAMES, turns)).await?;
    let claim = format!("served in that order, each handoff within {} ms", slowest.as_millis() + 1);
    stage.check(served == NAMES, &claim).await
}

async fn wait_for_it(who: &'static str, client: Client) -> lockkeeper::Result<Turn> {
    let asked = Instant::now();
    let guard = client.fair_lock(NAME).lock().await?;
    let got = Instant::now();
    sleep(WORK).await;
    let gone = Instant::now();
    guard.release().await?;
    Ok(Turn { who, asked, got, gone })
}

/// Waits until the queue has this length.
async fn wait_for_queue(client: &Client, length: usize) -> Result<(), Stop> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while client.inspector().inspect(NAME).await?.queue.len() < length {
        if Instant::now() > deadline {
            return Err(Failure::internal("a waiter did not enter the queue").into());
        }
        sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// The name of the client with this owner id.
fn who(clients: &[(&'static str, Client)], id: &str) -> &'static str {
    let owner: Option<OwnerId> = id.parse().ok();
    let own = |client: &Client| owner.is_some_and(|owner| owner.client() == client.id());
    clients.iter().find(|(_, client)| own(client)).map_or("?", |(name, _)| name)
}
