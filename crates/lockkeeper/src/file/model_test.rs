//! What is loaded, answered by the model and written back is what the model would answer if it had
//! everything at hand: the same requests to both, at the same moments, have the same answers.

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;
use uuid::Uuid;

use super::busy_handler;
use super::db::Db;
use super::path::Location;
use super::time::Moment;
use crate::backend::{
    Acquire, Attempt, Change, ClientInfo, CountChange, Fenced, Kind, PermitChange, Release, Renew,
    Resource,
};
use crate::model::{State, Wake};
use crate::{LockName, OwnerId, PermitId};

const CASES: u32 = 400;
const LENGTH: usize = 60;

const NAMES: [&str; 3] = ["a", "b b", "c\u{e9}"];

const TTLS: [u64; 4] = [40, 900, 5_000, 20_000];

/// The time steps between requests. `agree` limits their sum to the time for which answers are
/// remembered, because the model in memory may keep some answers longer than the file.
const STEPS: [u64; 6] = [0, 1, 41, 600, 1_600, 3_100];

#[derive(Clone, Debug)]
enum Request {
    Acquire(Acquire),
    Release(Release),
    Renew(Vec<Renew>),
    Adjust(Change),
    Inspect(Resource),
    Sweep,
}

fn resource() -> impl Strategy<Value = Resource> {
    use Kind::{Fair, Latch, Lock, Mutex, Permits, Read, Semaphore, Write};
    // Each name has mostly one kind in one run; see `sequence`.
    let kind = select(&[Lock, Mutex, Fair, Read, Write, Semaphore, Permits, Latch][..]);
    (select(&NAMES[..]), kind)
        .prop_map(|(name, kind)| Resource { kind, name: LockName::from(name) })
}

fn owner() -> impl Strategy<Value = OwnerId> {
    (0..2_u8, 0..3_u64).prop_map(|(client, number)| {
        let client = Uuid::from_bytes([client; 16]);
        format!("{client}:{number}").parse().expect("it is of the right form")
    })
}

fn ttl() -> impl Strategy<Value = u64> {
    select(&TTLS[..])
}

fn acquire() -> impl Strategy<Value = Request> {
    let optional = (prop::option::weighted(0.15, owner()), prop::option::weighted(0.15, owner()));
    let also = prop_oneof![8 => Just(None), 1 => (select(&NAMES[..]), owner()).prop_map(Some)];
    let temporary = prop::option::weighted(0.4, 1..4_u64);
    let more = (any::<bool>(), prop::bool::weighted(0.3), also, temporary);
    (resource(), owner(), 1..3_u32, ttl(), optional, more).prop_map(
        |(resource, owner, count, ttl, (from, beside), (waits, fenced, also, temporary))| {
            let fenced = fenced.then_some(Fenced { ttl: Some(ttl).filter(|ttl| *ttl < 1_000) });
            let also = also.filter(|_| resource.kind == Kind::Lock && from.is_none());
            let also = also.map(|(name, owner)| (LockName::from(name), owner));
            let also = also.filter(|(name, _)| *name != resource.name).into_iter().collect();
            let temporary = temporary.filter(|_| resource.kind == Kind::Permits);
            let request = Acquire { temporary, ..Acquire::new(resource, owner, ttl) };
            Request::Acquire(Acquire { count, from, beside, fenced, waits, also, ..request })
        },
    )
}

fn release() -> impl Strategy<Value = Request> {
    let rest = (0..2_u32, prop::option::of(ttl()), any::<bool>(), any::<bool>());
    (resource(), owner(), 1..3_u32, rest).prop_map(
        |(resource, owner, count, (keep, ttl, leave, undo))| {
            let leave = leave && keep > 0;
            let request = Release::new(resource, owner);
            Request::Release(Release { count, keep, ttl, leave, undo, ..request })
        },
    )
}

fn renew() -> impl Strategy<Value = Request> {
    let one = (resource(), owner(), prop::option::of(ttl()), 1..3_u32, any::<bool>());
    let one = one.prop_map(|(resource, owner, ttl, count, waiting)| Renew {
        count,
        waiting,
        ..Renew::new(resource, owner, ttl)
    });
    vec(one, 1..5).prop_map(Request::Renew)
}

