//! The lock is lost while the command runs.

use std::time::{Duration, Instant};

use lockkeeper::Remaining;
use rustix::process::Signal;
use testkit::{FaultProxy, Stopwatch};

use crate::support::{
    Scene, announce, beating, deserter, eventually, job_control, on_every_store, sleeper,
};

on_every_store! {
    a_forced_unlock_is_told_to_the_command_at_once,
    what_ignores_the_signal_is_killed_with_all_below_it,
    what_is_left_of_a_group_is_killed_too,
    the_signal_and_the_grace_are_as_asked_for,
    the_grace_is_a_third_of_the_lease_at_most,
    a_stopped_command_is_stopped_all_the_same,
    the_line_for_lost_runs_and_delays_nothing,
    a_command_that_has_left_its_group_is_stopped_all_the_same,
    the_jobs_of_a_shell_are_stopped_with_it,
    a_hold_without_a_command_is_lost_too,
    all_kinds_are_lost,
}

fn force(scene: &Scene, name: &str) {
    let forced = scene
        .ask(async |client| client.lock(name).force_unlock_because("for a test").await.unwrap());
    assert!(forced, "nobody held {name}");
}

fn a_forced_unlock_is_told_to_the_command_at_once(scene: &Scene) {
    let line =
        format!("trap 'echo told > $D/told; exit 0' TERM; {}; sleep 60 & wait", announce("pid"));
    let run = scene.start(&["job", "-c", &line]);
    scene.process("pid");
    run.settled(scene);
    let start = Stopwatch::start();
    force(scene, "job");
    assert_eq!(scene.evidence("told"), "told\n");
    assert!(start.elapsed() < Duration::from_secs(5), "before a renewal would have noticed");
    let outcome = run.outcome();
    outcome.assert_code(76);
    outcome.assert_says("for a test");
    scene.assert_free("job");
}

fn what_ignores_the_signal_is_killed_with_all_below_it(scene: &Scene) {
    let run = scene.start(&["--lease", "12", "--grace", "3", "job", "-c", &beating()]);
    let (command, below) = (scene.process("pid"), scene.process("below"));
    run.settled(scene);
    force(scene, "job");
    scene.evidence("told");
    let told = Stopwatch::start();
    assert!(command.is_alive() && below.is_alive(), "it has its grace");
    run.outcome().assert_code(76);
    assert!(told.elapsed() < Duration::from_secs(8));
    // They were sent the signal before `run` ended; that they are gone takes a moment.
    command.dies();
    below.dies();
}

fn what_is_left_of_a_group_is_killed_too(scene: &Scene) {
    // The command itself obeys; what it started does not.
    let below = format!(
        "trap \"\" TERM; {}; i=0; while [ $((i+=1)) -le 1200 ]; do sleep 0.05; done",
        announce("below")
    );
    let line = format!("sh -c '{below}' & {}; wait", announce("pid"));
    for ending in [&["--max-hold", "3"][..], &[]] {
        let args = [ending, &["--lease", "12", "--grace", "3", "job", "-c", &line]].concat();
        let run = scene.start(&args);
        let (command, below) = (scene.process("pid"), scene.process("below"));
        if ending.is_empty() {
            run.settled(scene);
            force(scene, "job");
        }
        command.dies();
        assert!(below.is_alive(), "it has its grace");
        run.outcome().assert_code(if ending.is_empty() { 76 } else { 124 });
        below.dies();
        scene.assert_free("job");
        std::fs::remove_file(scene.path("pid")).unwrap();
        std::fs::remove_file(scene.path("below")).unwrap();
    }
}

fn the_signal_and_the_grace_are_as_asked_for(scene: &Scene) {
    let line = format!(
        "trap '' TERM; trap 'echo told > $D/told' USR1; {}; i=0; while [ $((i+=1)) -le 3000 ]; do sleep 0.02; done",
        announce("pid")
    );
    let args = ["--signal", "USR1", "--grace", "1.5", "job", "-c", &line];
    let run = scene.start(&args);
    let command = scene.process("pid");
    run.settled(scene);
    let (start, watch) = (Instant::now(), Stopwatch::start());
    force(scene, "job");
    scene.evidence("told");
    command.dies();
    assert!(start.elapsed() >= Duration::from_millis(1_490), "{:?}", start.elapsed());
    assert!(watch.elapsed() < Duration::from_secs(5), "{:?}", watch.elapsed());
    run.outcome().assert_code(76);
}

