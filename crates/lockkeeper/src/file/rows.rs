//! What the tables contain: records by name, clients by identity.

use rusqlite::OptionalExtension;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::db::{Db, Result};
use super::time::{Moment, signed};
use super::waiters::Who;
use crate::backend::{ClientEntry, Fault, Holding, Kind, Resource, Seen};
use crate::model::{Process, Record, millis, time};
use crate::{LockName, OwnerId};

/// The stored description of a client and its holds.
#[derive(Deserialize, Serialize)]
struct StoredClient {
    #[serde(flatten)]
    process: Process,
    holds: Vec<StoredHold>,
    more: bool,
    /// The validity and the interval of announcements in milliseconds. Earlier versions do not
    /// write them.
    #[serde(default)]
    ttl: u64,
    #[serde(default)]
    every: u64,
}

#[derive(Deserialize, Serialize)]
struct StoredHold {
    owner: OwnerId,
    kind: String,
    name: Vec<u8>,
    count: u32,
    /// Milliseconds by the wall clock.
    since: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<u64>,
}

fn unreadable(what: &str, why: &dyn std::fmt::Display) -> Fault {
    Fault::Server { detail: format!("{what} cannot be read: {why}").into() }
}

impl Db {
    /// Loads the record of `name` with the waiters of its queue that matter.
    pub(super) fn load(&self, name: &LockName, who: Who<'_>, moment: Moment) -> Result<Record> {
        let sql = "SELECT name, boot = ?2, record, permits FROM names WHERE name = ?1";
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query((name.as_bytes(), &self.boot))?;
        let Some(row) = rows.next()? else { return Ok(Record::default()) };
        let mut record = read_record(row, moment)?;
        if record.waiters().is_some() {
            record.put_waiters(&self.load_waiters(name, who, moment.now)?);
        }
        Ok(record)
    }

    /// Stores the changes.
    pub(super) fn store(
        &self,
        name: &LockName,
        before: &Record,
        record: &Record,
        moment: Moment,
    ) -> Result<()> {
        if record == before {
            return Ok(());
        }
        self.store_waiters(name, before.waiters(), record.waiters(), moment.now)?;
        if record.is_empty() {
            // Also the waiters of an earlier boot.
            self.erase_waiters(name.as_bytes())?;
            let delete = self.connection.prepare_cached("DELETE FROM names WHERE name = ?1");
            delete?.execute([name.as_bytes()])?;
            return Ok(());
        }
        let text = serde_json::to_string(record)
            .map_err(|error| unreadable("what should be stored", &error))?;
        let ends = record.ends().map(signed);
        let wall_end = record.expires_at().map(|end| signed(moment.wall(end)));
        let sql = "INSERT OR REPLACE INTO names VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let mut insert = self.connection.prepare_cached(sql)?;
        let (name, kind, permits) = (name.as_bytes(), record.kind(), record.packed_permits());
        insert.execute((name, kind, &self.boot, ends, wall_end, text, permits))?;
        Ok(())
    }

    pub(super) fn load_client(&self, client: Uuid, now: u64) -> Result<Option<ClientEntry>> {
        let sql = "SELECT about, ends FROM clients WHERE id = ?1 AND boot = ?2 AND ends >= ?3";
        let mut select = self.connection.prepare_cached(sql)?;
        let given = (client.to_string(), &self.boot, signed(now));
        let row: Option<(String, i64)> =
            select.query_row(given, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        Ok(row.and_then(|(about, ends)| StoredClient::read(client, &about, left(ends, now))))
    }

    pub(super) fn load_clients(&self, now: u64) -> Result<Vec<ClientEntry>> {
        let sql = "SELECT id, about, ends FROM clients WHERE boot = ?1 AND ends >= ?2";
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query((&self.boot, signed(now)))?;
        let mut clients = Vec::new();
        while let Some(row) = rows.next()? {
            let (id, about, ends): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let id = Uuid::try_parse(&id).ok();
            clients.extend(id.and_then(|id| StoredClient::read(id, &about, left(ends, now))));
        }
        Ok(clients)
    }

    pub(super) fn store_client(&self, client: &ClientEntry, ttl: u64, now: u64) -> Result<()> {
        let until = now.saturating_add(ttl);
        let about = serde_json::to_string(&StoredClient::of(client, ttl))
            .map_err(|error| unreadable("who the client is", &error))?;
        let sql = "INSERT OR REPLACE INTO clients VALUES (?1, ?2, ?3, ?4)";
        let given = (client.id.to_string(), &self.boot, signed(until), about);
        self.connection.prepare_cached(sql)?.execute(given)?;
        Ok(())
    }

    pub(super) fn erase_client(&self, client: Uuid) -> Result<()> {
        let sql = "DELETE FROM clients WHERE id = ?1";
        self.connection.prepare_cached(sql)?.execute([client.to_string()])?;
        Ok(())
    }
}

/// Parses a row (name, whether it is of this boot, record, permits).
pub(super) fn read_record(row: &rusqlite::Row<'_>, moment: Moment) -> Result<Record> {
    let unreadable = |why: &dyn std::fmt::Display| {
        let name = row.get_ref(0).ok().and_then(|name| name.as_blob().ok());
        let name = LockName::from(name.unwrap_or_default());
        unreadable(&format!("the record of {name:?}"), why)
    };
    let text = row.get_ref(2)?.as_str().map_err(|error| unreadable(&error))?;
    let mut record: Record = serde_json::from_str(text).map_err(|error| unreadable(&error))?;
    let permits = row.get_ref(3)?.as_blob_or_null().map_err(|error| unreadable(&error))?;
    if permits.is_some_and(|permits| !record.unpack_permits(permits)) {
        return Err(unreadable(&"its permits are not whole").into());
    }
    Ok(if row.get(1)? { record } else { record.after_restart(moment.now, moment.epoch) })
}

/// Returns the remaining validity of an announcement in milliseconds.
fn left(ends: i64, now: u64) -> u64 {
    u64::try_from(ends).unwrap_or(0).saturating_sub(now)
}

impl StoredClient {
    fn of(client: &ClientEntry, ttl: u64) -> Self {
        let hold = |hold: &Holding| StoredHold {
            owner: hold.owner,
            kind: hold.resource.kind.as_str().to_owned(),
            name: hold.resource.name.as_bytes().to_vec(),
            count: hold.count,
            since: millis(hold.since),
            left: hold.left.map(millis),
        };
        let holds = client.holds.iter().map(hold).collect();
        let every = client.seen.map_or(0, |seen| seen.every.as_millis() as u64);
        Self { process: Process::of(&client.info), holds, more: client.more, ttl, every }
    }

    /// Parses a description. It is only for people, so an unreadable one is ignored.
    fn read(id: Uuid, about: &str, left: u64) -> Option<ClientEntry> {
        let Self { process, holds, more, ttl, every } = serde_json::from_str(about).ok()?;
        let hold = |hold: StoredHold| {
            let (kind, name) = (Kind::from_word(&hold.kind)?, LockName::from(&hold.name[..]));
            let (resource, since) = (Resource { kind, name }, time(hold.since));
            let left = hold.left.map(time);
            Some(Holding { owner: hold.owner, resource, count: hold.count, since, left })
        };
        let seen = (every > 0).then(|| Seen::new(ttl.saturating_sub(left), every));
        let holds = holds.into_iter().filter_map(hold).collect();
        Some(ClientEntry { id, info: process.info(), holds, more, seen })
    }
}
