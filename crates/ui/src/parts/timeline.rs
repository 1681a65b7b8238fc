//! Timeline of a tree: bars from the first to the last known time.

use kafleet_documents::{History, Status};
use maud::{Markup, html};

use super::attempts::{attempts, tone as tone_of_outcome};
use super::state::{pill, tone};
use super::tasks::short_id;
use super::times::{duration, millis, time};
use super::{View, first_line};

/// Width of the drawing in its own units.
const WIDTH: i64 = 1_000;

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
    spans: Vec<Span>,
}

/// Range of times that the drawing shows.
#[derive(Clone, Copy)]
pub(in super::super) struct Range {
    first: i64,
    end: i64,
}

impl Range {
    /// Range of all times of these tasks.
    pub(in super::super) fn of<'a>(tasks: impl IntoIterator<Item = &'a TimelineTask>) -> Self {
        let spans: Vec<Span> = tasks.into_iter().filter_map(spans).flatten().collect();
        let first = spans.iter().map(|span| span.from).min().unwrap_or_default();
        let end = spans.iter().map(|span| span.to.unwrap_or(span.from)).max().unwrap_or(first);
        Self { first, end: end.max(first + 1) }
    }

    const fn length(self) -> i64 {
        self.end - self.first
    }

    /// Position of a time in the drawing.
    fn position(self, at: i64) -> i64 {
        (at.clamp(self.first, self.end) - self.first) * WIDTH / self.length()
    }
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
        let (to, name) = (at(attempt.ended_at), format!("attempt {}: {}", attempt.number, attempt.outcome));
        spans.push(Span { class: tone_of_outcome(attempt.outcome), from, to, name });
        free = to.unwrap_or(from);
    }
    spans
}

/// Spans of a task without known attempts.
fn spans_of_times(task: &Status, created: i64, ended: Option<i64>) -> Vec<Span> {
    let started = at(task.started_at.as_deref());
    let mut spans = vec![Span { class: "wait", from: created, to: started.or(ended), name: "waited".to_owned() }];
    spans.extend(started.map(|from| Span { class: tone(task.own_state), from, to: ended, name: "ran".to_owned() }));
    spans
}

/// Tasks as bars. `last` is the task that ended last: its ancestors are the critical path.
pub(in super::super) fn timeline(
    view: &View,
    prefix: &str,
    tasks: &[&TimelineTask],
    range: Range,
    last: Option<&str>,
) -> Markup {
    let top = tasks.first().map(|timed| &timed.task);
    let rows = tasks.iter().filter_map(|timed| Some(Row { task: &timed.task, spans: spans(timed)? }));
    html! {
        div.scroll {
            table.timeline {
                (headings())
                tbody {
                    @for row in rows {
                        tr id={ (prefix) "-" (row.task.id) } data-task {
                            td.id { (name(view, top, row.task)) (critical_mark(row.task, last)) }
                            td { (pill(row.task.state)) }
                            td.bars { (bars(&row, range)) }
                            td.number { (took(row.task).map_or("–".to_owned(), duration)) }
                        }
                    }
                }
            }
        }
    }
}

fn took(task: &Status) -> Option<i64> {
    Some(at(task.ended_at.as_deref())? - at(task.started_at.as_deref())?)
}

/// Range of the bars, and the meaning of their colours.
pub(in super::super) fn legend(top: &Status, range: Range, has_critical_path: bool) -> Markup {
    const KEYS: [(&str, &str); 5] = [
        ("wait", "waited"),
        ("good", "ran"),
        ("bad", "failed attempt"),
        ("retry", "waited for the next attempt"),
        ("children", "waited for children"),
    ];
    html! {
        p.quiet {
            "From " (time(top.created_at.as_deref().or(top.seen_at.as_deref()).unwrap_or_default())) ", "
            (duration(range.length())) " in all."
        }
        ul.counts {
            @for (class, meaning) in KEYS { li { span.key .(class) {} " " (meaning) } }
            @if has_critical_path { li { span.critical { "◆" } " on the critical path" } }
        }
    }
}

fn headings() -> Markup {
    html! {
        thead {
            tr {
                th scope="col" { "Task" } th scope="col" { "State" } th.bars scope="col" { "Time" }
                th.number scope="col" { "Took" }
            }
        }
    }
}

fn name(view: &View, top: Option<&Status>, task: &Status) -> Markup {
    html! {
        span class={ "indent i" (depth(top, task).min(12)) } {}
        a href=(view.task(&task.id)) title=(task.id) { (step(top, task)) }
        @if let Some(name) = &task.fields.name { span.name { (first_line(name, 40)) } }
    }
}

/// Mark of the task that ended last, and of its ancestors.
fn critical_mark(task: &Status, last: Option<&str>) -> Markup {
    let is_critical = last.is_some_and(|last| last == task.id || last.starts_with(&format!("{}:", task.id)));
    html! { @if is_critical { span.critical title="on the critical path" { " ◆" } } }
}

fn bars(row: &Row<'_>, range: Range) -> Markup {
    html! {
        svg.bar viewBox={ "0 0 " (WIDTH) " 10" } preserveAspectRatio="none" role="img" aria-label={ "times of " (row.task.id) } {
            @for span in &row.spans { (bar(span, range)) }
        }
    }
}

fn bar(span: &Span, range: Range) -> Markup {
    let to = span.to.unwrap_or(range.end).max(span.from);
    let (x, width) = (range.position(span.from), (range.position(to) - range.position(span.from)).max(3));
    html! {
        rect class={ "fill " (span.class) } x=(x.min(WIDTH - 3)) y="1" width=(width) height="8" {
            title { (span.name) @if span.to.is_none() { " so far" } @else { ", " (duration(to - span.from)) } }
        }
    }
}

fn depth(top: Option<&Status>, task: &Status) -> usize {
    task.id.matches(':').count().saturating_sub(top.map_or(0, |top| top.id.matches(':').count()))
}

fn step<'a>(top: Option<&Status>, task: &'a Status) -> &'a str {
    let is_top = top.is_some_and(|top| top.id == task.id);
    if is_top { short_id(&task.id) } else { task.id.rsplit(':').next().unwrap_or(&task.id) }
}
