//! `doctor`.

use lockkeeper::blocking::Wait;
use testkit::RedisServer;

use crate::schema;
use crate::support::{Completed, Stand, on_every_store};

/// A server on which locks are safe.
fn safe() -> Stand {
    Stand::on(RedisServer::builder().arg("--appendonly", "yes").start())
}

#[test]
fn no_risk_is_exit_code_0() {
    let stand = safe();
    let text = stand.run(["doctor"]).ok();
    assert!(text.lines().last().unwrap().starts_with("no risks to locks; a request takes "));
    for line in text.lines().filter(|line| !line.starts_with("no risks")) {
        assert!(line.starts_with("fine    ") || line.starts_with("note    "), "{line}");
    }
    assert!(text.contains("\nfine    eviction "), "{text}");
    assert!(!text.contains('✓'), "no symbols in a pipe: {text}");
    let document = stand.run(["doctor", "--json"]).document("doctor");
    assert_eq!((&document["safe"], &document["store"]), (&true.into(), &stand.url.clone().into()));
    assert!(document["round_trip_us"].as_u64() <= document["slowest_us"].as_u64());
    assert!(text.trim_end().ends_with(" locks per second"), "{text}");
    let left = stand.server().cli(&["KEYS", "lockkeeper:check:*:[0-9]*"]);
    assert!(left.array().is_empty(), "{left:?}");
}

#[test]
fn a_risk_is_exit_code_1_and_comes_first_with_its_remedy() {
    let server = RedisServer::builder().arg("--appendonly", "yes");
    let server = server.arg("--maxmemory", "100mb").arg("--maxmemory-policy", "allkeys-lru");
    let stand = Stand::on(server.start());
    let ran = stand.run(["doctor"]);
    assert_eq!((ran.code, &ran.err[..]), (Some(1), ""), "{ran:?}");
    assert!(ran.out.starts_with("danger  eviction"), "{ran:?}");
    assert!(ran.out.lines().next().unwrap().contains("; remedy: "), "{ran:?}");
    assert!(ran.out.contains("\n1 risk to locks; "), "{ran:?}");
    let ran = stand.run(["doctor", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let document = schema::checked("doctor", &ran.out);
    assert_eq!(document["safe"], false);
    assert_eq!(document["findings"][0]["severity"], "danger");
    assert_eq!(document["findings"][0]["subject"], "eviction");
    assert!(document["findings"][0]["remedy"].is_string());
}

#[test]
fn a_closed_pipe_does_not_change_the_exit_code() {
    let stand = Stand::redis();
    let mut command = stand.command(["doctor"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn latency_is_judged_by_the_lease() {
    let stand = safe();
    let latency = |args: &[&str]| {
        let ran = stand.run(args);
        let document = schema::checked("doctor", &ran.out);
        let findings = document["findings"].as_array().unwrap().clone();
        let latency = findings.into_iter().find(|finding| finding["subject"] == "latency");
        latency.expect("it is always checked")["detail"].as_str().unwrap().to_owned()
    };
    assert!(latency(&["doctor", "--json"]).contains("a lease is 30s"));
    assert!(latency(&["doctor", "--json", "--lease", "1m"]).contains("a lease is 60s"));
    let config = stand.write("config.toml", "lease = 90");
    assert!(latency(&["doctor", "--json", "--config", &config]).contains("a lease is 90s"));
}

#[test]
fn every_store_can_be_checked_and_keeps_no_locks() {
    on_every_store(|stand| {
        let ran = stand.run(["doctor", "--json"]);
        assert!(matches!(ran.code, Some(0 | 1)), "{ran:?}");
        let document = schema::checked("doctor", &ran.out);
        assert!(document["pairs_per_second"].as_u64() > Some(0), "{document}");
        assert!(stand.listed().is_empty(), "all locks were released");
    });
}

#[test]
fn failures_have_their_codes() {
    let stand = Stand::redis();
    stand.run(["doctor", "--lease", "soon"]).fails(64, &["soon"]);
    stand.run(["doctor", "--lease", "0"]).fails(64, &["lease"]);
    stand.server().cli(&["ACL", "SETUSER", "default", "off"]).ok();
    stand.run(["doctor"]).fails(77, &["permission"]);
    stand.server().kill();
    stand.run(["doctor"]).fails(69, &["redis://"]);
    stand.run(["doctor", "--json"]).fails(69, &["redis://"]);
}

/// A full disk: the remedies for a Redis server do not apply to a file.
#[test]
fn advice_fits_the_store() {
    let stand = Stand::file();
    // Keeps SQLite's shared files open, which a reader would otherwise have to create.
    let client = stand.client();
    client.lock("a").lock().wait().unwrap().release().wait().unwrap();
    let limited = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
    let mut command = stand.wrapped(["sh", "-c", limited], ["doctor"]);
    let ran = Completed::of(&mut command);
    assert_eq!((ran.code, &ran.err[..]), (Some(1), ""), "{ran:?}");
    let dangers: Vec<_> = ran.out.lines().filter(|line| line.starts_with("danger")).collect();
    assert!(dangers.iter().any(|line| line.contains("locks")), "{ran:?}");
    assert!(!ran.out.contains("locks per second"), "it serves none: {ran:?}");
    for word in ["channel", "PEXPIRE", "manual::redis", "allow the user", "lockkeeper_notice"] {
        assert!(!ran.out.contains(word), "{word}: {}", ran.out);
    }

    let stand = safe();
    let acl = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "resetchannels"];
    stand.server().cli(&acl).ok();
    let url = stand.server().url_with("app", "secret");
    let ran = Completed::of(stand.command(["doctor"]).env("LOCKKEEPER_URL", &url));
    let text = ran.ok();
    let noted = text.lines().find(|line| line.starts_with("note    wake-ups")).expect(&text);
    assert!(noted.contains("allow the user the commands, keys and channels"), "{noted}");
}
