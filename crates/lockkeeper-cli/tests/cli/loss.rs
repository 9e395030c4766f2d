//! The lock is lost while the command runs.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::{FaultProxy, Stopwatch};

use crate::support::{
    Scene, announce, beating, eventually, group_leaver, job_control, on_every_store, sleeper,
};

on_every_store! {
    a_force_release_stops_the_command_at_once,
    a_command_that_ignores_the_signal_is_killed_with_its_children,
    the_rest_of_the_group_is_killed,
    signal_and_grace_can_be_set,
    the_grace_is_at_most_a_third_of_the_lease,
    a_stopped_command_is_resumed_to_end,
    the_on_lost_line_runs_and_delays_nothing,
    a_command_that_has_left_its_group_is_stopped,
    the_jobs_of_a_shell_are_stopped,
    a_hold_without_a_command_can_be_lost,
    every_kind_can_be_lost,
}

fn force(scene: &Scene, name: &str) {
    let forced =
        scene.ask(async |client| client.lock(name).force_unlock("for a test").await.unwrap());
    assert!(forced, "{name} was not held");
}

fn a_force_release_stops_the_command_at_once(scene: &Scene) {
    let line = format!(
        "trap 'echo trapped > $D/trapped; exit 0' TERM; {}; sleep 60 & wait",
        announce("pid")
    );
    let run = scene.start(&["job", "-c", &line]);
    scene.process("pid");
    run.settled(scene);
    let start = Stopwatch::start();
    force(scene, "job");
    assert_eq!(scene.evidence("trapped"), "trapped\n");
    assert!(start.elapsed() < Duration::from_secs(5), "before a renewal would have noticed");
    let outcome = run.outcome();
    outcome.assert_code(76);
    outcome.assert_says("for a test");
    scene.assert_free("job");
}

fn a_command_that_ignores_the_signal_is_killed_with_its_children(scene: &Scene) {
    let run = scene.start(&["--lease", "12", "--grace", "3", "job", "-c", &beating()]);
    let (command, child) = (scene.process("pid"), scene.process("child"));
    run.settled(scene);
    force(scene, "job");
    scene.evidence("trapped");
    let trapped = Stopwatch::start();
    assert!(command.is_alive() && child.is_alive(), "it has its grace");
    run.outcome().assert_code(76);
    assert!(trapped.elapsed() < Duration::from_secs(8));
    // `run` ends right after it has sent KILL.
    command.dies();
    child.dies();
}

fn the_rest_of_the_group_is_killed(scene: &Scene) {
    // The command handles the signal; its child ignores it.
    let child = format!(
        "trap \"\" TERM; {}; i=0; while [ $((i+=1)) -le 1200 ]; do sleep 0.05; done",
        announce("child")
    );
    let line = format!("sh -c '{child}' & {}; wait", announce("pid"));
    for ending in [&["--max-hold", "3"][..], &[]] {
        let args = [ending, &["--lease", "12", "--grace", "3", "job", "-c", &line]].concat();
        let run = scene.start(&args);
        let (command, child) = (scene.process("pid"), scene.process("child"));
        if ending.is_empty() {
            run.settled(scene);
            force(scene, "job");
        }
        command.dies();
        assert!(child.is_alive(), "it has its grace");
        run.outcome().assert_code(if ending.is_empty() { 76 } else { 124 });
        child.dies();
        scene.assert_free("job");
        std::fs::remove_file(scene.path("pid")).unwrap();
        std::fs::remove_file(scene.path("child")).unwrap();
    }
}

fn signal_and_grace_can_be_set(scene: &Scene) {
    let line = format!(
        "trap '' TERM; trap 'echo trapped > $D/trapped' USR1; {}; i=0; while [ $((i+=1)) -le 3000 ]; do sleep 0.02; done",
        announce("pid")
    );
    let args = ["--signal", "USR1", "--grace", "1.5", "job", "-c", &line];
    let run = scene.start(&args);
    let command = scene.process("pid");
    run.settled(scene);
    let (start, watch) = (Instant::now(), Stopwatch::start());
    force(scene, "job");
    scene.evidence("trapped");
    command.dies();
    assert!(start.elapsed() >= Duration::from_millis(1_490), "{:?}", start.elapsed());
    assert!(watch.elapsed() < Duration::from_secs(5), "{:?}", watch.elapsed());
    run.outcome().assert_code(76);
}

fn the_grace_is_at_most_a_third_of_the_lease(scene: &Scene) {
    let run = scene.start(&["--lease", "3", "--grace", "60", "job", "-c", &beating()]);
    let command = scene.process("pid");
    run.settled(scene);
    force(scene, "job");
    scene.evidence("trapped");
    let trapped = Stopwatch::start();
    command.dies();
    assert!(trapped.elapsed() < Duration::from_secs(3), "{:?}", trapped.elapsed());
    run.outcome().assert_code(76);
}

