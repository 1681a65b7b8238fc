//! Numbers of tasks that failed by themselves, by type: the sizes of the groups of similar errors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use kafleet_documents::OwnFailed;
use kafleet_model::record::state::State;
use kafleet_store::{ErrorGroups, ErrorLevel};

use super::failures::MAX_GROUPS;
use super::statistics::MAX_CONCURRENT_READS;
use crate::backends::stored;
use crate::http::problem::ApiError;
use crate::read::reads::Reads;

/// Counts the tasks of each type whose own state is failed or expired. Types without such tasks may be missing.
pub(crate) async fn own_failed(reads: &Reads) -> Result<BTreeMap<String, OwnFailed>, ApiError> {
    let types: Vec<Vec<(u32, Arc<str>)>> = stream::iter(reads.partitions())
        .map(|partition| types_with_failures(reads, partition))
        .buffer_unordered(MAX_CONCURRENT_READS)
        .try_collect()
        .await?;
    let mut groups = stream::iter(types.into_iter().flatten())
        .map(|(partition, name)| async move {
            let groups = stored(reads.store.error_groups(partition, &name, ErrorLevel::Kind, 0, MAX_GROUPS)).await?;
            Ok::<_, ApiError>((name, groups))
        })
        .buffer_unordered(MAX_CONCURRENT_READS);
    let mut failed = BTreeMap::new();
    while let Some((name, groups)) = groups.try_next().await? {
        add(failed.entry(name.to_string()).or_default(), &groups);
    }
    Ok(failed)
}

fn add(failed: &mut OwnFailed, groups: &ErrorGroups) {
    failed.tasks += groups.groups.iter().map(|group| group.count).sum::<u64>();
    failed.at_least |= groups.total > groups.groups.len() as u64;
}

/// Types of a partition of which tasks may have failed: those with tasks that have not succeeded.
async fn types_with_failures(reads: &Reads, partition: u32) -> Result<Vec<(u32, Arc<str>)>, ApiError> {
    let counts = stored(reads.store.counts(&[partition])).await?;
    let may_have = counts.into_iter().filter(|count| count.state != State::Succeeded && count.count > 0);
    let names: BTreeSet<Arc<str>> = may_have.map(|count| count.task_type.as_ref().into()).collect();
    Ok(names.into_iter().map(|name| (partition, name)).collect())
}
