//! The fair lock on Redis.
//!
//! An acquire changes the queue positions of other waiters only while a waiter of another library is in
//! the queue, which a comparison of two counts shows. Among our own waiters it lowers only the score of
//! the next one, so that its cost does not grow with the queue.

use super::command::Wakes;
use super::command::{Command, Script};
use super::reply::{Forced, Renewals, Reply};
use super::{keys, script};
use crate::LockName;
use crate::backend::{Acquire, Attempt, Release, Released, Renew, Resource};

/// Creates a call that begins with the five keys of the lock.
fn call<T: Reply>(script: &'static Script<T>, name: &LockName, more: usize) -> Command<T> {
    with_keys(script.call(5 + more), name)
}

fn with_keys<T>(call: Command<T>, name: &LockName) -> Command<T> {
    let call = call.arg(name.as_bytes()).arg(keys::queue(name));
    call.arg(keys::timeouts(name)).arg(keys::seen(name)).arg(keys::grace(name))
}

pub(super) fn acquire(request: &Acquire, wakes: Wakes) -> Command<Attempt> {
    let name = &request.resource.name;
    let call = match request.fenced {
        None => call(&script::FAIR_ACQUIRE, name, 0),
        Some(_) => call(&script::FAIR_ACQUIRE_FENCED, name, 1).arg(keys::token(name)),
    };
    let call = call.arg(request.owner).arg(request.ttl).arg(request.count);
    let call = call.arg(u8::from(request.waits)).arg(wakes.publish()).arg(keys::channel(name));
    call.token_ttl(request.fenced)
}

pub(super) fn release(request: &Release, wakes: Wakes) -> Command<Released> {
    let name = &request.resource.name;
    let call = call(&script::FAIR_RELEASE, name, 0).arg(request.owner).arg(request.keep);
    let call = call.arg(wakes.publish()).arg(keys::channel(name));
    call.ttl_or_empty(request.ttl).arg(u8::from(request.leave))
}

pub(super) fn queue(name: &LockName) -> Command<Vec<Vec<u8>>> {
    let call = script::FAIR_QUEUE.call(3).arg(keys::queue(name));
    call.arg(keys::timeouts(name)).arg(keys::seen(name))
}

/// Renews queue positions. Consecutive entries of one lock share its keys.
pub(super) fn keep_positions(batch: &[&Renew], wakes: Wakes) -> Command<Renewals> {
    let locks = || batch.chunk_by(|a, b| a.resource == b.resource);
    let mut call = script::FAIR_KEEP.call(5 * locks().count());
    for waiters in locks() {
        call = with_keys(call, &waiters[0].resource.name);
    }
    call = call.arg(wakes.publish());
    for waiters in locks() {
        call = call.arg(keys::channel(&waiters[0].resource.name)).arg(waiters.len());
        for waiter in waiters {
            call = call.arg(waiter.owner);
        }
    }
    call
}

pub(super) fn force_unlock(resource: &Resource, reason: String, wakes: Wakes) -> Command<Forced> {
    let name = &resource.name;
    let call =
        call(&script::FAIR_FORCE_UNLOCK, name, 0).arg(wakes.publish()).arg(keys::channel(name));
    call.arg(keys::NOTICE).arg(reason)
}
