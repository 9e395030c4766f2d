//! Clocks that jump: time passes for the client only.

use lockkeeper::{Clock, LostReason};
use testkit::{RedisServer, Stopwatch};

use crate::primitives::*;
use crate::support::*;

/// As after a suspend: the boot clock advanced, the clock of tokio did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_past_the_lease_signals_the_loss_within_250_ms() {
    each(LEASED, async |primitive| {
        let server = started().await;
        let clock = Clock::system();
        let client = connect(&server.url(), options().clock(clock.clone())).await;
        for name in ["a", "b"] {
            set_up(&client, primitive, name).await;
        }
        let renewed = Handle::new(&client, primitive, "a").held().await;
        let fixed = Handle::new(&client, primitive, "b").leased(LONG).await;
        let cases = [(renewed, LostReason::Unreachable), (fixed, LostReason::Expired)];
        watched(&server).await;
        // Polled before the jump, so that the signal ends them and not their first check.
        let mut lost = cases.each_ref().map(|(held, _)| Box::pin(held.guard().lost()));
        for lost in &mut lost {
            start(lost).await;
        }
        let jumped = Stopwatch::start();
        let told = lost.map(|lost| tokio::spawn(async move { (lost.await, jumped.elapsed()) }));
        clock.skip(LONG);
        assert!(cases.iter().all(|(held, _)| held.guard().is_lost()));
        for (told, (held, reason)) in told.into_iter().zip(&cases) {
            let (said, after) = within(PATIENCE, "the loss", joined(told)).await;
            assert_eq!(said, *reason, "{primitive:?}");
            // The rule says 250 ms; the rest is for a busy machine. The next renewal would be in 20 s.
            assert!(after < ms(250) + SOON, "{after:?}");
            assert!(held.guard().remaining().is_zero());
        }
    })
    .await;
}

/// Until the watchdog sleeps: it subscribes to notices before that.
async fn watched(server: &RedisServer) {
    let channels = || server.cli(&["PUBSUB", "CHANNELS", "lockkeeper_notice:*"]);
    eventually(PATIENCE, "listening for notices", || !channels().array().is_empty()).await;
}

/// Less than the lease: nothing is lost, and the watchdog catches up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_by_less_than_the_lease_causes_a_renewal() {
    both(async |kind| {
        let server = RedisServer::start();
        let clock = Clock::system();
        let client = connect(&server.url(), options().clock(clock.clone())).await;
        let guard = taken(&lock_of(&client, kind, "a")).await;
        watched(&server).await;
        server.cli(&["PEXPIRE", "a", "40000"]);
        clock.skip(LONG / 2);
        eventually(PATIENCE, "renewed", || pttl(&server, "a") > 50_000).await;
        assert_held(&server, kind, "a", &guard, 1);
    })
    .await;
}
