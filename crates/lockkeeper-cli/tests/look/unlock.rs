//! Taking a lock away without a question.

use std::time::Duration;

use lockkeeper::LostReason;
use serde_json::{Value, json};

use crate::support::{PATIENCE, Stand, eventually, myself, on_every_store};

/// Waits until the holder's client has said who it is: that is how it is seen to be alive.
fn alive(stand: &Stand, name: &str) {
    eventually("the holder is known", || {
        stand.inspected(name)["holders"][0]["pid"].is_number().then_some(())
    });
}

#[test]
fn where_nobody_can_be_asked_yes_must_be_said() {
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.lock("a").lock().unwrap();
        stand.run(["unlock", "a"]).fails(64, &["--yes", "--force"]);
        stand.run(["unlock", "a", "--force", "--reason", "x"]).fails(64, &["--yes"]);
        stand.run(["unlock", "free"]).ok();
        assert!(!guard.is_lost() && client.lock("a").is_locked().unwrap());
    });
}

#[test]
fn a_holder_that_is_alive_is_told_at_once_and_why() {
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.lock("a").lock().unwrap();
        alive(stand, "a");
        stand.run(["unlock", "a", "--yes"]).fails(75, &[&myself(), "alive", "--force"]);
        assert!(!guard.is_lost(), "without --force it keeps it");

        let begun = testkit::Stopwatch::start();
        let text =
            stand.run(["unlock", "a", "--yes", "--force", "--reason", "stuck since noon"]).ok();
        assert_eq!(text, format!("\"a\" was taken away from {}\n", myself()));
        let lost = guard.wait_lost(PATIENCE).expect("it is told");
        assert_eq!(lost, LostReason::Revoked("stuck since noon".to_owned()));
        // Long before the next renewal.
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        assert!(client.lock("a").try_lock().unwrap().is_some(), "the next one gets it");
    });
}

#[test]
fn every_kind_with_holders_can_be_taken_away() {
    on_every_store(|stand| {
        let client = stand.client();
        let rw = client.rw_lock("rw");
        let cases = [
            ("lock", client.lock("lock").lock().unwrap()),
            ("fair", client.fair_lock("fair").lock().unwrap()),
            ("mutex", client.mutex("mutex").lock().unwrap()),
            ("rw", rw.read().unwrap()),
        ];
        for (name, guard) in cases {
            let args = ["unlock", name, "--yes", "--force", "--json", "--kind", name];
            let document = stand.run(args).document("unlock");
            assert_eq!(document["unlocked"], true, "{document:#}");
            assert_eq!(document["from"][0]["id"], guard.owner_id().to_string());
            assert_eq!(document["reason"], "unlocked by tester, who gave no reason");
            assert!(matches!(guard.wait_lost(PATIENCE), Some(LostReason::Revoked(_))), "{name}");
        }
    });
}

#[test]
fn a_stranger_needs_no_force_and_the_reason_is_remembered() {
    let stand = Stand::redis();
    let owner = stand.stranger_holds("java", 7);
    let args = ["unlock", "java", "--yes", "--json", "--reason", "its host is gone"];
    let document = stand.run(args).document("unlock");
    assert_eq!(document["from"][0]["id"], owner);
    assert_eq!(stand.server().cli(&["EXISTS", "java"]).int(), 0);
    let forced = &stand.inspected("java")["forced"][0];
    assert_eq!(forced["reason"], "its host is gone");
    assert_eq!(forced["from"], json!([owner]));
}

/// As the paper on Redlock has it: twenty random bytes.
#[test]
fn a_holder_may_be_no_text() {
    let stand = Stand::redis();
    for more in [&[][..], &["--force"]] {
        let set = "return redis.call('SET', KEYS[1], '\\255\\254\\0', 'PX', 600000)";
        stand.server().cli(&["EVAL", set, "1", "mutex"]).ok();
        let args = [&["unlock", "mutex", "--yes", "--kind", "mutex"], more].concat();
        stand.run(args).ok();
        assert_eq!(stand.server().cli(&["EXISTS", "mutex"]).int(), 0);
    }
}

#[test]
fn there_is_nothing_wrong_with_a_free_lock() {
    on_every_store(|stand| {
        let text = stand.run(["unlock", "a", "--yes"]).ok();
        assert_eq!(text, "\"a\" is free: there was nothing to take away\n");
        let document = stand.run(["unlock", "a", "--yes", "--json"]).document("unlock");
        assert_eq!(document["unlocked"], false);
        assert_eq!((&document["from"], &document["reason"]), (&json!([]), &Value::Null));
        assert_eq!(stand.inspected("a")["forced"], json!([]), "nothing was forced");
    });
}

