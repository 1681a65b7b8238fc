//! Histogram of durations. Positions are SVG attributes: the policy of the pages forbids inline styles.

use kafleet_documents::{DurationBucket, DurationHistogram};
use maud::{Markup, html};

use super::chart::rounded_up;
use super::statistics::ms_text;
use super::table::table;
use super::{count, counted};

/// Bars of the drawing; of more buckets, several share a bar.
const MAX_BARS: usize = 48;
/// Width of a bar with its gap, and height of the highest one, in units of the drawing.
const STEP: usize = 10;
const HEIGHT: u64 = 100;

/// Bars with an axis, the percentiles, and the same as a table.
pub(in super::super) fn histogram(durations: &DurationHistogram) -> Markup {
    let bars = bars(&durations.buckets);
    let summary = &durations.summary;
    let marks = [("p50", summary.p50), ("p99", summary.p99)];
    let text = |(name, ms): &(&str, Option<u64>)| ms.map(|ms| format!("{name} {}", ms_text(ms)));
    let described = marks.iter().filter_map(text).collect::<Vec<_>>().join(", ");
    // One bar shows nothing that the numbers do not.
    let is_spread = bars.iter().filter(|bar| bar.count > 0).count() > 1;
    html! {
        p.totals {
            span { strong { (count(summary.count)) } @if summary.count == 1 { " attempt" } @else { " attempts" } }
            @for mark in &marks {
                @if let Some(text) = text(mark) { span.legend[is_spread].planned[is_spread] { (text) } }
            }
            @if let Some(max) = summary.max { span { "longest " (ms_text(max)) } }
        }
        @if is_spread { (drawing(&bars, marks, &described)) }
        (values(&durations.buckets))
    }
}

fn drawing(bars: &[DurationBucket], marks: [(&str, Option<u64>); 2], described: &str) -> Markup {
    let top = rounded_up(bars.iter().map(|bar| bar.count).max().unwrap_or_default());
    let width = STEP * bars.len().max(1);
    html! {
        p.scale { "attempts by run time" }
        div.plot {
            div.ticks aria-hidden="true" { @for value in [top, top / 2, 0] { span { (count(value)) } } }
            svg.histogram viewBox={ "0 0 " (width) " " (HEIGHT) } preserveAspectRatio="none" role="img"
                aria-label={ "Run times: " (described) } {
                @for y in [0, HEIGHT / 2, HEIGHT] { line.grid x1="0" x2=(width) y1=(y) y2=(y) {} }
                @for (n, bar) in bars.iter().enumerate() { (drawn(n, bar, top)) }
                @for (name, ms) in marks { @if let Some(ms) = ms { (mark(bars, name, ms)) } }
            }
            (axis(bars))
        }
    }
}

/// Buckets, several of them in one if there are many.
fn bars(buckets: &[DurationBucket]) -> Vec<DurationBucket> {
    let shared = buckets.len().div_ceil(MAX_BARS).max(1);
    let bar = |some: &[DurationBucket]| DurationBucket {
        from_ms: some.first().map_or(0, |first| first.from_ms),
        to_ms: some.last().map_or(0, |last| last.to_ms),
        count: some.iter().map(|bucket| bucket.count).sum(),
    };
    buckets.chunks(shared).map(bar).collect()
}

fn drawn(n: usize, bar: &DurationBucket, top: u64) -> Markup {
    // What is not empty is visible.
    let height = (bar.count * HEIGHT / top).max(u64::from(bar.count > 0) * 2);
    html! {
        rect.fill.running x=(n * STEP) y=(HEIGHT - height) width=(STEP - 1) height=(height) {
            title { (ms_text(bar.from_ms)) " to " (ms_text(bar.to_ms)) ": " (counted(bar.count, "attempt", "attempts")) }
        }
    }
}

