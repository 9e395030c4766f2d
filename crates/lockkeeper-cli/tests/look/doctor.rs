//! What endangers locks.

use testkit::RedisServer;

use crate::schema;
use crate::support::{Completed, Stand, on_every_store};

/// A server on which locks are safe.
fn safe() -> Stand {
    Stand::on(RedisServer::builder().arg("--appendonly", "yes").start())
}

#[test]
fn nothing_wrong_is_zero() {
    let stand = safe();
    let text = stand.run(["doctor"]).ok();
    assert!(text.lines().last().unwrap().starts_with("nothing endangers locks; a request takes "));
    for line in text.lines().filter(|line| !line.starts_with("nothing")) {
        assert!(line.starts_with("fine    ") || line.starts_with("note    "), "{line}");
    }
    assert!(text.contains("\nfine    eviction "), "{text}");
    assert!(!text.contains('✓'), "words in a pipe: {text}");
    let document = stand.run(["doctor", "--json"]).document("doctor");
    assert_eq!((&document["safe"], &document["store"]), (&true.into(), &stand.url.clone().into()));
    assert!(document["round_trip_us"].as_u64() <= document["slowest_us"].as_u64());
}

#[test]
fn a_danger_is_one_and_comes_first_with_what_to_do() {
    let server = RedisServer::builder().arg("--appendonly", "yes");
    let server = server.arg("--maxmemory", "100mb").arg("--maxmemory-policy", "allkeys-lru");
    let stand = Stand::on(server.start());
    let ran = stand.run(["doctor"]);
    assert_eq!((ran.code, &ran.err[..]), (Some(1), ""), "{ran:?}");
    assert!(ran.out.starts_with("danger  eviction"), "{ran:?}");
    assert!(ran.out.lines().next().unwrap().contains("; to do: "), "{ran:?}");
    assert!(ran.out.contains("\none thing endangers locks; "), "{ran:?}");
    let ran = stand.run(["doctor", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let document = schema::checked("doctor", &ran.out);
    assert_eq!(document["safe"], false);
    assert_eq!(document["findings"][0]["severity"], "danger");
    assert_eq!(document["findings"][0]["subject"], "eviction");
    assert!(document["findings"][0]["remedy"].is_string());
}

#[test]
fn the_code_says_so_though_nobody_reads_it() {
    let stand = Stand::redis();
    let mut command = stand.command(["doctor"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn slow_or_not_depends_on_the_lease() {
    let stand = safe();
    let latency = |args: &[&str]| {
        let ran = stand.run(args);
        let document = schema::checked("doctor", &ran.out);
        let findings = document["findings"].as_array().unwrap().clone();
        let latency = findings.into_iter().find(|finding| finding["subject"] == "latency");
        latency.expect("it is always looked at")["detail"].as_str().unwrap().to_owned()
    };
    assert!(latency(&["doctor", "--json"]).contains("a lease is 30s"));
    assert!(latency(&["doctor", "--json", "--lease", "1m"]).contains("a lease is 60s"));
    let config = stand.write("config.toml", "lease = 90");
    assert!(latency(&["doctor", "--json", "--config", &config]).contains("a lease is 90s"));
}

#[test]
fn every_store_can_be_looked_at_and_is_left_as_it_was() {
    on_every_store(|stand| {
        let ran = stand.run(["doctor", "--json"]);
        assert!(matches!(ran.code, Some(0 | 1)), "{ran:?}");
        schema::checked("doctor", &ran.out);
        assert!(stand.listed().is_empty(), "what it took it gave back");
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

/// Nothing can be written, as on a full disk: what helps a Redis server is no help then.
#[test]
fn advice_fits_the_store() {
    let stand = Stand::file();
    // Keeps open what SQLite would otherwise have to write before it can read.
    let client = stand.client();
    client.lock("a").lock().unwrap().release().unwrap();
    let limited = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
    let mut command = stand.wrapped(["sh", "-c", limited], ["doctor"]);
    let ran = Completed::of(&mut command);
    assert_eq!((ran.code, &ran.err[..]), (Some(1), ""), "{ran:?}");
    let dangers: Vec<_> = ran.out.lines().filter(|line| line.starts_with("danger")).collect();
    assert!(dangers.iter().any(|line| line.contains("locks")), "{ran:?}");
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
