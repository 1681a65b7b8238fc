//! Records become documents.

use std::collections::BTreeMap;

use super::consistency::TaskView;
use crate::api::documents::{Children, History, HistoryItem, StateDocument, Status, Tree, TreeNode};
use crate::model::record::rollup::{Counts, children_of};
use crate::model::record::state::{Category, State};
use crate::model::record::{HistoryEntry, TaskRecord};
use crate::model::task::Policy;
use crate::publish::time_text;

/// Position of the last event that a record includes.
pub fn position(found: &TaskView) -> String {
    found.position().to_string()
}

pub fn status(found: &TaskView) -> Status {
    let node = &found.node;
    let policy = node.policy.as_deref().cloned().unwrap_or_default();
    let Policy { name, creator, tags, link, rules, .. } = policy;
    Status {
        id: found.id.to_string(),
        parent: found.id.parent().map(str::to_owned),
        root: found.id.root().to_owned(),
        task_type: node.task_type.as_deref().map(str::to_owned),
        state: node.state,
        own_state: node.own,
        run: node.run,
        attempt: node.attempt,
        name,
        creator,
        tags,
        link,
        options: rules.options,
        external: rules.external,
        fail_fast: rules.fail_fast,
        max_failed: rules.max_failed,
        then: node.thens().cloned().collect(),
        actions: rules.actions,
        checks: rules.checks,
        deliveries: None,
        created_at: node.created_at_ms.map(time_text),
        seen_at: Some(time_text(node.seen_ms)),
        started_at: node.started_at_ms.map(time_text),
        ended_at: node.ended_at_ms.map(time_text),
        due_at: node.due_ms.map(time_text),
        progress: node.progress.clone(),
        result: node.output.clone(),
        error: node.error.as_deref().cloned(),
        children: children(node),
        tree: tree(node),
        worker: node.worker.as_deref().map(str::to_owned),
        record: node.position.map(|position| position.to_string()),
        position: position(found),
        duplicates: node.duplicates,
        superseded: found.superseded,
    }
}

pub fn state(found: &TaskView) -> StateDocument {
    StateDocument { id: found.id.to_string(), state: found.node.state, position: position(found) }
}

/// A task of a tree, with nothing below it yet.
pub fn tree_node(found: &TaskView) -> TreeNode {
    let node = &found.node;
    TreeNode {
        id: found.id.to_string(),
        task_type: node.task_type.as_deref().map(str::to_owned),
        state: node.state,
        name: node.policy.as_ref().and_then(|policy| policy.name.clone()),
        attempt: node.attempt,
        error: node.error.as_deref().cloned(),
        progress: node.progress.clone(),
        started_at: node.started_at_ms.map(time_text),
        ended_at: node.ended_at_ms.map(time_text),
        children: children(node),
        tree: tree(node),
        below: Vec::new(),
        cut: 0,
    }
}

pub fn history(found: &TaskView) -> History {
    let node = &found.node;
    History {
        id: found.id.to_string(),
        events: node.history.iter().map(|entry| history_item(found.partition, entry)).collect(),
        dropped: node.history_dropped,
        duplicates: node.duplicates,
    }
}

fn history_item(partition: u32, entry: &HistoryEntry) -> HistoryItem {
    HistoryItem {
        kind: entry.kind.name(),
        at: time_text(entry.at_ms),
        run: entry.run,
        attempt: entry.attempt,
        worker: entry.worker.as_deref().map(str::to_owned),
        message: entry.message.clone(),
        error_kind: entry.error_kind.as_deref().map(str::to_owned),
        started_at: entry.took_ms.map(|took| time_text(entry.at_ms.saturating_sub(took.into()))),
        by: entry.by.as_deref().map(str::to_owned),
        ignored: entry.ignored,
        position: format!("{partition}:{}", entry.offset),
    }
}

fn children(node: &TaskRecord) -> Children {
    let (children, _, _) = children_of(&node.below);
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

fn tree(node: &TaskRecord) -> Tree {
    let mut counts = Counts::default();
    counts.add(node.state, 1);
    counts.add_all(&children_of(&node.below).2);
    let (start, end) = (node.first_start.as_deref(), node.last_end.as_deref());
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
