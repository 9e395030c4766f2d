//! The durations of a run, checked before it starts.

use std::time::Duration;

use lockkeeper::ClientOptions;
use rustix::process::Signal;

use crate::args::RunArgs;
use crate::exit::{Failure, say};
use crate::store::Store;

/// The command is killed this long before the lease expires by this host's clock. The documented margin
/// is 200 ms; the rest allows for a slow machine.
pub(super) const KILL_MARGIN: Duration = Duration::from_millis(300);

/// The same for the guardian, which acts if `run` has not.
pub(super) const GUARDIAN_MARGIN: Duration = Duration::from_millis(250);

/// A shorter lease leaves no time to retry a renewal and to stop the command.
const MIN_LEASE: Duration = Duration::from_secs(1);

/// The default of `--grace`.
const GRACE: Duration = Duration::from_secs(5);

const MIN_RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);

const MIN_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The library's default of both.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The settings of a run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) lease: Duration,
    pub(super) at_least: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) signal: Signal,
    /// Less than a third of the lease: the next third must be enough for a slow renewal.
    pub(super) grace: Duration,
}

impl Plan {
    pub(super) fn new(args: &RunArgs, store: &Store) -> Result<Self, Failure> {
        let lease = store.lease(args.holding.lease)?;
        if lease < MIN_LEASE {
            return Err(Failure::usage(format!(
                "the lease must be at least {MIN_LEASE:?}, not {lease:?}: \
                 `run` needs time to renew it and to stop the command"
            )));
        }
        let (at_least, longest) = (args.holding.at_least, store.longest_lease);
        if let (Some(span), Some(longest)) = (at_least, longest)
            && span > longest
        {
            return Err(Failure::usage(format!(
                "--at-least {span:?} is longer than the longest lease of the quorum, {longest:?}: no lock \
                 on it stays for longer without its process; all clients may set a longer one with \
                 --longest-lease"
            )));
        }
        let longest = (lease - 2 * KILL_MARGIN) / 3;
        if let Some(grace) = args.loss.grace.filter(|grace| *grace > longest) {
            say(format_args!(
                "--grace {grace:?} is cut to {longest:?}: the command must end before the lease of \
                 {lease:?} expires; set a longer --lease for a longer grace"
            ));
        }
        Ok(Self {
            lease,
            at_least: at_least.filter(|span| !span.is_zero()),
            max_hold: args.holding.max_hold,
            signal: args.loss.signal,
            grace: args.loss.grace.unwrap_or(GRACE).min(longest),
        })
    }

    /// The settings of the client: an unanswered renewal must be retried more than once within the lease,
    /// and connecting must not take longer than the wait limit.
    pub(super) fn options(&self, options: ClientOptions, wait: Option<Duration>) -> ClientOptions {
        let response = (self.lease / 5).clamp(MIN_RESPONSE_TIMEOUT, TIMEOUT);
        let connect = wait.map_or(TIMEOUT, |wait| wait.clamp(MIN_CONNECT_TIMEOUT, TIMEOUT));
        options.watchdog_timeout(self.lease).response_timeout(response).connect_timeout(connect)
    }

    /// The remaining lease at which the command must be stopped to get its full grace.
    pub(super) fn stop_margin(&self) -> Duration {
        self.grace + KILL_MARGIN
    }

    /// The interval at which the clock is read.
    pub(super) fn tick(&self) -> Duration {
        (self.lease / 20).min(Duration::from_millis(250))
    }
}
