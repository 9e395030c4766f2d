//! Several workers fight for one lock, with no server at all. One of them hangs while it holds the
//! lock; another takes over when its lease ends; the stale one is told in time that it lost.
//!
//! `cargo run --example contention [URL]`, where URL is `memory:contention` by default: a store that all
//! workers of this process share.

use std::time::Duration;

use lockkeeper::{Client, Result};
use tokio::time::{Instant, sleep};

/// Short, so that nobody has to wait for the end of the story.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).filter(|url| url != "memory:");
    let url = url.unwrap_or_else(|| "memory:contention".to_owned());
    let story = Story { start: Instant::now() };

    story.tell("—", "three workers want to write the report; one at a time may");
    let mut workers = tokio::task::JoinSet::new();
    for name in ["ann", "bob", "cid"] {
        // Each its own client, as if each were a process of its own.
        workers.spawn(work(story, name, Client::connect(&url).await?));
    }
    while let Some(done) = workers.join_next().await {
        done.expect("no worker panics")?;
    }

    story.tell("—", "now dan takes it for two seconds and hangs");
    let (dan, eve) = (Client::connect(&url).await?, Client::connect(&url).await?);
    let stale = dan.lock("report").lease(LEASE).lock().await?;
    story.tell("dan", "has it, and is stuck in a long pause");
    let told = tokio::spawn(async move {
        let reason = stale.lost().await;
        story.tell("dan", &format!("is told: {reason} — he must stop writing"));
        stale
    });

    let heir = eve.lock("report").lock().await?;
    story.tell("eve", "got it as soon as dan's lease had ended");
    let stale = told.await.expect("dan's task does not panic");
    let late = stale.release().await.expect_err("it is not his any more");
    story.tell("dan", &format!("wakes up and releases: {late}"));
    assert!(!heir.is_lost());
    heir.release().await?;
    story.tell("eve", "gives it back, undisturbed");
    Ok(())
}

async fn work(story: Story, name: &'static str, client: Client) -> Result<()> {
    let guard = client.lock("report").lock().await?;
    story.tell(name, "has the lock");
    sleep(Duration::from_millis(300)).await;
    story.tell(name, "gives it back");
    guard.release().await
}

#[derive(Clone, Copy)]
struct Story {
    start: Instant,
}

impl Story {
    fn tell(self, who: &str, what: &str) {
        println!("{:>5.2} s  {who:<3}  {what}", self.start.elapsed().as_secs_f32());
    }
}
