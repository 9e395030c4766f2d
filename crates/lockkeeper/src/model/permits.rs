//! The permit semaphore: permits with ids and ends.

use super::counter::{ABSENT, COUNT_MAX, FREED, countable, too_many, unset};
use super::*;
use crate::PermitId;
use crate::backend::{CountChange, PermitChange};

/// The expiry of a permit that never expires, as Redisson writes it.
pub(crate) const ENDLESS: u64 = 922_337_203_685_477;

/// How many expired permits one request sweeps.
const SWEPT_MAX: usize = 100;

/// The maximum number of permits in one request, which blocks the store while it runs.
const TAKEN_MAX: u32 = 10_000;

/// The acquired permits with their expiry. A permit has expired when its expiry is `now`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Taken {
    pub(super) ends: HashMap<PermitId, u64>,
    pub(super) expires: u64,
    /// The semaphore was created by an acquire: it expires with its last permit, and is deleted
    /// when the last one is released.
    pub(super) temporary: bool,
}

impl Taken {
    pub(super) fn is_alive(&self, now: u64) -> bool {
        self.expires >= now && !self.ends.is_empty()
    }

    /// Returns the permits that have not expired, each with its expiry.
    pub(super) fn living(&self, now: u64) -> impl Iterator<Item = (PermitId, u64)> {
        self.ends.iter().filter(move |(_, end)| **end > now).map(|(id, end)| (*id, *end))
    }
}

/// The stored state of some permits.
struct Look {
    /// How many exist, expired ones included.
    present: usize,
    /// The first expiry, if all exist and none has expired.
    first_end: Option<u64>,
}

/// Checks that one request may acquire so many permits.
pub(crate) fn check_count(count: u32) -> Result<()> {
    match count {
        0 => Err(Fault::invalid("no permits")),
        1..=TAKEN_MAX => Ok(()),
        _ => Err(Fault::invalid("more permits than one request may take: 10000")),
    }
}

/// Checks a request to acquire permits.
pub(crate) fn check_acquire(request: &Acquire) -> Result<()> {
    match request.temporary {
        Some(limit) if limit > COUNT_MAX => Err(too_many()),
        _ => check_count(request.count),
    }
}

/// Removes duplicate ids. There must be at least one.
pub(crate) fn distinct(ids: &[PermitId]) -> Result<Vec<PermitId>> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    check_count(u32::try_from(ids.len()).unwrap_or(u32::MAX)).map(|()| ids)
}

fn end(ttl: u64, now: u64) -> u64 {
    now.saturating_add(ttl).min(ENDLESS)
}

pub(super) fn left(end: u64, now: u64) -> Ttl {
    if end >= ENDLESS { Ttl::Forever } else { Ttl::millis(end - now) }
}

impl State {
    fn ends(&mut self, name: &LockName, now: u64) -> Option<&mut HashMap<PermitId, u64>> {
        self.permits.get_mut(name).filter(|taken| taken.is_alive(now)).map(|taken| &mut taken.ends)
    }

    fn look(&mut self, name: &LockName, ids: &[PermitId], now: u64) -> Look {
        let Some(ends) = self.ends(name, now) else { return Look { present: 0, first_end: None } };
        let found: Vec<_> = ids.iter().filter_map(|id| ends.get(id).copied()).collect();
        let first_end = found.iter().min().copied();
        let first_end = first_end.filter(|end| *end > now && found.len() == ids.len());
        Look { present: found.len(), first_end }
    }

    /// Changes the expiry of permits, for a renewal or a new lease.
    fn set_ends(&mut self, name: &LockName, ids: &[PermitId], now: u64, end: impl Fn(u64) -> u64) {
        let Some(ends) = self.ends(name, now) else { return };
        ids.iter().for_each(|id| {
            ends.entry(*id).and_modify(|old| *old = end(*old));
        });
    }

    fn remove(&mut self, name: &LockName, ids: &[PermitId], now: u64) -> i64 {
        let Some(ends) = self.ends(name, now) else { return 0 };
        ids.iter().filter(|id| ends.remove(id).is_some()).count() as i64
    }

    fn is_temporary(&self, name: &LockName, now: u64) -> bool {
        self.permits.get(name).is_some_and(|taken| taken.temporary && taken.expires >= now)
    }

    /// Removes an empty table of permits, and makes a temporary semaphore expire with its last
    /// permit. Must be called last.
    fn tidy(&mut self, name: &LockName, now: u64) {
        let temporary = self.is_temporary(name, now);
        let Some(taken) = self.permits.get_mut(name) else { return };
        let last = taken.ends.values().max().filter(|end| !temporary || **end > now);
        match last.copied() {
            None => {
                self.permits.remove(name);
                if temporary {
                    self.names.remove(name);
                }
            }
            Some(end) if temporary => {
                taken.expires = end;
                if let Some(entry) = self.names.get_mut(name) {
                    entry.expires = end;
                }
            }
            Some(_) => {}
        }
    }

