//! Effects of keys and polls on the view.

use std::time::Duration;

use clap::ValueEnum;
use lockkeeper::{Kind, Ttl};

use super::fixture::*;
use super::keys::Action;
use super::row::{Age, Change};
use super::view::{Column, Health, Look, Mode, Tone};

/// The marks of the rows, by name.
fn marks(view: &super::view::View, seconds: f64) -> Vec<(String, Option<Change>)> {
    let rows = view.visible();
    rows.map(|(row, _)| (row.lock.name.to_string(), row.mark(later(seconds).tick))).collect()
}

#[test]
fn locks_of_the_first_poll_are_not_marked() {
    let view = view(vec![lock("a")]);
    assert_eq!(marks(&view, 0.0), [("a".to_owned(), None)]);
}

#[test]
fn appeared_changed_and_removed_locks_are_marked_for_a_moment() {
    let mut view = view(vec![lock("changes"), lock("goes"), lock("stays")]);
    let mut changed = lock("changes");
    changed.waiting = Some(1);
    let mut renewed = lock("stays");
    renewed.ttl = Some(Ttl::For(Duration::from_secs(30)));
    view.looked(look(vec![changed, lock("comes"), renewed]), later(1.0));
    let named = |name: &str, change| (name.to_owned(), change);
    assert_eq!(
        marks(&view, 1.5),
        [
            named("changes", Some(Change::Changed)),
            named("comes", Some(Change::Appeared)),
            named("goes", Some(Change::Gone)),
            named("stays", None),
        ]
    );
    assert_eq!(view.counts(), (3, 3, 1), "a removed lock is not counted");
    view.tick(later(3.9));
    assert_eq!(
        names(&view),
        ["changes", "comes", "goes", "stays"],
        "a removed lock stays for a moment"
    );
    view.tick(later(4.1));
    assert_eq!(marks(&view, 4.1), ["changes", "comes", "stays"].map(|name| named(name, None)));
}

#[test]
fn a_removed_lock_that_comes_back_appears_again() {
    let mut view = view(vec![lock("a")]);
    view.looked(look(vec![]), later(1.0));
    assert_eq!(marks(&view, 1.0), [("a".to_owned(), Some(Change::Gone))]);
    view.looked(look(vec![lock("a")]), later(2.0));
    assert_eq!(marks(&view, 2.0), [("a".to_owned(), Some(Change::Appeared))]);
    view.tick(later(9.0));
    assert_eq!(names(&view), ["a"]);
}

#[test]
fn the_order_of_holders_is_no_change() {
    let mut shared = lock("a");
    shared.holders.push(holder(8));
    let mut view = view(vec![shared.clone()]);
    shared.holders.reverse();
    view.looked(look(vec![shared]), later(1.0));
    assert_eq!(marks(&view, 1.0), [("a".to_owned(), None)]);
}

#[test]
fn the_ttl_counts_down_between_polls() {
    let mut view = view(vec![lock("a")]);
    let left = |view: &super::view::View, seconds| {
        let (row, _) = view.visible().next().unwrap();
        let now = later(seconds).tick;
        (row.remaining(now), (row.part_left(now).unwrap() * 100.0).round())
    };
    let secs = |secs| Some(Ttl::For(Duration::from_secs(secs)));
    assert_eq!(left(&view, 0.0), (secs(24), 100.0), "the longest TTL seen is a full gauge");
    assert_eq!(left(&view, 6.0), (secs(18), 75.0));
    assert_eq!(left(&view, 99.0), (secs(0), 0.0));
    let mut renewed = lock("a");
    renewed.ttl = secs(30);
    view.looked(look(vec![renewed]), later(1.0));
    assert_eq!(left(&view, 1.0), (secs(30), 100.0));
    assert_eq!(left(&view, 16.0), (secs(15), 50.0));
}

