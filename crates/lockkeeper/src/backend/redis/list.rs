//! What there is on the server, found by `SCAN`: pages of reads that never keep it busy.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{Cmd, Value};
use uuid::Uuid;

use super::{Inner, bulk, keys, number, script, strings, ttl, unexpected};
use crate::backend::{
    ClientEntry, ClientInfo, Fault, Forced, HolderEntry, Holding, Kind, List, Listed, Page,
    Pattern, Resource, Select, Snapshot, Topic,
};
use crate::{LockName, OwnerId, PermitId};

/// How many fields of a hash, or permits of a semaphore, are read: enough to know what it is, and to
/// show who holds it.
const HOLDERS_MAX: usize = 128;

impl Inner {
    pub(super) async fn list(&self, request: List) -> Result<Page, Fault> {
        match &request.select {
            Select::Clients => self.list_clients(&request).await,
            Select::Matching(pattern) => self.list_locks(&request, pattern).await,
            Select::Named(name, kind) => {
                let listed = self.describe(name, *kind).await?;
                Ok(Page { locks: vec![listed], ..Page::default() })
            }
        }
    }

    /// One step of a scan; SCAN may give a key twice even within one.
    async fn scan(&self, request: &List) -> Result<(Vec<Vec<u8>>, Option<Vec<u8>>), Fault> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(place(request)).arg("COUNT").arg(request.limit);
        let answer = self.link.read(vec![scan]).await?.pop();
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
        Ok((keys, (next != 0).then(|| cursor(next))))
    }

    /// The cursor is a place among them; who comes or goes meanwhile moves others by one.
    async fn list_clients(&self, request: &List) -> Result<Page, Fault> {
        let first = place(request);
        let last = first + u64::from(request.limit.max(1)) - 1;
        let mut range = of_key("ZRANGE", keys::clients());
        range.arg(first).arg(last);
        let ids = self.link.read(vec![range]).await?.pop();
        let ids = match ids.unwrap_or(Ok(Value::Nil)) {
            // Who may not see the clients can still be shown the locks.
            Err(Fault::Denied { .. }) => return Ok(Page { incomplete: true, ..Page::default() }),
            ids => strings(ids?)?,
        };
        let more = ids.len() as u64 > last - first;
        let ids: Vec<_> = ids.iter().filter_map(|id| Uuid::try_parse_ascii(id).ok()).collect();
        let read = |id: &Uuid| of_key("HGETALL", &keys::client(*id));
        let answers = self.link.read(ids.iter().map(read).collect()).await?;
        let mut page = Page { next: more.then(|| cursor(last + 1)), ..Page::default() };
        for (id, answer) in ids.into_iter().zip(answers) {
            match answer {
                Ok(fields) => page.clients.extend(client(id, fields)),
                Err(_) => page.incomplete = true,
            }
        }
        Ok(page)
    }

    async fn list_locks(&self, request: &List, pattern: &Pattern) -> Result<Page, Fault> {
        // The key of a semaphore's permits matches no pattern of its name; a pattern for everything
        // need not be matched at all.
        let (keys, next) = self.scan(request).await?;
        let mut page = Page { next, ..Page::default() };
        let keys: Vec<_> = keys
            .into_iter()
            .filter(|key| !keys::is_beside(key))
            .filter_map(|key| Candidate::of(key, pattern))
            .collect();
        let types = self.link.read(keys.iter().map(|c| of_key("TYPE", &c.key)).collect()).await?;
        let mut hashes = Vec::new();
        let mut semaphores = Vec::new();
        for (candidate, kind) in keys.into_iter().zip(types) {
            match kind {
                Ok(Value::SimpleString(kind)) if kind == "hash" => hashes.extend(candidate.hash),
                Ok(Value::SimpleString(kind)) if kind == "zset" => {
                    semaphores.extend(candidate.permits);
                }
                Ok(_) => {}
                Err(_) => page.incomplete = true,
            }
        }
        page.locks = self.read_hashes(hashes, &mut page.incomplete).await?;
        for name in semaphores {
            match self.describe_permits(&name).await {
                Ok(listed) if listed.snapshot.taken > 0 && listed.snapshot.count.is_some() => {
                    page.locks.push(listed);
                }
                Ok(_) | Err(Fault::WrongKind { .. }) => {}
                Err(fault) if fault.may_pass() => return Err(fault),
                Err(_) => page.incomplete = true,
            }
        }
        self.count_waiters(&mut page.locks).await?;
        Ok(page)
    }

    /// Locks, fair locks and read/write locks; other hashes are left out.
    async fn read_hashes(
        &self,
        names: Vec<LockName>,
        incomplete: &mut bool,
    ) -> Result<Vec<Listed>, Fault> {
        let mut reads = Vec::with_capacity(3 * names.len());
        for name in &names {
            // Not all of it: a hash of other data may have millions of fields.
            let mut fields = of_key("HSCAN", name.as_bytes());
            fields.arg(0).arg("COUNT").arg(HOLDERS_MAX);
            reads.push(fields);
            reads.push(of_key("PTTL", name.as_bytes()));
            reads.push(of_key("LLEN", &keys::queue(name)));
        }
        let mut answers = self.link.read(reads).await?.into_iter();
        let mut found = Vec::new();
        for name in names {
            let (fields, left, queued) = (answers.next(), answers.next(), answers.next());
            let (Some(Ok(fields)), Some(Ok(Value::Int(left)))) = (fields, left) else {
                // It may have become something else meanwhile; or the user may not read it.
                *incomplete = true;
                continue;
            };
            let Some(hash) = Hash::parse(fields) else { continue };
            // -2: it ended between the two.
            if left == -2 {
                continue;
            }
            let queued = match queued {
                Some(Ok(Value::Int(queued))) => Some(queued.unsigned_abs()),
                _ => None,
            };
            found.push(hash.listed(name, left, queued));
        }
        Ok(found)
    }

    /// How many clients listen for each: one request for all.
    async fn count_waiters(&self, locks: &mut [Listed]) -> Result<(), Fault> {
        if locks.is_empty() {
            return Ok(());
        }
        let mut ask = redis::cmd("PUBSUB");
        ask.arg("NUMSUB");
        for listed in locks.iter() {
            let channel = Topic::told_of(&listed.resource).and_then(|t| keys::topic_channel(&t));
            ask.arg(channel.unwrap_or_default());
        }
        let answer = self.link.read(vec![ask]).await?.pop();
        // Who may not ask is told nothing, which is no failure.
        let Some(Ok(Value::Array(values))) = answer else { return Ok(()) };
        for (listed, pair) in locks.iter_mut().zip(values.chunks(2)) {
            if let [_, count] = pair
                && listed.resource.kind != Kind::Fair
            {
                listed.snapshot.waiting = Some(number(count));
            }
        }
        Ok(())
    }

    /// Everything that is known of one name.
    async fn describe(&self, name: &LockName, kind: Option<Kind>) -> Result<Listed, Fault> {
        let kind = match kind {
            Some(kind) => kind,
            None => self.seems(name).await?,
        };
        let resource = Resource { kind, name: name.clone() };
        let mut listed = match kind {
            Kind::Permits => self.describe_permits(name).await?,
            _ => {
                let snapshot = self.inspect(resource.clone()).await?;
                Listed { resource, snapshot }
            }
        };
        if kind == Kind::Fair {
            listed.snapshot.waiting = Some(listed.snapshot.queue.len() as u64);
        }
        self.count_waiters(std::slice::from_mut(&mut listed)).await?;
        let token = self.link.read(vec![of_key("GET", &keys::token(name))]).await?.pop();
        if let Some(Ok(Value::BulkString(token))) = token {
            listed.snapshot.token = String::from_utf8_lossy(&token).parse().ok();
        }
        let log = self.link.call(script::FORCED_READ.call(1).arg(keys::forced(name))).await;
        match log {
            Ok(Value::Array(entries)) => {
                listed.snapshot.forced = entries.into_iter().filter_map(forced).collect();
            }
            Ok(other) => return Err(unexpected(&other)),
            // Who may not read it is not told.
            Err(fault) if fault.may_pass() => return Err(fault),
            Err(_) => {}
        }
        Ok(listed)
    }

    /// What stands under a name. Nothing at all is a lock that is free.
    async fn seems(&self, name: &LockName) -> Result<Kind, Fault> {
        let mut fields = of_key("HSCAN", name.as_bytes());
        fields.arg(0).arg("COUNT").arg(HOLDERS_MAX);
        let reads = vec![
            of_key("TYPE", name.as_bytes()),
            fields,
            of_key("LLEN", &keys::queue(name)),
            of_key("EXISTS", &keys::permit_ends(name)),
            of_key("GET", name.as_bytes()),
        ];
        let mut answers = self.link.read(reads).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let (form, fields, queued, permits, text) = (next()?, next(), next(), next(), next());
        let is = |answer: Result<Value, Fault>| matches!(answer, Ok(Value::Int(n)) if n > 0);
        let Value::SimpleString(form) = form else { return Err(unexpected(&form)) };
        Ok(match &form[..] {
            "string" if is(permits) => Kind::Permits,
            "string" => match text {
                Ok(Value::BulkString(text)) if is_number(&text) => Kind::Semaphore,
                _ => Kind::Mutex,
            },
            "hash" => match fields.ok().and_then(Hash::parse) {
                Some(hash) => hash.kind(is(queued)),
                // Asked about as a lock, it says what it is.
                None => Kind::Lock,
            },
            _ if is(queued) => Kind::Fair,
            _ => Kind::Lock,
        })
    }

    async fn describe_permits(&self, name: &LockName) -> Result<Listed, Fault> {
        let resource = Resource { kind: Kind::Permits, name: name.clone() };
        let mut snapshot = self.inspect(resource.clone()).await?;
        let mut ids = of_key("ZRANGEBYSCORE", &keys::permit_ends(name));
        ids.arg(format!("({}", now_ms())).arg("+inf").arg("LIMIT").arg(0).arg(HOLDERS_MAX);
        if let Some(Ok(ids)) = self.link.read(vec![ids]).await?.pop() {
            snapshot.holders = strings(ids)?.iter().map(|id| permit_holder(id)).collect();
        }
        Ok(Listed { resource, snapshot })
    }
}

