//! The queue of a fair lock: one row for each waiter. A request reads only the rows that matter to it,
//! so that its cost does not grow with the queue.
//!
//! A waiter writes a sign of life about once a second, and the model drops a head that was silent for
//! three. With a thousand processes in the queue these writes would keep the head from its turn. So only
//! the front of the queue writes them that often. A waiter behind it does so every ten seconds, and is
//! not dropped there for less than thirty; when it comes up to the front, that counts as a sign of life.

use std::collections::{HashMap, HashSet};

use rusqlite::{OptionalExtension, Row};

use super::db::{Db, Result};
use super::time::signed;
use crate::model::{ends_front, lately, least_alive};
use crate::{LockName, OwnerId};

/// How many waiters are the front of a queue.
const FRONT: usize = 32;

/// How often a waiter behind the front writes a sign of life, in milliseconds.
const BACK_EVERY: u64 = 10_000;

/// A waiter behind the front is alive if it wrote one within so many milliseconds.
const BACK_SILENT: u64 = 30_000;

/// Whose positions must be known.
#[derive(Clone, Copy)]
pub(super) enum Who<'a> {
    All,
    /// Those whom a request is about, and what the model asks of a queue for them.
    These(&'a [OwnerId]),
}

/// An index in the queue, the waiter that has it, and the time of its last sign of life.
type Position = (i64, OwnerId, u64);

fn read(row: &Row<'_>) -> rusqlite::Result<Position> {
    Ok((row.get(0)?, OwnerId::from_bytes(row.get(1)?), row.get::<_, i64>(2)?.unsigned_abs()))
}

/// What the silence of a waiter behind the front means to the model: it is alive, though it was not heard
/// of lately, unless it was silent for too long even there.
fn as_of_the_back(heard: u64, now: u64) -> u64 {
    let alive = heard + BACK_SILENT >= now;
    if alive { heard.max(least_alive(now)) } else { heard }
}

impl Db {
    pub(super) fn load_waiters(
        &self,
        name: &LockName,
        who: Who<'_>,
        now: u64,
    ) -> Result<Vec<(OwnerId, u64)>> {
        let mut positions = self.front(name, who, now)?;
        if let Who::These(owners) = who {
            let sql = "SELECT place, owner, heard FROM waiters WHERE name = ?1 AND owner = ?2";
            let mut select = self.connection.prepare_cached(sql)?;
            for owner in owners {
                let given = (name.as_bytes(), owner.to_bytes());
                positions.extend(select.query_row(given, read).optional()?);
            }
            // Of others: those whom the request is about may leave.
            let lately = lately(now);
            let counts = |(_, owner, heard): &Position| *heard >= lately && !owners.contains(owner);
            if !positions.iter().any(counts) {
                positions.extend(self.heard_last(name, owners, lately)?);
            }
            // Of two of the same place the first stays, which is that of the front.
            positions.sort_by_key(|(place, ..)| *place);
            positions.dedup_by_key(|(place, ..)| *place);
        }
        Ok(positions.into_iter().map(|(_, owner, heard)| (owner, heard)).collect())
    }

    /// The front of the queue, as far as it must be known.
    fn front(&self, name: &LockName, who: Who<'_>, now: u64) -> Result<Vec<Position>> {
        let sql = "SELECT place, owner, heard FROM waiters WHERE name = ?1 ORDER BY place";
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query([name.as_bytes()])?;
        let (mut front, mut silent) = (Vec::new(), HashSet::new());
        while let Some(row) = rows.next()? {
            let (place, owner, mut heard) = read(row)?;
            let client = owner.client;
            if front.len() >= FRONT && !silent.contains(&client) {
                heard = as_of_the_back(heard, now);
            }
            front.push((place, owner, heard));
            let Who::These(owners) = who else { continue };
            if !owners.contains(&owner) && ends_front(heard, now) {
                break;
            }
            // A client speaks for all of its waiters: those behind the front have died with it.
            if owners.iter().all(|owner| owner.client != client) {
                silent.insert(client);
            }
        }
        Ok(front)
    }

