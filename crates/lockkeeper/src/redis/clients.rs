//! The announcements of clients: their identity and their holds. All clients are in one sorted set, so
//! that no reader has to scan for them. Set and announcement are in two slots of a cluster, so they are
//! written by two requests: an entry of the set without an announcement is skipped, and both expire.

use futures_util::future::join_all;
use uuid::Uuid;

use super::command::Command;
use super::list::{cursor, index, of_key};
use super::{RedisInner, keys, script};
use crate::backend::{
    Changed, ClientEntry, ClientInfo, Fault, Holding, Kind, List, Page, Resource, Seen,
};
use crate::model::{millis, time};
use crate::{LockName, OwnerId};

impl RedisInner {
    pub(super) async fn announce(&self, client: ClientEntry, ttl: u64) -> Result<Changed, Fault> {
        let ClientEntry { id, info, holds, more, seen } = client;
        let started = millis(info.started);
        let (key, list) = (keys::client(id), keys::clients());
        let call = script::CLIENT_ANNOUNCE.call(1).arg(&key).arg(ttl);
        let call = call.arg(info.host).arg(info.pid).arg(info.program).arg(started);
        let call = call.arg(write_holds(&holds)).arg(u8::from(more));
        let call = call.arg(seen.map_or(0, |seen| seen.every.as_millis() as u64));
        let entry = script::CLIENT_LIST.call(1).arg(list).arg(ttl);
        let entry = entry.arg(id.as_hyphenated().to_string());
        let (listed, note) =
            tokio::join!(self.route.call(list, entry), self.route.call(&key, call));
        listed.and(note).map(|_| Changed::Done)
    }

    pub(super) async fn withdraw(&self, client: Uuid) -> Result<Changed, Fault> {
        let id = client.as_hyphenated().to_string();
        let (list, key) = (keys::clients(), keys::client(client));
        let listed = self.route.call::<i64>(list, Command::plain("ZREM").arg(list).arg(id));
        let note = self.route.call::<i64>(&key, Command::plain("DEL").arg(&key));
        let (listed, note) = tokio::join!(listed, note);
        listed.and(note).map(|_| Changed::Done)
    }

    /// Returns the client of an owner id, if it is announced.
    pub(super) async fn client_of(&self, id: &[u8]) -> Option<ClientEntry> {
        let (client, _) = std::str::from_utf8(id).ok()?.split_once(':')?;
        let client = Uuid::try_parse(client).ok()?;
        self.read_clients(&[client]).await.pop()?.ok()?
    }

    /// Reads the announcements of clients; `None` for a client without one.
    async fn read_clients(&self, ids: &[Uuid]) -> Vec<Result<Option<ClientEntry>, Fault>> {
        let clients = join_all(ids.iter().map(async |id| {
            let key = keys::client(*id);
            let (fields, left) = tokio::join!(
                self.route.call(&key, of_key("HGETALL", &key)),
                self.route.call(&key, of_key("PTTL", &key))
            );
            Ok(said(*id, fields?, left.ok()))
        }));
        clients.await
    }

    /// Lists the announced clients. The cursor is an index, so clients that come or go shift the
    /// others.
    pub(super) async fn list_clients(&self, request: &List) -> Result<Page, Fault> {
        let first = index(request);
        let last = first + u64::from(request.limit.max(1)) - 1;
        let range = of_key("ZRANGE", keys::clients()).arg(first).arg(last);
        let ids: Vec<Vec<u8>> = match self.route.call(keys::clients(), range).await {
            // Without permission to list the clients, or while only their shard is down, the locks can
            // still be listed.
            Err(fault) if self.is_beside_the_point(&fault) => {
                return Ok(Page { incomplete: true, ..Page::default() });
            }
            ids => ids?,
        };
        let more = ids.len() as u64 > last - first;
        let ids: Vec<_> = ids.iter().filter_map(|id| Uuid::try_parse_ascii(id).ok()).collect();
        let mut page = Page { next: more.then(|| cursor(last + 1)), ..Page::default() };
        for answer in self.read_clients(&ids).await {
            match answer {
                Ok(said) => page.clients.extend(said),
                Err(Fault::Unreachable { maybe_ran, detail }) if self.route.only().is_some() => {
                    return Err(Fault::Unreachable { maybe_ran, detail });
                }
                Err(_) => page.incomplete = true,
            }
        }
        Ok(page)
    }

    /// Whether a fault about announcements says nothing about locks.
    fn is_beside_the_point(&self, fault: &Fault) -> bool {
        let is_denied = matches!(fault, Fault::Denied { .. });
        is_denied || self.route.only().is_none() && fault.may_pass()
    }
}

/// Parses the key of a client whose remaining TTL is `left` milliseconds.
fn said(id: Uuid, fields: Vec<Vec<u8>>, left: Option<i64>) -> Option<ClientEntry> {
    let field = |name: &str| {
        let found = fields.chunks_exact(2).find(|pair| pair[0] == name.as_bytes());
        found.map(|pair| String::from_utf8_lossy(&pair[1]).into_owned())
    };
    let started = time(field("start")?.parse().ok()?);
    let info = ClientInfo {
        host: field("host")?,
        pid: field("pid")?.parse().ok()?,
        program: field("program")?,
        started,
    };
    let holds = field("holds").unwrap_or_default();
    let holds = holds.lines().filter_map(|line| read_holding(id, line)).collect();
    // Earlier versions do not write these fields.
    let millis = |name: &str| field(name)?.parse::<u64>().ok().filter(|millis| *millis > 0);
    let left = left.and_then(|left| u64::try_from(left).ok());
    let seen = match (millis("ttl"), millis("every"), left) {
        (Some(ttl), Some(every), Some(left)) => Some(Seen::new(ttl.saturating_sub(left), every)),
        _ => None,
    };
    let more = field("more").as_deref() == Some("1");
    Some(ClientEntry { id, info, holds, more, seen })
}

/// Appends the client of a former holder; empty arguments if it is unknown.
pub(super) fn victim<T>(call: Command<T>, client: Option<&ClientInfo>) -> Command<T> {
    let Some(ClientInfo { host, pid, program, started }) = client else {
        return call.arg("").arg("").arg("").arg("");
    };
    let started = millis(*started);
    call.arg(host).arg(pid).arg(program).arg(started)
}

/// Formats one line per hold: number, kind, permits, time of acquisition, the name in hexadecimal
/// digits because it may contain any bytes, and the time of `leave_for`, if any.
fn write_holds(holds: &[Holding]) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for Holding { owner, resource, count, since, left } in holds {
        let since = millis(*since);
        let (number, kind) = (owner.number, resource.kind.as_str());
        let _ = write!(text, "{number} {kind} {count} {since} ");
        for byte in resource.name.as_bytes() {
            let _ = write!(text, "{byte:02x}");
        }
        if let Some(left) = left {
            let _ = write!(text, " {}", millis(*left));
        }
        text.push('\n');
    }
    text
}

fn read_holding(client: Uuid, line: &str) -> Option<Holding> {
    let mut parts = line.split(' ');
    let owner = OwnerId { client, number: parts.next()?.parse().ok()? };
    let kind = Kind::from_word(parts.next()?)?;
    let count = parts.next()?.parse().ok()?;
    let time = |millis: &str| Some(time(millis.parse().ok()?));
    let since = time(parts.next()?)?;
    let digits = parts.next()?.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let name: Vec<u8> = digits.map(byte).collect::<Option<_>>()?;
    let resource = Resource { kind, name: LockName::from(&name[..]) };
    Some(Holding { owner, resource, count, since, left: parts.next().and_then(time) })
}
