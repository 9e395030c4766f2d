//! What a check, a list and an inspector report of a quorum whose members differ.

use lockkeeper::{Client, ClientOptions, LockInfo, MemberInfo, Report, Severity, Ttl};
use testkit::{Quorum, RedisServer};

use crate::support::*;

/// The longest lease: none of these tests waits for it.
pub(super) fn quorum_options() -> ClientOptions {
    options().longest_lease(LONG)
}

fn address(server: &RedisServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

pub(super) async fn start(quorum: testkit::QuorumBuilder) -> Quorum {
    joined(tokio::task::spawn_blocking(move || quorum.start())).await
}

/// Ends the quarantine of the members, for clients that connect from now on.
pub(super) fn trust(quorum: &Quorum) {
    for node in quorum.nodes() {
        node.server().cli(&["HSET", "lockkeeper_quorum", "since", "0"]).ok();
    }
}

/// A client of trusted members.
pub(super) async fn trusted(quorum: &Quorum) -> Client {
    connect(&quorum.url(), quorum_options()).await.shutdown().await;
    trust(quorum);
    connect(&quorum.url(), quorum_options()).await
}

async fn check(client: &Client) -> Report {
    within(PATIENCE, "the report", client.check()).await.expect("a majority can be asked")
}

/// The findings on a subject.
fn of<'a>(report: &'a Report, subject: &str) -> Vec<(Severity, &'a str)> {
    let found = report.findings.iter().filter(|finding| finding.subject == subject);
    found.map(|finding| (finding.severity, &finding.detail[..])).collect()
}

