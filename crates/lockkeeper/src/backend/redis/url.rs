//! The servers that a URL names. No error shows the URL: it may contain a password.

use std::fmt;
use std::path::PathBuf;
#[cfg(feature = "tls")]
use std::sync::Arc;

use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::backend::{Detail, Fault};
use crate::config::ClientOptions;

/// A server, and how to log in.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) address: Address,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    /// The id of the node of a cluster that must answer there, if it is known.
    pub(super) node: Option<String>,
}

impl Server {
    /// The same login for another server.
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let address = match &self.address {
            #[cfg(feature = "tls")]
            Address::Tls(.., config) => Address::Tls(host.to_owned(), port, Arc::clone(config)),
            _ => Address::Tcp(host.to_owned(), port),
        };
        Self { address, ..self.clone() }
    }

    /// Whether it has the same address, and is the same node of a cluster.
    pub(super) fn is_same(&self, other: &Server) -> bool {
        self.address.to_string() == other.address.to_string() && self.node == other.node
    }
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

/// Where a server listens.
#[derive(Clone)]
pub(super) enum Address {
    Tcp(String, u16),
    #[cfg(feature = "tls")]
    Tls(String, u16, Arc<rustls::ClientConfig>),
    Unix(PathBuf),
}

impl Address {
    /// The host and the port; a Unix socket has none.
    pub(super) fn host(&self) -> Option<(&str, u16)> {
        match self {
            Address::Tcp(host, port) => Some((host, *port)),
            #[cfg(feature = "tls")]
            Address::Tls(host, port, _) => Some((host, *port)),
            Address::Unix(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            #[cfg(feature = "tls")]
            Address::Tls(host, port, _) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Without the password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.database)
    }
}

fn invalid(detail: impl Into<Detail>) -> Fault {
    Fault::Invalid { detail: detail.into() }
}

/// The default port of a sentinel.
const SENTINEL_PORT: u16 = 26379;

/// Parses a URL.
pub(super) fn parse(url: &str, options: &ClientOptions) -> Result<Topology, Fault> {
    let parts = Parts::of(url);
    match parts.as_ref().map(|parts| (parts.kind, parts)) {
        Some(("sentinel", parts)) => sentinels(parts, options).map(Topology::Sentinel),
        Some(("replicated", parts)) => replicated(parts, options).map(Topology::Replicated),
        Some(("cluster", parts)) => cluster(parts, options).map(Topology::Cluster),
        _ => server(url, options).map(Topology::Single),
    }
}

/// A URL with several hosts: `scheme+kind://login@hosts/path?query`.
struct Parts<'a> {
    scheme: &'a str,
    kind: &'a str,
    /// With the `@`, or empty.
    login: &'a str,
    hosts: Vec<&'a str>,
    path: Vec<&'a str>,
    query: Vec<(&'a str, &'a str)>,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (scheme, kind) = scheme.split_once('+')?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let login = authority.rfind('@').map_or("", |end| &authority[..=end]);
        let pair = |part: &'a str| part.split_once('=').unwrap_or((part, ""));
        Some(Self {
            scheme,
            kind,
            login,
            hosts: authority[login.len()..].split(',').collect(),
            path: path.split('/').filter(|part| !part.is_empty()).collect(),
            query: query.split('&').filter(|part| !part.is_empty()).map(pair).collect(),
        })
    }

    /// Rejects parameters that would be ignored.
    fn knows(&self, known: &[&str], form: &str) -> Result<(), Fault> {
        if self.hosts.iter().any(|host| host.is_empty()) {
            return Err(invalid(format!("a host is missing in the URL: use {form}")));
        }
        match self.query.iter().find(|(name, _)| !known.contains(name)) {
            None => Ok(()),
            // What follows a `?` in a password that is not encoded is not shown.
            Some((name, _)) if name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') => {
                Err(invalid(format!("the URL has an unknown parameter {name:?}: use {form}")))
            }
            Some(_) => Err(invalid(format!(
                "the URL has an unknown parameter, or a password that is not percent-encoded: use \
                 {form}"
            ))),
        }
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        self.query.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The server at one of the hosts.
    fn server(&self, host: &str, options: &ClientOptions) -> Result<Server, Fault> {
        server(&format!("{}://{}{host}", self.scheme, self.login), options)
    }
}

