//! The replies of the server: the form and the meaning of each, once. The connection accepts a reply by the
//! definition by which the caller takes it: one that cannot be read belongs to another request. So none is wider
//! than what servers send.

use std::time::Duration;

use super::error_reply::ErrorReply;
use super::resp::Value;
use crate::backend::{
    Attempt, Changed, ClientInfo, Fault, ForcedUnlock, Holder, Kind, LockInfo, Released, Renewed,
    Resource, Ttl,
};
use crate::model;
use crate::name::Brief;

/// The reply to a request that is not an error.
pub(super) trait Reply: Sized {
    /// Reads a reply; `None` if no server answers so.
    fn read(reply: &Value) -> Option<Self>;

    /// Whether it can be read. Without a copy where a reply may be large.
    fn fits(reply: &Value) -> bool {
        Self::read(reply).is_some()
    }
}

/// The form of a reply, without its type.
#[derive(Clone, Copy)]
pub(super) struct ReplyForm {
    fits: fn(&Value) -> bool,
    /// It is a list of this length.
    pub(super) each: Option<usize>,
}

impl ReplyForm {
    pub(super) fn of<T: Reply>() -> Self {
        Self { fits: T::fits, each: None }
    }

    /// Whether the reply can belong to such a request. An error always does.
    pub(super) fn fits(self, reply: &Value) -> bool {
        let is_of_length = |length| reply.items().is_some_and(|items| items.len() == length);
        matches!(reply, Value::Error(_)) || (self.fits)(reply) && self.each.is_none_or(is_of_length)
    }
}

/// Takes the reply to a request; an error of the server is a fault.
pub(super) fn taken<T: Reply>(reply: Value) -> Result<T, Fault> {
    let reply = reply.checked()?;
    T::read(&reply).ok_or_else(|| {
        let shown = format!("{reply:?}");
        Fault::Server { detail: format!("unexpected answer: {}", Brief(shown.as_bytes())).into() }
    })
}

impl Value {
    /// The elements of a list, or the fields and values of a map.
    pub(super) fn items(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) | Value::Map(items) => Some(items),
            _ => None,
        }
    }

    /// A text in either form.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Value::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Value::Status(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// A number in either form; 0 if it is none.
    pub(super) fn number(&self) -> u64 {
        match self {
            Value::Int(number) => number.unsigned_abs(),
            value => value.text().and_then(|text| text.parse().ok()).unwrap_or(0),
        }
    }
}

/// Any reply: the form is not known well enough.
impl Reply for Value {
    fn read(reply: &Value) -> Option<Self> {
        Some(reply.clone())
    }

    fn fits(_: &Value) -> bool {
        true
    }
}

/// Nothing or a token if granted; a number or `BUSY` if not, alone or with the number of listeners.
impl Reply for Attempt {
    #[inline]
    fn read(reply: &Value) -> Option<Self> {
        // The time for which permits are busy may be unknown.
        let busy = |left: &Value| match left {
            Value::Int(left) => Some(Some(ttl(*left))),
            Value::Status(word) if word == "BUSY" => Some(None),
            _ => None,
        };
        match reply {
            Value::Nil => Some(Attempt::GRANTED),
            Value::Int(-3) => Some(Attempt::Gone),
            Value::Bulk(token) if token.iter().all(u8::is_ascii_digit) => {
                let token = std::str::from_utf8(token).ok()?.parse().ok()?;
                Some(Attempt::Granted { token: Some(token) })
            }
            Value::Array(parts) => match &parts[..] {
                [left, Value::Int(listeners)] => {
                    Some(Attempt::Busy { ttl: busy(left)?, listeners: listeners.unsigned_abs() })
                }
                _ => None,
            },
            left => busy(left).map(Attempt::busy),
        }
    }
}

/// The number of notified subscribers, or -1 if they could not be notified; `KEPT`; nothing, or the holder.
impl Reply for Released {
    #[inline]
    fn read(reply: &Value) -> Option<Self> {
        Some(match reply {
            Value::Int(listeners) => Released::Freed { listeners: u64::try_from(*listeners).ok() },
            Value::Status(word) if word == "KEPT" => Released::Kept,
            Value::Nil => Released::Absent { holder: None },
            Value::Bulk(_) => Released::Absent { holder: reply.text() },
            _ => return None,
        })
    }
}

impl Reply for Renewed {
    fn read(reply: &Value) -> Option<Self> {
        let Value::Int(left) = reply else { return None };
        Some(match left {
            -2 => Renewed::Gone,
            -3 => Renewed::Taken,
            -4 => Renewed::Waiting,
            -5 => Renewed::Due,
            left => Renewed::Held(ttl(*left)),
        })
    }
}

/// One answer for each entry of a batch. An error of an entry is a text.
pub(super) type Renewals = Vec<Result<Renewed, Fault>>;

