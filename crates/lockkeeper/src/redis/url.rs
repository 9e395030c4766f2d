//! The grammar of the URLs of Redis servers, both ways: [`RedisUrl`] composes one, [`parse`] reads it. No error shows a
//! URL: it may contain a password.

use std::ffi::OsString;
use std::fmt;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStringExt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::server::{Address, Server};
use super::tls;
use crate::backend::{Detail, Fault};
use crate::options::ClientOptions;
use crate::redis_options::RedisOptions;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const SERVER: &str = "redis://[user:password@]host[:port][/db]";
const UNIX: &str = "redis+unix:///path[?db=N&user=U&pass=P]";
const REPLICATED: &str = "redis+replicated://[user:password@]host[:port],host[:port][/db]";
const CLUSTER: &str = "redis+cluster://[user:password@]host[:port],host[:port]";
const SENTINEL: &str = "redis+sentinel://[user:password@]sentinel[:port],sentinel[:port]/MASTER-NAME[/db]\
                        [?sentinel_user=U&sentinel_password=P&sentinel_tls=yes|no]";

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
///
/// let url = RedisUrl::quorum(["a", "b", "c"]).database(1);
/// assert_eq!(url.as_str(), "quorum:redis://a/1,redis://b/1,redis://c/1");
/// ```
#[derive(Clone, Eq, PartialEq)]
#[must_use = "a URL has an effect when a client connects to it"]
pub struct RedisUrl {
    /// After `redis` or `rediss`; or `quorum:`.
    kind: &'static str,
    hosts: Vec<String>,
    port: Option<u16>,
    user: Option<String>,
    password: Option<String>,
    master: Option<String>,
    database: Option<u32>,
    is_tls: bool,
    parameters: Vec<(&'static str, String)>,
    text: String,
}

impl RedisUrl {
    /// One server, or an address behind which the primary may change.
    pub fn server(host: impl Into<String>) -> Self {
        Self::new("", [host])
    }

    /// The primary that these sentinels know by the name `master`.
    pub fn sentinel<H: Into<String>>(
        master: impl Into<String>,
        hosts: impl IntoIterator<Item = H>,
    ) -> Self {
        Self::new("+sentinel", hosts).with(|url| url.master = Some(master.into()))
    }

    /// The primary among these servers.
    pub fn replicated<H: Into<String>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self::new("+replicated", hosts)
    }

