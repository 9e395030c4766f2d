//! Lists of locks without all permissions, over connections that break, and among large keys.

use std::collections::BTreeSet;

use lockkeeper::{Client, Error, Kind, Listing, LockInfo};
use testkit::RedisServer;

use crate::permissions::{assert_denied, set_user};
use crate::primitives::started;
use crate::support::*;

/// The owner of a lock without an announcement.
const OWNER: &str = "6e0c9d2c-52f4-4c5d-9d63-cc1f2c4a6d0e:42";

/// What a list gives, and whether it says that this is all.
async fn all(listing: &mut Listing) -> Result<(BTreeSet<String>, bool), Error> {
    let mut names = BTreeSet::new();
    while let Some(page) = within(PATIENCE, "a page", listing.next()).await? {
        names.extend(page.into_iter().map(|lock| lock.name.to_string()));
    }
    Ok((names, listing.is_complete()))
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

async fn listed(client: &Client) -> (BTreeSet<String>, bool) {
    all(&mut client.inspector().list("*")).await.expect("it is no error")
}

/// One of everything that can be listed, held by a client that may do everything.
async fn one_of_each(server: &RedisServer, prefix: &str) -> (Client, Vec<lockkeeper::AnyGuard>) {
    let client = connect(&server.url(), options().name_prefix(prefix)).await;
    let permits = client.permit_semaphore("permits");
    assert!(permits.try_set_permits(3, None).await.unwrap());
    let held = vec![
        lockkeeper::AnyGuard::from(client.mutex("mutex").lock().await.unwrap()),
        client.lock("lock").lock().await.unwrap().into(),
        client.fair_lock("fair").lock().await.unwrap().into(),
        client.rw_lock("read").read().await.unwrap().into(),
        client.rw_lock("write").write().await.unwrap().into(),
        permits.acquire(2).await.unwrap().into(),
    ];
    // A mutex is listed once it is announced.
    let end = tokio::time::Instant::now() + PATIENCE;
    while listed(&client).await.0.len() < held.len() {
        assert!(tokio::time::Instant::now() < end, "not all are told of");
        tokio::time::sleep(ms(5)).await;
    }
    (client, held)
}

const EACH: [&str; 6] = ["fair", "lock", "mutex", "permits", "read", "write"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_scan_a_list_is_denied() {
    let server = started().await;
    let (_admin, _held) = one_of_each(&server, "").await;
    set_user(&server, &["~*", "&*", "+@all", "-scan"]);
    let client = connect(&server.url_with("u", "s3cret"), options()).await;
    let mut listing = client.inspector().list("lock");
    for _ in 0..2 {
        let answer = within(SOON, "an answer", async {
            while listing.next().await?.is_some() {}
            Ok(())
        });
        let said = assert_denied(&answer.await);
        assert!(said.contains("scan"), "{said}");
    }
    // A look at one name needs no scan.
    let looked = client.inspector().inspect("lock").await.expect("allowed");
    assert_eq!((looked.kind, looked.holders.len()), (Kind::Lock, 1));
}

/// What a user may not read is left out, and the list says that something is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_without_read_permission_is_partial_and_incomplete() {
    let server = started().await;
    let (mine, _held) = one_of_each(&server, "mine:").await;
    let prefixed = |names: &[&str]| -> BTreeSet<_> {
        names.iter().map(|name| format!("mine:{name}")).collect()
    };
    let ours = ["~lockkeeper_*", "~mine:*", "~{mine:*", "~redisson_*{mine:*"];
    let rights = [&ours[..], &["&*", "+@all"]].concat();
    set_user(&server, &rights);
    let client = connect(&server.url_with("u", "s3cret"), options()).await;
    assert_eq!(listed(&client).await, (prefixed(&EACH), true), "it may read all that there is");
    let (yours, _held) = one_of_each(&server, "yours:").await;
    assert_eq!(listed(&client).await, (prefixed(&EACH), false), "not all that there is");
    // Behind a prefix it is asked only for what it may read.
    let behind = options().name_prefix("mine:");
    let client = connect(&server.url_with("u", "s3cret"), behind).await;
    let found = listed(&client).await.0;
    assert_eq!(found, set(&EACH));
    let looked = client.inspector().inspect("lock").await.expect("allowed");
    assert_eq!(looked.holders.len(), 1);
    drop((mine, yours));
}

/// Command by command: something is missing, and the list says so; or nothing is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_without_a_command_is_incomplete() {
    let server = started().await;
    let (_admin, _held) = one_of_each(&server, "").await;
    let mut wrong = Vec::new();
    let hashes = ["fair", "lock", "read", "write"];
    for (denied, missing) in [
        (&["-type"][..], &["fair", "lock", "permits", "read", "write"][..]),
        (&["-hscan"], &hashes),
        (&["-pttl"], &EACH),
        (&["-evalsha", "-eval"], &["mutex", "permits", "read", "write"]),
        // Announcements of clients.
        (&["-hgetall"], &["mutex", "read", "write"]),
        (&["-zrange"], &["mutex"]),
    ] {
        set_user(&server, &[&["~*", "&*", "+@all"], denied].concat());
        let client = connect(&server.url_with("u", "s3cret"), options()).await;
        let (found, complete) = match all(&mut client.inspector().list("*")).await {
            Ok(answer) => answer,
            Err(error) => {
                wrong.push(format!("{denied:?}: {error}"));
                continue;
            }
        };
        let lacks: BTreeSet<_> = set(&EACH).difference(&found).cloned().collect();
        if complete || !lacks.is_subset(&set(missing)) {
            wrong.push(format!("{denied:?}: {lacks:?} are missing, complete {complete}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Also where that is all that there is.
    set_user(&server, &["~*", "&*", "+@all", "-evalsha", "-eval"]);
    let client = connect(&server.url_with("u", "s3cret"), options()).await;
    for name in EACH.into_iter().filter(|name| !hashes[..2].contains(name)) {
        let listed = all(&mut client.inspector().list(name)).await;
        assert_eq!(listed.unwrap(), (set(&[]), false), "{name}");
    }
    // Without PUBSUB only the number of waiters is missing.
    set_user(&server, &["~*", "&*", "+@all", "-pubsub"]);
    let client = connect(&server.url_with("u", "s3cret"), options()).await;
    assert_eq!(listed(&client).await, (set(&EACH), true));
    let waiting = client.inspector().inspect("lock").await.expect("allowed").waiting;
    assert_eq!(waiting, None);
}

/// The answer to one request of a list is lost, whichever it is: the list fails once, and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_continues_after_a_lost_reply() {
    let server = started().await;
    let (_admin, _held) = one_of_each(&server, "").await;
    make_locks(&server, 4000);
    let rig = Rig::on(server, Kind::Lock, options()).await;
    let inspector = rig.client.inspector();
    let mutex = rig.hash(lua("MUTEX_INSPECT"));
    let permits = rig.hash(lua("COUNTER_INSPECT"));
    for lost in
        [&b"ZRANGE"[..], b"HGETALL", b"SCAN", b"TYPE", b"HSCAN", b"NUMSUB", &mutex, &permits]
    {
        let mut listing = inspector.list("*");
        let (mut found, mut errors) = (BTreeSet::new(), 0);
        rig.proxy.drop_replies_once_after_request_matching(lost);
        loop {
            let page = within(PATIENCE, "a page", listing.next()).await;
            match page {
                Ok(Some(page)) => found.extend(page.into_iter().map(|l| l.name.to_string())),
                Ok(None) => break,
                Err(Error::Unreachable { .. } | Error::Refused { .. }) => errors += 1,
                Err(error) => panic!("{}: {error}", lost.escape_ascii()),
            }
        }
        assert_eq!(errors, 1, "{}", lost.escape_ascii());
        assert_eq!(found.len(), 4000 + EACH.len(), "{}", lost.escape_ascii());
        assert!(listing.is_complete(), "{}", lost.escape_ascii());
    }
}

/// An outage in the middle of a list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_continues_after_an_outage() {
    let rig = Rig::on(started().await, Kind::Lock, options()).await;
    make_locks(&rig.server, 5000);
    let mut listing = rig.client.inspector().list("*");
    let first = listing.next().await.expect("reachable").expect("there are some");
    let mut found: BTreeSet<_> = first.into_iter().map(|lock| lock.name.to_string()).collect();
    rig.proxy.refuse(true);
    rig.proxy.cut();
    assert_unreachable(&within(PATIENCE, "an error", listing.next()).await);
    rig.proxy.refuse(false);
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        match listing.next().await {
            Ok(Some(page)) => found.extend(page.into_iter().map(|lock| lock.name.to_string())),
            Ok(None) => break,
            Err(error) => assert!(tokio::time::Instant::now() < end, "{error}"),
        }
    }
    assert_eq!(found.len(), 5000);
}

/// Locks without an announcement.
fn make_locks(server: &RedisServer, count: usize) {
    let make = "for i = 1, tonumber(ARGV[2]) do
        redis.call('HSET', 'some lock ' .. i, ARGV[1], 1)
        redis.call('PEXPIRE', 'some lock ' .. i, 600000)
    end";
    server.cli(&["EVAL", make, "0", OWNER, &count.to_string()]).ok();
}

/// Keys with a million parts: a hash that is no lock, and the permits of a semaphore.
fn make_large(server: &RedisServer) {
    let make = "local from = tonumber(ARGV[1])
        for at = from, from + 99000, 1000 do
            local fields, permits = {}, {}
            for i = at, at + 999 do
                fields[#fields + 1], fields[#fields + 2] = i, i
                permits[#permits + 1] = 99999999999999
                permits[#permits + 1] = string.format('%016d', i)
            end
            redis.call('HSET', 'hash', unpack(fields))
            redis.call('ZADD', '{x}:timeout', unpack(permits))
        end";
    for part in 0..10 {
        server.cli(&["EVAL", make, "0", &(part * 100_000).to_string()]).ok();
    }
    server.cli(&["SET", "x", "7"]).ok();
    server.cli(&["ZADD", "y:timeout", "99999999999999", "of other data"]).ok();
}

/// What the server has sent in all.
fn sent(server: &RedisServer) -> u64 {
    server.info_field("stats", "total_net_output_bytes").parse().expect("a number")
}

/// What takes long on the server keeps everybody waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_keys_do_not_block_the_server() {
    let server = started().await;
    let server = joined(tokio::task::spawn_blocking(move || {
        make_large(&server);
        server
    }))
    .await;
    let client = connect(&server.url(), options()).await;
    let guard = client.lock("lock").lock().await.expect("it is free");
    // To read a million of anything takes more than this, on whatever machine.
    server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "50000"]).ok();
    server.cli(&["SLOWLOG", "RESET"]).ok();
    let before = sent(&server);
    let mut locks = Vec::new();
    let mut listing = client.inspector().list("*");
    while let Some(page) = listing.next().await.expect("reachable") {
        locks.extend(page);
    }
    locks.extend(client.inspector().inspect("x").await);
    let looked = client.inspector().inspect("hash").await;
    assert!(matches!(looked, Err(Error::WrongKind { .. })), "{looked:?}");
    let sent = sent(&server) - before;
    assert!(sent < 200_000, "{sent} bytes");
    let slow = server.cli(&["SLOWLOG", "GET"]);
    assert_eq!(slow.array(), [], "{slow:?}");
    let names: Vec<_> = locks.iter().map(|lock| lock.name.to_string()).collect();
    assert_eq!(BTreeSet::from_iter(names), set(&["lock", "x"]));
    let semaphores: Vec<&LockInfo> = locks.iter().filter(|l| l.kind == Kind::Permits).collect();
    assert_eq!(semaphores.len(), 2);
    for semaphore in semaphores {
        assert_eq!((semaphore.taken, semaphore.count), (1_000_000, Some(7)));
        assert!((100..=200).contains(&semaphore.holders.len()), "the first hundred or so");
    }
    guard.release().await.expect("held");
}
