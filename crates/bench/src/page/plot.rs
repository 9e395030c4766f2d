//! Plots as SVG. Each has a background of its own, because a page may be dark where the reader's system is
//! light, and the system is all that a picture knows.

use std::fmt::Write as _;

use super::rows::Range;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 150.0;
const LINE: f64 = 24.0;

/// Said below every title.
const SCALE: &str = "logarithmic scale; thin lines: lowest to highest round";

/// A named row of values; a line, or the dots of one contender.
pub(super) struct Series<'a> {
    /// The contender.
    pub(super) name: &'a str,
    /// One per place; none where there is no result.
    pub(super) values: Vec<Option<Range>>,
}

/// What a plot shows.
pub(super) struct Plot<'a> {
    /// Its heading.
    pub(super) title: &'a str,
    /// Of the values, and whether more is better.
    pub(super) unit: &'a str,
    /// Names of the places.
    pub(super) places: Vec<String>,
    /// What is at each place.
    pub(super) series: Vec<Series<'a>>,
}

impl Plot<'_> {
    /// A line for each series, over the places.
    pub(super) fn lines(&self) -> String {
        let (top, height) = (76.0, 300.0);
        let (left, right) = (70.0, RIGHT + 20.0);
        let scale = Scale::of(self.values());
        let x = |place: usize| {
            let steps = self.places.len().saturating_sub(1).max(1) as f64;
            left + (WIDTH - left - right) * place as f64 / steps
        };
        let y = |value: f64| top + height * (1.0 - scale.share(value));
        let mut svg = self.open(top + height + 50.0);
        for tick in scale.ticks() {
            let y = y(tick);
            line(&mut svg, left, y, WIDTH - right, y, "grid");
            text(&mut svg, left - 8.0, y + 4.0, "end", "small", &short(tick));
        }
        for (place, name) in self.places.iter().enumerate() {
            text(&mut svg, x(place), top + height + 20.0, "middle", "small", name);
        }
        let mut labels = Vec::new();
        for series in &self.series {
            let points = series.values.iter().enumerate();
            let colour = colour(series.name);
            let points: Vec<_> = points
                .filter_map(|(place, value)| {
                    let Range { median, low, high } = (*value)?;
                    range(&mut svg, (x(place), y(low)), (x(place), y(high)), colour);
                    Some((x(place), y(median)))
                })
                .collect();
            let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let path = path.join(" ");
            let _ = writeln!(
                svg,
                "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>"
            );
            points.iter().for_each(|(x, y)| dot(&mut svg, *x, *y, 3.5, colour));
            labels.extend(points.last().map(|(x, y)| (*x, *y, series.name)));
        }
        spread_out(&mut labels);
        for (x, y, name) in labels {
            dot(&mut svg, x + 14.0, y, 4.0, colour(name));
            text(&mut svg, x + 22.0, y + 4.0, "start", "small", name);
        }
        svg + "</svg>\n"
    }

    /// Groups of dots, one group per place and one line per contender; each says its value. Not bars: on a
    /// logarithmic scale the length of a bar means nothing.
    pub(super) fn dots(&self) -> String {
        let scale = Scale::of(self.values());
        let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * scale.share(value);
        let top = 76.0;
        let mut y = top;
        let mut body = String::new();
        for (place, name) in self.places.iter().enumerate() {
            if self.series.iter().all(|series| series.values[place].is_none()) {
                continue;
            }
            text(&mut body, 12.0, y + 14.0, "start", "group", name);
            y += 24.0;
            for series in &self.series {
                let Some(Range { median, low, high }) = series.values[place] else { continue };
                let (middle, colour) = (y + LINE / 2.0, colour(series.name));
                text(&mut body, LEFT - 12.0, middle + 4.0, "end", "small", series.name);
                range(&mut body, (x(low), middle), (x(high), middle), colour);
                dot(&mut body, x(median), middle, 5.0, colour);
                let end = x(median).max(x(high)) + 10.0;
                text(&mut body, end, middle + 4.0, "start", "small", &short(median));
                y += LINE;
            }
            y += 6.0;
        }
        let mut svg = self.open(y + 12.0);
        for tick in scale.ticks() {
            line(&mut svg, x(tick), top - 6.0, x(tick), y, "grid");
            text(&mut svg, x(tick), top - 12.0, "middle", "small", &short(tick));
        }
        svg + &body + "</svg>\n"
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        let ranges = self.series.iter().flat_map(|series| series.values.iter().flatten());
        ranges.flat_map(|range| [range.low, range.median, range.high])
    }

    fn open(&self, height: f64) -> String {
        let (title, unit) = (escaped(self.title), escaped(self.unit));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{title}, {unit}\">\n\
             <style>\n\
             text {{ font-family: system-ui, sans-serif; fill: #24292f; }}\n\
             .title {{ font-size: 16px; font-weight: 600; }}\n\
             .group {{ font-size: 13px; font-weight: 600; }}\n\
             .small {{ font-size: 12px; }}\n\
             .grid {{ stroke: #8c959f; stroke-opacity: 0.35; }}\n\
             .panel {{ fill: #ffffff; }}\n\
             @media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3; }} .panel {{ fill: #0d1117; }} }}\n\
             </style>\n\
             <rect class=\"panel\" width=\"{WIDTH}\" height=\"{height:.0}\" rx=\"6\"/>\n"
        );
        text(&mut svg, 12.0, 22.0, "start", "title", self.title);
        text(&mut svg, 12.0, 40.0, "start", "small", &format!("{}; {SCALE}", self.unit));
        svg
    }
}

