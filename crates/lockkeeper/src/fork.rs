//! Whether this process is a forked child of the one that made a client.
//!
//! By a handler that `fork` calls in the child. The process id would show it as well, but to read it is a system
//! call, and a pair of an acquire and a release asks four times: that took as long as all the rest of a pair on
//! the embedded store. A child that was made without the handlers (`_Fork`, the bare system call `clone`) goes
//! unnoticed.

/// The process that made it.
#[derive(Clone, Debug)]
pub(crate) struct Origin(forkguard::Guard);

impl Origin {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(forkguard::new())
    }

    /// Whether this process is a forked child of it.
    pub(crate) fn is_forked(&self) -> bool {
        // Of a copy: the guard reports a fork only once.
        self.0.clone().detected_fork()
    }
}
