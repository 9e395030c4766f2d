//! Loopback ports that stay ours.
//!
//! Below the ephemeral ranges of Linux (32768 up) and macOS (49152 up): a port from there, which
//! binding port 0 would give, can be taken by any outgoing connection while its server is down for a
//! restart, and a client that keeps connecting to it can even connect to itself.
//!
//! Tests in other processes choose from the same range, so a port is *reserved*, by holding the UDP
//! port of the same number, which nobody else here wants. The kernel drops the reservation with the
//! process, however that ends.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

const FIRST: u16 = 15_000;
const COUNT: u16 = 15_000;
const BUS_OFFSET: u16 = 10_000;
const COUNT_WITH_BUS: u16 = 32_768 - FIRST - BUS_OFFSET;

/// A TCP port that nobody listens on, and that no other reservation gives out while this one lives.
#[derive(Debug)]
pub(crate) struct Reservation {
    port: u16,
    _held: UdpSocket,
}

impl Reservation {
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn of(port: u16) -> Option<(Self, TcpListener)> {
        // UDP first: trying the TCP port of somebody else's reservation could make his restart fail.
        let held = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        Some((Self { port, _held: held }, listener))
    }
}

/// Reserves a port for a server that will listen on it. Strangers may still take it.
pub(crate) fn reserve() -> Reservation {
    search().0
}

/// Reserves a port for a server of a cluster, and the port of its bus. Redis 6.2 has no option for the
/// latter: it is 10,000 higher, which is below the ephemeral ranges, too.
pub(crate) fn reserve_with_bus() -> (Reservation, Reservation) {
    let pair = || {
        let (port, _listener) = Reservation::of(FIRST + random(COUNT_WITH_BUS))?;
        let (bus, _listener) = Reservation::of(port.port + BUS_OFFSET)?;
        Some((port, bus))
    };
    (0..COUNT).find_map(|_| pair()).expect("two of 15,000 loopback ports are free")
}

/// Listens on a port.
pub(crate) fn listen() -> TcpListener {
    search().1
}

fn search() -> (Reservation, TcpListener) {
    (0..COUNT)
        .find_map(|_| Reservation::of(FIRST + random(COUNT)))
        .expect("one of 15,000 loopback ports is free")
}

/// The standard library's only source of randomness; enough to keep parallel tests apart.
fn random(below: u16) -> u16 {
    let hash = RandomState::new().build_hasher().finish();
    u16::try_from(hash % u64::from(below)).expect("a remainder is below its modulus")
}
