//! Lists of held locks: name, kind, holder, remaining time and start.

use std::time::{Duration, SystemTime};

use lockkeeper::{Holder, Kind, Listing, LockInfo, Ttl};

use crate::store::{Exclusive, Store, eventually, pair};

/// All that a list gives. A page is never empty.
pub(crate) async fn all(listing: &mut Listing) -> Vec<LockInfo> {
    let mut locks = Vec::new();
    while let Some(page) = listing.next().await.unwrap() {
        assert!(!page.is_empty(), "a page with nothing on it");
        locks.extend(page);
    }
    locks
}

/// What a list says of one name, which it has once.
#[track_caller]
pub(crate) fn named<'a>(locks: &'a [LockInfo], name: &str) -> Option<&'a LockInfo> {
    let mut found = locks.iter().filter(|lock| lock.name.as_bytes() == name.as_bytes());
    let first = found.next();
    assert_eq!(found.next(), None, "{name} is there twice");
    first
}

/// What a new client finds under the names of the law.
pub(crate) async fn listed(store: &Store) -> Vec<LockInfo> {
    all(&mut store.client().await.inspector().list(store.name("*"))).await
}

/// What a list says of one name, once its client has said what there is to say.
pub(crate) async fn told(store: &Store, name: &str) -> LockInfo {
    let inspector = store.client().await.inspector();
    let mut told = None;
    eventually(&format!("all is told of {name}"), async || {
        let locks = all(&mut inspector.list(name)).await;
        told = named(&locks, name).cloned();
        told.as_ref().is_some_and(|lock| lock.since().is_some())
    })
    .await;
    told.expect("it was told of")
}

/// Whether this process holds it.
#[track_caller]
pub(crate) fn is_ours(holder: &Holder) {
    let client = holder.client.as_ref().expect("it says who it is");
    assert_eq!(client.pid, std::process::id());
    assert!(client.program.starts_with("laws"), "{}", client.program);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(client.host, host.trim());
}

/// Not before then, nor in the future: clocks are read to the millisecond, and a machine may be busy.
#[track_caller]
pub(crate) fn is_about(told: Option<SystemTime>, then: SystemTime) {
    let told = told.expect("it says since when");
    let (slack, now) = (Duration::from_secs(1), SystemTime::now());
    assert!(told + slack > then && told < now + slack, "{told:?}, and it was {then:?}");
}

pub(crate) async fn a_held_lock_is_listed_with_all_there_is_to_know<L: Exclusive>(store: &Store) {
    let name = store.name("lock");
    let lock = L::of(&store.client().await, &name);
    let then = SystemTime::now();
    let guard = lock.lease(store.long()).lock().await.unwrap();
    let told = told(store, &name).await;
    assert_eq!((told.name.to_string(), told.kind), (name, L::KIND));
    let [holder] = &told.holders[..] else { panic!("{told:?}") };
    assert_eq!(holder.id, guard.owner_id().to_string());
    assert_eq!((holder.hold_count, holder.shared), (1, false));
    is_ours(holder);
    is_about(holder.since, then);
    assert_eq!(told.since(), holder.since);
    let seen = holder.seen.expect("its client says when it was there");
    assert!(seen.every == store.watchdog() / 3 && seen.ago <= store.watchdog(), "{seen:?}");
    assert_eq!(holder.left, None);
    let Some(Ttl::For(left)) = told.ttl else { panic!("{told:?}") };
    assert!(left <= store.long() && left > store.long() / 2, "{left:?}");
    assert_eq!((told.waiting, told.count, told.taken), (Some(0), None, 0));
    assert!(!told.is_free());
    guard.release().await.unwrap();
}

pub(crate) async fn a_released_lock_is_not_listed<L: Exclusive>(store: &Store) {
    let name = store.name("lock");
    let lock = L::of(&store.client().await, &name);
    let guard = lock.lock().await.unwrap();
    told(store, &name).await;
    guard.release().await.unwrap();
    assert_eq!(listed(store).await, []);
}

pub(crate) async fn an_expired_lock_is_not_listed<L: Exclusive>(store: &Store) {
    let (client, name) = (store.client().await, store.name("lock"));
    // The client lives on, and has said that it holds it.
    let beside = L::of(&client, store.name("beside")).lock().await.unwrap();
    let guard = L::of(&client, &name).lease(store.lease()).lock().await.unwrap();
    store.signalled(guard.lost()).await;
    let inspector = client.inspector();
    let found = async || all(&mut inspector.list(&name[..])).await;
    eventually("it is listed no longer", async || found().await.is_empty()).await;
    beside.release().await.unwrap();
}

pub(crate) async fn locks_of_two_clients_are_listed_with_their_holders<L: Exclusive>(
    store: &Store,
) {
    let (ours, theirs) = (store.client().await, store.client().await);
    let mine = L::of(&ours, store.name("mine")).lock().await.unwrap();
    let yours = L::of(&theirs, store.name("yours")).lock().await.unwrap();
    for (guard, client) in [(&mine, &ours), (&yours, &theirs)] {
        let told = told(store, &guard.name().to_string()).await;
        let [holder] = &told.holders[..] else { panic!("{told:?}") };
        assert_eq!(holder.id, guard.owner_id().to_string());
        assert!(holder.id.starts_with(&client.id().to_string()));
        is_ours(holder);
    }
    let listed = listed(store).await;
    assert_eq!(listed.len(), 2, "{listed:?}");
    mine.release().await.unwrap();
    yours.release().await.unwrap();
}

