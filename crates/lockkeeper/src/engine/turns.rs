//! Who may send a request about a lease: requests go one at a time, in the order in which they ask.
//!
//! The order matters: a task that re-enters in a loop must not pass the releases of its earlier holds
//! again and again.

use tokio::sync::Semaphore;

#[derive(Debug)]
pub(super) struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

impl Turns {
    /// Takes the turn if it is free. The caller has to give it back.
    pub(super) fn try_take(&self) -> bool {
        self.0.try_acquire().map(|turn| turn.forget()).is_ok()
    }

    /// Waits for the turn.
    pub(super) async fn take(&self) {
        // It is never closed.
        if let Ok(turn) = self.0.acquire().await {
            turn.forget();
        }
    }

    pub(super) fn give_back(&self) {
        self.0.add_permits(1);
    }
}
