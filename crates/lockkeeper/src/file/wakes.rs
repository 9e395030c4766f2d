//! Wake-ups between processes. The file contains the listeners and the messages to them; the
//! transaction that causes a message writes it. Nothing is written where no process listens.
//!
//! Of many listeners for a resource that only a few can acquire, only a few are woken, chosen at
//! random: three more than can acquire it (15 more for permits), because one of them may be stopped, or
//! may give up at this moment. The others sleep on until their re-check.
//!
//! Messages are numbered without gaps. A process reads the messages that follow the last one it has
//! read. If a number is missing, or its own session was given up meanwhile, it has missed messages;
//! then it wakes all its waiters, so that it need not know which messages it missed.

use super::db::{Db, Result};
use super::pipe::{self, Ring};
use super::session::{LASTS, Session};
use super::time::{Moment, signed, since_start};
use crate::backend::Fault;
use crate::backend::subscriptions::Topic;
use crate::model::{State, Wake};

/// How many more sessions are woken up than can acquire the released resource.
const SPARE: usize = 3;

/// The same for permits: each waiter may need more permits than are free.
const SPARE_FOR_PERMITS: usize = 15;

/// How many more sessions are loaded in case some of their processes have died.
const RESERVE: usize = 64;

/// Received messages.
#[derive(Debug, Default)]
pub(super) struct Mail {
    pub(super) messages: Vec<(Topic, Vec<u8>)>,
    /// Earlier messages were missed.
    pub(super) missed: bool,
}

/// The sessions to wake up.
#[derive(Clone, Debug, Default)]
pub(super) struct Woken {
    pub(super) sessions: u64,
    /// Whether this client is one of them.
    own: bool,
    /// Other sessions: how many to wake up, and from which list.
    others: Vec<(usize, Vec<i64>)>,
}

