//! Task types: topics, task counts and limits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::task::json_answer;
use super::workers::worker_totals;
use crate::api::Api;
use crate::api::backends::stored;
use crate::api::documents::{Backlog, Paused, TypeDocument, TypeLimits, Types};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::write::validate::Draft;
use crate::broker::TopicInfo;
use crate::config::TypePolicy;
use crate::control::ControlState;
use crate::control::heartbeat::Heartbeat;
use crate::model::record::state::State;
use crate::model::task::continuation::Continuation;
use crate::model::task::id::clip;
use crate::publish::time_text;

/// Time for which the cached topic list is valid.
const CACHE_TTL: Duration = Duration::from_secs(5);
/// Minimum interval between reads for unknown types and after errors.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum edit distance of a suggested name.
const MAX_DISTANCE: usize = 2;

/// Number of partitions per type.
type Known = Arc<BTreeMap<String, u32>>;

/// Cache of the types that have a topic.
#[derive(Default)]
pub struct Topics(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    known: Option<(Instant, Known)>,
    failed: Option<(Instant, ApiError)>,
}

impl Cache {
    fn known(&self, newer_than: Duration) -> Option<Known> {
        self.known.as_ref().filter(|(read, _)| read.elapsed() < newer_than).map(|(_, known)| known.clone())
    }
}

impl Api {
    pub async fn check_types(&self, draft: &Draft) -> Result<(), ApiError> {
        if !draft.is_external() {
            self.check_type_exists(&draft.new.task_type).await?;
        }
        self.check_continuation_types(&draft.new.policy.rules.then).await?;
        self.check_notification_types(&draft.new.policy.rules).await
    }

    /// Rejects a type without a topic.
    pub async fn check_type_exists(&self, name: &str) -> Result<(), ApiError> {
        self.partitions_of(name).await.map(drop)
    }

    /// Rejects continuations of a type without a topic.
    pub async fn check_continuation_types(&self, continuations: &[Continuation]) -> Result<(), ApiError> {
        let mut types = Vec::new();
        types_of(continuations, "/then", &mut types);
        for (at, name) in types {
            self.check_type_exists(name).await.map_err(|error| error.pointer(at))?;
        }
        Ok(())
    }

    /// Returns the number of partitions of a type's topic.
    pub async fn partitions_of(&self, name: &str) -> Result<u32, ApiError> {
        if let Some(partitions) = self.topics(CACHE_TTL).await?.get(name) {
            return Ok(*partitions);
        }
        let known = self.topics(RETRY_INTERVAL).await?;
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        known.get(name).copied().ok_or_else(|| self.unknown_type(name, &names))
    }

    pub fn unknown_type(&self, name: &str, known: &[&str]) -> ApiError {
        let similar: Vec<String> = similar_names(name, known).iter().map(|name| format!("`{name}`")).collect();
        let hint = match similar.as_slice() {
            [] => "`kafleet topics apply` creates the topics of configured types; GET /v1/types lists them".to_owned(),
            similar => {
                format!("did you mean {}? If the type is new, `kafleet topics apply` creates its topic", similar.join(" or "))
            }
        };
        let topic = self.publisher.names().tasks(name);
        ApiError::new(Code::UnknownType, format!("the type `{}` has no topic `{}`", clip(name), clip(&topic))).hint(hint)
    }

    /// Returns the types with a topic, not older than `newer_than`. While Kafka is unavailable, the last known list.
    async fn topics(&self, newer_than: Duration) -> Result<Known, ApiError> {
        // Holding the lock while reading lets concurrent requests share the result, including an error.
        let mut cache = self.topics.0.lock().await;
        if let Some(known) = cache.known(newer_than) {
            return Ok(known);
        }
        if let Some((_, error)) = cache.failed.as_ref().filter(|(failed, _)| failed.elapsed() < RETRY_INTERVAL) {
            return cache.known.as_ref().map(|(_, known)| known.clone()).ok_or_else(|| error.clone());
        }
        let prefix = self.publisher.names().tasks("");
        match self.broker.topics(&prefix).await.map_err(ApiError::from) {
            Ok(topics) => {
                let names = self.publisher.names();
                let of = |topic: &TopicInfo| Some((names.type_of(&topic.name)?.to_owned(), topic.partitions));
                let known: Known = Arc::new(topics.iter().filter_map(of).collect());
                *cache = Cache { known: Some((Instant::now(), known.clone())), failed: None };
                Ok(known)
            }
            Err(error) => {
                cache.failed = Some((Instant::now(), error.clone()));
                cache.known.as_ref().map(|(_, known)| known.clone()).ok_or(error)
            }
        }
    }

    /// Counts tasks by type and state.
    pub async fn counts(&self) -> Result<BTreeMap<String, BTreeMap<State, u64>>, ApiError> {
        let mut counts = BTreeMap::<String, BTreeMap<State, u64>>::new();
        for count in stored(self.store.counts(&self.partitions())).await? {
            *counts.entry(count.task_type.to_string()).or_default().entry(count.state).or_default() += count.count;
        }
        Ok(counts)
    }
}

