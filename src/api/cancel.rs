//! `POST /v1/tasks/{id}/cancel`: the request goes into the task's history, then to the workers.

use axum::response::Response;

use super::Api;
use super::call::Call;
use super::documents::{CancelOutcome, CancelTask};
use super::fresh::Found;
use super::outside::detached;
use super::problem::{Code, Refusal};
use super::tasks::json_answer;
use crate::control::{self, CONTROL_VERSION, Cancel, Key, Said};
use crate::model::event::{Event, Kind};
use crate::model::node::MAX_MESSAGE_CHARS;
use crate::model::task::Position;
use crate::runtime::now_ms;

pub async fn cancel(call: Call) -> Result<Response, Refusal> {
    let asked: CancelTask = call.json_or_default()?;
    check_reason(asked.reason.as_deref())?;
    let task = call.api.find(&call.id()?, None).await?;
    if task.node.state.is_terminal() || (!asked.subtree && task.node.own.is_terminal()) {
        let why = format!("`{}` has ended already: it is {}", task.id, task.node.state);
        return Err(Refusal::new(Code::AlreadyFinished, why).existing(&task.id));
    }
    let (api, known) = (call.api.clone(), requested(&task));
    let event = Event { by: call.by.clone(), ..event_of(&task, &asked) };
    let outcome = detached(async move { api.cancel(task, asked, event, known).await }).await?;
    Ok(json_answer(if outcome.already_requested { 200 } else { 202 }, &outcome))
}

pub fn check_reason(reason: Option<&str>) -> Result<(), Refusal> {
    match reason {
        Some(reason) if reason.chars().count() > MAX_MESSAGE_CHARS => {
            Err(Refusal::new(Code::BadField, format!("it has more than {MAX_MESSAGE_CHARS} characters")).pointer("/reason"))
        }
        _ => Ok(()),
    }
}

/// Where this run's cancellation was asked for, if it was.
fn requested(task: &Found) -> Option<Position> {
    let asked = |entry: &&crate::model::node::HistoryEntry| entry.kind == Kind::CancelRequested && entry.run == task.node.run;
    let entry = task.node.history.iter().find(asked)?;
    Some(Position { partition: i32::try_from(task.partition).ok()?, offset: entry.offset })
}

impl Api {
    async fn cancel(
        &self,
        task: Found,
        asked: CancelTask,
        event: Event,
        known: Option<Position>,
    ) -> Result<CancelOutcome, Refusal> {
        let position = match known {
            Some(position) => position,
            None => self.publisher.publish_event(&event).await?,
        };
        // A second request may find an api that died half-way through the first one; it takes nothing back, however.
        if known.is_none() || asked.subtree {
            let (v, asof, at_ms) = (CONTROL_VERSION, position.offset, now_ms());
            let said = Said::Cancel(Cancel { v, asof, at_ms, subtree: asked.subtree, reason: asked.reason });
            let key = Key::Cancel(task.id.to_string());
            let told = control::order(self.publisher.link(), self.publisher.names(), &key, &said).await;
            told.map_err(|error| {
                Refusal::from(error).hint("the request is written, but workers have not heard of it: repeat it")
            })?;
        }
        Ok(CancelOutcome { id: task.id.to_string(), position: position.to_string(), already_requested: known.is_some() })
    }
}

fn event_of(task: &Found, asked: &CancelTask) -> Event {
    let mut event = Event::new(Kind::CancelRequested, task.id.clone(), task.node.run, now_ms());
    event.message = asked.reason.clone();
    event.subtree = asked.subtree;
    event
}
