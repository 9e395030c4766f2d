//! What is loaded, answered by the model and written back is what the model would answer if it had
//! everything at hand: the same requests to both, at the same moments, have the same answers.
//!
//! A part of the library's unit tests (`src/file/mod.rs`), because it drives the tables below the store.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use uuid::Uuid;

use super::db::Db;
use super::time::Moment;
use crate::backend::{
    Acquire, Attempt, Change, ClientInfo, CountChange, Fault, Fenced, Kind, PermitChange, Release,
    Renew, Renewed, Resource,
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

/// What requests are made of; each uses what it has a field for.
#[derive(Clone, Debug)]
struct Part {
    resource: Resource,
    owner: OwnerId,
    count: u32,
    ttl: u64,
    number: i64,
    flags: [bool; 4],
}

fn part(names: &'static [&str], kinds: &'static [Kind]) -> impl Strategy<Value = Part> {
    let owner = (0..2_u8, 0..5_u64)
        .prop_map(|(client, number)| OwnerId { client: Uuid::from_bytes([client; 16]), number });
    let numbers = (1..3_u32, select(&TTLS[..]), -2..4_i64, any::<[bool; 4]>());
    (select(names), select(kinds), owner, numbers).prop_map(
        |(name, kind, owner, (count, ttl, number, flags))| {
            let resource = Resource { kind, name: LockName::from(name) };
            Part { resource, owner, count, ttl, number, flags }
        },
    )
}

/// Makes a request of the first part; `what` says which.
fn request(what: u8, parts: &[Part]) -> Request {
    let Part { resource, owner, count, ttl, number, flags: [a, b, c, d] } = parts[0].clone();
    let other = |index: usize| parts.get(index).map(|part| part.owner);
    let positive = number.unsigned_abs();
    let counted =
        |change| Request::Adjust(Change::Count { resource: resource.clone(), id: owner, change });
    match what {
        0..8 => {
            let from = other(3);
            let also = parts.get(1).filter(|_| d && resource.kind == Kind::Lock && from.is_none());
            let also = also.filter(|part| part.resource.name != resource.name);
            Request::Acquire(Acquire {
                count,
                from,
                beside: other(2),
                fenced: c.then_some(Fenced { ttl: Some(ttl).filter(|ttl| *ttl < 1_000) }),
                waits: a || b,
                also: also
                    .map(|part| (part.resource.name.clone(), part.owner))
                    .into_iter()
                    .collect(),
                temporary: (resource.kind == Kind::Permits && number > 0).then_some(positive),
                ..Acquire::new(resource, owner, ttl)
            })
        }
        8..13 => Request::Release(Release {
            count,
            keep: u32::from(a),
            ttl: b.then_some(ttl),
            leave: a && c,
            undo: d,
            ..Release::new(resource, owner)
        }),
        13..17 => {
            let renew = |part: &Part| Renew {
                count: part.count,
                waiting: part.flags[0],
                ..Renew::new(part.resource.clone(), part.owner, b.then_some(part.ttl))
            };
            Request::Renew(parts.iter().map(renew).collect())
        }
        17..19 => counted(CountChange::Create { count: positive, ttl: (a && b).then_some(ttl) }),
        19 => counted(CountChange::Add(number)),
        20 => counted(match (a, b) {
            (true, true) => CountChange::Drain,
            (true, false) => CountChange::Down,
            (false, true) => CountChange::Delete,
            (false, false) => CountChange::Resize(positive),
        }),
        21..23 => {
            let ids = PermitId::of(other(1).unwrap_or(owner), 1).collect();
            let change = if a { PermitChange::Release } else { PermitChange::Lease(ttl) };
            Request::Adjust(Change::Permits { resource, id: owner, ids, change })
        }
        23 => {
            let by = ClientInfo::of_this_process();
            let reason = "because".to_owned();
            Request::Adjust(Change::ForceUnlock { resource, reason, by, from: None })
        }
        24 => Request::Inspect(resource),
        _ => Request::Sweep,
    }
}

/// Generates requests and the time before each. Each name has one kind, except for one request in
/// ten.
fn sequence() -> impl Strategy<Value = Vec<(Request, u64)>> {
    let parts = || vec(part(&NAMES, &Kind::ALL), 1..5);
    let step = (0..26_u8, parts(), select(&STEPS[..]), prop::bool::weighted(0.1));
    (vec(select(&Kind::ALL[..]), NAMES.len()), vec(step, 1..LENGTH)).prop_map(|(kinds, steps)| {
        let steps = steps.into_iter().map(|(what, mut parts, span, odd)| {
            for Part { resource, .. } in parts.iter_mut().filter(|_| !odd) {
                let is_its = |name: &&str| name.as_bytes() == resource.name.as_bytes();
                let kind = kinds[NAMES.iter().position(is_its).unwrap_or(0)];
                let is_side = |kind| matches!(kind, Kind::Read | Kind::Write);
                if !(is_side(kind) && is_side(resource.kind)) {
                    resource.kind = kind;
                }
            }
            (request(what, &parts), span)
        });
        steps.collect()
    })
}

/// The answers of the model and of the file, and the wake-ups of the model.
type Answers = (String, String, Vec<Wake>);

fn answers(state: &mut State, db: &mut Db, request: &Request, now: u64) -> Answers {
    fn both<T: std::fmt::Debug>((expected, wakes): (T, Vec<Wake>), found: T) -> Answers {
        (format!("{expected:?}"), format!("{found:?}"), wakes)
    }
    match request {
        Request::Acquire(request) => both(state.acquire(request, now), db.acquire(request)),
        Request::Release(request) => both(state.release(request, now), db.release(request)),
        Request::Renew(batch) => both(state.renew(batch, now), db.renew(batch)),
        Request::Adjust(change) => both(state.adjust(change, now), db.adjust(change)),
        Request::Inspect(resource) => {
            both((state.inspect(resource, now), Vec::new()), db.inspect(resource))
        }
        Request::Sweep => both((true, Vec::new()), db.sweep().is_ok()),
    }
}

/// Runs random sequences against both stores.
fn agree(sequence: impl Strategy<Value = Vec<(Request, u64)>>) {
    let (db, _folder) = Db::for_test();
    let db = std::cell::RefCell::new(db);
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
            let (expected, found, woken) = answers(&mut state, db, request, moment.now);
            prop_assert_eq!(found, expected, "{:?}", request);
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
    let parts = vec(part(&NAMES[..1], &[Kind::Fair]), 1..5);
    let request = (0..17_u8, parts).prop_map(|(what, parts)| request(what, &parts));
    let span = prop_oneof![6 => 0..300_u64, 2 => 700..1_700_u64, 1 => 3_000..3_100_u64];
    agree(vec((request, span), 1..LENGTH));
}

/// The wall clock is set by years while a lock is held.
#[test]
fn a_wall_clock_that_is_set_moves_no_lease_and_tokens_grow_all_the_same() {
    let (mut db, _folder) = Db::for_test();
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

#[test]
fn an_unreadable_record_is_the_fault_of_its_own_entries() {
    let (mut db, _folder) = Db::for_test();
    let owner = OwnerId::fresh(Uuid::nil());
    let lock = |name| Resource { kind: Kind::Lock, name: LockName::from(name) };
    for name in NAMES {
        let granted = db.acquire(&Acquire::new(lock(name), owner, 9_000));
        assert_eq!(granted, Ok(Attempt::GRANTED));
    }
    let spoil = "UPDATE names SET record = '?' WHERE name = ?1";
    assert_eq!(db.connection.execute(spoil, [b"a"]), Ok(1));
    let renewed = db.renew(&NAMES.map(|name| Renew::new(lock(name), owner, Some(9_000))));
    assert!(matches!(renewed[0], Err(Fault::Server { .. })), "{renewed:?}");
    let held = |renewed: &_| matches!(renewed, Ok(Renewed::Held(_)));
    assert!(renewed[1..].iter().all(held), "{renewed:?}");
}
