//! A holder that was paused for too long comes back and writes; the fence at the ledger refuses it.
//!
//! `cargo run --example fenced [URL]`

use std::time::Duration;

use lockkeeper::{Client, Fence, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:fenced".to_owned());
    let (slow, quick) = (Client::connect(&url).await?, Client::connect(&url).await?);
    let ledger = Fence::new();

    let stale = slow.fenced_lock("example:ledger").lease(Duration::from_millis(200)).lock().await?;
    let old = stale.token();
    println!("the first holder has a token, and is paused");

    let guard = quick.fenced_lock("example:ledger").lock().await?;
    let new = guard.token();
    println!("the next holder has a greater one: {}", new > old);

    println!("its write is admitted: {}", ledger.admit(new).is_ok());
    match ledger.admit(old) {
        Ok(()) => println!("the stale write is admitted, too"),
        Err(_) => println!("the stale write is refused: somebody newer was here"),
    }
    guard.release().await
}
