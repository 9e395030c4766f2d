//! Locks for tests, derived from one that the library returns: its constructors are private.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use lockkeeper::{Client, ClientInfo, Holder, Kind, LockInfo, LockName, Ttl};

use super::keys::Action;
use super::row::Now;
use super::view::{Look, View};

/// A lock with one holder and a remaining TTL of 24 of 30 seconds.
pub(super) fn lock(name: &str) -> LockInfo {
    let mut lock = inspected(name);
    lock.ttl = Some(Ttl::For(Duration::from_secs(24)));
    lock.waiting = Some(0);
    lock.holders[0] = holder(7);
    lock
}

/// The inspection of a lock that was force-released once and is held again.
pub(super) fn inspected(name: &str) -> LockInfo {
    static INSPECTED: LazyLock<LockInfo> = LazyLock::new(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let client = Client::memory();
            let lost = client.lock("any").lock().await.unwrap();
            client.inspector().force_unlock("any", Kind::Lock, None, "it hung").await.unwrap();
            drop(lost);
            let _held = client.lock("any").lock().await.unwrap();
            client.inspector().inspect("any").await.unwrap()
        })
    });
    let mut inspected = INSPECTED.clone();
    inspected.name = LockName::from(name);
    inspected.forced[0].clients = vec![None];
    inspected
}

/// A fully known holder, since a minute before the [`start`].
pub(super) fn holder(pid: u32) -> Holder {
    let mut client = ClientInfo::of_this_process();
    (client.host, client.pid, client.program) = ("web-1".to_owned(), pid, "checkout".to_owned());
    client.started = start().wall - Duration::from_secs(120);
    let mut holder = inspected("any").holders.remove(0);
    holder.id = format!("5ca1ab1e-0000-4000-8000-000000000000:{pid}");
    holder.since = Some(start().wall - Duration::from_secs(60));
    holder.client = Some(client);
    holder.seen = None;
    holder
}

/// The start time of a test: 2026-11-15 12:00:00 UTC.
pub(super) fn start() -> Now {
    static TICK: LazyLock<Instant> = LazyLock::new(Instant::now);
    let wall: SystemTime = UNIX_EPOCH + Duration::from_secs(1_794_744_000);
    Now { tick: *TICK, wall }
}

/// A number of seconds after the start.
pub(super) fn later(seconds: f64) -> Now {
    let span = Duration::from_secs_f64(seconds);
    Now { tick: start().tick + span, wall: start().wall + span }
}

/// A view with these locks at the start, and ten rows per page.
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

/// Presses keys at the start: one per character, with `⏎ ⎋ ⌫ ↓ ↑ ⇟ ⇞` for special keys. Returns the
/// action of the last one.
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
