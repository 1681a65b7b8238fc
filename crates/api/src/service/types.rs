//! Task types: topics, task counts and limits.

use crate::write::types::CACHE_TTL;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kafleet_config::TypePolicy;
use kafleet_documents::{
    AdaptiveDocument, Backlog, CircuitDocument, ConfiguredLimits, DeclaredParams, FlowDocument, HostDocument,
    PauseDocument, TypeDocument, TypeLimits, Types,
};
use kafleet_fleet::control::heartbeat::Heartbeat;
use kafleet_fleet::control::types::TypeRecord;
use kafleet_fleet::control::{CircuitSetting, ControlState, Pause};
use kafleet_handlers::TypeDetails;
use kafleet_model::record::state::State;
use kafleet_model::task::id::clip;
use kafleet_model::task::param_tags::{PREFIX, name_of};
use kafleet_model::units::time::time_text;
use serde_json::Value;
use tokio::time::timeout;

use super::context::{After, Name, RequestContext};
use super::flow;
use super::queue::queue;
use super::workers::{type_statuses, worker_totals};
use crate::http::problem::{ApiError, Code};
use crate::read::own_failed::own_failed;
use crate::state::Api;

/// Maximum wait for the queue of a type, which is left out afterwards.
const QUEUE_DEADLINE: Duration = Duration::from_secs(2);
/// Maximum wait for the rates and failures of types, which are left out afterwards.
const FIGURES_DEADLINE: Duration = Duration::from_millis(1_200);

/// Maximum number of hosts in the document of a type.
const MAX_HOSTS: usize = 100;

/// Returns one type in the form of `GET /v1/types`.
pub(crate) async fn type_state(api: &Api, name: &str) -> Result<TypeDocument, ApiError> {
    let counts = api.reads.counts().await?.remove(name).unwrap_or_default();
    let incomplete = api.reads.incomplete().await?;
    let topic = api.types.topics(CACHE_TTL).await?.contains_key(name);
    let document = type_document(api, topic, counts, &api.fleet.workers.heartbeats(), name.to_owned());
    Ok(TypeDocument { incomplete, ..document })
}

fn type_document(
    api: &Api,
    topic: bool,
    counts: BTreeMap<State, u64>,
    heartbeats: &[(i64, Heartbeat)],
    name: String,
) -> TypeDocument {
    let (schema, details) = description(api, &name);
    let index = api.types.index(&name);
    let index = index.iter().filter_map(|pointer| name_of(pointer).ok()).map(|name| PREFIX.to_owned() + &name);
    let declared = DeclaredParams { index: index.collect(), mask: api.types.known_mask(&name) };
    let control = api.fleet.control.state();
    TypeDocument {
        topic,
        backlog: backlog_of(&counts),
        counts,
        own_failed: None,
        flow: None,
        paused: control.paused.get(&name).map(pause_of),
        limits: limits_of(&name, &control, api.types.policy(&name).as_ref()),
        circuit: control.circuits.get(&name).map(circuit_of),
        adaptive: adaptive_of(&name, &control, heartbeats),
        hosts: hosts_of(&name, &control, heartbeats),
        kills: control.kills_in(&name).map(str::to_owned).collect(),
        worker_totals: worker_totals(heartbeats, &name),
        app: details.app,
        doc: details.doc,
        schema,
        output: details.output,
        declared,
        queue: None,
        incomplete: Vec::new(),
        name,
    }
}

/// Returns the schema of the params and the documentation of a type, of this process or as declared.
fn description(api: &Api, name: &str) -> (Option<Value>, TypeDetails) {
    if let Some(registered) = api.types.registry.get(name) {
        return (Some(registered.schema.json().clone()), registered.details.clone());
    }
    let declared = api.types.declared.get(name).map(|declared| TypeRecord::clone(&declared)).unwrap_or_default();
    let TypeRecord { app, doc, output, params, .. } = declared;
    (params, TypeDetails { app, doc, output })
}

/// Returns the schema of a type's params, of this process or as declared.
pub async fn params_schema(api: &Api, name: &str) -> Result<Option<Value>, ApiError> {
    if let Some(registered) = api.types.registry.get(name) {
        return Ok(Some(registered.schema.json().clone()));
    }
    api.fleet.wait_for_control_state().await?;
    Ok(description(api, name).0)
}

fn pause_of(pause: &Pause) -> PauseDocument {
    PauseDocument { since: time_text(pause.at_ms), reason: pause.reason.clone(), by: pause.by.clone() }
}

