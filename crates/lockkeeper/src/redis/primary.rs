//! The current primary, as far as this client knows. A route finds it, the connections go to it.
//!
//! **An answer counts only if its server is the primary when the caller looks at it.** A task that learns of
//! a change calls [`Primary::leave`]. From then on no answer of the old server is returned, not even one
//! that has arrived: its request may or may not count, and the engine repeats or undoes it on the new
//! primary. So no grant of a primary that is known to be demoted reaches a caller.

use std::sync::{Arc, OnceLock};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};

use super::server::Server;

#[derive(Clone, Debug)]
pub(super) struct PrimaryView {
    /// Counts the changes that this client has seen.
    pub(super) epoch: u64,
    /// `None` while the new primary is being searched.
    pub(super) server: Option<Server>,
    /// Whether it has replicas as far as others know, also if none of them has a link to it yet.
    pub(super) has_replicas: bool,
}

pub(super) struct Primary {
    location: watch::Sender<PrimaryView>,
    /// The address never changes, only the server behind it.
    pub(super) is_fixed: bool,
    suspected: Arc<Notify>,
    on_leave: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for Primary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&*self.location.borrow(), f)
    }
}

impl Primary {
    /// With an address that never changes.
    pub(super) fn fixed(server: Server) -> Arc<Self> {
        Self::new(true, Some(server), Arc::default())
    }

    /// To be found.
    pub(super) fn unknown() -> Arc<Self> {
        Self::new(false, None, Arc::default())
    }

    /// To be found by a task that searches several primaries.
    pub(super) fn suspected_by(suspected: Arc<Notify>) -> Arc<Self> {
        Self::new(false, None, suspected)
    }

    fn new(is_fixed: bool, server: Option<Server>, suspected: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self {
            location: watch::Sender::new(PrimaryView { epoch: 0, server, has_replicas: false }),
            is_fixed,
            suspected,
            on_leave: OnceLock::new(),
        })
    }

    pub(super) fn watch(&self) -> watch::Receiver<PrimaryView> {
        self.location.subscribe()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.location.borrow().epoch
    }

    pub(super) fn server(&self) -> Option<Server> {
        self.location.borrow().server.clone()
    }

    pub(super) fn address(&self) -> Option<String> {
        self.location.borrow().server.as_ref().map(|server| server.address.to_string())
    }

    pub(super) fn is(&self, server: &Server) -> bool {
        let location = self.location.borrow();
        location.server.as_ref().is_some_and(|one| one.is_same(server))
    }

    /// Sets what makes the answers of a server void that is left. Only once.
    pub(super) fn on_leave(&self, void: impl Fn() + Send + Sync + 'static) {
        // One connection follows it, which sets this once.
        let _ = self.on_leave.set(Box::new(void));
    }

    /// The server of this epoch is no primary any more: none of its answers counts from now on.
    pub(super) fn leave(&self, epoch: u64) {
        let left = self.location.send_if_modified(|location| {
            let is_current = location.epoch == epoch;
            if is_current {
                location.epoch += 1;
                location.server.take_if(|_| !self.is_fixed);
            }
            is_current
        });
        if left {
            self.on_leave.get().inspect(|void| void());
            self.suspect();
        }
    }

    /// It has nothing to serve: the connection ends until it leads to a server again.
    pub(super) fn park(&self) {
        if self.server().is_some() {
            self.leave(self.epoch());
        }
    }

    /// The primary may have changed: wakes up the task that searches it.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    pub(super) fn suspected(&self) -> Notified<'_> {
        self.suspected.notified()
    }

    /// Leads to this server. If it is another one, the answers of the old one are void.
    pub(super) fn lead_to(&self, server: &Server, has_replicas: bool) {
        if self.is(server) {
            return;
        }
        if self.server().is_some() {
            self.leave(self.epoch());
        }
        tracing::info!(primary = %server.address, "found the primary");
        let server = Some(server.clone());
        self.location.send_modify(|location| {
            *location = PrimaryView { epoch: location.epoch, server, has_replicas }
        });
    }
}
