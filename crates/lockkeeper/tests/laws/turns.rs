//! Waiting with others elsewhere, who are told as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::store::{Exclusive, Store, eventually, pair};

/// A client that hands the lock on inside itself lets others have it, too.
pub(crate) async fn a_busy_client_does_not_starve_another<L: Exclusive>(store: &Store) {
    let (busy, other) = pair::<L>(store).await;
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (busy, stop, rounds) = (busy.clone(), Arc::clone(&stop), Arc::clone(&rounds));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = busy.lock().await.unwrap();
                sleep(Duration::from_millis(1)).await;
                guard.release().await.unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for turn in 0..5 {
        // A round of theirs in between, so that the lock was contended each time.
        let before = rounds.load(Ordering::Relaxed);
        let gets_in = timeout(store.long(), other.lock()).await;
        let guard = gets_in.unwrap_or_else(|_| panic!("starved at turn {turn}")).unwrap();
        guard.release().await.unwrap();
        eventually("the busy client goes on", async || rounds.load(Ordering::Relaxed) > before)
            .await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}
