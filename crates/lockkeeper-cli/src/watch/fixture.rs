//! Locks for tests. Only the library can make one, so it is asked for one, which is then changed.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use lockkeeper::{Client, ClientInfo, Holder, Kind, LockInfo, LockName, Remaining};

use super::keys::Action;
use super::row::Now;
use super::view::{Look, View};

/// A lock that one process holds and whose lease has 24 of 30 seconds left.
pub(super) fn lock(name: &str) -> LockInfo {
    let mut lock = told(name);
    lock.remaining = Remaining::For(Duration::from_secs(24));
    lock.waiting = Some(0);
    lock.holders[0] = holder(7);
    lock
}

/// What the library tells of a lock that was forced open once and is held again.
pub(super) fn told(name: &str) -> LockInfo {
    static TOLD: LazyLock<LockInfo> = LazyLock::new(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let client = Client::memory();
            let lost = client.lock("any").lock().await.unwrap();
            client.inspector().force_unlock("any", Kind::Lock, "it hung").await.unwrap();
            drop(lost);
            let _held = client.lock("any").lock().await.unwrap();
            client.inspector().inspect("any").await.unwrap()
        })
    });
    let mut told = TOLD.clone();
    told.name = LockName::from(name);
    told.forced[0].clients = vec![None];
    told
}

/// A holder of which everything is known, since a minute before the [`start`].
pub(super) fn holder(pid: u32) -> Holder {
    let mut client = ClientInfo::of_this_process();
    (client.host, client.pid, client.program) = ("web-1".to_owned(), pid, "checkout".to_owned());
    client.started = start().wall - Duration::from_secs(120);
    let mut holder = told("any").holders.remove(0);
    holder.id = format!("5ca1ab1e-0000-4000-8000-000000000000:{pid}");
    holder.since = Some(start().wall - Duration::from_secs(60));
    holder.client = Some(client);
    holder.seen = None;
    holder
}

/// The beginning of a test's time: 2026-11-15 12:00:00 UTC.
pub(super) fn start() -> Now {
    static TICK: LazyLock<Instant> = LazyLock::new(Instant::now);
    let wall: SystemTime = UNIX_EPOCH + Duration::from_secs(1_794_744_000);
    Now { tick: *TICK, wall }
}

/// So many seconds later.
pub(super) fn later(seconds: f64) -> Now {
    let span = Duration::from_secs_f64(seconds);
    Now { tick: start().tick + span, wall: start().wall + span }
}

/// A view that has seen these at the start, with room for ten rows.
pub(super) fn view(locks: Vec<LockInfo>) -> View {
    let every = Duration::from_secs(1);
    let mut view = View::new("redis://store".to_owned(), "*".to_owned(), every, start());
    view.resized(10);
    view.looked(look(locks), start());
    view
}

pub(super) fn look(locks: Vec<LockInfo>) -> Look {
    Look { locks, complete: true, took: Duration::ZERO }
}

/// Presses keys, at the start: a character each, and `⏎ ⎋ ⌫ ↓ ↑ ⇟ ⇞` for those that have none. What
/// the last one asks for comes back.
pub(super) fn press(view: &mut View, keys: &str) -> Option<Action> {
    let code = |key| match key {
        '⏎' => KeyCode::Enter,
        '⎋' => KeyCode::Esc,
        '⌫' => KeyCode::Backspace,
        '↓' => KeyCode::Down,
        '↑' => KeyCode::Up,
        '⇟' => KeyCode::PageDown,
        '⇞' => KeyCode::PageUp,
        c => KeyCode::Char(c),
    };
    let press = |key| view.key(KeyEvent::new(code(key), KeyModifiers::NONE), start());
    keys.chars().map(press).last().flatten()
}

pub(super) fn control(view: &mut View, key: char) -> Option<Action> {
    view.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL), start())
}

/// The names on the screen.
pub(super) fn names(view: &View) -> Vec<String> {
    view.visible().map(|(row, _)| row.lock.name.to_string()).collect()
}

pub(super) fn selected(view: &View) -> Option<String> {
    view.selected().map(|row| row.lock.name.to_string())
}

pub(super) fn name(text: &str) -> LockName {
    LockName::from(text)
}
