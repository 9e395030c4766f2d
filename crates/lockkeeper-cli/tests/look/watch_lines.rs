//! `watch` in a pipe: a line for each change.

use lockkeeper::blocking::Wait;
use std::process::Stdio;
use std::time::Duration;

use crate::schema;
use crate::support::{Stand, WAIT_LIMIT, on_every_store};

#[test]
fn each_change_is_a_line() {
    on_every_store(|stand| {
        let client = stand.client();
        let _other = client.lock("backup").lock().wait().expect("it is free");
        let guard = client.lock("orders:42").lock().wait().expect("it is free");
        stand.knows_holder(b"orders:42");
        let (watch, _) = stand.launch(&["watch", "orders:*", "--interval", "50ms"]);
        let line = watch.expect_line("");
        let (at, rest) = line.split_once(' ').expect("a time, then the rest");
        assert!(at.len() == 24 && at.ends_with('Z') && at.contains('T'), "{line}");
        let this = format!(" pid {} on ", std::process::id());
        assert!(rest.starts_with("appeared orders:42 lock ") && rest.contains(&this), "{line}");
        assert!(rest.contains(" ttl=2"), "part of the thirty seconds has passed: {line}");
        let again = guard.reenter().wait().expect("it is held");
        assert!(watch.expect_line("changed orders:42").contains(" holds=2 "));
        again.release().wait().expect("it is held");
        watch.expect_line("changed orders:42");
        guard.release().wait().expect("it is held");
        watch.expect_line("gone orders:42 lock ");
    });
}

#[test]
fn as_json_each_line_is_a_document() {
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.lock(b"odd\n\xff").lock().wait().expect("it is free");
        stand.knows_holder(b"odd\n\xff");
        let (watch, _) = stand.launch(&["watch", "--json", "--interval", "50ms"]);
        let line = schema::checked("watch", &watch.expect_line(""));
        assert_eq!(line["event"], "appeared");
        assert_eq!(line["lock"]["name_base64"], "b2RkCv8=");
        assert_eq!(line["lock"]["holders"][0]["pid"], std::process::id());
        guard.release().wait().expect("it is held");
        let gone = loop {
            let line = schema::checked("watch", &watch.expect_line(""));
            if line["event"] == "gone" {
                break line;
            }
        };
        assert_eq!(gone["lock"]["name_base64"], "b2RkCv8=");
    });
}

#[test]
fn a_closed_pipe_ends_watch() {
    let stand = Stand::file();
    let client = stand.client();
    let _guard = client.lock("first").lock().wait().expect("it is free");
    let mut command = stand.command(["watch", "--interval", "50ms"]);
    let mut watch = command.stdout(Stdio::piped()).spawn().expect("it can be started");
    drop(watch.stdout.take());
    // The next write fails.
    let _guard = client.lock("second").lock().wait().expect("it is free");
    let status = crate::support::eventually("it ends", || watch.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn names_are_escaped() {
    let stand = Stand::file();
    let _guard = stand.client().lock("a\u{1b}[31m\nb\u{202e}").lock().wait().expect("it is free");
    let (watch, _) = stand.launch(&["watch"]);
    let line = watch.next_line(WAIT_LIMIT).expect("a line");
    assert!(line.contains("a\\u{1b}[31m\\nb\\u{202e} lock"), "{line}");
    assert_eq!(watch.next_line(Duration::from_millis(1)), None, "one change is one line");
}
