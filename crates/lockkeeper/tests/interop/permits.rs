//! The semaphore whose permits have ids and leases: the same ids on both sides, 32 hexadecimal digits for
//! sixteen bytes. Both sides publish what is given back, so waiters of either side are told within
//! milliseconds.

use std::time::Instant;

use lockkeeper::{ClientOptions, LostReason, PermitGuard, PermitId, PermitSemaphore};
use testkit::Redisson;
use tokio::task::JoinHandle;

use crate::semaphore::{asleep, channel};
use crate::support::*;

on_versions! { [newest v3_27]
    both_sides_count_the_same_permits
    an_id_is_the_same_on_both_sides
    a_lease_is_changed_from_the_other_side
    a_released_permit_wakes_the_other_side
    adding_permits_wakes_the_other_side
    a_permit_whose_lease_expires_becomes_free
    a_permit_without_a_lease_does_not_expire_on_either_side
    a_ttl_applies_to_both_sides
}

fn taken_key(name: &str) -> String {
    format!("{{{name}}}:timeout")
}

/// The end of a permit as it is stored.
fn end(name: &str, id: PermitId) -> Option<i64> {
    let key = taken_key(name);
    let score = server().cli(&[b"ZSCORE".as_slice(), key.as_bytes(), id.as_bytes()]);
    (!score.is_nil()).then(|| score.int())
}

fn now() -> i64 {
    let time = server().cli(&["TIME"]);
    time.array()[0].int() * 1000 + time.array()[1].int() / 1000
}

fn waits(permits: &PermitSemaphore, count: u32) -> JoinHandle<(PermitGuard, Instant)> {
    let request = permits.acquire(count);
    tokio::spawn(async move { (request.await.unwrap(), Instant::now()) })
}

async fn both_sides_count_the_same_permits(redisson: Redisson) {
    let stage = Stage::new(redisson, "permits, counts").await;
    let ours = stage.client.permit_semaphore(&stage.name);
    let java = stage.one.permits(&stage.name);
    let agree = async |free: i64, taken: i64| {
        let here = (ours.available().await.unwrap(), ours.acquired().await.unwrap() as i64);
        assert_eq!(here, (free, taken));
        assert_eq!((java.available().ok(), java.acquired().ok()), (free, taken));
        assert_eq!(
            (ours.permits().await.unwrap(), java.permits().ok()),
            (free + taken, free + taken)
        );
    };

    assert!(ours.try_set_permits(5, None).await.unwrap());
    assert!(!java.try_set_permits(6).ok());
    let guard = ours.lease(LONG).acquire(2).await.unwrap();
    let id = java.acquire().ok();
    let leased = java.acquire_for(LONG).ok();
    agree(1, 4).await;
    assert!(java.try_acquire_many(2).ok().is_empty());
    assert!(ours.try_acquire(2).await.unwrap().is_none());
    java.set_permits(7).ok();
    agree(3, 4).await;
    ours.set_permits(6).await.unwrap();
    agree(2, 4).await;
    java.add_permits(2).ok();
    assert_eq!(ours.add_permits(1).await.unwrap(), 5);
    agree(5, 4).await;
    guard.release().await.unwrap();
    java.release_many(&[id, leased]).ok();
    agree(9, 0).await;
    assert!(java.delete().ok());
    assert!(java.try_set_permits(1).ok());
    assert!(!ours.try_set_permits(2, None).await.unwrap());
    agree(1, 0).await;
}

