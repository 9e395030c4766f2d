//! A seat that two want at the same time: the second one tries again after short pauses.
//!
//! `cargo run --example spin [URL]`

use std::time::Duration;

use lockkeeper::{Backoff, Client, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:spin".to_owned());
    let client = Client::connect(&url).await?;
    let other = Client::connect(&url).await?;

    let seat = client.spin_lock("example:seat:17").lock().await?;
    let backoff = Backoff::default().max(Duration::from_millis(16));
    let second = other.lock("example:seat:17").polling(backoff);
    let waiting = tokio::spawn(async move { second.run(|_| async { "seated" }).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("the first one leaves");
    seat.release().await?;
    let ran = waiting.await.expect("nobody panics").expect("it is free now");
    println!("the second one is {}", ran.output);
    Ok(())
}
