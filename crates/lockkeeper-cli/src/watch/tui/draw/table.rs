//! The table. Draws only visible rows: there may be a hundred thousand.

use ratatui::Frame;
use ratatui::layout::{Alignment, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::Theme;
use crate::display;
use crate::row::{self, COLUMNS};
use crate::table::{Cell, cut};
use crate::watch::tui::row::{Age, Change, Now, Row};
use crate::watch::tui::view::{Column, Health, View};

const GAP: u16 = 2;

/// The width of the mark of a change, before the name.
const MARK: u16 = 2;

/// The minimum width of the name and of the holder.
const LEAST: u16 = 14;

const GAUGE: u16 = 6;
const TTL: u16 = 5;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View, theme: &Theme, now: Now) {
    let [head, rows @ ..] = &lines(area)[..] else { return };
    let columns = columns(area.width, view);
    draw_heading(frame, *head, &columns, view, theme);
    if view.extent().0 == 0 {
        return draw_nothing(frame, area, view, theme);
    }
    for ((row, selected), line) in view.visible().zip(rows) {
        if selected {
            frame.buffer_mut().set_style(*line, theme.selected);
        }
        draw_row(frame, *line, &columns, row, theme, now);
    }
}

/// A column on the screen.
struct Placed {
    column: Column,
    x: u16,
    width: u16,
}

/// Omits a column, or makes it narrower.
type Narrower = fn(&mut Vec<(Column, u16)>);

/// Numbers have fixed columns at the right; the name and the holder share the rest. If the screen is
/// narrow, the least useful columns are omitted first.
fn columns(width: u16, view: &View) -> Vec<Placed> {
    let mut fixed = vec![
        (Column::Kind, 9),
        (Column::Holds, 5),
        (Column::Ttl, GAUGE + 1 + TTL),
        (Column::Waiters, 7),
        (Column::Age, 6),
    ];
    let room = |fixed: &[(Column, u16)]| {
        let taken: u16 = fixed.iter().map(|(_, width)| width + GAP).sum();
        width.saturating_sub(MARK + taken)
    };
    let least = 2 * LEAST + GAP;
    let narrower: [Narrower; 5] = [
        |fixed| fixed.retain(|(column, _)| *column != Column::Holds),
        |fixed| fixed.iter_mut().filter(|(c, _)| *c == Column::Ttl).for_each(|(_, w)| *w = TTL),
        |fixed| fixed.retain(|(column, _)| *column != Column::Kind),
        |fixed| fixed.retain(|(column, _)| *column != Column::Waiters),
        |fixed| fixed.retain(|(column, _)| *column != Column::Age),
    ];
    for narrow in narrower {
        if room(&fixed) < least {
            narrow(&mut fixed);
        }
    }
    let (name, holder) = share(room(&fixed), view);
    let mut widths = vec![(Column::Name, name), (Column::Holder, holder)];
    widths.extend(fixed);
    widths.sort_by_key(|(column, _)| *column as usize);
    let mut x = MARK;
    widths
        .into_iter()
        .filter(|(_, width)| *width > 0)
        .map(|(column, width)| {
            let placed = Placed { column, x, width };
            x += width + GAP;
            placed
        })
        .collect()
}

/// Divides the width between name and holder: each gets what it needs if possible, and the name the
/// rest; otherwise the longer one gets at most half.
fn share(room: u16, view: &View) -> (u16, u16) {
    let Some(room) = room.checked_sub(GAP).filter(|room| *room >= LEAST) else { return (room, 0) };
    let widest = |text: fn(&Row) -> String| {
        let widths = view.visible().map(|(row, _)| text(row).width());
        u16::try_from(widths.max().unwrap_or(0)).unwrap_or(u16::MAX)
    };
    let name = widest(|row| display::name(&row.lock.name)).max(LEAST);
    let holder = widest(|row| display::holders(&row.lock)).max(LEAST);
    let holder = holder.min(room.saturating_sub(name).max(room / 2));
    (room - holder, holder)
}

fn draw_heading(frame: &mut Frame<'_>, line: Rect, columns: &[Placed], view: &View, theme: &Theme) {
    frame.buffer_mut().set_style(line, theme.heading);
    for placed in columns {
        let sorted = placed.column == view.sort;
        let arrow = if view.descending { '▾' } else { '▴' };
        let name = COLUMNS[placed.column as usize].heading;
        let text = if sorted { format!("{name}{arrow}") } else { name.to_owned() };
        let style = if sorted { theme.sorted } else { theme.heading };
        // The arrow may extend into the gap at the left.
        let area = match is_right(placed.column) && sorted {
            true => Rect { x: line.x + placed.x - 1, width: placed.width + 1, ..line },
            false => Rect { x: line.x + placed.x, width: placed.width, ..line },
        };
        put(frame, area.intersection(line), placed.column, Line::styled(text, style));
    }
}