fn adjust() -> impl Strategy<Value = Request> {
    let (add, count) = ((-2..4_i64).prop_map(CountChange::Add), 0..4_u64);
    let create = (count.clone(), prop::option::weighted(0.3, ttl()))
        .prop_map(|(count, ttl)| CountChange::Create { count, ttl });
    let rest = vec![CountChange::Drain, CountChange::Down, CountChange::Delete];
    let change = prop_oneof![4 => create, 3 => add, 2 => select(rest),
        1 => count.prop_map(CountChange::Resize)];
    let count = (resource(), owner(), change).prop_map(|(resource, id, change)| Change::Count {
        resource,
        id,
        change,
    });
    let change = prop_oneof![Just(PermitChange::Release), ttl().prop_map(PermitChange::Lease)];
    let permits = (resource(), owner(), owner(), change).prop_map(|(resource, id, of, change)| {
        Change::Permits { resource, id, ids: PermitId::of(of, 1).collect(), change }
    });
    let force = resource().prop_map(|resource| {
        let by = ClientInfo::of_this_process();
        Change::ForceUnlock { resource, reason: "because".to_owned(), by, from: None }
    });
    prop_oneof![5 => count, 2 => permits, 1 => force].prop_map(Request::Adjust)
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        8 => acquire(),
        5 => release(),
        4 => renew(),
        5 => adjust(),
        1 => resource().prop_map(Request::Inspect),
        1 => Just(Request::Sweep),
    ]
}

/// Generates requests and the time before each. Each name has one kind, except for one request in
/// ten.
fn sequence() -> impl Strategy<Value = Vec<(Request, u64)>> {
    let kinds = vec(resource().prop_map(|resource| resource.kind), NAMES.len());
    let step = (request(), select(&STEPS[..]), prop::bool::weighted(0.1));
    (kinds, vec(step, 1..LENGTH)).prop_map(|(kinds, steps)| {
        let settle = |resource: &mut Resource| {
            let location =
                NAMES.iter().position(|name| name.as_bytes() == resource.name.as_bytes());
            let sides = matches!(kinds[location.unwrap_or(0)], Kind::Read | Kind::Write);
            if !(sides && matches!(resource.kind, Kind::Read | Kind::Write)) {
                resource.kind = kinds[location.unwrap_or(0)];
            }
        };
        let steps = steps.into_iter().map(|(mut request, span, odd)| {
            if !odd {
                match &mut request {
                    Request::Acquire(Acquire { resource, .. })
                    | Request::Release(Release { resource, .. })
                    | Request::Adjust(
                        Change::Count { resource, .. }
                        | Change::Permits { resource, .. }
                        | Change::ForceUnlock { resource, .. },
                    )
                    | Request::Inspect(resource) => settle(resource),
                    Request::Renew(batch) => {
                        batch.iter_mut().for_each(|renew| settle(&mut renew.resource));
                    }
                    Request::Adjust(_) | Request::Sweep => {}
                }
            }
            (request, span)
        });
        steps.collect()
    })
}

/// Returns the answer of the model and its wake-ups.
fn of_model(state: &mut State, request: &Request, now: u64) -> (String, Vec<Wake>) {
    match request {
        Request::Acquire(request) => shown(state.acquire(request, now)),
        Request::Release(request) => shown(state.release(request, now)),
        Request::Renew(batch) => shown(state.renew(batch, now)),
        Request::Adjust(change) => shown(state.adjust(change, now)),
        Request::Inspect(resource) => (format!("{:?}", state.inspect(resource, now)), Vec::new()),
        Request::Sweep => (String::new(), Vec::new()),
    }
}

fn shown<T: std::fmt::Debug>((answer, wakes): (T, Vec<Wake>)) -> (String, Vec<Wake>) {
    (format!("{answer:?}"), wakes)
}

fn of_file(db: &mut Db, request: &Request) -> String {
    match request {
        Request::Acquire(request) => format!("{:?}", db.acquire(request)),
        Request::Release(request) => format!("{:?}", db.release(request)),
        Request::Renew(batch) => format!("{:?}", db.renew(batch)),
        Request::Adjust(change) => format!("{:?}", db.adjust(change)),
        Request::Inspect(resource) => format!("{:?}", db.inspect(resource)),
        Request::Sweep => db.sweep().map(|()| String::new()).expect("it can be swept"),
    }
}

