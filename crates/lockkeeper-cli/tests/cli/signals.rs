//! Signals to `run`, and their effect on the command.

use std::time::{Duration, Instant};

use lockkeeper::Ttl;
use rustix::process::Signal;
use testkit::Stopwatch;

use crate::support::{Process, Scene, announce, eventually, on_every_store, sleeper};

on_every_store! {
    signals_are_passed_on_to_the_whole_group,
    a_command_that_ignores_a_signal_continues,
    a_signal_ends_the_command,
    a_signal_at_the_end_does_not_shorten_the_release,
    signals_for_the_command_do_not_end_a_wait,
    signals_for_a_command_do_not_end_a_hold_without_one,
    a_stopped_command_without_a_terminal_keeps_its_lock,
}

/// Sends a signal with kill(1), which also takes numbers.
fn send(process: Process, signal: &str) {
    let line = format!("kill -{signal} {}", process.number());
    let sent = std::process::Command::new("sh").args(["-c", &line]).status();
    assert!(sent.is_ok_and(|status| status.success()), "{line}");
}

fn signals_are_passed_on_to_the_whole_group(scene: &Scene) {
    let signals = [
        "INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH", "CONT", "ALRM", "VTALRM", "PROF",
        "IO", "PWR", "XCPU", "ABRT", "TSTP", "TTIN", "TTOU", "37", "63",
    ];
    // Not a shell: it would wait for its stopped `sleep`.
    let each = "$file = fork ? 'first' : 'child'; \
                open $out, '>', $file; $out->autoflush(1); \
                for my $signal (@ARGV) { \
                    $name = $signal =~ /^\\d/ ? \"NUM$signal\" : $signal; \
                    $SIG{$name} = sub { print $out \"$signal\\n\" }; \
                } \
                print $out \"ready\\n\"; sleep 60 while 1";
    let run =
        scene.start(&[&["job", "--", "perl", "-MIO::Handle", "-e", each], &signals[..]].concat());
    for signal in ["ready"].into_iter().chain(signals) {
        if signal != "ready" {
            send(run.pid(), signal);
        }
        for file in ["first", "child"] {
            eventually(&format!("{signal} in {file}"), || {
                scene.evidence_now(file).lines().any(|line| line == signal)
            });
        }
    }
    assert!(run.pid().is_alive());
}

/// Like `systemctl stop`, which signals all processes of a unit at once.
fn a_signal_at_the_end_does_not_shorten_the_release(scene: &Scene) {
    let line = format!("trap 'exit 0' TERM; {}; while :; do sleep 0.02; done", announce("pid"));
    let run = scene.start(&["--at-least", "60", "job", "-c", &line]);
    let command = scene.process("pid");
    run.pid().signal(Signal::STOP);
    eventually("its stop", || run.pid().is_stopped());
    command.signal(Signal::TERM);
    command.dies();
    run.pid().signal(Signal::TERM);
    run.pid().signal(Signal::CONT);
    run.outcome().assert_quiet("");
    assert!(matches!(scene.remaining("job"), Some(Ttl::For(_))));
}

#[test]
fn signals_that_end_no_process_do_not_end_the_release() {
    let scene = Scene::redis();
    let run = scene.start(&["job", "-c", &sleeper()]);
    let command = scene.process("pid");
    scene.server().pause();
    command.signal(Signal::TERM);
    eventually("the end of the supervision", || run.pid().children().is_empty());
    for signal in ["WINCH", "CONT", "USR1", "TTOU", "37"] {
        send(run.pid(), signal);
    }
    scene.server().resume();
    let outcome = run.outcome();
    outcome.assert_code(143);
    assert_eq!(outcome.errors, "");
    scene.assert_free("job");
}

#[test]
fn a_signal_limits_the_wait_for_the_release() {
    let scene = Scene::redis();
    let run = scene.start(&["job", "-c", &sleeper()]);
    let command = scene.process("pid");
    scene.server().pause();
    command.signal(Signal::USR1);
    eventually("the end of the supervision", || run.pid().children().is_empty());
    let (start, watch) = (Instant::now(), Stopwatch::start());
    // Repeatedly: a signal at the end of the command counts as one for the command.
    eventually("its message", || {
        run.pid().signal(Signal::TERM);
        run.errors().contains("confirmed")
    });
    let outcome = run.outcome();
    outcome.assert_code(128 + Signal::USR1.as_raw());
    outcome.assert_says("SIGTERM arrived before the store confirmed");
    assert!(start.elapsed() >= Duration::from_millis(1_900), "{:?}", start.elapsed());
    assert!(watch.elapsed() < Duration::from_secs(7), "{:?}", watch.elapsed());
    scene.server().resume();
}

fn signals_for_the_command_do_not_end_a_wait(scene: &Scene) {
    let holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    let waiter = scene.start(&["-v", "job", "-c", "echo ran"]);
    waiter.says("waiting");
    for (signal, name) in [("USR1", "SIGUSR1"), ("ALRM", "SIGALRM"), ("37", "signal 37")] {
        send(waiter.pid(), signal);
        waiter.says(name);
    }
    holder.process.terminate();
    holder.outcome().assert_code(143);
    let outcome = waiter.outcome();
    outcome.assert_code(0);
    assert_eq!(outcome.output, "ran\n");
}

fn signals_for_a_command_do_not_end_a_hold_without_one(scene: &Scene) {
    let holder = scene.start(&["-v", "job"]);
    holder.says("acquired");
    for signal in ["USR1", "WINCH", "37"] {
        send(holder.pid(), signal);
    }
    scene.run(&["-n", "job", "--", "true"]).assert_code(75);
    send(holder.pid(), "TERM");
    holder.outcome().assert_code(0);
}

fn a_command_that_ignores_a_signal_continues(scene: &Scene) {
    let line = format!(
        "trap '' TERM; {}; while [ ! -e $D/go ]; do sleep 0.02; done; exit 5",
        announce("pid")
    );
    let run = scene.start(&["-v", "job", "-c", &line]);
    let command = scene.process("pid");
    run.pid().signal(Signal::TERM);
    run.says("SIGTERM");
    assert!(command.is_alive() && run.pid().is_alive());
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_code(5);
    scene.assert_free("job");
}

fn a_signal_ends_the_command(scene: &Scene) {
    for signal in [Signal::TERM, Signal::INT, Signal::USR2] {
        let run = scene.start(&["job", "-c", &sleeper()]);
        scene.process("pid");
        run.pid().signal(signal);
        run.outcome().assert_code(128 + signal.as_raw());
        scene.assert_free("job");
        std::fs::remove_file(scene.path("pid")).unwrap();
    }
}

fn a_stopped_command_without_a_terminal_keeps_its_lock(scene: &Scene) {
    let mut command = std::process::Command::new("setsid");
    command.args(["-w", env!("CARGO_BIN_EXE_lockkeeper"), "run", "--lease", "5", "job", "-c"]);
    command.arg(format!("{}; while [ ! -e $D/go ]; do sleep 0.02; done", announce("pid")));
    scene.surround(&mut command);
    let run = scene.launch(command);
    let stopped = scene.process("pid");
    stopped.signal(Signal::STOP);
    eventually("its stop", || stopped.is_stopped());
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(6_000) {
        scene.run(&["-n", "job", "--", "true"]).assert_code(75);
    }
    std::fs::write(scene.path("go"), "").unwrap();
    stopped.signal(Signal::CONT);
    run.outcome().assert_quiet("");
}
