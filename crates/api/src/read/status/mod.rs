//! Conversion of records to documents.

use std::collections::BTreeMap;

use kafleet_documents::{Children, StateDocument, Status, Tree, TreeNode};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::rollup::{Counts, children_of};
use kafleet_model::record::state::{Category, State};
use kafleet_model::task::document::ShownFields;
use kafleet_model::units::time::time_text;

use super::consistency::TaskView;

mod history;
mod since;

pub use history::history;
pub(crate) use history::last_start;
pub(crate) use since::state_since;

/// Returns the position of the last event included in a record.
pub fn position(task: &TaskView) -> String {
    task.position().to_string()
}

/// Status of a task without masked values.
pub fn status(task: &TaskView) -> Status {
    let mut status = open_status(task);
    task.masks.hide_in_status(&mut status);
    status
}

/// Status of a task with masked values.
pub(crate) fn open_status(task: &TaskView) -> Status {
    let record = &task.record;
    let mut policy = record.definition.policy.as_deref().cloned().unwrap_or_default();
    policy.rules.then = record.continuations().cloned().collect();
    Status {
        verdict: None,
        id: task.id.to_string(),
        parent: task.id.parent().map(str::to_owned),
        root: task.id.root().to_owned(),
        task_type: record.task_type.as_deref().map(str::to_owned),
        state: record.state,
        own_state: record.own,
        run: record.run,
        attempt: record.attempt,
        waits: record.deferral.waits,
        fields: ShownFields(policy),
        deliveries: None,
        created_at: record.times.created_at_ms.map(time_text),
        seen_at: Some(time_text(record.times.seen_ms)),
        started_at: record.times.started_at_ms.map(time_text),
        ended_at: record.times.ended_at_ms.map(time_text),
        due_at: record.times.due_ms.map(time_text),
        state_since: state_since(record).map(time_text),
        progress: record.outcome.progress.clone(),
        result: record.outcome.output.clone(),
        error: record.outcome.error.as_deref().cloned(),
        children: children(record),
        tree: tree(record),
        worker: record.worker.as_deref().map(str::to_owned),
        record: record.definition.position.map(|position| position.to_string()),
        position: position(task),
        duplicates: record.history.duplicates,
        interruptions: record.history.interruptions,
        superseded: task.superseded,
        trace_id: task.sampler.trace_of(&task.id, record.run, record.definition.trace).map(|id| id.to_string()),
    }
}

pub(crate) fn state(task: &TaskView) -> StateDocument {
    StateDocument { id: task.id.to_string(), state: task.record.state, position: position(task) }
}

/// Converts a task to a tree node without children.
pub(crate) fn tree_node(task: &TaskView) -> TreeNode {
    let record = &task.record;
    TreeNode {
        id: task.id.to_string(),
        task_type: record.task_type.as_deref().map(str::to_owned),
        state: record.state,
        name: record.definition.policy.as_ref().and_then(|policy| policy.name.clone()),
        attempt: record.attempt,
        error: record.outcome.error.as_deref().cloned(),
        progress: record.outcome.progress.clone(),
        started_at: record.times.started_at_ms.map(time_text),
        ended_at: record.times.ended_at_ms.map(time_text),
        children: children(record),
        tree: tree(record),
        below: Vec::new(),
        omitted: 0,
        not_started: Vec::new(),
    }
}

fn children(record: &TaskRecord) -> Children {
    let (children, _, _) = children_of(&record.tree.below);
    let by_state: BTreeMap<State, u64> =
        State::ALL.into_iter().map(|state| (state, children.get(state))).filter(|(_, count)| *count > 0).collect();
    Children {
        total: children.total(),
        pending: children.in_category(Category::Pending),
        successful: children.in_category(Category::Successful),
        failed: children.in_category(Category::Failed),
        by_state,
    }
}

fn tree(record: &TaskRecord) -> Tree {
    let mut counts = Counts::default();
    counts.add(record.state, 1);
    counts.add_all(&children_of(&record.tree.below).2);
    let (start, end) = (record.tree.first_start.as_deref(), record.tree.last_end.as_deref());
    Tree {
        total: counts.total(),
        pending: counts.in_category(Category::Pending),
        successful: counts.in_category(Category::Successful),
        failed: counts.in_category(Category::Failed),
        started_at: start.map(|moment| time_text(moment.at_ms)),
        started_by: start.map(|moment| moment.by.clone()),
        ended_at: end.map(|moment| time_text(moment.at_ms)),
        ended_by: end.map(|moment| moment.by.clone()),
        execution_ms: start.zip(end).map(|(start, end)| end.at_ms.saturating_sub(start.at_ms)),
    }
}

#[cfg(test)]
mod tests;