/// The holder never announced itself. The kind of a string is unknown then.
pub(crate) async fn a_lock_whose_holder_does_not_announce_is_listed_where_possible<L: Exclusive>(
    store: &Store,
) {
    let name = store.name("lock");
    let owner = store.other_holds::<L>(&name[..].into()).await;
    let locks = listed(store).await;
    let Some(found) = named(&locks, &name) else {
        assert_eq!(L::KIND, Kind::Mutex, "it is missing");
        return;
    };
    // A fair lock without waiters looks like a plain lock.
    let seems = if L::KIND == Kind::Fair { Kind::Lock } else { L::KIND };
    assert_eq!(found.kind, seems);
    let [holder] = &found.holders[..] else { panic!("{found:?}") };
    assert_eq!(holder.id, owner.to_string());
    assert_eq!((&holder.client, holder.since), (&None, None));
}

pub(crate) async fn waiters_are_counted<L: Exclusive>(store: &Store) {
    let ((ours, theirs), name) = (pair::<L>(store).await, store.name("lock"));
    let guard = ours.lock().await.unwrap();
    assert_eq!(told(store, &name).await.waiting, Some(0));
    // Of others than fair locks it is clients that are counted, and only such as listen.
    let waiters = [theirs.lock(), theirs.lock()].map(|taking| tokio::spawn(taking));
    let expected = match L::KIND {
        Kind::Fair => 2,
        _ => u64::from(L::NOTIFIED),
    };
    let waiting = async || told(store, &name).await.waiting;
    eventually("they are counted", async || waiting().await == Some(expected)).await;
    assert_eq!(told(store, &name).await.kind, L::KIND);
    for waiter in waiters {
        waiter.abort();
    }
    eventually("they are gone", async || waiting().await == Some(0)).await;
    guard.release().await.unwrap();
}

pub(crate) async fn any_bytes_make_a_name_that_is_listed<L: Exclusive>(store: &Store) {
    let (client, inspector) = (store.client().await, store.client().await.inspector());
    let prefix = store.name("");
    let odd: [&[u8]; 8] = [
        b" ",
        b"\n\r\0",
        b"\xff\xfe",
        b"{a}",
        b"a}{b",
        b"*?[a-z]\\",
        "schlüssel ✂".as_bytes(),
        b"-n",
    ];
    let odd: Vec<_> = odd.iter().map(|rest| [prefix.as_bytes(), rest].concat()).collect();
    let odd: Vec<_> = odd.into_iter().filter(|name| store.serves(name)).collect();
    let mut held = Vec::new();
    for name in &odd {
        held.push(L::of(&client, name).lock().await.unwrap());
    }
    let mut found = Vec::new();
    eventually("all are listed", async || {
        found = all(&mut inspector.list(format!("{prefix}*"))).await;
        found.len() >= odd.len()
    })
    .await;
    let mut names: Vec<_> = found.iter().map(|lock| lock.name.as_bytes().to_vec()).collect();
    names.sort();
    let mut expected = odd;
    expected.sort();
    assert_eq!(names, expected);
    for lock in found {
        let looked = inspector.inspect(&lock.name).await.unwrap();
        assert_eq!(looked.holders[0].id, lock.holders[0].id, "{}", lock.name);
        assert!(
            inspector.force_unlock(&lock.name, L::KIND, None, "").await.unwrap(),
            "{}",
            lock.name
        );
    }
    assert_eq!(all(&mut inspector.list(format!("{prefix}*"))).await, []);
    drop(held);
}

/// Names are seen behind the prefix only, and given without it.
pub(crate) async fn a_prefix_hides_other_names<L: Exclusive>(store: &Store) {
    // Taken as it is, though it could be a pattern.
    let prefix = store.name("[a-z]*:");
    let inside = store.client_with(store.options().name_prefix(&prefix)).await;
    let outside = store.client().await;
    let guard = L::of(&inside, "lock").lock().await.unwrap();
    let hidden = L::of(&outside, store.name("b:lock")).lock().await.unwrap();
    told(store, &store.name("b:lock")).await;
    let inspector = inside.inspector();
    let mut found = Vec::new();
    eventually("it is listed", async || {
        found = all(&mut inspector.list("*")).await;
        found.iter().any(|lock| lock.since().is_some())
    })
    .await;
    let [lock] = &found[..] else { panic!("{found:?}") };
    assert_eq!((lock.name.as_bytes(), lock.kind), (&b"lock"[..], L::KIND));
    assert_eq!(all(&mut inspector.list(store.name("*"))).await, []);
    assert_eq!(all(&mut inspector.list("*:lock")).await, []);
    assert_eq!(inspector.inspect("lock").await.unwrap().name.as_bytes(), b"lock");
    assert!(inspector.inspect(store.name("b:lock")).await.unwrap().is_free());
    assert_eq!(inspector.inspect("lock").await.unwrap().holders, lock.holders);
    // What was found is what the locks of this client are called.
    assert!(L::of(&inside, &lock.name).is_locked().await.unwrap());
    assert!(inspector.force_unlock(&lock.name, lock.kind, None, "").await.unwrap());
    assert!(!L::of(&inside, "lock").is_locked().await.unwrap());
    assert!(L::of(&outside, store.name("b:lock")).is_locked().await.unwrap());
    // From outside it is seen with the prefix.
    let again = L::of(&inside, "lock").lock().await.unwrap();
    let full = format!("{prefix}lock");
    let seen = async || all(&mut outside.inspector().list(store.name("*"))).await;
    eventually("it is seen from outside", async || named(&seen().await, &full).is_some()).await;
    again.release().await.unwrap();
    hidden.release().await.unwrap();
    drop(guard);
}
