//! `demo`: a minute's tour.
//!
//! Nothing in it is played: every line is the outcome of something that was just done with the public
//! API, on a store of its own, and every claim is checked. One that does not hold ends the tour with
//! exit 70.

mod chart;
mod contention;
mod crash;
mod fencing;
mod loss;
mod place;
mod queue;
mod stage;
mod wire;
pub(crate) mod worker;

use lockkeeper::Client;

use crate::args::{DemoArgs, Global};
use crate::exit::{Code, Failure};
use crate::interrupt::Interrupt;
use crate::output::Stop;
use place::Place;
use stage::Stage;

/// Who plays.
const NAMES: [&str; 5] = ["ann", "bob", "cid", "dan", "eve"];

pub(crate) async fn run(global: &Global, args: &DemoArgs) -> Result<Code, Failure> {
    let mut stage = Stage::new(global, args.fast);
    let mut interrupt = Interrupt::new()?;
    let place = Place::new()?;
    let tour = tokio::select! {
        tour = tour(&mut stage, &place) => tour.map(|()| Code::OK),
        code = interrupt.next() => Ok(code),
    };
    place.clear().await;
    tour.or_else(|stop| stop.or(Code::OK))
}

async fn tour(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    stage.begin()?;
    contention::act(stage, place).await?;
    queue::act(stage, place).await?;
    crash::act(stage, place).await?;
    loss::act(stage, place).await?;
    fencing::act(stage, place).await?;
    stage.end()?;
    Ok(())
}

/// A client for each of them, as if each were a process of its own.
async fn clients<const N: usize>(place: &Place) -> Result<Vec<(&'static str, Client)>, Failure> {
    let mut clients = Vec::new();
    for name in &NAMES[..N] {
        clients.push((*name, place.client().await?));
    }
    Ok(clients)
}
