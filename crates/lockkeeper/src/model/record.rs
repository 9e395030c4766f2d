//! The state of one name, taken out of the model and put back into it.
//!
//! A store with one row for each name loads the rows of a request, lets the model answer, and writes the
//! changes back. Later versions read these records: a change of their form must raise the version of the
//! file.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::*;
use crate::PermitId;

/// All state of one name except for the remembered answers, which are too many to read and write
/// each time. The waiters of a queue are stored one by one for the same reason; permits are packed.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Record {
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Entry>,
    /// Only its expiry is serialized.
    #[serde(skip_serializing_if = "Option::is_none", with = "ending")]
    queue: Option<fair::Queue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grace: Option<fair::Grace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writers: Option<rw_waiting::Writers>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "patience")]
    readers: Option<rw_waiting::WaitingReaders>,
    #[serde(skip)]
    permits: Option<permits::Taken>,
    /// The part of the permits that is not packed. Omitted if false, so that an older version can
    /// read all records without it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    temporary: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forced: Option<list::ForcedLog>,
}

impl Record {
    /// Whether the name has no state.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the kind for people.
    pub(crate) fn kind(&self) -> &'static str {
        match self.entry.as_ref().map(|entry| &entry.value) {
            Some(Value::Lock { .. }) => "lock",
            Some(Value::Mutex { .. }) => "mutex",
            Some(Value::Rw(_)) => "read/write lock",
            Some(Value::Number(_)) if self.permits.is_some() => "permit semaphore",
            Some(Value::Number(_)) => "counter",
            None => "free",
        }
    }

    /// Returns when the lock or counter expires, for people; `None` if it is free or never expires.
    pub(crate) fn expires_at(&self) -> Option<u64> {
        self.entry.as_ref().map(|entry| entry.expires).filter(|expires| *expires < NEVER)
    }

    /// Returns when all state of the name has expired; `None` if some of it never does.
    pub(crate) fn ends(&self) -> Option<u64> {
        let ends = [
            self.entry.as_ref().map(|entry| entry.expires),
            self.queue.as_ref().map(|queue| queue.ends),
            self.grace.as_ref().map(|grace| grace.expires),
            self.writers.as_ref().map(|writers| writers.expires),
            self.readers.as_ref().map(|readers| readers.expires),
            self.permits.as_ref().map(|taken| taken.expires),
            self.token.as_ref().map(|token| token.expires),
            self.forced.as_ref().map(|log| log.expires),
        ];
        ends.into_iter().flatten().max().filter(|end| *end < NEVER)
    }

    /// Returns the clients that hold the lock.
    pub(crate) fn clients(&self) -> Vec<Uuid> {
        match self.entry.as_ref().map(|entry| &entry.value) {
            Some(Value::Lock { owner, .. } | Value::Mutex { owner }) => vec![owner.client],
            Some(Value::Rw(holds)) => holds.owners().map(|owner| owner.client).collect(),
            Some(Value::Number(_)) | None => Vec::new(),
        }
    }

    /// Returns the state after a restart of the machine. All leases have expired, because their
    /// holders no longer run, and leased permits are free again. Recorded force-releases stay.
    pub(crate) fn after_restart(self, now: u64, epoch: u64) -> Self {
        let mut entry = self.entry.filter(|entry| entry.expires == NEVER);
        let mut permits = self.permits.filter(|taken| entry.is_some() && taken.expires == NEVER);
        if let (Some(Entry { value: Value::Number(free), .. }), Some(taken)) =
            (&mut entry, &mut permits)
        {
            let before = taken.ends.len();
            taken.ends.retain(|_, end| *end >= permits::ENDLESS);
            *free += (before - taken.ends.len()) as i64;
        }
        // A temporary semaphore always has a TTL, so it was removed above.
        let permits = permits.filter(|taken| !taken.ends.is_empty());
        let token = self.token.filter(|token| token.expires == NEVER);
        let forced = self.forced.and_then(|log| log.after_restart(now, epoch));
        Self { entry, token, permits, forced, ..Self::default() }
    }
}

/// The size of a packed permit with its expiry, in bytes.
const PERMIT: usize = 16 + 8;

