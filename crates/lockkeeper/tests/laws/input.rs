//! Invalid input is rejected with a reason; unusual input works.

use std::time::Duration;

use lockkeeper::{Error, MAX_LEASE, Result};

use crate::store::{Exclusive, Store, assert_is, left, one, pair, poll_once};

#[track_caller]
fn refused<T: std::fmt::Debug>(what: &str, answer: Result<T>) -> String {
    match answer {
        Err(error @ Error::Invalid { .. }) => error.to_string(),
        other => panic!("{what}: expected Invalid, got {other:?}"),
    }
}

pub(crate) async fn an_empty_name_is_rejected<L: Exclusive>(store: &Store) {
    let lock = L::of(&store.client().await, "");
    refused("lock", lock.lock().await);
    refused("try_lock", lock.try_lock().await);
    refused("is_locked", lock.is_locked().await);
    refused("inspect", lock.inspect().await);
    refused("force_unlock", lock.force_unlock("").await);
    let ran = lock.run(async |_| ()).await;
    assert_is!(ran, Err(lockkeeper::RunError::Acquire(Error::Invalid { .. })));
}

/// The name of nothing at all would be the prefix itself.
pub(crate) async fn an_empty_name_with_a_prefix_is_rejected<L: Exclusive>(store: &Store) {
    let options = store.options().name_prefix(store.name("prefix:"));
    refused("lock", L::of(&store.client_with(options).await, "").try_lock().await);
}

pub(crate) async fn a_lease_out_of_bounds_is_rejected<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    for span in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_nanos(999_999),
        MAX_LEASE + Duration::from_millis(1),
        Duration::from_millis(i64::MAX as u64),
        Duration::MAX,
    ] {
        let said = refused("lease", lock.lease(span).lock().await);
        assert!(said.contains(&lock.name().to_string()), "{said}");
        refused("try_lock", lock.lease(span).try_lock().await);
        refused("wait", lock.lease(span).try_lock_for(span).await);
        refused("renewed", lock.lease(lockkeeper::LeaseTime::Renewed(span)).lock().await);
        refused(
            "try_lock renewed",
            lock.lease(lockkeeper::LeaseTime::Renewed(span)).try_lock().await,
        );
    }
    assert!(!lock.is_locked().await.unwrap(), "nothing was sent");
}

pub(crate) async fn the_shortest_and_the_longest_lease_are_accepted<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let longest = lock.lease(MAX_LEASE).lock().await.unwrap();
    assert!(left(lock.inspect().await) > MAX_LEASE - Duration::from_secs(60));
    assert!(longest.remaining() > MAX_LEASE / 2);
    assert!(!longest.is_lost());
    longest.release().await.unwrap();
    let longest = lock.lease(lockkeeper::LeaseTime::Renewed(MAX_LEASE)).lock().await.unwrap();
    assert!(!longest.is_lost());
    longest.release().await.unwrap();
    // Over before its answer may have come; but a lease it is.
    match lock.lease(Duration::from_millis(1)).try_lock().await {
        Ok(_) | Err(Error::Unreachable { .. }) => {}
        other => panic!("expected a grant or one that came late, got {other:?}"),
    }
}

pub(crate) async fn a_guard_rejects_invalid_arguments_and_stays_held<L: Exclusive>(store: &Store) {
    let lock = one::<L>(store).await;
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let before = guard.remaining();
    for span in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        let said = refused("extend", guard.extend(span).await);
        assert!(said.contains(&lock.name().to_string()), "{said}");
    }
    assert!(!guard.is_lost() && guard.remaining() <= before);
    refused("leave_for", guard.leave_for(Duration::ZERO).await);
    // The guard is consumed, and the lock is released.
    let next = store.promptly("it is released", one::<L>(store).await.lock()).await.unwrap();
    next.release().await.unwrap();
}

pub(crate) async fn an_invalid_reentry_adds_no_hold<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let lock = client.lock(store.name("lock")).as_owner(&client.new_owner());
    let guard = lock.lease(store.long()).lock().await.unwrap();
    refused("zero", lock.lease(Duration::ZERO).lock().await);
    refused("max", lock.lease(lockkeeper::LeaseTime::Renewed(Duration::MAX)).lock().await);
    assert_eq!(guard.hold_count(), 1);
    assert_eq!(lock.inspect().await.unwrap().holders.remove(0).hold_count, 1);
    guard.release().await.unwrap();
}

