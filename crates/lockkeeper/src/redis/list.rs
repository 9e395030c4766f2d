//! Lists the locks on the server by `SCAN`.
//!
//! A list is pages of pipelined reads, not a script: no page keeps the server busy, and one page may
//! contain keys of many slots. The cost of a page is bounded by how much is read of each key, not by
//! the size of the key.

use std::collections::HashSet;
use std::sync::Arc;

use uuid::Uuid;

use super::command::Wakes;
use super::command::{Argument, Command};
use super::reply::{ForcedLog, Reply, Scan, Word, ttl};
use super::resp::Value;
use super::shard::Shard;
use super::slot::SLOTS;
use super::{RedisInner, keys, permits, rw, script};
use crate::backend::{
    Fault, HOLDERS_MAX, Holder, Kind, List, LockInfo, Page, Pattern, Resource, Select, Topic, Ttl,
};
use crate::model::{self, now_ms};
use crate::{LockName, PermitId};

/// A plain lock has one field; a hash with more than this is other data, as in the scripts.
const FIELDS_MAX: usize = 16;

/// Where a list goes on: in a cluster, shard by shard in the order of the ids of their primaries.
#[derive(Default)]
struct ScanPosition {
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

impl ScanPosition {
    fn cursor(&self, from: u64) -> Vec<u8> {
        match &self.id[..] {
            "" => cursor(from),
            id => format!("{id}:{from}:{}", self.version).into_bytes(),
        }
    }
}

impl RedisInner {
    fn position(&self, request: &List) -> ScanPosition {
        let Some(cluster) = self.route.cluster() else {
            let (shard, from) = (self.route.only().cloned(), index(request));
            return ScanPosition { shard, from, ..ScanPosition::default() };
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
        let faults = silent.map(Fault::silent).into_iter().collect();
        let page = Page { incomplete, faults, ..Page::default() };
        let after = shards.next().map(|(next, _)| format!("{next}:0:{began}").into_bytes());
        let (id, shard) = found.map_or((String::new(), None), |(id, shard)| (id, Some(shard)));
        ScanPosition { shard, id, from, version: began, page, after }
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

    async fn list_locks(&self, request: &List, pattern: &Pattern) -> Result<Page, Fault> {
        let mut at = self.position(request);
        let page = std::mem::take(&mut at.page);
        let Some(shard) = &at.shard else { return Ok(page) };
        let mut read = ShardRead { shard, wakes: self.wakes, page };
        let next = match self.scan(&mut read, (at.from, request.limit), pattern).await {
            Ok(next) => next,
            // The locks of other shards can still be listed.
            Err(fault) if fault.may_pass() && self.route.only().is_none() => {
                let address = shard.primary.address().unwrap_or_default();
                let said = fault.to_string().replace(&format!("{address}: "), "");
                read.page.locks.clear();
                read.page.faults.push(Fault::silent(format!("{address}: {said}")));
                0
            }
            Err(fault) => return Err(fault),
        };
        let mut page = read.page;
        page.next = match next {
            0 => at.after.clone(),
            next => Some(at.cursor(next)),
        };
        if let (Some(cluster), None) = (self.route.cluster(), &page.next) {
            // A slot that has moved meanwhile may have taken locks from a shard that was not listed to one
            // that was.
            cluster.refresh().await;
            page.incomplete |= at.version != *cluster.versions().borrow();
        }
        Ok(page)
    }

    /// Makes one step of a scan. Returns where the next step begins.
    async fn scan(
        &self,
        read: &mut ShardRead<'_>,
        (from, limit): (u64, u32),
        pattern: &Pattern,
    ) -> Result<u64, Fault> {
        let connection = &read.shard.connection;
        // The permit key of a semaphore matches no pattern for its name, so SCAN gets no pattern. A
        // pattern for all names need not be matched at all.
        let scan = Command::plain("SCAN").arg(from).arg("COUNT").arg(limit);
        let Scan { next, found } = connection.call(scan).await?;
        // It may return a key twice, even within one step.
        let mut seen = HashSet::with_capacity(found.len());
        let keys: Vec<_> = found
            .into_iter()
            .filter(|key| seen.insert(key.clone()) && !keys::is_beside(key))
            .filter_map(|key| Candidate::of(key, pattern))
            .collect();
        let types = connection.read(keys.iter().map(|c| of_key("TYPE", &c.key)).collect()).await?;
        let mut hashes = Vec::new();
        let mut semaphores = Vec::new();
        for (candidate, kind) in keys.into_iter().zip(types) {
            match kind {
                Ok(Word(kind)) if kind == "hash" => hashes.extend(candidate.hash),
                Ok(Word(kind)) if kind == "zset" => semaphores.extend(candidate.permits),
                Ok(_) => {}
                Err(_) => read.page.incomplete = true,
            }
        }
        read.hashes(hashes).await?;
        read.semaphores(semaphores).await?;
        self.count_waiters(read.shard, &mut read.page.locks).await?;
        Ok(next)
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
        let answer: Option<Result<Value, Fault>> = shard.connection.read(vec![ask]).await?.pop();
        // A missing permission is not an error: the counts stay unknown.
        let Some(Ok(values)) = answer else { return Ok(()) };
        for (lock, pair) in locks.iter_mut().zip(values.items().unwrap_or_default().chunks(2)) {
            let is_counted = match lock.kind {
                Kind::Fair => false,
                Kind::Latch => self.wakes.of_latch(&lock.name) == self.wakes,
                _ => true,
            };
            if let [_, count] = pair
                && is_counted
            {
                lock.waiting = Some(count.number());
            }
        }
        Ok(())
    }

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
        let token: Option<Result<Option<Vec<u8>>, Fault>> =
            self.route.read(name.as_bytes(), vec![of_key("GET", keys::token(name))]).await?.pop();
        if let Some(Ok(Some(token))) = token {
            lock.token = String::from_utf8_lossy(&token).parse().ok();
        }
        let log = self
            .route
            .call(name.as_bytes(), script::FORCED_READ.call(1).arg(keys::forced(name)))
            .await;
        match log {
            Ok(ForcedLog(forced)) => lock.forced = forced,
            // A missing permission is not an error: the details stay unknown.
            Err(fault) if fault.may_pass() => return Err(fault),
            Err(_) => {}
        }
        Ok(lock)
    }

    /// Determines the kind of a name. A missing key is a free lock.
    async fn seems(&self, name: &LockName) -> Result<Kind, Fault> {
        let key = name.as_bytes();
        let counts =
            vec![of_key("LLEN", keys::queue(name)), of_key("EXISTS", keys::permit_ends(name))];
        let (form, fields, counts, texts) = tokio::try_join!(
            self.route.call(key, of_key("TYPE", key)),
            self.route.read(key, vec![some_fields(name)]),
            self.route.read::<i64>(key, counts),
            self.route.read(key, vec![mode(name), of_key("GET", key)])
        )?;
        let is = |n: usize| counts.get(n).is_some_and(|count| count.as_ref().is_ok_and(|n| *n > 0));
        let (queued, permits) = (is(0), is(1));
        let mut texts = texts.into_iter().map(|text| text.ok().flatten());
        let (mode, text) = (texts.next().flatten(), texts.next().flatten());
        let Word(form) = form;
        Ok(match &form[..] {
            "string" if permits => Kind::Permits,
            "string" if text.is_some_and(|text| is_number(&text)) => Kind::Semaphore,
            "string" => Kind::Mutex,
            "hash" => match fields.into_iter().find_map(|fields| Hash::parse(fields.ok()?)) {
                Some(hash) => Hash { mode, ..hash }.kind(queued),
                // Inspected as a lock, the error says what the key is.
                None => Kind::Lock,
            },
            _ if queued => Kind::Fair,
            _ => Kind::Lock,
        })
    }

    async fn describe_permits(&self, resource: &Resource) -> Result<LockInfo, Fault> {
        let (name, key) = (&resource.name, resource.name.as_bytes());
        let counted = self.route.call(key, permits::inspect(name)).await?;
        let ids = self.route.read(key, vec![taken(name)]).await?.pop();
        Ok(with_permits(counted.lock(resource), ids.unwrap_or(Err(Fault::Closed))))
    }
}

/// Reads the locks of some keys of one shard into a page.
struct ShardRead<'a> {
    shard: &'a Shard,
    wakes: Wakes,
    page: Page,
}

impl ShardRead<'_> {
    /// Reads locks, fair locks and read/write locks; skips other hashes.
    async fn hashes(&mut self, names: Vec<LockName>) -> Result<(), Fault> {
        let connection = &self.shard.connection;
        let lengths = names.iter().map(|name| of_key("LLEN", keys::queue(name)));
        let (fields, ttls, lengths) = tokio::try_join!(
            connection.read(names.iter().map(some_fields).collect()),
            connection.read(names.iter().map(|n| of_key("PTTL", n.as_bytes())).collect()),
            connection.read::<i64>(lengths.collect())
        )?;
        let mut shared = Vec::new();
        for (((name, fields), left), queued) in names.into_iter().zip(fields).zip(ttls).zip(lengths)
        {
            let (Ok(fields), Ok(left)) = (fields, left) else {
                // The key may have changed its type meanwhile, or the user may not read it.
                self.page.incomplete = true;
                continue;
            };
            // -2: the lock expired between the two reads.
            let Some(hash) = Hash::parse(fields).filter(|_| left != -2) else { continue };
            let queued = queued.ok().map(i64::unsigned_abs);
            if hash.mode.is_some() || !hash.is_whole {
                shared.push((name, hash, left));
            } else {
                self.page.locks.extend(hash.listed(name, left, queued));
            }
        }
        self.shared(shared).await
    }