fn database(text: &str, form: &str) -> Result<i64, Fault> {
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| invalid(format!("the database in the URL is not a number: use {form}")))
}

fn replicated(parts: &Parts, options: &ClientOptions) -> Result<Vec<Server>, Fault> {
    let form = "redis+replicated://[user:password@]host[:port],host[:port][/db]";
    parts.knows(&[], form)?;
    let database = match parts.path[..] {
        [] => 0,
        [number] => database(number, form)?,
        _ => return Err(invalid(format!("the URL has too many parts: use {form}"))),
    };
    let server = |host: &&str| parts.server(host, options).map(|one| Server { database, ..one });
    parts.hosts.iter().map(server).collect()
}

fn cluster(parts: &Parts, options: &ClientOptions) -> Result<Vec<Server>, Fault> {
    let form = "redis+cluster://[user:password@]host[:port],host[:port]";
    parts.knows(&[], form)?;
    match parts.path[..] {
        [] | ["0"] => {}
        _ => return Err(invalid(format!("a cluster has database 0 only: use {form}"))),
    }
    parts.hosts.iter().map(|host| parts.server(host, options)).collect()
}

fn sentinels(parts: &Parts, options: &ClientOptions) -> Result<Sentinels, Fault> {
    let form = "redis+sentinel://[user:password@]sentinel[:port],sentinel[:port]/MASTER-NAME[/db]\
                [?sentinel_user=U&sentinel_password=P&sentinel_tls=yes|no]";
    parts.knows(&["sentinel_user", "sentinel_password", "sentinel_tls"], form)?;
    let (master, database) = match parts.path[..] {
        [master] => (master, 0),
        [master, number] => (master, database(number, form)?),
        _ => return Err(invalid(format!("the URL must name the master: use {form}"))),
    };
    let decoded = |text: &str| {
        let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
        decoded.map(String::from).map_err(|_| invalid("the URL is not percent-encoded UTF-8"))
    };
    let login = Server { database, ..parts.server("sentinel", options)? };
    let scheme = match parts.parameter("sentinel_tls") {
        None => parts.scheme,
        Some("yes") => "rediss",
        Some("no") => "redis",
        Some(_) => return Err(invalid("sentinel_tls in the URL must be yes or no")),
    };
    let user = parts.parameter("sentinel_user").map(decoded).transpose()?;
    let password = parts.parameter("sentinel_password").map(decoded).transpose()?;
    let password = password.or_else(|| options.sentinel_password.0.clone());
    if user.is_some() && password.is_none() {
        return Err(invalid("the URL names a sentinel_user, but no sentinel_password"));
    }
    let sentinel = |host: &&str| {
        let mut one = server(&format!("{scheme}://{host}"), options)?;
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        match &mut one.address {
            Address::Tcp(_, port) if !has_port => *port = SENTINEL_PORT,
            #[cfg(feature = "tls")]
            Address::Tls(_, port, _) if !has_port => *port = SENTINEL_PORT,
            _ => {}
        }
        (one.user, one.password) = (user.clone(), password.clone());
        Ok(one)
    };
    let sentinels = parts.hosts.iter().map(sentinel).collect::<Result<_, Fault>>()?;
    Ok(Sentinels { sentinels, master: decoded(master)?, login })
}

