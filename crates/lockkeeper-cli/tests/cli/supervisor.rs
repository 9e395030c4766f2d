//! `run` itself, or its guardian, is killed or stopped.

use std::time::Duration;

use rustix::process::Signal;
use testkit::Stopwatch;

use crate::support::{
    Scene, announce, beating, eventually, group_leaver, job_control, on_every_store, sleeper, write,
};

on_every_store! {
    if_run_is_killed_the_command_is_killed,
    the_guardian_kills_if_run_is_stopped,
    the_guardian_kills_a_command_that_has_left_its_group,
    the_guardian_kills_the_jobs_of_a_shell,
    if_run_is_killed_the_jobs_of_a_shell_are_killed,
    if_run_is_killed_a_new_session_is_killed,
    if_run_is_killed_the_on_lost_line_continues,
    if_both_are_stopped_run_kills_when_resumed,
    after_a_short_stop_run_continues,
    a_killed_guardian_is_replaced,
    without_a_guardian_the_command_dies_with_run,
    the_guardian_blocks_signals,
    the_guardian_ends_with_run,
    inherited_children_are_reaped,
}

fn if_run_is_killed_the_command_is_killed(scene: &Scene) {
    let run = scene.start(&["job", "-c", &beating()]);
    let (command, child) = (scene.process("pid"), scene.process("child"));
    let guardian = run.guardian();
    run.pid().signal(Signal::KILL);
    command.dies();
    child.dies();
    guardian.dies();
}

fn the_guardian_kills_if_run_is_stopped(scene: &Scene) {
    killed_in_time(scene, &beating(), &["pid", "child"]);
}

fn the_guardian_kills_a_command_that_has_left_its_group(scene: &Scene) {
    killed_in_time(scene, &group_leaver(scene), &["pid"]);
}

fn the_guardian_kills_the_jobs_of_a_shell(scene: &Scene) {
    killed_in_time(scene, &job_control(scene), &["pid", "child"]);
}

/// Stops `run`; asserts that all processes are dead before the lease expires.
#[track_caller]
fn killed_in_time(scene: &Scene, line: &str, names: &[&str]) {
    let run = scene.start(&["--lease", "8", "job", "-c", line]);
    let processes: Vec<_> = names.iter().map(|name| scene.process(name)).collect();
    let watch = Stopwatch::start();
    run.pid().signal(Signal::STOP);
    eventually("its stop", || run.pid().is_stopped());
    let end = scene.lease_end("job");
    for process in processes {
        process.dies();
    }
    scene.assert_died_before(end, &watch);
    run.pid().signal(Signal::CONT);
    run.outcome().assert_code(76);
}

/// The kernel kills the command, whose children then lose their parent: the guardian must have seen them
/// before.
fn if_run_is_killed_the_jobs_of_a_shell_are_killed(scene: &Scene) {
    let run = scene.start(&["job", "-c", &job_control(scene)]);
    let (command, child) = (scene.process("pid"), scene.process("child"));
    let handles = format!("/proc/{}/fd", run.guardian().number());
    eventually("the guardian's handle", || {
        let open = std::fs::read_dir(&handles).unwrap().filter_map(Result::ok);
        let links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("pidfd")).count() > 0
    });
    run.pid().signal(Signal::KILL);
    command.dies();
    child.dies();
}

/// Even a new child, which the guardian has not seen yet.
fn if_run_is_killed_a_new_session_is_killed(scene: &Scene) {
    let child = format!("{}; exec sleep 60", announce("child"));
    write(&scene.path("child.sh"), child);
    let lines = [
        "setsid sh child.sh & wait",
        "setsid sh child.sh & sleep 60",
        "(setsid sh child.sh & wait); :",
    ];
    for (round, line) in lines.iter().cycle().take(12).enumerate() {
        let run = scene.start(&[&format!("job {round}"), "-c", line]);
        let child = scene.process("child");
        run.pid().signal(Signal::KILL);
        child.dies();
        std::fs::remove_file(scene.path("child")).unwrap();
    }
}

/// The line does not run under the lock, and must notify an operator.
fn if_run_is_killed_the_on_lost_line_continues(scene: &Scene) {
    let line = format!("{}; exec sleep 60", announce("hook"));
    let args = ["--lease", "60", "--grace", "60", "--on-lost", &line, "job", "-c", &beating()];
    let run = scene.start(&args);
    let child = scene.process("child");
    run.settled(scene);
    // A stopped guardian has not seen the line.
    let guardian = run.guardian();
    guardian.signal(Signal::STOP);
    eventually("its stop", || guardian.is_stopped());
    assert!(scene.ask(async |client| client.lock("job").force_unlock("").await.unwrap()));
    let hook = scene.process("hook");
    run.pid().signal(Signal::KILL);
    guardian.signal(Signal::CONT);
    child.dies();
    guardian.dies();
    assert!(hook.is_alive());
    hook.signal(Signal::KILL);
}

