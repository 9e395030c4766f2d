//! The duration of a hold: the command, `--at-least`, `--max-hold`.

use std::time::{Duration, Instant};

use lockkeeper::Ttl;
use rustix::process::Signal;
use testkit::Stopwatch;

use crate::support::{Process, Scene, announce, eventually, on_every_store, sleeper};

on_every_store! {
    the_lease_is_renewed_while_the_command_runs,
    the_lease_option_sets_the_ttl,
    the_lock_is_released_when_the_command_ends,
    at_least_keeps_the_lock_held,
    at_least_does_not_extend_a_long_command,
    max_hold_kills_a_command_that_ignores_the_signal,
    zombies_of_the_group_are_not_waited_for,
    without_a_command_a_signal_ends_the_hold,
    without_a_command_max_hold_ends_the_hold,
    a_grace_that_is_cut_is_reported,
}

fn a_grace_that_is_cut_is_reported(scene: &Scene) {
    let outcome = scene.run(&["--grace", "20", "--lease", "30", "job", "--", "true"]);
    outcome.assert_code(0);
    outcome.assert_says("--grace 20s is cut to 9.8s");
    outcome.assert_says("--lease");
    scene.run(&["--grace", "9", "--lease", "30", "job", "--", "true"]).assert_quiet("");
    // The default is cut without a message.
    scene.run(&["--lease", "2", "job", "--", "true"]).assert_quiet("");
}

fn the_lease_is_renewed_while_the_command_runs(scene: &Scene) {
    let holder = scene.start(&["--lease", "5", "job", "-c", &sleeper()]);
    let command = scene.process("pid");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(6_000) {
        scene.run(&["-n", "job", "--", "true"]).assert_code(75);
    }
    assert!(command.is_alive());
    holder.process.terminate();
    holder.outcome().assert_code(143);
    scene.run(&["-n", "job", "--", "true"]).assert_quiet("");
}

fn the_lease_option_sets_the_ttl(scene: &Scene) {
    for (lease, least, most) in [("1m30s", 80, 90), ("10", 5, 10)] {
        let _holder = scene.start(&["--lease", lease, lease, "-c", &sleeper()]);
        scene.process("pid");
        let Some(Ttl::For(left)) = scene.remaining(lease) else { panic!("it is held") };
        assert!((least..=most).contains(&left.as_secs()), "{lease}: {left:?}");
        std::fs::remove_file(scene.path("pid")).unwrap();
    }
}

fn the_lock_is_released_when_the_command_ends(scene: &Scene) {
    // A process that it leaves behind keeps its output open, but not the lock.
    let line = format!(
        "sh -c '{}; exec sleep 60' & while [ ! -e $D/pid ]; do sleep 0.01; done",
        announce("pid")
    );
    let start = Stopwatch::start();
    scene.run(&["job", "-c", &line]).assert_code(0);
    assert!(start.elapsed() < Duration::from_secs(15));
    scene.assert_free("job");
    let left_behind = scene.process("pid");
    assert!(left_behind.is_alive(), "it is not stopped");
    left_behind.signal(Signal::KILL);
}

fn at_least_keeps_the_lock_held(scene: &Scene) {
    let args = ["-n", "--at-least", "60", "hour", "-c", "echo ran >> $D/log"];
    let watch = Stopwatch::start();
    scene.run(&args).assert_quiet("");
    assert!(watch.elapsed() < Duration::from_secs(50), "the run itself does not wait");
    // Another host, whose clock is behind, starts the same job now.
    scene.run(&args).assert_code(75);
    let Some(Ttl::For(left)) = scene.remaining("hour") else { panic!("it is kept") };
    assert!(left <= Duration::from_secs(60), "{left:?}");
    assert_eq!(scene.evidence("log"), "ran\n");
    let args = ["-n", "--at-least", "1", "minute", "-c", "echo ran >> $D/minutes"];
    let start = Instant::now();
    scene.run(&args).assert_quiet("");
    eventually("the expiry", || scene.remaining("minute").is_none());
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    // The next minute.
    scene.run(&args).assert_quiet("");
    assert_eq!(scene.evidence("minutes"), "ran\nran\n");
}

fn at_least_does_not_extend_a_long_command(scene: &Scene) {
    scene.run(&["--at-least", "0.1", "job", "--", "sleep", "0.3"]).assert_quiet("");
    scene.assert_free("job");
    // It keeps the exit code of the command.
    scene.run(&["--at-least", "60", "job", "-c", "exit 4"]).assert_code(4);
    assert!(matches!(scene.remaining("job"), Some(Ttl::For(_))));
}

fn max_hold_kills_a_command_that_ignores_the_signal(scene: &Scene) {
    let line = format!(
        "trap '' TERM; {}; i=0; while [ $((i+=1)) -le 600 ]; do sleep 0.1; done",
        announce("pid")
    );
    let start = Instant::now();
    let args = ["--max-hold", "0.3", "--grace", "0.4", "job", "-c", &line];
    scene.run(&args).assert_code(124);
    assert!(start.elapsed() >= Duration::from_millis(700), "it had its grace");
    scene.process("pid").dies();
    scene.assert_free("job");
}

fn zombies_of_the_group_are_not_waited_for(scene: &Scene) {
    // A process outside of the group has a zombie child in the group and never reaps it.
    let line = "perl -e '$g = getpgrp; fork and exit; setpgrp; fork or setpgrp(0, $g), exit; \
                open F, q(>parent); print F qq($$\\n); close F; sleep 60'; ";
    let line = format!("{line}{}", sleeper());
    let args = ["--max-hold", "2", "--lease", "60", "--grace", "18", "job", "-c", &line];
    let run = scene.start(&args);
    let (command, parent) = (scene.process("pid"), scene.process("parent"));
    let is_zombie_member = |child: &Process| {
        child.group() == Some(command.number()) && child.is_there() && !child.is_alive()
    };
    eventually("a zombie", || parent.children().iter().any(is_zombie_member));
    let start = Stopwatch::start();
    run.outcome().assert_code(124);
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    parent.signal(Signal::KILL);
}

fn without_a_command_a_signal_ends_the_hold(scene: &Scene) {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let holder = scene.start(&["job"]);
        holder.says("lock \"job\" is held: send INT or TERM to release it\n");
        scene.run(&["-n", "job", "--", "true"]).assert_code(75);
        holder.pid().signal(signal);
        holder.outcome().assert_code(0);
        scene.assert_free("job");
    }
}

fn without_a_command_max_hold_ends_the_hold(scene: &Scene) {
    let outcome = scene.run(&["--max-hold", "0.2", "job"]);
    outcome.assert_code(124);
    outcome.assert_says("releasing lock \"job\": it was held for --max-hold 200ms");
    scene.assert_free("job");
}
