//! The fair lock and its queue: the scripts agree with the model, and requests that come twice or
//! late leave the queue as it was.
//!
//! A waiter that was silent for three seconds is dead. The small steps of time are such that no sum
//! of them comes near three seconds: what a run takes by itself changes nothing, unless the machine
//! stands still meanwhile.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lockkeeper::backend::{
    Acquire, Attempt, Changed, Fenced, Kind, Release, Released, Renew, Renewed, Resource,
};
use lockkeeper::{LockName, OwnerId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::check;
use crate::world::{Answer, Request, STEPS, Stored, TTLS, World, same_ttl};

const CASES: u32 = 1_000;
const LENGTH: usize = 40;

/// After the first a waiter still lives, after the second it does not: two of the first are one of
/// the second.
const MOMENTS: [u64; 2] = [1_900, 3_800];

/// Ends between two moments, and far beyond all of them.
const SHORT_TTLS: [u64; 2] = [4_750, 20 * 3_800];

/// What a run may take by itself: less than what is between a moment and three seconds.
const RUN: Duration = Duration::from_millis(700);

/// A waiter that was not heard of for so long is dead.
const SILENT: u64 = 3_000;

const NAMES: [&str; 2] = ["a", "{b}:c"];

/// Owner ids: three of one client and two of another.
const OWNERS: [&str; 5] = [
    "00000000-0000-4000-8000-00000000000a:100001",
    "00000000-0000-4000-8000-00000000000a:100002",
    "00000000-0000-4000-8000-00000000000a:100003",
    "00000000-0000-4000-8000-00000000000b:100004",
    "00000000-0000-4000-8000-00000000000b:9223372036854775807",
];

/// Runs `property` on random sequences. One during which the machine stood still says nothing; that
/// must be rare.
fn check_in_time<T: std::fmt::Debug>(
    steps: impl Strategy<Value = Vec<T>>,
    mut property: impl FnMut(&[T]) -> Outcome,
) {
    let mut slow = 0;
    check(CASES, steps, |steps| {
        let begun = Instant::now();
        let outcome = property(steps);
        if begun.elapsed() < RUN {
            return outcome;
        }
        slow += 1;
        Ok(())
    });
    assert!(slow < CASES / 10, "{slow} of {CASES} took too long");
}

fn key(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

/// The queue as stored, with stale waiters.
#[derive(Clone, Debug, PartialEq)]
struct Places {
    queue: Vec<String>,
    timeouts: Vec<String>,
    seen: Vec<String>,
}

impl Places {
    fn read(world: &mut World, name: &str) -> Self {
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
    fn check(&self) -> Result<(), String> {
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

#[derive(Clone, Debug)]
enum Step {
    Send(Request),
    Pass(u64),
}

/// Mostly fair locks, often locks, and now and then what is neither.
fn resource() -> impl Strategy<Value = Resource> {
    let kind = prop_oneof![30 => Just(Kind::Fair), 7 => Just(Kind::Lock), 1 => Just(Kind::Mutex)];
    (select(&NAMES[..]), kind).prop_map(|(name, kind)| Resource { kind, name: name.into() })
}

fn owner() -> impl Strategy<Value = OwnerId> {
    select(&OWNERS[..]).prop_map(|id| id.parse().expect("it is of the form <uuid>:<number>"))
}

fn acquire(ttls: &'static [u64]) -> impl Strategy<Value = Request> {
    let count = prop_oneof![4 => Just(1u32), 1 => 2..4u32];
    let fenced = prop::option::weighted(0.2, Just(Fenced { ttl: None }));
    let waits = prop::bool::weighted(0.7);
    let request = (resource(), owner(), count, select(ttls), fenced, waits);
    request.prop_map(|(resource, owner, count, ttl, fenced, waits)| {
        let (count, fenced) = match resource.kind {
            Kind::Mutex => (1, None),
            _ => (count, fenced),
        };
        let acquire = Acquire::new(resource, owner, ttl);
        Request::Acquire(Acquire { count, fenced, waits, ..acquire })
    })
}

fn release(ttls: &'static [u64]) -> impl Strategy<Value = Request> {
    let keep = prop_oneof![3 => Just(0u32), 1 => 1..3u32];
    let rest = prop::option::of(select(ttls));
    let request = (resource(), owner(), keep, rest, any::<bool>(), any::<bool>());
    request.prop_map(|(resource, owner, keep, ttl, leave, undo)| {
        let (keep, ttl, leave) = match resource.kind {
            Kind::Mutex => (0, None, false),
            _ => (keep, ttl, leave && keep > 0),
        };
        let undo = undo && keep == 0;
        Request::Release(Release { keep, ttl, leave, undo, ..Release::new(resource, owner) })
    })
}

fn renew(ttls: &'static [u64]) -> impl Strategy<Value = Request> {
    let one = (resource(), owner(), prop::option::of(select(ttls)), prop::bool::weighted(0.7));
    let one = one.prop_map(|(resource, owner, ttl, waiting)| {
        let waiting = waiting && resource.kind == Kind::Fair;
        let ttl = ttl.filter(|_| !waiting);
        Renew { waiting, ..Renew::new(resource, owner, ttl) }
    });
    // By name, as the engine sends them: those of one lock are heard together.
    vec(one, 1..5).prop_map(|mut batch| {
        batch.sort_by(|a, b| a.resource.name.cmp(&b.resource.name));
        Request::Renew(batch)
    })
}

fn step(ttls: &'static [u64], spans: &'static [u64]) -> impl Strategy<Value = Step> {
    let request = prop_oneof![
        8 => acquire(ttls),
        4 => release(ttls),
        5 => renew(ttls),
        1 => resource().prop_map(Request::ForceUnlock),
        1 => resource().prop_map(Request::Inspect),
    ];
    prop_oneof![7 => request.prop_map(Step::Send), 1 => select(spans).prop_map(Step::Pass)]
}

/// Both say the same to everything, and at the end have the same.
fn agree(ttls: &'static [u64], spans: &'static [u64]) {
    let mut world = World::new();
    check_in_time(vec(step(ttls, spans), 1..LENGTH), |steps| {
        world.reset();
        for step in steps {
            match step {
                Step::Send(request) => drop(world.send(request)?),
                Step::Pass(span) => world.pass(*span),
            }
        }
        for name in NAMES {
            let kind = world.kind(&name.into()).unwrap_or(Kind::Lock);
            world.stored(&Resource { kind, name: name.into() })?;
            if kind == Kind::Lock {
                world.send(&Request::Inspect(fair(name)))?;
            }
            let places = Places::read(&mut world, name).check();
            places.map_err(|what| world.failure(what))?;
        }
        Ok(())
    });
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

/// Actors of two clients, all at one lock.
const ACTORS: usize = 5;
const NAME: &str = "a";

#[derive(Clone, Debug)]
enum Move {
    /// An actor goes on; its request arrives so many times.
    Act { actor: usize, act: Act, times: usize },
    /// A request of an id that is given up arrives once more.
    Late(prop::sample::Index),
    /// A force-release.
    Force,
    /// Time passes.
    Pass(u64),
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// Asks for the lock, or re-enters it.
    Take { ttl: u64, waits: bool },
    /// Gives a hold back, or a place.
    Drop { ttl: u64 },
    /// Says that it still waits, or renews its hold.
    Speak { ttl: u64 },
}

fn play_step() -> impl Strategy<Value = Move> {
    let ttl = || select(&SHORT_TTLS[..]);
    let act = prop_oneof![
        6 => (ttl(), prop::bool::weighted(0.8)).prop_map(|(ttl, waits)| Act::Take { ttl, waits }),
        3 => ttl().prop_map(|ttl| Act::Drop { ttl }),
        3 => ttl().prop_map(|ttl| Act::Speak { ttl }),
    ];
    let act = (0..ACTORS, act, 1..4usize);
    prop_oneof![
        12 => act.prop_map(|(actor, act, times)| Move::Act { actor, act, times }),
        4 => any::<prop::sample::Index>().prop_map(Move::Late),
        1 => Just(Move::Force),
        2 => select(&MOMENTS[..]).prop_map(Move::Pass),
    ]
}

/// What an actor knows.
#[derive(Clone, Copy, Debug)]
enum Belief {
    Idle,
    /// It waits.
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
}

struct Play<'a> {
    world: &'a mut World,
    clients: [uuid::Uuid; 2],
    beliefs: [Belief; ACTORS],
    /// When the server last heard of a waiter.
    heard: HashMap<String, u64>,
    past: Vec<(OwnerId, Request)>,
}

type Outcome<T = ()> = Result<T, String>;

/// Everything that is stored.
#[derive(Clone, Debug)]
struct Sight {
    lock: Stored,
    places: Places,
}

impl Sight {
    fn holder(&self) -> Option<&str> {
        self.lock.holders.first().map(|(id, _)| id.as_str())
    }

    fn same(&self, other: &Self) -> bool {
        self.lock.holders == other.lock.holders
            && same_ttl(self.lock.ttl, other.lock.ttl)
            && self.places == other.places
    }
}

impl Play<'_> {
    fn step(&mut self, step: &Move) -> Outcome {
        match *step {
            Move::Act { actor, act, times } => self.act(actor, act, times)?,
            Move::Late(index) => self.late(index)?,
            Move::Force => self.force()?,
            Move::Pass(span) => {
                self.world.pass(span);
                self.expire();
            }
        }
        self.check()
    }

    fn look(&mut self) -> Outcome<Sight> {
        let lock = self.world.stored(&Resource { kind: Kind::Lock, name: NAME.into() })?;
        let places = Places::read(self.world, NAME);
        places.check().map_err(|what| self.world.failure(what))?;
        Ok(Sight { lock, places })
    }

    /// The actor that believes to hold the lock holds it with that count, and no other does.
    fn check(&mut self) -> Outcome {
        let sight = self.look()?;
        let now = self.world.now;
        let holding = self.beliefs.iter().filter_map(|belief| match belief {
            Belief::Holds { id, count, until } => {
                Some((vec![(id.to_string(), u64::from(*count))], until - now))
            }
            _ => None,
        });
        let holding: Vec<_> = holding.collect();
        match &holding[..] {
            [] => Ok(()),
            // The times of this test are near each other: the least is what must be left.
            [(holders, least)] if sight.lock.holders == *holders => match sight.lock.ttl {
                Some(lockkeeper::backend::Ttl::Millis(left)) if left + 1_000 >= *least => Ok(()),
                _ => Err(self.world.failure(format!("{least} ms are owed: {sight:?}"))),
            },
            _ => Err(self.world.failure(format!("believed {holding:?}, stored {sight:?}"))),
        }
    }

    fn expire(&mut self) {
        let now = self.world.now;
        for belief in &mut self.beliefs {
            if let Belief::Holds { id, until, .. } = *belief
                && until <= now
            {
                *belief = Belief::Lost { id };
            }
        }
    }

    fn force(&mut self) -> Outcome {
        let answer = self.world.send(&Request::ForceUnlock(fair(NAME)))?;
        if let Answer::ForceUnlock(Ok(Changed::Done)) = answer {
            for belief in &mut self.beliefs {
                if let Belief::Holds { id, .. } = *belief {
                    *belief = Belief::Lost { id };
                }
            }
        }
        Ok(())
    }

    fn is_alive(&self, id: &str) -> bool {
        self.heard.get(id).is_some_and(|heard| heard + SILENT > self.world.now)
    }

    /// Sends once and looks what it did to the others: the queue keeps its order, whoever is alive
    /// keeps its place, new ones stand at the end, nobody is passed by.
    fn send_once(&mut self, id: OwnerId, request: &Request) -> Outcome<(Answer, Sight)> {
        let before = self.look()?;
        let own = id.to_string();
        let was_placed = before.places.queue.contains(&own);
        let speaks = match request {
            Request::Acquire(acquire) => acquire.count == 1,
            Request::Renew(batch) => batch.iter().any(|renew| renew.waiting),
            _ => false,
        };
        if was_placed && speaks && before.holder() != Some(&own) {
            self.heard.insert(own.clone(), self.world.now);
        }
        let answer = self.world.send(request)?;
        let after = self.look()?;
        if !was_placed && after.places.queue.contains(&own) {
            self.heard.insert(own.clone(), self.world.now);
        }
        let kept = |places: &Places, of: &Places| {
            let kept = places.queue.iter().filter(|id| of.queue.contains(id));
            kept.cloned().collect::<Vec<_>>()
        };
        let (stay, still) =
            (kept(&before.places, &after.places), kept(&after.places, &before.places));
        let gone = before.places.queue.iter().filter(|id| !after.places.queue.contains(id));
        let mut robbed = gone.filter(|id| **id != own && self.is_alive(id));
        let robbed = robbed.next();
        if stay != still || !after.places.queue.starts_with(&still) || robbed.is_some() {
            let what = format!("the queue went from {before:?} to {after:?}");
            return Err(self.world.failure(what));
        }
        if before.holder().is_none() && after.holder() == Some(&own) {
            let ahead = before.places.queue.iter().take_while(|id| **id != own);
            if let Some(first) = ahead.into_iter().find(|id| self.is_alive(id)) {
                return Err(self.world.failure(format!("granted past {first}: {before:?}")));
            }
        }
        let shortens = matches!(request, Request::Release(_));
        use lockkeeper::backend::Ttl::Millis;
        if let (Some(Millis(was)), Some(Millis(is))) = (before.lock.ttl, after.lock.ttl)
            && !shortens
            && is + 1_000 < was
        {
            return Err(self.world.failure(format!("shortened from {was} to {is} ms")));
        }
        Ok((answer, after))
    }

    /// The answer is that to the first; the others change nothing.
    fn send(&mut self, id: OwnerId, request: Request, times: usize) -> Outcome<Answer> {
        let (answer, after) = self.send_once(id, &request)?;
        for _ in 1..times {
            let (again, now) = self.send_once(id, &request)?;
            if !after.same(&now) || !is_repetition(&answer, &again) {
                let what = format!("repeated: {answer:?} then {again:?}, {after:?} then {now:?}");
                return Err(self.world.failure(what));
            }
        }
        self.past.push((id, request));
        Ok(answer)
    }

    /// It may get a queue position or a free lock that stays unused; nothing else changes.
    fn late(&mut self, index: prop::sample::Index) -> Outcome {
        let live: Vec<_> = self.beliefs.iter().filter_map(|belief| belief.id()).collect();
        let late = self.past.iter().filter(|(id, _)| !live.contains(id));
        let late: Vec<_> = late.cloned().collect();
        if late.is_empty() {
            return Ok(());
        }
        let (id, request) = &late[index.index(late.len())];
        let before = self.look()?;
        let (_, after) = self.send_once(*id, request)?;
        let own = |sight: &Sight| sight.holder().is_none_or(|holder| holder == id.to_string());
        let same =
            before.lock.holders == after.lock.holders && same_ttl(before.lock.ttl, after.lock.ttl);
        if same || own(&before) && own(&after) {
            return Ok(());
        }
        let what = format!("a late request turned {before:?} into {after:?}");
        Err(self.world.failure(what))
    }

    fn act(&mut self, actor: usize, act: Act, times: usize) -> Outcome {
        match (self.beliefs[actor], act) {
            (Belief::Idle, Act::Take { ttl, waits }) => {
                let id = OwnerId::fresh(self.clients[actor % 2]);
                self.take(actor, id, ttl, waits, times)
            }
            (Belief::Idle, _) => Ok(()),
            (Belief::Waits { id }, Act::Take { ttl, .. }) => self.take(actor, id, ttl, true, times),
            (Belief::Waits { id }, Act::Speak { .. }) => self.speak(id, times),
            (Belief::Waits { id } | Belief::Lost { id }, _) => self.give_up(actor, id, times),
            (Belief::Holds { id, count, until }, act) => {
                self.go_on(actor, (id, count, until), act, times)
            }
        }
    }

    fn unexpected<T>(&self, answer: &Answer) -> Outcome<T> {
        Err(self.world.failure(format!("unexpected: {answer:?}")))
    }

    fn take(&mut self, actor: usize, id: OwnerId, ttl: u64, waits: bool, times: usize) -> Outcome {
        let acquire = Acquire { waits, ..Acquire::new(fair(NAME), id, ttl) };
        let until = self.world.now + ttl;
        let answer = self.send(id, Request::Acquire(acquire), times)?;
        self.beliefs[actor] = match answer {
            Answer::Acquire(Ok(Attempt::Granted { .. })) => Belief::Holds { id, count: 1, until },
            Answer::Acquire(Ok(Attempt::Busy { .. })) if waits => Belief::Waits { id },
            Answer::Acquire(Ok(Attempt::Busy { .. })) => Belief::Idle,
            other => return self.unexpected(&other),
        };
        let placed = self.look()?.places.queue.contains(&id.to_string());
        if placed != matches!(self.beliefs[actor], Belief::Waits { .. }) {
            return Err(self.world.failure("a place is there without a waiter, or the reverse"));
        }
        Ok(())
    }

    fn speak(&mut self, id: OwnerId, times: usize) -> Outcome {
        let renew = Renew { waiting: true, ..Renew::new(fair(NAME), id, None) };
        let before = self.look()?;
        let answer = self.send(id, Request::Renew(vec![renew]), times)?;
        let after = self.look()?;
        let place = after.places.queue.iter().position(|other| *other == id.to_string());
        let due = match place {
            None => true,
            Some(place) => place == 0 && before.holder().is_none(),
        };
        match &answer {
            Answer::Renew(answers) => match answers[..] {
                [Ok(Renewed::Due)] if due => Ok(()),
                [Ok(Renewed::Waiting)] if !due => Ok(()),
                _ => self.unexpected(&answer),
            },
            _ => self.unexpected(&answer),
        }
    }

    /// Everything: a place, a hold, or what is left of one that was lost.
    fn give_up(&mut self, actor: usize, id: OwnerId, times: usize) -> Outcome {
        let held = matches!(self.beliefs[actor], Belief::Holds { .. });
        let undo = matches!(self.beliefs[actor], Belief::Waits { .. });
        let release = Release { undo, ..Release::new(fair(NAME), id) };
        let answer = self.send(id, Request::Release(release), times)?;
        self.beliefs[actor] = Belief::Idle;
        if self.look()?.places.queue.contains(&id.to_string()) {
            return Err(self.world.failure("the place was not given up"));
        }
        match (held, &answer) {
            (true, Answer::Release(Ok(Released::Freed { .. })))
            | (false, Answer::Release(Ok(Released::Absent { .. }))) => Ok(()),
            _ => self.unexpected(&answer),
        }
    }

    fn go_on(
        &mut self,
        actor: usize,
        (id, count, until): (OwnerId, u32, u64),
        act: Act,
        times: usize,
    ) -> Outcome {
        let (request, count, until) = match act {
            Act::Drop { .. } if count == 1 => return self.give_up(actor, id, times),
            Act::Take { ttl, waits } => {
                let acquire =
                    Acquire { count: count + 1, waits, ..Acquire::new(fair(NAME), id, ttl) };
                (Request::Acquire(acquire), count + 1, until.max(self.world.now + ttl))
            }
            Act::Drop { ttl } => {
                let keep = count - 1;
                let release = Release { keep, ttl: Some(ttl), ..Release::new(fair(NAME), id) };
                (Request::Release(release), keep, self.world.now + ttl)
            }
            Act::Speak { ttl } => {
                let renew = Renew::new(fair(NAME), id, Some(ttl));
                (Request::Renew(vec![renew]), count, until.max(self.world.now + ttl))
            }
        };
        let answer = self.send(id, request, times)?;
        let fine = match &answer {
            Answer::Acquire(Ok(Attempt::Granted { .. })) | Answer::Release(Ok(Released::Kept)) => {
                true
            }
            Answer::Renew(answers) => matches!(answers[..], [Ok(Renewed::Held(_))]),
            _ => false,
        };
        if !fine {
            return self.unexpected(&answer);
        }
        self.beliefs[actor] = Belief::Holds { id, count, until };
        Ok(())
    }

    /// After all have left, the next acquire succeeds and leaves nothing behind.
    fn end(&mut self) -> Outcome {
        for actor in 0..ACTORS {
            if let Some(id) = self.beliefs[actor].id() {
                self.give_up(actor, id, 1)?;
            }
        }
        self.world.pass(10 * SHORT_TTLS[1]);
        let id = OwnerId::fresh(self.clients[0]);
        self.take(0, id, SHORT_TTLS[1], true, 1)?;
        if !matches!(self.beliefs[0], Belief::Holds { .. }) {
            return Err(self.world.failure("somebody who has gone is in the way"));
        }
        self.give_up(0, id, 1)?;
        let keys = self.world.cli().cmd(&["KEYS", "*"]).ok();
        let left: Vec<_> = keys.array().iter().map(|key| key.text()).collect();
        let left: Vec<_> = left.iter().filter(|key| !key.contains("forced")).collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(self.world.failure(format!("left over: {left:?}")))
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
        (Answer::Renew(a), Answer::Renew(b)) => {
            let same = |a: &Result<Renewed, _>, b: &Result<Renewed, _>| match (a, b) {
                (Ok(Renewed::Held(_)), Ok(Renewed::Held(_))) => true,
                (a, b) => a == b,
            };
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => false,
    }
}

#[test]
fn repeated_and_late_requests_leave_the_queue_in_order() {
    let mut world = World::new();
    check_in_time(vec(play_step(), 1..LENGTH), |steps| {
        world.reset();
        let mut play = Play {
            world: &mut world,
            clients: [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()],
            beliefs: [Belief::Idle; ACTORS],
            heard: HashMap::new(),
            past: Vec::new(),
        };
        steps.iter().try_for_each(|step| play.step(step))?;
        play.end()
    });
}
