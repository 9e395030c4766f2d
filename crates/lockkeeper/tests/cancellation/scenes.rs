//! What can be cancelled: for each operation the state it starts from, and its future.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Result;

use crate::stage::{BUSY, Held, How, PERMITS, Sort, Stage};

/// How long a lock is left standing.
const LEFT: Duration = Duration::from_millis(200);

/// What a latch is set to that is counted down once.
const COUNT: u64 = 3;

/// The operation under test; whether it did what it is there for.
pub(crate) type Operation = Pin<Box<dyn Future<Output = bool> + Send>>;

/// An operation about to start.
pub(crate) struct Scene {
    pub(crate) operation: Operation,
    /// What the caller of the operation still has when it is over.
    pub(crate) kept: Box<dyn Any + Send>,
}

/// The operations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Script {
    LockFree,
    LockBusy,
    LockLeased,
    TryLock,
    WaitLongEnough,
    WaitInVain,
    Reenter,
    ReenterAsOwner,
    Release,
    PartialRelease,
    ReceiveFromLocal,
    HandToLocal,
    Extend,
    LeaveFor,
    Run,
    TryRun,
    /// A reader waits for a writer that waits for a reader.
    ReadBehindAWriter,
    /// Reading beside one's own writing.
    NestedRead,
    /// The write lock is let go while its owner reads on.
    ReleaseAroundARead,
    Downgrade,
    TryUpgrade,
    TryUpgradeInVain,
    CountDown,
    AddPermits,
    ReleaseById,
}

impl Script {
    /// What it is done to.
    pub(crate) fn sorts(self) -> Vec<Sort> {
        let those = |fits: fn(Sort) -> bool| Sort::ALL.into_iter().filter(|s| fits(*s)).collect();
        match self {
            Script::LockFree
            | Script::LockBusy
            | Script::TryLock
            | Script::WaitLongEnough
            | Script::WaitInVain => those(|_| true),
            Script::LockLeased | Script::Run | Script::TryRun => {
                those(|sort| sort.guarded() || sort.together())
            }
            Script::Reenter | Script::ReenterAsOwner | Script::PartialRelease => {
                those(Sort::reentrant)
            }
            Script::Release => those(|sort| sort != Sort::Latch),
            // Readers do not keep each other out.
            Script::ReceiveFromLocal | Script::HandToLocal => {
                those(|sort| !matches!(sort, Sort::Latch | Sort::Read))
            }
            Script::Extend | Script::LeaveFor => those(Sort::guarded),
            Script::ReadBehindAWriter => vec![Sort::Read],
            Script::NestedRead
            | Script::ReleaseAroundARead
            | Script::Downgrade
            | Script::TryUpgrade
            | Script::TryUpgradeInVain => vec![Sort::Write],
            Script::CountDown => vec![Sort::Latch],
            Script::AddPermits => vec![Sort::Semaphore, Sort::Permits],
            Script::ReleaseById => vec![Sort::Permits],
        }
    }

    /// Whether what is left may end by itself, and is counted until somebody asks about it.
    pub(crate) fn expires(self) -> bool {
        matches!(self, Script::LockLeased | Script::Extend | Script::LeaveFor)
    }

    /// Whether somebody of the same client can wait for the same meanwhile, and get it afterwards.
    pub(crate) fn can_be_waited_for(self) -> bool {
        !matches!(self, Script::CountDown | Script::AddPermits)
    }

    /// Sets the scene; the gates are open.
    pub(crate) async fn set(self, stage: &Stage, sort: Sort) -> Scene {
        stage.set_up(sort).await;
        let lock = stage.mine(sort);
        match self {
            Script::LockFree => scene((), async move { got(lock.take(How::Forever).await) }),
            Script::LockLeased => {
                scene((), async move { got(lock.take(How::Leased(4 * BUSY)).await) })
            }
            Script::TryLock => scene((), async move { got(lock.take(How::Once).await) }),
            Script::LockBusy => {
                stage.blocked_for_a_while(sort).await;
                scene((), async move { got(lock.take(How::Forever).await) })
            }
            Script::WaitLongEnough => {
                stage.blocked_for_a_while(sort).await;
                // Several as one start anew after a pause, and whoever spins pauses ever longer.
                let slow = sort.together() || sort == Sort::Spin;
                let span = if slow { 6 * BUSY } else { 2 * BUSY };
                scene((), async move { got(lock.take(How::Within(span)).await) })
            }
            Script::WaitInVain => {
                stage.blocked_for_a_while(sort).await;
                let in_vain = |outcome| matches!(outcome, Ok(None));
                scene((), async move { in_vain(lock.take(How::Within(BUSY / 2)).await) })
            }
            Script::Reenter => {
                let guard = lock.taken().await.guard();
                let again = guard.reenter();
                scene(guard, async move { again.await.is_ok() })
            }
            Script::ReenterAsOwner => {
                let lock = lock.owned();
                let guard = lock.taken().await.guard();
                scene(guard, async move { got(lock.take(How::Forever).await) })
            }
            Script::Release => {
                let held = lock.taken().await;
                let release = held.release();
                scene((), async move { release.await.is_ok() })
            }
            Script::PartialRelease => {
                let guard = lock.taken().await.guard();
                let release = guard.reenter().await.unwrap().release();
                scene(guard, async move { release.await.is_ok() })
            }
            Script::ReceiveFromLocal => {
                let held = lock.taken().await;
                tokio::spawn(async move {
                    // After the operation has queued.
                    tokio::task::yield_now().await;
                    held.release().await
                });
                scene((), async move { got(lock.take(How::Forever).await) })
            }
            Script::HandToLocal => {
                let held = lock.taken().await;
                let receiver = tokio::spawn(async move { lock.take(How::Forever).await.map(drop) });
                // It queues now.
                tokio::task::yield_now().await;
                let release = held.release();
                scene(receiver, async move { release.await.is_ok() })
            }
            Script::Extend => {
                let guard = Arc::new(lock.taken().await.guard());
                let extended = Arc::clone(&guard);
                scene(guard, async move { extended.extend(4 * BUSY).await.is_ok() })
            }
            Script::LeaveFor => {
                let guard = lock.taken().await.guard();
                let leave = guard.leave_for(LEFT);
                scene((), async move { leave.await.is_ok() })
            }
            Script::Run => scene((), async move { lock.run().await }),
            Script::TryRun => scene((), async move { lock.try_run().await }),
            _ => self.set_own(stage, sort).await,
        }
    }

