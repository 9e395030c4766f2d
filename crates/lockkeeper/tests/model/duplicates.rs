//! Requests that come twice, late or out of order do no harm.
//!
//! A few actors behave as the engine does: a fresh id for each first acquire, absolute counts, one
//! request at a time for an id, nothing but releases after a loss. A network then repeats what it
//! likes, within what it can do to an engine that fences: a request directly after itself, and any
//! request at any later time once its ids are given up.

use lockkeeper::backend::{
    Acquire, Attempt, Changed, Fenced, Kind, Release, Released, Renew, Renewed,
};
use lockkeeper::backend::{Resource, Ttl};
use lockkeeper::{LockName, OwnerId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::check;
use crate::world::{Answer, Request, STEPS, Stored, TOLERANCE, TTLS, World, same_ttl};

const CASES: u32 = 1_500;
const LENGTH: usize = 40;

const NAMES: [(&str, Kind); 2] = [("a", Kind::Lock), ("b", Kind::Mutex)];

/// Two actors of each of two clients.
const ACTORS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// An actor goes on; its request arrives so many times.
    Act { name: usize, actor: usize, act: Act, times: usize },
    /// A request of ids that are given up arrives once more.
    Late(prop::sample::Index),
    /// A force-release.
    Force { name: usize },
    /// Time passes.
    Pass(u64),
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// Takes the lock, or re-enters it.
    Take { ttl: u64 },
    /// Gives one hold back; what stays is owed this.
    Drop { ttl: u64 },
    /// Goes, and leaves the lock standing.
    Leave { ttl: u64 },
    /// Renews or checks.
    Renew { ttl: Option<u64> },
    /// Hands the lock to the other actor of its client.
    HandOver { ttl: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let ttl = || select(&TTLS[..]);
    let act = prop_oneof![
        5 => ttl().prop_map(|ttl| Act::Take { ttl }),
        4 => ttl().prop_map(|ttl| Act::Drop { ttl }),
        1 => ttl().prop_map(|ttl| Act::Leave { ttl }),
        2 => prop::option::of(ttl()).prop_map(|ttl| Act::Renew { ttl }),
        2 => ttl().prop_map(|ttl| Act::HandOver { ttl }),
    ];
    let act = (0..NAMES.len(), 0..ACTORS, act, 1..3usize);
    prop_oneof![
        12 => act.prop_map(|(name, actor, act, times)| Step::Act { name, actor, act, times }),
        8 => any::<prop::sample::Index>().prop_map(Step::Late),
        1 => (0..NAMES.len()).prop_map(|name| Step::Force { name }),
        2 => select(&STEPS[..]).prop_map(Step::Pass),
    ]
}

/// What an actor knows of one name.
#[derive(Clone, Copy, Debug)]
enum Belief {
    Idle,
    /// It holds the lock, so often and until then.
    Holds {
        id: OwnerId,
        count: u32,
        until: u64,
    },
    /// It has held the lock and lost it.
    Lost {
        id: OwnerId,
    },
}

#[derive(Clone, Debug)]
struct Past {
    name: usize,
    ids: Vec<OwnerId>,
    request: Request,
}

struct Play<'a> {
    world: &'a mut World,
    clients: [uuid::Uuid; 2],
    beliefs: [[Belief; ACTORS]; NAMES.len()],
    past: Vec<Past>,
}

type Outcome<T = ()> = Result<T, String>;

fn resource(name: usize) -> Resource {
    let (name, kind) = NAMES[name];
    Resource { kind, name: LockName::from(name) }
}

/// With tokens, if it is a lock.
fn first(name: usize, id: OwnerId, ttl: u64) -> Acquire {
    let fenced = (NAMES[name].1 == Kind::Lock).then_some(Fenced { ttl: None });
    Acquire { fenced, ..Acquire::new(resource(name), id, ttl) }
}

fn holder(stored: &Stored) -> Option<&str> {
    stored.holders.first().map(|(id, _)| id.as_str())
}

