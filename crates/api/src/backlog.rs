//! Backlog of each type as a metric. Alerts need it where no worker reports its lag.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::DropGuard;

use super::service::types::backlog_of;
use super::state::Api;

/// Time between two measurements.
const MEASURE_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum time of a measurement. Afterwards the metric is absent until the next one.
const DEADLINE: Duration = Duration::from_secs(10);

/// Measures the backlogs until the guard is dropped.
pub(crate) fn measure(api: Arc<Api>) -> DropGuard {
    kafleet_runtime::spawn_guarded(async move { measure_regularly(&api).await })
}

async fn measure_regularly(api: &Api) {
    let mut reported = BTreeSet::new();
    loop {
        let measured = measure_once(api).await;
        for vanished in reported.difference(&measured) {
            // The label exists: it was set by the previous measurement.
            let _ = api.ops.metrics.http.backlog.remove_label_values(&[String::as_str(vanished)]);
        }
        reported = measured;
        sleep(MEASURE_INTERVAL).await;
    }
}

/// Sets the backlog of each type that workers serve, and returns the types. External tasks, and those of bulk actions, wait
/// for no worker; their types have no task topic.
async fn measure_once(api: &Api) -> BTreeSet<String> {
    // An error is shown by requests and by the health of trackers; here it only makes the metric absent.
    let counted = async {
        let counts = api.reads.counts().await?;
        api.reads.check_covered(None).await.map(|()| counts)
    };
    let Ok(Ok(counts)) = timeout(DEADLINE, counted).await else { return BTreeSet::new() };
    // Without an answer of Kafka all types count.
    let topics = timeout(DEADLINE, api.types.topics(MEASURE_INTERVAL)).await.ok().and_then(Result::ok);
    let is_served = |task_type: &str| topics.as_ref().is_none_or(|topics| topics.contains_key(task_type));
    let set = |(task_type, counts): (String, _)| {
        let backlog = i64::try_from(backlog_of(&counts)).unwrap_or(i64::MAX);
        api.ops.metrics.http.backlog.with_label_values(&[&task_type]).set(backlog);
        task_type
    };
    counts.into_iter().filter(|(task_type, _)| is_served(task_type)).map(set).collect()
}