    /// What only one kind has.
    async fn set_own(self, stage: &Stage, sort: Sort) -> Scene {
        let lock = stage.mine(sort);
        match self {
            Script::ReadBehindAWriter => {
                let reading = stage.rivals(Sort::Read).taken().await;
                let writer = stage.rivals(Sort::Write);
                tokio::spawn(async move { writer.taken().await.release().await });
                // It waits now.
                tokio::task::yield_now().await;
                tokio::spawn(async move {
                    tokio::time::sleep(BUSY).await;
                    reading.release().await
                });
                scene((), async move { got(lock.take(How::Forever).await) })
            }
            Script::NestedRead => {
                let guard = Arc::new(stage.client.rw_lock("it").write().await.unwrap());
                let writing = Arc::clone(&guard);
                scene(guard, async move { writing.read().await.is_ok() })
            }
            Script::ReleaseAroundARead => {
                let guard = stage.client.rw_lock("it").write().await.unwrap();
                let reading = guard.read().await.unwrap();
                let release = guard.release();
                scene(reading, async move { release.await.is_ok() })
            }
            Script::Downgrade => {
                let guard = stage.client.rw_lock("it").write().await.unwrap();
                scene((), async move { guard.downgrade().await.is_ok() })
            }
            Script::TryUpgrade => {
                let reading = stage.client.rw_lock("it").read().await.unwrap();
                scene((), async move { reading.try_upgrade().await.is_ok() })
            }
            Script::TryUpgradeInVain => {
                let reading = stage.client.rw_lock("it").read().await.unwrap();
                let another = stage.rivals(Sort::Read).taken().await;
                scene(
                    another,
                    async move { reading.try_upgrade().await.is_err_and(|e| e.is_busy()) },
                )
            }
            Script::CountDown => {
                assert!(stage.rival.count_down_latch("it").try_set_count(COUNT).await.unwrap());
                let latch = stage.client.count_down_latch("it");
                scene(
                    (),
                    async move { latch.count_down().await.is_ok_and(|left| left == COUNT - 1) },
                )
            }
            Script::AddPermits => {
                let more = i64::from(PERMITS) + 1;
                if sort == Sort::Semaphore {
                    let semaphore = stage.client.semaphore("it");
                    scene(
                        (),
                        async move { semaphore.add_permits(1).await.is_ok_and(|n| n == more) },
                    )
                } else {
                    let semaphore = stage.client.permit_semaphore("it");
                    scene(
                        (),
                        async move { semaphore.add_permits(1).await.is_ok_and(|n| n == more) },
                    )
                }
            }
            Script::ReleaseById => {
                let guard = stage.rivals(sort).taken().await.guard();
                let ids = guard.permit_ids();
                let semaphore = stage.client.permit_semaphore("it");
                scene(guard, async move { semaphore.release(&ids).await.is_ok_and(|all| all) })
            }
            script => unreachable!("{script:?} is for several sorts"),
        }
    }

    /// What must be so afterwards, beside that nothing is left.
    pub(crate) async fn check(self, stage: &Stage, sort: Sort, polled: bool) {
        match self {
            // Once polled it is done, and done once.
            Script::CountDown => {
                let latch = stage.rival.count_down_latch("it");
                assert_eq!(latch.count().await.unwrap(), COUNT - u64::from(polled));
                assert!(latch.delete().await.unwrap());
            }
            Script::AddPermits => {
                let free = stage.free_permits(sort).await;
                assert_eq!(free, i64::from(PERMITS) + i64::from(polled));
            }
            _ if sort.stands() > 0 => {
                assert_eq!(stage.free_permits(sort).await, i64::from(PERMITS), "permits lost");
            }
            _ => {}
        }
    }
}

fn scene(kept: impl Any + Send, operation: impl Future<Output = bool> + Send + 'static) -> Scene {
    Scene { operation: Box::pin(operation), kept: Box::new(kept) }
}

fn got(outcome: Result<Option<Held>>) -> bool {
    matches!(outcome, Ok(Some(_)))
}