    /// Sweeps expired permits and returns their number. Without a semaphore they count for nothing.
    fn expire(&mut self, name: &LockName, wanted: u32, now: u64) -> Result<i64> {
        if self.number(name, now)?.is_none() {
            return Ok(0);
        }
        let Some(ends) = self.ends(name, now) else { return Ok(0) };
        let ended = ends.iter().filter(|(_, end)| **end <= now);
        let mut ended: Vec<_> = ended.map(|(id, end)| (*end, *id)).collect();
        ended.sort_unstable();
        let ended: Vec<_> =
            ended.into_iter().take(SWEPT_MAX.max(wanted as usize)).map(|(_, id)| id).collect();
        Ok(self.remove(name, &ended, now))
    }

    /// Adds free permits if the semaphore exists, and notifies waiters of their number.
    fn give(&mut self, name: &LockName, by: i64, now: u64) -> Result<()> {
        let Some(free) = self.number(name, now)?.filter(|_| by != 0) else { return Ok(()) };
        self.add(name, by);
        if by > 0 {
            self.wake_free(name, free + by);
        }
        Ok(())
    }

    pub(super) fn acquire_permits(&mut self, request: &Acquire, now: u64) -> Result<Attempt> {
        let attempt = self.try_acquire_permits(request, now);
        self.tidy(&request.resource.name, now);
        attempt
    }

    fn try_acquire_permits(&mut self, request: &Acquire, now: u64) -> Result<Attempt> {
        check_acquire(request)?;
        let name = &request.resource.name;
        let ids: Vec<_> = PermitId::of(request.owner, request.count).collect();
        let (free, end) = (self.number(name, now)?, end(request.ttl, now));
        let look = self.look(name, &ids, now);
        if look.present == 0 && free.is_none() {
            let limit = request.temporary.ok_or_else(unset)?;
            if limit < u64::from(request.count) {
                return Ok(Attempt::busy(None));
            }
            self.create(name, limit - u64::from(request.count), Some(request.ttl), now);
            let ends = ids.into_iter().map(|id| (id, end)).collect();
            self.permits.insert(name.clone(), Taken { ends, expires: end, temporary: true });
            return Ok(Attempt::GRANTED);
        }
        // The sum of free and acquired permits does not depend on the sweep of expired ones.
        let most = free.unwrap_or(0) + self.ends(name, now).map_or(0, |ends| ends.len() as i64);
        let added = match request.temporary.filter(|_| self.is_temporary(name, now)) {
            Some(limit) => i64::try_from(limit).unwrap_or(i64::MAX) - most,
            None => 0,
        };
        let ended = self.expire(name, request.count, now)?;
        if look.first_end.is_some() {
            self.set_ends(name, &ids, now, |old| old.max(end));
            self.give(name, ended, now)?;
            return Ok(Attempt::GRANTED);
        }
        // Some were released or have expired since: the request is late.
        if look.present > 0 {
            self.give(name, ended, now)?;
            return Ok(Attempt::Gone);
        }
        let (free, count) = (free.unwrap_or(0) + ended, i64::from(request.count));
        if free + added < count {
            let next = self.ends(name, now).and_then(|ends| ends.values().min().copied());
            let next = next.filter(|end| *end < ENDLESS);
            let wait = next.map(|end| Ttl::millis(end.saturating_sub(now).max(1)));
            self.give(name, ended, now)?;
            return Ok(Attempt::busy(wait));
        }
        self.add(name, ended + added - count);
        let expires = self.living(name, now).map_or(NEVER, |entry| entry.expires);
        if self.ends(name, now).is_none() {
            let temporary = self.is_temporary(name, now);
            let taken = Taken { ends: HashMap::default(), expires, temporary };
            self.permits.insert(name.clone(), taken);
        }
        if let Some(taken) = self.permits.get_mut(name) {
            taken.ends.extend(ids.into_iter().map(|id| (id, end)));
            // They must not expire before the semaphore: it would lose the acquired permits
            // forever.
            taken.expires = match (taken.expires, expires) {
                (NEVER, expires) => expires,
                (old, expires) => old.max(expires),
            };
        }
        if ended > 0 || added > 0 {
            self.wake_free(name, free + added - count);
        }
        Ok(Attempt::GRANTED)
    }

    pub(super) fn release_permits(&mut self, request: &Release, now: u64) -> Result<Released> {
        let (name, stays) = (&request.resource.name, request.keep > 0);
        let lease = match (stays, request.ttl) {
            (true, None) => return Err(unfit(request.resource.kind)),
            (true, ttl) => ttl,
            (false, _) => None,
        };
        check_count(request.count)?;
        let ids: Vec<_> = PermitId::of(request.owner, request.count).collect();
        match self.settle_permits(name, &ids, lease, stays, now) {
            // The name is used for another kind, so this hold no longer exists.
            Err(Fault::WrongKind { .. }) => Ok(ABSENT),
            released => released,
        }
    }