fn if_both_are_stopped_run_kills_when_resumed(scene: &Scene) {
    let run = scene.start(&["--lease", "3", "job", "-c", &beating()]);
    let (command, child) = (scene.process("pid"), scene.process("child"));
    run.guardian().signal(Signal::STOP);
    run.pid().signal(Signal::STOP);
    eventually("the end of the lease", || scene.remaining("job").is_none());
    assert!(command.is_alive() && child.is_alive(), "neither can kill");
    // Another run acquires the lock.
    let other = scene.start(&["-n", "job", "-c", &format!("{}; exec sleep 60", announce("other"))]);
    let other_command = scene.process("other");
    run.pid().signal(Signal::CONT);
    command.dies();
    child.dies();
    run.outcome().assert_code(76);
    assert!(other_command.is_alive());
    scene.run(&["-n", "job", "--", "true"]).assert_code(75);
    drop(other);
}

fn after_a_short_stop_run_continues(scene: &Scene) {
    let line = format!("{}; while [ ! -e $D/go ]; do sleep 0.02; done; exit 6", announce("pid"));
    let run = scene.start(&["--lease", "10", "job", "-c", &line]);
    let command = scene.process("pid");
    run.pid().signal(Signal::STOP);
    eventually("its stop", || run.pid().is_stopped());
    std::thread::sleep(Duration::from_millis(800)); // the duration of the stop
    run.pid().signal(Signal::CONT);
    assert!(command.is_alive());
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_code(6);
    scene.assert_free("job");
}

fn a_killed_guardian_is_replaced(scene: &Scene) {
    let run = scene.start(&["-v", "job", "-c", &beating()]);
    let (command, child) = (scene.process("pid"), scene.process("child"));
    let first = run.guardian();
    first.signal(Signal::KILL);
    run.says("replaced");
    let second = run.guardian();
    assert_ne!(first, second);
    assert!(command.is_alive() && child.is_alive());
    run.pid().signal(Signal::KILL);
    command.dies();
    child.dies();
    second.dies();
}

fn without_a_guardian_the_command_dies_with_run(scene: &Scene) {
    let run = scene.start(&["-v", "job", "-c", &sleeper()]);
    let command = scene.process("pid");
    for _ in 0..3 {
        let guardian = run.guardian();
        guardian.signal(Signal::KILL);
        guardian.dies();
        eventually("a new guardian", || run.guardian() != guardian);
    }
    let last = run.guardian();
    last.signal(Signal::KILL);
    run.says("the guardian has died and cannot be replaced");
    assert!(command.is_alive());
    run.pid().signal(Signal::KILL);
    command.dies();
}

fn the_guardian_blocks_signals(scene: &Scene) {
    let run = scene.start(&["job", "-c", &sleeper()]);
    let command = scene.process("pid");
    let guardian = run.guardian();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
        assert!(guardian.blocks(signal), "{signal:?}");
        guardian.signal(signal);
    }
    // Like `pkill lockkeeper`: `run` passes the signal on and ends normally.
    run.pid().signal(Signal::TERM);
    run.outcome().assert_code(143);
    assert!(!command.is_alive());
    scene.assert_free("job");
}

fn the_guardian_ends_with_run(scene: &Scene) {
    let line = "echo > $D/held; while [ ! -e $D/go ]; do sleep 0.02; done";
    let run = scene.start(&["job", "-c", line]);
    scene.evidence("held");
    let guardian = run.guardian();
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_quiet("");
    assert!(!guardian.is_alive());
}

/// As the first process of a container; here `run` replaces a shell that has a child.
fn inherited_children_are_reaped(scene: &Scene) {
    scene.gate("go");
    let inherited = format!("{}; read x < $D/go", announce("inherited"));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "sh -c \"$1\" & exec \"$0\" run job -c \"$2\""]);
    command.args([env!("CARGO_BIN_EXE_lockkeeper"), &inherited, &sleeper()]);
    scene.surround(&mut command);
    let run = scene.launch(command);
    scene.process("pid");
    let inherited = scene.process("inherited");
    assert_eq!(inherited.parent(), run.pid());
    scene.open_gate("go");
    eventually("it is reaped", || !inherited.is_there());
    run.process.terminate();
    run.outcome().assert_code(143);
}