/// Every name is a name: bytes that are no text, braces, line breaks, a hundred kilobytes.
pub(crate) async fn any_bytes_make_a_name<L: Exclusive>(store: &Store) {
    let (ours, theirs) = (store.client().await, store.client().await);
    let unique = store.name("");
    let huge = "x".repeat(100_000);
    for odd in [
        &b"\x00\xff\xfe"[..],
        b"a\r\nb\r\n$3\r\nfoo",
        b"{tag}rest",
        b"a{b",
        b"a}b{c",
        b"{}",
        b"%s %d * ? [a-z]",
        b" ",
        "\u{1f512} \u{202e}".as_bytes(),
        huge.as_bytes(),
    ] {
        let name = [unique.as_bytes(), odd].concat();
        let (ours, theirs) = (L::of(&ours, &name), L::of(&theirs, &name));
        assert_eq!(ours.name().as_bytes(), name);
        if !store.serves(&name) {
            refused("a name that splits", ours.lock().await);
            continue;
        }
        let guard = ours.lease(store.long()).lock().await.unwrap();
        assert!(theirs.try_lock().await.unwrap().is_none(), "{}", ours.name());
        let holder = theirs.inspect().await.unwrap().holders.remove(0);
        assert_eq!(holder.id, guard.owner_id().to_string());
        let mut waiting = Box::pin(theirs.lock());
        assert!(poll_once(&mut waiting).is_pending());
        guard.release().await.unwrap();
        let next = store.promptly("the waiter is woken", waiting).await.unwrap();
        assert!(theirs.force_unlock("").await.unwrap());
        drop(next);
    }
}

pub(crate) async fn names_that_differ_in_one_byte_are_different<L: Exclusive>(store: &Store) {
    let client = store.client().await;
    let base = store.name("n");
    let mut held = Vec::new();
    for suffix in ["", " ", "\0", "\n", "a", "A", "{", "}"] {
        let name = format!("{base}{suffix}");
        if store.serves(name.as_bytes()) {
            let lock = L::of(&client, name);
            held.push(lock.try_lock().await.unwrap().expect("no other has this name"));
        }
    }
    assert!(held.len() >= 6);
}

pub(crate) async fn a_prefix_is_put_before_every_name<L: Exclusive>(store: &Store) {
    let prefix = store.name("shop:");
    let prefixed = store.client_with(store.options().name_prefix(&prefix)).await;
    let plain = L::of(&store.client().await, format!("{prefix}order"));
    let lock = L::of(&prefixed, "order");
    assert_eq!(lock.name(), plain.name());
    let guard = lock.lease(store.long()).lock().await.unwrap();
    assert_eq!(guard.name().as_bytes(), format!("{prefix}order").as_bytes());
    assert!(plain.try_lock().await.unwrap().is_none(), "they are the same lock");
    let other = store.client_with(store.options().name_prefix(store.name("other:"))).await;
    assert!(L::of(&other, "order").try_lock().await.unwrap().is_some());
    let mut waiting = Box::pin(plain.lock());
    assert!(poll_once(&mut waiting).is_pending());
    guard.release().await.unwrap();
    store.promptly("it wakes across prefixes", waiting).await.unwrap().release().await.unwrap();
}

pub(crate) async fn an_error_names_the_lock_and_the_phase<L: Exclusive>(store: &Store) {
    let (ours, theirs) = pair::<L>(store).await;
    let guard = ours.lease(store.long()).lock().await.unwrap();
    assert!(theirs.force_unlock("").await.unwrap());
    let said = guard.release().await.unwrap_err().to_string();
    assert!(said.contains(&store.name("lock")) && said.contains("releasing"), "{said}");
    let guard = ours.lease(store.lease()).lock().await.unwrap();
    guard.lost().await;
    let said = guard.extend(store.lease()).await.unwrap_err().to_string();
    assert!(said.contains(&store.name("lock")) && said.contains("extending"), "{said}");
    let as_lock = ours.name().to_string();
    let debug = format!("{guard:?}");
    assert!(debug.contains(&as_lock), "{debug}");
}

/// Control characters in a name do not reach the log raw.
pub(crate) async fn a_name_is_printed_escaped<L: Exclusive>(store: &Store) {
    let lock = L::of(&store.client().await, store.name("a\nb\u{1b}[31m\u{0}"));
    let said = lock.lease(Duration::ZERO).lock().await.unwrap_err().to_string();
    assert!(!said.contains(['\n', '\u{1b}', '\0']), "{said:?}");
    assert!(said.contains("\\n"), "{said:?}");
}

pub(crate) async fn a_long_name_is_printed_truncated<L: Exclusive>(store: &Store) {
    let lock = L::of(&store.client().await, format!("begin{}", "x".repeat(1 << 20)));
    let error = lock.lease(Duration::ZERO).lock().await.unwrap_err();
    for said in [error.to_string(), format!("{error:?}")] {
        assert!(said.contains("begin") && said.contains("(1048581 bytes)"), "{}", &said[..200]);
        assert!(said.len() < 1000, "{} bytes", said.len());
    }
}
