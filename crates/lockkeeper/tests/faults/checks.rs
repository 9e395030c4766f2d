//! What the doctor finds: servers whose settings endanger locks, users who may not do what locks
//! need, and links that are too slow.

use std::collections::BTreeSet;

use lockkeeper::{Finding, Report, Severity};
use testkit::{FaultProxy, RedisServer, RedisServerBuilder};

use crate::family::started;
use crate::permissions::set_user;
use crate::support::*;

async fn check(url: &str) -> Report {
    let client = connect(url, options().response_timeout(PATIENCE)).await;
    let report = within(PATIENCE, "the report", client.check()).await;
    report.expect("the server can be asked")
}

/// The worst that was found on a subject.
#[track_caller]
fn worst<'a>(report: &'a Report, subject: &str) -> &'a Finding {
    let found = report.findings.iter().filter(|finding| finding.subject == subject);
    let worst = found.max_by_key(|finding| finding.severity);
    worst.unwrap_or_else(|| panic!("nothing of {subject}: {report:#?}"))
}

#[track_caller]
fn assert_finds(report: &Report, subject: &str, severity: Severity) -> String {
    let worst = worst(report, subject);
    assert_eq!(worst.severity, severity, "{worst:?}");
    let says_what_to_do = !worst.remedy.is_empty();
    assert_eq!(says_what_to_do, severity != Severity::Fine, "{worst:?}");
    assert!(severity < Severity::Danger || !report.is_safe());
    worst.detail.clone()
}

/// A server that keeps what it is told, as locks want it.
fn durable() -> RedisServerBuilder {
    RedisServer::builder().arg("--appendonly", "yes").arg("--appendfsync", "always")
}