impl Record {
    /// Packs the acquired permits: the expiry of the table, then each permit with its expiry.
    pub(crate) fn packed_permits(&self) -> Option<Vec<u8>> {
        let taken = self.permits.as_ref()?;
        let mut packed = taken.expires.to_be_bytes().to_vec();
        for (id, end) in &taken.ends {
            packed.extend(id.as_bytes());
            packed.extend(end.to_be_bytes());
        }
        Some(packed)
    }

    /// Unpacks permits; returns false if the data has another form.
    pub(crate) fn unpack_permits(&mut self, packed: &[u8]) -> bool {
        let Some((expires, permits)) = packed.split_first_chunk() else { return false };
        let (permits, []) = permits.as_chunks::<PERMIT>() else { return false };
        let mut ends = HashMap::default();
        for permit in permits {
            let (mut id, mut end) = ([0; 16], [0; 8]);
            id.copy_from_slice(&permit[..16]);
            end.copy_from_slice(&permit[16..]);
            ends.insert(PermitId::from_bytes(id), u64::from_be_bytes(end));
        }
        let (expires, temporary) = (u64::from_be_bytes(*expires), self.temporary);
        self.permits = Some(permits::Taken { ends, expires, temporary });
        true
    }

    /// Returns the waiters of its queue, if there is one: each with its last heartbeat, the next
    /// one first.
    pub(crate) fn waiters(&self) -> Option<Vec<(OwnerId, u64)>> {
        self.queue.as_ref().map(|queue| queue.positions().collect())
    }

    /// Sets the waiters. Not all are needed: see [`ends_front`].
    pub(crate) fn put_waiters(&mut self, waiters: &[(OwnerId, u64)]) {
        self.queue = self.queue.take().map(|queue| fair::Queue::of(waiters, queue.ends));
    }
}

/// Whether the front of a queue that a request must load ends with a waiter that sent its last
/// heartbeat then.
///
/// The model drops stale waiters at the front and stops at the first one that is not stale. It also
/// checks whether any waiter sent a heartbeat [`lately`]. The waiters of the request itself may
/// leave the queue, so both must be known of other waiters.
pub(crate) fn ends_front(heartbeat: u64, now: u64) -> bool {
    heartbeat >= least_alive(now)
}

/// Since when a waiter must have sent a heartbeat to be alive.
pub(crate) fn least_alive(now: u64) -> u64 {
    now.saturating_sub(fair::SILENT)
}

/// Returns the time since which a heartbeat must have arrived; otherwise the store was stalled.
pub(crate) fn lately(now: u64) -> u64 {
    now.saturating_sub(fair::STALLED)
}

/// Serializes a queue as its expiry.
mod ending {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        queue: &Option<fair::Queue>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        queue.as_ref().map(|queue| queue.ends).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<fair::Queue>, D::Error> {
        let ends = Option::deserialize(deserializer)?;
        Ok(ends.map(|ends| fair::Queue::of(&[], ends)))
    }
}

