//! The thread of a file store. It alone accesses the database, serves one request after the other, and
//! listens for other processes while it is idle.
//!
//! It is a thread because SQLite blocks, and waits for other processes. Because the thread serves
//! requests one at a time, a request without an answer cannot execute later.

use std::io::PipeReader;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::db::{Db, soon};
use super::path::Location;
use super::pipe::WakePipe;
use super::time::since_start;
use super::wakes::Mail;
use super::work_queue::{Order, WorkQueue};
use super::{busy_handler, fault};
use crate::backend::Fault;
use crate::backend::subscriptions::{Subscriptions, Topic};
use crate::model::State;

/// The delay before a failed task is retried.
const AGAIN: Duration = Duration::from_millis(100);

/// How often the thread checks that the file still exists, if nothing else makes it look.
const LOOKS: Duration = Duration::from_secs(3);

/// The same while a waiter listens: a deleted file would never wake it up.
const LISTENING_LOOKS: Duration = Duration::from_secs(1);

/// How long after its deadline a caller still waits for an answer.
const ANSWER_WAIT: Duration = Duration::from_millis(250);

/// How many orders are executed before the thread reads messages.
const ORDERS: usize = 64;

pub(super) struct Worker {
    work_queue: Arc<WorkQueue>,
    rings: PipeReader,
    hub: Subscriptions,
    location: Location,
    db: Option<Db>,
    /// Its answers while the file is not open.
    replies: State,
    /// Topics with subscribers that could not be listened for yet.
    unlistened: Vec<Topic>,
    /// When a failed task is retried.
    again: Option<Instant>,
    closing: Option<oneshot::Sender<()>>,
}

/// Opens the file, reports its identity, and executes orders until it must end.
pub(super) fn run(
    (work_queue, rings): (Arc<WorkQueue>, PipeReader),
    hub: Subscriptions,
    (path, read_only): (PathBuf, bool),
    limit: Instant,
    opened: oneshot::Sender<Result<PathBuf, Fault>>,
) {
    // However this thread ends, all pending callers get an answer.
    let _end = End(Arc::clone(&work_queue), hub.clone());
    busy_handler::stop_when(work_queue.closing());
    busy_handler::set_limit(limit);
    let found =
        Location::find(&path, read_only).and_then(|location| Ok((Db::open(&location)?, location)));
    let (db, location) = match found {
        Ok(found) => found,
        Err(fault) => return drop(opened.send(Err(fault))),
    };
    let path = location.path().to_owned();
    let mut worker = Worker {
        work_queue,
        rings,
        hub,
        location,
        db: Some(db),
        replies: State::default(),
        unlistened: Vec::new(),
        again: None,
        closing: None,
    };
    if opened.send(Ok(path)).is_ok() {
        worker.serve();
    }
}

struct End(Arc<WorkQueue>, Subscriptions);

impl Drop for End {
    fn drop(&mut self) {
        self.0.shut();
        for topic in self.1.broken() {
            self.1.fail(&topic, Fault::Closed);
        }
    }
}

impl Worker {
    fn serve(&mut self) {
        loop {
            let mut done = 0;
            while let Some(order) = self.work_queue.next() {
                if !self.follow(order) {
                    return self.end();
                }
                done += 1;
                if done == ORDERS {
                    break;
                }
            }
            self.look_after();
            let idle = self.work_queue.doze();
            let limit = if idle { self.sleeps_for() } else { Some(Duration::ZERO) };
            let is_rung = match &self.db {
                Some(db) => db.session.sleep(&self.rings, limit),
                None => WakePipe::Silent.sleep(&self.rings, false, limit),
            };
            if idle {
                self.work_queue.wake(&mut self.rings);
            }
            if is_rung {
                self.listen_in();
            }
        }
    }

    fn is_listening(&self) -> bool {
        self.db.as_ref().is_some_and(|db| db.session.is_listening())
    }

    fn sleeps_for(&self) -> Option<Duration> {
        let again = self.again.map(|again| again.saturating_duration_since(Instant::now()));
        let Some(db) = &self.db else { return again };
        let due = db.session.due_in(since_start()).map(Duration::from_millis);
        // A failed heartbeat is retried after a delay.
        let looks = if db.session.is_listening() { LISTENING_LOOKS } else { LOOKS };
        Some(again.or(due).unwrap_or(looks).min(looks))
    }

    /// Executes an order. Returns false when the thread must end.
    fn follow(&mut self, order: Order) -> bool {
        match order {
            Order::Do(deadline, work) => {
                if Instant::now() >= deadline + ANSWER_WAIT {
                    work(Err(self.too_late()));
                    return true;
                }
                // After the deadline it is executed only if it need not wait.
                busy_handler::set_limit(deadline);
                match self.database() {
                    Ok(db) => {
                        work(Ok(&mut *db));
                        self.after_work();
                    }
                    Err(fault) => work(Err(fault)),
                }
            }
            Order::Listen(topic) => {
                busy_handler::set_limit(soon());
                self.listen(topic);
            }
            Order::Ignore(topic) => {
                busy_handler::set_limit(soon());
                self.unlistened.retain(|unlistened| *unlistened != topic);
                // A new file does not contain the topic.
                if let Some(db) = self.db.as_mut().filter(|db| !db.is_elsewhere()) {
                    db.ignore(&topic);
                }
            }
            Order::Close(done) => {
                self.closing = done;
                return false;
            }
        }
        true
    }