/// Parses the URL of one server.
pub(super) fn server(url: &str, options: &ClientOptions) -> Result<Server, Fault> {
    if url.starts_with("rediss:") && !cfg!(feature = "tls") {
        return Err(invalid("a rediss:// URL needs the feature \"tls\" of lockkeeper"));
    }
    if !is_port_valid(url) {
        return Err(invalid(
            "the port in the URL must be a number from 1 to 65535, and a password must be \
             percent-encoded",
        ));
    }
    let info = url.into_connection_info().map_err(|_| {
        invalid(match url.starts_with("redis+unix:") {
            true => "the URL is not of the form redis+unix:///path[?db=N&user=U&pass=P]",
            false => "the URL is not of the form redis://[user:password@]host[:port][/db], with a number as db",
        })
    })?;
    let settings = info.redis_settings();
    let user = settings.username().filter(|user| !user.is_empty());
    let password = settings.password().map(str::to_owned);
    let password = password.or_else(|| options.password.0.clone());
    if user.is_some() && password.is_none() {
        return Err(invalid("the URL names a user, but no password for it"));
    }
    if let Some(unknown) = unknown_parameter(url) {
        let known = "only a redis+unix:// URL has parameters: db, user, pass";
        // It may be the rest of a password that is not encoded.
        let is_word = unknown.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let is_shown = is_word && !url.contains('@') && !url.contains("pass=");
        let which = if is_shown { format!(" {unknown:?}") } else { String::new() };
        return Err(invalid(format!(
            "the URL has an unknown parameter{which}, or a password that is not percent-encoded: {known}"
        )));
    }
    Ok(Server {
        user: user.map(str::to_owned),
        password,
        database: settings.db(),
        address: address(info.addr(), options)?,
        node: None,
    })
}

#[cfg_attr(not(feature = "tls"), expect(unused_variables))]
fn address(addr: &ConnectionAddr, options: &ClientOptions) -> Result<Address, Fault> {
    match addr {
        ConnectionAddr::Tcp(host, port) => Ok(Address::Tcp(host.clone(), *port)),
        ConnectionAddr::Unix(path) => Ok(Address::Unix(path.clone())),
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            Err(invalid("a certificate is always verified: remove #insecure from the URL"))
        }
        #[cfg(feature = "tls")]
        ConnectionAddr::TcpTls { host, port, .. } => {
            Ok(Address::Tls(host.clone(), *port, Arc::new(tls::config(&options.tls)?)))
        }
        _ => Err(invalid("the URL has a form that is not supported")),
    }
}

/// Returns the name of a parameter that would be ignored.
fn unknown_parameter(url: &str) -> Option<&str> {
    let (before, query) = url.split('#').next()?.split_once('?')?;
    let known: &[&str] =
        match before.split_once(':').is_some_and(|(scheme, _)| scheme.ends_with("unix")) {
            true => &["db", "user", "pass", "protocol"],
            false => &["protocol"],
        };
    let names = query.split('&').map(|part| part.split('=').next().unwrap_or_default());
    names.into_iter().find(|name| !name.is_empty() && !known.contains(name))
}

/// Whether the URL has no port or a valid one. A path has none.
fn is_port_valid(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return true };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    match host.rsplit_once(':') {
        Some((_, port)) if !scheme.ends_with("unix") && !host.ends_with(']') => {
            port.is_empty() || port.parse::<u16>().is_ok_and(|port| port > 0)
        }
        _ => true,
    }
}

#[cfg(feature = "tls")]
mod tls {
    use std::sync::Arc;

