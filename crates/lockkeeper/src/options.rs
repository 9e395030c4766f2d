//! Settings of a client, and the reason behind every default.

use std::time::Duration;

use crate::clock::Clock;
use crate::error::{Error, Result};

/// 30 s: how long a lock without a lease outlives its process: Redisson's `lockWatchdogTimeout`.
/// Long enough to survive a failover, short enough that a crash does not block the others for long.
pub const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(30);

/// 3 s: how long opening a connection may take before the server counts as unreachable.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// 3 s: how long an answer may take before the connection is given up. A tenth of the watchdog timeout,
/// so that a renewal can be repeated several times before the lease is lost.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// 30 s: after how long without an answer an idle connection to Redis is pinged: Redisson's
/// `pingConnectionInterval`. Shorter than the few minutes after which firewalls, routers and load
/// balancers silently drop a connection.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// 10 s: how long a waiting acquire retries on a store that does not answer.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);

/// 20 ms: the pause before the first reconnect; it doubles up to `MAX_BACKOFF` and is jittered,
/// so that a fleet does not reconnect all at once.
const MIN_BACKOFF: Duration = Duration::from_millis(20);

/// 1 s: the longest pause between two reconnects.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// 5 s: the longest sleep of a waiter between two attempts, because wake-ups can get lost.
pub const RECHECK: Duration = Duration::from_secs(5);

/// The longest lease on a quorum of servers.
pub const LONGEST_LEASE: Duration = WATCHDOG_TIMEOUT;

/// The part of a lease that is not used because clocks run differently, in addition to
/// [`DRIFT_FIXED`].
pub const DRIFT_RATIO: f64 = 0.01;

/// The fixed part of a lease that is not used: Redis expires keys to the millisecond.
pub const DRIFT_FIXED: Duration = Duration::from_millis(2);

/// The longest lease: beyond a century a duration is a mistake, and near the largest number that
/// Redis can count it would be refused half-way through.
pub const MAX_LEASE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Settings of a [`Client`](crate::Client).
///
/// ```
/// use std::time::Duration;
/// use lockkeeper::ClientOptions;
///
/// let options = ClientOptions::new()
///     .watchdog_timeout(Duration::from_secs(10))
///     .name_prefix("shop:")
///     .client_name("checkout");
/// ```
#[derive(Clone, Debug)]
#[must_use = "settings have an effect when a client is made with them"]
pub struct ClientOptions {
    pub(crate) watchdog_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) unreachable_after: Duration,
    pub(crate) min_backoff: Duration,
    pub(crate) max_backoff: Duration,
    pub(crate) drift_ratio: f64,
    pub(crate) drift_fixed: Duration,
    pub(crate) token_ttl: Option<Duration>,
    pub(crate) name_prefix: Vec<u8>,
    pub(crate) client_name: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) tls: Tls,
    pub(crate) password: Secret,
    pub(crate) sentinel_password: Secret,
    pub(crate) clock: Option<Clock>,
    pub(crate) read_only: bool,
    pub(crate) acknowledgement: Acknowledgement,
    pub(crate) cluster_wakeups: Wakeups,
    pub(crate) longest_lease: Duration,
}

/// How waiters in a Redis Cluster are notified of a release.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Wakeups {
    /// By sharded messages (`SPUBLISH`) where the servers support them, from Redis 7.0 on, and by plain
    /// ones otherwise. As Redisson 3.28 and later do by default.
    #[default]
    Auto,
    /// By plain messages (`PUBLISH`), which every node passes on to all others. As Redisson before 3.22
    /// does, and later ones whose `shardedSubscriptionMode` is `OFF`.
    Classic,
    /// In both ways: for Redisson 3.22 to 3.27, which does not reliably detect sharded messages, and for a
    /// mixture of clients.
    Both,
}

/// Which writes count: those that replicas have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Acknowledgement {
    /// By one replica, where the client follows failovers and the primary has a replica.
    Default,
    Off,
    /// By this many replicas within this span.
    By(u32, Duration),
}

/// The lease of a hold: fixed, or renewed by the watchdog. A `Duration` is a fixed lease.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use std::time::Duration;
/// use lockkeeper::LeaseTime;
///
/// let client = lockkeeper::Client::memory();
/// let fixed = client.lock("a").lease(Duration::from_secs(5)).lock().await?;
/// let renewed = client.lock("b").lease(LeaseTime::Renewed(Duration::from_secs(5))).lock().await?;
/// # drop((fixed, renewed));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeaseTime {
    /// The hold expires after this span unless it is released before. The watchdog never renews it, but
    /// signals its loss.
    Fixed(Duration),
    /// The watchdog renews the lease every third of this span, instead of the client's
    /// [`watchdog_timeout`](ClientOptions::watchdog_timeout).
    Renewed(Duration),
}

impl From<Duration> for LeaseTime {
    fn from(span: Duration) -> Self {
        Self::Fixed(span)
    }
}

/// How a [`SpinLock`](crate::SpinLock) waits between two tries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "pauses have an effect when a lock is made with them"]
pub struct Backoff {
    first: Duration,
    max: Duration,
    factor: u32,
}

