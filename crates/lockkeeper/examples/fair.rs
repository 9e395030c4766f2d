//! Five customers at one counter: served in the order in which they came, though one leaves the queue.
//!
//! `cargo run --example fair [URL]`

use lockkeeper::{Client, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:fair".to_owned());
    let counter = Client::connect(&url).await?.fair_lock("example:counter");
    let opening = counter.lock().await?;

    let mut customers = Vec::new();
    for number in 1..=5 {
        let place = Client::connect(&url).await?.fair_lock("example:counter");
        customers.push(tokio::spawn(async move {
            let guard = place.lock().await?;
            println!("customer {number} is served");
            guard.release().await
        }));
        // Each stands in the queue before the next one comes.
        while counter.inspect().await?.queue.len() < number {
            tokio::task::yield_now().await;
        }
    }
    customers[2].abort();
    while counter.inspect().await?.queue.len() > 4 {
        tokio::task::yield_now().await;
    }
    println!("customer 3 has left; the counter opens");
    opening.release().await?;
    for customer in customers {
        match customer.await {
            Ok(served) => served?,
            Err(left) => assert!(left.is_cancelled(), "nobody panics"),
        }
    }
    Ok(())
}
