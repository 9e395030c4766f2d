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
    /// The addresses of the replicas, and whether it takes them for dead.
    pub(super) replicas: Vec<((String, u16), bool)>,
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

pub(super) fn questions(master: &str) -> [Command; 5] {
    let sentinel = |verb: &str| Command::plain("SENTINEL").arg(verb);
    [
        sentinel("GET-MASTER-ADDR-BY-NAME").arg(master),
        sentinel("MASTER").arg(master),
        sentinel("SENTINELS").arg(master),
        sentinel("MYID"),
        sentinel("SLAVES").arg(master),
    ]
}

pub(super) fn understand(replies: Vec<Value>) -> Result<SentinelView, Fault> {
    let [primary, master, others, id, replicas] = &replies[..] else { return Err(Fault::Closed) };
    if let Value::Error(error) = primary {
        return Err(error.fault());
    }
    let primary = match primary.items() {
        Some([host, port]) => host.text().zip(port.text().and_then(|port| port.parse().ok())),
        _ => None,
    };
    let epoch = fields(master).remove("config-epoch").and_then(|epoch| epoch.parse().ok());
    let other = |value: &Value| {
        let mut fields = fields(value);
        let port = fields.remove("port")?.parse().ok()?;
        Some((fields.remove("runid")?, fields.remove("ip")?, port))
    };
    let replica = |value: &Value| {
        let mut fields = fields(value);
        let port = fields.remove("port")?.parse().ok()?;
        Some(((fields.remove("ip")?, port), fields.remove("flags")?.contains("s_down")))
    };
    let others = others.items().unwrap_or_default().iter().filter_map(other).collect();
    let replicas = replicas.items().unwrap_or_default().iter().filter_map(replica).collect();
    Ok(SentinelView { id: id.text(), primary, epoch: epoch.unwrap_or(0), replicas, others })
}

/// Returns the fields of a map, which is a list in RESP2.
fn fields(value: &Value) -> HashMap<String, String> {
    let pair = |pair: &[Value]| pair[0].text().zip(pair[1].text());
    value.items().unwrap_or_default().chunks_exact(2).filter_map(pair).collect()
}
