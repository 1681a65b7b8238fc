//! A walk through what lies below a task, some records at a time, for a cancel or a retry of what failed: each task that
//! it concerns gets an event of its own. Begun again after a crash, it finds those done that are.

use std::sync::Arc;

use super::shot::{Message, Shot, effect_done, event_message};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::id::TaskId;
use crate::model::node::Node;
use crate::model::outbox::{Act, Effect, OVERDUE};
use crate::model::rollup::children_of;
use crate::model::state::Category;
use crate::store::{Entry, Index, Store};

/// Records looked at in one step.
const STEP: usize = 500;

pub struct Walk {
    top: TaskId,
    effect: Effect,
    events: Arc<str>,
    /// What is sent before everything else.
    first: Option<Message>,
    /// The top itself has been looked at.
    begun: bool,
    /// Tasks whose children are looked at, each with the child looked at last.
    open: Vec<(TaskId, u32, Option<Entry>)>,
    steps: u32,
}

impl Walk {
    pub fn new(top: &TaskId, effect: Effect, events: &Arc<str>, first: Option<Message>) -> Self {
        Self { top: top.clone(), effect, events: events.clone(), first, begun: false, open: Vec::new(), steps: 0 }
    }

    /// Events for the next tasks, and the rest of the walk; the last step ends the effect.
    pub async fn step(mut self, store: &dyn Store, number: u32, now: i64) -> Result<(Option<Shot>, Option<Self>), String> {
        let mut messages: Vec<Message> = self.first.take().into_iter().collect();
        let mut looked = 0;
        if !self.begun {
            self.begun = true;
            let top = store.nodes(number, std::slice::from_ref(&self.top)).await.map_err(|error| error.to_string())?;
            if let Some(node) = top.into_iter().next().flatten() {
                let id = self.top.clone();
                self.look(&id, &node, number, now, &mut messages);
            }
        }
        while looked < STEP
            && let Some((parent, run, after)) = self.open.pop()
        {
            let page = store.page(number, &Index::Children(parent.clone()), after.as_ref(), STEP).await;
            let page = page.map_err(|error| error.to_string())?;
            if page.len() == STEP {
                self.open.push((parent, run, page.last().cloned()));
            }
            looked += page.len().max(1);
            let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
            let nodes = store.nodes(number, &ids).await.map_err(|error| error.to_string())?;
            for (id, node) in ids.iter().zip(nodes) {
                // One that its parent's new run has superseded does not count.
                if let Some(node) = node.filter(|node| node.run >= run) {
                    self.look(id, &node, number, now, &mut messages);
                }
            }
        }
        let done = self.open.is_empty();
        if done {
            messages.push(event_message(&self.events, number, &effect_done(&self.top, self.effect, now)));
        }
        self.steps += 1;
        let mark = if done { self.effect.id() } else { format!("{}/{}", self.effect.id(), self.steps) };
        let shot = (!messages.is_empty()).then(|| Shot { id: self.top.clone(), mark, kind: "walk", messages });
        Ok((shot, (!done).then_some(self)))
    }

    fn look(&mut self, id: &TaskId, node: &Node, number: u32, now: i64, messages: &mut Vec<Message>) {
        let (_, _, tree) = children_of(&node.below);
        let concerned = match self.effect.what {
            Act::RetryFailed { .. } => tree.in_category(Category::Failed),
            Act::Cancel { subtree: true, .. } | Act::End { .. } => tree.in_category(Category::Pending),
            _ => 0,
        };
        if concerned > 0 {
            self.open.push((id.clone(), node.run, None));
        }
        if let Some(event) = self.event_for(id, node, now) {
            messages.push(event_message(&self.events, number, &event));
        }
    }

    fn event_for(&self, id: &TaskId, node: &Node, now: i64) -> Option<Event> {
        match self.effect.what {
            Act::RetryFailed { run } if node.own.category() == Category::Failed && node.run < run => {
                let mut event = Event::new(Kind::RetryRequested, id.clone(), node.run, now);
                event.new_run = Some(run);
                Some(event)
            }
            Act::Cancel { asof, .. }
                if *id != self.top && !node.state.is_terminal() && node.cancelled_by().is_none() && asof > node.asof =>
            {
                let mut event = Event::new(Kind::CancelRequested, id.clone(), node.run, now);
                event.asof = Some(asof);
                Some(event)
            }
            Act::End { .. } if *id != self.top && !node.own.is_terminal() => {
                let mut event = Event::new(Kind::Expired, id.clone(), node.run, now);
                event.error = Some(Box::new(ErrorInfo::new("expired", OVERDUE, node.attempt)));
                Some(event)
            }
            _ => None,
        }
    }
}
