//! Batches: many tasks created at once, each with its own outcome.
//!
//! An item may name an earlier item as its parent. Items are published level by level, so that a parent is published
//! before its children.

use crate::write::idempotency::{Outcomes, unknown_parent};
use crate::write::transaction::MAX_ATOMIC_ITEMS;
use crate::write::validate::check_no_group;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use kafleet_documents::{BatchItem, BatchOutcome, CreateTask, ItemOutcome};
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{TaskSpec, Trace};
use kafleet_runtime::now_ms;
use rustc_hash::FxHashMap;

use super::context::{BodyMemory, RequestContext};
use crate::backends::detached;
use crate::http::problem::{ApiError, Code};
use crate::read::status::position;
use crate::state::Api;
use crate::write::idempotency::SubmittedTask;

/// Maximum items per batch.
pub(crate) const MAX_ITEMS: usize = 10_000;
/// Maximum concurrent publishes per batch.
const MAX_CONCURRENT_PUBLISHES: usize = 1_000;
/// Maximum concurrent parent lookups per batch.
const MAX_CONCURRENT_LOOKUPS: usize = 64;

type SubmissionResult = Result<SubmittedTask, ApiError>;
/// Log offset up to which cancels do not apply to the task, and the task's run.
type Origin = (Option<i64>, u32);

/// Items of a batch; errors are those of their documents.
pub struct Items(pub Vec<Result<CreateTask, ApiError>>);

/// Creates the tasks of a batch. `atomic`: all or none, in one transaction.
pub async fn create(
    RequestContext { api, .. }: RequestContext,
    Items(items): Items,
    memory: BodyMemory,
    trace: Option<Arc<Trace>>,
    atomic: bool,
) -> Result<BatchOutcome, ApiError> {
    let count = items.len();
    if count > MAX_ITEMS {
        let message = format!("the batch has {count} items; the maximum is {MAX_ITEMS}");
        return Err(ApiError::new(Code::TooManyItems, message).hint("split the batch"));
    }
    let outcomes = if atomic {
        if count > MAX_ATOMIC_ITEMS {
            let reason = format!("the batch has {count} items; the maximum for an atomic batch is {MAX_ATOMIC_ITEMS}");
            let hint = "send the rest as a second batch below the same root";
            return Err(ApiError::new(Code::TooManyItems, reason).hint(hint));
        }
        let tasks = api.writes.validate_all(items, trace.as_deref()).await?;
        detached(async move {
            let outcomes = api.writes.submit_atomic(tasks).await;
            drop(memory);
            outcomes
        })
        .await
    } else {
        detached(async move {
            let outcomes = BatchRun::read(&api, items, trace.as_deref()).await.publish(&api).await;
            drop(memory);
            Ok(outcomes)
        })
        .await
    };
    Ok(outcome_document(outcomes?))
}

fn outcome_document(outcomes: Outcomes) -> BatchOutcome {
    let items: Vec<BatchItem> = outcomes
        .into_iter()
        .enumerate()
        .map(|(index, (id, outcome))| item_document(index, id.map(|id| id.to_string()), outcome))
        .collect();
    let count = |outcome| items.iter().filter(|item: &&BatchItem| item.outcome == outcome).count();
    let (accepted, refused) = (count(ItemOutcome::Accepted), count(ItemOutcome::Refused));
    BatchOutcome { accepted, refused, unknown: items.len() - accepted - refused, items }
}

fn item_document(index: usize, id: Option<String>, outcome: SubmissionResult) -> BatchItem {
    match outcome {
        Ok(submitted) => {
            let outcome = ItemOutcome::Accepted;
            // Another task may stand for a unique one.
            let id = Some(submitted.task.id.to_string());
            let (position, verdict) = (Some(position(&submitted.task)), submitted.verdict);
            BatchItem { index, id, outcome, position, verdict, problem: None }
        }
        Err(error) => {
            let outcome = if error.may_have_happened() { ItemOutcome::Unknown } else { ItemOutcome::Refused };
            BatchItem { index, id, outcome, position: None, verdict: None, problem: Some(error.document()) }
        }
    }
}

/// Batch being published.
struct BatchRun {
    /// `None` once the item has been published or rejected.
    tasks: Vec<Option<TaskSpec>>,
    ids: Vec<Option<TaskId>>,
    outcomes: Vec<Option<SubmissionResult>>,
    /// Indexes of items that depend on the item at the key: children of a parent, and repetitions of the same task.
    waiting: FxHashMap<usize, Vec<usize>>,
}

async fn check(api: &Api, task: &TaskSpec) -> Result<(), ApiError> {
    check_no_group(task)?;
    api.writes.checks.check_types(task).await
}

impl BatchRun {
    async fn read(api: &Arc<Api>, items: Vec<Result<CreateTask, ApiError>>, trace: Option<&Trace>) -> Self {
        let count = items.len();
        let mut batch = Self {
            tasks: Vec::with_capacity(count),
            ids: Vec::with_capacity(count),
            outcomes: (0..count).map(|_| None).collect(),
            waiting: FxHashMap::default(),
        };
        let now_ms = now_ms();
        for (index, item) in items.into_iter().enumerate() {
            let task = match item.and_then(|input| api.writes.checks.validate(input, now_ms, trace)) {
                Ok(task) => match check(api, &task).await {
                    Ok(()) => Ok(task),
                    Err(error) => Err((Some(task.id), error)),
                },
                Err(error) => Err((None, error)),
            };
            batch.add(index, task);
        }
        batch
    }

