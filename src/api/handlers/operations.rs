//! What operators tell the workers, over the control topic: pauses, limits, kill switches.

use std::time::Duration;

use axum::response::Response;

use super::cancel::check_reason;
use super::task::json_answer;
use crate::api::Api;
use crate::api::documents::{KillDocument, Kills, PauseType, ResumeType, SetKill, SetLimits};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::control::{self, CONTROL_VERSION, ControlKey, ControlRecord, Kill, MAX_KILLS, Pause, RateLimit, Slots};
use crate::model::task::id::check_type;
use crate::publish::time_text;
use crate::runtime::now_ms;

/// How long an answer waits until this api has read what it wrote.
const SEEN_DEADLINE: Duration = Duration::from_secs(5);
/// How long the first answers of a new api wait until it has read the control topic.
const WHOLE_DEADLINE: Duration = Duration::from_secs(5);

/// `POST /v1/types/{type}/pause`.
pub async fn pause(call: ApiRequest) -> Result<Response, ApiError> {
    let PauseType { reason } = call.json_or_default()?;
    check_reason(reason.as_deref())?;
    let (api, name) = (&call.api, call.segment.clone());
    api.check_known_type(&name).await?;
    let said = ControlRecord::Pause(Pause { v: CONTROL_VERSION, at_ms: now_ms(), reason });
    api.tell(ControlKey::Pause(name.clone()), Some(said)).await?;
    api.type_answer(&name).await
}

/// `POST /v1/types/{type}/resume`.
pub async fn resume(call: ApiRequest) -> Result<Response, ApiError> {
    let ResumeType {} = call.json_or_default()?;
    let (api, name) = (&call.api, call.segment.clone());
    api.check_known_type(&name).await?;
    api.tell(ControlKey::Pause(name.clone()), None).await?;
    api.type_answer(&name).await
}

/// `PUT /v1/types/{type}/limits`: all of them; what is left out is again as the configuration says.
pub async fn limits(call: ApiRequest) -> Result<Response, ApiError> {
    let SetLimits { slots, max_concurrency, rate } = call.json()?;
    let (api, name) = (&call.api, call.segment.clone());
    let partitions = api.partitions_of(&name).await?;
    check_limits(slots, max_concurrency, partitions)?;
    if let Some(why) = rate.and_then(|rate| rate.check().err()) {
        return Err(ApiError::new(Code::BadField, why).pointer("/rate"));
    }
    let (v, at_ms) = (CONTROL_VERSION, now_ms());
    let wanted = (slots.is_some() || max_concurrency.is_some()).then_some(Slots { v, at_ms, slots, max_concurrency });
    api.tell(ControlKey::Slots(name.clone()), wanted.map(ControlRecord::Slots)).await?;
    api.tell(ControlKey::Rate(name.clone()), rate.map(|rate| ControlRecord::Rate(RateLimit { v, at_ms, rate }))).await?;
    api.type_answer(&name).await
}

fn check_limits(slots: Option<u32>, max_concurrency: Option<u32>, partitions: u32) -> Result<(), ApiError> {
    if slots.is_some_and(|slots| !(1..=crate::config::MAX_SLOTS).contains(&slots)) {
        let why = format!("slots are 1 to {}", crate::config::MAX_SLOTS);
        return Err(ApiError::new(Code::BadField, why).pointer("/slots").hint("to stop a type, pause it"));
    }
    match max_concurrency {
        Some(limit) if limit < partitions => {
            let why = format!("{limit} is below the {partitions} partitions of the topic, of which each needs one");
            Err(ApiError::new(Code::LimitTooSmall, why).pointer("/max_concurrency").hint("raise it, or limit the rate instead"))
        }
        _ => Ok(()),
    }
}

/// `PUT /v1/kill/{name}`.
pub async fn kill(call: ApiRequest) -> Result<Response, ApiError> {
    let SetKill { task_type, reason } = call.json_or_default()?;
    check_reason(reason.as_deref())?;
    let (api, name) = (&call.api, call.kill_name()?);
    if let Some(task_type) = &task_type {
        check_type(task_type).map_err(|why| ApiError::new(Code::BadField, why).pointer("/type"))?;
    }
    api.known_orders().await?;
    let full = {
        let orders = api.control.orders();
        orders.kills.len() >= MAX_KILLS && !orders.kills.contains_key(&name)
    };
    if full {
        return Err(ApiError::new(Code::TooManyKills, format!("there are {MAX_KILLS} kill switches on"))
            .hint("take one off: DELETE /v1/kill/{name}"));
    }
    let wanted = Kill { v: CONTROL_VERSION, at_ms: now_ms(), task_type, reason };
    let said = Some(ControlRecord::Kill(wanted.clone()));
    api.tell(ControlKey::Kill(name.clone()), said).await?;
    Ok(json_answer(200, &document(&name, &wanted)))
}

/// `DELETE /v1/kill/{name}`.
pub async fn unkill(call: ApiRequest) -> Result<Response, ApiError> {
    let (api, name) = (&call.api, call.kill_name()?);
    api.known_orders().await?;
    let known = api.control.orders().kills.get(&name).cloned();
    let Some(known) = known else {
        return Err(ApiError::new(Code::UnknownKill, format!("there is no kill switch `{name}`")).hint("GET /v1/kill lists them"));
    };
    api.tell(ControlKey::Kill(name.clone()), None).await?;
    Ok(json_answer(200, &document(&name, &known)))
}

/// `GET /v1/kill`.
pub async fn kills(call: ApiRequest) -> Result<Response, ApiError> {
    call.api.known_orders().await?;
    let kills = call.api.control.orders().kills.iter().map(|(name, kill)| document(name, kill)).collect();
    Ok(json_answer(200, &Kills { kills }))
}

fn document(name: &str, kill: &Kill) -> KillDocument {
    let (task_type, reason) = (kill.task_type.clone(), kill.reason.clone());
    KillDocument { name: name.to_owned(), task_type, reason, since: time_text(kill.at_ms) }
}

impl ApiRequest {
    fn kill_name(&self) -> Result<String, ApiError> {
        control::check_kill(&self.segment).map_err(|why| ApiError::new(Code::BadKill, why))?;
        Ok(self.segment.clone())
    }
}

impl Api {
    /// Writes an order, or takes it back, and waits a little until this api sees it too.
    async fn tell(&self, key: ControlKey, said: Option<ControlRecord>) -> Result<(), ApiError> {
        let (link, names) = (self.publisher.link(), self.publisher.names());
        let written = match said {
            Some(said) => control::order(link, names, &key, &said).await,
            None => control::withdraw(link, names, &key).await,
        };
        let place = written.map_err(ApiError::of_write)?;
        tracing::info!(%key, "told to the workers");
        // It is written; this api is only late to see it.
        let _ = tokio::time::timeout(SEEN_DEADLINE, self.control.reached(place.offset)).await;
        Ok(())
    }

    /// Waits until the control topic has been read.
    pub async fn known_orders(&self) -> Result<(), ApiError> {
        let whole = self.control.whole_within(WHOLE_DEADLINE, self.publisher.names()).await;
        whole.map_err(|why| ApiError::new(Code::KafkaUnavailable, why).hint("try again"))
    }
}
