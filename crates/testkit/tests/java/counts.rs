//! Semaphores, permits and latches.

use testkit::Redisson;

use super::{LONG, SHORT, Stage, on_every_version};

on_every_version! {
    a_semaphore_obeys_every_command
    permits_obey_every_command
    several_permits_at_once_where_they_can_be_had
    a_latch_obeys_every_command
}

fn a_semaphore_obeys_every_command(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let (one, two) = (stage.on("sem 1").semaphore("sem"), stage.on("sem 2").semaphore("sem"));
    assert!(one.try_set_permits(3).ok());
    assert!(!one.try_set_permits(3).ok());
    one.acquire(2).ok();
    assert!(!two.try_acquire(2).ok());
    assert!(!two.try_acquire_for(2, SHORT).ok());
    let waits = two.acquire(3);
    assert!(waits.answer_within(SHORT).is_none());
    one.release(2).ok();
    waits.ok();
    one.add_permits(5).ok();
    assert_eq!(two.available().ok(), 5);
    assert!(two.try_acquire(1).ok());
    assert_eq!(two.drain().ok(), 4);
    match redisson {
        Redisson::Newest => assert!(two.release_if_exists(1).ok()),
        _ => assert!(two.release_if_exists(1).err().is_missing()),
    }
    assert!(one.delete().ok());
    assert!(!one.delete().ok());
}

fn permits_obey_every_command(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let (one, two) = (stage.on("permits 1").permits("p"), stage.on("permits 2").permits("p"));
    assert!(one.try_set_permits(2).ok());
    assert!(!one.try_set_permits(2).ok());
    let forever = one.acquire().ok();
    let leased = two.acquire_for(LONG).ok();
    for id in [&forever, &leased] {
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
    assert_eq!(one.try_acquire().ok(), None);
    assert_eq!(one.try_acquire_for(SHORT, None).ok(), None);
    assert!(one.update_lease(&leased, LONG).ok());
    match redisson {
        Redisson::Newest => assert!((1..=10_000).contains(&one.lease(&leased).ok())),
        _ => assert!(one.lease(&leased).err().is_missing()),
    }
    let waits = one.try_acquire_for(LONG, Some(LONG));
    assert!(waits.answer_within(SHORT).is_none());
    two.release(&leased).ok();
    let granted = waits.ok().unwrap();
    assert!(!two.try_release(&leased).ok());
    assert!(two.release(&leased).err().message().contains(&leased));
    assert!(two.try_release(&granted).ok());
    assert_eq!(one.available().ok(), 1);
    one.add_permits(2).ok();
    assert_eq!(one.available().ok(), 3);
    assert!(one.delete().ok());
}

fn several_permits_at_once_where_they_can_be_had(redisson: Redisson) {
    let permits = Stage::of(redisson).on("many").permits("many");
    permits.try_set_permits(4).ok();
    if redisson == Redisson::V3_14 {
        assert!(permits.acquire_many(2, None).err().is_missing());
        assert!(permits.set_permits(5).err().is_missing());
        assert!(permits.acquired().err().is_missing());
        return;
    }
    let forever = permits.acquire_many(2, None).ok();
    let leased = permits.acquire_many(2, Some(LONG)).ok();
    assert_eq!((forever.len(), leased.len()), (2, 2));
    assert_eq!((permits.acquired().ok(), permits.permits().ok()), (4, 4));
    assert!(permits.try_acquire_many(2).ok().is_empty());
    assert!(permits.try_acquire_many_within(2, SHORT, LONG).ok().is_empty());
    assert_eq!(permits.try_release_many(&leased).ok(), 2);
    permits.release_many(&forever).ok();
    assert_eq!(permits.try_acquire_many(3).ok().len(), 3);
    permits.set_permits(7).ok();
    assert_eq!((permits.available().ok(), permits.permits().ok()), (4, 7));
}

fn a_latch_obeys_every_command(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let (one, two) = (stage.on("latch 1").latch("latch"), stage.on("latch 2").latch("latch"));
    assert!(one.try_set_count(2).ok());
    assert!(!one.try_set_count(2).ok());
    assert!(!two.wait_within(SHORT).ok());
    let waits = two.wait();
    assert!(waits.answer_within(SHORT).is_none());
    one.count_down().ok();
    assert_eq!(one.count().ok(), 1);
    one.count_down().ok();
    waits.ok();
    assert!(two.wait_within(SHORT).ok(), "what is not there is open");
    assert!(one.try_set_count(1).ok());
    assert!(one.delete().ok());
}
