//! What is left when the machine was started anew, and what the wall clock has to do with a lease:
//! nothing.

use lockkeeper::{LostReason, Ttl};

use super::*;

/// As if the machine had been started since.
fn restart(file: &LockFile) {
    restarted(&file.look());
}

fn restarted(look: &rusqlite::Connection) {
    for table in ["names", "clients", "sessions"] {
        look.execute(&format!("UPDATE {table} SET boot = 'another'"), []).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_from_before_a_reboot_have_expired() {
    let file = LockFile::new();
    let dead = connect(&file).await;
    let lock = dead.lock("lock").lease(PATIENCE).lock().await.unwrap();
    let mutex = dead.mutex("mutex").lease(PATIENCE).lock().await.unwrap();
    let fair = dead.fair_lock("fair").lease(PATIENCE * 3).lock().await.unwrap();
    let write = dead.rw_lock("rw").lease(PATIENCE * 3).write().await.unwrap();
    let other = connect(&file).await;
    let (in_queue, want) = (other.fair_lock("fair"), other.rw_lock("rw"));
    let waiters = [
        tokio::spawn(async move { in_queue.lock().await.map(drop) }),
        tokio::spawn(async move { want.write().await.map(drop) }),
    ];
    eventually("they are known to wait", async || {
        file.count("SELECT count(*) FROM waiters", []) == 1
            && file.count("SELECT count(*) FROM names WHERE record ->> '$.writers' NOT NULL", [])
                == 1
    })
    .await;
    // None of them writes anything between its death and the restart.
    let look = file.look();
    look.execute_batch("BEGIN IMMEDIATE").unwrap();
    for waiter in waiters {
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
    }
    restarted(&look);
    look.execute_batch("COMMIT").unwrap();
    // Whatever they would still say is said by the dead.
    std::mem::forget((dead, other, lock, mutex, fair, write));

    let client = connect(&file).await;
    assert_eq!(client.lock("lock").inspect().await.unwrap().ttl, None);
    assert!(client.lock("lock").try_lock().await.unwrap().is_some());
    assert!(client.mutex("mutex").try_lock().await.unwrap().is_some());
    // A request of a waiter that was under way may acquire it now, and is undone.
    let (fair, rw) = (client.fair_lock("fair"), client.rw_lock("rw"));
    eventually("no waiter is ahead", async || fair.try_lock().await.unwrap().is_some()).await;
    eventually("no writer waits", async || rw.try_read().await.unwrap().is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_without_a_ttl_survive_a_reboot() {
    let file = LockFile::new();
    let client = connect(&file).await;
    let (semaphore, latch) = (client.semaphore("semaphore"), client.count_down_latch("latch"));
    let permits = client.permit_semaphore("permits");
    semaphore.try_set_permits(5, None).await.unwrap();
    semaphore.acquire(2).await.unwrap().forget();
    latch.try_set_count(3).await.unwrap();
    permits.try_set_permits(4, None).await.unwrap();
    let taken = permits.lease(PATIENCE).acquire(3).await.unwrap();
    let short = client.semaphore("short");
    short.try_set_permits(1, PATIENCE).await.unwrap();
    restart(&file);

    assert_eq!(semaphore.available().await.unwrap(), 3);
    assert_eq!(latch.count().await.unwrap(), 3);
    assert_eq!(permits.available().await.unwrap(), 4, "what was taken for a while is back");
    assert!(taken.release().await.is_err(), "by nobody who has it");
    assert_eq!(permits.available().await.unwrap(), 4);
    assert!(permits.try_acquire(4).await.unwrap().is_some());
    assert!(short.try_acquire(1).await.is_err(), "one with an end is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_across_reboots() {
    let file = LockFile::new();
    let client = connect(&file).await;
    let lock = client.fenced_lock("lock");
    let token = async || {
        let guard = lock.lock().await.unwrap();
        let token = guard.token();
        guard.release().await.unwrap();
        token
    };
    let micros = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_micros() as u64
    };
    let before = micros();
    let first = token().await;
    assert!((before - 1000..=micros()).contains(&first), "{first}: microseconds by the wall clock");
    restart(&file);
    let second = token().await;
    assert!(second > first);
    // The machine came up with a clock that is a day behind: the file knows better.
    let ahead = second + 24 * 3600 * 1_000_000;
    let moved = "UPDATE names SET record = json_set(record, '$.token.last', ?1)";
    file.look().execute(moved, [ahead as i64]).unwrap();
    restart(&file);
    assert_eq!(token().await, ahead + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_from_before_a_reboot_is_lost() {
    let file = LockFile::new();
    let guard = connect(&file).await.lock("lock").lock().await.unwrap();
    restart(&file);
    let reason = within(PATIENCE, "the loss", guard.lost()).await;
    assert_eq!(reason, LostReason::Deleted);
}

/// What is stored of the wall clock is for people.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_the_wall_clock_does_not_affect_a_lease() {
    let file = LockFile::new();
    let client = connect(&file).await;
    let lock = client.lock("lock");
    let guard = lock.lease(PATIENCE).lock().await.unwrap();
    for wall_end in [0_i64, i64::MAX] {
        file.look().execute("UPDATE names SET wall_end = ?1", [wall_end]).unwrap();
        let Some(Ttl::For(left)) = lock.inspect().await.unwrap().ttl else { panic!("it is held") };
        assert!(left > PATIENCE / 2 && left <= PATIENCE, "{left:?}");
        assert!(connect(&file).await.lock("lock").try_lock().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
}
