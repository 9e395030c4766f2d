//! Answers that come late, or never: what is believed meanwhile, and what is left in the store.
//!
//! Memory store, paused clock: the gates say exactly when an answer comes.

use std::future::Future;
use std::iter::repeat_n;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lockkeeper::backend::{Backend, Release, Released, Resource};
use lockkeeper::{Client, ClientOptions, Clock, Error, Hold, LostReason};
use testkit::{Flaky, Gate, Verb};
use tokio::time::{sleep, timeout};

use crate::fixture::{Fixture, Handle, PERMITS, Primitive};

/// Everything that is held by a guard.
fn guarded() -> impl Iterator<Item = Primitive> {
    Primitive::ALL.into_iter().filter(|primitive| primitive.guarded())
}

/// What a client hands from one of its holds to the next.
fn handed_over() -> impl Iterator<Item = Primitive> {
    Primitive::ALL.into_iter().filter(|primitive| primitive.handed_over())
}

/// More requests than are sent within any of these tests.
const EVER: usize = 100_000;

/// Time for the reaper and for one re-check: much less than the leases here.
const SETTLE: Duration = Duration::from_secs(6);

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A fixture whose clocks are ahead of the machine's. A client believes whichever clock is later, so
/// that from here on only the paused one counts, however slow the machine is: a lock that was held
/// for some milliseconds is not handed over.
async fn fixture(primitive: Primitive) -> Fixture {
    let fixture = Fixture::new();
    fixture.set_up(primitive).await;
    sleep(HOUR).await;
    fixture
}

/// Lets time pass until so many calls of this kind have begun.
async fn begun(flaky: &Flaky, verb: Verb, calls: u64) {
    let all = async {
        while flaky.calls(verb) < calls {
            sleep(ms(1)).await;
        }
    };
    timeout(HOUR, all).await.unwrap_or_else(|_| panic!("never {calls} calls of {verb:?}"));
}

/// Lets time pass until nothing is under way.
async fn answered(flaky: &Flaky) {
    let all = async {
        while flaky.outstanding() > 0 {
            sleep(ms(1)).await;
        }
    };
    timeout(SETTLE, all).await.expect("every call is answered");
}

/// Lets time pass until the next renewal has begun, which takes so long.
async fn slow_renewal(flaky: &Flaky, span: Duration) {
    // A client that has just begun may ask at once.
    sleep(Duration::from_secs(1)).await;
    let before = flaky.calls(Verb::Renew);
    flaky.script([Gate::Slow(span)]);
    begun(flaky, Verb::Renew, before + 1).await;
}

/// Polls a future until it waits for something; it is expected not to be ready.
async fn queued<F: Future + Unpin>(work: &mut F) {
    let mut work = pin!(work);
    let pending = std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_pending())).await;
    assert!(pending, "it was ready at its first poll");
}

/// Takes a hold out of the store behind everybody's back.
async fn delete(fixture: &Fixture, primitive: Primitive, hold: &Hold) {
    let resource = Resource { kind: primitive.kind(), name: hold.name().clone() };
    let owner = hold.owner_id();
    let count = if primitive == Primitive::Permits { PERMITS } else { 1 };
    let release = Release { count, ..Release::new(resource, owner) };
    let answer = fixture.memory.release(release).await;
    assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
}

/// The rival can have it soon.
async fn assert_free_soon(fixture: &Fixture, primitive: Primitive) {
    let rivals = fixture.rivals(primitive);
    let taken = timeout(SETTLE, rivals.lock()).await;
    let guard = taken.unwrap_or_else(|_| panic!("{primitive:?}: still held")).unwrap();
    guard.release().await.unwrap();
}

