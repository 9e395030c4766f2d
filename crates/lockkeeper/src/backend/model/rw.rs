//! The read/write lock.

use super::counter::FREED;
use super::lock::absent;
use super::*;

/// The holders of a read/write lock. Readers beside a writer are nested in its hold.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Holds {
    writer: Option<(OwnerId, u32)>,
    /// The expiry of the writer's own lease, if nested readers make the lock expire later.
    #[cfg_attr(feature = "file", serde(default, skip_serializing_if = "Option::is_none"))]
    write_ends: Option<u64>,
    /// In the order of arrival; expired readers stay until a writer removes them.
    readers: Vec<Reader>,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
struct Reader {
    owner: OwnerId,
    count: u32,
    /// The expiry of its own lease; the lock expires no earlier.
    until: u64,
}

/// The waiting writers of a read/write lock; never empty.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Writers {
    /// Each with the time of its last request.
    waiting: Vec<(OwnerId, u64)>,
    pub(super) expires: u64,
}

/// How long readers have waited for writers.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "file", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Patience {
    /// Since when a reader waits.
    since: Option<u64>,
    /// Until when writers let readers go first.
    turn: Option<u64>,
    /// Readers preceded waiting writers, and no writer has acquired the lock since.
    batch: bool,
    pub(super) expires: u64,
}

/// How long a writer counts as waiting after its last request.
const WAITS: u64 = 2_000;

/// The maximum number of recorded waiting writers, which bounds the size of the state.
const ENOUGH: usize = 16;

/// How long readers wait for writers before it is their turn.
const PATIENCE: u64 = 5_000;

/// How long writers let readers go first; renewed while a reader waits.
const TURN: u64 = 2_500;

/// For how long further readers may follow the first.
const BATCH: u64 = 250;

/// How long waiting readers are remembered after their last request.
const REMEMBERED: u64 = 10_000;

/// Two TTLs closer than this may have been set by one script.
const SLACK: u64 = 2;

impl Writers {
    pub(super) fn is_alive(&self, now: u64) -> bool {
        self.expires >= now
    }

    /// Whether enough other writers keep readers out, so that this one need not be recorded.
    fn suffice_without(&self, owner: OwnerId, now: u64) -> bool {
        let heard = |(_, heard): &&(OwnerId, u64)| heard + WAITS >= now;
        self.waiting.iter().filter(heard).count() >= ENOUGH
            && self.waiting.iter().all(|(waiting, _)| *waiting != owner)
    }
}

impl Patience {
    pub(super) fn is_alive(&self, now: u64) -> bool {
        self.expires >= now
    }

    /// Whether a reader waits.
    #[cfg(feature = "file")]
    pub(super) fn is_awaited(&self, now: u64) -> bool {
        self.is_alive(now) && (self.since.is_some() || self.turn.is_some_and(|turn| turn > now))
    }
}

impl Holds {
    fn reader(&mut self, owner: OwnerId) -> Option<&mut Reader> {
        self.readers.iter_mut().find(|reader| reader.owner == owner)
    }

    pub(super) fn is_written(&self) -> bool {
        self.writer.is_some()
    }

    fn is_written_by(&self, owner: OwnerId) -> bool {
        self.writer.is_some_and(|(writer, _)| writer == owner)
    }

    /// Returns all holders, the writer first.
    pub(super) fn owners(&self) -> impl Iterator<Item = OwnerId> {
        let writer = self.writer.map(|(writer, _)| writer);
        writer.into_iter().chain(self.readers.iter().map(|reader| reader.owner))
    }

    /// Returns the latest expiry of the readers that have not expired, if there are any.
    fn longest(&self, now: u64) -> Option<u64> {
        self.readers.iter().map(|reader| reader.until).filter(|until| *until >= now).max()
    }

    /// Like `longest`, but removes expired readers, as only writers do.
    fn bury(&mut self, now: u64) -> Option<u64> {
        self.readers.retain(|reader| reader.until >= now);
        self.longest(now)
    }

