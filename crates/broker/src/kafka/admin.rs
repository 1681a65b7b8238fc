//! Topic administration (list, create, add partitions, configure) and watermarks.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use rdkafka::Offset;
use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigEntry, ConfigSource, NewPartitions, NewTopic, OwnedResourceSpecifier,
    ResourceSpecifier, TopicReplication, TopicResult,
};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::producer::{DeliveryResult, Producer as _, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;

use super::polled_producer::PolledProducer;
use super::reconnect::Reconnect;
use super::settings::Settings;
use super::{SilentContext, check_topic, error, list, native};
use crate::{BrokerError, Partition, TopicChange, TopicInfo, TopicOutcome, TopicSpec, Watermarks};

/// Replication factor of a new topic in a cluster with at least as many brokers.
const REPLICATION: u32 = 3;

/// Maximum age of a client error that is reported as the cause of a failure.
const MAX_ERROR_AGE: Duration = Duration::from_secs(60);

/// Metadata and administration of the cluster.
pub(super) struct Cluster {
    settings: Settings,
    /// A producer that never sends: the lightest client that serves its own events.
    client: PolledProducer<LastError>,
    reconnect: Reconnect,
}

impl Cluster {
    pub(super) fn new(settings: Settings) -> Result<Self, BrokerError> {
        let client = PolledProducer::new(&settings.admin(), LastError::default())?;
        let reconnect = Reconnect::new(settings.servers());
        Ok(Self { settings, client, reconnect })
    }

    pub(super) fn topics(&self, prefix: &str, deadline: Duration) -> Result<Vec<TopicInfo>, BrokerError> {
        let until = Instant::now() + deadline;
        let metadata = self.metadata(None, "listing topics", until)?;
        let mut infos: Vec<TopicInfo> =
            metadata.topics().iter().filter(|topic| topic.name().starts_with(prefix)).map(topic_info).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<&str> = infos.iter().map(|topic| topic.name.as_str()).collect();
        let mut configs = configs(&self.admin()?, &names, left(until))?;
        for topic in &mut infos {
            (topic.config, topic.inherited) = configs.remove(&topic.name).unwrap_or_default();
        }
        Ok(infos)
    }

    pub(super) fn watermarks(&self, partition: &Partition, deadline: Duration) -> Result<Watermarks, BrokerError> {
        check_topic(&partition.topic)?;
        let result = self.client.client().fetch_watermarks(&partition.topic, partition.index, deadline);
        let (first, end) = result.map_err(|error| {
            self.after_failure(error::of(&error, &format!("fetching the watermarks of {partition}")))
        })?;
        Ok(Watermarks { low: first, high: end })
    }

    /// Resolves a logical offset of many partitions.
    pub(super) fn list_offsets(
        &self,
        partitions: &[Partition],
        offset: Offset,
        isolation: native::Isolation,
        deadline: Duration,
    ) -> Result<Vec<Option<i64>>, BrokerError> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let requested = list(partitions.iter().map(|partition| (partition, offset)))?;
        let listed = native::list_offsets(self.client.client(), &requested, isolation, deadline);
        let entries = listed.map_err(|native::AdminError { code, text }| {
            self.after_failure(error::classified(code, format!("listing the offsets of partitions: {text}")))
        })?;
        let valid = entries.into_iter().filter(|entry| entry.error == RDKafkaErrorCode::NoError && entry.offset >= 0);
        let offsets: BTreeMap<Partition, i64> = valid.map(|entry| (entry.partition, entry.offset)).collect();
        Ok(partitions.iter().map(|partition| offsets.get(partition).copied()).collect())
    }

    pub(super) fn apply_topics(
        &self,
        specs: &[TopicSpec],
        deadline: Duration,
    ) -> Result<Vec<TopicOutcome>, BrokerError> {
        let until = Instant::now() + deadline;
        let metadata = self.metadata(None, "listing topics", until)?;
        let existing: BTreeMap<String, TopicInfo> =
            metadata.topics().iter().map(|topic| (topic.name().to_owned(), topic_info(topic))).collect();
        let change =
            TopicChanges { cluster: self, admin: self.admin()?, brokers: metadata.brokers().len() as u32, until };
        Ok(specs
            .iter()
            .map(|spec| {
                let change = change.apply(spec, existing.get(&spec.name)).unwrap_or_else(TopicChange::Failed);
                TopicOutcome { name: spec.name.clone(), change }
            })
            .collect())
    }

    /// Deletes topics by prefix, for benchmarks and tests.
    pub(super) fn delete_topics(&self, prefix: &str, deadline: Duration) -> Result<(), BrokerError> {
        let until = Instant::now() + deadline;
        let topics = self.topics(prefix, deadline)?;
        let names: Vec<&str> = topics.iter().map(|topic| topic.name.as_str()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let result = block_on(self.admin()?.delete_topics(&names, &options(left(until))));
        result.map(drop).map_err(|error| error::of(&error, "deleting topics"))
    }

    fn admin(&self) -> Result<Admin, BrokerError> {
        let mut config = self.settings.admin();
        config.set_log_level(RDKafkaLogLevel::Emerg);
        config.create_with_context(SilentContext).map_err(|error| error::of(&error, "[kafka]"))
    }

    fn metadata(&self, topic: Option<&str>, operation: &str, until: Instant) -> Result<Metadata, BrokerError> {
        self.client
            .client()
            .fetch_metadata(topic, left(until))
            .map_err(|error| self.after_failure(error::of(&error, operation)))
    }

    /// Lets the client connect again if it has lost all brokers, and adds its last error to an outage.
    pub(super) fn after_failure(&self, error: BrokerError) -> BrokerError {
        self.reconnect.check(self.client.client());
        match (error, self.client.context().recent()) {
            (BrokerError::Unavailable(text), Some((code, reason))) => {
                error::classified(code, format!("{text}: {reason}"))
            }
            (error, _) => error,
        }
    }
}

/// The client's last error.
#[derive(Default)]
struct LastError(Mutex<Option<(Instant, RDKafkaErrorCode, String)>>);

impl LastError {
    fn recent(&self) -> Option<(RDKafkaErrorCode, String)> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, code, reason) = last.as_ref()?;
        (at.elapsed() < MAX_ERROR_AGE).then(|| (*code, reason.clone()))
    }
}

