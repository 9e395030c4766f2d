//! Lists the locks on the server by `SCAN`.
//!
//! A list is pages of pipelined reads, not a script: no page keeps the server busy, and one page may
//! contain keys of many slots. The cost of a page is bounded by how much is read of each key, not by
//! the size of the key.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::resp::Value;
use uuid::Uuid;

use super::command::{Argument, Command};
use super::counter::counted;
use super::shard::Shard;
use super::slot::SLOTS;
use super::{Inner, bulk, error_reply, keys, number, script, strings, ttl, unexpected};
use crate::backend::{
    ClientInfo, Fault, ForcedUnlock, Holder, Kind, List, LockInfo, Page, Pattern, Resource, Select,
    Topic, Ttl,
};
use crate::model;
use crate::{LockName, PermitId};

/// How many fields of a hash, or permits of a semaphore, are read: enough to determine the kind and
/// to list the holders.
const HOLDERS_MAX: usize = 128;

/// A plain lock has one field; a hash with more than this is other data, as in the scripts.
const FIELDS_MAX: usize = 16;

/// Where a list goes on: in a cluster, shard by shard in the order of the ids of their primaries.
struct Here {
    /// `None` if there is nothing more.
    shard: Option<Arc<Shard>>,
    id: String,
    from: u64,
    version: u64,
    /// Says what is missing so far: slots have moved since the list began, a shard is gone, or slots have
    /// no primary.
    page: Page,
    /// The cursor of the next shard.
    after: Option<Vec<u8>>,
}

impl Here {
    fn cursor(&self, from: u64) -> Vec<u8> {
        match &self.id[..] {
            "" => cursor(from),
            id => format!("{id}:{from}:{}", self.version).into_bytes(),
        }
    }
}

impl Inner {
    fn here(&self, request: &List) -> Here {
        let Some(cluster) = self.route.cluster() else {
            let (shard, from) = (self.route.only().cloned(), place(request));
            let id = String::new();
            return Here { shard, id, from, version: 0, page: Page::default(), after: None };
        };
        let version = *cluster.versions().borrow();
        let text = String::from_utf8_lossy(&request.cursor);
        let mut parts = text.split(':');
        let (id, from) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let began = parts.next().and_then(|began| began.parse().ok()).unwrap_or(version);
        let mut shards = cluster.primaries().into_iter().filter(|(one, _)| &one[..] >= id);
        let found = shards.next();
        let from = match &found {
            Some((one, _)) if one == id => from.parse().unwrap_or(0),
            _ => 0,
        };
        let is_gone = !id.is_empty() && found.as_ref().is_none_or(|(one, _)| one != id);
        let incomplete = is_gone || began != version;
        let uncovered = Some(cluster.uncovered()).filter(|count| *count > 0);
        let silent = uncovered.map(|count| format!("{count} of {SLOTS} slots have no primary"));
        let faults = silent.map(error_reply::silent).into_iter().collect();
        let page = Page { incomplete, faults, ..Page::default() };
        let after = shards.next().map(|(next, _)| format!("{next}:0:{began}").into_bytes());
        let (id, shard) = found.map_or((String::new(), None), |(id, shard)| (id, Some(shard)));
        Here { shard, id, from, version: began, page, after }
    }

    pub(super) async fn list(&self, request: List) -> Result<Page, Fault> {
        match &request.select {
            Select::Clients => self.list_clients(&request).await,
            Select::Matching(pattern) => self.list_locks(&request, pattern).await,
            Select::Named(name, kind) => {
                self.fits(name)?;
                let listed = self.describe(name, *kind).await?;
                Ok(Page { locks: vec![listed], ..Page::default() })
            }
        }
    }

    /// Makes one step of a scan. SCAN may return a key twice, even within one step.
    async fn scan(
        &self,
        shard: &Shard,
        from: u64,
        limit: u32,
    ) -> Result<(Vec<Vec<u8>>, u64), Fault> {
        let scan = Command::plain("SCAN").arg(from).arg("COUNT").arg(limit);
        let answer = shard.connection.read(vec![scan]).await?.pop();
        let (next, keys) = match answer {
            Some(Ok(Value::Array(parts))) => match <[Value; 2]>::try_from(parts) {
                Ok([next, keys]) => (number(&next), strings(keys)?),
                Err(parts) => return Err(unexpected(&Value::Array(parts))),
            },
            Some(Ok(other)) => return Err(unexpected(&other)),
            Some(Err(fault)) => return Err(fault),
            None => return Err(unexpected(&Value::Nil)),
        };
        let mut seen = HashSet::with_capacity(keys.len());
        let keys = keys.into_iter().filter(|key| seen.insert(key.clone())).collect();
        Ok((keys, next))
    }

