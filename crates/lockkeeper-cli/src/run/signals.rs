//! Signals: their names, and their arrival.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::sys;

/// End a wait for a lock, and a hold without a command.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Have a meaning for the command only, like the real-time signals. By default most of them would end
/// this process.
const OTHERS: &[Signal] = &[
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    #[cfg(target_os = "linux")]
    Signal::POWER,
    Signal::XCPU,
    Signal::XFSZ,
];

/// Passed on to the command; before it starts, they have their default action. Without `TTOU`: see
/// [`sys::take_pending`].
const OF_JOBS: [Signal; 5] =
    [Signal::WINCH, Signal::TSTP, Signal::TTIN, Signal::CONT, Signal::ABORT];

/// The handled signals, which no longer have their default action.
pub(super) struct Signals {
    streams: Vec<(Signal, Stream)>,
    children: Stream,
}

impl Signals {
    /// Handles SIGCHLD only.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { streams: Vec::new(), children: signal(SignalKind::child())? })
    }

    /// Handles also the signals that end a wait, and those that are only for commands.
    pub(super) fn listen(&mut self) -> io::Result<()> {
        self.add(&ENDING)?;
        self.add(OTHERS)?;
        self.add(&sys::real_time())
    }

    /// Handles also the other signals that are passed on to a command.
    pub(super) fn listen_for_command(&mut self) -> io::Result<()> {
        self.add(&OF_JOBS)
    }

    /// An ignored signal (by `nohup`, or in the background of a script) stays ignored, because the command
    /// inherits that.
    fn add(&mut self, signals: &[Signal]) -> io::Result<()> {
        for &wanted in signals {
            if !sys::is_ignored(wanted) {
                self.streams.push((wanted, signal(SignalKind::from_raw(wanted.as_raw()))?));
            }
        }
        Ok(())
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// No signal is lost.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| poll_streams(&mut self.streams, context)).await
    }

    /// The next signal that ends a wait. Drops all others before it.
    pub(super) async fn ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if is_ending(signal) {
                return signal;
            }
        }
    }

    /// Drops all signals that have arrived.
    pub(super) async fn clear(&mut self) {
        poll_fn(|context| {
            while poll_streams(&mut self.streams, context).is_ready() {}
            Poll::Ready(())
        })
        .await;
    }

    /// The next signal, or `None` when a child has ended, stopped or continued.
    ///
    /// # Cancel safety
    /// No signal and no change of a child is lost.
    pub(super) async fn any(&mut self) -> Option<Signal> {
        let Self { streams, children } = self;
        poll_fn(|context| {
            if children.poll_recv(context).is_ready() {
                return Poll::Ready(None);
            }
            poll_streams(streams, context).map(Some)
        })
        .await
    }

    /// Resolves when this signal has arrived; keeps all others.
    pub(super) async fn only(&mut self, wanted: Signal) {
        match self.streams.iter_mut().find(|(signal, _)| *signal == wanted) {
            Some((_, stream)) => drop(stream.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// Whether the signal ends a wait.
pub(super) fn is_ending(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

fn poll_streams(streams: &mut [(Signal, Stream)], context: &mut Context<'_>) -> Poll<Signal> {
    for (signal, stream) in streams {
        if let Poll::Ready(Some(())) = stream.poll_recv(context) {
            return Poll::Ready(*signal);
        }
    }
    Poll::Pending
}

/// Reads a signal by name (`TERM`, `sigterm`) or number.
pub(crate) fn parse(text: &str) -> Result<Signal, String> {
    let refused = || format!("\"{text}\" is not a signal: write a name such as TERM, or a number");
    if let Ok(number) = text.parse() {
        return Signal::from_named_raw(number).ok_or_else(refused);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal).ok_or_else(refused)
}

/// The name of a signal, such as `SIGTERM`, or its number.
pub(super) fn name(signal: Signal) -> String {
    let known = NAMES.iter().find(|(_, known)| *known == signal);
    known.map_or_else(|| format!("signal {}", signal.as_raw()), |(name, _)| format!("SIG{name}"))
}

const NAMES: &[(&str, Signal)] = &[
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ILL", Signal::ILL),
    ("TRAP", Signal::TRAP),
    ("ABRT", Signal::ABORT),
    ("BUS", Signal::BUS),
    ("FPE", Signal::FPE),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("SEGV", Signal::SEGV),
    ("USR2", Signal::USR2),
    ("PIPE", Signal::PIPE),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("CHLD", Signal::CHILD),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("TSTP", Signal::TSTP),
    ("TTIN", Signal::TTIN),
    ("TTOU", Signal::TTOU),
    ("URG", Signal::URG),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
    ("VTALRM", Signal::VTALARM),
    ("PROF", Signal::PROF),
    ("WINCH", Signal::WINCH),
    ("SYS", Signal::SYS),
    ("IO", Signal::IO),
    #[cfg(target_os = "linux")]
    ("PWR", Signal::POWER),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_parse_by_name_and_number() {
        for text in ["TERM", "SIGTERM", "sigterm", "term", "15"] {
            assert_eq!(parse(text), Ok(Signal::TERM), "{text}");
        }
        for text in ["", "SIG", "0", "-15", "99", "TERMINATE", "15 "] {
            assert!(parse(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn every_name_round_trips() {
        for (known, signal) in NAMES {
            assert_eq!(parse(&name(*signal)), Ok(*signal), "{known}");
        }
    }
}
