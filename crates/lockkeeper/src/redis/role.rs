//! Whether a server is a primary or a replica.
//!
//! `ROLE` says it, or `INFO replication` where the user may not send `ROLE`. A server that tells
//! neither counts as a primary: a replica rejects the first write.

use super::command::Command;
use super::reply::{Info, Reply};
use super::resp::Value;

/// The role of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Role {
    Primary {
        /// The number of its replicas.
        replicas: usize,
        /// How many of them have data. One in its first synchronisation has none yet, and `WAIT` may
        /// count it all the same.
        synced: usize,
    },
    /// Of the primary at this host and port, and whether its link to it is up: then that server is there.
    Replica(String, u16, bool),
}

impl Role {
    pub(super) fn question() -> Command {
        Command::plain("ROLE")
    }

    /// The question where `ROLE` was not answered.
    pub(super) fn second_question() -> Command {
        Command::plain("INFO").arg("replication")
    }

    /// Understands the answer to either question.
    pub(super) fn parse(answer: &Value) -> Option<Self> {
        match answer {
            Value::Array(parts) => Self::of_role(parts),
            info => Self::of_info(&Info::read(info)?),
        }
    }

    /// The id of the data of a primary, or of a replica with a link: `INFO replication` says it. Both have the same
    /// one, and no other primary has it: a promoted replica starts a new one.
    pub(super) fn data_id(info: &Value) -> Option<String> {
        let info = Info::read(info)?;
        let has_all = info.get("role")? == "master" || info.get("master_link_status")? == "up";
        info.get("master_replid").filter(|_| has_all).map(str::to_owned)
    }

    fn of_role(parts: &[Value]) -> Option<Self> {
        match (parts.first()?.text()?.as_str(), parts) {
            ("master", [_, _, Value::Array(replicas), ..]) => {
                let has_data = |one: &&Value| match one {
                    Value::Array(parts) => parts.get(2).is_some_and(|offset| offset.number() > 0),
                    _ => false,
                };
                let synced = replicas.iter().filter(has_data).count();
                Some(Self::Primary { replicas: replicas.len(), synced })
            }
            ("slave", [_, host, port, rest @ ..]) => {
                let link = rest.first().and_then(Value::text);
                let is_up = matches!(link.as_deref(), Some("connected" | "sync"));
                Some(Self::Replica(host.text()?, u16::try_from(port.number()).ok()?, is_up))
            }
            _ => None,
        }
    }

    fn of_info(info: &Info) -> Option<Self> {
        let field = |name| info.get(name);
        match field("role")? {
            "master" => {
                // slave0:ip=10.0.0.2,port=6379,state=online,offset=14,lag=0
                let replicas: Vec<_> = info.0.lines().filter(|line| is_replica(line)).collect();
                let has_data = |line: &&&str| {
                    let offset = line.split(',').find_map(|part| part.strip_prefix("offset="));
                    offset.is_some_and(|offset| offset != "0")
                };
                let synced = replicas.iter().filter(has_data).count();
                Some(Self::Primary { replicas: replicas.len(), synced })
            }
            "slave" => {
                let port = field("master_port")?.parse().ok()?;
                let is_up = field("master_link_status") == Some("up")
                    || field("master_sync_in_progress") == Some("1");
                Some(Self::Replica(field("master_host")?.to_owned(), port, is_up))
            }
            _ => None,
        }
    }
}

fn is_replica(line: &str) -> bool {
    let rest = line.strip_prefix("slave");
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}
