//! `watch` in a pipe: a line for each change, as it happens.

use std::process::Stdio;
use std::time::Duration;

use crate::schema;
use crate::support::{PATIENCE, Stand, on_every_store};

#[test]
fn each_change_is_a_line() {
    on_every_store(|stand| {
        let client = stand.client();
        let _other = client.lock("backup").lock().expect("nobody has it");
        let guard = client.lock("orders:42").lock().expect("nobody has it");
        stand.knows_holder(b"orders:42");
        let (watch, _) = stand.start(&["watch", "orders:*", "--interval", "50ms"]);
        let line = watch.expect_line("");
        let (at, rest) = line.split_once(' ').expect("a time, then the rest");
        assert!(at.len() == 24 && at.ends_with('Z') && at.contains('T'), "{line}");
        let this = format!("/{}/show", std::process::id());
        assert!(rest.starts_with("appeared orders:42 lock ") && rest.contains(&this), "{line}");
        assert!(rest.contains(" ttl=2"), "of thirty seconds, some are over: {line}");
        let again = guard.reenter().expect("it is ours");
        assert!(watch.expect_line("changed orders:42").contains(" holds=2 "));
        again.release().expect("it is ours");
        watch.expect_line("changed orders:42");
        guard.release().expect("it is ours");
        watch.expect_line("gone orders:42 lock ");
    });
}

#[test]
fn as_json_each_line_is_a_document() {
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.lock(b"odd\n\xff").lock().expect("nobody has it");
        stand.knows_holder(b"odd\n\xff");
        let (watch, _) = stand.start(&["watch", "--json", "--interval", "50ms"]);
        let line = schema::checked("watch", &watch.expect_line(""));
        assert_eq!(line["event"], "appeared");
        assert_eq!(line["lock"]["name_base64"], "b2RkCv8=");
        assert_eq!(line["lock"]["holders"][0]["pid"], std::process::id());
        guard.release().expect("it is ours");
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
fn a_reader_that_leaves_ends_it() {
    let stand = Stand::file();
    let client = stand.client();
    let _guard = client.lock("first").lock().expect("nobody has it");
    let mut command = stand.command(&["watch", "--interval", "50ms"]);
    let mut watch = command.stdout(Stdio::piped()).spawn().expect("it can be started");
    drop(watch.stdout.take());
    // What it writes next finds nobody.
    let _guard = client.lock("second").lock().expect("nobody has it");
    let status = crate::support::eventually("it ends", || watch.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn there_is_nothing_in_it_that_a_terminal_would_obey() {
    let stand = Stand::file();
    let _guard = stand.client().lock("a\u{1b}[31m\nb\u{202e}").lock().expect("nobody has it");
    let (watch, _) = stand.start(&["watch"]);
    let line = watch.next_line(PATIENCE).expect("a line");
    assert!(line.contains("a\\u{1b}[31m\\nb\\u{202e} lock"), "{line}");
    assert_eq!(watch.next_line(Duration::from_millis(1)), None, "one line is one line");
}
