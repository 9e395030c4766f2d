//! `watch` and a store that goes away.

use std::time::Duration;

use crate::support::{PATIENCE, Stand, eventually};
use crate::terminal::Terminal;

const SIZE: (u16, u16) = (100, 16);
const WATCH: &str = "lk watch --interval 100ms";

#[test]
fn a_server_that_dies_is_missed_and_its_return_is_noticed() {
    let stand = Stand::redis();
    let _guard = stand.client().lock("orders:42").lock().expect("nobody has it");
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run(WATCH);
    terminal.shows("orders:42");
    stand.server().kill();
    let screen = terminal.shows("✗ failing for");
    assert!(screen.contains("orders:42"), "what was last known is still seen: {screen}");
    terminal.types("?");
    terminal.shows("take the lock away from its holder");
    terminal.types("x");
    stand.server().restart();
    terminal.hides("failing");
    terminal.types("q");
    terminal.restored(0);
}

#[test]
fn a_server_that_refuses_is_not_called_unreachable() {
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
fn a_server_that_does_not_answer_keeps_no_key_waiting() {
    let stand = Stand::redis();
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run(WATCH);
    terminal.shows("no locks");
    stand.server().pause();
    terminal.shows("no answer for");
    terminal.types("?");
    terminal.shows("take the lock away from its holder");
    terminal.types("xq");
    terminal.restored(0);
    stand.server().resume();
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let stand = Stand::redis();
    stand.server().kill();
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run(WATCH);
    terminal.shows("the store has not answered yet; trying on");
    stand.server().restart();
    terminal.shows("no locks");
    terminal.types("q");
    terminal.restored(0);
}

#[test]
fn in_a_pipe_an_absence_is_told_once() {
    let stand = Stand::redis();
    let (mut watch, errors) = stand.start(&["watch", "--interval", "100ms"]);
    let _first = stand.client().lock("first").lock().expect("nobody has it");
    watch.expect_line("appeared first");
    stand.server().kill();
    let told = eventually("it says so", || {
        let told = std::fs::read_to_string(&errors).ok()?;
        told.contains("trying on").then_some(told)
    });
    assert_eq!(told.lines().count(), 1, "{told}");
    stand.server().restart();
    watch.expect_line("gone first");
    let _second = stand.client().lock("second").lock().expect("nobody has it");
    watch.expect_line("appeared second");
    let told = std::fs::read_to_string(&errors).expect("it is there");
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(told.contains("the store answers again"), "{told}");
    watch.terminate();
    assert!(watch.wait(PATIENCE).is_some());
}

#[test]
fn in_a_pipe_a_server_that_is_not_there_is_a_failure() {
    let stand = Stand::redis();
    stand.server().kill();
    let (mut watch, errors) = stand.start(&["watch"]);
    let status = watch.wait(PATIENCE + Duration::from_secs(5)).expect("it gives up");
    assert_eq!(status.code(), Some(69));
    let told = std::fs::read_to_string(errors).expect("it is there");
    assert!(told.contains("unreachable"), "{told}");
}
