//! Requests that come twice, late or out of order do no harm.
//!
//! A few actors behave as the engine does: a fresh id for each first acquire, absolute counts, one
//! request at a time for an id, nothing but releases after a loss. A network then repeats what it
//! likes, within what it can do to an engine that revokes: a request directly after itself, and any
//! request at any later time once its ids are given up.

use std::collections::HashMap;

use lockkeeper::OwnerId;
use lockkeeper::backend::{
    Acquire, Attempt, Changed, Fenced, Kind, Release, Released, Renew, Renewed, Resource,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::fair::{MOMENTS, Places, RUN, SHORT_TTLS, SILENT};
use crate::rw::{SOON, compare};
use crate::world::{
    Answer, Request, STEPS, Stored, TOLERANCE, TTLS, World, millis, same_ttl, shared,
};
use crate::{Outcome, check, in_time};

const CASES: u32 = 1_500;
const LENGTH: usize = 40;

/// Actors of two clients.
const ACTORS: usize = 5;

#[derive(Clone, Debug)]
enum Step {
    /// An actor goes on with one of the resources; its request arrives so many times.
    Act {
        place: usize,
        actor: usize,
        act: Act,
        times: usize,
    },
    /// A request of ids that are given up arrives once more.
    Late(Index),
    Force(usize),
    /// Time passes.
    Pass(u64),
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// Acquires the lock, nests, upgrades or re-enters it; or waits for it.
    Take { ttl: u64, waits: bool },
    /// Releases one hold; what stays is owed this. A waiter gives up.
    Drop { ttl: u64 },
    /// Leaves the lock held.
    Leave { ttl: u64 },
    /// Renews or checks a hold, or keeps a queue position.
    Renew { ttl: Option<u64> },
    /// Hands the lock to another actor of its client.
    HandOff { ttl: u64 },
}

/// What an actor knows of one resource.
#[derive(Clone, Copy, Debug)]
enum Belief {
    Idle,
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

    fn held(self) -> Option<OwnerId> {
        self.id().filter(|_| matches!(self, Belief::Holds { .. }))
    }
}

/// What is played with, and on which grid of time.
struct Game {
    resources: Vec<Resource>,
    ttls: &'static [u64],
    spans: &'static [u64],
    /// Two times closer than this are the same.
    tolerance: u64,
}

impl Game {
    fn step(&self) -> impl Strategy<Value = Step> + use<> {
        let (places, spans, ttls) = (self.resources.len(), self.spans, self.ttls);
        let ttl = || select(ttls);
        let act = prop_oneof![
            5 => (ttl(), prop::bool::weighted(0.6)).prop_map(|(ttl, waits)| Act::Take { ttl, waits }),
            4 => ttl().prop_map(|ttl| Act::Drop { ttl }),
            1 => ttl().prop_map(|ttl| Act::Leave { ttl }),
            2 => prop::option::of(ttl()).prop_map(|ttl| Act::Renew { ttl }),
            2 => ttl().prop_map(|ttl| Act::HandOff { ttl }),
        ];
        let act = (0..places, 0..ACTORS, act, 1..3usize);
        prop_oneof![
            12 => act.prop_map(|(place, actor, act, times)| Step::Act { place, actor, act, times }),
            6 => any::<Index>().prop_map(Step::Late),
            1 => (0..places).prop_map(Step::Force),
            2 => select(spans).prop_map(Step::Pass),
        ]
    }
}

struct Play<'a> {
    game: &'a Game,
    world: &'a mut World,
    clients: [uuid::Uuid; 2],
    /// By actor and resource.
    beliefs: Vec<Vec<Belief>>,
    /// When the server last heard of a waiter of a fair lock.
    heard: HashMap<String, u64>,
    past: Vec<(usize, Vec<OwnerId>, Request)>,
}

/// Everything that is stored of a lock.
#[derive(Clone, Debug)]
struct Sight {
    lock: Stored,
    queue: Option<Places>,
}

impl Sight {
    fn same(&self, other: &Self) -> bool {
        let same_ttl = same_ttl(self.lock.ttl, other.lock.ttl);
        self.lock.holders == other.lock.holders && same_ttl && self.queue == other.queue
    }

    fn is_queued(&self, id: OwnerId) -> bool {
        self.queue.as_ref().is_some_and(|places| places.queue.contains(&id.to_string()))
    }