    async fn list_locks(&self, request: &List, pattern: &Pattern) -> Result<Page, Fault> {
        // The permit key of a semaphore matches no pattern for its name, so SCAN gets no pattern. A
        // pattern for all names need not be matched at all.
        let mut here = self.here(request);
        let mut page = std::mem::take(&mut here.page);
        let Some(shard) = &here.shard else { return Ok(page) };
        let (keys, next) = match self.scan(shard, here.from, request.limit).await {
            Ok(found) => found,
            // The locks of other shards can still be listed.
            Err(fault) if fault.may_pass() && self.route.only().is_none() => {
                let server = shard.primary.server();
                let address = server.map(|server| server.address.to_string()).unwrap_or_default();
                let said = fault.to_string().replace(&format!("{address}: "), "");
                page.faults.push(error_reply::silent(format!("{address}: {said}")));
                (Vec::new(), 0)
            }
            Err(fault) => return Err(fault),
        };
        page.next = match next {
            0 => here.after.clone(),
            next => Some(here.cursor(next)),
        };
        if let (Some(cluster), None) = (self.route.cluster(), &page.next) {
            // A slot that has moved meanwhile may have taken locks from a shard that was not listed to one
            // that was.
            cluster.refresh().await;
            page.incomplete |= here.version != *cluster.versions().borrow();
        }
        let keys: Vec<_> = keys
            .into_iter()
            .filter(|key| !keys::is_beside(key))
            .filter_map(|key| Candidate::of(key, pattern))
            .collect();
        let types =
            shard.connection.read(keys.iter().map(|c| of_key("TYPE", &c.key)).collect()).await?;
        let mut hashes = Vec::new();
        let mut semaphores = Vec::new();
        for (candidate, kind) in keys.into_iter().zip(types) {
            match kind {
                Ok(Value::Status(kind)) if kind == "hash" => hashes.extend(candidate.hash),
                Ok(Value::Status(kind)) if kind == "zset" => {
                    semaphores.extend(candidate.permits);
                }
                Ok(_) => {}
                Err(_) => page.incomplete = true,
            }
        }
        page.locks = self.read_hashes(shard, hashes, &mut page.incomplete).await?;
        let found = self.read_semaphores(shard, semaphores, &mut page.incomplete).await?;
        page.locks.extend(found);
        self.count_waiters(shard, &mut page.locks).await?;
        Ok(page)
    }

    /// Reads locks, fair locks and read/write locks; skips other hashes.
    async fn read_hashes(
        &self,
        shard: &Shard,
        names: Vec<LockName>,
        incomplete: &mut bool,
    ) -> Result<Vec<LockInfo>, Fault> {
        let mut reads = Vec::with_capacity(3 * names.len());
        for name in &names {
            reads.push(some_fields(name));
            reads.push(of_key("PTTL", name.as_bytes()));
            reads.push(of_key("LLEN", keys::queue(name)));
        }
        let mut answers = shard.connection.read(reads).await?.into_iter();
        let (mut found, mut shared) = (Vec::new(), Vec::new());
        for name in names {
            let (fields, left, queued) = (answers.next(), answers.next(), answers.next());
            let (Some(Ok(fields)), Some(Ok(Value::Int(left)))) = (fields, left) else {
                // The key may have changed its type meanwhile, or the user may not read it.
                *incomplete = true;
                continue;
            };
            // -2: the lock expired between the two reads.
            let Some(hash) = Hash::parse(fields).filter(|_| left != -2) else { continue };
            let queued = match queued {
                Some(Ok(Value::Int(queued))) => Some(queued.unsigned_abs()),
                _ => None,
            };
            if hash.mode.is_some() || !hash.is_whole {
                shared.push((name, hash, left));
            } else {
                found.extend(hash.listed(name, left, queued));
            }
        }
        found.extend(self.read_shared(shard, shared, incomplete).await?);
        Ok(found)
    }

