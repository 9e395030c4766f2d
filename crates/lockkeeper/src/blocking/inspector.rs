//! Looking at locks from outside, for threads.

use std::time::Duration;

use super::Client;
use super::forward::{handle, waiting};
use crate::error::{Error, Result};
use crate::{Event, Holder, Kind, LockInfo};

handle! {
    /// Lists and inspects the locks of a store.
    Inspector
}

waiting! { Inspector, inspector => inspector.inner; {
    fn inspect(name: impl AsRef<[u8]>) -> LockInfo;
    fn inspect_as(name: impl AsRef<[u8]>, kind: Kind) -> LockInfo;
    fn force_unlock(name: impl AsRef<[u8]>, kind: Kind, reason: impl Into<String>) -> bool;
    fn force_unlock_from(
        name: impl AsRef<[u8]>,
        kind: Kind,
        from: &[Holder],
        reason: impl Into<String>
    ) -> bool;
} }

impl Inspector {
    /// The locks whose names match a pattern, one after the other, read page by page. See
    /// [`crate::Inspector::list`].
    pub fn list(&self, pattern: impl Into<Vec<u8>>) -> Listing {
        let (client, page) = (self.client.clone(), Vec::new().into_iter());
        Listing { client, inner: self.inner.list(pattern), page }
    }

    /// The changes of the locks whose names match a pattern, without an end: each turn of the iterator
    /// waits for the next one. See [`crate::Inspector::watch`].
    pub fn watch(&self, pattern: impl Into<Vec<u8>>) -> Watch {
        Watch { client: self.client.clone(), inner: self.inner.watch(pattern) }
    }
}

/// See [`crate::Listing`]. After an error the list can be continued.
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

    /// See [`crate::Listing::errors`].
    pub fn errors(&self) -> &[Error] {
        self.inner.errors()
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
    /// Sets the interval; one second by default.
    pub fn every(self, span: Duration) -> Self {
        Self { inner: self.inner.every(span), ..self }
    }
}

impl Iterator for Watch {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.client.wait(self.inner.next()))
    }
}
