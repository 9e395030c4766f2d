//! Operation × gates of its first store calls × the poll after which it is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use testkit::{Gate, Verb};
use tokio::time::{sleep, timeout};

use crate::scenes::{Operation, Script};
use crate::stage::{How, Sort, Stage};

/// How many store calls pass a gate.
const CALLS: usize = 8;

const GATES: [Gate; 5] =
    [Gate::Ok, Gate::ErrBefore, Gate::ErrAfter, Gate::Slow(Duration::from_millis(20)), Gate::Never];

/// An operation that has not ended by then waits for a call that is withheld, and is dropped.
const PATIENCE: Duration = Duration::from_secs(4);

/// Time for what was left behind to be finished. Less than the store needs to forget by itself who
/// waits: two seconds for a writer, three for a place in a queue.
const SETTLE: Duration = Duration::from_secs(1);

/// The same where somebody must find out that a lease has ended, or two that take several as one
/// are in each other's way.
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

/// Polls the operation so many times and drops it right after the last.
struct Cancelled {
    operation: Option<Operation>,
    polls: usize,
}

impl Future for Cancelled {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        if let Some(polls) = self.polls.checked_sub(1) {
            self.polls = polls;
            let operation = self.operation.as_mut().expect("it is dropped when it ends");
            if let Poll::Ready(well) = operation.as_mut().poll(cx) {
                return Poll::Ready(Ended::Finished { well });
            }
        }
        if self.polls > 0 {
            return Poll::Pending;
        }
        self.operation = None;
        Poll::Ready(Ended::Dropped)
    }
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
struct Case {
    script: Script,
    sort: Sort,
    gates: [Gate; CALLS],
    /// Whether somebody of the same client waits for the same, too.
    waiter: bool,
    polls: usize,
}

impl Case {
    async fn run(self) -> (Ended, u64) {
        let stage = Stage::new();
        let scene = self.script.set(&stage, self.sort).await;
        stage.flaky.script(self.gates);
        let waiter = self.waiter.then(|| {
            // Spawned before the first poll of the operation, it runs after it.
            let lock = stage.mine(self.sort);
            tokio::spawn(async move {
                lock.take(How::Forever).await?.expect("for ever").release().await
            })
        });
        let operation = Cancelled { operation: Some(scene.operation), polls: self.polls };
        let ended = timeout(PATIENCE, operation).await.unwrap_or(Ended::Stuck);
        stage.flaky.open();
        drop(scene.kept);
        let slow = self.script.expires() || self.sort.together();
        sleep(if slow { LONG_SETTLE } else { SETTLE }).await;
        if let Some(waiter) = waiter {
            assert!(waiter.is_finished(), "the waiter behind it waits on");
            waiter.await.unwrap().expect("the waiter behind it gets in");
        }
        self.check(&stage).await;
        let passed = stage.flaky.calls(Verb::HandOver);
        drop(stage);
        sleep(Duration::from_millis(1)).await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks, 0, "tasks outlive their clients");
        (ended, passed)
    }

    /// Nothing is left.
    async fn check(self, stage: &Stage) {
        let Stage { memory, elsewhere, flaky, .. } = stage;
        if self.script.expires() {
            stage.ask(self.sort).await;
        }
        self.script.check(stage, self.sort, self.polls > 0).await;
        let left = (memory.usage().0, elsewhere.usage().0);
        assert_eq!(left, (self.sort.stands(), 0), "holds, places or intents left");
        assert_eq!(flaky.outstanding(), 0, "store calls left");
        assert_eq!(flaky.abandoned(), [], "store calls dropped half-way");
        sleep(QUIET).await;
        assert_eq!((memory.usage().1, elsewhere.usage().1), (0, 0), "topics left");
        let renewals = flaky.calls(Verb::Renew);
        sleep(RENEWALS).await;
        assert_eq!(flaky.calls(Verb::Renew), renewals, "renewals go on");
        let whole = self.sort.whole();
        for (whose, lock) in
            [("another client's", stage.rivals(whole)), ("its own client's", stage.mine(whole))]
        {
            let held = lock.take(How::Once).await.unwrap();
            let held = held.unwrap_or_else(|| panic!("not free at {whose} first attempt"));
            held.release().await.unwrap();
        }
    }
}

/// The gates that are tried: every combination for the first calls of a plain lock, elsewhere any two
/// that are not Ok among the first, and beyond that one at a time.
fn gates(sort: Sort) -> Vec<[Gate; CALLS]> {
    let first = match sort {
        Sort::Lock | Sort::Mutex => 3,
        sort if sort.together() => 5,
        _ => 2,
    };
    let thorough = matches!(sort, Sort::Lock | Sort::Mutex);
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

/// All cells of an operation: for each script of gates it is dropped after 0, 1, 2, … polls until it
/// ends by itself.
fn all(script: Script) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let sorts = script.sorts();
    let waiters = if script.can_be_waited_for() { &[false, true][..] } else { &[false] };
    for (&sort, &waiter) in sorts.iter().flat_map(|sort| waiters.iter().map(move |w| (sort, w))) {
        let (mut cases, mut dropped, mut passed) = (0, 0, 0);
        for gates in gates(sort) {
            for polls in 0.. {
                let case = Case { script, sort, gates, waiter, polls };
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
            "{script:?} {sort:?}: {cases} cases, {dropped} dropped half-way, {passed} passed on"
        );
        assert!(dropped > GATES.len(), "hardly anything was cancelled");
        if matches!(script, Script::ReceiveFromLocal | Script::HandToLocal) && sort.handed_over() {
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
    ($($name:ident: $script:ident;)*) => {
        $(#[test]
        fn $name() {
            all(Script::$script);
        })*
    };
}

matrix! {
    taking_what_is_free: LockFree;
    taking_what_is_free_for_a_fixed_lease: LockLeased;
    waiting_for_what_is_busy: LockBusy;
    trying_once: TryLock;
    waiting_long_enough: WaitLongEnough;
    waiting_in_vain: WaitInVain;
    re_entering_through_a_guard: Reenter;
    re_entering_as_an_owner: ReenterAsOwner;
    releasing: Release;
    releasing_one_hold_of_two: PartialRelease;
    receiving_from_a_local_holder: ReceiveFromLocal;
    handing_over_to_a_local_waiter: HandToLocal;
    extending: Extend;
    leaving_the_lock_for_a_while: LeaveFor;
    running_work_under_a_lock: Run;
    trying_to_run_work_under_a_lock: TryRun;
    reading_behind_a_waiting_writer: ReadBehindAWriter;
    reading_beside_ones_own_writing: NestedRead;
    letting_a_write_lock_go_and_reading_on: ReleaseAroundARead;
    downgrading: Downgrade;
    upgrading: TryUpgrade;
    upgrading_in_vain: TryUpgradeInVain;
    counting_down: CountDown;
    adding_permits: AddPermits;
    giving_permits_back_by_their_ids: ReleaseById;
}