impl Reply for Renewals {
    fn read(reply: &Value) -> Option<Self> {
        let Value::Array(answers) = reply else { return None };
        let renewed = |answer: &Value| match answer {
            Value::Bulk(_) => Some(Err(ErrorReply::parse(&answer.text()?).fault())),
            answer => Renewed::read(answer).map(Ok),
        };
        answers.iter().map(renewed).collect()
    }
}

/// One of several words, or a number in digits.
impl Reply for Changed {
    fn read(reply: &Value) -> Option<Self> {
        let Value::Bulk(word) = reply else { return None };
        match &word[..] {
            b"DONE" => Some(Changed::Done),
            b"NOTHING" => Some(Changed::Nothing),
            count => Some(Changed::Count(std::str::from_utf8(count).ok()?.parse().ok()?)),
        }
    }
}

/// The former holders of a lock that was force-released; `None` if the holders are others.
pub(super) struct Forced(pub(super) Option<Vec<Vec<u8>>>);

impl Reply for Forced {
    fn read(reply: &Value) -> Option<Self> {
        match reply {
            Value::Bulk(word) => (word == b"other").then_some(Self(None)),
            reply => Vec::read(reply).map(|victims| Self(Some(victims))),
        }
    }
}

/// A string, or nothing.
impl Reply for Option<Vec<u8>> {
    #[inline]
    fn read(reply: &Value) -> Option<Self> {
        match reply {
            Value::Nil => Some(None),
            Value::Bulk(bytes) => Some(Some(bytes.clone())),
            _ => None,
        }
    }

    #[inline]
    fn fits(reply: &Value) -> bool {
        matches!(reply, Value::Bulk(_) | Value::Nil)
    }
}

impl Reply for i64 {
    fn read(reply: &Value) -> Option<Self> {
        if let Value::Int(number) = reply { Some(*number) } else { None }
    }
}

/// A number in digits.
impl Reply for u64 {
    fn read(reply: &Value) -> Option<Self> {
        matches!(reply, Value::Bulk(_)).then(|| reply.number())
    }
}

impl Reply for () {
    fn read(reply: &Value) -> Option<Self> {
        (*reply == Value::Nil).then_some(())
    }
}

/// A word of the server. A request that is merely executed is answered by `OK`: that is no such one.
pub(super) struct Word(pub(super) String);

impl Reply for Word {
    fn read(reply: &Value) -> Option<Self> {
        match reply {
            Value::Status(word) if word != "OK" => Some(Self(word.clone())),
            _ => None,
        }
    }
}

/// Strings; of a map its fields and values, in either version of the protocol.
impl Reply for Vec<Vec<u8>> {
    fn read(reply: &Value) -> Option<Self> {
        let bytes =
            |item: &Value| if let Value::Bulk(bytes) = item { Some(bytes.clone()) } else { None };
        reply.items()?.iter().map(bytes).collect()
    }
}

/// One step of a `SCAN` or `HSCAN`: where it goes on, and what it has found.
pub(super) struct Scan {
    pub(super) next: u64,
    pub(super) found: Vec<Vec<u8>>,
}

impl Reply for Scan {
    fn read(reply: &Value) -> Option<Self> {
        match reply.items()? {
            [next, found] => Some(Self { next: next.number(), found: Vec::read(found)? }),
            _ => None,
        }
    }
}

/// The clock of the server, since the epoch.
pub(super) struct Time(pub(super) Duration);

impl Reply for Time {
    fn read(reply: &Value) -> Option<Self> {
        let [seconds, micros] = reply.items()? else { return None };
        let seconds = Duration::from_secs(seconds.number());
        Some(Self(seconds + Duration::from_micros(micros.number())))
    }
}

/// A lock with its holds: the TTL, then owner, hold count and, if there are three parts, whether it is shared.
#[derive(Default)]
pub(super) struct Held<const PARTS: usize> {
    ttl: Option<Ttl>,
    holders: Vec<Holder>,
}

impl<const PARTS: usize> Held<PARTS> {
    pub(super) fn lock(self, resource: &Resource) -> LockInfo {
        LockInfo { ttl: self.ttl, holders: self.holders, ..LockInfo::new(resource) }
    }
}

impl<const PARTS: usize> Reply for Held<PARTS> {
    fn read(reply: &Value) -> Option<Self> {
        let (left, parts) = match reply.items()?.split_first() {
            Some((Value::Int(-2), _)) | None => return Some(Self::default()),
            Some((Value::Int(left), parts)) => (*left, parts),
            Some(_) => return None,
        };
        let holder = |hold: &[Value]| {
            let Value::Bulk(id) = &hold[0] else { return None };
            let shared = hold.get(2) == Some(&Value::Int(1));
            Some(Holder::new(id.clone(), hold[1].number(), shared))
        };
        let holders = parts.chunks_exact(PARTS).map(holder).collect::<Option<_>>()?;
        Some(Self { ttl: Some(ttl(left)), holders })
    }
}

