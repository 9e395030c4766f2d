//! Our `Mutex` beside other libraries of the Redlock family: one string with a TTL, which only its owner
//! releases.
//!
//! They publish nothing. Our waiters poll every 50 to 100 ms; theirs poll as configured, every 20 ms in
//! these tests.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkeeper::{Client, ClientOptions, Error, LostReason, Mutex, Ttl};
use testkit::{Redlock, RedlockMutex, RedlockPeer};

use crate::support::*;

/// One test per library, from an `async fn` that takes it.
macro_rules! on_libraries {
    ($($name:ident)+) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis_py() {
                super::$name(testkit::Redlock::RedisPy).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn node_redlock() {
                super::$name(testkit::Redlock::NodeRedlock).await;
            }
        })+
    };
}

on_libraries! {
    a_holder_excludes_the_other_side
    a_release_frees_the_lock_for_the_other_side
    the_other_side_acquires_when_a_lease_expires
    an_extended_lease_excludes_the_other_side
    our_watchdog_excludes_the_other_side
    a_lost_hold_cannot_release_the_lock_of_the_other_side
    a_force_release_works_across_sides
}

const LEASE: Duration = Duration::from_secs(2);

/// The peer of a library, for all tests that leave it alive; on [`server`].
fn peer(library: Redlock) -> &'static RedlockPeer {
    static PEERS: [OnceLock<RedlockPeer>; 4] = [const { OnceLock::new() }; 4];
    let index = Redlock::ALL.iter().position(|other| *other == library).unwrap();
    PEERS[index].get_or_init(|| RedlockPeer::start(library, &server().url()))
}

/// A mutex of a test's own, from both sides.
struct Pair {
    client: Client,
    ours: Mutex,
    theirs: RedlockMutex<'static>,
    name: String,
}

impl Pair {
    async fn new(library: Redlock, test: &str) -> Self {
        Self::with(library, test, ClientOptions::new()).await
    }

    async fn with(library: Redlock, test: &str, options: ClientOptions) -> Self {
        let name = format!("redlock {test}:{library:?}");
        let client = connect(server(), options).await;
        let theirs = peer(library).mutex(test.replace(' ', "-").as_str(), &name);
        Self { ours: client.mutex(&name), theirs, client, name }
    }

    /// The stored value.
    fn value(&self) -> String {
        server().cli(&["GET", &self.name]).text().to_owned()
    }

    /// When it will end, unless its lease is extended.
    fn ends(&self) -> SystemTime {
        let millis = server().cli(&["PEXPIRETIME", &self.name]).int();
        UNIX_EPOCH + ms(millis.try_into().expect("it has an end"))
    }
}

