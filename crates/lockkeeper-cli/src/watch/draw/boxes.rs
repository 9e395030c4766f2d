//! What is laid over the table: help, and the question before a lock is taken away.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Clear, Padding, Paragraph};
use unicode_width::UnicodeWidthStr;

use super::Theme;
use crate::display;
use crate::table::cut;
use crate::watch::view::Forcing;

const HELP: &[(&str, &str)] = &[
    ("↑ ↓  j k", "one row up, down"),
    ("PgUp PgDn", "one page up, down"),
    ("g  G", "to the first row, to the last"),
    ("enter", "everything about the lock, and back"),
    ("J K", "down and up in it"),
    ("/", "only rows with a text in their name or holder"),
    ("s  S", "sort by the next column, the other way round"),
    ("space", "stop looking, look again"),
    ("u", "take the lock away from its holder"),
    ("ctrl-l", "draw everything anew"),
    ("ctrl-z", "to the background"),
    ("esc", "back: the pane, the filter, then out"),
    ("q  ctrl-c", "out"),
];

const MARKS: &[(&str, &str)] = &[
    ("+", "has appeared"),
    ("~", "has other holders or waiters"),
    ("-", "is gone"),
    ("≥", "its holder does not say since when"),
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
    let (area, block) = place(frame, " take it away ", 72, 7, theme);
    let width = usize::from(block.inner(area).width);
    let cut = |text: String, taken: usize| cut(&text, width.saturating_sub(taken)).into_owned();
    let typed = display::text(reason);
    let question = match sure {
        true => Line::from(vec![
            Span::styled("Take it away? ", theme.warning),
            Span::styled("y", theme.key),
            Span::raw(" yes   "),
            Span::styled("n", theme.key),
            Span::raw(" no"),
        ]),
        false => Line::from(vec![
            Span::styled("enter", theme.key),
            Span::styled(" goes on   ", theme.dim),
            Span::styled("esc", theme.key),
            Span::styled(" leaves it alone", theme.dim),
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

/// The end of a text: what is being typed must be seen.
fn tail(text: &str, width: usize) -> &str {
    let mut rest = text;
    while rest.width() > width {
        let mut chars = rest.chars();
        chars.next();
        rest = chars.as_str();
    }
    rest
}

/// A frame for so many lines in the middle of the screen, which is cleared for it.
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
