//! Dependencies and settings shared by all parts of the tracker.

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::Broker;
use kafleet_config::{TopicsConfig, Topology, TrackerConfig};
use kafleet_model::retention::Lifetimes;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::Health;
use kafleet_store::Store;
use kafleet_telemetry::{Metrics, Tracer};

/// Deadline for reading the control topic, which another client's open transaction may delay.
pub const READ_DEADLINE: Duration = Duration::from_secs(60);

/// Dependencies and settings of a tracker.
pub struct TrackerSetup {
    pub broker: Arc<dyn Broker>,
    pub store: Arc<dyn Store>,
    pub config: TrackerConfig,
    /// Retention of trees and records, published to the log if it differs from the values there.
    pub lifetimes: Lifetimes,
    /// Retention of tasks in Kafka (`topics.task_retention`).
    pub task_retention: Millis,
    /// Interval of topic checks (`topics.check_interval`).
    pub topic_check: Millis,
    pub topology: Topology,
    pub metrics: Metrics,
    /// `None`: nothing is traced.
    pub tracer: Option<Tracer>,
    pub health: Health,
}

impl TrackerSetup {
    /// Tracker with the default configuration and no traces.
    pub fn new(broker: Arc<dyn Broker>, store: Arc<dyn Store>, topology: Topology, metrics: Metrics) -> Self {
        let topics = TopicsConfig::default();
        Self {
            broker,
            store,
            config: TrackerConfig::default(),
            lifetimes: Lifetimes::default(),
            task_retention: topics.task_retention,
            topic_check: topics.check_interval,
            topology,
            metrics,
            tracer: None,
            health: Health::default(),
        }
    }
}
