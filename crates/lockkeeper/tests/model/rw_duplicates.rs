//! Requests to a read/write lock that come twice, late or out of order do no harm.
//!
//! As for the plain locks, but readers share, a read may be nested in a write, a reader may upgrade,
//! and a writer that holds hands over or steps down.

use std::time::Instant;

use lockkeeper::backend::{
    Acquire, Attempt, Changed, Fenced, Kind, Release, Released, Renew, Renewed, Resource, Ttl,
};
use lockkeeper::{LockName, OwnerId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use testkit::Cli;

use crate::check;
use crate::rw::{SOON, compare};
use crate::world::{Answer, Request, STEPS, Stored, TOLERANCE, TTLS, World, same_ttl, shared};

const CASES: u32 = 1_500;
const LENGTH: usize = 40;

const NAME: &str = "a";

/// Two actors of each of two clients.
const ACTORS: usize = 4;

/// The sides, as an index.
const SIDES: [Kind; 2] = [Kind::Read, Kind::Write];
const READ: usize = 0;
const WRITE: usize = 1;

#[derive(Clone, Debug)]
enum Step {
    /// An actor goes on; its request arrives so many times.
    Act { side: usize, actor: usize, act: Act, times: usize },
    /// A request of ids that are given up arrives once more.
    Late(prop::sample::Index),
    /// A force-release.
    Force,
    /// Time passes.
    Pass(u64),
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// Takes the lock, nests, upgrades or re-enters it; or waits for it, if it does.
    Take { ttl: u64, waits: bool },
    /// Gives one hold back; what stays is owed this.
    Drop { ttl: u64 },
    /// Renews or checks.
    Renew { ttl: Option<u64> },
    /// Hands the lock to the other actor of its client.
    HandOver { ttl: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let ttl = || select(&TTLS[..]);
    let act = prop_oneof![
        5 => (ttl(), any::<bool>()).prop_map(|(ttl, waits)| Act::Take { ttl, waits }),
        4 => ttl().prop_map(|ttl| Act::Drop { ttl }),
        2 => prop::option::of(ttl()).prop_map(|ttl| Act::Renew { ttl }),
        1 => ttl().prop_map(|ttl| Act::HandOver { ttl }),
    ];
    let act = (0..SIDES.len(), 0..ACTORS, act, 1..3usize);
    prop_oneof![
        14 => act.prop_map(|(side, actor, act, times)| Step::Act { side, actor, act, times }),
        6 => any::<prop::sample::Index>().prop_map(Step::Late),
        1 => Just(Step::Force),
        2 => select(&STEPS[..]).prop_map(Step::Pass),
    ]
}

/// What an actor knows of one side.
#[derive(Clone, Copy, Debug)]
enum Belief {
    Idle,
    /// It waits under this id.
    Waits {
        id: OwnerId,
    },
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

impl Belief {
    fn id(self) -> Option<OwnerId> {
        match self {
            Belief::Idle => None,
            Belief::Waits { id } | Belief::Holds { id, .. } | Belief::Lost { id } => Some(id),
        }
    }

    fn held(self) -> Option<(OwnerId, u32, u64)> {
        match self {
            Belief::Holds { id, count, until } => Some((id, count, until)),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
struct Past {
    ids: Vec<OwnerId>,
    request: Request,
}

struct Play<'a> {
    world: &'a mut World,
    cli: &'a mut Cli,
    clients: [uuid::Uuid; 2],
    beliefs: [[Belief; 2]; ACTORS],
    past: Vec<Past>,
}

type Outcome<T = ()> = Result<T, String>;

fn resource(side: usize) -> Resource {
    Resource { kind: SIDES[side], name: LockName::from(NAME) }
}

/// With tokens, if it writes.
fn first(side: usize, id: OwnerId, ttl: u64) -> Acquire {
    let fenced = (side == WRITE).then_some(Fenced { ttl: None });
    Acquire { fenced, ..Acquire::new(resource(side), id, ttl) }
}

/// How a hold is stored.
fn stored_as(side: usize, id: OwnerId) -> String {
    if side == READ { shared(&id.to_string()) } else { id.to_string() }
}

impl Play<'_> {
    fn step(&mut self, step: &Step) -> Outcome {
        match *step {
            Step::Act { side, actor, act, times } => self.act(side, actor, act, times)?,
            Step::Late(index) => self.late(index)?,
            Step::Force => self.force()?,
            Step::Pass(span) => {
                self.world.pass(span);
                self.expire();
            }
        }
        self.check()
    }

    fn stored(&mut self) -> Outcome<Stored> {
        self.world.stored(&resource(READ))
    }

    /// The invariants: whoever believes to hold the lock does, as often as it believes and at least
    /// as long; a writer is alone with the reader of its own owner.
    fn check(&mut self) -> Outcome {
        compare(self.world, NAME, self.cli)?;
        let stored = self.stored()?;
        let now = self.world.now;
        for (actor, beliefs) in self.beliefs.iter().enumerate() {
            for (side, belief) in beliefs.iter().enumerate() {
                let Some((id, count, until)) = belief.held() else { continue };
                let hold = (stored_as(side, id), u64::from(count));
                let lives = matches!(stored.ttl, Some(Ttl::Millis(left))
                    if left + TOLERANCE >= until - now);
                if !stored.holders.contains(&hold) || !lives {
                    let what = format!("believed {hold:?} until {until}, stored {stored:?}");
                    return Err(self.world.failure(what));
                }
                let own = beliefs[READ].id().map(|id| stored_as(READ, id));
                let other = |(id, _): &&(String, u64)| *id != hold.0 && Some(id) != own.as_ref();
                if side == WRITE && stored.holders.iter().find(other).is_some() {
                    let what = format!("the writer {actor} is not alone: {stored:?}");
                    return Err(self.world.failure(what));
                }
            }
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

    fn force(&mut self) -> Outcome {
        let answer = self.world.send(&Request::ForceUnlock(resource(WRITE)))?;
        if let Answer::ForceUnlock(Ok(Changed::Done)) = answer {
            for belief in self.beliefs.as_flattened_mut() {
                if let Belief::Holds { id, .. } = *belief {
                    *belief = Belief::Lost { id };
                }
            }
        }
        Ok(())
    }

    /// A late repetition changes nothing of anybody else's, and nobody ends sooner by it. On a lock
    /// that it may have it can leave a hold, which ends with its lease.
    fn late(&mut self, index: prop::sample::Index) -> Outcome {
        let live: Vec<_> = self.beliefs.as_flattened().iter().filter_map(|b| b.id()).collect();
        let late = self.past.iter().filter(|past| !past.ids.iter().any(|id| live.contains(id)));
        let late: Vec<_> = late.cloned().collect();
        if late.is_empty() {
            return Ok(());
        }
        let Past { ids, request } = &late[index.index(late.len())];
        let before = self.stored()?;
        self.world.send(request)?;
        let after = self.stored()?;
        let own: Vec<_> =
            ids.iter().flat_map(|id| [stored_as(0, *id), stored_as(1, *id)]).collect();
        let others = |stored: &Stored| {
            let holders = stored.holders.iter().filter(|(id, _)| !own.contains(id));
            holders.cloned().collect::<Vec<_>>()
        };
        if others(&before) != others(&after) {
            let what = format!("a late request turned {before:?} into {after:?}");
            return Err(self.world.failure(what));
        }
        Ok(())
    }

    /// Sends a request of living ids so many times. The answer is that to the first; the others
    /// change nothing.
    fn send(&mut self, ids: Vec<OwnerId>, request: Request, times: usize) -> Outcome<Answer> {
        let before = self.stored()?;
        let answer = self.world.send(&request)?;
        let after = self.stored()?;
        self.never_shortened(&request, &before, &after)?;
        for _ in 1..times {
            let again = self.world.send(&request)?;
            let now = self.stored()?;
            let same = after.holders == now.holders && same_ttl(after.ttl, now.ttl);
            if !same || !is_repetition(&request, &answer, &again) {
                let what = format!("repeated: {answer:?} then {again:?}, {after:?} then {now:?}");
                return Err(self.world.failure(what));
            }
        }
        self.past.push(Past { ids, request });
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

    fn act(&mut self, side: usize, actor: usize, act: Act, times: usize) -> Outcome {
        match (self.beliefs[actor][side], act) {
            (Belief::Idle, Act::Take { ttl, waits }) => {
                let id = OwnerId::fresh(self.clients[actor / 2]);
                self.take(side, actor, id, ttl, waits, times)
            }
            (Belief::Idle, _) => Ok(()),
            (Belief::Waits { id }, Act::Take { ttl, waits }) => {
                self.take(side, actor, id, ttl, waits, times)
            }
            // A loss is final: only a release may follow.
            (Belief::Waits { .. } | Belief::Lost { .. }, _) => self.give_up(side, actor, times),
            (Belief::Holds { id, count, until }, act) => {
                let hold = (id, count, until);
                match act {
                    Act::Take { ttl, .. } => self.reenter(side, actor, hold, ttl, times),
                    Act::Drop { .. } if count == 1 => self.give_up(side, actor, times),
                    Act::Drop { ttl } => self.drop_one(side, actor, hold, ttl, times),
                    Act::Renew { ttl } => self.renew(side, actor, hold, ttl, times),
                    Act::HandOver { ttl } if side == WRITE => self.hand_over(actor, id, ttl, times),
                    Act::HandOver { .. } => Ok(()),
                }
            }
        }
    }

    fn unexpected<T>(&self, answer: &Answer) -> Outcome<T> {
        Err(self.world.failure(format!("unexpected: {answer:?}")))
    }

    fn take(
        &mut self,
        side: usize,
        actor: usize,
        id: OwnerId,
        ttl: u64,
        waits: bool,
        times: usize,
    ) -> Outcome {
        let beside = self.beliefs[actor][1 - side].held().map(|(id, _, _)| id);
        let waits = waits && side == WRITE;
        let acquire = Acquire { beside, waits, ..first(side, id, ttl) };
        let until = self.world.now + ttl;
        let ids = std::iter::once(id).chain(beside).collect();
        let belief = &mut self.beliefs[actor][side];
        *belief = if waits { Belief::Waits { id } } else { *belief };
        match self.send(ids, Request::Acquire(acquire), times)? {
            Answer::Acquire(Ok(Attempt::Granted { .. })) => {
                self.beliefs[actor][side] = Belief::Holds { id, count: 1, until };
                Ok(())
            }
            Answer::Acquire(Ok(Attempt::Busy { .. })) => Ok(()),
            other => self.unexpected(&other),
        }
    }

    fn reenter(
        &mut self,
        side: usize,
        actor: usize,
        (id, count, until): (OwnerId, u32, u64),
        ttl: u64,
        times: usize,
    ) -> Outcome {
        let count = count + 1;
        let acquire = Acquire { count, ..Acquire::new(resource(side), id, ttl) };
        match self.send(vec![id], Request::Acquire(acquire), times)? {
            Answer::Acquire(Ok(Attempt::Granted { .. })) => {
                let until = until.max(self.world.now + ttl);
                self.beliefs[actor][side] = Belief::Holds { id, count, until };
                Ok(())
            }
            other => self.unexpected(&other),
        }
    }

    fn drop_one(
        &mut self,
        side: usize,
        actor: usize,
        (id, count, _): (OwnerId, u32, u64),
        ttl: u64,
        times: usize,
    ) -> Outcome {
        let keep = count - 1;
        let release = Release { keep, ttl: Some(ttl), ..Release::new(resource(side), id) };
        match self.send(vec![id], Request::Release(release), times)? {
            Answer::Release(Ok(Released::Kept)) => {
                let until = self.world.now + ttl;
                self.beliefs[actor][side] = Belief::Holds { id, count: keep, until };
                Ok(())
            }
            other => self.unexpected(&other),
        }
    }

    /// The last release: of what is held, which frees it, or of what was lost or never had.
    fn give_up(&mut self, side: usize, actor: usize, times: usize) -> Outcome {
        let belief = self.beliefs[actor][side];
        let Some(id) = belief.id() else { return Ok(()) };
        let release = Release::new(resource(side), id);
        let answer = self.send(vec![id], Request::Release(release), times)?;
        self.beliefs[actor][side] = Belief::Idle;
        match (belief, &answer) {
            (Belief::Holds { .. }, Answer::Release(Ok(Released::Freed { .. })))
            | (Belief::Waits { .. }, Answer::Release(Ok(Released::Absent { .. })))
            // Other readers may have kept it, or the reader nested in it a writer.
            | (Belief::Lost { .. }, Answer::Release(Ok(_))) => Ok(()),
            _ => self.unexpected(&answer),
        }
    }

    fn renew(
        &mut self,
        side: usize,
        actor: usize,
        (id, count, until): (OwnerId, u32, u64),
        ttl: Option<u64>,
        times: usize,
    ) -> Outcome {
        let renew = Renew::new(resource(side), id, ttl);
        let answer = self.send(vec![id], Request::Renew(vec![renew]), times)?;
        let Answer::Renew(renewed) = &answer else {
            return self.unexpected(&answer);
        };
        let left = until - self.world.now;
        // A reader's own lease, and at least a writer's: one nested in it may have lengthened that.
        match renewed[..] {
            [Ok(Renewed::Held(Ttl::Millis(found)))]
                if found + TOLERANCE >= left && (side == WRITE || found <= left + TOLERANCE) => {}
            _ => return self.unexpected(&answer),
        }
        let until = until.max(self.world.now + ttl.unwrap_or(0));
        self.beliefs[actor][side] = Belief::Holds { id, count, until };
        Ok(())
    }

    fn hand_over(&mut self, actor: usize, from: OwnerId, ttl: u64, times: usize) -> Outcome {
        let receiver = actor ^ 1;
        if !matches!(self.beliefs[receiver], [Belief::Idle, Belief::Idle]) {
            return Ok(());
        }
        let id = OwnerId::fresh(self.clients[actor / 2]);
        let acquire = Acquire { from: Some(from), ..first(WRITE, id, ttl) };
        let answer = self.send(vec![from, id], Request::Acquire(acquire), times)?;
        let nested = self.beliefs[actor][READ].held().is_some();
        self.beliefs[actor][WRITE] = Belief::Idle;
        match answer {
            Answer::Acquire(Ok(Attempt::Granted { .. })) if !nested => {
                let until = self.world.now + ttl;
                self.beliefs[receiver][WRITE] = Belief::Holds { id, count: 1, until };
                Ok(())
            }
            // The reader nested in it stays, and so it was only freed.
            Answer::Acquire(Ok(Attempt::Busy { .. })) => Ok(()),
            other => self.unexpected(&other),
        }
    }
}

/// Whether the second answer to a request is what a first one like `first` is followed by.
fn is_repetition(request: &Request, first: &Answer, second: &Answer) -> bool {
    match (first, second) {
        (Answer::Acquire(Ok(Attempt::Busy { .. })), Answer::Acquire(Ok(again))) if matches!(request, Request::Acquire(acquire) if acquire.from.is_some()) => {
            *again == Attempt::Gone
        }
        (Answer::Acquire(Ok(a)), Answer::Acquire(Ok(b))) => {
            std::mem::discriminant(a) == std::mem::discriminant(b)
        }
        (Answer::Release(Ok(Released::Freed { .. })), Answer::Release(Ok(again))) => {
            matches!(again, Released::Absent { .. })
        }
        (Answer::Release(Ok(a)), Answer::Release(Ok(b))) => a == b,
        (Answer::Renew(_), Answer::Renew(_)) => true,
        _ => false,
    }
}

#[test]
fn repeated_late_and_reordered_requests_harm_no_newer_reader_or_writer() {
    let mut world = World::new();
    let mut cli = world.connection();
    check(CASES, vec(step(), 1..LENGTH), |steps| {
        loop {
            let began = Instant::now();
            world.reset();
            let mut play = Play {
                world: &mut world,
                cli: &mut cli,
                clients: [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()],
                beliefs: [[Belief::Idle; 2]; ACTORS],
                past: Vec::new(),
            };
            let outcome = steps.iter().try_for_each(|step| play.step(step));
            if outcome.is_ok() || began.elapsed() < SOON {
                return outcome;
            }
        }
    });
}