    /// Whether a waiter need not write a sign of life now: it is behind the front, wrote one lately, and
    /// the head of the queue is not silent.
    pub(super) fn waits_behind(&self, name: &LockName, owner: OwnerId, now: u64) -> Result<bool> {
        let sql = "SELECT own.heard, (SELECT heard FROM waiters WHERE name = ?1 ORDER BY place),
                (SELECT count(*) FROM (SELECT 1 FROM waiters AS ahead
                    WHERE ahead.name = ?1 AND ahead.place < own.place LIMIT ?3))
            FROM waiters AS own WHERE own.name = ?1 AND own.owner = ?2";
        let mut select = self.connection.prepare_cached(sql)?;
        let given = (name.as_bytes(), owner.to_bytes(), FRONT as i64);
        let found = select.query_row(given, |row| {
            let [own, head] = [row.get::<_, i64>(0)?, row.get(1)?].map(i64::unsigned_abs);
            let behind = row.get::<_, i64>(2)? >= FRONT as i64;
            Ok(behind && own + BACK_EVERY >= now && ends_front(head, now))
        });
        Ok(found.optional()?.unwrap_or(false))
    }

    /// Another waiter that wrote a sign of life lately; if none did, the last one.
    fn heard_last(
        &self,
        name: &LockName,
        owners: &[OwnerId],
        lately: u64,
    ) -> Result<Option<Position>> {
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
                let position = read(row)?;
                if !owners.contains(&position.1) {
                    return Ok(Some(position));
                }
            }
        }
        Ok(None)
    }

    /// Stores the changes of the waiters that were loaded, and the new ones.
    pub(super) fn store_waiters(
        &self,
        name: &LockName,
        before: Option<Vec<(OwnerId, u64)>>,
        after: Option<Vec<(OwnerId, u64)>>,
        now: u64,
    ) -> Result<()> {
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
        let gone = left.len().min(FRONT);
        for owner in left.into_keys() {
            self.connection.prepare_cached(sql)?.execute((name, owner.to_bytes()))?;
        }
        if gone > 0 {
            // As many have come up to the front.
            let sql = "UPDATE waiters SET heard = ?2 WHERE name = ?1 AND heard BETWEEN ?3 AND ?2
                AND place IN (SELECT place FROM waiters WHERE name = ?1 ORDER BY place
                    LIMIT ?4 OFFSET ?5)";
            let alive = signed(now.saturating_sub(BACK_SILENT));
            let given = (name, signed(now), alive, gone as i64, (FRONT - gone) as i64);
            self.connection.prepare_cached(sql)?.execute(given)?;
        }
        Ok(())
    }

    pub(super) fn erase_waiters(&self, name: &[u8]) -> Result<()> {
        let sql = "DELETE FROM waiters WHERE name = ?1";
        self.connection.prepare_cached(sql)?.execute([name])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use uuid::Uuid;

    use super::*;
    use crate::backend::{Acquire, Attempt, Kind, Release, Renew, Renewed, Resource};
    use crate::file::time::Moment;

    struct Queue {
        db: Db,
        lock: Resource,
        holder: OwnerId,
        waiters: Vec<OwnerId>,
        _folder: TempDir,
    }

    impl Queue {
        /// A held lock, and `count` clients that wait for it since the moment 10,000.
        fn of(count: usize) -> Self {
            Self::with(std::iter::repeat_with(Uuid::new_v4).take(count))
        }

        /// The same with one waiter of each of these clients.
        fn with(clients: impl Iterator<Item = Uuid>) -> Self {
            let (db, folder) = Db::for_test();
            let lock = Resource { kind: Kind::Fair, name: LockName::from("a") };
            let holder = OwnerId::fresh(Uuid::new_v4());
            let waiters = clients.map(OwnerId::fresh).collect();
            let mut queue = Self { db, lock, holder, waiters, _folder: folder };
            queue.at(10_000);
            assert!(matches!(queue.acquire(holder), Attempt::Granted { .. }));
            for owner in queue.waiters.clone() {
                assert!(matches!(queue.acquire(owner), Attempt::Busy { .. }));
            }
            queue
        }

        fn at(&mut self, now: u64) {
            self.db.stopped = Some(Moment { now, epoch: 0 });
        }

        fn acquire(&mut self, owner: OwnerId) -> Attempt {
            let request = Acquire::new(self.lock.clone(), owner, 600_000);
            self.db.acquire(&Acquire { waits: true, ..request }).expect("it is answered")
        }

        fn renew(&mut self, waiter: usize) -> Renewed {
            let renew = Renew::new(self.lock.clone(), self.waiters[waiter], None);
            let answer = self.db.renew(&[Renew { waiting: true, ..renew }]).remove(0);
            answer.expect("it is answered")
        }

        fn release(&mut self) {
            let release = Release::new(self.lock.clone(), self.holder);
            self.db.release(&release).expect("it is answered");
        }

        /// One more waits since then.
        fn joined_at(&mut self, now: u64) {
            self.at(now);
            let owner = OwnerId::fresh(Uuid::new_v4());
            assert!(matches!(self.acquire(owner), Attempt::Busy { .. }));
            self.waiters.push(owner);
        }

        fn heard(&self, waiter: usize) -> i64 {
            let sql = "SELECT heard FROM waiters WHERE owner = ?1";
            let owner = self.waiters[waiter].to_bytes();
            self.db.connection.query_row(sql, [owner], |row| row.get(0)).expect("it waits")
        }
    }

    #[test]
    fn only_the_front_writes_signs_of_life_each_time() {
        let mut queue = Queue::of(40);
        for now in (11_000..=20_000).step_by(1_000) {
            queue.at(now);
            for waiter in 0..40 {
                assert_eq!(queue.renew(waiter), Renewed::Waiting);
                let expected = if waiter < FRONT { now as i64 } else { 10_000 };
                assert_eq!(queue.heard(waiter), expected, "waiter {waiter} at {now}");
            }
            let shown = queue.db.inspect(&queue.lock).expect("it is answered").queue;
            assert_eq!(shown.len(), 40, "all of them wait, at {now}");
        }
        queue.at(20_001);
        assert_eq!(queue.renew(39), Renewed::Waiting);
        assert_eq!(queue.heard(39), 20_001, "now and then those behind write one, too");
    }

    #[test]
    fn a_waiter_that_comes_up_to_the_front_has_time_to_speak() {
        let mut queue = Queue::of(40);
        queue.at(10_100);
        queue.release();
        assert!(matches!(queue.acquire(queue.waiters[0]), Attempt::Granted { .. }));
        let heard: Vec<_> = (31..34).map(|waiter| queue.heard(waiter)).collect();
        assert_eq!(heard, [10_000, 10_100, 10_000]);
        // One that was silent for long gets no more time.
        queue.at(41_000);
        let release = Release::new(queue.lock.clone(), queue.waiters[0]);
        queue.db.release(&release).expect("it is answered");
        assert_eq!(queue.heard(33), 10_000);
    }

    #[test]
    fn a_waiter_behind_the_front_drops_all_who_died_before_it() {
        let mut queue = Queue::of(40);
        queue.release();
        queue.at(12_999);
        assert_eq!(queue.renew(39), Renewed::Waiting, "the front may still speak");
        queue.at(13_001);
        assert_eq!(queue.renew(39), Renewed::Waiting, "a silence of all is forgiven once");
        queue.at(16_001);
        assert_eq!(queue.renew(39), Renewed::Waiting, "those who come up may still speak");
        queue.at(19_002);
        assert_eq!(queue.renew(39), Renewed::Due, "it is the only one left");
        assert!(matches!(queue.acquire(queue.waiters[39]), Attempt::Granted { .. }));
    }

    /// Their signs of life were answered without being written.
    #[test]
    fn waiters_behind_a_front_that_died_keep_their_positions() {
        let mut queue = Queue::of(40);
        queue.release();
        queue.joined_at(11_400);
        queue.joined_at(12_800);
        queue.at(13_001);
        assert_eq!(queue.renew(41), Renewed::Waiting);
        assert_eq!(queue.renew(40), Renewed::Waiting, "others came before it");
        assert_eq!(queue.heard(32), 13_001, "it has come up to the front");
        assert_eq!(queue.renew(32), Renewed::Due, "all before it have died");
    }

    #[test]
    fn a_client_that_died_has_no_positions_behind_the_front_either() {
        let mut queue = Queue::with(std::iter::repeat_n(Uuid::new_v4(), 40));
        queue.release();
        queue.joined_at(11_400);
        queue.joined_at(12_800);
        queue.at(13_001);
        assert_eq!(queue.renew(41), Renewed::Waiting);
        assert_eq!(queue.renew(40), Renewed::Due, "all before it have died");
    }

    #[test]
    fn waiters_behind_the_front_are_dropped_after_a_longer_silence() {
        let mut queue = Queue::of(40);
        queue.release();
        queue.joined_at(40_001);
        queue.at(43_001);
        assert_eq!(queue.renew(40), Renewed::Due, "a silence of all is forgiven, but not for long");
    }
}
