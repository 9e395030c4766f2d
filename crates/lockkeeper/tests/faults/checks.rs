//! `Client::check`: unsafe settings, missing permissions and slow connections.

use std::collections::BTreeSet;

use lockkeeper::{Client, ClientOptions, Error, Finding, Report, Severity};
use testkit::{FaultProxy, RedisServer, RedisServerBuilder, Replicated, Sentinels};

use crate::permissions::set_user;
use crate::primitives::started;
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

/// A server with full persistence.
fn durable() -> RedisServerBuilder {
    RedisServer::builder().arg("--appendonly", "yes").arg("--appendfsync", "always")
}

fn is_before_7(server: &RedisServer) -> bool {
    server.info_field("server", "redis_version").starts_with("6.")
}

async fn start(builder: RedisServerBuilder) -> RedisServer {
    joined(tokio::task::spawn_blocking(|| builder.start())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_well_configured_server_is_safe() {
    let server = start(durable()).await;
    let report = check(&server.url()).await;
    assert!(report.is_safe(), "{report:#?}");
    let fine = [
        "persistence",
        "eviction",
        "role",
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
    let version = if is_before_7(&server) { Severity::Note } else { Severity::Fine };
    assert_finds(&report, "version", version);
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
        (&[("appendfsync", "no")], "persistence", Note, "when the system flushes"),
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
    // Hardly any room is left, but enough for a few connections.
    server.cli(&["SETRANGE", "large", "10000000", "x"]).ok();
    let used: u64 = server.info_field("memory", "used_memory").parse().unwrap();
    set("maxmemory", &(used + used / 20).to_string());
    assert_finds(&check(&server.url()).await, "memory", Note);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replication_is_found_from_either_side() {
    let at_once = RedisServer::builder().arg("--repl-diskless-sync-delay", "0");
    let primary = start(at_once).await;
    let replica = start(RedisServer::builder()).await;
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).ok();
    let linked = || replica.info_field("replication", "master_link_status") == "up";
    eventually(PATIENCE, "they are linked", linked).await;
    let detail = assert_finds(&check(&primary.url()).await, "replication", Severity::Note);
    assert!(detail.contains("1 replica") && detail.contains("none must acknowledge"), "{detail}");
    // Nothing can be locked there: a client does not use it, and says where the primary is.
    let options = options().connect_timeout(ms(300));
    let error = Client::connect_with(&replica.url(), options).await.expect_err("a replica");
    let said = error.to_string();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let replica = format!("{} is a replica of 127.0.0.1:{}", replica.port(), primary.port());
    assert!(said.contains(&replica), "{said}");
}

/// All findings on a subject that are not fine, or the fine one.
fn said(report: &Report, subject: &str) -> String {
    let found = report.findings.iter().filter(|finding| finding.subject == subject);
    let details: Vec<_> =
        found.map(|finding| format!("{} {}", finding.severity, finding.detail)).collect();
    details.join("\n")
}

async fn check_with(url: &str, options: ClientOptions) -> Report {
    let client = connect(url, options.response_timeout(PATIENCE)).await;
    within(PATIENCE, "the report", client.check()).await.expect("the server can be asked")
}

/// What acknowledgement proves, and replicas that are missing, late or too few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_and_what_they_acknowledge_are_reported() {
    let starting = || std::sync::Arc::new(Replicated::start());
    let servers = joined(tokio::task::spawn_blocking(starting)).await;
    let url = servers.url();
    let by = |replicas| acknowledged_by(replicas, ms(300));
    for (options, says) in [
        (unacknowledged(), "note 2 replicas, and none must acknowledge"),
        (options(), "note 2 replicas, and 1 must acknowledge"),
        (by(1), "note 2 replicas, and 1 must acknowledge"),
        (by(2), "fine 2 replicas, and all must acknowledge"),
        (by(3), "danger 3 must acknowledge each lock, and 2 of 2 replicas can"),
    ] {
        let said = said(&check_with(&url, options).await, "replication");
        assert!(said.contains(says), "{says}: {said}");
    }
    let primary = servers.primary().server();
    primary.cli(&["CONFIG", "SET", "min-replicas-to-write", "3"]).ok();
    let report = check_with(&url, unacknowledged()).await;
    assert!(said(&report, "replication").contains("danger min-replicas-to-write is 3"));
    primary.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]).ok();

    let replica = servers.replicas()[0].server();
    replica.pause();
    let lag = |of: &str| {
        let field = primary.info_field("replication", of);
        let (_, lag) = field.rsplit_once("lag=").expect("a replica has a lag");
        let digits = lag.split(',').next().unwrap_or_default();
        digits.parse::<u32>().expect("seconds")
    };
    let late = || lag("slave0").max(lag("slave1")) > 3;
    eventually(PATIENCE, "a replica is late", late).await;
    let said_of = said(&check_with(&url, unacknowledged()).await, "replication");
    assert!(said_of.contains(&format!("{} is late (online", replica.port())), "{said_of}");
    replica.resume();
    let killed = std::sync::Arc::clone(&servers);
    joined(tokio::task::spawn_blocking(move || killed.replicas()[0].server().kill())).await;
    let gone = || primary.info_field("replication", "connected_slaves") == "1";
    eventually(PATIENCE, "one replica is gone", gone).await;
    let report = check_with(&url, options()).await;
    assert!(said(&report, "replication").contains("note 1 of 2 replicas connected"), "{report:?}");
    let subject = format!("server 127.0.0.1:{}", servers.replicas()[0].port());
    assert_finds(&report, &subject, Severity::Note);
}

