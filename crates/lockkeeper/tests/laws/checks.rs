//! `Client::check` works on every store, reports no risk of a healthy one, and leaves nothing behind.

use std::time::Duration;

use lockkeeper::{AnyGuard, Report, Severity};

use crate::store::{Store, eventually};

fn finding<'a>(report: &'a Report, subject: &str) -> Option<&'a lockkeeper::Finding> {
    report.findings.iter().find(|finding| finding.subject == subject)
}

/// Of a client whose leases are so long that a busy machine is not taken for a slow store.
async fn report(store: &Store) -> Report {
    let options = store.options().watchdog_timeout(Duration::from_secs(60));
    store.client_with(options).await.check().await.unwrap()
}

pub(crate) async fn a_check_reports_the_kinds_that_work(store: &Store) {
    let report = report(store).await;
    let subjects = ["locks", "wake-ups", "notices", "lost requests", "latency"];
    for subject in subjects {
        let found = finding(&report, subject).unwrap_or_else(|| panic!("nothing of {subject}"));
        assert_eq!(found.severity, Severity::Fine, "{found:?}");
        assert!(found.remedy.is_empty() && !found.detail.is_empty(), "{found:?}");
    }
    let locks = &finding(&report, "locks").unwrap().detail;
    let others = ["fair lock", "read lock", "write lock", "semaphore", "permit semaphore"];
    for (kind, is_there) in
        [("mutex", true)].into_iter().chain(others.map(|o| (o, !store.is_quorum())))
    {
        let (works, lacks) = locks.split_once("; the store does not have: ").unwrap_or((locks, ""));
        assert_eq!((works.contains(kind), lacks.contains(kind)), (is_there, !is_there), "{locks}");
    }
    assert!(finding(&report, "permissions").is_none());
    assert!(report.round_trip <= report.slowest && report.slowest < store.slack());
    let severities: Vec<_> = report.findings.iter().map(|finding| finding.severity).collect();
    assert!(severities.is_sorted_by(|a, b| a >= b), "the worst first: {severities:?}");
}

/// An embedded store is as safe as can be; of a server that is for its settings to say.
pub(crate) async fn a_healthy_store_is_safe(store: &Store) {
    let report = report(store).await;
    if store.servers().is_empty() {
        assert!(report.is_safe(), "{report:?}");
        assert!(report.findings.iter().all(|finding| finding.severity == Severity::Fine));
        return;
    }
    let danger = report.findings.iter().filter(|finding| finding.severity == Severity::Danger);
    let mut subjects: Vec<_> = danger.map(|finding| &finding.subject[..]).collect();
    subjects.dedup();
    // The tests' servers keep nothing, and are on one host. A quorum needs only the hosts.
    let danger = if store.is_quorum() { "hosts" } else { "persistence" };
    assert_eq!(subjects, [danger], "{report:?}");
    assert!(!report.is_safe());
}

pub(crate) async fn a_check_leaves_no_lock_behind(store: &Store) {
    let store = store.apart();
    let client = store.client().await;
    client.check().await.unwrap();
    let mut listing = client.inspector().list("*");
    let left = listing.next().await.unwrap();
    assert!(left.is_none(), "left behind: {left:?}");
    // What is left is not to be taken for a lock, and goes by itself: what was answered to requests
    // that must not run twice, two empty semaphores, and what is written to wait for replicas.
    let note = format!("lockkeeper_client:{}", client.id());
    for server in store.servers() {
        for key in server.cli(&["KEYS", "*"]).array() {
            let left = server.cli(&["PTTL", key.text()]).int();
            let longest = match key.text() {
                key if key.starts_with("lockkeeper_replies:") => 60_000,
                key if key.starts_with("lockkeeper_commit:") => 60_000,
                key if key == note || key == "lockkeeper_clients" => continue,
                "lockkeeper_quorum" => continue,
                _ => 10_000,
            };
            assert!((-2..=longest).contains(&left) && left != -1, "{key:?} stays for {left} ms");
        }
    }
    client.shutdown().await;
    for key in [&note[..], "lockkeeper_clients"] {
        assert!(store.behind(key).is_none_or(|server| server.cli(&["EXISTS", key]).int() == 0));
    }
}

/// And works behind a prefix, where a user may have no other keys.
pub(crate) async fn a_check_works_beside_held_locks(store: &Store) {
    let options = store.options().name_prefix(store.name("p:"));
    let client = store.client_with(options).await;
    let mut held = vec![
        AnyGuard::from(client.lock("lock").lock().await.unwrap()),
        client.mutex("mutex").lock().await.unwrap().into(),
    ];
    if !store.is_quorum() {
        let semaphore = client.permit_semaphore("permits");
        assert!(semaphore.try_set_permits(2, None).await.unwrap());
        held.push(client.fair_lock("fair").lock().await.unwrap().into());
        held.push(client.rw_lock("rw").write().await.unwrap().into());
        held.push(semaphore.acquire(2).await.unwrap().into());
    }
    for _ in 0..3 {
        let report = client.check().await.unwrap();
        assert!(finding(&report, "permissions").is_none(), "{report:?}");
        assert_eq!(finding(&report, "wake-ups").unwrap().severity, Severity::Fine);
    }
    for guard in held {
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    }
    let checks = async || {
        let mut listing = client.inspector().list("*");
        let mut found = 0;
        while let Some(page) = listing.next().await.unwrap() {
            found += page.len();
        }
        found
    };
    eventually("nothing is held", async || checks().await == 0).await;
}
