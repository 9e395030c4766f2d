//! The state of the view, apart from how it is drawn.
//!
//! Pure: keys, polls and the time go in, actions come out. So it is tested without a screen.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use clap::ValueEnum;
use lockkeeper::{Kind, LockInfo, LockName};

use super::row::{Change, Now, Row};
pub(super) use crate::args::Sort as Column;
use crate::display;
use crate::row::Key;

/// How long a message stays.
const NOTICE: Duration = Duration::from_secs(8);

/// The result of one poll.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) locks: Vec<LockInfo>,
    pub(super) complete: bool,
    pub(super) took: Duration,
}

/// The state of the connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Health {
    Connecting,
    Answering,
    /// The last poll has failed.
    Failing {
        why: String,
    },
}

/// How late an answer must be to be reported.
const LATE: Duration = Duration::from_millis(1500);

impl Column {
    pub(super) fn next(self) -> Self {
        let all = Self::value_variants();
        all[(self as usize + 1) % all.len()]
    }
}

/// The meaning of keys.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mode {
    Browsing,
    /// Typing a filter.
    Filtering {
        before: String,
    },
    /// Confirming a force-release.
    Forcing(Box<Forcing>),
    Help,
}

/// A force-release before its confirmation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Forcing {
    pub(super) lock: LockInfo,
    pub(super) reason: String,
    /// The reason is complete; the confirmation is missing.
    pub(super) sure: bool,
}

/// The tone of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tone {
    Good,
    Bad,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct View {
    /// The URL of the store, without its password.
    pub(super) store: String,
    pub(super) pattern: String,
    rows: Vec<Row>,
    /// The indices of the rows that pass the filter, sorted.
    shown: Vec<usize>,
    /// By name, so that the selection stays on its lock when rows change.
    selected: Option<LockName>,
    /// The index of the selection in `shown`.
    line: usize,
    /// The first row on the screen, and the number of rows that fit.
    top: usize,
    page: usize,
    pub(super) sort: Column,
    pub(super) descending: bool,
    pub(super) filter: String,
    pub(super) mode: Mode,
    /// Whether the detail pane is open.
    pub(super) pane: bool,
    detail: Option<LockInfo>,
    /// The first visible line of the pane.
    pub(super) pane_top: usize,
    pub(super) health: Health,
    /// When the store last answered; at first, when it was first asked.
    answered_at: Instant,
    /// The polling interval, and the duration of the last poll.
    every: Duration,
    took: Duration,
    pub(super) looked: Option<SystemTime>,
    pub(super) complete: bool,
    /// The time of the pause.
    paused: Option<Now>,
    notice: Option<(Tone, String, Instant)>,
}

impl View {
    pub(super) fn new(store: String, pattern: String, every: Duration, now: Now) -> Self {
        Self {
            store,
            pattern,
            rows: Vec::new(),
            shown: Vec::new(),
            selected: None,
            line: 0,
            top: 0,
            page: 1,
            sort: Column::Name,
            descending: false,
            filter: String::new(),
            mode: Mode::Browsing,
            pane: false,
            detail: None,
            pane_top: 0,
            health: Health::Connecting,
            answered_at: now.tick,
            every,
            took: Duration::ZERO,
            looked: None,
            complete: true,
            paused: None,
            notice: None,
        }
    }

    /// Handles a successful poll.
    pub(super) fn looked(&mut self, look: Look, now: Now) {
        let first = self.looked.is_none();
        self.health = Health::Answering;
        self.answered_at = now.tick;
        self.took = look.took;
        if self.paused.is_some() {
            return;
        }
        self.looked = Some(now.wall);
        self.complete = look.complete;
        let mut known: HashMap<_, _> =
            self.rows.drain(..).map(|row| (row.lock.name.clone(), row)).collect();
        for lock in look.locks {
            // A store that grows may return a lock twice in one poll.
            self.rows.push(match known.remove(&lock.name) {
                Some(mut row) => {
                    row.update(lock, now.tick);
                    row
                }
                None => Row::new(lock, (!first).then_some(Change::Appeared), now.tick),
            });
        }
        for (_, mut row) in known {
            row.gone(now.tick);
            self.rows.push(row);
        }
        self.rows.retain(|row| !row.has_faded(now.tick));
        self.arrange(now);
    }

    /// Handles a failed poll.
    pub(super) fn failed(&mut self, why: String) {
        self.health = Health::Failing { why };
    }

    /// How long the store has not answered, if that is too long.
    pub(super) fn silent_for(&self, now: Now) -> Option<Duration> {
        let silent = now.tick.duration_since(self.answered_at);
        let late = match &self.health {
            Health::Failing { .. } => true,
            Health::Connecting => silent > LATE,
            Health::Answering => !self.is_paused() && silent > self.every + 2 * self.took + LATE,
        };
        late.then_some(silent)
    }