    /// Whether the writer's lease has expired before the leases of its readers.
    fn is_write_over(&self, now: u64) -> bool {
        self.write_ends.is_some_and(|ends| ends < now)
    }

    /// Extends the lock for a reader until then, but not the lease of the writer.
    fn lengthen(&mut self, until: u64, expires: &mut u64) {
        if self.writer.is_some() && until > *expires {
            self.write_ends.get_or_insert(*expires);
        }
        *expires = until.max(*expires);
    }

    /// Extends the writer's own lease until then.
    fn lengthen_write(&mut self, until: u64, expires: &mut u64) {
        self.write_ends = self.write_ends.map(|ends| ends.max(until));
        *expires = until.max(*expires);
    }

    /// Grants the write lock until then. The lock expires with its last reader if that is later.
    fn write(&mut self, writer: (OwnerId, u32), until: u64, expires: &mut u64, now: u64) {
        *expires = until.max(self.bury(now).unwrap_or(0));
        self.write_ends = Some(until).filter(|until| until < expires);
        self.writer = Some(writer);
    }

    /// Removes the writer. Returns when the lock expires by its readers, if any are left.
    fn end_write(&mut self, now: u64) -> Option<u64> {
        (self.writer, self.write_ends) = (None, None);
        self.bury(now)
    }

    /// Returns one holder, the writer first.
    fn any(&self) -> Option<OwnerId> {
        self.owners().next()
    }
}

impl Entry {
    /// Returns the holds and the expiry of the lock.
    fn rw(&mut self) -> Result<(&mut Holds, &mut u64), Fault> {
        match &mut self.value {
            Value::Rw(holds) => Ok((holds, &mut self.expires)),
            other => Err(other.wrong_kind()),
        }
    }

    fn rw_free() -> Self {
        Self { value: Value::Rw(Box::default()), expires: 0 }
    }
}

impl State {
    /// Removes a writer whose lease has expired before the leases of its readers.
    pub(super) fn settle_rw(&mut self, name: &LockName, now: u64) {
        let Some(mut place) = self.place(name, now) else { return };
        let Ok((holds, expires)) = place.get_mut().rw() else { return };
        if holds.is_write_over(now) {
            match holds.end_write(now) {
                Some(longest) => *expires = longest,
                None => drop(place.remove()),
            }
        }
    }

    pub(super) fn acquire_rw(&mut self, request: &Acquire, now: u64) -> Result<Attempt, Fault> {
        self.settle_rw(&request.resource.name, now);
        match (request.resource.kind, request.from) {
            (kind, _) if !request.also.is_empty() => Err(unfit(kind)),
            (Kind::Read, Some(_)) => Err(unfit(Kind::Read)),
            (Kind::Read, None) => self.acquire_read(request, now),
            (_, Some(from)) => Ok(self.hand_write_over(request, from, now)),
            (_, None) => self.acquire_write(request, now),
        }
    }

    fn acquire_read(&mut self, request: &Acquire, now: u64) -> Result<Attempt, Fault> {
        let name = &request.resource.name;
        let until = now + request.ttl;
        if let Some(entry) = self.living(name, now) {
            let left = entry.ttl(now);
            let (holds, expires) = entry.rw()?;
            if let Some(reader) = holds.reader(request.owner) {
                if reader.until < now && request.count > 1 {
                    return Ok(Attempt::Gone);
                }
                (reader.count, reader.until) = (request.count, reader.until.max(until));
                let until = reader.until;
                holds.lengthen(until, expires);
                return Ok(Attempt::GRANTED);
            }
            let nested = request.beside.is_some_and(|writer| holds.is_written_by(writer));
            let written = holds.writer.is_some();
            if written && !nested && request.count == 1 {
                let left = holds.write_ends.map_or(left, |ends| Ttl::Millis(ends - now));
                let out = self.stays_out(name, Some(left), request.waits, now);
                return Ok(Attempt::Busy(out));
            }
        }
        if request.count > 1 {
            return Ok(Attempt::Gone);
        }
        if request.beside.is_none()
            && let Some(out) = self.stays_out(name, None, request.waits, now)
        {
            return Ok(Attempt::Busy(Some(out)));
        }
        let entry = self.names.entry(name.clone()).or_insert_with(Entry::rw_free);
        let (holds, expires) = entry.rw()?;
        holds.readers.push(Reader { owner: request.owner, count: 1, until });
        holds.lengthen(until, expires);
        Ok(Attempt::GRANTED)
    }

