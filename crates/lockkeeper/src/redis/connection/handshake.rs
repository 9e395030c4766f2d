//! The first requests on a new connection: log in, send the client name, learn the connection's identity on
//! the server and the server's role, and kill the connections that were given up.
//!
//! `HELLO` is sent alone: a server that rejects the connection answers and closes it, and with more
//! requests under way that answer would be lost in a reset. A server that does not know it, or a user
//! who may not send it, gets RESP2.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::socket;
use super::socket::{Wire, broken_by};
use crate::backend::Fault;
use crate::options::ClientOptions;
use crate::redis::command::Command;
use crate::redis::error_reply::ErrorReply;
use crate::redis::member::Membership;
use crate::redis::reply::{self, Info, Reply};
use crate::redis::resp::Value;
use crate::redis::role::Role;
use crate::redis::server::{Address, Server};

/// Opens a socket and logs in.
pub(super) async fn connect(server: &Server, options: &ClientOptions) -> Result<Wire, Fault> {
    let socket = socket::connect(&server.address, options).await;
    let mut wire = Wire::new(socket.map_err(broken_by).map_err(Fault::never_ran)?);
    let introduced = async {
        log_in(&mut wire, server).await?;
        ensure_node(&mut wire, server).await
    };
    // No request of a caller was sent yet.
    introduced.await.map_err(Fault::never_ran).map(|()| wire)
}

/// Fails if another node of a cluster answers than the one that is expected: its address may belong to a node
/// of another cluster by now, which would grant the same locks. A user that may not ask is not protected.
async fn ensure_node(wire: &mut Wire, server: &Server) -> Result<(), Fault> {
    let Some(node) = &server.node else { return Ok(()) };
    let reply = only(wire.exchange(&[Command::plain("CLUSTER").arg("MYID")]).await?);
    match reply.checked() {
        Ok(Value::Bulk(id)) if id != node.as_bytes() => {
            let (address, id) = (&server.address, String::from_utf8_lossy(&id));
            Err(Fault::refused(format!("the node at {address} is {id}, and no longer {node}")))
        }
        Err(fault) if fault.may_pass() => Err(fault),
        _ => Ok(()),
    }
}

async fn log_in(wire: &mut Wire, server: &Server) -> Result<(), Fault> {
    let mut hello = Command::plain("HELLO").arg("3");
    if let Some(password) = &server.password {
        let user = server.user.as_deref().unwrap_or("default");
        hello = hello.arg("AUTH").arg(user).arg(password);
    }
    let reply = only(wire.exchange(&[hello]).await?);
    let Value::Error(error) = &reply else { return Ok(()) };
    if !error.is_unknown_command() && !matches!(&error.code[..], "NOPROTO" | "NOPERM") {
        return Err(rejected(error, server));
    }
    wire.is_resp2 = true;
    let Some(password) = &server.password else { return Ok(()) };
    let mut auth = Command::plain("AUTH");
    // Before Redis 6 there are no users.
    if let Some(user) = &server.user {
        auth = auth.arg(user);
    }
    match only(wire.exchange(&[auth.arg(password)]).await?) {
        Value::Error(error) => Err(rejected(&error, server)),
        _ => Ok(()),
    }
}

/// Why the server does not let the client in. Old servers quote the arguments of a command that they do not know,
/// the password among them, and a proxy may do so in its own words: the text ends with the first quotation, and
/// the error itself, which has the rest, is left out. To hide only the password would tell which word it is.
fn rejected(error: &ErrorReply, server: &Server) -> Fault {
    let text = error.to_string();
    // An apostrophe within a word is none.
    let is_quotation = |(at, c): &(usize, char)| {
        matches!(c, '\'' | '`' | '"') && !text[..*at].ends_with(char::is_alphanumeric)
    };
    match text.char_indices().find(is_quotation).filter(|_| server.password.is_some()) {
        Some((at, _)) => error.meaning(format!("{}***", &text[..at])),
        None => error.fault(),
    }
}

fn only(mut replies: Vec<Value>) -> Value {
    replies.pop().unwrap_or(Value::Nil)
}

