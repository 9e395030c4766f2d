//! Our `Mutex` on a quorum beside other libraries of the Redlock family on the same members.
//!
//! What holds between the two sides is what Redlock gives: one holder while the members keep their data. The last
//! two tests are about a member that does not. What both sides do on one server is in `redlock.rs`.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::{Client, ClientOptions, Holder, Mutex, Ttl};
use testkit::{FaultProxy, History, RedisServer, Redlock, RedlockMutex, RedlockPeer, Reply};

use crate::support::*;

/// One test per library, from an `async fn` that takes it.
macro_rules! on_libraries {
    ($($name:ident)+) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn node_redlock() {
                super::$name(testkit::Redlock::NodeRedlock).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redsync() {
                super::$name(testkit::Redlock::Redsync).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn rslock() {
                super::$name(testkit::Redlock::Rslock).await;
            }
        })+
    };
}

on_libraries! {
    a_holder_excludes_the_other_side
    a_release_frees_the_lock_for_the_other_side
    both_sides_contend_without_overlap
    a_member_that_lost_its_data_lets_the_other_side_in_beside_us
    a_member_that_lost_its_data_does_not_let_us_in_beside_the_other_side
}

/// Of our holds; a member that is new does not vote for so long.
const LONGEST: Duration = Duration::from_secs(6);

/// Three independent servers.
struct Quorum([RedisServer; 3]);

impl Quorum {
    fn start() -> Self {
        Self([(); 3].map(|()| RedisServer::start()))
    }

    fn urls(&self) -> [String; 3] {
        self.0.each_ref().map(RedisServer::url)
    }

    /// What each member has stored.
    fn values(&self, name: &str) -> [Reply; 3] {
        self.0.each_ref().map(|member| member.cli(&["GET", name]))
    }

    /// The value that a majority has.
    #[track_caller]
    fn value(&self, name: &str) -> Vec<u8> {
        let values = self.values(name);
        let is_of_majority = |one: &&Reply| values.iter().filter(|other| other == one).count() > 1;
        match values.iter().find(is_of_majority) {
            Some(Reply::Bulk(value)) => value.clone(),
            _ => panic!("{values:?}"),
        }
    }
}

/// Returns when the members vote.
async fn connect(urls: [String; 3], longest: Duration) -> Client {
    let options = ClientOptions::new().longest_lease(longest).watchdog_timeout(longest);
    // The cold start is no outage.
    let options = options.response_timeout(LONGEST).unreachable_after(PATIENCE);
    let client = Client::connect_with(format!("quorum:{}", urls.join(",")), options).await.unwrap();
    let first = client.mutex("first").lock();
    within(PATIENCE, "the cold start", first).await.unwrap().release().await.unwrap();
    client
}

/// The members that all tests share which leave them alone.
fn quorum() -> &'static Quorum {
    static QUORUM: OnceLock<Quorum> = OnceLock::new();
    QUORUM.get_or_init(Quorum::start)
}

/// The peer of a library on [`quorum`].
fn peer(library: Redlock) -> &'static RedlockPeer {
    static PEERS: [OnceLock<RedlockPeer>; 4] = [const { OnceLock::new() }; 4];
    let index = Redlock::ALL.iter().position(|other| *other == library).unwrap();
    PEERS[index].get_or_init(|| RedlockPeer::on_quorum(library, quorum().urls()))
}

/// A mutex of a test's own, from both sides.
struct Pair {
    ours: Mutex,
    theirs: RedlockMutex<'static>,
    name: String,
}

impl Pair {
    async fn new(library: Redlock, test: &str) -> Self {
        let name = format!("quorum {test}:{library:?}");
        let client = connect(quorum().urls(), LONGEST).await;
        Self { ours: client.mutex(&name), theirs: peer(library).mutex(test, &name), name }
    }
}

