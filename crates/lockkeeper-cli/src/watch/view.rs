//! What the screen shows, apart from how it is drawn.
//!
//! Pure: keys, looks and the time go in, and what is to be done about them comes out. So everything
//! that can go wrong in a screen full of moving things is tested without one.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use lockkeeper::{Kind, LockInfo, LockName, Remaining};

use super::row::{Age, Change, Now, Row};
use crate::display;

/// How long a message stays.
const NOTICE: Duration = Duration::from_secs(8);

/// What one look at the store has brought.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) locks: Vec<LockInfo>,
    pub(super) complete: bool,
    /// How long it took.
    pub(super) took: Duration,
}

/// How the store is doing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Health {
    /// It has not been heard of yet.
    Connecting,
    /// It has answered.
    Answering,
    /// The last look has failed.
    Failing { why: String },
}

/// How late an answer must be to be missed.
const LATE: Duration = Duration::from_millis(1500);

/// A column that rows can be sorted by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Column {
    Name,
    Kind,
    Holder,
    Holds,
    Ttl,
    Waiters,
    Age,
}

impl Column {
    pub(super) const ALL: [Column; 7] = [
        Column::Name,
        Column::Kind,
        Column::Holder,
        Column::Holds,
        Column::Ttl,
        Column::Waiters,
        Column::Age,
    ];

    pub(super) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|column| *column == self).unwrap_or_default();
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// What one is after when sorting by it: the most waited for, the longest held, the next to end.
    pub(super) fn starts_descending(self) -> bool {
        matches!(self, Column::Holds | Column::Waiters | Column::Age)
    }
}

/// What keys mean at the moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mode {
    Browsing,
    /// Typing a filter; this is what it was before.
    Filtering {
        before: String,
    },
    /// About to take a lock away.
    Forcing(Box<Forcing>),
    Help,
}

/// A lock that is about to be taken away.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Forcing {
    pub(super) lock: LockInfo,
    pub(super) reason: String,
    /// The reason is given; only a yes is missing.
    pub(super) sure: bool,
}