/// A logarithmic scale over whole decades.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let logs: Vec<_> = values.filter(|value| *value > 0.0).map(f64::log10).collect();
        let low = logs.iter().copied().fold(f64::MAX, f64::min).floor();
        let high = logs.iter().copied().fold(f64::MIN, f64::max).ceil();
        if logs.is_empty() {
            Self { low: 0.0, high: 1.0 }
        } else {
            Self { low, high: high.max(low + 1.0) }
        }
    }

    /// Where a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        if value <= 0.0 {
            return 0.0;
        }
        ((value.log10() - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        (self.low as i32..=self.high as i32).map(|power| 10f64.powi(power)).collect()
    }
}

/// Moves labels that would cover each other apart.
fn spread_out(labels: &mut [(f64, f64, &str)]) {
    labels.sort_by(|one, other| one.1.total_cmp(&other.1));
    for at in 1..labels.len() {
        let least = labels[at - 1].1 + 15.0;
        labels[at].1 = labels[at].1.max(least);
    }
}

/// Each contender has one colour in all plots; those with several locks have shades of it.
fn colour(name: &str) -> &'static str {
    match name {
        "lockkeeper Mutex" => "#1f9e9e",
        name if name.starts_with("lockkeeper") => "#2f81f7",
        name if name.starts_with("Redisson") => "#e5534b",
        "rslock" => "#986ee2",
        "redsync" => "#46954a",
        "python-redis-lock" => "#c08a1e",
        _ => "#8c959f",
    }
}

/// Three digits at most, with the unit's prefix.
pub(super) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        size if size >= 100.0 || scaled.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}{suffix}")
}

fn dot(svg: &mut String, x: f64, y: f64, radius: f64, colour: &str) {
    let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\"/>");
}

/// From the lowest round to the highest.
fn range(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" \
         stroke-width=\"1.5\" stroke-opacity=\"0.7\"/>"
    );
}

fn line(svg: &mut String, x1: f64, y1: f64, x2: f64, y2: f64, class: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, class: &str, content: &str) {
    let content = escaped(content);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{content}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_covers_whole_decades() {
        let scale = Scale::of([30.0, 5_000.0, 0.0].into_iter());
        assert_eq!(scale.ticks(), [10.0, 100.0, 1_000.0, 10_000.0]);
        assert_eq!((scale.share(10.0), scale.share(10_000.0), scale.share(0.0)), (0.0, 1.0, 0.0));
    }

    #[test]
    fn labels_do_not_cover_each_other() {
        let mut labels = [(0.0, 30.0, "b"), (0.0, 29.0, "a"), (0.0, 90.0, "c")];
        spread_out(&mut labels);
        assert_eq!(labels.map(|(_, y, _)| y), [29.0, 44.0, 90.0]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(123_456.0), "123 k");
        assert_eq!(short(0.256), "0.26");
        assert_eq!(short(4_321.0), "4321");
    }
}
