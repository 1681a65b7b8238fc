//! Subtree commands: a cancel, expiry or retry of a tree, which publishes an event for each affected task in bounded
//! steps. Repeated after a crash, it skips tasks that are done.

use std::sync::Arc;

use super::entry::{Message, OutboxEntry, effect_done, event_message};
use crate::model::encode_error::EncodeError;
use crate::model::event::{AttemptFailure, CancelScope, Event, Payload};
use crate::model::outbox::{CancelRequest, Effect, EffectKind, OVERDUE};
use crate::model::record::TaskRecord;
use crate::model::record::rollup::children_of;
use crate::model::record::state::Category;
use crate::model::task::id::TaskId;
use crate::store::{Entry, Index, Store};

/// Number of visited records after which a step ends; its last page may exceed this by less than one page.
pub(crate) const STEP: usize = 500;

pub(crate) struct SubtreeCommand {
    top: TaskId,
    effect: Effect,
    /// Cancel request passed on to the descendants.
    request: CancelRequest,
    events: Arc<str>,
    number: u32,
    /// Records to publish with the next step.
    messages: Vec<Message>,
    /// Tasks whose children are visited, with the last visited child.
    pending: Vec<(TaskId, u32, Option<Entry>)>,
    steps: u32,
}

/// Result of a step.
pub(crate) struct Step {
    pub entry: Option<OutboxEntry>,
    /// `None` if the command is complete.
    pub rest: Option<SubtreeCommand>,
    /// Records visited, at least one.
    pub visited: usize,
}

impl SubtreeCommand {
    /// Starts at this task; `first` is published before everything else.
    pub(crate) fn new(
        top: &TaskId,
        node: &TaskRecord,
        effect: Effect,
        first: Option<Message>,
        events_partition: (&Arc<str>, u32),
        now: i64,
    ) -> Result<Self, EncodeError> {
        let (messages, (events, number)) = (first.into_iter().collect(), events_partition);
        let request =
            node.requests.cancel.as_deref().map(|cancel| cancel.request.below(top.as_str())).unwrap_or_default();
        let (top_id, events, pending) = (top.clone(), events.clone(), Vec::new());
        let mut command = Self { top: top_id, effect, request, events, number, messages, pending, steps: 0 };
        command.visit(top, node, now)?;
        Ok(command)
    }

    /// Task at which the command starts. At most one command runs per task.
    pub(crate) fn top(&self) -> &TaskId {
        &self.top
    }

    /// Visits the next tasks and returns their events and the rest of the command; the last step completes the
    /// effect.
    pub(crate) async fn step(mut self, store: &dyn Store, now: i64) -> Result<Step, String> {
        let mut visited = 1;
        while visited < STEP
            && let Some((parent, run, after)) = self.pending.pop()
        {
            let page = store.page(self.number, &Index::Children(parent.clone()), after.as_ref(), STEP).await;
            let page = page.map_err(|error| error.to_string())?;
            if page.len() == STEP {
                self.pending.push((parent, run, page.last().cloned()));
            }
            visited += page.len().max(1);
            let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
            let nodes = store.nodes(self.number, &ids).await.map_err(|error| error.to_string())?;
            for (id, node) in ids.iter().zip(nodes) {
                // Skip tasks superseded by a new run of their parent.
                if let Some(node) = node.filter(|node| node.run >= run) {
                    self.visit(id, &node, now).map_err(|error| error.to_string())?;
                }
            }
        }
        let done = self.pending.is_empty();
        let mut messages = std::mem::take(&mut self.messages);
        if done {
            let done = event_message(&self.events, self.number, &effect_done(&self.top, self.effect, now));
            messages.push(done.map_err(|error| error.to_string())?);
        }
        self.steps += 1;
        let dedup_key = if done { self.effect.id() } else { format!("{}/{}", self.effect.id(), self.steps) };
        let entry =
            (!messages.is_empty()).then(|| OutboxEntry::plain(&self.top, dedup_key, OutboxEntry::SUBTREE, messages));
        Ok(Step { entry, rest: (!done).then_some(self), visited })
    }

    fn visit(&mut self, id: &TaskId, node: &TaskRecord, now: i64) -> Result<(), EncodeError> {
        let (_, _, tree) = children_of(&node.tree.below);
        let affected = match self.effect.what {
            EffectKind::RetryFailed { .. } => node.restartable_below(),
            EffectKind::Cancel { subtree: true, .. } | EffectKind::End { .. } => tree.in_category(Category::Pending),
            _ => 0,
        };
        if affected > 0 {
            self.pending.push((id.clone(), node.run, None));
        }
        if let Some(event) = self.event_for(id, node, now) {
            self.messages.push(event_message(&self.events, self.number, &event)?);
        }
        Ok(())
    }

    fn event_for(&self, id: &TaskId, node: &TaskRecord, now: i64) -> Option<Event> {
        match self.effect.what {
            EffectKind::RetryFailed { run } if node.is_restartable() && node.run < run => {
                let payload = Payload::RetryRequested { only_failed: false, new_run: Some(run), record: None };
                Some(Event::new(payload, id.clone(), node.run, now))
            }
            EffectKind::Cancel { asof, .. }
                if *id != self.top
                    && !node.state.is_terminal()
                    && node.cancelled_by().is_none()
                    && asof > node.requests.asof =>
            {
                let scope = CancelScope { asof: Some(asof), with: Some(self.top.clone()), subtree: true };
                let mut event = Event::new(Payload::CancelRequested(scope), id.clone(), node.run, now);
                event.by.clone_from(&self.request.by);
                event.message = self.request.reason.as_deref().map(str::to_owned);
                Some(event)
            }
            EffectKind::End { .. } if *id != self.top && !node.own.is_terminal() => {
                let failure = AttemptFailure::new("expired", OVERDUE, node.attempt);
                Some(Event::new(Payload::Expired(failure), id.clone(), node.run, now))
            }
            _ => None,
        }
    }
}
