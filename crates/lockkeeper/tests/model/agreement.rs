//! Any sequence of requests has the same answers and the same outcome on Redis and in the model.

use lockkeeper::backend::{Acquire, Fenced, Kind, Release, Renew, Resource};
use lockkeeper::{LockName, OwnerId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::world::{Request, STEPS, TTLS, World};
use crate::{Outcome, check};

const CASES: u32 = 2_000;
const LENGTH: usize = 40;

/// Names: two that are mostly locks and one that is mostly a mutex.
const NAMES: [(&str, Kind); 3] = [("a", Kind::Lock), ("{b}:c", Kind::Lock), ("d", Kind::Mutex)];

/// Owner ids of two clients.
pub(crate) const OWNERS: [&str; 5] = [
    "00000000-0000-4000-8000-00000000000a:100001",
    "00000000-0000-4000-8000-00000000000a:100002",
    "00000000-0000-4000-8000-00000000000a:100003",
    "00000000-0000-4000-8000-00000000000b:100004",
    "00000000-0000-4000-8000-00000000000b:9223372036854775807",
];

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send(Request),
    Pass(u64),
}

pub(crate) fn id(text: &str) -> OwnerId {
    text.parse().expect("it is of the form <uuid>:<number>")
}

fn owner() -> impl Strategy<Value = OwnerId> {
    select(&OWNERS[..]).prop_map(id)
}

/// As far as its kind has such requests.
fn acquire(request: Acquire) -> Acquire {
    let mut kind = request.resource.kind;
    let from = request.from.filter(|from| *from != request.owner && kind != Kind::Fair);
    if from.is_some() && kind == Kind::Read {
        kind = Kind::Write;
    }
    let is_first = from.is_none() && kind != Kind::Mutex;
    let is_rw = matches!(kind, Kind::Read | Kind::Write);
    Acquire {
        resource: Resource { kind, ..request.resource },
        count: if is_first { request.count } else { 1 },
        beside: request.beside.filter(|_| is_first && is_rw),
        waits: request.waits && from.is_none() && kind != Kind::Read,
        fenced: request.fenced.filter(|_| !matches!(kind, Kind::Mutex | Kind::Read)),
        from,
        ..request
    }
}

/// As far as its kind has such requests: a mutex is freed, or left for a while.
fn release(request: Release) -> Release {
    let (keep, ttl, leave) = match (request.resource.kind, request.ttl) {
        (Kind::Mutex, None) => (0, None, false),
        (Kind::Mutex, ttl) => (1, ttl, true),
        (_, ttl) => (request.keep, ttl, request.leave && request.keep > 0),
    };
    Release { keep, ttl, leave, undo: request.undo && keep == 0, ..request }
}

/// By name, as the engine sends positions in queues; and of one side of read/write locks: a store may renew the
/// sides in any order, and one can lengthen the other.
fn renew(mut batch: Vec<Renew>) -> Vec<Renew> {
    let first = batch[0].resource.kind;
    for renew in &mut batch {
        if matches!(first, Kind::Read | Kind::Write) {
            renew.resource.kind = first;
        }
        renew.waiting &= renew.resource.kind == Kind::Fair;
        renew.ttl = renew.ttl.filter(|_| !renew.waiting);
    }
    if batch.iter().any(|renew| renew.waiting) {
        batch.sort_by(|a, b| a.resource.name.cmp(&b.resource.name));
    }
    batch
}

/// Requests for what is `taken`, now and then as what it is not, and for what is `held`.
pub(crate) fn steps(
    taken: BoxedStrategy<Resource>,
    held: BoxedStrategy<Resource>,
    (ttls, spans): (&'static [u64], &'static [u64]),
) -> impl Strategy<Value = Vec<Step>> {
    let count = || prop_oneof![2 => Just(1), 1 => 2..4u32];
    let optional = (
        prop::option::weighted(0.2, owner()),
        prop::option::of(owner()),
        prop::option::weighted(0.3, Just(Fenced { ttl: None })),
        prop::bool::weighted(0.7),
    );
    let acquire = (taken.clone(), owner(), count(), select(ttls), optional).prop_map(
        |(resource, owner, count, ttl, (from, beside, fenced, waits))| {
            let first = Acquire::new(resource, owner, ttl);
            Request::Acquire(acquire(Acquire { count, from, beside, fenced, waits, ..first }))
        },
    );
    let ttl = || prop::option::of(select(ttls));
    let kept = prop_oneof![2 => Just(0), 1 => 1..3u32];
    let release = (held.clone(), owner(), kept, ttl(), any::<bool>(), any::<bool>()).prop_map(
        |(resource, owner, keep, ttl, leave, undo)| {
            let all = Release::new(resource, owner);
            Request::Release(release(Release { keep, ttl, leave, undo, ..all }))
        },
    );
    let one = (held.clone(), owner(), ttl(), prop::bool::weighted(0.7));
    let one = one.prop_map(|(resource, owner, ttl, waiting)| Renew {
        waiting,
        ..Renew::new(resource, owner, ttl)
    });
    let request = prop_oneof![
        8 => acquire,
        4 => release,
        3 => vec(one, 1..5).prop_map(|batch| Request::Renew(renew(batch))),
        1 => taken.prop_map(Request::ForceUnlock),
        1 => held.prop_map(Request::Inspect),
    ];
    let step = prop_oneof![
        8 => request.prop_map(Step::Send),
        1 => select(spans).prop_map(Step::Pass),
    ];
    vec(step, 1..LENGTH)
}

/// Both say the same to every request.
pub(crate) fn agree(world: &mut World, steps: &[Step]) -> Outcome {
    world.reset();
    steps.iter().try_for_each(|step| match step {
        Step::Send(request) => world.send(request).map(drop),
        Step::Pass(span) => {
            world.pass(*span);
            Ok(())
        }
    })
}

#[test]
fn the_redis_scripts_agree_with_the_model() {
    let resource = (0..NAMES.len(), prop::bool::weighted(0.1)).prop_map(|(index, other)| {
        let (name, kind) = NAMES[index];
        let kind = match (kind, other) {
            (Kind::Lock, true) => Kind::Mutex,
            (Kind::Mutex, true) => Kind::Lock,
            (kind, _) => kind,
        };
        Resource { kind, name: LockName::from(name) }
    });
    let mut world = World::new();
    let resource = resource.boxed();
    check(CASES, steps(resource.clone(), resource, (&TTLS, &STEPS)), |steps| {
        agree(&mut world, steps)?;
        for (name, kind) in NAMES {
            let name = LockName::from(name);
            // As what it is, if it is anything: the model refuses to look at it as anything else.
            let kind = world.kind(&name).unwrap_or(kind);
            world.stored(&Resource { kind, name })?;
        }
        Ok(())
    });
}
