//! A screen as an SVG: a grid of text in a window.
//!
//! Every piece of text has the length that its columns have, so that columns stay straight in whatever
//! font there is; and lines and blocks are drawn as shapes, because in some fonts they leave gaps.

use std::fmt::Write;

use super::ansi::{Cell, Colour, Style};

const CELL: (f64, f64) = (8.4, 19.0);
const FONT: f64 = 14.0;
/// Around the text.
const MARGIN: f64 = 18.0;
/// The bar of the window.
const BAR: f64 = 36.0;
/// Where a block begins in its cell and how high it is: lower than a line, so that bars below each
/// other stay apart.
const BLOCK: (f64, f64) = (CELL.1 * 0.15, CELL.1 * 0.7);
const DIM: &str = r#" opacity=".55""#;

const BACKGROUND: &str = "#14171c";
const FOREGROUND: &str = "#d5d9e0";

/// The sixteen colours that a terminal's user chooses.
const PALETTE: [&str; 16] = [
    "#14171c", "#f0717b", "#8fd17f", "#e8c268", "#6cb2f7", "#cf8ef4", "#56c8d8", "#c8ccd4",
    "#5c6370", "#ff8f98", "#a9e39b", "#f5d68b", "#8fc8ff", "#dfadff", "#7fe0ee", "#ffffff",
];

