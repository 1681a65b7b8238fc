//! Statistics over time: the charts of a page, their totals, and the table with the same values.

use kafleet_documents::statistics::change_text;
use kafleet_documents::{Durations, Stats, StatsPoint, StatsSeries};
use kafleet_model::units::duration::Millis;
use maud::{Markup, html};

use super::chart::{ChangeMark, Chart, Line, LineStyle, TimeAxis};
use super::range::{ChartRange, Compare};
use super::times::{duration, formatted, millis, time};
use super::{View, count};

/// Smallest part of a span whose counts are scaled to the whole one.
const LEAST_PART: i64 = 4;
/// Length of the longest spans.
const DAY_MS: i64 = 86_400_000;

/// Statistics of an earlier time with which those of a range are compared.
pub(in super::super) struct Past<'a> {
    compare: Compare,
    shift_ms: i64,
    series: &'a StatsSeries,
    step: Millis,
}

impl<'a> Past<'a> {
    /// `None`: nothing was counted then.
    pub(in super::super) fn new(compare: Compare, stats: &'a Stats) -> Option<Self> {
        let is_active = |point: &StatsPoint| point.opened + point.ended() + point.open > 0;
        let series = stats.series.first().filter(|series| series.points.iter().any(is_active))?;
        Some(Self { compare, shift_ms: compare.shift_ms()?, series, step: stats.step })
    }

    /// Count at the same time of the earlier range. Longer points count in proportion.
    fn sum(&self, from_ms: i64, to_ms: i64, count: fn(&StatsPoint) -> u64) -> f64 {
        self.series.sum_between(self.step, from_ms - self.shift_ms, to_ms - self.shift_ms, count)
    }

    fn point_at(&self, at_ms: i64) -> Option<&StatsPoint> {
        self.series.point_at(self.step, at_ms - self.shift_ms)
    }

    /// Change of a count in the span of a point.
    fn change(&self, point: &StatsPoint, length_ms: i64, count: fn(&StatsPoint) -> u64) -> Option<String> {
        let at = millis(&point.at)?;
        change_text(count(point) as f64, self.sum(at, at + length_ms, count))
    }
}

/// Change of the fleet: a pause, a limit, a new version.
#[derive(Clone, Debug)]
pub(in super::super) struct FleetChange {
    pub at_ms: i64,
    pub text: String,
}

/// Points of a range with the time at which they begin.
struct Points<'a> {
    points: &'a [StatsPoint],
    first_ms: i64,
    step: i64,
    /// End of the counted part of the open span, which is the last one; `None`: all have ended.
    open_to_ms: Option<i64>,
    past: Option<&'a Past<'a>>,
}

impl<'a> Points<'a> {
    fn new(stats: &'a Stats, range: &ChartRange, past: Option<&'a Past<'a>>) -> Self {
        let points: &[StatsPoint] = stats.series.first().map_or(&[], |series| &series.points);
        let (first, last) = (points.first(), points.last());
        let start = |point: Option<&StatsPoint>| point.and_then(|point| millis(&point.at)).unwrap_or_default();
        let step = stats.step.as_i64().max(1);
        let is_open = start(last) + step > range.now_ms;
        let counted_to = millis(&stats.complete_to).unwrap_or(range.now_ms).min(range.now_ms);
        Self { points, first_ms: start(first), step, open_to_ms: is_open.then_some(counted_to), past }
    }

    fn starts(&self) -> impl Iterator<Item = i64> {
        (0..self.points.len() as i64).map(|n| self.first_ms + n * self.step)
    }

    fn last_ms(&self) -> i64 {
        self.first_ms + (self.points.len() as i64 - 1) * self.step
    }

    /// End of what is counted.
    fn end_ms(&self) -> i64 {
        self.open_to_ms.unwrap_or(self.last_ms() + self.step)
    }

    /// Line of counts in each span; that of the open one is scaled to the whole span.
    fn rates(&self, name: &str, tone: &'static str, style: LineStyle, value: CountOf) -> Line {
        let elapsed = self.open_to_ms.map(|to| to - self.last_ms()).filter(|elapsed| elapsed * LEAST_PART >= self.step);
        let projected = elapsed.zip(self.points.last()).map(|(elapsed, last)| scaled(value(last), self.step, elapsed));
        let values = self.points.iter().map(|point| Some(value(point))).collect();
        Line { name: name.to_owned(), tone, style, values, projected }
    }

    /// Line of values at the end of each span.
    fn gauge(&self, name: &str, tone: &'static str, style: LineStyle, value: fn(&StatsPoint) -> Option<u64>) -> Line {
        let projected = self.open_to_ms.and(self.points.last()).and_then(value);
        let values = self.points.iter().map(value).collect();
        Line { name: name.to_owned(), tone, style, values, projected }
    }

