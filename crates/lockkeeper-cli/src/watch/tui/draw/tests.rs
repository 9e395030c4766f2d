//! The screen, cell by cell.

use std::time::Duration;

use lockkeeper::{Kind, Seen, Ttl};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

use super::{Theme, draw};
use crate::watch::tui::fixture::*;
use crate::watch::tui::row::Now;
use crate::watch::tui::view::{Look, Tone, View};

fn drawn(view: &mut View, theme: Theme, (width, height): (u16, u16), now: Now) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view, &theme, now)).unwrap();
    terminal.backend().buffer().clone()
}

/// The text on the screen, without trailing spaces.
fn text(view: &mut View, size: (u16, u16), now: Now) -> Vec<String> {
    let buffer = drawn(view, Theme::new(false), size, now);
    let rows = buffer.content.chunks(usize::from(size.0));
    rows.map(|row| {
        let mut skip = 0;
        let mut line = String::new();
        for cell in row {
            // The second half of a wide character.
            if skip == 0 {
                line.push_str(cell.symbol());
                skip = unicode_width::UnicodeWidthStr::width(cell.symbol()).saturating_sub(1);
            } else {
                skip -= 1;
            }
        }
        line.trim_end().to_owned()
    })
    .collect()
}

/// Locks of several kinds and states.
fn some() -> View {
    let mut contended = lock("orders:42");
    contended.waiting = Some(3);
    let mut unknown_holder = lock("legacy:import");
    unknown_holder.holders[0].client = None;
    unknown_holder.holders[0].since = None;
    unknown_holder.holders[0].hold_count = 2;
    let mut shared = lock("report");
    shared.kind = Kind::Read;
    shared.holders.push(holder(8));
    let mut permanent = lock("stuck");
    permanent.ttl = Some(Ttl::Forever);
    let mut permits = lock("gpu");
    (permits.kind, permits.count, permits.taken) = (Kind::Permits, Some(1), 3);
    view(vec![contended, unknown_holder, shared, permanent, permits])
}

#[test]
fn a_table_has_a_header_and_the_keys() {
    assert_eq!(
        text(&mut some(), (100, 10), later(1.5)),
        [
            " lockkeeper  redis://store  *                                                        ● 12:00:00 UTC",
            " 5 locks   5 held   3 waiting",
            "  NAME▴           KIND       HOLDER                             HOLDS           TTL  WAITERS     AGE",
            "  gpu             permits    checkout pid 7 on web-1 +2             3  █████▋   22s        0     61s",
            "  legacy:import   lock       5ca1ab1e-0000-4000-8000-00000000…      2  █████▋   22s        0     ≥1s",
            "  orders:42       lock       checkout pid 7 on web-1                1  █████▋   22s        3     61s",
            "  report          read       checkout pid 7 on web-1 +1             2  █████▋   22s        0     61s",
            "  stuck           lock       checkout pid 7 on web-1                1             ∞        0     61s",
            "",
            " ? help   q quit   / filter   enter details   u unlock   s sort   space pause   ↑↓ move"
        ]
    );
}

#[test]
fn a_narrow_screen_omits_columns() {
    assert_eq!(
        text(&mut some(), (72, 10), later(1.5)),
        [
            " lockkeeper  redis://store  *                            ● 12:00:00 UTC",
            " 5 locks   5 held   3 waiting",
            "  NAME▴           KIND       HOLDER                 TTL  WAITERS     AGE",
            "  gpu             permits    checkout pid 7 on …    22s        0     61s",
            "  legacy:import   lock       5ca1ab1e-0000-4000…    22s        0     ≥1s",
            "  orders:42       lock       checkout pid 7 on …    22s        3     61s",
            "  report          read       checkout pid 7 on …    22s        0     61s",
            "  stuck           lock       checkout pid 7 on …      ∞        0     61s",
            "",
            " ? help   q quit   / filter   enter details   u unlock   s sort"
        ]
    );
    assert_eq!(
        text(&mut some(), (34, 10), later(1.5)),
        [
            " lockkeeper  redis:● 12:00:00 UTC",
            " 5 locks   5 held   3 waiting",
            "  NAME▴         HOLDER         TTL",
            "  gpu           checkout p…    22s",
            "  legacy:impo…  5ca1ab1e-0…    22s",
            "  orders:42     checkout p…    22s",
            "  report        checkout p…    22s",
            "  stuck         checkout p…      ∞",
            "",
            " ? help   q quit   / filter"
        ]
    );
}