fn a_stopped_command_is_resumed_to_end(scene: &Scene) {
    let line = format!(
        "trap 'echo trapped > $D/trapped; exit 0' TERM; {}; sleep 60 & wait",
        announce("pid")
    );
    let run = scene.start(&["job", "-c", &line]);
    let command = scene.process("pid");
    run.settled(scene);
    command.signal(Signal::STOP);
    eventually("its stop", || command.is_stopped());
    force(scene, "job");
    run.outcome().assert_code(76);
    assert_eq!(scene.evidence("trapped"), "trapped\n", "it was resumed");
}

fn the_on_lost_line_runs_and_delays_nothing(scene: &Scene) {
    let line = "echo \"$LOCKKEEPER_NAME: $LOCKKEEPER_REASON\" > $D/lost; exec sleep 30";
    let args = ["--lease", "3", "--on-lost", line, "job", "-c", &beating()];
    let run = scene.start(&args);
    let command = scene.process("pid");
    run.settled(scene);
    force(scene, "job");
    scene.evidence("trapped");
    let trapped = Stopwatch::start();
    let lost = scene.evidence("lost");
    assert!(lost.starts_with("job: ") && lost.contains("for a test"), "{lost}");
    command.dies();
    assert!(trapped.elapsed() < Duration::from_secs(3), "{:?}", trapped.elapsed());
    run.outcome().assert_code(76);
    assert!(trapped.elapsed() < Duration::from_secs(15), "the run does not wait for its end");
}

fn a_command_that_has_left_its_group_is_stopped(scene: &Scene) {
    let args = ["--lease", "60", "--grace", "0.5", "job", "-c", &group_leaver(scene)];
    let run = scene.start(&args);
    let command = scene.process("pid");
    assert_eq!(command.group(), run.pid().group());
    run.settled(scene);
    force(scene, "job");
    scene.evidence("trapped");
    run.outcome().assert_code(76);
    command.dies();
}

fn the_jobs_of_a_shell_are_stopped(scene: &Scene) {
    let args = ["--lease", "60", "--grace", "0.5", "job", "-c", &job_control(scene)];
    let run = scene.start(&args);
    let (command, child) = (scene.process("pid"), scene.process("child"));
    assert_eq!(child.group(), Some(child.number()), "it is not in the group");
    run.settled(scene);
    force(scene, "job");
    // The shell ends at once; its job is still known.
    scene.evidence("trapped");
    command.dies();
    run.outcome().assert_code(76);
    child.dies();
}

fn a_hold_without_a_command_can_be_lost(scene: &Scene) {
    let run = scene.start(&["-v", "--on-lost", "echo lost > $D/lost; exit 3", "job"]);
    run.says("acquired");
    run.settled(scene);
    force(scene, "job");
    run.outcome().assert_code(76);
    assert_eq!(scene.evidence("lost"), "lost\n");
}

fn every_kind_can_be_lost(scene: &Scene) {
    for (number, kind) in ["--fair", "-s", "-x", "--fenced"].into_iter().enumerate() {
        let name = format!("job {number}");
        let run = scene.start(&[kind, "--lease", "3", &name, "-c", &sleeper()]);
        scene.process("pid");
        let forced = scene.ask(async |client| match kind {
            "--fair" => client.fair_lock(&name).force_unlock("").await.unwrap(),
            "--fenced" => client.fenced_lock(&name).force_unlock("").await.unwrap(),
            _ => client.rw_lock(&name).force_unlock("").await.unwrap(),
        });
        assert!(forced, "{kind:?}");
        run.outcome().assert_code(76);
        std::fs::remove_file(scene.path("pid")).unwrap();
    }
}

#[test]
fn a_lost_permit_is_a_lost_lock() {
    let scene = Scene::redis();
    let run = scene.start(&["--permits", "2", "--lease", "2", "job", "-c", &sleeper()]);
    scene.process("pid");
    scene.server().cli(&["DEL", "job", "{job}:timeout"]).int();
    run.outcome().assert_code(76);
}

#[test]
fn the_next_renewal_notices_a_deleted_lock() {
    let scene = Scene::redis();
    let run = scene.start(&["--lease", "3", "job", "-c", &sleeper()]);
    let command = scene.process("pid");
    assert_eq!(scene.server().cli(&["DEL", "job"]).int(), 1);
    let start = Stopwatch::start();
    run.outcome().assert_code(76);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(!command.is_alive());
}

