//! `[tracker]`: batches, caches and intervals of trackers.

use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checks::positive;
use super::document::Document;
use super::shape::UnlocatedProblem;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrackerConfig {
    /// Maximum number of events per batch.
    #[schemars(range(min = 1, max = 100_000))]
    pub batch_events: usize,
    /// Number of records cached in memory per partition.
    #[schemars(range(min = 1_000, max = 10_000_000))]
    pub cache_records: usize,
    /// Number of queued events per partition above which its consumption is paused.
    #[schemars(range(min = 1_000, max = 1_000_000))]
    pub queue_events: usize,
    /// Announce tasks published without `ce_announced`, so that they are visible as queued before a worker takes
    /// them. This reads every task topic, and is not needed if all producers announce their tasks.
    pub observe: bool,
    /// Idle time after which a partition of the events topic with records gets a `tick` event, which advances its log
    /// time: ages are measured in log time.
    pub tick: Millis,
    /// Time without a heartbeat after which a worker and its tasks are reported as silent. Default: three heartbeat
    /// intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_silent: Option<Millis>,
    /// Interval of the integrity check of each partition of the store: server settings, evictions, counters, and 250 records in turn.
    pub integrity_check_interval: Millis,
}

impl Default for TrackerConfig {
    fn default() -> Self {
        Self {
            batch_events: 1_000,
            cache_records: 4_000,
            queue_events: 5_000,
            observe: true,
            tick: Millis::secs(60),
            worker_silent: None,
            integrity_check_interval: Millis::secs(5),
        }
    }
}

pub(super) fn problems(document: &Document, tracker: &TrackerConfig) -> Vec<UnlocatedProblem> {
    let intervals = [
        ("tick", Some(tracker.tick)),
        ("worker_silent", tracker.worker_silent),
        ("integrity_check_interval", Some(tracker.integrity_check_interval)),
    ];
    positive(document, "/tracker", intervals)
}