#[test]
fn no_size_is_too_small() {
    for width in 0..40 {
        for height in 0..12 {
            for keys in ["", "?", "uwhy⏎", "⏎", "/x"] {
                let mut view = some();
                press(&mut view, keys);
                drawn(&mut view, Theme::new(true), (width, height), later(1.0));
            }
        }
    }
}

#[test]
fn changes_are_marked() {
    let mut view = view(vec![lock("changes"), lock("goes"), lock("stays")]);
    let mut changed = lock("changes");
    changed.waiting = Some(1);
    view.looked(look(vec![changed, lock("comes"), lock("stays")]), later(1.0));
    assert_eq!(
        text(&mut view, (84, 8), later(1.5)),
        [
            " lockkeeper  redis://store  *                                        ● 12:00:01 UTC",
            " 3 locks   3 held   1 waiting",
            "  NAME▴           KIND       HOLDER             HOLDS           TTL  WAITERS     AGE",
            "~ changes         lock       checkout pid 7 o…      1  █████▉   23s        1     61s",
            "+ comes           lock       checkout pid 7 o…      1  █████▉   23s        0     61s",
            "- goes            lock       checkout pid 7 o…      1                      0     61s",
            "  stays           lock       checkout pid 7 o…      1  █████▉   23s        0     61s",
            " ? help   q quit   / filter   enter details   u unlock   s sort   space pause"
        ]
    );
    let buffer = drawn(&mut view, Theme::new(true), (84, 8), later(1.5));
    let name = |row: u16| &buffer[(2, 3 + row)];
    assert_eq!(name(0).fg, Color::Yellow);
    assert_eq!(name(1).fg, Color::Green);
    assert!(name(2).modifier.contains(Modifier::CROSSED_OUT));
    assert_eq!(name(3).fg, Color::Reset);
}

