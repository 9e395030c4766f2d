//! Releases that a member has not confirmed: they are repeated until it does, or until the hold would have
//! expired.
//!
//! A release counts once a majority has it. A member that was away then still has the hold, and would not
//! grant the lock to any client: with one more member away, no client could acquire it until the lease expires.
//!
//! This is the only request that the store repeats by itself. It is harmless because an identity is not
//! used again once it was released: the engine draws a new one for each attempt
//! (`Capabilities::keeps_identities`). The one exception is the second attempt after a split vote, which asks
//! only where the first one was released; if it succeeds, what is left of the first one is struck out.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use foldhash::HashMap;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::QuorumInner;
use super::fan::Fan;
use crate::OwnerId;
use crate::backend::{Answer, Backend, Release, Released};
use crate::redis::locked;

/// The most that are kept. What is dropped beyond them expires by itself.
const MAX: usize = 65_536;

/// How long to wait before one is repeated.
const AGAIN: Duration = Duration::from_millis(100);

/// How many are sent to the members at once.
const AT_ONCE: usize = 256;

type Key = (usize, OwnerId);

pub(super) struct Leftovers {
    kept: Mutex<Kept>,
    tails: mpsc::UnboundedSender<Tail>,
    /// How many tails are followed.
    followed: watch::Sender<usize>,
    /// Something was noted.
    noted: Arc<Notify>,
}

type Kept = HashMap<Key, Leftover>;

/// A release whose caller has its answer.
pub(super) struct Tail {
    pub(super) release: Release,
    /// The answers that are missing.
    pub(super) answers: Fan<Answer<Released>>,
}

#[derive(Clone, Debug)]
struct Leftover {
    release: Release,
    until: Instant,
    /// It is under way.
    is_sent: bool,
}

impl Leftovers {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<Tail>) {
        let (tails, inbox) = mpsc::unbounded_channel();
        let (kept, followed, noted) = (Mutex::default(), watch::Sender::new(0), Arc::default());
        (Self { kept, tails, followed, noted }, inbox)
    }

    /// Notes a release to be repeated.
    pub(super) fn note(&self, release: &Release, member: usize, until: Instant) {
        let mut kept = locked(&self.kept);
        // `repeat` removes what has expired.
        if kept.len() < MAX {
            let leftover = Leftover { release: release.clone(), until, is_sent: false };
            kept.insert((member, release.owner), leftover);
        }
        drop(kept);
        self.noted.notify_one();
    }

    /// The identity has the lock: nothing of it is to be repeated any more.
    pub(super) fn strike_out(&self, owner: OwnerId, members: usize) {
        let mut kept = locked(&self.kept);
        (0..members).for_each(|member| drop(kept.remove(&(member, owner))));
    }

    /// Waits for the remaining answers to a release in the background.
    pub(super) fn follow(&self, tail: Tail) {
        if tail.answers.pending() > 0 {
            self.followed.send_modify(|followed| *followed += 1);
            // Fails when the client is closed.
            let _ = self.tails.send(tail);
        }
    }

    /// Waits until all releases are answered.
    pub(super) async fn drained(&self) {
        let _ = self.followed.subscribe().wait_for(|followed| *followed == 0).await;
    }

    /// A member has executed a release, or not.
    fn settle(&self, key: Key, has_answered: bool) {
        match has_answered {
            true => drop(locked(&self.kept).remove(&key)),
            // Unless it was struck out.
            false => {
                locked(&self.kept).get_mut(&key).into_iter().for_each(|one| one.is_sent = false)
            }
        }
    }
}

/// Follows releases and repeats them, until the client is closed.
pub(super) async fn run(inner: Weak<QuorumInner>, mut tails: mpsc::UnboundedReceiver<Tail>) {
    let (mut following, mut repeating) = (JoinSet::new(), JoinSet::new());
    // The members to which something is repeated: one that does not answer delays no other.
    let mut busy = HashSet::new();
    let mut tick = tokio::time::interval(AGAIN);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let Some(noted) = inner.upgrade().map(|inner| Arc::clone(&inner.leftovers.noted)) else {
        return;
    };
    loop {
        let has_left = inner
            .upgrade()
            .is_some_and(|inner| !inner.is_closed() && !locked(&inner.leftovers.kept).is_empty());
        tokio::select! {
            tail = tails.recv() => match (tail, inner.upgrade()) {
                (Some(tail), Some(inner)) => drop(following.spawn(follow(inner, tail))),
                _ => return,
            },
            Some(_) = following.join_next() => {}
            () = noted.notified() => {}
            Some(Ok(member)) = repeating.join_next() => drop(busy.remove(&member)),
            _ = tick.tick(), if has_left => {
                let Some(inner) = inner.upgrade() else { return };
                for member in (0..inner.members.len()).filter(|one| inner.is_up(*one)) {
                    if busy.insert(member) {
                        repeating.spawn(repeat(Arc::clone(&inner), member));
                    }
                }
            }
        }
    }
}

async fn follow(inner: Arc<QuorumInner>, Tail { release, mut answers }: Tail) {
    while let Some((member, answer)) = answers.next().await {
        if answer.is_err() {
            inner.left_over(&release, member);
        }
    }
    inner.leftovers.followed.send_modify(|followed| *followed -= 1);
}

/// Sends what is left to a member. Returns it.
async fn repeat(inner: Arc<QuorumInner>, member: usize) -> usize {
    let now = Instant::now();
    let (keys, mut answers) = {
        // Sent under the lock: what is struck out afterwards was sent before.
        let mut kept = locked(&inner.leftovers.kept);
        kept.retain(|_, leftover| leftover.until > now);
        let due = kept.iter_mut().filter(|((of, _), one)| *of == member && !one.is_sent);
        let send = |(key, leftover): (&Key, &mut Leftover)| {
            leftover.is_sent = true;
            (*key, inner.members[member].release(leftover.release.clone()))
        };
        let (keys, requests): (Vec<_>, Vec<_>) = due.take(AT_ONCE).map(send).unzip();
        let mut answers = Fan::new(requests.into_iter().enumerate());
        answers.send();
        (keys, answers)
    };
    while let Some((index, answer)) = answers.next().await {
        inner.leftovers.settle(keys[index], answer.is_ok());
    }
    member
}
