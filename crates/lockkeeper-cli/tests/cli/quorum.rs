//! A quorum of independent servers: runs on it, and what is reported of its members.

use testkit::{Quorum, RedisServer};

use crate::choice::{configure, secret};
use crate::cluster::{find, ran};
use crate::failover::{assert_no_secret, waiting, watch};
use crate::schema;
use crate::support::{Outcome, Scene, WAIT_LIMIT, eventually};

const JAVA: &str = "6e0c0000-0000-4000-8000-000000000000:1";

fn address(server: &RedisServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// Lets the members vote at once. The first client, which writes their markers, must have been there.
fn trust<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) {
    for server in servers {
        assert_eq!(server.cli(&["HSET", "lockkeeper_quorum", "since", "0"]).int(), 0, "a marker");
    }
}

/// Three members that vote.
fn three() -> (Quorum, Scene) {
    let quorum = Quorum::start(3);
    let scene = Scene::at(quorum.url());
    ran(&scene, &["ls"]).assert_quiet("");
    trust(quorum.nodes().iter().map(|node| node.server()));
    (quorum, scene)
}

fn hold_as_java(server: &RedisServer, name: &str) {
    server.cli(&["HSET", name, JAVA, "1"]).ok();
    server.cli(&["PEXPIRE", name, "600000"]).ok();
}

/// Runs a command until all members have answered in time.
fn answered(scene: &Scene, args: &[&str]) -> Outcome {
    let mut outcome = None;
    eventually("all members answer", || {
        let ran = ran(scene, args);
        let is_late = |text: &str| text.contains("no answer in time");
        let is_whole = !is_late(&ran.errors) && !is_late(&ran.output);
        outcome = Some(ran);
        is_whole
    });
    outcome.expect("it ran")
}

/// Passwords from a file, except where a member has its own. A member is killed, and a waiter waits.
#[test]
fn a_run_and_a_watch_continue_without_a_member() {
    let password = |text: &str| RedisServer::builder().password(text).start();
    let members = [password("s3cret"), password("s3cret"), password("s3cret,too")];
    let [first, second, _] = members.each_ref().map(address);
    let url = format!("quorum:redis://{first},redis://{second},{}", members[2].url());
    let scene = Scene::at(&url);
    secret(&scene, "password", "s3cret\n");
    configure(&scene, "password_file = \"../../password\"\nlongest_lease = \"10s\"");
    ran(&scene, &["ls"]).assert_quiet("");
    trust(&members);

    scene.gate("gate");
    let run = scene.start(&["-v", "job", "-c", &waiting()]);
    assert_no_secret(scene.process("pid").number());
    run.says("store quorum:… (LOCKKEEPER_URL)");
    let mut watch = watch(&scene, scene.lockkeeper());
    scene.run(&["--no-wait", "job", "--", "true"]).assert_code(75);
    let waiter = scene.start(&["job", "-c", "echo second"]);

    members[0].kill();
    // It is renewed at the others.
    let left = || members[1].cli(&["PTTL", "job"]).int();
    let mut least = i64::MAX;
    for _ in 0..2 {
        eventually("a renewal", || {
            let left = left();
            let is_renewed = left > least;
            least = if is_renewed { i64::MAX } else { left };
            is_renewed
        });
    }
    let listed = ran(&scene, &["ls"]);
    listed.assert_code(0);
    listed.assert_says(&format!("member {first} of the quorum has not answered"));
    assert_eq!(listed.output.lines().count(), 2, "{listed:?}");
    scene.open_gate("gate");
    run.outcome().assert_code(0);
    waiter.outcome().assert_quiet("second\n");
    watch.process.expect_line("gone job");
    watch.process.terminate();
    assert!(watch.process.wait(WAIT_LIMIT).is_some());
    eventually("no hold is left", || {
        members[1..].iter().all(|m| m.cli(&["EXISTS", "job"]).int() == 0)
    });

    ran(&scene, &["ls", "--url", &url]).assert_says("--url contains a password");
    secret(&scene, "password", "s3cret of nobody\n");
    let denied = ran(&scene, &["ls"]);
    assert_ne!(denied.code, Some(0), "{denied:?}");
    for said in [&watch.errors(), &denied.errors] {
        assert!(!said.contains("s3cret"), "{said}");
    }
}