#[test]
fn the_pane_is_beside_the_table_or_below() {
    let mut fair = lock("orders:42");
    (fair.kind, fair.waiting, fair.token) = (Kind::Fair, Some(2), Some(7));
    fair.holders[0].hold_count = 2;
    fair.queue = vec![holder(8), holder(9)];
    fair.queue[1].client = None;
    fair.forced[0].at = start().wall;
    fair.forced[0].by = "lockkeeper pid 1 on a-host-with-a-rather-long-name.example".to_owned();
    fair.forced[0].holders = vec!["other:1".to_owned()];
    let mut view = view(vec![fair.clone()]);
    press(&mut view, "⏎");
    view.inspected(fair, start());
    assert_eq!(
        text(&mut view, (132, 22), later(1.5)),
        [
            " lockkeeper  redis://store  *                                                                                        ● 12:00:00 UTC",
            " 1 lock   1 held   2 waiting",
            "  NAME▴           KIND       HOLDER                        TTL  WAITERS     AGE │ orders:42",
            "  orders:42       fair       checkout pid 7 on …  █████▋   22s        2     61s │ kind    fair lock",
            "                                                                                │ state   held",
            "                                                                                │ held by checkout pid 7 on web-1",
            "                                                                                │         id",
            "                                                                                │         5ca1ab1e-0000-4000-8000-000000000000:7,",
            "                                                                                │         2 holds, for 61s, since 2026-11-15",
            "                                                                                │         11:59:00 UTC, seen within its lease",
            "                                                                                │ ttl     22s",
            "                                                                                │ waiters 2 in the queue",
            "                                                                                │ queue   1. checkout pid 8 on web-1, id",
            "                                                                                │         5ca1ab1e-0000-4000-8000-000000000000:8",
            "                                                                                │         2. 5ca1ab1e-0000-4000-8000-000000000000:9",
            "                                                                                │ token   7 was issued last",
            "                                                                                │ forced  2026-11-15 12:00:00 UTC (1s ago) by",
            "                                                                                │         lockkeeper pid 1 on",
            "                                                                                │         a-host-with-a-rather-long-name.example,",
            "                                                                                │         from other:1, reason: it hung",
            "                                                                                │",
            " ? help   q quit   / filter   enter details   u unlock   s sort   space pause   ↑↓ move"
        ]
    );
    assert_eq!(
        text(&mut view, (70, 16), later(1.5)),
        [
            " lockkeeper  redis://store  *                          ● 12:00:00 UTC",
            " 1 lock   1 held   2 waiting",
            "  NAME▴           KIND       HOLDER               TTL  WAITERS     AGE",
            "  orders:42       fair       checkout pid 7 o…    22s        2     61s",
            "──────────────────────────────────────────────────────────────────────",
            " orders:42",
            " kind    fair lock",
            " state   held",
            " held by checkout pid 7 on web-1",
            "         id 5ca1ab1e-0000-4000-8000-000000000000:7, 2 holds, for",
            "         61s, since 2026-11-15 11:59:00 UTC, seen within its lease",
            " ttl     22s",
            " waiters 2 in the queue",
            " queue   1. checkout pid 8 on web-1, id",
            "         5ca1ab1e-0000-4000-8000-000000000000:8         J K for more",
            " ? help   q quit   / filter   enter details   u unlock   s sort"
        ]
    );
}

#[test]
fn the_pane_scrolls() {
    let mut fair = lock("orders:42");
    fair.queue = (0..20).map(holder).collect();
    fair.forced.clear();
    let mut view = view(vec![fair.clone(), lock("orders:43")]);
    press(&mut view, "⏎");
    view.inspected(fair, start());
    let pane = |view: &mut View| text(view, (70, 16), start())[6..15].join("\n");
    assert!(pane(&mut view).contains("orders:42") && !pane(&mut view).contains("20. checkout"));
    press(&mut view, &"J".repeat(99));
    assert!(!pane(&mut view).contains("orders:42") && pane(&mut view).contains("20. checkout"));
    press(&mut view, "KK");
    assert!(!pane(&mut view).contains("20. checkout"), "it does not scroll past its end");
    press(&mut view, "jk");
    assert!(pane(&mut view).contains("orders:42"), "another lock is shown from its first line");
}

/// Only lockkeeper clients are notified of a force-release.
#[test]
fn the_confirmation_states_the_effect_on_the_holders() {
    let seen = |ago: u64| {
        let mut holder = holder(7);
        let (ago, every) = (Duration::from_secs(ago), Duration::from_secs(10));
        holder.seen = Some(Seen { ago, every });
        holder
    };
    let (mut left, mut unknown) = (seen(500), holder(7));
    left.left = Some(start().wall);
    unknown.client = None;
    let cases = [
        (vec![seen(9)], "the holder is notified at once and must stop"),
        (vec![seen(14)], "the holder was last seen 14s ago; it stops if it still runs"),
        (vec![left.clone()], "no job runs under it"),
        (vec![unknown.clone()], "the holder is not notified; it notices at its next renewal, if"),
        (
            vec![seen(9), seen(14), unknown, left],
            "1 notified at once, 1 not seen lately, 1 left, 1 not notified, of 4",
        ),
    ];
    for (holders, effect) in cases {
        let mut held = lock("a");
        held.holders = holders;
        let mut view = view(vec![held]);
        press(&mut view, "u");
        let screen = text(&mut view, (80, 14), start());
        assert!(screen.iter().any(|line| line.contains(&format!("│ {effect} "))), "{screen:#?}");
    }
}

