//! The file store of the demo, in a temporary directory.

use std::cell::RefCell;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use lockkeeper::{Client, ClientOptions};

use crate::exit::Failure;

pub(super) struct Place {
    directory: PathBuf,
    /// All clients: they must be closed before the files can be removed.
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
                "cannot create {}: {error}; set TMPDIR to another directory",
                directory.display()
            ))
        })?;
        Ok(Self { directory, clients: RefCell::default() })
    }

    pub(super) fn url(&self) -> String {
        format!("file:{}", self.directory.join("locks.db").display())
    }

    /// Connects a client, which behaves like a separate process.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        let options = ClientOptions::new().client_name("lockkeeper-demo");
        let client = Client::connect_with(&self.url(), options).await?;
        self.clients.borrow_mut().push(client.clone());
        Ok(client)
    }

    /// Closes all clients and removes the directory.
    pub(super) async fn clear(self) {
        for client in self.clients.take() {
            client.shutdown().await;
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
