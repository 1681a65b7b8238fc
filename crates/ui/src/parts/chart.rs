//! Charts over time: lines in an SVG, whose values also show when a point is touched.

use std::fmt::Write;

use maud::{Markup, html};

/// Size of a drawing in its own units.
const WIDTH: usize = 1_000;
const HEIGHT: u64 = 100;

/// Line of a chart.
pub(in super::super) struct Line {
    pub name: &'static str,
    pub tone: &'static str,
    pub dashed: bool,
    /// Value of each point, if it has one.
    pub values: Vec<Option<u64>>,
}

/// Spans of time of all charts of a page.
pub(in super::super) struct TimeAxis {
    /// Starts of the spans in words.
    pub labels: Vec<String>,
    /// Part of the range from which points are incomplete, between 0 and 1.
    pub complete_to: f64,
    /// Part of the range before which counts may be too low.
    pub exact_from: f64,
}

/// Chart of lines with a common scale.
pub(in super::super) fn chart(title: &str, axis: &TimeAxis, lines: &[Line], show: fn(u64) -> String) -> Markup {
    let largest = lines.iter().flat_map(|line| &line.values).flatten().copied().max().unwrap_or_default();
    let top = rounded_up(largest);
    html! {
        figure.chart {
            figcaption { strong { (title) } span.scale { (show(top)) } (legends(lines)) }
            svg.lines viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img"
                aria-label=(described(title, lines, show)) {
                (grid())
                (inexact_parts(axis))
                @for line in lines {
                    path.line.dashed[line.dashed] .(line.tone) d=(path(&line.values, top)) {}
                }
                (points(&axis.labels, lines, show))
            }
            (axis_line(&axis.labels))
        }
    }
}

fn legends(lines: &[Line]) -> Markup {
    html! {
        span.legends { @for line in lines { span.legend.dashed[line.dashed] .(line.tone) { (line.name) } } }
    }
}

fn grid() -> Markup {
    html! {
        line.grid x1="0" x2=(WIDTH) y1="0.5" y2="0.5" {}
        line.grid x1="0" x2=(WIDTH) y1=(HEIGHT / 2) y2=(HEIGHT / 2) {}
        line.grid x1="0" x2=(WIDTH) y1=(HEIGHT) y2=(HEIGHT) {}
    }
}

/// Shades over the parts of the range without final values.
fn inexact_parts(axis: &TimeAxis) -> Markup {
    let at = |part: f64| (part.clamp(0.0, 1.0) * WIDTH as f64).round() as usize;
    html! {
        @if at(axis.complete_to) < WIDTH {
            rect.unknown x=(at(axis.complete_to)) y="0" width=(WIDTH - at(axis.complete_to)) height=(HEIGHT) {
                title { "not complete yet" }
            }
        }
        @if at(axis.exact_from) > 0 {
            rect.unknown x="0" y="0" width=(at(axis.exact_from)) height=(HEIGHT) { title { "at least" } }
        }
    }
}

/// Areas that show the values of a point when they are touched.
fn points(labels: &[String], lines: &[Line], show: fn(u64) -> String) -> Markup {
    html! {
        @for (n, label) in labels.iter().enumerate() {
            @let x = n * WIDTH / labels.len();
            rect.point x=(x) y="0" width=((n + 1) * WIDTH / labels.len() - x) height=(HEIGHT) {
                title { (label) (values_text(lines, n, show)) }
            }
        }
    }
}

fn axis_line(labels: &[String]) -> Markup {
    html! {
        div.axis {
            @if let (Some(first), Some(last)) = (labels.first(), labels.last()) {
                span { (first) } span { (last) }
            }
        }
    }
}

fn values_text(lines: &[Line], n: usize, show: fn(u64) -> String) -> String {
    lines.iter().fold(String::new(), |mut text, line| {
        let value = line.values.get(n).copied().flatten().map_or("–".to_owned(), show);
        let _ = write!(text, ", {} {value}", line.name);
        text
    })
}

