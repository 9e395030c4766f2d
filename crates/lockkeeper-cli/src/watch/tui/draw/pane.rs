//! The detail pane.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Padding};
use unicode_width::UnicodeWidthStr;

use lockkeeper::{ForcedUnlock, Holder, Kind, LockInfo, Remaining};

use super::Theme;
use super::table::{bar, gauge_style};
use crate::watch::tui::row::{Age, Now, Row};
use crate::watch::tui::view::{View, can_be_forced};
use crate::{display, timestamp};

/// A longer list is for `inspect`.
const LISTED_MAX: usize = 50;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &mut View, theme: &Theme, now: Now) {
    let beside = area.x > 0;
    let block = Block::new()
        .borders(if beside { Borders::LEFT } else { Borders::TOP })
        .border_style(theme.dim)
        .padding(Padding::horizontal(1));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let lines = match view.detail() {
        Some((row, lock)) => lines(row, lock, theme, view.shown_at(now)),
        None => vec![Line::styled("no lock is selected", theme.dim)],
    };
    let lines: Vec<_> = lines.into_iter().flat_map(|line| wrapped(line, inner.width)).collect();
    let (all, height) = (lines.len(), usize::from(inner.height));
    let top = view.scroll_pane(all.saturating_sub(height));
    frame.render_widget(Text::from_iter(lines.into_iter().skip(top)), inner);
    if top + height < all && height > 0 {
        let hint = Line::styled(" J K for more ", theme.accent).right_aligned();
        frame.render_widget(hint, Rect { y: inner.bottom() - 1, height: 1, ..inner });
    }
}

/// Wraps a line instead of cutting it.
fn wrapped(line: Line<'_>, width: u16) -> Vec<Line<'_>> {
    let width = usize::from(width.max(4));
    if line.width() <= width {
        return vec![line];
    }
    let (mut lines, mut used) = (vec![Line::default()], 0);
    for span in line.spans {
        let mut rest = &*span.content;
        while let Some(c) = rest.chars().next() {
            let end = rest.char_indices().map(|(at, c)| at + c.len_utf8());
            let fits = end.take_while(|end| used + rest[..*end].width() <= width).last();
            let end = match fits {
                // Break between words if possible.
                Some(end) if end < rest.len() => rest[..end].rfind(' ').map_or(end, |at| at + 1),
                Some(end) => end,
                // A character that is wider than the line.
                None if used == INDENT => c.len_utf8(),
                None => 0,
            };
            if let (Some(line), true) = (lines.last_mut(), end > 0) {
                line.push_span(Span::styled(rest[..end].to_owned(), line.style.patch(span.style)));
                used += rest[..end].width();
            }
            rest = &rest[end..];
            if !rest.is_empty() {
                lines.push(Line::raw(" ".repeat(INDENT)));
                used = INDENT;
            }
        }
    }
    lines.into_iter().map(|wrapped| wrapped.patch_style(line.style)).collect()
}

/// The indentation of a continued line.
const INDENT: usize = 4;

fn lines<'a>(row: &Row, lock: &LockInfo, theme: &Theme, now: Now) -> Vec<Line<'a>> {
    let mut lines = vec![
        Line::styled(display::name(&lock.name), theme.strong),
        Line::styled(summary(row, now), theme.dim),
    ];
    lines.extend(ttl(row, theme, now));
    if let Some(count) = lock.count {
        let what = if lock.kind == Kind::Latch { "left to count down" } else { "permits free" };
        lines.push(Line::raw(format!("{count} {what}")));
    }
    if let Some(token) = lock.token {
        lines.push(fact("last token", token.to_string(), theme));
    }
    section(&mut lines, holders_title(lock), &lock.holders, theme, |_, holder| {
        holder_lines(holder, theme, now)
    });
    section(&mut lines, "queue", &lock.queue, theme, |at, waiter| {
        let position = format!("{:>2}  ", at + 1);
        vec![Line::from(vec![
            Span::styled(position, theme.accent),
            Span::raw(display::holder(waiter)),
        ])]
    });
    section(&mut lines, "force-released", &lock.forced, theme, |_, forced| {
        forced_lines(forced, theme)
    });
    lines
}

fn summary(row: &Row, now: Now) -> String {
    let kind = row.lock.kind;
    let waiting = match row.lock.waiting {
        Some(1) => ", 1 waiter".to_owned(),
        Some(some) if some > 1 => format!(", {some} waiters"),
        _ => String::new(),
    };
    if row.is_gone() {
        return format!("{kind}, removed");
    }
    match row.age(now) {
        Some(Age::Known(age)) => format!("{kind}, held for {}{waiting}", display::span(age)),
        Some(Age::AtLeast(age)) => {
            format!("{kind}, held for at least {}{waiting}", display::span(age))
        }
        None => format!("{kind}{waiting}"),
    }
}

/// The remaining TTL.
fn ttl<'a>(row: &Row, theme: &Theme, now: Now) -> Option<Line<'a>> {
    if row.is_gone() || row.lock.holders.is_empty() {
        return None;
    }
    Some(match row.remaining(now.tick) {
        Remaining::Free => return None,
        Remaining::Forever if !can_be_forced(row.lock.kind) => return None,
        Remaining::For(left) => {
            let part = row.part_left(now.tick).unwrap_or(0.0);
            Line::from(vec![
                Span::styled(bar(part, 12), gauge_style(part, theme)),
                Span::raw(format!(" expires in {}", display::span(left))),
                Span::styled(" unless it is renewed", theme.dim),
            ])
        }
        Remaining::Forever => {
            Line::styled("never expires: it is held until it is released", theme.warning)
        }
    })
}

fn holders_title(lock: &LockInfo) -> &'static str {
    match lock.kind {
        Kind::Read => "readers",
        Kind::Write => "writer",
        Kind::Permits | Kind::Semaphore => "permits",
        _ => "holder",
    }
}

