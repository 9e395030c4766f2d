//! The database: how it is created, opened, and changed.
//!
//! Commits are written to the log without waiting for the disk (WAL, `synchronous=NORMAL`): a commit
//! survives the death of its process, and the death of the machine may undo the last commits, whose
//! owners died with it. Two steps wait for the disk: a checkpoint, which the thread makes after it has
//! answered, and the first commit after the whole log was checkpointed. Without them a power loss could
//! damage the file and lock out all processes. The last process that closes the file makes no
//! checkpoint: a command that holds a lock for an instant must not pay for it.
//!
//! **A busy file is an answer.** A request that got no turn to write while other processes wrote is
//! refused, not unanswered ([`Db::or_busy`]). A waiter then waits on.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags};

use super::path::{Inodes, Location};
use super::session::Session;
use super::time::{self, Moment};
use super::write_queue::{Entered, Turn, WriteQueue};
use super::{boot, busy_handler, fault};
use crate::backend::Fault;
use crate::model::State;

/// "lkkr": whose file it is.
const APPLICATION: i32 = 0x6c6b_6b72;

/// Which form it has.
///
/// Earlier forms have two more tables, which are not used any more.
const VERSION: i32 = 3;

/// The log is carried over into the database when it has so many pages: the first process that opens the
/// store reads all of it.
const LOG_MAX: i32 = 400;

/// A log of so many pages is worth a warning: it grows for as long as a process reads in one transaction.
pub(super) const LOG_LONG: i32 = 16_384;

/// To how many bytes the log is cut when it begins anew.
const LOG_KEPT: i32 = 4 << 20;

/// What each table is for:
///
/// - `names`: the state of each name. `record` decides, with `permits`, which may be many and are
///   packed; `kind` and `wall_end` are for people.
/// - `waiters`: the queues of fair locks.
/// - `clients`: the announcements of clients.
/// - `sessions`, `listeners`, `messages`: processes that listen, their topics, the messages to them.
/// - `chores`: where the next sweep begins.
const SCHEMA: &str = "
CREATE TABLE names (
    name BLOB PRIMARY KEY, kind TEXT NOT NULL, boot TEXT NOT NULL, ends INTEGER, wall_end INTEGER,
    record TEXT NOT NULL, permits BLOB
) WITHOUT ROWID;
CREATE TABLE waiters (
    name BLOB NOT NULL, place INTEGER NOT NULL, owner BLOB NOT NULL, heard INTEGER NOT NULL,
    PRIMARY KEY (name, place)
) WITHOUT ROWID;
CREATE UNIQUE INDEX waiter ON waiters (name, owner);
CREATE TABLE clients (
    id TEXT PRIMARY KEY, boot TEXT NOT NULL, ends INTEGER NOT NULL, about TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, boot TEXT NOT NULL, ends INTEGER NOT NULL, pid INTEGER NOT NULL
);
CREATE TABLE listeners (
    topic BLOB NOT NULL, session INTEGER NOT NULL, PRIMARY KEY (topic, session)
) WITHOUT ROWID;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, at INTEGER NOT NULL, topic BLOB NOT NULL, payload BLOB NOT NULL
);
CREATE TABLE chores (next BLOB NOT NULL);
INSERT INTO chores VALUES (x'');
CREATE VIEW locks AS SELECT CAST(name AS TEXT) AS name, kind,
    datetime(wall_end / 1000, 'unixepoch', 'localtime') AS until, record
    FROM names ORDER BY names.name;
";

/// If others have not written for so long, the process that writes does not come to an end.
const LATELY: Duration = Duration::from_secs(2);

/// A pause of a few hundred microseconds: see `busy_handler`.
const PAUSES: i32 = 8;

/// The refusal of a request that got no turn to write.
pub(super) const OTHERS_WRITE: &str = "many processes write to the file of locks at once";

thread_local! {
    /// How many pages the log had after the last commit of this thread.
    static LOG: Cell<i32> = const { Cell::new(0) };
}