    fn acquire_write(&mut self, request: &Acquire, now: u64) -> Result<Attempt, Fault> {
        let (name, owner) = (&request.resource.name, request.owner);
        let until = now + request.ttl;
        if let Some(entry) = self.living(name, now) {
            let left = entry.ttl(now);
            let (holds, expires) = entry.rw()?;
            if holds.is_written_by(owner) {
                holds.writer = Some((owner, request.count));
                holds.lengthen_write(until, expires);
                let token = request.fenced.map(|fenced| match request.count {
                    1 => self.reissue(name, fenced, now),
                    _ => self.issue(name, fenced, now),
                });
                return Ok(Attempt::Granted { token });
            }
            if request.count > 1 {
                return Ok(Attempt::Gone);
            }
            let mut busy = holds.writer.is_some();
            if !busy {
                holds.bury(now);
                busy = holds.readers.iter().any(|reader| Some(reader.owner) != request.beside);
            }
            if busy {
                if request.waits {
                    self.wait(name, owner, now);
                }
                return Ok(Attempt::Busy(Some(left)));
            }
        }
        if request.count > 1 {
            return Ok(Attempt::Gone);
        }
        if !self.names.contains_key(name)
            && request.beside.is_none()
            && let Some(turn) = self.readers_turn(name, now)
        {
            if request.waits {
                self.wait(name, owner, now);
            }
            return Ok(Attempt::Busy(Some(Ttl::Millis(turn - now))));
        }
        let entry = self.names.entry(name.clone()).or_insert_with(Entry::rw_free);
        let (holds, expires) = entry.rw()?;
        holds.write((owner, 1), until, expires, now);
        self.written_at_last(name, owner, now);
        let token = request.fenced.map(|fenced| self.issue(name, fenced, now));
        Ok(Attempt::Granted { token })
    }

    fn hand_write_over(&mut self, request: &Acquire, from: OwnerId, now: u64) -> Attempt {
        let (name, owner) = (&request.resource.name, request.owner);
        let until = now + request.ttl;
        let Some(entry) = self.living(name, now) else { return Attempt::Gone };
        let Ok((holds, expires)) = entry.rw() else { return Attempt::Gone };
        if holds.is_written_by(owner) {
            holds.lengthen_write(until, expires);
            let token = request.fenced.map(|fenced| self.reissue(name, fenced, now));
            return Attempt::Granted { token };
        }
        if !holds.is_written_by(from) {
            return Attempt::Gone;
        }
        if holds.bury(now).is_some() {
            *expires = holds.end_write(now).unwrap_or(0);
            let left = entry.ttl(now);
            self.wake_written(name);
            return Attempt::Busy(Some(left));
        }
        if let Some(turn) = self.readers_turn(name, now) {
            self.names.remove(name);
            self.wake_written(name);
            return Attempt::Busy(Some(Ttl::Millis(turn - now)));
        }
        let Some(Ok((holds, expires))) = self.living(name, now).map(Entry::rw) else {
            return Attempt::Gone;
        };
        holds.write((owner, 1), until, expires, now);
        self.written_at_last(name, owner, now);
        let token = request.fenced.map(|fenced| self.issue(name, fenced, now));
        Attempt::Granted { token }
    }

