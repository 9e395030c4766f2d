//! A name matches a pattern here if and only if it does on the server.

use std::collections::BTreeSet;

use lockkeeper::backend::Pattern;
use proptest::collection::vec;
use proptest::sample::select;
use testkit::{Cli, RedisServer, Reply};

use crate::check;

/// What names are made of: few different bytes, so that much matches, and all that mean something.
const NAMES: &[u8] = b"aabbc-^]*\\\xff\0";

/// What patterns are made of. Not of bytes beyond 127: as an end of a range they are negative numbers
/// to a server whose compiler says so.
const PATTERNS: &[u8] = b"aabbc**??[[]^-\\\\\0";

/// Where they are no end of a range.
const BEYOND: &[&[u8]] =
    &[b"\xff", b"*\xff*", b"[\xff]", b"[^\xff]*", b"\\\xff?", b"?\xff", b"[-a\xff]", b"[\xff"];

/// Every name of up to two bytes, and many that are longer.
fn names() -> BTreeSet<Vec<u8>> {
    let bytes: BTreeSet<u8> = NAMES.iter().copied().collect();
    let mut names: BTreeSet<Vec<u8>> = bytes.iter().map(|byte| vec![*byte]).collect();
    for first in &bytes {
        names.extend(bytes.iter().map(|second| vec![*first, *second]));
    }
    // The same ones each time: what fails once must fail again while it is made smaller.
    let mut random = fastrand::Rng::with_seed(7);
    while names.len() < 400 {
        let length = random.usize(3..8);
        names.insert((0..length).map(|_| NAMES[random.usize(..NAMES.len())]).collect());
    }
    names
}

/// The names that match on the server: by a walk, as the inspector makes it, or all at once.
fn on_server(cli: &mut Cli, pattern: &[u8]) -> BTreeSet<Vec<u8>> {
    let found = cli.cmd(&[b"KEYS", pattern]).ok();
    let bytes = |reply: &Reply| match reply {
        Reply::Bulk(bytes) => bytes.clone(),
        other => panic!("not a name: {other:?}"),
    };
    found.array().iter().map(bytes).collect()
}

#[test]
fn patterns_mean_what_they_mean_on_the_server() {
    let server = RedisServer::start();
    let (mut cli, names) = (server.connection(), names());
    for name in &names {
        cli.cmd(&[b"SET", &name[..], b""]).ok();
    }
    let mut matched = [0_usize; 2];
    let mut agrees = |pattern: &[u8]| {
        let theirs = on_server(&mut cli, pattern);
        let ours = Pattern::new(pattern);
        let ours: BTreeSet<_> = names.iter().filter(|name| ours.matches(name)).cloned().collect();
        matched[usize::from(ours.len() > 1 && ours.len() < names.len())] += 1;
        let differs = ours.symmetric_difference(&theirs).next();
        match differs {
            None => Ok(()),
            Some(name) => {
                let (pattern, name) = (pattern.escape_ascii(), name.escape_ascii());
                Err(format!("\"{pattern}\" on \"{name}\" differs; {} here", ours.len()))
            }
        }
    };
    for pattern in BEYOND {
        agrees(pattern).unwrap();
    }
    check(3000, vec(select(PATTERNS), 0..9), agrees);
    assert!(
        matched[1] * 9 > matched[0],
        "most patterns matched nothing or everything: {matched:?}"
    );
}
