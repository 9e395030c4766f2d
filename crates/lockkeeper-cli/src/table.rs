//! Tables.
//!
//! Columns are as wide as the first rows need, because a list is printed while it is read. On a
//! terminal a line never wraps: wide columns are cut with `…`, then whole columns are omitted. In a pipe
//! nothing is cut: a cell that is too long shifts the rest of its line.

use std::borrow::Cow;

use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const GAP: &str = "  ";

/// The maximum padded width in a pipe, so that one very long name does not lengthen every line.
const PADDED_MAX: usize = 72;

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    /// Aligned right, for numbers.
    pub(crate) right: bool,
    /// The minimum width; `None` for a column that cannot be cut.
    pub(crate) least: Option<usize>,
    /// Columns with a higher rank are omitted first; 0 never is.
    pub(crate) rank: u8,
}

/// A cell.
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

/// Columns with their widths.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Placed>,
    cut: bool,
}

/// A visible column.
#[derive(Debug)]
struct Placed {
    /// The index of its cell in a row.
    cell: usize,
    column: Column,
    width: usize,
}

impl Table {
    /// Fits the columns to these rows, within `width`. If `more` rows follow, flexible columns share the
    /// remaining space.
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

    pub(crate) fn heading(&self, paint: impl Fn(Style, &str) -> String) -> String {
        self.row(paint, |placed| (Style::new().bold(), placed.column.heading))
    }

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
                // No trailing spaces.
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

    /// Shrinks the widest flexible column first, so that short names stay whole beside long holders; then
    /// omits columns.
    fn squeeze(&mut self, width: usize, more: bool) {
        while self.width() > width {
            let over = self.width() - width;
            let columns = self.columns.iter_mut();
            let can_give = columns.filter(|c| c.column.least.is_some_and(|least| c.width > least));
            if let Some(widest) = can_give.max_by_key(|placed| placed.width) {
                // One step at a time: another column may be the widest then.
                widest.width -= 1;
                continue;
            }
            let columns = self.columns.iter().enumerate();
            match columns.max_by_key(|(_, placed)| placed.column.rank) {
                Some((at, placed)) if placed.column.rank > 0 => drop(self.columns.remove(at)),
                // Only one column is left.
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

/// Cuts a text to a width, with an ellipsis.
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
    // A sequence may be wider than the sum of its characters, as with a variation selector.
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
        let lines = printed(&[["a", "holder-1", "1"], ["longer", "b", "12"]], Some(80));
        assert_eq!(lines[0], "NAME    WHO       HOLDS");
        assert_eq!(lines[1], "a       holder-1      1");
        assert_eq!(lines[2], "longer  b            12");
    }

    #[test]
    fn the_widest_column_is_cut_first() {
        let lines = printed(&[["short", "a/very/long/holder", "1"]], Some(24));
        assert_eq!(lines[1], "short  a/very/lo…      1");
        assert!(lines.iter().all(|line| line.width() <= 24), "{lines:?}");
    }

    #[test]
    fn columns_are_omitted_before_a_line_wraps() {
        let lines = printed(&[["somename", "holder-1", "1"]], Some(10));
        assert_eq!(lines, ["NAME  WHO", "som…  hol…"]);
        let lines = printed(&[["somename", "holder-1", "1"]], Some(7));
        assert_eq!(lines, ["NAME", "som…"]);
        let lines = printed(&[["somename", "holder-1", "1"]], Some(2));
        assert_eq!(lines, ["N…", "s…"]);
    }

    #[test]
    fn nothing_is_cut_in_a_pipe() {
        let long = "x".repeat(10_000);
        let lines = printed(&[[&long, "b", "1"], ["a", "b", "1"]], None);
        assert!(lines[1].starts_with(&format!("{long}  b")));
        assert!(lines[2].len() < 100, "one long name does not pad the others");
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
    fn flexible_columns_share_the_remaining_space() {
        let rows = [["a", "b", "1"].map(Cell::new)];
        let table = Table::fit([NAME, WHO, HOLDS], rows.iter(), Some(40), true);
        let long = ["a-longer-name", "b", "1"].map(Cell::new);
        assert!(table.line(&long, |_, text| text.to_owned()).starts_with("a-longer-name  "));
    }
}