    /// Reads read/write locks, which may have expired readers, and hashes too large to classify.
    async fn shared(&mut self, hashes: Vec<(LockName, Hash, i64)>) -> Result<(), Fault> {
        let connection = &self.shard.connection;
        let (whole, large): (Vec<_>, Vec<_>) = hashes.into_iter().partition(|(_, h, _)| h.is_whole);
        let inspect = whole.iter().map(|(name, ..)| rw::inspect(name, self.wakes)).collect();
        // A script that reads a large hash would block the server.
        let modes = large.iter().map(|(name, ..)| mode(name)).collect();
        let (answers, modes) = tokio::try_join!(connection.read(inspect), connection.read(modes))?;
        for ((name, hash, left), mode) in large.into_iter().zip(modes) {
            let hash = mode.ok().flatten().map(|mode| Hash { mode: Some(mode), ..hash });
            self.page.locks.extend(hash.and_then(|hash| hash.listed(name, left, None)));
        }
        for ((name, ..), answer) in whole.into_iter().zip(answers) {
            match answer {
                Ok(held) => {
                    let mut lock = held.lock(&Resource { kind: Kind::Read, name });
                    if lock.holders.iter().any(|holder| !holder.shared) {
                        lock.kind = Kind::Write;
                    }
                    self.page.locks.extend((!lock.holders.is_empty()).then_some(lock));
                }
                Err(fault) if fault.may_pass() => return Err(fault),
                // The key has changed its type.
                Err(Fault::WrongKind { .. }) => {}
                Err(_) => self.page.incomplete = true,
            }
        }
        Ok(())
    }

