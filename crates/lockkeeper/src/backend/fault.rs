//! Why a store did not execute a request.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The error of the system or the store, behind an error of ours.
pub(crate) type Source = Arc<dyn Error + Send + Sync>;

/// A message for people, with the error of the system or the store behind it if there is one.
#[derive(Clone)]
pub struct Detail {
    text: String,
    source: Option<Source>,
}

impl Detail {
    /// Changes the text and keeps the source.
    pub fn map(self, change: impl FnOnce(String) -> String) -> Self {
        Self { text: change(self.text), ..self }
    }

    pub(crate) fn into_parts(self) -> (String, Option<Source>) {
        (self.text, self.source)
    }
}

impl Deref for Detail {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl From<String> for Detail {
    fn from(text: String) -> Self {
        Self { text, source: None }
    }
}

impl From<&str> for Detail {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Only the text: the source repeats it.
impl fmt::Debug for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// By the text.
impl PartialEq for Detail {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Detail {}

/// The reason why a store did not execute a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// The store did not answer.
    Unreachable {
        /// Whether the request may have executed, or may still execute.
        maybe_ran: bool,
        /// A description of the failure.
        detail: Detail,
    },
    /// The store refused for now: loading, read-only, busy or out of memory. The request did not
    /// execute.
    Refused {
        /// The message of the store.
        detail: Detail,
    },
    /// The request was executed, but fewer replicas than asked for have acknowledged it: a failover
    /// may lose it.
    Unacknowledged {
        /// How many have acknowledged it, and how many were asked for.
        detail: Detail,
    },
    /// The user lacks a permission.
    Denied {
        /// The message of the store.
        detail: Detail,
    },
    /// The key belongs to something else.
    WrongKind {
        /// The kind of value that was found.
        found: String,
    },
    /// The store cannot execute such a request.
    Invalid {
        /// The reason.
        detail: Detail,
    },
    /// Any other error.
    Server {
        /// The message of the store.
        detail: Detail,
    },
    /// The store was closed.
    Closed,
}

/// What the store said, for logs: an error of ours says more.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.detail()) {
            (_, Some(detail)) => detail.fmt(f),
            (Fault::WrongKind { found }, _) => write!(f, "the name is in use as {found}"),
            _ => f.write_str("the client is closed"),
        }
    }
}

impl Fault {
    /// The store does not answer, and the request has not executed.
    pub(crate) fn silent(detail: impl Into<Detail>) -> Self {
        Fault::Unreachable { maybe_ran: false, detail: detail.into() }
    }

    /// The store did not answer, and the request may have executed.
    pub(crate) fn unanswered(detail: impl Into<Detail>) -> Self {
        Fault::Unreachable { maybe_ran: true, detail: detail.into() }
    }

    pub(crate) fn refused(detail: impl Into<Detail>) -> Self {
        Fault::Refused { detail: detail.into() }
    }

    pub(crate) fn invalid(detail: impl Into<Detail>) -> Self {
        Fault::Invalid { detail: detail.into() }
    }

    /// Changes the text of a fault that may pass.
    pub(crate) fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Fault::Unreachable { maybe_ran, detail } => {
                Fault::Unreachable { maybe_ran, detail: detail.map(change) }
            }
            Fault::Refused { detail } => Fault::Refused { detail: detail.map(change) },
            fault => fault,
        }
    }

    /// The request was not sent.
    pub(crate) fn never_ran(self) -> Self {
        match self {
            Fault::Unreachable { detail, .. } => Fault::silent(detail),
            fault => fault,
        }
    }

    /// Adds the error of the system or the store. Neither its `Display` nor its `Debug` may show a password.
    pub fn caused_by(mut self, error: impl Error + Send + Sync + 'static) -> Self {
        match &mut self {
            Fault::Unreachable { detail, .. }
            | Fault::Refused { detail }
            | Fault::Unacknowledged { detail }
            | Fault::Denied { detail }
            | Fault::Invalid { detail }
            | Fault::Server { detail } => detail.source = Some(Arc::new(error)),
            Fault::WrongKind { .. } | Fault::Closed => {}
        }
        self
    }

    pub(crate) fn detail(&self) -> Option<&Detail> {
        match self {
            Fault::Unreachable { detail, .. }
            | Fault::Refused { detail }
            | Fault::Unacknowledged { detail }
            | Fault::Denied { detail }
            | Fault::Invalid { detail }
            | Fault::Server { detail } => Some(detail),
            Fault::WrongKind { .. } | Fault::Closed => None,
        }
    }

    /// The error of the system or the store behind it.
    pub(crate) fn source(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.detail()?.source.as_deref()
    }

    /// Whether the fault may be temporary, so that a waiter keeps waiting.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Fault::Unreachable { .. } | Fault::Refused { .. } | Fault::Unacknowledged { .. }
        )
    }

    /// Whether the store serves on, and only moves what the request concerns: a waiter waits, however
    /// long that takes.
    pub fn is_moving(&self) -> bool {
        matches!(self, Fault::Refused { detail } if detail.starts_with("TRYAGAIN"))
    }

    /// Whether the request may have executed nevertheless.
    pub fn maybe_ran(&self) -> bool {
        matches!(self, Fault::Unreachable { maybe_ran: true, .. } | Fault::Unacknowledged { .. })
    }
}