/// Collects the types of continuations, with their JSON pointers.
fn types_of<'a>(continuations: &'a [Continuation], at: &str, types: &mut Vec<(String, &'a str)>) {
    for (n, then) in continuations.iter().enumerate() {
        types.push((format!("{at}/{n}/type"), &then.task_type));
        types_of(&then.then, &format!("{at}/{n}/then"), types);
    }
}

/// `GET /v1/types`: types with a topic, types with tasks, and types registered in this process.
pub async fn types(request: ApiRequest) -> Result<Response, ApiError> {
    let api = &request.api;
    let known = api.topics(CACHE_TTL).await?;
    let mut counts = api.counts().await?;
    api.wait_for_control_state().await?;
    let registered = api.registry.types().map(|(name, _)| name.to_string());
    let names: BTreeSet<String> = known.keys().cloned().chain(counts.keys().cloned()).chain(registered).collect();
    let heartbeats = api.workers.beats();
    let document = |name: String| {
        let counts = counts.remove(&name).unwrap_or_default();
        api.type_document(known.contains_key(&name), counts, &heartbeats, name)
    };
    Ok(json_answer(200, &Types { types: names.into_iter().map(document).collect() }))
}

impl Api {
    /// Returns one type in the form of `GET /v1/types`.
    pub async fn type_answer(&self, name: &str) -> Result<Response, ApiError> {
        let counts = self.counts().await?.remove(name).unwrap_or_default();
        Ok(json_answer(200, &self.type_document(true, counts, &self.workers.beats(), name.to_owned())))
    }

    fn type_document(
        &self,
        topic: bool,
        counts: BTreeMap<State, u64>,
        heartbeats: &[(i64, Heartbeat)],
        name: String,
    ) -> TypeDocument {
        let registered = self.registry.get(&name);
        let control = self.control.orders();
        let paused = control.paused.get(&name);
        TypeDocument {
            topic,
            backlog: backlog_of(&counts),
            counts,
            paused: paused.map(|pause| Paused { since: time_text(pause.at_ms), reason: pause.reason.clone() }),
            limits: limits_of(&name, &control, registered.map(|registered| &registered.policy)),
            kills: control.kills_in(&name).map(str::to_owned).collect(),
            worker_totals: worker_totals(heartbeats, &name),
            schema: registered.map(|registered| registered.schema.json().clone()),
            name,
        }
    }
}

pub fn limits_of(name: &str, control: &ControlState, policy: Option<&TypePolicy>) -> TypeLimits {
    let limits = control.slots.get(name);
    let (slots, most) = (limits.and_then(|limits| limits.slots), limits.and_then(|limits| limits.max_concurrency));
    let rate = control.rates.get(name).map(|limit| limit.rate);
    let live = [("slots", slots.is_some()), ("max_concurrency", most.is_some()), ("rate", rate.is_some())];
    TypeLimits {
        slots: slots.or(policy.and_then(|policy| policy.concurrency)),
        max_concurrency: most.or(policy.and_then(|policy| policy.max_concurrency)),
        rate: rate.or(policy.and_then(|policy| policy.rate)),
        live: live.into_iter().filter(|(_, is)| *is).map(|(name, _)| name.to_owned()).collect(),
    }
}

/// `GET /v1/types/{type}/backlog`.
pub async fn backlog(request: ApiRequest) -> Result<Response, ApiError> {
    request.api.wait_for_position(request.after()?).await?;
    let counts = request.api.counts().await?;
    match counts.get(&request.segment) {
        Some(counts) => Ok(json_answer(200, &Backlog { backlog: backlog_of(counts) })),
        None => {
            request.api.check_type_exists(&request.segment).await?;
            Ok(json_answer(200, &Backlog { backlog: 0 }))
        }
    }
}

fn backlog_of(counts: &BTreeMap<State, u64>) -> u64 {
    [State::Queued, State::Running, State::Warning].iter().filter_map(|state| counts.get(state)).sum()
}

/// Returns at most three similar names, most similar first.
fn similar_names<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    let mut similar: Vec<(usize, &str)> = known.iter().map(|known| (distance(name, known), *known)).collect();
    similar.retain(|(distance, known)| *distance <= MAX_DISTANCE || (name.len() >= 3 && known.starts_with(name)));
    similar.sort();
    similar.into_iter().map(|(_, known)| known).take(3).collect()
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, to) in b.bytes().enumerate() {
            let change = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_type_names_are_suggested() {
        let known = ["echo", "foreach", "resize", "resize-video"];
        for (typed, meant) in [
            ("ehco", vec!["echo"]),
            ("resise", vec!["resize"]),
            ("resize", vec!["resize", "resize-video"]),
            ("for", vec!["foreach"]),
            ("transcode", vec![]),
        ] {
            assert_eq!(similar_names(typed, &known), meant, "{typed}");
        }
    }

    #[test]
    fn configured_limits_apply_without_live_limits() {
        let policy = TypePolicy { concurrency: Some(7), max_concurrency: Some(30), ..TypePolicy::default() };
        let limits = limits_of("resize", &ControlState::default(), Some(&policy));
        assert_eq!((limits.slots, limits.max_concurrency, limits.live.len()), (Some(7), Some(30), 0));
        let limits = limits_of("resize", &ControlState::default(), Some(&TypePolicy::default()));
        assert_eq!(limits.slots, None, "as many as each worker has cores");
    }
}