async fn start(builder: RedisServerBuilder) -> RedisServer {
    joined(tokio::task::spawn_blocking(|| builder.start())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_as_locks_want_it_is_safe() {
    let server = start(durable()).await;
    let report = check(&server.url()).await;
    assert!(report.is_safe(), "{report:#?}");
    let fine = [
        "persistence",
        "eviction",
        "role",
        "version",
        "clock",
        "latency",
        "locks",
        "wake-ups",
        "notices",
        "lost requests",
    ];
    for subject in fine {
        assert_finds(&report, subject, Severity::Fine);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_endanger_locks_are_found() {
    use Severity::{Danger, Fine, Note};
    let server = start(durable()).await;
    let set = |name: &str, value: &str| drop(server.cli(&["CONFIG", "SET", name, value]).ok());
    for (settings, subject, severity, says) in [
        (&[("maxmemory-policy", "allkeys-lru")][..], "eviction", Note, "allkeys-lru"),
        (&[("maxmemory", "100mb")], "eviction", Danger, "allkeys-lru"),
        (&[("maxmemory-policy", "volatile-ttl")], "eviction", Danger, "volatile-ttl"),
        (&[("maxmemory-policy", "noeviction")], "eviction", Fine, "noeviction"),
        (&[("appendfsync", "everysec")], "persistence", Note, "once a second"),
        (&[("appendfsync", "no")], "persistence", Note, "whenever"),
        (&[("appendonly", "no"), ("save", "3600 1")], "persistence", Danger, "snapshots"),
        (&[("save", "")], "persistence", Danger, "none"),
    ] {
        for (name, value) in settings {
            set(name, value);
        }
        let report = check(&server.url()).await;
        let detail = assert_finds(&report, subject, severity);
        assert!(detail.contains(says), "{detail}");
    }
    // Hardly any room is left.
    let used: u64 = server.info_field("memory", "used_memory").parse().unwrap();
    set("maxmemory", &(used + used / 20).to_string());
    assert_finds(&check(&server.url()).await, "memory", Note);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replication_is_found_from_either_side() {
    let at_once = RedisServer::builder().arg("--repl-diskless-sync-delay", "0");
    let primary = start(at_once).await;
    let of = format!("127.0.0.1 {}", primary.port());
    let replica = start(RedisServer::builder().arg("--replicaof", of)).await;
    let linked = || replica.info_field("replication", "master_link_status") == "up";
    eventually(PATIENCE, "they are linked", linked).await;
    let detail = assert_finds(&check(&primary.url()).await, "replication", Severity::Note);
    assert!(detail.contains("1 replica"), "{detail}");
    // Nothing can be locked there; that is found out without trying for long.
    let report = check(&replica.url()).await;
    let detail = assert_finds(&report, "role", Severity::Danger);
    assert!(detail.contains("slave") || detail.contains("replica"), "{detail}");
}

/// Users who lack one thing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permissions_are_found() {
    use Severity::{Danger, Note};
    let server = start(durable()).await;
    let mut wrong = Vec::new();
    for (rights, found) in [
        (&["~*", "&*", "+@all", "-publish"][..], &[("wake-ups", Note)][..]),
        (&["~*", "+@all", "resetchannels"], &[("wake-ups", Note), ("notices", Note)]),
        (&["~*", "&redisson_*", "+@all"], &[("notices", Note)]),
        (&["~*", "&lockkeeper_*", "+@all"], &[("wake-ups", Note)]),
        (&["~*", "&*", "+@all", "-subscribe"], &[("wake-ups", Note), ("notices", Note)]),
        (&["~*", "&*", "+@all", "-client"], &[("lost requests", Note)]),
        (&["~*", "&*", "+@all", "-client|kill"], &[("lost requests", Note)]),
        (&["~*", "&*", "+@all", "-evalsha", "-eval"], &[("permissions", Danger)]),
        (&["~*", "&*", "+@all", "-hset"], &[("permissions", Danger)]),
        (&["~*", "&*", "+@all", "-set"], &[("permissions", Danger)]),
        (&["~*", "&*", "+@all", "-zadd"], &[("permissions", Danger)]),
        (&["~mine:*", "&*", "+@all"], &[("permissions", Danger)]),
        (&["~*", "&*", "+@all", "-info"], &[("server", Note)]),
        (&["~*", "&*", "+@all", "-time"], &[("clock", Note), ("permissions", Danger)]),
    ] {
        set_user(&server, rights);
        let client = connect(&server.url_with("u", "s3cret"), options()).await;
        let report = within(PATIENCE, "the report", client.check()).await;
        match report {
            Ok(report) => wrong.extend(differences(&report, found).map(|what| (rights, what))),
            Err(error) => wrong.push((rights, format!("no report: {error}"))),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Why nobody is woken is what one must know to change it.
    for (denied, says) in [("-publish", "publish"), ("-subscribe", "listen")] {
        set_user(&server, &["~*", "&*", "+@all", denied]);
        let report = check(&server.url_with("u", "s3cret")).await;
        let detail = assert_finds(&report, "wake-ups", Note);
        assert!(detail.contains(says), "{detail}");
    }
}

/// Whether more, less or something else was found, beside what is fine.
fn differences(report: &Report, expected: &[(&str, Severity)]) -> Option<String> {
    let said = format!("{report:?}");
    assert!(!said.contains("s3cret"), "{said}");
    let found = report.findings.iter().filter(|finding| finding.severity > Severity::Fine);
    let found: BTreeSet<_> = found.map(|found| (&found.subject[..], found.severity)).collect();
    let expected: BTreeSet<_> = expected.iter().copied().collect();
    (found != expected).then(|| format!("{found:?} instead of {expected:?}"))
}

/// What could not be looked at is not said to be one thing or the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_cannot_be_seen_are_not_guessed() {
    let server = start(durable()).await;
    set_user(&server, &["~*", "&*", "+@all", "-config"]);
    let url = server.url_with("u", "s3cret");
    let detail = assert_finds(&check(&url).await, "persistence", Severity::Note);
    assert!(detail.contains("CONFIG"), "{detail}");
}

/// Which kinds cannot be had, and which can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_locked_is_named() {
    let server = start(durable()).await;
    set_user(&server, &["~*", "&*", "+@all", "-set"]);
    let report = check(&server.url_with("u", "s3cret")).await;
    let refused = report.findings.iter().filter(|finding| finding.subject == "permissions");
    let refused: Vec<_> = refused.map(|finding| &finding.detail[..]).collect();
    let named = |kind: &str| refused.iter().any(|detail| detail.starts_with(&format!("a {kind} ")));
    for kind in ["mutex", "semaphore", "permit semaphore"] {
        assert!(named(kind), "{kind}: {refused:?}");
    }
    for kind in ["lock", "fair lock", "write lock"] {
        assert!(!named(kind), "{kind}: {refused:?}");
    }
    let works = &worst(&report, "locks").detail;
    assert!(works.contains("fair lock") && !works.contains("mutex"), "{works}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_slow_for_the_lease_is_found() {
    let server = started().await;
    let proxy = FaultProxy::start(server.port()).await;
    // There and back.
    proxy.delay(ms(20));
    let leases = [(ms(100), Severity::Danger), (ms(1100), Severity::Note), (LONG, Severity::Fine)];
    let checks = leases.map(|(lease, severity)| {
        let url = proxy.url();
        tokio::spawn(async move {
            let options = options().watchdog_timeout(lease).response_timeout(PATIENCE);
            let client = connect(&url, options).await;
            // While the machine stands still every link is slow: the best of several.
            let mut reports = Vec::new();
            for _ in 0..5 {
                let report = within(PATIENCE, "the report", client.check()).await;
                reports.push(report.expect("reachable"));
                if worst(&reports[reports.len() - 1], "latency").severity == severity {
                    break;
                }
            }
            let report = reports.pop().expect("there is one");
            assert_finds(&report, "latency", severity);
            assert!(report.round_trip >= ms(40), "{:?}", report.round_trip);
            assert!(report.slowest >= report.round_trip);
        })
    });
    for check in checks {
        joined(check).await;
    }
}

/// A server that is gone is an error, and not a finding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_cannot_be_asked_is_an_error() {
    let server = started().await;
    let client = connect(&server.url(), options()).await;
    server.kill();
    assert_unreachable(&within(PATIENCE, "an answer", client.check()).await);
}