/// A renewal is under way when the hold that it is for is given back; what stays ends at its own
/// time, though the renewal's answer comes last.
#[tokio::test(start_paused = true)]
async fn a_renewal_answered_after_the_release_extends_nothing() {
    let fixture = fixture(Primitive::Lock).await;
    let owner = fixture.client.new_owner();
    let lock = fixture.client.lock("it").as_owner(&owner);
    let renewed = lock.lock().await.unwrap();
    let fixed = lock.lease(Duration::from_secs(12)).lock().await.unwrap();
    // The store renews after half of it.
    slow_renewal(&fixture.flaky, ms(200)).await;
    sleep(ms(150)).await;
    assert_eq!(fixture.flaky.outstanding(), 1, "the renewal's answer is still to come");
    renewed.release().await.unwrap();
    let left = fixed.remaining();
    assert!(left < Duration::from_secs(3), "what the rest is owed: {left:?}");
    answered(&fixture.flaky).await;
    assert!(!fixed.is_lost());
    assert!(fixed.remaining() <= left, "{:?} after {left:?}", fixed.remaining());
    // The next holder starts after the loss.
    let rival = fixture.rival.lock("it");
    let rivals = loop {
        if let Some(guard) = rival.try_lock().await.unwrap() {
            break guard;
        }
        sleep(ms(5)).await;
    };
    assert!(fixed.is_lost(), "two hold it");
    assert_eq!(timeout(ms(500), fixed.lost()).await, Ok(LostReason::Expired));
    rivals.release().await.unwrap();
}

/// The process stands still past the deadline while a renewal is under way. Its answer is a success,
/// and changes nothing any more.
#[tokio::test(start_paused = true)]
async fn a_late_renewal_does_not_revive_a_lost_guard() {
    for primitive in guarded() {
        let clock = Clock::system();
        let fixture = fixture(primitive).await;
        let options = ClientOptions::new().clock(clock.clone());
        let client = Client::with_backend(fixture.flaky.backend(), options).unwrap();
        let guard = Handle::of(&client, primitive).lock().await.unwrap();
        // Answered before the watchdog looks again, which it does every quarter of a second.
        slow_renewal(&fixture.flaky, ms(100)).await;
        let lost = guard.lost();
        assert!(!guard.is_lost());
        clock.skip(Duration::from_secs(25));
        assert!(guard.is_lost(), "{primitive:?}: the deadline has passed");
        for _ in 0..500 {
            sleep(ms(1)).await;
            assert!(guard.is_lost(), "{primitive:?}: revived");
            assert_eq!(guard.remaining(), Duration::ZERO);
        }
        assert_eq!(timeout(ms(500), lost).await, Ok(LostReason::Unreachable), "{primitive:?}");
        // The extended hold is released though the guard still exists.
        assert_free_soon(&fixture, primitive).await;
        drop(guard);
    }
}

