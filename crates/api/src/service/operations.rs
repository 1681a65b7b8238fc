//! Endpoints for operators' commands, written to the control topic: pauses, limits, circuits, and the
//! deletion of a type's declaration.

use std::sync::Arc;

use kafleet_documents::{CircuitState, PauseType, ResumeType, SetCircuit, SetLimits, TypeDocument};
use kafleet_fleet::control::{
    CONTROL_VERSION, CircuitSetting, ControlKey, ControlRecord, ForcedCircuit, MAX_HOST_CIRCUITS, Pause, RateLimit,
    Slots, check_host,
};
use kafleet_model::event::Event;
use kafleet_model::task::action::CALLBACK_TYPE;
use kafleet_model::task::id::clip;
use kafleet_runtime::now_ms;

use super::context::{Name, RequestContext, check_reason};
use super::limit_change::change_text;
use super::types::{limits_of, type_state};
use crate::backends::detached;
use crate::http::problem::{ApiError, Code};
use crate::state::Api;

/// Pauses a type; running attempts finish.
pub async fn pause(
    context: RequestContext,
    Name(name): Name,
    PauseType { reason }: PauseType,
) -> Result<TypeDocument, ApiError> {
    check_reason(reason.as_deref())?;
    let api = &context.api;
    api.types.check_type_exists(&name).await?;
    let operation = context.operation("pause_type", &name, reason.as_deref());
    let record = ControlRecord::Pause(Pause { v: CONTROL_VERSION, at_ms: now_ms(), reason, by: context.caller() });
    write_audited(api, operation, vec![(ControlKey::Pause(name.clone()), Some(record))]).await?;
    type_state(api, &name).await
}

/// Resumes a paused type.
pub async fn resume(
    context: RequestContext,
    Name(name): Name,
    ResumeType {}: ResumeType,
) -> Result<TypeDocument, ApiError> {
    let api = &context.api;
    api.types.check_type_exists(&name).await?;
    let operation = context.operation("resume_type", &name, None);
    write_audited(api, operation, vec![(ControlKey::Pause(name.clone()), None)]).await?;
    type_state(api, &name).await
}

/// Sets all limits of a type; omitted limits revert to the configuration.
pub async fn limits(context: RequestContext, Name(name): Name, set: SetLimits) -> Result<TypeDocument, ApiError> {
    check_reason(set.reason.as_deref())?;
    let api = &context.api;
    let SetLimits { slots, max_concurrency, rate, adaptive, .. } = set;
    let partitions = api.types.partitions_of(&name).await?;
    check_limits(slots, max_concurrency, partitions)?;
    if let Some(error) = rate.and_then(|rate| rate.check().err()) {
        return Err(ApiError::new(Code::BadField, error).pointer("/rate"));
    }
    if let Some(error) = adaptive.and_then(|adaptive| adaptive.check().err()) {
        return Err(ApiError::new(Code::BadField, error).pointer("/adaptive"));
    }
    let before = limits_of(&name, &api.fleet.control.state(), api.types.policy(&name).as_ref());
    let change = change_text(&before, &set);
    let message = set.reason.as_deref().map_or_else(|| change.clone(), |reason| format!("{change}; {reason}"));
    let operation = context.operation("set_limits", &name, Some(&message));
    let (v, at_ms) = (CONTROL_VERSION, now_ms());
    let is_set = slots.is_some() || max_concurrency.is_some() || adaptive.is_some();
    let slots = is_set.then_some(Slots { v, at_ms, slots, max_concurrency, adaptive });
    let rate = rate.map(|rate| RateLimit { v, at_ms, rate });
    let records = vec![
        (ControlKey::Slots(name.clone()), slots.map(ControlRecord::Slots)),
        (ControlKey::Rate(name.clone()), rate.map(ControlRecord::Rate)),
    ];
    write_audited(api, operation, records).await?;
    type_state(api, &name).await
}

