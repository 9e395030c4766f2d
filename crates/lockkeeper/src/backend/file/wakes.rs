//! Wake-ups between processes: who listens is written in the file, and so is what they are told, in
//! the transaction that causes it. Nothing is written where nobody listens.
//!
//! Messages are numbered without gaps. A process reads those that follow the last one it has read; if
//! the next is not there any more, or its own session was given up meanwhile, it has missed some.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::db::{Db, Hitch};
use super::rows::signed;
use super::time::{Moment, since_start};
use crate::backend::Fault;
use crate::backend::model::Wake;
use crate::backend::wake::Topic;

/// How long a session outlives the last sign of its process, in milliseconds.
const LASTS: u64 = 10_000;

/// How often a process gives that sign.
const REFRESHED: u64 = 3_000;

/// One process, or rather one client, as a listener.
#[derive(Debug)]
pub(super) struct Session {
    id: i64,
    /// What is listened for, by the way it is written.
    topics: HashMap<Vec<u8>, Topic>,
    /// What is not any more, which could not be written down yet.
    ignored: Vec<Vec<u8>>,
    /// Until when others believe in it; 0 if it is not in the file.
    ends: u64,
    /// The last message that was read.
    last: i64,
}

/// What has come.
#[derive(Debug, Default)]
pub(super) struct Mail {
    pub(super) messages: Vec<(Topic, Vec<u8>)>,
    /// There was more, which is lost.
    pub(super) missed: bool,
}

/// Who was told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) sessions: u64,
    /// This client among them.
    own: bool,
    /// Others among them.
    others: bool,
}

impl Session {
    pub(super) fn new() -> Self {
        let (topics, ignored) = (HashMap::new(), Vec::new());
        Self { id: fastrand::i64(1..), topics, ignored, ends: 0, last: 0 }
    }

    pub(super) fn is_listening(&self) -> bool {
        !self.topics.is_empty()
    }

    /// How long until it must give a sign again, in milliseconds; nothing if nobody listens.
    pub(super) fn due_in(&self, now: u64) -> Option<u64> {
        let due = self.ends.saturating_sub(LASTS - REFRESHED);
        self.is_listening().then(|| due.saturating_sub(now))
    }

    /// Whether others have given it up, or would have.
    fn has_lapsed(&self, now: u64) -> bool {
        self.ends < now
    }
}

/// How a topic is written; nothing for what is no matter of the file's.
pub(super) fn written(topic: &Topic) -> Option<Vec<u8>> {
    let (kind, rest) = match topic {
        Topic::Freed(name) => ("freed ".to_owned(), name.as_bytes()),
        Topic::Turn(name, owner) => (format!("turn {owner} "), name.as_bytes()),
        Topic::Rw(name) => ("rw ".to_owned(), name.as_bytes()),
        Topic::Permits(name) => ("permits ".to_owned(), name.as_bytes()),
        Topic::Latch(name) => ("latch ".to_owned(), name.as_bytes()),
        Topic::Notice(client) => (format!("notice {client}"), &b""[..]),
        Topic::Reconnected => return None,
    };
    let mut written = kind.into_bytes();
    written.extend_from_slice(rest);
    Some(written)
}

impl Db {
    /// How many listen for a topic.
    pub(super) fn listeners(&self, topic: &[u8], now: u64) -> Result<u64, Hitch> {
        let sql = "SELECT count(*) FROM listeners JOIN sessions ON sessions.id = session
            WHERE topic = ?1 AND boot = ?2 AND ends >= ?3";
        let mut select = self.connection.prepare_cached(sql)?;
        let count: i64 = select.query_row((topic, &self.boot, signed(now)), |row| row.get(0))?;
        Ok(count.unsigned_abs())
    }

    /// Writes down what those who listen are told.
    pub(super) fn post(&self, wakes: &[Wake], now: u64) -> Result<Told, Hitch> {
        #[cfg(test)]
        self.woken.borrow_mut().extend_from_slice(wakes);
        let mut told = Told::default();
        for wake in wakes {
            let Some(topic) = written(&wake.topic) else { continue };
            let before = told.sessions;
            let sql = "SELECT session FROM listeners JOIN sessions ON sessions.id = session
                WHERE topic = ?1 AND boot = ?2 AND ends >= ?3";
            let mut select = self.connection.prepare_cached(sql)?;
            let mut rows = select.query((&topic, &self.boot, signed(now)))?;
            while let Some(row) = rows.next()? {
                let own = row.get::<_, i64>(0)? == self.session.id;
                told.sessions += 1;
                told.own |= own;
                told.others |= !own;
            }
            if told.sessions > before {
                let sql = "INSERT INTO messages (at, topic, payload) VALUES (?1, ?2, ?3)";
                let mut insert = self.connection.prepare_cached(sql)?;
                insert.execute((signed(now), &topic, &*wake.payload))?;
            }
        }
        Ok(told)
    }

    /// What was posted is committed: those who listen shall look.
    pub(super) fn ring(&mut self, told: Told) {
        self.has_mail |= told.own;
        if told.others {
            super::bell::ring(self.place.wal());
        }
    }

