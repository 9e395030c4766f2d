//! Who waits in the queue of a fair lock: a row for each, and a request reads only those who matter to
//! it, so that its cost does not grow with the queue.

use std::collections::HashMap;

use rusqlite::{OptionalExtension, Row};

use super::db::{Db, Hitch};
use super::rows::signed;
use crate::backend::model::{ends_front, lately};
use crate::{LockName, OwnerId};

/// Whose places must be known.
#[derive(Clone, Copy)]
pub(super) enum Who<'a> {
    All,
    /// Those whom a request is about, and what the model asks of a queue for them.
    These(&'a [OwnerId]),
}

/// A place, who has it, and when that one was last heard of.
type Place = (i64, OwnerId, u64);

fn read(row: &Row<'_>) -> rusqlite::Result<Place> {
    Ok((row.get(0)?, OwnerId::from_bytes(row.get(1)?), row.get::<_, i64>(2)?.unsigned_abs()))
}

impl Db {
    pub(super) fn load_waiters(
        &self,
        name: &LockName,
        who: Who<'_>,
        now: u64,
    ) -> Result<Vec<(OwnerId, u64)>, Hitch> {
        let mut places = self.front(name, who, now)?;
        if let Who::These(owners) = who {
            let sql = "SELECT place, owner, heard FROM waiters WHERE name = ?1 AND owner = ?2";
            let mut select = self.connection.prepare_cached(sql)?;
            for owner in owners {
                let given = (name.as_bytes(), owner.to_bytes());
                places.extend(select.query_row(given, read).optional()?);
            }
            // Of others: those whom the request is about may leave.
            let lately = lately(now);
            let counts = |(_, owner, heard): &Place| *heard >= lately && !owners.contains(owner);
            if !places.iter().any(counts) {
                places.extend(self.heard_last(name, owners, lately)?);
            }
            places.sort_unstable_by_key(|(place, ..)| *place);
            places.dedup_by_key(|(place, ..)| *place);
        }
        Ok(places.into_iter().map(|(_, owner, heard)| (owner, heard)).collect())
    }

    /// The front of the queue, as far as it must be known.
    fn front(&self, name: &LockName, who: Who<'_>, now: u64) -> Result<Vec<Place>, Hitch> {
        let sql = "SELECT place, owner, heard FROM waiters WHERE name = ?1 ORDER BY place";
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query([name.as_bytes()])?;
        let mut front = Vec::new();
        while let Some(row) = rows.next()? {
            let (place, owner, heard) = read(row)?;
            front.push((place, owner, heard));
            if let Who::These(owners) = who
                && !owners.contains(&owner)
                && ends_front(heard, now)
            {
                break;
            }
        }
        Ok(front)
    }

    /// Somebody else who was heard of lately; if nobody was, the last one.
    fn heard_last(
        &self,
        name: &LockName,
        owners: &[OwnerId],
        lately: u64,
    ) -> Result<Option<Place>, Hitch> {
        for (since, sql) in [
            (lately, "SELECT place, owner, heard FROM waiters WHERE name = ?1 AND heard >= ?2"),
            (
                0,
                "SELECT place, owner, heard FROM waiters WHERE name = ?1 AND heard >= ?2
                ORDER BY heard DESC",
            ),
        ] {
            let mut select = self.connection.prepare_cached(sql)?;
            let mut rows = select.query((name.as_bytes(), signed(since)))?;
            while let Some(row) = rows.next()? {
                let place = read(row)?;
                if !owners.contains(&place.1) {
                    return Ok(Some(place));
                }
            }
        }
        Ok(None)
    }

    /// Writes down what has become of those who were known before, and who has come.
    pub(super) fn store_waiters(
        &self,
        name: &LockName,
        before: Option<Vec<(OwnerId, u64)>>,
        after: Option<Vec<(OwnerId, u64)>>,
    ) -> Result<(), Hitch> {
        let (before, after) = match (before, after) {
            (None, None) => return Ok(()),
            (Some(_), None) => return self.erase_waiters(name.as_bytes()),
            (None, Some(after)) => {
                // Of an earlier queue, which counts no longer.
                self.erase_waiters(name.as_bytes())?;
                (HashMap::new(), after)
            }
            (Some(before), Some(after)) => (before.into_iter().collect(), after),
        };
        let name = name.as_bytes();
        let mut left: HashMap<OwnerId, u64> = before;
        for (owner, heard) in after {
            let given = (name, owner.to_bytes(), signed(heard));
            let sql = match left.remove(&owner) {
                Some(known) if known == heard => continue,
                Some(_) => "UPDATE waiters SET heard = ?3 WHERE name = ?1 AND owner = ?2",
                None => {
                    "INSERT INTO waiters (name, owner, heard, place) SELECT ?1, ?2, ?3,
                        coalesce((SELECT max(place) FROM waiters WHERE name = ?1), 0) + 1"
                }
            };
            self.connection.prepare_cached(sql)?.execute(given)?;
        }
        let sql = "DELETE FROM waiters WHERE name = ?1 AND owner = ?2";
        for owner in left.into_keys() {
            self.connection.prepare_cached(sql)?.execute((name, owner.to_bytes()))?;
        }
        Ok(())
    }

    pub(super) fn erase_waiters(&self, name: &[u8]) -> Result<(), Hitch> {
        let sql = "DELETE FROM waiters WHERE name = ?1";
        self.connection.prepare_cached(sql)?.execute([name])?;
        Ok(())
    }
}