impl Backoff {
    /// Redisson's: 1 ms, then twice as long each time up to 128 ms, and jittered, so that two
    /// waiters do not try in step.
    pub const fn exponential() -> Self {
        Self { first: Duration::from_millis(1), max: Duration::from_millis(128), factor: 2 }
    }

    /// The same pause each time.
    pub const fn constant(pause: Duration) -> Self {
        Self { first: pause, max: pause, factor: 1 }
    }

    /// The first pause; at least 1 ms.
    pub fn first(mut self, pause: Duration) -> Self {
        self.first = pause;
        self
    }

    /// The longest pause.
    pub fn max(mut self, pause: Duration) -> Self {
        self.max = pause;
        self
    }

    /// The factor between one pause and the next.
    pub fn factor(mut self, factor: u32) -> Self {
        self.factor = factor;
        self
    }

    pub(crate) fn pause(&self, tries: u32) -> Duration {
        let growth = self.factor.max(1).saturating_pow(tries.min(31));
        let pause = self.first.saturating_mul(growth).min(self.max).min(MAX_LEASE);
        let jitter = if self.factor > 1 { 0.5 + fastrand::f64() / 2.0 } else { 1.0 };
        pause.mul_f64(jitter).max(Duration::from_millis(1))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::exponential()
    }
}

/// A password. Debug output shows only whether it is set.
#[derive(Clone, Default)]
pub(crate) struct Secret(pub(crate) Option<String>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.is_some().fmt(f)
    }
}

/// Certificates, as PEM. Debug output shows only whether they are set.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca.is_some())
            .field("identity", &self.identity.is_some())
            .finish()
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            watchdog_timeout: WATCHDOG_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            response_timeout: RESPONSE_TIMEOUT,
            keep_alive: KEEP_ALIVE,
            unreachable_after: UNREACHABLE_AFTER,
            min_backoff: MIN_BACKOFF,
            max_backoff: MAX_BACKOFF,
            drift_ratio: DRIFT_RATIO,
            drift_fixed: DRIFT_FIXED,
            token_ttl: None,
            name_prefix: Vec::new(),
            client_name: None,
            program: None,
            tls: Tls::default(),
            password: Secret::default(),
            sentinel_password: Secret::default(),
            clock: None,
            read_only: false,
            acknowledgement: Acknowledgement::Default,
            cluster_wakeups: Wakeups::Auto,
            longest_lease: LONGEST_LEASE,
        }
    }
}

