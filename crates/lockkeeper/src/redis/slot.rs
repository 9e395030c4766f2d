//! The slots of a cluster: which one a key is in, and which names of locks have all their keys in one.
//!
//! Redisson decides by the first opening brace of a name whether it adds braces of its own, so that the
//! keys of some unusual names are in several slots. No script can serve such a lock in a cluster.

use std::sync::LazyLock;

use crate::LockName;
use crate::backend::Fault;

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// Returns the slot of a key or channel.
pub(super) fn of(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

/// Returns the first number that is in a slot as a hash tag.
pub(super) fn number_in(slot: u16) -> usize {
    static NUMBERS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let (mut numbers, mut left) = (vec![u32::MAX; usize::from(SLOTS)], SLOTS);
        for number in 0_u32.. {
            let first = &mut numbers[usize::from(of(number.to_string().as_bytes()))];
            if *first == u32::MAX {
                (*first, left) = (number, left - 1);
            }
            if left == 0 {
                break;
            }
        }
        numbers
    });
    NUMBERS[usize::from(slot)] as usize
}

/// Whether the keys of a lock are in several slots: the hash tag of its name, or the name without one,
/// is not that of the keys derived from it.
fn splits(name: &LockName) -> bool {
    let name = name.as_bytes();
    match name.contains(&b'{') {
        true => tag(name).is_none(),
        // Braces are added, and the first closing one ends the tag.
        false => name.is_empty() || name.contains(&b'}'),
    }
}

/// Rejects a name that splits, with the reason and a name to use instead.
pub(super) fn check(name: &LockName) -> Result<(), Fault> {
    if !splits(name) {
        return Ok(());
    }
    let other = suggested(name);
    let detail = format!(
        "the keys of {name:?} would be in several slots of the cluster, because its braces enclose no \
         hash tag; use {other:?}, for example"
    );
    Err(Fault::invalid(detail))
}

/// Rejects further names for one request if they split, or are in other slots than the first.
pub(super) fn check_together<'a>(
    first: &LockName,
    others: impl Iterator<Item = &'a LockName>,
) -> Result<(), Fault> {
    let slot = of(first.as_bytes());
    for other in others {
        check(other)?;
        if of(other.as_bytes()) != slot {
            return Err(Fault::invalid(format!(
                "{first:?} and {other:?} are in different slots of the cluster"
            )));
        }
    }
    Ok(())
}

/// Returns a name like this one whose keys are in one slot.
fn suggested(name: &LockName) -> LockName {
    let unbraced = name.as_bytes().iter().map(|byte| match byte {
        b'{' => b'(',
        b'}' => b')',
        other => *other,
    });
    LockName::from(&unbraced.collect::<Vec<_>>()[..])
}

/// Returns the part of a key that alone determines its slot: from the first opening brace to the first
/// closing one after it, if there is anything between.
pub(super) fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = &key[open + 1..];
    let close = rest.iter().position(|byte| *byte == b'}')?;
    (close > 0).then(|| &rest[..close])
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;
    use testkit::RedisServer;
    use uuid::Uuid;

    use super::*;
    use crate::OwnerId;
    use crate::backend::Topic;
    use crate::redis::keys;

    /// Names in which braces are frequent.
    fn names() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(b'{'), Just(b'}'), Just(b'a'), any::<u8>()];
        proptest::collection::vec(byte, 0..12)
    }

    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(crc16(b"123456789"), 0x31c3, "the check value of the CRC");
        assert_eq!((of(b""), of(b"foo"), of(b"{foo}.bar")), (0, 12_182, 12_182));
        assert!((0..SLOTS).all(|slot| of(&keys::commit(number_in(slot))) == slot));
        let server = RedisServer::builder().arg("--cluster-enabled", "yes").start();
        let slot = |key: &[u8]| server.cli(&[b"CLUSTER", b"KEYSLOT".as_slice(), key]).int();
        let compared = TestRunner::default().run(&names(), |key| {
            prop_assert_eq!(i64::from(of(&key)), slot(&key));
            Ok(())
        });
        compared.unwrap();
    }

    /// The keys and channels of a lock, apart from the channel of a latch.
    fn all_keys(name: &LockName) -> Vec<Vec<u8>> {
        let owner = OwnerId::fresh(Uuid::new_v4());
        let derived = [
            keys::queue(name),
            keys::timeouts(name),
            keys::seen(name),
            keys::grace(name),
            keys::token(name),
            keys::writers(name),
            keys::patience(name),
            keys::whole(name),
            keys::replies(name),
            keys::permit_ends(name),
            keys::temporary(name),
            keys::forced(name),
        ];
        let topics = [
            Topic::Freed(name.clone()),
            Topic::Turn(name.clone(), owner),
            Topic::Rw(name.clone()),
            Topic::Permits(name.clone()),
        ];
        let mut all: Vec<_> = derived.into_iter().map(keys::Derived::to_vec).collect();
        all.extend(topics.iter().filter_map(keys::topic_channel));
        let prefix = keys::tagged(name).to_vec();
        let write_end = format!(":{owner}:lockkeeper_write_end").into_bytes();
        all.extend([[prefix, write_end].concat(), keys::read_hold(name, &owner, 1)]);
        all
    }

    proptest! {
        #[test]
        fn all_keys_of_a_name_share_its_slot_unless_it_splits(name in names()) {
            let name = LockName::from(&name[..]);
            let whole = |key: &[u8]| tag(key).unwrap_or(key).to_vec();
            let same = all_keys(&name).iter().all(|key| whole(key) == whole(name.as_bytes()));
            prop_assert_eq!(splits(&name), !same);
            let latch = keys::latch_channel(&name).to_vec();
            if !splits(&name) && !name.as_bytes().contains(&b'{') {
                prop_assert_eq!(of(&latch), of(name.as_bytes()));
            }
            prop_assert!(name.as_bytes().is_empty() || !splits(&suggested(&name)));
        }
    }
}