#[test]
fn a_force_release_is_confirmed() {
    let mut view = some();
    press(&mut view, "jjuit hangs");
    assert_eq!(
        text(&mut view, (80, 14), later(1.5)),
        [
            " lockkeeper  redis://store  *                                    ● 12:00:00 UTC",
            " 5 locks   5 held   3 waiting",
            "  NAME▴           KIND       HOLDER                         TTL  WAITERS     AGE",
            "  gp╭ force-release ───────────────────────────────────────────────────────╮ 61s",
            "  le│ lock orders:42                                                       │ ≥1s",
            "  or│ held by checkout pid 7 on web-1                                      │ 61s",
            "  re│ the holder is notified at once and must stop                         │ 61s",
            "  st│                                                                      │ 61s",
            "    │ reason  it hangs▏                                                    │",
            "    │                                                                      │",
            "    │ enter continue   esc cancel                                          │",
            "    ╰──────────────────────────────────────────────────────────────────────╯",
            "",
            " ? help   q quit   / filter   enter details   u unlock   s sort   space pause"
        ]
    );
    press(&mut view, "⏎");
    assert_eq!(
        text(&mut view, (80, 14), later(1.5))[9..],
        [
            "    │                                                                      │",
            "    │ force-release? y yes   n no                                          │",
            "    ╰──────────────────────────────────────────────────────────────────────╯",
            "",
            " ? help   q quit   / filter   enter details   u unlock   s sort   space pause"
        ]
    );
    press(&mut view, "⎋u");
    view.paste(&("long ".repeat(50) + "end"), start());
    assert!(
        text(&mut view, (80, 14), later(1.5))[8].contains("long end▏"),
        "the end of the typed text is visible"
    );
}

#[test]
fn help_lists_the_keys() {
    let mut view = some();
    press(&mut view, "?");
    assert_eq!(
        text(&mut view, (80, 23), later(1.5)),
        [
            " lockkeeper  redis://store  *                                    ● 12:00:00 UTC",
            " 5 locks   5 held   3 waiting",
            "  NAME▴  ╭ keys ──────────────────────────────────────────────────────╮S     AGE",
            "  gpu    │ ↑ ↓  j k   previous row, next row                          │0     61s",
            "  legacy:│ PgUp PgDn  previous page, next page                        │0     ≥1s",
            "  orders:│ g  G       first row, last row                             │3     61s",
            "  report │ enter      show or hide the details of the lock            │0     61s",
            "  stuck  │ J K        scroll the details down, up                     │0     61s",
            "         │ /          filter by text in name or holder                │",
            "         │ s  S       sort by the next column, reverse the order      │",
            "         │ space      pause, resume                                   │",
            "         │ u          force-release the lock                          │",
            "         │ ctrl-l     redraw the screen                               │",
            "         │ ctrl-z     suspend                                         │",
            "         │ esc        close the details, clear the filter, or quit    │",
            "         │ q  ctrl-c  quit                                            │",
            "         │                                                            │",
            "         │ +          appeared                                        │",
            "         │ ~          holders or waiters changed                      │",
            "         │ -          removed                                         │",
            "         │ ≥          at least; its holder announces no start         │",
            "         ╰────────────────────────────────────────────────────────────╯",
            " ? help   q quit   / filter   enter details   u unlock   s sort   space pause"
        ]
    );
}

