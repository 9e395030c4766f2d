//! `inspect`.

use lockkeeper::blocking::Wait;
use std::thread;

use lockkeeper::Client;
use lockkeeper::Kind;
use serde_json::{Value, json};

use crate::support::{JAVA_CLIENT, Stand, WAIT_LIMIT, eventually, myself, on_every_store};

#[test]
fn a_lock_is_shown_with_its_holder() {
    on_every_store(|stand| {
        let client = stand.client();
        let lock = client.lock("a");
        let guard = lock.lock().wait().unwrap();
        let _again = lock.lock().wait().unwrap();
        let text = eventually("its start is known", || {
            Some(stand.run(["inspect", "a"]).ok()).filter(|text| text.contains("since"))
        });
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..3], ["a", "  kind      lock", "  state     held"]);
        assert_eq!(lines[3], format!("  held by   {}", myself()));
        let id = format!("            id {}, 2 holds, for ", guard.owner_id());
        assert!(lines[4].starts_with(&id) && lines[4].contains(" UTC, last seen "), "{text}");
        assert!(lines[5].starts_with("  ttl       2") && lines[5].ends_with('s'), "{text}");

        let document = stand.inspected("a");
        assert_eq!(document["kind"], "lock");
        assert_eq!(document["free"], false);
        let holder = &document["holders"][0];
        assert_eq!(
            (&holder["id"], &holder["holds"]),
            (&json!(guard.owner_id().to_string()), &json!(2))
        );
        assert_eq!(holder["pid"], std::process::id());
        let since = holder["since"].as_str().unwrap();
        assert!(since.starts_with("20") && since.ends_with('Z') && since.len() == 24, "{since}");
        assert_eq!((&document["token"], &document["queue"]), (&Value::Null, &json!([])));
    });
}

#[test]
fn a_free_lock_has_no_kind() {
    on_every_store(|stand| {
        let text = stand.run(["inspect", "free"]).ok();
        assert!(text.starts_with("free\n  state     free\n"), "{text}");
        assert!(!text.contains("kind"), "the kind is unknown: {text}");
        let text = stand.run(["inspect", "free", "--kind", "fair"]).ok();
        assert!(text.contains("  kind      fair lock\n  state     free\n"), "{text}");
        let document = stand.inspected("free");
        assert_eq!((&document["free"], &document["holders"]), (&json!(true), &json!([])));
    });
}

/// For scripts: `if lockkeeper inspect --quiet NAME`.
#[test]
fn quiet_reports_the_state_by_the_exit_code() {
    on_every_store(|stand| {
        let code = |args: &[&str]| {
            let ran = stand.run([&["inspect"], args].concat());
            assert_eq!((&ran.out[..], &ran.err[..]), ("", ""), "{ran:?}");
            ran.code
        };
        assert_eq!(code(&["--quiet", "a"]), Some(1));
        let client = stand.client();
        let guard = client.lock("a").lock().wait().unwrap();
        assert_eq!(code(&["--quiet", "a"]), Some(0));
        guard.release().wait().unwrap();
        assert_eq!(code(&["--quiet", "a"]), Some(1));

        let permits = client.permit_semaphore("permits");
        permits.set_permits(2).wait().unwrap();
        assert_eq!(code(&["permits", "--quiet", "--kind", "permits"]), Some(1));
        let _held = permits.acquire(1).wait().unwrap();
        assert_eq!(code(&["permits", "-q"]), Some(0));
        let semaphore = client.semaphore("semaphore");
        semaphore.try_set_permits(1, None).wait().unwrap();
        assert_eq!(code(&["semaphore", "--quiet", "--kind", "semaphore"]), Some(1));
        let _permit = semaphore.acquire(1).wait().unwrap();
        assert_eq!(code(&["semaphore", "--quiet", "--kind", "semaphore"]), Some(0));
        let latch = client.count_down_latch("latch");
        assert_eq!(code(&["latch", "--quiet", "--kind", "latch"]), Some(1));
        latch.try_set_count(1).wait().unwrap();
        assert_eq!(code(&["latch", "--quiet", "--kind", "latch"]), Some(0));
    });
    let stand = Stand::redis();
    stand.run(["inspect", "--quiet", "--json", "a"]).fails(64, &["--json"]);
    stand.server().kill();
    stand.run(["inspect", "--quiet", "a"]).fails(69, &["redis://"]);
}

