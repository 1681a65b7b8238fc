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

/// Range of times that the drawing shows.
#[derive(Clone, Copy)]
struct Range {
    first: i64,
    end: i64,
}

impl Row<'_> {
    fn took(&self) -> Option<i64> {
        Some(self.ended? - self.started?)
    }

    /// Columns after the task's name.
    fn columns(&self, range: Range) -> Markup {
        html! {
            td { (pill(self.task.state)) }
            td.bars { (bars(self, range)) }
            td.number { (self.took().map_or("–".to_owned(), duration)) }
        }
    }
}

impl Range {
    fn of(rows: &[Row<'_>]) -> Self {
        let first = rows.iter().map(|row| row.created).min().unwrap_or_default();
        let ends = rows.iter().flat_map(|row| [Some(row.created), row.started, row.ended]).flatten();
        Self { first, end: ends.max().unwrap_or(first).max(first + 1) }
    }

    const fn length(self) -> i64 {
        self.end - self.first
    }

    /// Position of a time in the drawing.
    fn position(self, at: i64) -> i64 {
        (at.clamp(self.first, self.end) - self.first) * WIDTH / self.length()
    }
}

/// Bars of tasks. `last` is the task that ended last: its ancestors are the critical path.
pub(in super::super) fn timeline(view: &View, tasks: &[Status], last: Option<&str>) -> Markup {
    let rows: Vec<Row<'_>> = tasks.iter().filter_map(row).collect();
    let range = Range::of(&rows);
    html! {
        (legend(tasks.first(), range, last.is_some()))
        div.scroll {
            table.timeline {
                (headings())
                tbody {
                    @for row in &rows {
                        tr id={ "t-" (row.task.id) } {
                            td.id { (name(view, tasks, row.task)) (critical_mark(row.task, last)) }
                            (row.columns(range))
                        }
                    }
                }
            }
        }
    }
}

fn legend(top: Option<&Status>, range: Range, has_critical_path: bool) -> Markup {
    html! {
        p.quiet {
            "From " (time(top.and_then(|task| task.created_at.as_deref()).unwrap_or_default())) ", "
            (duration(range.length())) " in all. "
            span.key.wait {} " waited, " span.key.running {} " ran, in the colour of the state"
            @if has_critical_path { ", " span.critical { "◆" } " on the critical path" }
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

fn name(view: &View, tasks: &[Status], task: &Status) -> Markup {
    html! {
        span class={ "indent i" (depth(tasks, task).min(12)) } {}
        a href=(view.task(&task.id)) title=(task.id) { (step(tasks, task)) }
        @if let Some(name) = &task.fields.name { span.name { (first_line(name, 40)) } }
    }
}

/// Mark of the task that ended last, and of its ancestors.
fn critical_mark(task: &Status, last: Option<&str>) -> Markup {
    let is_critical = last.is_some_and(|last| last == task.id || last.starts_with(&format!("{}:", task.id)));
    html! { @if is_critical { span.critical title="on the critical path" { " ◆" } } }
}

fn row(task: &Status) -> Option<Row<'_>> {
    let at = |text: &Option<String>| text.as_deref().and_then(millis);
    let created = at(&task.created_at).or(at(&task.seen_at))?;
    Some(Row { task, created, started: at(&task.started_at), ended: at(&task.ended_at) })
}

fn bars(row: &Row<'_>, range: Range) -> Markup {
    let queued_until = row.started.or(row.ended).unwrap_or(range.end);
    let part = |class: &str, from: i64, to: i64, what: &str| {
        let (x, width) = (range.position(from), (range.position(to) - range.position(from)).max(3));
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
                (part(tone(row.task.state), started, row.ended.unwrap_or(range.end), "took, with its children"))
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
