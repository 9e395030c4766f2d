//! The findings of a check of a store.

use std::fmt;

/// One result of a check.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The subject of the check, in one or two words that never change.
    pub subject: String,
    /// The result, and its effect on locks.
    pub detail: String,
    /// The remedy; empty if there is nothing to do.
    pub remedy: String,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Severity {
    /// No problem.
    Fine,
    /// Worth knowing: it costs speed or convenience, or could not be checked.
    Note,
    /// Endangers locks: two owners may hold one, or none can.
    Danger,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Fine => "fine",
            Severity::Note => "note",
            Severity::Danger => "danger",
        })
    }
}

/// For stores, as `backend`.
#[doc(hidden)]
impl Finding {
    /// Creates a finding without a problem.
    pub fn fine(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(Severity::Fine, subject, detail, "")
    }

    /// Creates a finding that is worth knowing.
    pub fn note(subject: &str, detail: impl Into<String>, remedy: &str) -> Self {
        Self::new(Severity::Note, subject, detail, remedy)
    }

    /// Creates a finding that endangers locks.
    pub fn danger(subject: &str, detail: impl Into<String>, remedy: &str) -> Self {
        Self::new(Severity::Danger, subject, detail, remedy)
    }

    fn new(severity: Severity, subject: &str, detail: impl Into<String>, remedy: &str) -> Self {
        let (subject, remedy) = (subject.to_owned(), remedy.to_owned());
        Self { severity, subject, detail: detail.into(), remedy }
    }
}
