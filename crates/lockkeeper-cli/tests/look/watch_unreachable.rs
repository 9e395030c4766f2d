//! `watch` and an unreachable store.

use lockkeeper::blocking::Wait;
use std::time::Duration;

use crate::support::{Stand, WAIT_LIMIT, eventually};
use crate::terminal::Terminal;

const SIZE: (u16, u16) = (100, 16);
const WATCH: &str = "lk watch --interval 100ms";

#[test]
fn an_outage_and_its_end_are_shown() {
    let stand = Stand::redis();
    let _guard = stand.client().lock("orders:42").lock().wait().expect("it is free");
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run(WATCH);
    terminal.shows("orders:42");
    stand.server().kill();
    let screen = terminal.shows("✗ failing for");
    assert!(screen.contains("orders:42"), "the last known locks stay: {screen}");
    terminal.types("?");
    terminal.shows("force-release the lock");
    terminal.types("x");
    stand.server().restart();
    terminal.hides("failing");
    terminal.types("q");
    terminal.restored(0);
}

#[test]
fn a_denied_permission_is_not_shown_as_unreachable() {
    let stand = Stand::redis();
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run(WATCH);
    terminal.shows("no locks");
    stand.server().cli(&["ACL", "SETUSER", "default", "-scan"]).ok();
    let screen = terminal.shows("✗ failing for");
    assert!(screen.contains("permission denied") && !screen.contains("unreachable"), "{screen}");
    stand.server().cli(&["ACL", "SETUSER", "default", "+scan"]).ok();
    terminal.hides("failing");
    terminal.types("q");
    terminal.restored(0);
}

#[test]
fn keys_work_while_the_server_does_not_answer() {
    let stand = Stand::redis();
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run(WATCH);
    terminal.shows("no locks");
    stand.server().pause();
    terminal.shows("no answer for");
    terminal.types("?");
    terminal.shows("force-release the lock");
    terminal.types("xq");
    terminal.restored(0);
    stand.server().resume();
}

#[test]
fn watch_waits_for_a_server_that_does_not_run_yet() {
    let stand = Stand::redis();
    stand.server().kill();
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run(WATCH);
    terminal.shows("the store has not answered yet; retrying");
    stand.server().restart();
    terminal.shows("no locks");
    terminal.types("q");
    terminal.restored(0);
}

#[test]
fn in_a_pipe_an_outage_is_reported_once() {
    let stand = Stand::redis();
    let (mut watch, errors) = stand.launch(&["watch", "--interval", "100ms"]);
    let _first = stand.client().lock("first").lock().wait().expect("it is free");
    watch.expect_line("appeared first");
    stand.server().kill();
    let report = eventually("its message", || {
        let report = std::fs::read_to_string(&errors).ok()?;
        report.contains("retrying").then_some(report)
    });
    assert_eq!(report.lines().count(), 1, "{report}");
    stand.server().restart();
    watch.expect_line("gone first");
    let _second = stand.client().lock("second").lock().wait().expect("it is free");
    watch.expect_line("appeared second");
    let report = std::fs::read_to_string(&errors).expect("it is there");
    assert_eq!(report.lines().count(), 2, "{report}");
    assert!(report.contains("the store answers again"), "{report}");
    watch.terminate();
    assert!(watch.wait(WAIT_LIMIT).is_some());
}

#[test]
fn in_a_pipe_an_unreachable_server_is_a_failure() {
    let stand = Stand::redis();
    stand.server().kill();
    let (mut watch, errors) = stand.launch(&["watch"]);
    let status = watch.wait(WAIT_LIMIT + Duration::from_secs(5)).expect("it ends");
    assert_eq!(status.code(), Some(69));
    let report = std::fs::read_to_string(errors).expect("it is there");
    assert!(report.contains("unreachable"), "{report}");
}
