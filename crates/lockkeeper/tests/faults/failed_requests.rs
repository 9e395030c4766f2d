//! A request that fails has changed nothing.
//!
//! Every request of every kind, as the engine sends it, in every state, with each of its keys in turn having
//! another type.

use std::collections::BTreeMap;

use lockkeeper::backend::{
    Acquire, Attempt, Backend, BoxFuture, Change, ClientInfo, CountChange, Fenced, PermitChange,
    Release, Released, Renew, Renewed, Resource,
};
use lockkeeper::stores::Redis;
use lockkeeper::{Kind, OwnerId, PermitId};
use testkit::{Cli, RedisServer, Reply};

use crate::primitives::ends_by_itself;
use crate::support::*;

const X: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:7";
const Y: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:8";
const Z: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:9";

const TTL: u64 = 60_000;

fn owner(text: &str) -> OwnerId {
    text.parse().expect("an owner id")
}

fn resource(kind: Kind) -> Resource {
    Resource { kind, name: "a".as_bytes().into() }
}

/// The permits of `X`, as they are stored.
fn ids() -> Vec<PermitId> {
    let uuid: u128 = 0x6ba7_b810_9dad_11d1_80b4_00c0_4fd4_30c8;
    let id = |i: u128| PermitId::from_bytes(((uuid >> 64 << 64) | (7 + i)).to_be_bytes());
    vec![id(0), id(1)]
}

/// One request; an error if it was not done. A key of another type is often not an error of the store: there is
/// no hold to release or to hand off.
type Request = Box<dyn Fn(&Redis) -> BoxFuture<Result<(), String>>>;

fn acquire(request: Acquire) -> Request {
    Box::new(move |redis| {
        let answer = redis.acquire(request.clone());
        Box::pin(async move {
            match answer.await {
                Ok(Attempt::Granted { .. } | Attempt::Busy { .. }) => Ok(()),
                answer => Err(format!("{answer:?}")),
            }
        })
    })
}

fn release(request: Release) -> Request {
    Box::new(move |redis| {
        let answer = redis.release(request.clone());
        Box::pin(async move {
            match answer.await {
                Ok(Released::Freed { .. } | Released::Kept) => Ok(()),
                answer => Err(format!("{answer:?}")),
            }
        })
    })
}

/// The queue position is removed whatever the type of the lock's key; only an error counts.
fn give_up(request: Release) -> Request {
    Box::new(move |redis| {
        let answer = redis.release(request.clone());
        Box::pin(async move { answer.await.map(drop).map_err(|fault| format!("{fault:?}")) })
    })
}

fn renew(request: Renew) -> Request {
    Box::new(move |redis| {
        let answers = redis.renew(vec![request.clone()]);
        Box::pin(async move {
            match answers.await.pop().expect("one answer") {
                Ok(Renewed::Held(_) | Renewed::Waiting | Renewed::Due) => Ok(()),
                answer => Err(format!("{answer:?}")),
            }
        })
    })
}

fn adjust(change: Change) -> Request {
    Box::new(move |redis| {
        let answer = redis.adjust(change.clone());
        Box::pin(async move { answer.await.map(drop).map_err(|fault| format!("{fault:?}")) })
    })
}

fn inspect(kind: Kind) -> Request {
    Box::new(move |redis| {
        let answer = redis.inspect(resource(kind));
        Box::pin(async move { answer.await.map(drop).map_err(|fault| format!("{fault:?}")) })
    })
}

fn taking(kind: Kind, whose: &str) -> Acquire {
    Acquire { waits: true, ..Acquire::new(resource(kind), owner(whose), TTL) }
}

fn counting(kind: Kind, change: CountChange) -> Request {
    adjust(Change::Count { resource: resource(kind), id: owner(Z), change })
}

