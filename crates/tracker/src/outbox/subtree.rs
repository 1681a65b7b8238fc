//! Subtree commands: a cancel, expiry or retry of a tree, which publishes an event for each affected task in bounded
//! steps. Repeated after a crash, it skips tasks that are done.

use std::sync::Arc;

use kafleet_model::encode_error::EncodeError;
use kafleet_model::event::{AttemptFailure, CancelScope, Event, Payload};
use kafleet_model::outbox::{CancelRequest, Effect, EffectKind, OVERDUE};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::rollup::children_of;
use kafleet_model::record::state::Category;
use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index, Store};

use super::entry::{OutboxEntry, OutboxMessage, effect_done, event_message};
use crate::error::TrackerError;

/// Number of visited records after which a step ends; its last page may exceed this by less than one page.
pub(crate) const STEP_RECORDS: usize = 500;

pub(crate) struct SubtreeCommand {
    top: TaskId,
    effect: Effect,
    /// Cancel request passed on to the descendants.
    request: CancelRequest,
    events: Arc<str>,
    number: u32,
    /// Records to publish with the next step.
    messages: Vec<OutboxMessage>,
    /// Tasks whose children are visited, with the last visited child.
    pending: Vec<(TaskId, u32, Option<Entry>)>,
    steps: u32,
}

/// Result of a step.
pub(crate) struct SubtreeStep {
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
        task: &TaskRecord,
        effect: Effect,
        first: Option<OutboxMessage>,
        events_partition: (&Arc<str>, u32),
        now: i64,
    ) -> Result<Self, EncodeError> {
        let (messages, (events, number)) = (first.into_iter().collect(), events_partition);
        let request =
            task.requests.cancel.as_deref().map(|cancel| cancel.request.below(top.as_str())).unwrap_or_default();
        let (top_id, events, pending) = (top.clone(), events.clone(), Vec::new());
        let mut command = Self { top: top_id, effect, request, events, number, messages, pending, steps: 0 };
        command.visit(top, task, now)?;
        Ok(command)
    }

    /// Task at which the command starts. At most one command runs per task.
    pub(crate) fn top(&self) -> &TaskId {
        &self.top
    }

    /// Visits the next tasks and returns their events and the rest of the command; the last step completes the
    /// effect.
    pub(crate) async fn step(mut self, store: &dyn Store, now: i64) -> Result<SubtreeStep, TrackerError> {
        let mut visited = 1;
        while visited < STEP_RECORDS
            && let Some((parent, run, after)) = self.pending.pop()
        {
            let page = store.page(self.number, &Index::Children(parent.clone()), after.as_ref(), STEP_RECORDS).await;
            let page = page?;
            if page.len() == STEP_RECORDS {
                self.pending.push((parent, run, page.last().cloned()));
            }
            visited += page.len().max(1);
            let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
            let tasks = store.task_records(self.number, &ids).await?;
            for (id, task) in ids.iter().zip(tasks) {
                // Skip tasks superseded by a new run of their parent.
                if let Some(task) = task.filter(|task| task.run >= run) {
                    self.visit(id, &task, now)?;
                }
            }
        }
        let done = self.pending.is_empty();
        let mut messages = std::mem::take(&mut self.messages);
        if done {
            let done = event_message(&self.events, self.number, &effect_done(&self.top, self.effect, now));
            messages.push(done?);
        }
        self.steps += 1;
        let dedup_key = if done { self.effect.id() } else { format!("{}/{}", self.effect.id(), self.steps) };
        let entry =
            (!messages.is_empty()).then(|| OutboxEntry::plain(&self.top, dedup_key, OutboxEntry::SUBTREE, messages));
        Ok(SubtreeStep { entry, rest: (!done).then_some(self), visited })
    }

    fn visit(&mut self, id: &TaskId, task: &TaskRecord, now: i64) -> Result<(), EncodeError> {
        let (_, _, tree) = children_of(&task.tree.below);
        let affected = match self.effect.kind {
            EffectKind::RetryFailed { .. } => task.restartable_below(),
            EffectKind::Cancel { subtree: true, .. } | EffectKind::End { .. } => tree.in_category(Category::Pending),
            _ => 0,
        };
        if affected > 0 {
            self.pending.push((id.clone(), task.run, None));
        }
        if let Some(event) = self.event_for(id, task, now) {
            self.messages.push(event_message(&self.events, self.number, &event)?);
        }
        Ok(())
    }

    fn event_for(&self, id: &TaskId, task: &TaskRecord, now: i64) -> Option<Event> {
        match self.effect.kind {
            EffectKind::RetryFailed { run } if task.is_restartable() && task.run < run => {
                let payload = Payload::RetryRequested { only_failed: false, new_run: Some(run), record: None };
                Some(Event::new(payload, id.clone(), task.run, now))
            }
            EffectKind::Cancel { asof, .. }
                if *id != self.top
                    && !task.state.is_terminal()
                    && task.cancelled_by().is_none()
                    && asof > task.requests.asof =>
            {
                let scope = CancelScope { asof: Some(asof), with: Some(self.top.clone()), subtree: true };
                let mut event = Event::new(Payload::CancelRequested(scope), id.clone(), task.run, now);
                event.by.clone_from(&self.request.by);
                event.message = self.request.reason.as_deref().map(str::to_owned);
                Some(event)
            }
            EffectKind::End { .. } if *id != self.top && !task.own.is_terminal() => {
                let failure = AttemptFailure::new("expired", OVERDUE, task.attempt);
                Some(Event::new(Payload::Expired(failure), id.clone(), task.run, now))
            }
            _ => None,
        }
    }
}
