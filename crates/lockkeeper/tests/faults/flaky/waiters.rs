//! Waiters and single attempts at a store that does not answer or refuses.

use std::future::{pending, ready};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper::backend::{
    Answer, Backend, Fault, List, Page, Release, Resource, Subscription, Topic,
};
use lockkeeper::stores::Memory;
use lockkeeper::{
    Client, ClientOptions, Error, Kind, LockName, LostReason, MultiLock, OwnerId, RunError,
};
use testkit::{Flaky, Gate, Verb};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::{HOUR, SETTLE, flaky, flaky_with, silence};
use crate::support::{assert_unreachable, joined, ms};

/// Three tasks wait for permits when the store stops answering: two that asked at the same time, of which one
/// queued behind the other, and one that came later. Only the first sends requests.
#[tokio::test(start_paused = true)]
async fn a_queued_waiter_reports_a_silent_store_as_unreachable() {
    let (flaky, ours, theirs) = flaky().await;
    let semaphore = ours.semaphore("it");
    assert!(theirs.semaphore("it").try_set_permits(0, None).await.unwrap());
    let waiting = || tokio::spawn(semaphore.try_acquire_for(1, ms(9000)));
    flaky.script([Gate::Slow(ms(20)), Gate::Slow(ms(20))]);
    let together = [waiting(), waiting()];
    sleep(ms(100)).await;
    let late = waiting();
    sleep(ms(100)).await;
    assert_eq!(flaky.unreached(), 0);
    flaky.script(silence());
    for waiter in together.into_iter().chain([late]) {
        assert_unreachable(&joined(waiter).await);
    }
}

/// The last of three never becomes the first of the local queue before its wait limit.
#[tokio::test(start_paused = true)]
async fn a_queued_waiter_reports_why_the_store_refuses() {
    let (flaky, ours, theirs) = flaky().await;
    flaky.script(iter::repeat_n(Gate::Refuse, 10_000));
    let lock = ours.lock("it");
    let waiters = [9000, 9000, 8000].map(|limit| tokio::spawn(lock.try_lock_for(ms(limit))));
    for waiter in waiters {
        let error = joined(waiter).await.unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
    }
    flaky.open();
    // After the store serves again, the lock is only busy.
    let guard = theirs.lock("it").lock().await.unwrap();
    flaky.script([Gate::Refuse]);
    let waiters = [(); 3].map(|()| tokio::spawn(lock.try_lock_for(ms(9000))));
    for waiter in waiters {
        assert!(joined(waiter).await.unwrap().is_none());
    }
    guard.release().await.unwrap();
}

/// One request for another lock fails, with or without an answer. The next request is far off.
#[tokio::test(start_paused = true)]
async fn a_failed_request_for_another_lock_does_not_end_a_wait() {
    for failure in [Gate::Refuse, Gate::ErrBefore] {
        let (flaky, ours, _) = flaky_with(ClientOptions::new().watchdog_timeout(HOUR)).await;
        let guard = ours.lock("it").lock().await.unwrap();
        let waiter = ours.lock("it");
        let waiter = tokio::spawn(async move { waiter.lock().await });
        sleep(ms(100)).await;
        flaky.script([failure]);
        let failed = ours.lock("other").try_lock().await;
        let refused = matches!(failed, Err(Error::Refused { .. }));
        assert_eq!(refused, matches!(failure, Gate::Refuse), "{failed:?}");
        assert!(refused || matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
        sleep(4 * lockkeeper::UNREACHABLE_AFTER).await;
        assert!(!waiter.is_finished(), "{failure:?}: {:?}", joined(waiter).await);
        guard.release().await.unwrap();
        joined(waiter).await.unwrap().release().await.unwrap();
    }
}

/// The release is refused again and again.
#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_refused_release_is_told_why() {
    let (flaky, ours, _) = flaky().await;
    let guard = ours.lock("it").lock().await.unwrap();
    // Held for too long for a handoff.
    sleep(ms(100)).await;
    let lock = ours.lock("it");
    let waiter = tokio::spawn(async move { lock.lock().await });
    sleep(ms(1)).await;
    flaky.script(iter::repeat_n(Gate::Refuse, 10_000));
    let start = Instant::now();
    let release = tokio::spawn(guard.release());
    let error = joined(waiter).await.unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    let took = start.elapsed();
    assert!(took >= lockkeeper::UNREACHABLE_AFTER, "it gave up early: {took:?}");
    assert!(took < lockkeeper::UNREACHABLE_AFTER + ms(2000), "{took:?}");
    flaky.open();
    drop(joined(release).await);
}

