//! What a look at a store brings to light.

use std::fmt;

/// One thing that was looked at.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at, in a word or two that do not change.
    pub subject: String,
    /// What was found, and what it means for locks.
    pub detail: String,
    /// What to do about it; empty where there is nothing to do.
    pub remedy: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Good to know: it costs speed or comfort, or could not be looked at.
    Note,
    /// It endangers locks: two may hold one, or nobody can.
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

impl Finding {
    /// As it should be.
    pub fn fine(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(Severity::Fine, subject, detail, "")
    }

    /// Good to know.
    pub fn note(subject: &str, detail: impl Into<String>, remedy: &str) -> Self {
        Self::new(Severity::Note, subject, detail, remedy)
    }

    /// It endangers locks.
    pub fn danger(subject: &str, detail: impl Into<String>, remedy: &str) -> Self {
        Self::new(Severity::Danger, subject, detail, remedy)
    }

    fn new(severity: Severity, subject: &str, detail: impl Into<String>, remedy: &str) -> Self {
        let (subject, remedy) = (subject.to_owned(), remedy.to_owned());
        Self { severity, subject, detail: detail.into(), remedy }
    }
}
