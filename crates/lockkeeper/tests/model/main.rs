//! The Redis scripts and the pure model mean the same, and neither is confused by requests that come
//! twice, late or out of order.
//!
//! Time passes by a script that takes it off every time to live on the server, while the model's
//! clock is simply set forward: nothing sleeps. All times to live are an odd multiple of
//! [`HALF`](world::HALF) and all steps an even one, so that what is left is never near zero and two
//! different times are never near each other, however slow the machine is.

mod actors;
mod agreement;
mod counters;
mod counters_wire;
mod edges;
mod fair;
mod patterns;
mod rw;
mod world;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use lockkeeper::ClientOptions;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestError, TestRunner};

/// A machine that stands still is not an unreachable server.
fn options() -> ClientOptions {
    let minute = Duration::from_secs(60);
    ClientOptions::new().connect_timeout(minute).response_timeout(minute)
}

/// Nothing, or what went wrong and all that led to it.
type Outcome<T = ()> = Result<T, String>;

/// Runs a sequence, again if it failed while the machine stood still: what took longer than `limit` on the
/// server, whose clock goes on, says nothing.
fn in_time(limit: Duration, mut run: impl FnMut() -> Outcome) -> Outcome {
    loop {
        let began = Instant::now();
        let outcome = run();
        if outcome.is_ok() || began.elapsed() < limit {
            return outcome;
        }
    }
}

/// Runs `property` on random sequences; a failure shows the smallest one that fails. `cargo xtask test` sets
/// the seed, so that a failure there belongs to a change. `PROPTEST_CASES=100000` searches for longer.
#[track_caller]
fn check<S, T>(cases: u32, steps: S, mut property: impl FnMut(&[T]) -> Outcome)
where
    S: Strategy<Value = Vec<T>>,
    T: Debug,
{
    let default = Config::default();
    let config = Config {
        cases: if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases },
        // What failed is printed; nothing is written beside the sources.
        failure_persistence: None,
        max_shrink_iters: 5_000,
        ..default
    };
    let property = std::cell::RefCell::new(&mut property);
    let outcome = TestRunner::new(config).run(&steps, |steps| {
        let outcome = (property.borrow_mut())(&steps);
        outcome.map_err(proptest::test_runner::TestCaseError::fail)
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Abort(reason)) => panic!("gave up: {reason}"),
        Err(TestError::Fail(reason, steps)) => {
            let steps: Vec<_> = steps.iter().map(|step| format!("  {step:?}")).collect();
            panic!("{reason}\nsmallest sequence:\n{}", steps.join("\n"));
        }
    }
}
