//! Holds a lock in a process of its own, for whoever wants to stop, kill or watch that process.
//!
//! `cargo run --example hold URL lock|mutex NAME MS lease|renewed|run`
//!
//! - `lease`, `renewed`: takes the lock for MS milliseconds, fixed or renewed by the watchdog, says
//!   `held`, waits until its standard input is closed, and releases.
//! - `run`: runs work under a lock with a fixed lease. Each poll of the work says how many
//!   milliseconds the lock is still safe. Says `lost` and why when the work was stopped.

use std::io::Read;
use std::time::Duration;

use lockkeeper::{AnyLock, Client, ClientOptions, Hold, Result, RunError};

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [url, kind, name, ms, mode] = &args[..] else {
        eprintln!("usage: hold URL lock|mutex NAME MS lease|renewed|run");
        std::process::exit(2);
    };
    let span = Duration::from_millis(ms.parse().expect("a number of milliseconds"));
    let options = ClientOptions::new().watchdog_timeout(span);
    let client = Client::connect_with(url, options).await?;
    let lock: AnyLock = match kind.as_str() {
        "mutex" => client.mutex(name).into(),
        _ => client.lock(name).into(),
    };
    let guard = match mode.as_str() {
        "run" => {
            match lock.lease(span).run(work).await {
                Err(RunError::Lost { reason, .. }) => println!("lost {reason:?}"),
                other => println!("unexpected: {other:?}"),
            }
            return Ok(());
        }
        "lease" => lock.lease(span).lock().await?,
        _ => lock.lock().await?,
    };
    println!("held {}", guard.owner_id());
    let closed = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    closed.await.expect("reading does not panic").expect("standard input can be read");
    guard.release().await?;
    println!("released");
    Ok(())
}

/// Never ends by itself.
async fn work(hold: Hold) {
    loop {
        println!("work {}", hold.remaining().as_millis());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
