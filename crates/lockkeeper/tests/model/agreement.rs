//! Any sequence of requests has the same answers and the same outcome on Redis and in the model.

use lockkeeper::backend::{Acquire, Fenced, Kind, Release, Renew, Resource};
use lockkeeper::{LockName, OwnerId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::check;
use crate::world::{Request, STEPS, TTLS, World};

const CASES: u32 = 2_000;
const LENGTH: usize = 40;

/// Names: two that are mostly locks and one that is mostly a mutex.
const NAMES: [(&str, Kind); 3] = [("a", Kind::Lock), ("{b}:c", Kind::Lock), ("d", Kind::Mutex)];

/// Owner ids: two of each of two clients.
const OWNERS: [&str; 4] = [
    "00000000-0000-4000-8000-00000000000a:100001",
    "00000000-0000-4000-8000-00000000000a:100002",
    "00000000-0000-4000-8000-00000000000b:100003",
    "00000000-0000-4000-8000-00000000000b:9223372036854775807",
];

#[derive(Clone, Debug)]
enum Step {
    Send(Request),
    Pass(u64),
}

fn resource() -> impl Strategy<Value = Resource> {
    // Now and then a name is used as what it is not.
    (0..NAMES.len(), prop::bool::weighted(0.1)).prop_map(|(index, other)| {
        let (name, kind) = NAMES[index];
        let kind = match (kind, other) {
            (Kind::Lock, true) => Kind::Mutex,
            (Kind::Mutex, true) => Kind::Lock,
            (kind, _) => kind,
        };
        Resource { kind, name: LockName::from(name) }
    })
}

fn owner() -> impl Strategy<Value = OwnerId> {
    select(&OWNERS[..]).prop_map(|id| id.parse().expect("it is of the form <uuid>:<number>"))
}

fn ttl() -> impl Strategy<Value = u64> {
    select(&TTLS[..])
}

fn fenced() -> impl Strategy<Value = Option<Fenced>> {
    prop::option::weighted(0.3, Just(Fenced { ttl: None }))
}

fn acquire() -> impl Strategy<Value = Request> {
    let request = (resource(), owner(), 1..4u32, ttl(), fenced());
    request.prop_map(|(resource, owner, count, ttl, fenced)| {
        // Only a lock is re-entrant, and has tokens.
        let (count, fenced) = match resource.kind {
            Kind::Lock => (count, fenced),
            _ => (1, None),
        };
        Request::Acquire(Acquire { count, fenced, ..Acquire::new(resource, owner, ttl) })
    })
}

fn hand_over() -> impl Strategy<Value = Request> {
    let request = (resource(), owner(), owner(), ttl(), fenced());
    let request = request.prop_filter("to itself", |(_, from, to, ..)| from != to);
    request.prop_map(|(resource, from, owner, ttl, fenced)| {
        let fenced = fenced.filter(|_| resource.kind == Kind::Lock);
        Request::Acquire(Acquire { from: Some(from), fenced, ..Acquire::new(resource, owner, ttl) })
    })
}

fn release() -> impl Strategy<Value = Request> {
    let rest = prop::option::of(ttl());
    let request = (resource(), owner(), 0..3u32, rest, any::<bool>());
    request.prop_map(|(resource, owner, keep, ttl, leave)| {
        // A mutex is freed, or left for a while: it has no holds to keep.
        let (keep, ttl, leave) = match (resource.kind, ttl) {
            (Kind::Mutex, None) => (0, None, false),
            (Kind::Mutex, ttl) => (1, ttl, true),
            (_, ttl) => (keep, ttl, leave && keep > 0),
        };
        Request::Release(Release { keep, ttl, leave, ..Release::new(resource, owner) })
    })
}

fn renew() -> impl Strategy<Value = Request> {
    let one = (resource(), owner(), prop::option::of(ttl()));
    let one = one.prop_map(|(resource, owner, ttl)| Renew::new(resource, owner, ttl));
    vec(one, 1..5).prop_map(Request::Renew)
}

fn step() -> impl Strategy<Value = Step> {
    let request = prop_oneof![
        6 => acquire(),
        2 => hand_over(),
        4 => release(),
        3 => renew(),
        1 => resource().prop_map(Request::ForceUnlock),
        1 => resource().prop_map(Request::Inspect),
    ];
    prop_oneof![
        9 => request.prop_map(Step::Send),
        1 => select(&STEPS[..]).prop_map(Step::Pass),
    ]
}

#[test]
fn the_redis_scripts_agree_with_the_model() {
    let mut world = World::new();
    check(CASES, vec(step(), 1..LENGTH), |steps| {
        world.reset();
        for step in steps {
            match step {
                Step::Send(request) => drop(world.send(request)?),
                Step::Pass(span) => world.pass(*span),
            }
        }
        for (name, kind) in NAMES {
            let name = LockName::from(name);
            // As what it is, if it is anything: the model refuses to look at it as anything else.
            let kind = world.kind(&name).unwrap_or(kind);
            world.stored(&Resource { kind, name })?;
        }
        Ok(())
    });
}
