//! A walk through what lies below a task, some records at a time, for a cancel or a retry of what failed: each task that
//! it concerns gets an event of its own. Begun again after a crash, it finds those done that are.

use std::sync::Arc;

use super::entry::{Message, OutboxEntry, effect_done, event_message};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::outbox::{CancelRequest, Effect, EffectKind, OVERDUE};
use crate::model::record::TaskRecord;
use crate::model::record::rollup::children_of;
use crate::model::record::state::Category;
use crate::model::task::id::TaskId;
use crate::store::{Entry, Index, Store};

/// Records after which a step is over; its last page may go beyond, by less than this.
pub const STEP: usize = 500;

pub struct SubtreeCommand {
    top: TaskId,
    effect: Effect,
    /// What tasks below are told of a cancel.
    request: CancelRequest,
    events: Arc<str>,
    number: u32,
    /// Sent with the next step.
    messages: Vec<Message>,
    /// Tasks whose children are looked at, each with the child looked at last.
    open: Vec<(TaskId, u32, Option<Entry>)>,
    steps: u32,
}

/// A part of a walk.
pub struct Step {
    pub shot: Option<OutboxEntry>,
    /// None: it has come to its end.
    pub rest: Option<SubtreeCommand>,
    /// Records looked at, at least one.
    pub looked: usize,
}

impl SubtreeCommand {
    /// Begins at this task; `first` is sent before everything else.
    pub fn new(
        top: &TaskId,
        node: &TaskRecord,
        effect: Effect,
        first: Option<Message>,
        place: (&Arc<str>, u32),
        now: i64,
    ) -> Self {
        let (messages, (events, number)) = (first.into_iter().collect(), place);
        let request = node.cancel.as_deref().map(|cancel| cancel.request.below(top.as_str())).unwrap_or_default();
        let (top_id, events, open) = (top.clone(), events.clone(), Vec::new());
        let mut walk = Self { top: top_id, effect, request, events, number, messages, open, steps: 0 };
        walk.look(top, node, now);
        walk
    }

    /// The task at which it began. There is one walk of a task at a time.
    pub fn top(&self) -> &TaskId {
        &self.top
    }

    /// Events for the next tasks, and the rest of the walk; the last step ends the effect.
    pub async fn step(mut self, store: &dyn Store, now: i64) -> Result<Step, String> {
        let mut looked = 1;
        while looked < STEP
            && let Some((parent, run, after)) = self.open.pop()
        {
            let page = store.page(self.number, &Index::Children(parent.clone()), after.as_ref(), STEP).await;
            let page = page.map_err(|error| error.to_string())?;
            if page.len() == STEP {
                self.open.push((parent, run, page.last().cloned()));
            }
            looked += page.len().max(1);
            let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
            let nodes = store.nodes(self.number, &ids).await.map_err(|error| error.to_string())?;
            for (id, node) in ids.iter().zip(nodes) {
                // One that its parent's new run has superseded does not count.
                if let Some(node) = node.filter(|node| node.run >= run) {
                    self.look(id, &node, now);
                }
            }
        }
        let done = self.open.is_empty();
        let mut messages = std::mem::take(&mut self.messages);
        if done {
            messages.push(event_message(&self.events, self.number, &effect_done(&self.top, self.effect, now)));
        }
        self.steps += 1;
        let mark = if done { self.effect.id() } else { format!("{}/{}", self.effect.id(), self.steps) };
        let shot = (!messages.is_empty()).then(|| OutboxEntry::plain(&self.top, mark, OutboxEntry::WALK, messages));
        Ok(Step { shot, rest: (!done).then_some(self), looked })
    }

    fn look(&mut self, id: &TaskId, node: &TaskRecord, now: i64) {
        let (_, _, tree) = children_of(&node.below);
        let concerned = match self.effect.what {
            EffectKind::RetryFailed { .. } => node.restartable_below(),
            EffectKind::Cancel { subtree: true, .. } | EffectKind::End { .. } => tree.in_category(Category::Pending),
            _ => 0,
        };
        if concerned > 0 {
            self.open.push((id.clone(), node.run, None));
        }
        if let Some(event) = self.event_for(id, node, now) {
            self.messages.push(event_message(&self.events, self.number, &event));
        }
    }

    fn event_for(&self, id: &TaskId, node: &TaskRecord, now: i64) -> Option<Event> {
        match self.effect.what {
            EffectKind::RetryFailed { run } if node.is_restartable() && node.run < run => {
                let mut event = Event::new(Kind::RetryRequested, id.clone(), node.run, now);
                event.new_run = Some(run);
                Some(event)
            }
            EffectKind::Cancel { asof, .. }
                if *id != self.top && !node.state.is_terminal() && node.cancelled_by().is_none() && asof > node.asof =>
            {
                let mut event = Event::new(Kind::CancelRequested, id.clone(), node.run, now);
                event.asof = Some(asof);
                (event.with, event.by) = (Some(self.top.clone()), self.request.by.clone());
                event.message = self.request.reason.as_deref().map(str::to_owned);
                Some(event)
            }
            EffectKind::End { .. } if *id != self.top && !node.own.is_terminal() => {
                let mut event = Event::new(Kind::Expired, id.clone(), node.run, now);
                event.error = Some(Box::new(ErrorInfo::new("expired", OVERDUE, node.attempt)));
                Some(event)
            }
            _ => None,
        }
    }
}
