//! Signals: by name, and as they arrive.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::sys;

/// What ends a wait for a lock, and a hold without a command.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// What means something to commands only; and the real-time signals. Most of them would end this process,
/// and with it the command, or a wait that they were a moment too early for.
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

/// What a command is sent as well, and what does to this process what it does to any as long as there
/// is none. `TTOU` is missing: see [`sys::take_pending`].
const OF_JOBS: [Signal; 5] =
    [Signal::WINCH, Signal::TSTP, Signal::TTIN, Signal::CONT, Signal::ABORT];

/// The signals that are listened for. Once they are they no longer act by themselves.
pub(super) struct Signals {
    streams: Vec<(Signal, Stream)>,
    children: Stream,
}

impl Signals {
    /// Listens for changes of children only.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { streams: Vec::new(), children: signal(SignalKind::child())? })
    }

    /// Listens for what tells this process to end, too, and for all that nobody can have meant for it.
    pub(super) fn listen(&mut self) -> io::Result<()> {
        self.add(&ENDING)?;
        self.add(OTHERS)?;
        self.add(&sys::real_time())
    }

    /// Listens for all that a command may be sent by way of `run`.
    pub(super) fn listen_for_command(&mut self) -> io::Result<()> {
        self.add(&OF_JOBS)
    }

    /// One that is ignored (by `nohup`, or in the background of a script) stays so, for the command
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
    /// None is lost.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| poll_streams(&mut self.streams, context)).await
    }

    /// The next signal that tells this process to end. Others that come first are forgotten.
    pub(super) async fn ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if is_ending(signal) {
                return signal;
            }
        }
    }

    /// Forgets what has come so far.
    pub(super) async fn forget(&mut self) {
        poll_fn(|context| {
            while poll_streams(&mut self.streams, context).is_ready() {}
            Poll::Ready(())
        })
        .await;
    }

    /// The next signal, or nothing when a child has ended, stopped or gone on.
    ///
    /// # Cancel safety
    /// Nothing is lost.
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

    /// Resolves when this signal has come; others are kept.
    pub(super) async fn only(&mut self, wanted: Signal) {
        match self.streams.iter_mut().find(|(signal, _)| *signal == wanted) {
            Some((_, stream)) => drop(stream.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// Whether it tells a process to end.
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
    let refused = || format!("\"{text}\" is no signal: write a name, as in TERM, or a number");
    if let Ok(number) = text.parse() {
        return Signal::from_named_raw(number).ok_or_else(refused);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal).ok_or_else(refused)
}

/// `SIGTERM` and the like; a number where there is no name.
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
    fn signals_are_read_by_name_and_number() {
        for text in ["TERM", "SIGTERM", "sigterm", "term", "15"] {
            assert_eq!(parse(text), Ok(Signal::TERM), "{text}");
        }
        for text in ["", "SIG", "0", "-15", "99", "TERMINATE", "15 "] {
            assert!(parse(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn every_name_reads_back() {
        for (known, signal) in NAMES {
            assert_eq!(parse(&name(*signal)), Ok(*signal), "{known}");
        }
    }
}
