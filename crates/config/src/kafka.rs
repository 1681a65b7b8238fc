//! `[kafka]`: settings of librdkafka, except those that kafleet sets itself.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checks::is_server;
use super::document::{Document, join};
use super::shape::{UnlocatedProblem, bad_value};

/// A string, an integer, a number, or `true`/`false`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scalar {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

/// Formats a value as librdkafka expects it.
impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(flag) => flag.fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// Keys of `[kafka]` that cannot be set, with the reason.
const RESERVED: [(&str, &str); 18] = [
    ("metadata.broker.list", "write `bootstrap.servers`"),
    ("group.id", "groups are named after the topics prefix and the type"),
    ("enable.auto.commit", "offsets are committed when results are acknowledged, not periodically"),
    ("auto.commit.interval.ms", "offsets are committed when results are acknowledged; see `worker.commit_interval`"),
    ("auto.commit.enable", "offsets are committed when results are acknowledged, not periodically"),
    ("enable.auto.offset.store", "offsets are committed when results are acknowledged"),
    ("auto.offset.reset", "a consumer without a valid offset must stop, not skip records"),
    ("isolation.level", "each consumer sets its own"),
    ("partition.assignment.strategy", "workers rely on cooperative-sticky"),
    ("enable.partition.eof", "it changes the events that consumers receive"),
    ("transactional.id", "each events partition has its own"),
    ("transaction.timeout.ms", "it bounds how long a dead tracker blocks consumers"),
    ("enable.idempotence", "it is always on, so that a repeated send writes no duplicate"),
    ("acks", "a record counts as written when all in-sync replicas have it"),
    ("request.required.acks", "a record counts as written when all in-sync replicas have it"),
    ("partitioner", "it is murmur2_random, as in Java, so that all producers agree on the partition of a key"),
    ("allow.auto.create.topics", "topics are created by `kafleet topics apply`"),
    ("queued.max.messages.kbytes", "see `worker.memory_limit`"),
];

pub(super) fn problems(document: &Document, kafka: &BTreeMap<String, Scalar>) -> Vec<UnlocatedProblem> {
    let reserved = |(key, error): &(&str, &str)| {
        kafka.contains_key(*key).then(|| {
            let message = format!("`{key}` in `[kafka]` belongs to kafleet and cannot be set: {error}");
            UnlocatedProblem::new(join("/kafka", key), message).hint("remove it")
        })
    };
    let mut problems: Vec<_> = RESERVED.iter().filter_map(reserved).collect();
    if let Some(servers) = kafka.get("bootstrap.servers") {
        let good = matches!(servers, Scalar::Text(text) if text.split(',').all(|server| is_server(server.trim())));
        let bad =
            || bad_value(document, "/kafka/bootstrap.servers", "a list of brokers such as `kafka-1:9092,kafka-2:9092`");
        problems.extend((!good).then(bad));
    }
    problems
}