    /// The Redis Cluster that has these nodes, and others: one that answers is enough. A cluster has
    /// database 0 only.
    pub fn cluster<H: Into<String>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self::new("+cluster", hosts)
    }

    /// A quorum of these independent servers: at least three, of which a majority decides. All parts are those of
    /// each server; where the servers differ, join their URLs: `quorum:redis://…,redis://…`.
    ///
    /// A quorum has [`lock`](crate::Client::lock), [`spin_lock`](crate::Client::spin_lock),
    /// [`fenced_lock`](crate::Client::fenced_lock) and [`mutex`](crate::Client::mutex); requests of all other kinds
    /// fail with [`Invalid`](crate::Error::Invalid). For one [`longest_lease`](ClientOptions::longest_lease) after
    /// the very first client of a quorum, none is granted: see [the manual](crate::manual::quorum).
    pub fn quorum<H: Into<String>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self::new(QUORUM, hosts)
    }

    fn new<H: Into<String>>(kind: &'static str, hosts: impl IntoIterator<Item = H>) -> Self {
        let hosts = hosts.into_iter().map(Into::into).collect();
        let url = Self {
            kind,
            hosts,
            port: None,
            user: None,
            password: None,
            master: None,
            database: None,
            is_tls: false,
            parameters: Vec::new(),
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

    fn parameter(self, name: &'static str, value: String) -> Self {
        self.with(|url| {
            url.parameters.retain(|(known, _)| *known != name);
            url.parameters.push((name, value));
        })
    }

    /// The port of each host without one. By default 6379, and 26379 for sentinels.
    pub fn port(self, port: u16) -> Self {
        self.with(|url| url.port = Some(port))
    }

    /// The user of the servers. It needs a password.
    pub fn user(self, user: impl Into<String>) -> Self {
        self.with(|url| url.user = Some(user.into()))
    }

    /// The password of the servers.
    pub fn password(self, password: impl Into<String>) -> Self {
        self.with(|url| url.password = Some(password.into()))
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
        self.parameter("sentinel_user", user.into())
    }

    /// The password of the sentinels.
    pub fn sentinel_password(self, password: impl Into<String>) -> Self {
        self.parameter("sentinel_password", password.into())
    }

    /// Whether sentinels use TLS. As the servers by default.
    pub fn sentinel_tls(self, is_tls: bool) -> Self {
        self.parameter("sentinel_tls", if is_tls { "yes" } else { "no" }.to_owned())
    }

    /// The URL, with its passwords.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn composed(&self) -> String {
        let user = self.user.as_deref().map(encoded);
        let password = self.password.as_deref().map(|text| format!(":{}", encoded(text)));
        let login: String = user.into_iter().chain(password).collect();
        let mut text = self.place(&if login.is_empty() { login } else { login + "@" });
        let separators = ["?"].into_iter().chain(std::iter::repeat("&"));
        for (separator, (name, value)) in separators.zip(&self.parameters) {
            text += &format!("{separator}{name}={}", encoded(value));
        }
        text
    }

    /// The URL up to its parameters.
    fn place(&self, login: &str) -> String {
        let tls = if self.is_tls { "s" } else { "" };
        let mut hosts = self.hosts.iter().map(|host| located(host, self.port)).collect::<Vec<_>>();
        let path = self.master.as_deref().map(encoded).into_iter();
        let path = path.chain(self.database.map(|number| number.to_string()));
        let path: String = path.map(|part| format!("/{part}")).collect();
        if self.kind == QUORUM {
            hosts.iter_mut().for_each(|host| *host = format!("redis{tls}://{login}{host}{path}"));
            return QUORUM.to_owned() + &hosts.join(",");
        }
        format!("redis{tls}{}://{login}{}{path}", self.kind, hosts.join(","))
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

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// A host and its port, if it has one.
fn located(host: &str, port: Option<u16>) -> String {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (name, own) = match host.rsplit_once(':') {
        Some((name, own)) if is_port(own) && host.parse::<Ipv6Addr>().is_err() => (name, Some(own)),
        _ => (host, None),
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let name = bare.parse::<Ipv6Addr>().map_or_else(|_| encoded(name), |ip| format!("[{ip}]"));
    match own.map(str::to_owned).or(port.map(|port| port.to_string())) {
        Some(port) => format!("{name}:{port}"),
        None => name,
    }
}

/// Before the URLs of its members.
pub(crate) const QUORUM: &str = "quorum:";

/// Splits `redis://a,redis://b` where a URL begins: a comma may be part of a password.
pub(crate) fn members(list: &str) -> Vec<&str> {
    let begins = |rest: &str| {
        let rest = rest.trim_start();
        let scheme = rest.split(':').next().unwrap_or_default();
        let is_plain = scheme.bytes().all(|b| b.is_ascii_alphabetic() || b == b'+');
        let has_slashes = rest[scheme.len()..].starts_with("://");
        !scheme.is_empty() && is_plain && (has_slashes || rest.starts_with("redis+unix:"))
    };
    let (mut members, mut from) = (Vec::new(), 0);
    let commas = list.match_indices(',').map(|(at, _)| at);
    for end in commas.filter(|at| begins(&list[at + 1..])).chain([list.len()]) {
        members.push(list[from..end].trim());
        from = end + 1;
    }
    members
}

/// The way to the primary.
#[derive(Clone, Debug)]
pub(super) enum Topology {
    /// One server, or one address whose server may change.
    Single(Server),
    /// Sentinels know it.
    Sentinel(Sentinels),
    /// One of these servers.
    Replicated(Vec<Server>),
    /// A cluster with these nodes, and others.
    Cluster(Vec<Server>),
}

/// Sentinels, and the primary that they know.
#[derive(Clone, Debug)]
pub(super) struct Sentinels {
    pub(super) sentinels: Vec<Server>,
    /// The name of the primary among those that the sentinels monitor.
    pub(super) master: String,
    /// How to log in to the primary. Its address is unknown.
    pub(super) login: Server,
}

/// Reads a URL; a quorum has one for each member.
pub(super) fn parse(url: &str, options: &ClientOptions) -> Result<Topology, Fault> {
    let parts = Parts::of(url.trim(), &options.redis)?;
    match parts.kind {
        "" => parts.server().map(Topology::Single),
        "unix" => parts.unix().map(Topology::Single),
        "sentinel" => parts.sentinels().map(Topology::Sentinel),
        "replicated" => parts.replicated().map(Topology::Replicated),
        "cluster" => parts.cluster().map(Topology::Cluster),
        _ => Err(not_of_form(SERVER)),
    }
}

pub(super) fn invalid(detail: impl Into<Detail>) -> Fault {
    Fault::Invalid { detail: detail.into() }
}

fn not_of_form(form: &str) -> Fault {
    invalid(format!("the URL is not of the form {form}"))
}

/// The parts of `scheme+kind://login@hosts/path?query#fragment`.
struct Parts<'a> {
    is_tls: bool,
    kind: &'a str,
    /// Without the `@`.
    login: &'a str,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
    fragment: Option<&'a str>,
    options: &'a RedisOptions,
}

type Login = (Option<String>, Option<String>);

impl<'a> Parts<'a> {
    fn of(url: &'a str, options: &'a RedisOptions) -> Result<Self, Fault> {
        let (scheme, rest) = url.split_once(':').unwrap_or_default();
        let (scheme, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let form = if kind == "unix" { UNIX } else { SERVER };
        let is_tls = match scheme {
            "redis" => false,
            "rediss" if kind != "unix" => true,
            _ => return Err(not_of_form(form)),
        };
        let (rest, fragment) = match rest.split_once('#') {
            Some((rest, fragment)) => (rest, Some(fragment)),
            None => (rest, None),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A path needs no authority.
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None if kind == "unix" => ("", rest),
            None => return Err(not_of_form(form)),
        };
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        Ok(Self { is_tls, kind, login, hosts, path, query, fragment, options })
    }

    /// The parts of the path.
    fn path(&self) -> Vec<&'a str> {
        self.path.split('/').filter(|part| !part.is_empty()).collect()
    }

    /// The database, where the path has nothing else.
    fn database(&self, form: &str) -> Result<i64, Fault> {
        match self.path()[..] {
            [] => Ok(0),
            [number] => database(number, form),
            _ => Err(invalid(format!("the URL has too many parts: use {form}"))),
        }
    }

    /// The parameters, as they are written.
    fn parameters(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let parts = self.query.split('&').filter(|part| !part.is_empty());
        parts.map(|part| part.split_once('=').unwrap_or((part, "")))
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters().filter(|(known, _)| *known == name).last().map(|(_, value)| value)
    }

    /// Rejects parameters that would be ignored. What follows a `?` or an `&` in a password that is not encoded is
    /// not shown.
    fn knows(&self, known: &[&str], form: &str) -> Result<(), Fault> {
        let is_protocol = |value: &str| ["2", "3", "resp2", "resp3"].contains(&value);
        if known.contains(&"protocol") && !self.parameter("protocol").is_none_or(is_protocol) {
            return Err(not_of_form(form));
        }
        let is_unknown = |name: &&str| !name.is_empty() && !known.contains(name);
        let Some(name) = self.parameters().map(|(name, _)| name).find(is_unknown) else {
            return Ok(());
        };
        let is_word = name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let has_password =
            known.iter().any(|name| name.contains("pass") && self.parameter(name).is_some());
        let is_shown = is_word && !has_password && !self.query.contains('@');
        let which = if is_shown { format!(" {name:?}") } else { String::new() };
        Err(invalid(format!(
            "the URL has an unknown parameter{which}, or a password that is not percent-encoded: use {form}"
        )))
    }

    /// The servers at all hosts.
    fn servers(&self, database: i64) -> Result<Vec<Server>, Fault> {
        let (user, password) = self.login.split_once(':').unwrap_or((self.login, ""));
        let given = |text: &str| Some(text).filter(|t| !t.is_empty()).map(decoded).transpose();
        let login = self.login(given(user)?, given(password)?)?;
        self.hosts(self.is_tls, PORT, login, database)
    }

    /// With the password beside the URL if there is none in it.
    fn login(&self, user: Option<String>, password: Option<String>) -> Result<Login, Fault> {
        login((user, password), &self.options.password.0, "user, but no password for it")
    }

    fn hosts(
        &self,
        is_tls: bool,
        default: u16,
        (user, password): Login,
        database: i64,
    ) -> Result<Vec<Server>, Fault> {
        let tls = if is_tls { Some(tls::config(&self.options.tls)?) } else { None };
        let servers = self.hosts.split(',').map(|host| {
            let (host, port) = host_and_port(host)?;
            let address = Address::Tcp(host, port.unwrap_or(default), tls.clone());
            let (user, password) = (user.clone(), password.clone());
            Ok(Server { address, user, password, database, node: None })
        });
        servers.collect()
    }

    fn server(&self) -> Result<Server, Fault> {
        match self.fragment.filter(|_| self.is_tls) {
            Some("insecure") => {
                let detail = "a certificate is always verified: remove #insecure from the URL";
                return Err(invalid(detail));
            }
            None if !self.hosts.contains(',') => {}
            _ => return Err(not_of_form(SERVER)),
        }
        let server = self.servers(self.database(SERVER)?)?.remove(0);
        self.knows(&["protocol"], SERVER)?;
        Ok(server)
    }

    /// The path and the values of parameters may contain any character.
    fn unix(&self) -> Result<Server, Fault> {
        if !self.path.starts_with('/') || !matches!(self.hosts, "" | "localhost") {
            return Err(not_of_form(UNIX));
        }
        self.knows(&["db", "user", "pass", "protocol"], UNIX)?;
        let value = |name| {
            let value = self.parameter(name)?.replace('+', " ");
            Some(percent_decode_str(&value).decode_utf8_lossy().into_owned())
        };
        let database = value("db").map_or(Ok(0), |number| database(&number, UNIX))?;
        let user = value("user").filter(|user| !user.is_empty());
        let (user, password) = self.login(user, value("pass"))?;
        let path = OsString::from_vec(percent_decode_str(self.path).collect());
        Ok(Server { address: Address::Unix(path.into()), user, password, database, node: None })
    }

    fn replicated(&self) -> Result<Vec<Server>, Fault> {
        self.knows(&[], REPLICATED)?;
        self.servers(self.database(REPLICATED)?)
    }

    fn cluster(&self) -> Result<Vec<Server>, Fault> {
        self.knows(&[], CLUSTER)?;
        match self.path()[..] {
            [] | ["0"] => self.servers(0),
            _ => Err(invalid(format!("a cluster has database 0 only: use {CLUSTER}"))),
        }
    }

    fn sentinels(&self) -> Result<Sentinels, Fault> {
        self.knows(&["sentinel_user", "sentinel_password", "sentinel_tls"], SENTINEL)?;
        let (master, database) = match self.path()[..] {
            [master] => (decoded(master)?, 0),
            [master, number] => (decoded(master)?, database(number, SENTINEL)?),
            _ => return Err(invalid(format!("the URL must name the master: use {SENTINEL}"))),
        };
        let is_tls = match self.parameter("sentinel_tls") {
            None => self.is_tls,
            Some("yes") => true,
            Some("no") => false,
            Some(_) => return Err(invalid("sentinel_tls in the URL must be yes or no")),
        };
        let given = |name| self.parameter(name).map(decoded).transpose();
        let given = (given("sentinel_user")?, given("sentinel_password")?);
        let lack = "sentinel_user, but no sentinel_password";
        let login = login(given, &self.options.sentinel_password.0, lack)?;
        let sentinels = self.hosts(is_tls, SENTINEL_PORT, login, 0)?;
        // At the address of a sentinel, until the primary is known.
        let login = self.servers(database)?.remove(0);
        Ok(Sentinels { sentinels, master, login })
    }
}

/// A user needs a password, in the URL or beside it.
fn login(given: Login, beside: &Option<String>, lack: &str) -> Result<Login, Fault> {
    let (user, password) = (given.0, given.1.or_else(|| beside.clone()));
    match user.is_some() && password.is_none() {
        true => Err(invalid(format!("the URL names a {lack}"))),
        false => Ok((user, password)),
    }
}

fn decoded(text: &str) -> Result<String, Fault> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| invalid("the URL is not percent-encoded UTF-8"))
}

