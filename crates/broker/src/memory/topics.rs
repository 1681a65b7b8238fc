//! Topics: configuration and choice of the partition.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_model::task::partition::partition_of;

use super::MemoryBrokerOptions;
use super::log::{PartitionLog, RecordContents};
use crate::{BrokerError, Partition, TopicChange, TopicInfo, TopicSpec};

const MAX_PARTITIONS: u32 = 10_000;
const DAY_MS: i64 = 24 * 3600 * 1000;

#[derive(Debug, Default)]
pub(super) struct MemoryTopic {
    pub logs: Vec<PartitionLog>,
    config: BTreeMap<String, String>,
    pub log_config: LogConfig,
    /// Partition of the next record without a key.
    next: u32,
}

/// Configuration that affects the log. Other keys are stored and listed without effect.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogConfig {
    pub log_append_time: bool,
    pub max_message_bytes: usize,
    pub compact: bool,
    /// Retention time; `None`: unlimited.
    pub retention_ms: Option<i64>,
    pub delete_retention_ms: i64,
}

impl Default for LogConfig {
    fn default() -> Self {
        let retention_ms = Some(7 * DAY_MS);
        Self {
            log_append_time: true,
            max_message_bytes: 1_048_588,
            compact: false,
            retention_ms,
            delete_retention_ms: DAY_MS,
        }
    }
}

impl LogConfig {
    fn parse(config: &BTreeMap<String, String>) -> Result<Self, BrokerError> {
        let mut log_config = Self::default();
        for (key, value) in config {
            match key.as_str() {
                "message.timestamp.type" => log_config.log_append_time = parse_timestamp_type(value)?,
                "max.message.bytes" => log_config.max_message_bytes = parse_number(key, value)?,
                "delete.retention.ms" => log_config.delete_retention_ms = parse_number(key, value)?,
                "retention.ms" => log_config.retention_ms = parse_retention(key, value)?,
                "cleanup.policy" => log_config.compact = parse_policy(value)?,
                _ => {}
            }
        }
        if config.get("cleanup.policy").is_some_and(|policy| !policy.contains("delete")) {
            log_config.retention_ms = None;
        }
        Ok(log_config)
    }
}

fn parse_timestamp_type(value: &str) -> Result<bool, BrokerError> {
    match value {
        "LogAppendTime" => Ok(true),
        "CreateTime" => Ok(false),
        _ => Err(bad_value("message.timestamp.type", value, "`CreateTime` or `LogAppendTime`")),
    }
}

/// Parses a retention time; `-1` means unlimited.
fn parse_retention(key: &str, value: &str) -> Result<Option<i64>, BrokerError> {
    if value == "-1" { Ok(None) } else { parse_number(key, value).map(Some) }
}

fn parse_policy(value: &str) -> Result<bool, BrokerError> {
    let is_policy = |word: &str| matches!(word.trim(), "compact" | "delete");
    if !value.split(',').all(is_policy) {
        return Err(bad_value("cleanup.policy", value, "`delete`, `compact` or both with a comma"));
    }
    Ok(value.contains("compact"))
}

fn parse_number<T: std::str::FromStr + PartialOrd + Default>(key: &str, value: &str) -> Result<T, BrokerError> {
    let number = value.parse().ok().filter(|number| *number >= T::default());
    number.ok_or_else(|| bad_value(key, value, "a whole number from 0 on"))
}

fn bad_value(key: &str, value: &str, allowed: &str) -> BrokerError {
    BrokerError::Invalid(format!("`{key}` cannot be `{value}`; hint: use {allowed}"))
}

impl MemoryTopic {
    pub(super) fn info(&self, name: &str) -> TopicInfo {
        TopicInfo {
            name: name.to_owned(),
            partitions: self.logs.len() as u32,
            replication: 1,
            config: self.config.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            inherited: Vec::new(),
        }
    }

    /// Returns the partition of a record.
    pub(super) fn choose_partition(
        &mut self,
        name: &str,
        partition: Option<i32>,
        key: Option<&[u8]>,
    ) -> Result<i32, BrokerError> {
        let count = self.logs.len() as u32;
        match (partition, key) {
            (Some(index), _) if usize::try_from(index).is_ok_and(|index| index < self.logs.len()) => Ok(index),
            (Some(index), _) => Err(unknown_partition(&Partition::new(name, index))),
            (None, Some(key)) => Ok(partition_of(key, count) as i32),
            (None, None) => {
                self.next = (self.next + 1) % count.max(1);
                Ok(self.next as i32)
            }
        }
    }

    /// Rejects a record that the topic's configuration does not allow.
    pub(super) fn check_record(&self, name: &str, payload: &RecordContents) -> Result<(), BrokerError> {
        let (size, limit) = (payload.len(), self.log_config.max_message_bytes);
        if size > limit {
            return Err(BrokerError::TooLarge(format!(
                "{size} bytes for `{name}`: at most {limit} are allowed (`max.message.bytes`)"
            )));
        }
        if self.log_config.compact && payload.key().is_none() {
            return Err(BrokerError::Invalid(format!("`{name}` is compacted and rejects records without a key")));
        }
        Ok(())
    }

