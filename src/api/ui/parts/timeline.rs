//! Timeline of a tree: bars from the first to the last known time.

use maud::{Markup, html};

use super::state::{pill, tone};
use super::times::{duration, millis, time};
use super::{View, first_line};
use crate::api::documents::Status;

/// Width of the drawing in its own units.
const WIDTH: i64 = 1_000;

/// Task with its times.
struct Row<'a> {
    task: &'a Status,
    created: i64,
    started: Option<i64>,
    ended: Option<i64>,
}

/// Bars of tasks. `last` is the task that ended last: its ancestors are the critical path.
pub(in super::super) fn timeline(view: &View, tasks: &[Status], last: Option<&str>) -> Markup {
    let rows: Vec<Row<'_>> = tasks.iter().filter_map(row).collect();
    let first = rows.iter().map(|row| row.created).min().unwrap_or_default();
    let ends = rows.iter().flat_map(|row| [Some(row.created), row.started, row.ended]).flatten();
    let end = ends.max().unwrap_or(first).max(first + 1);
    let scale = |at: i64| (at.clamp(first, end) - first) * WIDTH / (end - first);
    let is_critical = |id: &str| last.is_some_and(|last| last == id || last.starts_with(&format!("{id}:")));
    html! {
        p.quiet {
            "From " (time(tasks.first().and_then(|task| task.created_at.as_deref()).unwrap_or_default())) ", "
            (duration(end - first)) " in all. "
            span.key.wait {} " waited, " span.key.running {} " ran, in the colour of the state"
            @if last.is_some() { ", " span.critical { "◆" } " on the critical path" }
        }
        div.scroll {
            table.timeline {
                thead {
                    tr {
                        th scope="col" { "Task" } th scope="col" { "State" } th.bars scope="col" { "Time" }
                        th.number scope="col" { "Took" }
                    }
                }
                tbody {
                    @for row in &rows {
                        tr id={ "t-" (row.task.id) } {
                            td.id {
                                span class={ "indent i" (depth(tasks, row.task).min(12)) } {}
                                a href=(view.task(&row.task.id)) title=(row.task.id) { (step(tasks, row.task)) }
                                @if let Some(name) = &row.task.fields.name { span.name { (first_line(name, 40)) } }
                                @if is_critical(&row.task.id) { span.critical title="on the critical path" { " ◆" } }
                            }
                            td { (pill(row.task.state)) }
                            td.bars { (bars(row, end, scale)) }
                            td.number {
                                @match row.started.zip(row.ended) {
                                    Some((from, to)) => { (duration(to - from)) } None => { "–" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn row(task: &Status) -> Option<Row<'_>> {
    let at = |text: &Option<String>| text.as_deref().and_then(millis);
    let created = at(&task.created_at).or(at(&task.seen_at))?;
    Some(Row { task, created, started: at(&task.started_at), ended: at(&task.ended_at) })
}

fn bars(row: &Row<'_>, end: i64, scale: impl Fn(i64) -> i64) -> Markup {
    let queued_until = row.started.or(row.ended).unwrap_or(end);
    let part = |class: &str, from: i64, to: i64, what: &str| {
        let (x, width) = (scale(from), (scale(to) - scale(from)).max(3));
        html! {
            rect class={ "fill " (class) } x=(x.min(WIDTH - 3)) y="1" width=(width) height="8" {
                title { (what) ": " (duration((to - from).max(0))) }
            }
        }
    };
    html! {
        svg.bar viewBox={ "0 0 " (WIDTH) " 10" } preserveAspectRatio="none" role="img" aria-label={ "times of " (row.task.id) } {
            (part("wait", row.created, queued_until, "waited"))
            @if let Some(started) = row.started {
                (part(tone(row.task.state), started, row.ended.unwrap_or(end), "took, with its children"))
            }
        }
    }
}

fn depth(tasks: &[Status], task: &Status) -> usize {
    let top = tasks.first().map_or(0, |top| top.id.matches(':').count());
    task.id.matches(':').count().saturating_sub(top)
}

fn step<'a>(tasks: &[Status], task: &'a Status) -> &'a str {
    let is_top = tasks.first().is_some_and(|top| top.id == task.id);
    if is_top { &task.id } else { task.id.rsplit(':').next().unwrap_or(&task.id) }
}
