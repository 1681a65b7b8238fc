//! Statistics over time: the charts of a page, their ranges, and the table with the same values.

use kafleet_documents::{Durations, Stats, StatsPoint};
use maud::{Markup, html};

use super::chart::{Line, TimeAxis, chart};
use super::times::{duration, millis, time};
use super::{View, count};

/// Range of charts.
pub(in super::super) struct ChartRange {
    /// Value of the parameter `range`, and text of its link.
    name: &'static str,
    pub length_ms: i64,
    pub step: &'static str,
}

const RANGES: [ChartRange; 5] = [
    ChartRange { name: "1h", length_ms: 3_600_000, step: "1m" },
    ChartRange { name: "3h", length_ms: 3 * 3_600_000, step: "1m" },
    ChartRange { name: "24h", length_ms: 86_400_000, step: "10m" },
    ChartRange { name: "7d", length_ms: 7 * 86_400_000, step: "1h" },
    ChartRange { name: "30d", length_ms: 30 * 86_400_000, step: "1d" },
];

impl ChartRange {
    /// Range of this name; the shortest by default.
    pub(in super::super) fn named(name: Option<&str>) -> &'static Self {
        RANGES.iter().find(|range| Some(range.name) == name).unwrap_or(&RANGES[0])
    }
}

/// Charts with links to other ranges.
pub(in super::super) fn charts(view: &View, path: &str, range: &ChartRange, stats: &Stats) -> Markup {
    let points: &[StatsPoint] = stats.series.first().map_or(&[], |series| &series.points);
    html! {
        section.panel #charts {
            div.head {
                h2 { "Over time" }
                nav.ranges aria-label="range" {
                    @for choice in &RANGES {
                        a href=(view.url_with(path, &[("range", choice.name)]))
                            aria-current=[(choice.name == range.name).then_some("page")] { (choice.name) }
                    }
                }
            }
            @if points.is_empty() { p.quiet { "No task has been counted in this range." } }
            @else { (drawn(stats, points)) (notes(stats, points)) (table(points, range)) }
        }
    }
}

fn drawn(stats: &Stats, points: &[StatsPoint]) -> Markup {
    let axis = axis(stats, points);
    let counted = |name, tone, dashed, value: fn(&StatsPoint) -> u64| {
        let values = points.iter().map(|point| Some(value(point))).collect();
        Line { name, tone, dashed, values }
    };
    let ended = [counted("succeeded", "good", false, |point| point.succeeded), counted("failed", "bad", true, failed)];
    let open =
        [counted("open", "blue", false, |point| point.open), counted("opened", "planned", true, |point| point.opened)];
    html! {
        div.charts {
            (chart("Ended", &axis, &ended, count))
            (chart("Open", &axis, &open, count))
            (chart("Wait for a worker", &axis, &percentiles(points, |point| &point.wait), ms_text))
            (chart("Run time", &axis, &percentiles(points, |point| &point.run), ms_text))
        }
    }
}

fn percentiles(points: &[StatsPoint], of: fn(&StatsPoint) -> &Durations) -> [Line; 3] {
    let line = |name, tone, dashed, value: fn(&Durations) -> Option<u64>| {
        let values = points.iter().map(|point| value(of(point))).collect();
        Line { name, tone, dashed, values }
    };
    [
        line("p50", "running", false, |durations| durations.p50),
        line("p95", "attention", true, |durations| durations.p95),
        line("p99", "bad", true, |durations| durations.p99),
    ]
}

pub(in super::super) fn ms_text(ms: u64) -> String {
    duration(i64::try_from(ms).unwrap_or(i64::MAX))
}

/// Tasks that ended without success, other than by a cancel.
pub(in super::super) const fn failed(point: &StatsPoint) -> u64 {
    point.failed + point.expired
}

fn axis(stats: &Stats, points: &[StatsPoint]) -> TimeAxis {
    let step = stats.step.as_i64().max(1);
    let first = points.first().and_then(|point| millis(&point.at)).unwrap_or_default();
    let length = step.saturating_mul(points.len() as i64);
    let part = |text: &str| millis(text).map(|at| (at - first) as f64 / length as f64);
    TimeAxis {
        labels: points.iter().map(|point| label(&point.at, step)).collect(),
        complete_to: part(&stats.complete_to).unwrap_or(1.0),
        exact_from: stats.exact_from.as_deref().and_then(part).unwrap_or(0.0),
    }
}

/// Start of a span: its time, or its date if spans are long.
fn label(at: &str, step: i64) -> String {
    let (date, time) = (at.get(5..10).unwrap_or(at), at.get(11..16).unwrap_or_default());
    match step {
        ..3_600_000 => time.to_owned(),
        3_600_000..86_400_000 => format!("{date} {time}"),
        _ => date.to_owned(),
    }
}

fn notes(stats: &Stats, points: &[StatsPoint]) -> Markup {
    // Times of documents are sorted like their texts.
    let is_behind = points.last().is_some_and(|last| stats.complete_to < last.at);
    html! {
        @if is_behind { p.quiet { "Complete to " (time(&stats.complete_to)) "; later events have not been projected." } }
        @if let Some(from) = &stats.exact_from {
            p.quiet { "Counts before " (time(from)) " are at least as high as shown: older events were no longer retained when the store was built." }
        }
    }
}

/// Values of the charts, newest first.
fn table(points: &[StatsPoint], range: &ChartRange) -> Markup {
    let is_active =
        |point: &&StatsPoint| point.opened + point.succeeded + failed(point) + point.cancelled + point.open > 0;
    let rows: Vec<Markup> = points.iter().rev().filter(is_active).map(row).collect();
    html! {
        details.more #values {
            summary { "As a table, by " (range.step) }
            (super::table::table(&[
                "From", "#Opened", "#Succeeded", "#Failed", "#Cancelled", "#Retried", "#Open", "#Wait p50", "#p95", "#p99",
                "#Run p50", "#p95", "#p99",
            ], &rows))
        }
    }
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

/// Number with its name. `tone`: class of its colour.
pub(in super::super) fn tile(value: &str, tone: &str, name: &str) -> Markup {
    html! { div.tile { span class={ "value " (tone) } { (value) } span.name { (name) } } }
}

/// Counts of a last full minute in which nothing happened.
pub(in super::super) fn quiet_minute() -> Markup {
    html! {
        @for name in ["opened", "ended", "failed"] { (tile("0", "", &format!("{name} last minute"))) }
        @for name in ["wait p95", "run p95"] { (tile("–", "", name)) }
    }
}

/// Counts and durations of the last full minute.
pub(in super::super) fn last_minute(point: &StatsPoint) -> Markup {
    let at = point.at.get(11..16).unwrap_or_default();
    let ms = |value: Option<u64>| value.map_or("–".to_owned(), ms_text);
    let ended = point.succeeded + failed(point) + point.cancelled;
    let failed = failed(point);
    html! {
        (tile(&count(point.opened), "", &format!("opened at {at}")))
        (tile(&count(ended), "", &format!("ended at {at}")))
        (tile(&count(failed), if failed > 0 { "bad" } else { "" }, &format!("failed at {at}")))
        (tile(&ms(point.wait.p95), "", "wait p95"))
        (tile(&ms(point.run.p95), "", "run p95"))
    }
}
