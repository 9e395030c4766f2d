//! Waiters cost nothing while nothing happens.

use std::fs;

use super::*;

/// How often threads of file stores in this process have gone to sleep so far: once for each time they
/// were woken.
fn sleeps() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let status = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let ours = status.filter(|status| status.contains("lockkeeper-file"));
    let sleeps = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).expect("the kernel counts them")
    };
    ours.map(sleeps).sum()
}

/// A process of the test below: it counts its own threads.
pub(crate) fn ten_waiters() {
    let (url, _) = given();
    block_on(async {
        let mut waiters = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let client = Client::connect(&url).await.unwrap();
            waiters.spawn(async move { client.lock("it").lock().await.map(drop) });
        }
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()).unwrap())
            .await
            .unwrap();
        // At first they poll, so that a short wait leaves no watch behind.
        tokio::time::sleep(ms(1500)).await;
        let before = sleeps();
        tokio::time::sleep(ms(6000)).await;
        println!("woken {} times", sleeps() - before);
        println!("counted");
        while let Some(done) = waiters.join_next().await {
            done.unwrap().unwrap();
        }
        println!("all have had it");
    });
}

/// A sign of life every three seconds and a look every few: about one wake-up a second each. One that
/// looks by itself every few milliseconds would be woken hundreds of times as often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_waiters_sleep_however_much_others_do() {
    let file = LockFile::new();
    let client = connect(&file).await;
    let guard = client.lock("it").lock().await.unwrap();
    let mut waiters = child("idle::ten_waiters", &file.url(), "");
    eventually("all wait", async || file.listeners("freed it") == 10).await;
    // Other clients acquire and release other locks without waiters.
    let busy = tokio::spawn(async move {
        let lock = client.lock("another");
        loop {
            lock.lock().await.unwrap().release().await.unwrap();
        }
    });
    waiters.write_line("count");
    let woken = waiters.expect_line("woken");
    busy.abort();
    let woken: u64 = woken.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
    // In six seconds, ten of them.
    assert!(woken < 400, "woken {woken} times");
    waiters.expect_line("counted");
    guard.release().await.unwrap();
    waiters.expect_line("all have had it");
}
