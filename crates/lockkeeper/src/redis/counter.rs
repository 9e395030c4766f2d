//! The semaphore and the latch on Redis.
//!
//! The server remembers the answer to each request, because a repeated request must not change a
//! counter twice. The client reports the answers that the server may forget along with its next
//! request, three seconds late. Otherwise the server would keep a minute's worth of answers for a busy
//! semaphore.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::command::{Argument, Command};
use super::reply::{Counted, Reply};
use super::*;
use crate::LockName;
use crate::backend::CountChange;

impl RedisInner {
    pub(super) fn acquire_counter(&self, request: &Acquire) -> Command<Attempt> {
        let call = remembered(&script::SEMAPHORE_ACQUIRE, 2, &request.resource);
        let call = call.arg(request.owner).arg(request.count);
        let call = match self.wakes.counting().filter(|_| request.waits) {
            Some(count) => call.arg(keys::permits_channel(&request.resource.name)).arg(count),
            None => call.arg("").arg(""),
        };
        self.forgetting(call, &request.resource.name)
    }

    pub(super) async fn release_counter(&self, request: &Release) -> Result<Released, Fault> {
        self.fits(&request.resource.name)?;
        let call = remembered(&script::SEMAPHORE_RELEASE, 2, &request.resource);
        let call = call.arg(request.owner).arg(request.count).arg(u8::from(request.undo));
        let call = call.arg(self.wakes.publish());
        let call = call.arg(keys::permits_channel(&request.resource.name));
        let call = self.forgetting(call, &request.resource.name);
        // Its state never expires: a lost release would be lost for ever.
        let answer = self.route.write(name(&request.resource), call, |_| true).await?;
        self.settle(&request.resource.name, request.owner);
        Ok(answer)
    }

    /// Records that a request was answered. It cannot execute again, unless an earlier attempt of
    /// it still may.
    pub(super) fn settle(&self, name: &LockName, id: OwnerId) {
        if self.route.revokes_lost_requests() {
            locked(&self.settled).note(name, id);
        }
    }

    /// Appends the requests whose answers the store may delete. The store also expires answers by
    /// itself, but a busy semaphore would accumulate many.
    pub(super) fn forgetting<T>(&self, mut call: Command<T>, name: &LockName) -> Command<T> {
        for id in locked(&self.settled).take(name) {
            call = call.arg(id);
        }
        call
    }

    pub(super) async fn change_count(
        &self,
        resource: &Resource,
        id: OwnerId,
        change: CountChange,
    ) -> Result<Changed, Fault> {
        let (script, channel) = match resource.kind {
            Kind::Latch => (&script::LATCH_CHANGE, keys::latch_channel(&resource.name)),
            _ => (&script::SEMAPHORE_CHANGE, keys::permits_channel(&resource.name)),
        };
        let call = remembered(script, 2, resource);
        self.change(call, resource, id, change, channel).await
    }

    /// Appends the arguments of a change after its keys, and sends it.
    pub(super) async fn change(
        &self,
        call: Command<Changed>,
        resource: &Resource,
        id: OwnerId,
        change: CountChange,
        channel: impl Argument,
    ) -> Result<Changed, Fault> {
        self.fits(&resource.name)?;
        model::check_change(resource.kind, change)?;
        let wakes = match resource.kind {
            Kind::Latch => self.wakes.of_latch(&resource.name),
            _ => self.wakes,
        };
        let call = call.arg(id);
        let call = match change {
            CountChange::Create { count, ttl } => call.arg("create").arg(count).ttl_or_empty(ttl),
            CountChange::Add(count) => call.arg("add").arg(count).arg(""),
            CountChange::Resize(count) => call.arg("resize").arg(count).arg(""),
            CountChange::Drain => call.arg("drain").arg("0").arg(""),
            CountChange::Down => call.arg("down").arg("0").arg(""),
            CountChange::Delete => call.arg("delete").arg("0").arg(""),
        };
        let call = self.forgetting(call.arg(wakes.publish()).arg(channel), &resource.name);
        let answer = self.route.write(name(resource), call, |_| true).await?;
        self.settle(&resource.name, id);
        Ok(answer)
    }
}

pub(super) fn inspect(name: &LockName) -> Command<Counted> {
    script::COUNTER_INSPECT.call(1).arg(name.as_bytes())
}

/// Answered requests by name, until a later request lets the store delete their answers.
#[derive(Default)]
pub(super) struct Settled {
    by_name: HashMap<LockName, VecDeque<(Instant, OwnerId)>>,
}

/// How many are appended to one request: more than one request adds, so that the table shrinks.
const FORGOTTEN_AT_ONCE: usize = 8;

/// How long an answered request is kept nevertheless: a request repeated by mistake must not count
/// twice.
const GRACE: Duration = Duration::from_secs(3);

/// Limits for names and for requests of each. Beyond them, the store expires the answers by itself.
const NAMES_MAX: usize = 4096;
const EACH_MAX: usize = 65_536;

impl Settled {
    fn note(&mut self, name: &LockName, id: OwnerId) {
        if self.by_name.len() >= NAMES_MAX {
            self.by_name.clear();
        }
        let ids = self.by_name.entry(name.clone()).or_default();
        if ids.len() < EACH_MAX {
            ids.push_back((Instant::now(), id));
        }
    }

    fn take(&mut self, name: &LockName) -> Vec<OwnerId> {
        let Some(ids) = self.by_name.get_mut(name) else { return Vec::new() };
        let ripe = ids.iter().take(FORGOTTEN_AT_ONCE).take_while(|(at, _)| at.elapsed() >= GRACE);
        let ripe = ripe.count();
        let forgotten = ids.drain(..ripe).map(|(_, id)| id).collect();
        if ids.is_empty() {
            self.by_name.remove(name);
        }
        forgotten
    }
}

/// Creates a call of a script that remembers its answer.
pub(super) fn remembered<T: Reply>(
    script: &'static Script<T>,
    keys: usize,
    resource: &Resource,
) -> Command<T> {
    script.call(keys).arg(name(resource)).arg(keys::replies(&resource.name))
}