/// What a message is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tone {
    Good,
    Bad,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct View {
    /// Where the locks are, without anything secret.
    pub(super) store: String,
    pub(super) pattern: String,
    rows: Vec<Row>,
    /// The rows to be seen, in their order.
    shown: Vec<usize>,
    /// By name, so that it stays where it is when rows come and go above it.
    selected: Option<LockName>,
    /// Its line among those shown.
    line: usize,
    /// The first line on the screen, and how many there are.
    top: usize,
    page: usize,
    pub(super) sort: Column,
    pub(super) descending: bool,
    pub(super) filter: String,
    pub(super) mode: Mode,
    /// Whether the pane with everything about one lock is open.
    pub(super) pane: bool,
    /// What is in it.
    detail: Option<LockInfo>,
    /// Its first line.
    pub(super) pane_top: usize,
    pub(super) health: Health,
    /// When the store was last heard of; at first, when it was first asked.
    heard: Instant,
    /// How often it is looked at, and how long the last look took.
    every: Duration,
    took: Duration,
    pub(super) looked: Option<SystemTime>,
    pub(super) complete: bool,
    /// When time stopped.
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
            heard: now.tick,
            every,
            took: Duration::ZERO,
            looked: None,
            complete: true,
            paused: None,
            notice: None,
        }
    }

    /// The store has been looked at.
    pub(super) fn looked(&mut self, look: Look, now: Now) {
        let first = self.looked.is_none();
        self.health = Health::Answering;
        self.heard = now.tick;
        self.took = look.took;
        if self.paused.is_some() {
            return;
        }
        self.looked = Some(now.wall);
        self.complete = look.complete;
        let mut known: HashMap<_, _> =
            self.rows.drain(..).map(|row| (row.lock.name.clone(), row)).collect();
        for lock in look.locks {
            // On a store that grows, a lock may come twice in one look.
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

    /// A look has failed.
    pub(super) fn failed(&mut self, why: String) {
        self.health = Health::Failing { why };
    }

    /// For how long the store has not been heard of, if that is longer than it should be.
    pub(super) fn silent_for(&self, now: Now) -> Option<Duration> {
        let silent = now.tick.duration_since(self.heard);
        let late = match &self.health {
            Health::Failing { .. } => true,
            Health::Connecting => silent > LATE,
            Health::Answering => !self.is_paused() && silent > self.every + 2 * self.took + LATE,
        };
        late.then_some(silent)
    }

    /// Everything about one lock has been told.
    pub(super) fn inspected(&mut self, lock: LockInfo, now: Now) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.lock.name == lock.name)
            && self.paused.is_none()
        {
            // As what it was: nothing tells a free name's kind.
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

    /// A line for the user to read.
    pub(super) fn tell(&mut self, tone: Tone, text: String, now: Now) {
        self.notice = Some((tone, text, now.tick));
    }

    pub(super) fn notice(&self, now: Now) -> Option<(Tone, &str)> {
        let (tone, text, at) = self.notice.as_ref()?;
        (now.tick.duration_since(*at) < NOTICE).then_some((*tone, &**text))
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Now) {
        if self.paused.is_none() && self.rows.iter().any(|row| row.has_faded(now.tick)) {
            self.rows.retain(|row| !row.has_faded(now.tick));
            self.arrange(now);
        }
    }

    /// So many rows have room.
    pub(super) fn resized(&mut self, page: usize) {
        self.page = page.max(1);
        self.scroll();
    }

    /// The present as it is shown: it stands still while the view is paused, so that a countdown that
    /// nobody corrects does not tell of an end that has not come.
    pub(super) fn shown_at(&self, now: Now) -> Now {
        self.paused.unwrap_or(now)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    pub(super) fn set_paused(&mut self, paused: bool, now: Now) {
        self.paused = paused.then_some(now);
        self.heard = now.tick;
    }

    /// The rows on the screen, and which of them is selected.
    pub(super) fn visible(&self) -> impl Iterator<Item = (&Row, bool)> {
        let rows = self.shown.iter().skip(self.top).take(self.page);
        rows.map(|at| {
            let row = &self.rows[*at];
            (row, self.selected.as_ref() == Some(&row.lock.name))
        })
    }

    /// How many rows there are to be seen, and the first one on the screen.
    pub(super) fn extent(&self) -> (usize, usize) {
        (self.shown.len(), self.top)
    }

    /// All locks, those held, and how many wait for one.
    pub(super) fn counts(&self) -> (usize, usize, u64) {
        let there = || self.rows.iter().filter(|row| !row.is_gone());
        let held = there().filter(|row| !row.lock.holders.is_empty()).count();
        (there().count(), held, there().filter_map(|row| row.lock.waiting).sum())
    }

    pub(super) fn selected(&self) -> Option<&Row> {
        let name = self.selected.as_ref()?;
        self.rows.iter().find(|row| row.lock.name == *name)
    }

    /// What is known of the lock in the pane: everything, once that has been told; until then what
    /// the list says.
    pub(super) fn detail(&self) -> Option<(&Row, &LockInfo)> {
        let row = self.selected()?;
        let told = self.detail.as_ref().filter(|detail| detail.name == row.lock.name);
        Some((row, told.unwrap_or(&row.lock)))
    }

    /// The first line of the pane, which is at most `last`.
    pub(super) fn scroll_pane(&mut self, last: usize) -> usize {
        self.pane_top = self.pane_top.min(last);
        self.pane_top
    }

    /// Moves the selection by so many rows.
    pub(super) fn step(&mut self, by: isize) {
        self.select(self.line.saturating_add_signed(by));
    }

    /// Selects a line, or the last one if there are not so many.
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

    /// Keeps the selection on the screen, and the screen full.
    fn scroll(&mut self) {
        let last = self.shown.len().saturating_sub(self.page);
        self.top = self.top.clamp((self.line + 1).saturating_sub(self.page), self.line).min(last);
    }

    /// Sorts and filters anew. The selection stays with its lock; if that is gone, with its line.
    pub(super) fn arrange(&mut self, now: Now) {
        let needle = self.filter.to_lowercase();
        let rows = &self.rows;
        let fitting = (0..rows.len()).filter(|at| fits(&rows[*at], &needle));
        // Each key is made once: there may be a hundred thousand rows.
        let mut keyed: Vec<_> =
            fitting.map(|at| (Key::of(&rows[at], self.sort, now), at)).collect();
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

/// What a row is sorted by; what has nothing to compare comes last. Names decide in the end anyway.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
enum Key {
    Name,
    Text(String),
    Number(u64),
    Span(Duration),
}

impl Key {
    fn of(row: &Row, by: Column, now: Now) -> Self {
        match by {
            Column::Name => Key::Name,
            Column::Kind => Key::Text(row.lock.kind.as_str().to_owned()),
            Column::Holder => Key::Text(display::holders(&row.lock)),
            Column::Holds => Key::Number(display::holds(&row.lock)),
            Column::Ttl => Key::Span(match row.remaining(now.tick) {
                Remaining::For(left) => left,
                Remaining::Forever | Remaining::Free => Duration::MAX,
            }),
            Column::Waiters => Key::Number(row.lock.waiting.unwrap_or_default()),
            Column::Age => Key::Span(match row.age(now) {
                Some(Age::Known(age) | Age::AtLeast(age)) => age,
                None => Duration::ZERO,
            }),
        }
    }
}

/// Whether a lock of this kind can be taken away: counters have no holders who could be told.
pub(super) fn can_be_forced(kind: Kind) -> bool {
    !matches!(kind, Kind::Semaphore | Kind::Permits | Kind::Latch)
}
