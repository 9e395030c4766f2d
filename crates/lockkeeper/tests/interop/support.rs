//! What the themes share.

use std::future::{Future, IntoFuture};
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use lockkeeper::{Client, ClientOptions};
pub(crate) use testkit::awake_between;
use testkit::java::Worker;
use testkit::{Cli, Cluster, JavaPeer, RedisServer, Redisson, Reply, Stopwatch};
use tokio::task::JoinHandle;

/// A waiter that was told has the lock within this, on a machine with two busy cores; one that was not
/// has slept until it looked again by itself, after 2.5 s here and after the lease in Java.
pub(crate) const SOON: Duration = Duration::from_secs(2);

/// What a test waits for at most where the time itself is not what is tested.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// Until one that waits here for a fair lock has spoken, which it does about once a second; by itself it
/// looks after 2.5 s at the earliest.
pub(crate) const SPOKEN: Duration = Duration::from_millis(2400);

/// Too long to end within a test: what ends before it was not ended by a lease.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Long enough for a wait to have begun, and short enough to wait for.
pub(crate) const SHORT: Duration = Duration::from_millis(50);

/// A wait of ours that is to end in vain. Much longer than an answer takes: without one by its end, nobody
/// knows whether it was in vain, and that is an error.
pub(crate) const IN_VAIN: Duration = Duration::from_secs(1);

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The server that all tests share which leave it alone. They use names of their own.
pub(crate) fn server() -> &'static RedisServer {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    SERVER.get_or_init(RedisServer::start)
}

/// The peer of a version, for all tests that leave it alive; on [`server`]. They use workers of their
/// own.
pub(crate) fn peer(redisson: Redisson) -> &'static JavaPeer {
    static PEERS: [OnceLock<JavaPeer>; 3] = [const { OnceLock::new() }; 3];
    let index = Redisson::ALL.iter().position(|other| *other == redisson).unwrap();
    PEERS[index].get_or_init(|| JavaPeer::start(redisson, &server().url()))
}

/// What most tests need: a client of ours, a name and two threads on the other side, all for
/// themselves.
pub(crate) struct Stage {
    pub(crate) client: Client,
    pub(crate) peer: &'static JavaPeer,
    /// The test's and the version's.
    pub(crate) name: String,
    pub(crate) one: Worker<'static>,
    pub(crate) two: Worker<'static>,
}

impl Stage {
    /// `test` is the name of the test, or another unique name.
    pub(crate) async fn new(redisson: Redisson, test: &str) -> Self {
        Self::with(redisson, test, ClientOptions::new()).await
    }

    pub(crate) async fn with(redisson: Redisson, test: &str, options: ClientOptions) -> Self {
        let peer = peer(redisson);
        let client = connect(server(), options).await;
        let name = format!("{test}:{}", redisson.profile());
        let (one, two) = (format!("{name} 1"), format!("{name} 2"));
        Self { client, peer, one: peer.on(&one), two: peer.on(&two), name }
    }
}

/// What a client connects to.
pub(crate) trait Store {
    fn url(&self) -> String;
}

impl Store for RedisServer {
    fn url(&self) -> String {
        self.url()
    }
}

impl Store for Cluster {
    fn url(&self) -> String {
        self.url()
    }
}

pub(crate) async fn connect(store: &impl Store, options: ClientOptions) -> Client {
    within(PATIENCE, "connecting", Client::connect_with(&store.url(), options))
        .await
        .expect("the server is there")
}

/// The outcome of `work`, which must come within `limit`. Time in which the machine stood still does not count.
#[track_caller]
pub(crate) fn within<T>(
    limit: Duration,
    what: &str,
    work: impl IntoFuture<Output = T>,
) -> impl Future<Output = T> {
    let late = format!("not within {limit:?}: {what}");
    async move {
        let (watch, mut work) = (Stopwatch::start(), std::pin::pin!(work.into_future()));
        loop {
            let left = limit.saturating_sub(watch.elapsed());
            assert!(!left.is_zero(), "{late}");
            if let Ok(done) = tokio::time::timeout(left, work.as_mut()).await {
                return done;
            }
        }
    }
}