/// Where a page begins, as a number.
fn place(request: &List) -> u64 {
    std::str::from_utf8(&request.cursor).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn cursor(place: u64) -> Vec<u8> {
    place.to_string().into_bytes()
}

/// By this machine's clock: only for show, where the server's scripts decide by its own.
fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

fn of_key(command: &str, key: &[u8]) -> Cmd {
    let mut cmd = redis::cmd(command);
    cmd.arg(key);
    cmd
}

fn is_number(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok())
}

fn permit_holder(id: &[u8]) -> HolderEntry {
    let bytes: Result<[u8; 16], _> = id.try_into();
    let shown = bytes.map(|bytes| PermitId::from_bytes(bytes).to_string().into_bytes());
    let id = shown.unwrap_or_else(|_| id.to_vec());
    HolderEntry { id, count: 1, shared: true, client: None, since: None }
}

/// What a key may be.
struct Candidate {
    key: Vec<u8>,
    /// The lock, if it is a hash.
    hash: Option<LockName>,
    /// The semaphores that it may belong to, if it is a set of permits.
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

/// A hash that has the form of a lock.
struct Hash {
    /// Of a read/write lock.
    mode: Option<Vec<u8>>,
    /// Owner, count, shared.
    holders: Vec<(Vec<u8>, u64, bool)>,
}

impl Hash {
    /// Out of what HSCAN says; nothing, if no field is an owner's.
    fn parse(scanned: Value) -> Option<Self> {
        let Value::Array(parts) = scanned else { return None };
        let [_, fields] = <[Value; 2]>::try_from(parts).ok()?;
        let mut fields = strings(fields).ok()?.into_iter();
        let mut hash = Hash { mode: None, holders: Vec::new() };
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

    fn listed(self, name: LockName, left: i64, queued: Option<u64>) -> Listed {
        let kind = self.kind(queued.is_some_and(|queued| queued > 0));
        let shares = self.mode.is_some();
        let holders = self.holders.into_iter().map(|(id, count, shared)| HolderEntry {
            id,
            count,
            shared: shared && shares,
            client: None,
            since: None,
        });
        let snapshot = Snapshot {
            holders: holders.collect(),
            ttl: Some(ttl(left)),
            waiting: queued.filter(|_| kind == Kind::Fair),
            ..Snapshot::default()
        };
        Listed { resource: Resource { kind, name }, snapshot }
    }
}

/// Whether a field is of the form `<uuid>:<number>`, with whatever Redisson may put behind it.
fn is_owner(field: &[u8]) -> bool {
    let Some((client, rest)) = field.split_at_checked(uuid::fmt::Hyphenated::LENGTH) else {
        return false;
    };
    let number = rest.strip_prefix(b":").map(|rest| rest.strip_prefix(b"-").unwrap_or(rest));
    Uuid::try_parse_ascii(client).is_ok()
        && number.and_then(<[u8]>::first).is_some_and(u8::is_ascii_digit)
}

/// What a client's key says.
pub(super) fn client(id: Uuid, fields: Value) -> Option<ClientEntry> {
    let pairs: Vec<(Vec<u8>, Vec<u8>)> = match fields {
        Value::Map(pairs) => {
            pairs.into_iter().filter_map(|(k, v)| Some((bulk(k).ok()?, bulk(v).ok()?))).collect()
        }
        other => {
            strings(other).ok()?.chunks_exact(2).map(|p| (p[0].clone(), p[1].clone())).collect()
        }
    };
    let field = |name: &str| {
        let found = pairs.iter().find(|(field, _)| field == name.as_bytes());
        found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    };
    let started = UNIX_EPOCH + Duration::from_millis(field("start")?.parse().ok()?);
    let info = ClientInfo {
        host: field("host")?,
        pid: field("pid")?.parse().ok()?,
        program: field("program")?,
        started,
    };
    let holds = field("holds").unwrap_or_default();
    let holds = holds.lines().filter_map(|line| read_holding(id, line)).collect();
    Some(ClientEntry { id, info, holds, more: field("more").as_deref() == Some("1") })
}

/// One line for each: number, kind, permits, since when, and the name in hexadecimal digits, because
/// it may be anything.
pub(super) fn write_holds(holds: &[Holding]) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for Holding { owner, resource, count, since } in holds {
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let (number, kind) = (owner.number(), resource.kind.word());
        let _ = write!(text, "{number} {kind} {count} {since} ");
        for byte in resource.name.as_bytes() {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

fn read_holding(client: Uuid, line: &str) -> Option<Holding> {
    let mut parts = line.split(' ');
    let owner = OwnerId::numbered(client, parts.next()?.parse().ok()?);
    let kind = Kind::from_word(parts.next()?)?;
    let count = parts.next()?.parse().ok()?;
    let since = UNIX_EPOCH + Duration::from_millis(parts.next()?.parse().ok()?);
    let digits = parts.next()?.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let name: Vec<u8> = digits.map(byte).collect::<Option<_>>()?;
    let resource = Resource { kind, name: LockName::from(&name[..]) };
    Some(Holding { owner, resource, count, since })
}

/// At, by, why, and then whom it was taken from.
fn forced(entry: Value) -> Option<Forced> {
    let parts = strings(entry).ok()?;
    let mut parts = parts.into_iter().map(|part| String::from_utf8_lossy(&part).into_owned());
    let at = UNIX_EPOCH + Duration::from_millis(parts.next()?.parse().ok()?);
    let (by, reason) = (parts.next()?, parts.next()?);
    Some(Forced::new(at, by, reason, parts.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_says_it_holds_reads_back() {
        let client = Uuid::new_v4();
        let name = LockName::from(&b"a b\n\xff"[..]);
        let hold = Holding {
            owner: OwnerId::fresh(client),
            resource: Resource { kind: Kind::Permits, name },
            count: 3,
            since: UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        };
        let text = write_holds(&[hold.clone(), hold.clone()]);
        let read: Vec<_> = text.lines().filter_map(|line| read_holding(client, line)).collect();
        assert_eq!(read, [hold.clone(), hold]);
    }

    #[test]
    fn owners_are_told_from_other_fields() {
        assert!(is_owner(b"6e0c0000-0000-4000-8000-000000000000:42"));
        assert!(is_owner(b"6e0c0000-0000-4000-8000-000000000000:-1"));
        assert!(!is_owner(b"6e0c0000-0000-4000-8000-000000000000"));
        assert!(!is_owner(b"name"));
        assert!(!is_owner(b"not-a-uuid-but-as-long-as-one-would-:42"));
    }
}
