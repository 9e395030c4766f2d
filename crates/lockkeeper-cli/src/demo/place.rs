//! Where the tour takes place: a file store in a directory of its own, gone afterwards.

use std::cell::RefCell;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use lockkeeper::{Client, ClientOptions};

use crate::exit::Failure;

/// The store of one tour.
pub(super) struct Place {
    directory: PathBuf,
    /// Everybody who uses it: as long as they do, its files cannot be cleared away for good.
    clients: RefCell<Vec<Client>>,
}

impl Place {
    pub(super) fn new() -> Result<Self, Failure> {
        let base = std::env::temp_dir();
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let directory = base.join(format!("lockkeeper-demo-{}-{nanos}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| {
            Failure::internal(format!(
                "{} cannot be created: {error}; name another directory in TMPDIR",
                directory.display()
            ))
        })?;
        Ok(Self { directory, clients: RefCell::default() })
    }

    pub(super) fn url(&self) -> String {
        format!("file:{}", self.directory.join("locks.db").display())
    }

    /// As if it were a process of its own.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        let options = ClientOptions::new().client_name("lockkeeper-demo");
        let client = Client::connect_with(&self.url(), options).await?;
        self.clients.borrow_mut().push(client.clone());
        Ok(client)
    }

    /// Clears everything away, also in the middle of an act.
    pub(super) async fn clear(self) {
        for client in self.clients.take() {
            client.shutdown().await;
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
