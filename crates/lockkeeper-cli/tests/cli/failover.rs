//! The primary changes while commands run, and replicas acknowledge locks.

use std::fs;
use std::process::Command;

use testkit::{Node, Replicated};

use crate::choice::{configure, secret};
use crate::support::{Outcome, Running, Scene, WAIT_LIMIT, announce};

/// Starts `watch` on the scene.
pub(crate) fn watch(scene: &Scene, command: Command) -> Running {
    let mut command = command;
    command.args(["watch", "--interval", "50ms"]);
    let watch = scene.launch(command);
    watch.process.expect_line("appeared job");
    watch
}

/// A command that ends when its gate is opened.
pub(crate) fn waiting() -> String {
    format!("{}; read line < $D/gate", announce("pid"))
}

#[track_caller]
pub(crate) fn assert_holds(node: &Node, name: &str) {
    assert_eq!(node.server().cli(&["EXISTS", name]).int(), 1, "{name} is not on {}", node.url());
}

/// A process neither shows a password to other users nor inherits it.
#[track_caller]
pub(crate) fn assert_no_secret(pid: i32) {
    for file in ["cmdline", "environ"] {
        let text = fs::read(format!("/proc/{pid}/{file}")).expect("it is there");
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains("s3cret"), "{file} of {pid}: {text}");
    }
}

/// Sentinels and servers with passwords, from two files. A run and a watch follow a failover.
#[test]
fn a_run_and_a_watch_follow_the_sentinels() {
    let servers = Replicated::builder().password("s3cret of servers");
    let sentinels = servers.sentinels().sentinel_password("s3cret&of sentinels").start();
    let hosts: Vec<_> =
        sentinels.sentinels().iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
    let place = format!("redis+sentinel://{}/mymaster", hosts.join(","));
    let scene = Scene::at(&place);
    secret(&scene, "servers", "s3cret of servers\n");
    secret(&scene, "sentinels", "s3cret&of sentinels\n");
    let lockkeeper = || {
        let mut command = scene.lockkeeper();
        command.env("LOCKKEEPER_PASSWORD_FILE", scene.path("servers"));
        command.env("LOCKKEEPER_SENTINEL_PASSWORD_FILE", scene.path("sentinels"));
        command
    };
    let ran = |args: &[&str]| -> Outcome {
        let mut command = lockkeeper();
        command.args(args);
        scene.finish(command)
    };
    scene.gate("gate");
    let mut command = lockkeeper();
    command.args(["-v", "run", "job", "-c", &waiting()]);
    let run = scene.launch(command);
    let child = scene.process("pid");
    for process in [run.pid(), run.guardian(), child] {
        assert_no_secret(process.number());
    }
    let environment = fs::read(format!("/proc/{}/environ", child.number())).unwrap();
    assert!(!String::from_utf8_lossy(&environment).contains("PASSWORD_FILE"));
    assert!(run.errors().contains(&format!("store {place} (LOCKKEEPER_URL)")), "{}", run.errors());
    let mut watch = watch(&scene, lockkeeper());
    assert_holds(sentinels.servers().primary(), "job");

    let switch = sentinels.failover();
    let new = sentinels.servers().primary();
    assert_eq!(new.port(), switch.port);
    ran(&["run", "other", "--", "true"]).assert_quiet("");
    assert_holds(new, "job");
    let listed = ran(&["ls"]);
    listed.assert_code(0);
    assert!(listed.output.contains("job"), "{listed:?}");
    ran(&["inspect", "--quiet", "job"]).assert_code(0);
    let doctor = ran(&["doctor"]);
    assert!(doctor.output.contains("3 answer"), "{doctor:?}");
    scene.open_gate("gate");
    run.outcome().assert_code(0);
    watch.process.expect_line("gone job");
    watch.process.terminate();
    assert!(watch.process.wait(WAIT_LIMIT).is_some());
    assert!(!watch.errors().contains("s3cret"));

    // A URL of the other kind of server.
    let sentinel = sentinels.sentinels()[0].port();
    let data = format!("redis://:s3cret%26of%20sentinels@127.0.0.1:{sentinel}/2");
    let told = ran(&["ls", "--url", &data]);
    told.assert_code(64);
    let right = format!("is a sentinel: use redis+sentinel://127.0.0.1:{sentinel}/mymaster/2\n");
    told.assert_says(&right);
    let data = format!("127.0.0.1:{}", new.port());
    let login = format!("redis+sentinel://:s3cret%20of%20servers@{data}/mymaster");
    for mut command in [scene.lockkeeper(), lockkeeper()] {
        command.args(["ls", "--url", &login]);
        let told = scene.finish(command);
        told.assert_code(77);
        told.assert_says(&format!("a server with locks has the URL redis://:password@{data}"));
        told.assert_says("LOCKKEEPER_SENTINEL_PASSWORD_FILE");
    }

    // A wrong password of the sentinels.
    secret(&scene, "sentinels", "s3cret of nobody\n");
    let denied = ran(&["ls"]);
    denied.assert_code(77);
    assert!(!denied.errors.contains("s3cret"), "{denied:?}");
    let shown = ran(&["ls", "--url", &sentinels.url()]);
    shown.assert_says("--url contains a password");
    assert!(!shown.errors.contains("s3cret"), "{shown:?}");
}