#[test]
fn the_age_is_announced_by_the_holder_or_observed() {
    let mut unknown = lock("a");
    unknown.holders[0].since = None;
    let mut view = view(vec![unknown.clone(), lock("b")]);
    let ages = |view: &super::view::View, seconds| -> Vec<_> {
        view.visible().map(|(row, _)| row.age(later(seconds))).collect()
    };
    let span = Duration::from_secs;
    assert_eq!(ages(&view, 5.0), [Some(Age::AtLeast(span(5))), Some(Age::Known(span(65)))]);
    view.looked(look(vec![unknown.clone(), lock("b")]), later(6.0));
    assert_eq!(ages(&view, 7.0)[0], Some(Age::AtLeast(span(7))), "a poll does not reset it");
    unknown.holders[0].id = "other:1".to_owned();
    view.looked(look(vec![unknown, lock("b")]), later(8.0));
    assert_eq!(ages(&view, 9.0)[0], Some(Age::AtLeast(span(1))), "another holder resets it");
}

#[test]
fn the_selection_stays_on_its_lock() {
    let mut view = view(vec![lock("b"), lock("d")]);
    assert_eq!(selected(&view).as_deref(), Some("b"), "the first row at the start");
    press(&mut view, "j");
    view.looked(look(vec![lock("a"), lock("b"), lock("c"), lock("d")]), later(1.0));
    assert_eq!(selected(&view).as_deref(), Some("d"));
    press(&mut view, "k");
    view.looked(look(vec![lock("a"), lock("b"), lock("d")]), later(2.0));
    view.tick(later(9.0));
    assert_eq!(selected(&view).as_deref(), Some("d"), "or on its line if the lock was removed");
    press(&mut view, "jjj");
    assert_eq!(selected(&view).as_deref(), Some("d"), "at most the last line");
}