    /// Handles an inspection of one lock.
    pub(super) fn inspected(&mut self, lock: LockInfo, now: Now) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.lock.name == lock.name)
            && self.paused.is_none()
        {
            // The kind of a free name is unknown, so the row keeps it.
            if lock.is_free() {
                row.gone(now.tick);
            } else {
                row.update(lock.clone(), now.tick);
            }
            self.arrange(now);
        }
        if self.selected.as_ref() == Some(&lock.name) {
            self.detail = Some(lock);
        }
    }

    /// Shows a message.
    pub(super) fn notify(&mut self, tone: Tone, text: String, now: Now) {
        self.notice = Some((tone, text, now.tick));
    }

    pub(super) fn notice(&self, now: Now) -> Option<(Tone, &str)> {
        let (tone, text, at) = self.notice.as_ref()?;
        (now.tick.duration_since(*at) < NOTICE).then_some((*tone, &**text))
    }

    /// Hides rows that were removed long ago.
    pub(super) fn tick(&mut self, now: Now) {
        if self.paused.is_none() && self.rows.iter().any(|row| row.has_faded(now.tick)) {
            self.rows.retain(|row| !row.has_faded(now.tick));
            self.arrange(now);
        }
    }

    /// Sets the number of rows that fit.
    pub(super) fn resized(&mut self, page: usize) {
        self.page = page.max(1);
        self.scroll();
    }

    /// The time to show. It is frozen during a pause: without polls, a countdown would show an expiry that
    /// has not happened.
    pub(super) fn shown_at(&self, now: Now) -> Now {
        self.paused.unwrap_or(now)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    pub(super) fn set_paused(&mut self, paused: bool, now: Now) {
        self.paused = paused.then_some(now);
        self.answered_at = now.tick;
    }

    /// The rows on the screen, and whether each is selected.
    pub(super) fn visible(&self) -> impl Iterator<Item = (&Row, bool)> {
        let rows = self.shown.iter().skip(self.top).take(self.page);
        rows.map(|at| {
            let row = &self.rows[*at];
            (row, self.selected.as_ref() == Some(&row.lock.name))
        })
    }

    /// The number of rows that pass the filter, and the first one on the screen.
    pub(super) fn extent(&self) -> (usize, usize) {
        (self.shown.len(), self.top)
    }

    /// The numbers of locks, of held locks, and of waiters.
    pub(super) fn counts(&self) -> (usize, usize, u64) {
        let there = || self.rows.iter().filter(|row| !row.is_gone());
        let held = there().filter(|row| !row.lock.holders.is_empty()).count();
        (there().count(), held, there().filter_map(|row| row.lock.waiting).sum())
    }

    pub(super) fn selected(&self) -> Option<&Row> {
        let name = self.selected.as_ref()?;
        self.rows.iter().find(|row| row.lock.name == *name)
    }

    /// The lock in the pane: its inspection, or before that its row.
    pub(super) fn detail(&self) -> Option<(&Row, &LockInfo)> {
        let row = self.selected()?;
        let detail = self.detail.as_ref().filter(|detail| detail.name == row.lock.name);
        Some((row, detail.unwrap_or(&row.lock)))
    }

    /// The first visible line of the pane, at most `last`.
    pub(super) fn scroll_pane(&mut self, last: usize) -> usize {
        self.pane_top = self.pane_top.min(last);
        self.pane_top
    }

    /// Moves the selection.
    pub(super) fn step(&mut self, by: isize) {
        self.select(self.line.saturating_add_signed(by));
    }

    /// Selects a line, or the last one.
    pub(super) fn select(&mut self, line: usize) {
        self.line = line.min(self.shown.len().saturating_sub(1));
        let name = self.shown.get(self.line).map(|at| self.rows[*at].lock.name.clone());
        if name != self.selected {
            self.pane_top = 0;
        }
        self.selected = name;
        self.scroll();
    }

    pub(super) fn page(&self) -> isize {
        isize::try_from(self.page).unwrap_or(isize::MAX)
    }

    /// Keeps the selection on the screen and the screen full.
    fn scroll(&mut self) {
        let last = self.shown.len().saturating_sub(self.page);
        self.top = self.top.clamp((self.line + 1).saturating_sub(self.page), self.line).min(last);
    }

    /// Sorts and filters. The selection stays on its lock, or on its line if the lock was removed.
    pub(super) fn arrange(&mut self, now: Now) {
        let needle = self.filter.to_lowercase();
        let rows = &self.rows;
        let fitting = (0..rows.len()).filter(|at| fits(&rows[*at], &needle));
        // Each key is computed once: there may be a hundred thousand rows.
        let mut keyed: Vec<_> = fitting.map(|at| (rows[at].key(self.sort, now), at)).collect();
        let descending = self.descending;
        keyed.sort_unstable_by(|(a, x), (b, y)| {
            let names = || rows[*x].lock.name.cmp(&rows[*y].lock.name);
            match (descending, a) {
                (true, Key::Name) => names().reverse(),
                (true, _) => b.cmp(a).then_with(names),
                (false, _) => a.cmp(b).then_with(names),
            }
        });
        let shown: Vec<_> = keyed.into_iter().map(|(_, at)| at).collect();
        let same = shown.iter().position(|at| self.selected.as_ref() == Some(&rows[*at].lock.name));
        self.shown = shown;
        self.select(same.unwrap_or(self.line));
    }
}

fn fits(row: &Row, needle: &str) -> bool {
    let has = |text: String| text.to_lowercase().contains(needle);
    needle.is_empty() || has(display::name(&row.lock.name)) || has(display::holders(&row.lock))
}

/// Whether a lock of this kind can be force-released: counters have no holders to notify.
pub(super) fn can_be_forced(kind: Kind) -> bool {
    !matches!(kind, Kind::Semaphore | Kind::Permits | Kind::Latch)
}