/// Line of a percentile, in proportion within its bar.
fn mark(bars: &[DurationBucket], name: &str, ms: u64) -> Markup {
    let index = bars.iter().position(|bar| ms < bar.to_ms).unwrap_or(bars.len().saturating_sub(1));
    let within = bars.get(index).map_or(0, |bar| {
        let (length, offset) = (bar.to_ms - bar.from_ms, ms.saturating_sub(bar.from_ms));
        (offset * STEP as u64 / length.max(1)).min(STEP as u64 - 1)
    });
    let x = index as u64 * STEP as u64 + within;
    html! {
        g.mark { title { (name) " " (ms_text(ms)) } line x1=(x) x2=(x) y1="0" y2=(HEIGHT) {} }
    }
}

/// Bounds of the first and the last bar, and of one in the middle.
fn axis(bars: &[DurationBucket]) -> Markup {
    let (first, middle, last) = (bars.first(), bars.get(bars.len() / 2), bars.last());
    html! {
        div.axis aria-hidden="true" {
            @if let Some(first) = first { span { (ms_text(first.from_ms)) } }
            @if let Some(middle) = middle.filter(|_| bars.len() > 2) { span { (ms_text(middle.from_ms)) } }
            @if let Some(last) = last { span { (ms_text(last.to_ms)) } }
        }
    }
}

fn values(buckets: &[DurationBucket]) -> Markup {
    let row = |bucket: &DurationBucket| {
        html! {
            tr { td { (ms_text(bucket.from_ms)) } td { (ms_text(bucket.to_ms)) } td.number { (count(bucket.count)) } }
        }
    };
    let rows: Vec<Markup> = buckets.iter().filter(|bucket| bucket.count > 0).map(row).collect();
    html! {
        details.more.compact #buckets { summary { "As a table" } (table(&["From", "To", "#Attempts"], &rows)) }
    }
}

#[cfg(test)]
mod tests {
    use kafleet_documents::Durations;

    use super::*;

    fn buckets(counts: &[u64]) -> Vec<DurationBucket> {
        let bucket = |(n, count): (u64, &u64)| DurationBucket { from_ms: n, to_ms: n + 1, count: *count };
        (0..).zip(counts).map(bucket).collect()
    }

    #[test]
    fn histogram_has_bars_marks_an_axis_and_a_table() {
        let summary = Durations { count: 14, p50: Some(1), p95: Some(2), p99: Some(3), max: Some(3) };
        let drawn = histogram(&DurationHistogram { summary, buckets: buckets(&[1, 10, 0, 3]) }).into_string();
        assert!(drawn.contains("<title>1 ms to 2 ms: 10 attempts</title>"), "{drawn}");
        assert!(
            drawn.contains("y=\"0\" width=\"9\" height=\"100\"") && drawn.contains("<title>p99 3 ms</title>"),
            "{drawn}"
        );
        assert!(drawn.contains("aria-label=\"Run times: p50 1 ms, p99 3 ms\""), "{drawn}");
        assert_eq!(drawn.matches("<tr>").count(), 4, "a heading and three buckets: {drawn}");
        assert!(
            drawn.contains(
                "<div class=\"axis\" aria-hidden=\"true\"><span>0 ms</span><span>2 ms</span><span>4 ms</span></div>"
            ),
            "{drawn}"
        );
        assert!(
            drawn.contains("<div class=\"ticks\" aria-hidden=\"true\"><span>10</span><span>5</span><span>0</span>"),
            "{drawn}"
        );
    }

    #[test]
    fn single_bar_is_left_out() {
        let summary = Durations { count: 3, p50: Some(1), p95: Some(1), p99: Some(1), max: Some(1) };
        let drawn = histogram(&DurationHistogram { summary, buckets: buckets(&[0, 3, 0]) }).into_string();
        assert!(drawn.contains("longest 1 ms") && !drawn.contains("<svg"), "{drawn}");
    }

    #[test]
    fn many_buckets_share_bars_without_losing_any() {
        let bars = bars(&buckets(&[1; 200]));
        assert!(bars.len() <= MAX_BARS, "{}", bars.len());
        assert_eq!((bars.iter().map(|bar| bar.count).sum::<u64>(), bars.last().map(|bar| bar.to_ms)), (200, Some(200)));
    }
}
