//! A price list: many read it, one writes it, and the writer reads on without letting another in.
//!
//! `cargo run --example rw [URL]`

use lockkeeper::{Client, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:rw".to_owned());
    let client = Client::connect(&url).await?;
    let prices = client.rw_lock("example:prices");

    let (one, other) = (prices.read().await?, prices.read().await?);
    println!("two read at once: {}", prices.inspect().await?.holders.len() == 2);
    println!("nobody may write meanwhile: {}", prices.try_write().await?.is_none());

    other.release().await?;
    let writing = one.try_upgrade().await.expect("it is the only reader");
    println!("the only reader may write: {}", prices.writer().is_locked().await?);
    writing.release().await?;

    let writing = prices.write().await?;
    let reading = writing.downgrade().await?;
    println!("a writer that reads on lets others read: {}", prices.try_read().await?.is_some());
    reading.release().await
}
