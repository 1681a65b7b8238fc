//! `POST /v1/batches`: many tasks, each for itself.
//!
//! A task may name one before it as its parent. Tasks are published level by level, so that no child is out before its
//! parent is.

use std::sync::Arc;

use axum::response::Response;
use futures::stream::{self, StreamExt};
use rustc_hash::FxHashMap;
use serde_json::value::RawValue;

use super::create::unknown_parent;
use super::task::json_answer;
use crate::api::Api;
use crate::api::backends::detached;
use crate::api::documents::{BatchItem, BatchOutcome, CreateTask, ItemOutcome};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::{ApiRequest, is_lines, misread, read_json};
use crate::api::read::status::position;
use crate::api::write::idempotency::Submitted;
use crate::api::write::transaction;
use crate::api::write::validate::{Draft, trace_of};
use crate::model::task::Trace;
use crate::model::task::id::TaskId;
use crate::runtime::now_ms;

/// The most tasks in one batch.
pub const MAX_ITEMS: usize = 10_000;
/// Tasks of one batch on their way at once.
const AT_ONCE: usize = 1_000;
/// Parents of one batch looked up at once.
const PARENTS_AT_ONCE: usize = 64;

type Outcome = Result<Submitted, ApiError>;
/// What a task knows of cancels, and its run.
type Origin = (Option<i64>, u32);
/// What became of the items, in order.
pub type Outcomes = Vec<(Option<TaskId>, Outcome)>;

pub async fn create(call: ApiRequest) -> Result<Response, ApiError> {
    if call.query.parsed::<bool>("atomic")?.unwrap_or_default() {
        return transaction::create(call).await;
    }
    let api = call.api.clone();
    let items = items_of(&call)?;
    let trace = trace_of(&call.headers);
    let room = call.room;
    let outcomes = detached(async move {
        let outcomes = Batch::read(&api, items, trace.as_deref()).await.publish(&api).await;
        drop(room);
        Ok(outcomes)
    });
    Ok(json_answer(200, &told(outcomes.await?)))
}

pub fn told(outcomes: Outcomes) -> BatchOutcome {
    let items: Vec<BatchItem> = outcomes
        .into_iter()
        .enumerate()
        .map(|(index, (id, outcome))| {
            let id = id.map(|id| id.to_string());
            match outcome {
                Ok(Submitted::Created(found) | Submitted::Existing(found)) => {
                    let outcome = ItemOutcome::Accepted;
                    BatchItem { index, id, outcome, position: Some(position(&found)), problem: None }
                }
                Err(refusal) => {
                    let outcome = if refusal.leaves_open() { ItemOutcome::Unknown } else { ItemOutcome::Refused };
                    BatchItem { index, id, outcome, position: None, problem: Some(refusal.document()) }
                }
            }
        })
        .collect();
    let count = |outcome| items.iter().filter(|item: &&BatchItem| item.outcome == outcome).count();
    let (accepted, refused) = (count(ItemOutcome::Accepted), count(ItemOutcome::Refused));
    BatchOutcome { accepted, refused, unknown: items.len() - accepted - refused, items }
}

/// The items, each to be read for itself.
pub fn items_of(call: &ApiRequest) -> Result<Vec<Result<CreateTask, ApiError>>, ApiError> {
    let texts: Vec<&[u8]> = if is_lines(&call.headers) {
        let lines = call.body.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
        lines.filter(|line| !line.is_empty()).collect()
    } else {
        let items: Vec<&RawValue> = serde_json::from_slice(&call.body).map_err(|why| misread(&why, String::new()))?;
        items.into_iter().map(|item| item.get().as_bytes()).collect()
    };
    if texts.len() > MAX_ITEMS {
        let told = format!("the batch has {} items: at most {MAX_ITEMS} are allowed", texts.len());
        return Err(ApiError::new(Code::TooManyItems, told).hint("send several batches"));
    }
    Ok(texts.into_iter().map(read_json).collect())
}

/// A batch on its way.
struct Batch {
    /// None: it has been taken, or refused.
    drafts: Vec<Option<Draft>>,
    ids: Vec<Option<TaskId>>,
    outcomes: Vec<Option<Outcome>>,
    /// Places of items that wait for the one at the index: children for their parent, and a task that is there twice
    /// for its first.
    waiting: FxHashMap<usize, Vec<usize>>,
}

impl Batch {
    async fn read(api: &Arc<Api>, items: Vec<Result<CreateTask, ApiError>>, trace: Option<&Trace>) -> Self {
        let count = items.len();
        let mut batch = Self {
            drafts: Vec::with_capacity(count),
            ids: Vec::with_capacity(count),
            outcomes: (0..count).map(|_| None).collect(),
            waiting: FxHashMap::default(),
        };
        let now_ms = now_ms();
        for (index, item) in items.into_iter().enumerate() {
            let draft = match item.and_then(|asked| api.draft(asked, now_ms, trace)) {
                Ok(draft) => match api.check_type_of(&draft).await {
                    Ok(()) => Ok(draft),
                    Err(refusal) => Err((Some(draft.id), refusal)),
                },
                Err(refusal) => Err((None, refusal)),
            };
            batch.add(index, draft);
        }
        batch
    }

