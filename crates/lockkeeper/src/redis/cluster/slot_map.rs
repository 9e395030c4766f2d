//! What the nodes of a cluster say about its slots.

use crate::backend::Fault;
use crate::redis::command::Command;
use crate::redis::error_reply::ErrorReply;
use crate::redis::reply::{Info, Reply};
use crate::redis::resp::Value;
use crate::redis::server::Server;
use crate::redis::slot::SLOTS;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Node {
    pub(super) id: String,
    pub(super) host: String,
    pub(super) port: u16,
}

impl Node {
    pub(super) fn is_at(&self, host: &str, port: u16) -> bool {
        self.host == host && self.port == port
    }

    pub(super) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The way to it, with this login.
    pub(super) fn server(&self, login: &Server) -> Server {
        Server { node: Some(self.id.clone()), ..login.at(&self.host, self.port) }
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: Node,
    pub(super) replicas: Vec<Node>,
}

impl Range {
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        std::iter::once(&self.primary).chain(&self.replicas)
    }
}

/// The slots as one node knows them.
#[derive(Clone, Debug)]
pub(super) struct SlotAnswer {
    /// The node that says so.
    pub(super) host: String,
    pub(super) port: u16,
    /// Its id; `None` if the user may not ask for it.
    pub(super) id: Option<String>,
    /// The epoch of the cluster as it knows it; `None` if the user may not read it.
    pub(super) epoch: Option<u64>,
    /// It knows that it is cut off from most others.
    pub(super) is_cut_off: bool,
    pub(super) ranges: Vec<Range>,
}

impl SlotAnswer {
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.ranges.iter().flat_map(Range::nodes)
    }

    /// The node that says so, as the redirection to it called it.
    pub(super) fn itself(&self) -> Option<Node> {
        let listed = || self.nodes().find(|node| node.is_at(&self.host, self.port));
        let id = self.id.clone().or_else(|| Some(listed()?.id.clone()))?;
        Some(Node { id, host: self.host.clone(), port: self.port })
    }

    /// Whether it names one of the nodes that another one names.
    fn is_related(&self, other: &SlotAnswer) -> bool {
        self.nodes().any(|node| other.nodes().any(|one| one.id == node.id))
    }
}

/// Returns two answers of nodes that do not belong to one cluster.
pub(super) fn strangers(answers: &[SlotAnswer]) -> Option<(&SlotAnswer, &SlotAnswer)> {
    let mut answers = answers.iter().filter(|answer| !answer.ranges.is_empty());
    let first = answers.next()?;
    answers.find(|answer| !answer.is_related(first)).map(|answer| (first, answer))
}

pub(super) fn questions() -> [Command; 3] {
    ["SLOTS", "INFO", "MYID"].map(|verb| Command::plain("CLUSTER").arg(verb))
}

/// Understands the replies of this node to the questions.
pub(super) fn understand(server: &Server, replies: Vec<Value>) -> Result<SlotAnswer, Fault> {
    let mut replies = replies.into_iter();
    let slots = match replies.next().unwrap_or(Value::Nil) {
        // A server that is not in a cluster, or a sentinel.
        Value::Error(error)
            if error.is_unknown_command() || error.detail.contains("cluster support disabled") =>
        {
            let address = &server.address;
            let detail = format!("{address} is not a node of a cluster: use redis://{address}");
            return Err(Fault::invalid(detail));
        }
        slots => slots.checked()?,
    };
    let (host, port) = server.address.host().unwrap_or_default();
    let ranges = match slots {
        Value::Array(ranges) => ranges.iter().filter_map(|range| range_of(range, host)).collect(),
        _ => Vec::new(),
    };
    let info = replies.next().and_then(|reply| Info::read(&reply));
    let info = info.unwrap_or(Info(String::new()));
    let epoch = info.get("cluster_current_epoch").and_then(|epoch| epoch.parse().ok());
    let is_cut_off = info.get("cluster_state") == Some("fail");
    let id = replies.next().and_then(|id| id.text()).filter(|id| !id.is_empty());
    Ok(SlotAnswer { host: host.to_owned(), port, id, epoch, is_cut_off, ranges })
}