    /// Returns whether the log of `index` has room for `more` bytes, after retention and compaction have freed space.
    pub(super) fn has_room(&mut self, index: i32, more: u64, options: &MemoryBrokerOptions, now_ms: i64) -> bool {
        let (log_config, limit) = (self.log_config, options.log_bytes_per_partition);
        let Some(log) = self.log_mut(index) else { return false };
        if let Some(retention_ms) = log_config.retention_ms.filter(|_| options.applies_retention) {
            log.expire(now_ms.saturating_sub(retention_ms));
        }
        // Compaction scans the whole log: a log full of live keys must not be scanned again for every record.
        if log.bytes + more > limit && log_config.compact && log.uncompacted_bytes() >= limit / 8 {
            log.compact(now_ms - log_config.delete_retention_ms);
        }
        log.bytes + more <= limit
    }

    pub(super) fn append(&mut self, index: i32, payload: Arc<RecordContents>, now_ms: i64, send: u64) -> i64 {
        let append_time = self.log_config.log_append_time.then_some(now_ms);
        self.log_mut(index).map_or(-1, |log| log.append(payload, append_time, send))
    }

    pub(super) fn log_mut(&mut self, index: i32) -> Option<&mut PartitionLog> {
        self.logs.get_mut(usize::try_from(index).ok()?)
    }

    /// Applies a spec; changes nothing on an error.
    fn apply(&mut self, spec: &TopicSpec) -> Result<Vec<String>, BrokerError> {
        let mut config = self.config.clone();
        let mut changes = Vec::new();
        for (key, value) in &spec.config {
            let old = config.insert(key.clone(), value.clone());
            if old.as_ref() != Some(value) {
                changes.push(format!("{key}: {} -> {value}", old.as_deref().unwrap_or("default")));
            }
        }
        self.log_config = LogConfig::parse(&config)?;
        self.config = config;
        let (current, desired) = (self.logs.len(), spec.partitions as usize);
        if current < desired {
            changes.push(format!("partitions: {current} -> {desired}"));
            self.logs.resize_with(desired, PartitionLog::default);
        }
        Ok(changes)
    }
}

pub(super) type Topics = BTreeMap<Arc<str>, MemoryTopic>;

/// Creates or alters a topic.
pub(super) fn apply(topics: &mut Topics, spec: &TopicSpec) -> TopicChange {
    if let Err(error) = check(spec) {
        return TopicChange::Failed(error);
    }
    let exists = topics.contains_key(spec.name.as_str());
    let mut new_topic = MemoryTopic::default();
    let topic = topics.get_mut(spec.name.as_str()).unwrap_or(&mut new_topic);
    match topic.apply(spec) {
        Err(error) => TopicChange::Failed(error),
        Ok(_) if !exists => {
            topics.insert(spec.name.as_str().into(), new_topic);
            TopicChange::Created
        }
        Ok(changes) if changes.is_empty() => TopicChange::Unchanged,
        Ok(changes) => TopicChange::Altered(changes),
    }
}

fn check(spec: &TopicSpec) -> Result<(), BrokerError> {
    let name = spec.name.as_str();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 249 || !name.chars().all(legal) || name == "." || name == ".." {
        let rule = "1 to 249 characters of letters, digits, `.`, `_` and `-`";
        return Err(BrokerError::Invalid(format!("`{name}` is not a valid topic name; hint: use {rule}")));
    }
    if spec.partitions == 0 || spec.partitions > MAX_PARTITIONS {
        return Err(BrokerError::Invalid(format!(
            "`{name}` cannot have {} partitions; hint: 1 to {MAX_PARTITIONS}",
            spec.partitions
        )));
    }
    Ok(())
}

pub(super) fn topic_mut<'a>(topics: &'a mut Topics, name: &str) -> Result<&'a mut MemoryTopic, BrokerError> {
    topics.get_mut(name).ok_or_else(|| unknown_topic(name))
}

pub(super) fn log<'a>(topics: &'a Topics, at: &Partition) -> Result<&'a PartitionLog, BrokerError> {
    let topic = topics.get(&at.topic).ok_or_else(|| unknown_topic(&at.topic))?;
    let index = usize::try_from(at.index).ok();
    index.and_then(|index| topic.logs.get(index)).ok_or_else(|| unknown_partition(at))
}

pub(super) fn log_mut<'a>(topics: &'a mut Topics, at: &Partition) -> Result<&'a mut PartitionLog, BrokerError> {
    let topic = topic_mut(topics, &at.topic)?;
    topic.log_mut(at.index).ok_or_else(|| unknown_partition(at))
}

pub(super) fn unknown_topic(name: &str) -> BrokerError {
    BrokerError::Unknown(format!("topic `{name}` does not exist; hint: `kafleet topics apply` creates topics"))
}

fn unknown_partition(at: &Partition) -> BrokerError {
    BrokerError::Unknown(format!("topic `{}` has no partition {}", at.topic, at.index))
}