/// An open database.
pub(super) struct Db {
    pub(super) connection: Connection,
    pub(super) location: Location,
    /// Which start of the machine rows count from.
    pub(super) boot: &'static str,
    /// The answers to this client's requests that must not run twice. They are entered after the commit,
    /// because one thread executes all requests of a client.
    pub(super) replies: State,
    /// What was opened.
    inodes: Inodes,
    /// Whether this user may write it.
    writable: bool,
    pub(super) session: Session,
    write_queue: WriteQueue,
    /// A number that moves when others write, and since when it has not.
    version: Option<(i64, Option<Instant>)>,
    /// Messages were left for this very process.
    pub(super) has_mail: bool,
    /// With how many pages the log is carried over next.
    carry_at: i32,
    /// How many changes until the next sweep.
    pub(super) sweep_in: u32,
    /// A moment that lasts.
    #[cfg(test)]
    pub(super) stopped: Option<Moment>,
    /// The wake-ups of the model, also those without a listener.
    #[cfg(test)]
    pub(super) woken: std::cell::RefCell<Vec<crate::model::Wake>>,
    /// The last to be dropped.
    _in_use: super::InUse,
}

/// A connection, the files it has open, and whether it may write.
type Opened = (Connection, Inodes, bool);

/// The outcome of a part of a transaction.
pub(super) type Result<T, E = Hitch> = std::result::Result<T, E>;

/// Why a transaction failed.
pub(super) enum Hitch {
    Sql(rusqlite::Error),
    Fault(Fault),
}

impl From<rusqlite::Error> for Hitch {
    fn from(error: rusqlite::Error) -> Self {
        Hitch::Sql(error)
    }
}

impl From<Fault> for Hitch {
    fn from(fault: Fault) -> Self {
        Hitch::Fault(fault)
    }
}

impl Hitch {
    fn fault(self, location: &Location) -> Fault {
        match self {
            Hitch::Sql(error) => fault::of(error, location),
            Hitch::Fault(fault) => fault,
        }
    }
}