    /// The holds of all ids but these.
    fn others(&self, ids: &[OwnerId]) -> Vec<&(String, u64)> {
        let own = ids.iter().flat_map(|id| [stored_as(Kind::Read, *id), id.to_string()]);
        let own: Vec<_> = own.collect();
        self.lock.holders.iter().filter(|(holder, _)| !own.contains(holder)).collect()
    }
}

/// How a hold is stored.
fn stored_as(kind: Kind, id: OwnerId) -> String {
    if kind == Kind::Read { shared(&id.to_string()) } else { id.to_string() }
}

impl Play<'_> {
    fn step(&mut self, step: &Step) -> Outcome {
        match *step {
            Step::Act { place, actor, act, times } => self.act(place, actor, act, times)?,
            Step::Late(index) => self.late(index)?,
            Step::Force(place) => self.force(place)?,
            Step::Pass(span) => {
                self.world.pass(span);
                let now = self.world.now;
                self.lose(|_, until| until <= now);
            }
        }
        (0..self.game.resources.len()).try_for_each(|place| self.check(place))
    }

    fn kind(&self, place: usize) -> Kind {
        self.game.resources[place].kind
    }

    /// The resources of one name: both sides of a read/write lock.
    fn sides(&self, place: usize) -> impl Iterator<Item = usize> + use<> {
        let resources = self.game.resources.clone();
        let sides = move |side: &usize| resources[*side].name == resources[place].name;
        (0..self.game.resources.len()).filter(sides)
    }

    /// The other side of a read/write lock.
    fn nested(&self, place: usize, actor: usize) -> Option<OwnerId> {
        let other = self.sides(place).find(|side| *side != place)?;
        self.beliefs[actor][other].held()
    }

    fn look(&mut self, place: usize) -> Outcome<Sight> {
        let Resource { kind, name } = self.game.resources[place].clone();
        let is_fair = kind == Kind::Fair;
        let kind = if is_fair { Kind::Lock } else { kind };
        let lock = self.world.stored(&Resource { kind, name: name.clone() })?;
        let name = String::from_utf8_lossy(name.as_bytes()).into_owned();
        let queue = is_fair.then(|| Places::read(self.world, &name));
        let known = queue.as_ref().map_or(Ok(()), Places::check);
        known.map_err(|what| self.world.failure(what))?;
        Ok(Sight { lock, queue })
    }

    /// An actor that believes to hold the lock does, as often and as long as it believes, and alone except
    /// for readers and for the reader of its own owner.
    fn check(&mut self, place: usize) -> Outcome {
        let (Resource { kind, name }, now) = (self.game.resources[place].clone(), self.world.now);
        let is_rw = matches!(kind, Kind::Read | Kind::Write);
        if kind == Kind::Write {
            compare(self.world, &String::from_utf8_lossy(name.as_bytes()))?;
        }
        let sight = self.look(place)?;
        if !is_rw && sight.lock.holders.len() > 1 {
            return Err(self.world.failure(format!("two owners: {sight:?}")));
        }
        for actor in 0..ACTORS {
            let Belief::Holds { id, count, until } = self.beliefs[actor][place] else { continue };
            let hold = (stored_as(kind, id), u64::from(count));
            let owed = until - now;
            let left = sight.lock.ttl.and_then(millis);
            let lives = left.is_some_and(|left| {
                left + self.game.tolerance >= owed && (is_rw || left <= owed + self.game.tolerance)
            });
            let own: Vec<_> =
                self.sides(place).filter_map(|side| self.beliefs[actor][side].id()).collect();
            let alone = kind == Kind::Read || sight.others(&own).is_empty();
            if !sight.lock.holders.contains(&hold) || !lives || !alone {
                let what = format!("believed {hold:?} for {owed} ms, stored {sight:?}");
                return Err(self.world.failure(what));
            }
        }
        Ok(())
    }

    /// Holders of resources of which this is true know that their hold is lost.
    fn lose(&mut self, lost: impl Fn(usize, u64) -> bool) {
        for beliefs in &mut self.beliefs {
            for (place, belief) in beliefs.iter_mut().enumerate() {
                if let Belief::Holds { id, until, .. } = *belief
                    && lost(place, until)
                {
                    *belief = Belief::Lost { id };
                }
            }
        }
    }

    fn force(&mut self, place: usize) -> Outcome {
        let resource = self.game.resources[place].clone();
        let answer = self.world.send(&Request::ForceUnlock(resource))?;
        if let Answer::ForceUnlock(Ok(Changed::Done)) = answer {
            let sides: Vec<_> = self.sides(place).collect();
            self.lose(|place, _| sides.contains(&place));
        }
        Ok(())
    }

    /// A late repetition changes nothing of others. On a lock that it may have it can leave a hold, which
    /// ends with its lease, or a queue position.
    fn late(&mut self, index: Index) -> Outcome {
        let live: Vec<_> = self.beliefs.iter().flatten().filter_map(|belief| belief.id()).collect();
        let late = self.past.iter().filter(|(_, ids, _)| !ids.iter().any(|id| live.contains(id)));
        let late: Vec<_> = late.cloned().collect();
        if late.is_empty() {
            return Ok(());
        }
        let (place, ids, request) = &late[index.index(late.len())];
        let before = self.look(*place)?;
        let (_, after) = self.send_once(*place, ids, request)?;
        let is_rw = matches!(self.kind(*place), Kind::Read | Kind::Write);
        let others = before.others(ids);
        let same_ttl = is_rw || others.is_empty() || same_ttl(before.lock.ttl, after.lock.ttl);
        if others == after.others(ids) && same_ttl {
            return Ok(());
        }
        Err(self.world.failure(format!("a late request turned {before:?} into {after:?}")))
    }

    /// Sends once: no lease gets shorter by it, and nobody of a queue is passed by.
    fn send_once(
        &mut self,
        place: usize,
        ids: &[OwnerId],
        request: &Request,
    ) -> Outcome<(Answer, Sight)> {
        let before = self.look(place)?;
        let (id, now) = (ids[ids.len() - 1], self.world.now);
        let keeps = match request {
            Request::Acquire(acquire) => acquire.count == 1,
            Request::Renew(batch) => batch[0].waiting,
            _ => false,
        };
        let answer = self.world.send(request)?;
        let after = self.look(place)?;
        if keeps && before.is_queued(id) && before.others(&[id]).len() == before.lock.holders.len()
            || after.is_queued(id) && !before.is_queued(id)
        {
            self.heard.insert(id.to_string(), now);
        }
        let may_shorten = match request {
            Request::Release(_) => true,
            Request::Acquire(acquire) => acquire.from.is_some(),
            _ => false,
        };
        let left = |sight: &Sight| sight.lock.ttl.and_then(millis);
        if let (Some(was), Some(is)) = (left(&before), left(&after))
            && !may_shorten
            && is + self.game.tolerance < was
        {
            return Err(self.world.failure(format!("shortened from {was} to {is} ms")));
        }
        self.keeps_the_order(id, &before, &after)?;
        Ok((answer, after))
    }

    /// The queue keeps its order, an actor that is alive keeps its position, new ones are at the end, and a
    /// free lock goes to the first.
    fn keeps_the_order(&self, id: OwnerId, before: &Sight, after: &Sight) -> Outcome {
        let (Some(was), Some(is)) = (&before.queue, &after.queue) else { return Ok(()) };
        let own = id.to_string();
        let is_alive =
            |id: &&String| self.heard.get(*id).is_some_and(|heard| heard + SILENT > self.world.now);
        let stay: Vec<_> = was.queue.iter().filter(|id| is.queue.contains(id)).cloned().collect();
        let mut gone = was.queue.iter().filter(|id| !is.queue.contains(id) && **id != own);
        if !is.queue.starts_with(&stay) || gone.any(|id| is_alive(&id)) {
            let what = format!("the queue went from {before:?} to {after:?}");
            return Err(self.world.failure(what));
        }
        let ahead = was.queue.iter().take_while(|id| **id != own).find(is_alive);
        if before.lock.holders.is_empty() && !after.lock.holders.is_empty() && ahead.is_some() {
            return Err(self.world.failure(format!("granted past {ahead:?}: {before:?}")));
        }
        Ok(())
    }

    /// Sends a request of living ids so many times. The answer is that to the first; the others
    /// change nothing.
    fn send(
        &mut self,
        place: usize,
        ids: Vec<OwnerId>,
        request: Request,
        times: usize,
    ) -> Outcome<Answer> {
        let (answer, after) = self.send_once(place, &ids, &request)?;
        for _ in 1..times {
            let (again, now) = self.send_once(place, &ids, &request)?;
            if !after.same(&now) || !is_repetition(&request, &answer, &again) {
                let what = format!("repeated: {answer:?} then {again:?}, {after:?} then {now:?}");
                return Err(self.world.failure(what));
            }
        }
        self.past.push((place, ids, request));
        Ok(answer)
    }

    fn unexpected(&self, answer: &Answer) -> Outcome {
        Err(self.world.failure(format!("unexpected: {answer:?}")))
    }

    fn act(&mut self, place: usize, actor: usize, act: Act, times: usize) -> Outcome {
        let (kind, now) = (self.kind(place), self.world.now);
        let (resource, belief) = (self.game.resources[place].clone(), self.beliefs[actor][place]);
        let client = self.clients[actor / 2 % 2];
        let is_queued = kind == Kind::Fair;
        let waits = |waits: bool| waits && matches!(kind, Kind::Fair | Kind::Write);
        let (id, count, until) = match (belief, act) {
            (Belief::Idle, Act::Take { ttl, waits: wants }) => {
                return self.take(place, actor, OwnerId::fresh(client), ttl, waits(wants), times);
            }
            (Belief::Idle, _) => return Ok(()),
            (Belief::Waits { id }, Act::Take { ttl, waits: wants }) => {
                return self.take(place, actor, id, ttl, waits(wants || is_queued), times);
            }
            (Belief::Waits { id }, Act::Renew { .. }) if is_queued => {
                return self.keep_position(place, id, times);
            }
            // A loss is final: only a release may follow.
            (Belief::Waits { .. } | Belief::Lost { .. }, _) => {
                return self.give_up(place, actor, times);
            }
            (Belief::Holds { id, count, until }, _) => (id, count, until),
        };
        let (request, count, until) = match act {
            Act::Drop { .. } if count == 1 => return self.give_up(place, actor, times),
            Act::HandOff { ttl } => return self.hand_off(place, actor, id, ttl, times),
            Act::Take { .. } if kind == Kind::Mutex => return Ok(()),
            // The owner of the other side would not know that it is its own.
            Act::Leave { .. } if matches!(kind, Kind::Read | Kind::Write) => return Ok(()),
            Act::Take { ttl, waits } => {
                let (count, waits) = (count + 1, waits && is_queued);
                let acquire = Acquire { count, waits, ..Acquire::new(resource, id, ttl) };
                (Request::Acquire(acquire), count, until.max(now + ttl))
            }
            Act::Drop { ttl } => {
                let keep = count - 1;
                let release = Release { keep, ttl: Some(ttl), ..Release::new(resource, id) };
                (Request::Release(release), keep, now + ttl)
            }
            Act::Leave { ttl } => {
                let of = Release::new(resource, id);
                let release = Release { keep: 1, ttl: Some(ttl), leave: true, ..of };
                (Request::Release(release), 0, now)
            }
            Act::Renew { ttl } => {
                let renew = Renew::new(resource, id, ttl);
                (Request::Renew(vec![renew]), count, until.max(now + ttl.unwrap_or(0)))
            }
        };
        let (owed, tolerance) = (self.owed(actor, place), self.game.tolerance);
        let answer = self.send(place, vec![id], request, times)?;
        match &answer {
            Answer::Acquire(Ok(Attempt::Granted { .. })) | Answer::Release(Ok(Released::Kept)) => {}
            Answer::Renew(answers) => match answers[..] {
                // At least a writer's: a reader nested in it may have lengthened its lease.
                [Ok(Renewed::Held(ttl))]
                    if millis(ttl).is_some_and(|left| {
                        left + tolerance >= owed
                            && (kind == Kind::Write || left <= owed + tolerance)
                    }) => {}
                _ => return self.unexpected(&answer),
            },
            _ => return self.unexpected(&answer),
        }
        let is_left = matches!(act, Act::Leave { .. });
        let held = Belief::Holds { id, count, until };
        self.beliefs[actor][place] = if is_left { Belief::Idle } else { held };
        Ok(())
    }

    /// How long an actor still holds the lock, as it believes.
    fn owed(&self, actor: usize, place: usize) -> u64 {
        match self.beliefs[actor][place] {
            Belief::Holds { until, .. } => until - self.world.now,
            _ => 0,
        }
    }

    /// With tokens, if it is not shared.
    fn first(&self, place: usize, id: OwnerId, ttl: u64) -> Acquire {
        let resource = self.game.resources[place].clone();
        let fenced = !matches!(resource.kind, Kind::Mutex | Kind::Read);
        let fenced = fenced.then_some(Fenced { ttl: None });
        Acquire { fenced, ..Acquire::new(resource, id, ttl) }
    }

    fn take(
        &mut self,
        place: usize,
        actor: usize,
        id: OwnerId,
        ttl: u64,
        waits: bool,
        times: usize,
    ) -> Outcome {
        let beside = self.nested(place, actor);
        let acquire = Acquire { beside, waits, ..self.first(place, id, ttl) };
        let (until, ids) = (self.world.now + ttl, beside.into_iter().chain([id]).collect());
        match self.send(place, ids, Request::Acquire(acquire), times)? {
            Answer::Acquire(Ok(Attempt::Granted { .. })) => {
                self.beliefs[actor][place] = Belief::Holds { id, count: 1, until };
            }
            Answer::Acquire(Ok(Attempt::Busy { .. })) if waits => {
                self.beliefs[actor][place] = Belief::Waits { id };
            }
            Answer::Acquire(Ok(Attempt::Busy { .. })) => {}
            other => return self.unexpected(&other),
        }
        let waits = matches!(self.beliefs[actor][place], Belief::Waits { .. });
        if self.kind(place) == Kind::Fair && self.look(place)?.is_queued(id) != waits {
            return Err(self.world.failure("a position without a waiter, or the reverse"));
        }
        Ok(())
    }

    fn keep_position(&mut self, place: usize, id: OwnerId, times: usize) -> Outcome {
        let resource = self.game.resources[place].clone();
        let renew = Renew { waiting: true, ..Renew::new(resource, id, None) };
        let before = self.look(place)?;
        let answer = self.send(place, vec![id], Request::Renew(vec![renew]), times)?;
        let Some(places) = self.look(place)?.queue else { return self.unexpected(&answer) };
        let position = places.queue.iter().position(|other| *other == id.to_string());
        let due = position.is_none_or(|at| at == 0 && before.lock.holders.is_empty());
        match &answer {
            Answer::Renew(answers) if due && answers[..] == [Ok(Renewed::Due)] => Ok(()),
            Answer::Renew(answers) if !due && answers[..] == [Ok(Renewed::Waiting)] => Ok(()),
            _ => self.unexpected(&answer),
        }
    }

    /// The last release: of what is held, which frees it, or of what was lost or never had.
    fn give_up(&mut self, place: usize, actor: usize, times: usize) -> Outcome {
        let (kind, belief) = (self.kind(place), self.beliefs[actor][place]);
        let Some(id) = belief.id() else { return Ok(()) };
        let undo = kind == Kind::Fair && matches!(belief, Belief::Waits { .. });
        let release = Release { undo, ..Release::new(self.game.resources[place].clone(), id) };
        let answer = self.send(place, vec![id], Request::Release(release), times)?;
        self.beliefs[actor][place] = Belief::Idle;
        if self.look(place)?.is_queued(id) {
            return Err(self.world.failure("the position was not given up"));
        }
        match (belief, &answer) {
            (Belief::Holds { .. }, Answer::Release(Ok(Released::Freed { .. })))
            | (
                Belief::Waits { .. } | Belief::Lost { .. },
                Answer::Release(Ok(Released::Absent { .. })),
            ) => Ok(()),
            // Other readers may have kept it, or the reader nested in it a writer.
            (Belief::Lost { .. }, Answer::Release(Ok(_)))
                if matches!(kind, Kind::Read | Kind::Write) =>
            {
                Ok(())
            }
            _ => self.unexpected(&answer),
        }
    }

    fn hand_off(
        &mut self,
        place: usize,
        actor: usize,
        from: OwnerId,
        ttl: u64,
        times: usize,
    ) -> Outcome {
        let (kind, receiver) = (self.kind(place), (actor ^ 1).min(ACTORS - 1));
        let mut sides = self.sides(place);
        let is_idle = sides.all(|side| matches!(self.beliefs[receiver][side], Belief::Idle));
        if !is_idle || receiver == actor || matches!(kind, Kind::Fair | Kind::Read) {
            return Ok(());
        }
        let id = OwnerId::fresh(self.clients[actor / 2 % 2]);
        let acquire = Acquire { from: Some(from), ..self.first(place, id, ttl) };
        let answer = self.send(place, vec![from, id], Request::Acquire(acquire), times)?;
        let nested = self.nested(place, actor).is_some();
        self.beliefs[actor][place] = Belief::Idle;
        match answer {
            Answer::Acquire(Ok(Attempt::Granted { .. })) if !nested => {
                let until = self.world.now + ttl;
                self.beliefs[receiver][place] = Belief::Holds { id, count: 1, until };
                Ok(())
            }
            // A reader nested in it stays, and so it was only freed; or it is the turn of readers.
            Answer::Acquire(Ok(Attempt::Busy { .. })) if kind == Kind::Write => Ok(()),
            other => self.unexpected(&other),
        }
    }

    /// After all have left a fair lock, the next acquire succeeds and leaves nothing behind.
    fn end(&mut self) -> Outcome {
        if self.kind(0) != Kind::Fair {
            return Ok(());
        }
        (0..ACTORS).try_for_each(|actor| self.give_up(0, actor, 1))?;
        self.world.pass(10 * SHORT_TTLS[1]);
        self.take(0, 0, OwnerId::fresh(self.clients[0]), SHORT_TTLS[1], true, 1)?;
        if self.beliefs[0][0].held().is_none() {
            return Err(self.world.failure("an actor that has left is in the way"));
        }
        self.give_up(0, 0, 1)?;
        let keys = self.world.cli().cmd(&["KEYS", "*"]).ok();
        let outlives = |key: &str| key.contains("forced") || key.contains("token");
        let left: Vec<_> = keys.array().iter().map(|key| key.text()).collect();
        if left.iter().all(|key| outlives(key)) {
            return Ok(());
        }
        Err(self.world.failure(format!("left over: {left:?}")))
    }
}

