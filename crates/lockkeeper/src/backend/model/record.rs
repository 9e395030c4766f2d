//! Everything that stands under one name, taken out of the model and put back into it.
//!
//! A store that keeps names apart, each in a row of its own, loads those that a request is about,
//! lets the model answer, and writes back what has changed. What is written here is read by later
//! versions: whoever changes the form of a record must raise the version of the file.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::counter::{Replies, Reply};
use super::*;
use crate::PermitId;

/// What stands under one name, but for the answers that are remembered: these are too many to be
/// read and written each time. Those who wait in a queue may be many, too, and are kept apart, each
/// for itself; permits are packed.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Record {
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Entry>,
    /// Of this, only when it ends.
    #[serde(skip_serializing_if = "Option::is_none", with = "ending")]
    queue: Option<fair::Queue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grace: Option<fair::Grace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writers: Option<rw::Writers>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patience: Option<rw::Patience>,
    #[serde(skip)]
    permits: Option<permits::Taken>,
    /// Of the permits, what is not packed. Left out where it is false: an older version reads all
    /// records but those.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    temporary: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forced: Option<list::ForcedLog>,
}

impl Record {
    /// Whether there is nothing at all.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What it is, for people.
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

    /// When what stands under the name itself ends, for people; nothing if there is none, or no end.
    pub(crate) fn stands_until(&self) -> Option<u64> {
        self.entry.as_ref().map(|entry| entry.expires).filter(|expires| *expires < NEVER)
    }

    /// When nothing of it is left; nothing if something stays for good.
    pub(crate) fn ends(&self) -> Option<u64> {
        let ends = [
            self.entry.as_ref().map(|entry| entry.expires),
            self.queue.as_ref().map(|queue| queue.ends),
            self.grace.as_ref().map(|grace| grace.expires),
            self.writers.as_ref().map(|writers| writers.expires),
            self.patience.as_ref().map(|patience| patience.expires),
            self.permits.as_ref().map(|taken| taken.expires),
            self.token.as_ref().map(|token| token.expires),
            self.forced.as_ref().map(|log| log.expires),
        ];
        ends.into_iter().flatten().max().filter(|end| *end < NEVER)
    }

    /// Whose clients hold it.
    pub(crate) fn clients(&self) -> Vec<Uuid> {
        match self.entry.as_ref().map(|entry| &entry.value) {
            Some(Value::Lock { owner, .. } | Value::Mutex { owner }) => vec![owner.client()],
            Some(Value::Rw(holds)) => holds.owners().map(|owner| owner.client()).collect(),
            Some(Value::Number(_)) | None => Vec::new(),
        }
    }

    /// What is left of it when the machine was started anew: all that has an end is over, for those who
    /// had it are gone. Permits that were taken for a while are free again. What people are told of the
    /// past stays.
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
        // A temporary semaphore had an end.
        let permits = permits.filter(|taken| !taken.ends.is_empty());
        let token = self.token.filter(|token| token.expires == NEVER);
        let forced = self.forced.and_then(|log| log.after_restart(now, epoch));
        Self { entry, token, permits, forced, ..Self::default() }
    }
}

/// How many bytes a permit and its end are.
const PERMIT: usize = 16 + 8;

impl Record {
    /// Which permits are taken, packed: when all of them end, then permit and end by turns.
    pub(crate) fn packed_permits(&self) -> Option<Vec<u8>> {
        let taken = self.permits.as_ref()?;
        let mut packed = taken.expires.to_be_bytes().to_vec();
        for (id, end) in &taken.ends {
            packed.extend(id.as_bytes());
            packed.extend(end.to_be_bytes());
        }
        Some(packed)
    }

    /// Puts in what was packed; false if it was something else.
    pub(crate) fn unpack_permits(&mut self, packed: &[u8]) -> bool {
        let Some((expires, permits)) = packed.split_first_chunk() else { return false };
        let (permits, []) = permits.as_chunks::<PERMIT>() else { return false };
        let mut ends = HashMap::with_capacity(permits.len());
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

    /// Who waits in its queue, if it has one: each with the time it was last heard of, the next one
    /// first.
    pub(crate) fn waiters(&self) -> Option<Vec<(OwnerId, u64)>> {
        self.queue.as_ref().map(|queue| queue.places().collect())
    }

    /// Puts in who waits. Not all are needed: see [`ends_front`].
    pub(crate) fn put_waiters(&mut self, waiters: &[(OwnerId, u64)]) {
        self.queue = self.queue.take().map(|queue| fair::Queue::of(waiters, queue.ends));
    }
}

/// Whether a waiter that was last heard of then is the last that a request must know of the front of a
/// queue. The model drops the dead there and stops at the first that lives. Beside these it asks whether
/// anybody at all was heard of [`lately`]. Those whom the request is about may leave, so that both must
/// be known of others.
pub(crate) fn ends_front(heard: u64, now: u64) -> bool {
    heard >= least_alive(now)
}

/// Since when a waiter must have been heard of to be alive.
pub(crate) fn least_alive(now: u64) -> u64 {
    now.saturating_sub(fair::SILENT)
}

/// Since when somebody must have been heard of, or else nobody could be.
pub(crate) fn lately(now: u64) -> u64 {
    now.saturating_sub(fair::STALLED)
}

/// A queue is written as the time it ends.
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
    /// A state whose time is `epoch` milliseconds behind the wall clock.
    pub(crate) fn behind(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// Puts in what stands under `name`.
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
        put(&mut self.patience, name, record.patience);
        put(&mut self.permits, name, record.permits);
        put(&mut self.tokens, name, record.token);
        put(&mut self.forced, name, record.forced);
    }

