//! `[topics]`: prefix, partitions and retention of topics.

use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checks::positive;
use super::document::Document;
use super::shape::{UnlocatedProblem, bad_value};

const MAX_PREFIX_CHARS: usize = 64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TopicsConfig {
    /// Prefix of all topics and Redis keys.
    pub prefix: String,
    /// Partitions of the events topic. Fixed once topics are applied.
    #[schemars(range(min = 1, max = 1024))]
    pub events_partitions: u32,
    /// Partitions of a task topic, unless the type sets its own.
    #[schemars(range(min = 1, max = 1024))]
    pub task_partitions: u32,
    /// Replication factor. Default: 3, or the number of brokers if that is smaller.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 15))]
    pub replication: Option<u32>,
    /// Retention of task topics.
    pub task_retention: Millis,
    /// Retention of dead letters.
    pub dead_retention: Millis,
    /// Maximum age of an open tree.
    pub max_tree_age: Millis,
    /// Retention of the records of finished trees.
    pub record_retention: Millis,
    /// Interval at which every role checks its topics and their settings.
    pub check_interval: Millis,
    /// Topics that tasks may name in `reply_to`: names, or beginnings followed by `*`. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reply_to: Vec<String>,
}

impl Default for TopicsConfig {
    fn default() -> Self {
        const DAY: u64 = 86_400;
        Self {
            prefix: "kafleet".into(),
            events_partitions: 16,
            task_partitions: 8,
            replication: None,
            task_retention: Millis::secs(30 * DAY),
            dead_retention: Millis::secs(90 * DAY),
            max_tree_age: Millis::secs(30 * DAY),
            record_retention: Millis::secs(7 * DAY),
            check_interval: Millis::secs(60),
            reply_to: Vec::new(),
        }
    }
}

pub(super) fn problems(document: &Document, topics: &TopicsConfig) -> Vec<UnlocatedProblem> {
    let mut problems = positive(
        document,
        "/topics",
        [
            ("task_retention", Some(topics.task_retention)),
            ("dead_retention", Some(topics.dead_retention)),
            ("max_tree_age", Some(topics.max_tree_age)),
            ("record_retention", Some(topics.record_retention)),
            ("check_interval", Some(topics.check_interval)),
        ],
    );
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let good = (1..=MAX_PREFIX_CHARS).contains(&topics.prefix.len())
        && topics.prefix.bytes().all(allowed)
        && !topics.prefix.starts_with('.');
    if !good {
        let rule = format!("a prefix: 1 to {MAX_PREFIX_CHARS} characters of A-Z a-z 0-9 . _ -, not beginning with `.`");
        problems.push(bad_value(document, "/topics/prefix", &rule));
    }
    let is_topic = |name: &str| (1..=249).contains(&name.len()) && name.bytes().all(allowed);
    for (n, pattern) in topics.reply_to.iter().enumerate() {
        let beginning = pattern.strip_suffix('*').unwrap_or(pattern);
        if !is_topic(beginning) || beginning.starts_with(&format!("{}.", topics.prefix)) {
            let rule = format!(
                "a topic outside of `{}.*`, or the beginning of one followed by `*`, such as `shop.replies` or `team-*`",
                topics.prefix
            );
            problems.push(bad_value(document, &format!("/topics/reply_to/{n}"), &rule));
        }
    }
    problems
}
