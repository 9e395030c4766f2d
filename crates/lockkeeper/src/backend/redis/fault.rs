//! The meaning of an error of the driver or the server.

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::backend::Fault;

/// Converts an error of the socket or the parser: it concerns the connection, not one command.
pub(super) fn of_connection(error: &RedisError, maybe_ran: bool) -> Fault {
    let detail = match error.kind() {
        ErrorKind::Parse => {
            "the answer is not that of a Redis server: check host and port".to_owned()
        }
        _ => advised(error.to_string()),
    };
    Fault::Unreachable { maybe_ran, detail: detail.into() }.caused_by(error.clone())
}

/// A part of the store that does not answer.
pub(super) fn silent(detail: String) -> Fault {
    Fault::Unreachable { maybe_ran: false, detail: detail.into() }
}

/// Appends advice to a system error.
fn advised(text: String) -> String {
    let advice = [
        ("os error 24", "this process has no descriptor left; raise its limit (ulimit -n)"),
        ("os error 23", "this machine has no descriptor left; raise fs.file-max"),
        ("refused", "check that the server runs, and host and port"),
    ];
    match advice.iter().find(|(sign, _)| text.contains(sign)) {
        Some((_, advice)) => format!("{text}: {advice}"),
        None => text,
    }
}

/// Converts an error reply of the server.
pub(super) fn of_server(error: &ServerError) -> Fault {
    let fault = of_words(error.code(), error.details().unwrap_or_default());
    fault.caused_by(RedisError::from(error.clone()))
}

/// Converts an error reply to a fault.
pub(super) fn check(value: Value) -> Result<Value, Fault> {
    match value {
        Value::ServerError(error) => Err(of_server(&error)),
        value => Ok(value),
    }
}

/// Whether a node of a cluster rejects a command because of the slot of its keys.
pub(super) fn is_redirect(error: &ServerError) -> bool {
    matches!(error.code(), "MOVED" | "ASK" | "TRYAGAIN")
}

/// Whether a reply says that the server is a replica. A replica that lost its primary may refuse reads,
/// too.
pub(super) fn is_of_replica(value: &Value) -> bool {
    match value {
        Value::ServerError(error) => {
            says_replica(error.code(), error.details().unwrap_or_default())
        }
        _ => false,
    }
}

/// The same for the words of an error.
pub(super) fn says_replica(code: &str, detail: &str) -> bool {
    ["READONLY", "MASTERDOWN"].iter().any(|word| {
        code == *word || code == "ERR" && detail.contains("script") && detail.contains(word)
    })
}