#[test]
fn what_counts_cannot_be_taken_away() {
    on_every_store(|stand| {
        let client = stand.client();
        client.semaphore("semaphore").try_set_permits(2).unwrap();
        client.count_down_latch("latch").try_set_count(2).unwrap();
        let refused = ["cannot be taken away"];
        for kind in ["semaphore", "latch"] {
            stand.run(["unlock", kind, "--yes", "--force", "--kind", kind]).fails(64, &refused);
        }
    });
}

#[test]
fn permits_are_shown_and_freed_one_by_one() {
    on_every_store(|stand| {
        let client = stand.client();
        let permits = client.permit_semaphore("permits");
        permits.set_permits(4).unwrap();
        let guards = [1, 2].map(|count| permits.acquire(count).unwrap());
        alive(stand, "permits");
        let ids: Vec<_> = guards.iter().flat_map(|guard| guard.permit_ids()).collect();
        let document = stand.inspected("permits");
        let holders = document["holders"].as_array().unwrap();
        assert_eq!(holders.len(), 3, "{document:#}");
        for holder in holders {
            assert!(ids.iter().any(|id| holder["id"] == id.to_string()), "{document:#}");
            let ttl = holder["ttl_ms"].as_u64().expect("it has an end");
            assert!((1..=30_000).contains(&ttl), "{document:#}");
        }
        let text = stand.run(["inspect", "permits"]).ok();
        assert_eq!(text.matches("expires in ").count(), 3, "{text}");
        let text = stand.run(["ls"]).ok();
        assert_eq!(text.lines().filter(|line| line.contains("permits")).count(), 3, "{text}");

        let one = ids[1].to_string();
        let args = ["unlock", "permits", "--yes", "--permit", &one];
        stand.run(args).fails(75, &[&myself(), "alive", "--force"]);
        let args = ["unlock", "permits", "--yes", "--force", "--json", "--permit", &one];
        let document = stand.run(args).document("unlock");
        assert_eq!(
            (&document["unlocked"], &document["from"][0]["id"]),
            (&json!(true), &json!(one))
        );
        assert_eq!(permits.acquired().unwrap(), 2, "only that one");
        assert_eq!(stand.run(args).document("unlock")["unlocked"], false);

        stand.run(["unlock", "permits", "--yes", "--force"]).ok();
        assert_eq!((permits.acquired().unwrap(), permits.permits().unwrap()), (0, 4));
        stand.run(["unlock", "free", "--yes", "--permit", &one]).ok();
        let _lock = client.lock("lock").lock().unwrap();
        let args = ["unlock", "lock", "--yes", "--force", "--permit", &one];
        stand.run(args).fails(64, &["--permit"]);
    });
}

#[test]
fn data_is_not_a_lock() {
    let stand = Stand::redis();
    stand.server().cli(&["HSET", "user", "name", "ann"]).ok();
    stand.run(["unlock", "user", "--yes", "--force"]).fails(64, &["user"]);
    assert_eq!(stand.server().cli(&["HGET", "user", "name"]).text(), "ann");
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.rw_lock("rw").write().unwrap();
        let args = ["unlock", "rw", "--yes", "--force", "--kind", "lock"];
        stand.run(args).fails(64, &["read/write"]);
        assert!(!guard.is_lost());
    });
}

#[test]
fn it_is_done_though_nobody_reads_so() {
    let stand = Stand::redis();
    stand.stranger_holds("a", 1);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = stand.command(["unlock", "a", "--yes"]);
    let output = command.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "a script must not do it again");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("standard output"), "{said}");
    assert_eq!(stand.server().cli(&["EXISTS", "a"]).int(), 0);
}

#[test]
fn failures_have_their_codes() {
    let stand = Stand::redis();
    stand.run(["unlock", "a", "--yes", "--kind", "cat"]).fails(64, &["cat"]);
    stand.stranger_holds("a", 1);
    let acl = ["ACL", "SETUSER", "reader", "on", ">secret", "~*", "&*", "+@all", "-unlink", "-del"];
    stand.server().cli(&acl).ok();
    let url = stand.server().url_with("reader", "secret");
    stand.run(["unlock", "a", "--yes", "--url", &url]).fails(77, &["permission"]);
    assert_eq!(stand.server().cli(&["EXISTS", "a"]).int(), 1);
    stand.server().kill();
    stand.run(["unlock", "a", "--yes"]).fails(69, &["redis://"]);
}