/// All requests for locks of one kind.
fn of_a_lock(kind: Kind) -> Vec<(&'static str, Request)> {
    let fenced = Some(Fenced { ttl: None });
    let part = Release { keep: 1, ttl: Some(TTL / 2), ..Release::new(resource(kind), owner(X)) };
    let mut requests = vec![
        ("take", acquire(taking(kind, Z))),
        ("try", acquire(Acquire { waits: false, ..taking(kind, Z) })),
        ("repeat", acquire(taking(kind, X))),
        ("re-enter", acquire(Acquire { count: 2, ..taking(kind, X) })),
        ("release", release(Release::new(resource(kind), owner(X)))),
        ("give a place up", give_up(Release::new(resource(kind), owner(Y)))),
        ("release in part", release(part.clone())),
        ("leave", release(Release { leave: true, ..part })),
        ("renew", renew(Renew::new(resource(kind), owner(X), Some(2 * TTL)))),
        ("look", renew(Renew::new(resource(kind), owner(X), None))),
        ("inspect", inspect(kind)),
        ("force", {
            let (reason, by) = ("why".to_owned(), ClientInfo::of_this_process());
            adjust(Change::ForceUnlock { resource: resource(kind), reason, by, from: None })
        }),
    ];
    if kind != Kind::Read {
        let fenced = Acquire { fenced, ..taking(kind, Z) };
        requests.push(("take with a token", acquire(fenced.clone())));
        if kind != Kind::Fair {
            let handed = Acquire { from: Some(owner(X)), waits: false, ..fenced };
            requests.push(("hand over with a token", acquire(handed.clone())));
            requests.push(("hand over", acquire(Acquire { fenced: None, ..handed })));
        }
    }
    match kind {
        Kind::Fair => {
            let kept = Renew { waiting: true, ..Renew::new(resource(kind), owner(Y), None) };
            requests.push(("keep a place", renew(kept)));
        }
        Kind::Read | Kind::Write => {
            let beside = Acquire { beside: Some(owner(X)), ..taking(kind, Z) };
            requests.push(("take beside", acquire(beside)));
        }
        _ => {}
    }
    requests
}

fn of_a_counter(kind: Kind) -> Vec<(&'static str, Request)> {
    let took = |whose| Acquire { count: 2, ..taking(kind, whose) };
    let gives = || Release { count: 2, ..Release::new(resource(kind), owner(X)) };
    let create = |count| CountChange::Create { count, ttl: None };
    let mut requests = vec![
        ("create", counting(kind, create(9))),
        ("create for a while", counting(kind, CountChange::Create { count: 9, ttl: Some(TTL) })),
        ("inspect", inspect(kind)),
    ];
    if kind == Kind::Latch {
        requests.push(("count down", counting(kind, CountChange::Down)));
        requests.push(("delete", counting(kind, CountChange::Delete)));
        return requests;
    }
    requests.push(("take", acquire(took(Z))));
    requests.push(("repeat", acquire(took(X))));
    requests.push(("release", release(gives())));
    requests.push(("undo", release(Release { undo: true, ..gives() })));
    requests.push(("add", counting(kind, CountChange::Add(3))));
    if kind == Kind::Semaphore {
        requests.push(("drain", counting(kind, CountChange::Drain)));
        return requests;
    }
    let renewal = Renew { count: 2, ..Renew::new(resource(kind), owner(X), Some(2 * TTL)) };
    let by_id =
        |change| Change::Permits { resource: resource(kind), id: owner(Z), ids: ids(), change };
    requests.push(("take temporary", acquire(Acquire { temporary: Some(7), ..took(Z) })));
    requests.push(("resize", counting(kind, CountChange::Resize(9))));
    requests.push(("renew", renew(renewal)));
    requests.push(("give back by id", adjust(by_id(PermitChange::Release))));
    requests.push(("lease by id", adjust(by_id(PermitChange::Lease(TTL)))));
    requests
}

