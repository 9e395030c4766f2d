//! Columns.
//!
//! They are as wide as the first rows need: a list of a hundred thousand locks is printed while it is
//! read. On a terminal a line never wraps: wide columns are cut with `…`, and where even that is not
//! enough, whole columns are left out. In a pipe nothing is lost: what is too long for its column
//! moves the rest of its line to the right.

use std::borrow::Cow;

use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Between two columns.
const GAP: &str = "  ";

/// In a pipe a column is not padded beyond this, so that one name of ten kilobytes does not make
/// every line as long.
const PADDED_MAX: usize = 72;

/// One column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    /// Numbers end below each other.
    pub(crate) right: bool,
    /// What is left of it when room is scarce; nothing for a column that cannot be cut.
    pub(crate) least: Option<usize>,
    /// Columns with a higher number are left out first; 0 never is.
    pub(crate) rank: u8,
}

/// What stands in one column of one row.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) style: Style,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::new() }
    }

    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

/// Columns that know how wide they are.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Placed>,
    cut: bool,
}

/// A column that is shown.
#[derive(Debug)]
struct Placed {
    /// Which cell of a row it shows.
    cell: usize,
    column: Column,
    width: usize,
}

impl Table {
    /// As wide as these rows need, within `width` if there is one. With `more` rows to come that are
    /// not known yet, columns that can be cut share what room is left.
    pub(crate) fn fit<'a, const N: usize>(
        columns: [Column; N],
        rows: impl Iterator<Item = &'a [Cell; N]>,
        width: Option<usize>,
        more: bool,
    ) -> Self {
        let mut needed = columns.map(|column| column.heading.width());
        for row in rows {
            for (needed, cell) in needed.iter_mut().zip(row) {
                *needed = cell.text.width().max(*needed);
            }
        }
        let columns = columns.into_iter().zip(needed).enumerate();
        let columns = columns.map(|(cell, (column, width))| Placed { cell, column, width });
        let mut table = Self { columns: columns.collect(), cut: width.is_some() };
        match width {
            Some(width) => table.squeeze(width, more),
            None => table.columns.iter_mut().for_each(|c| c.width = c.width.min(PADDED_MAX)),
        }
        table
    }

    /// The headings.
    pub(crate) fn heading(&self, paint: impl Fn(Style, &str) -> String) -> String {
        self.row(paint, |placed| (Style::new().bold(), placed.column.heading))
    }

    /// A row.
    pub(crate) fn line<const N: usize>(
        &self,
        row: &[Cell; N],
        paint: impl Fn(Style, &str) -> String,
    ) -> String {
        self.row(paint, |placed| (row[placed.cell].style, &row[placed.cell].text))
    }

    fn row<'a>(
        &self,
        paint: impl Fn(Style, &str) -> String,
        cell: impl Fn(&Placed) -> (Style, &'a str),
    ) -> String {
        let mut line = String::new();
        let last = self.columns.len() - 1;
        for (at, placed) in self.columns.iter().enumerate() {
            let (style, text) = cell(placed);
            let text = if self.cut { cut(text, placed.width) } else { text.into() };
            let room = " ".repeat(placed.width.saturating_sub(text.width()));
            let painted = paint(style, &text);
            match placed.column.right {
                true => line.extend([room, painted]),
                // Nothing follows that would have to stand below something.
                false if at == last => line.push_str(&painted),
                false => line.extend([painted, room]),
            }
            if at < last {
                line.push_str(GAP);
            }
        }
        line
    }

    fn width(&self) -> usize {
        let gaps = GAP.len() * self.columns.len().saturating_sub(1);
        self.columns.iter().map(|placed| placed.width).sum::<usize>() + gaps
    }

    /// Makes it fit: the widest column that can be cut gives way first, so that short names stay
    /// whole beside long holders; then columns are left out.
    fn squeeze(&mut self, width: usize, more: bool) {
        while self.width() > width {
            let over = self.width() - width;
            let columns = self.columns.iter_mut();
            let can_give = columns.filter(|c| c.column.least.is_some_and(|least| c.width > least));
            if let Some(widest) = can_give.max_by_key(|placed| placed.width) {
                // A step at a time, because by then another one may be the widest.
                widest.width -= 1;
                continue;
            }
            let columns = self.columns.iter().enumerate();
            match columns.max_by_key(|(_, placed)| placed.column.rank) {
                Some((at, placed)) if placed.column.rank > 0 => drop(self.columns.remove(at)),
                // One column alone: nothing is left to give way but itself.
                _ => {
                    self.columns.iter_mut().for_each(|c| c.width = c.width.saturating_sub(over));
                    return;
                }
            }
        }
        if more {
            let spare = width - self.width();
            let flexible = |placed: &&mut Placed| placed.column.least.is_some();
            let each = spare / self.columns.iter_mut().filter(flexible).count().max(1);
            self.columns.iter_mut().filter(flexible).for_each(|placed| placed.width += each);
        }
    }
}

