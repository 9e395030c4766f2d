//! Waiting for a lock.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::Stopwatch;

use crate::support::{Scene, eventually, on_every_store, sleeper};

on_every_store! {
    a_run_that_waits_for_the_run_around_it_warns,
    a_nested_run_that_need_not_wait_prints_nothing,
    a_run_waits_until_the_lock_is_free,
    a_wait_has_a_limit,
    a_signal_ends_the_wait_and_its_queue_position,
    the_on_busy_line_runs_and_changes_nothing,
    verbose_names_the_holder,
}

fn a_run_waits_until_the_lock_is_free(scene: &Scene) {
    let holder =
        scene.start(&["job", "-c", "echo > $D/held; while [ ! -e $D/go ]; do sleep 0.02; done"]);
    scene.evidence("held");
    let unlimited = scene.start(&["-v", "job", "--", "echo", "one"]);
    let limited = scene.start(&["-v", "-w", "1m", "job", "--", "echo", "two"]);
    unlimited.says("waiting");
    limited.says("waiting");
    std::fs::write(scene.path("go"), "").unwrap();
    holder.outcome().assert_quiet("");
    assert_eq!(unlimited.outcome().output, "one\n");
    assert_eq!(limited.outcome().output, "two\n");
}

fn a_wait_has_a_limit(scene: &Scene) {
    let _holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    let (start, watch) = (Instant::now(), Stopwatch::start());
    scene.run(&["-w", "700ms", "job", "--", "true"]).assert_code(75);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(700), "{waited:?}");
    assert!(watch.elapsed() < Duration::from_secs(5), "{waited:?}");
}

fn a_signal_ends_the_wait_and_its_queue_position(scene: &Scene) {
    let holder = scene.start(&["--fair", "job", "-c", &sleeper()]);
    scene.process("pid");
    let queued =
        || scene.ask(async |client| client.fair_lock("job").inspect().await.unwrap().queue.len());
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let waiter = scene.start(&["--fair", "job", "--", "touch", "ran"]);
        eventually("its queue position", || queued() == 1);
        waiter.pid().signal(signal);
        let outcome = waiter.outcome();
        outcome.assert_code(128 + signal.as_raw());
        assert_eq!(queued(), 0, "{signal:?} left a queue position");
    }
    assert!(!scene.exists("ran"));
    holder.process.terminate();
    holder.outcome().assert_code(143);
    scene.assert_free("job");
}

fn the_on_busy_line_runs_and_changes_nothing(scene: &Scene) {
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

fn verbose_names_the_holder(scene: &Scene) {
    let holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    let waiter = scene.start(&["-v", "-w", "1m", "job", "--", "true"]);
    waiter.says(&format!(" pid {} on ", holder.pid().number()));
    let url = scene.url();
    waiter.says(&url);
    drop(waiter);
    let alone = scene.run(&["-v", "other", "--", "true"]);
    alone.assert_code(0);
    for step in ["store", "acquired", "started true", "released"] {
        alone.assert_says(step);
    }
    // -vv adds the log of the library.
    scene.run(&["-vv", "other", "--", "true"]).assert_says("acquired lock=");
}

/// A line that runs `lockkeeper run ARGS` in the same scene.
fn nested(scene: &Scene, args: &str) -> String {
    format!("{} run --url {} {args}", env!("CARGO_BIN_EXE_lockkeeper"), scene.url())
}

fn a_run_that_waits_for_the_run_around_it_warns(scene: &Scene) {
    for (outer, inner) in [
        ("job", "job"),
        ("-s job", "job"),
        ("-x job", "-s job"),
        ("--permits=1 job", "--permits=1 job"),
    ] {
        let inner = nested(scene, &format!("{inner} -- true"));
        // Also through a run of another name.
        let between = nested(scene, &format!("between -c '{inner}'"));
        for line in [&inner, &between] {
            let outer: Vec<_> = outer.split(' ').collect();
            let run = scene.start(&[&outer[..], &["-c", line]].concat());
            run.says("lock \"job\" is held by the `lockkeeper run` around this one");
            run.process.terminate();
            run.outcome().assert_code(143);
        }
    }
}

fn a_nested_run_that_need_not_wait_prints_nothing(scene: &Scene) {
    let line = nested(scene, "-s job -- true");
    scene.run(&["-s", "job", "-c", &line]).assert_quiet("");
    let line = nested(scene, "--permits 2 job -- true");
    scene.run(&["--permits", "2", "job", "-c", &line]).assert_quiet("");
    let line = nested(scene, "other -- true");
    scene.run(&["job", "-c", &line]).assert_quiet("");
    // With --no-wait, the exit code is enough.
    let line = nested(scene, "-n job -- true");
    let outcome = scene.run(&["job", "-c", &line]);
    outcome.assert_code(75);
    assert_eq!(outcome.errors, "");
}
