//! Work that runs under a lock and ends with it.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use lockkeeper::{Clock, Error, LostReason, RunError};
use tokio::time::{Instant, sleep, timeout};

use crate::store::{Exclusive, Store, assert_is, eventually, one, pair};

/// Set when it is dropped, as what a piece of work owns is.
#[derive(Clone, Default)]
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    fn on_drop(&self) -> OnDrop {
        OnDrop(self.clone())
    }
}

struct OnDrop(Flag);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::SeqCst);
    }
}

pub(crate) async fn run_holds_the_lock_while_the_work_runs<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let ran = ours.run(async |hold| {
        assert!(!hold.is_lost());
        assert_eq!(hold.name(), theirs.name());
        assert!(hold.remaining() <= store.watchdog());
        let holder = theirs.inspect().await.unwrap().holders.remove(0);
        assert_eq!(holder.id, hold.owner_id().to_string());
        assert!(theirs.try_lock().await.unwrap().is_none());
        "done"
    });
    assert_eq!(ran.await.unwrap().output, "done");
    assert!(!theirs.is_locked().await.unwrap(), "it is released afterwards");
}

pub(crate) async fn run_reports_its_wait_and_hold_times<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let start = Instant::now();
    let _vanished = theirs.lease(store.lease()).lock().await.unwrap();
    // What has passed of the lease when the wait begins, at most.
    let passed = start.elapsed();
    let ran = ours.run(async |_| sleep(store.lease() / 2).await).await.unwrap();
    assert!(ran.waited + passed >= store.lease().mul_f64(0.9), "{:?}", ran.waited);
    assert!(ran.waited < store.lease() * 3 / 2 + store.slack(), "{:?}", ran.waited);
    assert!(ran.held >= store.lease() / 2, "{:?}", ran.held);
    assert!(ran.held < store.lease() + store.slack(), "{:?}", ran.held);
}

pub(crate) async fn the_work_is_renewed_for_as_long_as_it_takes<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let ran = lock.run(async |hold| {
        store.is_renewed(&lock).await;
        !hold.is_lost()
    });
    assert!(ran.await.unwrap().output);
}

pub(crate) async fn try_run_is_none_and_runs_nothing_while_it_is_busy<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = theirs.lease(store.long()).lock().await.unwrap();
    let started = Flag::default();
    let work = async |_| drop(started.on_drop());
    assert!(
        store.promptly("try_run", ours.try_run_for(Duration::ZERO, work)).await.unwrap().is_none()
    );
    let work = async |_| drop(started.on_drop());
    let waited = ours.try_run_for(store.lease(), work).await.unwrap();
    assert!(waited.is_none());
    assert!(!started.is_set());
    eventually("it has left the queue", async || store.stored(&store.name("lock")) == 1).await;
    guard.release().await.unwrap();
    let ran = ours.try_run_for(Duration::ZERO, async |_| 7).await.unwrap().expect("it is free");
    assert_eq!(ran.output, 7);
    assert!(!theirs.is_locked().await.unwrap());
}

pub(crate) async fn the_work_is_dropped_when_the_lease_expires<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let dropped = Flag::default();
    let owned = dropped.on_drop();
    let ours = ours.lease(store.lease());
    let run = ours.run(move |_| async move {
        let _owned = owned;
        pending::<()>().await;
    });
    assert_is!(run.await, Err(RunError::Lost { reason, output: None, .. }) if reason == LostReason::Expired);
    assert!(dropped.is_set());
    theirs.lock().await.unwrap().release().await.unwrap();
}

pub(crate) async fn the_work_is_dropped_when_the_lock_is_force_released<L: Exclusive>(
    store: &Store,
) {
    let options = store.options().watchdog_timeout(store.long());
    let ours = L::of(&store.client_with(options).await, store.name("lock"));
    let theirs = one::<L>(store).await;
    let dropped = Flag::default();
    let owned = dropped.on_drop();
    let (began, begun) = tokio::sync::oneshot::channel();
    let run = ours.run(move |_| async move {
        let _owned = owned;
        began.send(()).unwrap();
        pending::<()>().await;
    });
    let force = async {
        begun.await.unwrap();
        store.receives_notices_for(&theirs).await;
        assert!(!dropped.is_set());
        theirs.force_unlock("enough").await.unwrap()
    };
    let (ran, forced) = store.promptly("run ends", async { tokio::join!(run, force) }).await;
    assert!(forced);
    let why = LostReason::Revoked("enough".to_owned());
    assert_is!(ran, Err(RunError::Lost { reason, output: None, .. }) if reason == why);
    assert!(dropped.is_set());
}

