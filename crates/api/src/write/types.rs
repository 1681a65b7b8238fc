//! Task types: their topics and the schemas of their params.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{BrokerClient, TopicInfo};
use kafleet_config::{Topology, TypePolicy, is_masked};
use kafleet_fleet::control::PolicyUpdates;
use kafleet_fleet::control::types::DeclaredLimits;
use kafleet_handlers::{ParamsError, Registry};
use kafleet_model::json::{HiddenTexts, MASKED, RawJson, WHOLE_VALUE};
use kafleet_model::task::action::{CALLBACK_TYPE, EMAIL_TYPE, Notification, NotificationRules};
use kafleet_model::task::continuation::Continuation;
use kafleet_model::task::delivery::{CallbackParams, EmailParams};
use kafleet_model::task::id::clip;
use kafleet_model::task::limits::TaskLimits;
use kafleet_model::task::param_tags::name_of;
use kafleet_model::task::{Policy, Rules};
use kafleet_model::units::duration::Millis;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::declared::DeclaredTypes;
use super::validate::MAX_PARAMS_BYTES;
use crate::http::problem::{ApiError, Code};
use crate::read::mask::MaskSource;
use crate::read::suggest::DeclaredNames;

/// Time for which the cached topic list is valid.
pub(crate) const CACHE_TTL: Duration = Duration::from_secs(5);
/// Minimum interval between reads for unknown types and after errors.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum edit distance of a suggested name.
const MAX_DISTANCE: usize = 2;

/// Number of partitions per type.
type PartitionCounts = Arc<BTreeMap<String, u32>>;

/// Cache of the types that have a topic.
#[derive(Default)]
pub(crate) struct Topics(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    partition_counts: Option<(Instant, PartitionCounts)>,
    failed: Option<(Instant, ApiError)>,
}

impl Cache {
    fn partition_counts(&self, newer_than: Duration) -> Option<PartitionCounts> {
        self.partition_counts.as_ref().filter(|(read, _)| read.elapsed() < newer_than).map(|(_, counts)| counts.clone())
    }
}

/// Known task types, to validate tasks against.
pub struct TypeCatalog {
    pub registry: Registry,
    /// Types that this process does not have.
    pub declared: DeclaredTypes,
    /// Policies of a reloaded configuration.
    pub policies: PolicyUpdates,
    pub broker: BrokerClient,
    pub topology: Arc<Topology>,
    /// Longest time a tree may stay open.
    pub max_tree_age: Millis,
    pub(crate) topics: Topics,
}

impl TypeCatalog {
    /// Returns the policy of a type that is registered in this process, otherwise the limits of its declaration.
    pub(crate) fn policy(&self, name: &str) -> Option<TypePolicy> {
        let Some(registered) = self.registry.get(name) else {
            return Some(self.declared.get(name)?.policy.type_policy());
        };
        let policy = &registered.policy;
        Some(self.policies.newer(name, policy).unwrap_or_else(|| policy.clone()))
    }

    /// JSON pointers to the params of a type by which its tasks can be found.
    pub(crate) fn index(&self, name: &str) -> Vec<String> {
        let mask = self.known_mask(name);
        let mut index = self.pointers(name, |policy| policy.index, |declared| &declared.index);
        index.retain(|pointer| !is_masked(&mask, pointer));
        index
    }

    /// Names that searches may contain before any task has them.
    pub fn declared_names(&self) -> DeclaredNames {
        DeclaredNames { types: self.declared.names(), params: self.declared_params() }
    }

    /// Names of the declared params of all types, such as `order.id`: terms of searches begin with them.
    pub fn declared_params(&self) -> BTreeSet<String> {
        let mut types: BTreeSet<String> = self.declared.names().into_iter().collect();
        types.extend(self.registry.types().map(|(name, _)| name.to_string()));
        types.iter().flat_map(|name| self.index(name)).filter_map(|pointer| name_of(&pointer).ok()).collect()
    }

