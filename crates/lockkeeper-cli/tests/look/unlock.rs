//! `unlock` without a confirmation.

use lockkeeper::blocking::{self, Wait};
use std::time::Duration;

use lockkeeper::AnyGuard;
use lockkeeper::{ClientOptions, LostReason};
use serde_json::{Value, json};

use crate::support::{JAVA_CLIENT, Stand, eventually, myself, on_every_store};

/// Waits until the holder's client has announced itself.
fn announced(stand: &Stand, name: &str) {
    eventually("the holder is announced", || {
        stand.inspected(name)["holders"][0]["pid"].is_number().then_some(())
    });
}

#[test]
fn without_a_terminal_yes_is_required() {
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.lock("a").lock().wait().unwrap();
        stand.run(["unlock", "a"]).fails(64, &["--yes", "--force"]);
        stand.run(["unlock", "a", "--force", "--reason", "x"]).fails(64, &["--yes"]);
        stand.run(["unlock", "free"]).ok();
        assert!(!guard.is_lost() && client.lock("a").is_locked().wait().unwrap());
    });
}

#[test]
fn an_announced_holder_is_notified_at_once_with_the_reason() {
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.lock("a").lock().wait().unwrap();
        announced(stand, "a");
        stand.run(["unlock", "a", "--yes"]).fails(75, &[&myself(), "last seen", "--force"]);
        assert!(!guard.is_lost(), "it keeps the lock without --force");

        let started = testkit::Stopwatch::start();
        let text =
            stand.run(["unlock", "a", "--yes", "--force", "--reason", "stuck since noon"]).ok();
        assert_eq!(text, format!("lock \"a\" was force-released from {}\n", myself()));
        let lost = guard.lost().wait();
        assert_eq!(lost, LostReason::Revoked("stuck since noon".to_owned()));
        // Long before the next renewal.
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        assert!(client.lock("a").try_lock().wait().unwrap().is_some(), "the lock is free");
    });
}

/// The announcement of a killed client stays until it expires.
#[test]
fn a_killed_holder_is_shown_with_the_time_it_was_last_seen() {
    on_every_store(|stand| {
        let options = ClientOptions::new().watchdog_timeout(Duration::from_secs(15));
        let client = blocking::connect_with(&stand.url, options).unwrap();
        let guard = client.lock("a").lease(Duration::from_secs(60)).lock().wait().unwrap();
        announced(stand, "a");
        client.abandon();
        let refused = eventually("its announcement is overdue", || {
            let ran = stand.run(["unlock", "a", "--yes"]);
            assert_eq!(ran.code, Some(75), "{ran:?}");
            assert!(ran.err.contains("last seen") && !ran.err.contains("announced"), "{ran:?}");
            Some(ran.err).filter(|errors| errors.contains("wait until its lease expires"))
        });
        assert!(refused.contains(&myself()), "{refused}");
        let holder = &stand.inspected("a")["holders"][0];
        assert!(holder["seen_ms"].as_u64().is_some_and(|ago| ago > 5_000), "{holder}");
        let text = stand.run(["inspect", "a"]).ok();
        assert!(text.contains(", last seen "), "{text}");
        drop(guard);
    });
}

/// No job runs under the lock, so --force is not needed.
#[test]
fn a_lock_left_by_at_least_shows_the_process_and_needs_no_force() {
    on_every_store(|stand| {
        stand.run(["run", "a", "--at-least", "10m", "--", "/bin/true"]).ok();
        let document = stand.inspected("a");
        let holder = &document["holders"][0];
        assert_eq!(holder["program"], "true", "{document:#}");
        assert!(holder["host"].is_string() && holder["pid"].is_number(), "{document:#}");
        assert!(holder["since"].is_string() && holder["left"].is_string(), "{document:#}");
        let text = stand.run(["inspect", "a"]).ok();
        let shown = format!("true pid {} on {}", holder["pid"], holder["host"].as_str().unwrap());
        assert!(text.contains(&format!("held by   {shown}\n")), "{text}");
        assert!(text.contains(", left 20") && text.contains("its job has ended"), "{text}");
        assert!(stand.run(["ls"]).ok().contains(&shown));
        let text = stand.run(["unlock", "a", "--yes"]).ok();
        assert_eq!(text, format!("lock \"a\" was force-released from {shown}\n"));
    });
}

