//! Transfers between accounts, each of which needs both of its accounts: in whichever order they are
//! named, nobody waits for ever, and no money is lost.
//!
//! `cargo run --example multi [URL]`

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use lockkeeper::{Client, MultiLock, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:multi".to_owned());
    let accounts: Arc<[AtomicI64; 3]> = Arc::new([100.into(), 100.into(), 100.into()]);
    let mut transfers = tokio::task::JoinSet::new();
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)] {
        let (client, accounts) = (Client::connect(&url).await?, Arc::clone(&accounts));
        let both = MultiLock::new([from, to].map(|i| client.lock(format!("example:account:{i}"))));
        transfers.spawn(async move {
            for _ in 0..50 {
                let guard = both.lock().await?;
                // Not atomic on purpose: the lock has to make it so.
                let (a, b) = (&accounts[from], &accounts[to]);
                a.store(a.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                b.store(b.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                guard.release().await?;
            }
            Ok::<_, lockkeeper::Error>(())
        });
    }
    while let Some(done) = transfers.join_next().await {
        done.expect("nobody panics")?;
    }
    let total: i64 = accounts.iter().map(|account| account.load(Ordering::Relaxed)).sum();
    println!("300 transfers later there is {total} in all");
    Ok(())
}