impl ClientContext for LastError {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }
    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error::code_of(&error).unwrap_or(RDKafkaErrorCode::Fail);
        if code != RDKafkaErrorCode::AllBrokersDown {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), code, reason.to_owned()));
        }
    }
}

impl ProducerContext for LastError {
    type DeliveryOpaque = ();
    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

type Admin = AdminClient<SilentContext>;

fn topic_info(topic: &MetadataTopic) -> TopicInfo {
    let replication = topic.partitions().iter().map(|partition| partition.replicas().len()).max().unwrap_or(0);
    TopicInfo {
        name: topic.name().to_owned(),
        partitions: topic.partitions().len() as u32,
        replication: replication as u32,
        config: Vec::new(),
        inherited: Vec::new(),
    }
}

type Entries = Vec<(String, String)>;

/// Returns the configuration entries set on the topics themselves, and those that they inherit.
fn configs(
    admin: &Admin,
    topics: &[&str],
    deadline: Duration,
) -> Result<BTreeMap<String, (Entries, Entries)>, BrokerError> {
    if topics.is_empty() {
        return Ok(BTreeMap::new());
    }
    let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
    let result = block_on(admin.describe_configs(&resources, &options(deadline)));
    let result = result.map_err(|error| error::of(&error, "reading the configuration of topics"))?;
    Ok(result
        .into_iter()
        .flatten()
        .filter_map(|resource| match resource.specifier {
            OwnedResourceSpecifier::Topic(name) => {
                let (of_topic, inherited): (Vec<_>, Vec<_>) =
                    resource.entries.into_iter().partition(|entry| entry.source == ConfigSource::DynamicTopic);
                let with_values = |entries: Vec<ConfigEntry>| {
                    entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?))).collect()
                };
                Some((name, (with_values(of_topic), with_values(inherited))))
            }
            _ => None,
        })
        .collect())
}

/// State of one `apply_topics` call.
struct TopicChanges<'a> {
    cluster: &'a Cluster,
    admin: Admin,
    brokers: u32,
    until: Instant,
}

