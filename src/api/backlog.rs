//! Backlog of each type as a metric. Alerts need it where no worker reports its lag.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::DropGuard;

use super::handlers::types::backlog_of;
use super::http::problem::Code;
use super::state::Api;
use crate::runtime;

/// Time between two measurements.
const INTERVAL: Duration = Duration::from_secs(15);
/// Maximum time of a measurement. Afterwards the metric is absent until the next one.
const DEADLINE: Duration = Duration::from_secs(10);

/// Measures the backlogs until the guard is dropped.
pub(crate) fn measure(api: Arc<Api>) -> DropGuard {
    runtime::spawn_guarded(async move { measure_regularly(&api).await })
}

async fn measure_regularly(api: &Api) {
    let mut known = BTreeSet::new();
    loop {
        let measured = measure_once(api).await;
        for gone in known.difference(&measured) {
            // The label exists: it was set by the previous measurement.
            let _ = api.ops.metrics.http.backlog.remove_label_values(&[String::as_str(gone)]);
        }
        known = measured;
        sleep(INTERVAL).await;
    }
}

/// Sets the backlog of each type that workers serve, and returns the types. External tasks, and those of bulk actions, wait
/// for no worker; their types have no task topic.
async fn measure_once(api: &Api) -> BTreeSet<String> {
    // An error is shown by requests and by the health of trackers; here it only makes the metric absent.
    let Ok(Ok(counts)) = timeout(DEADLINE, api.reads.counts()).await else { return BTreeSet::new() };
    let mut measured = BTreeSet::new();
    for (task_type, counts) in counts {
        if api.types.check_type_exists(&task_type).await.is_err_and(|error| error.is(Code::UnknownType)) {
            continue;
        }
        let backlog = i64::try_from(backlog_of(&counts)).unwrap_or(i64::MAX);
        api.ops.metrics.http.backlog.with_label_values(&[&task_type]).set(backlog);
        measured.insert(task_type);
    }
    measured
}
