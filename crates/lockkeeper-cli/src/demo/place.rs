//! Where the tour takes place: a file store in a directory of its own, gone afterwards.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use lockkeeper::{Client, ClientOptions};

use crate::exit::Failure;

/// The store of one tour; its directory is removed on `Drop`.
pub(super) struct Place {
    directory: PathBuf,
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
        Ok(Self { directory })
    }

    pub(super) fn url(&self) -> String {
        format!("file:{}", self.directory.join("locks.db").display())
    }

    pub(super) async fn client(&self) -> Result<Client, Failure> {
        let options = ClientOptions::new().client_name("lockkeeper-demo");
        Ok(Client::connect_with(&self.url(), options).await?)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