fn the_grace_is_a_third_of_the_lease_at_most(scene: &Scene) {
    let run = scene.start(&["--lease", "3", "--grace", "60", "job", "-c", &beating()]);
    let command = scene.process("pid");
    run.settled(scene);
    force(scene, "job");
    scene.evidence("told");
    let told = Stopwatch::start();
    command.dies();
    assert!(told.elapsed() < Duration::from_secs(3), "{:?}", told.elapsed());
    run.outcome().assert_code(76);
}

fn a_stopped_command_is_stopped_all_the_same(scene: &Scene) {
    let line =
        format!("trap 'echo told > $D/told; exit 0' TERM; {}; sleep 60 & wait", announce("pid"));
    let run = scene.start(&["job", "-c", &line]);
    let command = scene.process("pid");
    run.settled(scene);
    command.signal(Signal::STOP);
    eventually("its stop", || command.is_stopped());
    force(scene, "job");
    run.outcome().assert_code(76);
    assert_eq!(scene.evidence("told"), "told\n", "it can only hear the signal if it goes on");
}

fn the_line_for_lost_runs_and_delays_nothing(scene: &Scene) {
    let line = "echo \"$LOCKKEEPER_NAME: $LOCKKEEPER_REASON\" > $D/lost; exec sleep 30";
    let args = ["--lease", "3", "--on-lost", line, "job", "-c", &beating()];
    let run = scene.start(&args);
    let command = scene.process("pid");
    run.settled(scene);
    force(scene, "job");
    scene.evidence("told");
    let told = Stopwatch::start();
    let lost = scene.evidence("lost");
    assert!(lost.starts_with("job: ") && lost.contains("for a test"), "{lost}");
    command.dies();
    assert!(told.elapsed() < Duration::from_secs(3), "{:?}", told.elapsed());
    run.outcome().assert_code(76);
    assert!(told.elapsed() < Duration::from_secs(15), "it is not waited for to its end");
}

fn a_command_that_has_left_its_group_is_stopped_all_the_same(scene: &Scene) {
    let args = ["--lease", "60", "--grace", "0.5", "job", "-c", &deserter(scene)];
    let run = scene.start(&args);
    let command = scene.process("pid");
    assert_eq!(command.group(), run.pid().group());
    run.settled(scene);
    force(scene, "job");
    scene.evidence("told");
    run.outcome().assert_code(76);
    command.dies();
}

fn the_jobs_of_a_shell_are_stopped_with_it(scene: &Scene) {
    let args = ["--lease", "60", "--grace", "0.5", "job", "-c", &job_control(scene)];
    let run = scene.start(&args);
    let (command, below) = (scene.process("pid"), scene.process("below"));
    assert_eq!(below.group(), Some(below.number()), "it is not in the group");
    run.settled(scene);
    force(scene, "job");
    // The shell ends at once, and its job is known all the same.
    scene.evidence("told");
    command.dies();
    run.outcome().assert_code(76);
    below.dies();
}

fn a_hold_without_a_command_is_lost_too(scene: &Scene) {
    let run = scene.start(&["-v", "--on-lost", "echo lost > $D/lost; exit 3", "job"]);
    run.says("acquired");
    run.settled(scene);
    force(scene, "job");
    run.outcome().assert_code(76);
    assert_eq!(scene.evidence("lost"), "lost\n");
}