#[test]
fn operator_and_former_holder_are_recorded() {
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.lock("a").lock().wait().unwrap();
        announced(stand, "a");
        stand.run(["unlock", "a", "--yes", "--force", "--reason", "stuck"]).ok();
        drop(guard);
        client.shutdown().wait();
        let forced = &stand.inspected("a")["forced"][0];
        assert!(forced["by"].as_str().unwrap().starts_with("tester (lockkeeper) pid "), "{forced}");
        let former = &forced["victims"][0];
        assert_eq!(former["pid"], std::process::id(), "{forced}");
        assert_eq!((&former["id"], former["host"].is_string()), (&forced["from"][0], true));
        let text = stand.run(["inspect", "a"]).ok();
        assert!(text.contains(&format!("from {} (id ", myself())), "{text}");
    });
}

#[test]
fn without_the_variable_the_operator_is_the_system_user() {
    let stand = Stand::redis();
    stand.java_holds("a", 1);
    let mut command = stand.command(["unlock", "a", "--yes"]);
    assert_eq!(command.env_remove("USER").output().unwrap().status.code(), Some(0));
    let forced = &stand.inspected("a")["forced"][0];
    let user = std::process::Command::new("id").arg("-un").output().unwrap().stdout;
    let user = String::from_utf8(user).unwrap();
    let (by, reason) = (forced["by"].as_str().unwrap(), forced["reason"].as_str().unwrap());
    assert!(by.starts_with(&format!("{} (lockkeeper)", user.trim())), "{forced}");
    assert!(reason.contains(user.trim()), "{forced}");
}

/// Records without the clients of the former holders.
#[test]
fn records_of_earlier_versions_are_read() {
    let stand = Stand::redis();
    let entry = r#"{"at":"1700000000000","by":"x pid 1 on y","reason":"why","holders":["it:1"]}"#;
    stand.server().cli(&["LPUSH", "lockkeeper_forced:{a}", entry]).ok();
    let owner = stand.java_holds("a", 1);
    let client = format!("lockkeeper_client:{JAVA_CLIENT}");
    let fields = ["host", "h", "pid", "7", "program", "p", "start", "1", "holds", "", "more", "0"];
    stand.server().cli(&[&["HSET", &client[..]], &fields[..]].concat()).ok();
    let document = stand.inspected("a");
    assert_eq!(document["forced"][0]["from"], json!(["it:1"]));
    let former = json!([{"id": "it:1", "host": null, "pid": null, "program": null}]);
    assert_eq!(document["forced"][0]["victims"], former);
    let holder = &document["holders"][0];
    assert_eq!((&holder["id"], &holder["host"]), (&json!(owner), &json!("h")));
    assert_eq!((&holder["seen_ms"], &holder["left"]), (&Value::Null, &Value::Null));
    stand.run(["unlock", "a", "--yes"]).fails(75, &["seen within its lease", "--force"]);
}

#[test]
fn every_kind_with_holders_can_be_force_released() {
    on_every_store(|stand| {
        let client = stand.client();
        let rw = client.rw_lock("rw");
        let cases = [
            ("lock", AnyGuard::from(client.lock("lock").lock().wait().unwrap())),
            ("fair", client.fair_lock("fair").lock().wait().unwrap().into()),
            ("mutex", client.mutex("mutex").lock().wait().unwrap().into()),
            ("rw", rw.read().wait().unwrap().into()),
        ];
        for (name, guard) in cases {
            let args = ["unlock", name, "--yes", "--force", "--json", "--kind", name];
            let document = stand.run(args).document("unlock");
            assert_eq!(document["unlocked"], true, "{document:#}");
            assert_eq!(document["from"][0]["id"], guard.owner_id().to_string());
            assert_eq!(document["reason"], "no reason given by tester");
            assert!(matches!(guard.lost().wait(), LostReason::Revoked(_)), "{name}");
        }
    });
}

#[test]
fn a_java_holder_needs_no_force_and_the_reason_is_recorded() {
    let stand = Stand::redis();
    let owner = stand.java_holds("java", 7);
    let args = ["unlock", "java", "--yes", "--json", "--reason", "its host is down"];
    let document = stand.run(args).document("unlock");
    assert_eq!(document["from"][0]["id"], owner);
    assert_eq!(stand.server().cli(&["EXISTS", "java"]).int(), 0);
    let forced = &stand.inspected("java")["forced"][0];
    assert_eq!(forced["reason"], "its host is down");
    assert_eq!(forced["from"], json!([owner]));
}