pub(crate) async fn the_work_is_dropped_when_the_lock_was_deleted<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let leased = lock.lease(store.long());
    let run = leased.run(async |_| {
        store.delete_held::<L>(&lock).await;
        pending::<()>().await;
    });
    let ran = timeout(store.long(), run).await.expect("it ends");
    assert_is!(ran, Err(RunError::Lost { reason, output: None, .. }) if reason == LostReason::Deleted);
}

/// The process was stopped in the middle of a poll: what the work returned is not lost.
pub(crate) async fn work_that_finished_too_late_returns_its_output_and_the_loss<L: Exclusive>(
    store: &Store,
) {
    let clock = Clock::system();
    let client = store.client_with(store.options().clock(clock.clone())).await;
    let lock = L::of(&client, store.name("lock"));
    let lock = lock.lease(store.long());
    let run = lock.run(async |_| {
        clock.skip(store.long() * 2);
        42
    });
    assert_is!(run.await,
        Err(RunError::Lost { reason, output: Some(42), .. }) if reason == LostReason::Expired);
}

pub(crate) async fn the_work_is_not_polled_after_the_deadline<L: Exclusive>(store: &Store) {
    let clock = Clock::system();
    let client = store.client_with(store.options().clock(clock.clone())).await;
    let lock = L::of(&client, store.name("lock"));
    let polls = AtomicU32::new(0);
    let lock = lock.lease(store.long());
    let run = lock.run(async |_| {
        poll_fn(|cx| {
            polls.fetch_add(1, Ordering::SeqCst);
            clock.skip(store.long() * 2);
            // It wants to go on at once.
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        })
        .await;
    });
    assert_is!(run.await, Err(RunError::Lost { output: None, .. }));
    assert_eq!(polls.load(Ordering::SeqCst), 1);
}

pub(crate) async fn work_whose_lock_was_deleted_returns_its_output_and_the_loss<L: Exclusive>(
    store: &Store,
) {
    let client = store.client().await;
    store.listens(&client).await;
    let lock = L::of(&client, store.name("lock"));
    let leased = lock.lease(store.long());
    let run = leased.run(async |_| {
        store.delete_held::<L>(&lock).await;
        "written"
    });
    assert_is!(run.await,
        Err(RunError::Lost { reason, output: Some("written"), .. }) if reason == LostReason::Deleted);
}

pub(crate) async fn run_that_cannot_acquire_never_starts_the_work<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let lock = L::of(&client, store.name("lock"));
    client.shutdown().await;
    let started = Flag::default();
    let ran = lock.run(async |_| drop(started.on_drop())).await;
    assert_is!(ran, Err(RunError::Acquire(Error::Closed { .. })));
    let ran = lock.try_run_for(Duration::ZERO, async |_| drop(started.on_drop())).await;
    assert_is!(ran, Err(RunError::Acquire(Error::Closed { .. })));
    assert!(!started.is_set());
}

pub(crate) async fn a_run_that_is_dropped_drops_the_work_and_releases<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let dropped = Flag::default();
    let owned = dropped.on_drop();
    let (began, begun) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let work = move |_| async move {
            let _owned = owned;
            began.send(()).unwrap();
            pending::<()>().await;
        };
        ours.run(work).await.unwrap();
    });
    begun.await.unwrap();
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(dropped.is_set());
    let next = store.promptly("it is released", theirs.lock()).await.unwrap();
    next.release().await.unwrap();
}

pub(crate) async fn work_that_panics_releases_the_lock<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let task = tokio::spawn(async move {
        let work = |_| async { panic!("this panic is part of the law") };
        ours.lease(Duration::from_secs(30)).run::<(), _>(work).await.unwrap();
    });
    assert!(task.await.unwrap_err().is_panic());
    let next = store.promptly("it is released", theirs.lock()).await.unwrap();
    next.release().await.unwrap();
}

/// Two runs at once take turns.
pub(crate) async fn runs_exclude_each_other<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let inside = AtomicU32::new(0);
    let work = async |_| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        tokio::task::yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    for _ in 0..20 {
        let (a, b, c) = tokio::join!(ours.run(work), theirs.run(work), ours.run(work));
        a.and(b).and(c).unwrap();
    }
}
