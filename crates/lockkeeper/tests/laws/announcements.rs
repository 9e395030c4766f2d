//! Announcements: a client announces itself and its holds rarely, and no lock waits for it.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, ClientOptions};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::decorators::Counting;
use crate::store::{Store, eventually};

/// How long there is load: a minute where it costs nothing.
fn span(store: &Store) -> Duration {
    if store.is_paused() { Duration::from_secs(60) } else { Duration::from_millis(2500) }
}

/// A client whose requests are counted, with the watchdog timeout that users have.
async fn counted(store: &Store) -> (Client, Arc<Counting>) {
    let counting = Counting::new(store.backend().await);
    let client = Client::with_backend(Arc::clone(&counting) as _, ClientOptions::new());
    (client.unwrap(), counting)
}

/// Holds of all lengths come and go, so that there is always something new to tell.
pub(crate) async fn under_load_a_client_announces_at_most_once_per_second(store: &Store) {
    let (client, counting) = counted(store).await;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..10_u64 {
        let (client, span) = (client.clone(), span(store));
        let name = store.name(&format!("lock {task}"));
        tasks.spawn(async move {
            for turn in 0.. {
                let lock = client.lock(format!("{name} {turn}"));
                let guard = lock.lock().await.unwrap();
                sleep(Duration::from_millis(100 + 150 * task)).await;
                guard.release().await.unwrap();
                if begun.elapsed() > span {
                    return;
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let (words, seconds) = (counting.announces(), begun.elapsed().as_secs());
    assert!(words <= seconds + 2, "{words} in {seconds} s");
    assert!(words >= seconds / 3, "{words} in {seconds} s: new holds were not told of");
}

/// A thousand short holds, one after the other.
pub(crate) async fn short_holds_are_not_announced(store: &Store) {
    let (client, counting) = counted(store).await;
    let begun = Instant::now();
    let lock = client.lock(store.name("lock"));
    for _ in 0..1000 {
        lock.lock().await.unwrap().release().await.unwrap();
    }
    // The first is told of. Whoever is not seen to hold anything for a second has gone, and comes
    // anew.
    let (words, seconds) = (counting.announces(), begun.elapsed().as_secs());
    assert!(words >= 1 && words <= 1 + seconds, "{words} in {seconds} s");
    assert_eq!(counting.acquires(), 1000);
}

/// An unchanged announcement is repeated only to renew its TTL.
pub(crate) async fn a_long_hold_is_announced_once_and_then_renewed(store: &Store) {
    let (client, counting) = counted(store).await;
    let begun = Instant::now();
    let _held = client.lock(store.name("lock")).lock().await.unwrap();
    sleep(span(store)).await;
    let (words, tens) = (counting.announces(), begun.elapsed().as_secs() / 10);
    assert!(words > tens.saturating_sub(1) && words <= 2 + tens, "{words}");
}

/// The lock is granted though the announcement is not answered.
pub(crate) async fn an_announcement_without_an_answer_delays_nothing(store: &Store) {
    let (client, counting) = counted(store).await;
    counting.ignores_announcements(true);
    let guard = client.lock(store.name("lock")).lock().await.unwrap();
    eventually("it was tried", async || counting.announces() > 0).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    let begun = store.timer();
    client.shutdown().await;
    begun.took(Duration::ZERO, Duration::ZERO);
}
