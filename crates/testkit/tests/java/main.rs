//! The Java peer does what it is told: every command once, on every version of Redisson.

mod build;
#[path = "../common/mod.rs"]
mod common;
mod counts;
mod locks;
mod process;

use std::sync::OnceLock;
use std::time::Duration;

use testkit::java::Worker;
use testkit::{JavaPeer, RedisServer, Redisson};

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(50);

/// A server and a peer per version, for all tests that leave both alive. They use names and workers
/// of their own.
struct Stage {
    server: RedisServer,
    peer: JavaPeer,
}

impl Stage {
    fn of(redisson: Redisson) -> &'static Self {
        static STAGES: [OnceLock<Stage>; 3] = [const { OnceLock::new() }; 3];
        let index = Redisson::ALL.iter().position(|other| *other == redisson).unwrap();
        STAGES[index].get_or_init(|| {
            let server = RedisServer::start();
            let peer = JavaPeer::start(redisson, &server.url());
            Self { server, peer }
        })
    }

    fn on(&self, worker: &str) -> Worker<'_> {
        self.peer.on(worker)
    }
}

/// One test per version, from a function that takes the version.
macro_rules! on_every_version {
    ($($name:ident)*) => {
        $(mod $name {
            use testkit::Redisson;

            #[test]
            fn newest() {
                super::$name(Redisson::Newest);
            }

            #[test]
            fn v3_27() {
                super::$name(Redisson::V3_27);
            }

            #[test]
            fn v3_14() {
                super::$name(Redisson::V3_14);
            }
        })*
    };
}
use on_every_version;