fn database(text: &str, form: &str) -> Result<i64, Fault> {
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| invalid(format!("the database in the URL is not a number: use {form}")))
}

/// Parses `name:port`, `[ipv6]:port`, or either without a port.
fn host_and_port(text: &str) -> Result<(String, Option<u16>), Fault> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, port),
        _ => (text, ""),
    };
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.parse().ok().filter(|number| is_number && *number > 0);
    if !port.is_empty() && number.is_none() {
        return Err(invalid(
            "the port in the URL must be a number from 1 to 65535, and a password must be \
             percent-encoded",
        ));
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bare.map(str::parse::<Ipv6Addr>) {
        Some(Ok(address)) if !address.is_unspecified() => address.to_string(),
        Some(_) => return Err(invalid("the address in brackets is no IPv6 address of a server")),
        None if host.is_empty() => {
            return Err(invalid(format!("a host is missing in the URL: use {SERVER}")));
        }
        // Percent-encoded, it is no ASCII either.
        None if !host.is_ascii() || host.contains('%') => {
            return Err(invalid(
                "a host in the URL must be in ASCII: write a name in Unicode in its form xn--…",
            ));
        }
        None if host == "0.0.0.0" || host.bytes().any(is_no_part_of_a_name) => {
            return Err(not_of_form(SERVER));
        }
        None => host.to_owned(),
    };
    Ok((host, number))
}