/// Classifies an error by `code` and `detail`. For an error inside a script, servers before 7.0 put
/// the code into the middle of the text.
pub(super) fn of_words(code: &str, detail: &str) -> Fault {
    let text = if detail.is_empty() { code.to_owned() } else { format!("{code} {detail}") };
    let in_script = code == "ERR" && detail.contains("script");
    let says = |word: &str| code == word || in_script && detail.contains(word);
    const NOT_NOW: [&str; 11] = [
        "LOADING",
        "READONLY",
        "BUSY",
        "MASTERDOWN",
        "OOM",
        "NOREPLICAS",
        "MISCONF",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "REJOIN",
        "NOSCRIPT",
    ];
    if says("WRONGKIND") {
        let found = text.split("WRONGKIND ").last().unwrap_or_default().to_owned();
        return Fault::WrongKind { found };
    }
    if says("WRONGTYPE") {
        return Fault::WrongKind { found: "a value of another type".to_owned() };
    }
    // Errors of our own scripts: the request is invalid in the current state.
    if code == "UNSET" || code == "TOOMANY" {
        return Fault::Invalid { detail: detail.into() };
    }
    if code == "MOVED" || code == "ASK" {
        let advice = "the server is a node of a cluster; use redis+cluster:// and the same address";
        return Fault::Invalid { detail: format!("{text}: {advice}").into() };
    }
    if code == "CROSSSLOT" {
        return Fault::Invalid { detail: text.into() };
    }
    // In words of our own: those of the servers are long, and one of them may be the password.
    if code == "NOAUTH" {
        let advice = "give it in the URL, as in redis://:password@host";
        return Fault::Denied {
            detail: format!("NOAUTH the server needs a password: {advice}").into(),
        };
    }
    if code == "WRONGPASS" {
        return Fault::Denied {
            detail: "WRONGPASS the server rejects the user or the password".into(),
        };
    }
    // `DENIED` is the error of protected mode.
    if ["NOPERM", "NOAUTH", "WRONGPASS", "DENIED"].iter().any(|word| says(word))
        || detail.contains("can't run this command")
        || detail.contains("can't access")
        // Valkey, about a command inside a script.
        || detail.contains("ACL failure in script")
    {
        return Fault::Denied { detail: text.into() };
    }
    if detail.contains("DB index is out of range") {
        let advice = "check the number of the database in the URL";
        return Fault::Invalid { detail: format!("{text}: {advice}").into() };
    }
    if detail.contains("max number of clients") {
        let advice = "raise maxclients of the server, or close connections to it";
        return Fault::Refused { detail: format!("{text}: {advice}").into() };
    }
    if NOT_NOW.iter().any(|word| says(word)) {
        return Fault::Refused { detail: text.into() };
    }
    Fault::Server { detail: text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Phase};

    #[test]
    fn what_the_system_says_comes_with_what_to_do() {
        for (error, advice) in [(24, "ulimit -n"), (23, "fs.file-max"), (111, "host and port")] {
            let error = std::io::Error::from_raw_os_error(error);
            let fault = of_connection(&error.into(), false);
            let said = format!("{fault:?}");
            assert!(said.contains(advice), "{said}");
        }
    }

    #[test]
    fn an_error_of_the_driver_is_the_source() {
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let fault = of_connection(&reset.into(), true);
        let error = Error::from_fault(fault, None, Phase::Acquire, None);
        let source = std::error::Error::source(&error).expect("it has a source");
        assert!(source.downcast_ref::<RedisError>().is_some_and(|source| source.is_io_error()));

        let refused = redis::parse_redis_value(b"-OOM command not allowed\r\n").unwrap();
        let error = Error::from_fault(check(refused).unwrap_err(), None, Phase::Acquire, None);
        let source = std::error::Error::source(&error).expect("it has a source");
        let source = source.downcast_ref::<RedisError>().expect("an error of the driver");
        assert_eq!(source.code(), Some("OOM"));
    }

    #[test]
    fn words_of_old_and_new_servers_mean_the_same() {
        let old =
            "Error running script (call to f_12): @user_script:9: WRONGTYPE Operation against";
        assert!(matches!(of_words("ERR", old), Fault::WrongKind { .. }));
        assert!(matches!(of_words("WRONGTYPE", "Operation against"), Fault::WrongKind { .. }));
        let kind = of_words("WRONGKIND", "a read/write lock");
        assert_eq!(kind, Fault::WrongKind { found: "a read/write lock".to_owned() });
        let unset = of_words("UNSET", "no permits set");
        assert_eq!(unset, Fault::Invalid { detail: "no permits set".into() });
        assert!(of_words("LOADING", "Redis is loading").may_pass());
        assert!(of_words("OOM", "command not allowed").may_pass());
        assert!(matches!(of_words("NOPERM", "User x has no"), Fault::Denied { .. }));
        assert!(matches!(of_words("NOAUTH", "Authentication required."), Fault::Denied { .. }));
        assert!(of_words("ERR", "max number of clients reached").may_pass());
        assert!(matches!(of_words("ERR", "syntax error"), Fault::Server { .. }));
        assert!(matches!(of_words("ERR", "DB index is out of range"), Fault::Invalid { .. }));
    }
}
