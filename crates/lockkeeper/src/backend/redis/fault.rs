//! What an error of the driver or the server means.

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::backend::Fault;

/// Converts an error of the driver: it concerns the connection, not one command.
pub(super) fn of_connection(error: &RedisError, maybe_ran: bool) -> Fault {
    if error.kind() == ErrorKind::AuthenticationFailed {
        return Fault::Denied { detail: error.detail().unwrap_or("wrong password").to_owned() };
    }
    if error.kind() == ErrorKind::InvalidClientConfig {
        return Fault::Invalid { detail: error.to_string() };
    }
    if error.kind() == ErrorKind::Parse {
        let detail = "the answer is not that of a Redis server: check host and port".to_owned();
        return Fault::Unreachable { maybe_ran, detail };
    }
    match error.code() {
        Some(code) => of_words(code, error.detail().unwrap_or_default()),
        None => Fault::Unreachable { maybe_ran, detail: advised(error.to_string()) },
    }
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
    of_words(error.code(), error.details().unwrap_or_default())
}

/// Converts an error reply to a fault.
pub(super) fn check(value: Value) -> Result<Value, Fault> {
    match value {
        Value::ServerError(error) => Err(of_server(&error)),
        value => Ok(value),
    }
}

/// Classifies an error by `code` and `detail`. For an error inside a script, servers before 7.0 put
/// the code into the middle of the text.
pub(super) fn of_words(code: &str, detail: &str) -> Fault {
    let text = if detail.is_empty() { code.to_owned() } else { format!("{code} {detail}") };
    let in_script = code == "ERR" && detail.contains("script");
    let says = |word: &str| code == word || in_script && detail.contains(word);
    const NOT_NOW: [&str; 9] = [
        "LOADING",
        "READONLY",
        "BUSY",
        "MASTERDOWN",
        "OOM",
        "NOREPLICAS",
        "MISCONF",
        "CLUSTERDOWN",
        "TRYAGAIN",
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
        return Fault::Invalid { detail: detail.to_owned() };
    }
    if code == "NOAUTH" {
        let advice =
            "the server needs a password; give it in the URL, as in redis://:password@host";
        return Fault::Denied { detail: format!("{text}: {advice}") };
    }
    // `DENIED` is the error of protected mode.
    if ["NOPERM", "NOAUTH", "WRONGPASS", "DENIED"].iter().any(|word| says(word))
        || detail.contains("can't run this command")
        || detail.contains("can't access")
    {
        return Fault::Denied { detail: text };
    }
    if detail.contains("DB index is out of range") {
        let advice = "check the number of the database in the URL";
        return Fault::Invalid { detail: format!("{text}: {advice}") };
    }
    if detail.contains("max number of clients") {
        let advice = "raise maxclients of the server, or close connections to it";
        return Fault::Refused { detail: format!("{text}: {advice}") };
    }
    if NOT_NOW.iter().any(|word| says(word)) {
        return Fault::Refused { detail: text };
    }
    Fault::Server { detail: text }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn words_of_old_and_new_servers_mean_the_same() {
        let old =
            "Error running script (call to f_12): @user_script:9: WRONGTYPE Operation against";
        assert!(matches!(of_words("ERR", old), Fault::WrongKind { .. }));
        assert!(matches!(of_words("WRONGTYPE", "Operation against"), Fault::WrongKind { .. }));
        let kind = of_words("WRONGKIND", "a read/write lock");
        assert_eq!(kind, Fault::WrongKind { found: "a read/write lock".to_owned() });
        let unset = of_words("UNSET", "no permits set");
        assert_eq!(unset, Fault::Invalid { detail: "no permits set".to_owned() });
        assert!(of_words("LOADING", "Redis is loading").may_pass());
        assert!(of_words("OOM", "command not allowed").may_pass());
        assert!(matches!(of_words("NOPERM", "User x has no"), Fault::Denied { .. }));
        assert!(matches!(of_words("NOAUTH", "Authentication required."), Fault::Denied { .. }));
        assert!(of_words("ERR", "max number of clients reached").may_pass());
        assert!(matches!(of_words("ERR", "syntax error"), Fault::Server { .. }));
        assert!(matches!(of_words("ERR", "DB index is out of range"), Fault::Invalid { .. }));
    }
}
