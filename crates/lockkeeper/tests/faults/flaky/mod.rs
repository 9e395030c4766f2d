//! Requests fail, stall or lose their answer, one by one: memory store, paused clock.

mod acknowledgement;
mod permits;
mod waiters;

use std::iter;
use std::time::Duration;

use lockkeeper::stores::Memory;
use lockkeeper::{Client, ClientOptions};
use testkit::{Flaky, Gate};
use tokio::time::sleep;

/// Longer than any wait of these tests.
const HOUR: Duration = Duration::from_secs(3600);

/// Time for the reaper, and for the re-check of a waiter.
const SETTLE: Duration = Duration::from_secs(6);

/// A backend that fails on request, a client of it, and a client that uses the same store directly.
/// A client uses the later of two clocks: after an hour that is the paused one, however slow the
/// machine is.
async fn flaky() -> (Flaky, Client, Client) {
    flaky_with(ClientOptions::new()).await
}

async fn flaky_with(options: ClientOptions) -> (Flaky, Client, Client) {
    let memory = Memory::new();
    let flaky = Flaky::new(memory.clone());
    let ours = Client::with_backend(flaky.backend(), options).unwrap();
    let theirs = Client::with_backend(memory, ClientOptions::new()).unwrap();
    sleep(HOUR).await;
    (flaky, ours, theirs)
}

/// No request arrives any more.
fn silence() -> impl Iterator<Item = Gate> {
    iter::repeat_n(Gate::ErrBefore, 10_000)
}
