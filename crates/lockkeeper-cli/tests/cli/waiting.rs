//! Waiting for a lock, and giving up.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Scene, eventually, on_every_store, sleeper};

on_every_store! {
    a_run_that_waits_for_the_run_around_it_says_so,
    a_run_below_another_that_need_not_wait_says_nothing,
    it_waits_until_the_lock_is_free,
    a_wait_has_its_limit,
    a_signal_ends_the_wait_and_leaves_nothing,
    the_line_for_busy_runs_and_changes_nothing,
    verbose_says_who_holds_it,
}

fn it_waits_until_the_lock_is_free(scene: &Scene) {
    let holder =
        scene.start(&["job", "-c", "echo > $D/held; while [ ! -e $D/go ]; do sleep 0.02; done"]);
    scene.evidence("held");
    let for_ever = scene.start(&["-v", "job", "--", "echo", "one"]);
    let for_long = scene.start(&["-v", "-w", "1m", "job", "--", "echo", "two"]);
    for_ever.says("waiting");
    for_long.says("waiting");
    std::fs::write(scene.path("go"), "").unwrap();
    holder.outcome().assert_quiet("");
    assert_eq!(for_ever.outcome().output, "one\n");
    assert_eq!(for_long.outcome().output, "two\n");
}

fn a_wait_has_its_limit(scene: &Scene) {
    let _holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    let start = Instant::now();
    scene.run(&["-w", "700ms", "job", "--", "true"]).assert_code(75);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(700), "{waited:?}");
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

fn a_signal_ends_the_wait_and_leaves_nothing(scene: &Scene) {
    let holder = scene.start(&["--fair", "job", "-c", &sleeper()]);
    scene.process("pid");
    let queued = || scene.ask(async |client| client.fair_lock("job").waiting().await.unwrap());
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let waiter = scene.start(&["--fair", "job", "--", "touch", "ran"]);
        eventually("its place in the queue", || queued() == 1);
        waiter.pid().signal(signal);
        let outcome = waiter.outcome();
        outcome.assert_code(128 + signal.as_raw());
        assert_eq!(queued(), 0, "{signal:?} left a place in the queue");
    }
    assert!(!scene.exists("ran"));
    holder.process.terminate();
    holder.outcome().assert_code(143);
    scene.assert_free("job");
}

fn the_line_for_busy_runs_and_changes_nothing(scene: &Scene) {
    let _holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    let line = "echo \"$LOCKKEEPER_NAME ${LOCKKEEPER_URL-none}\"; exit 3";
    let outcome = scene.run(&["-n", "--on-busy", line, "job", "--", "true"]);
    outcome.assert_code(75);
    assert_eq!(outcome.output, "job none\n");
    let free = scene.run(&["-n", "--on-busy", "touch $D/ran", "other", "--", "true"]);
    free.assert_quiet("");
    assert!(!scene.exists("ran"), "it was not busy");
}

fn verbose_says_who_holds_it(scene: &Scene) {
    let holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    let waiter = scene.start(&["-v", "-w", "1m", "job", "--", "true"]);
    waiter.says(&format!("/{}/", holder.pid().number()));
    let url = scene.url();
    waiter.says(&url);
    drop(waiter);
    let alone = scene.run(&["-v", "other", "--", "true"]);
    alone.assert_code(0);
    for step in ["store", "acquired", "started true", "released"] {
        alone.assert_says(step);
    }
    // Twice, and the library tells what it does, too.
    scene.run(&["-vv", "other", "--", "true"]).assert_says("acquired lock=");
}

/// `lockkeeper run ARGS` in the same scene, for a line of a command.
fn nested(scene: &Scene, args: &str) -> String {
    format!("{} run --url {} {args}", env!("CARGO_BIN_EXE_lockkeeper"), scene.url())
}

fn a_run_that_waits_for_the_run_around_it_says_so(scene: &Scene) {
    for (outer, inner) in [
        ("job", "job"),
        ("-s job", "job"),
        ("-x job", "-s job"),
        ("--permits=1 job", "--permits=1 job"),
    ] {
        let inner = nested(scene, &format!("{inner} -- true"));
        // Through a run of another name, too.
        let between = nested(scene, &format!("between -c '{inner}'"));
        for line in [&inner, &between] {
            let outer: Vec<_> = outer.split(' ').collect();
            let run = scene.start(&[&outer[..], &["-c", line]].concat());
            run.says("\"job\" is held by the `lockkeeper run` around this one");
            run.process.terminate();
            run.outcome().assert_code(143);
        }
    }
}

fn a_run_below_another_that_need_not_wait_says_nothing(scene: &Scene) {
    let line = nested(scene, "-s job -- true");
    scene.run(&["-s", "job", "-c", &line]).assert_quiet("");
    let line = nested(scene, "--permits 2 job -- true");
    scene.run(&["--permits", "2", "job", "-c", &line]).assert_quiet("");
    let line = nested(scene, "other -- true");
    scene.run(&["job", "-c", &line]).assert_quiet("");
    // Who asks not to wait is told by the exit code.
    let line = nested(scene, "-n job -- true");
    let outcome = scene.run(&["job", "-c", &line]);
    outcome.assert_code(75);
    assert_eq!(outcome.errors, "");
}
