//! Boxes over the table: help, and the confirmation of a force-release.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Clear, Padding, Paragraph};
use unicode_width::UnicodeWidthStr;

use super::Theme;
use crate::display;
use crate::table::cut;
use crate::watch::tui::view::Forcing;

const HELP: &[(&str, &str)] = &[
    ("↑ ↓  j k", "previous row, next row"),
    ("PgUp PgDn", "previous page, next page"),
    ("g  G", "first row, last row"),
    ("enter", "show or hide the details of the lock"),
    ("J K", "scroll the details down, up"),
    ("/", "filter by text in name or holder"),
    ("s  S", "sort by the next column, reverse the order"),
    ("space", "pause, resume"),
    ("u", "force-release the lock"),
    ("ctrl-l", "redraw the screen"),
    ("ctrl-z", "suspend"),
    ("esc", "close the details, clear the filter, or quit"),
    ("q  ctrl-c", "quit"),
];

const MARKS: &[(&str, &str)] = &[
    ("+", "appeared"),
    ("~", "holders or waiters changed"),
    ("-", "removed"),
    ("≥", "at least; its holder announces no start"),
];

pub(super) fn help(frame: &mut Frame<'_>, theme: &Theme) {
    let entry = |(key, what): &(&'static str, &'static str)| {
        Line::from(vec![Span::styled(format!("{key:<11}"), theme.key), Span::raw(*what)])
    };
    let mut lines: Vec<_> = HELP.iter().map(entry).collect();
    lines.push(Line::default());
    lines.extend(MARKS.iter().map(entry));
    let (area, block) = place(frame, " keys ", 62, lines.len(), theme);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

pub(super) fn forcing(frame: &mut Frame<'_>, forcing: &Forcing, theme: &Theme) {
    let Forcing { lock, reason, sure } = forcing;
    let (area, block) = place(frame, " force-release ", 72, 7, theme);
    let width = usize::from(block.inner(area).width);
    let cut = |text: String, taken: usize| cut(&text, width.saturating_sub(taken)).into_owned();
    let typed = display::text(reason);
    let question = match sure {
        true => Line::from(vec![
            Span::styled("force-release? ", theme.warning),
            Span::styled("y", theme.key),
            Span::raw(" yes   "),
            Span::styled("n", theme.key),
            Span::raw(" no"),
        ]),
        false => Line::from(vec![
            Span::styled("enter", theme.key),
            Span::styled(" continue   ", theme.dim),
            Span::styled("esc", theme.key),
            Span::styled(" cancel", theme.dim),
        ]),
    };
    let lines = vec![
        Line::from(vec![
            Span::styled(format!("{} ", lock.kind), theme.dim),
            Span::styled(
                cut(display::name(&lock.name), lock.kind.to_string().width() + 1),
                theme.strong,
            ),
        ]),
        Line::from(vec![
            Span::styled("held by ", theme.dim),
            Span::raw(cut(display::holders(lock), 8)),
        ]),
        Line::styled(cut(display::consequence(&lock.holders), 0), theme.dim),
        Line::default(),
        Line::from(vec![
            Span::styled("reason  ", theme.dim),
            Span::styled(tail(&typed, width.saturating_sub(9)), theme.strong),
            Span::styled(if *sure { "" } else { "▏" }, theme.accent),
        ]),
        Line::default(),
        question,
    ];
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// The end of a text, where the cursor is.
fn tail(text: &str, width: usize) -> &str {
    let mut rest = text;
    while rest.width() > width {
        let mut chars = rest.chars();
        chars.next();
        rest = chars.as_str();
    }
    rest
}

/// Clears the middle of the screen for a box.
fn place<'a>(
    frame: &mut Frame<'_>,
    title: &'static str,
    width: u16,
    lines: usize,
    theme: &Theme,
) -> (Rect, Block<'a>) {
    let height = u16::try_from(lines).unwrap_or(u16::MAX).saturating_add(2);
    let area = frame.area().centered(Constraint::Max(width), Constraint::Max(height));
    let block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(theme.accent)
        .title(Line::styled(title, theme.strong))
        .padding(Padding::horizontal(1));
    frame.render_widget(Clear, area);
    (area, block)
}