async fn a_holder_excludes_the_other_side(library: Redlock) {
    let pair = Pair::new(library, "excludes").await;
    let Pair { ours, theirs, .. } = &pair;

    let guard = ours.lock().await.unwrap();
    assert_eq!(pair.value(), guard.owner_id().to_string());
    assert!(!theirs.try_acquire(LONG).await.ok());
    assert!(!theirs.acquire(LONG, ms(100)).await.ok());
    assert_eq!(pair.value(), guard.owner_id().to_string());
    guard.release().await.unwrap();

    assert!(theirs.try_acquire(LONG).await.ok());
    let value = pair.value();
    assert!(ours.try_lock().await.unwrap().is_none());
    assert!(ours.try_lock_for(IN_VAIN).await.unwrap().is_none());
    let holder = ours.inspect().await.unwrap().holders.remove(0);
    assert_eq!((&holder.id, holder.hold_count), (&value, 1));
    assert!(holder.client.is_none());
    match ours.inspect().await.unwrap().ttl {
        Some(Ttl::For(left)) if left <= LONG && left > LONG / 2 => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(pair.value(), value);
    theirs.release().await.ok();
    assert!(!ours.is_locked().await.unwrap());
}

async fn a_release_frees_the_lock_for_the_other_side(library: Redlock) {
    const ROUNDS: usize = 5;
    let Pair { ours, theirs, name, .. } = Pair::new(library, "release").await;
    let (mut to_rust, mut to_them) = (Handovers::default(), Handovers::default());
    assert!(theirs.try_acquire(LONG).await.ok());
    for round in 0..=ROUNDS {
        let waiter = tokio::spawn({
            let ours = ours.clone();
            async move { (ours.lock().await.unwrap(), Instant::now()) }
        });
        listened_to(server(), &lock_channel(&name), 1).await;
        let release = theirs.release().await;
        let (guard, granted) = joined(waiter).await;

        let waiter = theirs.acquire(LONG, PATIENCE);
        assert!(waiter.answer_within(SHORT).is_none());
        let released = Instant::now();
        guard.release().await.unwrap();
        let grant = waiter.await;
        if round > 0 {
            to_rust.record(release.started, granted);
            to_them.record(released, grant.ended);
        }
        release.ok();
        assert!(grant.ok());
        listened_to(server(), &lock_channel(&name), 0).await;
    }
    theirs.release().await.ok();
    let version = peer(library).version();
    to_rust.show(&format!("{library:?} {version}: its release to Rust's lock"));
    to_them.show(&format!("{library:?} {version}: Rust's release to its lock"));
}

async fn the_other_side_acquires_when_a_lease_expires(library: Redlock) {
    let pair = Pair::new(library, "lease").await;
    let Pair { ours, theirs, .. } = &pair;

    assert!(theirs.try_acquire(LEASE).await.ok());
    let end = pair.ends();
    let guard = within(PATIENCE, "their lease ends", ours.lease(LEASE).lock()).await.unwrap();
    assert_had_after(end, SystemTime::now());

    let end = pair.ends();
    let grant = theirs.acquire(LONG, PATIENCE).await;
    assert_had_after(end, grant.wall);
    assert!(grant.ok());
    assert_eq!(guard.lost().await, LostReason::Expired);
    let value = pair.value();
    match guard.release().await {
        Err(Error::NotHeld { holder, .. }) => assert_eq!(holder.unwrap().id, value),
        other => panic!("{other:?}"),
    }
    theirs.release().await.ok();
}

async fn an_extended_lease_excludes_the_other_side(library: Redlock) {
    let pair = Pair::new(library, "extension").await;
    let Pair { ours, theirs, .. } = &pair;

    assert!(theirs.try_acquire(LEASE).await.ok());
    theirs.extend(4 * LEASE).await.ok();
    assert!(ours.try_lock_for(2 * LEASE).await.unwrap().is_none());
    theirs.release().await.ok();

    let guard = ours.lease(LEASE).lock().await.unwrap();
    guard.extend(4 * LEASE).await.unwrap();
    assert!(!theirs.acquire(LONG, 2 * LEASE).await.ok());
    guard.release().await.unwrap();
}

async fn our_watchdog_excludes_the_other_side(library: Redlock) {
    let options = ClientOptions::new().watchdog_timeout(3 * LEASE).response_timeout(LEASE);
    let Pair { ours, theirs, .. } = Pair::with(library, "watchdog", options).await;
    let guard = ours.lock().await.unwrap();
    assert!(!theirs.acquire(LONG, 4 * LEASE).await.ok());
    guard.release().await.unwrap();
}

async fn a_lost_hold_cannot_release_the_lock_of_the_other_side(library: Redlock) {
    let pair = Pair::new(library, "lost").await;
    let Pair { ours, theirs, name, .. } = &pair;

    assert!(theirs.try_acquire(LONG).await.ok());
    server().cli(&["DEL", name]).ok();
    let guard = ours.lock().await.unwrap();
    assert_says_not_owner(library, &theirs.extend(LONG).await.err().to_string());
    assert_says_not_owner(library, &theirs.release().await.err().to_string());
    assert_eq!(pair.value(), guard.owner_id().to_string());

    server().cli(&["DEL", name]).ok();
    assert!(theirs.try_acquire(LONG).await.ok());
    let value = pair.value();
    let extended = guard.extend(LONG).await;
    assert!(matches!(extended, Err(Error::Lost { .. })), "{extended:?}");
    match guard.release().await {
        Err(Error::NotHeld { holder, .. }) => assert_eq!(holder.unwrap().id, value),
        other => panic!("{other:?}"),
    }
    assert_eq!(pair.value(), value);
    theirs.release().await.ok();
}

#[track_caller]
fn assert_says_not_owner(library: Redlock, thrown: &str) {
    let class = match library {
        Redlock::RedisPy => "redis.exceptions.LockNotOwnedError",
        Redlock::NodeRedlock => "LockError",
        other => unreachable!("{other:?} is in quorum.rs"),
    };
    assert!(thrown.starts_with(class), "{thrown}");
}

async fn a_force_release_works_across_sides(library: Redlock) {
    let Pair { client, ours, theirs, .. } = Pair::new(library, "forced").await;
    assert!(!ours.force_unlock("").await.unwrap());
    assert!(theirs.try_acquire(LONG).await.ok());
    assert!(ours.force_unlock("maintenance").await.unwrap());
    assert_says_not_owner(library, &theirs.release().await.err().to_string());
    assert!(theirs.try_acquire(LONG).await.ok());
    theirs.release().await.ok();
    client.shutdown().await;
}
