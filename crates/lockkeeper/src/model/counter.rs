//! Counters without owners: the semaphore and the latch.

use super::*;
use crate::backend::CountChange;

/// The largest number that a Lua script counts exactly.
pub(crate) const COUNT_MAX: u64 = (1 << 53) - 1;

/// How long an answer is remembered.
pub(crate) const REMEMBERED: u64 = 60_000;

/// The answer to a request that must not run twice.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// The permits were acquired.
    Granted,
    /// The permits were acquired and released.
    GivenBack,
    /// The permits were not acquired and never will be.
    Cancelled,
    /// A change was answered.
    Changed(Changed),
}

/// Checks that a counter of this kind has such a request and that its numbers can be counted.
pub(crate) fn check_change(kind: Kind, change: CountChange) -> Result<()> {
    use CountChange::{Add, Create, Delete, Down, Drain, Resize};
    let numbers = match (kind, change) {
        (Kind::Latch, Create { count: 0, .. }) => {
            return Err(Fault::invalid("a latch counts from 1"));
        }
        (_, Create { ttl: Some(0), .. }) => return Err(Fault::invalid("it would end at once")),
        (Kind::Semaphore | Kind::Permits | Kind::Latch, Create { count, ttl }) => {
            [count, ttl.unwrap_or(0)]
        }
        (Kind::Semaphore | Kind::Permits, Add(count)) => [count.unsigned_abs(), 0],
        (Kind::Permits, Resize(count)) => [count, 0],
        (Kind::Semaphore, Drain) | (Kind::Latch, Down | Delete) => [0, 0],
        _ => return Err(unfit(kind)),
    };
    if numbers.iter().any(|number| *number > COUNT_MAX) { Err(too_many()) } else { Ok(()) }
}

pub(super) fn unset() -> Fault {
    Fault::invalid("the semaphore has no permits set: call try_set_permits first")
}

pub(super) fn too_many() -> Fault {
    Fault::invalid("more than can be counted: 2^53 - 1")
}

pub(super) fn countable(number: i64) -> Result<i64> {
    if number.unsigned_abs() <= COUNT_MAX { Ok(number) } else { Err(too_many()) }
}

pub(super) const ABSENT: Released = Released::Absent { holder: None };

pub(super) const FREED: Released = Released::Freed { listeners: Some(0) };

impl State {
    /// Returns the value of a counter, `None` if there is none.
    pub(super) fn number(&mut self, name: &LockName, now: u64) -> Result<Option<i64>> {
        match self.living(name, now) {
            None => Ok(None),
            Some(Entry { value: Value::Number(number), .. }) if countable(*number).is_ok() => {
                Ok(Some(*number))
            }
            Some(entry) => Err(entry.wrong_kind()),
        }
    }

    /// Changes the value of a counter without its TTL.
    pub(super) fn add(&mut self, name: &LockName, by: i64) {
        if let Some(Entry { value: Value::Number(number), .. }) = self.names.get_mut(name) {
            *number += by;
        }
    }

    pub(super) fn create(&mut self, name: &LockName, count: u64, ttl: Option<u64>, now: u64) {
        let value = Value::Number(i64::try_from(count).unwrap_or(i64::MAX));
        let expires = ttl.map_or(NEVER, |ttl| now + ttl);
        self.names.insert(name.clone(), Entry { value, expires });
    }

    fn recall(&self, name: &LockName, id: OwnerId, now: u64) -> Option<Reply> {
        let (reply, at) = self.replies.get(&(name.clone(), id))?;
        (at + REMEMBERED >= now).then_some(*reply)
    }

    fn remember(&mut self, name: &LockName, id: OwnerId, reply: Reply, now: u64) {
        self.sweep(now);
        self.replies.insert((name.clone(), id), (reply, now));
    }

    /// Copies the answer to a request, if `other` remembers it.
    #[cfg(feature = "file")]
    pub(crate) fn copy_reply(&mut self, name: &LockName, id: OwnerId, other: &State, now: u64) {
        if let Some(reply) = other.recall(name, id, now) {
            self.remember(name, id, reply, now);
        }
    }

    /// Runs a change and remembers its answer. A repetition gets the remembered answer.
    pub(super) fn change_once(
        &mut self,
        (name, id): (&LockName, OwnerId),
        now: u64,
        change: impl FnOnce(&mut Self) -> Result<Changed>,
    ) -> Result<Changed> {
        match self.recall(name, id, now) {
            Some(Reply::Changed(changed)) => return Ok(changed),
            Some(other) => {
                let detail = format!("unexpected answer: {other:?}").into();
                return Err(Fault::Server { detail });
            }
            None => {}
        }
        let changed = change(self)?;
        self.remember(name, id, Reply::Changed(changed), now);
        Ok(changed)
    }

