//! Locks of all kinds.

use std::time::Duration;

use testkit::Redisson;
use testkit::java::Lock;

use super::{LONG, SHORT, Stage, on_every_version};

on_every_version! {
    a_lock_obeys_every_command
    an_unlock_by_who_has_lost_the_lock_is_refused_unless_it_is_fair
    a_fair_lock_obeys_every_command
    a_write_lock_obeys_every_command
    readers_share_and_writers_do_not
    a_spin_lock_obeys_every_command_where_there_is_one
    a_fenced_lock_obeys_every_command_and_counts_where_there_is_one
    a_non_reentrant_lock_refuses_its_own_thread_where_there_is_one
    a_multi_lock_holds_all_its_names
    a_waiter_gets_the_lock_when_it_is_released
    an_interrupt_ends_a_wait
    any_name_arrives_as_it_is
    stress_counts_every_round
}

/// Everything that a re-entrant and exclusive lock can do. `one` and `two` are the same lock on two
/// workers.
fn obeys_every_command(one: &Lock<'_>, two: &Lock<'_>) {
    assert!(!one.is_locked().ok());
    assert_eq!(one.remaining().ok(), -2);

    one.lock().ok();
    assert!(one.try_lock().ok(), "re-entry");
    assert_eq!((one.hold_count().ok(), two.hold_count().ok()), (2, 0));
    assert!(one.is_held().ok() && !two.is_held().ok());
    assert!(two.is_locked().ok());
    assert!(!two.try_lock().ok());
    let refused = two.try_lock_within(SHORT, None).answer();
    // A spin lock counts in whole milliseconds.
    assert!(refused.took() + Duration::from_millis(2) >= SHORT, "{:?}", refused.took());
    assert!(!refused.ok());
    // A second lease comes on top of the first in a write lock.
    assert!((1..=60_000).contains(&one.remaining().ok()));
    assert!(two.unlock().err().is_not_owner());
    one.unlock().ok();
    one.unlock().ok();
    assert!(!two.is_locked().ok());

    two.lock_for(LONG).ok();
    assert!((1..=10_000).contains(&one.remaining().ok()));
    assert!(one.force_unlock().ok());
    assert!(!two.is_held().ok());

    assert!(two.try_lock_within(SHORT, Some(LONG)).ok());
    assert!((1..=10_000).contains(&one.remaining().ok()));
    two.unlock().ok();
    one.lock_interruptibly().ok();
    one.unlock().ok();
}

fn a_lock_obeys_every_command(redisson: Redisson) {
    let stage = Stage::of(redisson);
    obeys_every_command(&stage.on("lock 1").lock("lock"), &stage.on("lock 2").lock("lock"));
}

fn an_unlock_by_who_has_lost_the_lock_is_refused_unless_it_is_fair(redisson: Redisson) {
    let worker = Stage::of(redisson).on("lost");
    let (plain, fair) = (worker.lock("lost"), worker.fair("lost in turn"));
    for lock in [&plain, &fair] {
        lock.lock().ok();
        assert!(lock.force_unlock().ok());
    }
    assert!(plain.unlock().err().is_not_owner());
    fair.unlock().ok();
}

fn a_fair_lock_obeys_every_command(redisson: Redisson) {
    let stage = Stage::of(redisson);
    obeys_every_command(&stage.on("fair 1").fair("fair"), &stage.on("fair 2").fair("fair"));
}

fn a_write_lock_obeys_every_command(redisson: Redisson) {
    let stage = Stage::of(redisson);
    obeys_every_command(&stage.on("write 1").write("write"), &stage.on("write 2").write("write"));
}

fn a_spin_lock_obeys_every_command_where_there_is_one(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let (one, two) = (stage.on("spin 1").spin("spin"), stage.on("spin 2").spin("spin"));
    match redisson {
        Redisson::V3_14 => assert!(one.lock().err().is_missing()),
        _ => obeys_every_command(&one, &two),
    }
}

fn readers_share_and_writers_do_not(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let (one, two) = (stage.on("rw 1"), stage.on("rw 2"));
    one.read("rw").lock().ok();
    assert!(two.read("rw").try_lock().ok());
    assert!(!two.write("rw").try_lock().ok());
    assert!(one.read("rw").is_held().ok() && two.read("rw").is_held().ok());
    assert_eq!(one.read("rw").hold_count().ok(), 1);
    one.read("rw").unlock().ok();
    assert!(one.read("rw").unlock().err().is_not_owner());
    two.read("rw").unlock().ok();
    two.write("rw").lock().ok();
    assert!(!one.read("rw").try_lock_within(SHORT, Some(LONG)).ok());
    two.write("rw").unlock().ok();
}