/// Requests that set the name that `CLIENT LIST` shows. It is only for people, so missing permissions
/// do not matter.
pub(super) fn naming(options: &ClientOptions) -> [Command; 3] {
    let client = |verb: &str| Command::plain("CLIENT").arg(verb);
    let version = env!("CARGO_PKG_VERSION");
    [
        client("SETNAME").arg(options.redis.shown_name()),
        client("SETINFO").arg("LIB-NAME").arg("lockkeeper"),
        client("SETINFO").arg("LIB-VER").arg(version),
    ]
}

/// The outcome of [`introduce`].
pub(super) struct Introduced {
    /// `None` if the user may not read it.
    pub(super) identity: Option<Identity>,
    /// The run id of the server; `None` if the user may not read it.
    pub(super) run: Option<String>,
    /// No request can execute any more on a connection that was given up.
    pub(super) revoked: bool,
}

/// Names the client, selects the database, checks that the server is a primary, reads the identity of
/// the connection and kills those that were given up on this server.
pub(super) async fn introduce(
    wire: &mut Wire,
    server: &Server,
    options: &ClientOptions,
    given_up: &[Identity],
) -> Result<Introduced, Fault> {
    let run_id = Command::plain("INFO").arg("server");
    let mut hello = vec![Command::plain("CLIENT").arg("INFO"), Role::question(), run_id];
    hello.extend(naming(options));
    if server.database != 0 {
        hello.push(Command::plain("SELECT").arg(server.database));
    }
    let mut replies = wire.exchange(&hello).await.map_err(Fault::never_ran)?.into_iter();
    let mut identity = match replies.next().map(Value::checked) {
        Some(Ok(Value::Bulk(info))) => Identity::parse(&info),
        // A missing password is reported when connecting, not at the first lock.
        Some(Err(fault)) if fault.may_pass() || ErrorReply::is_behind(&fault, "NOAUTH") => {
            return Err(fault);
        }
        _ => None,
    };
    let role = replies.next();
    let run = replies.next().and_then(|info| Info::read(&info)?.get("run_id").map(str::to_owned));
    // After the three replies that are only for people.
    let selected = replies.nth(3);
    ensure_primary(wire, role, server).await?;
    selected.map(Value::checked).transpose()?;
    if let Some(identity) = &mut identity {
        (identity.run, identity.dialled) = (run.clone(), server.address.to_string());
    }
    let revoked = identity.is_some() && kill(wire, identity.as_ref(), given_up).await?;
    Ok(Introduced { identity, run, revoked })
}

/// Joins a quorum: reads the marker of the member, or writes one.
pub(super) async fn join(wire: &mut Wire, membership: &Membership) -> Result<(), Fault> {
    loop {
        let question = membership.question().by_text().raw();
        let reply = only(wire.exchange(&[question]).await.map_err(Fault::never_ran)?);
        membership.joined(reply::taken(reply)?)?;
        // Again, if markers were allowed while the question was under way.
        if !membership.is_to_mark() {
            return Ok(());
        }
    }
}

/// Fails if the server says that it is a replica, or a sentinel. `role` is its answer to the first
/// question.
pub(super) async fn ensure_primary(
    wire: &mut Wire,
    role: Option<Value>,
    server: &Server,
) -> Result<(), Fault> {
    if let Some(url) = role.as_ref().and_then(|role| url_of_sentinel(role, server)) {
        return Err(Fault::invalid(format!("{} is a sentinel: use {url}", server.address)));
    }
    let mut role = role.as_ref().and_then(Role::parse);
    if role.is_none() {
        let reply =
            only(wire.exchange(&[Role::second_question()]).await.map_err(Fault::never_ran)?);
        role = Role::parse(&reply);
    }
    let Some(Role::Replica(host, port, _)) = role else { return Ok(()) };
    Err(Fault::refused(format!("{} is a replica of {host}:{port}, not a primary", server.address)))
}

