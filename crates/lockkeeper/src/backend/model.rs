//! What every request means, written once: no I/O, no clock of its own.
//!
//! The memory store is this model behind a mutex. The Redis scripts must agree with it, and a
//! property test that drives both with the same requests says so. Times are milliseconds of the
//! store's own clock, as Redis counts them: an entry is alive while `now <= expires`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::{Entry as MapEntry, OccupiedEntry};

use uuid::Uuid;

use super::{
    Acquire, Attempt, Change, Changed, ClientInfo, Fault, HolderEntry, Kind, Release, Released,
    Renew, Renewed, Resource, Snapshot, Topic, Ttl,
};
use crate::{LockName, OwnerId};

/// Everything a store knows.
#[derive(Debug, Default)]
pub struct State {
    locks: HashMap<LockName, Entry>,
    clients: HashMap<Uuid, (ClientInfo, u64)>,
    /// The size at which entries that nobody asked about since they expired are swept out.
    sweep_at: usize,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    owner: OwnerId,
    count: u32,
    expires: u64,
}

/// Who must be woken, and with which words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wake {
    /// The topic.
    pub topic: Topic,
    /// The message.
    pub payload: Cow<'static, [u8]>,
}

impl Entry {
    fn new(request: &Acquire, now: u64) -> Self {
        Self {
            kind: request.resource.kind,
            owner: request.owner,
            count: 1,
            expires: now + request.ttl,
        }
    }

    fn ttl(&self, now: u64) -> Ttl {
        Ttl::Millis(self.expires - now)
    }

    fn lengthen(&mut self, ttl: u64, now: u64) {
        self.expires = self.expires.max(now + ttl);
    }

    fn must_be(&self, kind: Kind) -> Result<(), Fault> {
        if self.kind == kind {
            return Ok(());
        }
        Err(Fault::WrongKind { found: format!("a {}", self.kind) })
    }
}

/// The sweep starts here, so that a small store is never swept.
const SWEEP_MIN: usize = 1024;

impl State {
    /// The living entry of `name`; one that has expired is forgotten first.
    fn living(&mut self, name: &LockName, now: u64) -> Option<&mut Entry> {
        self.place(name, now).map(OccupiedEntry::into_mut)
    }