/// As in the Redlock algorithm: random bytes.
#[test]
fn a_holder_id_need_not_be_text() {
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
fn a_free_lock_is_not_an_error() {
    on_every_store(|stand| {
        let text = stand.run(["unlock", "a", "--yes"]).ok();
        assert_eq!(text, "lock \"a\" is free: there is nothing to release\n");
        let document = stand.run(["unlock", "a", "--yes", "--json"]).document("unlock");
        assert_eq!(document["unlocked"], false);
        assert_eq!((&document["from"], &document["reason"]), (&json!([]), &Value::Null));
        assert_eq!(stand.inspected("a")["forced"], json!([]), "nothing was recorded");
    });
}

#[test]
fn counters_cannot_be_force_released() {
    on_every_store(|stand| {
        let client = stand.client();
        client.semaphore("semaphore").try_set_permits(2, None).wait().unwrap();
        client.count_down_latch("latch").try_set_count(2).wait().unwrap();
        let refused = ["cannot be force-released"];
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
        permits.set_permits(4).wait().unwrap();
        let guards = [1, 2].map(|count| permits.acquire(count).wait().unwrap());
        announced(stand, "permits");
        let ids: Vec<_> = guards.iter().flat_map(|guard| guard.permit_ids()).collect();
        let document = stand.inspected("permits");
        let holders = document["holders"].as_array().unwrap();
        assert_eq!(holders.len(), 3, "{document:#}");
        for holder in holders {
            assert!(ids.iter().any(|id| holder["id"] == id.to_string()), "{document:#}");
            let ttl = holder["ttl_ms"].as_u64().expect("it expires");
            assert!((1..=30_000).contains(&ttl), "{document:#}");
        }
        let text = stand.run(["inspect", "permits"]).ok();
        assert_eq!(text.matches("expires in ").count(), 3, "{text}");
        let text = stand.run(["ls"]).ok();
        assert_eq!(text.lines().filter(|line| line.contains("permits")).count(), 3, "{text}");

        let one = ids[1].to_string();
        let args = ["unlock", "permits", "--yes", "--permit", &one];
        stand.run(args).fails(75, &[&myself(), "last seen", "--force"]);
        let args = ["unlock", "permits", "--yes", "--force", "--json", "--permit", &one];
        let document = stand.run(args).document("unlock");
        assert_eq!(
            (&document["unlocked"], &document["from"][0]["id"]),
            (&json!(true), &json!(one))
        );
        assert_eq!(permits.acquired().wait().unwrap(), 2, "only this permit");
        assert_eq!(stand.run(args).document("unlock")["unlocked"], false);

        stand.run(["unlock", "permits", "--yes", "--force"]).ok();
        assert_eq!((permits.acquired().wait().unwrap(), permits.permits().wait().unwrap()), (0, 4));
        stand.run(["unlock", "free", "--yes", "--permit", &one]).ok();
        let _lock = client.lock("lock").lock().wait().unwrap();
        let args = ["unlock", "lock", "--yes", "--force", "--permit", &one];
        stand.run(args).fails(64, &["--permit"]);
    });
}

/// At most 128 permits are listed, and only listed permits are freed.
#[test]
fn permits_that_were_not_listed_stay_held() {
    on_every_store(|stand| {
        let client = stand.client();
        let permits = client.permit_semaphore("permits");
        permits.set_permits(130).wait().unwrap();
        let _guard = permits.acquire(130).wait().unwrap();
        let ran = stand.run(["unlock", "permits", "--yes", "--force"]);
        assert!(ran.err.contains("2 more permits are held"), "{ran:?}");
        assert_eq!((ran.code, permits.acquired().wait().unwrap()), (Some(0), 2));
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
        let guard = client.rw_lock("rw").write().wait().unwrap();
        let args = ["unlock", "rw", "--yes", "--force", "--kind", "lock"];
        stand.run(args).fails(64, &["read/write"]);
        assert!(!guard.is_lost());
    });
}

#[test]
fn a_failed_output_does_not_change_the_exit_code() {
    let stand = Stand::redis();
    stand.java_holds("a", 1);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = stand.command(["unlock", "a", "--yes"]);
    let output = command.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "a script must not repeat it");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("standard output"), "{errors}");
    assert_eq!(stand.server().cli(&["EXISTS", "a"]).int(), 0);
}

#[test]
fn failures_have_their_codes() {
    let stand = Stand::redis();
    stand.run(["unlock", "a", "--yes", "--kind", "cat"]).fails(64, &["cat"]);
    stand.java_holds("a", 1);
    let acl = ["ACL", "SETUSER", "reader", "on", ">secret", "~*", "&*", "+@all", "-unlink", "-del"];
    stand.server().cli(&acl).ok();
    let url = stand.server().url_with("reader", "secret");
    stand.run(["unlock", "a", "--yes", "--url", &url]).fails(77, &["permission"]);
    assert_eq!(stand.server().cli(&["EXISTS", "a"]).int(), 1);
    stand.server().kill();
    stand.run(["unlock", "a", "--yes"]).fails(69, &["redis://"]);
}
