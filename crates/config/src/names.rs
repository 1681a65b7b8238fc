//! Names of topics, consumer groups and transactional ids.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafleet_model::task::id::{MAX_TYPE_CHARS, clip};

use super::Config;

/// Names under a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub prefix: String,
    groups: Arc<TypeGroups>,
    /// Topics that tasks may name for replies: names, or beginnings followed by `*`.
    reply_to: Arc<[String]>,
}

/// Consumer groups that types share, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeGroups {
    /// `[types.<name>] group`.
    pub by_type: BTreeMap<String, String>,
    /// `[worker] group`, for types that name none.
    pub default: Option<String>,
}

/// Beginning of the names of the groups of apps.
const APP_GROUP: &str = "app-";

/// Returns the name of the consumer group of an app's types that name no other. Groups have names like types: other
/// characters become `-`.
pub fn app_group(app: &str) -> String {
    let lower = app.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
    APP_GROUP.chars().chain(lower).take(MAX_TYPE_CHARS).collect()
}

impl TypeGroups {
    /// Returns the groups of a configuration.
    pub fn of(config: &Config) -> Self {
        let named = config.types.iter().filter_map(|(name, kind)| Some((name.clone(), kind.group.clone()?)));
        Self { by_type: named.collect(), default: config.worker.group.clone() }
    }

    /// Names of all groups, without those of a single type.
    pub fn shared(&self) -> impl Iterator<Item = &str> {
        let named = self.by_type.iter().filter(|(task_type, group)| task_type != group).map(|(_, group)| group);
        named.chain(&self.default).map(String::as_str)
    }
}

impl Names {
    /// Names of a fleet whose types have groups of their own.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), groups: Arc::default(), reply_to: Arc::default() }
    }
    /// Names of a configuration.
    pub fn of(config: &Config) -> Self {
        let reply_to = config.topics.reply_to.as_slice();
        Self::new(&config.topics.prefix).with_groups(TypeGroups::of(config)).with_reply_topics(reply_to)
    }
    pub fn with_groups(self, groups: TypeGroups) -> Self {
        Self { groups: Arc::new(groups), ..self }
    }
    /// Assigns a type that names no group to this group, if it is the group of an app: the configuration does not list the
    /// types of an app.
    pub fn with_app_group(self, task_type: &str, group: &str) -> Self {
        if !group.starts_with(APP_GROUP) || self.group_name(task_type) != task_type {
            return self;
        }
        let mut groups = TypeGroups::clone(&self.groups);
        groups.by_type.insert(task_type.to_owned(), group.to_owned());
        self.with_groups(groups)
    }
    /// Sets the topics that tasks may name for replies.
    pub fn with_reply_topics(self, patterns: &[String]) -> Self {
        Self { reply_to: patterns.into(), ..self }
    }
    /// Refuses topics that tasks may not name for replies: those that are not configured, and the fleet's own.
    pub fn check_reply_topic(&self, topic: &str) -> Result<(), String> {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => topic.starts_with(beginning),
            None => topic == pattern,
        };
        if topic.starts_with(&self.topics()) {
            return Err(format!("`{}` is a topic of kafleet itself: replies need a topic of their own", clip(topic)));
        }
        if self.reply_to.iter().any(fits) {
            return Ok(());
        }
        let allowed = match &*self.reply_to {
            [] => "none".to_owned(),
            some => some.iter().map(|pattern| format!("`{pattern}`")).collect::<Vec<_>>().join(", "),
        };
        Err(format!("`{}` is not allowed for replies; `topics.reply_to` allows: {allowed}", clip(topic)))
    }
    pub fn groups(&self) -> &TypeGroups {
        &self.groups
    }
    /// Common prefix of all topics of the fleet. The separator excludes fleets whose prefix begins with this one.
    pub fn topics(&self) -> String {
        format!("{}.", self.prefix)
    }
    pub fn tasks(&self, task_type: &str) -> String {
        format!("{}.tasks.{task_type}", self.prefix)
    }
    pub fn results(&self, task_type: &str) -> String {
        format!("{}.results.{task_type}", self.prefix)
    }
    pub fn dead(&self, task_type: &str) -> String {
        format!("{}.dead.{task_type}", self.prefix)
    }
    pub fn events(&self) -> String {
        format!("{}.events", self.prefix)
    }
    pub fn control(&self) -> String {
        format!("{}.control", self.prefix)
    }
    pub fn workers(&self) -> String {
        format!("{}.workers", self.prefix)
    }
    /// Compacted topic with the markers of outboxes.
    pub fn outbox(&self) -> String {
        format!("{}.outbox", self.prefix)
    }
    /// Transactional id of the relay of an outbox.
    pub fn outbox_sender(&self, identity: impl std::fmt::Display) -> String {
        format!("{}.outbox.{identity}", self.prefix)
    }
    /// Configured name of a type's consumer group: the type's own name, unless it shares a group.
    pub fn group_name<'a>(&'a self, task_type: &'a str) -> &'a str {
        let named = self.groups.by_type.get(task_type).or(self.groups.default.as_ref());
        named.map_or(task_type, String::as_str)
    }
    /// Consumer group of a type's workers, as configured.
    pub fn group(&self, task_type: &str) -> String {
        self.group_id(task_type, self.group_name(task_type))
    }
    /// Id of a type's consumer group in Kafka: like its topic, or the shared group of this name.
    pub fn group_id(&self, task_type: &str, group_name: &str) -> String {
        if group_name == task_type { self.tasks(task_type) } else { format!("{}.group.{group_name}", self.prefix) }
    }
    pub fn tracker_group(&self) -> String {
        format!("{}.tracker", self.prefix)
    }
    pub fn announcer_group(&self) -> String {
        format!("{}.announcer", self.prefix)
    }
    /// Transactional id of an API process.
    pub fn api_sender(&self, process: &str) -> String {
        format!("{}.api.{process}", self.prefix)
    }
    /// Returns the type of a dead-letter topic.
    pub fn type_of_dead<'a>(&self, topic: &'a str) -> Option<&'a str> {
        topic.strip_prefix(&self.prefix)?.strip_prefix(".dead.")
    }
    /// Returns the type of a task topic.
    pub fn type_of<'a>(&self, topic: &'a str) -> Option<&'a str> {
        topic.strip_prefix(&self.prefix)?.strip_prefix(".tasks.")
    }
}