fn draw_row(
    frame: &mut Frame<'_>,
    line: Rect,
    columns: &[Placed],
    row: &Row,
    theme: &Theme,
    now: Now,
) {
    let (mark, style) = match row.mark(now.tick) {
        Some(Change::Appeared) => ("+", theme.good),
        Some(Change::Changed) => ("~", theme.warning),
        Some(Change::Gone) => ("-", theme.gone),
        None => ("", Style::new()),
    };
    frame.render_widget(Span::styled(mark, style.remove_modifier(theme.gone.add_modifier)), line);
    let cells = row.shown(now.tick).cells(now.wall);
    for placed in columns {
        let area = Rect { x: line.x + placed.x, width: placed.width, ..line }.intersection(line);
        let cell = cell(row, &cells, placed, theme, now);
        // A change styles the whole row, except the gauge; a removed lock has none.
        let cell = match row.mark(now.tick) {
            Some(Change::Gone) if placed.column == Column::Ttl => continue,
            Some(_) if placed.column == Column::Ttl => cell,
            Some(_) => {
                cell.patch_style(style).spans.into_iter().map(|s| s.patch_style(style)).collect()
            }
            None => cell,
        };
        put(frame, area, placed.column, cell);
    }
}

fn put(frame: &mut Frame<'_>, area: Rect, column: Column, line: Line<'_>) {
    let alignment = if is_right(column) { Alignment::Right } else { Alignment::Left };
    frame.render_widget(line.alignment(alignment), area);
}

fn is_right(column: Column) -> bool {
    COLUMNS[column as usize].right
}

/// A cell of `ls`; the view knows more of the TTL, and of the age of a hold that is not announced.
fn cell<'a>(row: &Row, cells: &[Cell], placed: &Placed, theme: &Theme, now: Now) -> Line<'a> {
    let width = usize::from(placed.width);
    let Cell { text, style } = &cells[placed.column as usize];
    let style = match *style {
        row::NAME => theme.strong,
        row::DIM => theme.dim,
        row::WARN => theme.warning,
        _ => Style::new(),
    };
    match (placed.column, row.age(now)) {
        (Column::Age, Some(Age::AtLeast(age))) => {
            Line::styled(format!("≥{}", display::span(age)), theme.dim)
        }
        (Column::Ttl, _) => {
            let mut spans = vec![Span::styled(format!("{text:>0$}", usize::from(TTL)), style)];
            if let Some(part) = row.part_left(now.tick).filter(|_| placed.width > TTL) {
                let bar = Span::styled(bar(part, GAUGE), gauge_style(part, theme));
                spans.splice(0..0, [bar, Span::raw(" ")]);
            }
            Line::from(spans)
        }
        _ => Line::styled(cut(text, width).into_owned(), style),
    }
}

/// Green at first, red near the end: a watchdog would have renewed the lease before.
fn gauge_style(part: f64, theme: &Theme) -> Style {
    let style = match part {
        part if part > 0.5 => theme.good,
        part if part > 0.2 => theme.warning,
        _ => theme.bad,
    };
    style.patch(theme.track)
}

/// A bar in eighths of a cell.
fn bar(part: f64, width: u16) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (part.clamp(0.0, 1.0) * f64::from(width) * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(EIGHTHS[eighths % 8]);
    }
    let length = bar.chars().count();
    bar + &" ".repeat(usize::from(width).saturating_sub(length))
}

fn draw_nothing(frame: &mut Frame<'_>, area: Rect, view: &View, theme: &Theme) {
    let text = match (&view.health, view.looked) {
        (_, Some(_)) if !view.filter.is_empty() => "no lock matches the filter",
        (_, Some(_)) => "no locks",
        (Health::Failing { .. }, None) => "the store has not answered yet; retrying",
        (_, None) => "loading…",
    };
    let line = Rect { y: area.y + area.height / 2, height: 1.min(area.height), ..area };
    frame.render_widget(Line::styled(text, theme.dim).centered(), line);
}

fn lines(area: Rect) -> Vec<Rect> {
    area.rows().collect()
}