    /// Reads read/write locks, which may have expired readers, and hashes too large to classify.
    async fn read_shared(
        &self,
        shard: &Shard,
        hashes: Vec<(LockName, Hash, i64)>,
        incomplete: &mut bool,
    ) -> Result<Vec<LockInfo>, Fault> {
        let read = |(name, hash, _): &(LockName, Hash, i64)| match hash.is_whole {
            true => super::rw::inspect(name, self.wakes),
            // A script that reads a large hash would block the server.
            false => of_key("HGET", name.as_bytes()).arg("mode"),
        };
        let answers = shard.connection.read(hashes.iter().map(read).collect()).await?;
        let mut found = Vec::new();
        for ((name, mut hash, left), answer) in hashes.into_iter().zip(answers) {
            if !hash.is_whole {
                hash.mode = answer.and_then(bulk).ok();
                found.extend(hash.mode.is_some().then(|| hash.listed(name, left, None)).flatten());
                continue;
            }
            let resource = Resource { kind: Kind::Read, name };
            let inspected = answer.and_then(|answer| super::rw::inspected(&resource, answer));
            let mut lock = match inspected {
                Ok(lock) => lock,
                // The script is not loaded yet, or the key has changed its type.
                Err(_) => match self.inspected_rw(&resource).await {
                    Ok(lock) => lock,
                    Err(fault) if fault.may_pass() => return Err(fault),
                    Err(Fault::WrongKind { .. }) => continue,
                    Err(_) => {
                        *incomplete = true;
                        continue;
                    }
                },
            };
            if lock.holders.iter().any(|holder| !holder.shared) {
                lock.kind = Kind::Write;
            }
            found.extend((!lock.holders.is_empty()).then_some(lock));
        }
        Ok(found)
    }

    /// Counts the listening clients of all locks with one request.
    async fn count_waiters(&self, shard: &Shard, locks: &mut [LockInfo]) -> Result<(), Fault> {
        if locks.is_empty() {
            return Ok(());
        }
        let Some(counting) = self.wakes.counting() else { return Ok(()) };
        let mut ask = Command::plain("PUBSUB").arg(counting);
        for lock in locks.iter() {
            let channel = Topic::shared_by(&lock.resource()).and_then(|t| keys::topic_channel(&t));
            ask = ask.arg(channel.unwrap_or_default());
        }
        let answer = shard.connection.read(vec![ask]).await?.pop();
        // A missing permission is not an error: the counts stay unknown.
        let Some(Ok(Value::Array(values))) = answer else { return Ok(()) };
        for (lock, pair) in locks.iter_mut().zip(values.chunks(2)) {
            let is_counted = match lock.kind {
                Kind::Fair => false,
                Kind::Latch => self.wakes.of_latch(&lock.name) == self.wakes,
                _ => true,
            };
            if let [_, count] = pair
                && is_counted
            {
                lock.waiting = Some(number(count));
            }
        }
        Ok(())
    }

    /// Returns all details of one name.
    async fn describe(&self, name: &LockName, kind: Option<Kind>) -> Result<LockInfo, Fault> {
        let kind = match kind {
            Some(kind) => kind,
            None => self.seems(name).await?,
        };
        let resource = Resource { kind, name: name.clone() };
        let mut lock = match kind {
            Kind::Permits => self.describe_permits(&resource).await?,
            _ => self.inspect(resource).await?,
        };
        if kind == Kind::Fair {
            lock.waiting = Some(lock.queue.len() as u64);
        }
        if let Some(shard) = self.route.shard(name.as_bytes()) {
            self.count_waiters(&shard, std::slice::from_mut(&mut lock)).await?;
        }
        let token =
            self.route.read(name.as_bytes(), vec![of_key("GET", keys::token(name))]).await?.pop();
        if let Some(Ok(Value::Bulk(token))) = token {
            lock.token = String::from_utf8_lossy(&token).parse().ok();
        }
        let log = self
            .route
            .call(name.as_bytes(), script::FORCED_READ.call(1).arg(keys::forced(name)))
            .await;
        match log {
            Ok(Value::Array(entries)) => {
                lock.forced = entries.into_iter().filter_map(forced).collect();
            }
            Ok(other) => return Err(unexpected(&other)),
            // A missing permission is not an error: the details stay unknown.
            Err(fault) if fault.may_pass() => return Err(fault),
            Err(_) => {}
        }
        Ok(lock)
    }

    /// Determines the kind of a name. A missing key is a free lock.
    async fn seems(&self, name: &LockName) -> Result<Kind, Fault> {
        let reads = vec![
            of_key("TYPE", name.as_bytes()),
            some_fields(name),
            of_key("HGET", name.as_bytes()).arg("mode"),
            of_key("LLEN", keys::queue(name)),
            of_key("EXISTS", keys::permit_ends(name)),
            of_key("GET", name.as_bytes()),
        ];
        let mut answers = self.route.read(name.as_bytes(), reads).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let (form, fields, mode) = (next()?, next(), next());
        let (queued, permits, text) = (next(), next(), next());
        let is = |answer: Result<Value, Fault>| matches!(answer, Ok(Value::Int(n)) if n > 0);
        let Value::Status(form) = form else { return Err(unexpected(&form)) };
        Ok(match &form[..] {
            "string" if is(permits) => Kind::Permits,
            "string" => match text {
                Ok(Value::Bulk(text)) if is_number(&text) => Kind::Semaphore,
                _ => Kind::Mutex,
            },
            "hash" => match fields.ok().and_then(Hash::parse) {
                Some(hash) => {
                    let mode = mode.and_then(bulk).ok();
                    Hash { mode, ..hash }.kind(is(queued))
                }
                // Inspected as a lock, the error tells what the key is.
                None => Kind::Lock,
            },
            _ if is(queued) => Kind::Fair,
            _ => Kind::Lock,
        })
    }

