//! Attempts of a task, read off its history.

use kafleet_documents::{History, HistoryItem};
use kafleet_model::record::state::State;
use maud::{Markup, html};

use super::state::{label, pill};
use super::table::table;
use super::times::{between, duration, exact_time};
use super::{View, first_line, prose};

/// Attempt with its outcome.
pub(super) struct Attempt<'a> {
    pub run: u32,
    pub number: u32,
    pub started_at: Option<&'a str>,
    pub ended_at: Option<&'a str>,
    worker: Option<&'a str>,
    pub outcome: &'a str,
    message: Option<&'a str>,
    /// Message of the start, such as the size of the attempt's batch.
    note: Option<&'a str>,
}

/// Kinds of events that end an attempt.
const ENDS: [&str; 5] = ["succeeded", "failed", "retrying", "interrupted", "cancelled"];
/// Outcome of an attempt that ended with a wait.
const WAITED: &str = "waited";
/// Outcomes of attempts that are not counted: the next one has the same number.
const UNCOUNTED: [&str; 2] = [WAITED, "interrupted"];

impl<'a> Attempt<'a> {
    const fn running(run: u32, number: u32) -> Self {
        Self {
            run,
            number,
            started_at: None,
            ended_at: None,
            worker: None,
            outcome: "running",
            message: None,
            note: None,
        }
    }

    fn apply(&mut self, event: &'a HistoryItem) {
        self.worker = event.worker.as_deref().or(self.worker);
        // The end states when its attempt started: a worker that crashed may have started it before.
        let started = (event.kind == "started").then_some(event.at.as_str());
        if event.kind == "started" {
            self.note = event.message.as_deref();
        }
        self.started_at = event.started_at.as_deref().or(self.started_at).or(started);
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
    fn ran(&self) -> Option<i64> {
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

/// Start of an attempt, to separate its lines in a log.
pub(in super::super) struct AttemptStart {
    pub run: u32,
    pub number: u32,
    /// Number of the attempt, with that of its run if there was a retry.
    pub name: String,
    /// Time of a document.
    pub at: String,
}

/// Starts of the attempts, in the order of time. None if there is at most one attempt: nothing has to be separated.
pub(in super::super) fn attempt_starts(history: &History) -> Vec<AttemptStart> {
    let attempts = attempts(history);
    let has_runs = attempts.iter().any(|attempt| attempt.run > 1);
    let name = |attempt: &Attempt<'_>| {
        let run = if has_runs { format!("run {}, ", attempt.run) } else { String::new() };
        format!("{run}attempt {}", attempt.number)
    };
    let start = |attempt: &Attempt<'_>| {
        let (name, at) = (name(attempt), attempt.started_at?.to_owned());
        Some(AttemptStart { run: attempt.run, number: attempt.number, name, at })
    };
    let mut starts: Vec<AttemptStart> = attempts.iter().filter_map(start).collect();
    // All times of documents have the same form.
    starts.sort_by(|one, other| one.at.cmp(&other.at));
    if starts.len() > 1 { starts } else { Vec::new() }
}

/// Attempts as bars, the longest as the scale. `retries`: retries that the task allows, if it states them.
pub(in super::super) fn attempt_bars(view: &View, history: &History, retries: Option<u32>) -> Markup {
    let attempts = attempts(history);
    let longest = attempts.iter().filter_map(Attempt::ran).max().unwrap_or_default().max(1);
    let has_runs = attempts.iter().any(|attempt| attempt.run > 1);
    let is_wait = |attempt: &&Attempt<'_>| attempt.outcome == WAITED;
    let row = |(n, attempt): (usize, &Attempt<'_>)| {
        html! {
            tr {
                @if has_runs { td.number { (attempt.run) } }
                td.number {
                    @if is_wait(&attempt) {
                        @let before = |other: &&Attempt<'_>| is_wait(other) && other.run == attempt.run;
                        "wait " (attempts[..=n].iter().filter(before).count())
                    } @else { (number_of(attempt.number, retries)) }
                }
                (outcome_columns(view, attempt, longest))
            }
        }
    };
    let rows: Vec<Markup> = attempts.iter().enumerate().map(row).collect();
    let columns = if has_runs { COLUMNS } else { &COLUMNS[1..] };
    html! {
        @if !rows.is_empty() { section.panel #attempts { h2 { "Attempts" } (table(columns, &rows)) } }
    }
}

/// Columns of the attempts of a task with several runs.
const COLUMNS: &[&str] = &["#Run", "#Attempt", "Started", "#Ran", "Outcome"];

/// Start, length and outcome of an attempt.
fn outcome_columns(view: &View, attempt: &Attempt<'_>, longest: i64) -> Markup {
    html! {
        td.time { @match attempt.started_at { Some(at) => { (exact_time(at)) } None => { span.quiet { "–" } } } }
        td.number {
            @match attempt.ran() {
                Some(ms) => { (duration(ms)) (meter(tone(attempt.outcome), ms * 1_000 / longest)) }
                None => { span.quiet { "–" } }
            }
        }
        td.message {
            (outcome_label(attempt.outcome))
            @if let Some(worker) = attempt.worker { " on " (super::tasks::worker_link(view, worker)) }
            @if let Some(note) = attempt.note { " " span.quiet { (note) } }
            @if let Some(message) = attempt.message { " " span.error { (prose(&first_line(message, 80))) } }
        }
    }
}

/// Number of an attempt and of all that the task may have: `3 of 4`.
pub(in super::super) fn number_of(number: u32, retries: Option<u32>) -> String {
    retries.map_or_else(|| number.to_string(), |retries| format!("{number} of {}", u64::from(retries) + 1))
}

/// Bar of a length in thousandths.
fn meter(tone: &str, length: i64) -> Markup {
    html! {
        svg.bar viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" {
            rect class={ "fill " (tone) } width=(length.max(6)) height="10" {}
        }
    }
}

/// Outcome with the glyph of the state that it leads to.
fn outcome_label(outcome: &str) -> Markup {
    match outcome.parse::<State>() {
        Ok(state) => pill(state),
        Err(_) => label(tone(outcome), outcome),
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
            (table(&["Time", "Event", "#Run", "#Attempt", "By", "Message", "Position"], &rows))
        }
    }
}

fn history_row(event: &HistoryItem) -> Markup {
    html! {
        tr.quiet[event.ignored] {
            td.time { (exact_time(&event.at)) }
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
