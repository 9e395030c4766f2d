//! Settings of a client, and the reason behind every default.

use std::time::Duration;

use crate::clock::Clock;
use crate::error::{Error, Result};
#[cfg(feature = "redis")]
use crate::redis_options::RedisOptions;

/// Redisson's `lockWatchdogTimeout`: long enough to survive a failover, short enough that a crash does not block the
/// others for long.
pub const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(30);

/// A tenth of the watchdog timeout, so that a renewal can be repeated several times before the lease is lost.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Long enough for a restart or a failover.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);

/// The longest sleep of a waiter between two attempts, because wake-ups can get lost.
pub const RECHECK: Duration = Duration::from_secs(5);

/// Clocks of different machines run at slightly different speeds.
pub const DRIFT_RATIO: f64 = 0.01;

/// Redis expires keys to the millisecond.
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
///     .name_prefix("shop:");
/// ```
#[derive(Clone, Debug)]
#[must_use = "settings have an effect when a client is made with them"]
pub struct ClientOptions {
    pub(crate) watchdog_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) unreachable_after: Duration,
    pub(crate) min_backoff: Duration,
    pub(crate) max_backoff: Duration,
    pub(crate) drift_ratio: f64,
    pub(crate) drift_fixed: Duration,
    pub(crate) token_ttl: Option<Duration>,
    pub(crate) name_prefix: Vec<u8>,
    pub(crate) program: Option<String>,
    pub(crate) clock: Option<Clock>,
    pub(crate) read_only: bool,
    pub(crate) longest_lease: Duration,
    #[cfg(feature = "redis")]
    pub(crate) redis: RedisOptions,
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

/// The pauses between the tries of a waiter that polls: see [`Lock::polling`](crate::Lock::polling).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "pauses have an effect when a lock is made with them"]
pub struct Backoff {
    first: Duration,
    max: Duration,
    factor: u32,
}

impl Backoff {
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

/// Redisson's: 1 ms, then twice as long each time up to 128 ms, and jittered, so that two waiters do not try
/// in step.
impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(1), max: Duration::from_millis(128), factor: 2 }
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            watchdog_timeout: WATCHDOG_TIMEOUT,
            connect_timeout: Duration::from_secs(3),
            response_timeout: RESPONSE_TIMEOUT,
            unreachable_after: UNREACHABLE_AFTER,
            min_backoff: Duration::from_millis(20),
            max_backoff: Duration::from_secs(1),
            drift_ratio: DRIFT_RATIO,
            drift_fixed: DRIFT_FIXED,
            token_ttl: None,
            name_prefix: Vec::new(),
            program: None,
            clock: None,
            read_only: false,
            longest_lease: WATCHDOG_TIMEOUT,
            #[cfg(feature = "redis")]
            redis: RedisOptions::new(),
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
    /// 30 s by default. If you shorten it, shorten the [`response_timeout`](ClientOptions::response_timeout),
    /// too: a renewal is repeated only after the last one has timed out. At least 30 ms.
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Self {
        self.watchdog_timeout = timeout;
        self
    }

    /// How long opening a connection may take. 3 s by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long an answer may take before the connection is given up. 3 s by default.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// How long a waiting acquire retries on a store that does not answer. 10 s by default.
    pub fn unreachable_after(mut self, span: Duration) -> Self {
        self.unreachable_after = span;
        self
    }

    /// The shortest and the longest pause between two attempts to reconnect. It doubles each time, and is
    /// jittered, so that clients do not reconnect all at once. 20 ms and 1 s by default.
    pub fn retry_backoff(mut self, min: Duration, max: Duration) -> Self {
        (self.min_backoff, self.max_backoff) = (min, max);
        self
    }

    /// The part of each lease that is not used because clocks differ: `ratio` of it and a fixed
    /// part. 1 % and 2 ms by default.
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

    /// The longest lease of any lock on a quorum: see [the manual](crate::manual::quorum). A longer
    /// one is refused. A member that may have lost its data grants nothing for this long, and neither does
    /// a new quorum. All clients of a quorum need the same. 30 s by default; without effect on other stores.
    pub fn longest_lease(mut self, span: Duration) -> Self {
        self.longest_lease = span;
        self
    }

    /// The settings of Redis servers; without effect on other stores, where no replica can acknowledge anything.
    #[cfg(feature = "redis")]
    pub fn redis(mut self, redis: RedisOptions) -> Self {
        self.redis = redis;
        self
    }

    /// Put before every name, as a Redisson `NameMapper` would. Empty by default.
    pub fn name_prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.name_prefix = prefix.as_ref().to_vec();
        self
    }

    /// The program name shown for holders of this client. The name of the executable by default.
    pub fn program(mut self, name: impl Into<String>) -> Self {
        self.program = Some(name.into());
        self
    }

    /// Another clock than the machine's own. For tests, as `backend`.
    #[cfg(feature = "unstable-backend")]
    #[doc(hidden)]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
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
            ("retry back-off", self.min_backoff),
            #[cfg(feature = "redis")]
            ("keep-alive period", self.redis.keep_alive),
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
        #[cfg(feature = "redis")]
        if let Some(fault) = self.redis.fault(self.watchdog_timeout) {
            return refuse(fault);
        }
        Ok(())
    }
}

/// Below this a third of the timeout comes near the granularity of timers.
pub(crate) const MIN_WATCHDOG: Duration = Duration::from_millis(30);
