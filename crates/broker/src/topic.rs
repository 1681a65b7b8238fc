//! Topics: as they exist, as they are wanted, and what a change did.

use super::BrokerError;

/// A topic as it exists in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    pub name: String,
    pub partitions: u32,
    pub replication: u32,
    /// Configuration entries that differ from the broker's defaults, or that were set with a [`TopicSpec`].
    pub config: Vec<(String, String)>,
    /// Entries that are not set on the topic, with the defaults of the cluster.
    pub inherited: Vec<(String, String)>,
}

impl TopicInfo {
    /// Returns the effective value of a configuration entry, if it is known.
    pub fn setting(&self, key: &str) -> Option<&str> {
        let mut settings = self.config.iter().chain(&self.inherited);
        settings.find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Returns false if the configuration could not be read, for want of a permission, or if nothing is set.
    pub fn has_known_settings(&self) -> bool {
        !self.config.is_empty() || !self.inherited.is_empty()
    }
}

/// The desired state of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSpec {
    pub name: String,
    pub partitions: u32,
    /// `None`: min(3, number of brokers), with `min.insync.replicas=2` for 3 replicas.
    pub replication: Option<u32>,
    pub config: Vec<(String, String)>,
}

/// The result of applying a [`TopicSpec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicOutcome {
    pub name: String,
    pub change: TopicChange,
}

/// A change made to a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicChange {
    Created,
    /// Descriptions of the changes, such as `partitions 3 → 6`.
    Altered(Vec<String>),
    Unchanged,
    Failed(BrokerError),
}