/// Runs random sequences against both stores.
fn agree(sequence: impl Strategy<Value = Vec<(Request, u64)>>) {
    let folder = TempDir::new().expect("there is room");
    busy_handler::set_limit(Instant::now() + Duration::from_secs(600));
    let location = Location::find(&folder.path().join("locks.db"), false).expect("a place for it");
    let db = std::cell::RefCell::new(Db::open(&location).expect("it can be made"));
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let checked = TestRunner::new(config).run(&sequence, |steps| {
        let db = &mut *db.borrow_mut();
        for table in ["names", "waiters"] {
            db.connection.execute(&format!("DELETE FROM {table}"), []).expect("it is emptied");
        }
        db.replies = State::default();
        let mut moment = Moment { now: 1_000_000, epoch: 1_700_000_000_000 };
        let mut state = State::behind(moment.epoch);
        let limit = moment.now + crate::model::REMEMBERED;
        for (request, span) in &steps {
            moment.now = limit.min(moment.now + span);
            db.stopped = Some(moment);
            let (expected, woken) = of_model(&mut state, request, moment.now);
            prop_assert_eq!(of_file(db, request), expected, "{:?}", request);
            prop_assert_eq!(db.woken.take(), woken, "{:?}", request);
        }
        let sql = "SELECT count(*) FROM waiters WHERE name NOT IN
            (SELECT name FROM names WHERE record ->> '$.queue' IS NOT NULL)";
        let left = db.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("counted");
        prop_assert_eq!(left, 0, "waiters of no queue");
        for name in NAMES {
            for kind in [Kind::Fair, Kind::Mutex, Kind::Write, Kind::Permits] {
                let resource = Resource { kind, name: LockName::from(name) };
                let expected = format!("{:?}", state.inspect(&resource, moment.now));
                let found = format!("{:?}", db.inspect(&resource));
                prop_assert_eq!(found, expected, "{:?}", resource);
            }
        }
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
}

#[test]
fn the_file_answers_as_the_model_does() {
    agree(sequence());
}

/// One fair lock with more waiters than a request loads of its queue.
#[test]
fn a_queue_of_which_little_is_read_is_the_whole_queue() {
    let resource = || Resource { kind: Kind::Fair, name: LockName::from(NAMES[0]) };
    let owner = || {
        let owner = |number: u64| format!("{}:{number}", Uuid::nil()).parse();
        (0..9_u64).prop_map(move |number| owner(number).expect("it is of the right form"))
    };
    let acquire = (owner(), prop::bool::weighted(0.9)).prop_map(move |(owner, waits)| {
        Request::Acquire(Acquire { waits, ..Acquire::new(resource(), owner, 5_000) })
    });
    let release = owner().prop_map(move |owner| Request::Release(Release::new(resource(), owner)));
    let renew = vec(owner(), 1..5).prop_map(move |owners| {
        let renew = |owner| Renew { waiting: true, ..Renew::new(resource(), owner, None) };
        Request::Renew(owners.into_iter().map(renew).collect())
    });
    let request = prop_oneof![6 => acquire, 3 => release, 3 => renew];
    let span = prop_oneof![6 => 0..300_u64, 2 => 700..1_700_u64, 1 => 3_000..3_100_u64];
    agree(vec((request, span), 1..LENGTH));
}

/// The wall clock is set by years while a lock is held.
#[test]
fn a_wall_clock_that_is_set_moves_no_lease_and_tokens_grow_all_the_same() {
    let folder = TempDir::new().expect("there is room");
    busy_handler::set_limit(Instant::now() + Duration::from_secs(600));
    let mut db =
        Db::open(&Location::find(&folder.path().join("locks.db"), false).expect("a place for it"))
            .expect("it can be made");
    let lock = Resource { kind: Kind::Lock, name: LockName::from("a") };
    let (years, mut last) = (10 * 365 * 24 * 3_600_000, 0);
    let mut now = 5_000;
    for epoch in [2 * years, 5 * years, years] {
        now += 1;
        db.stopped = Some(Moment { now, epoch: 2 * years });
        let owner = OwnerId::fresh(Uuid::new_v4());
        let fenced = Some(Fenced { ttl: None });
        let request = Acquire { fenced, ..Acquire::new(lock.clone(), owner, 1_000) };
        let Ok(Attempt::Granted { token: Some(token) }) = db.acquire(&request) else {
            panic!("it is free")
        };
        assert!(token > last, "{token} after {last}");
        last = token;
        now += 1_000;
        db.stopped = Some(Moment { now, epoch });
        let left = db.inspect(&lock).expect("it can be looked at").ttl;
        assert_eq!(left, Some(crate::backend::Ttl::millis(0)), "its last millisecond");
        // Tokens follow the current wall clock, but never decrease.
        let again = Acquire { fenced, count: 2, ..Acquire::new(lock.clone(), owner, 1_000) };
        let Ok(Attempt::Granted { token: Some(token) }) = db.acquire(&again) else {
            panic!("it is held")
        };
        assert_eq!(token, ((now + epoch) * 1000).max(last + 1));
        last = token;
        now += 1_001;
        db.stopped = Some(Moment { now, epoch });
        assert_eq!(db.inspect(&lock).expect("it can be looked at").ttl, None, "it has ended");
    }
}