#[test]
fn a_release_of_a_deleted_lock_is_76() {
    let scene = Scene::redis();
    let line = "echo > $D/held; while [ ! -e $D/go ]; do sleep 0.02; done";
    let run = scene.start(&["--on-lost", "echo lost > $D/lost", "job", "-c", line]);
    scene.evidence("held");
    assert_eq!(scene.server().cli(&["DEL", "job"]).int(), 1);
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_code(76);
    assert_eq!(scene.evidence("lost"), "lost\n");
    // Also with --at-least: the lock is not acquired again.
    std::fs::remove_file(scene.path("held")).unwrap();
    std::fs::remove_file(scene.path("go")).unwrap();
    let run = scene.start(&["--at-least", "60", "job", "-c", line]);
    scene.evidence("held");
    assert_eq!(scene.server().cli(&["DEL", "job"]).int(), 1);
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_code(76);
    scene.assert_free("job");
}

#[test]
fn a_frozen_server_stops_the_command_within_the_lease() {
    let scene = Scene::redis();
    let run = scene.start(&["--lease", "6", "job", "-c", &beating()]);
    let (command, child) = (scene.process("pid"), scene.process("child"));
    scene.server().pause();
    let start = Stopwatch::start();
    let outcome = run.outcome();
    outcome.assert_code(76);
    outcome.assert_says("did not answer");
    assert!(start.elapsed() < Duration::from_secs(6), "it does not wait for the store");
    command.dies();
    child.dies();
    scene.server().resume();
}

#[test]
fn all_processes_end_200_ms_before_the_lease_expires() {
    let scene = Scene::redis();
    let proxy = FaultProxy::start_blocking(scene.server().port());
    for lease in ["4", "8"] {
        let url = proxy.url();
        let args = ["--url", &url, "--lease", lease, lease, "-c", &beating()];
        let run = scene.start(&args);
        let (command, child) = (scene.process("pid"), scene.process("child"));
        let watch = Stopwatch::start();
        // `run` does it without the guardian.
        run.guardian().signal(Signal::STOP);
        // The TTL continues to count down on the server.
        proxy.black_hole(true);
        let end = scene.lease_end(lease);
        command.dies();
        child.dies();
        scene.assert_died_before(end, &watch);
        run.outcome().assert_code(76);
        proxy.black_hole(false);
        for file in ["pid", "child", "trapped", "beats"] {
            std::fs::remove_file(scene.path(file)).unwrap();
        }
    }
}

#[test]
fn a_command_that_has_left_its_group_does_not_outlive_the_lease() {
    let scene = Scene::redis();
    let proxy = FaultProxy::start_blocking(scene.server().port());
    let args = ["--url", &proxy.url(), "--lease", "4", "job", "-c", &group_leaver(&scene)];
    let run = scene.start(&args);
    let command = scene.process("pid");
    let watch = Stopwatch::start();
    run.guardian().signal(Signal::STOP);
    proxy.black_hole(true);
    let end = scene.lease_end("job");
    command.dies();
    scene.assert_died_before(end, &watch);
    run.outcome().assert_code(76);
}

#[test]
fn a_short_outage_is_no_loss() {
    let scene = Scene::redis();
    let line = "echo > $D/held; while [ ! -e $D/go ]; do sleep 0.02; done";
    let run = scene.start(&["--lease", "12", "job", "-c", line]);
    scene.evidence("held");
    scene.server().pause();
    std::thread::sleep(Duration::from_millis(1_500)); // the outage itself
    scene.server().resume();
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_quiet("");
}

#[test]
fn no_request_is_sent_after_a_loss() {
    let scene = Scene::redis();
    let proxy = FaultProxy::start_blocking(scene.server().port());
    let url = proxy.url();
    let args = ["--url", &url, "--lease", "3", "secret-name", "-c", &beating()];
    let run = scene.start(&args);
    scene.process("child");
    run.settled(&scene);
    force(&scene, "secret-name");
    scene.evidence("trapped");
    let requests = proxy.expect_request(b"secret-name");
    run.outcome().assert_code(76);
    assert_eq!(requests.count(), 0, "neither renewed nor released");
}

#[test]
fn an_unconfirmed_release_keeps_the_exit_code() {
    let scene = Scene::redis();
    let line = "echo > $D/held; while [ ! -e $D/go ]; do sleep 0.02; done; exit $1";
    for (args, code, expected) in [
        (&[][..], "5", 5),
        (&[], "0", 0),
        (&["--at-least", "60"], "5", 5),
        // It is uncertain that the lock stays held.
        (&["--at-least", "60"], "0", 69),
    ] {
        let command = ["job", "--", "sh", "-c", line, "sh", code];
        let run = scene.start(&[args, &["--lease", "3"], &command].concat());
        scene.evidence("held");
        scene.server().pause();
        std::fs::write(scene.path("go"), "").unwrap();
        let start = Stopwatch::start();
        let outcome = run.outcome();
        outcome.assert_code(expected);
        outcome.assert_says("confirm");
        assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
        scene.server().resume();
        std::fs::remove_file(scene.path("held")).unwrap();
        std::fs::remove_file(scene.path("go")).unwrap();
        scene.ask(async |client| client.lock("job").force_unlock("").await.unwrap());
        assert_eq!(scene.remaining("job"), None);
    }
}