    /// Closes the file if it was deleted or replaced. A new one is opened only when a request needs
    /// it: a user that deletes the file does not want a new one, and while the old one is open,
    /// SQLite takes the files beside it for those of the new one.
    fn let_go(&mut self) {
        if self.db.as_ref().is_some_and(Db::is_elsewhere) {
            let path = self.location.path().display();
            tracing::warn!(%path, "the file of locks was deleted or replaced: all of its locks are lost");
            self.close();
        }
    }

    fn close(&mut self) {
        if let Some(db) = self.db.take() {
            self.replies = db.replies;
        }
        // All topics are subscribed again.
        self.unlistened = self.hub.broken();
        self.again = (!self.unlistened.is_empty()).then(Instant::now);
    }

    /// Returns the database, reopened if the file was deleted or replaced.
    fn database(&mut self) -> Result<&mut Db, Fault> {
        self.let_go();
        match &mut self.db {
            Some(db) => Ok(db),
            // A file deleted while the client closes must not be created again.
            None if self.work_queue.is_closing() => Err(Fault::Closed),
            none => {
                let opened = self
                    .location
                    .found_anew()
                    .and_then(|location| Ok((Db::open(&location)?, location)));
                // The file was usable before, so any fault may be temporary.
                let (mut db, location) = opened.map_err(fault::for_now)?;
                self.location = location;
                db.replies = std::mem::take(&mut self.replies);
                self.hub.wake(&Topic::Reconnected, b"");
                Ok(none.insert(db))
            }
        }
    }

    /// Does the work that follows an answered order.
    fn after_work(&mut self) {
        if self.db.as_ref().is_some_and(Db::is_stuck) {
            // A stuck transaction blocks all other writers while the file is open.
            self.close();
        }
        let Some(db) = &mut self.db else { return };
        if db.has_mail {
            self.listen_in();
        }
        let Some(db) = &mut self.db else { return };
        if !db.session.gone.is_empty() {
            busy_handler::set_limit(soon());
            db.remove_dead();
        }
        db.checkpoint();
        if db.sweep_is_due() {
            busy_handler::set_limit(soon());
            if let Err(fault) = db.sweep() {
                tracing::debug!(%fault, "not swept");
            }
        }
    }

    fn listen(&mut self, topic: Topic) {
        if topic == Topic::Reconnected {
            return;
        }
        self.hub.requested(&topic);
        let listened = self.database().and_then(|db| db.listen(&topic));
        match listened {
            Ok(mail) => {
                self.deliver(Ok(mail));
                self.hub.confirmed(&topic);
                self.hub.confirm(&topic);
            }
            Err(fault) if fault.may_pass() => {
                self.unlistened.push(topic);
                self.again = Some(Instant::now() + AGAIN);
            }
            Err(fault) => self.hub.fail(&topic, fault),
        }
    }

    /// Does periodic work.
    fn look_after(&mut self) {
        self.let_go();
        if self.again.is_some_and(|again| again <= Instant::now()) {
            self.again = None;
            busy_handler::set_limit(soon());
            let mut topics = std::mem::take(&mut self.unlistened).into_iter();
            for topic in topics.by_ref() {
                self.listen(topic);
                if self.again.is_some() {
                    // The same fault would hit the other topics.
                    break;
                }
            }
            self.unlistened.extend(topics);
            if self.is_listening() {
                self.listen_in();
            }
        }
        let Some(db) = &mut self.db else { return };
        if self.again.is_none() && db.session.due_in(since_start()) == Some(0) {
            busy_handler::set_limit(soon());
            let mail = db.refresh();
            self.deliver(mail);
        }
    }

    /// Reads messages and checks that the file still exists.
    fn listen_in(&mut self) {
        self.let_go();
        let Some(db) = &mut self.db else { return };
        busy_handler::set_limit(soon());
        let mail = db.receive();
        self.deliver(mail);
    }

    fn deliver(&mut self, mail: Result<Mail, Fault>) {
        let mail = match mail {
            Ok(mail) => mail,
            Err(fault) => {
                self.again = Some(Instant::now() + AGAIN);
                return tracing::debug!(%fault, "wake-ups cannot be read");
            }
        };
        for (topic, payload) in &mail.messages {
            self.hub.wake(topic, payload);
        }
        if mail.missed {
            tracing::debug!("wake-ups were missed: all waiters look again");
            for topic in self.hub.broken() {
                self.hub.confirmed(&topic);
                self.hub.confirm(&topic);
            }
            self.hub.wake(&Topic::Reconnected, b"");
        }
    }

    fn too_late(&mut self) -> Fault {
        let fault = Fault::silent("the request got no turn within its time limit");
        match &mut self.db {
            Some(db) => db.or_busy(fault),
            None => fault,
        }
    }

    fn end(&mut self) {
        busy_handler::stop_by_limit_only();
        busy_handler::set_limit(soon());
        if let Some(mut db) = self.db.take() {
            let _ = db.leave();
        }
        drop(self.closing.take());
    }
}
