//! Figures of the queue of a type.

use kafleet_documents::flow::rate;
use kafleet_documents::{FlowDocument, FlowVerdict, QueueDocument};
use maud::{Markup, html};

use super::{count, tally, times};

/// Age of unfinished records that a type without an end in its last minutes does not keep up with.
const OLD_MS: i64 = 5 * 60_000;

/// Number of unfinished records.
pub(in super::super) fn lag(lag: u64, at_most: bool) -> Markup {
    html! {
        @if lag == 0 { (tally(lag)) }
        @else if at_most { span title="at most: the offsets may contain transaction markers" { "≤ " (count(lag)) } }
        @else { (count(lag)) }
    }
}

/// Age of a record.
pub(in super::super) fn age(at: &str, at_least: bool) -> Markup {
    html! {
        @if at_least { span title="not all partitions were looked at" { "≥ " } }
        (times::age(at))
    }
}

/// Columns of a list of types: lag, and the oldest unfinished record.
pub(in super::super) fn queue_columns(queue: Option<&QueueDocument>) -> Markup {
    html! {
        @match queue {
            Some(queue) => {
                td.number { (lag(queue.lag, queue.at_most)) }
                td.number {
                    @match &queue.oldest_at {
                        Some(at) => { (age(at, queue.oldest_at_least)) } None => { span.quiet { "–" } }
                    }
                }
            }
            None => { td.number { span.quiet { "–" } } td.number { span.quiet { "–" } } }
        }
    }
}

/// Verdict on a backlog in a list: its growth, or the time until it is drained. The tooltip has the rates.
pub(in super::super) fn trend(flow: Option<&FlowDocument>) -> Markup {
    let Some(flow) = flow.filter(|flow| flow.backlog > 0) else { return html! { span.quiet { "–" } } };
    let title = format!("last 5 full minutes: {}", flow.text());
    let words = match flow.verdict {
        FlowVerdict::Growing => format!("▲ +{}/min", rate(flow.change_per_min())),
        FlowVerdict::Draining => flow.verdict_text(),
        verdict => verdict.name().to_owned(),
    };
    html! {
        span class={ "trend " (tone(flow.verdict)) } title=(title) { (words) }
    }
}

/// Minutes that were measured, such as `13:10 to 13:15`.
pub(in super::super) fn measured_minutes(flow: &FlowDocument) -> String {
    let minute = |text: &str| times::millis(text).map_or_else(|| text.to_owned(), |at| times::formatted(at, "%H:%M"));
    match flow.until.as_str() {
        "" => format!("from {}", minute(&flow.since)),
        until => format!("{} to {}", minute(&flow.since), minute(until)),
    }
}

/// Rates and verdict with the measured minutes. A verdict is not good while old records are unfinished and none is finished.
pub(in super::super) fn flow_text(flow: &FlowDocument, queue: Option<&QueueDocument>, now_ms: i64) -> Markup {
    let is_old = |at: &String| times::millis(at).is_some_and(|at| now_ms - at >= OLD_MS);
    let held = queue.filter(|queue| queue.lag > 0 && queue.oldest_at.as_ref().is_some_and(is_old));
    let held = held.filter(|_| tone(flow.verdict) == "good" && flow.out_per_min == 0.0);
    html! {
        @match held {
            Some(queue) => {
                span.trend.neutral {
                    "in " (rate(flow.in_per_min)) ", out 0 a minute: none of " (lag(queue.lag, queue.at_most))
                    " unfinished records has been finished"
                }
            }
            None => { span class={ "trend " (tone(flow.verdict)) } { (flow.text()) } }
        }
        span.quiet { " (" (measured_minutes(flow)) ")" }
    }
}

/// Class of the colour of a verdict.
pub(in super::super) const fn tone(verdict: FlowVerdict) -> &'static str {
    match verdict {
        FlowVerdict::Stalled => "bad",
        FlowVerdict::Growing | FlowVerdict::Paused => "attention",
        FlowVerdict::Draining | FlowVerdict::Steady | FlowVerdict::KeepingUp => "good",
        FlowVerdict::Unknown => "neutral",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow_of(verdict: FlowVerdict) -> FlowDocument {
        FlowDocument {
            in_per_min: 0.0,
            out_per_min: 0.0,
            backlog: 0,
            verdict,
            drained_in_ms: None,
            since: "2026-01-31T13:10:00.000Z".into(),
            until: "2026-01-31T13:15:00.000Z".into(),
            reason: None,
        }
    }

    #[test]
    fn verdict_states_the_measured_minutes_and_is_not_good_above_old_records() {
        let now_ms = times::millis("2026-01-31T13:15:30.000Z").unwrap();
        let queue = |oldest_at: &str| QueueDocument {
            at: String::new(),
            lag: 53,
            at_most: true,
            oldest_at: Some(oldest_at.to_owned()),
            oldest_at_least: false,
            partitions: Vec::new(),
        };
        let text = |verdict, queue: Option<&QueueDocument>| flow_text(&flow_of(verdict), queue, now_ms).into_string();
        let paused = text(FlowVerdict::Paused, None);
        assert!(paused.contains("paused</span><span class=\"quiet\"> (13:10 to 13:15)</span>"), "{paused}");
        let old = text(FlowVerdict::KeepingUp, Some(&queue("2026-01-31T12:23:00.000Z")));
        assert!(old.contains("trend neutral") && !old.contains("keeping up"), "{old}");
        let young = text(FlowVerdict::KeepingUp, Some(&queue("2026-01-31T13:15:00.000Z")));
        assert!(young.contains("trend good") && young.contains("keeping up"), "{young}");
    }

    #[test]
    fn trend_shows_growth_or_the_time_until_the_backlog_is_drained() {
        let flow = FlowDocument {
            in_per_min: 183.0,
            out_per_min: 173.0,
            backlog: 63,
            verdict: FlowVerdict::Growing,
            drained_in_ms: None,
            since: String::new(),
            until: String::new(),
            reason: None,
        };
        let growing = trend(Some(&flow)).into_string();
        assert!(growing.contains("attention") && growing.contains("▲ +10/min"), "{growing}");
        assert!(growing.contains("in 183, out 173 a minute: +10, will not drain"), "{growing}");
        let draining = FlowDocument { verdict: FlowVerdict::Draining, drained_in_ms: Some(300_000), ..flow.clone() };
        assert!(trend(Some(&draining)).into_string().contains("drained in 5 min"));
        assert!(trend(Some(&FlowDocument { backlog: 0, ..flow })).into_string().contains("–"));
    }
}
