//! Task types: which there are, how much of each there is to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::task::json_answer;
use super::workers::at_work;
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

/// How long the list of topics counts as new.
const FRESH: Duration = Duration::from_secs(5);
/// For a type that is not in the list, and after an error, it is read again after this.
const RECHECK: Duration = Duration::from_secs(1);
/// How many letters may differ in a name that is meant.
const NEAR: usize = 2;

/// With the number of partitions.
type Known = Arc<BTreeMap<String, u32>>;

/// The types that have a topic, as last read.
#[derive(Default)]
pub struct Topics(Mutex<Last>);

#[derive(Default)]
struct Last {
    known: Option<(Instant, Known)>,
    failed: Option<(Instant, ApiError)>,
}

impl Last {
    fn known(&self, newer_than: Duration) -> Option<Known> {
        self.known.as_ref().filter(|(read, _)| read.elapsed() < newer_than).map(|(_, known)| known.clone())
    }
}

impl Api {
    pub async fn check_type_of(&self, draft: &Draft) -> Result<(), ApiError> {
        if !draft.is_external() {
            self.check_known_type(&draft.new.task_type).await?;
        }
        self.check_known_thens(&draft.new.policy.rules.then).await?;
        self.check_deliverable(&draft.new.policy.rules).await
    }

    /// Refuses a type that has no topic.
    pub async fn check_known_type(&self, name: &str) -> Result<(), ApiError> {
        self.partitions_of(name).await.map(drop)
    }

    /// Refuses what follows, where it would be of a type that has no topic.
    pub async fn check_known_thens(&self, thens: &[Continuation]) -> Result<(), ApiError> {
        let mut types = Vec::new();
        types_of(thens, "/then", &mut types);
        for (at, name) in types {
            self.check_known_type(name).await.map_err(|refusal| refusal.pointer(at))?;
        }
        Ok(())
    }

    /// How many partitions the topic of a type has.
    pub async fn partitions_of(&self, name: &str) -> Result<u32, ApiError> {
        if let Some(partitions) = self.topics(FRESH).await?.get(name) {
            return Ok(*partitions);
        }
        let known = self.topics(RECHECK).await?;
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        known.get(name).copied().ok_or_else(|| self.unknown_type(name, &names))
    }

    pub fn unknown_type(&self, name: &str, known: &[&str]) -> ApiError {
        let near: Vec<String> = near_names(name, known).iter().map(|name| format!("`{name}`")).collect();
        let hint = match near.as_slice() {
            [] => "`kafleet topics apply` makes the topics of configured types; GET /v1/types lists them".to_owned(),
            near => format!("did you mean {}? If the type is new, `kafleet topics apply` makes its topic", near.join(" or ")),
        };
        let topic = self.publisher.names().tasks(name);
        ApiError::new(Code::UnknownType, format!("the type `{}` has no topic `{}`", clip(name), clip(&topic))).hint(hint)
    }

    /// The types that have a topic, read not longer ago than this. While Kafka is away, as they were.
    async fn topics(&self, newer_than: Duration) -> Result<Known, ApiError> {
        // Held while reading: who comes meanwhile shares the answer, also when it is an error.
        let mut last = self.topics.0.lock().await;
        if let Some(known) = last.known(newer_than) {
            return Ok(known);
        }
        if let Some((_, refusal)) = last.failed.as_ref().filter(|(failed, _)| failed.elapsed() < RECHECK) {
            return last.known.as_ref().map(|(_, known)| known.clone()).ok_or_else(|| refusal.clone());
        }
        let prefix = self.publisher.names().tasks("");
        match self.broker.topics(&prefix).await.map_err(ApiError::from) {
            Ok(topics) => {
                let names = self.publisher.names();
                let of = |topic: &TopicInfo| Some((names.type_of(&topic.name)?.to_owned(), topic.partitions));
                let known: Known = Arc::new(topics.iter().filter_map(of).collect());
                *last = Last { known: Some((Instant::now(), known.clone())), failed: None };
                Ok(known)
            }
            Err(refusal) => {
                last.failed = Some((Instant::now(), refusal.clone()));
                last.known.as_ref().map(|(_, known)| known.clone()).ok_or(refusal)
            }
        }
    }

    /// Tasks by type and state.
    pub async fn counts(&self) -> Result<BTreeMap<String, BTreeMap<State, u64>>, ApiError> {
        let mut counts = BTreeMap::<String, BTreeMap<State, u64>>::new();
        for count in stored(self.store.counts(&self.partitions())).await? {
            *counts.entry(count.task_type.to_string()).or_default().entry(count.state).or_default() += count.count;
        }
        Ok(counts)
    }
}

/// Where each type of what follows is named.
fn types_of<'a>(thens: &'a [Continuation], at: &str, types: &mut Vec<(String, &'a str)>) {
    for (n, then) in thens.iter().enumerate() {
        types.push((format!("{at}/{n}/type"), &then.task_type));
        types_of(&then.then, &format!("{at}/{n}/then"), types);
    }
}