impl Db {
    /// Opens the file, or creates it. Waits for other processes that do the same, until the limit of this thread.
    pub(super) fn open(location: &Location) -> Result<Self, Fault> {
        let in_use = super::InUse::begin()?;
        time::known()?;
        let boot = boot::id()?;
        let mut pause = Duration::from_millis(2);
        let (connection, inodes, writable) = loop {
            match try_open(location) {
                Ok(Some(opened)) => break opened,
                Err(fault) if !fault.may_pass() || !busy_handler::is_left() => return Err(fault),
                // Another process creates or replaces it at this moment.
                Ok(None) | Err(_) => {
                    thread::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0));
                    // Beside many of them the process that creates it must get to run.
                    pause = (pause * 2).min(Duration::from_millis(64));
                }
            }
        };
        connection.set_prepared_statement_cache_capacity(64);
        // Not all short-lived processes shall do them, but some must.
        let sweep_in = fastrand::u32(1..super::sweep::EVERY);
        let location = location.clone();
        let (session, write_queue) = (Session::new(), WriteQueue::new(location.wal()));
        Ok(Self {
            connection,
            location,
            boot,
            replies: State::default(),
            inodes,
            writable,
            session,
            write_queue,
            version: None,
            has_mail: false,
            carry_at: LOG_MAX,
            sweep_in,
            #[cfg(test)]
            stopped: None,
            #[cfg(test)]
            woken: Default::default(),
            _in_use: in_use,
        })
    }

    /// Creates one in a new folder.
    #[cfg(test)]
    pub(super) fn for_test() -> (Self, tempfile::TempDir) {
        let folder = tempfile::TempDir::new().expect("there is room");
        busy_handler::set_limit(Instant::now() + Duration::from_secs(600));
        let location = Location::find(&folder.path().join("locks.db"), false);
        let db = Self::open(&location.expect("a place for it")).expect("it can be made");
        (db, folder)
    }

    /// Whether the files at the path are no longer those that were opened: others open new ones.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.location.inodes() != self.inodes
    }

    /// Whether a transaction was left open.
    pub(super) fn is_stuck(&self) -> bool {
        !self.connection.is_autocommit()
    }

    /// Runs a transaction that may change something, while no other process can.
    pub(super) fn write<T>(
        &mut self,
        work: impl FnOnce(&Self, Moment) -> Result<T>,
    ) -> Result<T, Fault> {
        if !self.writable {
            return Err(self.location.denied("cannot be written"));
        }
        self.transaction(Self::begin_write, work)
    }

    /// Reads what was committed last, beside all others.
    pub(super) fn read<T>(
        &mut self,
        work: impl FnOnce(&Self, Moment) -> Result<T>,
    ) -> Result<T, Fault> {
        self.transaction(|db| db.run("BEGIN").map(|()| None), work)
    }

    fn transaction<T>(
        &mut self,
        begin: impl FnOnce(&Self) -> rusqlite::Result<Option<Turn>>,
        work: impl FnOnce(&Self, Moment) -> Result<T>,
    ) -> Result<T, Fault> {
        let done = begin(self).map_err(Hitch::from).and_then(|turn| {
            // Not before: it may have waited.
            let done = work(self, self.moment())?;
            self.run("COMMIT")?;
            drop(turn);
            Ok(done)
        });
        done.map_err(|hitch| {
            if self.is_stuck() {
                // If this fails, too, the connection is of no use, and is closed.
                let _ = self.run("ROLLBACK");
            }
            hitch.fault(&self.location)
        })
    }

    /// Begins a transaction in which no other process writes.
    fn begin_write(&self) -> rusqlite::Result<Option<Turn>> {
        loop {
            match self.write_queue.enter() {
                Entered::Turn(turn) => return self.run("BEGIN IMMEDIATE").map(|()| Some(turn)),
                Entered::Unlockable => return self.run("BEGIN IMMEDIATE").map(|()| None),
                Entered::Late => {}
            }
            match busy_handler::at_once(|| self.run("BEGIN IMMEDIATE")) {
                Err(error) if fault::is_busy(&error) && busy_handler::pause(PAUSES) => {}
                began => return began.map(|()| None),
            }
        }
    }

    /// What a fault of a transaction means if other processes write: the file is busy, and not out of
    /// reach.
    pub(super) fn or_busy(&mut self, fault: Fault) -> Fault {
        match fault {
            Fault::Unreachable { maybe_ran: false, .. } if self.is_written_to() => {
                Fault::refused(OTHERS_WRITE)
            }
            fault => fault,
        }
    }

    /// Whether other processes have written lately.
    pub(super) fn is_written_to(&mut self) -> bool {
        let version = self.connection.query_row("PRAGMA data_version", [], |row| row.get(0)).ok();
        // The first look says nothing of what was before.
        let since = match self.version {
            Some((last, since)) if Some(last) == version => since,
            Some(_) => Some(Instant::now()),
            None => None,
        };
        self.version = version.map(|version| (version, since));
        since.is_some_and(|since| since.elapsed() < LATELY)
    }

    #[cfg(not(test))]
    fn moment(&self) -> Moment {
        Moment::read()
    }

    #[cfg(test)]
    fn moment(&self) -> Moment {
        self.stopped.unwrap_or_else(Moment::read)
    }

    fn run(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }

    /// Carries a long log over into the database, beside readers and writers. What a process still reads
    /// cannot be carried over: then it is tried again when there is twice as much.
    pub(super) fn checkpoint(&mut self) {
        let pages = LOG.replace(0);
        if (1..LOG_MAX).contains(&pages) {
            self.carry_at = LOG_MAX;
        }
        if pages < self.carry_at {
            return;
        }
        let sql = "PRAGMA wal_checkpoint(PASSIVE)";
        let carried: rusqlite::Result<(i32, i32)> =
            self.connection.query_row(sql, [], |row| Ok((row.get(1)?, row.get(2)?)));
        match carried {
            Ok((log, carried)) if carried < log => {
                self.carry_at = pages.saturating_mul(2);
                if log >= LOG_LONG {
                    let path = self.location.wal().display();
                    tracing::warn!(%path, pages = log, "the log grows: a process has been reading the \
                        file of locks for long");
                }
            }
            Ok(_) => self.carry_at = LOG_MAX,
            Err(error) => tracing::debug!(%error, "checkpoint"),
        }
    }
}

