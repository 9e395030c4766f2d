//! What an error of the driver or the server means.

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::backend::Fault;

/// An error of the driver: about the connection, not about one command.
pub(super) fn of_connection(error: &RedisError, maybe_ran: bool) -> Fault {
    if error.kind() == ErrorKind::AuthenticationFailed {
        return Fault::Denied { detail: error.detail().unwrap_or("wrong password").to_owned() };
    }
    if error.kind() == ErrorKind::InvalidClientConfig {
        return Fault::Invalid { detail: error.to_string() };
    }
    if error.kind() == ErrorKind::Parse {
        let detail = "what answers there is no Redis server".to_owned();
        return Fault::Unreachable { maybe_ran, detail };
    }
    match error.code() {
        Some(code) => of_words(code, error.detail().unwrap_or_default()),
        None => Fault::Unreachable { maybe_ran, detail: error.to_string() },
    }
}

/// An error that the server answered.
pub(super) fn of_server(error: &ServerError) -> Fault {
    of_words(error.code(), error.details().unwrap_or_default())
}

/// Separates an answer from an error.
pub(super) fn check(value: Value) -> Result<Value, Fault> {
    match value {
        Value::ServerError(error) => Err(of_server(&error)),
        value => Ok(value),
    }
}

/// What `code` and `detail` mean. Servers below 7 put the code of an error inside a script into the
/// middle of its text.
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
    // Words of our own scripts: the request makes no sense as things stand.
    if code == "UNSET" || code == "TOOMANY" {
        return Fault::Invalid { detail: detail.to_owned() };
    }
    if ["NOPERM", "NOAUTH", "WRONGPASS"].iter().any(|word| says(word))
        || detail.contains("can't run this command")
        || detail.contains("can't access")
    {
        return Fault::Denied { detail: text };
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
        assert!(matches!(of_words("ERR", "syntax error"), Fault::Server { .. }));
    }
}