fn circuit_of(setting: &CircuitSetting) -> CircuitDocument {
    CircuitDocument {
        state: setting.state.name().to_owned(),
        since: time_text(setting.at_ms),
        reason: setting.reason.clone(),
        by: setting.by.clone(),
    }
}

/// Adaptive limit that the live workers of a type apply.
pub(super) fn adaptive_of(
    name: &str,
    control: &ControlState,
    heartbeats: &[(i64, Heartbeat)],
) -> Option<AdaptiveDocument> {
    let status = type_statuses(heartbeats, name).find_map(|status| status.adaptive.as_ref())?;
    let learned = control.adaptives.get(name).map(|record| &record.learned).filter(|_| !status.fixed);
    let cut = learned.and_then(|learned| learned.cut.as_ref());
    Some(AdaptiveDocument {
        limit: learned.map_or(status.limit, |learned| learned.limit),
        fixed: status.fixed,
        cut_at: cut.map(|cut| time_text(cut.at_ms)),
        cut_reason: cut.map(|cut| cut.reason.clone()),
    })
}

/// Hosts whose circuits are open in a live worker or set by an operator.
fn hosts_of(name: &str, control: &ControlState, heartbeats: &[(i64, Heartbeat)]) -> Vec<HostDocument> {
    let mut hosts: BTreeMap<&str, HostDocument> = BTreeMap::new();
    for (host, setting) in control.host_settings(name) {
        hosts.entry(host).or_default().circuit = Some(circuit_of(setting));
    }
    for open in type_statuses(heartbeats, name).flat_map(|status| &status.hosts) {
        let host = hosts.entry(&open.host).or_default();
        host.workers += 1;
        host.waiting += u64::from(open.waiting);
        host.reason.get_or_insert_with(|| open.reason.clone());
    }
    let named = |(host, document): (&str, HostDocument)| HostDocument { host: host.to_owned(), ..document };
    hosts.into_iter().take(MAX_HOSTS).map(named).collect()
}

/// Lists types with a topic, types with tasks, declared types, and types registered in this process.
pub(crate) async fn types(RequestContext { api, .. }: RequestContext) -> Result<Types, ApiError> {
    measured_types(&api).await
}

/// Lists types with their flow and the numbers of tasks that failed by themselves, as far as the store answers in time.
pub async fn measured_types(api: &Api) -> Result<Types, ApiError> {
    let failed = api.queues.own_failed.get(Some(String::new()), own_failed(&api.reads));
    let (types, minutes, failed) = tokio::join!(
        type_list(api),
        timeout(FIGURES_DEADLINE, flow::last_minutes(api)),
        timeout(FIGURES_DEADLINE, failed),
    );
    let Types { mut types, incomplete } = types?;
    let (minutes, failed) = (minutes.ok().and_then(Result::ok), failed.ok().and_then(Result::ok));
    for document in &mut types {
        document.flow = minutes.as_ref().map(|minutes| flow::flow(document, minutes));
        document.own_failed = failed.as_ref().map(|failed| failed.get(&document.name).copied().unwrap_or_default());
    }
    Ok(Types { types, incomplete })
}

/// Flow of one type; `None` if the store does not answer in time.
pub(crate) async fn flow_of(api: &Api, name: &str) -> Option<FlowDocument> {
    let read = async { tokio::try_join!(type_state(api, name), flow::last_minutes(api)) };
    let (document, minutes) = timeout(FIGURES_DEADLINE, read).await.ok()?.ok()?;
    Some(flow::flow(&document, &minutes))
}

/// Reads a type with its queue.
pub(crate) async fn read_type(
    RequestContext { api, .. }: RequestContext,
    Name(name): Name,
) -> Result<TypeDocument, ApiError> {
    let document = measured_type(&api, &name).await?;
    let sampled = queue(&api, &name);
    let sampled = if document.topic { timeout(QUEUE_DEADLINE, sampled).await.ok().and_then(Result::ok) } else { None };
    Ok(TypeDocument { queue: sampled.as_deref().cloned(), ..document })
}

/// Type of this name.
pub async fn type_of(api: &Api, name: &str) -> Result<TypeDocument, ApiError> {
    find(type_list(api).await?, name)
}

/// Type of this name with its figures, as in [`measured_types`].
pub async fn measured_type(api: &Api, name: &str) -> Result<TypeDocument, ApiError> {
    find(measured_types(api).await?, name)
}