#[test]
fn the_queue_of_a_fair_lock_is_in_order() {
    on_every_store(|stand| {
        let holder = stand.client();
        let _guard = holder.fair_lock("fair").lock().wait().unwrap();
        let waiters: Vec<Client> = (0..3).map(|_| stand.client()).collect();
        thread::scope(|scope| {
            for (n, client) in waiters.iter().enumerate() {
                scope.spawn(|| client.fair_lock("fair").try_lock_for(WAIT_LIMIT).wait());
                // Each is in the queue before the next request.
                eventually("its queue position", || {
                    (stand.inspected("fair")["queue"].as_array()?.len() == n + 1).then_some(())
                });
            }
            let queue = holder.inspector().inspect_as("fair", Kind::Fair).wait().unwrap().queue;
            let ids: Vec<_> = queue.iter().map(|waiter| waiter.id.clone()).collect();
            let document = stand.inspected("fair");
            assert_eq!((&document["kind"], &document["waiters"]), (&json!("fair"), &json!(3)));
            let seen: Vec<_> = document["queue"].as_array().unwrap().iter().collect();
            let seen: Vec<_> = seen.iter().map(|waiter| waiter["id"].as_str().unwrap()).collect();
            assert_eq!(seen, ids);
            let text = stand.run(["inspect", "fair"]).ok();
            let lines: Vec<_> =
                text.lines().skip_while(|line| !line.starts_with("  queue")).collect();
            for (n, id) in ids.iter().enumerate() {
                let label = if n == 0 { "queue" } else { "" };
                assert!(lines[n].starts_with(&format!("  {label:<9} {}. ", n + 1)), "{text}");
                assert!(lines[n].contains(id), "{text}");
            }
            assert!(text.contains("waiters   3 in the queue"), "{text}");
            waiters.iter().for_each(|client| client.shutdown().wait());
        });
    });
}

#[test]
fn readers_and_writers_are_distinguished() {
    on_every_store(|stand| {
        let clients = [stand.client(), stand.client()];
        let readers: Vec<_> =
            clients.iter().map(|client| client.rw_lock("rw").read().wait().unwrap()).collect();
        let document = stand.inspected("rw");
        assert_eq!(document["kind"], "read");
        let holders = document["holders"].as_array().unwrap();
        assert_eq!(holders.len(), 2);
        assert!(holders.iter().all(|holder| holder["shared"] == true));
        let text = stand.run(["inspect", "rw", "--kind", "rw"]).ok();
        assert!(text.contains("kind      read lock") && text.contains("shared"), "{text}");
        readers.into_iter().for_each(|guard| guard.release().wait().unwrap());

        let _writer = clients[0].rw_lock("rw").write().wait().unwrap();
        let document = stand.run(["inspect", "rw", "--kind", "rw", "--json"]).document("inspect");
        assert_eq!(document["kind"], "write");
        assert_eq!(document["holders"][0]["shared"], false);
    });
}

#[test]
fn counters_show_their_counts() {
    on_every_store(|stand| {
        let client = stand.client();
        let permits = client.permit_semaphore("permits");
        permits.set_permits(5).wait().unwrap();
        let _held = permits.acquire(2).wait().unwrap();
        client.semaphore("semaphore").try_set_permits(4, None).wait().unwrap();
        client.count_down_latch("latch").try_set_count(3).wait().unwrap();

        let text = stand.run(["inspect", "permits", "--kind", "permits"]).ok();
        assert!(text.contains("state     3 of 5 permits free, 2 held"), "{text}");
        let document = stand.inspected("permits");
        assert_eq!(document["permits"], json!({"free": 3, "taken": 2, "total": 5}));
        assert_eq!((&document["kind"], &document["holds"]), (&json!("permits"), &json!(2)));
        assert_eq!(document["holders"].as_array().unwrap().len(), 2);

        let text = stand.run(["inspect", "semaphore", "--kind", "semaphore"]).ok();
        assert!(text.contains("state     4 permits free"), "{text}");
        let args = ["inspect", "semaphore", "--kind", "semaphore", "--json"];
        let document = stand.run(args).document("inspect");
        assert_eq!(document["permits"], json!({"free": 4, "taken": null, "total": null}));

        let text = stand.run(["inspect", "latch", "--kind", "latch"]).ok();
        assert!(text.contains("state     closed, count 3"), "{text}");
        let args = ["inspect", "latch", "--kind", "latch", "--json"];
        assert_eq!(stand.run(args).document("inspect")["count"], 3);
        let text = stand.run(["inspect", "no-latch", "--kind", "latch"]).ok();
        assert!(text.contains("state     open"), "{text}");
    });
}

