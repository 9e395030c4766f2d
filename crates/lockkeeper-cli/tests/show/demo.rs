//! `demo`.

use lockkeeper::LostReason;
use testkit::ChildProcess;

use crate::support::{Stand, WAIT_LIMIT};
use crate::terminal::Terminal;

/// The stores of a demo that are left in its temporary directory.
fn left(stand: &Stand) -> Vec<String> {
    let entries = std::fs::read_dir(stand.path("")).expect("it is there");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string());
    names.flatten().filter(|name| name.starts_with("lockkeeper-demo")).collect()
}

/// Asserts that all acts are shown.
fn assert_whole(text: &str) {
    for part in [
        "1  Contention",
        "2  Queue",
        "3  Crash",
        "4  Loss",
        "5  Fencing",
        "with a lock, 20 additions result in 20",
        "the queue is bob, cid, dan, eve",
        &format!("is notified: {}", LostReason::Revoked("the deployment is stuck".to_owned())),
        &format!("was notified: {}", LostReason::Unreachable),
        "the ledger rejects it",
        "lockkeeper watch",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert_eq!(text.matches('✓').count(), 9, "{text}");
}

#[test]
fn a_pipe_gets_plain_text() {
    let stand = Stand::file();
    let mut command = stand.command(&["demo", "--fast"]);
    let output = command.env("TMPDIR", stand.path("")).output().expect("it can be started");
    let text = String::from_utf8(output.stdout).expect("it is text");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*errors), (Some(0), ""), "{text}");
    assert_whole(&text);
    assert!(!text.contains('\u{1b}'), "{text:?}");
    assert_eq!(left(&stand), [""; 0]);
}

#[test]
fn a_terminal_gets_colours_and_no_wrapped_lines() {
    let stand = Stand::file();
    let terminal = Terminal::open(&stand, (80, 70));
    terminal.run("lk demo --fast");
    terminal.restored(0);
    assert_whole(&terminal.history());
    assert!(terminal.colours().contains("\u{1b}[32m✓"), "{:?}", terminal.colours());
    let wrapped = terminal.history().lines().filter(|line| line.starts_with("   ")).count();
    assert!(wrapped > 30, "a wrapped line would not be indented");
    assert_eq!(left(&stand), [""; 0]);
}

#[test]
fn an_interrupt_removes_the_store() {
    let stand = Stand::file();
    let terminal = Terminal::open(&stand, (100, 40));
    terminal.run("lk demo");
    terminal.shows("Contention");
    assert_eq!(left(&stand).len(), 1, "its store exists");
    terminal.press("C-c");
    terminal.restored(130);
    assert_eq!(left(&stand), [""; 0]);
}

/// They cannot outlive the demo, whose pipe is their input.
#[test]
fn workers_end_with_their_input() {
    let stand = Stand::file();
    let command = stand.command(&["__demo-worker", &stand.url, "name", "1000"]);
    let mut worker = ChildProcess::from_command(command);
    worker.expect_line("held ");
    worker.write_line("write");
    worker.expect_line("write ");
    worker.close_input();
    assert_eq!(worker.wait(WAIT_LIMIT).and_then(|status| status.code()), Some(0));
}