/// On another store the option would have no effect, and a typist may have meant `--lease`.
#[test]
fn a_longest_lease_without_a_quorum_is_refused() {
    let scene = Scene::file();
    let run = scene.run(&["--longest-lease", "20", "job", "-c", "touch $D/ran"]);
    run.assert_code(64);
    run.assert_says("--longest-lease is for a quorum");
    assert!(!scene.exists("ran"));
    // The configuration may serve several stores.
    configure(&scene, "longest_lease = \"20s\"");
    scene.run(&["job", "--", "true"]).assert_quiet("");
}

#[test]
fn what_a_quorum_cannot_do_is_refused_before_the_command_runs() {
    let (_quorum, scene) = three();
    for (args, says) in [
        (
            &["--lease", "31"][..],
            "the lease of 31s is longer than the longest lease of the quorum, 30s",
        ),
        (
            &["--at-least", "1m"],
            "--at-least 60s is longer than the longest lease of the quorum, 30s",
        ),
        (&["--longest-lease", "20"], "the longest lease of its quorum is 30000 ms, not 20000 ms"),
        (&["--longest-lease", "20", "--lease", "21"], "longest lease of the quorum, 20s"),
        (&["--acknowledged-by", "1"], "members of a quorum have no replicas"),
        (&["--fair"], "a quorum has no fair lock"),
        (&["--shared"], "a quorum has no read lock"),
        (&["--exclusive"], "a quorum has no write lock"),
        (&["--permits", "2"], "a quorum has no permit semaphore"),
    ] {
        let run = scene.run(&[args, &["job", "-c", "touch $D/ran"]].concat());
        run.assert_code(64);
        run.assert_says(says);
    }
    for config in ["lease = 31", "longest_lease = \"20s\""] {
        configure(&scene, config);
        scene.run(&["job", "-c", "touch $D/ran"]).assert_code(64);
    }
    assert!(!scene.exists("ran"));
    // The option overrides the configuration.
    scene.run(&["--longest-lease", "30s", "job", "--", "true"]).assert_quiet("");
    configure(&scene, "");
    let fenced =
        scene.run(&["--fenced", "--at-least", "30", "job", "-c", "echo $LOCKKEEPER_TOKEN"]);
    fenced.assert_code(0);
    assert!(fenced.output.trim().parse::<u64>().is_ok(), "{fenced:?}");
    ran(&scene, &["inspect", "--quiet", "job"]).assert_code(0);
    let shown = ran(&scene, &["inspect", "job"]);
    assert!(shown.output.contains(&format!("token     {}", fenced.output.trim())), "{shown:?}");
}

#[test]
fn a_wrong_member_is_named() {
    for (members, says) in [
        ("redis://a,redis://b,redi://c", "member 3 of the quorum: "),
        ("redis://a, redis+sentinel://b/mymaster, redis://c", "member 2 of the quorum: "),
        ("a:1,b:2,c:3", "member 1 of the quorum: "),
        ("redis://a, redis://b", "a quorum has at least 3 members"),
    ] {
        let scene = Scene::at(format!("quorum:{members}"));
        let run = scene.run(&["job", "--", "true"]);
        run.assert_code(64);
        run.assert_says(says);
    }
}

#[test]
fn a_cold_start_and_too_few_members_are_reported() {
    let quorum = Quorum::start(3);
    let scene = Scene::at(quorum.url());
    let cold = scene.run(&["--no-wait", "job", "--", "true"]);
    cold.assert_code(69);
    cold.assert_says(
        "first use of this quorum, or no member has its data: a majority of the members grants in",
    );
    for node in quorum.nodes() {
        cold.assert_says(&format!("{}: may have lost data", address(node.server())));
    }
    let doctor = ran(&scene, &["doctor"]);
    doctor.assert_code(1);
    find(&doctor, "danger", "quorum", "0 of 3 members vote");
    for node in quorum.nodes() {
        find(&doctor, "note", "members", &format!("{} may have lost", address(node.server())));
    }
    for index in [0, 1] {
        quorum.server(index).kill();
    }
    for command in ["ls", "doctor"] {
        let down = ran(&scene, &[command]);
        down.assert_code(69);
        down.assert_says(&address(quorum.server(0)));
        down.assert_says(&address(quorum.server(1)));
    }
    let two = quorum.urls()[..2].join(",");
    ran(&scene, &["ls", "--url", &format!("quorum:{two}")]).assert_code(64);
}

