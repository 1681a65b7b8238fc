//! Charts over time: lines in an SVG, whose values also show when a point is touched.

use std::fmt::Write;
use std::ops::Range;

use maud::{Markup, html};

use super::visible;

/// Size of a drawing in its own units.
const WIDTH: usize = 1_000;
const HEIGHT: u64 = 100;

/// Appearance of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum LineStyle {
    Solid,
    Dashed,
    /// Pale: the same values of an earlier time, all of which are final.
    Earlier,
    /// Only in the values of a point.
    Hidden,
    /// Edge of the band, which is filled up to it.
    Edge,
}

/// Line of a chart.
pub(in super::super) struct Line {
    pub name: String,
    pub tone: &'static str,
    pub style: LineStyle,
    /// Value of each point, if it has one.
    pub values: Vec<Option<u64>>,
    /// Value of the last span if it went on as it has begun; only of the open span.
    pub projected: Option<u64>,
}

/// Lines with a common scale.
pub(in super::super) struct Chart {
    pub title: &'static str,
    /// Unit of the values, such as `tasks a minute`.
    pub unit: &'static str,
    pub lines: Vec<Line>,
    /// Lines between which the area is filled: the lower and the upper one.
    pub band: Option<[usize; 2]>,
    pub show: fn(u64) -> String,
}

/// Change of the fleet in the range.
pub(in super::super) struct ChangeMark {
    /// Part of the range, between 0 and 1.
    pub at: f64,
    pub text: String,
}

/// Spans of time of all charts of a page.
pub(in super::super) struct TimeAxis {
    /// Starts of the spans in words.
    pub labels: Vec<String>,
    /// Part of the range from which points are incomplete, between 0 and 1.
    pub complete_to: f64,
    /// Part of the range before which counts may be too low.
    pub exact_from: f64,
    /// The last span has not ended.
    pub is_open: bool,
    pub marks: Vec<ChangeMark>,
}

impl TimeAxis {
    /// Numbers of the points of spans that have ended and are complete, and of those that have ended and are not.
    fn full_and_incomplete(&self) -> (Range<usize>, Range<usize>) {
        let count = self.labels.len();
        let ended = count - usize::from(self.is_open && count > 0);
        // A part of 0.9999999 is the end of a span.
        let complete = ((self.complete_to.clamp(0.0, 1.0) * count as f64 + 1e-6).floor() as usize).min(ended);
        (0..complete, complete.saturating_sub(1)..ended)
    }
}

impl Chart {
    pub(in super::super) fn draw(&self, axis: &TimeAxis) -> Markup {
        // A projection does not flatten what was counted: above the scale it is an arrow.
        let values = self.lines.iter().flat_map(|line| line.values.iter().flatten());
        let has_values = values.clone().next().is_some();
        let top = rounded_up(values.copied().max().unwrap_or_default());
        html! {
            figure.chart {
                figcaption { strong { (self.title) } span.scale { (self.unit) } (legends(&self.lines)) }
                div.plot {
                    div.ticks aria-hidden="true" {
                        @if has_values { @for value in [top, top / 2, 0] { span { ((self.show)(value)) } } }
                        @else { span { "no data" } }
                    }
                    svg.lines viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img"
                        aria-label=(described(self.title, &self.lines, self.show)) {
                        (grid())
                        (inexact_parts(axis))
                        @if let Some([lower, upper]) = self.band { (band(axis, &self.lines[lower], &self.lines[upper], top)) }
                        @for line in &self.lines { (drawn(axis, line, top)) }
                        (points(axis, &self.lines, self.show))
                        (marks(&axis.marks))
                    }
                    (axis_line(&axis.labels))
                }
            }
        }
    }
}

fn legends(lines: &[Line]) -> Markup {
    let is_shown = |line: &&Line| line.style != LineStyle::Hidden;
    html! {
        span.legends {
            @for line in lines.iter().filter(is_shown) { span class={ "legend " (class(line)) } { (line.name) } }
        }
    }
}