/// Sentinels that are silent, disagree or are no majority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_are_reported() {
    let starting = || std::sync::Arc::new(Sentinels::start());
    let sentinels = joined(tokio::task::spawn_blocking(starting)).await;
    let client = connect(&sentinels.url(), options().response_timeout(PATIENCE)).await;
    let check = async || within(PATIENCE, "the report", client.check()).await.expect("served");
    let report = check().await;
    let detail = assert_finds(&report, "sentinels", Severity::Fine);
    assert_eq!(detail, "3 answer");
    assert!(said(&report, "replication").contains("2 replicas, and 1 must"), "{report:?}");

    // One is told of another primary.
    let odd = sentinels.sentinels()[2].server();
    let other = sentinels.servers().replicas()[0].port().to_string();
    odd.cli(&["SENTINEL", "REMOVE", "mymaster"]).ok();
    odd.cli(&["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &other, "3"]).ok();
    let detail = assert_finds(&check().await, "sentinels", Severity::Danger);
    assert!(detail.contains("different primaries") && detail.contains(&other), "{detail}");

    let kill = async |index: usize| {
        let sentinels = std::sync::Arc::clone(&sentinels);
        let kill = move || sentinels.sentinels()[index].server().kill();
        joined(tokio::task::spawn_blocking(kill)).await;
    };
    kill(2).await;
    let detail = assert_finds(&check().await, "sentinels", Severity::Note);
    let port = sentinels.sentinels()[2].port();
    assert!(detail.contains("2 of 3") && detail.contains(&format!(":{port})")), "{detail}");
    kill(1).await;
    let detail = assert_finds(&check().await, "sentinels", Severity::Danger);
    assert!(detail.contains("1 of 3 answer, which is no majority"), "{detail}");
    kill(0).await;
    let detail = assert_finds(&check().await, "sentinels", Severity::Danger);
    assert!(detail.contains("none answers"), "{detail}");
}

/// Users without one permission.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permissions_are_found() {
    use Severity::{Danger, Note};
    let server = start(durable()).await;
    let before_7 = is_before_7(&server);
    let mut wrong = Vec::new();
    for (rights, found) in [
        (&["~*", "&*", "+@all", "-publish"][..], &[("wake-ups", Note)][..]),
        (&["~*", "+@all", "resetchannels"], &[("wake-ups", Note), ("notices", Note)]),
        (&["~*", "resetchannels", "&redisson_*", "+@all"], &[("notices", Note)]),
        (&["~*", "resetchannels", "&lockkeeper_*", "+@all"], &[("wake-ups", Note)]),
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
        // Redis 6.2 cannot deny a subcommand.
        if before_7 && rights.contains(&"-client|kill") {
            continue;
        }
        let mut found = found.to_vec();
        if before_7 && !rights.contains(&"-info") {
            found.push(("version", Note));
        }
        set_user(&server, rights);
        let client = connect(&server.url_with("u", "s3cret"), options()).await;
        let report = within(PATIENCE, "the report", client.check()).await;
        match report {
            Ok(report) => wrong.extend(differences(&report, &found).map(|what| (rights, what))),
            Err(error) => wrong.push((rights, format!("no report: {error}"))),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The report says why waiters are not woken.
    for (denied, says) in [("-publish", "publish"), ("-subscribe", "subscribe")] {
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
async fn settings_that_cannot_be_read_are_reported_as_unknown() {
    let server = start(durable()).await;
    set_user(&server, &["~*", "&*", "+@all", "-config"]);
    let url = server.url_with("u", "s3cret");
    let detail = assert_finds(&check(&url).await, "persistence", Severity::Note);
    assert!(detail.contains("CONFIG"), "{detail}");
}

/// Which kinds cannot be had, and which can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_names_the_kinds_that_cannot_be_acquired() {
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

/// An unreachable server is an error, and not a finding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_cannot_be_asked_is_an_error() {
    let server = started().await;
    let client = connect(&server.url(), options()).await;
    server.kill();
    assert_unreachable(&within(PATIENCE, "an answer", client.check()).await);
}
