//! Contenders that are processes of their own: how they are built, started and asked.

mod library;
mod monitor;
mod process;
pub(crate) mod raw;

pub(crate) use library::{Built, Library, sibling};
pub(crate) use monitor::Monitor;
pub(crate) use process::{LEASE, Peer, Team, first, now};

use std::time::Duration;

use crate::Result;

/// The built peers, and the processes that several workloads use.
pub(crate) struct Peers {
    built: Built,
    url: String,
    solo: Vec<Team>,
}

impl Peers {
    /// Builds them.
    pub(crate) fn build(url: String) -> Result<Self> {
        Ok(Self { built: Built::all()?, url, solo: Vec::new() })
    }

    /// Name and version of each library.
    pub(crate) fn versions(&mut self) -> Result<Vec<(String, String)>> {
        let teams = self.solo()?.iter();
        let versions = teams
            .map(|team| (team.library().name().to_owned(), team.peers[0].version().to_owned()));
        Ok(versions.collect())
    }

    /// One process per library, the same each time.
    pub(crate) fn solo(&mut self) -> Result<&mut [Team]> {
        if self.solo.is_empty() {
            self.solo = self.teams(1)?;
        }
        Ok(&mut self.solo)
    }

    /// So many new processes per library.
    pub(crate) fn teams(&self, size: usize) -> Result<Vec<Team>> {
        let start = |library| Team::start(library, size, &self.built, &self.url, LEASE);
        Library::ALL.into_iter().map(start).collect()
    }

    /// So many new processes of a library, elsewhere.
    pub(crate) fn team(
        &self,
        library: Library,
        size: usize,
        url: &str,
        lease: Duration,
    ) -> Result<Team> {
        Team::start(library, size, &self.built, url, lease)
    }

    /// A new process of each library, all with this lease.
    pub(crate) fn each(&self, lease: Duration) -> Result<Vec<Peer>> {
        let launched =
            Library::ALL.map(|library| Peer::launch(library, &self.built, &self.url, lease));
        let mut launched = launched.into_iter().collect::<Result<Vec<_>>>()?;
        launched.iter_mut().try_for_each(Peer::ready)?;
        Ok(launched)
    }

    /// A new process.
    pub(crate) fn one(&self, library: Library, lease: Duration) -> Result<Peer> {
        let mut peer = Peer::launch(library, &self.built, &self.url, lease)?;
        peer.ready()?;
        Ok(peer)
    }
}