    /// Pale line of the same counts at the earlier time.
    fn earlier_rates(&self, name: &str, value: CountOf) -> Option<Line> {
        let past = self.past?;
        let sum = |at: i64| Some(past.sum(at, at + self.step, value).round() as u64);
        Some(earlier(past, name, self.starts().map(sum).collect()))
    }

    fn earlier_gauge(&self, name: &str, value: fn(&StatsPoint) -> Option<u64>) -> Option<Line> {
        let past = self.past?;
        let at_end = |at: i64| past.point_at(at + self.step - 1).and_then(value);
        Some(earlier(past, name, self.starts().map(at_end).collect()))
    }
}

fn scaled(value: u64, step: i64, elapsed: i64) -> u64 {
    (value as f64 * step as f64 / elapsed.clamp(1, step) as f64).round() as u64
}

fn earlier(past: &Past<'_>, name: &str, values: Vec<Option<u64>>) -> Line {
    let name = format!("{name} {}", past.compare.words());
    Line { name, tone: "neutral", style: LineStyle::Earlier, values, projected: None }
}

/// Charts with links to other ranges.
pub(in super::super) fn charts(
    view: &View,
    path: &str,
    range: &ChartRange,
    stats: &Stats,
    past: Option<&Past<'_>>,
    changes: &[FleetChange],
) -> Markup {
    let points = Points::new(stats, range, past);
    html! {
        section.panel #charts {
            div.head { h2 { "Over time" } (range.controls(view, path)) }
            @if points.points.is_empty() { p.quiet { "No task has been counted in this range." } }
            @else {
                (totals(&points))
                (drawn(stats, &points, changes))
                (notes(stats, &points, range))
                (table(&points, stats.step))
            }
        }
    }
}

/// Count of a point.
type CountOf = fn(&StatsPoint) -> u64;

/// Counts that are summed over a range.
const COUNTS: [(&str, CountOf); 5] = [
    ("opened", |point| point.opened),
    ("succeeded", |point| point.succeeded),
    ("failed", failed),
    ("cancelled", |point| point.cancelled),
    ("retried", |point| point.retried),
];

/// Scope of the counts over time.
const OWN_RESULTS: &str =
    "a task whose child failed has not failed by itself; tasks that are no longer retained count too";

/// Sums over the range, with their changes.
fn totals(points: &Points<'_>) -> Markup {
    html! {
        p.totals {
            @for (name, value) in &COUNTS[..3] {
                span { strong { (count(sum(points, *value))) } " " (name) (change(points, *value)) }
            }
            span.quiet title=(OWN_RESULTS) { "own results in this range" @if let Some(past) = points.past { ", against " (past.compare.words()) } }
        }
    }
}

fn sum(points: &Points<'_>, value: CountOf) -> u64 {
    points.points.iter().map(value).sum()
}

fn past_sum(points: &Points<'_>, value: CountOf) -> Option<f64> {
    Some(points.past?.sum(points.first_ms, points.end_ms(), value))
}

fn change(points: &Points<'_>, value: CountOf) -> Markup {
    let text = past_sum(points, value).and_then(|past| change_text(sum(points, value) as f64, past));
    html! { @if let Some(text) = text { span.change { " " (text) } } }
}

fn drawn(stats: &Stats, points: &Points<'_>, changes: &[FleetChange]) -> Markup {
    let axis = axis(stats, points, changes);
    let charts = rate_charts(points, stats.step).into_iter().chain([
        open_chart(points),
        percentile_chart(
            "Wait for a worker",
            points,
            |point| point.wait.p50,
            |point| point.wait.p95,
            |point| point.wait.p99,
        ),
        percentile_chart("Run time", points, |point| point.run.p50, |point| point.run.p95, |point| point.run.p99),
    ]);
    html! { div.charts { @for chart in charts { (chart.draw(&axis)) } } }
}

fn rate_charts(points: &Points<'_>, step: Millis) -> [Chart; 2] {
    let (_, unit) = step_words(step);
    let mut ended = vec![
        points.rates("succeeded", "good", LineStyle::Solid, |point| point.succeeded),
        points.rates("failed", "bad", LineStyle::Dashed, failed),
    ];
    ended.extend(points.earlier_rates("succeeded", |point| point.succeeded));
    let mut opened = vec![points.rates("opened", "planned", LineStyle::Solid, |point| point.opened)];
    opened.extend(points.earlier_rates("opened", |point| point.opened));
    [("Ended", ended), ("Opened", opened)].map(|(title, lines)| Chart { title, unit, lines, band: None, show: count })
}

