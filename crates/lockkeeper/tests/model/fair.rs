//! The fair lock and its queue: the scripts agree with the model.
//!
//! A waiter that was silent for three seconds is dead. The small steps of time are such that no sum
//! of them comes near three seconds: what a run takes by itself changes nothing, unless the machine
//! stands still meanwhile.

use std::time::Duration;

use lockkeeper::LockName;
use lockkeeper::backend::{Kind, Resource};
use proptest::prelude::*;
use proptest::sample::select;

use crate::world::{Request, STEPS, TTLS, World};
use crate::{Outcome, agreement, check, in_time};

const CASES: u32 = 1_000;

/// After the first a waiter still lives, after the second it does not: two of the first are one of
/// the second.
pub(crate) const MOMENTS: [u64; 2] = [1_900, 3_800];

/// Ends between two moments, and far beyond all of them.
pub(crate) const SHORT_TTLS: [u64; 2] = [4_750, 20 * 3_800];

/// What a run may take by itself: less than what is between a moment and three seconds.
pub(crate) const RUN: Duration = Duration::from_millis(700);

/// A waiter that was not heard of for so long is dead.
pub(crate) const SILENT: u64 = 3_000;

const NAMES: [&str; 2] = ["a", "{b}:c"];

fn key(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

/// The queue as stored, with stale waiters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Places {
    pub(crate) queue: Vec<String>,
    timeouts: Vec<String>,
    seen: Vec<String>,
}

impl Places {
    pub(crate) fn read(world: &mut World, name: &str) -> Self {
        let cli = world.cli();
        let mut all = |args: &[&str]| {
            let reply = cli.cmd(args).ok();
            reply.array().iter().map(|id| id.text().to_owned()).collect::<Vec<_>>()
        };
        let sorted = |mut ids: Vec<String>| {
            ids.sort();
            ids
        };
        Self {
            queue: all(&["LRANGE", &key("redisson_lock_queue", name), "0", "-1"]),
            timeouts: sorted(all(&["ZRANGE", &key("redisson_lock_timeout", name), "0", "-1"])),
            seen: sorted(all(&["ZRANGE", &key("lockkeeper_seen", name), "0", "-1"])),
        }
    }

    /// Everybody has one place, and all three keys know of it.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut queue = self.queue.clone();
        queue.sort();
        let mut once = queue.clone();
        once.dedup();
        if once != queue {
            return Err(format!("somebody is twice in the queue: {self:?}"));
        }
        if queue != self.timeouts || queue != self.seen {
            return Err(format!("a place is left over, or not known everywhere: {self:?}"));
        }
        Ok(())
    }
}

/// Both say the same to everything, and at the end have the same.
fn agree(ttls: &'static [u64], spans: &'static [u64]) {
    // Mostly fair locks, often locks, and now and then what is neither.
    let kind = prop_oneof![30 => Just(Kind::Fair), 7 => Just(Kind::Lock), 1 => Just(Kind::Mutex)];
    let resource = (select(&NAMES[..]), kind);
    let resource = resource.prop_map(|(name, kind)| Resource { kind, name: name.into() }).boxed();
    let mut world = World::new();
    check(CASES, agreement::steps(resource.clone(), resource, (ttls, spans)), |steps| {
        in_time(RUN, || {
            agreement::agree(&mut world, steps)?;
            NAMES.iter().try_for_each(|name| compare(&mut world, name))
        })
    });
}

fn compare(world: &mut World, name: &str) -> Outcome {
    let kind = world.kind(&name.into()).unwrap_or(Kind::Lock);
    world.stored(&Resource { kind, name: name.into() })?;
    if kind == Kind::Lock {
        world.send(&Request::Inspect(fair(name)))?;
    }
    Places::read(world, name).check().map_err(|what| world.failure(what))
}

fn fair(name: &str) -> Resource {
    Resource { kind: Kind::Fair, name: LockName::from(name) }
}

#[test]
fn the_scripts_of_the_fair_lock_agree_with_the_model() {
    agree(&TTLS, &STEPS);
}

#[test]
fn the_fair_lock_scripts_agree_with_the_model_about_stale_waiters() {
    agree(&SHORT_TTLS, &MOMENTS);
}