    /// JSON pointers that the policy of this process or the declaration of a type names: a process with an older
    /// configuration must not show what another one hides.
    fn pointers(
        &self,
        name: &str,
        of_policy: impl Fn(TypePolicy) -> Vec<String>,
        of_declaration: impl Fn(&DeclaredLimits) -> &Vec<String>,
    ) -> Vec<String> {
        let registered = self.registry.get(name).and_then(|_| self.policy(name));
        let mut pointers = registered.map(of_policy).unwrap_or_default();
        if let Some(declared) = self.declared.get(name) {
            let more = of_declaration(&declared.policy).iter().filter(|pointer| !pointers.contains(pointer));
            let more: Vec<String> = more.cloned().collect();
            pointers.extend(more);
        }
        pointers
    }

    /// JSON pointers that a type masks, as far as this process knows its declaration.
    pub(crate) fn known_mask(&self, name: &str) -> Vec<String> {
        self.pointers(name, |policy| policy.mask, |declared| &declared.mask)
    }

    /// Limits of new tasks.
    pub(crate) fn limits(&self) -> TaskLimits {
        TaskLimits { max_tree_age: self.max_tree_age, max_params: MAX_PARAMS_BYTES }
    }

    /// Rejects options of a task, or of its continuations, that contradict those of the type, if it is known.
    pub(crate) fn check_with_type(&self, name: &str, policy_of_task: &Policy) -> Result<(), ApiError> {
        self.check_with_types(name, policy_of_task, "")
    }

    fn check_with_types(&self, name: &str, policy_of_task: &Policy, at: &str) -> Result<(), ApiError> {
        if let Some((field, error)) = self.policy(name).and_then(|policy| policy.contradiction(policy_of_task)) {
            return Err(ApiError::new(Code::BadField, error)
                .pointer(format!("{at}/{field}"))
                .hint(format!("change the field, or the settings of `{name}`")));
        }
        policy_of_task
            .rules
            .then
            .iter()
            .enumerate()
            .try_for_each(|(n, then)| self.check_with_types(&then.task_type, &then.policy, &format!("{at}/then/{n}")))
    }

    /// Rejects a type without a topic.
    pub(crate) async fn check_type_exists(&self, name: &str) -> Result<(), ApiError> {
        self.partitions_of(name).await.map(drop)
    }

    /// Rejects continuations of a type without a topic.
    pub(crate) async fn check_continuation_types(&self, continuations: &[Continuation]) -> Result<(), ApiError> {
        let mut types = Vec::new();
        types_of(continuations, "/then", &mut types);
        for (at, name) in types {
            self.check_type_exists(name).await.map_err(|error| error.pointer(at))?;
        }
        Ok(())
    }

    /// Returns the number of partitions of a type's topic.
    pub(crate) async fn partitions_of(&self, name: &str) -> Result<u32, ApiError> {
        if let Some(partitions) = self.topics(CACHE_TTL).await?.get(name) {
            return Ok(*partitions);
        }
        let topics = self.topics(RETRY_INTERVAL).await?;
        let names: Vec<&str> = topics.keys().map(String::as_str).collect();
        topics.get(name).copied().ok_or_else(|| self.unknown_type(name, &names))
    }

    pub(crate) fn unknown_type(&self, name: &str, names: &[&str]) -> ApiError {
        let similar: Vec<String> = similar_names(name, names).iter().map(|name| format!("`{name}`")).collect();
        let hint = match similar.as_slice() {
            [] => {
                "`kafleet topics apply` creates the topics of configured types; GET /v1/types lists the existing types"
                    .to_owned()
            }
            similar => {
                format!(
                    "did you mean {}? If the type is new, `kafleet topics apply` creates its topic",
                    similar.join(" or ")
                )
            }
        };
        let topic = self.topology.names.tasks(name);
        ApiError::new(Code::UnknownType, format!("the type `{}` has no topic `{}`", clip(name), clip(&topic)))
            .hint(hint)
    }

