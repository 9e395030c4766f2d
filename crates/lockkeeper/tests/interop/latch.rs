//! The count-down latch. Both sides publish when it opens, so waiters of either side go on within
//! milliseconds.

use std::time::Instant;

use lockkeeper::CountDownLatch;
use testkit::Redisson;
use tokio::task::JoinHandle;

use crate::support::*;

on_versions! { [newest v3_27]
    both_sides_count_the_same_latch
    deleting_it_opens_it
    a_latch_that_java_set_to_zero_is_open
    a_latch_counted_down_from_both_sides_opens_once
}

fn channel(name: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{name}}}")
}

fn waits(latch: &CountDownLatch) -> JoinHandle<Instant> {
    let latch = latch.clone();
    tokio::spawn(async move {
        latch.wait().await.unwrap();
        Instant::now()
    })
}

async fn both_sides_count_the_same_latch(redisson: Redisson) {
    let stage = Stage::new(redisson, "latch, counts").await;
    let ours = stage.client.count_down_latch(&stage.name);
    let java = stage.one.latch(&stage.name);

    assert!(java.wait_within(SHORT).ok(), "what is not set is open");
    assert!(ours.wait_for(PATIENCE).await.unwrap());
    assert!(ours.try_set_count(3).await.unwrap());
    assert!(!java.try_set_count(5).ok());
    assert!(!java.wait_within(SHORT).ok());
    java.count_down().ok();
    assert_eq!((ours.count().await.unwrap(), java.count().ok()), (2, 2));
    assert_eq!(ours.count_down().await.unwrap(), 1);
    java.count_down().ok();
    assert_eq!((ours.count().await.unwrap(), java.count().ok()), (0, 0));
    assert!(java.wait_within(SHORT).ok() && ours.wait_for(PATIENCE).await.unwrap());

    assert!(java.try_set_count(2).ok());
    assert!(!ours.try_set_count(1).await.unwrap());
    assert!(!ours.wait_for(IN_VAIN).await.unwrap());
    assert_eq!(ours.count_down().await.unwrap(), 1);
    assert_eq!(ours.count_down().await.unwrap(), 0);
    // A further count-down has no effect.
    java.count_down().ok();
    assert_eq!(ours.count_down().await.unwrap(), 0);
    assert_eq!(server().cli(&["EXISTS", &stage.name]).int(), 0);
}

/// Redisson's message for a deleted latch closes the gate of its own waiters, which sleep on.
async fn deleting_it_opens_it(redisson: Redisson) {
    let stage = Stage::new(redisson, "latch, delete").await;
    let (ours, name) = (stage.client.count_down_latch(&stage.name), stage.name.as_str());
    let java = stage.one.latch(name);

    assert!(java.try_set_count(5).ok());
    let (there, here) = (java.wait(), waits(&ours));
    listened_to(server(), &channel(name), 2).await;
    assert!(there.answer_within(SHORT).is_none() && !here.is_finished());
    assert!(ours.delete().await.unwrap());
    within(SOON, "Java goes on", there).await.ok();
    within(SOON, "ours goes on", joined(here)).await;

    assert!(ours.try_set_count(5).await.unwrap());
    let (there, here) = (java.wait(), waits(&ours));
    listened_to(server(), &channel(name), 2).await;
    assert!(there.answer_within(SHORT).is_none() && !here.is_finished());
    assert!(stage.two.latch(name).delete().ok());
    within(SOON, "ours goes on", joined(here)).await;
    assert!(there.answer_within(ms(300)).is_none(), "Redisson has learnt to let them go");
    // Each side can set it again and open it.
    assert!(ours.try_set_count(1).await.unwrap());
    ours.count_down().await.unwrap();
    within(SOON, "Java goes on", there).await.ok();
}

async fn a_latch_that_java_set_to_zero_is_open(redisson: Redisson) {
    let stage = Stage::new(redisson, "latch, zero").await;
    let ours = stage.client.count_down_latch(&stage.name);
    let java = stage.one.latch(&stage.name);
    assert!(java.try_set_count(0).ok());
    assert!(!java.try_set_count(1).ok(), "Redisson has learnt to set it");
    assert!(ours.wait_for(PATIENCE).await.unwrap());
    assert_eq!(ours.count().await.unwrap(), 0);
    assert!(ours.try_set_count(1).await.unwrap());
    assert!(!java.wait_within(SHORT).ok());
    ours.count_down().await.unwrap();
    assert!(java.wait_within(SHORT).ok());
}

async fn a_latch_counted_down_from_both_sides_opens_once(redisson: Redisson) {
    const COUNTS: u64 = 100;
    let stage = Stage::new(redisson, "latch, stress").await;
    let (ours, name) = (stage.client.count_down_latch(&stage.name), stage.name.as_str());
    assert!(ours.try_set_count(2 * COUNTS + 1).await.unwrap());
    let here = waits(&ours);
    let mut tasks = Vec::new();
    let (java, latch) = (stage.peer.on(&format!("{name} 3")), ours.clone());
    let latch_name = name.to_owned();
    tasks.push(tokio::spawn(async move {
        for _ in 0..COUNTS {
            java.latch(&latch_name).count_down().await.ok();
        }
    }));
    tasks.push(tokio::spawn(async move {
        for _ in 0..COUNTS {
            latch.count_down().await.unwrap();
        }
    }));
    for task in tasks {
        joined(task).await;
    }
    assert_eq!((ours.count().await.unwrap(), stage.one.latch(name).count().ok()), (1, 1));
    assert!(!here.is_finished());
    stage.one.latch(name).count_down().ok();
    within(SOON, "it is open", joined(here)).await;
}