/// The states that requests of a kind find: nothing at all, and what these make.
fn states(kind: Kind) -> Vec<Vec<Request>> {
    let beside = |kind, whose, of| Acquire { beside: Some(owner(of)), ..taking(kind, whose) };
    let counter = |change| counting(kind, change);
    let create = CountChange::Create { count: 5, ttl: None };
    match kind {
        Kind::Semaphore | Kind::Permits => {
            let mut states = vec![
                vec![],
                vec![
                    adjust(Change::Count {
                        resource: resource(kind),
                        id: owner(Y),
                        change: create,
                    }),
                    acquire(Acquire { count: 2, ..taking(kind, X) }),
                ],
            ];
            if kind == Kind::Permits {
                let temporary = Acquire { count: 2, temporary: Some(5), ..taking(kind, X) };
                states.push(vec![acquire(temporary)]);
            }
            states
        }
        Kind::Latch => vec![vec![], vec![counter(create)]],
        Kind::Read | Kind::Write => vec![
            vec![],
            // A reader, and a writer that waits.
            vec![acquire(taking(Kind::Read, X)), acquire(taking(Kind::Write, Y))],
            // A writer that reads, and one that waits.
            vec![
                acquire(taking(Kind::Write, X)),
                acquire(beside(Kind::Read, Z, X)),
                acquire(taking(Kind::Write, Y)),
            ],
        ],
        kind => vec![vec![], vec![acquire(taking(kind, X)), acquire(taking(kind, Y))]],
    }
}

/// The keys that requests of a kind may touch.
fn keys(kind: Kind) -> Vec<String> {
    let of = |prefixes: &[&str]| {
        let derived = prefixes.iter().map(|prefix| format!("{prefix}:{{a}}"));
        std::iter::once("a".to_owned()).chain(derived).collect()
    };
    match kind {
        Kind::Fair => of(&[
            "redisson_lock_queue",
            "redisson_lock_timeout",
            "lockkeeper_seen",
            "lockkeeper_grace",
            "redisson_lock_token",
        ]),
        Kind::Read | Kind::Write => {
            let mut keys: Vec<String> =
                of(&["lockkeeper_writers", "lockkeeper_patience", "redisson_lock_token"]);
            keys.push(format!("{{a}}:{X}:rwlock_timeout:1"));
            keys.push(format!("{{a}}:{Z}:rwlock_timeout:1"));
            keys.push(format!("{{a}}:{X}:lockkeeper_write_end"));
            keys
        }
        Kind::Permits => {
            let mut keys: Vec<String> = of(&["lockkeeper_replies", "lockkeeper_temporary"]);
            keys.push("{a}:timeout".to_owned());
            keys
        }
        Kind::Semaphore | Kind::Latch => of(&["lockkeeper_replies"]),
        _ => of(&["redisson_lock_token"]),
    }
}

/// A value of every type of Redis that is not a lock.
const TYPES: [&[&str]; 6] = [
    &["SET", "?", "somebody's data"],
    &["RPUSH", "?", "x", "y"],
    &["SADD", "?", "x"],
    &["ZADD", "?", "1", "x"],
    &["XADD", "?", "1-1", "f", "v"],
    &["HSET", "?", "name", "value"],
];

/// Whether that is what the key is for, so that it is no fault.
fn is_right(key: &str, command: &str) -> bool {
    let right = match key {
        // What is not a lock or a number is found out.
        "a" => return false,
        key if key.contains("_queue") => "RPUSH",
        key if key.contains("_replies") => "HSET",
        key if key.contains("_token") || key.contains("_grace") => "SET",
        key if key.contains("_temporary") => "SET",
        key if key.contains("rwlock_timeout") => "SET",
        _ => "ZADD",
    };
    command == right
}

/// All there is, with its end.
fn dump(cli: &mut Cli) -> BTreeMap<String, (Reply, Reply)> {
    let keys = cli.cmd(&["KEYS", "*"]).ok();
    let names = keys.array().iter().map(|key| key.text().to_owned());
    let names: Vec<_> = names.filter(|name| !name.starts_with("lockkeeper_client")).collect();
    let all = names.into_iter().map(|name| {
        let dump = cli.cmd(&["DUMP", &name]);
        let end = cli.cmd(&["PEXPIRETIME", &name]);
        (name, (dump, end))
    });
    all.collect()
}

