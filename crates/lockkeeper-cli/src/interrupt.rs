//! Signals that end a subcommand which has to clean up first.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Code, Failure};

/// The signals that would otherwise end this process at once.
pub(crate) struct Interrupt {
    signals: [(u8, Signal); 3],
}

impl Interrupt {
    /// Installs the handlers.
    pub(crate) fn new() -> Result<Self, Failure> {
        let handle = |kind: SignalKind| {
            let number = u8::try_from(kind.as_raw_value()).unwrap_or_default();
            let stream = signal(kind);
            let stream =
                stream.map_err(|e| Failure::internal(format!("cannot handle signals: {e}")))?;
            Ok::<_, Failure>((number, stream))
        };
        Ok(Self {
            signals: [
                handle(SignalKind::interrupt())?,
                handle(SignalKind::terminate())?,
                handle(SignalKind::hangup())?,
            ],
        })
    }

    /// Resolves when a signal arrives, with the exit code that a shell would report.
    pub(crate) async fn next(&mut self) -> Code {
        let [int, term, hup] = &mut self.signals;
        let number = tokio::select! {
            _ = int.1.recv() => int.0,
            _ = term.1.recv() => term.0,
            _ = hup.1.recv() => hup.0,
        };
        Code(128_u8.saturating_add(number))
    }
}
