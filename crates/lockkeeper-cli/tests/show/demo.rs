//! `demo`: what it claims, it did; and it leaves nothing behind.

use testkit::ChildProcess;

use crate::support::{PATIENCE, Stand};
use crate::terminal::Terminal;

/// What is left of the stores that a tour makes in its temporary directory.
fn left(stand: &Stand) -> Vec<String> {
    let entries = std::fs::read_dir(stand.path("")).expect("it is there");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string());
    names.flatten().filter(|name| name.starts_with("lockkeeper-demo")).collect()
}

/// What every tour shows.
fn assert_whole(text: &str) {
    for part in [
        "1  Contention",
        "2  Hand-over",
        "3  Crash",
        "4  Loss",
        "5  Fencing",
        "under a lock 20 additions make 20",
        "the store's queue is bob, cid, dan, eve",
        "is told: it was force-unlocked: the deployment is stuck",
        "was told: the store did not answer its renewals in time",
        "the ledger refuses it",
        "lockkeeper watch",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert_eq!(text.matches('✓').count(), 9, "{text}");
}

#[test]
fn in_a_pipe_it_is_plain_text() {
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
fn on_a_terminal_it_has_colours_and_fits() {
    let stand = Stand::file();
    let terminal = Terminal::open(&stand, (80, 70));
    terminal.run("lk demo --fast");
    terminal.restored(0);
    assert_whole(&terminal.history());
    assert!(terminal.colours().contains("\u{1b}[32m✓"), "{:?}", terminal.colours());
    let wrapped = terminal.history().lines().filter(|line| line.starts_with("   ")).count();
    assert!(wrapped > 30, "a line that wraps begins at the left");
    assert_eq!(left(&stand), [""; 0]);
}

#[test]
fn whoever_has_seen_enough_leaves_nothing_behind() {
    let stand = Stand::file();
    let terminal = Terminal::open(&stand, (100, 40));
    terminal.run("lk demo");
    terminal.shows("Contention");
    assert_eq!(left(&stand).len(), 1, "its store is there");
    terminal.press("C-c");
    terminal.restored(130);
    assert_eq!(left(&stand), [""; 0]);
}

/// However the tour ends: the pipe to them ends with it.
#[test]
fn its_other_processes_end_with_their_input() {
    let stand = Stand::file();
    let command = stand.command(&["__demo-worker", &stand.url, "name", "1000"]);
    let mut worker = ChildProcess::from_command(command);
    worker.expect_line("held ");
    worker.write_line("write");
    worker.expect_line("write ");
    worker.close_input();
    assert_eq!(worker.wait(PATIENCE).and_then(|status| status.code()), Some(0));
}
