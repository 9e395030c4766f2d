//! Names of locks, and identities of owners and permits.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

/// The raw name of a lock: the bytes of its key in the store.
///
/// Any non-empty byte string is valid; it need not be UTF-8. Cloning is cheap.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LockName(Arc<[u8]>);

impl LockName {
    /// A name with a prefix. An empty name stays empty: a prefix alone is no lock.
    pub(crate) fn new(prefix: &[u8], name: &[u8]) -> Self {
        if prefix.is_empty() || name.is_empty() {
            return Self(name.into());
        }
        Self([prefix, name].concat().into())
    }

    pub(crate) fn without(&self, prefix: &[u8]) -> Self {
        self.0.strip_prefix(prefix).unwrap_or_default().into()
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for LockName {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for LockName {
    fn from(name: &[u8]) -> Self {
        Self(name.into())
    }
}

impl From<&str> for LockName {
    fn from(name: &str) -> Self {
        Self(name.as_bytes().into())
    }
}

/// Readable text; control characters and bytes that are not UTF-8 are escaped, so that a name can
/// neither break a log line nor hide in it.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, &self.0)
    }
}

pub(crate) fn write_escaped(f: &mut fmt::Formatter<'_>, text: &[u8]) -> fmt::Result {
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || is_unseen(c) {
                write!(f, "{}", c.escape_default())?;
            } else {
                fmt::Write::write_char(f, c)?;
            }
        }
        for byte in chunk.invalid() {
            write!(f, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

/// How many bytes of a name or of an answer a message shows.
const SHOWN: usize = 128;

/// A name or an answer of the store in a message: escaped, and only the beginning of a long one.
pub(crate) struct Brief<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() <= SHOWN {
            return write_escaped(f, self.0);
        }
        // Not in the middle of a character.
        let begins = |at: &usize| self.0[*at] & 0xc0 != 0x80;
        let end = (SHOWN - 3..=SHOWN).rev().find(begins).unwrap_or(SHOWN);
        write_escaped(f, &self.0[..end])?;
        write!(f, "… ({} bytes)", self.0.len())
    }
}

/// Whether a character hides text, breaks lines, or changes the direction of the following text.
/// Joiners are text.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// In quotation marks, and only the beginning of a long name: for messages.
impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", Brief(&self.0))
    }
}

/// The identity of one hold in the store, written `<client uuid>:<number>` as Redisson does.
///
/// A new one is drawn for every first acquire, so that a request that arrives late can only ever touch
/// the hold it was meant for. Only a client that queues again for a fair lock within a second may use
/// one again, if every request of the earlier hold was answered.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct OwnerId {
    pub(crate) client: Uuid,
    pub(crate) number: u64,
}

impl OwnerId {
    /// A fresh identity of `client`: 63 random bits, so that Java reads the number as a positive
    /// `long`. For stores and their tests, as `backend`.
    #[doc(hidden)]
    pub fn fresh(client: Uuid) -> Self {
        Self { client, number: fastrand::u64(..) >> 1 }
    }

    /// The client this hold belongs to. For tests, as `backend`.
    #[cfg(feature = "unstable-backend")]
    #[doc(hidden)]
    pub fn client(&self) -> Uuid {
        self.client
    }

