//! Unusual names: every subcommand accepts them and shows them on one line.

use lockkeeper::blocking::Wait;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::schema;
use crate::support::{Completed, Stand, on_every_store};

/// Names, and how they are shown.
fn unusual() -> Vec<(Vec<u8>, String)> {
    let long = "long/".repeat(2_000);
    let plain = |name: &str| (name.as_bytes().to_vec(), name.to_owned());
    vec![
        plain("two words"),
        plain(" leading and trailing "),
        plain("naïve 日本語 👩‍👧"),
        plain("--kind"),
        plain("-x"),
        plain("{tag}:a"),
        plain("a*b?[c]"),
        plain("it's \"quoted\" \\ $HOME"),
        plain(&long),
        (b"line\nbreak\ttab\x1b[31m\r".to_vec(), "line\\nbreak\\ttab\\u{1b}[31m\\r".to_owned()),
        ("turn\u{202e}around".into(), "turn\\u{202e}around".to_owned()),
        (b"bytes \xff\xfe".to_vec(), "bytes \\xff\\xfe".to_owned()),
    ]
}

fn run(stand: &Stand, before: &[&str], name: &[u8]) -> Completed {
    let mut command = stand.command(before);
    let mut option = b"--name=".to_vec();
    option.extend_from_slice(name);
    Completed::of(command.arg(OsStr::from_bytes(&option)))
}

#[test]
fn a_table_shows_each_name_whole_on_one_line() {
    on_every_store(|stand| {
        let client = stand.client();
        let unusual = unusual();
        let _guards: Vec<_> =
            unusual.iter().map(|(name, _)| client.lock(name).lock().wait().unwrap()).collect();
        let table = stand.run(["ls"]).ok();
        assert_eq!(table.lines().count(), unusual.len() + 1, "{table}");
        for (_, shown) in &unusual {
            let line = table.lines().find(|line| line.starts_with(&format!("{shown} ")));
            assert!(line.is_some_and(|line| line.contains("  lock  ")), "{shown}: {line:?}");
        }
        let rest = table.replace('\n', "");
        assert!(!rest.contains(char::is_control), "no control characters");
    });
}

#[test]
fn every_name_can_be_inspected_and_unlocked() {
    on_every_store(|stand| {
        let client = stand.client();
        for (name, shown) in unusual() {
            let guard = client.lock(&name).lock().wait().unwrap();
            let text = run(stand, &["inspect"], &name).ok();
            assert!(text.starts_with(&format!("{shown}\n  kind      lock\n")), "{text}");
            let document =
                schema::checked("inspect", &run(stand, &["inspect", "--json"], &name).ok());
            assert_eq!(document["name"], *String::from_utf8_lossy(&name));
            let text = run(stand, &["unlock", "--yes", "--force"], &name).ok();
            assert!(
                text.starts_with(&format!("lock \"{shown}\" was force-released from ")),
                "{text}"
            );
            let text = run(stand, &["unlock", "--yes"], &name).ok();
            assert_eq!(text, format!("lock \"{shown}\" is free: there is nothing to release\n"));
            drop(guard);
        }
    });
}

#[test]
fn a_leading_dash_needs_an_option_or_two_dashes() {
    let stand = Stand::redis();
    stand.java_holds("-x", 1);
    stand.run(["inspect", "-x"]).fails(64, &["-x"]);
    assert!(stand.run(["inspect", "--name", "-x"]).ok().contains("held"));
    assert!(stand.run(["inspect", "--", "-x"]).ok().contains("held"));
}

#[test]
fn a_missing_or_empty_name_is_refused() {
    let stand = Stand::redis();
    for command in ["inspect", "unlock"] {
        stand.run([command]).fails(64, &["NAME"]);
        stand.run([command, "a", "--name", "b"]).fails(64, &["--name"]);
    }
    stand.run(["inspect", ""]).fails(64, &["empty"]);
    stand.run(["unlock", "--yes", ""]).fails(64, &["empty"]);
}
