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

/// Two TTLs closer than this may have been set by one script.
const SLACK: u64 = 2;

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
    fn drop_expired(&mut self, now: u64) -> Option<u64> {
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
        *expires = until.max(self.drop_expired(now).unwrap_or(0));
        self.write_ends = Some(until).filter(|until| until < expires);
        self.writer = Some(writer);
    }

    /// Removes the writer. Returns when the lock expires by its readers, if any are left.
    fn end_write(&mut self, now: u64) -> Option<u64> {
        (self.writer, self.write_ends) = (None, None);
        self.drop_expired(now)
    }

    /// Returns one holder, the writer first.
    fn any(&self) -> Option<OwnerId> {
        self.owners().next()
    }
}

impl Entry {
    /// Returns the holds and the expiry of the lock.
    fn rw(&mut self) -> Result<(&mut Holds, &mut u64)> {
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
        let Some(mut found) = self.entry(name, now) else { return };
        let Ok((holds, expires)) = found.get_mut().rw() else { return };
        if holds.is_write_over(now) {
            match holds.end_write(now) {
                Some(longest) => *expires = longest,
                None => drop(found.remove()),
            }
        }
    }

    pub(super) fn acquire_rw(&mut self, request: &Acquire, now: u64) -> Result<Attempt> {
        self.settle_rw(&request.resource.name, now);
        match (request.resource.kind, request.from) {
            (kind, _) if !request.also.is_empty() => Err(unfit(kind)),
            (Kind::Read, Some(_)) => Err(unfit(Kind::Read)),
            (Kind::Read, None) => self.acquire_read(request, now),
            (_, Some(from)) => Ok(self.hand_off_write(request, from, now)),
            (_, None) => self.acquire_write(request, now),
        }
    }

