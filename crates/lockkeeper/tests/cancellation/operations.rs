//! The operations that are cancelled: for each of them the state before it, and its future.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Result;

use crate::fixture::{BUSY, Fixture, Held, How, PERMITS, Primitive};

/// The span of `leave_for`.
const LEFT: Duration = Duration::from_millis(200);

/// The count of a latch that is counted down once.
const COUNT: u64 = 3;

/// The future of an operation; its output says whether the operation succeeded.
pub(crate) type Work = Pin<Box<dyn Future<Output = bool> + Send>>;

/// An operation before its first poll.
pub(crate) struct Prepared {
    pub(crate) work: Work,
    /// What the caller still holds after the operation.
    pub(crate) kept: Box<dyn Any + Send>,
}

/// The operations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Operation {
    LockFree,
    LockBusy,
    LockLeased,
    TryLock,
    WaitLongEnough,
    TimedOut,
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
    /// The writer reads.
    NestedRead,
    /// The write lock is released while its owner still reads.
    ReleaseAroundARead,
    Downgrade,
    TryUpgrade,
    TryUpgradeBusy,
    CountDown,
    AddPermits,
    ReleaseById,
}

impl Operation {
    /// The primitives that have it.
    pub(crate) fn primitives(self) -> Vec<Primitive> {
        let those =
            |fits: fn(Primitive) -> bool| Primitive::ALL.into_iter().filter(|s| fits(*s)).collect();
        match self {
            Operation::LockFree
            | Operation::LockBusy
            | Operation::TryLock
            | Operation::WaitLongEnough
            | Operation::TimedOut => those(|_| true),
            Operation::LockLeased | Operation::Run | Operation::TryRun => {
                those(|primitive| primitive.guarded() || primitive.together())
            }
            Operation::Reenter | Operation::ReenterAsOwner | Operation::PartialRelease => {
                those(Primitive::reentrant)
            }
            Operation::Release => those(|primitive| primitive != Primitive::Latch),
            // Readers share.
            Operation::ReceiveFromLocal | Operation::HandToLocal => {
                those(|primitive| !matches!(primitive, Primitive::Latch | Primitive::Read))
            }
            Operation::Extend | Operation::LeaveFor => those(Primitive::guarded),
            Operation::ReadBehindAWriter => vec![Primitive::Read],
            Operation::NestedRead
            | Operation::ReleaseAroundARead
            | Operation::Downgrade
            | Operation::TryUpgrade
            | Operation::TryUpgradeBusy => vec![Primitive::Write],
            Operation::CountDown => vec![Primitive::Latch],
            Operation::AddPermits => vec![Primitive::Semaphore, Primitive::Permits],
            Operation::ReleaseById => vec![Primitive::Permits],
        }
    }

    /// Whether what is left may expire, and is counted until the next request for it.
    pub(crate) fn expires(self) -> bool {
        matches!(self, Operation::LockLeased | Operation::Extend | Operation::LeaveFor)
    }

    /// Whether another task of the same client can wait for the same and acquire it afterwards.
    pub(crate) fn can_be_waited_for(self) -> bool {
        !matches!(self, Operation::CountDown | Operation::AddPermits)
    }

    /// Prepares the operation; the gates are open.
    pub(crate) async fn set(self, fixture: &Fixture, primitive: Primitive) -> Prepared {
        fixture.set_up(primitive).await;
        let lock = fixture.mine(primitive);
        match self {
            Operation::LockFree => prepared((), async move { got(lock.take(How::Forever).await) }),
            Operation::LockLeased => {
                prepared((), async move { got(lock.take(How::Leased(4 * BUSY)).await) })
            }
            Operation::TryLock => prepared((), async move { got(lock.take(How::Once).await) }),
            Operation::LockBusy => {
                fixture.blocked_for_a_while(primitive).await;
                prepared((), async move { got(lock.take(How::Forever).await) })
            }
            Operation::WaitLongEnough => {
                fixture.blocked_for_a_while(primitive).await;
                // A multi-lock starts again after a pause, and a spin lock pauses ever longer.
                let slow = primitive.together() || primitive == Primitive::Spin;
                let span = if slow { 6 * BUSY } else { 2 * BUSY };
                prepared((), async move { got(lock.take(How::Within(span)).await) })
            }
            Operation::TimedOut => {
                fixture.blocked_for_a_while(primitive).await;
                let timed_out = |outcome| matches!(outcome, Ok(None));
                prepared((), async move { timed_out(lock.take(How::Within(BUSY / 2)).await) })
            }
            Operation::Reenter => {
                let guard = lock.taken().await.guard();
                let again = guard.reenter();
                prepared(guard, async move { again.await.is_ok() })
            }
            Operation::ReenterAsOwner => {
                let lock = lock.owned();
                let guard = lock.taken().await.guard();
                prepared(guard, async move { got(lock.take(How::Forever).await) })
            }
            Operation::Release => {
                let held = lock.taken().await;
                let release = held.release();
                prepared((), async move { release.await.is_ok() })
            }
            Operation::PartialRelease => {
                let guard = lock.taken().await.guard();
                let release = guard.reenter().await.unwrap().release();
                prepared(guard, async move { release.await.is_ok() })
            }
            Operation::ReceiveFromLocal => {
                let held = lock.taken().await;
                tokio::spawn(async move {
                    // The operation has queued.
                    tokio::task::yield_now().await;
                    held.release().await
                });
                prepared((), async move { got(lock.take(How::Forever).await) })
            }
            Operation::HandToLocal => {
                let held = lock.taken().await;
                let receiver = tokio::spawn(async move { lock.take(How::Forever).await.map(drop) });
                // The receiver queues.
                tokio::task::yield_now().await;
                let release = held.release();
                prepared(receiver, async move { release.await.is_ok() })
            }
            Operation::Extend => {
                let guard = Arc::new(lock.taken().await.guard());
                let extended = Arc::clone(&guard);
                prepared(guard, async move { extended.extend(4 * BUSY).await.is_ok() })
            }
            Operation::LeaveFor => {
                let guard = lock.taken().await.guard();
                let leave = guard.leave_for(LEFT);
                prepared((), async move { leave.await.is_ok() })
            }
            Operation::Run => prepared((), async move { lock.run().await }),
            Operation::TryRun => prepared((), async move { lock.try_run().await }),
            _ => self.set_single(fixture, primitive).await,
        }
    }