fn all_kinds_are_lost(scene: &Scene) {
    for (number, kind) in ["--fair", "-s", "-x", "--fenced"].into_iter().enumerate() {
        let name = format!("job {number}");
        let run = scene.start(&[kind, "--lease", "3", &name, "-c", &sleeper()]);
        scene.process("pid");
        let forced = scene.ask(async |client| match kind {
            "--fair" => client.fair_lock(&name).force_unlock().await.unwrap(),
            "--fenced" => client.fenced_lock(&name).force_unlock().await.unwrap(),
            _ => client.rw_lock(&name).force_unlock().await.unwrap(),
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
fn a_deleted_lock_is_noticed_by_the_next_renewal() {
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
fn a_release_that_finds_the_lock_gone_is_76() {
    let scene = Scene::redis();
    let line = "echo > $D/held; while [ ! -e $D/go ]; do sleep 0.02; done";
    let run = scene.start(&["--on-lost", "echo lost > $D/lost", "job", "-c", line]);
    scene.evidence("held");
    assert_eq!(scene.server().cli(&["DEL", "job"]).int(), 1);
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_code(76);
    assert_eq!(scene.evidence("lost"), "lost\n");
    // The same where the lock was to be left standing: it is not taken anew.
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
fn a_killed_server_ends_it_within_the_lease() {
    let scene = Scene::redis();
    let run = scene.start(&["--lease", "6", "job", "-c", &beating()]);
    let (command, below) = (scene.process("pid"), scene.process("below"));
    scene.server().kill();
    let start = Stopwatch::start();
    run.outcome().assert_code(76);
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    assert!(scene.exists("told"), "it was told before it was killed");
    command.dies();
    below.dies();
}

#[test]
fn a_frozen_server_ends_it_within_the_lease() {
    let scene = Scene::redis();
    let run = scene.start(&["--lease", "6", "job", "-c", &beating()]);
    let (command, below) = (scene.process("pid"), scene.process("below"));
    scene.server().pause();
    let start = Stopwatch::start();
    let outcome = run.outcome();
    outcome.assert_code(76);
    outcome.assert_says("did not answer");
    assert!(start.elapsed() < Duration::from_secs(6), "it does not wait for the store");
    command.dies();
    below.dies();
    scene.server().resume();
}

#[test]
fn all_is_dead_200_ms_before_the_lease_ends() {
    let scene = Scene::redis();
    let proxy = FaultProxy::start_blocking(scene.server().port());
    for lease in ["4", "8"] {
        let url = proxy.url();
        let args = ["--url", &url, "--lease", lease, lease, "-c", &beating()];
        let run = scene.start(&args);
        let (command, below) = (scene.process("pid"), scene.process("below"));
        let watch = Stopwatch::start();
        // It does so by itself; the guardian is for when it cannot.
        run.guardian().signal(Signal::STOP);
        // The server goes on, and so does the time to live of the lock.
        proxy.black_hole(true);
        let end = scene.lease_end(lease);
        command.dies();
        below.dies();
        scene.assert_died_before(end, &watch);
        run.outcome().assert_code(76);
        proxy.black_hole(false);
        for file in ["pid", "below", "told", "beats"] {
            std::fs::remove_file(scene.path(file)).unwrap();
        }
    }
}

#[test]
fn a_command_that_has_left_its_group_does_not_outlive_the_lease() {
    let scene = Scene::redis();
    let proxy = FaultProxy::start_blocking(scene.server().port());
    let args = ["--url", &proxy.url(), "--lease", "4", "job", "-c", &deserter(&scene)];
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
fn a_short_silence_is_no_loss() {
    let scene = Scene::redis();
    let line = "echo > $D/held; while [ ! -e $D/go ]; do sleep 0.02; done";
    let run = scene.start(&["--lease", "12", "job", "-c", line]);
    scene.evidence("held");
    scene.server().pause();
    std::thread::sleep(Duration::from_millis(1_500)); // the silence itself
    scene.server().resume();
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_quiet("");
}

#[test]
fn nothing_is_said_to_the_store_after_a_loss() {
    let scene = Scene::redis();
    let proxy = FaultProxy::start_blocking(scene.server().port());
    let url = proxy.url();
    let args = ["--url", &url, "--lease", "3", "secret-name", "-c", &beating()];
    let run = scene.start(&args);
    scene.process("below");
    run.settled(&scene);
    force(&scene, "secret-name");
    scene.evidence("told");
    let said = proxy.expect_request(b"secret-name");
    run.outcome().assert_code(76);
    assert_eq!(said.count(), 0, "neither renewed nor released");
}

#[test]
fn a_release_that_is_not_confirmed_keeps_the_commands_code() {
    let scene = Scene::redis();
    let line = "echo > $D/held; while [ ! -e $D/go ]; do sleep 0.02; done; exit $1";
    for (args, code, expected) in [
        (&[][..], "5", 5),
        (&[], "0", 0),
        (&["--at-least", "60"], "5", 5),
        // It was asked for that the lock stands for longer, and that is not certain.
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
        scene.ask(async |client| client.lock("job").force_unlock().await.unwrap());
        assert_eq!(scene.remaining("job"), Remaining::Free);
    }
}