    use rustls::crypto::CryptoProvider;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, RootCertStore};

    use super::invalid;
    use crate::backend::Fault;
    use crate::config::Tls;

    /// Creates the TLS settings: read once, not for every connection.
    pub(super) fn config(tls: &Tls) -> Result<ClientConfig, Fault> {
        let unusable = |what: &str, error: &dyn std::fmt::Display| {
            invalid(format!("the TLS settings are unusable: {what}: {error}"))
        };
        // The provider of the process, if it has chosen one.
        let provider = CryptoProvider::get_default().cloned();
        let provider =
            provider.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("protocol versions", &error))?
            .with_root_certificates(roots(tls.ca.as_deref())?);
        let Some((certificates, key)) = &tls.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let certificates = CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>();
        let certificates = certificates.map_err(|error| unusable("client certificate", &error))?;
        let key = PrivateKeyDer::from_pem_slice(key);
        let key = key.map_err(|error| unusable("client key", &error))?;
        let config = builder.with_client_auth_cert(certificates, key);
        config.map_err(|error| unusable("client certificate", &error))
    }

    /// The certificates to trust: the given ones, or those of the system.
    fn roots(ca: Option<&[u8]>) -> Result<RootCertStore, Fault> {
        let mut roots = RootCertStore::empty();
        let Some(ca) = ca else {
            // Without any, the handshake fails and says why.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            return Ok(roots);
        };
        for certificate in CertificateDer::pem_slice_iter(ca) {
            let added = certificate.map_err(|error| error.to_string());
            let added = added.and_then(|one| roots.add(one).map_err(|error| error.to_string()));
            let what = "the TLS settings are unusable: CA certificate";
            added.map_err(|error| invalid(format!("{what}: {error}")))?;
        }
        Ok(roots)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::RedisUrl;

    #[test]
    fn a_server_shows_no_password() {
        let one = server("redis://u:s3cret@localhost:7000/3", &ClientOptions::new()).unwrap();
        assert_eq!(format!("{one:?}"), "localhost:7000/3");
        assert_eq!(one.password.as_deref(), Some("s3cret"));
        let unix = server("redis+unix:///tmp/x.sock?db=2", &ClientOptions::new()).unwrap();
        assert_eq!(format!("{unix:?}"), "/tmp/x.sock/2");
        let fault = server("redis://u:s3cret", &ClientOptions::new()).unwrap_err();
        assert!(!format!("{fault:?}").contains("s3cret"), "{fault:?}");
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        let refusal = |url| match parse(url, &ClientOptions::new()) {
            Err(Fault::Invalid { detail }) => detail.to_string(),
            other => panic!("{url}: {other:?}"),
        };
        assert!(refusal("redis://h?db=3").contains("\"db\""));
        assert!(refusal("redis+unix:///tmp/x.sock?database=3").contains("\"database\""));
        assert!(refusal("redis://ann@h").contains("no password"));
        let unix = "redis+unix:///tmp/x.sock?user=&pass=p&db=1";
        assert_eq!(server(unix, &ClientOptions::new()).unwrap().user, None);
    }

    #[test]
    fn a_url_names_several_hosts() {
        let url = "redis+replicated://u:s3cret@a,b:7000/3";
        let Ok(Topology::Replicated(servers)) = parse(url, &ClientOptions::new()) else { panic!() };
        assert_eq!(format!("{servers:?}"), "[a:6379/3, b:7000/3]");
        assert!(servers.iter().all(|one| one.password.as_deref() == Some("s3cret")));

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
        let options = ClientOptions::new().password("p@s").sentinel_password("p&s");
        for (url, expected) in [
            ("redis://h", "p@s"),
            ("rediss://ann@h/2", "p@s"),
            ("redis://:own@h", "own"),
            ("redis://ann:own@h", "own"),
            ("redis+unix:///run/r.sock?db=1", "p@s"),
            ("redis+unix:///run/r.sock?pass=own", "own"),
            ("redis+replicated://ann@a,b", "p@s"),
            ("redis+cluster://:own@a,b", "own"),
        ] {
            let servers = match parse(url, &options).unwrap() {
                Topology::Single(server) => vec![server],
                Topology::Replicated(servers) | Topology::Cluster(servers) => servers,
                Topology::Sentinel(_) => panic!("{url}"),
            };
            let is_it = |server: &Server| server.password.as_deref() == Some(expected);
            assert!(servers.iter().all(is_it), "{url}");
        }
        for (url, expected) in [
            ("redis+sentinel://:own@a,b/m", ("own", "p&s")),
            ("redis+sentinel://ann@a/m?sentinel_user=bob", ("p@s", "p&s")),
            ("redis+sentinel://a/m?sentinel_password=its", ("p@s", "its")),
        ] {
            let Ok(Topology::Sentinel(of)) = parse(url, &options) else { panic!("{url}") };
            let password = |server: &Server| server.password.clone().unwrap();
            let found = (password(&of.login), password(&of.sentinels[0]));
            assert_eq!((&found.0[..], &found.1[..]), expected, "{url}");
        }
        let shown = format!("{options:?}");
        assert!(!shown.contains("p@s") && !shown.contains("p&s"), "{shown}");
    }

    /// A host with its port, as it is given, and as it is shown.
    fn host() -> impl Strategy<Value = (String, String)> {
        let name = prop_oneof!["[a-z][a-z0-9.-]{0,9}", Just("10.0.0.7".to_owned())];
        let named = (name, 1..u16::MAX).prop_map(|(name, port)| format!("{name}:{port}"));
        let six = (any::<std::net::Ipv6Addr>(), 1..u16::MAX)
            .prop_map(|(ip, port)| (format!("[{ip}]:{port}"), format!("{ip}:{port}")));
        prop_oneof![named.prop_map(|host| (host.clone(), host)), six]
    }

    proptest! {
        /// What a `RedisUrl` is made of is what a client uses.
        #[test]
        fn a_composed_url_has_its_parts(
            hosts in proptest::collection::vec(host(), 1..4),
            (user, password, master) in (any::<String>(), any::<String>(), any::<String>()),
            database in 0..16_u32,
            kind in 0..4,
        ) {
            let [user, password, master] = [user, password, master].map(|text| format!("x{text}"));
            let given = hosts.iter().map(|(given, _)| given.as_str());
            let url = match kind {
                0 => RedisUrl::server(&hosts[0].0),
                1 => RedisUrl::sentinel(&master, given).sentinel_user(&password).sentinel_password(&user),
                2 => RedisUrl::replicated(given),
                _ => RedisUrl::cluster(given),
            };
            // A cluster has one database.
            let database = if kind == 3 { 0 } else { database };
            let url = url.user(&user).password(&password).database(database);
            let topology = parse(url.as_str(), &ClientOptions::new()).unwrap();
            let (servers, count) = match &topology {
                Topology::Single(server) => (std::slice::from_ref(server), 1),
                Topology::Replicated(servers) | Topology::Cluster(servers) => {
                    (&servers[..], hosts.len())
                }
                Topology::Sentinel(of) => {
                    prop_assert_eq!(&of.master, &master);
                    let given = format!("{:?}", Some((&password, &user)));
                    for one in &of.sentinels {
                        let login = one.user.as_ref().zip(one.password.as_ref());
                        prop_assert_eq!(format!("{login:?}"), &given[..]);
                        prop_assert_eq!(one.database, 0);
                    }
                    (std::slice::from_ref(&of.login), 1)
                }
            };
            prop_assert_eq!(servers.len(), count);
            prop_assert_eq!(matches!(topology, Topology::Cluster(_)), kind == 3);
            for server in servers {
                prop_assert_eq!(server.user.as_ref(), Some(&user));
                prop_assert_eq!(server.password.as_ref(), Some(&password));
                prop_assert_eq!(server.database, i64::from(database));
            }
            let named = match &topology {
                Topology::Sentinel(of) => &of.sentinels[..],
                _ => servers,
            };
            for (server, (_, shown)) in named.iter().zip(&hosts) {
                prop_assert_eq!(&server.address.to_string(), shown);
            }
        }
    }

    #[test]
    fn a_composed_url_shows_no_password() {
        let url = RedisUrl::sentinel("m", ["a", "::1"]).user("u").password("s3cret");
        let url = url.sentinel_password("s3cret").port(7000).tls().sentinel_tls(false);
        assert_eq!(format!("{url:?}"), "RedisUrl(\"rediss+sentinel://a:7000,[::1]:7000/m\")");
        let wrong = RedisUrl::replicated(["a"]).sentinel_password("s3cret");
        let Err(Fault::Invalid { detail }) = parse(wrong.as_str(), &ClientOptions::new()) else {
            panic!("there are no sentinels")
        };
        assert!(detail.contains("sentinel_password") && !detail.contains("s3cret"), "{detail}");
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
            let Err(Fault::Invalid { detail }) = parse(url, &ClientOptions::new()) else {
                panic!("{url} is accepted")
            };
            assert!(!detail.contains("s3cret"), "{detail}");
        }
    }
}
