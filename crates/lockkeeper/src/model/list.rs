//! Lists for people: locks, clients, and recorded force-releases.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use crate::PermitId;
use crate::backend::{ClientEntry, ForcedUnlock, HOLDERS_MAX, Holding, List, Page, Select};

/// How many force-releases of a name are recorded, and for how long after the last one.
const FORCED_MAX: usize = 20;
const FORCED_FOR: u64 = 7 * 24 * 3_600_000;

/// The force-releases of one name, the newest first.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct ForcedLog {
    entries: VecDeque<Entry>,
    pub(super) expires: u64,
}

/// A stored force-release.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
struct Entry {
    /// Milliseconds by the wall clock.
    at: u64,
    by: String,
    reason: String,
    holders: Vec<String>,
    /// The clients of the holders. Earlier versions do not write this field and do not read it.
    #[cfg_attr(feature = "file", serde(default, skip_serializing_if = "Vec::is_empty"))]
    clients: Vec<Option<Process>>,
}

/// The stored description of a client.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Process {
    host: String,
    pid: u32,
    program: String,
    /// Milliseconds by the wall clock.
    started: u64,
}

impl Process {
    pub(crate) fn of(info: &ClientInfo) -> Self {
        let ClientInfo { host, pid, program, started } = info.clone();
        Self { host, pid, program, started: millis(started) }
    }

    pub(crate) fn info(&self) -> ClientInfo {
        let Self { host, pid, program, started } = self.clone();
        ClientInfo { host, pid, program, started: time(started) }
    }
}

pub(crate) fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// The local wall clock in milliseconds.
pub(crate) fn now_ms() -> u64 {
    millis(SystemTime::now())
}

