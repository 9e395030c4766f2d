//! Looking at locks from outside, for threads.

use super::Client;
use crate::error::Result;
use crate::{Event, Holder, Kind, LockInfo};

/// See [`crate::Inspector`].
#[derive(Clone, Debug)]
pub struct Inspector {
    pub(super) client: Client,
    pub(super) inner: crate::Inspector,
}

impl Inspector {
    /// The locks whose names match a pattern, one after the other, read page by page. See
    /// [`crate::Inspector::list`].
    pub fn list(&self, pattern: impl Into<Vec<u8>>) -> Listing {
        Listing {
            client: self.client.clone(),
            inner: self.inner.list(pattern),
            page: Vec::new().into_iter(),
        }
    }

    /// Everything that is known of a name, as what it seems to be.
    ///
    /// # Errors
    /// See [`crate::Inspector::inspect`].
    pub fn inspect(&self, name: impl AsRef<[u8]>) -> Result<LockInfo> {
        self.client.wait(self.inner.inspect(name))
    }

    /// Everything that is known of a name as a kind.
    ///
    /// # Errors
    /// See [`crate::Inspector::inspect_as`].
    pub fn inspect_as(&self, name: impl AsRef<[u8]>, kind: Kind) -> Result<LockInfo> {
        self.client.wait(self.inner.inspect_as(name, kind))
    }

    /// Takes a lock away from whoever holds it.
    ///
    /// # Errors
    /// See [`crate::Inspector::force_unlock`].
    pub fn force_unlock(
        &self,
        name: impl AsRef<[u8]>,
        kind: Kind,
        reason: impl Into<String>,
    ) -> Result<bool> {
        self.client.wait(self.inner.force_unlock(name, kind, reason))
    }

    /// Takes a lock away, but only from holders that were seen before.
    ///
    /// # Errors
    /// See [`crate::Inspector::force_unlock_from`].
    pub fn force_unlock_from(
        &self,
        name: impl AsRef<[u8]>,
        kind: Kind,
        from: &[Holder],
        reason: impl Into<String>,
    ) -> Result<bool> {
        self.client.wait(self.inner.force_unlock_from(name, kind, from, reason))
    }

    /// What comes, changes and goes, for ever: each turn of the iterator waits for the next event.
    /// See [`crate::Inspector::watch`].
    pub fn watch(&self, pattern: impl Into<Vec<u8>>) -> Watch {
        Watch { client: self.client.clone(), inner: self.inner.watch(pattern) }
    }
}

/// See [`crate::Listing`]. After an error the list can be taken up again.
#[derive(Debug)]
pub struct Listing {
    client: Client,
    inner: crate::Listing,
    page: std::vec::IntoIter<LockInfo>,
}

impl Listing {
    /// See [`crate::Listing::is_complete`].
    pub fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }
}

impl Iterator for Listing {
    type Item = Result<LockInfo>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(lock) = self.page.next() {
            return Some(Ok(lock));
        }
        match self.client.wait(self.inner.next()) {
            Ok(page) => {
                self.page = page?.into_iter();
                self.page.next().map(Ok)
            }
            Err(error) => Some(Err(error)),
        }
    }
}

/// See [`crate::Watch`].
#[derive(Debug)]
pub struct Watch {
    client: Client,
    inner: crate::Watch,
}

impl Watch {
    /// How often to look; once a second unless told otherwise.
    pub fn every(mut self, span: std::time::Duration) -> Self {
        self.inner = self.inner.every(span);
        self
    }
}

impl Iterator for Watch {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.client.wait(self.inner.next()))
    }
}