#[test]
fn the_header_shows_the_state_of_the_connection() {
    let mut view = view(vec![lock("a")]);
    let header = |view: &mut View, seconds| text(view, (80, 6), later(seconds));
    view.looked(Look { complete: false, ..look(vec![lock("a")]) }, later(1.0));
    assert_eq!(
        header(&mut view, 1.5)[..2],
        [
            " lockkeeper  redis://store  *                                    ● 12:00:01 UTC",
            " 1 lock   1 held   0 waiting   incomplete: there may be more"
        ]
    );
    view.failed("store unreachable when inspecting: no route to\u{1b}[2J host".to_owned());
    let lines = header(&mut view, 9.0);
    assert_eq!(
        (&*lines[0], &*lines[5]),
        (
            " lockkeeper  redis://store  *                    ✗ failing for 8s  12:00:01 UTC",
            " store unreachable when inspecting: no route to\\u{1b}[2J host"
        )
    );
    view.notify(Tone::Good, "a was released".to_owned(), later(9.0));
    assert_eq!(header(&mut view, 9.5)[5], " a was released", "a message comes before an error");
    view.looked(look(vec![lock("a")]), later(10.0));
    press(&mut view, " ");
    assert_eq!(
        header(&mut view, 60.0)[0],
        " lockkeeper  redis://store  *                            ‖ paused  12:00:10 UTC"
    );
}

#[test]
fn an_empty_view_states_the_reason() {
    let every = Duration::from_secs(1);
    let mut view = View::new("redis://store".to_owned(), "*".to_owned(), every, start());
    let middle = |view: &mut View| text(view, (60, 6), start())[3].trim().to_owned();
    assert_eq!(middle(&mut view), "loading…");
    view.failed("no route".to_owned());
    assert_eq!(middle(&mut view), "the store has not answered yet; retrying");
    view.looked(look(vec![]), start());
    assert_eq!(middle(&mut view), "no locks");
    press(&mut view, "/x");
    assert_eq!(middle(&mut view), "no lock matches the filter");
}

#[test]
fn the_filter_is_shown_while_typed_and_after() {
    let mut view = some();
    press(&mut view, "/ord");
    assert_eq!(
        text(&mut view, (80, 6), later(1.0))[3..],
        [
            "  orders:42       lock       checkout pid 7 on w…  █████▊   23s        3     61s",
            "",
            " /ord▏  enter applies, esc cancels"
        ]
    );
    press(&mut view, "⏎");
    assert_eq!(text(&mut view, (80, 6), later(1.0))[1], " 5 locks   5 held   3 waiting   /ord");
}

#[test]
fn the_visible_range_of_rows_is_shown() {
    let mut view = view((0..30).map(|n| lock(&format!("{n:02}"))).collect());
    press(&mut view, "⇟");
    let lines = text(&mut view, (80, 9), later(1.0));
    assert_eq!(
        (&*lines[1], lines.len()),
        (" 30 locks   30 held   0 waiting                                      7–11 of 30", 9)
    );
}

#[test]
fn the_plain_theme_has_no_colours() {
    for keys in ["", "?", "uwhy⏎", "⏎", "/x"] {
        let mut view = some();
        view.looked(look(vec![lock("comes")]), later(1.0));
        press(&mut view, keys);
        let buffer = drawn(&mut view, Theme::new(false), (100, 24), later(1.5));
        let colours = buffer.content.iter().map(|cell| (cell.fg, cell.bg));
        assert!(colours.into_iter().all(|pair| pair == (Color::Reset, Color::Reset)), "{keys}");
    }
}

#[test]
fn no_name_leaves_its_cell() {
    let mut view = view(vec![
        lock("a\u{1b}[31m\nb\u{202e}c"),
        lock(&"長い".repeat(5_000)),
        lock(&"x".repeat(10_000)),
    ]);
    assert_eq!(
        text(&mut view, (80, 7), later(1.0))[3..6],
        [
            "  a\\u{1b}[31m\\nb\\u…  lock       checkout pid 7 o…  █████▊   23s        0     61s",
            "  xxxxxxxxxxxxxxxx…  lock       checkout pid 7 o…  █████▊   23s        0     61s",
            "  長い長い長い長い…  lock       checkout pid 7 o…  █████▊   23s        0     61s"
        ]
    );
}
