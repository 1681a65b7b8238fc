//! Timeline of a tree: bars from its first time to its last one, or to now while it is open.

use std::borrow::Cow;

use kafleet_documents::{History, Status};
use kafleet_model::record::state::Category;
use kafleet_model::units::time::time_text;
use maud::{Markup, html};

use super::attempts::{attempts, tone as tone_of_outcome};
use super::axis::{Range, WIDTH, axis, clock_text};
use super::clock::state_time;
use super::state::{pill, tone, word};
use super::tasks::short_id;
use super::times::{duration, exact_time, millis};
use super::{View, first_line};

/// Characters of a task's path below the top of the tree; of a longer one the end is shown.
const PATH_CHARS: usize = 40;
/// Length of the point at the end of a bar that still lasts.
const POINT: i64 = 8;
/// Least width of a failure, which is seen also where a thousand tasks share the range.
const LEAST_FAILURE: i64 = 10;

mod fold;
pub(in super::super) use fold::TimelineRow;

/// Task with its events.
pub(in super::super) struct TimelineTask {
    pub task: Status,
    pub history: History,
}

/// Part of the life of a task. Without an end it still lasts.
struct Span {
    /// Class of its colour.
    class: &'static str,
    from: i64,
    to: Option<i64>,
    name: String,
}

/// Task with its spans, in the order of time.
struct Row<'a> {
    task: &'a Status,
    /// Number of siblings in the row besides the task.
    others: usize,
    spans: Vec<Span>,
}

/// Range of all times of these tasks. `is_open`: the tree has not ended, so the range extends to now.
pub(in super::super) fn range_of<'a>(
    tasks: impl Iterator<Item = &'a TimelineTask> + Clone,
    is_open: bool,
    now_ms: i64,
) -> Range {
    let due = tasks.clone().filter_map(|timed| due(&timed.task)).max();
    let spans: Vec<Span> = tasks.filter_map(spans).flatten().collect();
    let first = spans.iter().map(|span| span.from).min().unwrap_or(now_ms);
    let last = spans.iter().map(|span| span.to.unwrap_or(span.from)).max().unwrap_or(first);
    if is_open { Range::open(first, last, now_ms, due) } else { Range::ended(first, last) }
}

/// Time of the first or next attempt of a task that waits for it.
fn due(task: &Status) -> Option<i64> {
    at(task.due_at.as_deref()).filter(|_| !task.own_state.is_terminal())
}

fn at(text: Option<&str>) -> Option<i64> {
    text.and_then(millis)
}

/// Spans of a task: its waits, its attempts, and the wait for its children. `None` if no time is known.
fn spans(TimelineTask { task, history }: &TimelineTask) -> Option<Vec<Span>> {
    let created = at(task.created_at.as_deref()).or_else(|| at(task.seen_at.as_deref()))?;
    let mut spans = attempt_spans(task, history, created);
    let ended = at(task.ended_at.as_deref());
    if spans.is_empty() {
        spans = spans_of_times(task, created, ended);
    }
    let last = spans.last().and_then(|span| span.to);
    let add = |class, name: &str| last.map(|from| Span { class, from, to: ended, name: name.to_owned() });
    if !task.own_state.is_terminal() {
        spans.extend(add("retry", "waited for the next attempt"));
    } else if task.children.total > 0 && ended.is_none_or(|ended| Some(ended) > last) {
        spans.extend(add("children", "waited for its children"));
    }
    Some(spans)
}

/// Attempts of the run, each after the wait before it.
fn attempt_spans(task: &Status, history: &History, created: i64) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut free = created;
    for attempt in attempts(history).iter().filter(|attempt| attempt.run == task.run) {
        let Some(from) = at(attempt.started_at) else { continue };
        let (class, name) =
            if spans.is_empty() { ("wait", "waited") } else { ("retry", "waited for the next attempt") };
        spans.push(Span { class, from: free, to: Some(from.max(free)), name: name.to_owned() });
        let to = at(attempt.ended_at).or_else(|| at(task.ended_at.as_deref()));
        // An attempt without an end of its own has the end of its task.
        let (class, outcome) = match (attempt.ended_at, task.own_state) {
            (None, own) if own.is_terminal() => (tone(own), Cow::Owned(word(own))),
            _ => (tone_of_outcome(attempt.outcome), Cow::Borrowed(attempt.outcome)),
        };
        spans.push(Span { class, from, to, name: format!("attempt {}: {outcome}", attempt.number) });
        free = to.unwrap_or(from);
    }
    spans
}

