//! Topics: listing, creating, growing, configuring; and where partitions begin and end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigSource, NewPartitions, NewTopic, OwnedResourceSpecifier, ResourceSpecifier,
    TopicReplication, TopicResult,
};
use rdkafka::error::KafkaResult;
use rdkafka::metadata::MetadataTopic;
use rdkafka::types::RDKafkaErrorCode;

use super::{Silent, check_topic, error, native};
use crate::broker::{BrokerError, Ends, Partition, TopicChange, TopicInfo, TopicOutcome, TopicSpec};

type Admin = AdminClient<Silent>;

/// Replicas of a new topic, where the cluster has as many brokers.
const REPLICATION: u32 = 3;

pub(super) fn topics(admin: &Admin, prefix: &str, deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError> {
    let until = Instant::now() + deadline;
    let metadata = admin.inner().fetch_metadata(None, deadline).map_err(|error| error::of(&error, "listing topics"))?;
    let mut found: Vec<TopicInfo> =
        metadata.topics().iter().filter(|topic| topic.name().starts_with(prefix)).map(described).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<&str> = found.iter().map(|topic| topic.name.as_str()).collect();
    let mut configs = configs(admin, &names, left(until))?;
    for topic in &mut found {
        topic.config = configs.remove(&topic.name).unwrap_or_default();
    }
    Ok(found)
}

fn described(topic: &MetadataTopic) -> TopicInfo {
    let replication = topic.partitions().iter().map(|partition| partition.replicas().len()).max().unwrap_or(0);
    TopicInfo {
        name: topic.name().to_owned(),
        partitions: topic.partitions().len() as u32,
        replication: replication as u32,
        config: Vec::new(),
    }
}

/// The entries that were set on the topics themselves.
fn configs(admin: &Admin, topics: &[&str], deadline: Duration) -> Result<BTreeMap<String, Vec<(String, String)>>, BrokerError> {
    if topics.is_empty() {
        return Ok(BTreeMap::new());
    }
    let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
    let told = block_on(admin.describe_configs(&resources, &options(deadline)));
    let told = told.map_err(|error| error::of(&error, "reading the configuration of topics"))?;
    Ok(told
        .into_iter()
        .flatten()
        .filter_map(|resource| match resource.specifier {
            OwnedResourceSpecifier::Topic(name) => {
                let own = resource.entries.into_iter().filter(|entry| entry.source == ConfigSource::DynamicTopic);
                Some((name, own.filter_map(|entry| Some((entry.name, entry.value?))).collect()))
            }
            _ => None,
        })
        .collect())
}

pub(super) fn ends(admin: &Admin, partition: &Partition, deadline: Duration) -> Result<Ends, BrokerError> {
    let told = admin.inner().fetch_watermarks(&partition.topic, partition.index, deadline);
    let (first, end) = told.map_err(|error| error::of(&error, &format!("asking for the ends of {partition}")))?;
    Ok(Ends { first, end })
}

pub(super) fn apply_topics(admin: &Admin, specs: &[TopicSpec], deadline: Duration) -> Result<Vec<TopicOutcome>, BrokerError> {
    let until = Instant::now() + deadline;
    let metadata = admin.inner().fetch_metadata(None, deadline).map_err(|error| error::of(&error, "listing topics"))?;
    let brokers = metadata.brokers().len() as u32;
    let present: BTreeMap<String, TopicInfo> =
        metadata.topics().iter().map(|topic| (topic.name().to_owned(), described(topic))).collect();
    let apply = |spec: &TopicSpec| -> Result<TopicChange, BrokerError> {
        check_topic(&spec.name)?;
        match present.get(&spec.name) {
            Some(info) => change(admin, spec, info, until),
            None => create(admin, spec, brokers, until),
        }
    };
    Ok(specs
        .iter()
        .map(|spec| TopicOutcome { name: spec.name.clone(), change: apply(spec).unwrap_or_else(TopicChange::Failed) })
        .collect())
}

fn create(admin: &Admin, spec: &TopicSpec, brokers: u32, until: Instant) -> Result<TopicChange, BrokerError> {
    let replication = spec.replication.unwrap_or(REPLICATION.min(brokers.max(1)));
    let config = wanted_config(spec, replication);
    let count = i32::try_from(spec.partitions).map_err(|_| too_many(spec))?;
    let mut new = NewTopic::new(&spec.name, count, TopicReplication::Fixed(replication as i32));
    new.config = config.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let told = block_on(admin.create_topics([&new], &options(left(until))));
    match single(told) {
        Ok(()) => {
            await_leaders(admin, spec, until)?;
            Ok(TopicChange::Created)
        }
        // Another process was faster.
        Err(Some(RDKafkaErrorCode::TopicAlreadyExists)) => {
            let metadata = admin.inner().fetch_metadata(Some(&spec.name), left(until));
            let metadata = metadata.map_err(|error| error::of(&error, "listing topics"))?;
            let info = metadata.topics().first().map(described);
            info.map_or(Ok(TopicChange::Unchanged), |info| change(admin, spec, &info, until))
        }
        Err(code) => Err(refused(code, &format!("creating `{}` with {}", spec.name, shown(&config)))),
    }
}

fn change(admin: &Admin, spec: &TopicSpec, info: &TopicInfo, until: Instant) -> Result<TopicChange, BrokerError> {
    let mut changes = Vec::new();
    if info.partitions < spec.partitions {
        grow(admin, spec, until)?;
        changes.push(format!("partitions {} → {}", info.partitions, spec.partitions));
    }
    let present = configs(admin, &[&spec.name], left(until))?.remove(&spec.name).unwrap_or_default();
    let mut wanted = wanted_config(spec, info.replication);
    wanted.retain(|entry| !present.contains(entry));
    if !wanted.is_empty() {
        native::set_topic_config(admin.inner(), &spec.name, &wanted, left(until))
            .map_err(|(code, reason)| error::classified(code, format!("configuring `{}`: {reason}", spec.name)))?;
        changes.extend(wanted.iter().map(|(key, value)| format!("{key}={value}")));
    }
    Ok(if changes.is_empty() { TopicChange::Unchanged } else { TopicChange::Altered(changes) })
}

fn grow(admin: &Admin, spec: &TopicSpec, until: Instant) -> Result<(), BrokerError> {
    let new = NewPartitions::new(&spec.name, spec.partitions as usize);
    let told = block_on(admin.create_partitions([&new], &options(left(until))));
    single(told).map_err(|code| refused(code, &format!("adding partitions to `{}`", spec.name)))?;
    await_leaders(admin, spec, until)
}

/// The spec's configuration, and that a record must lie on two of three replicas where the number was left to us.
fn wanted_config(spec: &TopicSpec, replication: u32) -> Vec<(String, String)> {
    const KEY: &str = "min.insync.replicas";
    let mut config = spec.config.clone();
    if spec.replication.is_none() && replication >= REPLICATION && !config.iter().any(|(key, _)| key == KEY) {
        config.push((KEY.to_owned(), "2".to_owned()));
    }
    config
}

/// A topic is told as created before every broker knows of it; who sends at once would be refused.
fn await_leaders(admin: &Admin, spec: &TopicSpec, until: Instant) -> Result<(), BrokerError> {
    loop {
        let metadata = admin.inner().fetch_metadata(Some(&spec.name), left(until));
        let metadata = metadata.map_err(|error| error::of(&error, &format!("waiting for `{}`", spec.name)))?;
        let led = |topic: &MetadataTopic| topic.partitions().iter().filter(|partition| partition.leader() >= 0).count();
        if metadata.topics().first().is_some_and(|topic| led(topic) >= spec.partitions as usize) {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(BrokerError::Unavailable(format!("`{}` was made, but has partitions without a leader", spec.name)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The outcome of a request about one topic; the code is missing where the client itself refused it.
fn single(told: KafkaResult<Vec<TopicResult>>) -> Result<(), Option<RDKafkaErrorCode>> {
    match told {
        Err(error) => Err(error::code_of(&error)),
        Ok(results) => results.into_iter().try_for_each(|result| result.map(|_| ()).map_err(|(_, code)| Some(code))),
    }
}

fn refused(code: Option<RDKafkaErrorCode>, what: &str) -> BrokerError {
    code.map_or_else(|| BrokerError::Invalid(format!("{what}: refused by the client")), |code| error::of_code(code, what))
}

fn shown(config: &[(String, String)]) -> String {
    let entries: Vec<String> = config.iter().map(|(key, value)| format!("`{key}={value}`")).collect();
    if entries.is_empty() { "no configuration of its own".to_owned() } else { entries.join(", ") }
}

fn too_many(spec: &TopicSpec) -> BrokerError {
    BrokerError::Invalid(format!("`{}`: {} partitions are too many", spec.name, spec.partitions))
}

fn options(deadline: Duration) -> AdminOptions {
    AdminOptions::new().request_timeout(Some(deadline)).operation_timeout(Some(deadline))
}

/// The rest of a deadline, as librdkafka takes it: between a moment and an hour.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(100), Duration::from_secs(3600))
}
