//! What can be cancelled: for each operation the state it starts from, and its future.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::memory::Memory;
use lockkeeper::{Client, ClientOptions, Guard, Lock, Mutex, Result};
use testkit::Flaky;

/// How long somebody else keeps what the operation wants.
const BUSY: Duration = Duration::from_millis(50);

/// How long a lock is left standing.
const LEFT: Duration = Duration::from_millis(200);

/// The operation under test; whether it did what it is there for.
pub(crate) type Operation = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A store, a client behind gates, and a rival on the same store without any.
pub(crate) struct Stage {
    pub(crate) memory: Arc<Memory>,
    pub(crate) flaky: Flaky,
    pub(crate) client: Client,
    pub(crate) rival: Client,
}

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
}

/// Which kind of lock it is done to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sort {
    Lock,
    Mutex,
}

/// Either kind, for the calls that both have.
#[derive(Clone)]
pub(crate) enum Either {
    Lock(Lock),
    Mutex(Mutex),
}

macro_rules! either {
    ($self:ident, $lock:ident => $call:expr) => {
        match $self {
            Either::Lock($lock) => $call,
            Either::Mutex($lock) => $call,
        }
    };
}

impl Either {
    pub(crate) async fn lock(&self) -> Result<Guard> {
        either!(self, lock => lock.lock().await)
    }

    pub(crate) async fn lock_for(&self, lease: Duration) -> Result<Guard> {
        either!(self, lock => lock.lock().lease(lease).await)
    }

    pub(crate) async fn try_lock(&self) -> Result<Option<Guard>> {
        either!(self, lock => lock.try_lock().await)
    }

    pub(crate) async fn is_locked(&self) -> Result<bool> {
        either!(self, lock => lock.is_locked().await)
    }

    async fn wait(&self, span: Duration) -> Result<Option<Guard>> {
        either!(self, lock => lock.try_lock().wait(span).await)
    }

    async fn run(&self) -> bool {
        let work = |_| tokio::time::sleep(BUSY);
        either!(self, lock => lock.run(work).await.is_ok())
    }

    async fn try_run(&self) -> bool {
        let work = |_| tokio::time::sleep(BUSY);
        either!(self, lock => matches!(lock.try_run(work).await, Ok(Some(_))))
    }
}

impl Stage {
    pub(crate) fn new() -> Self {
        let memory = Memory::new();
        let flaky = Flaky::new(memory.clone());
        // Short, so that what is repeated is soon over.
        let back_off = (Duration::from_millis(2), Duration::from_millis(20));
        let options = ClientOptions::new().retry_backoff(back_off.0, back_off.1);
        let client = |backend| Client::with_backend(backend, options.clone()).unwrap();
        Self { client: client(flaky.backend()), rival: client(memory.clone()), memory, flaky }
    }

    pub(crate) fn mine(&self, sort: Sort) -> Either {
        either_of(&self.client, sort)
    }

    pub(crate) fn rivals(&self, sort: Sort) -> Either {
        either_of(&self.rival, sort)
    }
}

fn either_of(client: &Client, sort: Sort) -> Either {
    match sort {
        Sort::Lock => Either::Lock(client.lock("it")),
        Sort::Mutex => Either::Mutex(client.mutex("it")),
    }
}

impl Script {
    pub(crate) fn needs_reentry(self) -> bool {
        matches!(self, Script::Reenter | Script::ReenterAsOwner | Script::PartialRelease)
    }

    /// Sets the scene; the gates are open.
    pub(crate) async fn set(self, stage: &Stage, sort: Sort) -> Scene {
        let lock = stage.mine(sort);
        match self {
            Script::LockFree => scene((), async move { lock.lock().await.is_ok() }),
            Script::LockLeased => scene((), async move { lock.lock_for(4 * BUSY).await.is_ok() }),
            Script::TryLock => scene((), async move { got(lock.try_lock().await) }),
            Script::LockBusy => {
                taken_for_a_while(&stage.rivals(sort)).await;
                scene((), async move { lock.lock().await.is_ok() })
            }
            Script::WaitLongEnough => {
                taken_for_a_while(&stage.rivals(sort)).await;
                scene((), async move { got(lock.wait(2 * BUSY).await) })
            }
            Script::WaitInVain => {
                taken_for_a_while(&stage.rivals(sort)).await;
                let in_vain = |outcome| matches!(outcome, Ok(None));
                scene((), async move { in_vain(lock.wait(BUSY / 2).await) })
            }
            Script::Reenter => {
                let guard = lock.lock().await.unwrap();
                let again = guard.reenter();
                scene(guard, async move { again.await.is_ok() })
            }
            Script::ReenterAsOwner => {
                let (lock, owner) = (stage.client.lock("it"), stage.client.owner());
                let lock = lock.as_owner(&owner);
                let guard = lock.lock().await.unwrap();
                scene(guard, async move { lock.lock().await.is_ok() })
            }
            Script::Release => {
                let guard = lock.lock().await.unwrap();
                let release = guard.release();
                scene((), async move { release.await.is_ok() })
            }
            Script::PartialRelease => {
                let guard = lock.lock().await.unwrap();
                let release = guard.reenter().await.unwrap().release();
                scene(guard, async move { release.await.is_ok() })
            }
            Script::ReceiveFromLocal => {
                let guard = lock.lock().await.unwrap();
                tokio::spawn(async move {
                    // After the operation has queued.
                    tokio::task::yield_now().await;
                    guard.release().await
                });
                scene((), async move { lock.lock().await.is_ok() })
            }
            Script::HandToLocal => {
                let guard = lock.lock().await.unwrap();
                let receiver = tokio::spawn(async move { lock.lock().await.map(drop) });
                // It queues now.
                tokio::task::yield_now().await;
                let release = guard.release();
                scene(receiver, async move { release.await.is_ok() })
            }
            Script::Extend => {
                let guard = Arc::new(lock.lock().await.unwrap());
                let extended = Arc::clone(&guard);
                scene(guard, async move { extended.extend(4 * BUSY).await.is_ok() })
            }
            Script::LeaveFor => {
                let guard = lock.lock().await.unwrap();
                let leave = guard.leave_for(LEFT);
                scene((), async move { leave.await.is_ok() })
            }
            Script::Run => scene((), async move { lock.run().await }),
            Script::TryRun => scene((), async move { lock.try_run().await }),
        }
    }
}

fn scene(kept: impl Any + Send, operation: impl Future<Output = bool> + Send + 'static) -> Scene {
    Scene { operation: Box::pin(operation), kept: Box::new(kept) }
}

fn got(outcome: Result<Option<Guard>>) -> bool {
    matches!(outcome, Ok(Some(_)))
}

async fn taken_for_a_while(lock: &Either) {
    let guard = lock.lock().await.unwrap();
    tokio::spawn(async move {
        tokio::time::sleep(BUSY).await;
        guard.release().await
    });
}
