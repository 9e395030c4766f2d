//! What is on a screen: characters with their styles, out of text with escape sequences.

/// A colour: the terminal's own, one of 256, or any.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Colour {
    #[default]
    Default,
    Indexed(u8),
    Rgb(u8, u8, u8),
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Style {
    pub(super) fg: Colour,
    pub(super) bg: Colour,
    pub(super) bold: bool,
    pub(super) dim: bool,
    pub(super) underlined: bool,
    pub(super) reversed: bool,
    pub(super) crossed_out: bool,
}

/// One character. None of those in the pictures is wider than one column.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Cell {
    pub(super) symbol: char,
    pub(super) style: Style,
}

/// The lines of a screen, without blank ones at the end.
pub(super) fn parse(text: &str) -> Vec<Vec<Cell>> {
    let mut style = Style::default();
    let mut lines: Vec<_> = text.lines().map(|line| parse_line(line, &mut style)).collect();
    let blank = |line: &Vec<Cell>| {
        line.iter().all(|cell| cell.symbol == ' ' && cell.style.bg == Colour::Default)
    };
    while lines.last().is_some_and(blank) {
        lines.pop();
    }
    lines
}

fn parse_line(line: &str, style: &mut Style) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut rest = line;
    while let Some(symbol) = rest.chars().next() {
        let sequence = rest.strip_prefix("\u{1b}[").and_then(|rest| rest.split_once('m'));
        match sequence {
            Some((codes, after)) => {
                apply(codes, style);
                rest = after;
            }
            None => {
                // tmux switches to another character set for lines only where it must.
                if !symbol.is_control() {
                    cells.push(Cell { symbol, style: *style });
                }
                rest = &rest[symbol.len_utf8()..];
            }
        }
    }
    cells
}

fn apply(codes: &str, style: &mut Style) {
    let mut codes = codes.split(';').map(|code| code.parse::<u8>().unwrap_or(0));
    while let Some(code) = codes.next() {
        match code {
            0 => *style = Style::default(),
            1 => style.bold = true,
            2 => style.dim = true,
            4 => style.underlined = true,
            7 => style.reversed = true,
            9 => style.crossed_out = true,
            22 => (style.bold, style.dim) = (false, false),
            24 => style.underlined = false,
            27 => style.reversed = false,
            29 => style.crossed_out = false,
            30..=37 => style.fg = Colour::Indexed(code - 30),
            38 => style.fg = extended(&mut codes),
            39 => style.fg = Colour::Default,
            40..=47 => style.bg = Colour::Indexed(code - 40),
            48 => style.bg = extended(&mut codes),
            49 => style.bg = Colour::Default,
            90..=97 => style.fg = Colour::Indexed(code - 90 + 8),
            100..=107 => style.bg = Colour::Indexed(code - 100 + 8),
            _ => {}
        }
    }
}

fn extended(codes: &mut impl Iterator<Item = u8>) -> Colour {
    let mut next = || codes.next().unwrap_or(0);
    match next() {
        5 => Colour::Indexed(next()),
        2 => Colour::Rgb(next(), next(), next()),
        _ => Colour::Default,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_last_until_they_are_changed() {
        let lines = parse("a\u{1b}[1;32mb\nc\u{1b}[0md\u{1b}[48;5;237m \n\n  \n");
        let styles: Vec<_> = lines.iter().flatten().map(|cell| (cell.symbol, cell.style)).collect();
        let green = Style { fg: Colour::Indexed(2), bold: true, ..Style::default() };
        let grey = Style { bg: Colour::Indexed(237), ..Style::default() };
        let plain = Style::default();
        assert_eq!(
            styles[..5],
            [('a', plain), ('b', green), ('c', green), ('d', plain), (' ', grey)]
        );
    }

    #[test]
    fn colours_come_in_three_sizes() {
        let cells = parse("\u{1b}[91;48;2;1;2;3mx").remove(0);
        assert_eq!(cells[0].style.fg, Colour::Indexed(9));
        assert_eq!(cells[0].style.bg, Colour::Rgb(1, 2, 3));
    }
}