fn open_chart(points: &Points<'_>) -> Chart {
    let mut lines = vec![points.gauge("open", "blue", LineStyle::Solid, |point| Some(point.open))];
    lines.extend(points.earlier_gauge("open", |point| Some(point.open)));
    Chart { title: "Open", unit: "tasks open by themselves", lines, band: None, show: count }
}

/// Median as a line in a band up to the 99th percentile.
fn percentile_chart(
    title: &'static str,
    points: &Points<'_>,
    p50: fn(&StatsPoint) -> Option<u64>,
    p95: fn(&StatsPoint) -> Option<u64>,
    p99: fn(&StatsPoint) -> Option<u64>,
) -> Chart {
    let mut lines = vec![
        points.gauge("p50", "running", LineStyle::Solid, p50),
        points.gauge("p95", "running", LineStyle::Hidden, p95),
        points.gauge("p99", "running", LineStyle::Edge, p99),
    ];
    lines.extend(points.earlier_gauge("p50", p50));
    Chart { title, unit: "duration", lines, band: Some([0, 2]), show: ms_text }
}

/// Words for the span of the points of a chart: of the rows of its table, and the unit of counts.
fn step_words(step: Millis) -> (&'static str, &'static str) {
    match step.as_i64() {
        ..=60_000 => ("by minute", "tasks a minute"),
        60_001..=600_000 => ("by 10 min", "tasks per 10 min"),
        600_001..=3_600_000 => ("by hour", "tasks an hour"),
        _ => ("by day", "tasks a day"),
    }
}

pub(in super::super) fn ms_text(ms: u64) -> String {
    duration(i64::try_from(ms).unwrap_or(i64::MAX))
}

/// Tasks that ended without success, other than by a cancel.
pub(in super::super) const fn failed(point: &StatsPoint) -> u64 {
    point.unsuccessful()
}

fn axis(stats: &Stats, points: &Points<'_>, changes: &[FleetChange]) -> TimeAxis {
    let length = points.step.saturating_mul(points.points.len() as i64);
    let part_of = |at: i64| (at - points.first_ms) as f64 / length as f64;
    let part = |text: &str| millis(text).map(part_of);
    let marks = changes.iter().map(|change| ChangeMark { at: part_of(change.at_ms), text: change.text.clone() });
    TimeAxis {
        labels: points.points.iter().map(|point| label(&point.at, points.step)).collect(),
        complete_to: part(&stats.complete_to).unwrap_or(1.0),
        exact_from: stats.exact_from.as_deref().and_then(part).unwrap_or(0.0),
        is_open: points.open_to_ms.is_some(),
        marks: marks.filter(|mark| (0.0..=1.0).contains(&mark.at)).collect(),
    }
}

/// Start of a span: its time, with its date where a range is longer than some hours, or its date if spans are long. A day
/// of the statistics begins at midnight in UTC.
fn label(at: &str, step: i64) -> String {
    let Some(at_ms) = millis(at) else { return at.to_owned() };
    let is_midnight = || formatted(at_ms, "%H:%M") == "00:00";
    let format = match step {
        ..=60_000 => "%H:%M",
        DAY_MS.. if is_midnight() => "%-d %b",
        _ => "%-d %b %H:%M",
    };
    formatted(at_ms, format)
}

fn notes(stats: &Stats, points: &Points<'_>, range: &ChartRange) -> Markup {
    // Times of documents are sorted like their texts.
    let is_behind = points.points.last().is_some_and(|last| stats.complete_to < last.at);
    html! {
        @if is_behind { p.quiet { "Complete to " (time(&stats.complete_to)) "; later events have not been projected." } }
        @if let Some(from) = &stats.exact_from {
            p.quiet { "Counts before " (time(from)) " are at least as high as shown: older events were no longer retained when the store was built." }
        }
        @match points.past {
            Some(past) => { p.quiet { (kept(past, points.step)) } }
            None if range.compare != Compare::None => {
                p.quiet { "Nothing was counted " (range.compare.words()) ", or it is not kept for this range: days are kept for 31 days." }
            }
            None => {}
        }
    }
}

/// Span of the points of the past, and why it is longer.
fn kept(past: &Past<'_>, step: i64) -> String {
    let words = past.compare.words();
    if past.step.as_i64() <= step {
        return format!("The counts of {words} are points of {}.", past.step);
    }
    format!(
        "The counts of {words} are shares of points of {}: minutes are kept for 3 hours, 10 minutes for 24 hours, hours for 7 days.",
        past.step
    )
}