fn described(title: &str, lines: &[Line], show: fn(u64) -> String) -> String {
    let range = |line: &Line| {
        let values = || line.values.iter().flatten().copied();
        match values().min().zip(values().max()) {
            Some((least, most)) => format!("{} {} to {}", line.name, show(least), show(most)),
            None => format!("{} without values", line.name),
        }
    };
    let ranges: Vec<String> = lines.iter().map(range).collect();
    format!("{title}: {}", ranges.join(", "))
}

/// Smallest of 1, 2, 5, 10, 20, … that is not below a value.
fn rounded_up(value: u64) -> u64 {
    let steps = std::iter::successors(Some(1_u64), |power| power.checked_mul(10));
    steps
        .flat_map(|power| [1, 2, 5].map(|digit| power.saturating_mul(digit)))
        .find(|top| *top >= value)
        .unwrap_or(value)
}

/// Path through the points, with gaps where there is no value.
fn path(values: &[Option<u64>], top: u64) -> String {
    let mut path = String::new();
    let mut is_drawing = false;
    for (n, value) in values.iter().enumerate() {
        let Some(value) = value else {
            is_drawing = false;
            continue;
        };
        let x = (2 * n + 1) * WIDTH / (2 * values.len());
        let y = HEIGHT - (u128::from(*value) * u128::from(HEIGHT) / u128::from(top.max(1))) as u64;
        // A point without neighbours is drawn as a dot.
        let _ = if is_drawing { write!(path, "L{x} {y}") } else { write!(path, "M{x} {y}h1") };
        is_drawing = true;
    }
    path
}

/// Bars of values, the largest as the scale. `labels` name them.
pub(in super::super) fn bars(values: &[u64], tone: &str, unit: &str) -> Markup {
    let largest = values.iter().copied().max().unwrap_or_default().max(1);
    let total: u64 = values.iter().sum();
    html! {
        svg.spark viewBox={ "0 0 " (values.len() * 4) " 20" } preserveAspectRatio="none" role="img"
            aria-label={ (super::count(total)) " " (unit) } {
            @for (n, value) in values.iter().enumerate() {
                @let height = if *value == 0 { 1 } else { (value * 20 / largest).max(3) };
                rect class={ "fill " (if *value == 0 { "neutral" } else { tone }) } x=(n * 4) y=(20 - height) width="3" height=(height) {
                    title { (super::count(value)) " " (unit) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_ends_at_a_round_number() {
        for (value, top) in [(0, 1), (1, 1), (3, 5), (5, 5), (6, 10), (18_204, 20_000), (u64::MAX, u64::MAX)] {
            assert_eq!(rounded_up(value), top);
        }
    }

    #[test]
    fn lines_have_gaps_where_values_are_missing() {
        assert_eq!(path(&[Some(0), Some(10), None, Some(5)], 10), "M125 100h1L375 0M875 50h1");
        assert_eq!(path(&[], 10), "");
    }

    #[test]
    fn chart_describes_itself_and_its_points() {
        let line = |name, values: &[u64]| Line {
            name,
            tone: "good",
            dashed: false,
            values: values.iter().copied().map(Some).collect(),
        };
        let axis = TimeAxis { labels: vec!["13:10".into(), "13:11".into()], complete_to: 0.75, exact_from: 0.0 };
        let drawn = chart("Ended", &axis, &[line("succeeded", &[7, 9]), line("failed", &[0, 2])], |n| n.to_string());
        let drawn = drawn.into_string();
        assert!(drawn.contains("aria-label=\"Ended: succeeded 7 to 9, failed 0 to 2\""), "{drawn}");
        assert!(drawn.contains("<title>13:11, succeeded 9, failed 2</title>"), "{drawn}");
        assert!(drawn.contains("<rect class=\"unknown\" x=\"750\" y=\"0\" width=\"250\" height=\"100\">"), "{drawn}");
    }
}