/// What is not as it was.
fn difference(
    before: &BTreeMap<String, (Reply, Reply)>,
    after: &BTreeMap<String, (Reply, Reply)>,
) -> Vec<String> {
    let keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    keys.filter(|key| before.get(*key) != after.get(*key)).cloned().collect()
}

async fn a_request_that_fails_has_changed_nothing(kind: Kind) {
    let server = RedisServer::start();
    let redis = Redis::connect(&server.url(), &options()).await.expect("there");
    let mut cli = server.connection();
    let requests = match kind {
        Kind::Semaphore | Kind::Permits | Kind::Latch => of_a_counter(kind),
        kind => of_a_lock(kind),
    };
    let mut halves = Vec::new();
    for (what, request) in &requests {
        let mut failures = 0;
        for (number, state) in states(kind).iter().enumerate() {
            for key in keys(kind) {
                for make in TYPES.into_iter().filter(|make| !is_right(&key, make[0])) {
                    cli.cmd(&["FLUSHALL"]).ok();
                    for step in state {
                        step(&redis).await.expect("the state can be made");
                    }
                    cli.cmd(&["DEL", &key]).ok();
                    let make: Vec<_> =
                        make.iter().map(|word| if *word == "?" { &key } else { *word }).collect();
                    cli.cmd(&make).ok();
                    let before = dump(&mut cli);
                    if let Err(said) = request(&redis).await {
                        failures += 1;
                        let mut changed = difference(&before, &dump(&mut cli));
                        // That there is nothing to undo is remembered: what comes later is late.
                        let undone = *what == "undo" && said.starts_with("Ok(Absent");
                        changed.retain(|key| !(undone && key.contains("_replies")));
                        if !changed.is_empty() {
                            let case = format!("{what} in state {number} with {make:?}: {said}");
                            halves.push(format!("{case} changed {changed:?}"));
                        }
                    }
                }
            }
        }
        assert!(failures > 0 || *what == "give a place up", "{kind}: {what} never failed");
    }
    halves.sort();
    assert!(halves.is_empty(), "{kind}:\n{}", halves.join("\n"));
}

macro_rules! kinds {
    ($($name:ident: $kind:ident;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            a_request_that_fails_has_changed_nothing(Kind::$kind).await;
        })*
    };
}

kinds! {
    a_request_for_a_lock_that_fails_has_changed_nothing: Lock;
    a_request_for_a_mutex_that_fails_has_changed_nothing: Mutex;
    a_request_for_a_fair_lock_that_fails_has_changed_nothing: Fair;
    a_request_to_read_that_fails_has_changed_nothing: Read;
    a_request_to_write_that_fails_has_changed_nothing: Write;
    a_request_for_permits_that_fails_has_changed_nothing: Semaphore;
    a_request_for_permits_with_ids_that_fails_has_changed_nothing: Permits;
    a_request_for_a_latch_that_fails_has_changed_nothing: Latch;
}

/// The lists above name every key of the library.
#[test]
fn every_key_of_the_library_is_tried() {
    let source = include_str!("../../src/redis/keys.rs");
    let prefixes = source.split("prefixed(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let tried: Vec<_> =
        [Kind::Fair, Kind::Write, Kind::Permits].into_iter().flat_map(keys).collect();
    for prefix in prefixes {
        // Channels, a key that never exists, and the log of forced unlocks, which a script of its own
        // writes.
        let no_key =
            ["redisson_lock__channel", "redisson_rwlock", "redisson_sc", "lockkeeper_whole"];
        if !no_key.contains(&prefix) && prefix != "lockkeeper_forced" {
            assert!(tried.contains(&format!("{prefix}:{{a}}")), "{prefix} is new");
        }
    }
    assert!(ends_by_itself("lockkeeper_grace:{a}"));
}