    /// Operations of a single primitive.
    async fn set_single(self, fixture: &Fixture, primitive: Primitive) -> Prepared {
        let lock = fixture.mine(primitive);
        match self {
            Operation::ReadBehindAWriter => {
                let reading = fixture.rivals(Primitive::Read).taken().await;
                let writer = fixture.rivals(Primitive::Write);
                tokio::spawn(async move { writer.taken().await.release().await });
                // The writer waits.
                tokio::task::yield_now().await;
                tokio::spawn(async move {
                    tokio::time::sleep(BUSY).await;
                    reading.release().await
                });
                prepared((), async move { got(lock.take(How::Forever).await) })
            }
            Operation::NestedRead => {
                let guard = Arc::new(fixture.client.rw_lock("it").write().await.unwrap());
                let writing = Arc::clone(&guard);
                prepared(guard, async move { writing.read().await.is_ok() })
            }
            Operation::ReleaseAroundARead => {
                let guard = fixture.client.rw_lock("it").write().await.unwrap();
                let reading = guard.read().await.unwrap();
                let release = guard.release();
                prepared(reading, async move { release.await.is_ok() })
            }
            Operation::Downgrade => {
                let guard = fixture.client.rw_lock("it").write().await.unwrap();
                prepared((), async move { guard.downgrade().await.is_ok() })
            }
            Operation::TryUpgrade => {
                let reading = fixture.client.rw_lock("it").read().await.unwrap();
                prepared((), async move { reading.try_upgrade().await.is_ok() })
            }
            Operation::TryUpgradeBusy => {
                let reading = fixture.client.rw_lock("it").read().await.unwrap();
                let another = fixture.rivals(Primitive::Read).taken().await;
                prepared(another, async move {
                    reading.try_upgrade().await.is_err_and(|e| e.error().is_none())
                })
            }
            Operation::CountDown => {
                assert!(fixture.rival.count_down_latch("it").try_set_count(COUNT).await.unwrap());
                let latch = fixture.client.count_down_latch("it");
                prepared(
                    (),
                    async move { latch.count_down().await.is_ok_and(|left| left == COUNT - 1) },
                )
            }
            Operation::AddPermits => {
                let more = i64::from(PERMITS) + 1;
                if primitive == Primitive::Semaphore {
                    let semaphore = fixture.client.semaphore("it");
                    prepared(
                        (),
                        async move { semaphore.add_permits(1).await.is_ok_and(|n| n == more) },
                    )
                } else {
                    let semaphore = fixture.client.permit_semaphore("it");
                    prepared(
                        (),
                        async move { semaphore.add_permits(1).await.is_ok_and(|n| n == more) },
                    )
                }
            }
            Operation::ReleaseById => {
                let guard = fixture.rivals(primitive).taken().await.guard();
                let ids = guard.permit_ids();
                let semaphore = fixture.client.permit_semaphore("it");
                prepared(guard, async move { semaphore.release(&ids).await.is_ok_and(|all| all) })
            }
            operation => unreachable!("{operation:?} is for several primitives"),
        }
    }

    /// Checks the effect of the operation; that nothing is left is checked elsewhere.
    pub(crate) async fn check(self, fixture: &Fixture, primitive: Primitive, polled: bool) {
        match self {
            // Once polled it is done, and done once.
            Operation::CountDown => {
                let latch = fixture.rival.count_down_latch("it");
                assert_eq!(latch.count().await.unwrap(), COUNT - u64::from(polled));
                assert!(latch.delete().await.unwrap());
            }
            Operation::AddPermits => {
                let free = fixture.free_permits(primitive).await;
                assert_eq!(free, i64::from(PERMITS) + i64::from(polled));
            }
            _ if primitive.stands() > 0 => {
                assert_eq!(
                    fixture.free_permits(primitive).await,
                    i64::from(PERMITS),
                    "permits lost"
                );
            }
            _ => {}
        }
    }
}

fn prepared(kept: impl Any + Send, work: impl Future<Output = bool> + Send + 'static) -> Prepared {
    Prepared { work: Box::pin(work), kept: Box::new(kept) }
}

fn got(outcome: Result<Option<Held>>) -> bool {
    matches!(outcome, Ok(Some(_)))
}