/// An attempt without any answer ends after one response timeout, whatever its wait limit. Once the store has
/// been silent for that long, the wait ends at its limit. A request that failed at once does not count.
#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_ends_after_the_response_timeout() {
    let (flaky, ours, _) = flaky().await;
    flaky.script([Gate::Never]);
    let start = Instant::now();
    assert_unreachable(&ours.lock("it").try_lock_for(ms(10)).await);
    let took = start.elapsed();
    let response = lockkeeper::RESPONSE_TIMEOUT;
    assert!(took >= response && took < response + ms(100), "{took:?}");
    flaky.open();
    sleep(SETTLE).await;
    flaky.script([Gate::ErrBefore, Gate::Never]);
    let start = Instant::now();
    assert_unreachable(&ours.lock("it").try_lock_for(ms(500)).await);
    let took = start.elapsed();
    assert!(took >= response && took < response + ms(600), "{took:?}");
    flaky.script([Gate::Never, Gate::Never]);
    let start = Instant::now();
    assert_unreachable(&ours.lock("it").try_lock_for(response + ms(500)).await);
    let took = start.elapsed();
    assert!(took >= response + ms(500) && took < response + ms(600), "{took:?}");
    flaky.open();
    sleep(SETTLE).await;
    ours.lock("it").try_lock().await.unwrap().expect("nothing was left").release().await.unwrap();
}

/// A queue position does not expire with the requested lease.
#[tokio::test(start_paused = true)]
async fn the_removal_of_a_queue_position_is_repeated_until_ten_minutes_after_its_lease() {
    let (flaky, ours, theirs) = flaky().await;
    let _guard = theirs.fair_lock("it").lease(10 * HOUR).lock().await.unwrap();
    let waiting = tokio::spawn(ours.fair_lock("it").lease(ms(30_000)).lock());
    sleep(ms(100)).await;
    assert_eq!(flaky.calls(Verb::Subscribe), 1, "it waits");
    flaky.script(iter::repeat_n(Gate::ErrBefore, 100_000));
    waiting.abort();
    let tries_within = async |span| {
        let before = flaky.calls(Verb::Release);
        sleep(span).await;
        flaky.calls(Verb::Release) - before
    };
    assert!(tries_within(ms(600_000)).await > 0);
    assert!(tries_within(ms(29_000)).await > 0, "it has ended too early");
    sleep(ms(10_000)).await;
    assert_eq!(tries_within(HOUR).await, 0, "it does not end");
    assert!(flaky.unreached() > 0, "the store has answered");
}

/// The store of one member answers, the other does not, and the wait limit comes first. In both orders,
/// because one of them is asked first.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_reports_a_silent_store_as_unreachable() {
    for swapped in [false, true] {
        let stores = [Flaky::new(Memory::new()), Flaky::new(Memory::new())];
        let options = ClientOptions::new();
        let clients = stores.each_ref().map(|s| Client::with_backend(s.backend(), options.clone()));
        let [one, two] = clients.map(Result::unwrap);
        sleep(HOUR).await;
        stores[usize::from(swapped)].script(silence());
        let multi = MultiLock::new([one.lock("a"), two.lock("b")]);
        let answer = multi.try_lock_for(ms(1000)).await;
        assert_unreachable(&answer);
        // A member that is held is busy.
        stores.iter().for_each(Flaky::open);
        let guard = two.lock("b").lock().await.unwrap();
        assert!(multi.try_lock_for(ms(1000)).await.unwrap().is_none());
        guard.release().await.unwrap();
        multi.try_lock().await.unwrap().expect("all is free").release().await.unwrap();
    }
}