#[test]
fn tokens_and_force_releases_are_shown() {
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.fenced_lock("a").lock().wait().unwrap();
        let owner = guard.owner_id().to_string();
        client.inspector().force_unlock("a", Kind::Lock, None, "first\nreason").wait().unwrap();
        let again = stand.client().fenced_lock("a").lock().wait().unwrap();
        client.inspector().force_unlock("a", Kind::Lock, None, "second").wait().unwrap();

        let document = stand.inspected("a");
        assert_eq!(document["token"], again.token());
        let forced = document["forced"].as_array().unwrap();
        assert_eq!(forced.len(), 2);
        assert_eq!((&forced[0]["reason"], &forced[1]["from"]), (&json!("second"), &json!([owner])));
        assert!(forced[0]["by"].as_str().unwrap().contains(&std::process::id().to_string()));

        let text = stand.run(["inspect", "a"]).ok();
        assert!(text.contains("state     free"), "{text}");
        assert!(text.contains(&format!("token     {} was issued last", again.token())));
        let lines: Vec<_> = text.lines().skip_while(|line| !line.contains("forced")).collect();
        assert!(lines[0].starts_with("  forced    20") && lines[0].ends_with("reason: second"));
        assert!(
            lines[1].contains(&owner) && lines[1].ends_with("reason: first\\nreason"),
            "{text}"
        );
    });
}

#[test]
fn holders_of_other_libraries_are_shown_by_id() {
    let stand = Stand::redis();
    stand.server().cli(&["HSET", "java", &format!("{JAVA_CLIENT}:8"), "1"]).ok();
    let text = stand.run(["inspect", "java"]).ok();
    assert!(
        text.contains(&format!("held by   {JAVA_CLIENT}:8\n            1 hold, not announced")),
        "{text}"
    );
    assert!(text.contains("ttl       ∞"), "{text}");
    assert_eq!(stand.inspected("java")["ttl_ms"], Value::Null);
}

#[test]
fn an_announced_mutex_is_recognised() {
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.mutex("a").lock().wait().unwrap();
        let document = eventually("it is announced", || {
            Some(stand.inspected("a")).filter(|document| document["holders"][0]["pid"].is_number())
        });
        assert_eq!(document["kind"], "mutex");
        assert_eq!(document["holders"][0]["id"], guard.owner_id().to_string());
    });
}

#[test]
fn the_wrong_kind_is_an_error() {
    on_every_store(|stand| {
        let client = stand.client();
        let _guard = client.rw_lock("rw").write().wait().unwrap();
        stand.run(["inspect", "rw", "--kind", "lock"]).fails(64, &["\"rw\"", "read/write"]);
    });
    let stand = Stand::redis();
    stand.server().cli(&["LPUSH", "list", "x"]).ok();
    stand.run(["inspect", "list"]).fails(64, &["list"]);
    stand.server().cli(&["HSET", "user", "name", "ann"]).ok();
    stand.run(["inspect", "user", "--json"]).fails(64, &["user"]);
}

#[test]
fn failures_have_their_codes() {
    let stand = Stand::redis();
    stand.run(["inspect", "a", "--kind", "cat"]).fails(64, &["cat", "permits"]);
    stand.server().cli(&["ACL", "SETUSER", "default", "off"]).ok();
    stand.run(["inspect", "a"]).fails(77, &["permission"]);
    stand.server().kill();
    stand.run(["inspect", "a"]).fails(69, &["redis://"]);
}