    /// Takes out what stands under `name`.
    pub(crate) fn take(&mut self, name: &LockName) -> Record {
        let permits = self.permits.remove(name);
        Record {
            temporary: permits.as_ref().is_some_and(|taken| taken.temporary),
            permits,
            entry: self.names.remove(name),
            queue: self.queues.remove(name),
            grace: self.graces.remove(name),
            writers: self.writers.remove(name),
            patience: self.patience.remove(name),
            token: self.tokens.remove(name),
            forced: self.forced.remove(name),
        }
    }

    /// Puts in what was answered to a request that must not run twice; false if that cannot be read.
    pub(crate) fn put_reply(&mut self, name: &LockName, id: OwnerId, reply: &str) -> bool {
        let Some(reply) = Reply::read(reply) else { return false };
        let answers = HashMap::from([(id, (reply, 0))]);
        self.replies.insert(name.clone(), Replies::lasting(answers));
        true
    }

    /// What has been answered to it.
    pub(crate) fn reply(&self, name: &LockName, id: OwnerId) -> Option<String> {
        Some(self.replies.get(name)?.get(id)?.to_string())
    }

    /// How many of those who listen can make use of what was freed; nothing if all of them may.
    pub(crate) fn usable(&self, wake: &Wake, now: u64) -> Option<usize> {
        match &wake.topic {
            Topic::Freed(_) | Topic::Turn(..) => Some(1),
            // One writer, but any number of readers.
            Topic::Rw(name) => {
                let patience = self.patience.get(name);
                (!patience.is_some_and(|patience| patience.is_awaited(now))).then_some(1)
            }
            Topic::Permits(name) => match self.names.get(name).map(|entry| &entry.value) {
                Some(Value::Number(free)) => usize::try_from(*free).ok(),
                // Removed with its last permit: the message says how many there are.
                _ => std::str::from_utf8(&wake.payload).ok()?.parse().ok(),
            },
            Topic::Latch(_) | Topic::Notice(_) | Topic::Reconnected => None,
        }
    }

    /// Puts in who a client is.
    pub(crate) fn put_client(&mut self, client: ClientEntry, now: u64) {
        self.clients.insert(client.id, Announced { client, at: now, until: NEVER });
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Granted => f.write_str("granted"),
            Reply::GivenBack => f.write_str("given back"),
            Reply::Cancelled => f.write_str("cancelled"),
            Reply::Changed(Changed::Done) => f.write_str("done"),
            Reply::Changed(Changed::Nothing) => f.write_str("nothing"),
            Reply::Changed(Changed::Other) => f.write_str("other"),
            Reply::Changed(Changed::Count(count)) => write!(f, "count {count}"),
        }
    }
}

impl Reply {
    /// Reads what [`Display`](fmt::Display) wrote.
    fn read(text: &str) -> Option<Self> {
        Some(match text {
            "granted" => Reply::Granted,
            "given back" => Reply::GivenBack,
            "cancelled" => Reply::Cancelled,
            "done" => Reply::Changed(Changed::Done),
            "nothing" => Reply::Changed(Changed::Nothing),
            "other" => Reply::Changed(Changed::Other),
            _ => Reply::Changed(Changed::Count(text.strip_prefix("count ")?.parse().ok()?)),
        })
    }
}

/// Identities are stored as they are shown.
macro_rules! stored_as_text {
    ($($Type:ident)+) => { $(
        #[doc(hidden)]
        impl Serialize for $Type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        #[doc(hidden)]
        impl<'de> Deserialize<'de> for $Type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Text(PhantomData))
            }
        }
    )+ };
}

stored_as_text!(OwnerId);

struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an identity")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of everything that is stored, as text.
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

    /// Files outlive versions: whoever changes this must raise the version of the file.
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
        let permits =
            Some(permits::Taken { ends: HashMap::from(ends), expires: NEVER, temporary: false });
        let record = Record { permits, ..Record::default() };
        let packed = record.packed_permits().unwrap();
        let mut read = Record::default();
        assert!(read.unpack_permits(&packed));
        assert_eq!(read, record);
        assert!(!read.unpack_permits(&packed[1..]) && !read.unpack_permits(&[]));
    }

    #[test]
    fn replies_are_read_as_they_were_written() {
        let changed = [Changed::Done, Changed::Nothing, Changed::Count(-4)].map(Reply::Changed);
        let replies = [Reply::Granted, Reply::GivenBack, Reply::Cancelled];
        for reply in replies.into_iter().chain(changed) {
            let text = reply.to_string();
            assert_eq!(Reply::read(&text).map(|reply| reply.to_string()), Some(text));
        }
        assert!(Reply::read("no").is_none());
    }

    #[test]
    fn what_was_forced_open_is_known_after_a_restart() {
        let (day, epoch) = (24 * 3_600_000, 1_000_000_000_000);
        let mut state = State::behind(epoch);
        let name = LockName::from("a");
        state.log_forced(&name, (&ClientInfo::of_this_process(), "why", Vec::new()), 90 * day);
        let record = state.take(&name);
        // The clock that counts from the start counts from zero again, a day later by the other.
        let (now, epoch) = (1_000, epoch + 91 * day);
        let later = record.clone().after_restart(now, epoch);
        assert_eq!(later.ends(), Some(6 * day));
        let too_late = record.after_restart(now, epoch + 7 * day);
        assert!(too_late.is_empty());
    }
}