fn find(Types { types, incomplete }: Types, name: &str) -> Result<TypeDocument, ApiError> {
    let unknown = || {
        ApiError::new(Code::UnknownType, format!("there is no type `{}`", clip(name)))
            .hint("create its topic with `kafleet topics apply`")
    };
    let document = types.into_iter().find(|document| document.name == name).ok_or_else(unknown)?;
    Ok(TypeDocument { incomplete, ..document })
}

pub async fn type_list(api: &Api) -> Result<Types, ApiError> {
    let partition_counts = api.types.topics(CACHE_TTL).await?;
    let mut counts = api.reads.counts().await?;
    let incomplete = api.reads.incomplete().await?;
    api.fleet.wait_for_control_state().await?;
    let registered = api.types.registry.types().map(|(name, _)| name.to_string());
    let declared = api.types.declared.names();
    let of_fleet = partition_counts.keys().cloned().chain(counts.keys().cloned()).chain(declared);
    let names: BTreeSet<String> = of_fleet.chain(registered).collect();
    let heartbeats = api.fleet.workers.heartbeats();
    let document = |name: String| {
        let counts = counts.remove(&name).unwrap_or_default();
        type_document(api, partition_counts.contains_key(&name), counts, &heartbeats, name)
    };
    Ok(Types { types: names.into_iter().map(document).collect(), incomplete })
}

/// Returns the limits in effect: those set at run time, or else those of the configuration.
pub(crate) fn limits_of(name: &str, control: &ControlState, policy: Option<&TypePolicy>) -> TypeLimits {
    let limits = control.slots.get(name);
    let (slots, most) = (limits.and_then(|limits| limits.slots), limits.and_then(|limits| limits.max_concurrency));
    let rate = control.rates.get(name).map(|limit| limit.rate);
    let configured = ConfiguredLimits {
        slots: policy.and_then(|policy| policy.concurrency),
        max_concurrency: policy.and_then(|policy| policy.max_concurrency),
        rate: policy.and_then(|policy| policy.rate),
    };
    let adaptive = limits.and_then(|limits| limits.adaptive);
    let live = [
        ("slots", slots.is_some()),
        ("max_concurrency", most.is_some()),
        ("rate", rate.is_some()),
        ("adaptive", adaptive.is_some()),
    ];
    TypeLimits {
        slots: slots.or(configured.slots),
        max_concurrency: most.or(configured.max_concurrency),
        rate: rate.or(configured.rate),
        adaptive,
        configured,
        live: live.into_iter().filter(|(_, is)| *is).map(|(name, _)| name.to_owned()).collect(),
    }
}

/// Counts the queued and running tasks of a type.
pub(crate) async fn backlog(
    RequestContext { api, .. }: RequestContext,
    Name(name): Name,
    After(after): After,
) -> Result<Backlog, ApiError> {
    api.reads.wait_for_position(after).await?;
    let counts = api.reads.counts().await?;
    // An autoscaler keeps its workers when it gets no number, and stops them when it gets too low a one.
    api.reads.check_covered(None).await?;
    match counts.get(&name) {
        Some(counts) => Ok(Backlog { backlog: backlog_of(counts) }),
        None => {
            api.types.check_type_exists(&name).await?;
            Ok(Backlog { backlog: 0 })
        }
    }
}

/// Counts the tasks that workers have to start or finish: queued, running, and running with a warning.
pub(crate) fn backlog_of(counts: &BTreeMap<State, u64>) -> u64 {
    [State::Queued, State::Running, State::Warning].iter().filter_map(|state| counts.get(state)).sum()
}

#[cfg(test)]
mod tests {
    use kafleet_fleet::control::Slots;

    use super::*;

    #[test]
    fn configured_limits_apply_without_live_limits() {
        let policy = TypePolicy { concurrency: Some(7), max_concurrency: Some(30), ..TypePolicy::default() };
        let limits = limits_of("resize", &ControlState::default(), Some(&policy));
        assert_eq!((limits.slots, limits.max_concurrency, limits.live.len()), (Some(7), Some(30), 0));
        let limits = limits_of("resize", &ControlState::default(), Some(&TypePolicy::default()));
        assert_eq!(limits.slots, None, "as many as each worker has cores");
        let live = Slots { v: 1, at_ms: 0, slots: Some(2), max_concurrency: None, adaptive: None };
        let mut control = ControlState::default();
        control.slots.insert("resize".to_owned(), live);
        let limits = limits_of("resize", &control, Some(&policy));
        assert_eq!((limits.slots, limits.configured.slots), (Some(2), Some(7)), "a reset returns to the configuration");
    }
}
