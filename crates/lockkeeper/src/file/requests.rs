//! The requests of a file store: the model, in one transaction (`BEGIN IMMEDIATE`) per request.
//!
//! The meaning of a request is written once, in the model. A request loads only the records that
//! concern it, lets the model answer and writes back only the changes, so a busy attempt only reads. Of
//! a fair lock's queue it loads only the waiters that matter (`waiters`), of the remembered answers
//! (`Db::replies`) only its own. A property test (`model_test`) sends the same requests at the same moments to this code
//! and to the whole model, and so shows that these records suffice.

use std::collections::HashMap;

use super::busy_handler;
use super::db::{Db, Result};
use super::time::Moment;
use super::waiters::Who;
use super::wakes::Woken;
use crate::backend::{
    Acquire, Attempt, Change, Changed, Fault, Kind, LockInfo, Release, Released, Renew, Renewed,
    Resource,
};
use crate::model::{Record, State, Wake};
use crate::{LockName, OwnerId};

/// The data that a request needs: its names and their waiters, whether the clients of holders are
/// needed, and its id if the answer is remembered.
struct RequestScope<'a> {
    names: Vec<(&'a LockName, Who<'a>)>,
    clients: bool,
    reply: Option<(&'a LockName, OwnerId)>,
}

impl<'a> RequestScope<'a> {
    fn one(name: &'a LockName, who: Who<'a>) -> Self {
        Self { names: vec![(name, who)], clients: false, reply: None }
    }

    fn hold(resource: &'a Resource, owner: &'a OwnerId) -> Self {
        let reply = (resource.kind == Kind::Semaphore).then_some((&resource.name, *owner));
        Self { reply, ..Self::one(&resource.name, Who::These(std::slice::from_ref(owner))) }
    }
}

/// The state of a request, and its records as loaded from the file.
type Loaded<'a> = (State, Vec<(&'a LockName, Record)>);

impl Db {
    pub(super) fn acquire(&mut self, request: &Acquire) -> Result<Attempt, Fault> {
        let mut scope = RequestScope::hold(&request.resource, &request.owner);
        scope.names.extend(
            request
                .also
                .iter()
                .map(|(name, owner)| (name, Who::These(std::slice::from_ref(owner)))),
        );
        let answer = |state: &mut State, now: u64| state.acquire(request, now);
        let done = busy_handler::at_once(|| self.change(&scope, answer));
        let Err(Fault::Unreachable { maybe_ran: false, .. }) = done else { return done?.0 };
        // Other processes are writing. A busy answer to a waiter need not wait for them.
        if let Some(answer) = self.glance(&scope, answer)? {
            return answer;
        }
        self.change(&scope, answer).map_err(|fault| self.or_busy(fault))?.0
    }

    pub(super) fn release(&mut self, request: &Release) -> Result<Released, Fault> {
        let scope = RequestScope::hold(&request.resource, &request.owner);
        let changed = self.change(&scope, |state, now| state.release(request, now));
        let (mut answer, woken) = changed.map_err(|fault| self.or_busy(fault))?;
        if let Ok(Released::Freed { listeners }) = &mut answer {
            *listeners = Some(woken.sessions);
        }
        answer
    }

    /// Renews holds. A fault of the whole request is the fault of each entry. If a record is unreadable,
    /// renews name by name, so that it is the fault of its entries only.
    pub(super) fn renew(&mut self, batch: &[Renew]) -> Vec<Result<Renewed, Fault>> {
        if batch.iter().all(|renew| renew.waiting) && self.all_wait_behind(batch) {
            return vec![Ok(Renewed::Waiting); batch.len()];
        }
        let mut owners: HashMap<_, Vec<_>> = HashMap::new();
        for Renew { resource, owner, .. } in batch {
            owners.entry(&resource.name).or_default().push(*owner);
        }
        let names = owners.iter().map(|(name, owners)| (*name, Who::These(owners))).collect();
        let scope = RequestScope { names, clients: false, reply: None };
        match self.change(&scope, |state, now| state.renew(batch, now)) {
            Ok((answers, _)) => answers,
            Err(fault) if owners.len() > 1 && !fault.may_pass() => {
                let by_name = batch.chunk_by(|one, next| one.resource.name == next.resource.name);
                by_name.flat_map(|of_name| self.renew(of_name)).collect()
            }
            Err(fault) => vec![Err(self.or_busy(fault)); batch.len()],
        }
    }