/// Servers without sentinels: an operator promotes another one.
#[test]
fn a_run_and_a_watch_follow_the_role() {
    let servers = Replicated::start();
    let scene = Scene::at(servers.url());
    scene.gate("gate");
    let run = scene.start(&["--acknowledged-by", "2", "job", "-c", &waiting()]);
    scene.process("pid");
    let watch = watch(&scene, scene.lockkeeper());
    let (old, new) = (servers.primary(), servers.replicas()[0]);
    servers.await_in_sync(2);
    servers.promote(new);
    for node in servers.replicas() {
        servers.demote(node, new);
    }
    servers.await_in_sync(2);
    scene.run(&["other", "--", "true"]).assert_quiet("");
    assert_holds(new, "job");
    assert_ne!(old.port(), new.port());
    let mut doctor = scene.lockkeeper();
    doctor.arg("doctor");
    let doctor = scene.finish(doctor);
    assert!(doctor.output.contains("replication"), "{doctor:?}");
    scene.open_gate("gate");
    run.outcome().assert_quiet("");
    watch.process.expect_line("gone job");
    assert_eq!(new.server().cli(&["EXISTS", "job"]).int(), 0);
}

/// A replica that does not answer: the option, the configuration, and none at all.
#[test]
fn too_few_replicas_are_69() {
    let servers = Replicated::builder().replicas(1).start();
    let scene = Scene::at(servers.primary().url());
    let replica = servers.replicas()[0].server();
    let touch = ["job", "--", "touch", "ran"];
    scene.run(&[&["-n", "--acknowledged-by", "1/5s"][..], &touch].concat()).assert_quiet("");
    fs::remove_file(scene.path("ran")).unwrap();
    replica.pause();
    let refused = |args: &[&str]| {
        let outcome = scene.run(&[args, &touch].concat());
        outcome.assert_code(69);
        outcome.assert_says("lock \"job\"");
        outcome.assert_says("0 of 1 replicas");
        assert!(!scene.exists("ran"));
    };
    refused(&["-n", "--acknowledged-by", "1/200ms"]);
    configure(&scene, "acknowledged_by = \"1/200ms\"");
    refused(&["-n"]);
    scene.run(&[&["-n", "--acknowledged-by", "0"][..], &touch].concat()).assert_quiet("");
    assert!(scene.exists("ran"));
    replica.resume();

    let scene = Scene::file();
    let outcome = scene.run(&["--acknowledged-by", "1", "job", "--", "true"]);
    outcome.assert_code(64);
    outcome.assert_says("no replicas");
    scene.run(&["--acknowledged-by", "all", "job", "--", "true"]).assert_code(64);
}