/// The URL for a sentinel, with the first of its masters, if this answer to `ROLE` is that of a sentinel.
fn url_of_sentinel(role: &Value, server: &Server) -> Option<String> {
    let Value::Array(parts) = role else { return None };
    let [kind, Value::Array(masters)] = &parts[..] else { return None };
    let (host, port) =
        server.address.host().filter(|_| kind.text().as_deref() == Some("sentinel"))?;
    let master = masters.first().and_then(Value::text).unwrap_or_else(|| "MASTER-NAME".to_owned());
    let master = utf8_percent_encode(&master, NON_ALPHANUMERIC);
    let scheme =
        if matches!(server.address, Address::Tcp(.., Some(_))) { "rediss" } else { "redis" };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let database = Some(server.database).filter(|number| *number > 0);
    let database = database.map_or(String::new(), |number| format!("/{number}"));
    Some(format!("{scheme}+sentinel://{host}:{port}/{master}{database}"))
}

/// Kills connections that were given up. Returns whether no request can execute on any of them.
async fn kill(
    wire: &mut Wire,
    own: Option<&Identity>,
    given_up: &[Identity],
) -> Result<bool, Fault> {
    let fates = || given_up.iter().map(|old| old.fate(own));
    let there = given_up.iter().zip(fates()).filter(|(_, fate)| *fate == Fate::There);
    let kill = |old: &Identity| {
        let kill = Command::plain("CLIENT").arg("KILL").arg("ID").arg(&old.id);
        kill.arg("ADDR").arg(&old.address)
    };
    let kills: Vec<_> = there.map(|(old, _)| kill(old)).collect();
    let known = fates().all(|fate| fate != Fate::Unknown);
    let replies = wire.exchange(&kills).await.map_err(Fault::never_ran)?;
    let killed = |reply: &Value| matches!(reply, Value::Int(_) | Value::Status(_));
    Ok(known && replies.iter().all(killed))
}

/// Identifies a connection on the server. By id and address, because a restarted server counts
/// client ids from 1 again.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Identity {
    id: String,
    address: String,
    /// The server's own address, which does not depend on the name used to connect.
    pub(super) server: Option<String>,
    /// The address that led to the server.
    dialled: String,
    /// The run id of the server, if the user may read it.
    pub(super) run: Option<String>,
}

impl Identity {
    /// Parses `id=7 addr=127.0.0.1:51234 laddr=127.0.0.1:6379 fd=8 …`. The path of a Unix socket may
    /// contain spaces, so an address ends where the next field begins.
    fn parse(info: &[u8]) -> Option<Self> {
        let info = format!(" {}", String::from_utf8_lossy(info));
        let field = |name: &str, next: &[&str]| {
            let (_, rest) = info.split_once(&format!(" {name}="))?;
            let end = next.iter().filter_map(|next| rest.find(&format!(" {next}="))).min();
            Some(rest[..end.unwrap_or(rest.len())].trim_end().to_owned())
        };
        let (id, address) = (field("id", &["addr"])?, field("addr", &["laddr", "fd"])?);
        // Anything else would make a kill hit nothing, and count as done.
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let (server, dialled) = (field("laddr", &["fd"]), String::new());
        port.map(|_| Self { id, address, server, dialled, run: None })
    }

    /// Whether other clients have the same address, as all clients of a Unix socket do.
    fn is_shared(&self) -> bool {
        self.address.ends_with(":0")
    }

    /// Returns the fate of the connection, as far as the current connection `own` can tell.
    fn fate(&self, own: Option<&Identity>) -> Fate {
        match (&self.run, own.and_then(|own| own.run.as_ref())) {
            (Some(then), Some(now)) if then == now => Fate::There,
            (Some(_), Some(_)) => Fate::Elsewhere,
            _ if own.is_some_and(|own| own.server != self.server) => Fate::Elsewhere,
            // The id belongs to another client after a restart, and the address proves nothing.
            _ if self.is_shared() => Fate::Unknown,
            _ => Fate::There,
        }
    }

    /// Whether the connection was certainly to the server of the current connection `own`. Addresses of the
    /// servers alone prove nothing: those of containers on several hosts may be the same.
    pub(super) fn is_beside(&self, own: &Identity) -> bool {
        let is_same_run = self.run.is_some() && self.run == own.run;
        is_same_run || self.dialled == own.dialled && self.fate(Some(own)) != Fate::Elsewhere
    }
}