/// `GET /v1/types`: those that have a topic, that have tasks, or that this process knows.
pub async fn types(call: ApiRequest) -> Result<Response, ApiError> {
    let api = &call.api;
    let known = api.topics(FRESH).await?;
    let mut counts = api.counts().await?;
    api.known_orders().await?;
    let registered = api.registry.types().map(|(name, _)| name.to_string());
    let names: BTreeSet<String> = known.keys().cloned().chain(counts.keys().cloned()).chain(registered).collect();
    let beats = api.roll.beats();
    let document = |name: String| {
        let counts = counts.remove(&name).unwrap_or_default();
        api.type_document(known.contains_key(&name), counts, &beats, name)
    };
    Ok(json_answer(200, &Types { types: names.into_iter().map(document).collect() }))
}

impl Api {
    /// One type, as `GET /v1/types` shows it.
    pub async fn type_answer(&self, name: &str) -> Result<Response, ApiError> {
        let counts = self.counts().await?.remove(name).unwrap_or_default();
        Ok(json_answer(200, &self.type_document(true, counts, &self.roll.beats(), name.to_owned())))
    }

    fn type_document(&self, topic: bool, counts: BTreeMap<State, u64>, beats: &[(i64, Heartbeat)], name: String) -> TypeDocument {
        let registered = self.registry.get(&name);
        let orders = self.control.orders();
        let paused = orders.paused.get(&name);
        TypeDocument {
            topic,
            backlog: backlog_of(&counts),
            counts,
            paused: paused.map(|pause| Paused { since: time_text(pause.at_ms), reason: pause.reason.clone() }),
            limits: limits_of(&name, &orders, registered.map(|registered| &registered.policy)),
            kills: orders.kills_in(&name).map(str::to_owned).collect(),
            at_work: at_work(beats, &name),
            schema: registered.map(|registered| registered.schema.json().clone()),
            name,
        }
    }
}

pub fn limits_of(name: &str, orders: &ControlState, policy: Option<&TypePolicy>) -> TypeLimits {
    let said = orders.slots.get(name);
    let (slots, most) = (said.and_then(|said| said.slots), said.and_then(|said| said.max_concurrency));
    let rate = orders.rates.get(name).map(|limit| limit.rate);
    let live = [("slots", slots.is_some()), ("max_concurrency", most.is_some()), ("rate", rate.is_some())];
    TypeLimits {
        slots: slots.or(policy.and_then(|policy| policy.concurrency)),
        max_concurrency: most.or(policy.and_then(|policy| policy.max_concurrency)),
        rate: rate.or(policy.and_then(|policy| policy.rate)),
        live: live.into_iter().filter(|(_, is)| *is).map(|(name, _)| name.to_owned()).collect(),
    }
}

/// `GET /v1/types/{type}/backlog`.
pub async fn backlog(call: ApiRequest) -> Result<Response, ApiError> {
    call.api.include(call.after()?).await?;
    let counts = call.api.counts().await?;
    match counts.get(&call.segment) {
        Some(counts) => Ok(json_answer(200, &Backlog { backlog: backlog_of(counts) })),
        None => {
            call.api.check_known_type(&call.segment).await?;
            Ok(json_answer(200, &Backlog { backlog: 0 }))
        }
    }
}

fn backlog_of(counts: &BTreeMap<State, u64>) -> u64 {
    [State::Queued, State::Running, State::Warning].iter().filter_map(|state| counts.get(state)).sum()
}

/// At most three names that may have been meant, nearest first.
fn near_names<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    let mut near: Vec<(usize, &str)> = known.iter().map(|known| (distance(name, known), *known)).collect();
    near.retain(|(distance, known)| *distance <= NEAR || (name.len() >= 3 && known.starts_with(name)));
    near.sort();
    near.into_iter().map(|(_, known)| known).take(3).collect()
}

/// Letters to change, add or take away (Levenshtein).
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
    fn a_slip_is_recognised() {
        let known = ["echo", "foreach", "resize", "resize-video"];
        for (typed, meant) in [
            ("ehco", vec!["echo"]),
            ("resise", vec!["resize"]),
            ("resize", vec!["resize", "resize-video"]),
            ("for", vec!["foreach"]),
            ("transcode", vec![]),
        ] {
            assert_eq!(near_names(typed, &known), meant, "{typed}");
        }
    }

    #[test]
    fn configured_limits_are_shown_where_none_are_set_live() {
        let policy = TypePolicy { concurrency: Some(7), max_concurrency: Some(30), ..TypePolicy::default() };
        let limits = limits_of("resize", &ControlState::default(), Some(&policy));
        assert_eq!((limits.slots, limits.max_concurrency, limits.live.len()), (Some(7), Some(30), 0));
        let limits = limits_of("resize", &ControlState::default(), Some(&TypePolicy::default()));
        assert_eq!(limits.slots, None, "as many as each worker has cores");
    }
}
