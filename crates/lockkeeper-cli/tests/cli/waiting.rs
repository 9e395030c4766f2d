//! Waiting for a lock, and giving up.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Scene, eventually, on_every_store, sleeper};

on_every_store! {
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
    waiter.says(&format!("process {}", holder.pid().number()));
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
