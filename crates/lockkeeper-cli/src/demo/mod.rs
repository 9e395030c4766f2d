//! `demo`: shows in a minute what the locks do.
//!
//! Every line is the result of calls to the public API on a temporary store, and every claim is checked.
//! A claim that does not hold ends the demo with exit code 70.

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

/// The names of the clients.
const NAMES: [&str; 5] = ["ann", "bob", "cid", "dan", "eve"];

pub(crate) async fn run(global: &Global, args: &DemoArgs) -> Result<Code, Failure> {
    let mut stage = Stage::new(global, args.fast);
    let mut interrupt = Interrupt::new()?;
    let place = Place::new()?;
    let outcome = tokio::select! {
        outcome = acts(&mut stage, &place) => outcome.map(|()| Code::OK),
        code = interrupt.next() => Ok(code),
    };
    place.clear().await;
    outcome.or_else(|stop| stop.or(Code::OK))
}

async fn acts(stage: &mut Stage, place: &Place) -> Result<(), Stop> {
    stage.begin()?;
    contention::act(stage, place).await?;
    queue::act(stage, place).await?;
    crash::act(stage, place).await?;
    loss::act(stage, place).await?;
    fencing::act(stage, place).await?;
    stage.end()?;
    Ok(())
}

/// Creates N named clients, which behave like separate processes.
async fn clients<const N: usize>(place: &Place) -> Result<Vec<(&'static str, Client)>, Failure> {
    let mut clients = Vec::new();
    for name in &NAMES[..N] {
        clients.push((*name, place.client().await?));
    }
    Ok(clients)
}
