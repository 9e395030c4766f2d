//! Being asked to stop, for commands that have something to clear away first.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Code, Failure};

/// The signals that would end this process where it stands.
pub(crate) struct Interrupt {
    signals: [(u8, Signal); 3],
}

impl Interrupt {
    /// From now on they are heard here.
    pub(crate) fn new() -> Result<Self, Failure> {
        let heard = |kind: SignalKind| {
            let number = u8::try_from(kind.as_raw_value()).unwrap_or_default();
            let heard = signal(kind).map_err(|e| Failure::internal(format!("signals: {e}")))?;
            Ok::<_, Failure>((number, heard))
        };
        Ok(Self {
            signals: [
                heard(SignalKind::interrupt())?,
                heard(SignalKind::terminate())?,
                heard(SignalKind::hangup())?,
            ],
        })
    }

    /// Resolves when one arrives, with what a shell says of a command that a signal ended.
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