/// The text, or as much of it as fits with an ellipsis behind it.
pub(crate) fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return text.into();
    }
    let Some(room) = width.checked_sub(1) else { return "".into() };
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > room
    });
    let mut end = end.map_or(text.len(), |(at, _)| at);
    // Together characters may be wider than one by one, as with a variation selector.
    while text[..end].width() > room {
        end = text[..end].char_indices().next_back().map_or(0, |(at, _)| at);
    }
    format!("{}…", &text[..end]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Column = Column { heading: "NAME", right: false, least: Some(4), rank: 0 };
    const WHO: Column = Column { heading: "WHO", right: false, least: Some(4), rank: 1 };
    const HOLDS: Column = Column { heading: "HOLDS", right: true, least: None, rank: 2 };

    fn printed(rows: &[[&str; 3]], width: Option<usize>) -> Vec<String> {
        let rows: Vec<_> = rows.iter().map(|row| row.map(Cell::new)).collect();
        let table = Table::fit([NAME, WHO, HOLDS], rows.iter(), width, false);
        let plain = |_: Style, text: &str| text.to_owned();
        let lines = rows.iter().map(|row| table.line(row, plain));
        std::iter::once(table.heading(plain)).chain(lines).collect()
    }

    #[test]
    fn columns_are_as_wide_as_needed() {
        let lines = printed(&[["a", "somebody", "1"], ["longer", "b", "12"]], Some(80));
        assert_eq!(lines[0], "NAME    WHO       HOLDS");
        assert_eq!(lines[1], "a       somebody      1");
        assert_eq!(lines[2], "longer  b            12");
    }

    #[test]
    fn the_widest_gives_way_first_and_short_ones_stay_whole() {
        let lines = printed(&[["short", "a/very/long/holder", "1"]], Some(24));
        assert_eq!(lines[1], "short  a/very/lo…      1");
        assert!(lines.iter().all(|line| line.width() <= 24), "{lines:?}");
    }

    #[test]
    fn columns_are_left_out_before_a_line_wraps() {
        let lines = printed(&[["somename", "somebody", "1"]], Some(10));
        assert_eq!(lines, ["NAME  WHO", "som…  som…"]);
        let lines = printed(&[["somename", "somebody", "1"]], Some(7));
        assert_eq!(lines, ["NAME", "som…"]);
        let lines = printed(&[["somename", "somebody", "1"]], Some(2));
        assert_eq!(lines, ["N…", "s…"]);
    }

    #[test]
    fn nothing_is_cut_in_a_pipe() {
        let long = "x".repeat(10_000);
        let lines = printed(&[[&long, "b", "1"], ["a", "b", "1"]], None);
        assert!(lines[1].starts_with(&format!("{long}  b")));
        assert!(lines[2].len() < 100, "one long name does not pad all others");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("日本語", 1), "…");
        assert_eq!(cut("日本語", 0), "");
        assert_eq!(cut("❤\u{fe0f}❤\u{fe0f}❤\u{fe0f}", 4), "❤\u{fe0f}❤…", "wider together");
    }

    #[test]
    fn rows_to_come_get_what_room_is_left() {
        let rows = [["a", "b", "1"].map(Cell::new)];
        let table = Table::fit([NAME, WHO, HOLDS], rows.iter(), Some(40), true);
        let long = ["a-longer-name", "b", "1"].map(Cell::new);
        assert!(table.line(&long, |_, text| text.to_owned()).starts_with("a-longer-name  "));
    }
}