    /// Listens for `topic`: what is committed from now on cannot be missed. What came until now for
    /// other topics is answered, so that it can be told before.
    pub(super) fn listen(&mut self, topic: &Topic) -> Result<Mail, Fault> {
        let Some(key) = written(topic) else { return Ok(Mail::default()) };
        if self.session.topics.contains_key(&key) && !self.session.has_lapsed(since_start()) {
            return self.receive();
        }
        let (mail, ends) = self.write(|db, moment| {
            let (session, ends) = (&db.session, moment.now + LASTS);
            let sql = "INSERT OR REPLACE INTO sessions VALUES (?1, ?2, ?3, ?4)";
            let mut insert = db.connection.prepare_cached(sql)?;
            insert.execute((session.id, &db.boot, signed(ends), std::process::id()))?;
            let mail = if session.has_lapsed(moment.now) {
                db.enlist(session.topics.keys())?;
                db.start_over(session.ends > 0 && session.is_listening())?
            } else {
                db.unread()?
            };
            db.enlist([&key].into_iter())?;
            Ok((mail, ends))
        })?;
        self.session.ends = ends;
        if let Entry::Vacant(entry) = self.session.topics.entry(key) {
            entry.insert(topic.clone());
        }
        Ok(self.unpack(mail))
    }

    fn enlist<'a>(&self, topics: impl Iterator<Item = &'a Vec<u8>>) -> Result<(), Hitch> {
        let sql = "INSERT OR IGNORE INTO listeners VALUES (?1, ?2)";
        let mut insert = self.connection.prepare_cached(sql)?;
        for topic in topics {
            insert.execute((topic, self.session.id))?;
        }
        Ok(())
    }

    /// Stops listening for `topic`. If it cannot be written down now, it is along with the next sign of
    /// life; until then others take the trouble to tell it.
    pub(super) fn ignore(&mut self, topic: &Topic) {
        let Some(key) = written(topic) else { return };
        if self.session.topics.remove(&key).is_none() {
            return;
        }
        self.session.ignored.push(key);
        if self.write(|db, _| db.strike()).is_ok() {
            self.session.ignored.clear();
        }
    }

    /// Takes what is ignored off the list, unless it is listened for again.
    fn strike(&self) -> Result<(), Hitch> {
        let sql = "DELETE FROM listeners WHERE topic = ?1 AND session = ?2";
        let mut delete = self.connection.prepare_cached(sql)?;
        let Session { id, topics, ignored, .. } = &self.session;
        for key in ignored.iter().filter(|key| !topics.contains_key(*key)) {
            delete.execute((key, id))?;
        }
        Ok(())
    }

    /// Gives a sign of life, and puts back what others may have swept away.
    pub(super) fn refresh(&mut self) -> Result<Mail, Fault> {
        let (mail, ends) = self.write(|db, Moment { now, .. }| {
            let (session, ends) = (&db.session, now + LASTS);
            let sql = "UPDATE sessions SET ends = ?2 WHERE id = ?1 AND boot = ?3";
            let mut update = db.connection.prepare_cached(sql)?;
            let there = update.execute((session.id, signed(ends), &db.boot))? > 0;
            db.strike()?;
            if there && !session.has_lapsed(now) {
                return Ok((db.unread()?, ends));
            }
            let sql = "INSERT OR REPLACE INTO sessions VALUES (?1, ?2, ?3, ?4)";
            let mut insert = db.connection.prepare_cached(sql)?;
            insert.execute((session.id, &db.boot, signed(ends), std::process::id()))?;
            db.enlist(session.topics.keys())?;
            Ok((db.start_over(true)?, ends))
        })?;
        self.session.ends = ends;
        self.session.ignored.clear();
        Ok(self.unpack(mail))
    }

    /// Nobody listens any more.
    pub(super) fn leave(&mut self) -> Result<(), Fault> {
        if self.session.ends == 0 {
            return Ok(());
        }
        self.session.ends = 0;
        self.session.topics.clear();
        self.write(|db, _| {
            let of = [db.session.id];
            let sql = "DELETE FROM listeners WHERE session = ?1";
            db.connection.prepare_cached(sql)?.execute(of)?;
            db.connection.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute(of)?;
            Ok(())
        })
    }

    /// What has come since the last time.
    pub(super) fn receive(&mut self) -> Result<Mail, Fault> {
        self.has_mail = false;
        if !self.session.is_listening() {
            return Ok(Mail::default());
        }
        if self.session.has_lapsed(since_start()) {
            return self.refresh();
        }
        let mail = self.read(|db, _| db.unread())?;
        Ok(self.unpack(mail))
    }

    fn unpack(&mut self, (last, mail): (i64, Mail)) -> Mail {
        self.session.last = last;
        mail
    }

    /// The messages that follow the last one that was read, and which is the last now.
    fn unread(&self) -> Result<(i64, Mail), Hitch> {
        let mut last = self.session.last;
        let mut mail = Mail::default();
        let sql = "SELECT id, topic, payload FROM messages WHERE id > ?1 ORDER BY id";
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query([last])?;
        while let Some(row) = rows.next()? {
            let id = row.get(0)?;
            mail.missed |= id != last + 1;
            last = id;
            let topic = row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?;
            if let Some(topic) = self.session.topics.get(topic) {
                mail.messages.push((topic.clone(), row.get(2)?));
            }
        }
        Ok((last, mail))
    }

    /// Whatever was said so far is none of this session's business, or can no longer be known.
    fn start_over(&self, missed: bool) -> Result<(i64, Mail), Hitch> {
        let sql = "SELECT coalesce(max(id), 0) FROM messages";
        let last = self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        Ok((last, Mail { messages: Vec::new(), missed }))
    }
}
