//! Learner of the adaptive limits, one for the fleet: reads what the workers have counted under the present limit of a type in
//! their heartbeats, and writes the next one to the control topic. Runs in the tracker that owns events partition 0. A
//! fleet without such types costs it a look at the heartbeats.
//!
//! Invariant: the limit, its round and the last cut are in the record, so that the next owner continues. Two owners for a
//! moment may both write; the later record counts, and workers begin new counts with it.
//!
//! Read next: `crates/model/src/adaptive/mod.rs` (the rule).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet_fleet::control::follow::TopicFollower;
use kafleet_fleet::control::{
    AdaptiveRecord, CONTROL_VERSION, ControlKey, ControlRecord, ControlState, ControlWatch, follow_control, put_record,
};
use kafleet_model::adaptive::{AdaptiveBounds, AdaptiveLimit, RoundCounts};
use kafleet_model::worker_status::TypeStatus;
use kafleet_runtime::now_ms;
use tokio_util::sync::CancellationToken;

use crate::error::TrackerError;
use crate::setup::{READ_DEADLINE, TrackerSetup};
use crate::upkeep::ticker::TrackerShared;

/// Interval of decisions: that of the heartbeats.
const DECISION_INTERVAL: Duration = Duration::from_secs(3);

pub(crate) struct AdaptiveLearner {
    setup: Arc<TrackerSetup>,
    shared: Arc<TrackerShared>,
    stop: CancellationToken,
    /// Control topic, followed once a worker has reported an adaptive limit.
    control: Option<(Arc<ControlWatch>, TopicFollower)>,
}

/// Counts of a type over the live workers.
struct TypeCounts {
    bounds: AdaptiveBounds,
    workers: Vec<RoundCounts>,
}

impl AdaptiveLearner {
    pub(crate) fn new(setup: Arc<TrackerSetup>, shared: Arc<TrackerShared>, stop: CancellationToken) -> Self {
        Self { setup, shared, stop, control: None }
    }

    /// Runs until the session of the partition task ends.
    pub(crate) async fn run(mut self) {
        let stop = self.stop.clone();
        let work = async {
            loop {
                tokio::time::sleep(DECISION_INTERVAL).await;
                if let Err(error) = self.decide().await {
                    tracing::warn!(reason = %error, "cannot decide about adaptive limits; the present ones stay");
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    async fn decide(&mut self) -> Result<(), TrackerError> {
        let types = counts_by_type(&self.shared.live_statuses());
        if types.is_empty() {
            return Ok(());
        }
        let names = &self.setup.topology.names;
        let (control, _) = self.control.get_or_insert_with(|| {
            let control = ControlWatch::new(ControlState::without_task_commands());
            let follower = follow_control(control.clone(), self.setup.broker.clone(), names, None);
            (control, follower)
        });
        control.wait_until_read_within(READ_DEADLINE, names).await?;
        for (task_type, counts) in types {
            let present = control.state().adaptives.get(&task_type).map(|record| record.learned.clone());
            let next = match &present {
                None => Some(AdaptiveLimit::first(counts.bounds)),
                Some(present) => present.decide(counts.bounds, &counts.workers, now_ms()),
            };
            let Some(learned) = next else { continue };
            if let Some(cut) =
                learned.cut.as_ref().filter(|cut| present.is_none_or(|old| old.cut.as_ref() != Some(*cut)))
            {
                tracing::info!(%task_type, limit = learned.limit, reason = %cut.reason, "adaptive limit cut");
            }
            let record = AdaptiveRecord { v: CONTROL_VERSION, at_ms: now_ms(), learned };
            let producer = self.shared.producer(&self.setup).await?;
            put_record(producer, names, &ControlKey::Adaptive(task_type), &ControlRecord::Adaptive(record)).await?;
        }
        Ok(())
    }
}

/// Counts of the types whose limit is learned. An operator's limit is not.
fn counts_by_type(statuses: &[TypeStatus]) -> BTreeMap<String, TypeCounts> {
    let mut types = BTreeMap::<String, TypeCounts>::new();
    for status in statuses {
        let Some(adaptive) = status.adaptive.as_ref().filter(|adaptive| !adaptive.fixed) else { continue };
        let min = f64::from(adaptive.min);
        let target_ms = adaptive.target_ms.map(|target| target as f64);
        let first = || TypeCounts { bounds: AdaptiveBounds { min, max: 0.0, target_ms }, workers: Vec::new() };
        let counts = types.entry(status.task_type.clone()).or_insert_with(first);
        // Workers may differ while a new configuration is rolled out.
        counts.bounds.min = counts.bounds.min.min(min);
        counts.bounds.max += f64::from(status.slots);
        // A worker without partitions has no share.
        if !status.partitions.is_empty() {
            counts.workers.push(adaptive.counts);
        }
    }
    for counts in types.values_mut() {
        counts.bounds.max = counts.bounds.max.max(counts.bounds.min);
    }
    types
}

#[cfg(test)]
mod tests {
    use kafleet_model::worker_status::AdaptiveStatus;

    use super::*;

    #[test]
    fn bounds_are_those_of_all_live_workers() {
        let status = |task_type: &str, slots, fixed, partitions: &[i32]| TypeStatus {
            task_type: task_type.to_owned(),
            slots,
            partitions: partitions.to_vec(),
            adaptive: Some(AdaptiveStatus { min: 2, fixed, ..AdaptiveStatus::default() }),
            ..TypeStatus::default()
        };
        let plain = TypeStatus { task_type: "plain".into(), slots: 4, ..TypeStatus::default() };
        let statuses = [status("a", 8, false, &[0]), status("a", 8, false, &[]), status("b", 1, true, &[0]), plain];
        let types = counts_by_type(&statuses);
        assert_eq!(types.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(types["a"].bounds, AdaptiveBounds { min: 2.0, max: 16.0, target_ms: None });
        assert_eq!(types["a"].workers.len(), 1);
    }
}
