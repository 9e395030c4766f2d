//! `watch` on a terminal.

use lockkeeper::blocking::Wait;
use std::time::Duration;

use lockkeeper::LostReason;

use crate::support::{Stand, WAIT_LIMIT, eventually, on_every_store};
use crate::terminal::Terminal;

const SIZE: (u16, u16) = (110, 20);
const WATCH: &str = "lk watch --interval 100ms";

#[test]
fn locks_appear_and_disappear_and_are_counted() {
    on_every_store(|stand| {
        let terminal = Terminal::open(stand, SIZE);
        terminal.run(WATCH);
        let screen = terminal.shows("no locks");
        assert!(screen.contains(" 0 locks   0 held   0 waiting"), "{screen}");
        let client = stand.client();
        let guard = client.lock("orders:42").lock().wait().expect("it is free");
        terminal.shows("+ orders:42");
        let screen = terminal.shows(&format!(" pid {} ", std::process::id()));
        let row =
            screen.lines().find(|line| line.contains("orders:42")).expect("it is on the screen");
        assert!(row.contains("█") && row.contains("s   "), "a gauge and the TTL: {screen}");
        let waiter = std::thread::spawn({
            let client = stand.client();
            move || client.lock("orders:42").try_lock_for(WAIT_LIMIT).wait()
        });
        terminal.shows(" 1 lock   1 held   1 waiting");
        guard.release().wait().expect("it is held");
        terminal.until("the next holder", |screen| screen.contains(" 1 lock   1 held   0 waiting"));
        let next = waiter.join().expect("no panic").expect("the store answers");
        let next = next.expect("it is acquired");
        next.release().wait().expect("it is held");
        terminal.shows("- orders:42");
        terminal.hides("orders:42");
        terminal.press("q");
        terminal.restored(0);
    });
}

#[test]
fn the_ttl_counts_down_between_two_polls() {
    let stand = Stand::file();
    let _guard =
        stand.client().lock("a").lease(Duration::from_secs(60)).lock().wait().expect("free");
    let terminal = Terminal::open(&stand, SIZE);
    // One poll for the whole test.
    terminal.run("lk watch --interval 1h");
    let left = |screen: &str| -> Option<u64> {
        let row = screen.lines().find(|line| line.starts_with("  a "))?;
        row.split_whitespace().find_map(|word| word.strip_suffix('s')?.parse().ok())
    };
    let first = eventually("a row", || left(&terminal.shows("a ")));
    terminal.until("the next second", |screen| left(screen).is_some_and(|now| now < first));
}

#[test]
fn keys_filter_show_details_help_and_sort() {
    let stand = Stand::file();
    let client = stand.client();
    let guards: Vec<_> = ["backup", "orders:1", "orders:2"]
        .map(|name| client.lock(name).lock().wait().expect("it is free"))
        .into_iter()
        .collect();
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run(WATCH);
    terminal.shows("backup");
    terminal.types("/ORD");
    let screen = terminal.hides("backup");
    assert!(screen.contains("orders:1") && screen.contains("orders:2"), "{screen}");
    terminal.press("Enter");
    terminal.types("j");
    terminal.press("Enter");
    // Only the pane shows the id.
    terminal.shows(&guards[2].owner_id().to_string());
    terminal.press("Escape");
    terminal.hides(&guards[2].owner_id().to_string());
    terminal.press("Escape");
    terminal.shows("backup");
    terminal.types("?");
    terminal.shows("force-release the lock");
    terminal.types("x");
    terminal.hides("force-release the lock");
    terminal.types("s");
    terminal.shows("KIND▴");
    terminal.types("S");
    terminal.shows("KIND▾");
    terminal.types("q");
    terminal.restored(0);
}