/// The picture of these lines.
pub(super) fn picture(title: &str, lines: &[Vec<Cell>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = columns as f64 * CELL.0 + 2.0 * MARGIN;
    let height = lines.len() as f64 * CELL.1 + BAR + 1.5 * MARGIN;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" role="img" aria-label="{title}">
<title>{title}</title>
<style>text{{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;font-size:{FONT}px;fill:{FOREGROUND};white-space:pre}}.b{{font-weight:700}}.d{{opacity:.55}}.s{{text-decoration:line-through}}.u{{text-decoration:underline}}.t{{font-size:13px;fill:#8b929e;text-anchor:middle}}</style>
<rect x=".5" y=".5" width="{0:.1}" height="{1:.1}" rx="10" fill="{BACKGROUND}" stroke="#30353d"/>
<circle cx="20" cy="18" r="6" fill="#ff5f57"/><circle cx="40" cy="18" r="6" fill="#febc2e"/><circle cx="60" cy="18" r="6" fill="#28c840"/>
<text class="t" x="{2:.1}" y="22.5">{title}</text>
"##,
        width - 1.0,
        height - 1.0,
        width / 2.0,
        title = escaped(title),
    );
    for (at, line) in lines.iter().enumerate() {
        draw_line(&mut svg, line, BAR + MARGIN / 2.0 + at as f64 * CELL.1);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_line(svg: &mut String, line: &[Cell], y: f64) {
    let x = |column: usize| MARGIN + column as f64 * CELL.0;
    let mut column = 0;
    let mut before: Option<String> = None;
    for run in line.chunk_by(|a, b| colours(a.style).1 == colours(b.style).1) {
        let (_, bg) = colours(run[0].style);
        let width = run.len() as f64 * CELL.0;
        let whole = (width, CELL.1 + 0.2);
        match &bg {
            // What is behind a bar is as high as the bar, and behind that is what is around it.
            Some(track) if run.iter().any(|cell| is_block(cell.symbol)) => {
                if let Some(around) = &before {
                    rect(svg, (x(column), y), whole, around, false);
                }
                rect(svg, (x(column), y + BLOCK.0), (width, BLOCK.1), track, false);
            }
            Some(bg) => rect(svg, (x(column), y), whole, bg, false),
            None => {}
        }
        before = bg;
        column += run.len();
    }
    column = 0;
    for run in line.chunk_by(|a, b| a.style == b.style && kind(a.symbol) == kind(b.symbol)) {
        let (fg, _) = colours(run[0].style);
        let place = (x(column), y);
        match kind(run[0].symbol) {
            Kind::Text => text(svg, run, place, &fg),
            Kind::Block => {
                // In one piece, or seams are seen.
                let eighths: f64 = run.iter().map(|cell| eighths(cell.symbol)).sum();
                let size = (CELL.0 * eighths / 8.0, BLOCK.1);
                rect(svg, (place.0, y + BLOCK.0), size, &fg, run[0].style.dim);
            }
            Kind::Line => {
                let lines = run.iter().enumerate();
                let path: String =
                    lines.map(|(at, cell)| stroke(cell.symbol, (x(column + at), y))).collect();
                let dim = if run[0].style.dim { DIM } else { "" };
                let _ = writeln!(svg, r#"<path d="{path}" stroke="{fg}" fill="none"{dim}/>"#);
            }
        }
        column += run.len();
    }
}

/// Without what is blank at its ends, which would only be stretched.
fn text(svg: &mut String, run: &[Cell], (x, y): (f64, f64), fill: &str) {
    let Some(first) = run.iter().position(|cell| cell.symbol != ' ') else { return };
    let last = run.iter().rposition(|cell| cell.symbol != ' ').unwrap_or(first);
    let shown: String = run[first..=last].iter().map(|cell| cell.symbol).collect();
    let (x, y) = (x + first as f64 * CELL.0, y + CELL.1 * 0.73);
    let length = (last + 1 - first) as f64 * CELL.0;
    let style = run[0].style;
    let classes =
        [(style.bold, 'b'), (style.dim, 'd'), (style.crossed_out, 's'), (style.underlined, 'u')];
    let classes: Vec<_> =
        classes.iter().filter(|(is, _)| *is).map(|(_, class)| class.to_string()).collect();
    let class = match classes.is_empty() {
        true => String::new(),
        false => format!(r#" class="{}""#, classes.join(" ")),
    };
    let fill = if fill == FOREGROUND { String::new() } else { format!(r#" style="fill:{fill}""#) };
    let _ = writeln!(
        svg,
        r#"<text x="{x:.1}" y="{y:.1}" textLength="{length:.1}" lengthAdjust="spacingAndGlyphs" xml:space="preserve"{class}{fill}>{}</text>"#,
        escaped(&shown)
    );
}

/// How a character gets into the picture.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Text,
    Block,
    Line,
}

fn kind(symbol: char) -> Kind {
    match symbol {
        symbol if is_block(symbol) => Kind::Block,
        '─' | '│' | '├' | '┤' | '╭' | '╮' | '╰' | '╯' => Kind::Line,
        _ => Kind::Text,
    }
}

fn is_block(symbol: char) -> bool {
    ('█'..='▏').contains(&symbol)
}

/// From a whole one at U+2588 down to an eighth at U+258F.
fn eighths(block: char) -> f64 {
    f64::from('▐' as u32 - block as u32)
}

fn stroke(symbol: char, (x, y): (f64, f64)) -> String {
    let (width, height) = CELL;
    let (middle, centre) = (x + width / 2.0, y + height / 2.0);
    let (right, bottom) = (x + width, y + height);
    // The ends of a scale are shorter than a line, so that two below each other stay apart.
    let (up, down) = (centre - 4.0, centre + 4.0);
    match symbol {
        '│' => format!("M{middle:.1} {y:.1}V{bottom:.1}"),
        '├' => format!("M{x:.1} {up:.1}V{down:.1}M{x:.1} {centre:.1}H{right:.1}"),
        '┤' => format!("M{right:.1} {up:.1}V{down:.1}"),
        '╭' => format!("M{middle:.1} {bottom:.1}Q{middle:.1} {centre:.1} {right:.1} {centre:.1}"),
        '╮' => format!("M{middle:.1} {bottom:.1}Q{middle:.1} {centre:.1} {x:.1} {centre:.1}"),
        '╰' => format!("M{middle:.1} {y:.1}Q{middle:.1} {centre:.1} {right:.1} {centre:.1}"),
        '╯' => format!("M{middle:.1} {y:.1}Q{middle:.1} {centre:.1} {x:.1} {centre:.1}"),
        _ => format!("M{x:.1} {centre:.1}H{right:.1}"),
    }
}

fn rect(svg: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str, dim: bool) {
    let dim = if dim { DIM } else { "" };
    let _ = writeln!(
        svg,
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"{dim}/>"#
    );
}

/// Of the text, and of what is behind it if that is not the window's.
fn colours(style: Style) -> (String, Option<String>) {
    let fg = match style.fg {
        Colour::Default => FOREGROUND.to_owned(),
        colour => hex(colour),
    };
    let bg = (style.bg != Colour::Default).then(|| hex(style.bg));
    match style.reversed {
        true => (bg.unwrap_or_else(|| BACKGROUND.to_owned()), Some(fg)),
        false => (fg, bg),
    }
}

fn hex(colour: Colour) -> String {
    let rgb = match colour {
        Colour::Default => return FOREGROUND.to_owned(),
        Colour::Rgb(red, green, blue) => [red, green, blue],
        Colour::Indexed(index @ 0..=15) => return PALETTE[usize::from(index)].to_owned(),
        Colour::Indexed(index @ 16..=231) => {
            let level = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
            let index = index - 16;
            [level(index / 36), level(index / 6 % 6), level(index % 6)]
        }
        Colour::Indexed(index) => [8 + 10 * (index - 232); 3],
    };
    format!("#{:02x}{:02x}{:02x}", rgb[0], rgb[1], rgb[2])
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::ansi::parse;
    use super::*;

    #[test]
    fn text_keeps_its_place_whatever_the_font() {
        let svg = picture("a <title>", &parse("  \u{1b}[1;31mab&\u{1b}[0m █"));
        assert!(svg.contains("<title>a &lt;title&gt;</title>"), "{svg}");
        let x = MARGIN + 2.0 * CELL.0;
        let text = format!(r#"<text x="{x:.1}""#);
        assert!(svg.contains(&text) && svg.contains(r#"textLength="25.2""#), "{svg}");
        assert!(svg.contains(">ab&amp;</text>") && svg.contains(PALETTE[1]), "{svg}");
        assert!(!svg.contains('█'), "a block is a shape: {svg}");
    }
}