    /// 24 bytes: shorter than the output of [`Display`](fmt::Display), for large numbers of them.
    #[cfg(feature = "file")]
    pub(crate) fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(self.client.as_bytes());
        bytes[16..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Reads what [`to_bytes`](OwnerId::to_bytes) wrote.
    #[cfg(feature = "file")]
    pub(crate) fn from_bytes(bytes: [u8; 24]) -> Self {
        let [client @ .., a, b, c, d, e, f, g, h] = bytes;
        Self {
            client: Uuid::from_bytes(client),
            number: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        }
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client.as_hyphenated(), self.number)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The identity of one permit of a [`PermitSemaphore`](crate::PermitSemaphore): 16 bytes in the
/// store, written as 32 hexadecimal digits, as Redisson does.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PermitId([u8; 16]);

impl PermitId {
    /// The permit that is stored under these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes in the store.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The permits of one hold: the first half identifies the client, the second is counted up from
    /// the hold's random number.
    pub(crate) fn of(owner: OwnerId, count: u32) -> impl Iterator<Item = Self> {
        let client = owner.client.into_bytes();
        (0..u64::from(count)).map(move |i| {
            let mut id = client;
            id[8..].copy_from_slice(&owner.number.wrapping_add(i).to_be_bytes());
            Self(id)
        })
    }

    /// The hold whose only permit this is, as a store reads it: any id can be asked about.
    pub(crate) fn as_owner(self) -> OwnerId {
        let [a, b, c, d, e, f, g, h, number @ ..] = self.0;
        let client = Uuid::from_bytes([a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0]);
        OwnerId { client, number: u64::from_be_bytes(number) }
    }

    /// Whether it may be a permit of this client: its first half says so.
    pub(crate) fn is_of(&self, client: Uuid) -> bool {
        self.0[..8] == client.as_bytes()[..8]
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an [`OwnerId`], or not a [`PermitId`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not {expected}")]
pub struct ParseIdError {
    expected: &'static str,
}

const NO_PERMIT: ParseIdError = ParseIdError { expected: "a permit id of 32 hexadecimal digits" };
const NO_OWNER: ParseIdError = ParseIdError { expected: "an owner id of the form <uuid>:<number>" };

impl FromStr for PermitId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NO_PERMIT);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| NO_PERMIT)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl FromStr for OwnerId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (client, number) = text.split_once(':').ok_or(NO_OWNER)?;
        Ok(Self {
            client: Uuid::try_parse(client).map_err(|_| NO_OWNER)?,
            number: number.parse().map_err(|_| NO_OWNER)?,
        })
    }
}

/// A local identity for which locks are reentrant: see [`Lock::as_owner`](crate::Lock::as_owner).
///
/// It is made by [`Client::new_owner`](crate::Client::new_owner), belongs to that client, and never
/// appears in the store: each acquire of a free lock uses a fresh [`OwnerId`].
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Owner {
    pub(crate) client: Uuid,
    pub(crate) number: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_id_reads_back_what_it_writes() {
        let id = OwnerId::fresh(Uuid::new_v4());
        assert_eq!(id.to_string().parse(), Ok(id));
        #[cfg(feature = "file")]
        assert_eq!(OwnerId::from_bytes(id.to_bytes()), id);
        assert!(id.number <= i64::MAX as u64);
        assert_eq!("nonsense".parse::<OwnerId>(), Err(NO_OWNER));
    }

    #[test]
    fn permit_ids_of_one_hold_differ_and_read_back() {
        let ids: Vec<_> = PermitId::of(OwnerId::fresh(Uuid::new_v4()), 3).collect();
        assert!(ids[0] != ids[1] && ids[1] != ids[2]);
        assert_eq!(ids[2].to_string().parse(), Ok(ids[2]));
        assert_eq!(PermitId::of(ids[2].as_owner(), 1).next(), Some(ids[2]));
        assert_eq!("+0".repeat(16).parse::<PermitId>(), Err(NO_PERMIT));
    }

    #[test]
    fn a_name_shows_control_characters_and_raw_bytes_escaped() {
        let name = LockName::from(&b"a\nb\xffc"[..]);
        assert_eq!(name.to_string(), "a\\nb\\xffc");
        assert_eq!(LockName::from("a\u{202e}b\u{feff}ö").to_string(), "a\\u{202e}b\\u{feff}ö");
    }

    #[test]
    fn a_message_shows_the_beginning_of_a_long_name_and_how_long_it_is() {
        let short = LockName::from(&*"n".repeat(SHOWN));
        assert_eq!(format!("{short:?}"), format!("\"{short}\""));
        let long = LockName::from(&*format!("{}ö{}", "n".repeat(SHOWN - 1), "n".repeat(1 << 20)));
        let bytes = (1 << 20) + SHOWN + 1;
        assert_eq!(format!("{long:?}"), format!("\"{}… ({bytes} bytes)\"", "n".repeat(SHOWN - 1)));
        assert_eq!(long.to_string().len(), bytes, "what is listed is whole");
        let raw = LockName::from(&[0x80; 1 << 20][..]);
        assert!(format!("{raw:?}").len() < 5 * SHOWN);
    }
}
