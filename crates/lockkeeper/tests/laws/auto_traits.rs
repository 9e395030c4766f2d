//! Types are `Send`, `Sync` and `'static`, and futures are `Send`.

use std::future::Future;
use std::time::Duration;

use lockkeeper::{
    AnyGuard, AnyLock, Backoff, Client, ClientInfo, ClientOptions, Completed, CountDownLatch,
    Error, FairLock, Fence, FencedLock, Hold, Holder, Inspector, Listing, Lock, LockInfo, LockName,
    LostReason, MultiGuard, MultiLock, Mutex, Owner, OwnerId, PermitSemaphore, RunError, RwLock,
    Semaphore, StaleTokenError, Ttl, UpgradeError, Watch,
};

fn everywhere<T: Send + Sync + 'static>() {}
fn sent<T: Send + 'static>(value: T) -> T {
    value
}

#[test]
fn types_can_be_shared_between_threads() {
    everywhere::<Client>();
    everywhere::<ClientOptions>();
    everywhere::<ClientInfo>();
    everywhere::<Lock>();
    everywhere::<Mutex>();
    everywhere::<FairLock>();
    everywhere::<FencedLock>();
    everywhere::<Backoff>();
    everywhere::<RwLock>();
    everywhere::<MultiLock>();
    everywhere::<AnyLock>();
    everywhere::<MultiGuard>();
    everywhere::<Semaphore>();
    everywhere::<PermitSemaphore>();
    everywhere::<CountDownLatch>();
    everywhere::<Fence>();
    everywhere::<AnyGuard>();
    everywhere::<Hold>();
    everywhere::<Holder>();
    everywhere::<Owner>();
    everywhere::<Inspector>();
    everywhere::<Listing>();
    everywhere::<Watch>();
    everywhere::<LockInfo>();
    everywhere::<OwnerId>();
    everywhere::<LockName>();
    everywhere::<LostReason>();
    everywhere::<Ttl>();
    everywhere::<Error>();
    everywhere::<Completed<u8>>();
    everywhere::<RunError<u8>>();
    fn an_error<T: std::error::Error + Clone>() {}
    an_error::<Error>();
    an_error::<StaleTokenError>();
    fn an_error_of_a_run<T: std::error::Error>() {}
    an_error_of_a_run::<RunError<u8>>();
    an_error_of_a_run::<UpgradeError>();
}

/// Also those that borrow a handle are `Send`: they can be awaited inside a spawned task.
#[tokio::test]
async fn futures_can_be_sent() {
    fn send<T>(work: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
        work
    }
    let client = Client::memory();
    let (lock, owner) = (client.lock("it"), client.new_owner());
    assert!(!send(lock.is_locked()).await.unwrap());
    assert_eq!(send(lock.inspect()).await.unwrap().ttl, None);
    assert_eq!(send(lock.hold_count(&owner)).await.unwrap(), 0);
    assert!(!send(lock.force_unlock("")).await.unwrap());
    assert_eq!(send(lock.run(async |_| 7)).await.unwrap().output, 7);
    assert_eq!(
        send(lock.try_run_for(Duration::ZERO, async |_| 7)).await.unwrap().unwrap().output,
        7
    );
    let guard = sent(lock.lock()).await.unwrap();
    send(guard.extend(Duration::from_secs(1))).await.unwrap();
    let lost = sent(guard.lost());
    sent(sent(guard).release()).await.unwrap();
    assert_eq!(lost.await, LostReason::Released);
    let guard = send(client.mutex("it").lock()).await.unwrap();
    send(guard.leave_for(Duration::from_secs(1))).await.unwrap();
    let multi = MultiLock::new([client.lock("a"), client.lock("b")]);
    assert_eq!(send(multi.run(async |_| 7)).await.unwrap().output, 7);
    assert_eq!(
        send(multi.try_run_for(Duration::ZERO, async |_| 7)).await.unwrap().unwrap().output,
        7
    );
    let guard = sent(multi.lock()).await.unwrap();
    let lost = sent(guard.lost());
    sent(sent(guard).release()).await.unwrap();
    assert_eq!(lost.await.1, LostReason::Released);
    send(client.shutdown()).await;
}