    fn all_wait_behind(&mut self, batch: &[Renew]) -> bool {
        let behind = self.read(|db, moment| {
            for Renew { resource, owner, .. } in batch {
                if !db.waits_behind(&resource.name, *owner, moment.now)? {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        behind.unwrap_or(false)
    }

    pub(super) fn adjust(&mut self, change: &Change) -> Result<Changed, Fault> {
        let scope = match change {
            Change::ForceUnlock { resource, .. } => {
                RequestScope { clients: true, ..RequestScope::one(&resource.name, Who::These(&[])) }
            }
            Change::Count { resource, id, .. } | Change::Permits { resource, id, .. } => {
                let reply = Some((&resource.name, *id));
                RequestScope { reply, ..RequestScope::one(&resource.name, Who::These(&[])) }
            }
            Change::Announce { client, ttl } => {
                return self.write(|db, moment| {
                    db.store_client(client, *ttl, moment.now)?;
                    Ok(Changed::Done)
                });
            }
            Change::Withdraw { client } => {
                return self.write(|db, _| db.erase_client(*client).map(|()| Changed::Done));
            }
        };
        self.change(&scope, |state, now| state.adjust(change, now))?.0
    }

    pub(super) fn inspect(&mut self, resource: &Resource) -> Result<LockInfo, Fault> {
        self.read(|db, moment| {
            let scope =
                RequestScope { clients: true, ..RequestScope::one(&resource.name, Who::All) };
            let (mut state, _) = db.load_all(&scope, moment)?;
            Ok(state.inspect(resource, moment.now)?)
        })
    }

    /// Loads the data of the request, runs the model, and stores the changes.
    fn change<T>(
        &mut self,
        scope: &RequestScope<'_>,
        answer: impl FnOnce(&mut State, u64) -> (T, Vec<Wake>),
    ) -> Result<(T, Woken), Fault> {
        let (answer, woken, state, now) = self.write(|db, moment| {
            let (mut state, before) = db.load_all(scope, moment)?;
            let (answer, wakes) = answer(&mut state, moment.now);
            let woken = db.post(&wakes, &state, moment.now)?;
            for (name, record) in before {
                db.store(name, &record, &state.take(name), moment)?;
            }
            Ok((answer, woken, state, moment.now))
        })?;
        if let Some((name, id)) = scope.reply {
            self.replies.copy_reply(name, id, &state, now);
        }
        self.ring(woken.clone());
        Ok((answer, woken))
    }

    /// Returns the answer from the last commit if the request changes nothing and wakes up no
    /// waiter; otherwise `None`.
    fn glance<T>(
        &mut self,
        scope: &RequestScope<'_>,
        answer: impl FnOnce(&mut State, u64) -> (T, Vec<Wake>),
    ) -> Result<Option<T>, Fault> {
        self.read(|db, moment| {
            let (mut state, before) = db.load_all(scope, moment)?;
            let (answer, wakes) = answer(&mut state, moment.now);
            let same = before.iter().all(|(name, record)| state.take(name) == *record);
            Ok((wakes.is_empty() && same).then_some(answer))
        })
    }

    fn load_all<'a>(&self, scope: &RequestScope<'a>, moment: Moment) -> Result<Loaded<'a>> {
        let mut state = State::behind(moment.epoch);
        let mut before = Vec::with_capacity(scope.names.len());
        for (name, who) in &scope.names {
            let record = self.load(name, *who, moment)?;
            for client in record.clients().into_iter().filter(|_| scope.clients) {
                if let Some(client) = self.load_client(client, moment.now)? {
                    state.put_client(client, moment.now);
                }
            }
            state.put(name, record.clone());
            before.push((*name, record));
        }
        if let Some((name, id)) = scope.reply {
            state.copy_reply(name, id, &self.replies, moment.now);
        }
        Ok((state, before))
    }
}