#[track_caller]
fn assert_finds(report: &Report, subject: &str, severity: Severity, words: &[&str]) {
    let found = of(report, subject);
    let is_it = |(of, detail): &(Severity, &str)| {
        *of == severity && words.iter().all(|word| detail.contains(word))
    };
    assert!(found.iter().any(is_it), "no {severity} {subject} {words:?}: {report:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_on_separate_hosts_is_safe() {
    let quorum = start(Quorum::builder(3)).await;
    let mut urls = Vec::new();
    for (index, node) in quorum.nodes().iter().enumerate() {
        let host = format!("127.0.5.{}", index + 1);
        node.server().cli(&["CONFIG", "SET", "bind", &format!("127.0.0.1 {host}")]).ok();
        urls.push(format!("redis://{host}:{}", node.server().port()));
    }
    // Shorter than the leases of a check on other stores.
    let lease = ms(5_000);
    let options = quorum_options().longest_lease(lease).watchdog_timeout(lease);
    let url = format!("quorum:{}", urls.join(","));
    let connect = || Client::connect_with(&url, options.clone());
    connect().await.unwrap().shutdown().await;
    trust(&quorum);
    let client = connect().await.unwrap();
    let report = check(&client).await;
    assert!(report.is_safe(), "{report:#?}");
    assert_finds(&report, "quorum", Severity::Fine, &["3 of 3 members vote", "1 may fail"]);
    assert_finds(&report, "clocks", Severity::Fine, &["ms apart"]);
    assert_finds(
        &report,
        "locks",
        Severity::Fine,
        &["lock, mutex; the store does not have: fair lock"],
    );
    assert_eq!((of(&report, "hosts"), of(&report, "members")), (vec![], vec![]));
    for node in quorum.nodes() {
        let is_named = |(_, detail): &(_, &str)| detail.contains(&node.server().port().to_string());
        assert_eq!(of(&report, "eviction").into_iter().filter(is_named).count(), 1, "{report:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_do_not_vote_are_found() {
    use Severity::{Danger, Note};
    let quorum = start(Quorum::builder(3)).await;
    let [first, second, third] = [0, 1, 2].map(|index| address(quorum.server(index)));
    let client = connect(&quorum.url(), quorum_options()).await;
    let report = check(&client).await;
    assert_finds(&report, "quorum", Danger, &["0 of 3 members vote", "no lock is granted"]);
    for member in [&first, &second, &third] {
        assert_finds(&report, "members", Note, &[member, "grants nothing for another"]);
    }
    assert_finds(&report, "locks", Danger, &["lock could not be acquired"]);
    client.shutdown().await;

    trust(&quorum);
    let client = connect(&quorum.url(), quorum_options()).await;
    let is_away = async |words: &[&str]| {
        let report = check(&client).await;
        let found = of(&report, "members");
        (found.iter().any(|(_, detail)| words.iter().all(|word| detail.contains(word))))
            .then_some(report)
    };
    quorum.server(0).restart();
    let report = found(async || is_away(&[&first, "grants nothing"]).await).await;
    assert_finds(&report, "members", Note, &[&first, "may have lost data"]);
    assert_finds(&report, "quorum", Note, &["2 of 3", "one more that fails stops all"]);
    assert_finds(&report, "locks", Severity::Fine, &["mutex"]);

    quorum.server(0).kill();
    let report = found(async || is_away(&[&first, "refused"]).await).await;
    assert_finds(&report, "members", Danger, &[&first]);
    quorum.server(0).restart();
    found(async || is_away(&[&first, "grants nothing"]).await).await;

    // The marker of another one is that of another quorum now.
    quorum.server(1).cli(&["HSET", "lockkeeper_quorum", "nodes", "another list"]).ok();
    cut_all(quorum.server(1));
    let report = found(async || is_away(&["another list"]).await).await;
    assert_finds(&report, "members", Danger, &[&second, "member of the quorum another list"]);
    assert_finds(&report, "quorum", Danger, &["1 of 3 members vote"]);
}

/// Asks until there is an answer.
async fn found<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    within(PATIENCE, "what is to be found", async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_on_one_host_and_with_replicas_are_found() {
    let quorum = start(Quorum::builder(3)).await;
    let client = trusted(&quorum).await;
    let report = check(&client).await;
    let hosts = of(&report, "hosts");
    assert_eq!(hosts.len(), 2, "two more on the host of the first: {report:#?}");
    let second = address(quorum.server(1));
    assert_finds(&report, "hosts", Severity::Danger, &[&second, "on one host"]);
    assert_eq!(of(&report, "replication"), []);

    let quorum = std::sync::Arc::new(quorum);
    let servers = std::sync::Arc::clone(&quorum);
    let _replica = joined(tokio::task::spawn_blocking(move || servers.replica_of(1))).await;
    let report = check(&client).await;
    assert_finds(&report, "replication", Severity::Note, &[&second, "it has 1 of them"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_is_on_this_host() {
    let quorum = start(Quorum::builder(2)).await;
    let local = RedisServer::builder().unix_socket();
    let local = joined(tokio::task::spawn_blocking(|| local.start())).await;
    let url = format!("{},{}", quorum.url(), local.url());
    let client = Client::connect_with(url, quorum_options()).await.unwrap();
    let report = check(&client).await;
    let hosts = of(&report, "hosts");
    assert_eq!(hosts.len(), 2, "{report:#?}");
    assert!(hosts.iter().any(|(_, detail)| detail.contains(".sock")), "{hosts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_are_apart_are_found() {
    let quorum = start(Quorum::builder(3).movable_clocks()).await;
    let client = trusted(&quorum).await;
    assert_finds(&check(&client).await, "clocks", Severity::Fine, &["ms apart"]);
    quorum.server(2).move_clock(5);
    let report = check(&client).await;
    let clocks = of(&report, "clocks");
    let [(Severity::Danger, detail)] = clocks[..] else { panic!("{report:#?}") };
    let apart = detail.split_once(" ms apart").and_then(|(words, _)| words.rsplit_once(' '));
    let apart: u64 = apart.and_then(|(_, number)| number.parse().ok()).expect("a number");
    assert!((4_000..7_000).contains(&apart), "{detail}");
}

async fn inspected(client: &Client, name: &str) -> LockInfo {
    within(PATIENCE, "the inspection", client.inspector().inspect(name)).await.unwrap()
}

/// The only lock in the list.
async fn listed(client: &Client) -> LockInfo {
    let (inspector, mut locks) = (client.inspector(), Vec::new());
    let mut listing = inspector.list("*");
    while let Some(page) = within(PATIENCE, "a page", listing.next()).await.unwrap() {
        locks.extend(page);
    }
    let [lock] = &locks[..] else { panic!("{locks:?}") };
    lock.clone()
}

/// The ids of the holders at each member, by address; `None` if it has not answered.
fn by_member(lock: &LockInfo) -> Vec<(String, Option<Vec<String>>)> {
    let ids = |member: &MemberInfo| {
        let ids = || member.holders.iter().map(|holder| holder.id.clone()).collect();
        member.error.is_none().then(ids)
    };
    lock.members.iter().map(|member| (member.address.clone(), ids(member))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_each_member_says_is_shown_where_they_differ() {
    let quorum = start(Quorum::builder(3)).await;
    let client = trusted(&quorum).await;
    let guard = client.lock("job").lease(LONG).lock().await.unwrap();
    let id = guard.owner_id().to_string();
    for node in quorum.nodes() {
        eventually(PATIENCE, "the hold", || node.server().cli(&["EXISTS", "job"]).int() == 1).await;
    }
    for lock in [inspected(&client, "job").await, listed(&client).await] {
        assert_eq!((&lock.holders[0].id, &lock.members[..]), (&id, &[][..]));
    }

    // One member has lost it.
    let [first, second, third] = [0, 1, 2].map(|index| address(quorum.server(index)));
    let mut expected: Vec<_> = [(first.clone(), Some(Vec::new()))]
        .into_iter()
        .chain([&second, &third].map(|member| (member.clone(), Some(vec![id.clone()]))))
        .collect();
    expected.sort();
    quorum.server(0).cli(&["DEL", "job"]).ok();
    for lock in [inspected(&client, "job").await, listed(&client).await] {
        assert_eq!((lock.holders.len(), by_member(&lock)), (1, expected.clone()));
        for member in &lock.members {
            let is_held = matches!(member.ttl, Some(Ttl::For(left)) if left <= LONG);
            assert_eq!(is_held, member.address != first, "{member:?}");
        }
    }

    // That member is down.
    quorum.server(0).kill();
    expected.iter_mut().find(|(address, _)| *address == first).unwrap().1 = None;
    found(async || (by_member(&inspected(&client, "job").await) == expected).then_some(())).await;
    let lock = listed(&client).await;
    assert_eq!((&lock.holders[0].id, by_member(&lock)), (&id, expected));
    let away = lock.members.iter().find(|member| member.address == first).unwrap();
    assert!(away.error.as_ref().unwrap().contains("refused"), "{away:?}");
    assert_eq!(away.ttl, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_of_a_minority_is_shown_without_a_holder() {
    let quorum = start(Quorum::builder(3)).await;
    let client = trusted(&quorum).await;
    for (index, node) in quorum.nodes().iter().enumerate() {
        let stale = format!("6e0c0000-0000-4000-8000-00000000000{index}:1");
        node.server().cli(&["HSET", "job", &stale, "1"]).ok();
        node.server().cli(&["PEXPIRE", "job", "60000"]).ok();
        for lock in [inspected(&client, "job").await, listed(&client).await] {
            assert!(lock.is_free() && lock.ttl.is_none(), "{lock:?}");
            let held = by_member(&lock).into_iter().filter(|(_, ids)| *ids != Some(vec![]));
            let held: Vec<_> = held.collect();
            assert_eq!(held, [(address(node.server()), Some(vec![stale.clone()]))]);
            assert_eq!(lock.members.len(), 3);
        }
        node.server().cli(&["DEL", "job"]).ok();
    }
}