    /// Returns the types with a topic, not older than `newer_than`. While Kafka is unavailable, the last known list.
    pub(crate) async fn topics(&self, newer_than: Duration) -> Result<PartitionCounts, ApiError> {
        // Holding the lock while reading lets concurrent requests share the result, including an error.
        let mut cache = self.topics.0.lock().await;
        if let Some(counts) = cache.partition_counts(newer_than) {
            return Ok(counts);
        }
        if let Some((_, error)) = cache.failed.as_ref().filter(|(failed, _)| failed.elapsed() < RETRY_INTERVAL) {
            return cache.partition_counts.as_ref().map(|(_, counts)| counts.clone()).ok_or_else(|| error.clone());
        }
        let prefix = self.topology.names.tasks("");
        match self.broker.topics(&prefix).await.map_err(ApiError::from) {
            Ok(topics) => {
                let names = &self.topology.names;
                let of = |topic: &TopicInfo| Some((names.type_of(&topic.name)?.to_owned(), topic.partitions));
                let counts: PartitionCounts = Arc::new(topics.iter().filter_map(of).collect());
                *cache = Cache { partition_counts: Some((Instant::now(), counts.clone())), failed: None };
                Ok(counts)
            }
            Err(error) => {
                cache.failed = Some((Instant::now(), error.clone()));
                cache.partition_counts.as_ref().map(|(_, counts)| counts.clone()).ok_or(error)
            }
        }
    }

    /// Validates params against the schema and the handler, if this process has the type, otherwise against its declared
    /// schema.
    pub(crate) fn check_params(&self, task_type: &str, params: &RawJson, at: &str) -> Result<(), ApiError> {
        let mask = self.mask(task_type);
        if let Some(pointer) = params.masked_at(&mask) {
            let reason = format!("`{MASKED}` stands for a masked value of `{task_type}` and is none itself");
            return Err(ApiError::new(Code::BadField, reason)
                .pointer(format!("{at}{pointer}"))
                .hint("enter the value; a caller with the role `admin` sees the present one"));
        }
        let rejection = match self.registry.get(task_type) {
            Some(registered) => registered.validate(params),
            None => self.declared.schema(task_type).and_then(|schema| schema.validate(params)),
        };
        // The values may be those of another task, which the caller does not see.
        let hidden = HiddenTexts::of(params, &mask);
        rejection.map_or(Ok(()), |rejection| Err(of_schema(task_type, rejection, &hidden, at)))
    }

    /// Errors that [`Self::check_params`] can find, at most this many.
    pub(crate) fn params_errors(&self, task_type: &str, params: &RawJson, at: &str, most: usize) -> Vec<ApiError> {
        let errors = match self.registry.get(task_type) {
            Some(registered) => registered.errors(params, most),
            None => self.declared.schema(task_type).map_or_else(Vec::new, |schema| schema.errors(params, most)),
        };
        let hidden = HiddenTexts::of(params, &self.mask(task_type));
        errors.into_iter().map(|error| of_schema(task_type, error, &hidden, at)).collect()
    }

    /// Validates the params of continuations. Skips those that include results, which are not known yet.
    pub(crate) fn check_continuation_params(&self, continuations: &[Continuation], at: &str) -> Result<(), ApiError> {
        for (n, then) in continuations.iter().enumerate() {
            let here = format!("{at}/{n}");
            if !then.with_results {
                self.check_params(&then.task_type, &then.params, &format!("{here}/params"))?;
            }
            self.check_continuation_params(&then.policy.rules.then, &format!("{here}/then"))?;
        }
        Ok(())
    }

    /// Rejects invalid notification rules, as far as this process knows the delivery types.
    pub(crate) fn check_notifications(&self, rules: &Rules) -> Result<(), ApiError> {
        for (at, notification) in rules.all_rules().iter().flat_map(NotificationRules::notifications) {
            let (kind, params) = params_of(notification);
            let rejection = self.registry.get(kind).and_then(|registered| registered.validate(&params));
            if let Some(rejection) = rejection {
                return Err(ApiError::new(Code::BadField, rejection.message).pointer(format!(
                    "{at}/{}{}",
                    notification.kind(),
                    rejection.pointer
                )));
            }
        }
        Ok(())
    }