#[test]
fn a_cold_start_is_waited_out_if_the_limit_allows() {
    let quorum = Quorum::start(3);
    let scene = Scene::at(quorum.url());
    for (wait, waits) in [(&["--wait", "1s"][..], false), (&["--wait", "1m"], true), (&[], true)] {
        // For each of them it begins anew.
        for node in quorum.nodes() {
            node.server().cli(&["DEL", "lockkeeper_quorum"]).ok();
        }
        let args = [&["--longest-lease", "4s"], wait, &["job", "--", "echo", "it ran"]].concat();
        let run = scene.run(&args);
        if !waits {
            run.assert_code(69);
            run.assert_says("a majority of the members grants in");
            continue;
        }
        run.assert_code(0);
        run.assert_says("s until the quorum grants locks");
        assert_eq!((&run.output[..], run.errors.lines().count()), ("it ran\n", 1), "{run:?}");
    }
}

/// The members lose their markers while a run waits.
#[test]
fn a_cold_start_that_begins_again_is_waited_out() {
    let quorum = Quorum::start(3);
    let scene = Scene::at(quorum.url());
    let run = scene.start(&["--longest-lease", "6s", "job", "--", "echo", "it ran"]);
    run.says("s until the quorum grants locks");
    [0, 1].iter().for_each(|index| quorum.server(*index).restart_empty());
    let run = run.outcome();
    run.assert_code(0);
    assert_eq!(run.errors.matches("until the quorum grants locks").count(), 2, "{run:?}");
}

/// It begins while a run waits for a lock, and lasts longer than a wait rides out a refusal.
#[test]
fn a_cold_start_that_begins_during_a_wait_is_waited_out() {
    let quorum = Quorum::start(3);
    let scene = Scene::at(quorum.url());
    configure(&scene, "longest_lease = \"13s\"");
    ran(&scene, &["ls"]).assert_quiet("");
    trust(quorum.nodes().iter().map(|node| node.server()));
    let servers = [0, 1].map(|index| quorum.server(index));
    servers.iter().for_each(|server| hold_as_java(server, "job"));
    let run = scene.start(&["-v", "job", "--", "echo", "it ran"]);
    run.says("waiting for lock \"job\": held by");
    servers.iter().for_each(|server| server.restart_empty());
    let run = run.outcome();
    run.assert_code(0);
    assert_eq!(run.errors.matches("until the quorum grants locks").count(), 1, "{run:?}");
}

