//! Sends start offsets to running workers: Kafka accepts no other commits while their group has members.

use std::time::Duration;

use kafleet_broker::BrokerClient;
use kafleet_config::Names;
use kafleet_fleet::control::{self, CONTROL_VERSION, ControlKey, ControlRecord, ControlState, ControlWatch, Offsets};
use kafleet_runtime::now_ms;

use super::OffsetChange;
use crate::cli::exit::{Code, Failure};
use crate::cli::setup::CALL_DEADLINE;

/// Time for the workers to apply the offsets.
const APPLY_DEADLINE: Duration = Duration::from_secs(20);

/// Writes a start offset for each partition to the control topic and waits until workers have applied it, which removes
/// the record. Records that are not applied in time are withdrawn and reported as an error.
pub(super) async fn apply(
    client: &BrokerClient,
    names: &Names,
    task_type: &str,
    changes: &[OffsetChange],
) -> Result<(), Failure> {
    let producer = client.shared_producer(None).await.map_err(Failure::failed)?;
    let watch = ControlWatch::new(ControlState::without_task_commands());
    let _keeping = control::follow_control(watch.clone(), client.broker().clone(), names, None);
    watch.wait_until_read_within(CALL_DEADLINE, names).await.map_err(Failure::unavailable)?;
    let key = |change: &OffsetChange| ControlKey::Offsets(task_type.to_owned(), change.partition);
    let mut last = 0;
    for change in changes {
        let record = ControlRecord::Offsets(Offsets { v: CONTROL_VERSION, at_ms: now_ms(), offset: change.now });
        last = control::put_record(&producer, names, &key(change), &record).await.map_err(Failure::unavailable)?.offset;
    }
    let pending = || -> Vec<&OffsetChange> {
        let control = watch.state();
        changes
            .iter()
            .filter(|change| control.offsets.contains_key(&(task_type.to_owned(), change.partition)))
            .collect()
    };
    let applied = async {
        watch.wait_for_offset(last).await;
        let mut changes = watch.changes();
        while !pending().is_empty() && changes.changed().await.is_ok() {}
    };
    let outcome = tokio::time::timeout(APPLY_DEADLINE, applied).await;
    if outcome.is_ok() {
        return Ok(());
    }
    let left = pending();
    for change in &left {
        control::delete(&producer, names, &key(change)).await.map_err(Failure::unavailable)?;
    }
    let partitions: Vec<String> = left.iter().map(|change| change.partition.to_string()).collect();
    Err(Failure::new(
        Code::Failed,
        format_args!(
            "no worker has applied the offset of partition {} of `{task_type}` within {} s",
            partitions.join(", "),
            APPLY_DEADLINE.as_secs()
        ),
    )
    .hint(format_args!("stop the workers of `{task_type}`, run this again, then start them")))
}
