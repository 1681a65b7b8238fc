//! Attempts of a task, read off its history.

use kafleet_documents::{History, HistoryItem};
use maud::{Markup, html};

use super::times::{between, duration, time};
use super::{View, first_line};

/// Attempt with its outcome.
pub(super) struct Attempt<'a> {
    pub run: u32,
    pub number: u32,
    pub started_at: Option<&'a str>,
    pub ended_at: Option<&'a str>,
    worker: Option<&'a str>,
    pub outcome: &'a str,
    message: Option<&'a str>,
}

/// Kinds of events that end an attempt.
const ENDS: [&str; 5] = ["succeeded", "failed", "retrying", "interrupted", "cancelled"];
/// Outcome of an attempt that ended with a wait.
const WAITED: &str = "waited";
/// Outcomes of attempts that are not counted: the next one has the same number.
const UNCOUNTED: [&str; 2] = [WAITED, "interrupted"];

impl<'a> Attempt<'a> {
    const fn running(run: u32, number: u32) -> Self {
        Self { run, number, started_at: None, ended_at: None, worker: None, outcome: "running", message: None }
    }

    fn apply(&mut self, event: &'a HistoryItem) {
        self.worker = event.worker.as_deref().or(self.worker);
        self.started_at = self.started_at.or(event.started_at.as_deref());
        if event.kind == "started" {
            self.started_at = Some(&event.at);
        }
        if ENDS.contains(&event.kind.as_str()) {
            self.ended_at = Some(&event.at);
            self.outcome = match event.kind.as_str() {
                "retrying" if event.waits > 0 => WAITED,
                "retrying" => "failed",
                kind => kind,
            };
            self.message = event.message.as_deref();
        }
    }

    /// Milliseconds from start to end.
    fn took(&self) -> Option<i64> {
        between(self.started_at, self.ended_at)
    }
}

pub(super) fn attempts(history: &History) -> Vec<Attempt<'_>> {
    let mut attempts: Vec<Attempt<'_>> = Vec::new();
    for event in history.events.iter().filter(|event| event.attempt > 0 && !event.ignored) {
        let is_of = |listed: &Attempt<'_>| (listed.run, listed.number) == (event.run, event.attempt);
        let position = attempts.iter().position(|listed| is_of(listed) && !UNCOUNTED.contains(&listed.outcome));
        let index = position.unwrap_or_else(|| {
            attempts.push(Attempt::running(event.run, event.attempt));
            attempts.len() - 1
        });
        attempts[index].apply(event);
    }
    attempts
}

/// Attempts as bars, the longest as the scale.
pub(in super::super) fn attempt_bars(view: &View, history: &History) -> Markup {
    let attempts = attempts(history);
    let longest = attempts.iter().filter_map(Attempt::took).max().unwrap_or_default().max(1);
    html! {
        @if !attempts.is_empty() {
            section.panel #attempts {
                h2 { "Attempts" }
                div.scroll {
                    table {
                        (headings())
                        tbody { @for attempt in &attempts { (attempt_row(view, attempt, longest)) } }
                    }
                }
            }
        }
    }
}

fn headings() -> Markup {
    html! {
        thead {
            tr {
                th.number { "Run" } th.number { "Attempt" } th { "Started" } th.number { "Took" }
                th { span.hidden { "Share" } } th { "Outcome" } th { "Worker" }
            }
        }
    }
}

fn attempt_row(view: &View, attempt: &Attempt<'_>, longest: i64) -> Markup {
    html! {
        tr {
            td.number { (attempt.run) }
            td.number { (attempt.number) }
            td.time { (super::times::optional_time(attempt.started_at)) }
            td.number { @match attempt.took() { Some(ms) => { (duration(ms)) } None => { "–" } } }
            td.meter { @if let Some(ms) = attempt.took() { (meter(tone(attempt.outcome), ms * 1_000 / longest)) } }
            td {
                span class={ "pill " (tone(attempt.outcome)) } { (attempt.outcome) }
                @if let Some(message) = attempt.message {
                    " " span.error { (first_line(message, 80)) }
                }
            }
            td { @if let Some(worker) = attempt.worker { (super::tasks::worker_link(view, worker)) } }
        }
    }
}

/// Bar of a length in thousandths.
fn meter(tone: &str, length: i64) -> Markup {
    html! {
        svg.bar viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" {
            rect class={ "fill " (tone) } width=(length.max(6)) height="10" {}
        }
    }
}

pub(super) fn tone(outcome: &str) -> &'static str {
    match outcome {
        "succeeded" => "good",
        "failed" => "bad",
        "running" => "running",
        _ => "neutral",
    }
}

/// Events of a task, in the order of its life.
pub(in super::super) fn history_table(history: &History) -> Markup {
    let rows: Vec<Markup> = history.events.iter().map(history_row).collect();
    html! {
        section.panel #history {
            h2 { "History" }
            @if history.dropped > 0 {
                p.quiet { (super::count(history.dropped)) " older events are no longer retained." }
            }
            (super::table::table(&["Time", "Event", "#Run", "#Attempt", "By", "Message", "Position"], &rows))
        }
    }
}

fn history_row(event: &HistoryItem) -> Markup {
    html! {
        tr.quiet[event.ignored] {
            td.time { (time(&event.at)) }
            td { (event.kind.replace('_', " ")) @if event.ignored { " (ignored)" } }
            td.number { (event.run) }
            td.number { @if event.attempt > 0 { (event.attempt) } }
            td { (event.by.as_deref().or(event.worker.as_deref()).unwrap_or_default()) }
            td.message {
                @if let Some(kind) = &event.error_kind { code { (kind) } " " }
                @if let Some(message) = &event.message { (first_line(message, 200)) }
            }
            td.mono { (event.position) }
        }
    }
}