    fn add(&mut self, index: usize, draft: Result<Draft, (Option<TaskId>, ApiError)>) {
        match draft {
            Ok(draft) => {
                self.ids.push(Some(draft.id.clone()));
                self.drafts.push(Some(draft));
            }
            Err((id, refusal)) => {
                self.ids.push(id);
                self.drafts.push(None);
                self.outcomes[index] = Some(Err(refusal));
            }
        }
    }

    async fn publish(mut self, api: &Arc<Api>) -> Outcomes {
        let mut wave = self.link();
        self.adopt(api, &mut wave).await;
        while !wave.is_empty() {
            let drafts: Vec<(usize, Draft)> =
                wave.iter().filter_map(|&index| Some((index, self.drafts[index].take()?))).collect();
            let under_way = drafts.into_iter().map(|(index, draft)| {
                let origin = (draft.new.asof, draft.new.run);
                async move { (index, origin, api.submit(draft).await) }
            });
            let done: Vec<_> = stream::iter(under_way).buffered(AT_ONCE).collect().await;
            wave = Vec::new();
            for (index, origin, outcome) in done {
                let parent = match &outcome {
                    Ok(Submitted::Existing(found)) => (Some(found.fence.offset), found.node.run),
                    _ => origin,
                };
                wave.extend(self.release(index, origin, parent, outcome.is_ok()));
                self.outcomes[index] = Some(outcome);
            }
        }
        let lost = || Err(ApiError::internal());
        self.ids.into_iter().zip(self.outcomes).map(|(id, outcome)| (id, outcome.unwrap_or_else(lost))).collect()
    }

    /// Finds what waits for what. Returns the places of items that wait for nothing in this batch.
    fn link(&mut self) -> Vec<usize> {
        let mut first: FxHashMap<TaskId, usize> = FxHashMap::default();
        let mut ready = Vec::new();
        for index in 0..self.drafts.len() {
            let Some(draft) = &self.drafts[index] else { continue };
            let earlier = first.get(&draft.id).or_else(|| first.get(draft.id.parent()?));
            match earlier {
                Some(&earlier) => self.waiting.entry(earlier).or_default().push(index),
                None => ready.push(index),
            }
            first.entry(draft.id.clone()).or_insert(index);
        }
        ready
    }

    /// Finds the parents that are not in this batch.
    async fn adopt(&mut self, api: &Arc<Api>, wave: &mut Vec<usize>) {
        let mut families: FxHashMap<TaskId, Vec<usize>> = FxHashMap::default();
        for &index in &*wave {
            let parent = self.ids[index].as_ref().and_then(TaskId::parent_id);
            if let Some(parent) = parent {
                families.entry(parent).or_default().push(index);
            }
        }
        let looked = families.into_iter().map(|(parent, children)| async move { (children, api.find_parent(&parent).await) });
        let found: Vec<_> = stream::iter(looked).buffer_unordered(PARENTS_AT_ONCE).collect().await;
        for (children, parent) in found {
            for index in children {
                match &parent {
                    Ok(parent) => self.inherit(index, (Some(parent.fence.offset), parent.node.run)),
                    Err(refusal) => self.refuse(index, refusal.clone()),
                }
            }
        }
        wave.retain(|&index| self.drafts[index].is_some());
    }

    fn inherit(&mut self, index: usize, (asof, run): Origin) {
        if let Some(draft) = &mut self.drafts[index] {
            draft.new.asof = asof;
            draft.new.run = run;
        }
    }

    /// Lets go what has waited for an item; returns what is ready now. The same task once more is where the item comes from,
    /// its children are where it is.
    fn release(&mut self, index: usize, origin: Origin, parent: Origin, is_out: bool) -> Vec<usize> {
        let mut ready = Vec::new();
        for next in self.waiting.remove(&index).unwrap_or_default() {
            match self.orphan(index, next) {
                Some(refusal) if !is_out => self.refuse(next, refusal),
                _ => {
                    let is_same = self.ids[index] == self.ids[next];
                    self.inherit(next, if is_same { origin } else { parent });
                    ready.push(next);
                }
            }
        }
        ready
    }

    /// Refuses an item, and what waits for it.
    fn refuse(&mut self, index: usize, refusal: ApiError) {
        for next in self.waiting.remove(&index).unwrap_or_default() {
            let refusal = self.orphan(index, next).unwrap_or_else(|| refusal.clone());
            self.refuse(next, refusal);
        }
        self.drafts[index] = None;
        self.outcomes[index] = Some(Err(refusal));
    }

    /// What a child hears whose parent was not published. None: it is the same task once more, and no child.
    fn orphan(&self, parent: usize, child: usize) -> Option<ApiError> {
        let id = self.ids[parent].as_ref().filter(|_| self.ids[parent] != self.ids[child])?;
        let hint = format!("item {parent}, its parent, is not known to be published: repeat both with the same ids");
        Some(unknown_parent(id).hint(hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::http::problem::Code;

    #[test]
    fn item_of_unknown_outcome_is_not_called_refused() {
        let refusal = |code| (None, Err(ApiError::new(code, "why")));
        let outcome = told([Code::OutcomeUnknown, Code::NotAnnounced, Code::KafkaUnavailable].map(refusal).into());
        assert_eq!((outcome.accepted, outcome.refused, outcome.unknown), (0, 1, 2));
        let outcomes: Vec<ItemOutcome> = outcome.items.iter().map(|item| item.outcome).collect();
        assert_eq!(outcomes, [ItemOutcome::Unknown, ItemOutcome::Unknown, ItemOutcome::Refused]);
    }
}