/// All members are acquired, and their stores stop answering before the lease is set. The wait limit has
/// passed by then.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_whose_lease_cannot_be_set_is_unreachable() {
    let lossy = Flaky::new(Memory::new());
    let slow = Flaky::new(lossy.backend());
    let beside = slow.beside(lossy.beside(Memory::new()).backend());
    let clients = [&slow, &beside].map(|s| Client::with_backend(s.backend(), ClientOptions::new()));
    let [one, two] = clients.map(Result::unwrap);
    sleep(HOUR).await;
    lossy.script([Gate::Ok, Gate::Ok].into_iter().chain(silence()));
    slow.script([Gate::Ok, Gate::Ok, Gate::Slow(ms(2000))]);
    let multi = MultiLock::new([one.lock("a"), two.lock("b")]);
    let answer = multi.lease(ms(5000)).try_lock_for(ms(1000)).await;
    assert_unreachable(&answer);
    assert_eq!(slow.calls(Verb::Acquire), 2);
    lossy.open();
    sleep(SETTLE).await;
    multi.try_lock().await.unwrap().expect("nothing was left").release().await.unwrap();
}

/// Queues for a fair lock behind another client, acquires it and releases it. Returns the identity.
async fn queue_once(ours: &Client, theirs: &Client, before_release: impl FnOnce()) -> OwnerId {
    let held = theirs.fair_lock("it").lock().await.unwrap();
    let waiter = tokio::spawn(ours.fair_lock("it").lock());
    sleep(ms(300)).await;
    held.release().await.unwrap();
    let guard = joined(waiter).await.unwrap();
    let identity = guard.owner_id();
    before_release();
    guard.release().await.unwrap();
    identity
}

