//! Sweeping out entries that no request has concerned since they expired. A little after every few changes, in the order
//! of names, so that no request ever waits for long.

use super::db::{Db, Result};
use super::pipe;
use super::rows::read_record;
use super::time::{Moment, signed};
use crate::backend::Fault;

/// The number of changes between two sweeps.
pub(super) const EVERY: u32 = 64;

/// How many rows a sweep examines: more than were written since the last one, so that it catches
/// up.
const LOOKED_AT: usize = 256;

/// How long messages are kept, in milliseconds. A process that has not read for longer wakes up all
/// of its waiters.
const KEPT: u64 = 10_000;

impl Db {
    /// Counts a change. Returns whether a sweep is due.
    pub(super) fn sweep_is_due(&mut self) -> bool {
        self.sweep_in -= 1;
        if self.sweep_in == 0 {
            self.sweep_in = EVERY;
        }
        self.sweep_in == EVERY
    }

    pub(super) fn sweep(&mut self) -> Result<(), Fault> {
        let ended = self.write(|db, moment| {
            db.sweep_names(moment)?;
            db.sweep_the_rest(moment)
        })?;
        ended.into_iter().for_each(|session| pipe::remove(self.location.path(), session));
        Ok(())
    }

    fn sweep_names(&self, moment: Moment) -> Result<()> {
        let mut ended = Vec::new();
        let (mut last, mut seen) = (None, 0);
        {
            let sql = "SELECT name, boot = ?1, record, permits, ends FROM names
                WHERE name > (SELECT next FROM chores) ORDER BY name LIMIT ?2";
            let mut select = self.connection.prepare_cached(sql)?;
            let mut rows = select.query((&self.boot, LOOKED_AT as i64))?;
            while let Some(row) = rows.next()? {
                let name: Vec<u8> = row.get(0)?;
                let over = match (row.get(1)?, row.get::<_, Option<i64>>(4)?) {
                    (true, ends) => ends.is_some_and(|ends| ends < signed(moment.now)),
                    // An unreadable row is reported to the requests for it.
                    (false, _) => read_record(row, moment).is_ok_and(|record| record.is_empty()),
                };
                if over {
                    ended.push(name.clone());
                }
                (last, seen) = (Some(name), seen + 1);
            }
        }
        let mut delete = self.connection.prepare_cached("DELETE FROM names WHERE name = ?1")?;
        for name in ended {
            delete.execute([&name])?;
            self.erase_waiters(&name)?;
        }
        // Starts again at the beginning after the last row.
        let next = last.filter(|_| seen == LOOKED_AT).unwrap_or_default();
        let sql = "UPDATE chores SET next = ?1 WHERE next <> ?1";
        self.connection.prepare_cached(sql)?.execute([next])?;
        Ok(())
    }

    /// Sweeps the other tables. Returns the sessions that have expired.
    fn sweep_the_rest(&self, Moment { now, .. }: Moment) -> Result<Vec<i64>> {
        let (boot, limit) = (&self.boot, LOOKED_AT as i64);
        let sql = "DELETE FROM clients WHERE boot <> ?1 OR ends < ?2";
        self.connection.prepare_cached(sql)?.execute((boot, signed(now)))?;
        let sql = "DELETE FROM sessions WHERE boot <> ?1 OR ends < ?2 RETURNING id";
        let mut delete = self.connection.prepare_cached(sql)?;
        let ended = delete.query_map((boot, signed(now)), |row| row.get(0))?;
        let ended: Vec<i64> = ended.collect::<rusqlite::Result<_>>()?;
        let sql = "DELETE FROM listeners WHERE session NOT IN (SELECT id FROM sessions)";
        self.connection.prepare_cached(sql)?.execute([])?;
        // The last message stays, because the next one is numbered after it. A message from the
        // future is of another boot.
        let sql = "DELETE FROM messages WHERE id IN (SELECT id FROM messages ORDER BY id LIMIT ?1)
            AND id < (SELECT max(id) FROM messages) AND (at < ?2 OR at > ?3)";
        let kept = signed(now.saturating_sub(KEPT));
        self.connection.prepare_cached(sql)?.execute((limit, kept, signed(now)))?;
        Ok(ended)
    }
}