#[test]
fn the_page_follows_the_selection() {
    let mut view = view((0..30).map(|n| lock(&format!("{n:02}"))).collect());
    let edges = |view: &super::view::View| {
        let names = names(view);
        (names[0].clone(), names[names.len() - 1].clone())
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(edges(&view), pair("00", "09"));
    press(&mut view, "↓↓↓↓↓↓↓↓↓↓");
    assert_eq!(edges(&view), pair("01", "10"));
    press(&mut view, "⇟");
    assert_eq!((edges(&view), selected(&view).unwrap()), (pair("11", "20"), "20".to_owned()));
    press(&mut view, "G");
    assert_eq!(edges(&view), pair("20", "29"));
    press(&mut view, "⇞↑");
    assert_eq!((edges(&view), selected(&view).unwrap()), (pair("18", "27"), "18".to_owned()));
    press(&mut view, "g");
    assert_eq!(edges(&view), pair("00", "09"));
    press(&mut view, "G");
    view.resized(40);
    assert_eq!(edges(&view), pair("00", "29"), "a page that has room for all shows all");
}

#[test]
fn a_filter_matches_names_and_holders() {
    let mut other = lock("orders:2");
    other.holders[0].client.as_mut().unwrap().host = "db-9".to_owned();
    let mut view = view(vec![lock("orders:1"), other, lock("backup")]);
    press(&mut view, "/ORD");
    assert_eq!(names(&view), ["orders:1", "orders:2"], "while it is typed, ignoring case");
    press(&mut view, "⌫⌫⌫db-⏎");
    assert_eq!((names(&view), &view.mode), (vec!["orders:2".to_owned()], &Mode::Browsing));
    press(&mut view, "/x");
    assert_eq!(names(&view), [""; 0]);
    press(&mut view, "⎋");
    assert_eq!(names(&view), ["orders:2"], "the previous filter");
    assert_eq!(press(&mut view, "⎋"), None, "clears the filter");
    assert_eq!(names(&view).len(), 3);
    press(&mut view, "/q");
    assert_eq!(names(&view), [""; 0], "no key is a command while typing");
    control(&mut view, 'u');
    assert_eq!(names(&view).len(), 3);
}

#[test]
fn rows_are_sorted_by_each_column() {
    let mut waited = lock("a");
    (waited.waiting, waited.ttl) = (Some(5), Some(Ttl::Forever));
    let mut old = lock("c");
    old.holders[0].since = Some(start().wall - Duration::from_secs(600));
    old.ttl = Some(Ttl::For(Duration::from_secs(3)));
    let mut view = view(vec![waited, lock("b"), old]);
    assert_eq!(names(&view), ["a", "b", "c"]);
    press(&mut view, "S");
    assert_eq!(names(&view), ["c", "b", "a"]);
    let mut seen = Vec::new();
    for _ in Column::value_variants() {
        press(&mut view, "s");
        seen.push((view.sort, names(&view)[0].clone()));
    }
    let first = |column, name: &str| (column, name.to_owned());
    assert_eq!(seen[3], first(Column::Ttl, "c"), "soonest to expire");
    assert_eq!(seen[4], first(Column::Waiters, "a"), "most waiters");
    assert_eq!(seen[5], first(Column::Age, "c"), "longest held");
    assert_eq!(seen[6], first(Column::Name, "a"), "back to the first column");
}

#[test]
fn the_pane_inspects_the_selected_lock() {
    let mut mutex = lock("b");
    mutex.kind = Kind::Mutex;
    let mut view = view(vec![lock("a"), mutex]);
    assert_eq!(press(&mut view, "j"), None, "a closed pane inspects nothing");
    assert_eq!(press(&mut view, "⏎"), Some(Action::Inspect(name("b"), Kind::Mutex)));
    assert_eq!(press(&mut view, "k"), Some(Action::Inspect(name("a"), Kind::Lock)));
    let mut inspected = lock("a");
    inspected.token = Some(42);
    view.inspected(inspected, later(0.5));
    assert_eq!(view.detail().unwrap().1.token, Some(42));
    press(&mut view, "j");
    assert_eq!(view.detail().unwrap().1.token, None, "not that of another lock");
    assert_eq!(press(&mut view, "⎋"), None);
    assert!(!view.pane);
    assert_eq!(press(&mut view, "⎋"), Some(Action::Quit));
}

fn holders(name: &str) -> Vec<lockkeeper::Holder> {
    lock(name).holders
}

#[test]
fn a_force_release_needs_a_reason_and_a_yes() {
    let mut view = view(vec![lock("a")]);
    for (keys, why) in [("u⏎y", "no reason"), ("u  ⏎y", "spaces"), ("uit hangs⏎n", "a no")] {
        assert_eq!(press(&mut view, keys), None, "{why}");
        press(&mut view, "⎋");
        assert_eq!(view.mode, Mode::Browsing);
    }
    let forced = Action::Force {
        name: name("a"),
        kind: Kind::Lock,
        reason: "it hangs".into(),
        from: holders("a"),
    };
    assert_eq!(press(&mut view, "uit hangsx⌫⏎y"), Some(forced.clone()));
    assert_eq!(view.mode, Mode::Browsing);
    press(&mut view, "u");
    view.paste("it\nhangs\ny\u{1b}", start());
    assert_eq!(press(&mut view, "⏎x⏎"), None, "pasted text is no key, and only y confirms");
    let reason = "ithangsy".to_owned();
    assert_eq!(
        press(&mut view, "y"),
        Some(Action::Force { name: name("a"), kind: Kind::Lock, reason, from: holders("a") })
    );
}

#[test]
fn the_confirmed_lock_is_released_even_if_the_selection_moves() {
    let mut view = view(vec![lock("b")]);
    press(&mut view, "uit hangs⏎");
    view.looked(look(vec![lock("a")]), later(1.0));
    view.tick(later(9.0));
    assert_eq!(selected(&view).as_deref(), Some("a"));
    let reason = "it hangs".to_owned();
    assert_eq!(
        press(&mut view, "y"),
        Some(Action::Force { name: name("b"), kind: Kind::Lock, reason, from: holders("b") })
    );
}

#[test]
fn counters_and_removed_locks_cannot_be_force_released() {
    let mut latch = lock("a");
    latch.kind = Kind::Latch;
    let mut view = view(vec![latch]);
    press(&mut view, "u");
    assert_eq!(view.mode, Mode::Browsing);
    let (tone, text) = view.notice(start()).unwrap();
    assert!(tone == Tone::Bad && text.contains("count-down latch"), "{text}");
    assert_eq!(view.notice(later(20.0)), None, "a message disappears");
    let mut permits = lock("a");
    permits.kind = Kind::Permits;
    let mut view = super::fixture::view(vec![permits]);
    press(&mut view, "u");
    let (_, text) = view.notice(start()).unwrap();
    assert!(text.contains("with lockkeeper unlock"), "{text}");
    let mut gone = super::fixture::view(vec![lock("a")]);
    gone.looked(look(vec![]), later(1.0));
    press(&mut gone, "u");
    assert_eq!(gone.mode, Mode::Browsing);
}

#[test]
fn a_lock_that_is_free_is_marked_as_removed() {
    let mut view = view(vec![lock("a")]);
    let mut free = lock("a");
    free.holders.clear();
    free.ttl = None;
    view.inspected(free, later(0.5));
    assert_eq!(marks(&view, 0.5), [("a".to_owned(), Some(Change::Gone))]);
}

#[test]
fn time_is_frozen_during_a_pause() {
    let mut view = view(vec![lock("a")]);
    assert_eq!(press(&mut view, " "), Some(Action::Pause(true)));
    view.looked(look(vec![lock("b")]), later(1.0));
    assert_eq!(names(&view), ["a"], "a poll in progress changes nothing");
    assert_eq!(view.shown_at(later(9.0)).tick, start().tick);
    assert_eq!(view.silent_for(later(99.0)), None, "there are no polls during a pause");
    assert_eq!(press(&mut view, " "), Some(Action::Pause(false)));
    assert_eq!(view.shown_at(later(9.0)).tick, later(9.0).tick);
}

#[test]
fn a_store_that_does_not_answer_is_reported() {
    let mut view = view(vec![lock("a")]);
    assert_eq!(view.silent_for(later(2.0)), None);
    assert_eq!(view.silent_for(later(4.0)), Some(Duration::from_secs(4)), "before any error");
    view.failed("no route".to_owned());
    assert_eq!(view.health, Health::Failing { why: "no route".to_owned() });
    assert_eq!(view.silent_for(later(6.0)), Some(Duration::from_secs(6)));
    assert_eq!(names(&view), ["a"], "the last known locks stay");
    view.looked(Look { complete: false, ..look(vec![]) }, later(7.0));
    assert_eq!((&view.health, view.complete), (&Health::Answering, false));
    assert_eq!(view.silent_for(later(7.0)), None);
}

#[test]
fn control_keys_work_in_every_mode() {
    for keys in ["", "/x", "u", "?"] {
        let mut view = view(vec![lock("a")]);
        press(&mut view, keys);
        assert_eq!(control(&mut view, 'c'), Some(Action::Quit), "{keys:?}");
        assert_eq!(control(&mut view, 'z'), Some(Action::Suspend), "{keys:?}");
        assert_eq!(control(&mut view, 'l'), Some(Action::Redraw), "{keys:?}");
    }
    let mut view = view(vec![]);
    assert_eq!(press(&mut view, "?⎋"), None, "any key closes the help");
    assert_eq!(press(&mut view, "?q"), Some(Action::Quit));
    assert_eq!(press(&mut view, "q"), Some(Action::Quit));
    for keys in ["⏎", "j", "k", "G", "g", "⇟", "⇞", "u", "s", "S"] {
        assert_eq!(press(&mut view, keys), None, "no action without locks: {keys}");
    }
}