/// Parses first and last slot, the primary, and its replicas. `asked` is the host of the node that
/// answers: it may leave out its own.
fn range_of(value: &Value, asked: &str) -> Option<Range> {
    let Value::Array(parts) = value else { return None };
    let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = &parts[..] else {
        return None;
    };
    let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
    Some(Range {
        first: slot(*first)?,
        last: slot(*last)?,
        primary: node_of(primary, asked)?,
        replicas: replicas.iter().filter_map(|node| node_of(node, asked)).collect(),
    })
}

/// Parses host, port and id. A node without a known host (`?`) is left out.
fn node_of(value: &Value, asked: &str) -> Option<Node> {
    let Value::Array(parts) = value else { return None };
    let [host, Value::Int(port), id, ..] = &parts[..] else { return None };
    let host = match host.text().unwrap_or_default() {
        host if host.is_empty() => asked.to_owned(),
        host if host == "?" => return None,
        host => host,
    };
    Some(Node { id: id.text().unwrap_or_default(), host, port: u16::try_from(*port).ok()? })
}

/// A redirection: the request did not run here.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Redirect {
    /// The slot belongs to the node at this host and port.
    Moved(u16, String, u16),
    /// For this request alone, ask the node at this host and port.
    Ask(String, u16),
}

impl Redirect {
    /// Understands `MOVED 3999 10.0.0.1:6381` of the node at the host `asked`; its own host may be empty.
    pub(super) fn of(error: &ErrorReply, asked: &str) -> Option<Self> {
        let mut words = error.detail.split(' ');
        let slot = words.next()?.parse().ok().filter(|slot| *slot < SLOTS)?;
        let (host, port) = words.next()?.trim_end_matches(':').rsplit_once(':')?;
        let host = match host {
            "" => asked,
            "?" => return None,
            host => host.trim_start_matches('[').trim_end_matches(']'),
        };
        let port = port.parse().ok()?;
        match &error.code[..] {
            "MOVED" => Some(Self::Moved(slot, host.to_owned(), port)),
            "ASK" => Some(Self::Ask(host.to_owned(), port)),
            _ => None,
        }
    }
}

/// The owner of each slot, as an index into ranges.
pub(super) struct SlotMap {
    pub(super) epoch: Option<u64>,
    pub(super) ranges: Vec<Range>,
    pub(super) slots: Vec<Option<usize>>,
}

