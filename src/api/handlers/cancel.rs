//! `POST /v1/tasks/{id}/cancel`: the request goes into the task's history, then to the workers.

use std::time::Duration;

use axum::response::Response;
use tokio::time::Instant;

use super::task::json_answer;
use crate::api::Api;
use crate::api::backends::detached;
use crate::api::documents::{CancelOutcome, CancelTask};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::read::consistency::TaskView;
use crate::broker::BrokerError;
use crate::control::{self, CONTROL_VERSION, Cancel, ControlKey, ControlRecord};
use crate::model::event::{Event, Kind};
use crate::model::outbox::{self, CANCEL_GRACE_MS, CancelRequest, EffectKind};
use crate::model::record::MAX_MESSAGE_CHARS;
use crate::model::task::Position;
use crate::runtime::now_ms;

/// For so long after a request nobody takes back what workers are told of it, with something to spare.
const TELLING: Duration = Duration::from_millis(CANCEL_GRACE_MS as u64 / 2);

pub async fn cancel(call: ApiRequest) -> Result<Response, ApiError> {
    let asked: CancelTask = call.json_or_default()?;
    check_reason(asked.reason.as_deref())?;
    let task = call.api.find(&call.id()?, None).await?;
    if task.node.state.is_terminal() || (!asked.subtree && task.node.own.is_terminal()) {
        return Err(already_finished(&task));
    }
    if let Some(known) = task.node.asked(asked.subtree) {
        // The tracker tells the workers of it, should the api have died that was asked.
        let position = Position { partition: i32::try_from(task.partition).unwrap_or_default(), offset: known.asof };
        return Ok(json_answer(200, &outcome(&task, position, Some(true))));
    }
    let event = Event { by: call.by.clone(), ..event_of(&task, &asked) };
    let api = call.api.clone();
    let outcome = detached(async move {
        let subtree = asked.subtree;
        let position = api.cancel(&task, asked, &event).await?;
        api.cancel_decided(&task, subtree, position).await
    });
    let outcome = outcome.await?;
    Ok(json_answer(if outcome.already_requested == Some(true) { 200 } else { 202 }, &outcome))
}

fn already_finished(task: &TaskView) -> ApiError {
    let why = format!("`{}` has ended already: it is {}", task.id, task.node.state);
    ApiError::new(Code::AlreadyFinished, why).existing(&task.id)
}

pub fn check_reason(reason: Option<&str>) -> Result<(), ApiError> {
    match reason {
        Some(reason) if reason.chars().count() > MAX_MESSAGE_CHARS => {
            Err(ApiError::new(Code::BadField, format!("it has more than {MAX_MESSAGE_CHARS} characters")).pointer("/reason"))
        }
        _ => Ok(()),
    }
}

impl Api {
    /// Once the event is out the tracker does all of it; the api only tells the workers sooner.
    async fn cancel(&self, task: &TaskView, asked: CancelTask, event: &Event) -> Result<Position, ApiError> {
        let begun = Instant::now();
        let position = self.publisher.publish_event(event).await.map_err(ApiError::of_write)?;
        if begun.elapsed() >= TELLING {
            return Ok(position);
        }
        let request = CancelRequest { with: None, by: event.by.clone(), reason: asked.reason.map(Into::into) };
        if let Err(error) = self.tell_cancel(task, position.offset, asked.subtree, &request).await {
            tracing::warn!(task = %task.id, %error, "workers could not be told of a cancel; the tracker tells them");
        }
        if begun.elapsed() >= TELLING
            && let Err(error) = self.tell_again(task, position).await
        {
            tracing::warn!(task = %task.id, ?error, "workers were told of a cancel late, and may hear of it for ever");
        }
        Ok(position)
    }

    /// The request as the fold decided it: it may lie behind another one that was not folded when this one came.
    async fn cancel_decided(&self, task: &TaskView, subtree: bool, position: Position) -> Result<CancelOutcome, ApiError> {
        // It is written, and workers know of it: a fold that is behind changes nothing of that.
        let Ok((found, ignored)) = self.verdict(task, position, "the request").await else {
            return Ok(outcome(task, position, None));
        };
        match found.node.asked(subtree) {
            Some(known) if ignored => Ok(outcome(&found, Position { offset: known.asof, ..position }, Some(true))),
            None if ignored && found.node.state.is_terminal() => Err(already_finished(&found)),
            _ => Ok(outcome(&found, position, Some(false))),
        }
    }

    async fn tell_cancel(&self, task: &TaskView, asof: i64, subtree: bool, request: &CancelRequest) -> Result<(), BrokerError> {
        let (reason, by) = (request.reason.as_deref().map(str::to_owned), request.by.as_deref().map(str::to_owned));
        let said = ControlRecord::Cancel(Cancel { v: CONTROL_VERSION, asof, at_ms: now_ms(), subtree, reason, by });
        let key = ControlKey::Cancel(task.id.to_string());
        control::order(self.publisher.link(), self.publisher.names(), &key, &said).await.map(drop)
    }

    /// What was told late may lie behind what the tracker has said since, and nobody would take it back: told as it is now.
    async fn tell_again(&self, task: &TaskView, position: Position) -> Result<(), ApiError> {
        let Some(found) = self.look(&task.id).await? else { return Ok(()) };
        // Not folded yet: what follows from it comes later.
        if found.fence.offset <= position.offset {
            return Ok(());
        }
        match found.node.cancel.as_deref().filter(|cancel| cancel.named) {
            Some(cancel) if cancel.asof == position.offset => {}
            Some(outbox::Cancel { asof, subtree, request, .. }) => self.tell_cancel(task, *asof, *subtree, request).await?,
            // The workers may still meet its tasks. The tracker takes it back when they are past them.
            None if found.node.effects.iter().any(|effect| matches!(effect.what, EffectKind::Uncancel { .. })) => {}
            None => {
                let key = ControlKey::Cancel(task.id.to_string());
                control::withdraw(self.publisher.link(), self.publisher.names(), &key).await?;
            }
        }
        Ok(())
    }
}

fn outcome(task: &TaskView, position: Position, already_requested: Option<bool>) -> CancelOutcome {
    CancelOutcome { id: task.id.to_string(), position: position.to_string(), already_requested }
}

fn event_of(task: &TaskView, asked: &CancelTask) -> Event {
    let mut event = Event::new(Kind::CancelRequested, task.id.clone(), task.node.run, now_ms());
    event.message = asked.reason.clone();
    event.subtree = asked.subtree;
    event
}