/// Values of the charts, newest first, below their totals.
fn table(points: &Points<'_>, step: Millis) -> Markup {
    let is_active =
        |point: &&StatsPoint| point.opened + point.succeeded + failed(point) + point.cancelled + point.open > 0;
    let rows = points.points.iter().rev().filter(is_active).map(row);
    let rows: Vec<Markup> = total_rows(points).into_iter().chain(rows).collect();
    html! {
        details.more #values {
            summary { "As a table, " (step_words(step).0) }
            (super::table::table(&[
                "From", "#Opened", "#Succeeded", "#Failed", "#Cancelled", "#Retried", "#Open", "#Wait p50", "#Wait p95",
                "#Wait p99", "#Run p50", "#Run p95", "#Run p99",
            ], &rows))
        }
    }
}

/// Totals, those of the earlier time, and the changes.
fn total_rows(points: &Points<'_>) -> Vec<Markup> {
    let totals = |name: &str, text: &dyn Fn(fn(&StatsPoint) -> u64) -> String| {
        html! {
            tr.total {
                th scope="row" { (name) }
                @for (_, value) in COUNTS { td.number { (text(value)) } }
                td colspan="7" {}
            }
        }
    };
    let mut rows = vec![totals("Total", &|value| count(sum(points, value)))];
    if let Some(past) = points.past {
        let earlier = |value| past_sum(points, value).map_or_else(String::new, |sum| count(sum.round() as u64));
        let changes = |value| {
            let text = past_sum(points, value).and_then(|past| change_text(sum(points, value) as f64, past));
            text.unwrap_or_else(|| "–".to_owned())
        };
        rows.push(totals(&format!("Total {}", past.compare.words()), &earlier));
        rows.push(totals("Change", &changes));
    }
    rows
}

fn row(point: &StatsPoint) -> Markup {
    let ms = |value: Option<u64>| value.map_or("–".to_owned(), ms_text);
    let durations =
        |of: &Durations| html! { td.number { (ms(of.p50)) } td.number { (ms(of.p95)) } td.number { (ms(of.p99)) } };
    html! {
        tr {
            td.time { (time(&point.at)) }
            td.number { (count(point.opened)) } td.number { (count(point.succeeded)) }
            td.number { (count(failed(point))) } td.number { (count(point.cancelled)) }
            td.number { (count(point.retried)) } td.number { (count(point.open)) }
            (durations(&point.wait)) (durations(&point.run))
        }
    }
}

/// Number with its name, as a link to its tasks. `tone`: class of its colour.
pub(in super::super) struct Tile<'a> {
    pub url: String,
    pub value: String,
    pub tone: &'a str,
    pub name: &'a str,
    /// Name with the span and the level of the number.
    pub title: String,
    /// Change from an earlier time.
    pub change: Option<String>,
}

impl Tile<'_> {
    pub(in super::super) fn draw(&self) -> Markup {
        html! {
            a.tile href=(self.url) title=(self.title) {
                span class={ "value " (self.tone) } {
                    (self.value) @if let Some(change) = &self.change { span.change { " " (change) } }
                }
                span.name { (self.name) }
            }
        }
    }
}

/// Counts and durations of the last full minute; `None`: nothing happened in it.
pub(in super::super) fn last_minute(view: &View, point: Option<&StatsPoint>, past: Option<&Past<'_>>) -> Markup {
    let ms = |value: Option<u64>| value.map_or("–".to_owned(), ms_text);
    let charts = || format!("{}#charts", view.url("/"));
    let full = |name: &str| name.replace("last", "in the last full");
    let tile = |url, name, value: fn(&StatsPoint) -> u64| {
        let change = point.zip(past).and_then(|(point, past)| past.change(point, 60_000, value));
        let value = point.map(value).unwrap_or_default();
        let tone = if name == "failed last minute" && value > 0 { "bad" } else { "" };
        Tile { url, value: count(value), tone, name, title: full(name), change }.draw()
    };
    let duration = |name, value: Option<u64>| {
        Tile { url: charts(), value: ms(value), tone: "", name, title: full(name), change: None }.draw()
    };
    html! {
        (tile(view.search("level:any"), "opened last minute", |point| point.opened))
        (tile(view.search("is:ended level:any"), "ended last minute", StatsPoint::ended))
        (tile(view.url("/failures"), "failed last minute", failed))
        (duration("wait p95 last minute", point.and_then(|point| point.wait.p95)))
        (duration("run p95 last minute", point.and_then(|point| point.run.p95)))
    }
}

#[cfg(test)]
mod tests;
