//! The grammar of the URLs of Redis servers. No error shows a URL: it may contain a password.

use std::ffi::OsString;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStringExt;

use percent_encoding::percent_decode_str;

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
        let no_user = "redis+unix:///tmp/x.sock?user=&pass=p&db=1";
        assert_eq!(server(no_user, &ClientOptions::new()).unwrap().user, None);
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
}
