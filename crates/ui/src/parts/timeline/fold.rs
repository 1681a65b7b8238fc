//! Siblings of one kind as one row: of 20,000 children, a page of bars of 1 ms shows nothing.

use std::collections::HashMap;

use super::{Span, TimelineTask, is_critical, spans};

/// Fewest siblings that are one row.
const LEAST: usize = 4;

/// Row of a task, or of siblings of one kind.
pub(in super::super::super) struct TimelineRow<'a> {
    pub first: &'a TimelineTask,
    /// Siblings in the row of the first one.
    pub others: Vec<&'a TimelineTask>,
}

impl<'a> TimelineRow<'a> {
    /// Rows of single tasks.
    pub(in super::super::super) fn single(tasks: &'a [TimelineTask]) -> Vec<Self> {
        tasks.iter().map(|first| Self { first, others: Vec::new() }).collect()
    }

    /// Rows in which siblings are together that succeeded without children of their own, that have the same type, and whose
    /// names differ in digits only. Tasks on the critical path have rows of their own. `last`: the task that ended last.
    pub(in super::super::super) fn folded(tasks: &'a [TimelineTask], last: Option<&str>) -> Vec<Self> {
        let mut sizes: HashMap<SiblingKind<'_>, usize> = HashMap::new();
        let kinds: Vec<Option<SiblingKind<'_>>> = tasks.iter().map(|timed| kind_of(timed, last)).collect();
        kinds.iter().flatten().for_each(|kind| *sizes.entry(kind.clone()).or_default() += 1);
        let mut rows: Vec<Self> = Vec::new();
        let mut row_of: HashMap<SiblingKind<'_>, usize> = HashMap::new();
        for (first, kind) in tasks.iter().zip(kinds) {
            let kind = kind.filter(|kind| sizes.get(kind).is_some_and(|size| *size >= LEAST));
            match kind.as_ref().and_then(|kind| row_of.get(kind)) {
                Some(row) => rows[*row].others.push(first),
                None => {
                    row_of.extend(kind.map(|kind| (kind, rows.len())));
                    rows.push(Self { first, others: Vec::new() });
                }
            }
        }
        rows
    }

    /// Spans of the row: those of a task, or the wait for the first start and the time up to the last end of siblings.
    pub(super) fn spans(&self) -> Option<Vec<Span>> {
        let first = spans(self.first)?;
        if self.others.is_empty() {
            return Some(first);
        }
        let all: Vec<Span> = self.others.iter().filter_map(|timed| spans(timed)).flatten().chain(first).collect();
        let created = all.iter().map(|span| span.from).min()?;
        let started = all.iter().filter(|span| span.class != "wait").map(|span| span.from).min().unwrap_or(created);
        let ended = all.iter().filter_map(|span| span.to).max();
        let names = [
            ("wait", created, Some(started), "waited for the first start"),
            ("good", started, ended, "ran, all together"),
        ];
        Some(names.map(|(class, from, to, name)| Span { class, from, to, name: name.to_owned() }).into())
    }
}

/// Parent, type, and name without its digits.
type SiblingKind<'a> = (&'a str, &'a str, String);

fn kind_of<'a>(timed: &'a TimelineTask, last: Option<&str>) -> Option<SiblingKind<'a>> {
    let task = &timed.task;
    let is_plain = task.state == kafleet_model::record::state::State::Succeeded && task.children.total == 0;
    let (parent, name) = task.id.rsplit_once(':').filter(|_| is_plain && !is_critical(task, last))?;
    let stem = name.chars().filter(|c| !c.is_ascii_digit()).collect();
    Some((parent, task.task_type.as_deref().unwrap_or_default(), stem))
}