fn holder_lines<'a>(holder: &Holder, theme: &Theme, now: Now) -> Vec<Line<'a>> {
    let mut facts = Vec::new();
    if holder.hold_count > 1 {
        facts.push(format!("{} holds", holder.hold_count));
    }
    if let Some(since) = holder.since {
        facts.push(format!("for {}", display::age(Some(since), now.wall)));
    }
    if holder.seen.is_some() || holder.left.is_some() {
        facts.push(display::last_seen(holder, now.wall));
    }
    let mut lines = vec![Line::from(vec![
        Span::raw(display::holder(holder)),
        Span::styled(format!("  {}", facts.join(", ")), theme.dim),
    ])];
    if holder.client.is_some() {
        lines.push(Line::styled(format!("  {}", display::text(&holder.id)), theme.dim));
    }
    lines
}

fn forced_lines<'a>(forced: &ForcedUnlock, theme: &Theme) -> Vec<Line<'a>> {
    let from = display::former_holders(forced);
    vec![
        Line::styled(display::text(&forced.reason), theme.warning),
        Line::raw(format!("  {}", timestamp::plain(forced.at))),
        Line::styled(format!("  by {}", display::text(&forced.by)), theme.dim),
        Line::styled(format!("  from {}", from.join(", ")), theme.dim),
    ]
}

fn fact<'a>(what: &str, value: String, theme: &Theme) -> Line<'a> {
    Line::from(vec![Span::styled(format!("{what} "), theme.dim), Span::raw(value)])
}

/// Adds a list with a title, unless it is empty.
fn section<'a, T>(
    lines: &mut Vec<Line<'a>>,
    title: &'static str,
    entries: &[T],
    theme: &Theme,
    line: impl Fn(usize, &T) -> Vec<Line<'a>>,
) {
    if entries.is_empty() {
        return;
    }
    lines.push(Line::default());
    lines.push(Line::styled(title, theme.accent));
    for (at, entry) in entries.iter().take(LISTED_MAX).enumerate() {
        lines.extend(line(at, entry));
    }
    if entries.len() > LISTED_MAX {
        let more = entries.len() - LISTED_MAX;
        lines.push(Line::styled(format!("and {more} more: see lockkeeper inspect"), theme.dim));
    }
}
