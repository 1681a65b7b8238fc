//! Figures of the queue of a type.

use kafleet_documents::QueueDocument;
use maud::{Markup, html};

use super::count;

/// Number of unfinished records.
pub(in super::super) fn lag(lag: u64, at_most: bool) -> Markup {
    html! {
        @if lag == 0 { span.quiet { "–" } }
        @else if at_most { span title="at most: the offsets may contain transaction markers" { "≤ " (count(lag)) } }
        @else { (count(lag)) }
    }
}

/// Time of a record; the script shows its age instead.
pub(in super::super) fn age(at: &str, at_least: bool) -> Markup {
    html! {
        @if at_least { span title="not all partitions were looked at" { "≥ " } }
        time.age datetime=(at) title=(at) { span.clock { (at.get(11..19).unwrap_or(at)) } }
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