pub(crate) fn time(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

impl Entry {
    fn forced(&self) -> ForcedUnlock {
        let Self { at, by, reason, holders, clients } = self.clone();
        let mut clients: Vec<_> =
            clients.iter().map(|client| client.as_ref().map(Process::info)).collect();
        clients.resize(holders.len(), None);
        ForcedUnlock { at: time(at), by, reason, holders, clients }
    }
}

impl ForcedLog {
    /// Converts the log to the time of another boot. The entries have wall-clock times, so their
    /// expiry is known.
    #[cfg(feature = "file")]
    pub(super) fn after_restart(mut self, now: u64, epoch: u64) -> Option<Self> {
        self.expires = (self.entries.front()?.at + FORCED_FOR).checked_sub(epoch)?;
        Some(self).filter(|log| log.expires >= now)
    }
}

impl State {
    /// Returns all entries on one page: the whole state is in one process.
    pub fn list(&mut self, request: &List, now: u64) -> Result<Page> {
        let mut page = Page::default();
        match &request.select {
            Select::Clients => page.clients = self.clients(now),
            Select::Named(name, kind) => page.locks.push(self.describe(name, *kind, now)?),
            Select::Matching(pattern) => {
                let names = self.names.keys().filter(|name| pattern.matches(name.as_bytes()));
                let names: Vec<_> = names.cloned().collect();
                page.locks.extend(names.iter().filter_map(|name| self.listed(name, now)));
            }
        }
        Ok(page)
    }

    /// Returns the announced clients.
    fn clients(&self, now: u64) -> Vec<ClientEntry> {
        self.announced(now).map(|announced| announced.seen(now)).collect()
    }

    fn announced(&self, now: u64) -> impl Iterator<Item = &Announced> {
        self.clients.values().filter(move |announced| announced.until >= now)
    }

    /// Returns the lock of a name if it belongs in a list. A number alone does not: it may be
    /// anything.
    pub(crate) fn listed(&mut self, name: &LockName, now: u64) -> Option<LockInfo> {
        self.living(name, now)?;
        let kind = self.kind_of(name, now)?;
        self.describe(name, Some(kind), now).ok()
    }

    /// Describes a name. A free name is shown as a lock.
    pub(crate) fn describe(
        &mut self,
        name: &LockName,
        kind: Option<Kind>,
        now: u64,
    ) -> Result<LockInfo> {
        let seems = self.kind_of(name, now);
        let is_number = |entry: &mut super::Entry| matches!(entry.value, Value::Number(_));
        let counter = self.living(name, now).is_some_and(is_number).then_some(Kind::Semaphore);
        let kind = kind.or(seems).or(counter).unwrap_or(Kind::Lock);
        let resource = Resource { kind, name: name.clone() };
        let mut lock = self.inspect(&resource, now)?;
        if kind == Kind::Permits {
            lock.holders = self.permit_holders(name, now);
        }
        if kind == Kind::Fair {
            lock.waiting = Some(lock.queue.len() as u64);
        }
        lock.token = self.last_token(name, now);
        let log = self.forced.get(name).filter(|log| log.expires >= now);
        lock.forced = log.into_iter().flat_map(|log| &log.entries).map(Entry::forced).collect();
        Ok(lock)
    }

    fn kind_of(&mut self, name: &LockName, now: u64) -> Option<Kind> {
        let announced = self.announced_kind(name, now);
        let taken = self.permits.get(name).is_some_and(|taken| taken.living(now).next().is_some());
        let queued = self.queues.get(name).is_some_and(|queue| queue.ends >= now);
        self.settle_rw(name, now);
        match &self.living(name, now)?.value {
            Value::Lock { .. } if queued || announced == Some(Kind::Fair) => Some(Kind::Fair),
            Value::Lock { .. } => Some(Kind::Lock),
            Value::Mutex { .. } => Some(Kind::Mutex),
            Value::Rw(holds) if holds.is_written() => Some(Kind::Write),
            Value::Rw(_) => Some(Kind::Read),
            Value::Number(_) if taken => Some(Kind::Permits),
            Value::Number(_) => announced.filter(|kind| *kind == Kind::Semaphore),
        }
    }

    /// Returns the kind under which a client announced a hold of the name.
    fn announced_kind(&self, name: &LockName, now: u64) -> Option<Kind> {
        let mut holds = self.announced(now).flat_map(|announced| &announced.client.holds);
        holds.find(|hold| hold.resource.name == *name).map(|hold| hold.resource.kind)
    }

    fn permit_holders(&mut self, name: &LockName, now: u64) -> Vec<Holder> {
        let Some(taken) = self.permits.get(name).filter(|taken| taken.is_alive(now)) else {
            return Vec::new();
        };
        let mut living: Vec<_> = taken.living(now).collect();
        living.sort_unstable_by_key(|(id, end)| (*end, *id));
        living.truncate(HOLDERS_MAX);
        living.into_iter().map(|(id, end)| self.permit_holder(id, end, now)).collect()
    }

    fn permit_holder(&self, id: PermitId, end: u64, now: u64) -> Holder {
        let mut holder = Holder::new(id.to_string(), 1, true);
        holder.ttl = Some(permits::left(end, now));
        let mut announced = self.announced(now);
        if let Some(announced) = announced.find(|announced| id.is_of(announced.client.id)) {
            let client = announced.seen(now);
            let is_its =
                |hold: &&Holding| PermitId::of(hold.owner, hold.count).any(|own| own == id);
            holder.describe(&client, client.holds.iter().find(is_its));
        }
        holder
    }

    /// Records a force-release.
    pub(super) fn log_forced(
        &mut self,
        name: &LockName,
        (by, reason, victims): (&ClientInfo, &str, Vec<Holder>),
        now: u64,
    ) {
        self.forced.retain(|_, log| log.expires >= now);
        let log = self.forced.entry(name.clone()).or_default();
        let (at, by, reason) = (now + self.epoch, by.to_string(), reason.to_owned());
        let clients =
            victims.iter().map(|victim| victim.client.as_ref().map(Process::of)).collect();
        let holders = victims.into_iter().map(|victim| victim.id).collect();
        log.entries.push_front(Entry { at, by, reason, holders, clients });
        log.entries.truncate(FORCED_MAX);
        log.expires = now + FORCED_FOR;
    }
}