async fn a_holder_excludes_the_other_side(library: Redlock) {
    let Pair { ours, theirs, name } = Pair::new(library, "excludes").await;
    let guard = ours.lock().await.unwrap();
    assert!(!theirs.acquire(LONG, ms(100)).await.ok());
    assert_eq!(quorum().value(&name), guard.owner_id().to_string().as_bytes());
    guard.release().await.unwrap();

    assert!(theirs.acquire(LONG, PATIENCE).await.ok());
    let value = quorum().value(&name);
    assert!(ours.try_lock().await.unwrap().is_none());
    assert!(ours.try_lock_for(IN_VAIN).await.unwrap().is_none());
    assert_is(ours.inspect().await.unwrap().holders.pop(), &value);
    match ours.inspect().await.unwrap().ttl {
        Some(Ttl::For(left)) if left <= LONG && left > LONG / 2 => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(quorum().value(&name), value);
    theirs.release().await.ok();
    assert!(!ours.is_locked().await.unwrap());
}

async fn a_release_frees_the_lock_for_the_other_side(library: Redlock) {
    let Pair { ours, theirs, name } = Pair::new(library, "release").await;
    assert!(theirs.try_acquire(LONG).await.ok());
    for _ in 0..3 {
        let waiter = tokio::spawn({
            let ours = ours.clone();
            async move { ours.lock().await.unwrap() }
        });
        for member in &quorum().0 {
            listened_to(member, &lock_channel(&name), 1).await;
        }
        theirs.release().await.ok();
        let guard = within(SOON, "our turn", joined(waiter)).await;

        let waiter = theirs.acquire(LONG, PATIENCE);
        assert!(waiter.answer_within(SHORT).is_none());
        guard.release().await.unwrap();
        assert!(within(SOON, "their turn", waiter).await.ok());
    }
    theirs.release().await.ok();
}

/// The values of rslock are no text; how these are shown is not what is tested.
#[track_caller]
fn assert_is(holder: Option<Holder>, value: &[u8]) {
    let holder = holder.expect("they hold it");
    assert_eq!((holder.hold_count, &holder.client), (1, &None));
    if let Ok(text) = std::str::from_utf8(value) {
        assert_eq!(holder.id, text);
    }
}

async fn both_sides_contend_without_overlap(library: Redlock) {
    const ROUNDS: usize = 12;
    let Pair { name, .. } = Pair::new(library, "contend").await;
    let history = History::new();
    let mut tasks = Vec::new();
    for number in 0..2 {
        let client = connect(quorum().urls(), LONGEST).await;
        let (history, name) = (history.clone(), name.clone());
        let holder = format!("ours {number}");
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = client.mutex(&name).lock().await.unwrap();
                history.granted(&name, &holder, None);
                tokio::time::sleep(ms(5)).await;
                history.released(&name, &holder);
                guard.release().await.unwrap();
                // Room for those who poll.
                tokio::time::sleep(ms(20)).await;
            }
        }));
    }
    for number in 0..2 {
        let holder = format!("theirs {number}");
        let theirs = peer(library).mutex(&format!("contend-{number}"), &name);
        let (history, name) = (history.clone(), name.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                assert!(theirs.acquire(LONG, PATIENCE).await.ok(), "{holder} starves");
                history.granted(&name, &holder, None);
                tokio::time::sleep(ms(5)).await;
                history.released(&name, &holder);
                theirs.release().await.ok();
            }
        }));
    }
    for task in tasks {
        joined(task).await;
    }
    history.assert_valid();
    assert_eq!(history.grants(), 4 * ROUNDS);
}

/// What does not remain beside them: they know no quarantine. Between our clients a test of `faults` shows the
/// contrary.
async fn a_member_that_lost_its_data_lets_the_other_side_in_beside_us(library: Redlock) {
    const HOLD: Duration = Duration::from_secs(10);
    let quorum = Quorum::start();
    let ports = quorum.0.each_ref().map(RedisServer::port);
    let proxies = ports.map(FaultProxy::start_blocking);
    let client = connect(proxies.each_ref().map(FaultProxy::url), HOLD).await;
    let peer = RedlockPeer::on_quorum(library, quorum.urls());
    let cut_off = |proxy: &FaultProxy| {
        proxy.refuse(true);
        proxy.cut();
    };
    // A bare majority. If it could reach the second one again, it would soon find out that its hold is lost.
    cut_off(&proxies[2]);
    let guard = client.mutex("a").lease(HOLD).lock().await.unwrap();
    cut_off(&proxies[1]);
    quorum.0[1].cli(&["FLUSHALL"]).ok();
    assert!(peer.mutex("main", "a").try_acquire(LONG).await.ok());
    assert!(!guard.is_lost(), "it was too slow to show anything");
}

/// What remains beside them, if their lease is no longer than our longest.
async fn a_member_that_lost_its_data_does_not_let_us_in_beside_the_other_side(library: Redlock) {
    let quorum = Quorum::start();
    let client = connect(quorum.urls(), LONGEST).await;
    let peer = RedlockPeer::on_quorum(library, quorum.urls());
    assert!(peer.mutex("main", "a").try_acquire(LONGEST).await.ok());
    let [keeps, others @ ..] = &quorum.0;
    others.iter().for_each(|member| drop(member.cli(&["FLUSHALL"]).ok()));
    let left = keeps.cli(&["PEXPIRETIME", "a"]).int();
    let end = UNIX_EPOCH + ms(left.try_into().expect("it was too slow to show anything"));
    let guard = within(PATIENCE, "the quarantine", client.mutex("a").lock()).await.unwrap();
    assert!(SystemTime::now() + ms(1) > end, "two holders");
    guard.release().await.unwrap();
}