fn class(line: &Line) -> String {
    let style = match line.style {
        LineStyle::Solid | LineStyle::Hidden => "",
        LineStyle::Edge => "edge ",
        LineStyle::Dashed => "dashed ",
        LineStyle::Earlier => "earlier ",
    };
    format!("{style}{}", line.tone)
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

/// Line up to the last full span, dots of single values, and a hollow dot for the open span, or an arrow if its value is
/// above the scale.
fn drawn(axis: &TimeAxis, line: &Line, top: u64) -> Markup {
    let values = &line.values;
    let (full, incomplete) = match line.style {
        LineStyle::Hidden | LineStyle::Edge => return html! {},
        LineStyle::Earlier => (0..values.len(), 0..0),
        _ => axis.full_and_incomplete(),
    };
    let open = line.projected.filter(|_| axis.is_open && line.style != LineStyle::Earlier);
    let class = class(line);
    html! {
        path class={ "line " (class) } d=(path(values, full.clone(), top)) {}
        @if incomplete.len() > 1 { path class={ "line incomplete " (class) } d=(path(values, incomplete, top)) {} }
        @let single = dots(values, full, top);
        @if !single.is_empty() { path class={ "dot " (class) } d=(single) {} }
        @if let Some(value) = open {
            @let x = x(values.len().saturating_sub(1), values.len());
            @if value > top {
                path class={ "line " (class) } d={ "M" (x.saturating_sub(6)) " 12L" (x) " 1L" (x + 6) " 12M" (x) " 1V24" } {}
            } @else {
                @let at = format!("M{x} {}h1", y(value, top));
                path class={ "dot open " (class) } d=(at) {}
                path.dot.hole d=(at) {}
            }
        }
    }
}

/// Area between two lines, up to the last full span.
fn band(axis: &TimeAxis, lower: &Line, upper: &Line, top: u64) -> Markup {
    let (full, _) = axis.full_and_incomplete();
    let pair =
        |n: usize| Some((x(n, lower.values.len()), lower.values.get(n).copied()??, upper.values.get(n).copied()??));
    let pairs: Vec<_> = full.map(pair).collect();
    let mut area = String::new();
    for run in pairs.split(|pair| pair.is_none()) {
        let run: Vec<_> = run.iter().flatten().collect();
        let edge = run.iter().map(|(x, _, high)| (x, high)).chain(run.iter().rev().map(|(x, low, _)| (x, low)));
        for (n, (x, value)) in edge.enumerate() {
            let _ = write!(area, "{}{x} {}", if n == 0 { 'M' } else { 'L' }, y(*value, top));
        }
        if !run.is_empty() {
            area.push('Z');
        }
    }
    html! { path class={ "band " (upper.tone) } d=(area) {} }
}

/// Areas that show the values of a point when they are touched.
fn points(axis: &TimeAxis, lines: &[Line], show: fn(u64) -> String) -> Markup {
    let labels = &axis.labels;
    let so_far = |n: usize| if axis.is_open && n + 1 == labels.len() { ", so far" } else { "" };
    html! {
        @for (n, label) in labels.iter().enumerate() {
            @let x = n * WIDTH / labels.len();
            rect.point x=(x) y="0" width=((n + 1) * WIDTH / labels.len() - x) height=(HEIGHT) {
                title { (label) (so_far(n)) (values_text(lines, n, show)) }
            }
        }
    }
}

/// Lines at the times of changes.
fn marks(marks: &[ChangeMark]) -> Markup {
    html! {
        @for mark in marks {
            @let x = (mark.at.clamp(0.0, 1.0) * WIDTH as f64).round() as usize;
            g.mark {
                line x1=(x) x2=(x) y1="0" y2=(HEIGHT) {}
                rect x=(x.saturating_sub(5)) y="0" width="10" height=(HEIGHT) { title { (visible(&mark.text)) } }
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

/// Smallest of 2, 4, 6, 8, 10, 20, 40, … that is not below a value: its half is a whole number too.
pub(super) fn rounded_up(value: u64) -> u64 {
    let steps = std::iter::successors(Some(1_u64), |power| power.checked_mul(10));
    steps
        .flat_map(|power| [2, 4, 6, 8, 10].map(|digit| power.saturating_mul(digit)))
        .find(|top| *top >= value)
        .unwrap_or(value)
}

/// Middle of a span.
fn x(n: usize, count: usize) -> usize {
    (2 * n + 1) * WIDTH / (2 * count.max(1))
}

fn y(value: u64, top: u64) -> u64 {
    HEIGHT - (u128::from(value.min(top)) * u128::from(HEIGHT) / u128::from(top.max(1))) as u64
}

/// Path through the points of a range, with gaps where there is no value.
fn path(values: &[Option<u64>], range: Range<usize>, top: u64) -> String {
    let mut path = String::new();
    let mut is_drawing = false;
    for n in range {
        let Some(value) = values.get(n).copied().flatten() else {
            is_drawing = false;
            continue;
        };
        let (x, y) = (x(n, values.len()), y(value, top));
        let _ = if is_drawing { write!(path, "L{x} {y}") } else { write!(path, "M{x} {y}h1") };
        is_drawing = true;
    }
    path
}

/// Dots at the points of a range without neighbours.
fn dots(values: &[Option<u64>], range: Range<usize>, top: u64) -> String {
    let value = |n: usize| values.get(n).copied().flatten().filter(|_| range.contains(&n));
    let is_single = |n: &usize| value(n + 1).is_none() && n.checked_sub(1).and_then(value).is_none();
    let dot = |n: usize| Some(format!("M{} {}h1", x(n, values.len()), y(value(n)?, top)));
    range.clone().filter(is_single).filter_map(dot).collect()
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
    fn scale_ends_at_a_round_number_with_a_whole_half() {
        for (value, top) in [(0, 2), (1, 2), (3, 4), (5, 6), (6, 6), (9, 10), (18_204, 20_000), (u64::MAX, u64::MAX)] {
            assert_eq!(rounded_up(value), top);
        }
    }

    #[test]
    fn lines_have_gaps_where_values_are_missing() {
        let values = [Some(0), Some(10), None, Some(5)];
        assert_eq!(path(&values, 0..4, 10), "M125 100h1L375 0M875 50h1");
        assert_eq!(path(&values, 0..1, 10), "M125 100h1");
        assert_eq!(path(&[], 0..0, 10), "");
    }

    #[test]
    fn values_without_neighbours_are_dots() {
        assert_eq!(dots(&[Some(0), Some(10), None, Some(5)], 0..4, 10), "M875 50h1");
        assert_eq!(dots(&[Some(0), Some(10)], 0..1, 10), "M250 100h1", "its neighbour is not drawn");
    }

    fn line(name: &'static str, values: &[u64]) -> Line {
        let values = values.iter().copied().map(Some).collect();
        Line { name: name.into(), tone: "good", style: LineStyle::Solid, values, projected: Some(20) }
    }

    fn drawn_chart(lines: Vec<Line>, axis: &TimeAxis) -> String {
        let chart = Chart { title: "Ended", unit: "tasks a minute", lines, band: None, show: |n| n.to_string() };
        chart.draw(axis).into_string()
    }

    fn axis() -> TimeAxis {
        let labels = vec!["13:10".into(), "13:11".into()];
        TimeAxis { labels, complete_to: 0.75, exact_from: 0.0, is_open: true, marks: Vec::new() }
    }

    #[test]
    fn chart_describes_itself_and_its_points() {
        let drawn = drawn_chart(vec![line("succeeded", &[7, 9]), line("failed", &[0, 2])], &axis());
        assert!(drawn.contains("aria-label=\"Ended: succeeded 7 to 9, failed 0 to 2\""), "{drawn}");
        assert!(drawn.contains("<title>13:11, so far, succeeded 9, failed 2</title>"), "{drawn}");
        assert!(drawn.contains("<rect class=\"unknown\" x=\"750\" y=\"0\" width=\"250\" height=\"100\">"), "{drawn}");
    }

    #[test]
    fn line_ends_at_the_last_full_span_and_the_open_one_is_a_hollow_dot() {
        let drawn = drawn_chart(vec![line("succeeded", &[20, 1])], &axis());
        assert!(drawn.contains("<path class=\"line good\" d=\"M250 0h1\">"), "{drawn}");
        assert!(
            drawn.contains("<path class=\"dot open good\" d=\"M750 0h1\"></path><path class=\"dot hole\""),
            "{drawn}"
        );
    }

    #[test]
    fn scale_is_that_of_counted_values_and_a_higher_projection_is_an_arrow() {
        let drawn = drawn_chart(vec![line("succeeded", &[2, 1])], &axis());
        assert!(drawn.contains("<span>2</span><span>1</span><span>0</span>"), "{drawn}");
        assert!(drawn.contains("d=\"M744 12L750 1L756 12M750 1V24\"") && !drawn.contains("hole"), "{drawn}");
    }

    #[test]
    fn chart_without_values_has_no_scale() {
        let empty = Line { values: vec![None, None], projected: None, ..line("p50", &[]) };
        let drawn = drawn_chart(vec![empty], &axis());
        assert!(drawn.contains("<span>no data</span></div>"), "{drawn}");
    }

    #[test]
    fn y_axis_has_three_ticks_and_a_unit() {
        let drawn = drawn_chart(vec![line("succeeded", &[7, 19])], &axis());
        assert!(drawn.contains("<span>20</span><span>10</span><span>0</span>"), "{drawn}");
        assert!(drawn.contains("tasks a minute"), "{drawn}");
    }

    #[test]
    fn spans_that_are_not_projected_yet_are_drawn_apart() {
        let labels = (0..4).map(|n| n.to_string()).collect();
        let axis = TimeAxis { labels, complete_to: 0.5, exact_from: 0.0, is_open: true, marks: Vec::new() };
        assert_eq!(axis.full_and_incomplete(), (0..2, 1..3));
        assert_eq!(TimeAxis { is_open: false, complete_to: 1.0, ..axis }.full_and_incomplete(), (0..4, 3..4));
    }

    #[test]
    fn band_is_filled_between_two_lines() {
        let axis = TimeAxis { complete_to: 1.0, is_open: false, ..axis() };
        let area = band(&axis, &line("p50", &[1, 2]), &line("p99", &[3, 4]), 4).into_string();
        assert_eq!(area, "<path class=\"band good\" d=\"M250 25L750 0L750 50L250 75Z\"></path>");
    }

    #[test]
    fn changes_are_marked_with_their_text() {
        let marks = vec![ChangeMark { at: 0.5, text: "13:10 pause type echo by ada\u{1b}[31m".into() }];
        let drawn = drawn_chart(vec![line("succeeded", &[7, 9])], &TimeAxis { marks, ..axis() });
        assert!(drawn.contains("<title>13:10 pause type echo by ada</title>"), "{drawn}");
    }
}