/// A semaphore or a latch: TTL, value, number of acquired permits and whether it is temporary.
pub(super) struct Counted {
    ttl: Option<Ttl>,
    count: Option<i64>,
    taken: u64,
    temporary: bool,
}

impl Counted {
    pub(super) fn lock(self, resource: &Resource) -> LockInfo {
        let Self { ttl, count, taken, temporary } = self;
        LockInfo { ttl, count, taken, temporary, ..LockInfo::new(resource) }
    }
}

impl Reply for Counted {
    fn read(reply: &Value) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        let [Value::Int(left), count, Value::Int(taken), Value::Int(temporary)] = &parts[..] else {
            return None;
        };
        let count = i64::read(count);
        let (ttl, taken) = (count.map(|_| ttl(*left)), taken.unsigned_abs());
        Some(Self { ttl, count, taken, temporary: *temporary == 1 })
    }
}

/// The marker of a member of a quorum.
pub(super) struct Marker {
    /// Empty if there is none.
    pub(super) nonce: String,
    pub(super) run: String,
    /// For how many milliseconds it grants nothing.
    pub(super) left: u64,
    pub(super) lease: String,
    pub(super) nodes: String,
}

impl Reply for Marker {
    fn read(reply: &Value) -> Option<Self> {
        let [nonce, run, left, lease, nodes] = reply.items()? else { return None };
        let (nonce, run, left) = (nonce.text()?, run.text()?, left.number());
        Some(Self { nonce, run, left, lease: lease.text()?, nodes: nodes.text()? })
    }
}

/// The recorded force-releases of a lock.
pub(super) struct ForcedLog(pub(super) Vec<ForcedUnlock>);

impl Reply for ForcedLog {
    fn read(reply: &Value) -> Option<Self> {
        let Value::Array(entries) = reply else { return None };
        Some(Self(entries.iter().filter_map(forced).collect()))
    }
}

/// Parses time, client and reason, then alternating former holder and its client: host, pid,
/// program and start, all empty if unknown.
fn forced(entry: &Value) -> Option<ForcedUnlock> {
    let parts: Vec<_> = entry.items()?.iter().map(Value::text).collect::<Option<_>>()?;
    let [at, by, reason, victims @ ..] = &parts[..] else { return None };
    let time = |millis: &str| Some(model::time(millis.parse().ok()?));
    let (mut holders, mut clients) = (Vec::new(), Vec::new());
    for victim in victims.chunks_exact(5) {
        let [id, host, pid, program, started] = victim else { continue };
        holders.push(id.clone());
        clients.push(pid.parse().ok().zip(time(started)).map(|(pid, started)| ClientInfo {
            host: host.clone(),
            pid,
            program: program.clone(),
            started,
        }));
    }
    let (at, by, reason) = (time(at)?, by.clone(), reason.clone());
    Some(ForcedUnlock { at, by, reason, holders, clients })
}

/// The reply to `INFO`, and to its like: lines of a field and its value.
pub(super) struct Info(pub(super) String);

impl Reply for Info {
    fn read(reply: &Value) -> Option<Self> {
        if let Value::Bulk(_) = reply { reply.text().map(Self) } else { None }
    }
}

impl Info {
    pub(super) fn get(&self, field: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
    }

    pub(super) fn number(&self, field: &str) -> u64 {
        self.get(field).and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

pub(super) fn ttl(left: i64) -> Ttl {
    u64::try_from(left).map_or(Ttl::Forever, Ttl::millis)
}

pub(super) fn unfit(kind: Kind) -> Fault {
    Fault::invalid(format!("a {kind} has no such request"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::command::Command;
    use crate::redis::script;

    #[test]
    fn a_reply_fits_the_requests_that_can_have_it() {
        let token = Value::Bulk(b"17".to_vec());
        let owner = Value::Bulk(b"6e0c:17".to_vec());
        let list = Value::Array(vec![Value::Int(-2)]);
        let (busy, ok) = (Value::Status("BUSY".to_owned()), Value::Status("OK".to_owned()));
        let crowded = Value::Array(vec![busy, Value::Int(3)]);
        assert!(Attempt::fits(&token) && !Attempt::fits(&owner));
        assert!(Attempt::fits(&crowded) && !Attempt::fits(&list));
        assert!(Released::fits(&owner) && !Released::fits(&list));
        assert!(Changed::fits(&token) && !Changed::fits(&owner));
        assert!(Forced::fits(&Value::Array(Vec::new())) && !Forced::fits(&token));
        assert!(!Word::fits(&ok) && !<()>::fits(&Value::Int(0)) && !Vec::<Vec<u8>>::fits(&list));
        let renewal = |count| script::LOCK_RENEW.call(1).answering_each(count).form;
        assert!(renewal(1).fits(&list) && !renewal(2).fits(&list));
        assert!(!Command::<i64>::plain("PTTL").form.fits(&token));
    }
}
