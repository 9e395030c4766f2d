//! Settings of a client of Redis servers.

use std::fmt;
use std::time::Duration;

/// Settings of a client of Redis servers, for [`ClientOptions::redis`](crate::ClientOptions::redis).
///
/// ```
/// use std::time::Duration;
/// use lockkeeper::{ClientOptions, RedisOptions};
///
/// let redis = RedisOptions::new().password("p@ss").acknowledged_by(1, Duration::from_secs(1));
/// let options = ClientOptions::new().redis(redis);
/// ```
#[derive(Clone, Debug)]
#[must_use = "settings have an effect when a client is made with them"]
pub struct RedisOptions {
    pub(crate) acknowledgement: Acknowledgement,
    client_name: Option<String>,
    pub(crate) keep_alive: Duration,
    pub(crate) password: Secret,
    pub(crate) sentinel_password: Secret,
    pub(crate) tls: Tls,
    pub(crate) wakeups: Wakeups,
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

/// A password. Debug output shows only whether it is set.
#[derive(Clone, Default)]
pub(crate) struct Secret(pub(crate) Option<String>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.is_some().fmt(f)
    }
}

/// Certificates, as PEM. Debug output shows only whether they are set.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ca, identity) = (self.ca.is_some(), self.identity.is_some());
        f.debug_struct("Tls").field("ca", &ca).field("identity", &identity).finish()
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            acknowledgement: Acknowledgement::Default,
            client_name: None,
            // Redisson's `pingConnectionInterval`: shorter than the few minutes after which firewalls, routers and
            // load balancers silently drop a connection.
            keep_alive: Duration::from_secs(30),
            password: Secret::default(),
            sentinel_password: Secret::default(),
            tls: Tls::default(),
            wakeups: Wakeups::default(),
        }
    }
}

impl RedisOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The password of servers whose URL has none: it need not be put into the URL.
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

    /// Counts a write only once this many replicas have it: an acquire, a re-entry, a handoff, a renewal, and
    /// every change of a plain semaphore or a latch. With fewer replicas within `timeout`, the request fails with
    /// [`Unacknowledged`](crate::Error::Unacknowledged); a waiting acquire tries again. Releases and
    /// force-releases are not acknowledged.
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
        self.wakeups = wakeups;
        self
    }

    /// After how long without an answer an idle connection is pinged, so that a connection that was dropped on
    /// the way is replaced before the next request. 30 s by default.
    pub fn keep_alive(mut self, period: Duration) -> Self {
        self.keep_alive = period;
        self
    }

    /// The name shown in `CLIENT LIST`: printable ASCII without spaces. `lockkeeper` by default.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = Some(name.into());
        self
    }

    /// What `CLIENT LIST` shows.
    pub(crate) fn shown_name(&self) -> &str {
        self.client_name.as_deref().unwrap_or("lockkeeper")
    }

    /// What is wrong with them, if anything.
    pub(crate) fn fault(&self, watchdog_timeout: Duration) -> Option<&'static str> {
        // `WAIT` counts in milliseconds, and 0 waits for ever.
        let timeouts = Duration::from_millis(1)..=watchdog_timeout;
        if let Acknowledgement::By(replicas, timeout) = self.acknowledgement
            && (replicas == 0 || !timeouts.contains(&timeout))
        {
            return Some(
                "acknowledgement needs at least one replica, and a timeout between a millisecond \
                 and the watchdog timeout",
            );
        }
        let is_printable = self.shown_name().bytes().all(|b| b.is_ascii_graphic());
        (!is_printable).then_some("the client name must be printable ASCII without spaces")
    }
}
