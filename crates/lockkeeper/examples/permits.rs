//! Two licences. One holder crashes; its licence comes back when its lease ends.
//!
//! `cargo run --example permits [URL]`

use std::time::Duration;

use lockkeeper::{Client, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:permits".to_owned());
    let client = Client::connect(&url).await?;
    let licences = client.permit_semaphore("example:licences");
    licences.set_permits(2).await?;

    let working = licences.acquire(1).await?;
    // Leaves without a word, as a crash would.
    licences.acquire(1).await?.leave_for(Duration::from_millis(300)).await?;
    println!("both are taken: {}", licences.try_acquire(1).await?.is_none());

    let next = licences.acquire(1).await?;
    println!("the crashed one's came back; taken now: {}", licences.acquired().await?);
    next.release().await?;
    working.release().await?;
    println!("free: {} of {}", licences.available().await?, licences.permits().await?);
    Ok(())
}