#[test]
fn a_paused_view_does_not_change() {
    let stand = Stand::redis();
    let client = stand.client();
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run(WATCH);
    terminal.shows("no locks");
    terminal.types(" ");
    terminal.shows("paused");
    let _guard = client.lock("later").lock().wait().expect("it is free");
    eventually("the store has it", || (stand.listed().len() == 1).then_some(()));
    let polls = stand.server().commandstats("scan");
    for _ in 0..10 {
        // Each is drawn, which takes longer than a poll.
        terminal.types("?");
        assert!(!terminal.shows("keys").contains("later"));
        terminal.types("?");
        assert!(!terminal.hides("keys").contains("later"));
    }
    let more = stand.server().commandstats("scan") - polls;
    assert!(more <= 1, "only a poll in progress may end: {more}");
    terminal.types(" ");
    terminal.shows("later");
}

#[test]
fn a_lock_is_force_released_and_its_holder_gets_the_reason() {
    on_every_store(|stand| {
        let client = stand.client();
        let guard = client.lock("stuck").lock().wait().expect("it is free");
        // Only an announced holder is notified.
        stand.knows_holder(b"stuck");
        let terminal = Terminal::open(stand, SIZE);
        terminal.run(WATCH);
        terminal.shows("stuck");
        terminal.types("u");
        terminal.shows("the holder is notified at once");
        terminal.types("it hangs");
        terminal.shows("reason  it hangs");
        terminal.press("Enter");
        terminal.shows("force-release? ");
        assert!(!guard.is_lost(), "not before the confirmation");
        terminal.types("y");
        terminal.shows(
            "lock \"stuck\" was force-released; the holder is notified at once and must stop",
        );
        assert_eq!(guard.lost().wait(), LostReason::Revoked("it hangs".to_owned()));
        let forced = client.inspector().inspect("stuck").wait().expect("the store answers").forced;
        assert_eq!(forced[0].reason, "it hangs");
        terminal.hides("- stuck");
        terminal.types("q");
        terminal.restored(0);
    });
}

#[test]
fn a_resized_window_is_redrawn() {
    let stand = Stand::file();
    let _guard = stand.client().lock("orders:42").lock().wait().expect("it is free");
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run(WATCH);
    terminal.shows("HOLDS");
    terminal.resize((60, 8));
    let screen = terminal.until("a narrow table", |screen| {
        screen.contains("orders:42") && !screen.contains("HOLDS") && screen.contains("? help")
    });
    assert_eq!(screen.lines().count(), 8, "{screen}");
    terminal.resize((140, 30));
    terminal.shows("HOLDS");
    terminal.types("q");
    terminal.restored(0);
}

#[test]
fn colours_can_be_switched_off() {
    let stand = Stand::file();
    let _guard = stand.client().lock("orders:42").lock().wait().expect("it is free");
    let terminal = Terminal::open(&stand, SIZE);
    // Underline and the default colours do not count.
    let plain = ["\u{1b}[4m", "\u{1b}[39m", "\u{1b}[49m"];
    let coloured = |screen: String| {
        let screen = plain.iter().fold(screen, |screen, code| screen.replace(code, ""));
        screen.contains("\u{1b}[3") || screen.contains("\u{1b}[4")
    };
    for (line, colours) in [
        (WATCH.to_owned(), true),
        (format!("NO_COLOR=1 {WATCH}"), false),
        (format!("{WATCH} --color never"), false),
        (format!("NO_COLOR=1 {WATCH} --color always"), true),
    ] {
        terminal.run(&line);
        terminal.shows("orders:42");
        let screen = terminal.colours();
        assert_eq!(coloured(screen.clone()), colours, "{line}: {screen:?}");
        terminal.types("q");
        terminal.restored(0);
    }
}

#[test]
fn a_dumb_terminal_gets_lines() {
    let stand = Stand::file();
    let _guard = stand.client().lock("orders:42").lock().wait().expect("it is free");
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run("TERM=dumb lk watch");
    terminal.shows("Z appeared orders:42 lock ");
    assert_eq!(terminal.state("#{alternate_on}"), "0");
}