/// Spans of a task without known attempts.
fn spans_of_times(task: &Status, created: i64, ended: Option<i64>) -> Vec<Span> {
    let started = at(task.started_at.as_deref());
    let mut spans = vec![Span { class: "wait", from: created, to: started.or(ended), name: "waited".to_owned() }];
    spans.extend(started.map(|from| Span { class: tone(task.own_state), from, to: ended, name: "ran".to_owned() }));
    if started.is_none() && task.own_state.category() == Category::Failed {
        // It has not run, but its end is no wait.
        let name = format!("{} without a start", word(task.own_state));
        spans.extend(ended.map(|at| Span { class: tone(task.own_state), from: at, to: Some(at), name }));
    }
    spans
}

/// Tasks as bars. `last` is the task that ended last: its ancestors are the critical path.
pub(in super::super) fn timeline(
    view: &View,
    prefix: &str,
    top: &Status,
    rows: &[TimelineRow<'_>],
    range: Range,
    last: Option<&str>,
) -> Markup {
    let rows = rows
        .iter()
        .filter_map(|row| Some(Row { task: &row.first.task, others: row.others.len(), spans: row.spans()? }));
    html! {
        div.scroll {
            table.timeline {
                (headings(range))
                tbody {
                    @for row in rows {
                        tr id={ (prefix) "-" (row.task.id) } data-task {
                            td.id {
                                (name(view, top, row.task))
                                @if row.others > 0 { strong { " × " (row.others + 1) } }
                                (critical_mark(row.task, last))
                            }
                            td { (pill(row.task.state)) }
                            td.bars { (bars(&row, range)) }
                            td.span { @if row.others > 0 { (time_together(&row.spans)) } @else { (state_time(view, row.task)) } }
                        }
                    }
                }
            }
        }
    }
}

/// Links to the halves of the range, and to all of it. `url` returns that of the part between two times, if there are any.
pub(in super::super) fn zoom(range: Range, is_part: bool, url: impl Fn(Option<(&str, &str)>) -> String) -> Markup {
    let link = |(from, to): (i64, i64), text: &str| html! { a href=(url(Some((&time_text(from), &time_text(to))))) { (text) } };
    let [first, second] = range.halves();
    html! {
        nav.ranges aria-label="zoom" {
            span.quiet { "zoom:" }
            @if range.length() > 1 { (link(first, "first half")) (link(second, "second half")) }
            @if is_part { a href=(url(None)) { "whole timeline" } }
        }
    }
}

/// Range of the bars, and the meaning of their forms.
pub(in super::super) fn legend(range: Range, has_critical_path: bool) -> Markup {
    const KEYS: [(&str, &str); 5] = [
        ("wait", "waited"),
        ("good", "ran"),
        ("bad", "failed attempt"),
        ("retry", "waited for the next attempt"),
        ("children", "waited for children"),
    ];
    html! {
        p.quiet {
            "From " (exact_time(&time_text(range.first))) ", "
            @match range.now {
                Some(now) if now <= range.end => { (duration(now - range.first)) " up to now, " (clock_text(now)) "." }
                _ => { (duration(range.length())) " in total." }
            }
        }
        ul.counts {
            @for (class, meaning) in KEYS { li { span.key .(class) {} " " (meaning) } }
            @if range.now.is_some() { li { span.key.running {} " runs" } li { "▸ lasts until now" } }
            @if range.end > range.known_end() { li { span.key.future {} " next attempt" } }
            @if has_critical_path { li { span.critical { "◆" } " on the critical path" } }
        }
    }
}

fn headings(range: Range) -> Markup {
    html! {
        thead {
            tr {
                th scope="col" { "Task" } th scope="col" { "State" }
                th.bars scope="col" { span.hidden { "Bars" } (axis(range)) }
                th scope="col" { "Time" }
            }
        }
    }
}

fn name(view: &View, top: &Status, task: &Status) -> Markup {
    html! {
        span class={ "indent i" (depth(top, task).min(12)) } {}
        a href=(view.task(&task.id)) title=(task.id) { (path(top, task)) }
        @if let Some(name) = &task.fields.name { span.name { (first_line(name, 40)) } }
    }
}

/// Time from the first start of siblings to their last end.
fn time_together(spans: &[Span]) -> Markup {
    let ran = spans.last().and_then(|span| Some(span.to? - span.from));
    html! { @match ran { Some(ms) => { "took " (duration(ms)) " together" } None => { span.quiet { "–" } } } }
}

/// Whether a task ended last, or is an ancestor of that one.
fn is_critical(task: &Status, last: Option<&str>) -> bool {
    last.is_some_and(|last| last == task.id || last.starts_with(&format!("{}:", task.id)))
}

/// Mark of the task that ended last, and of its ancestors.
fn critical_mark(task: &Status, last: Option<&str>) -> Markup {
    html! { @if is_critical(task, last) { span.critical title="on the critical path" { " ◆" } } }
}

fn bars(row: &Row<'_>, range: Range) -> Markup {
    html! {
        svg.bar viewBox={ "0 0 " (WIDTH) " 10" } preserveAspectRatio="none" role="img" aria-label={ "times of " (row.task.id) } {
            @for span in row.spans.iter().filter(|span| is_shown(span, range)) { (bar(span, range)) }
            @if let Some(due) = due(row.task) { (future(due, range)) }
        }
    }
}

fn is_shown(span: &Span, range: Range) -> bool {
    range.shows(span.from, span.to.unwrap_or_else(|| range.known_end()).max(span.from))
}

fn bar(span: &Span, range: Range) -> Markup {
    let known_end = range.known_end();
    let to = span.to.unwrap_or(known_end).max(span.from);
    let least = if span.class == "bad" { LEAST_FAILURE } else { 3 };
    let (x, width) = (range.position(span.from), (range.position(to) - range.position(span.from)).max(least));
    let x = x.min(WIDTH - least);
    let end = x + width;
    html! {
        @if span.to.is_none() && range.now.is_some() {
            @let neck = (end - POINT).max(x);
            path class={ "fill " (span.class) } d={ "M" (x) " 1H" (neck) "L" (end) " 5L" (neck) " 9H" (x) "Z" } {
                title { (span.name) ", " (duration(to - span.from)) " so far" }
            }
        } @else {
            rect class={ "fill " (span.class) } x=(x) y="1" width=(width) height="8" {
                title { (span.name) @if span.to.is_none() { " so far" } @else { ", " (duration(to - span.from)) } }
            }
        }
    }
}

/// Dashes from now to the next attempt, or to the end of the drawing if it starts later.
fn future(due: i64, range: Range) -> Markup {
    let (from, to) = (range.position(range.known_end()), range.position(due));
    html! {
        @if from < to {
            line.future x1=(from) x2=(to) y1="5" y2="5" { title { "next attempt at " (clock_text(due)) } }
        }
    }
}

fn depth(top: &Status, task: &Status) -> usize {
    task.id.matches(':').count().saturating_sub(top.id.matches(':').count())
}

/// Path of a task below the top of the tree: the last part of its id is often that of its cousins, too.
fn path<'a>(top: &Status, task: &'a Status) -> Cow<'a, str> {
    let below = task.id.strip_prefix(&top.id).and_then(|rest| rest.strip_prefix(':'));
    let path = below.unwrap_or_else(|| short_id(&task.id));
    let length = path.chars().count();
    match path.char_indices().nth(length.saturating_sub(PATH_CHARS)) {
        Some((start, _)) if start > 0 => {
            let start = path[start..].find(':').map_or(start, |segment| start + segment + 1);
            format!("…{}", &path[start..]).into()
        }
        _ => path.into(),
    }
}

#[cfg(test)]
mod tests;
