//! Semaphores, permits with ids and latches: the scripts mean what the model does, and no request that
//! comes again counts again.

use lockkeeper::backend::{
    Acquire, Attempt, Change, Changed, CountChange, Kind, PermitChange, Release, Released, Renew,
    Resource,
};
use lockkeeper::stores::State;
use lockkeeper::{LockName, OwnerId, PermitId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use uuid::Uuid;

use crate::check;
use crate::world::{Answer, Request, STEPS, Stored, TTLS, World, ask, same, same_stored};

const CASES: u32 = 600;
const LENGTH: usize = 40;

const NAMES: [&str; 2] = ["a", "b"];

/// More than a script counts.
pub(crate) const HUGE: u64 = 1 << 53;

const OWNERS: [&str; 4] = [
    "00000000-0000-4000-8000-00000000000a:100001",
    "00000000-0000-4000-8000-00000000000a:200002",
    "00000000-0000-4000-8000-00000000000b:300003",
    "00000000-0000-4000-8000-00000000000b:9223372036854775807",
];

/// The ids of changes, which are no owners.
const CHANGES: [&str; 3] = [
    "00000000-0000-4000-8000-00000000000a:600006",
    "00000000-0000-4000-8000-00000000000a:700007",
    "00000000-0000-4000-8000-00000000000b:800008",
];

/// The times of a kind. Answers are remembered for 60 s, which lies between the short steps and
/// away from all sums of them, as the times to live do; permits keep to the grid of the world.
struct Times {
    ttls: &'static [u64],
    steps: &'static [u64],
}

fn times(kind: Kind) -> Times {
    match kind {
        Kind::Permits => Times { ttls: &TTLS, steps: &STEPS },
        _ => Times { ttls: &[50_000, 110_000, 310_000], steps: &[40_000, 100_000] },
    }
}

pub(crate) fn named(kind: Kind, name: &str) -> Resource {
    Resource { kind, name: LockName::from(name) }
}

fn owner(index: usize) -> OwnerId {
    OWNERS[index].parse().expect("it is of the form <uuid>:<number>")
}

/// The permits of a hold, as the store counts them up.
pub(crate) fn ids(owner: OwnerId, count: u32) -> Vec<PermitId> {
    let text = owner.to_string();
    let number: u64 = text[37..].parse().expect("a number follows the uuid");
    let id = |i: u64| {
        let mut id = Uuid::try_parse(&owner.client().to_string()).unwrap().into_bytes();
        id[8..].copy_from_slice(&number.wrapping_add(i).to_be_bytes());
        PermitId::from_bytes(id)
    };
    (0..u64::from(count)).map(id).collect()
}

fn change(kind: Kind) -> BoxedStrategy<CountChange> {
    let ttl = || prop::option::weighted(0.3, select(times(kind).ttls));
    let create = (1..6u64, ttl()).prop_map(|(count, ttl)| CountChange::Create { count, ttl });
    match kind {
        Kind::Latch => prop_oneof![
            3 => create,
            6 => Just(CountChange::Down),
            1 => Just(CountChange::Delete),
        ]
        .boxed(),
        Kind::Permits => prop_oneof![
            4 => create,
            2 => (-3..5i64).prop_map(CountChange::Add),
            2 => (0..7u64).prop_map(CountChange::Resize),
        ]
        .boxed(),
        _ => prop_oneof![
            4 => create,
            3 => (-3..5i64).prop_map(CountChange::Add),
            1 => Just(CountChange::Drain),
        ]
        .boxed(),
    }
}

/// What no counter of some kind, or none at all, can do.
fn bad_change() -> impl Strategy<Value = CountChange> {
    let edge = HUGE - 1;
    select(vec![
        CountChange::Create { count: 0, ttl: None },
        CountChange::Create { count: 1, ttl: Some(0) },
        CountChange::Create { count: HUGE, ttl: None },
        CountChange::Create { count: edge, ttl: None },
        CountChange::Add(i64::MIN),
        CountChange::Add(edge as i64),
        CountChange::Add(-(edge as i64)),
        CountChange::Resize(2),
        CountChange::Resize(HUGE),
        CountChange::Resize(edge),
        CountChange::Drain,
        CountChange::Down,
        CountChange::Delete,
    ])
}

#[derive(Clone, Debug)]
enum Step {
    Send(Request),
    /// Something else takes the name, if it is free.
    Plant(Resource),
    /// Whatever else it is, it goes.
    Uproot(Resource),
    Pass(u64),
}

fn request(kind: Kind) -> BoxedStrategy<Request> {
    let resource = || select(&NAMES[..]).prop_map(move |name| named(kind, name));
    let own = move || (resource(), (0..OWNERS.len()).prop_map(owner), 0..4u32);
    let ttl = || select(times(kind).ttls);
    let acquire = (own(), ttl(), prop::option::weighted(0.4, 1..5u64));
    let acquire = acquire.prop_map(move |((resource, owner, count), ttl, temporary)| {
        // Only a permit semaphore can be created by an acquire.
        let temporary = temporary.filter(|_| kind == Kind::Permits);
        Request::Acquire(Acquire { count, temporary, ..Acquire::new(resource, owner, ttl) })
    });
    let release = (own(), prop::option::weighted(0.2, ttl()), any::<bool>());
    let release = release.prop_map(|((resource, owner, count), ttl, undo)| {
        let (keep, leave) = (u32::from(ttl.is_some()), ttl.is_some());
        Request::Release(Release { count, keep, ttl, leave, undo, ..Release::new(resource, owner) })
    });
    let renew = (own(), prop::option::of(ttl())).prop_map(|((resource, owner, count), ttl)| {
        Renew { count, ..Renew::new(resource, owner, ttl) }
    });
    let renew = vec(renew, 1..4).prop_map(Request::Renew);
    let changes = prop_oneof![8 => change(kind), 1 => bad_change()];
    let count = (resource(), select(&CHANGES[..]), changes);
    let count = count.prop_map(|(resource, id, change)| {
        Request::Adjust(Change::Count { resource, id: id.parse().expect("an id"), change })
    });
    let lease = prop::option::of(ttl());
    let by_id =
        (own(), own(), lease).prop_map(|((resource, one, count), (_, other, more), lease)| {
            let ids = [ids(one, count), ids(other, more / 2)].concat();
            let change = lease.map_or(PermitChange::Release, PermitChange::Lease);
            Request::Adjust(Change::Permits {
                resource,
                id: OwnerId::fresh(uuid::Uuid::nil()),
                ids,
                change,
            })
        });
    let inspect = resource().prop_map(Request::Inspect);
    match kind {
        Kind::Latch => prop_oneof![
            12 => count, 1 => acquire, 1 => release, 1 => by_id, 1 => inspect,
        ]
        .boxed(),
        Kind::Permits => prop_oneof![
            6 => acquire, 4 => release, 3 => renew, 4 => count, 2 => by_id, 1 => inspect,
        ]
        .boxed(),
        _ => prop_oneof![6 => acquire, 5 => release, 4 => count, 1 => by_id, 1 => inspect].boxed(),
    }
}

fn step(kind: Kind) -> impl Strategy<Value = Step> {
    let other = (select(&[Kind::Lock, Kind::Mutex][..]), select(&NAMES[..]));
    let other = other.prop_map(|(kind, name)| named(kind, name));
    prop_oneof![
        30 => request(kind).prop_map(Step::Send),
        1 => other.clone().prop_map(Step::Plant),
        2 => other.prop_map(Step::Uproot),
        3 => select(times(kind).steps).prop_map(Step::Pass),
    ]
}

fn agree(kind: Kind) {
    let mut world = World::new();
    check(CASES, vec(step(kind), 1..LENGTH), |steps| {
        world.reset();
        for step in steps {
            match step {
                Step::Send(request) => drop(world.send(request)?),
                Step::Plant(other) if world.kind(&other.name).is_none() => {
                    let acquire = Acquire::new(other.clone(), owner(0), TTLS[4]);
                    world.send(&Request::Acquire(acquire))?;
                }
                Step::Uproot(other) if world.kind(&other.name) == Some(other.kind) => {
                    world.send(&Request::ForceUnlock(other.clone()))?;
                }
                Step::Plant(_) | Step::Uproot(_) => {}
                Step::Pass(span) => world.pass(*span),
            }
        }
        for name in NAMES {
            let found = world.kind(&LockName::from(name));
            let other = found.filter(|kind| matches!(kind, Kind::Lock | Kind::Mutex));
            world.stored(&named(other.unwrap_or(kind), name))?;
        }
        Ok(())
    });
}

#[test]
fn the_scripts_of_the_semaphore_agree_with_the_model() {
    agree(Kind::Semaphore);
}

#[test]
fn the_scripts_of_the_permits_agree_with_the_model() {
    agree(Kind::Permits);
}

#[test]
fn the_scripts_of_the_latch_agree_with_the_model() {
    agree(Kind::Latch);
}

/// What an engine does, each with a fresh id.
#[derive(Clone, Debug)]
enum Act {
    Take {
        count: u32,
        ttl: u64,
    },
    /// Gives a hold back; knows that it was granted, or does not.
    Give {
        which: Index,
        undo: bool,
    },
    /// Undoes a request that has not arrived yet.
    UndoFirst {
        count: u32,
        ttl: u64,
    },
    Renew {
        which: Index,
        ttl: u64,
    },
    /// Gives a hold back by the ids of its permits.
    GiveByIds {
        which: Index,
    },
    Change(CountChange),
    /// A request that was answered arrives once more.
    Late(Index),
    Pass(u64),
}

fn act(kind: Kind) -> BoxedStrategy<Act> {
    let ttl = || select(times(kind).ttls);
    let which = any::<Index>;
    let change = change(kind).prop_map(Act::Change);
    let late = which().prop_map(Act::Late);
    let pass = select(times(kind).steps).prop_map(Act::Pass);
    if kind == Kind::Latch {
        return prop_oneof![6 => change, 4 => late, 1 => pass].boxed();
    }
    let by_ids = u32::from(kind == Kind::Permits) * 2;
    prop_oneof![
        5 => (1..4u32, ttl()).prop_map(|(count, ttl)| Act::Take { count, ttl }),
        4 => (which(), any::<bool>()).prop_map(|(which, undo)| Act::Give { which, undo }),
        1 => (1..3u32, ttl()).prop_map(|(count, ttl)| Act::UndoFirst { count, ttl }),
        by_ids => (which(), ttl()).prop_map(|(which, ttl)| Act::Renew { which, ttl }),
        by_ids => which().prop_map(|which| Act::GiveByIds { which }),
        4 => change,
        8 => late,
        2 => pass,
    ]
    .boxed()
}

/// A server to which the network repeats what it likes, and a model that hears everything once.
struct Play<'a> {
    world: &'a mut World,
    once: State,
    resource: Resource,
    client: Uuid,
    holds: Vec<(OwnerId, u32)>,
    past: Vec<(Request, Answer, u64)>,
}

