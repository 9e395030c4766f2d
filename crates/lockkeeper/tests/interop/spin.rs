//! `RSpinLock` and our `SpinLock`: the same lock as `RLock` and `Lock`, with waiters that ask again.
//!
//! Java's publishes nothing when it is given back. A `Lock` that waits for it here gets it when it looks
//! again, at the latest after [`RECHECK`]; ours tells everybody.

use std::time::{Duration, Instant};

use lockkeeper::{LockGuard, RECHECK};
use testkit::Redisson;

use crate::support::*;

on_versions! { [newest v3_27]
    a_holder_excludes_the_other_side
    a_rust_lock_waiter_acquires_after_a_java_spin_release_within_the_recheck
}

/// Both kinds of Rust lock of a name.
async fn held(client: &lockkeeper::Client, name: &str, spin: bool) -> LockGuard {
    match spin {
        true => client.spin_lock(name).lock().await.unwrap(),
        false => client.lock(name).lock().await.unwrap(),
    }
}

async fn a_holder_excludes_the_other_side(redisson: Redisson) {
    let Stage { client, name, one, two, .. } = Stage::new(redisson, "spin excludes").await;
    for spin in [true, false] {
        let guard = held(&client, &name, spin).await;
        assert!(!one.spin(&name).try_lock().await.ok());
        assert!(!one.spin(&name).try_lock_within(SHORT, Some(LONG)).await.ok());
        assert!(!two.lock(&name).try_lock().await.ok());
        assert!(one.spin(&name).unlock().await.err().is_not_owner());
        guard.release().await.unwrap();
    }
    one.spin(&name).lock().await.ok();
    one.spin(&name).lock().await.ok();
    let holder = client.spin_lock(&name).inspect().await.unwrap().holders.remove(0);
    assert_eq!((holder.id, holder.hold_count), (one.owner(), 2));
    assert!(client.spin_lock(&name).try_lock().await.unwrap().is_none());
    assert!(client.spin_lock(&name).try_lock_for(IN_VAIN).await.unwrap().is_none());
    assert!(client.lock(&name).try_lock_for(IN_VAIN).await.unwrap().is_none());
    one.spin(&name).unlock().await.ok();
    assert!(client.spin_lock(&name).try_lock().await.unwrap().is_none());
    one.spin(&name).unlock().await.ok();
    client.spin_lock(&name).try_lock().await.unwrap().unwrap().release().await.unwrap();
}

async fn a_rust_lock_waiter_acquires_after_a_java_spin_release_within_the_recheck(
    redisson: Redisson,
) {
    let Stage { client, name, one, .. } = Stage::new(redisson, "spin re-check").await;
    let channel = lock_channel(&name);
    let mut eavesdropper = server().connection();
    eavesdropper.subscribe(&[&channel]);
    one.spin(&name).lock().await.ok();
    let waiter = tokio::spawn({
        let lock = client.lock(&name);
        async move { (lock.lock().await.unwrap(), Instant::now()) }
    });
    listened_to(server(), &channel, 2).await;
    let release = one.spin(&name).unlock().await;
    let (guard, granted) = joined(waiter).await;
    let took = awake_between(release.started, granted);
    release.ok();
    assert!(took < RECHECK + SOON, "{took:?}");
    println!("{}: Java's spin unlock to Rust's lock: {took:.1?}", redisson.profile());
    assert_eq!(eavesdropper.next_message(Duration::ZERO), None, "Java does tell, after all");
    guard.release().await.unwrap();
    let (_, message) = eavesdropper.next_message(PATIENCE).expect("we do tell");
    assert_eq!(message, b"0");
}