    /// The same with its place in the table, so that it can be taken out.
    fn place(&mut self, name: &LockName, now: u64) -> Option<OccupiedEntry<'_, LockName, Entry>> {
        match self.locks.entry(name.clone()) {
            MapEntry::Occupied(entry) if entry.get().expires >= now => Some(entry),
            MapEntry::Occupied(entry) => {
                entry.remove();
                None
            }
            MapEntry::Vacant(_) => None,
        }
    }

    /// Amortised: the table is at least twice as large at each sweep as after the last one.
    fn sweep(&mut self, now: u64) {
        if self.locks.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.locks.retain(|_, entry| entry.expires >= now);
            self.sweep_at = self.locks.len() * 2;
        }
    }

    /// Takes a lock, re-enters it, or hands it over.
    pub fn acquire(&mut self, request: &Acquire, now: u64) -> Result<Attempt, Fault> {
        self.sweep(now);
        let name = &request.resource.name;
        if let Some(from) = request.from {
            return self.hand_over(request, from, now);
        }
        let entry = match self.locks.entry(name.clone()) {
            MapEntry::Occupied(entry) if entry.get().expires >= now => entry.into_mut(),
            _ if request.count > 1 => return Ok(Attempt::Gone),
            vacant => {
                vacant.insert_entry(Entry::new(request, now));
                return Ok(Attempt::Granted);
            }
        };
        entry.must_be(request.resource.kind)?;
        if entry.owner != request.owner {
            let gone = request.count > 1;
            return Ok(if gone { Attempt::Gone } else { Attempt::Busy(entry.busy_ttl(now)) });
        }
        // A repeated `SET NX` does not refresh the time to live; the scripts of the lock do.
        if request.resource.kind == Kind::Lock {
            entry.count = request.count;
            entry.lengthen(request.ttl, now);
        }
        Ok(Attempt::Granted)
    }

    fn hand_over(&mut self, request: &Acquire, from: OwnerId, now: u64) -> Result<Attempt, Fault> {
        let Some(entry) = self.living(&request.resource.name, now) else {
            return Ok(Attempt::Gone);
        };
        if entry.kind != request.resource.kind {
            return Ok(Attempt::Gone);
        }
        if entry.owner == request.owner {
            entry.lengthen(request.ttl, now);
        } else if entry.owner == from {
            *entry = Entry::new(request, now);
        } else {
            return Ok(Attempt::Gone);
        }
        Ok(Attempt::Granted)
    }

    /// Takes holds off.
    pub fn release(
        &mut self,
        request: &Release,
        now: u64,
    ) -> (Result<Released, Fault>, Option<Wake>) {
        let name = &request.resource.name;
        let absent = |holder: Option<OwnerId>| {
            (Ok(Released::Absent { holder: holder.map(|id| id.to_string()) }), None)
        };
        let Some(mut place) = self.place(name, now) else { return absent(None) };
        let entry = place.get_mut();
        // A key of another kind means that this hold is gone, which is all a release must know.
        if entry.kind != request.resource.kind {
            return absent(None);
        }
        if entry.owner != request.owner {
            return absent(Some(entry.owner));
        }
        if request.keep == 0 {
            place.remove();
            return (Ok(Released::Freed { listeners: Some(0) }), Some(freed(name)));
        }
        // A repetition finds nothing to take off and leaves the time to live alone: it may have
        // been lengthened since.
        let fewer = entry.count > request.keep;
        if fewer {
            entry.count = request.keep;
        }
        if let Some(ttl) = request.ttl.filter(|_| fewer || request.leave) {
            entry.expires = now + ttl;
        }
        (Ok(Released::Kept), None)
    }

    /// Renews or checks one hold.
    pub fn renew(&mut self, request: &Renew, now: u64) -> Result<Renewed, Fault> {
        let Some(entry) = self.living(&request.resource.name, now) else {
            return Ok(Renewed::Gone);
        };
        if entry.kind != request.resource.kind || entry.owner != request.owner {
            return Ok(Renewed::Taken);
        }
        let found = entry.ttl(now);
        if let Some(ttl) = request.ttl {
            entry.lengthen(ttl, now);
        }
        Ok(Renewed::Held(found))
    }

    /// Changes what is not one owner's own.
    pub fn adjust(&mut self, change: &Change, now: u64) -> (Result<Changed, Fault>, Vec<Wake>) {
        match change {
            Change::ForceUnlock { resource, reason, .. } => {
                self.force_unlock(resource, reason, now)
            }
            Change::Announce { client, info, ttl } => {
                self.clients.retain(|_, (_, until)| *until >= now);
                self.clients.insert(*client, (info.clone(), now + ttl));
                (Ok(Changed::Done), Vec::new())
            }
            Change::Withdraw { client } => {
                self.clients.remove(client);
                (Ok(Changed::Done), Vec::new())
            }
        }
    }

    fn force_unlock(
        &mut self,
        resource: &Resource,
        reason: &str,
        now: u64,
    ) -> (Result<Changed, Fault>, Vec<Wake>) {
        let Some(entry) = self.living(&resource.name, now) else {
            return (Ok(Changed::Nothing), Vec::new());
        };
        if let Err(fault) = entry.must_be(resource.kind) {
            return (Err(fault), Vec::new());
        }
        let victim = entry.owner;
        self.locks.remove(&resource.name);
        let notice = Wake {
            topic: Topic::Notice(victim.client()),
            payload: notice(&victim.to_string(), reason).into_bytes().into(),
        };
        (Ok(Changed::Done), vec![freed(&resource.name), notice])
    }

    /// What is known of a lock.
    pub fn inspect(&mut self, resource: &Resource, now: u64) -> Result<Snapshot, Fault> {
        let Some(entry) = self.living(&resource.name, now) else {
            return Ok(Snapshot::default());
        };
        entry.must_be(resource.kind)?;
        let (owner, count, ttl) = (entry.owner, entry.count, entry.ttl(now));
        let client = self.clients.get(&owner.client()).filter(|(_, until)| *until >= now);
        let holder = HolderEntry {
            id: owner.to_string().into_bytes(),
            count: u64::from(count),
            client: client.map(|(info, _)| info.clone()),
        };
        Ok(Snapshot { holders: vec![holder], ttl: Some(ttl) })
    }

    /// How many locks there are, expired ones included that nobody asked about.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether there is no lock at all.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }
}

impl Entry {
    /// `SET NX GET` says who holds a mutex but not for how long.
    fn busy_ttl(&self, now: u64) -> Option<Ttl> {
        (self.kind == Kind::Lock).then(|| self.ttl(now))
    }
}

fn freed(name: &LockName) -> Wake {
    Wake { topic: Topic::Freed(name.clone()), payload: Cow::Borrowed(b"0") }
}

/// The line that tells a client that one of its holds was taken away. It names the hold alone: that
/// is unique, where a name may be anything, line breaks included.
fn notice(victim: &str, reason: &str) -> String {
    format!("revoked {victim} {}", one_line(reason))
}

/// A reason without anything that would break a line.
pub(crate) fn one_line(reason: &str) -> String {
    reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Reads what [`notice`] wrote.
pub(crate) fn read_notice(line: &[u8]) -> Option<(OwnerId, String)> {
    let text = std::str::from_utf8(line).ok()?;
    let (victim, reason) = text.strip_prefix("revoked ")?.split_once(' ')?;
    Some((victim.parse().ok()?, reason.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_reads_back_and_never_spans_two_lines() {
        let victim = OwnerId::fresh(Uuid::new_v4());
        let line = notice(&victim.to_string(), "stuck\nsince noon");
        assert!(!line.contains('\n'));
        assert_eq!(read_notice(line.as_bytes()), Some((victim, "stuck since noon".to_owned())));
        assert_eq!(read_notice(b"hello"), None);
    }
}