    /// Reads the semaphores with acquired permits.
    async fn read_semaphores(
        &self,
        shard: &Shard,
        names: Vec<LockName>,
        incomplete: &mut bool,
    ) -> Result<Vec<LockInfo>, Fault> {
        let reads = names.iter().flat_map(|name| [super::permits::inspect(name), taken(name)]);
        let mut answers = shard.connection.read(reads.collect()).await?.into_iter();
        let mut found = Vec::new();
        for name in names {
            let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
            let resource = Resource { kind: Kind::Permits, name };
            let lock = match (next().and_then(|answer| counted(&resource, answer)), next()) {
                (Ok(lock), ids) => Ok(with_permits(lock, ids)),
                // The script is not loaded yet, or the key is something else.
                (Err(_), _) => self.describe_permits(&resource).await,
            };
            match lock {
                Ok(LockInfo { taken: 0, .. } | LockInfo { count: None, .. })
                | Err(Fault::WrongKind { .. }) => {}
                Ok(lock) => found.push(lock),
                Err(fault) if fault.may_pass() => return Err(fault),
                Err(_) => *incomplete = true,
            }
        }
        Ok(found)
    }

    async fn describe_permits(&self, resource: &Resource) -> Result<LockInfo, Fault> {
        let lock = self.inspect_permits(resource).await?;
        let name = &resource.name;
        let ids = self.route.read(name.as_bytes(), vec![taken(name)]).await?.pop();
        Ok(with_permits(lock, ids.unwrap_or(Ok(Value::Nil))))
    }
}

/// Creates a request for the acquired permits, the first ones.
fn taken(name: &LockName) -> Command {
    let ids = of_key("ZRANGEBYSCORE", keys::permit_ends(name));
    let ids = ids.arg(format!("({}", now_ms())).arg("+inf").arg("WITHSCORES");
    ids.arg("LIMIT").arg("0").arg(HOLDERS_MAX)
}

fn with_permits(mut lock: LockInfo, ids: Result<Value, Fault>) -> LockInfo {
    lock.holders = ids.into_iter().flat_map(scored).map(permit_holder).collect();
    lock
}

/// Parses the cursor of a page.
pub(super) fn place(request: &List) -> u64 {
    std::str::from_utf8(&request.cursor).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub(super) fn cursor(place: u64) -> Vec<u8> {
    place.to_string().into_bytes()
}

/// The local clock, only for display; the scripts decide by the server's clock.
fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// Reads only some fields of a hash: one with other data may have millions.
fn some_fields(name: &LockName) -> Command {
    of_key("HSCAN", name.as_bytes()).arg("0").arg("COUNT").arg(HOLDERS_MAX)
}

pub(super) fn of_key(command: &str, key: impl Argument) -> Command {
    Command::plain(command).arg(key)
}

fn is_number(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok())
}

/// Parses members with scores, either alternating or as pairs.
fn scored(value: Value) -> Vec<(Vec<u8>, f64)> {
    let Value::Array(values) = value else { return Vec::new() };
    let mut flat = values.into_iter().flat_map(|value| match value {
        Value::Array(pair) => pair,
        other => vec![other],
    });
    let mut pairs = Vec::new();
    while let (Some(Value::Bulk(member)), Some(score)) = (flat.next(), flat.next()) {
        let score = match score {
            Value::Bulk(text) => String::from_utf8_lossy(&text).parse().unwrap_or(0.0),
            _ => 0.0,
        };
        pairs.push((member, score));
    }
    pairs
}

fn permit_holder((id, end): (Vec<u8>, f64)) -> Holder {
    let bytes: Result<[u8; 16], _> = id[..].try_into();
    let shown = bytes.map(|bytes| PermitId::from_bytes(bytes).to_string().into_bytes());
    let id = shown.unwrap_or(id);
    let ttl = match end {
        end if end >= model::ENDLESS as f64 => Ttl::Forever,
        end => Ttl::millis((end - now_ms() as f64) as u64),
    };
    Holder { ttl: Some(ttl), ..Holder::new(id, 1, true) }
}

