//! The JSON documents that the files in `schema/` describe.
//!
//! Fields are added, never renamed. A field that does not apply to a kind of lock is omitted; an unknown
//! value is `null`.

use std::io;
use std::time::{Duration, SystemTime};

use lockkeeper::{ClientInfo, Finding, Holder, Kind, LockInfo, LockName, MemberInfo, Report, Ttl};
use serde::Serialize;
use serde_json::ser::Formatter;

use crate::row::Row;
use crate::{display, timestamp};

/// Writes a document on one line, safe for a terminal.
pub(crate) fn write(output: impl io::Write, document: &impl Serialize) -> serde_json::Result<()> {
    document.serialize(&mut serde_json::Serializer::with_formatter(output, Escaping))
}

/// Escapes also the characters that [`display::text`] escapes.
struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        output: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if fragment.bytes().all(|byte| (b' '..=b'~').contains(&byte))
            || display::text(fragment) == fragment
        {
            return output.write_all(fragment.as_bytes());
        }
        let mut buffer = [0; 4];
        for c in fragment.chars() {
            let c = &*c.encode_utf8(&mut buffer);
            if display::text(c) == c {
                output.write_all(c.as_bytes())?;
                continue;
            }
            for unit in c.encode_utf16() {
                write!(output, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

/// A name as text; also its bytes if it is not UTF-8.
#[derive(Debug, Serialize)]
pub(crate) struct Name {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name_base64: Option<String>,
}

impl Name {
    pub(crate) fn of(name: &LockName) -> Self {
        match std::str::from_utf8(name.as_bytes()) {
            Ok(text) => Self { name: text.to_owned(), name_base64: None },
            Err(_) => Self {
                name: String::from_utf8_lossy(name.as_bytes()).into_owned(),
                name_base64: Some(base64(name.as_bytes())),
            },
        }
    }
}

/// A lock in a list.
#[derive(Debug, Serialize)]
pub(crate) struct Lock {
    #[serde(flatten)]
    name: Name,
    kind: &'static str,
    /// Whether there is no holder and no count.
    free: bool,
    holders: Vec<Hold>,
    holds: u64,
    /// `None` if it never expires or is free.
    ttl_ms: Option<u64>,
    waiters: Option<u64>,
    since: Option<String>,
    age_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<Permits>,
    /// The count of a latch.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<i64>,
    /// The members of a quorum, where they differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<Member>,
}

/// What a member of a quorum says about a lock.
#[derive(Debug, Serialize)]
struct Member {
    address: String,
    holders: Vec<Hold>,
    ttl_ms: Option<u64>,
    /// Why it has not answered.
    error: Option<String>,
}

impl Member {
    fn of(member: &MemberInfo) -> Self {
        Self {
            address: member.address.clone(),
            holders: member.holders.iter().map(Hold::of).collect(),
            ttl_ms: ttl_ms(member.ttl),
            error: member.error.clone(),
        }
    }
}

fn ttl_ms(remaining: Option<Ttl>) -> Option<u64> {
    match remaining {
        Some(Ttl::For(left)) => Some(millis(left)),
        None | Some(Ttl::Forever) => None,
    }
}

impl Lock {
    pub(crate) fn of(lock: &LockInfo, now: SystemTime) -> Self {
        let since = lock.since();
        let age = since.map(|since| now.duration_since(since).unwrap_or_default());
        Self {
            name: Name::of(&lock.name),
            kind: lock.kind.as_str(),
            free: lock.is_free(),
            holders: lock.holders.iter().map(Hold::of).collect(),
            holds: Row::of(lock).holds(),
            ttl_ms: ttl_ms(lock.ttl),
            waiters: lock.waiting,
            since: since.map(timestamp::exact),
            age_ms: age.map(millis),
            permits: Permits::of(lock),
            count: lock.count.filter(|_| lock.kind == Kind::Latch),
            members: lock.members.iter().map(Member::of).collect(),
        }
    }
}

/// The document of `inspect`.
#[derive(Debug, Serialize)]
pub(crate) struct Everything {
    #[serde(flatten)]
    lock: Lock,
    /// The queue of a fair lock, the next waiter first.
    queue: Vec<Hold>,
    token: Option<u64>,
    forced: Vec<ForcedUnlock>,
}

impl Everything {
    pub(crate) fn of(lock: &LockInfo, now: SystemTime) -> Self {
        Self {
            lock: Lock::of(lock, now),
            queue: lock.queue.iter().map(Hold::of).collect(),
            token: lock.token,
            forced: lock.forced.iter().map(ForcedUnlock::of).collect(),
        }
    }
}

/// A holder or a waiter.
#[derive(Debug, Serialize)]
pub(crate) struct Hold {
    id: String,
    holds: u64,
    shared: bool,
    #[serde(flatten)]
    process: Process,
    since: Option<String>,
    /// The remaining TTL of a permit; `None` if it never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    /// The time since its client announced itself.
    seen_ms: Option<u64>,
    /// When its job ended and the lock was left.
    left: Option<String>,
}

impl Hold {
    pub(crate) fn of(holder: &Holder) -> Self {
        Self {
            id: holder.id.clone(),
            holds: holder.hold_count,
            shared: holder.shared,
            process: Process::of(holder.client.as_ref()),
            since: holder.since.map(timestamp::exact),
            ttl_ms: ttl_ms(holder.ttl),
            seen_ms: holder.seen.map(|seen| millis(seen.ago)),
            left: holder.left.map(timestamp::exact),
        }
    }
}

/// The process of a holder, if its client announces it.
#[derive(Debug, Serialize)]
struct Process {
    host: Option<String>,
    pid: Option<u32>,
    program: Option<String>,
}

impl Process {
    fn of(client: Option<&ClientInfo>) -> Self {
        let client = client.cloned();
        let pid = client.as_ref().map(|client| client.pid);
        let (host, program) = client.map(|client| (client.host, client.program)).unzip();
        Self { host, pid, program }
    }
}

/// The permits of a semaphore. Only one with leases counts held permits.
#[derive(Debug, Serialize)]
struct Permits {
    free: Option<i64>,
    taken: Option<u64>,
    total: Option<i64>,
}

impl Permits {
    fn of(lock: &LockInfo) -> Option<Self> {
        let free = lock.count;
        match lock.kind {
            Kind::Semaphore => Some(Self { free, taken: None, total: None }),
            Kind::Permits => {
                let taken = i64::try_from(lock.taken).unwrap_or(i64::MAX);
                let total = free.map(|free| free.saturating_add(taken));
                Some(Self { free, taken: Some(lock.taken), total })
            }
            _ => None,
        }
    }
}

/// A recorded force-release.
#[derive(Debug, Serialize)]
struct ForcedUnlock {
    at: String,
    by: String,
    reason: String,
    from: Vec<String>,
    /// The holders in `from`, with their processes.
    victims: Vec<Victim>,
}

/// A holder that lost the lock by a force-release.
#[derive(Debug, Serialize)]
struct Victim {
    id: String,
    #[serde(flatten)]
    process: Process,
}

impl ForcedUnlock {
    fn of(forced: &lockkeeper::ForcedUnlock) -> Self {
        let lockkeeper::ForcedUnlock { at, by, reason, holders, clients, .. } = forced.clone();
        let victim = |(id, client): (&String, &Option<ClientInfo>)| Victim {
            id: id.clone(),
            process: Process::of(client.as_ref()),
        };
        let victims = holders.iter().zip(&clients).map(victim).collect();
        Self { at: timestamp::exact(at), by, reason, from: holders, victims }
    }
}

/// The document of `unlock`.
#[derive(Debug, Serialize)]
pub(crate) struct Unlock {
    #[serde(flatten)]
    name: Name,
    kind: &'static str,
    /// Whether a hold was released.
    unlocked: bool,
    /// The holders that lost the lock.
    from: Vec<Hold>,
    /// The reason for the holders; `None` if none was notified.
    reason: Option<String>,
}

impl Unlock {
    pub(crate) fn of(lock: &LockInfo, unlocked: bool, reason: &str) -> Self {
        let from = if unlocked { &lock.holders[..] } else { &[] };
        Self {
            name: Name::of(&lock.name),
            kind: lock.kind.as_str(),
            unlocked,
            from: from.iter().map(Hold::of).collect(),
            reason: (unlocked && lock.kind != Kind::Permits).then(|| reason.to_owned()),
        }
    }
}

/// The document of `doctor`.
#[derive(Debug, Serialize)]
pub(crate) struct Doctor {
    store: String,
    /// Whether there is no risk to locks.
    safe: bool,
    round_trip_us: u64,
    slowest_us: u64,
    pairs_per_second: Option<u64>,
    findings: Vec<Found>,
}

#[derive(Debug, Serialize)]
struct Found {
    severity: String,
    subject: String,
    detail: String,
    remedy: Option<String>,
}

impl Doctor {
    pub(crate) fn of(report: &Report, pairs_per_second: Option<u64>, store: String) -> Self {
        let found = |finding: &Finding| {
            let Finding { severity, subject, detail, remedy, .. } = finding.clone();
            let remedy = Some(remedy).filter(|remedy| !remedy.is_empty());
            Found { severity: severity.to_string(), subject, detail, remedy }
        };
        Self {
            store,
            safe: report.is_safe(),
            round_trip_us: micros(report.round_trip),
            slowest_us: micros(report.slowest),
            pairs_per_second,
            findings: report.findings.iter().map(found).collect(),
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Base64 with the standard alphabet and padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn only_a_name_that_is_not_utf_8_has_base64() {
        let json = |name: &[u8]| serde_json::to_string(&Name::of(&LockName::from(name))).unwrap();
        assert_eq!(json("a\n日本".as_bytes()), r#"{"name":"a\n日本"}"#);
        assert_eq!(json(b"a\xff"), "{\"name\":\"a\u{fffd}\",\"name_base64\":\"Yf8=\"}");
    }
}
