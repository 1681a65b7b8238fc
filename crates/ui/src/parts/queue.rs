//! Figures of the queue of a type.

use kafleet_documents::flow::rate;
use kafleet_documents::{FlowDocument, FlowVerdict, QueueDocument};
use maud::{Markup, html};

use super::{count, tally, times};

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

    #[test]
    fn trend_shows_growth_or_the_time_until_the_backlog_is_drained() {
        let flow = FlowDocument {
            in_per_min: 183.0,
            out_per_min: 173.0,
            backlog: 63,
            verdict: FlowVerdict::Growing,
            drained_in_ms: None,
            since: String::new(),
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