/// Returns the stored form of a topic; `None` for a local topic.
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
    /// Counts the listeners of a topic.
    pub(super) fn listeners(&self, topic: &[u8], now: u64) -> Result<u64> {
        let sql = "SELECT count(*) FROM listeners JOIN sessions ON sessions.id = session
            WHERE topic = ?1 AND boot = ?2 AND ends >= ?3";
        let mut select = self.connection.prepare_cached(sql)?;
        let count: i64 = select.query_row((topic, &self.boot, signed(now)), |row| row.get(0))?;
        Ok(count.unsigned_abs())
    }

    /// Writes the messages for listeners. `state` is the state after the request.
    pub(super) fn post(&self, wakes: &[Wake], state: &State, now: u64) -> Result<Woken> {
        #[cfg(test)]
        self.woken.borrow_mut().extend_from_slice(wakes);
        let mut woken = Woken::default();
        for wake in wakes {
            let Some(topic) = written(&wake.topic) else { continue };
            let own = self.session.topics.contains_key(&topic) && self.is_enlisted(&topic, now)?;
            let spare = match wake.topic {
                Topic::Permits(_) => SPARE_FOR_PERMITS,
                _ => SPARE,
            };
            let few = state.usable(wake, now).map(|usable| usable.saturating_add(spare));
            let others = match few {
                Some(few) => self.some_others(&topic, few.saturating_add(RESERVE), now)?,
                None => self.others(&topic, (i64::MIN, i64::MAX), usize::MAX, now)?,
            };
            if !own && others.is_empty() {
                continue;
            }
            let few = few.unwrap_or(usize::MAX).min(others.len());
            woken.sessions += u64::from(own) + few as u64;
            woken.own |= own;
            woken.others.push((few, others));
            let sql = "INSERT INTO messages (at, topic, payload) VALUES (?1, ?2, ?3)";
            let mut insert = self.connection.prepare_cached(sql)?;
            insert.execute((signed(now), &topic, &*wake.payload))?;
        }
        Ok(woken)
    }

    /// Whether this session is in the file.
    fn is_known(&self) -> Result<bool> {
        let sql = "SELECT 1 FROM sessions WHERE id = ?1 AND boot = ?2";
        let mut select = self.connection.prepare_cached(sql)?;
        Ok(select.exists((self.session.id, &self.boot))?)
    }

    /// Whether this client is recorded as a listener of a topic.
    fn is_enlisted(&self, topic: &[u8], now: u64) -> Result<bool> {
        let sql = "SELECT 1 FROM listeners CROSS JOIN sessions ON sessions.id = session
            WHERE topic = ?1 AND boot = ?2 AND ends >= ?3 AND session = ?4";
        let mut select = self.connection.prepare_cached(sql)?;
        Ok(select.exists((topic, &self.boot, signed(now), self.session.id))?)
    }

    /// Returns other sessions that listen for a topic, at most `limit`, from a random start. Their
    /// ids are random, too.
    fn some_others(&self, topic: &[u8], limit: usize, now: u64) -> Result<Vec<i64>> {
        let start = fastrand::i64(1..);
        let mut found = self.others(topic, (start, i64::MAX), limit, now)?;
        let rest = limit - found.len();
        if rest > 0 {
            found.extend(self.others(topic, (i64::MIN, start - 1), rest, now)?);
        }
        Ok(found)
    }

    fn others(
        &self,
        topic: &[u8],
        (first, last): (i64, i64),
        limit: usize,
        now: u64,
    ) -> Result<Vec<i64>> {
        let sql = "SELECT session FROM listeners CROSS JOIN sessions ON sessions.id = session
            WHERE topic = ?1 AND session BETWEEN ?4 AND ?5 AND boot = ?2 AND ends >= ?3
            AND session <> ?6 ORDER BY session LIMIT ?7";
        let mut select = self.connection.prepare_cached(sql)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let given = (topic, &self.boot, signed(now), first, last, self.session.id, limit);
        let found = select.query_map(given, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        Ok(found)
    }

    /// Wakes up the sessions after the commit of their messages.
    pub(super) fn ring(&mut self, woken: Woken) {
        self.has_mail |= woken.own;
        for (mut few, sessions) in woken.others {
            for session in sessions {
                if few == 0 {
                    break;
                }
                match pipe::ring(self.location.path(), session) {
                    Ring::Heard => few -= 1,
                    Ring::Dead => self.session.gone.push(session),
                    Ring::Unheard => {}
                }
            }
        }
    }

    /// Removes the sessions of processes that have died. If that fails, the sweep does it later.
    pub(super) fn remove_dead(&mut self) {
        let gone = std::mem::take(&mut self.session.gone);
        let removed =
            self.write(|db, _| gone.iter().try_for_each(|session| db.remove_session(*session)));
        if removed.is_ok() {
            gone.iter().for_each(|session| pipe::remove(self.location.path(), *session));
        }
    }

    /// Removes a session and its topics.
    fn remove_session(&self, session: i64) -> Result<()> {
        let sql = "DELETE FROM listeners WHERE session = ?1";
        self.connection.prepare_cached(sql)?.execute([session])?;
        self.connection.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([session])?;
        Ok(())
    }

    /// Listens for `topic`: no message committed from now on is missed. Returns the messages
    /// received before for other topics, so that they are delivered first.
    pub(super) fn listen(&mut self, topic: &Topic) -> Result<Mail, Fault> {
        let Some(key) = written(topic) else { return Ok(Mail::default()) };
        if self.session.topics.contains_key(&key) && !self.session.has_lapsed(since_start()) {
            return self.receive();
        }
        // Before other processes can see the session.
        if self.session.ends > 0 && self.session.has_lapsed(since_start()) {
            self.session.start_anew(self.location.path());
        }
        self.session.create_pipe(self.location.path());
        let (mail, ends) = self.write(|db, moment| {
            let (session, ends) = (&db.session, moment.now + LASTS);
            db.store_session(ends)?;
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
        self.session.topics.insert(key, topic.clone());
        Ok(self.unpack(mail))
    }

    fn store_session(&self, ends: u64) -> Result<()> {
        let sql = "INSERT OR REPLACE INTO sessions VALUES (?1, ?2, ?3, ?4)";
        let given = (self.session.id, &self.boot, signed(ends), std::process::id());
        self.connection.prepare_cached(sql)?.execute(given)?;
        Ok(())
    }

    fn enlist<'a>(&self, topics: impl Iterator<Item = &'a Vec<u8>>) -> Result<()> {
        let sql = "INSERT OR IGNORE INTO listeners VALUES (?1, ?2)";
        let mut insert = self.connection.prepare_cached(sql)?;
        for topic in topics {
            insert.execute((topic, self.session.id))?;
        }
        Ok(())
    }

    /// Stops listening for `topic`. If that cannot be written now, the next heartbeat does it;
    /// until then other processes still notify this one.
    pub(super) fn ignore(&mut self, topic: &Topic) {
        let Some(key) = written(topic) else { return };
        if self.session.topics.remove(&key).is_none() {
            return;
        }
        self.session.ignored.push(key);
        if self.write(|db, _| db.remove_ignored()).is_ok() {
            self.session.ignored.clear();
        }
    }

    /// Removes ignored topics, unless they have subscribers again.
    fn remove_ignored(&self) -> Result<()> {
        let sql = "DELETE FROM listeners WHERE topic = ?1 AND session = ?2";
        let mut delete = self.connection.prepare_cached(sql)?;
        let Session { id, topics, ignored, .. } = &self.session;
        for key in ignored.iter().filter(|key| !topics.contains_key(*key)) {
            delete.execute((key, id))?;
        }
        Ok(())
    }

    /// Sends a heartbeat, and restores rows that other processes may have swept.
    pub(super) fn refresh(&mut self) -> Result<Mail, Fault> {
        if self.session.has_lapsed(since_start())
            || !self.session.bell.is_found()
            || !self.read(|db, _| db.is_known())?
        {
            self.session.start_anew(self.location.path());
        }
        let (mail, ends) = self.write(|db, Moment { now, .. }| {
            let (session, ends) = (&db.session, now + LASTS);
            let sql = "UPDATE sessions SET ends = ?2 WHERE id = ?1 AND boot = ?3";
            let mut update = db.connection.prepare_cached(sql)?;
            let there = update.execute((session.id, signed(ends), &db.boot))? > 0;
            db.remove_ignored()?;
            if there && !session.has_lapsed(now) {
                return Ok((db.unread()?, ends));
            }
            db.store_session(ends)?;
            db.enlist(session.topics.keys())?;
            Ok((db.start_over(true)?, ends))
        })?;
        self.session.ends = ends;
        self.session.ignored.clear();
        Ok(self.unpack(mail))
    }

    /// Removes the session when there are no subscribers left.
    pub(super) fn leave(&mut self) -> Result<(), Fault> {
        if self.session.ends == 0 {
            return Ok(());
        }
        self.session.ends = 0;
        self.session.topics.clear();
        self.write(|db, _| db.remove_session(db.session.id))
    }

    /// Returns the messages since the last call.
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

    /// Returns the messages after the last one that was read, and the number of the last one.
    fn unread(&self) -> Result<(i64, Mail)> {
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

    /// Skips all messages so far: they are not for this session, or some of them are lost.
    fn start_over(&self, missed: bool) -> Result<(i64, Mail)> {
        let sql = "SELECT coalesce(max(id), 0) FROM messages";
        let last = self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        Ok((last, Mail { messages: Vec::new(), missed }))
    }
}
