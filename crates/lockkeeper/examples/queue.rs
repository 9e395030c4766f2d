//! Waits in the queue of a fair lock in a process of its own, for whoever wants to stop or kill that
//! process.
//!
//! `cargo run --example queue URL NAME COUNT`
//!
//! So many tasks wait for the lock. Whoever gets it says `held`, its owner id and its token, and
//! releases at once. Ends when all have had it.

use std::time::Duration;

use lockkeeper::{Client, ClientOptions, Result};
use tokio::task::JoinSet;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [url, name, count] = &args[..] else {
        eprintln!("usage: queue URL NAME COUNT");
        std::process::exit(2);
    };
    let count: usize = count.parse().expect("a number of tasks");
    // A process that is killed while it holds the lock stops the others for so long.
    let options = ClientOptions::new().watchdog_timeout(Duration::from_secs(2));
    let client = Client::connect_with(url, options).await?;
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let lock = client.fair_lock(name).fenced();
        tasks.spawn(async move {
            let guard = lock.lock().await?;
            println!("held {} {}", guard.owner_id(), guard.token());
            guard.release().await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("it does not panic")?;
    }
    println!("done");
    Ok(())
}