impl SlotMap {
    /// Merges the newest of these answers. Of answers of one epoch, the word of a node about its own slots
    /// counts most. A node that is cut off may have raised its epoch without knowing anything new: it
    /// counts only if all are.
    pub(super) fn newest(mut answers: Vec<SlotAnswer>) -> Option<Self> {
        answers.retain(|answer| !answer.ranges.is_empty());
        if answers.iter().any(|answer| !answer.is_cut_off) {
            answers.retain(|answer| !answer.is_cut_off);
        }
        let epoch = answers.iter().map(|answer| answer.epoch).max()?;
        let newest = answers.into_iter().filter(|answer| answer.epoch == epoch);
        let is_own =
            |answer: &SlotAnswer, range: &Range| range.primary.is_at(&answer.host, answer.port);
        let ranges: Vec<(bool, Range)> = newest
            .flat_map(|answer| {
                let ranges = answer.ranges.clone().into_iter();
                ranges.map(move |range| (is_own(&answer, &range), range))
            })
            .collect();
        let mut slots = vec![None; usize::from(SLOTS)];
        for of_its_own in [false, true] {
            for (n, (own, range)) in ranges.iter().enumerate() {
                if *own == of_its_own && range.first <= range.last {
                    slots[usize::from(range.first)..=usize::from(range.last)].fill(Some(n));
                }
            }
        }
        let ranges = ranges.into_iter().map(|(_, range)| range).collect();
        Some(Self { epoch, ranges, slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::resp::{HANDSHAKE_MAX, Parser};

    fn node(id: &str, port: u16) -> Node {
        Node { id: id.to_owned(), host: "h".to_owned(), port }
    }

    fn answer(port: u16, epoch: u64, ranges: &[(u16, u16, &str, u16)]) -> SlotAnswer {
        let ranges = ranges.iter().map(|(first, last, id, port)| Range {
            first: *first,
            last: *last,
            primary: node(id, *port),
            replicas: Vec::new(),
        });
        let (host, ranges) = ("h".to_owned(), ranges.collect());
        SlotAnswer { host, port, id: None, epoch: Some(epoch), is_cut_off: false, ranges }
    }

    fn owner(map: &SlotMap, slot: usize) -> Option<&str> {
        map.slots[slot].map(|range| &map.ranges[range].primary.id[..])
    }

    #[test]
    fn the_newest_answer_counts_and_of_equal_ones_that_of_the_owner() {
        let old = answer(2, 4, &[(0, 9, "a", 1)]);
        let new = answer(1, 5, &[(0, 5, "a", 1), (6, 9, "b", 2)]);
        let map = SlotMap::newest(vec![old.clone(), new.clone()]).unwrap();
        assert_eq!((map.epoch, owner(&map, 6), owner(&map, 10)), (Some(5), Some("b"), None));
        // The node that gets a slot knows first.
        let target = answer(3, 5, &[(0, 5, "a", 1), (6, 6, "c", 3), (7, 9, "b", 2)]);
        for answers in [vec![target.clone(), new.clone()], vec![new, target]] {
            let map = SlotMap::newest(answers).unwrap();
            assert_eq!((owner(&map, 6), owner(&map, 7)), (Some("c"), Some("b")));
        }
    }

    #[test]
    fn a_node_that_is_cut_off_or_knows_nothing_does_not_count() {
        let old = answer(1, 4, &[(0, 9, "a", 1)]);
        let cut_off = SlotAnswer { is_cut_off: true, ..answer(2, 9, &[(0, 9, "b", 2)]) };
        let new = answer(3, 10, &[]);
        let map = SlotMap::newest(vec![old, cut_off.clone(), new]).unwrap();
        assert_eq!((map.epoch, owner(&map, 0)), (Some(4), Some("a")));
        let map = SlotMap::newest(vec![cut_off]).unwrap();
        assert_eq!(owner(&map, 0), Some("b"), "there is no other");
    }

    #[test]
    fn redirections_are_understood() {
        let moved = |host: &str| Some(Redirect::Moved(7, host.to_owned(), 6381));
        let parse = |text: &str| Redirect::of(&ErrorReply::parse(text), "h");
        assert_eq!(parse("MOVED 7 10.0.0.1:6381"), moved("10.0.0.1"));
        assert_eq!(parse("MOVED 7 :6381"), moved("h"));
        assert_eq!(parse("MOVED 7 ::1:6381"), moved("::1"));
        assert_eq!(parse("MOVED 7 a:6381: use another"), moved("a"));
        assert_eq!(parse("MOVED 7 ?:6381"), None);
        assert_eq!(parse("ASK 7 a:1"), Some(Redirect::Ask("a".to_owned(), 1)));
        assert_eq!(parse("TRYAGAIN Multiple keys request"), None);
        assert_eq!(parse("MOVED 16384 a:1"), None);
    }

    #[test]
    fn the_slots_of_a_node_are_understood() {
        let text = "*2\r\n*4\r\n:0\r\n:5\r\n*3\r\n$0\r\n\r\n:7000\r\n$1\r\na\r\n*3\r\n$1\r\nr\r\n:7003\r\n$1\r\nd\r\n\
                     *3\r\n:6\r\n:9\r\n*3\r\n$1\r\n?\r\n:7001\r\n$1\r\nb\r\n";
        let (_, slots) = Parser::new(HANDSHAKE_MAX).parse(text.as_bytes()).unwrap();
        let info = Value::Bulk(b"cluster_state:ok\r\ncluster_current_epoch:6\r\n".to_vec());
        let options = crate::ClientOptions::new();
        let server = crate::redis::url::server("redis://h:7000", &options).unwrap();
        let answer = understand(&server, vec![slots.unwrap(), info]).unwrap();
        let replicas = vec![Node { id: "d".to_owned(), host: "r".to_owned(), port: 7003 }];
        let range = Range { first: 0, last: 5, primary: node("a", 7000), replicas };
        assert_eq!((answer.epoch, answer.ranges), (Some(6), vec![range]));
    }
}