    /// Releases permits or, with a lease, sets their expiry. With `all`, either all given permits
    /// exist and have not expired, or nothing changes.
    fn settle_permits(
        &mut self,
        name: &LockName,
        ids: &[PermitId],
        lease: Option<u64>,
        all: bool,
        now: u64,
    ) -> Result<Released> {
        self.number(name, now)?;
        let look = self.look(name, ids, now);
        let fits = if all { look.first_end.is_some() } else { look.present > 0 };
        // Before the sweep, so that permits that have just expired count as released by their
        // owner.
        let (released, given) = match lease {
            _ if !fits => (ABSENT, 0),
            Some(lease) => {
                self.set_ends(name, ids, now, |_| end(lease, now));
                (Released::Kept, 0)
            }
            None => (FREED, self.remove(name, ids, now)),
        };
        let ended = self.expire(name, 0, now)?;
        self.give(name, given + ended, now)?;
        self.tidy(name, now);
        Ok(released)
    }

    pub(super) fn renew_permits(&mut self, request: &Renew, now: u64) -> Result<Renewed> {
        let name = &request.resource.name;
        let ids: Vec<_> = PermitId::of(request.owner, request.count).collect();
        let found = self.look(name, &ids, now).first_end;
        let ended = self.expire(name, 0, now)?;
        self.give(name, ended, now)?;
        if let Some(ttl) = request.ttl.filter(|_| found.is_some()) {
            self.set_ends(name, &ids, now, |old| old.max(end(ttl, now)));
        }
        self.tidy(name, now);
        Ok(found.map_or(Renewed::Gone, |found| Renewed::Held(left(found, now))))
    }

    /// Changes the number of permits.
    pub(super) fn resize(
        &mut self,
        name: &LockName,
        change: CountChange,
        now: u64,
    ) -> Result<Changed> {
        let Some(free) = self.number(name, now)? else {
            let (count, ttl) = match change {
                CountChange::Create { count, ttl } => (count, ttl),
                CountChange::Resize(count) => (count, None),
                _ => return Err(unset()),
            };
            // Permits of an earlier semaphore of this name do not belong to this one.
            self.permits.remove(name);
            self.create(name, count, ttl, now);
            self.wake_free(name, count as i64);
            return Ok(Changed::Done);
        };
        let most = free + self.ends(name, now).map_or(0, |ends| ends.len() as i64);
        let added = match change {
            CountChange::Add(added) => added,
            CountChange::Resize(count) => count as i64 - most,
            _ => return Ok(Changed::Nothing),
        };
        countable(added)?;
        countable(most + added)?;
        countable(free + added)?;
        let by = self.expire(name, 0, now)? + added;
        self.give(name, by, now)?;
        if let (CountChange::Resize(_), true) = (change, self.is_temporary(name, now)) {
            self.make_lasting(name);
        }
        self.tidy(name, now);
        Ok(match change {
            CountChange::Add(_) => Changed::Count(free + by),
            _ => Changed::Done,
        })
    }

    fn make_lasting(&mut self, name: &LockName) {
        if let Some(taken) = self.permits.get_mut(name) {
            (taken.temporary, taken.expires) = (false, NEVER);
        }
        if let Some(entry) = self.names.get_mut(name) {
            entry.expires = NEVER;
        }
    }

    pub(super) fn change_by_id(
        &mut self,
        resource: &Resource,
        id: OwnerId,
        ids: &[PermitId],
        change: PermitChange,
        now: u64,
    ) -> Result<Changed> {
        if resource.kind != Kind::Permits {
            return Err(unfit(resource.kind));
        }
        let lease = match change {
            PermitChange::Release => None,
            PermitChange::Lease(lease) => Some(lease),
        };
        let ids = distinct(ids)?;
        self.change_once((&resource.name, id), now, |state| {
            let released = state.settle_permits(&resource.name, &ids, lease, true, now)?;
            Ok(if released == ABSENT { Changed::Nothing } else { Changed::Done })
        })
    }

    pub(super) fn inspect_permits(&mut self, resource: &Resource, now: u64) -> Result<LockInfo> {
        let mut lock = self.inspect_counter(resource, now)?;
        lock.temporary = lock.count.is_some() && self.is_temporary(&resource.name, now);
        if let Some(ends) = self.ends(&resource.name, now) {
            let ended = ends.values().filter(|end| **end <= now).count();
            lock.taken = (ends.len() - ended) as u64;
            lock.count = lock.count.map(|free| free + ended as i64);
        }
        Ok(lock)
    }
}