/// Opens or closes the circuit of a type, or of one host that it calls, in all workers, or leaves it to each of them.
pub async fn circuit(
    context: RequestContext,
    Name(name): Name,
    SetCircuit { state, host, reason }: SetCircuit,
) -> Result<TypeDocument, ApiError> {
    check_reason(reason.as_deref())?;
    let api = &context.api;
    api.types.check_type_exists(&name).await?;
    let host = host.filter(|host| !host.is_empty());
    if let Some(host) = &host {
        check_circuit_host(api, &name, host, state)?;
    }
    let (action, forced) = match state {
        CircuitState::Open => ("open_circuit", Some(ForcedCircuit::Open)),
        CircuitState::Closed => ("close_circuit", Some(ForcedCircuit::Closed)),
        CircuitState::Auto => ("release_circuit", None),
    };
    let message = match (&host, &reason) {
        (Some(host), Some(reason)) => Some(format!("host {host}; {reason}")),
        (Some(host), None) => Some(format!("host {host}")),
        (None, reason) => reason.clone(),
    };
    let operation = context.operation(action, &name, message.as_deref());
    let (v, at_ms) = (CONTROL_VERSION, now_ms());
    let record =
        forced.map(|state| ControlRecord::Circuit(CircuitSetting { v, at_ms, state, reason, by: context.caller() }));
    let key = match host {
        Some(host) => ControlKey::HostCircuit(name.clone(), host),
        None => ControlKey::Circuit(name.clone()),
    };
    write_audited(api, operation, vec![(key, record)]).await?;
    type_state(api, &name).await
}

/// Checks a host whose circuit is to be set: only callbacks have circuits per host.
fn check_circuit_host(api: &Api, name: &str, host: &str, state: CircuitState) -> Result<(), ApiError> {
    let bad_host = |reason: String| ApiError::new(Code::BadField, reason).pointer("/host");
    if name != CALLBACK_TYPE {
        let reason = format!("the type `{}` has no circuits per host", clip(name));
        return Err(bad_host(reason).hint("only `kafleet-callback` has them; without `host` the type's own is set"));
    }
    check_host(host).map_err(bad_host)?;
    let control = api.fleet.control.state();
    let is_new = state != CircuitState::Auto && !control.hosts_of(name).any(|(set, _)| set == host);
    if is_new && control.host_circuits.len() >= MAX_HOST_CIRCUITS {
        let reason = format!("the circuits of {MAX_HOST_CIRCUITS} hosts are set already");
        return Err(bad_host(reason).hint("release one with the state `auto`"));
    }
    Ok(())
}

/// Deletes the declaration of a type; its topics and tasks remain.
pub(crate) async fn forget_type(context: RequestContext, Name(name): Name) -> Result<TypeDocument, ApiError> {
    let api = &context.api;
    api.fleet.wait_for_control_state().await?;
    if api.types.declared.get(&name).is_none() {
        return Err(ApiError::new(Code::UnknownType, format!("the type `{}` is not declared", clip(&name)))
            .hint("`kafleet topics apply` declares types; GET /v1/types lists those that the fleet has"));
    }
    let operation = context.operation("forget_type", &name, None);
    write_audited(api, operation, vec![(ControlKey::Type(name.clone()), None)]).await?;
    type_state(api, &name).await
}

/// Records a request for the audit, then writes or deletes control records. Continues if the client disconnects.
pub(super) async fn write_audited(
    api: &Arc<Api>,
    operation: Event,
    records: Vec<(ControlKey, Option<ControlRecord>)>,
) -> Result<(), ApiError> {
    let api = api.clone();
    let write = async move {
        api.fleet.record_operation(&operation).await?;
        for (key, record) in records {
            api.fleet.write_control(key, record).await?;
        }
        Ok(())
    };
    detached(write).await
}

fn check_limits(slots: Option<u32>, max_concurrency: Option<u32>, partitions: u32) -> Result<(), ApiError> {
    if slots.is_some_and(|slots| !(1..=kafleet_config::MAX_SLOTS).contains(&slots)) {
        let reason = format!("slots must be from 1 to {}", kafleet_config::MAX_SLOTS);
        return Err(ApiError::new(Code::BadField, reason).pointer("/slots").hint("to stop a type, pause it"));
    }
    match max_concurrency {
        Some(limit) if limit < partitions => {
            let reason = format!(
                "a limit of {limit} is below the number of partitions of the topic, {partitions}; each partition needs at least one slot"
            );
            Err(ApiError::new(Code::LimitTooSmall, reason)
                .pointer("/max_concurrency")
                .hint("raise it, or set a rate limit instead"))
        }
        _ => Ok(()),
    }
}