    fn acquire_read(&mut self, request: &Acquire, now: u64) -> Result<Attempt> {
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
                let left = holds.write_ends.map_or(left, |ends| Ttl::millis(ends - now));
                let out = self.stays_out(name, Some(left), request.waits, now);
                return Ok(Attempt::busy(out));
            }
        }
        if request.count > 1 {
            return Ok(Attempt::Gone);
        }
        if request.beside.is_none()
            && let Some(out) = self.stays_out(name, None, request.waits, now)
        {
            return Ok(Attempt::busy(Some(out)));
        }
        let entry = self.names.entry(name.clone()).or_insert_with(Entry::rw_free);
        let (holds, expires) = entry.rw()?;
        holds.readers.push(Reader { owner: request.owner, count: 1, until });
        holds.lengthen(until, expires);
        Ok(Attempt::GRANTED)
    }

    fn acquire_write(&mut self, request: &Acquire, now: u64) -> Result<Attempt> {
        let (name, owner) = (&request.resource.name, request.owner);
        let until = now + request.ttl;
        if let Some(entry) = self.living(name, now) {
            let left = entry.ttl(now);
            let (holds, expires) = entry.rw()?;
            if holds.is_written_by(owner) {
                holds.writer = Some((owner, request.count));
                holds.lengthen_write(until, expires);
                return Ok(self.grant(request, now));
            }
            if request.count > 1 {
                return Ok(Attempt::Gone);
            }
            let mut busy = holds.writer.is_some();
            if !busy {
                holds.drop_expired(now);
                busy = holds.readers.iter().any(|reader| Some(reader.owner) != request.beside);
            }
            if busy {
                if request.waits {
                    self.wait(name, owner, now);
                }
                return Ok(Attempt::busy(Some(left)));
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
            return Ok(Attempt::busy(Some(Ttl::millis(turn - now))));
        }
        let entry = self.names.entry(name.clone()).or_insert_with(Entry::rw_free);
        let (holds, expires) = entry.rw()?;
        holds.write((owner, 1), until, expires, now);
        self.written_at_last(name, owner, now);
        Ok(self.grant(request, now))
    }

    fn hand_off_write(&mut self, request: &Acquire, from: OwnerId, now: u64) -> Attempt {
        let (name, owner) = (&request.resource.name, request.owner);
        let until = now + request.ttl;
        let Some(entry) = self.living(name, now) else { return Attempt::Gone };
        let Ok((holds, expires)) = entry.rw() else { return Attempt::Gone };
        if holds.is_written_by(owner) {
            holds.lengthen_write(until, expires);
            return self.grant(request, now);
        }
        if !holds.is_written_by(from) {
            return Attempt::Gone;
        }
        if holds.drop_expired(now).is_some() {
            *expires = holds.end_write(now).unwrap_or(0);
            let left = entry.ttl(now);
            self.wake_written(name);
            return Attempt::busy(Some(left));
        }
        if let Some(turn) = self.readers_turn(name, now) {
            self.names.remove(name);
            self.wake_written(name);
            return Attempt::busy(Some(Ttl::millis(turn - now)));
        }
        let Some(Ok((holds, expires))) = self.living(name, now).map(Entry::rw) else {
            return Attempt::Gone;
        };
        holds.write((owner, 1), until, expires, now);
        self.written_at_last(name, owner, now);
        self.grant(request, now)
    }

    pub(super) fn release_rw(&mut self, request: &Release, now: u64) -> Result<Released> {
        self.settle_rw(&request.resource.name, now);
        match request.resource.kind {
            Kind::Read => self.release_read(request, now),
            _ => self.release_write(request, now),
        }
    }

    fn release_read(&mut self, request: &Release, now: u64) -> Result<Released> {
        let name = &request.resource.name;
        let Some(mut found) = self.entry(name, now) else { return absent(None) };
        let Ok((holds, expires)) = found.get_mut().rw() else { return absent(None) };
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
        found.remove();
        self.wake(Topic::Rw(name.clone()), b"0");
        Ok(FREED)
    }

    fn release_write(&mut self, request: &Release, now: u64) -> Result<Released> {
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
    fn end_write(&mut self, request: &Release, now: u64) -> (Result<Released>, bool) {
        let Some(mut found) = self.entry(&request.resource.name, now) else {
            return (absent(None), false);
        };
        let Ok((holds, expires)) = found.get_mut().rw() else { return (absent(None), false) };
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
            None => drop(found.remove()),
        }
        (Ok(FREED), false)
    }

    pub(super) fn renew_rw(&mut self, request: &Renew, now: u64) -> Result<Renewed> {
        match request.resource.kind {
            Kind::Read => self.renew_read(request, now),
            _ => self.renew_write(request, now),
        }
    }

    fn renew_read(&mut self, request: &Renew, now: u64) -> Result<Renewed> {
        self.settle_rw(&request.resource.name, now);
        let Some(entry) = self.living(&request.resource.name, now) else {
            return Ok(Renewed::Gone);
        };
        let Ok((holds, expires)) = entry.rw() else { return Ok(Renewed::Taken) };
        // Other readers do not conflict with this hold.
        let shared = holds.writer.is_none();
        match holds.reader(request.owner) {
            Some(reader) if reader.until >= now => {
                let found = Ttl::millis(reader.until - now);
                reader.until = reader.until.max(now + request.ttl.unwrap_or(0));
                let until = reader.until;
                holds.lengthen(until, expires);
                Ok(Renewed::Held(found))
            }
            None if !shared => Ok(Renewed::Taken),
            _ => Ok(Renewed::Gone),
        }
    }

    /// Removes no expired holder: on Redis the keys of readers may be at another node during this request.
    fn renew_write(&mut self, request: &Renew, now: u64) -> Result<Renewed> {
        let Some(entry) = self.living(&request.resource.name, now) else {
            return Ok(Renewed::Gone);
        };
        let left = entry.ttl(now);
        let Ok((holds, expires)) = entry.rw() else { return Ok(Renewed::Taken) };
        match (holds.is_write_over(now), holds.longest(now)) {
            (true, None) => Ok(Renewed::Gone),
            (false, _) if holds.is_written_by(request.owner) => {
                let found = holds.write_ends.map_or(left, |ends| Ttl::millis(ends - now));
                holds.lengthen_write(now + request.ttl.unwrap_or(0), expires);
                Ok(Renewed::Held(found))
            }
            _ => Ok(Renewed::Taken),
        }
    }

    pub(super) fn force_rw(&mut self, resource: &Resource, now: u64) -> Result<Vec<OwnerId>> {
        self.settle_rw(&resource.name, now);
        let Some(mut found) = self.entry(&resource.name, now) else { return Ok(Vec::new()) };
        let (holds, _) = found.get_mut().rw()?;
        let message = if holds.is_written() { b"1" } else { b"0" };
        let victims = holds.owners().collect();
        found.remove();
        self.wake(Topic::Rw(resource.name.clone()), message);
        Ok(victims)
    }

    pub(super) fn inspect_rw(&mut self, resource: &Resource, now: u64) -> Result<LockInfo> {
        let Some(entry) = self.living(&resource.name, now) else {
            return Ok(LockInfo::new(resource));
        };
        let mut ttl = entry.ttl(now);
        let (holds, _) = entry.rw()?;
        // Changes nothing, as on Redis.
        let over = holds.is_write_over(now);
        if over {
            let Some(longest) = holds.longest(now) else { return Ok(LockInfo::new(resource)) };
            ttl = Ttl::millis(longest - now);
        }
        let living = holds.readers.iter().filter(|reader| reader.until >= now);
        let readers = living.map(|reader| (reader.owner, reader.count, true));
        let writer = holds.writer.filter(|_| !over).map(|(owner, count)| (owner, count, false));
        let all: Vec<_> = writer.into_iter().chain(readers).collect();
        let holders =
            all.into_iter().map(|(id, count, shared)| self.holder(id, count, shared, now));
        Ok(LockInfo { holders: holders.collect(), ttl: Some(ttl), ..LockInfo::new(resource) })
    }

    /// Notifies waiters that a writer released the lock, or that readers need no longer wait for one.
    fn wake_written(&mut self, name: &LockName) {
        self.wake(Topic::Rw(name.clone()), b"1");
    }
}