/// No answer to a partial release can make the last hold vanish: whoever then finds nothing has lost
/// the lock.
#[tokio::test(start_paused = true)]
async fn a_partial_release_that_finds_nothing_at_its_second_try_is_a_loss() {
    for primitive in guarded().filter(|primitive| primitive.reentrant()) {
        let fixture = fixture(primitive).await;
        let outer = fixture.mine(primitive).lock().await.unwrap();
        let inner = outer.reenter().await.unwrap();
        fixture.flaky.script([Gate::ErrAfter]);
        let mut release = Box::pin(inner.release());
        queued(&mut release).await;
        assert_eq!(fixture.flaky.calls(Verb::Release), 1);
        delete(&fixture, primitive, &outer).await;
        let answer = timeout(SETTLE, release).await.expect("the store answers");
        assert!(matches!(answer, Err(Error::NotHeld { .. })), "{primitive:?}: {answer:?}");
        assert!(outer.is_lost(), "the store has nothing, the guard believes that it holds");
        assert_eq!(timeout(ms(500), outer.lost()).await, Ok(LostReason::Deleted), "{primitive:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn leave_for_of_a_deleted_lock_is_not_held_at_its_second_try() {
    for primitive in guarded() {
        let fixture = fixture(primitive).await;
        let guard = fixture.mine(primitive).lock().await.unwrap();
        let view = lockkeeper::Hold::clone(&guard);
        fixture.flaky.script([Gate::ErrAfter]);
        let mut leave = Box::pin(guard.leave_for(Duration::from_secs(60)));
        queued(&mut leave).await;
        delete(&fixture, primitive, &view).await;
        let answer = timeout(SETTLE, leave).await.expect("the store answers");
        assert!(matches!(answer, Err(Error::NotHeld { .. })), "{primitive:?}: {answer:?}");
    }
}

/// The store does not answer while a lock is given back. Those in the queue behind it learn so in the
/// same time as anybody who waits for a store, not when the lease ends.
async fn queue_behind_a_release_without_an_answer(held: Duration, verb: Verb) {
    for primitive in handed_over() {
        let fixture = fixture(primitive).await;
        let guard = fixture.mine(primitive).lock_for(HOUR).await.unwrap();
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let lock = fixture.mine(primitive);
                tokio::spawn(async move { lock.lock().await })
            })
            .collect();
        tokio::task::yield_now().await;
        sleep(held).await;
        fixture.flaky.script(repeat_n(Gate::ErrBefore, EVER));
        let before = fixture.flaky.calls(verb);
        let release = tokio::spawn(guard.release());
        // Twice what a waiter bears.
        let limit = Duration::from_secs(20);
        for waiter in waiters {
            let told = timeout(limit, waiter).await;
            let told = told.unwrap_or_else(|_| panic!("{primitive:?}: a waiter was not told"));
            let told = told.unwrap();
            assert!(matches!(told, Err(Error::Unreachable { .. })), "{primitive:?}: {told:?}");
        }
        assert!(fixture.flaky.calls(verb) > before, "the release did not go by {verb:?}");
        let answer = timeout(limit, release).await.expect("it answers in time").unwrap();
        assert!(matches!(answer, Err(Error::Unconfirmed { .. })), "{primitive:?}: {answer:?}");
        // It goes on in the background, and is done once the store is there.
        fixture.flaky.open();
        assert_free_soon(&fixture, primitive).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_behind_a_release_without_an_answer_fail() {
    queue_behind_a_release_without_an_answer(ms(100), Verb::Release).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_behind_a_handoff_without_an_answer_fail() {
    queue_behind_a_release_without_an_answer(Duration::ZERO, Verb::HandOff).await;
}

/// The store hands the lock to the successor and nobody ever hears of it: when it is back, what it
/// keeps for the successor is nobody's, and is undone.
#[tokio::test(start_paused = true)]
async fn a_handoff_without_an_answer_leaves_no_hold() {
    for primitive in handed_over() {
        let fixture = fixture(primitive).await;
        let guard = fixture.mine(primitive).lock_for(Duration::from_secs(2)).await.unwrap();
        let lock = fixture.mine(primitive);
        let waiter = tokio::spawn(async move { lock.lock_for(HOUR).await });
        tokio::task::yield_now().await;
        let gates = std::iter::once(Gate::ErrAfter).chain(repeat_n(Gate::ErrBefore, EVER));
        fixture.flaky.script(gates);
        let release = tokio::spawn(guard.release());
        begun(&fixture.flaky, Verb::HandOff, 1).await;
        assert_eq!(fixture.memory.usage().0, 1, "{primitive:?}: the successor's, at the store");
        // Longer than the lease of the giver and than any wait.
        sleep(Duration::from_secs(30)).await;
        fixture.flaky.open();
        let outcome = timeout(SETTLE, waiter).await;
        let outcome =
            outcome.unwrap_or_else(|_| panic!("{primitive:?}: it waits for itself")).unwrap();
        // Told of the outage, or served afterwards: by now nothing keeps it from the lock.
        match outcome {
            Ok(guard) => guard.release().await.unwrap(),
            Err(Error::Unreachable { .. }) => {}
            Err(other) => panic!("{primitive:?}: {other:?}"),
        }
        assert_free_soon(&fixture, primitive).await;
        drop(release.await);
        sleep(SETTLE).await;
        assert_eq!(fixture.memory.usage().0, 0, "{primitive:?}: an orphan");
    }
}

/// The last of an owner's guards is on its way back while the owner asks for the lock.
#[tokio::test(start_paused = true)]
async fn an_owner_that_acquires_during_its_last_release_gets_the_lock() {
    let fixture = fixture(Primitive::Lock).await;
    let owner = fixture.client.new_owner();
    let lock = fixture.client.lock("it").as_owner(&owner);
    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    let id = outer.owner_id();
    // The first release takes its time; the second, then the request, wait for it.
    fixture.flaky.script([Gate::Slow(ms(100))]);
    let mut first = Box::pin(inner.release());
    queued(&mut first).await;
    let mut second = Box::pin(outer.release());
    queued(&mut second).await;
    let mut request = Box::pin(lock.lock());
    queued(&mut request).await;
    let all = async { tokio::join!(first, second, request) };
    let (first, second, again) = timeout(SETTLE, all).await.expect("nothing hangs");
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    let again = again.expect("its own release does not fail it");
    assert!(!again.is_lost());
    assert_ne!(again.owner_id(), id, "taken anew");
    assert_eq!(again.hold_count(), 1);
    again.release().await.unwrap();
    assert_eq!(fixture.memory.usage().0, 0);
}

/// A grant that is on its way when the client is shut down: afterwards there is nothing.
#[tokio::test(start_paused = true)]
async fn a_shutdown_releases_a_grant_that_arrives_meanwhile() {
    for primitive in guarded() {
        let fixture = fixture(primitive).await;
        fixture.flaky.script([Gate::Slow(ms(200))]);
        let lock = fixture.mine(primitive);
        let waiter = tokio::spawn(async move { lock.lock().await });
        begun(&fixture.flaky, Verb::Acquire, 1).await;
        sleep(ms(150)).await;
        let stands = primitive.stands();
        assert!(fixture.memory.usage().0 > stands, "{primitive:?}: granted, and not yet known");
        fixture.client.shutdown().await;
        assert_eq!(fixture.memory.usage().0, stands, "{primitive:?}: it is left behind");
        match timeout(SETTLE, waiter).await.expect("it is told").unwrap() {
            Ok(guard) => assert!(guard.is_lost(), "{primitive:?}: {guard:?}"),
            Err(Error::Closed { .. }) => {}
            Err(other) => panic!("{primitive:?}: {other:?}"),
        }
        sleep(SETTLE).await;
        assert_eq!(fixture.memory.usage().0, stands, "{primitive:?}: it came back");
    }
}

/// The name has become something else by the time its guard is given back to a waiter of the same
/// client: not held, as without a waiter.
#[tokio::test(start_paused = true)]
async fn a_handoff_of_a_name_of_another_kind_is_not_held() {
    for primitive in handed_over() {
        let fixture = fixture(primitive).await;
        let guard = fixture.mine(primitive).lock().await.unwrap();
        let lock = fixture.mine(primitive);
        let waiter = tokio::spawn(async move { lock.lock().await });
        tokio::task::yield_now().await;
        delete(&fixture, primitive, &guard).await;
        let other = if primitive == Primitive::Mutex { Primitive::Lock } else { Primitive::Mutex };
        let rivals = fixture.rivals(other).lock().await.unwrap();
        let answer = guard.release().await;
        assert_eq!(fixture.flaky.calls(Verb::HandOff), 1, "{primitive:?}");
        assert!(matches!(answer, Err(Error::NotHeld { .. })), "{primitive:?}: {answer:?}");
        let told = timeout(SETTLE, waiter).await.expect("it is told").unwrap();
        assert!(matches!(told, Err(Error::WrongKind { .. })), "{primitive:?}: {told:?}");
        assert!(!rivals.is_lost());
        rivals.release().await.unwrap();
    }
}
