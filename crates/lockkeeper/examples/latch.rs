//! A server opens when its three shards are ready.
//!
//! `cargo run --example latch [URL]`

use lockkeeper::{Client, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:latch".to_owned());
    let client = Client::connect(&url).await?;
    let ready = client.count_down_latch("example:shards");
    ready.try_set_count(3).await?;
    for shard in 1..=3 {
        let ready = Client::connect(&url).await?.count_down_latch("example:shards");
        tokio::spawn(async move {
            let left = ready.count_down().await.expect("the store answers");
            println!("shard {shard} is ready, {left} to go");
        });
    }
    ready.wait().await?;
    println!("the server opens");
    Ok(())
}
