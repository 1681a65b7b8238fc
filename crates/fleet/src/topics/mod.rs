//! Topics of a fleet: the required ones, their creation, and checks of existing ones.
//!
//! One function derives the required topics from configuration and types. [`apply`] creates and corrects them (`kafleet
//! topics apply`), [`check`](fn@check) compares them (`kafleet doctor`), and [`TopicWatch`] compares them while a role
//! runs, which is not ready while a topic that it needs is missing or unsuitable.
//!
//! Invariant: the number of events partitions never changes once it is applied; it is recorded on the control topic. A
//! tree lives in the partition that follows from its root id and that number. With another number, further events of a
//! tree would be in a partition whose store does not know it.
//!
//! Read next: `settings.rs` (settings of each kind of topic, with reasons).

use std::collections::BTreeSet;
use std::time::Duration;

use kafleet_broker::{BrokerClient, BrokerError, TopicChange, TopicInfo, TopicOutcome, TopicSpec};
use kafleet_config::{Config, Names, OutboxConfig, TypeConfig};
use kafleet_handlers::Registry;
use kafleet_handlers::builtin::{callback, email};
use kafleet_model::units::duration::Millis;
use tokio::time::Instant;

use crate::control::settings::{FleetSettings, FleetSettingsError, read_control, set_fleet};

#[doc(hidden)]
pub mod acls;
pub mod check;
mod settings;
mod types;
mod watch;
pub use check::{Severity, TopicFinding, check};
use settings::{Kind, RequiredTopic};
pub use types::{DeclareError, TypeChange, TypeOutcome, declaration, declare, differing_types, gone_types};
pub use watch::{RequiredTopics, TopicStatus, TopicWatch};

const MIB: u64 = 1 << 20;
/// Maximum size of a record, in bytes.
pub const MAX_RECORD_BYTES: u64 = 4 * MIB;
/// Maximum size of a dead letter, which contains the whole record and the reason, in bytes.
pub const MAX_DEAD_BYTES: u64 = MAX_RECORD_BYTES + MIB;
/// Retention of heartbeats.
const HEARTBEAT_RETENTION: Millis = Millis::secs(86_400);

/// Specs of the topics required by a configuration and its types.
pub fn specs(config: &Config, registry: &Registry) -> Vec<TopicSpec> {
    required_topics(config, registry).iter().map(RequiredTopic::spec).collect()
}

/// Topics required by a configuration and its types.
fn required_topics(config: &Config, registry: &Registry) -> Vec<RequiredTopic> {
    let names = Names::of(config);
    let topics = &config.topics;
    let topic = |name: String, kind: Kind, partitions: u32, retention: Option<Millis>| {
        let max_bytes = if kind == Kind::Dead { MAX_DEAD_BYTES } else { MAX_RECORD_BYTES };
        RequiredTopic { name, kind, partitions, replication: topics.replication, retention, max_bytes }
    };
    let of_events = Millis(config.lifetimes().log_retention_ms().unsigned_abs());
    let mut required = vec![
        topic(names.control(), Kind::Control, 1, None),
        topic(names.events(), Kind::Events, topics.events_partitions, Some(of_events)),
        topic(names.workers(), Kind::Workers, 1, Some(HEARTBEAT_RETENTION)),
    ];
    if config.outbox.is_some() {
        required.push(topic(names.outbox(), Kind::Outbox, 1, None));
    }
    let by_default = TypeConfig::default();
    for name in type_names(config, registry) {
        let section = config.types.get(&name).unwrap_or(&by_default);
        let partitions = section.partitions.unwrap_or(topics.task_partitions);
        required.push(topic(names.tasks(&name), Kind::Tasks, partitions, Some(topics.task_retention)));
        required.push(topic(names.dead(&name), Kind::Dead, 1, Some(topics.dead_retention)));
        let in_code = registry.get(&name).is_some_and(|registered| registered.policy.publish_results);
        if section.publish_results.unwrap_or(in_code) {
            required.push(topic(names.results(&name), Kind::Results, partitions, Some(topics.task_retention)));
        }
    }
    required
}

