//! An error reply of a server, and what it means; the meaning of an error of the socket.

use std::{fmt, io};

use crate::backend::Fault;

/// An error reply: its first word, and the rest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ErrorReply {
    pub(super) code: String,
    pub(super) detail: String,
}

impl fmt::Display for ErrorReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code)?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, " {}", self.detail) }
    }
}

impl std::error::Error for ErrorReply {}

/// Converts an error of the socket: it concerns the connection, not one command.
pub(super) fn of_connection(error: io::Error, maybe_ran: bool) -> Fault {
    let advice = match error.raw_os_error() {
        Some(24) => ": this process has no descriptor left; raise its limit (ulimit -n)",
        Some(23) => ": this machine has no descriptor left; raise fs.file-max",
        _ if error.kind() == io::ErrorKind::ConnectionRefused => {
            ": check that the server runs, and host and port"
        }
        _ => "",
    };
    let detail = format!("{error}{advice}").into();
    Fault::Unreachable { maybe_ran, detail }.caused_by(error)
}

impl ErrorReply {
    pub(super) fn parse(text: &str) -> Self {
        let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
        Self { code: code.to_owned(), detail: detail.to_owned() }
    }

    /// Whether a node of a cluster rejects a command because of the slot of its keys.
    pub(super) fn is_redirect(&self) -> bool {
        matches!(&self.code[..], "MOVED" | "ASK" | "TRYAGAIN")
    }

    /// Whether it says that the server is a replica. One that lost its primary may refuse reads, too.
    pub(super) fn is_of_replica(&self) -> bool {
        ["READONLY", "MASTERDOWN"].iter().any(|word| self.says(word))
    }

    /// The error reply behind a fault.
    pub(super) fn behind(fault: &Fault) -> Option<&Self> {
        fault.source()?.downcast_ref()
    }

    pub(super) fn is_behind(fault: &Fault, code: &str) -> bool {
        Self::behind(fault).is_some_and(|error| error.code == code)
    }

    /// Whether the server does not accept such arguments.
    pub(super) fn is_syntax_error(&self) -> bool {
        self.code == "ERR" && self.detail.starts_with("syntax error")
    }

    pub(super) fn is_unknown_command(&self) -> bool {
        self.code == "ERR" && self.detail.starts_with("unknown command")
    }

    /// Whether this is its code. For an error inside a script, servers before 7.0 put the code into the
    /// middle of the text.
    fn says(&self, word: &str) -> bool {
        let is_in_script = self.code == "ERR" && self.detail.contains("script");
        self.code == word || is_in_script && self.detail.contains(word)
    }

    /// The fault of the request, with this error as its source.
    pub(super) fn fault(&self) -> Fault {
        self.meaning(self.to_string()).caused_by(self.clone())
    }

    /// The same in these words and without the error, which may quote a password.
    pub(super) fn meaning(&self, text: String) -> Fault {
        let detail = &self.detail;
        let says = |words: &[&str]| words.iter().any(|word| self.says(word));
        let contains = |words: &[&str]| words.iter().any(|word| detail.contains(word));
        let advised = |advice: &str| format!("{text}: {advice}").into();
        match &self.code[..] {
            _ if says(&["WRONGKIND"]) => {
                let found = text.split("WRONGKIND ").last().unwrap_or_default().to_owned();
                Fault::WrongKind { found }
            }
            _ if says(&["WRONGTYPE"]) => {
                Fault::WrongKind { found: "a value of another type".to_owned() }
            }
            // Errors of our own scripts: the request is invalid in the current state.
            "UNSET" | "TOOMANY" => Fault::invalid(detail.clone()),
            "MOVED" | "ASK" => Fault::Invalid {
                detail: advised(
                    "the server is a node of a cluster; use redis+cluster:// and the same address",
                ),
            },
            "CROSSSLOT" => Fault::invalid(text),
            // In words of our own: those of the servers are long, and one of them may be the password.
            "NOAUTH" => Fault::Denied {
                detail: "NOAUTH the server needs a password: give it in the URL, as in \
                         redis://:password@host"
                    .into(),
            },
            "WRONGPASS" => Fault::Denied {
                detail: "WRONGPASS the server rejects the user or the password".into(),
            },
            // `DENIED` is the error of protected mode; the last words are of Valkey, about a command inside a
            // script.
            _ if says(&["NOPERM", "NOAUTH", "WRONGPASS", "DENIED"])
                || contains(&[
                    "can't run this command",
                    "can't access",
                    "ACL failure in script",
                ]) =>
            {
                Fault::Denied { detail: text.into() }
            }
            _ if contains(&["DB index is out of range"]) => {
                Fault::Invalid { detail: advised("check the number of the database in the URL") }
            }
            _ if contains(&["max number of clients"]) => Fault::Refused {
                detail: advised("raise maxclients of the server, or close connections to it"),
            },
            _ if says(&NOT_NOW) => Fault::refused(text),
            _ => Fault::Server { detail: text.into() },
        }
    }
}

/// The codes of a server that refuses for now.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Phase};

    #[test]
    fn what_the_system_says_comes_with_what_to_do() {
        for (error, advice) in [(24, "ulimit -n"), (23, "fs.file-max"), (111, "host and port")] {
            let fault = of_connection(io::Error::from_raw_os_error(error), false);
            let said = format!("{fault:?}");
            assert!(said.contains(advice), "{said}");
        }
    }

    #[test]
    fn the_error_of_the_system_or_the_server_is_the_source() {
        let error = |fault| Error::from_fault(fault, None, Phase::Acquire, None);
        let reset = error(of_connection(io::ErrorKind::ConnectionReset.into(), true));
        let source = std::error::Error::source(&reset).and_then(|source| source.downcast_ref());
        assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::ConnectionReset));
        let refused = ErrorReply::parse("OOM command not allowed");
        let error = error(refused.fault());
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
        assert_eq!(source, Some(&refused));
    }

    #[test]
    fn words_of_old_and_new_servers_mean_the_same() {
        let classified =
            |code: &str, detail: &str| ErrorReply::parse(&format!("{code} {detail}")).fault();
        let old =
            "Error running script (call to f_12): @user_script:9: WRONGTYPE Operation against";
        assert!(matches!(classified("ERR", old), Fault::WrongKind { .. }));
        assert!(matches!(classified("WRONGTYPE", "Operation against"), Fault::WrongKind { .. }));
        let kind = classified("WRONGKIND", "a read/write lock");
        assert_eq!(kind, Fault::WrongKind { found: "a read/write lock".to_owned() });
        let unset = classified("UNSET", "no permits set");
        assert_eq!(unset, Fault::invalid("no permits set"));
        assert!(classified("LOADING", "Redis is loading").may_pass());
        assert!(classified("OOM", "command not allowed").may_pass());
        assert!(matches!(classified("NOPERM", "User x has no"), Fault::Denied { .. }));
        assert!(matches!(classified("NOAUTH", "Authentication required."), Fault::Denied { .. }));
        assert!(classified("ERR", "max number of clients reached").may_pass());
        assert!(matches!(classified("ERR", "syntax error"), Fault::Server { .. }));
        assert!(matches!(classified("ERR", "DB index is out of range"), Fault::Invalid { .. }));
    }
}
