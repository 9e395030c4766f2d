//! Operation × gates of its first store calls × the poll after which it is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use testkit::{Gate, Verb};
use tokio::time::{sleep, timeout};

use crate::fixture::{Fixture, How, Primitive};
use crate::operations::{Operation, Work};

/// How many store calls pass a gate.
const CALLS: usize = 8;

const GATES: [Gate; 5] =
    [Gate::Ok, Gate::ErrBefore, Gate::ErrAfter, Gate::Slow(Duration::from_millis(20)), Gate::Never];

/// An operation that has not ended by then waits for a withheld call, and is dropped.
const PATIENCE: Duration = Duration::from_secs(4);

/// Time for the reaper. Less than the store needs to forget a waiter: two seconds for a writer, three for a
/// queue position.
const SETTLE: Duration = Duration::from_secs(1);

/// The same where a client must find out that a lease has expired, or where two multi-locks compete.
const LONG_SETTLE: Duration = Duration::from_secs(6);

/// By then a client has stopped listening for notices.
const QUIET: Duration = Duration::from_secs(2);

/// Longer than any renewal is away.
const RENEWALS: Duration = Duration::from_secs(25);

/// How an operation ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ended {
    Dropped,
    Stuck,
    Finished { well: bool },
}

/// Polls the operation this many times and drops it after the last poll.
struct Cancelled {
    work: Option<Work>,
    polls: usize,
}

impl Future for Cancelled {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        if let Some(polls) = self.polls.checked_sub(1) {
            self.polls = polls;
            let work = self.work.as_mut().expect("it is dropped when it ends");
            if let Poll::Ready(well) = work.as_mut().poll(cx) {
                return Poll::Ready(Ended::Finished { well });
            }
        }
        if self.polls > 0 {
            return Poll::Pending;
        }
        self.work = None;
        Poll::Ready(Ended::Dropped)
    }
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
struct Case {
    operation: Operation,
    primitive: Primitive,
    gates: [Gate; CALLS],
    /// Whether another task of the same client waits for the same.
    waiter: bool,
    polls: usize,
}

impl Case {
    async fn run(self) -> (Ended, u64) {
        let fixture = Fixture::new();
        let prepared = self.operation.set(&fixture, self.primitive).await;
        fixture.flaky.script(self.gates);
        let waiter = self.waiter.then(|| {
            // Spawned before the first poll of the operation, it runs after it.
            let lock = fixture.mine(self.primitive);
            tokio::spawn(async move {
                lock.take(How::Forever).await?.expect("for ever").release().await
            })
        });
        let work = Cancelled { work: Some(prepared.work), polls: self.polls };
        let ended = timeout(PATIENCE, work).await.unwrap_or(Ended::Stuck);
        fixture.flaky.open();
        drop(prepared.kept);
        let slow = self.operation.expires() || self.primitive.together();
        sleep(if slow { LONG_SETTLE } else { SETTLE }).await;
        if let Some(waiter) = waiter {
            assert!(waiter.is_finished(), "the waiter behind it still waits");
            waiter.await.unwrap().expect("the waiter behind it gets in");
        }
        self.check(&fixture).await;
        let passed = fixture.flaky.calls(Verb::HandOff);
        drop(fixture);
        sleep(Duration::from_millis(1)).await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks, 0, "tasks outlive their clients");
        (ended, passed)
    }

    /// Nothing is left.
    async fn check(self, fixture: &Fixture) {
        let Fixture { memory, elsewhere, flaky, .. } = fixture;
        if self.operation.expires() {
            fixture.ask(self.primitive).await;
        }
        self.operation.check(fixture, self.primitive, self.polls > 0).await;
        let left = (memory.usage().0, elsewhere.usage().0);
        assert_eq!(
            left,
            (self.primitive.stands(), 0),
            "holds, queue positions or waiting writers left"
        );
        assert_eq!(flaky.outstanding(), 0, "store calls left");
        assert_eq!(flaky.abandoned(), [], "store calls dropped half-way");
        sleep(QUIET).await;
        assert_eq!((memory.usage().1, elsewhere.usage().1), (0, 0), "topics left");
        let renewals = flaky.calls(Verb::Renew);
        sleep(RENEWALS).await;
        assert_eq!(flaky.calls(Verb::Renew), renewals, "renewals go on");
        let whole = self.primitive.whole();
        for (whose, lock) in
            [("another client's", fixture.rivals(whole)), ("its own client's", fixture.mine(whole))]
        {
            let held = lock.take(How::Once).await.unwrap();
            let held = held.unwrap_or_else(|| panic!("not free at {whose} first attempt"));
            held.release().await.unwrap();
        }
    }
}