    /// Reads the semaphores with acquired permits.
    async fn semaphores(&mut self, names: Vec<LockName>) -> Result<(), Fault> {
        let connection = &self.shard.connection;
        let (counted, taken) = tokio::try_join!(
            connection.read(names.iter().map(permits::inspect).collect()),
            connection.read(names.iter().map(taken).collect())
        )?;
        for ((name, counted), ids) in names.into_iter().zip(counted).zip(taken) {
            let resource = Resource { kind: Kind::Permits, name };
            match counted.map(|counted| with_permits(counted.lock(&resource), ids)) {
                Ok(LockInfo { taken: 0, .. } | LockInfo { count: None, .. })
                | Err(Fault::WrongKind { .. }) => {}
                Ok(lock) => self.page.locks.push(lock),
                Err(fault) if fault.may_pass() => return Err(fault),
                Err(_) => self.page.incomplete = true,
            }
        }
        Ok(())
    }
}

fn taken(name: &LockName) -> Command<Scored> {
    let ids = of_key("ZRANGEBYSCORE", keys::permit_ends(name));
    let ids = ids.arg(format!("({}", now_ms())).arg("+inf").arg("WITHSCORES");
    ids.arg("LIMIT").arg("0").arg(HOLDERS_MAX)
}

fn with_permits(mut lock: LockInfo, ids: Result<Scored, Fault>) -> LockInfo {
    lock.holders = ids.into_iter().flat_map(|ids| ids.0).map(permit_holder).collect();
    lock
}

pub(super) fn index(request: &List) -> u64 {
    std::str::from_utf8(&request.cursor).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub(super) fn cursor(index: u64) -> Vec<u8> {
    index.to_string().into_bytes()
}

/// Reads only some fields of a hash: one with other data may have millions.
fn some_fields(name: &LockName) -> Command<Scan> {
    of_key("HSCAN", name.as_bytes()).arg("0").arg("COUNT").arg(HOLDERS_MAX)
}

fn mode(name: &LockName) -> Command<Option<Vec<u8>>> {
    of_key("HGET", name.as_bytes()).arg("mode")
}

pub(super) fn of_key<T: Reply>(command: &str, key: impl Argument) -> Command<T> {
    Command::plain(command).arg(key)
}

fn is_number(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok())
}

/// Members with their scores, either alternating or as pairs.
struct Scored(Vec<(Vec<u8>, f64)>);

impl Reply for Scored {
    fn read(reply: &Value) -> Option<Self> {
        let Value::Array(items) = reply else { return None };
        let flat: Vec<_> = items
            .iter()
            .flat_map(|item| item.items().unwrap_or(std::slice::from_ref(item)))
            .collect();
        let scored = |pair: &[&Value]| {
            let Value::Bulk(member) = pair[0] else { return None };
            Some((member.clone(), pair[1].text()?.parse().unwrap_or(0.0)))
        };
        flat.chunks_exact(2).map(scored).collect::<Option<_>>().map(Self)
    }
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
    fn parse(Scan { next, found }: Scan) -> Option<Self> {
        let mut fields = found.into_iter();
        let mut hash = Hash { mode: None, holders: Vec::new(), is_whole: next == 0 };
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
