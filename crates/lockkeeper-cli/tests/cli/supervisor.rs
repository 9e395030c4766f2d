//! `run` itself is killed or stopped, and so is its guardian.

use std::time::Duration;

use lockkeeper::Remaining;
use rustix::process::Signal;
use testkit::Stopwatch;

use crate::support::{
    Scene, announce, beating, deserter, eventually, job_control, on_every_store, sleeper, write,
};

on_every_store! {
    killed_it_takes_the_command_with_it,
    stopped_past_the_lease_the_guardian_kills,
    the_guardian_kills_a_command_that_has_left_its_group,
    the_guardian_kills_the_jobs_of_a_shell,
    killed_it_takes_the_jobs_of_a_shell_with_it,
    killed_it_takes_a_child_in_a_session_of_its_own_with_it,
    killed_it_leaves_the_line_for_lost_alone,
    with_the_guardian_stopped_too_it_kills_when_it_goes_on,
    stopped_for_a_moment_it_goes_on,
    a_guardian_that_is_killed_is_replaced,
    without_any_guardian_the_command_itself_still_dies,
    the_guardian_does_not_listen_to_others,
    no_guardian_is_left_behind,
    it_buries_whom_it_has_inherited,
}

fn killed_it_takes_the_command_with_it(scene: &Scene) {
    let run = scene.start(&["job", "-c", &beating()]);
    let (command, below) = (scene.process("pid"), scene.process("below"));
    let guardian = run.guardian();
    run.pid().signal(Signal::KILL);
    command.dies();
    below.dies();
    guardian.dies();
}

fn stopped_past_the_lease_the_guardian_kills(scene: &Scene) {
    killed_in_time(scene, &beating(), &["pid", "below"]);
}

fn the_guardian_kills_a_command_that_has_left_its_group(scene: &Scene) {
    killed_in_time(scene, &deserter(scene), &["pid"]);
}

fn the_guardian_kills_the_jobs_of_a_shell(scene: &Scene) {
    killed_in_time(scene, &job_control(scene), &["pid", "below"]);
}

/// `run` stands still, and all of these processes are dead before the lease is over.
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

/// The kernel kills the command then, and nobody knows any more whose its children were: the guardian has
/// looked before.
fn killed_it_takes_the_jobs_of_a_shell_with_it(scene: &Scene) {
    let run = scene.start(&["job", "-c", &job_control(scene)]);
    let (command, below) = (scene.process("pid"), scene.process("below"));
    let handles = format!("/proc/{}/fd", run.guardian().number());
    eventually("that the guardian has seen it", || {
        let open = std::fs::read_dir(&handles).unwrap().filter_map(Result::ok);
        let links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("pidfd")).count() > 0
    });
    run.pid().signal(Signal::KILL);
    command.dies();
    below.dies();
}

/// However young that is: the guardian cannot have seen it before.
fn killed_it_takes_a_child_in_a_session_of_its_own_with_it(scene: &Scene) {
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

/// That does not run under the lock, and somebody is to be told.
fn killed_it_leaves_the_line_for_lost_alone(scene: &Scene) {
    let line = format!("{}; exec sleep 60", announce("hook"));
    let args = ["--lease", "60", "--grace", "60", "--on-lost", &line, "job", "-c", &beating()];
    let run = scene.start(&args);
    let below = scene.process("below");
    run.settled(scene);
    // It has not looked at what has begun since then.
    let guardian = run.guardian();
    guardian.signal(Signal::STOP);
    eventually("its stop", || guardian.is_stopped());
    assert!(scene.ask(async |client| client.lock("job").force_unlock().await.unwrap()));
    let hook = scene.process("hook");
    run.pid().signal(Signal::KILL);
    guardian.signal(Signal::CONT);
    below.dies();
    guardian.dies();
    assert!(hook.is_alive());
    hook.signal(Signal::KILL);
}

fn with_the_guardian_stopped_too_it_kills_when_it_goes_on(scene: &Scene) {
    let run = scene.start(&["--lease", "3", "job", "-c", &beating()]);
    let (command, below) = (scene.process("pid"), scene.process("below"));
    run.guardian().signal(Signal::STOP);
    run.pid().signal(Signal::STOP);
    eventually("the end of the lease", || scene.remaining("job") == Remaining::Free);
    assert!(command.is_alive() && below.is_alive(), "who has killed it?");
    // Somebody else has it now.
    let other = scene.start(&["-n", "job", "-c", &format!("{}; exec sleep 60", announce("other"))]);
    let other_command = scene.process("other");
    run.pid().signal(Signal::CONT);
    command.dies();
    below.dies();
    run.outcome().assert_code(76);
    assert!(other_command.is_alive());
    scene.run(&["-n", "job", "--", "true"]).assert_code(75);
    drop(other);
}

fn stopped_for_a_moment_it_goes_on(scene: &Scene) {
    let line = format!("{}; while [ ! -e $D/go ]; do sleep 0.02; done; exit 6", announce("pid"));
    let run = scene.start(&["--lease", "10", "job", "-c", &line]);
    let command = scene.process("pid");
    run.pid().signal(Signal::STOP);
    eventually("its stop", || run.pid().is_stopped());
    std::thread::sleep(Duration::from_millis(800)); // what it is stopped for
    run.pid().signal(Signal::CONT);
    assert!(command.is_alive());
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_code(6);
    scene.assert_free("job");
}

fn a_guardian_that_is_killed_is_replaced(scene: &Scene) {
    let run = scene.start(&["-v", "job", "-c", &beating()]);
    let (command, below) = (scene.process("pid"), scene.process("below"));
    let first = run.guardian();
    first.signal(Signal::KILL);
    run.says("replaced");
    let second = run.guardian();
    assert_ne!(first, second);
    assert!(command.is_alive() && below.is_alive());
    run.pid().signal(Signal::KILL);
    command.dies();
    below.dies();
    second.dies();
}

fn without_any_guardian_the_command_itself_still_dies(scene: &Scene) {
    let run = scene.start(&["-v", "job", "-c", &sleeper()]);
    let command = scene.process("pid");
    for _ in 0..3 {
        let guardian = run.guardian();
        guardian.signal(Signal::KILL);
        guardian.dies();
        eventually("another one", || run.guardian() != guardian);
    }
    let last = run.guardian();
    last.signal(Signal::KILL);
    run.says("guardian is gone");
    assert!(command.is_alive());
    run.pid().signal(Signal::KILL);
    command.dies();
}

fn the_guardian_does_not_listen_to_others(scene: &Scene) {
    let run = scene.start(&["job", "-c", &sleeper()]);
    let command = scene.process("pid");
    let guardian = run.guardian();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
        assert!(guardian.blocks(signal), "{signal:?}");
        guardian.signal(signal);
    }
    // As `pkill lockkeeper` would: `run` passes it on and ends in good order.
    run.pid().signal(Signal::TERM);
    run.outcome().assert_code(143);
    assert!(!command.is_alive());
    scene.assert_free("job");
}

fn no_guardian_is_left_behind(scene: &Scene) {
    let line = "echo > $D/held; while [ ! -e $D/go ]; do sleep 0.02; done";
    let run = scene.start(&["job", "-c", line]);
    scene.evidence("held");
    let guardian = run.guardian();
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_quiet("");
    assert!(!guardian.is_alive());
}

/// As the first process of a container does; here it gets a child from whoever becomes it.
fn it_buries_whom_it_has_inherited(scene: &Scene) {
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
    eventually("its burial", || !inherited.is_there());
    run.process.terminate();
    run.outcome().assert_code(143);
}
