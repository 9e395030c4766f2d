//! The questions to a sentinel, and its answers: the primary, its epoch, and the other sentinels.

use std::collections::{HashMap, HashSet};

use super::command::Command;
use super::resp::Value;
use crate::backend::Fault;

/// The primary and the other sentinels as one sentinel sees them.
pub(super) struct SentinelView {
    /// Its own id, if it reports one.
    pub(super) id: Option<String>,
    pub(super) primary: Option<(String, u16)>,
    pub(super) epoch: u64,
    /// The number of replicas that it knows, if it reports it.
    pub(super) replicas: Option<usize>,
    /// The ids and addresses of the other sentinels.
    pub(super) others: Vec<(String, String, u16)>,
}

/// The answers, each sentinel's once: one that is known by two addresses has one vote.
pub(super) fn distinct(answers: &Answers) -> Vec<&SentinelView> {
    let mut seen = HashSet::new();
    let views = answers.iter().filter_map(|(_, view)| view.as_ref().ok());
    views.filter(|view| view.id.as_ref().is_none_or(|id| seen.insert(id.clone()))).collect()
}

pub(super) type Answers = Vec<(String, Result<SentinelView, Fault>)>;

pub(super) fn questions(master: &str) -> [Command; 4] {
    let sentinel = |verb: &str| Command::plain("SENTINEL").arg(verb);
    [
        sentinel("GET-MASTER-ADDR-BY-NAME").arg(master),
        sentinel("MASTER").arg(master),
        sentinel("SENTINELS").arg(master),
        sentinel("MYID"),
    ]
}

pub(super) fn understand(replies: Vec<Value>) -> Result<SentinelView, Fault> {
    let [primary, master, others, id] = &replies[..] else { return Err(Fault::Closed) };
    if let Value::Error(error) = primary {
        return Err(error.fault());
    }
    let primary = match primary {
        Value::Array(parts) => match &parts[..] {
            [host, port] => host.text().zip(port.text().and_then(|port| port.parse().ok())),
            _ => None,
        },
        _ => None,
    };
    let field = |value: &Value, name: &str| fields(value).remove(name);
    let epoch = field(master, "config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let replicas = field(master, "num-slaves").and_then(|count| count.parse().ok());
    let other = |value: &Value| {
        let mut fields = fields(value);
        let port = fields.remove("port")?.parse().ok()?;
        Some((fields.remove("runid")?, fields.remove("ip")?, port))
    };
    let others = match others {
        Value::Array(list) => list.iter().filter_map(other).collect(),
        _ => Vec::new(),
    };
    Ok(SentinelView { id: id.text(), primary, epoch, replicas, others })
}

/// Returns the fields of a map, which is a list in RESP2.
fn fields(value: &Value) -> HashMap<String, String> {
    let pair = |pair: &[Value]| pair[0].text().zip(pair[1].text());
    value.items().unwrap_or_default().chunks_exact(2).filter_map(pair).collect()
}
