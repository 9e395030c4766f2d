//! The store makes a change, and fewer replicas than asked for acknowledge it.

use std::iter;

use lockkeeper::{Client, ClientOptions, Error, LostReason, Phase, WATCHDOG_TIMEOUT};
use testkit::{Flaky, Gate, Verb};
use tokio::time::{Instant, sleep};

use super::{HOUR, SETTLE, flaky};
use crate::support::{joined, ms};

/// No replica is left.
fn alone() -> impl Iterator<Item = Gate> {
    iter::repeat_n(Gate::Unacknowledge, 10_000)
}

#[tokio::test(start_paused = true)]
async fn an_unacknowledged_try_fails_and_is_undone() {
    let (flaky, ours, theirs) = flaky().await;
    flaky.script([Gate::Unacknowledge]);
    let error = ours.lock("it").try_lock().await.unwrap_err();
    assert!(matches!(error, Error::Unacknowledged { phase: Phase::Acquire, .. }), "{error:?}");
    for part in ["\"it\"", "fewer replicas than asked for", "0 of 1 replicas"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    sleep(ms(1)).await;
    theirs.lock("it").try_lock().await.unwrap().expect("undone").release().await.unwrap();
}

/// It is granted in the store at the first attempt: the later ones find their own hold.
#[tokio::test(start_paused = true)]
async fn a_waiter_waits_until_its_lock_is_acknowledged() {
    let (flaky, ours, theirs) = flaky().await;
    flaky.script(alone());
    let waiter = tokio::spawn(ours.lock("it").lock());
    sleep(ms(5000)).await;
    assert!(!waiter.is_finished());
    flaky.open();
    let guard = joined(waiter).await.unwrap();
    assert!(theirs.lock("it").is_locked().await.unwrap());
    guard.release().await.unwrap();
    flaky.script(alone());
    let error = ours.lock("it").lock().await.unwrap_err();
    assert!(matches!(error, Error::Unacknowledged { phase: Phase::Acquire, .. }), "{error:?}");
    flaky.open();
    sleep(SETTLE).await;
    assert!(!theirs.lock("it").is_locked().await.unwrap());
}

/// The store has extended the lease each time.
#[tokio::test(start_paused = true)]
async fn an_unacknowledged_renewal_moves_no_deadline() {
    let (flaky, ours, _) = flaky().await;
    let guard = ours.lock("it").lock().await.unwrap();
    let (start, deadline) = (Instant::now(), Instant::now() + guard.remaining());
    flaky.script(alone());
    let extended = guard.extend(2 * WATCHDOG_TIMEOUT).await;
    let phase = match extended {
        Err(Error::Unacknowledged { phase, .. }) => phase,
        other => panic!("{other:?}"),
    };
    assert_eq!((phase, Instant::now() + guard.remaining()), (Phase::Extend, deadline));
    assert_eq!(guard.lost().await, LostReason::Unacknowledged);
    assert!(start.elapsed() < WATCHDOG_TIMEOUT, "{:?}", start.elapsed());
    assert!(flaky.calls(Verb::Renew) > 2, "it was tried again");
    // One that is acknowledged in the end, and one whose store is silent in the end.
    flaky.open();
    let guards = [ours.lock("a").lock().await.unwrap(), ours.lock("b").lock().await.unwrap()];
    flaky.script(iter::repeat_n(Gate::Unacknowledge, 2));
    sleep(WATCHDOG_TIMEOUT).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    flaky.script(iter::once(Gate::Unacknowledge).chain(super::silence()));
    for guard in guards {
        assert_eq!(guard.lost().await, LostReason::Unreachable);
    }
}

/// The change is made once, however often it is repeated.
#[tokio::test(start_paused = true)]
async fn an_unacknowledged_change_of_a_counter_is_reported() {
    let (flaky, ours, theirs) = flaky().await;
    let semaphore = ours.semaphore("it");
    assert!(theirs.semaphore("it").try_set_permits(3, None).await.unwrap());
    flaky.script([Gate::Unacknowledge, Gate::Unacknowledge]);
    assert_eq!(semaphore.add_permits(2).await.unwrap(), 5);
    flaky.script(alone());
    let error = semaphore.add_permits(2).await.unwrap_err();
    assert!(matches!(error, Error::Unacknowledged { phase: Phase::Change, .. }), "{error:?}");
    assert_eq!(theirs.semaphore("it").available().await.unwrap(), 7);
}

/// The lease ends at 30 s. The store has extended it at 25 s, and the answer arrives at 40 s.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_unacknowledged_after_the_loss_is_undone() {
    let (unacknowledged, _, theirs) = flaky().await;
    let slow = Flaky::new(unacknowledged.backend());
    let ours = Client::with_backend(slow.backend(), ClientOptions::new()).unwrap();
    sleep(HOUR).await;
    let guard = ours.lock("it").lock().await.unwrap();
    // Checked once its client listens.
    sleep(ms(10)).await;
    slow.script([Gate::Slow(WATCHDOG_TIMEOUT)]);
    unacknowledged.script([Gate::Unacknowledge]);
    assert_eq!(guard.lost().await, LostReason::Unreachable);
    sleep(ms(1000)).await;
    assert!(theirs.lock("it").is_locked().await.unwrap(), "extended");
    sleep(ms(10_000)).await;
    assert!(!theirs.lock("it").is_locked().await.unwrap());
}
