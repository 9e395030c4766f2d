//! Three at a time may download.
//!
//! `cargo run --example semaphore [URL]`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockkeeper::{Client, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:semaphore".to_owned());
    let client = Client::connect(&url).await?;
    let slots = client.semaphore("example:slots");
    slots.try_set_permits(3, None).await?;

    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut downloads = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (slots, now, most) = (slots.clone(), Arc::clone(&now), Arc::clone(&most));
        downloads.spawn(async move {
            let permit = slots.acquire(1).await?;
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            now.fetch_sub(1, Ordering::SeqCst);
            permit.release().await
        });
    }
    while let Some(done) = downloads.join_next().await {
        done.expect("nobody panics")?;
    }
    println!("never more than three at once: {}", most.load(Ordering::SeqCst) <= 3);
    println!("all permits are back: {}", slots.available().await? == 3);
    Ok(())
}
