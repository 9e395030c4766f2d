//! Building the peer.

use std::env;
use std::fs;
use std::time::SystemTime;

use testkit::Redisson;

/// When the program was compiled.
fn compiled(redisson: Redisson) -> SystemTime {
    let class_path = redisson.build();
    let classes = env::split_paths(&class_path).next().unwrap();
    fs::metadata(classes.join("peer").join("Main.class")).unwrap().modified().unwrap()
}

#[test]
fn the_peer_is_built_for_every_version_and_only_once() {
    for redisson in Redisson::ALL {
        assert_eq!(compiled(redisson), compiled(redisson));
    }
}