#[test]
fn members_that_disagree_are_shown() {
    let (quorum, scene) = three();
    let servers = [0, 1, 2].map(|index| quorum.server(index));
    let [first, second, third] = servers.map(address);
    for server in &servers[1..] {
        hold_as_java(server, "lost");
    }
    hold_as_java(servers[2], "stale");
    for server in servers {
        hold_as_java(server, "whole");
    }
    let listed = answered(&scene, &["ls"]);
    let words = |line: &str| {
        let words = line.split_whitespace().filter(|word| *word != "9m" && *word != "10m");
        words.collect::<Vec<_>>().join(" ")
    };
    let rows: Vec<_> = listed.output.lines().skip(1).map(words).collect();
    assert_eq!((listed.code, &listed.errors[..]), (Some(0), ""));
    let expected = [
        format!("lost lock {JAVA} 1 0 -"),
        format!("at {first} lock - - - - -"),
        "stale lock - - - 0 -".to_owned(),
        format!("at {third} lock {JAVA} 1 - -"),
        format!("whole lock {JAVA} 1 0 -"),
    ];
    assert_eq!(rows, expected, "{}", listed.output);

    let document = schema::checked("ls", &answered(&scene, &["ls", "--json"]).output);
    let [lost, stale, whole] = &document["locks"].as_array().unwrap()[..] else {
        panic!("{document}")
    };
    assert_eq!(
        (&lost["free"], &stale["free"], &whole["members"]),
        (&false.into(), &true.into(), &serde_json::Value::Null)
    );
    let holders = |lock: &serde_json::Value, address: &str| {
        let members = lock["members"].as_array().unwrap();
        let member = members.iter().find(|member| member["address"] == address).unwrap();
        assert!(member["error"].is_null(), "{member}");
        member["holders"].as_array().unwrap().len()
    };
    let at_each = |lock| [&first, &second, &third].map(|address| holders(lock, address));
    assert_eq!((at_each(lost), at_each(stale)), ([0, 1, 1], [0, 0, 1]));

    let inspect = |name: &str| answered(&scene, &["inspect", name]).output;
    let lost = inspect("lost");
    assert!(lost.contains("state     held"), "{lost}");
    for words in [format!("{first}: free"), format!("{second}: held by {JAVA}, ttl ")] {
        assert!(lost.contains(&words), "{lost}");
    }
    let stale = inspect("stale");
    assert!(stale.contains("free: no majority of the members holds it"), "{stale}");
    assert!(stale.contains(&format!("{third}: held by {JAVA}")), "{stale}");
    assert!(!inspect("whole").contains("members"));
    ran(&scene, &["inspect", "--quiet", "stale"]).assert_code(1);

    // The list shows an absent member once, an inspection what it says.
    servers[2].kill();
    let listed = ran(&scene, &["ls"]);
    assert_eq!(listed.errors.matches("has not answered").count(), 1, "{listed:?}");
    assert!(inspect("whole").contains(&format!("{third}: ")), "{}", inspect("whole"));
    let text = ran(&scene, &["inspect", "--json", "whole"]).output;
    let document = schema::checked("inspect", &text);
    let members = document["members"].as_array().unwrap();
    assert_eq!(members.iter().filter(|member| member["error"].is_string()).count(), 1, "{text}");

    ran(&scene, &["unlock", "--yes", "--reason", "it is dead", "whole"]).assert_code(0);
    assert!(inspect("whole").contains("it is dead"));
    for server in &servers[..2] {
        assert_eq!(server.cli(&["EXISTS", "whole"]).int(), 0);
    }
}

#[test]
fn unlock_stops_a_run_at_once() {
    let (_quorum, scene) = three();
    scene.gate("gate");
    let run = scene.start(&["job", "-c", &waiting()]);
    scene.process("pid");
    let kept = ran(&scene, &["unlock", "--yes", "job"]);
    kept.assert_code(75);
    ran(&scene, &["unlock", "--yes", "--force", "--reason", "for a test", "job"]).assert_code(0);
    let lost = run.outcome();
    lost.assert_code(76);
    lost.assert_says("for a test");
}

#[test]
fn doctor_reports_the_members() {
    let (quorum, scene) = three();
    let doctor = || ran(&scene, &["doctor"]);
    let [first, second, third] = [0, 1, 2].map(|index| address(quorum.server(index)));
    let report = doctor();
    report.assert_code(1);
    find(&report, "fine", "quorum", "3 of 3 members vote");
    let mut addresses = [&first, &second, &third];
    addresses.sort();
    let [least, other, _] = addresses;
    find(&report, "danger", "hosts", &format!("{least} and {other} are on one host"));
    find(&report, "fine", "locks", "lock, mutex; the store does not have: fair lock");
    find(&report, "fine", "clocks", "ms apart");
    let _replica = quorum.replica_of(1);
    quorum.server(0).restart();
    let report = doctor();
    find(&report, "note", "replication", &format!("{second}: it has 1 of them"));
    find(&report, "note", "members", &format!("{first} may have lost data"));
    schema::checked("doctor", &ran(&scene, &["doctor", "--json"]).output);

    // One server behind two addresses.
    let twice = format!(
        "quorum:redis://{second},redis://{third},redis://localhost:{}",
        quorum.server(2).port()
    );
    let fresh = ["DEL", "lockkeeper_quorum"];
    for index in [1, 2] {
        quorum.server(index).cli(&fresh).ok();
    }
    let refused = ran(&scene, &["doctor", "--url", &twice]);
    refused.assert_code(64);
    refused.assert_says("it is the same server as");
}
