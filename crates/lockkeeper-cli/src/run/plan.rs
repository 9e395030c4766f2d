//! What is to be done, checked before anything is.

use std::time::Duration;

use lockkeeper::{CONNECT_TIMEOUT, ClientOptions, RESPONSE_TIMEOUT, WATCHDOG_TIMEOUT};
use rustix::process::Signal;

use crate::args::RunArgs;
use crate::exit::{Failure, say};
use crate::store::Store;

/// How long before the end of the lease, by this host's clock, the command is dead: 200 ms is the
/// promise, the rest is for a machine that is slow to do it.
pub(super) const KILL_MARGIN: Duration = Duration::from_millis(300);

/// The same for the guardian, which acts if `run` has not.
pub(super) const GUARDIAN_MARGIN: Duration = Duration::from_millis(250);

/// Descendants this there would be no time to renew a lease, to notice that it cannot be, and to stop the
/// command.
const MIN_LEASE: Duration = Duration::from_secs(1);

/// The grace that is given unless another is asked for.
const GRACE: Duration = Duration::from_secs(5);

/// The shortest time that an answer is waited for.
const MIN_RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);

/// The shortest time for which it is tried to connect.
const MIN_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The numbers that a run goes by.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) lease: Duration,
    pub(super) at_least: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) signal: Signal,
    /// At most a third of the lease, and a little less where that is short: the next third must be
    /// enough for a renewal that takes long.
    pub(super) grace: Duration,
}

impl Plan {
    pub(super) fn new(args: &RunArgs, store: &Store) -> Result<Self, Failure> {
        let lease = args.holding.lease.or(store.lease).unwrap_or(WATCHDOG_TIMEOUT);
        if lease < MIN_LEASE {
            return Err(Failure::usage(format!(
                "the lease must be at least {MIN_LEASE:?}, not {lease:?}: \
                 there must be time to renew it and to stop the command"
            )));
        }
        let longest = (lease - 2 * KILL_MARGIN) / 3;
        if let Some(grace) = args.loss.grace.filter(|grace| *grace > longest) {
            say(format_args!(
                "--grace {grace:?} is cut to {longest:?}: the command must have ended before the lease of \
                 {lease:?} does; for a longer grace ask for a longer --lease"
            ));
        }
        Ok(Self {
            lease,
            at_least: args.holding.at_least.filter(|span| !span.is_zero()),
            max_hold: args.holding.max_hold,
            signal: args.loss.signal,
            grace: args.loss.grace.unwrap_or(GRACE).min(longest),
        })
    }

    /// The client's settings: a renewal that is not answered must be repeated more than once before
    /// the lease is over, and who waits for a second does not want to connect for three.
    pub(super) fn options(&self, options: ClientOptions, wait: Option<Duration>) -> ClientOptions {
        let response = (self.lease / 5).clamp(MIN_RESPONSE_TIMEOUT, RESPONSE_TIMEOUT);
        let connect =
            wait.map_or(CONNECT_TIMEOUT, |wait| wait.clamp(MIN_CONNECT_TIMEOUT, CONNECT_TIMEOUT));
        options.watchdog_timeout(self.lease).response_timeout(response).connect_timeout(connect)
    }

    /// With so little left of the lease the command must be told to stop, or its grace would be cut
    /// short.
    pub(super) fn last_call(&self) -> Duration {
        self.grace + KILL_MARGIN
    }

    /// How often the clock is looked at.
    pub(super) fn tick(&self) -> Duration {
        (self.lease / 20).min(Duration::from_millis(250))
    }
}