    pub(super) fn release_rw(&mut self, request: &Release, now: u64) -> Result<Released, Fault> {
        self.settle_rw(&request.resource.name, now);
        match request.resource.kind {
            Kind::Read => self.release_read(request, now),
            _ => self.release_write(request, now),
        }
    }

    fn release_read(&mut self, request: &Release, now: u64) -> Result<Released, Fault> {
        let name = &request.resource.name;
        let Some(mut place) = self.place(name, now) else { return absent(None) };
        let Ok((holds, expires)) = place.get_mut().rw() else { return absent(None) };
        let shared = holds.writer.is_none();
        let Some(reader) = holds.reader(request.owner) else {
            return absent(holds.any());
        };
        // The lock expires with its last reader, so the expiry of another holder stays.
        let last = shared && reader.until.saturating_add(SLACK) >= *expires;
        if request.keep > 0 {
            if reader.until < now {
                return absent(None);
            }
            let fewer = reader.count > request.keep;
            reader.count = request.keep.min(reader.count);
            if let Some(ttl) = request.ttl.filter(|_| fewer || request.leave) {
                reader.until = now + ttl;
                let until = reader.until;
                if last {
                    *expires = holds.longest(now).unwrap_or(0);
                }
                holds.lengthen(until, expires);
            }
            return Ok(Released::Kept);
        }
        holds.readers.retain(|reader| reader.owner != request.owner);
        if let Some(ends) = holds.write_ends {
            // This reader may have made the lock outlast the writer, which is no longer needed.
            let longest = holds.longest(now).unwrap_or(0);
            *expires = ends.max(longest);
            holds.write_ends = Some(ends).filter(|ends| *ends < longest);
        }
        if !shared || !last && !holds.readers.is_empty() {
            return Ok(FREED);
        }
        if let Some(longest) = holds.longest(now) {
            *expires = longest;
            return Ok(FREED);
        }
        place.remove();
        self.wake(Topic::Rw(name.clone()), b"0");
        Ok(FREED)
    }

    fn release_write(&mut self, request: &Release, now: u64) -> Result<Released, Fault> {
        let name = &request.resource.name;
        let gave_up = self.withdraw(name, request.owner, now);
        let (released, written) = self.end_write(request, now);
        // Readers need no longer wait, unless a writer holds the lock.
        if released == Ok(FREED) || gave_up && !written {
            self.wake_written(name);
        }
        released
    }

    /// Releases a write lock. Returns also whether a writer holds it then.
    fn end_write(&mut self, request: &Release, now: u64) -> (Result<Released, Fault>, bool) {
        let Some(mut place) = self.place(&request.resource.name, now) else {
            return (absent(None), false);
        };
        let Ok((holds, expires)) = place.get_mut().rw() else { return (absent(None), false) };
        let Some((_, count)) = holds.writer.as_mut().filter(|(id, _)| *id == request.owner) else {
            return (absent(holds.any()), holds.is_written());
        };
        if request.keep > 0 {
            let fewer = *count > request.keep;
            *count = request.keep.min(*count);
            let writer = (request.owner, *count);
            if let Some(ttl) = request.ttl.filter(|_| fewer || request.leave) {
                // The leases of nested readers stay.
                holds.write(writer, now + ttl, expires, now);
            }
            return (Ok(Released::Kept), true);
        }
        match holds.end_write(now) {
            Some(longest) => *expires = longest,
            None => drop(place.remove()),
        }
        (Ok(FREED), false)
    }

    pub(super) fn renew_rw(&mut self, request: &Renew, now: u64) -> Result<Renewed, Fault> {
        match request.resource.kind {
            Kind::Read => self.renew_read(request, now),
            _ => self.renew_write(request, now),
        }
    }

