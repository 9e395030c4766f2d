//! Which slot a key belongs to.

use std::ops::RangeInclusive;

/// How many slots there are.
pub(super) const SLOTS: u16 = 16_384;

/// The slots of one of these many shards at first.
pub(super) fn of_shard(shard: usize, shards: usize) -> RangeInclusive<u16> {
    let start = |shard: usize| usize::from(SLOTS) * shard / shards;
    let slot = |slot: usize| u16::try_from(slot).expect("a slot");
    slot(start(shard))..=slot(start(shard + 1) - 1)
}

/// The slot of a key: CRC16 (XMODEM) of its hash tag or, without one, of all of it.
pub(super) fn of_key(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| Some(rest.split_once('}')?.0));
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    });
    crc % SLOTS
}