/// Whether the second answer to a request is what a first one like `first` is followed by.
fn is_repetition(request: &Request, first: &Answer, second: &Answer) -> bool {
    match (request, first, second) {
        (
            Request::Acquire(Acquire { from: Some(_), .. }),
            Answer::Acquire(Ok(Attempt::Busy { .. })),
            Answer::Acquire(Ok(again)),
        ) => *again == Attempt::Gone,
        (_, Answer::Acquire(Ok(a)), Answer::Acquire(Ok(b))) => {
            std::mem::discriminant(a) == std::mem::discriminant(b)
        }
        (
            Request::Release(Release { resource, .. }),
            Answer::Release(Ok(Released::Freed { .. })),
            Answer::Release(Ok(Released::Absent { holder })),
        ) => holder.is_none() || matches!(resource.kind, Kind::Read | Kind::Write),
        (_, Answer::Release(Ok(a)), Answer::Release(Ok(b))) => {
            a == b && !matches!(a, Released::Freed { .. })
        }
        (_, Answer::Renew(a), Answer::Renew(b)) => match (&a[..], &b[..]) {
            ([Ok(Renewed::Held(_))], [Ok(Renewed::Held(_))]) => true,
            _ => a == b,
        },
        _ => false,
    }
}

/// Runs random sequences. One that failed while the machine stood still is run again.
fn play(game: &Game, limit: std::time::Duration) {
    let mut world = World::new();
    check(CASES, vec(game.step(), 1..LENGTH), |steps| {
        in_time(limit, || {
            world.reset();
            let mut play = Play {
                game,
                world: &mut world,
                clients: [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()],
                beliefs: vec![vec![Belief::Idle; game.resources.len()]; ACTORS],
                heard: HashMap::new(),
                past: Vec::new(),
            };
            steps.iter().try_for_each(|step| play.step(step))?;
            play.end()
        })
    });
}

fn named(name: &str, kind: Kind) -> Resource {
    Resource { kind, name: name.into() }
}

#[test]
fn repeated_late_and_reordered_requests_harm_no_newer_hold() {
    let resources = vec![named("a", Kind::Lock), named("b", Kind::Mutex)];
    play(&Game { resources, ttls: &TTLS, spans: &STEPS, tolerance: TOLERANCE }, SOON);
}

#[test]
fn repeated_late_and_reordered_requests_harm_no_newer_reader_or_writer() {
    let resources = vec![named("a", Kind::Read), named("a", Kind::Write)];
    play(&Game { resources, ttls: &TTLS, spans: &STEPS, tolerance: TOLERANCE }, SOON);
}

#[test]
fn repeated_and_late_requests_leave_the_queue_in_order() {
    let resources = vec![named("a", Kind::Fair)];
    play(&Game { resources, ttls: &SHORT_TTLS, spans: &MOMENTS, tolerance: 1_000 }, RUN);
}
