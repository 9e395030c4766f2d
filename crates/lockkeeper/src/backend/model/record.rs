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
/// read and written each time. Queues and permits may be many, too, and are packed.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Record {
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Entry>,
    #[serde(skip)]
    queue: Option<fair::Queue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grace: Option<fair::Grace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writers: Option<rw::Writers>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patience: Option<rw::Patience>,
    #[serde(skip)]
    permits: Option<permits::Taken>,
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
    /// had it are gone. Permits that were taken for a while have ended, and are given back by the
    /// next request that looks.
    pub(crate) fn after_restart(self) -> Self {
        let entry = self.entry.filter(|entry| entry.expires == NEVER);
        let token = self.token.filter(|token| token.expires == NEVER);
        let permits = self.permits.filter(|taken| entry.is_some() && taken.expires == NEVER);
        let permits = permits.map(|mut taken| {
            for end in taken.ends.values_mut().filter(|end| **end < permits::ENDLESS) {
                *end = 0;
            }
            taken
        });
        Self { entry, token, permits, ..Self::default() }
    }
}

/// Who waits, packed: when the queue ends, then owner and time by turns.
const PLACE: usize = 24 + 8;

/// Which permits are taken, packed: when all of them end, then permit and end by turns.
const PERMIT: usize = 16 + 8;

impl Record {
    pub(crate) fn packed_queue(&self) -> Option<Vec<u8>> {
        let queue = self.queue.as_ref()?;
        let places = queue.places().map(|(owner, heard)| (owner.to_bytes(), heard));
        Some(pack(queue.ends, places))
    }

    pub(crate) fn packed_permits(&self) -> Option<Vec<u8>> {
        let taken = self.permits.as_ref()?;
        Some(pack(taken.expires, taken.ends.iter().map(|(id, end)| (*id.as_bytes(), *end))))
    }

    /// Puts in what was packed; false if it was something else.
    pub(crate) fn unpack(&mut self, queue: Option<&[u8]>, permits: Option<&[u8]>) -> bool {
        let queue = queue.map(|packed| {
            let (ends, places) = unpack::<24, PLACE>(packed)?;
            let places = places.map(|(owner, heard)| (OwnerId::from_bytes(owner), heard));
            Some(fair::Queue::of(places, ends))
        });
        let permits = permits.map(|packed| {
            let (expires, ends) = unpack::<16, PERMIT>(packed)?;
            let ends = ends.map(|(id, end)| (PermitId::from_bytes(id), end)).collect();
            Some(permits::Taken { ends, expires })
        });
        let readable = queue != Some(None) && permits != Some(None);
        (self.queue, self.permits) = (queue.flatten(), permits.flatten());
        readable
    }
}

fn pack<const N: usize>(end: u64, parts: impl Iterator<Item = ([u8; N], u64)>) -> Vec<u8> {
    let mut packed = end.to_be_bytes().to_vec();
    for (id, time) in parts {
        packed.extend(id);
        packed.extend(time.to_be_bytes());
    }
    packed
}

/// Identities of `N` bytes with a time each, `M` bytes together.
fn unpack<const N: usize, const M: usize>(
    packed: &[u8],
) -> Option<(u64, impl Iterator<Item = ([u8; N], u64)> + Clone)> {
    let (end, parts) = packed.split_first_chunk::<8>()?;
    let (parts, []) = parts.as_chunks::<M>() else { return None };
    let parts = parts.iter().map(|part| {
        let (mut id, mut time) = ([0; N], [0; 8]);
        id.copy_from_slice(&part[..N]);
        time.copy_from_slice(&part[N..]);
        (id, u64::from_be_bytes(time))
    });
    Some((u64::from_be_bytes(*end), parts))
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
        Record {
            entry: self.names.remove(name),
            queue: self.queues.remove(name),
            grace: self.graces.remove(name),
            writers: self.writers.remove(name),
            patience: self.patience.remove(name),
            permits: self.permits.remove(name),
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

    /// Puts in who a client is.
    pub(crate) fn put_client(&mut self, client: ClientEntry) {
        self.clients.insert(client.id, (client, NEVER));
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
