//! Composes the URL of Redis servers from its parts.

use std::fmt;
use std::net::Ipv6Addr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters that stay as they are.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The URL of Redis servers, made of parts that may contain any character.
///
/// A host may be a name, an IPv4 or an IPv6 address, with or without `:port` (an IPv6 address then in
/// brackets). A setting that the servers do not have, as a `sentinel_password` without sentinels, is refused
/// when connecting. `Debug` shows no password.
///
/// ```
/// use lockkeeper::RedisUrl;
///
/// let url = RedisUrl::server("redis.internal").user("locks").password("p@ss/word").database(2);
/// assert_eq!(url.as_str(), "redis://locks:p%40ss%2Fword@redis.internal/2");
///
/// let url = RedisUrl::sentinel("mymaster", ["s1", "s2", "s3:26380"]).sentinel_password("secret");
/// assert_eq!(url.as_str(), "redis+sentinel://s1,s2,s3:26380/mymaster?sentinel_password=secret");
///
/// let url = RedisUrl::replicated(["10.0.0.1", "::1"]).port(6380).tls();
/// assert_eq!(url.as_str(), "rediss+replicated://10.0.0.1:6380,[::1]:6380");
///
/// let url = RedisUrl::cluster(["c1", "c2"]).password("secret");
/// assert_eq!(url.as_str(), "redis+cluster://:secret@c1,c2");
/// ```
#[derive(Clone, Eq, PartialEq)]
#[must_use = "a URL has an effect when a client connects to it"]
pub struct RedisUrl {
    kind: Kind,
    hosts: Vec<String>,
    port: Option<u16>,
    login: Login,
    database: Option<u32>,
    is_tls: bool,
    sentinel: Login,
    sentinel_tls: Option<bool>,
    text: String,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Kind {
    Server,
    /// Of the primary with this name.
    Sentinel(String),
    Replicated,
    Cluster,
}

#[derive(Clone, Default, Eq, PartialEq)]
struct Login {
    user: Option<String>,
    password: Option<String>,
}

impl RedisUrl {
    /// One server, or an address behind which the primary may change.
    pub fn server(host: impl Into<String>) -> Self {
        Self::new(Kind::Server, [host])
    }

    /// The primary that these sentinels know by the name `master`.
    pub fn sentinel<H: Into<String>>(
        master: impl Into<String>,
        hosts: impl IntoIterator<Item = H>,
    ) -> Self {
        Self::new(Kind::Sentinel(master.into()), hosts)
    }

    /// The primary among these servers.
    pub fn replicated<H: Into<String>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self::new(Kind::Replicated, hosts)
    }

    /// The Redis Cluster that has these nodes, and others: one that answers is enough. A cluster has
    /// database 0 only.
    pub fn cluster<H: Into<String>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self::new(Kind::Cluster, hosts)
    }

    fn new<H: Into<String>>(kind: Kind, hosts: impl IntoIterator<Item = H>) -> Self {
        let url = Self {
            kind,
            hosts: hosts.into_iter().map(Into::into).collect(),
            port: None,
            login: Login::default(),
            database: None,
            is_tls: false,
            sentinel: Login::default(),
            sentinel_tls: None,
            text: String::new(),
        };
        url.with(|_| {})
    }

    /// Changes a part, and composes the text.
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self.text = self.composed();
        self
    }

    /// The port of each host without one. By default 6379, and 26379 for sentinels.
    pub fn port(self, port: u16) -> Self {
        self.with(|url| url.port = Some(port))
    }

    /// The user of the servers. It needs a password.
    pub fn user(self, user: impl Into<String>) -> Self {
        self.with(|url| url.login.user = Some(user.into()))
    }

    /// The password of the servers.
    pub fn password(self, password: impl Into<String>) -> Self {
        self.with(|url| url.login.password = Some(password.into()))
    }

    /// The number of the database. 0 by default.
    pub fn database(self, database: u32) -> Self {
        self.with(|url| url.database = Some(database))
    }

    /// Uses TLS, also for sentinels (feature `tls`).
    pub fn tls(self) -> Self {
        self.with(|url| url.is_tls = true)
    }

    /// The user of the sentinels. It needs a password.
    pub fn sentinel_user(self, user: impl Into<String>) -> Self {
        self.with(|url| url.sentinel.user = Some(user.into()))
    }

    /// The password of the sentinels.
    pub fn sentinel_password(self, password: impl Into<String>) -> Self {
        self.with(|url| url.sentinel.password = Some(password.into()))
    }

    /// Whether sentinels use TLS. As the servers by default.
    pub fn sentinel_tls(self, is_tls: bool) -> Self {
        self.with(|url| url.sentinel_tls = Some(is_tls))
    }

    /// The URL, with its passwords.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn composed(&self) -> String {
        let mut text = self.place(&self.login.composed());
        let tls = self.sentinel_tls.map(|is_tls| if is_tls { "yes" } else { "no" });
        let parameters = [
            ("sentinel_user", self.sentinel.user.as_deref()),
            ("sentinel_password", self.sentinel.password.as_deref()),
            ("sentinel_tls", tls),
        ];
        let given = parameters.iter().filter_map(|(name, value)| Some((name, (*value)?)));
        for (number, (name, value)) in given.enumerate() {
            let separator = if number == 0 { '?' } else { '&' };
            text.push_str(&format!("{separator}{name}={}", encoded(value)));
        }
        text
    }

    /// The URL up to its parameters.
    fn place(&self, login: &str) -> String {
        let scheme = if self.is_tls { "rediss" } else { "redis" };
        let (kind, master) = match &self.kind {
            Kind::Server => ("", None),
            Kind::Sentinel(master) => ("+sentinel", Some(encoded(master))),
            Kind::Replicated => ("+replicated", None),
            Kind::Cluster => ("+cluster", None),
        };
        let hosts: Vec<_> = self.hosts.iter().map(|host| located(host, self.port)).collect();
        let path = master.into_iter().chain(self.database.map(|number| number.to_string()));
        let path: String = path.map(|part| format!("/{part}")).collect();
        format!("{scheme}{kind}://{login}{}{path}", hosts.join(","))
    }
}

impl Login {
    /// With the `@`, or empty.
    fn composed(&self) -> String {
        let user = self.user.as_deref().map(encoded);
        let password = self.password.as_deref().map(|text| format!(":{}", encoded(text)));
        match (user, password) {
            (None, None) => String::new(),
            (user, password) => {
                format!("{}{}@", user.unwrap_or_default(), password.unwrap_or_default())
            }
        }
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// A host and its port, if it has one.
fn located(host: &str, port: Option<u16>) -> String {
    let is_port = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (name, own) = match host.rsplit_once(':').filter(|(_, port)| is_port(port)) {
        Some((name, own)) if host.parse::<Ipv6Addr>().is_err() => (name, Some(own.to_owned())),
        _ => (host, None),
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let name = match bare.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => encoded(name),
    };
    match own.or(port.map(|port| port.to_string())) {
        Some(port) => format!("{name}:{port}"),
        None => name,
    }
}

impl AsRef<str> for RedisUrl {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// Without users and passwords.
impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisUrl").field(&self.place("")).finish()
    }
}