/// The state of a connection that was given up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// Requests may still execute on it.
    There,
    /// It was to another server, or to this one before it was restarted: no request on it can execute
    /// here.
    Elsewhere,
    /// The server does not report it. A kill could hit the connection of another client.
    Unknown,
}

/// A limit for opening a connection and introducing it.
pub(super) async fn within<T>(
    limit: Duration,
    opening: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    tokio::time::timeout(limit, opening)
        .await
        .unwrap_or_else(|_| Err(Fault::silent(format!("not connected within {limit:?}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::url;
    use crate::redis_options::RedisOptions;

    fn refusal(reply: &str, password: &str) -> Fault {
        let options = ClientOptions::new().redis(RedisOptions::new().password(password));
        rejected(&ErrorReply::parse(reply), &url::server("redis://h", &options).unwrap())
    }

    #[test]
    fn a_quoted_password_is_hidden_and_a_word_that_is_the_password_is_not() {
        let none_set = "ERR Client sent AUTH, but no password is set";
        let denied = "NOPERM this user can't run a command";
        for password in ["password", "set", "t", "'"] {
            assert_eq!(refusal(none_set, password).to_string(), none_set);
            assert_eq!(refusal(denied, password).to_string(), denied);
        }
        for quoted in [
            "'HELLO' '3' 'AUTH' 'u' 's3cret'",
            "`AUTH`, with args beginning with: `s3cret`, ",
            r#""s3cret""#,
            "'s3cr",
        ] {
            for password in ["s3cret", "AUTH", "another"] {
                let fault = refusal(&format!("ERR unknown command {quoted}"), password);
                assert_eq!(fault.to_string(), "ERR unknown command ***");
                assert!(fault.source().is_none());
            }
        }
    }

    #[test]
    fn a_refusal_means_the_same_whatever_the_password() {
        for password in ["max", "clients", "another"] {
            let full = refusal("ERR max number of clients reached", password);
            assert!(matches!(full, Fault::Refused { .. }), "{full:?}");
            let full = refusal("ERR 'h': max number of clients reached", password);
            assert!(matches!(full, Fault::Refused { .. }), "{full:?}");
        }
    }

    #[test]
    fn an_identity_is_parsed_and_compared() {
        let of = |text: &str| Identity::parse(text.as_bytes()).unwrap();
        let tcp = of("id=7 addr=127.0.0.1:51234 laddr=127.0.0.1:6379 fd=8");
        assert_eq!(tcp.server.as_deref(), Some("127.0.0.1:6379"));
        assert_eq!(tcp.fate(None), Fate::There);
        let spaced = of("id=7 addr=/tmp/a b.sock:0 laddr=/tmp/a b.sock:0 fd=8 name=");
        assert_eq!(spaced.address, "/tmp/a b.sock:0");
        assert!(spaced.is_shared());
        assert_eq!(Identity::parse(b"id=7 addr=somewhere fd=8"), None);
        let unix = |run: Option<&str>| Identity {
            run: run.map(str::to_owned),
            ..of("id=7 addr=/tmp/redis.sock:0")
        };
        assert_eq!(unix(Some("a")).fate(Some(&unix(Some("a")))), Fate::There);
        assert_eq!(unix(Some("a")).fate(Some(&unix(Some("b")))), Fate::Elsewhere);
        assert_eq!(unix(None).fate(Some(&unix(Some("b")))), Fate::Unknown);
        let at = |dialled: &str, run: Option<&str>| {
            let (dialled, run) = (dialled.to_owned(), run.map(str::to_owned));
            Identity { dialled, run, ..tcp.clone() }
        };
        assert!(at("a", None).is_beside(&at("a", None)));
        assert!(!at("a", None).is_beside(&at("b", None)), "containers on two hosts");
        assert!(at("a", Some("run")).is_beside(&at("b", Some("run"))));
        assert!(!at("a", Some("run")).is_beside(&at("a", Some("other"))), "restarted");
        assert_eq!(Identity::parse(b"addr=127.0.0.1:1"), None);
    }
}