/// The kinds of lock that a key may belong to.
struct Candidate {
    key: Vec<u8>,
    /// The lock, if the key is a hash.
    hash: Option<LockName>,
    /// The semaphores that it may belong to, if the key is a set of permits.
    permits: Vec<LockName>,
}

impl Candidate {
    fn of(key: Vec<u8>, pattern: &Pattern) -> Option<Self> {
        let named = |name: &[u8]| pattern.matches(name).then(|| LockName::from(name));
        let hash = named(&key);
        let permits: Vec<_> = keys::semaphores_of(&key).filter_map(named).collect();
        (hash.is_some() || !permits.is_empty()).then_some(Self { key, hash, permits })
    }
}

/// A hash in the form of a lock.
struct Hash {
    /// Only for a read/write lock.
    mode: Option<Vec<u8>>,
    /// Owner, hold count, shared.
    holders: Vec<(Vec<u8>, u64, bool)>,
    /// All of its fields were read.
    is_whole: bool,
}

impl Hash {
    /// Parses the reply of HSCAN; `None` if no field is an owner.
    fn parse(scanned: Value) -> Option<Self> {
        let Value::Array(parts) = scanned else { return None };
        let [cursor, fields] = <[Value; 2]>::try_from(parts).ok()?;
        let mut fields = strings(fields).ok()?.into_iter();
        let is_whole = number(&cursor) == 0;
        let mut hash = Hash { mode: None, holders: Vec::new(), is_whole };
        while let (Some(field), Some(value)) = (fields.next(), fields.next()) {
            if field == b"mode" {
                hash.mode = Some(value);
                continue;
            }
            let writer = field.strip_suffix(b":write").map(<[u8]>::to_vec);
            let (owner, shared) = match writer {
                Some(owner) => (owner, false),
                None => (field, true),
            };
            if is_owner(&owner) {
                let count = String::from_utf8_lossy(&value).parse().unwrap_or(0);
                hash.holders.push((owner, count, shared));
            }
        }
        (!hash.holders.is_empty()).then_some(hash)
    }

    fn kind(&self, queued: bool) -> Kind {
        match self.mode.as_deref() {
            Some(b"write") => Kind::Write,
            Some(_) => Kind::Read,
            None if queued => Kind::Fair,
            None => Kind::Lock,
        }
    }

    /// Returns `None` for a hash without a mode and with more fields than a lock has.
    fn listed(self, name: LockName, left: i64, queued: Option<u64>) -> Option<LockInfo> {
        if self.mode.is_none() && self.holders.len() > FIELDS_MAX {
            return None;
        }
        let kind = self.kind(queued.is_some_and(|queued| queued > 0));
        let shares = self.mode.is_some();
        let holders = self.holders.into_iter();
        let holders = holders.map(|(id, count, shared)| Holder::new(id, count, shared && shares));
        Some(LockInfo {
            holders: holders.collect(),
            ttl: Some(ttl(left)),
            waiting: queued.filter(|_| kind == Kind::Fair),
            ..LockInfo::new(&Resource { kind, name })
        })
    }
}

/// Whether a field has the form `<uuid>:<number>`, with any suffix that Redisson adds.
fn is_owner(field: &[u8]) -> bool {
    let Some((client, rest)) = field.split_at_checked(uuid::fmt::Hyphenated::LENGTH) else {
        return false;
    };
    let number = rest.strip_prefix(b":").map(|rest| rest.strip_prefix(b"-").unwrap_or(rest));
    Uuid::try_parse_ascii(client).is_ok()
        && number.and_then(<[u8]>::first).is_some_and(u8::is_ascii_digit)
}

/// Parses time, client and reason, then alternating former holder and its client: host, pid,
/// program and start, all empty if unknown.
fn forced(entry: Value) -> Option<ForcedUnlock> {
    let parts = strings(entry).ok()?;
    let parts: Vec<_> =
        parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    let [at, by, reason, victims @ ..] = &parts[..] else { return None };
    let time = |millis: &str| Some(UNIX_EPOCH + Duration::from_millis(millis.parse().ok()?));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_from_other_fields() {
        assert!(is_owner(b"6e0c0000-0000-4000-8000-000000000000:42"));
        assert!(is_owner(b"6e0c0000-0000-4000-8000-000000000000:-1"));
        assert!(!is_owner(b"6e0c0000-0000-4000-8000-000000000000"));
        assert!(!is_owner(b"name"));
        assert!(!is_owner(b"not-a-uuid-but-as-long-as-one-would-:42"));
    }
}
