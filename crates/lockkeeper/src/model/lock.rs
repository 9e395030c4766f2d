//! The reentrant lock and the mutex: one owner each.

use super::counter::FREED;
use super::*;

impl State {
    pub(super) fn acquire_plain(&mut self, request: &Acquire, now: u64) -> Result<Attempt> {
        if let Some(from) = request.from {
            return self.hand_off_plain(request, from, now);
        }
        if !request.also.is_empty() {
            return self.acquire_together(request, now);
        }
        let name = &request.resource.name;
        let is_lock = request.resource.kind == Kind::Lock;
        let entry = match self.names.entry(name.clone()) {
            MapEntry::Occupied(entry) if entry.get().expires >= now => entry.into_mut(),
            _ if request.count > 1 => return Ok(Attempt::Gone),
            vacant => {
                vacant.insert_entry(Entry::held(is_lock, request.owner, request.ttl, now));
                return Ok(self.grant(request, now));
            }
        };
        if entry.plain_owner(is_lock)? != request.owner {
            let gone = request.count > 1;
            return Ok(if gone { Attempt::Gone } else { Attempt::busy(entry.busy_ttl(now)) });
        }
        // A repeated `SET NX` does not refresh the TTL; the scripts of the lock do.
        if let Value::Lock { count, .. } = &mut entry.value {
            *count = request.count;
            entry.lengthen(request.ttl, now);
        }
        Ok(self.grant(request, now))
    }

    /// Acquires all locks of the request, or none.
    fn acquire_together(&mut self, request: &Acquire, now: u64) -> Result<Attempt> {
        let first = (request.resource.name.clone(), request.owner);
        let all: Vec<_> = std::iter::once(first).chain(request.also.iter().cloned()).collect();
        for (name, owner) in &all {
            let Some(entry) = self.living(name, now) else { continue };
            if entry.plain_owner(true)? != *owner {
                return Ok(Attempt::busy(entry.busy_ttl(now)));
            }
        }
        for (name, owner) in all {
            match self.living(&name, now) {
                Some(entry) => entry.lengthen(request.ttl, now),
                None => {
                    self.names.insert(name, Entry::held(true, owner, request.ttl, now));
                }
            }
        }
        Ok(Attempt::GRANTED)
    }

    fn hand_off_plain(&mut self, request: &Acquire, from: OwnerId, now: u64) -> Result<Attempt> {
        let name = &request.resource.name;
        let is_lock = request.resource.kind == Kind::Lock;
        let Some(entry) = self.living(name, now) else { return Ok(Attempt::Gone) };
        let Ok(owner) = entry.plain_owner(is_lock) else { return Ok(Attempt::Gone) };
        if owner == request.owner {
            entry.lengthen(request.ttl, now);
            return Ok(self.grant(request, now));
        }
        if owner != from {
            return Ok(Attempt::Gone);
        }
        *entry = Entry::held(is_lock, request.owner, request.ttl, now);
        Ok(self.grant(request, now))
    }

    pub(super) fn release_plain(&mut self, request: &Release, now: u64) -> Result<Released> {
        let name = &request.resource.name;
        let is_lock = request.resource.kind != Kind::Mutex;
        let Some(mut found) = self.entry(name, now) else { return absent(None) };
        let entry = found.get_mut();
        // The name is used for another kind, so this hold no longer exists. A release needs to know
        // no more.
        let Ok(owner) = entry.plain_owner(is_lock) else { return absent(None) };
        if owner != request.owner {
            return absent(Some(owner));
        }
        if request.keep == 0 {
            found.remove();
            self.wake_freed(name);
            return Ok(FREED);
        }
        // A repetition releases nothing and keeps the TTL, which may have been extended since.
        let mut fewer = false;
        if let Value::Lock { count, .. } = &mut entry.value {
            fewer = *count > request.keep;
            *count = request.keep.min(*count);
        }
        if let Some(ttl) = request.ttl.filter(|_| fewer || request.leave) {
            entry.expires = now + ttl;
        }
        Ok(Released::Kept)
    }

    pub(super) fn renew_plain(&mut self, request: &Renew, now: u64) -> Result<Renewed> {
        let Some(entry) = self.living(&request.resource.name, now) else {
            return Ok(Renewed::Gone);
        };
        let is_lock = request.resource.kind != Kind::Mutex;
        if entry.plain_owner(is_lock) != Ok(request.owner) {
            return Ok(Renewed::Taken);
        }
        let found = entry.ttl(now);
        if let Some(ttl) = request.ttl {
            entry.lengthen(ttl, now);
        }
        Ok(Renewed::Held(found))
    }

    pub(super) fn force_plain(&mut self, resource: &Resource, now: u64) -> Result<Vec<OwnerId>> {
        let Some(found) = self.entry(&resource.name, now) else { return Ok(Vec::new()) };
        let victim = found.get().plain_owner(resource.kind != Kind::Mutex)?;
        found.remove();
        self.wake_freed(&resource.name);
        Ok(vec![victim])
    }

    pub(super) fn inspect_plain(&mut self, resource: &Resource, now: u64) -> Result<LockInfo> {
        let Some(entry) = self.living(&resource.name, now) else {
            return Ok(LockInfo::new(resource));
        };
        let owner = entry.plain_owner(resource.kind != Kind::Mutex)?;
        let (ttl, count) = (entry.ttl(now), entry.hold_count());
        let holders = vec![self.holder(owner, count, false, now)];
        Ok(LockInfo { holders, ttl: Some(ttl), ..LockInfo::new(resource) })
    }
}

impl Entry {
    pub(super) fn held(is_lock: bool, owner: OwnerId, ttl: u64, now: u64) -> Self {
        let value = if is_lock { Value::Lock { owner, count: 1 } } else { Value::Mutex { owner } };
        Self { value, expires: now + ttl }
    }

    /// Returns the owner if the entry is a lock (or a mutex, if `is_lock` is false).
    pub(super) fn plain_owner(&self, is_lock: bool) -> Result<OwnerId> {
        match &self.value {
            Value::Lock { owner, .. } if is_lock => Ok(*owner),
            Value::Mutex { owner } if !is_lock => Ok(*owner),
            _ => Err(self.wrong_kind()),
        }
    }

    fn hold_count(&self) -> u32 {
        match &self.value {
            Value::Lock { count, .. } => *count,
            _ => 1,
        }
    }

    /// The TTL for a busy answer. `SET NX GET` returns the holder of a mutex, but not its TTL.
    fn busy_ttl(&self, now: u64) -> Option<Ttl> {
        matches!(self.value, Value::Lock { .. }).then(|| self.ttl(now))
    }
}

/// The answer to a release of a hold that does not exist.
pub(super) fn absent(holder: Option<OwnerId>) -> Result<Released> {
    Ok(Released::Absent { holder: holder.map(|id| id.to_string()) })
}
