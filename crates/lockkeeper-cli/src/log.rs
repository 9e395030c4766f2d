//! What the library has to say, on standard error: with `-v` what is worth knowing, with `-vv` all.
//!
//! A subscriber of our own: for a line without time and colour no more is needed.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::exit::say;

/// Listens to the library from now on, if anything was asked for.
pub(crate) fn listen(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => Level::INFO,
        _ => Level::TRACE,
    };
    // It fails if somebody listens already, which is as good.
    let _ = tracing::subscriber::set_global_default(Listener { level });
}

struct Listener {
    level: Level,
}

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= self.level
            && metadata.target().starts_with("lockkeeper")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        say(format_args!("{}{}", line.message, line.fields));
    }

    // Spans are not enabled; these are never called.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
