//! A file of locks of a test's own, and a look into it from outside.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::ClientOptions;
use lockkeeper::backend::Backend;
use lockkeeper::stores::File;
use rusqlite::Connection;
use tempfile::TempDir;

/// A path in a directory that is deleted with this value.
#[derive(Debug)]
pub(crate) struct LockFile {
    folder: TempDir,
}

impl LockFile {
    pub(crate) fn new() -> Self {
        Self { folder: TempDir::with_prefix("lockkeeper-").expect("there is room for a file") }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder().join("locks.db")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn url(&self) -> String {
        format!("file:{}", self.path().display())
    }

    /// A store of its own on the file.
    pub(crate) async fn backend(&self, options: &ClientOptions) -> Arc<dyn Backend> {
        let path = self.path().display().to_string();
        Arc::new(File::open(&path, options).await.expect("the file can be opened"))
    }

    /// The database as others see it.
    pub(crate) fn look(&self) -> Connection {
        let connection = Connection::open(self.path()).expect("it is a database");
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection
    }

    pub(crate) fn count(&self, sql: &str, given: impl rusqlite::Params) -> usize {
        let count: i64 = self.look().query_row(sql, given, |row| row.get(0)).unwrap();
        count as usize
    }

    /// How many things are stored under `name`, or under names that contain it, but for what is meant
    /// to outlive a lock.
    #[allow(dead_code, reason = "only the laws ask")]
    pub(crate) fn stored(&self, name: &str, exactly: bool) -> usize {
        let parts = ["entry", "queue", "writers"].map(|part| format!("record ->> '$.{part}'"));
        let parts = parts.map(|part| format!("({part} IS NOT NULL)")).join(" + ");
        let which = if exactly { "name = ?1" } else { "instr(name, ?1) > 0" };
        let sql = format!(
            "SELECT coalesce(sum({parts} + (permits IS NOT NULL)), 0) FROM names WHERE {which}"
        );
        self.count(&sql, [name.as_bytes()])
    }

    /// How many clients listen for what has `name` in it.
    pub(crate) fn listeners(&self, name: &str) -> usize {
        let sql = "SELECT count(*) FROM listeners JOIN sessions ON session = sessions.id
            WHERE instr(topic, ?1) > 0";
        self.count(sql, [name.as_bytes()])
    }

    /// Whether a client of this process has it open.
    #[allow(dead_code, reason = "the laws do not ask")]
    pub(crate) fn is_open_here(&self) -> bool {
        let open = std::fs::read_dir("/proc/self/fd").expect("the kernel tells");
        let mut open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        open.any(|path| path == self.path())
    }
}