/// It queues, subscribes, tries again, acquires and releases; later it only queues, acquires and
/// releases. A second after the last release it has unsubscribed.
#[tokio::test(start_paused = true)]
async fn a_client_that_queues_again_for_a_fair_lock_sends_three_requests() {
    let store = Memory::new();
    let flaky = Flaky::new(store.clone());
    let [ours, theirs] = [flaky.backend(), store.clone()]
        .map(|backend| Client::with_backend(backend, ClientOptions::new()).unwrap());
    let verbs = [Verb::Acquire, Verb::Subscribe, Verb::Release];
    let requests = || verbs.map(|verb| flaky.calls(verb)).iter().sum::<u64>();
    let mut costs = Vec::new();
    for _ in 0..4 {
        let before = requests();
        queue_once(&ours, &theirs, || {}).await;
        costs.push(requests() - before);
    }
    assert_eq!(costs, [5, 3, 3, 3]);
    assert!(store.usage().1 > 0, "it listens");
    sleep(ms(3000)).await;
    assert_eq!(store.usage(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_identity_with_an_unanswered_request_is_not_used_again() {
    let (flaky, ours, theirs) = flaky().await;
    let first = queue_once(&ours, &theirs, || {}).await;
    let lost_release = || flaky.script([Gate::ErrAfter]);
    assert_eq!(queue_once(&ours, &theirs, lost_release).await, first, "all was answered");
    let second = queue_once(&ours, &theirs, || {}).await;
    assert_ne!(second, first, "the answer to the release was lost");
    flaky.script([Gate::ErrAfter]);
    assert_eq!(queue_once(&ours, &theirs, || {}).await, second);
    assert_eq!(flaky.unreached(), 0);
    let third = queue_once(&ours, &theirs, || {}).await;
    assert_ne!(third, second, "the answer to an acquire was lost");
}

/// The lease was lost, the lock was left held, or a renewal has failed or is under way when it is released.
#[tokio::test(start_paused = true)]
async fn an_identity_whose_hold_did_not_end_with_its_release_is_not_used_again() {
    let (flaky, ours, theirs) = flaky().await;
    let mut last = queue_once(&ours, &theirs, || {}).await;
    for end in 0..5 {
        let held = theirs.fair_lock("it").lock().await.unwrap();
        let waiter = tokio::spawn(ours.fair_lock("it").lock());
        sleep(ms(300)).await;
        held.release().await.unwrap();
        let guard = joined(waiter).await.unwrap();
        assert_eq!(guard.owner_id() == last, end == 0, "after end {end}");
        last = guard.owner_id();
        match end {
            0 => {
                assert!(theirs.fair_lock("it").force_unlock("").await.unwrap());
                // Before the client has read the notice.
                let released = guard.release().await;
                assert!(matches!(released, Err(Error::NotHeld { .. })), "{released:?}");
            }
            1 => {
                guard.leave_for(ms(100)).await.unwrap();
                sleep(ms(200)).await;
            }
            _ => {
                flaky.script([if end == 2 { Gate::ErrAfter } else { Gate::Slow(ms(500)) }]);
                let before = flaky.calls(Verb::Renew);
                while flaky.calls(Verb::Renew) == before {
                    sleep(ms(100)).await;
                }
                guard.release().await.unwrap();
            }
        }
    }
}

/// The client is closed while the answer to the release is under way.
#[tokio::test(start_paused = true)]
async fn a_closed_client_keeps_no_identity() {
    let store = Memory::new();
    let flaky = Flaky::new(store.clone());
    let [ours, theirs] = [flaky.backend(), store.clone()]
        .map(|backend| Client::with_backend(backend, ClientOptions::new()).unwrap());
    let closing = ours.clone();
    let close = || {
        flaky.script([Gate::Slow(ms(500))]);
        tokio::spawn(async move {
            sleep(ms(100)).await;
            closing.shutdown().await;
        });
    };
    queue_once(&ours, &theirs, close).await;
    sleep(SETTLE).await;
    assert_eq!(store.usage(), (0, 0), "it listens");
}

/// The lease expires with the outer guard's term when the inner guard is released. The outer guard, released
/// later, must not release the hold of another task.
#[tokio::test(start_paused = true)]
async fn an_identity_is_not_used_again_while_a_guard_of_its_lease_is_left() {
    let (_, ours, theirs) = flaky().await;
    let held = theirs.fair_lock("it").lock().await.unwrap();
    let waiter = tokio::spawn(ours.fair_lock("it").lease(ms(1000)).lock());
    sleep(ms(300)).await;
    held.release().await.unwrap();
    let outer = joined(waiter).await.unwrap();
    let inner = outer.reenter().await.unwrap();
    sleep(ms(2000)).await;
    let _ = inner.release().await;
    let next = ours.fair_lock("it").lock().await.unwrap();
    let _ = outer.release().await;
    let holder = theirs.fair_lock("it").inspect().await.unwrap().holders.remove(0);
    assert_eq!(holder.id, next.owner_id().to_string());
}

/// An acquire is executed and its answer is on its way when an operator force-releases the lock.
#[tokio::test(start_paused = true)]
async fn a_force_release_before_the_answer_to_an_acquire_is_noticed_with_its_reason() {
    let (flaky, ours, theirs) = flaky().await;
    let _listens = ours.lock("other").lock().await.unwrap();
    sleep(SETTLE).await;
    flaky.script([Gate::Slow(ms(2000))]);
    let acquire = tokio::spawn(ours.lock("it").lock());
    sleep(ms(1500)).await;
    assert!(theirs.lock("it").force_unlock("stuck").await.unwrap());
    let guard = joined(acquire).await.unwrap();
    let start = Instant::now();
    assert_eq!(guard.lost().await, LostReason::Revoked("stuck".to_owned()));
    assert!(start.elapsed() < ms(100), "{:?}", start.elapsed());
}

/// The answer to a release of a lock without a local queue is under way.
#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_the_answers_to_releases() {
    let (flaky, ours, _) = flaky().await;
    let reading = ours.rw_lock("it").read().await.unwrap();
    sleep(SETTLE).await;
    flaky.script([Gate::Slow(ms(500))]);
    let release = tokio::spawn(reading.release());
    sleep(ms(10)).await;
    assert_eq!(flaky.outstanding(), 1, "the release");
    assert!(ours.drain(ms(5000)).await);
    assert_eq!(flaky.outstanding(), 0);
    joined(release).await.unwrap();
}

/// Refuses the first subscription to the notices of a client.
#[derive(Debug)]
struct DeafAtFirst(Arc<dyn Backend>, AtomicBool);

impl Backend for DeafAtFirst {
    testkit::forward!(0: capabilities acquire release renew adjust inspect list check close);

    fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
        if matches!(topic, Topic::Notice(_)) && !self.1.swap(true, Ordering::SeqCst) {
            return Box::pin(ready(Err(Fault::Refused { detail: "not yet".into() })));
        }
        self.0.subscribe(topic)
    }
}

/// Two holds are force-released before the store listens for their client: one that is held by then, and one whose
/// acquire is answered later.
#[tokio::test(start_paused = true)]
async fn force_releases_from_before_the_store_listens_are_noticed_with_their_reason() {
    let memory = Memory::new();
    let flaky = Flaky::new(memory.clone());
    let deaf = Arc::new(DeafAtFirst(flaky.backend(), AtomicBool::new(false)));
    let options = ClientOptions::new().watchdog_timeout(HOUR);
    let [ours, theirs] = [deaf as Arc<dyn Backend>, memory]
        .map(|b| Client::with_backend(b, options.clone()).unwrap());
    let held = ours.lock("held").lock().await.unwrap();
    // The client subscribes again after five seconds.
    sleep(ms(4_000)).await;
    flaky.script([Gate::Slow(ms(1_600))]);
    let late = tokio::spawn(ours.lock("late").lock());
    sleep(ms(900)).await;
    for name in ["held", "late"] {
        assert!(theirs.lock(name).force_unlock("for the test").await.unwrap(), "{name}");
    }
    for guard in [held, joined(late).await.unwrap()] {
        let lost = timeout(SETTLE, guard.lost()).await.expect("long before the next renewal");
        assert_eq!(lost, LostReason::Revoked("for the test".to_owned()));
    }
}

/// A store that does not answer when its locks are listed.
#[derive(Debug)]
struct ListHangs(Arc<dyn Backend>, bool);

impl Backend for ListHangs {
    testkit::forward!(0: capabilities acquire release renew adjust inspect subscribe check close);

    fn list(&self, list: List) -> Answer<Page> {
        if self.1 { Box::pin(pending()) } else { self.0.list(list) }
    }
}

/// Deletes the lock `it` of this client.
async fn delete(store: &Memory, owner: OwnerId) {
    let resource = Resource { kind: Kind::Lock, name: LockName::from("it") };
    assert!(store.release(Release::new(resource, owner)).await.is_ok());
}

/// A hold of less than a second is deleted: it may have been force-released, which is looked up. It does not count as
/// held meanwhile, and its loss is declared soon, and before its deadline.
#[tokio::test(start_paused = true)]
async fn a_hold_that_has_vanished_is_lost_while_the_reason_is_looked_up() {
    for (watchdog, hangs, latest) in [(30_000, false, 510), (30_000, true, 510), (300, true, 300)] {
        let memory = Memory::new();
        let store: Arc<dyn Backend> = Arc::new(ListHangs(memory.clone(), hangs));
        let options = ClientOptions::new().watchdog_timeout(ms(watchdog));
        let client = Client::with_backend(store, options).unwrap();
        sleep(HOUR).await;
        let guard = client.lock("it").lock().await.unwrap();
        let start = Instant::now();
        delete(&memory, guard.owner_id()).await;
        let lost = tokio::spawn(guard.lost());
        sleep(ms(10)).await;
        assert!(guard.is_lost() && !lost.is_finished());
        assert_eq!(joined(lost).await, LostReason::Deleted);
        let took = start.elapsed();
        assert!(took < ms(latest), "{took:?} with {watchdog} ms");
    }
}

/// The work does not wake by itself.
#[tokio::test(start_paused = true)]
async fn work_is_dropped_as_soon_as_its_lock_has_vanished() {
    let memory = Memory::new();
    let client = Client::with_backend(memory.clone(), ClientOptions::new()).unwrap();
    sleep(HOUR).await;
    let (working, dropped) = oneshot::channel::<()>();
    let start = Instant::now();
    let lock = client.lock("it");
    let run = lock.run(|hold| async move {
        let _working = working;
        delete(&memory, hold.owner_id()).await;
        pending::<()>().await;
    });
    let (ended, took) = tokio::join!(run, async {
        assert!(dropped.await.is_err());
        start.elapsed()
    });
    assert!(took < ms(100), "{took:?}");
    assert!(matches!(ended, Err(RunError::Lost { reason: LostReason::Deleted, .. })), "{ended:?}");
}