/// The gates that are tried: every combination for the first calls of a plain lock, elsewhere any two
/// that are not Ok among the first, and beyond that one at a time.
fn gates(primitive: Primitive) -> Vec<[Gate; CALLS]> {
    let first = match primitive {
        Primitive::Lock | Primitive::Mutex => 3,
        primitive if primitive.together() => 5,
        _ => 2,
    };
    let thorough = matches!(primitive, Primitive::Lock | Primitive::Mutex);
    let mut all = vec![[Gate::Ok; CALLS]];
    for call in 0..CALLS {
        for so_far in all.clone() {
            let faults = so_far.iter().filter(|gate| **gate != Gate::Ok).count();
            if faults == 0 || call < first && (thorough || faults < 2) {
                all.extend(GATES[1..].iter().map(|gate| {
                    let mut gates = so_far;
                    gates[call] = *gate;
                    gates
                }));
            }
        }
    }
    all
}

/// All cells of an operation: for each sequence of gates it is dropped after 0, 1, 2, … polls until it
/// ends by itself.
fn all(operation: Operation) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let primitives = operation.primitives();
    let waiters = if operation.can_be_waited_for() { &[false, true][..] } else { &[false] };
    for (&primitive, &waiter) in
        primitives.iter().flat_map(|primitive| waiters.iter().map(move |w| (primitive, w)))
    {
        let (mut cases, mut dropped, mut passed) = (0, 0, 0);
        for gates in gates(primitive) {
            for polls in 0.. {
                let case = Case { operation, primitive, gates, waiter, polls };
                let (ended, hand_overs) = runtime.block_on(shown_on_panic(case));
                (cases, passed) = (cases + 1, passed + hand_overs);
                match ended {
                    Ended::Dropped => dropped += 1,
                    Ended::Finished { well } => {
                        let smooth = gates == [Gate::Ok; CALLS];
                        assert!(well || !smooth, "it fails on a perfect store: {case:?}");
                        break;
                    }
                    Ended::Stuck => break,
                }
            }
        }
        println!(
            "{operation:?} {primitive:?}: {cases} cases, {dropped} dropped half-way, {passed} passed on"
        );
        assert!(dropped > GATES.len(), "hardly anything was cancelled");
        if matches!(operation, Operation::ReceiveFromLocal | Operation::HandToLocal)
            && primitive.handed_over()
        {
            assert!(passed > 0, "nothing was handed over");
        }
    }
}

/// A panic says which cell it was.
async fn shown_on_panic(case: Case) -> (Ended, u64) {
    struct Shown(Case);
    impl Drop for Shown {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("in {:?}", self.0);
            }
        }
    }
    let shown = Shown(case);
    let outcome = case.run().await;
    std::mem::forget(shown);
    outcome
}

macro_rules! matrix {
    ($($name:ident: $operation:ident;)*) => {
        $(#[test]
        fn $name() {
            all(Operation::$operation);
        })*
    };
}

matrix! {
    acquire_of_a_free_lock: LockFree;
    acquire_with_a_fixed_lease: LockLeased;
    acquire_of_a_busy_lock: LockBusy;
    single_attempt: TryLock;
    acquire_within_the_wait_limit: WaitLongEnough;
    acquire_that_times_out: TimedOut;
    reentry_through_a_guard: Reenter;
    reentry_as_an_owner: ReenterAsOwner;
    release: Release;
    release_of_one_hold_of_two: PartialRelease;
    receiving_a_handoff: ReceiveFromLocal;
    handoff_to_a_local_waiter: HandToLocal;
    extend: Extend;
    leave_for: LeaveFor;
    run: Run;
    try_run: TryRun;
    read_behind_a_waiting_writer: ReadBehindAWriter;
    read_of_the_writer_itself: NestedRead;
    release_of_a_write_lock_with_a_nested_read: ReleaseAroundARead;
    downgrade: Downgrade;
    upgrade: TryUpgrade;
    upgrade_beside_another_reader: TryUpgradeBusy;
    count_down: CountDown;
    add_permits: AddPermits;
    release_of_permits_by_id: ReleaseById;
}