fn is_no_part_of_a_name(byte: u8) -> bool {
    byte <= b' ' || byte == 0x7f || br"/:<>?@[\]^|".contains(&byte)
}

/// The server that the URL of one names.
#[cfg(test)]
pub(super) fn server(url: &str, options: &ClientOptions) -> Result<Server, Fault> {
    match parse(url, options)? {
        Topology::Single(server) => Ok(server),
        other => panic!("several servers: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal(url: &str) -> String {
        match parse(url, &ClientOptions::new()) {
            Err(Fault::Invalid { detail }) => detail.to_string(),
            other => panic!("{url}: {other:?}"),
        }
    }

    /// The servers that it names: first the sentinels, then the primary.
    fn servers(url: &str, options: &ClientOptions) -> Vec<Server> {
        match parse(url, options).unwrap() {
            Topology::Single(server) => vec![server],
            Topology::Replicated(servers) | Topology::Cluster(servers) => servers,
            Topology::Sentinel(of) => of.sentinels.into_iter().chain([of.login]).collect(),
        }
    }

    #[test]
    fn a_server_shows_no_password() {
        let one = server("redis://u:s3cret@localhost:7000/3", &ClientOptions::new()).unwrap();
        assert_eq!(format!("{one:?}"), "localhost:7000/3");
        assert_eq!(one.password.as_deref(), Some("s3cret"));
        let unix = server("redis+unix:///tmp/x.sock?db=2", &ClientOptions::new()).unwrap();
        assert_eq!(format!("{unix:?}"), "/tmp/x.sock/2");
        assert!(!refusal("redis://u:s3cret").contains("s3cret"));
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        assert!(refusal("redis://h?db=3").contains("\"db\""));
        assert!(refusal("redis+unix:///tmp/x.sock?database=3").contains("\"database\""));
        assert!(refusal("redis://ann@h").contains("no password"));
        let unix = "redis+unix:///tmp/x.sock?user=&pass=p&db=1";
        assert_eq!(server(unix, &ClientOptions::new()).unwrap().user, None);
    }

    #[test]
    fn a_url_names_several_hosts() {
        let all = servers("redis+replicated://u:s3cret@a,b:7000/3", &ClientOptions::new());
        assert_eq!(format!("{all:?}"), "[a:6379/3, b:7000/3]");
        assert!(all.iter().all(|one| one.password.as_deref() == Some("s3cret")));

        let url = "redis+sentinel://u:s3cret@a,[::1],b:7000/my%20one/2?sentinel_password=p%40ss";
        let Ok(Topology::Sentinel(of)) = parse(url, &ClientOptions::new()) else { panic!() };
        assert_eq!(format!("{:?}", of.sentinels), "[a:26379/0, ::1:26379/0, b:7000/0]");
        assert!(of.sentinels.iter().all(|one| one.password.as_deref() == Some("p@ss")));
        assert_eq!((&of.master[..], of.login.database), ("my one", 2));
        assert_eq!(format!("{:?}", of.login.at("c", 1)), "c:1/2");
        assert_eq!(of.login.at("c", 1).password.as_deref(), Some("s3cret"));
    }

    #[test]
    fn a_password_beside_the_url_is_for_servers_without_one() {
        let redis = RedisOptions::new().password("p@s").sentinel_password("p&s");
        let options = ClientOptions::new().redis(redis);
        for (url, expected) in [
            ("redis://h", &["p@s"][..]),
            ("rediss://ann@h/2", &["p@s"]),
            ("redis://:own@h", &["own"]),
            ("redis://ann:own@h", &["own"]),
            ("redis+unix:///run/r.sock?db=1", &["p@s"]),
            ("redis+unix:///run/r.sock?pass=own", &["own"]),
            ("redis+replicated://ann@a,b", &["p@s", "p@s"]),
            ("redis+cluster://:own@a,b", &["own", "own"]),
            ("redis+sentinel://:own@a,b/m", &["p&s", "p&s", "own"]),
            ("redis+sentinel://ann@a/m?sentinel_user=bob", &["p&s", "p@s"]),
            ("redis+sentinel://a/m?sentinel_password=its", &["its", "p@s"]),
        ] {
            let found = servers(url, &options).into_iter().map(|server| server.password.unwrap());
            assert_eq!(found.collect::<Vec<_>>(), expected, "{url}");
        }
        let shown = format!("{options:?}");
        assert!(!shown.contains("p@s") && !shown.contains("p&s"), "{shown}");
    }

    /// A host with its port, as it is given, and as it is shown.
    fn host() -> impl Strategy<Value = (String, String)> {
        let name = prop_oneof!["[a-z][a-z0-9.-]{0,9}", Just("10.0.0.7".to_owned())];
        let named = (name, 1..u16::MAX).prop_map(|(name, port)| format!("{name}:{port}"));
        let six = (any::<Ipv6Addr>(), 1..u16::MAX)
            .prop_map(|(ip, port)| (format!("[{ip}]:{port}"), format!("{ip}:{port}")));
        prop_oneof![named.prop_map(|host| (host.clone(), host)), six]
    }

    /// The parts of a URL, most of them right.
    fn written() -> impl Strategy<Value = String> {
        let word = "[a-zA-Z0-9._~%+:@!$&'()*,;= -]{0,6}";
        let login =
            prop_oneof![Just(String::new()), word, (word, word).prop_map(|(u, p)| u + ":" + &p)];
        let login = login.prop_map(|login| if login.is_empty() { login } else { login + "@" });
        let port = prop_oneof!["", ":[0-9]{0,6}", ":[+0-9a]{1,2}"];
        let name = prop_oneof![4 => "[a-zA-Z0-9._-]{0,9}", 1 => "[a-z0.:\\[\\]<>^| -]{0,6}"];
        let host = prop_oneof![
            4 => (name, port.clone()),
            1 => (any::<Ipv6Addr>().prop_map(|ip| format!("[{ip}]")), port),
        ];
        let path = prop_oneof!["", "/", "/[0-9]{1,3}/?", "/[0-9a/+]{0,3}"];
        let query =
            prop_oneof![4 => "", 1 => "\\?(protocol=(2|3|resp3|x))?", 1 => "\\?[a-z=&]{0,4}"];
        let tcp = (login, host, path, query.clone());
        let tcp = tcp.prop_map(|(login, (host, port), path, query)| {
            format!("redis://{login}{host}{port}{path}{query}")
        });
        let value = "[a-z0-9%+@:/ -]{0,5}";
        let unix =
            ("(//|//localhost|)/[a-z%0-9 +]{0,5}(/[a-z]{1,3})?", value, value, "[0-9a]{0,2}");
        let unix = unix.prop_map(|(path, user, pass, db)| {
            format!("redis+unix:{path}?user={user}&pass={pass}&db={db}")
        });
        prop_oneof![4 => tcp, 1 => unix]
    }

    /// The server as the driver understands its URL.
    fn of_driver(url: &str) -> Option<(String, i64, Option<String>, Option<String>)> {
        let info = redis::IntoConnectionInfo::into_connection_info(url).ok()?;
        let settings = info.redis_settings();
        let user = settings.username().filter(|user| !user.is_empty()).map(str::to_owned);
        let password = settings.password().map(str::to_owned);
        let address = match info.addr() {
            redis::ConnectionAddr::Unix(path) => path.display().to_string(),
            other => other.to_string(),
        };
        Some((address, settings.db(), user, password))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]

        /// It knows no port 0, ignores parameters, and takes a user without a password and a password that is
        /// empty.
        #[test]
        fn a_url_of_one_server_means_what_it_means_to_the_driver(url in written()) {
            let ours = server(&url, &ClientOptions::new());
            if let Ok(ours) = &ours {
                let database = (ours.address.to_string(), ours.database);
                let theirs = of_driver(&url).map(|(at, db, user, password)| ((at, db), user, password));
                let ours = Some((database, ours.user.clone(), ours.password.clone()));
                prop_assert_eq!(ours, theirs);
            } else if let Some((address, _, user, password)) = of_driver(&url) {
                let is_known = url.split_once('?').is_none_or(|(_, query)| {
                    query.split('&').all(|one| {
                        let name = one.split('=').next().unwrap_or_default();
                        name.is_empty() || name == "protocol" || url.starts_with("redis+unix:")
                    })
                });
                let is_odd = address.contains([',', '%']) || address.ends_with(":0");
                prop_assert!(!is_known || is_odd || user.is_some() && password.is_none(), "{url}");
            }
        }
    }

    #[test]
    fn a_host_is_a_name_in_ascii_or_an_address() {
        for host in
            ["\u{fc}bung", "%C3%BCbung", "a b", "::1", "[::1", "[1.2.3.4]", "[::]", "0.0.0.0"]
        {
            for url in [format!("redis://{host}"), format!("redis+cluster://a,{host}:7000")] {
                let refused = parse(&url, &ClientOptions::new());
                assert!(matches!(refused, Err(Fault::Invalid { .. })), "{url}: {refused:?}");
            }
        }
    }

    proptest! {
        /// What a `RedisUrl` is made of is what a client uses.
        #[test]
        fn a_composed_url_has_its_parts(
            hosts in proptest::collection::vec(host(), 1..4),
            (user, password, master) in (any::<String>(), any::<String>(), any::<String>()),
            database in 0..16_u32,
            kind in 0..5,
        ) {
            let [user, password, master] = [user, password, master].map(|text| format!("x{text}"));
            let given = hosts.iter().map(|(given, _)| given.as_str());
            let url = match kind {
                0 => RedisUrl::server(&hosts[0].0),
                1 => RedisUrl::sentinel(&master, given).sentinel_user(&password).sentinel_password(&user),
                2 => RedisUrl::replicated(given),
                3 => RedisUrl::cluster(given),
                _ => RedisUrl::quorum(given),
            };
            // A cluster has one database.
            let database = if kind == 3 { 0 } else { database };
            let url = url.user(&user).password(&password).database(database);
            let options = ClientOptions::new();
            let mut found: Vec<_> = match url.as_str().strip_prefix(QUORUM) {
                Some(list) => members(list).iter().flat_map(|one| servers(one, &options)).collect(),
                None => servers(url.as_str(), &options),
            };
            let is_cluster = || matches!(parse(url.as_str(), &options), Ok(Topology::Cluster(_)));
            prop_assert_eq!(kind == 3, kind != 4 && is_cluster());
            if kind == 1 {
                let Ok(Topology::Sentinel(of)) = parse(url.as_str(), &options) else { panic!("{url:?}") };
                prop_assert_eq!(&of.master, &master);
                // It is at the address of the first sentinel.
                let login = (of.login.user, of.login.password, of.login.database);
                prop_assert_eq!(login, (Some(user.clone()), Some(password.clone()), i64::from(database)));
                found.pop();
            }
            prop_assert_eq!(found.len(), if kind == 0 { 1 } else { hosts.len() });
            let sentinel = (Some(password.clone()), Some(user.clone()), 0);
            let server = (Some(user), Some(password), i64::from(database));
            for (one, (_, shown)) in found.into_iter().zip(&hosts) {
                prop_assert_eq!(&one.address.to_string(), shown);
                let expected = if kind == 1 { &sentinel } else { &server };
                prop_assert_eq!(&(one.user, one.password, one.database), expected);
            }
        }
    }

    #[test]
    fn a_composed_url_shows_no_password() {
        let url = RedisUrl::sentinel("m", ["a", "::1"]).user("u").password("s3cret");
        let url = url.sentinel_password("s3cret").port(7000).tls().sentinel_tls(false);
        assert_eq!(format!("{url:?}"), "RedisUrl(\"rediss+sentinel://a:7000,[::1]:7000/m\")");
        let url = RedisUrl::quorum(["a", "b"]).password("s3cret");
        assert_eq!(format!("{url:?}"), "RedisUrl(\"quorum:redis://a,redis://b\")");
        let wrong = refusal(RedisUrl::replicated(["a"]).sentinel_password("s3cret").as_str());
        assert!(wrong.contains("sentinel_password") && !wrong.contains("s3cret"), "{wrong}");
    }

    #[test]
    fn a_wrong_url_with_several_hosts_shows_a_right_one_and_no_password() {
        for url in [
            "redis+sentinel://:s3cret@a,b",
            "redis+sentinel://:s3cret@a,,b/m",
            "redis+sentinel://:s3cret@a/m/x",
            "redis+sentinel://a/m?password=s3cret",
            "redis+sentinel://a/m?sentinel_user=s3cret",
            "redis+sentinel://:s3cret@a/m?sentinel_tls=maybe",
            "redis+sentinel://:s3cret@a:0/m",
            "redis+replicated://:s3cret@a,b/x",
            "redis+replicated://:s3cret@a,/0",
            "redis+replicated://:s3cret@a/1/2",
            "redis+replicated://ann@a",
            "redis+cluster://:s3cret@a,b/1",
            "redis+cluster://:s3cret@a,,b",
            "redis+cluster://a?password=s3cret",
        ] {
            assert!(!refusal(url).contains("s3cret"), "{url}");
        }
    }
}