    /// Rejects notifications whose delivery type has no topic.
    pub(crate) async fn check_notification_types(&self, rules: &Rules) -> Result<(), ApiError> {
        let mut checked: Vec<&str> = Vec::new();
        for (at, notification) in rules.all_rules().iter().flat_map(NotificationRules::notifications) {
            let (kind, _) = params_of(notification);
            if checked.contains(&kind) {
                continue;
            }
            checked.push(kind);
            self.check_type_exists(kind).await.map_err(|error| {
                if error.is(Code::UnknownType) {
                    ApiError::new(Code::UnknownType, format!("this fleet has no workers for {}s", notification.kind()))
                        .pointer(at)
                        .hint(match notification {
                            Notification::Callback(_) => {
                                "add `[callbacks]` to the configuration of the workers and run `kafleet topics apply`"
                            }
                            Notification::Email(_) => {
                                "add `[email]` to the configuration of the workers and run `kafleet topics apply`"
                            }
                        })
                } else {
                    error
                }
            })?;
        }
        Ok(())
    }
}

impl MaskSource for TypeCatalog {
    /// Until the declarations are read, any part of a value may be masked.
    fn mask(&self, name: &str) -> Vec<String> {
        if self.declared.is_read() { self.known_mask(name) } else { vec![WHOLE_VALUE.to_owned()] }
    }
}

/// Refusal by the schema of a type. `hidden`: texts of masked values.
fn of_schema(task_type: &str, error: ParamsError, hidden: &HiddenTexts, at: &str) -> ApiError {
    ApiError::new(Code::Schema, hidden.hide(&error.message))
        .pointer(format!("{at}{}", error.pointer))
        .hint(format!("GET /v1/types shows the schema of `{task_type}`"))
}

/// Collects the types of continuations, with their JSON pointers.
fn types_of<'a>(continuations: &'a [Continuation], at: &str, types: &mut Vec<(String, &'a str)>) {
    for (n, then) in continuations.iter().enumerate() {
        types.push((format!("{at}/{n}/type"), &then.task_type));
        types_of(&then.policy.rules.then, &format!("{at}/{n}/then"), types);
    }
}

/// Returns at most three similar names, most similar first.
fn similar_names<'a>(name: &str, candidates: &[&'a str]) -> Vec<&'a str> {
    let mut similar: Vec<(usize, &str)> =
        candidates.iter().map(|candidate| (distance(name, candidate), *candidate)).collect();
    similar
        .retain(|(distance, candidate)| *distance <= MAX_DISTANCE || (name.len() >= 3 && candidate.starts_with(name)));
    similar.sort();
    similar.into_iter().map(|(_, candidate)| candidate).take(3).collect()
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

/// Returns the delivery type and its params, without the notification payload.
fn params_of(notification: Notification<'_>) -> (&'static str, RawJson) {
    let nothing = RawJson::null();
    let (kind, params) = match notification {
        Notification::Callback(callback) => (CALLBACK_TYPE, RawJson::of(&CallbackParams::new(callback, nothing))),
        Notification::Email(email) => (EMAIL_TYPE, RawJson::of(&EmailParams::new(email, nothing))),
    };
    (kind, params.unwrap_or_else(|_| RawJson::null()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_type_names_are_suggested() {
        let names = ["echo", "foreach", "resize", "resize-video"];
        for (typed, meant) in [
            ("ehco", vec!["echo"]),
            ("resise", vec!["resize"]),
            ("resize", vec!["resize", "resize-video"]),
            ("for", vec!["foreach"]),
            ("transcode", vec![]),
        ] {
            assert_eq!(similar_names(typed, &names), meant, "{typed}");
        }
    }
}