/// Table in Markdown of the settings of topics, for a fleet with the defaults.
#[doc(hidden)]
pub fn settings_markdown() -> String {
    let mut config = Config { outbox: Some(OutboxConfig::default()), ..Config::default() };
    config.types.insert("echo".to_owned(), TypeConfig { publish_results: Some(true), ..TypeConfig::default() });
    settings::markdown(&required_topics(&config, &Registry::default()))
}

/// Names of the types from configuration and code.
fn type_names(config: &Config, registry: &Registry) -> BTreeSet<String> {
    let in_code = registry.types().map(|(name, _)| name.to_string());
    let callbacks = config.callbacks.as_ref().map(|_| callback::TYPE.to_owned());
    let of_sections = callbacks.into_iter().chain(config.email.as_ref().map(|_| email::TYPE.to_owned()));
    config.types.keys().cloned().chain(in_code).chain(of_sections).collect()
}

/// Reason why topics were not applied. Nothing has been changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error(
        "the events topic has {recorded} partitions, the configuration says {configured}: the number is fixed once applied, because \
         every tree lives in one partition\n\nhint: set `events_partitions = {recorded}` in `[topics]`, or use another `prefix`"
    )]
    Fixed { recorded: u32, configured: u32 },
    #[error(
        "the topic `{topic}` has {present} partitions, but {recorded} were applied: the topic was changed, and existing trees are \
         no longer in the expected partitions\n\nhint: use another `prefix` for new tasks, and keep the topic until the trees in it have ended"
    )]
    Changed { topic: String, present: u32, recorded: u32 },
    #[error(transparent)]
    FleetSettings(#[from] FleetSettingsError),
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Creates and alters topics, and records the number of events partitions. Returns one outcome per topic; the number
/// is recorded only if the control and events topics are correct. Waits for at most `deadline`.
pub async fn apply(
    client: &BrokerClient,
    config: &Config,
    registry: &Registry,
    deadline: Duration,
) -> Result<Vec<TopicOutcome>, ApplyError> {
    let begun = Instant::now();
    let client_in_time = || client.with_deadline(deadline.saturating_sub(begun.elapsed()));
    let names = Names::of(config);
    let configured = config.topics.events_partitions;
    let present = client_in_time().topics(&names.topics()).await?;
    let recorded = match find(&present, &names.control()) {
        Some(_) => match read_control(&client_in_time(), &names).await {
            // The record is written again.
            Err(FleetSettingsError::Unreadable { .. }) => None,
            read => read?.events_partitions,
        },
        None => None,
    };
    agree(find(&present, &names.events()), recorded, configured)?;
    let required = required_topics(config, registry);
    let spec = |topic: &RequiredTopic| match find(&present, &topic.name) {
        Some(present) => topic.correction(present),
        None => topic.spec(),
    };
    let specs = required.iter().map(spec).collect();
    let outcomes = client_in_time().apply_topics(specs).await?;
    let failed = |name: &str| {
        outcomes.iter().any(|outcome| outcome.name == name && matches!(outcome.change, TopicChange::Failed(_)))
    };
    if recorded.is_none() && !failed(&names.control()) && !failed(&names.events()) {
        let producer = client.shared_producer(None).await?;
        set_fleet(&producer, &names, configured).await?;
    }
    Ok(outcomes)
}

/// Checks that the number of events partitions is unchanged.
fn agree(events: Option<&TopicInfo>, recorded: Option<u32>, configured: u32) -> Result<(), ApplyError> {
    let present = events.map(|info| info.partitions);
    match (recorded, present) {
        (Some(recorded), Some(present)) if recorded != present => {
            let topic = events.map(|info| info.name.clone()).unwrap_or_default();
            Err(ApplyError::Changed { topic, present, recorded })
        }
        (Some(recorded), _) | (None, Some(recorded)) if recorded != configured => {
            Err(ApplyError::Fixed { recorded, configured })
        }
        _ => Ok(()),
    }
}

fn find<'a>(topics: &'a [TopicInfo], name: &str) -> Option<&'a TopicInfo> {
    topics.iter().find(|info| info.name == name)
}

#[cfg(test)]
mod tests;