impl State {
    /// Creates a state whose time is `epoch` milliseconds behind the wall clock.
    pub(crate) fn behind(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// Inserts the state of `name`.
    pub(crate) fn put(&mut self, name: &LockName, record: Record) {
        fn put<T>(table: &mut HashMap<LockName, T>, name: &LockName, part: Option<T>) {
            if let Some(part) = part {
                table.insert(name.clone(), part);
            }
        }
        put(&mut self.names, name, record.entry);
        put(&mut self.queues, name, record.queue);
        put(&mut self.graces, name, record.grace);
        put(&mut self.writers, name, record.writers);
        put(&mut self.readers, name, record.readers);
        put(&mut self.permits, name, record.permits);
        put(&mut self.tokens, name, record.token);
        put(&mut self.forced, name, record.forced);
    }

    /// Removes and returns the state of `name`.
    pub(crate) fn take(&mut self, name: &LockName) -> Record {
        let permits = self.permits.remove(name);
        Record {
            temporary: permits.as_ref().is_some_and(|taken| taken.temporary),
            permits,
            entry: self.names.remove(name),
            queue: self.queues.remove(name),
            grace: self.graces.remove(name),
            writers: self.writers.remove(name),
            readers: self.readers.remove(name),
            token: self.tokens.remove(name),
            forced: self.forced.remove(name),
        }
    }

    /// Returns how many listeners can use the released resource; `None` if all of them may.
    pub(crate) fn usable(&self, wake: &Wake, now: u64) -> Option<usize> {
        match &wake.topic {
            Topic::Freed(_) | Topic::Turn(..) => Some(1),
            // One writer, but any number of readers.
            Topic::Rw(name) => {
                let readers = self.readers.get(name);
                (!readers.is_some_and(|readers| readers.is_awaited(now))).then_some(1)
            }
            Topic::Permits(name) => match self.names.get(name).map(|entry| &entry.value) {
                Some(Value::Number(free)) => usize::try_from(*free).ok(),
                // The semaphore was deleted with its last permit: the message contains the number.
                _ => std::str::from_utf8(&wake.payload).ok()?.parse().ok(),
            },
            Topic::Latch(_) | Topic::Notice(_) | Topic::Reconnected => None,
        }
    }

    /// Inserts an announced client.
    pub(crate) fn put_client(&mut self, client: ClientEntry, now: u64) {
        self.clients.insert(client.id, Announced { client, at: now, until: NEVER });
    }
}

/// An owner id is stored in the form in which it is displayed.
#[doc(hidden)]
impl Serialize for OwnerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[doc(hidden)]
impl<'de> Deserialize<'de> for OwnerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with all fields, as text.
    fn stored(value: &str) -> String {
        let rest = concat!(
            r#","queue":9,"grace":{"over":1,"expires":2},"#,
            r#""writers":{"waiting":[["00000000-0000-0000-0000-000000000000:7",3]],"expires":4},"#,
            r#""patience":{"since":5,"turn":null,"batch":true,"expires":6},"#,
            r#""token":{"last":7,"expires":18446744073709551615},"#,
            r#""forced":{"entries":[{"at":8,"by":"me","reason":"why","holders":["it"]}],"expires":9}}"#
        );
        format!(r#"{{"entry":{{"value":{value},"expires":3}}{rest}"#)
    }

    /// Files are read by later versions: a change of the form must raise the version of the file.
    #[test]
    fn what_was_written_before_is_read_and_written_as_it_was() {
        let owner = "00000000-0000-0000-0000-000000000000:7";
        let reader = format!(r#"{{"owner":"{owner}","count":1,"until":4}}"#);
        for value in [
            format!(r#"{{"lock":{{"owner":"{owner}","count":2}}}}"#),
            format!(r#"{{"mutex":{{"owner":"{owner}"}}}}"#),
            format!(r#"{{"rw":{{"writer":["{owner}",1],"readers":[{reader}]}}}}"#),
            r#"{"number":-3}"#.to_owned(),
        ] {
            let text = stored(&value);
            let record: Record = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&record).unwrap(), text);
        }
        let newer = r#"{"entry":null,"more":1}"#;
        assert!(serde_json::from_str::<Record>(newer).is_err(), "nothing is lost by accident");
    }

    #[test]
    fn permits_are_unpacked_as_they_were_packed() {
        let ends = [([7; 16], 9), ([8; 16], 1)].map(|(id, end)| (PermitId::from_bytes(id), end));
        let permits = Some(permits::Taken {
            ends: HashMap::from_iter(ends),
            expires: NEVER,
            temporary: false,
        });
        let record = Record { permits, ..Record::default() };
        let packed = record.packed_permits().unwrap();
        let mut read = Record::default();
        assert!(read.unpack_permits(&packed));
        assert_eq!(read, record);
        assert!(!read.unpack_permits(&packed[1..]) && !read.unpack_permits(&[]));
    }

    #[test]
    fn what_was_forced_open_is_known_after_a_restart() {
        let (day, epoch) = (24 * 3_600_000, 1_000_000_000_000);
        let mut state = State::behind(epoch);
        let name = LockName::from("a");
        state.log_forced(&name, (&ClientInfo::of_this_process(), "why", Vec::new()), 90 * day);
        let record = state.take(&name);
        // After a restart the boot clock begins at zero again, one day later by the wall clock.
        let (now, epoch) = (1_000, epoch + 91 * day);
        let later = record.clone().after_restart(now, epoch);
        assert_eq!(later.ends(), Some(6 * day));
        let too_late = record.after_restart(now, epoch + 7 * day);
        assert!(too_late.is_empty());
    }
}