    /// Notifies waiters of the number of free permits, if there are any.
    pub(super) fn wake_free(&mut self, name: &LockName, free: i64) {
        if free > 0 {
            self.wake(Topic::Permits(name.clone()), free.to_string().into_bytes());
        }
    }

    pub(super) fn acquire_counter(&mut self, request: &Acquire, now: u64) -> Result<Attempt> {
        let (name, id, count) = (&request.resource.name, request.owner, i64::from(request.count));
        match self.recall(name, id, now) {
            Some(Reply::Granted) => return Ok(Attempt::GRANTED),
            Some(_) => return Ok(Attempt::Gone),
            None => {}
        }
        if self.number(name, now)?.ok_or_else(unset)? < count {
            return Ok(Attempt::busy(None));
        }
        self.remember(name, id, Reply::Granted, now);
        self.add(name, -count);
        Ok(Attempt::GRANTED)
    }

    pub(super) fn release_counter(&mut self, request: &Release, now: u64) -> Result<Released> {
        let (name, id, count) = (&request.resource.name, request.owner, i64::from(request.count));
        let granted = match self.recall(name, id, now) {
            Some(Reply::GivenBack) => return Ok(FREED),
            Some(Reply::Granted) => true,
            Some(_) => return Ok(ABSENT),
            None => !request.undo,
        };
        let free = match self.number(name, now) {
            // The name is used for another kind: there is nothing to release to.
            Err(_) if granted => return Ok(ABSENT),
            free => free.ok().flatten().filter(|_| granted),
        };
        let Some(free) = free else {
            // Nothing was granted, or the semaphore no longer exists. A late repetition must
            // neither acquire from a new semaphore of this name nor release to it.
            self.remember(name, id, Reply::Cancelled, now);
            return Ok(ABSENT);
        };
        let total = countable(free + count)?;
        self.remember(name, id, Reply::GivenBack, now);
        self.add(name, count);
        self.wake_free(name, total);
        Ok(FREED)
    }

    pub(super) fn change_semaphore(
        &mut self,
        name: &LockName,
        change: CountChange,
        now: u64,
    ) -> Result<Changed> {
        let free = self.number(name, now)?;
        if let CountChange::Create { count, ttl } = change {
            if free.is_some() {
                return Ok(Changed::Nothing);
            }
            self.create(name, count, ttl, now);
            self.wake_free(name, count as i64);
            return Ok(Changed::Done);
        }
        let free = free.ok_or_else(unset)?;
        let CountChange::Add(added) = change else {
            // A negative number of free permits cannot be acquired and stays.
            let drained = free.max(0);
            self.add(name, -drained);
            return Ok(Changed::Count(drained));
        };
        let total = countable(free + added)?;
        self.add(name, added);
        if added > 0 {
            self.wake_free(name, total);
        }
        Ok(Changed::Count(total))
    }

    pub(super) fn change_latch(
        &mut self,
        name: &LockName,
        change: CountChange,
        now: u64,
    ) -> Result<Changed> {
        let topic = Topic::Latch(name.clone());
        Ok(match (change, self.number(name, now)?) {
            // A latch at zero is open and may be created again.
            (CountChange::Create { count, ttl }, None | Some(..=0)) => {
                self.create(name, count, ttl, now);
                self.wake(topic, b"1");
                Changed::Done
            }
            (CountChange::Down, None) => Changed::Count(0),
            (CountChange::Down, Some(count @ 2..)) => {
                self.add(name, -1);
                Changed::Count(count - 1)
            }
            (CountChange::Down, Some(_)) => {
                self.names.remove(name);
                self.wake(topic, b"0");
                Changed::Count(0)
            }
            // Redisson publishes `1` here, and its waiters would keep sleeping.
            (CountChange::Delete, Some(_)) => {
                self.names.remove(name);
                self.wake(topic, b"0");
                Changed::Done
            }
            _ => Changed::Nothing,
        })
    }

    pub(super) fn inspect_counter(&mut self, resource: &Resource, now: u64) -> Result<LockInfo> {
        let count = self.number(&resource.name, now)?;
        let ttl = self.living(&resource.name, now).map(|entry| entry.ttl(now));
        Ok(LockInfo { ttl, count, ..LockInfo::new(resource) })
    }
}