impl ClientOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a file store even if this user may only read it: then locks can be listed and inspected, and
    /// every request that would change something is refused. Without effect where the user may write, and
    /// on other stores.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The lease of a lock for which none was given; it is renewed every third of it.
    /// [`WATCHDOG_TIMEOUT`] by default. If you shorten it, shorten the
    /// [`response_timeout`](ClientOptions::response_timeout), too: a renewal is repeated only after
    /// the last one has timed out.
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Self {
        self.watchdog_timeout = timeout;
        self
    }

    /// How long opening a connection may take. [`CONNECT_TIMEOUT`] by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long an answer may take. [`RESPONSE_TIMEOUT`] by default.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// After how long without an answer an idle connection to Redis is pinged, so that a connection
    /// that was dropped on the way is replaced before the next request. 30 s by default.
    pub fn keep_alive(mut self, period: Duration) -> Self {
        self.keep_alive = period;
        self
    }

    /// How long a waiting acquire retries on a store that does not answer. [`UNREACHABLE_AFTER`] by
    /// default.
    pub fn unreachable_after(mut self, span: Duration) -> Self {
        self.unreachable_after = span;
        self
    }

    /// The shortest and the longest pause between two attempts to reconnect. 20 ms and 1 s by default.
    pub fn retry_backoff(mut self, min: Duration, max: Duration) -> Self {
        (self.min_backoff, self.max_backoff) = (min, max);
        self
    }

    /// The part of each lease that is not used because clocks differ: `ratio` of it and a fixed
    /// part. [`DRIFT_RATIO`] and [`DRIFT_FIXED`] by default.
    pub fn drift(mut self, ratio: f64, fixed: Duration) -> Self {
        (self.drift_ratio, self.drift_fixed) = (ratio, fixed);
        self
    }

    /// How long the sequence of a fenced lock's tokens is kept after its last token. For ever by
    /// default, as in Redisson. Where no Java process uses the locks, a limit keeps a store with
    /// very many names small. Tokens still grow, by the server's clock.
    pub fn token_ttl(mut self, span: Duration) -> Self {
        self.token_ttl = Some(span);
        self
    }

    /// Counts a write to Redis only once this many replicas have it: an acquire, a re-entry, a handoff,
    /// a renewal, and every change of a plain semaphore or a latch. With fewer replicas within
    /// `timeout`, the request fails with [`Unacknowledged`](crate::Error::Unacknowledged); a waiting
    /// acquire tries again. Releases and force-releases are not acknowledged.
    ///
    /// A hold survives a failover if one of the replicas that acknowledged it is promoted. Only if *all*
    /// that can be promoted must acknowledge it, that is always so; and then locking stops while one of them is
    /// down. By default, one replica within a second on `redis+sentinel://`, `redis+replicated://` and
    /// `redis+cluster://`, as long as the primary has a replica; none on `redis://`.
    pub fn acknowledged_by(mut self, replicas: u32, timeout: Duration) -> Self {
        self.acknowledgement = Acknowledgement::By(replicas, timeout);
        self
    }

    /// Counts a write as soon as the primary has it: the fastest, and a failover may lose holds.
    pub fn unacknowledged(mut self) -> Self {
        self.acknowledgement = Acknowledgement::Off;
        self
    }

    /// How waiters in a Redis Cluster are notified. All clients of a lock must agree, those of other
    /// libraries included: see [`Wakeups`]. Without effect outside of a cluster.
    pub fn cluster_wakeups(mut self, wakeups: Wakeups) -> Self {
        self.cluster_wakeups = wakeups;
        self
    }

    /// The longest lease of any lock on a quorum: see [`Client::quorum`](crate::Client::quorum). A longer
    /// one is refused. A member that may have lost its data grants nothing for this long, and neither does
    /// a new quorum. All clients of a quorum need the same. [`LONGEST_LEASE`] by default; without effect on
    /// other stores.
    pub fn longest_lease(mut self, span: Duration) -> Self {
        self.longest_lease = span;
        self
    }

    /// Put before every name, as a Redisson `NameMapper` would. Empty by default.
    pub fn name_prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.name_prefix = prefix.as_ref().to_vec();
        self
    }

    /// The name shown in `CLIENT LIST`. `lockkeeper` by default.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = Some(name.into());
        self
    }

    /// The program name shown for holders of this client. The name of the executable by default.
    pub fn program(mut self, name: impl Into<String>) -> Self {
        self.program = Some(name.into());
        self
    }

    /// The password of Redis servers whose URL has none: it need not be put into the URL.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Secret(Some(password.into()));
        self
    }

    /// The same for the sentinels of a `redis+sentinel://` URL.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_password = Secret(Some(password.into()));
        self
    }

    /// The certificate authority (PEM) to trust for `rediss://`, instead of the system's.
    pub fn tls_ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.ca = Some(pem.into());
        self
    }

    /// The certificate and key (PEM) of this client for `rediss://`.
    pub fn tls_identity(mut self, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.tls.identity = Some((cert.into(), key.into()));
        self
    }

    /// Another clock than the machine's own, for tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// What `CLIENT LIST` shows.
    #[cfg(feature = "redis")]
    pub(crate) fn shown_name(&self) -> &str {
        self.client_name.as_deref().unwrap_or("lockkeeper")
    }

    /// The pause after this many failures in a row: short at first, as a restart takes a moment,
    /// then twice as long each time, and jittered, so that clients do not retry in step.
    pub(crate) fn backoff(&self, failures: u32) -> Duration {
        let pause = self.min_backoff.saturating_mul(1 << failures.min(16)).min(self.max_backoff);
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::invalid(None, what));
        if !(MIN_WATCHDOG..=MAX_LEASE).contains(&self.watchdog_timeout) {
            return refuse("the watchdog timeout must be between 30 ms and a century");
        }
        for (what, span) in [
            ("connect timeout", self.connect_timeout),
            ("response timeout", self.response_timeout),
            ("keep-alive period", self.keep_alive),
            ("retry back-off", self.min_backoff),
        ] {
            if span.is_zero() || span > MAX_LEASE {
                return refuse(&format!("the {what} must be more than zero and under a century"));
            }
        }
        if !(MIN_WATCHDOG..=MAX_LEASE).contains(&self.longest_lease) {
            return refuse("the longest lease must be between 30 ms and a century");
        }
        if self.max_backoff < self.min_backoff || self.max_backoff > MAX_LEASE {
            return refuse("the longest retry back-off must not be below the shortest");
        }
        if !(0.0..0.5).contains(&self.drift_ratio) {
            return refuse("the drift must be at least 0 and under half of the lease");
        }
        if self.token_ttl.is_some_and(|ttl| ttl < Duration::from_secs(1) || ttl > MAX_LEASE) {
            return refuse("tokens must be kept for at least a second and under a century");
        }
        if let Acknowledgement::By(replicas, timeout) = self.acknowledgement
            && (replicas == 0 || timeout < MIN_ACKNOWLEDGEMENT || timeout > self.watchdog_timeout)
        {
            return refuse(
                "acknowledgement needs at least one replica, and a timeout between a millisecond \
                 and the watchdog timeout",
            );
        }
        let name = self.client_name.as_deref().unwrap_or_default();
        if name.bytes().any(|b| !(b'!'..=b'~').contains(&b)) {
            return refuse("the client name must be printable ASCII without spaces");
        }
        Ok(())
    }
}

/// `WAIT` counts in milliseconds, and 0 waits for ever.
const MIN_ACKNOWLEDGEMENT: Duration = Duration::from_millis(1);

/// Below this a third of the timeout comes near the granularity of timers.
pub(crate) const MIN_WATCHDOG: Duration = Duration::from_millis(30);
