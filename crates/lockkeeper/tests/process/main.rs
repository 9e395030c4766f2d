//! The end of a process and its forks, as a program meets them. Both need a `main` of their own.
//!
//! Takes parts of test names as arguments, as any test program does.

mod exit;
mod fork;
#[path = "../file/lockfile.rs"]
#[allow(dead_code, reason = "a file is used here, and not looked into")]
mod lockfile;

use std::env;
use std::time::Duration;

/// What does not come within this never comes.
const PATIENCE: Duration = Duration::from_secs(30);

type Test = (&'static str, fn());

const TESTS: &[&[Test]] = &[exit::TESTS, fork::TESTS];

/// Which program this process is to be; none for the tests.
const PROGRAM: &str = "LOCKKEEPER_TEST_PROGRAM";

fn main() {
    if let Ok(program) = env::var(PROGRAM) {
        return exit::program(&program);
    }
    let wanted: Vec<_> = env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    for (name, test) in TESTS.concat().into_iter().filter(|(name, _)| is_wanted(name)) {
        test();
        println!("test {name} ... ok");
    }
}