    fn renew_read(&mut self, request: &Renew, now: u64) -> Result<Renewed, Fault> {
        self.settle_rw(&request.resource.name, now);
        let Some(entry) = self.living(&request.resource.name, now) else {
            return Ok(Renewed::Gone);
        };
        let Ok((holds, expires)) = entry.rw() else { return Ok(Renewed::Taken) };
        // Other readers do not conflict with this hold.
        let shared = holds.writer.is_none();
        match holds.reader(request.owner) {
            Some(reader) if reader.until >= now => {
                let found = Ttl::Millis(reader.until - now);
                reader.until = reader.until.max(now + request.ttl.unwrap_or(0));
                let until = reader.until;
                holds.lengthen(until, expires);
                Ok(Renewed::Held(found))
            }
            None if !shared => Ok(Renewed::Taken),
            _ => Ok(Renewed::Gone),
        }
    }

    /// Removes no expired holder: on Redis this request may not touch the keys of readers.
    fn renew_write(&mut self, request: &Renew, now: u64) -> Result<Renewed, Fault> {
        let Some(entry) = self.living(&request.resource.name, now) else {
            return Ok(Renewed::Gone);
        };
        let left = entry.ttl(now);
        let Ok((holds, expires)) = entry.rw() else { return Ok(Renewed::Taken) };
        match (holds.is_write_over(now), holds.longest(now)) {
            (true, None) => Ok(Renewed::Gone),
            (false, _) if holds.is_written_by(request.owner) => {
                let found = holds.write_ends.map_or(left, |ends| Ttl::Millis(ends - now));
                holds.lengthen_write(now + request.ttl.unwrap_or(0), expires);
                Ok(Renewed::Held(found))
            }
            _ => Ok(Renewed::Taken),
        }
    }

    pub(super) fn force_rw(
        &mut self,
        resource: &Resource,
        reason: &str,
        now: u64,
    ) -> Result<Changed, Fault> {
        self.settle_rw(&resource.name, now);
        let Some(mut place) = self.place(&resource.name, now) else { return Ok(Changed::Nothing) };
        let (holds, _) = place.get_mut().rw()?;
        let (message, victims): (_, Vec<_>) =
            (if holds.is_written() { b"1" } else { b"0" }, holds.owners().collect());
        place.remove();
        self.wake(Topic::Rw(resource.name.clone()), message);
        victims.iter().for_each(|victim| self.wake_victim(victim, reason));
        Ok(Changed::Done)
    }

    pub(super) fn inspect_rw(&mut self, resource: &Resource, now: u64) -> Result<Snapshot, Fault> {
        let Some(entry) = self.living(&resource.name, now) else {
            return Ok(Snapshot::default());
        };
        let mut ttl = entry.ttl(now);
        let (holds, _) = entry.rw()?;
        // Changes nothing, as on Redis.
        let over = holds.is_write_over(now);
        if over {
            let Some(longest) = holds.longest(now) else { return Ok(Snapshot::default()) };
            ttl = Ttl::Millis(longest - now);
        }
        let living = holds.readers.iter().filter(|reader| reader.until >= now);
        let readers = living.map(|reader| (reader.owner, reader.count, true));
        let writer = holds.writer.filter(|_| !over).map(|(owner, count)| (owner, count, false));
        let all: Vec<_> = writer.into_iter().chain(readers).collect();
        let holders =
            all.into_iter().map(|(id, count, shared)| self.holder(id, count, shared, now));
        Ok(Snapshot { holders: holders.collect(), ttl: Some(ttl), ..Snapshot::default() })
    }

    /// Returns the waiting writers. Removes them if they have expired.
    fn waiting(&mut self, name: &LockName, now: u64) -> Option<&mut Writers> {
        match self.writers.entry(name.clone()) {
            MapEntry::Occupied(entry) if entry.get().is_alive(now) => Some(entry.into_mut()),
            MapEntry::Occupied(entry) => {
                entry.remove();
                None
            }
            MapEntry::Vacant(_) => None,
        }
    }