fn a_fenced_lock_obeys_every_command_and_counts_where_there_is_one(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let (one, two) = (stage.on("fenced 1").fenced("fenced"), stage.on("fenced 2").fenced("fenced"));
    if redisson == Redisson::V3_14 {
        assert!(one.lock_and_get_token().err().is_missing());
        return;
    }
    obeys_every_command(&one, &two);
    let first = one.lock_and_get_token().ok();
    assert_eq!(two.token().ok(), Some(first));
    assert_eq!(two.try_lock_and_get_token_within(Duration::ZERO, None).ok(), None);
    assert_eq!(two.try_lock_and_get_token_within(SHORT, None).ok(), None);
    let waits = two.try_lock_and_get_token();
    assert!(waits.answer_within(SHORT).is_none(), "without a limit it waits for ever");
    one.unlock().ok();
    assert_eq!(waits.ok(), Some(first + 1));
    two.unlock().ok();
    assert_eq!(two.try_lock_and_get_token_within(SHORT, Some(LONG)).ok(), Some(first + 2));
    two.unlock().ok();
    assert_eq!(one.lock_and_get_token_for(LONG).ok(), first + 3);
    one.unlock().ok();
}

fn a_non_reentrant_lock_refuses_its_own_thread_where_there_is_one(redisson: Redisson) {
    let worker = Stage::of(redisson).on("once");
    for lock in [worker.non_reentrant("once"), worker.non_reentrant_fair("once in turn")] {
        if redisson != Redisson::Newest {
            assert!(lock.try_lock().err().is_missing());
            continue;
        }
        assert!(lock.try_lock().ok());
        assert!(lock.try_lock().err().message().contains("non-reentrant"));
        lock.unlock().ok();
        assert!(!lock.is_locked().ok());
    }
}

fn a_multi_lock_holds_all_its_names(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let (one, two) = (stage.on("multi 1"), stage.on("multi 2"));
    let names = ["multi, a", "multi, b", "multi, c"];
    one.multi(&names).lock().ok();
    assert!(!two.multi(&names[..1]).try_lock().ok());
    assert!(names.iter().all(|name| two.lock(name).is_locked().ok()));
    assert!(two.multi(&names).is_locked().err().class().ends_with("UnsupportedOperationException"));
    one.multi(&names).unlock().ok();
    assert!(!names.iter().any(|name| two.lock(name).is_locked().ok()));
    two.multi(&names).lock_for(LONG).ok();
    assert!(!one.multi(&names).try_lock_within(SHORT, Some(LONG)).ok());
    two.multi(&names).unlock().ok();
}

fn a_waiter_gets_the_lock_when_it_is_released(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let (one, two) = (stage.on("wait 1"), stage.on("wait 2"));
    one.lock("wait").lock().ok();
    let waits = two.lock("wait").lock();
    // From here on it has been waiting, however late it began.
    let numsub = ["PUBSUB", "NUMSUB", "redisson_lock__channel:{wait}"];
    while stage.server.cli(&numsub).array()[1].int() == 0 {
        assert!(waits.answer_within(Duration::from_millis(1)).is_none());
    }
    assert!(waits.answer_within(SHORT).is_none());
    // A worker that waits does not keep others from working.
    assert!(one.lock("wait").is_held().ok());
    let behind = two.thread_id();
    let release = one.lock("wait").unlock().answer();
    let grant = waits.answer();
    assert!(grant.ended + 2 * stage.peer.clock_error() >= release.started);
    assert!(grant.took() >= SHORT);
    assert!(grant.wall.elapsed().unwrap() < LONG);
    let thread = behind.ok();
    assert_eq!(two.owner(), format!("{}:{thread}", stage.peer.client_id()));
    let owners = stage.server.cli(&["HKEYS", "wait"]);
    assert_eq!(owners.array()[0].text(), two.owner());
    two.lock("wait").unlock().ok();
}

fn an_interrupt_ends_a_wait(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let (one, two) = (stage.on("interrupt 1"), stage.on("interrupt 2"));
    one.lock("interrupt").lock().ok();
    let waits = two.lock("interrupt").lock_interruptibly();
    assert!(waits.answer_within(SHORT).is_none());
    two.interrupt();
    let thrown = waits.err();
    assert!(thrown.is_interrupted(), "{thrown}");
    one.lock("interrupt").unlock().ok();
    assert!(two.lock("interrupt").try_lock().ok(), "the worker lives on");
    two.lock("interrupt").unlock().ok();
}

fn any_name_arrives_as_it_is(redisson: Redisson) {
    let stage = Stage::of(redisson);
    for name in ["a b", "100%", "a,b", "{tag}:x", "line\nbreak", "schlüssel🔒"] {
        let lock = stage.on(name).lock(name);
        lock.lock().ok();
        assert_eq!(stage.server.cli(&["EXISTS", name]).int(), 1, "{name:?}");
        lock.unlock().ok();
    }
}

fn stress_counts_every_round(redisson: Redisson) {
    let stage = Stage::of(redisson);
    let worker = stage.on("stress");
    worker.semaphore("stress sem").try_set_permits(1).ok();
    worker.permits("stress permits").try_set_permits(1).ok();
    let stress = [
        worker.lock("stress lock").stress("counter", 50, 3),
        worker.semaphore("stress sem").stress("counter", 50, 3),
        worker.permits("stress permits").stress("counter", 50, 3),
    ];
    for pending in stress {
        let stress = pending.ok();
        assert_eq!(stress.rounds, 150);
        assert!(stress.longest_wait < LONG);
    }
    assert_eq!(stage.server.cli(&["GET", "counter"]).int(), 450);
}