async fn an_id_is_the_same_on_both_sides(redisson: Redisson) {
    let options = ClientOptions::new().watchdog_timeout(ms(4_000));
    let stage = Stage::with(redisson, "permits, ids", options).await;
    let (ours, name) = (stage.client.permit_semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.permits(name);
    ours.try_set_permits(4, None).await.unwrap();

    // A permit of Redisson is released here, once.
    let ids = java.acquire_many(2, Some(LONG)).ok();
    let parsed: Vec<PermitId> = ids.iter().map(|id| id.parse().unwrap()).collect();
    assert!(parsed.iter().all(|id| end(name, *id).is_some()), "stored as sixteen bytes");
    assert!(ours.release(&parsed[..1]).await.unwrap());
    assert!(!ours.release(&parsed).await.unwrap(), "all or none");
    assert!(!java.try_release(&ids[0]).ok());
    assert!(java.release(&ids[0]).err().message().contains(&ids[0]));
    java.release(&ids[1]).ok();
    assert!(!ours.release(&parsed[1..]).await.unwrap());

    // Our permit is released by Redisson: the guard is lost.
    let guard = ours.acquire(2).await.unwrap();
    let [one, two] = guard.permit_ids()[..] else { panic!("two permits") };
    assert!(java.try_release(&one.to_string()).ok());
    assert_eq!(within(PATIENCE, "it is noticed", guard.lost()).await, LostReason::Deleted);
    drop(guard);
    eventually("the other one is given back, too", || end(name, two).is_none()).await;
    assert_eq!(java.available().ok(), 4);
    let guard = ours.acquire(2).await.unwrap();
    let hex: Vec<_> = guard.permit_ids().iter().map(PermitId::to_string).collect();
    assert_eq!(java.try_release_many(&hex).ok(), 2);
    assert!(guard.release().await.is_err());
    assert_eq!(java.available().ok(), 4);
}

async fn a_lease_is_changed_from_the_other_side(redisson: Redisson) {
    let stage = Stage::new(redisson, "permits, leases").await;
    let (ours, name) = (stage.client.permit_semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.permits(name);
    ours.try_set_permits(2, None).await.unwrap();
    let near = |id, span: i64| {
        let off = end(name, id).unwrap() - now() - span;
        assert!(off.abs() < 2_000, "off by {off} ms");
    };

    let hex = java.acquire_for(ms(10_000)).ok();
    let id: PermitId = hex.parse().unwrap();
    near(id, 10_000);
    assert!(ours.extend(id, LONG).await.unwrap());
    near(id, 60_000);
    if redisson == Redisson::Newest {
        assert!((30_000..=60_000).contains(&java.lease(&hex).ok()));
    }
    let guard = ours.lease(ms(10_000)).acquire(1).await.unwrap();
    let own = guard.permit_ids()[0];
    assert!(java.update_lease(&own.to_string(), LONG).ok());
    near(own, 60_000);
    if redisson == Redisson::Newest {
        assert!((30_000..=60_000).contains(&java.lease(&own.to_string()).ok()));
    }
    assert!(guard.remaining() <= ms(10_000), "it knows only of its own lease");
    guard.release().await.unwrap();
    java.release(&hex).ok();
    assert!(!ours.extend(id, LONG).await.unwrap());
    assert!(!java.update_lease(&own.to_string(), LONG).ok());
}

/// One guard releases as many permits as there are waiters. `cluster` has one permit, there and back.
async fn a_released_permit_wakes_the_other_side(redisson: Redisson) {
    let stage = Stage::new(redisson, "permits, wake-up").await;
    let (ours, name) = (stage.client.permit_semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.permits(name);
    ours.set_permits(2).await.unwrap();
    let guard = ours.lease(LONG).acquire(2).await.unwrap();
    let there = [java.acquire(), stage.two.permits(name).acquire()];
    listened_to(server(), &channel(name), 1).await;
    assert!(there.iter().all(|waits| waits.answer_within(SHORT).is_none()));
    guard.release().await.unwrap();
    let mut ids = Vec::new();
    for waits in there {
        ids.push(within(SOON, "a permit for Java", waits).await.ok());
    }
    // And back, with a list.
    let here = [waits(&ours, 1), waits(&ours, 1)];
    asleep(name, 1, || here.iter().any(JoinHandle::is_finished)).await;
    java.release_many(&ids).ok();
    for waits in here {
        within(SOON, "a permit for us", joined(waits)).await.0.release().await.unwrap();
    }
}

async fn adding_permits_wakes_the_other_side(redisson: Redisson) {
    let stage = Stage::new(redisson, "permits, more").await;
    let (ours, name) = (stage.client.permit_semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.permits(name);
    let told = async |what: &str, act: &dyn Fn()| {
        let here = waits(&ours, 1);
        asleep(name, 1, || here.is_finished()).await;
        act();
        within(SOON, what, joined(here)).await.0
    };

    let there = java.acquire();
    asleep(name, 1, || !there.is_pending()).await;
    ours.try_set_permits(1, None).await.unwrap();
    within(SOON, "it was set up", there).await.ok();
    let there = java.acquire();
    asleep(name, 1, || !there.is_pending()).await;
    ours.add_permits(1).await.unwrap();
    within(SOON, "permits were added", there).await.ok();
    let there = java.acquire();
    asleep(name, 1, || !there.is_pending()).await;
    ours.set_permits(3).await.unwrap();
    within(SOON, "permits were set", there).await.ok();

    let _one = told("permits were added", &|| java.add_permits(1).ok()).await;
    let _two = told("permits were set", &|| java.set_permits(5).ok()).await;
    assert_eq!(java.available().ok(), 0);
}

async fn a_permit_whose_lease_expires_becomes_free(redisson: Redisson) {
    let stage = Stage::new(redisson, "permits, ends").await;
    let (ours, name) = (stage.client.permit_semaphore(&stage.name), stage.name.as_str());
    let (java, lease) = (stage.one.permits(name), ms(500));
    ours.try_set_permits(1, None).await.unwrap();

    let before = Instant::now();
    let id = java.acquire_for(lease).ok();
    let acquired = Instant::now();
    let (guard, granted) = joined(waits(&ours, 1)).await;
    assert!(granted + ms(50) >= before + lease, "before its end");
    assert!(awake_between(acquired + lease, granted) < SOON, "long after its end");
    assert!(!java.try_release(&id).ok());
    guard.release().await.unwrap();

    let before = Instant::now();
    let guard = ours.lease(lease).acquire(1).await.unwrap();
    let acquired = Instant::now();
    let answer = java.acquire().await;
    assert!(answer.ended + ms(50) >= before + lease, "before its end");
    assert!(awake_between(acquired + lease, answer.ended) < SOON, "long after its end");
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(guard.release().await.is_err());
    assert_eq!(java.available().ok(), 0, "Java's is not given back by us");
    java.release(&answer.ok()).ok();
    assert_eq!(ours.available().await.unwrap(), 1);
}

async fn a_permit_without_a_lease_does_not_expire_on_either_side(redisson: Redisson) {
    /// As Redisson writes "never".
    const NEVER: i64 = 922_337_203_685_477;
    let options = ClientOptions::new().watchdog_timeout(ms(3_000));
    let stage = Stage::with(redisson, "permits, endless", options).await;
    let (ours, name) = (stage.client.permit_semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.permits(name);
    ours.try_set_permits(2, None).await.unwrap();
    let hex = java.acquire().ok();
    let id: PermitId = hex.parse().unwrap();
    assert_eq!(end(name, id), Some(NEVER));
    // Ours has none in Redis: the watchdog renews it.
    let guard = ours.acquire(1).await.unwrap();
    let own = guard.permit_ids()[0];
    let first = end(name, own).unwrap();
    let there = stage.two.permits(name).acquire();
    listened_to(server(), &channel(name), 1).await;
    eventually("it is renewed past its first end", || {
        end(name, own).expect("it is held") > first + 1_000
    })
    .await;
    assert!(there.is_pending() && !guard.is_lost());
    assert_eq!((end(name, id), ours.acquired().await.unwrap()), (Some(NEVER), 2));
    guard.release().await.unwrap();
    let other = within(SOON, "ours is free", there).await.ok();
    // An end can be given to Java's.
    assert!(ours.extend(id, ms(300)).await.unwrap());
    let (guard, _) = within(ms(300) + SOON, "it has ended", joined(waits(&ours, 1))).await;
    assert!(!java.try_release(&hex).ok());
    guard.release().await.unwrap();
    java.release(&other).ok();
    assert_eq!(java.available().ok(), 2);
}

async fn a_ttl_applies_to_both_sides(redisson: Redisson) {
    let stage = Stage::new(redisson, "permits, time to live").await;
    let (ours, name) = (stage.client.permit_semaphore(&stage.name), stage.name.as_str());
    let java = stage.one.permits(name);
    assert!(ours.try_set_permits(3, ms(3_000)).await.unwrap());
    let guard = ours.lease(LONG).acquire(1).await.unwrap();
    let left = server().cli(&["PTTL", &taken_key(name)]).int();
    assert!((1..=3_000).contains(&left), "what is taken ends with it: {left}");
    let id = java.acquire_for(LONG).ok();
    eventually("it ends", || server().cli(&["EXISTS", name, &taken_key(name)]).int() == 0).await;
    assert_eq!((java.available().ok(), ours.available().await.unwrap()), (0, 0));
    assert!(!java.try_release(&id).ok());
    assert!(guard.release().await.is_err());
    assert_eq!(server().cli(&["EXISTS", name]).int(), 0, "nobody makes it anew");
}
