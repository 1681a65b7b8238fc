//! Numbers of unresolved dead letters by error, from the topics and the records of the tasks.

use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::Broker;
use kafleet_fleet::dead_letters::headers::has_moved_on;
use kafleet_fleet::dead_letters::{MAX_FACTS, UnresolvedLetters};
use tokio::time::timeout;

use super::READ_DEADLINE;
use super::select::{error_of_run, ids_by_partition, records_of};
use crate::http::problem::ApiError;
use crate::read::letter_counts::LetterCounts;
use crate::state::Api;

/// Maximum wait of a list of failures for the numbers.
const DEADLINE: Duration = Duration::from_secs(1);

/// Counts the unresolved dead letters of a type, or of all types: the newest 5,000, as of at most 5 s ago.
pub async fn letter_counts(api: &Api, task_type: Option<&str>) -> Result<Arc<LetterCounts>, ApiError> {
    let key = task_type.unwrap_or_default().to_owned();
    api.queues.dead_letters.get(Some(key), read_counts(api, task_type)).await
}

/// Numbers of dead letters that are known in a second, or the last ones.
pub(crate) async fn known_counts(api: &Api, task_type: Option<&str>) -> Option<Arc<LetterCounts>> {
    match timeout(DEADLINE, letter_counts(api, task_type)).await {
        Ok(Ok(counts)) => Some(counts),
        Ok(Err(_)) | Err(_) => api.queues.dead_letters.last(task_type.unwrap_or_default()),
    }
}

async fn read_counts(api: &Api, task_type: Option<&str>) -> Result<LetterCounts, ApiError> {
    let (dead_letters, names) = (api.dead_letters.clone(), api.topology.names.clone());
    let name = task_type.map(str::to_owned);
    let read = move |broker: &dyn Broker, _| dead_letters.unresolved(broker, &names, name.as_deref(), MAX_FACTS);
    let UnresolvedLetters { letters, is_cut } = api.reads.broker.with_deadline(READ_DEADLINE).call(read).await?;
    let tasks = ids_by_partition(api, letters.iter().filter_map(|(_, facts)| facts.task.as_ref()));
    let records = records_of(api, tasks).await?;
    let mut counts = LetterCounts::of_newest(is_cut);
    for (id, facts) in &letters {
        let task = facts.task.as_ref().and_then(|(task, run)| Some((records.get(task)?, *run)));
        if task.is_none_or(|(record, run)| !has_moved_on(record, run)) {
            counts.add(&id.task_type, task.and_then(|(record, run)| error_of_run(record, run)));
        }
    }
    Ok(counts)
}