    fn add(&mut self, index: usize, task: Result<TaskSpec, (Option<TaskId>, ApiError)>) {
        match task {
            Ok(task) => {
                self.ids.push(Some(task.id.clone()));
                self.tasks.push(Some(task));
            }
            Err((id, error)) => {
                self.ids.push(id);
                self.tasks.push(None);
                self.outcomes[index] = Some(Err(error));
            }
        }
    }

    async fn publish(mut self, api: &Arc<Api>) -> Outcomes {
        let mut level = self.link_dependencies();
        self.resolve_parents(api, &mut level).await;
        while !level.is_empty() {
            let tasks: Vec<(usize, TaskSpec)> =
                level.iter().filter_map(|&index| Some((index, self.tasks[index].take()?))).collect();
            let under_way = tasks.into_iter().map(|(index, task)| {
                let origin = (task.asof, task.run);
                async move { (index, origin, api.writes.submit(task).await) }
            });
            let done: Vec<_> = stream::iter(under_way).buffered(MAX_CONCURRENT_PUBLISHES).collect().await;
            level = Vec::new();
            for (index, origin, outcome) in done {
                let parent = match &outcome {
                    Ok(SubmittedTask { task, is_new: false, .. }) => (task.asof(), task.record.run),
                    _ => origin,
                };
                level.extend(self.release(index, origin, parent, outcome.is_ok()));
                self.outcomes[index] = Some(outcome);
            }
        }
        let missing = || Err(ApiError::internal());
        self.ids.into_iter().zip(self.outcomes).map(|(id, outcome)| (id, outcome.unwrap_or_else(missing))).collect()
    }

    /// Records dependencies between items. Returns the indexes of items without one.
    fn link_dependencies(&mut self) -> Vec<usize> {
        let mut first: FxHashMap<TaskId, usize> = FxHashMap::default();
        let mut ready = Vec::new();
        for index in 0..self.tasks.len() {
            let Some(task) = &self.tasks[index] else { continue };
            let earlier = first.get(&task.id).or_else(|| first.get(task.id.parent()?));
            match earlier {
                Some(&earlier) => self.waiting.entry(earlier).or_default().push(index),
                None => ready.push(index),
            }
            first.entry(task.id.clone()).or_insert(index);
        }
        ready
    }

    /// Looks up parents outside the batch.
    async fn resolve_parents(&mut self, api: &Arc<Api>, level: &mut Vec<usize>) {
        let lookups = self
            .children_by_parent(level)
            .into_iter()
            .map(|(parent, children)| async move { (children, api.writes.find_parent(&parent).await) });
        let parents: Vec<_> = stream::iter(lookups).buffer_unordered(MAX_CONCURRENT_LOOKUPS).collect().await;
        for (children, parent) in parents {
            for index in children {
                match &parent {
                    Ok(parent) => self.inherit(index, (parent.asof(), parent.record.run)),
                    Err(error) => self.reject(index, error.clone()),
                }
            }
        }
        level.retain(|&index| self.tasks[index].is_some());
    }

    fn children_by_parent(&self, level: &[usize]) -> FxHashMap<TaskId, Vec<usize>> {
        let mut children_by_parent: FxHashMap<TaskId, Vec<usize>> = FxHashMap::default();
        for &index in level {
            if let Some(parent) = self.ids[index].as_ref().and_then(TaskId::parent_id) {
                children_by_parent.entry(parent).or_default().push(index);
            }
        }
        children_by_parent
    }

    fn inherit(&mut self, index: usize, (asof, run): Origin) {
        if let Some(task) = &mut self.tasks[index] {
            (task.asof, task.run) = (asof, run);
        }
    }

    /// Returns the items that were waiting for an item. A repetition of the same task inherits the item's own
    /// `origin`, a child inherits `parent`.
    fn release(&mut self, index: usize, origin: Origin, parent: Origin, is_published: bool) -> Vec<usize> {
        let mut ready = Vec::new();
        for next in self.waiting.remove(&index).unwrap_or_default() {
            match self.parent_error(index, next) {
                Some(error) if !is_published => self.reject(next, error),
                _ => {
                    let is_same = self.ids[index] == self.ids[next];
                    self.inherit(next, if is_same { origin } else { parent });
                    ready.push(next);
                }
            }
        }
        ready
    }

    /// Rejects an item and the items that depend on it.
    fn reject(&mut self, index: usize, error: ApiError) {
        for next in self.waiting.remove(&index).unwrap_or_default() {
            let error = self.parent_error(index, next).unwrap_or_else(|| error.clone());
            self.reject(next, error);
        }
        self.tasks[index] = None;
        self.outcomes[index] = Some(Err(error));
    }

    /// Returns the error for a child of an unpublished parent. `None` if the item is a repetition of the same task.
    fn parent_error(&self, parent: usize, child: usize) -> Option<ApiError> {
        let id = self.ids[parent].as_ref().filter(|_| self.ids[parent] != self.ids[child])?;
        let hint =
            format!("its parent, item {parent}, was not confirmed as published; repeat both items with the same ids");
        Some(unknown_parent(id).hint(hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem::Code;

    #[test]
    fn item_with_unknown_outcome_is_not_reported_as_refused() {
        let error = |code| (None, Err(ApiError::new(code, "why")));
        let outcome =
            outcome_document([Code::OutcomeUnknown, Code::NotAnnounced, Code::KafkaUnavailable].map(error).into());
        assert_eq!((outcome.accepted, outcome.refused, outcome.unknown), (0, 1, 2));
        let outcomes: Vec<ItemOutcome> = outcome.items.iter().map(|item| item.outcome).collect();
        assert_eq!(outcomes, [ItemOutcome::Unknown, ItemOutcome::Unknown, ItemOutcome::Refused]);
    }
}
