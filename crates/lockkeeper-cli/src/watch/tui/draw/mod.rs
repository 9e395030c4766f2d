//! Draws the view.

mod boxes;
mod pane;
mod table;
mod theme;

#[cfg(test)]
mod tests;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::row::Now;
use super::view::{Health, Mode, Tone, View};
use crate::table::cut;
use crate::{display, timestamp};

pub(super) use theme::Theme;

/// From this width on the pane is beside the table, otherwise below it.
const WIDE: u16 = 120;

pub(super) fn draw(frame: &mut Frame<'_>, view: &mut View, theme: &Theme, now: Now) {
    let [header, body, footer] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    let body = match view.pane {
        true => {
            let (body, pane) = split(body, view.extent().0);
            pane::draw(frame, pane, view, theme, now);
            body
        }
        false => body,
    };
    // The heading takes a line.
    view.resized(usize::from(body.height.saturating_sub(1)));
    draw_header(frame, header, view, theme, now);
    table::draw(frame, body, view, theme, view.shown_at(now));
    draw_footer(frame, footer, view, theme, now);
    match &view.mode {
        Mode::Help => boxes::help(frame, theme),
        Mode::Forcing(forcing) => boxes::forcing(frame, forcing, theme),
        Mode::Browsing | Mode::Filtering { .. } => {}
    }
}

/// Splits the body into table and pane. Below the table, the pane gets the unused rows, and at least half.
fn split(body: Rect, rows: usize) -> (Rect, Rect) {
    let needed = u16::try_from(rows.max(1)).unwrap_or(u16::MAX).saturating_add(1);
    let layout = match body.width >= WIDE {
        true => Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).spacing(1),
        false => {
            Layout::vertical([Constraint::Length(needed.min(body.height / 2)), Constraint::Fill(1)])
        }
    };
    let [table, pane] = layout.areas(body);
    (table, pane)
}

/// The store and the connection; the counts.
fn draw_header(frame: &mut Frame<'_>, area: Rect, view: &View, theme: &Theme, now: Now) {
    let [above, below] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let health = health(view, theme, now);
    let title = Line::from(vec![
        Span::styled(" lockkeeper ", theme.title),
        Span::raw(" "),
        Span::styled(display::text(&view.store), theme.strong),
        Span::raw("  "),
        Span::styled(view.pattern.clone(), theme.dim),
    ]);
    both(frame, above, title, health);

    let (locks, held, waiting) = view.counts();
    let count = |number: String, what: &str| {
        [Span::styled(number, theme.strong), Span::styled(format!(" {what}   "), theme.dim)]
    };
    let mut counts = vec![Span::raw(" ")];
    counts.extend(count(locks.to_string(), if locks == 1 { "lock" } else { "locks" }));
    counts.extend(count(held.to_string(), "held"));
    counts.extend(count(waiting.to_string(), "waiting"));
    if !view.complete {
        counts.push(Span::styled("incomplete: there may be more   ", theme.warning));
    }
    if !view.filter.is_empty() && !matches!(view.mode, Mode::Filtering { .. }) {
        counts.push(Span::styled(format!("/{}", display::text(&view.filter)), theme.accent));
    }
    both(frame, below, Line::from(counts), extent(view, theme));
}

/// The state of the connection, at the right of the first line.
fn health<'a>(view: &View, theme: &Theme, now: Now) -> Line<'a> {
    let at = view.looked.map(|looked| format!("{} ", clock(looked))).unwrap_or_default();
    let silent = view.silent_for(now).map(display::span);
    let (mark, style) = match (&view.health, silent) {
        (Health::Failing { .. }, silent) => {
            (format!("✗ failing for {}  ", silent.unwrap_or_default()), theme.bad)
        }
        (_, Some(silent)) => (format!("◌ no answer for {silent}  "), theme.warning),
        (Health::Connecting, None) => ("◌ connecting ".to_owned(), theme.warning),
        (Health::Answering, None) if view.is_paused() => ("‖ paused  ".to_owned(), theme.warning),
        (Health::Answering, None) => ("● ".to_owned(), theme.good),
    };
    Line::from(vec![Span::styled(mark, style), Span::styled(at, theme.dim)])
}

/// The time of day of a poll.
fn clock(at: std::time::SystemTime) -> String {
    let plain = timestamp::plain(at);
    plain.split_once(' ').map_or(plain.clone(), |(_, time)| time.to_owned())
}

/// The visible range of rows, if not all are visible.
fn extent<'a>(view: &View, theme: &Theme) -> Line<'a> {
    let (rows, top) = view.extent();
    let seen = view.visible().count();
    let text = match seen < rows {
        true => format!("{}–{} of {rows} ", top + 1, top + seen),
        false => String::new(),
    };
    Line::styled(text, theme.dim)
}

/// The filter being typed, else a message, else an error, else the keys.
fn draw_footer(frame: &mut Frame<'_>, area: Rect, view: &View, theme: &Theme, now: Now) {
    let width = usize::from(area.width);
    if let Mode::Filtering { .. } = &view.mode {
        let shown = display::text(&view.filter);
        let line = Line::from(vec![
            Span::styled(" /", theme.accent),
            Span::raw(shown.clone()),
            Span::styled("▏", theme.accent),
            Span::styled("  enter applies, esc cancels", theme.dim),
        ]);
        return frame.render_widget(line, area);
    }
    if let Some((tone, text)) = view.notice(now) {
        let style = if tone == Tone::Good { theme.good } else { theme.bad };
        let text = format!(" {}", display::text(text));
        return frame.render_widget(Line::styled(cut(&text, width).into_owned(), style), area);
    }
    if let Health::Failing { why } = &view.health {
        let text = format!(" {}", display::text(why));
        return frame.render_widget(Line::styled(cut(&text, width).into_owned(), theme.bad), area);
    }
    let mut keys = vec![Span::raw(" ")];
    let mut used = 1;
    for (key, what) in KEYS {
        used += key.width() + what.width() + 4;
        if used > width {
            break;
        }
        keys.push(Span::styled(*key, theme.key));
        keys.push(Span::styled(format!(" {what}   "), theme.dim));
    }
    frame.render_widget(Line::from(keys), area);
}

/// The most useful first: a narrow screen omits the rest.
const KEYS: &[(&str, &str)] = &[
    ("?", "help"),
    ("q", "quit"),
    ("/", "filter"),
    ("enter", "details"),
    ("u", "unlock"),
    ("s", "sort"),
    ("space", "pause"),
    ("↑↓", "move"),
];

/// One text at the left, one at the right; the right one is never cut.
fn both(frame: &mut Frame<'_>, area: Rect, left: Line<'_>, right: Line<'_>) {
    let width = u16::try_from(right.width()).unwrap_or(u16::MAX);
    let [first, second] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(width)]).areas(area);
    frame.render_widget(left, first);
    frame.render_widget(right, second);
}