/// It was had when the lease of the one before had ended, and soon after.
#[track_caller]
pub(crate) fn assert_had_after(ends: SystemTime, granted: SystemTime) {
    // The wall clock of the other side and the server's end are whole milliseconds.
    let late = (granted + ms(1)).duration_since(ends).expect("the lease had not ended yet");
    let ago = granted.elapsed().unwrap_or_default();
    let granted = Instant::now() - ago;
    let awake = awake_between(granted - late, granted);
    assert!(awake < SOON, "{late:?} after the end of the lease");
}

/// The outcome of a task, which must come soon enough for a test; its panic is the test's.
pub(crate) async fn joined<T>(task: JoinHandle<T>) -> T {
    let outcome = within(3 * PATIENCE, "the end of a task", task).await;
    outcome.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// Looks until `condition` holds. For what only the server knows.
#[track_caller]
pub(crate) fn eventually(
    what: &str,
    mut condition: impl FnMut() -> bool,
) -> impl Future<Output = ()> {
    let late = format!("not within {PATIENCE:?}: {what}");
    async move {
        let watch = Stopwatch::start();
        while !condition() {
            assert!(watch.elapsed() < PATIENCE, "{late}");
            tokio::time::sleep(ms(2)).await;
        }
    }
}

/// Where Redisson makes a freed lock known, by its own rule.
pub(crate) fn lock_channel(name: &str) -> String {
    match name.contains('{') {
        true => format!("redisson_lock__channel:{name}"),
        false => format!("redisson_lock__channel:{{{name}}}"),
    }
}

/// How many connections listen to a channel.
pub(crate) fn listeners(server: &RedisServer, channel: &str) -> i64 {
    server.cli(&["PUBSUB", "NUMSUB", channel]).array()[1].int()
}

/// Waits until this many connections have subscribed to a channel.
///
/// It tries once more before it does, on either side. What is released before that needs no wake-up, and
/// nobody can see from outside when it has tried; so it is left a moment. Without it a test is right all
/// the same, but may not notice that nobody was told.
pub(crate) async fn listened_to(server: &RedisServer, channel: &str, connections: i64) {
    let what = format!("{connections} listen to {channel}");
    eventually(&what, || listeners(server, channel) == connections).await;
    if connections > 0 {
        tokio::time::sleep(SHORT).await;
    }
}

/// Reads a counter and writes it back, one higher: two at once would lose one.
pub(crate) fn increment(connection: &mut Cli, counter: &str) {
    let value = match connection.cmd(&["GET", counter]) {
        Reply::Nil => 0,
        value => value.text().parse::<u64>().expect("a number"),
    };
    connection.cmd(&["SET", counter, &(value + 1).to_string()]).ok();
}

/// Times of hand-overs. The first ones of a JVM are spent on loading classes, and say nothing.
#[derive(Debug, Default)]
pub(crate) struct Handovers(Vec<Duration>);

impl Handovers {
    /// # Panics
    ///
    /// If it took longer than a wake-up.
    #[track_caller]
    pub(crate) fn record(&mut self, released: Instant, granted: Instant) {
        let took = awake_between(released, granted);
        assert!(took < SOON, "hand-over {} took {took:?}", self.0.len() + 1);
        self.0.push(took);
    }

    pub(crate) fn median(&mut self) -> Duration {
        self.0.sort();
        self.0[self.0.len() / 2]
    }

    /// Prints them, for `--nocapture`.
    pub(crate) fn show(mut self, what: &str) {
        let (median, worst) = (self.median(), self.0[self.0.len() - 1]);
        println!("{what}: median {median:.1?}, worst {worst:.1?} of {}", self.0.len());
    }
}

/// One test per version that is named in brackets, from an `async fn` that takes the version.
macro_rules! on_versions {
    (@tests $name:ident [$($version:ident)+]) => {
        mod $name {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $version() {
                    super::$name(crate::support::on_versions!(@ $version)).await;
                }
            )+
        }
    };
    (@ newest) => { testkit::Redisson::Newest };
    (@ v3_27) => { testkit::Redisson::V3_27 };
    (@ v3_14) => { testkit::Redisson::V3_14 };
    ($versions:tt $($name:ident)+) => {
        $(crate::support::on_versions! { @tests $name $versions })+
    };
}
pub(crate) use on_versions;