impl TopicChanges<'_> {
    fn apply(&self, spec: &TopicSpec, existing: Option<&TopicInfo>) -> Result<TopicChange, BrokerError> {
        check_topic(&spec.name)?;
        match existing {
            Some(info) => self.alter(spec, info),
            None => self.create(spec),
        }
    }

    fn create(&self, spec: &TopicSpec) -> Result<TopicChange, BrokerError> {
        let replication = spec.replication.unwrap_or(REPLICATION.min(self.brokers.max(1)));
        let config = desired_config(spec, replication);
        let count = i32::try_from(spec.partitions).map_err(|_| too_many(spec))?;
        let mut new = NewTopic::new(&spec.name, count, TopicReplication::Fixed(replication as i32));
        new.config = config.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        match single(block_on(self.admin.create_topics([&new], &options(left(self.until))))) {
            Ok(()) => self.await_leaders(spec).map(|()| TopicChange::Created),
            // Another process created it first.
            Err(TopicError { code: Some(RDKafkaErrorCode::TopicAlreadyExists), .. }) => {
                let metadata = self.cluster.metadata(Some(&spec.name), "listing topics", self.until)?;
                let info = metadata.topics().first().map(topic_info);
                info.map_or(Ok(TopicChange::Unchanged), |info| self.alter(spec, &info))
            }
            Err(error) => {
                Err(error.into_broker_error(&format!("creating `{}` with {}", spec.name, config_text(&config))))
            }
        }
    }

    fn alter(&self, spec: &TopicSpec, info: &TopicInfo) -> Result<TopicChange, BrokerError> {
        let mut changes = Vec::new();
        if info.partitions < spec.partitions {
            self.grow(spec)?;
            changes.push(format!("partitions {} → {}", info.partitions, spec.partitions));
        }
        let mut present = configs(&self.admin, &[&spec.name], left(self.until))?;
        let (existing, _) = present.remove(&spec.name).unwrap_or_default();
        let mut missing = desired_config(spec, info.replication);
        missing.retain(|entry| !existing.contains(entry));
        if !missing.is_empty() {
            native::set_topic_config(self.cluster.client.client(), &spec.name, &missing, left(self.until)).map_err(
                |native::AdminError { code, text }| {
                    error::classified(code, format!("configuring `{}`: {text}", spec.name))
                },
            )?;
            changes.extend(missing.iter().map(|(key, value)| format!("{key}={value}")));
        }
        Ok(if changes.is_empty() { TopicChange::Unchanged } else { TopicChange::Altered(changes) })
    }

    fn grow(&self, spec: &TopicSpec) -> Result<(), BrokerError> {
        let new = NewPartitions::new(&spec.name, spec.partitions as usize);
        single(block_on(self.admin.create_partitions([&new], &options(left(self.until)))))
            .map_err(|error| error.into_broker_error(&format!("adding partitions to `{}`", spec.name)))?;
        self.await_leaders(spec)
    }

    /// Waits until every partition has a leader. Kafka reports a topic as created before all brokers have its
    /// metadata, and rejects sends until then.
    fn await_leaders(&self, spec: &TopicSpec) -> Result<(), BrokerError> {
        loop {
            let metadata =
                self.cluster.metadata(Some(&spec.name), &format!("waiting for `{}`", spec.name), self.until)?;
            let led =
                |topic: &MetadataTopic| topic.partitions().iter().filter(|partition| partition.leader() >= 0).count();
            if metadata.topics().first().is_some_and(|topic| led(topic) >= spec.partitions as usize) {
                return Ok(());
            }
            if Instant::now() >= self.until {
                let text = format!("`{}` was created, but some of its partitions have no leader yet", spec.name);
                return Err(BrokerError::Unavailable(text));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the spec's configuration, plus `min.insync.replicas` if kafleet chose the replication factor.
fn desired_config(spec: &TopicSpec, replication: u32) -> Vec<(String, String)> {
    const KEY: &str = "min.insync.replicas";
    let mut config = spec.config.clone();
    if spec.replication.is_none() && replication >= REPLICATION && !config.iter().any(|(key, _)| key == KEY) {
        config.push((KEY.to_owned(), "2".to_owned()));
    }
    config
}

/// Error of a request about one topic. `code` is missing if the client itself rejected the request.
struct TopicError {
    code: Option<RDKafkaErrorCode>,
    text: String,
}

impl TopicError {
    fn into_broker_error(self, operation: &str) -> BrokerError {
        let Self { code, text } = self;
        code.map_or_else(
            || BrokerError::Invalid(format!("{operation}: {text}")),
            |code| error::of_code(code, operation),
        )
    }
}

fn single(result: KafkaResult<Vec<TopicResult>>) -> Result<(), TopicError> {
    let results = result.map_err(|error| TopicError { code: error::code_of(&error), text: error.to_string() })?;
    results.into_iter().try_for_each(|result| match result {
        Ok(_) => Ok(()),
        Err((_, code)) => Err(TopicError { code: Some(code), text: String::new() }),
    })
}

fn config_text(config: &[(String, String)]) -> String {
    let entries: Vec<String> = config.iter().map(|(key, value)| format!("`{key}={value}`")).collect();
    if entries.is_empty() { "no configuration of its own".to_owned() } else { entries.join(", ") }
}

fn too_many(spec: &TopicSpec) -> BrokerError {
    BrokerError::Invalid(format!("`{}`: {} partitions are too many", spec.name, spec.partitions))
}

fn options(deadline: Duration) -> AdminOptions {
    AdminOptions::new().request_timeout(Some(deadline)).operation_timeout(Some(deadline))
}

/// Returns the remaining time within librdkafka's limits: at least 100 ms and at most an hour.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(100), Duration::from_secs(3600))
}