impl Play<'_> {
    fn step(&mut self, step: &Step) -> Outcome {
        match *step {
            Step::Act { name, actor, act, times } => self.act(name, actor, act, times)?,
            Step::Late(index) => self.late(index)?,
            Step::Force { name } => self.force(name)?,
            Step::Pass(span) => {
                self.world.pass(span);
                self.expire();
            }
        }
        (0..NAMES.len()).try_for_each(|name| self.check(name))
    }

    /// The invariants: at most one owner, the one that believes so, as often and as long as it does.
    fn check(&mut self, name: usize) -> Outcome {
        let stored = self.world.stored(&resource(name))?;
        let now = self.world.now;
        if stored.holders.len() > 1 {
            return Err(self.world.failure(format!("two owners: {stored:?}")));
        }
        let mut holding = self.beliefs[name].iter().filter_map(|belief| match belief {
            Belief::Holds { id, count, until } => Some((id.to_string(), *count, *until)),
            _ => None,
        });
        let (first, second) = (holding.next(), holding.next());
        if second.is_some() {
            return Err(self.world.failure("two actors believe that they hold it"));
        }
        let Some((id, count, until)) = first else {
            return Ok(());
        };
        let expected = Stored {
            holders: vec![(id, u64::from(count))],
            ttl: Some(Ttl::Millis(until - now)),
            ..Stored::default()
        };
        if stored.holders != expected.holders || !same_ttl(stored.ttl, expected.ttl) {
            let what = format!("believed {expected:?}, stored {stored:?}");
            return Err(self.world.failure(what));
        }
        Ok(())
    }

    /// An actor whose lease expired knows it by its own clock.
    fn expire(&mut self) {
        let now = self.world.now;
        for belief in self.beliefs.as_flattened_mut() {
            if let Belief::Holds { id, until, .. } = *belief
                && until <= now
            {
                *belief = Belief::Lost { id };
            }
        }
    }

    fn force(&mut self, name: usize) -> Outcome {
        let answer = self.world.send(&Request::ForceUnlock(resource(name)))?;
        if let Answer::ForceUnlock(Ok(Changed::Done)) = answer {
            for belief in &mut self.beliefs[name] {
                if let Belief::Holds { id, .. } = *belief {
                    *belief = Belief::Lost { id };
                }
            }
        }
        Ok(())
    }

    /// A late repetition changes nothing of anybody else's. On a free lock it may leave a hold that
    /// ends with its lease.
    fn late(&mut self, index: prop::sample::Index) -> Outcome {
        let live: Vec<_> = self.beliefs.as_flattened().iter().collect();
        let given_up = |id: &OwnerId| {
            !live.iter().any(|belief| match belief {
                Belief::Idle => false,
                Belief::Holds { id: other, .. } | Belief::Lost { id: other } => id == other,
            })
        };
        let late = self.past.iter().filter(|past| past.ids.iter().all(given_up));
        let late: Vec<_> = late.cloned().collect();
        if late.is_empty() {
            return Ok(());
        }
        let Past { name, ids, request } = &late[index.index(late.len())];
        let before = self.world.stored(&resource(*name))?;
        self.world.send(request)?;
        let after = self.world.stored(&resource(*name))?;
        let own = |stored: &Stored| {
            holder(stored).is_none_or(|holder| ids.iter().any(|id| id.to_string() == holder))
        };
        let same = before.holders == after.holders && same_ttl(before.ttl, after.ttl);
        let own_affair = own(&before) && own(&after);
        if !same && !own_affair {
            let what = format!("a late request turned {before:?} into {after:?}");
            return Err(self.world.failure(what));
        }
        Ok(())
    }

    /// Sends a request of a living id so many times. The answer is that to the first; the others
    /// change nothing.
    fn send(
        &mut self,
        name: usize,
        ids: Vec<OwnerId>,
        request: Request,
        times: usize,
    ) -> Outcome<Answer> {
        let before = self.world.stored(&resource(name))?;
        let answer = self.world.send(&request)?;
        let after = self.world.stored(&resource(name))?;
        self.never_shortened(&request, &before, &after)?;
        for _ in 1..times {
            let again = self.world.send(&request)?;
            let now = self.world.stored(&resource(name))?;
            let same = after.holders == now.holders && same_ttl(after.ttl, now.ttl);
            if !same || !is_repetition(&answer, &again) {
                let what = format!("repeated: {answer:?} then {again:?}, {after:?} then {now:?}");
                return Err(self.world.failure(what));
            }
        }
        self.past.push(Past { name, ids, request });
        Ok(answer)
    }

    fn never_shortened(&self, request: &Request, before: &Stored, after: &Stored) -> Outcome {
        let may_shorten = match request {
            Request::Release(_) => true,
            Request::Acquire(acquire) => acquire.from.is_some(),
            _ => false,
        };
        let (Some(Ttl::Millis(was)), Some(Ttl::Millis(is))) = (before.ttl, after.ttl) else {
            return Ok(());
        };
        if may_shorten || is + TOLERANCE >= was {
            return Ok(());
        }
        Err(self.world.failure(format!("shortened from {was} to {is} ms")))
    }

    fn act(&mut self, name: usize, actor: usize, act: Act, times: usize) -> Outcome {
        match (self.beliefs[name][actor], act) {
            (Belief::Idle, Act::Take { ttl }) => self.take(name, actor, ttl, times),
            (Belief::Idle, _) => Ok(()),
            // A loss is final: only a release may follow.
            (Belief::Lost { id }, _) => self.give_up(name, actor, id, times),
            (Belief::Holds { id, count, until }, act) => {
                let hold = (id, count, until);
                match act {
                    Act::Take { ttl } => self.reenter(name, actor, hold, ttl, times),
                    Act::Drop { .. } if count == 1 => self.give_up(name, actor, id, times),
                    Act::Drop { ttl } => self.drop_one(name, actor, hold, ttl, times),
                    Act::Leave { ttl } => self.leave(name, actor, id, ttl, times),
                    Act::Renew { ttl } => self.renew(name, actor, hold, ttl, times),
                    Act::HandOver { ttl } => self.hand_over(name, actor, id, ttl, times),
                }
            }
        }
    }

    fn unexpected<T>(&self, answer: &Answer) -> Outcome<T> {
        Err(self.world.failure(format!("unexpected: {answer:?}")))
    }

    fn take(&mut self, name: usize, actor: usize, ttl: u64, times: usize) -> Outcome {
        let id = OwnerId::fresh(self.clients[actor / 2]);
        let acquire = first(name, id, ttl);
        let until = self.world.now + ttl;
        match self.send(name, vec![id], Request::Acquire(acquire), times)? {
            Answer::Acquire(Ok(Attempt::Granted { .. })) => {
                let count = 1;
                self.beliefs[name][actor] = Belief::Holds { id, count, until };
                Ok(())
            }
            Answer::Acquire(Ok(Attempt::Busy { .. })) => Ok(()),
            other => self.unexpected(&other),
        }
    }

    fn reenter(
        &mut self,
        name: usize,
        actor: usize,
        (id, count, until): (OwnerId, u32, u64),
        ttl: u64,
        times: usize,
    ) -> Outcome {
        if NAMES[name].1 == Kind::Mutex {
            return Ok(());
        }
        let acquire = Acquire { count: count + 1, ..Acquire::new(resource(name), id, ttl) };
        match self.send(name, vec![id], Request::Acquire(acquire), times)? {
            Answer::Acquire(Ok(Attempt::Granted { .. })) => {
                self.beliefs[name][actor] =
                    Belief::Holds { id, count: count + 1, until: until.max(self.world.now + ttl) };
                Ok(())
            }
            other => self.unexpected(&other),
        }
    }

    fn drop_one(
        &mut self,
        name: usize,
        actor: usize,
        (id, count, _): (OwnerId, u32, u64),
        ttl: u64,
        times: usize,
    ) -> Outcome {
        let release =
            Release { keep: count - 1, ttl: Some(ttl), ..Release::new(resource(name), id) };
        match self.send(name, vec![id], Request::Release(release), times)? {
            Answer::Release(Ok(Released::Kept)) => {
                let (count, until) = (count - 1, self.world.now + ttl);
                self.beliefs[name][actor] = Belief::Holds { id, count, until };
                Ok(())
            }
            other => self.unexpected(&other),
        }
    }

    /// The last release: of what is held, which frees it, or of what was lost, which finds nothing.
    fn give_up(&mut self, name: usize, actor: usize, id: OwnerId, times: usize) -> Outcome {
        let held = matches!(self.beliefs[name][actor], Belief::Holds { .. });
        let release = Release::new(resource(name), id);
        let answer = self.send(name, vec![id], Request::Release(release), times)?;
        self.beliefs[name][actor] = Belief::Idle;
        match (held, &answer) {
            (true, Answer::Release(Ok(Released::Freed { .. })))
            | (false, Answer::Release(Ok(Released::Absent { .. }))) => Ok(()),
            _ => self.unexpected(&answer),
        }
    }

    fn leave(&mut self, name: usize, actor: usize, id: OwnerId, ttl: u64, times: usize) -> Outcome {
        let release =
            Release { keep: 1, ttl: Some(ttl), leave: true, ..Release::new(resource(name), id) };
        let answer = self.send(name, vec![id], Request::Release(release), times)?;
        self.beliefs[name][actor] = Belief::Idle;
        match answer {
            Answer::Release(Ok(Released::Kept)) => Ok(()),
            other => self.unexpected(&other),
        }
    }

    fn renew(
        &mut self,
        name: usize,
        actor: usize,
        (id, count, until): (OwnerId, u32, u64),
        ttl: Option<u64>,
        times: usize,
    ) -> Outcome {
        let renew = Renew::new(resource(name), id, ttl);
        let answer = self.send(name, vec![id], Request::Renew(vec![renew]), times)?;
        let Answer::Renew(renewed) = &answer else {
            return self.unexpected(&answer);
        };
        let left = Some(Ttl::Millis(until - self.world.now));
        match renewed[..] {
            [Ok(Renewed::Held(found))] if same_ttl(Some(found), left) => {}
            _ => return self.unexpected(&answer),
        }
        let until = until.max(self.world.now + ttl.unwrap_or(0));
        self.beliefs[name][actor] = Belief::Holds { id, count, until };
        Ok(())
    }

    fn hand_over(
        &mut self,
        name: usize,
        actor: usize,
        from: OwnerId,
        ttl: u64,
        times: usize,
    ) -> Outcome {
        let receiver = actor ^ 1;
        if !matches!(self.beliefs[name][receiver], Belief::Idle) {
            return Ok(());
        }
        let id = OwnerId::fresh(self.clients[actor / 2]);
        let acquire = Acquire { from: Some(from), ..first(name, id, ttl) };
        let answer = self.send(name, vec![from, id], Request::Acquire(acquire), times)?;
        match answer {
            Answer::Acquire(Ok(Attempt::Granted { .. })) => {
                self.beliefs[name][actor] = Belief::Idle;
                self.beliefs[name][receiver] =
                    Belief::Holds { id, count: 1, until: self.world.now + ttl };
                Ok(())
            }
            other => self.unexpected(&other),
        }
    }
}

/// Whether the second answer to a request is what a first one like `first` is followed by.
fn is_repetition(first: &Answer, second: &Answer) -> bool {
    match (first, second) {
        (Answer::Acquire(Ok(a)), Answer::Acquire(Ok(b))) => {
            std::mem::discriminant(a) == std::mem::discriminant(b)
        }
        (Answer::Release(Ok(Released::Freed { .. })), Answer::Release(Ok(again))) => {
            *again == Released::Absent { holder: None }
        }
        (Answer::Release(Ok(a)), Answer::Release(Ok(b))) => a == b,
        (Answer::Renew(_), Answer::Renew(_)) => true,
        _ => false,
    }
}

#[test]
fn repeated_late_and_reordered_requests_harm_no_newer_hold() {
    let mut world = World::new();
    check(CASES, vec(step(), 1..LENGTH), |steps| {
        world.reset();
        let mut play = Play {
            world: &mut world,
            clients: [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()],
            beliefs: [[Belief::Idle; ACTORS]; NAMES.len()],
            past: Vec::new(),
        };
        steps.iter().try_for_each(|step| play.step(step))
    });
}
