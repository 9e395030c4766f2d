//! The detail pane.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Padding};
use unicode_width::UnicodeWidthStr;

use lockkeeper::LockInfo;

use super::Theme;
use crate::watch::tui::row::{Now, Row};
use crate::watch::tui::view::View;
use crate::{display, inspect};

/// A longer list is for `inspect`.
const LISTED_MAX: usize = 100;

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

/// The indentation of a continued line: the width of a label.
const INDENT: usize = 8;

/// What `inspect` shows, with the TTL as of now.
fn lines<'a>(row: &Row, lock: &LockInfo, theme: &Theme, now: Now) -> Vec<Line<'a>> {
    let mut lines = vec![Line::styled(display::name(&lock.name), theme.strong)];
    if row.is_gone() {
        lines.push(Line::styled("removed", theme.dim));
    }
    let mut lock = lock.clone();
    lock.ttl = row.remaining(now.tick);
    let facts = inspect::facts(&lock, None, now.wall);
    for (label, text) in facts.iter().take(LISTED_MAX) {
        let label = Span::styled(format!("{label:<INDENT$}"), theme.accent);
        lines.push(Line::from(vec![label, Span::raw(text.clone())]));
    }
    if facts.len() > LISTED_MAX {
        lines.push(Line::styled("and more: see lockkeeper inspect", theme.dim));
    }
    lines
}