/// Nothing if another file took its place meanwhile.
fn try_open(location: &Location) -> Result<Option<Opened>, Fault> {
    let failed = |hitch: Hitch| hitch.fault(location);
    match open_to_write(location).map_err(failed) {
        Err(Fault::Denied { .. }) if location.is_read_only() => {
            open_to_read(location).map_err(failed).map(Some)
        }
        opened => {
            opened.map(|opened| opened.map(|(connection, inodes)| (connection, inodes, true)))
        }
    }
}

/// Opens a file that this user may not write. SQLite then writes nothing beside it, either.
fn open_to_read(location: &Location) -> Result<Opened> {
    let inodes = location.inodes();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(location.path(), flags)?;
    prepare(&connection)?;
    match version(&connection, location)? {
        0 => Err(location.denied("is empty and cannot be written").into()),
        1..=VERSION => Ok((connection, inodes, false)),
        _ => Err(newer(location).into()),
    }
}

fn newer(location: &Location) -> Fault {
    let path = location.path().display();
    Fault::invalid(format!("{path} was written by a newer lockkeeper: use that one"))
}

/// What goes for a connection of any sort.
fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(busy_handler::pause))?;
    // Others may write to the file: nothing that they put into it shall run here.
    for unneeded in [
        DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER,
        DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW,
        DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA,
    ] {
        connection.set_db_config(unneeded, false)?;
    }
    Ok(())
}

fn open_to_write(location: &Location) -> Result<Option<(Connection, Inodes)>> {
    location.create()?;
    let before = location.inode();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let flags = match before {
        Some(_) => flags,
        None => flags | OpenFlags::SQLITE_OPEN_CREATE,
    };
    let connection = Connection::open_with_flags(location.path(), flags)?;
    prepare(&connection)?;
    let mut version = version(&connection, location)?;
    if connection.is_readonly(MAIN_DB)? {
        return Err(location.denied("cannot be written").into());
    }
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    let kept = |row: &rusqlite::Row<'_>| row.get::<_, i32>(0);
    connection.pragma_update_and_check(None, "journal_size_limit", LOG_KEPT, kept)?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let detail = format!("{}: journal mode is {mode}, not wal", location.path().display());
        return Err(Fault::Server { detail: detail.into() }.into());
    }
    if version < VERSION {
        version = make(&connection, location)?;
    }
    if version > VERSION {
        return Err(newer(location).into());
    }
    // From here on it is known to be ours. The last one to close it must not wait for the disk, either.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.wal_hook(Some(|_, pages| {
        LOG.set(pages);
        Ok(())
    }));
    let inodes = location.inodes();
    let same = before.is_none() || before == location.inode();
    Ok(same.then_some((connection, inodes)))
}

/// Which form the file has; 0 if there is nothing in it yet.
fn version(connection: &Connection, location: &Location) -> Result<i32> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i32>(0));
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    match application {
        APPLICATION if tables > 0 => Ok(version.max(1)),
        APPLICATION | 0 if tables == 0 => Ok(0),
        _ => {
            let path = location.path().display();
            Err(Fault::invalid(format!(
                "{path} is a database of another program: name another path"
            ))
            .into())
        }
    }
}

fn make(connection: &Connection, location: &Location) -> Result<i32> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let made = version(connection, location).and_then(|version| match version {
        // Another process has created it.
        version if version >= VERSION => Ok(version),
        version => {
            let schema = if version == 0 { SCHEMA } else { "" };
            let sql = format!(
                "{schema} PRAGMA application_id = {APPLICATION};
                PRAGMA user_version = {VERSION};"
            );
            connection.execute_batch(&sql)?;
            Ok(VERSION)
        }
    });
    let end = if made.is_ok() { "COMMIT" } else { "ROLLBACK" };
    connection.execute_batch(end)?;
    made
}

/// Until when a transaction of this store's own may wait for others: it can be done later.
pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_millis(250)
}