    /// Records that a writer acquired the lock.
    fn written_at_last(&mut self, name: &LockName, owner: OwnerId, now: u64) {
        self.withdraw(name, owner, now);
        if let Some(patience) = self.patience.get_mut(name) {
            patience.batch = false;
        }
    }

    /// Records that a writer waits. The memory of what readers were granted is kept as long.
    fn wait(&mut self, name: &LockName, owner: OwnerId, now: u64) {
        if self.waiting(name, now).is_some_and(|writers| writers.suffice_without(owner, now)) {
            return;
        }
        if let Some(patience) =
            self.patience.get_mut(name).filter(|patience| patience.is_alive(now))
        {
            patience.expires = now + REMEMBERED;
        }
        let expires = now + WAITS;
        match self.waiting(name, now) {
            Some(writers) => {
                writers.expires = expires;
                writers.waiting.retain(|(waiting, _)| *waiting != owner);
                writers.waiting.push((owner, now));
            }
            None => {
                let waiting = vec![(owner, now)];
                self.writers.insert(name.clone(), Writers { waiting, expires });
            }
        }
    }

    /// Removes a waiting writer. Returns whether it was the last one with a recent request.
    fn withdraw(&mut self, name: &LockName, owner: OwnerId, now: u64) -> bool {
        let Some(writers) = self.waiting(name, now) else { return false };
        let before = writers.waiting.len();
        writers.waiting.retain(|(waiting, _)| *waiting != owner);
        let heard = |(_, heard): &(OwnerId, u64)| heard + WAITS >= now;
        let last = writers.waiting.len() < before && !writers.waiting.iter().any(heard);
        if last {
            self.writers.remove(name);
        }
        last
    }

    /// Notifies waiters that a writer released the lock, or that readers need no longer wait for one.
    fn wake_written(&mut self, name: &LockName) {
        self.wake(Topic::Rw(name.clone()), b"1");
    }

    /// Returns until when it is the readers' turn, if it is.
    fn readers_turn(&mut self, name: &LockName, now: u64) -> Option<u64> {
        self.patience
            .get(name)
            .filter(|patience| patience.is_alive(now))?
            .turn
            .filter(|turn| *turn > now)
    }

    /// How long a new reader waits for waiting writers, or for a writer with `left` of its lease.
    fn stays_out(
        &mut self,
        name: &LockName,
        left: Option<Ttl>,
        waits: bool,
        now: u64,
    ) -> Option<Ttl> {
        let turn = self.readers_turn(name, now);
        let behind = self.waiting(name, now).map(|writers| writers.expires - now);
        let comes_back = left.or(behind.filter(|_| turn.is_none()).map(Ttl::Millis));
        let Some(comes_back) = comes_back else {
            if let Some(patience) = self.patience.get_mut(name) {
                patience.turn = turn.map(|turn| turn.min(now + BATCH));
                patience.since = None;
            }
            return None;
        };
        let at_least = |ttl: Ttl| match ttl {
            Ttl::Millis(left) => Ttl::Millis(left.max(1)),
            Ttl::Forever => Ttl::Forever,
        };
        if !waits {
            return Some(at_least(comes_back));
        }
        let patience = self.patience.entry(name.clone()).or_default();
        if !patience.is_alive(now) {
            *patience = Patience::default();
        }
        patience.expires = now + REMEMBERED;
        let mut rest = (*patience.since.get_or_insert(now) + PATIENCE).saturating_sub(now);
        if left.is_none() && patience.batch {
            rest = u64::MAX;
        }
        if turn.is_none() && rest > 0 {
            let first = match comes_back {
                Ttl::Millis(left) => left.min(rest),
                Ttl::Forever => rest,
            };
            return Some(Ttl::Millis(first.max(1)));
        }
        patience.turn = Some(now + if left.is_some() { TURN } else { BATCH });
        patience.batch |= left.is_none();
        patience.since = None;
        left.map(|_| Ttl::Millis(1000))
    }
}
