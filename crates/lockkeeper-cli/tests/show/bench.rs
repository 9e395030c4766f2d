//! `bench`.

use crate::schema;
use crate::support::{Stand, WAIT_LIMIT, eventually, on_every_store};
use crate::terminal::Terminal;

/// Asserts that the store has no locks, and Redis no keys.
#[track_caller]
fn assert_nothing_left(stand: &Stand) {
    if stand.url.starts_with("redis") {
        let keys = stand.server().cli(&["KEYS", "*"]);
        assert!(keys.array().is_empty(), "{keys:?}");
    }
    assert_eq!(stand.locks(), 0);
}

#[test]
fn json_is_valid_and_no_key_is_left() {
    on_every_store(|stand| {
        let mut command = stand.command(&["bench", "--json", "--time", "200ms"]);
        let output = command.output().expect("it can be started");
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
        let report = schema::checked("bench", &String::from_utf8_lossy(&output.stdout));
        assert_eq!(report["time_ms"], 200);
        let figures = report["figures"].as_array().expect("an array");
        assert_eq!(figures.len(), 4);
        for figure in figures {
            assert!(figure["count"].as_u64() > Some(0), "{figure}");
            assert!(figure["p50_us"].as_f64() <= figure["p99_us"].as_f64(), "{figure}");
            assert!(figure["p50_us"].as_f64() > Some(0.0), "{figure}");
            assert_eq!(figure["per_second"].is_null(), figure["id"] == "wake_up", "{figure}");
        }
        assert_nothing_left(stand);
    });
}

#[test]
fn a_pipe_gets_a_table_without_a_progress_bar() {
    let stand = Stand::redis();
    let output = stand.command(&["bench", "--time", "100ms"]).output().expect("it can be started");
    let text = String::from_utf8(output.stdout).expect("it is text");
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]), "{text}");
    let starts: Vec<_> = text.lines().map(|line| line.split(',').next().unwrap_or("")).collect();
    assert!(starts[0].trim_start().starts_with("A SECOND"), "{text}");
    assert_eq!(starts[1..5], ["lock and unlock", "lock and unlock", "handoff", "wake-up"]);
    assert!(text.contains("they differ from run to run") && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn a_terminal_gets_a_progress_bar_that_is_removed() {
    let stand = Stand::file();
    let terminal = Terminal::open(&stand, (100, 20));
    terminal.run("lk bench --time 1");
    for figure in ["one task", "64 tasks", "8 tasks", "wake-up"] {
        terminal.until(figure, |screen| {
            screen.lines().any(|line| line.contains('━') && line.contains(figure))
        });
    }
    let screen = terminal.restored(0);
    assert!(!screen.contains('━') && screen.contains("they differ"), "{screen}");
}

#[test]
fn an_interrupt_leaves_no_key() {
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let stand = Stand::redis();
        let (mut bench, _) = stand.start(&["bench", "--time", "60"]);
        let mut redis = stand.server().connection();
        eventually("it holds a lock", || {
            (!redis.cmd(&["KEYS", "lockkeeper:bench:*"]).array().is_empty()).then_some(())
        });
        let pid = rustix::process::Pid::from_raw(bench.pid().cast_signed()).expect("a process");
        rustix::process::kill_process(pid, signal).expect("it is there");
        let status = bench.wait(WAIT_LIMIT).expect("it ends");
        assert_eq!(status.code(), Some(128 + signal.as_raw()));
        assert_nothing_left(&stand);
    }
}

#[test]
fn a_server_that_dies_ends_the_benchmark() {
    let stand = Stand::redis();
    let (mut bench, errors) = stand.start(&["bench", "--time", "60"]);
    let mut redis = stand.server().connection();
    eventually("it holds a lock", || {
        (!redis.cmd(&["KEYS", "lockkeeper:bench:*"]).array().is_empty()).then_some(())
    });
    stand.server().kill();
    let status = bench.wait(WAIT_LIMIT).expect("it ends");
    assert_eq!(status.code(), Some(69), "{:?}", std::fs::read_to_string(errors));
}