impl Play<'_> {
    fn act(&mut self, act: &Act, times: usize) -> Result<(), String> {
        let (resource, id) = (self.resource.clone(), OwnerId::fresh(self.client));
        match *act {
            Act::Take { count, ttl } => {
                let request =
                    Request::Acquire(Acquire { count, ..Acquire::new(resource, id, ttl) });
                let answer = self.send(&request, times)?;
                if matches!(answer, Answer::Acquire(Ok(Attempt::Granted { .. }))) {
                    self.holds.push((id, count));
                }
            }
            Act::Give { which, undo } => {
                let Some((id, count)) = self.hold(which) else { return Ok(()) };
                let release = Release { count, undo, ..Release::new(resource, id) };
                self.send(&Request::Release(release), times)?;
            }
            Act::UndoFirst { count, ttl } => {
                let release = Release { count, undo: true, ..Release::new(resource.clone(), id) };
                self.send(&Request::Release(release), times)?;
                let acquire = Acquire { count, ..Acquire::new(resource, id, ttl) };
                let gone = Answer::Acquire(Ok(Attempt::Gone));
                self.past.push((Request::Acquire(acquire), gone, self.world.now));
            }
            Act::Renew { which, ttl } => {
                let Some((id, count)) = self.hold(which) else { return Ok(()) };
                self.holds.push((id, count));
                let renew = Renew { count, ..Renew::new(resource, id, Some(ttl)) };
                self.send(&Request::Renew(vec![renew]), times)?;
            }
            Act::GiveByIds { which } => {
                let Some((id, count)) = self.hold(which) else { return Ok(()) };
                let (ids, change) = (ids(id, count), PermitChange::Release);
                self.send(
                    &Request::Adjust(Change::Permits {
                        resource,
                        id: OwnerId::fresh(uuid::Uuid::nil()),
                        ids,
                        change,
                    }),
                    times,
                )?;
            }
            Act::Change(change) => {
                self.send(&Request::Adjust(Change::Count { resource, id, change }), times)?;
            }
            Act::Late(index) => self.late(index)?,
            Act::Pass(span) => self.world.pass(span),
        }
        self.check()
    }

    fn hold(&mut self, which: Index) -> Option<(OwnerId, u32)> {
        let any = !self.holds.is_empty();
        any.then(|| self.holds.swap_remove(which.index(self.holds.len())))
    }

    /// The server hears it so many times.
    fn send(&mut self, request: &Request, times: usize) -> Result<Answer, String> {
        let expected = ask(&mut self.once, request, self.world.now);
        for time in 0..times {
            let answer = self.world.send(request)?;
            self.compare(&expected, &answer, time > 0)?;
            self.check()?;
        }
        self.past.push((request.clone(), expected.clone(), self.world.now));
        Ok(expected)
    }

    /// Within the time for which answers are remembered.
    fn late(&mut self, index: Index) -> Result<(), String> {
        let by_ids = self.resource.kind == Kind::Permits;
        let late = self.past.iter().filter(|(request, answer, at)| match (request, answer) {
            // It may be granted now, as it may if the engine sends it again.
            (_, Answer::Acquire(Ok(Attempt::Busy { .. }))) => false,
            // Of permits with ids, it is the lease that ends what is granted late.
            (Request::Acquire(_) | Request::Renew(_), _) if by_ids => false,
            (_, Answer::Acquire(Err(_)) | Answer::Adjust(Err(_))) => false,
            _ => self.world.now - at <= 60_000,
        });
        let late: Vec<_> = late.cloned().collect();
        if late.is_empty() {
            return Ok(());
        }
        let (request, expected, _) = &late[index.index(late.len())];
        let answer = self.world.send(request)?;
        self.compare(expected, &answer, true)
    }

    fn compare(&self, first: &Answer, answer: &Answer, again: bool) -> Result<(), String> {
        let by_ids = self.resource.kind == Kind::Permits;
        let fits = same(first, answer)
            || again
                && match (first, answer) {
                    // Given back since.
                    (Answer::Acquire(_), Answer::Acquire(Ok(Attempt::Gone))) => true,
                    // Released ids stay released.
                    (Answer::Release(_), Answer::Release(Ok(Released::Absent { .. })))
                    | (Answer::Adjust(_), Answer::Adjust(Ok(Changed::Nothing))) => by_ids,
                    (Answer::Renew(_), Answer::Renew(_)) => true,
                    _ => false,
                };
        if fits {
            return Ok(());
        }
        Err(self.world.failure(format!("first {first:?}, then {answer:?}")))
    }

    fn check(&mut self) -> Result<(), String> {
        let found = self.world.stored(&self.resource)?;
        let once = self.once.inspect(&self.resource, self.world.now);
        let once = Stored::from(once.expect("it is nothing else"));
        if same_stored(&once, &found) {
            return Ok(());
        }
        Err(self.world.failure(format!("heard once {once:?}, repeated {found:?}")))
    }
}

fn repeat(kind: Kind) {
    let mut world = World::new();
    check(CASES, vec((act(kind), 1..3usize), 1..LENGTH), |acts| {
        world.reset();
        let mut play = Play {
            world: &mut world,
            once: State::default(),
            resource: named(kind, "a"),
            client: Uuid::new_v4(),
            holds: Vec::new(),
            past: Vec::new(),
        };
        acts.iter().try_for_each(|(act, times)| play.act(act, *times))
    });
}

#[test]
fn repeated_and_late_requests_count_once_at_a_semaphore() {
    repeat(Kind::Semaphore);
}

#[test]
fn repeated_and_late_requests_count_once_at_permits() {
    repeat(Kind::Permits);
}

#[test]
fn repeated_and_late_requests_count_once_at_a_latch() {
    repeat(Kind::Latch);
}
