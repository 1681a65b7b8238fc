//! Errors and slow attempts, merged over all partitions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use kafleet_documents::{FailureGroup, Failures, Slowest, SlowestAttempt};
use kafleet_model::error_fingerprint::{Fingerprint, group_text};
use kafleet_model::statistics::aggregate::{hour_of, minute_of};
use kafleet_model::statistics::errors::{ErrorSummary, SlowAttempt};
use kafleet_model::statistics::{ALL, OTHERS};
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;
use kafleet_store::{Entry, ErrorGroup, ErrorGroups, Index};

use super::statistics::MAX_CONCURRENT_READS;
use crate::backends::stored;
use crate::http::problem::ApiError;
use crate::read::reads::Reads;

/// Largest groups of failed tasks read per type and partition.
const MAX_GROUPS: usize = 200;
/// Hours for which errors are kept.
pub(crate) const ERROR_HOURS: i64 = 24;
/// Newest tasks of a group whose workers are listed.
const SAMPLED_TASKS: usize = 20;
const HOUR_MS: i64 = 3_600_000;

/// Lists each partition with each of its types, or with the given one.
async fn partitions_and_types(reads: &Reads, task_type: Option<&str>) -> Result<Vec<(u32, Arc<str>)>, ApiError> {
    let per_partition: Vec<Vec<(u32, Arc<str>)>> = stream::iter(reads.partitions())
        .map(|partition| async move {
            let types = types_of(reads, partition, task_type).await?;
            Ok::<_, ApiError>(types.into_iter().map(|name| (partition, name)).collect())
        })
        .buffer_unordered(MAX_CONCURRENT_READS)
        .try_collect()
        .await?;
    Ok(per_partition.into_iter().flatten().collect())
}

/// Types to read: the given one, or all with tasks or statistics.
async fn types_of(reads: &Reads, partition: u32, task_type: Option<&str>) -> Result<Vec<Arc<str>>, ApiError> {
    if let Some(task_type) = task_type {
        return Ok(vec![task_type.into()]);
    }
    let statistics = stored(reads.store.statistics(partition, &[], &[])).await?;
    let listed = statistics.overview.into_iter().flat_map(|overview| overview.series).map(|listed| listed.name);
    let names: BTreeSet<Arc<str>> = statistics.counts.into_iter().map(|count| count.task_type).chain(listed).collect();
    Ok(names.into_iter().filter(|name| !matches!(&**name, ALL | OTHERS)).collect())
}

/// Numbers of the last hours, with the current one.
fn last_hours(count: i64) -> Vec<i64> {
    let hour = hour_of(minute_of(now_ms()));
    (hour - count + 1..=hour).collect()
}

/// Reads the slowest attempts of the last hours, of one type or all.
pub(crate) async fn slowest(
    reads: &Reads,
    task_type: Option<&str>,
    hours: i64,
    limit: usize,
) -> Result<Slowest, ApiError> {
    let hours = last_hours(hours);
    let requested_hours = &hours;
    let by_type: Vec<_> = stream::iter(partitions_and_types(reads, task_type).await?)
        .map(|(partition, name)| async move {
            let summaries = stored(reads.store.error_summaries(partition, &name, requested_hours)).await?;
            Ok::<_, ApiError>((name, summaries))
        })
        .buffer_unordered(MAX_CONCURRENT_READS)
        .try_collect()
        .await?;
    let mut attempts: Vec<(SlowAttempt, Arc<str>)> = Vec::new();
    for (name, summaries) in by_type {
        let slowest = summaries.into_iter().flat_map(|(_, summary)| summary.slowest);
        attempts.extend(slowest.map(|attempt| (attempt, name.clone())));
    }
    attempts
        .sort_by(|(left, _), (right, _)| (Reverse(left.took_ms), &left.id).cmp(&(Reverse(right.took_ms), &right.id)));
    attempts.truncate(limit);
    let from = time_text(hours.first().map_or(0, |hour| hour * HOUR_MS));
    let attempts = attempts.into_iter().map(attempt_document).collect();
    Ok(Slowest { from, attempts, incomplete: reads.incomplete().await? })
}

fn attempt_document((attempt, name): (SlowAttempt, Arc<str>)) -> SlowestAttempt {
    SlowestAttempt {
        id: attempt.id.to_string(),
        task_type: name.to_string(),
        run: attempt.run,
        attempt: attempt.attempt,
        worker: attempt.worker.as_deref().map(str::to_owned),
        took_ms: attempt.took_ms,
        ended_at: time_text(attempt.ended_at_ms),
    }
}

/// Failed tasks of a type with similar errors.
struct SimilarFailures {
    count: u64,
    first_ms: i64,
    last: Entry,
    /// Partition of the task that ended last.
    partition: u32,
    /// Failed attempts of each hour.
    by_hour: Vec<u64>,
}

/// Group with its type and error.
type KeyedGroup = ((Arc<str>, Fingerprint), SimilarFailures);

/// Groups of failed tasks, merged over the partitions.
#[derive(Default)]
struct Groups {
    groups: BTreeMap<(Arc<str>, Fingerprint), SimilarFailures>,
    /// Failed attempts by type, error and hour.
    attempts: BTreeMap<(Arc<str>, Fingerprint), Vec<u64>>,
    at_least: bool,
}

/// Groups the failed tasks of one type or all by error. Returns the groups with the most tasks.
pub(crate) async fn failures(reads: &Reads, task_type: Option<&str>, limit: usize) -> Result<Failures, ApiError> {
    let largest = |groups: &mut Vec<KeyedGroup>| {
        groups.sort_by_key(|(_, group)| Reverse((group.count, group.last.seen_ms)));
        groups.truncate(limit);
    };
    selected(reads, task_type, largest).await
}

/// Groups the failed tasks of all types by error. Returns the groups that have begun last, and of the others those whose
/// newest task ended last, up to `limit` of each.
pub async fn newest_failures(reads: &Reads, limit: usize) -> Result<Failures, ApiError> {
    let newest = |groups: &mut Vec<KeyedGroup>| {
        groups.sort_by_key(|(_, group)| Reverse(group.first_ms));
        let mut others = groups.split_off(limit.min(groups.len()));
        others.sort_by_key(|(_, group)| Reverse(group.last.seen_ms));
        groups.extend(others.into_iter().take(limit));
    };
    selected(reads, None, newest).await
}

/// Number of errors that have ended a task since then.
pub async fn errors_since(reads: &Reads, since_ms: i64) -> Result<usize, ApiError> {
    let merged = Groups::read(reads, None).await?;
    Ok(merged.groups.values().filter(|group| group.last.seen_ms >= since_ms).count())
}

/// Documents of the groups that are selected.
async fn selected(
    reads: &Reads,
    task_type: Option<&str>,
    select: impl FnOnce(&mut Vec<KeyedGroup>),
) -> Result<Failures, ApiError> {
    let merged = Groups::read(reads, task_type).await?;
    let (errors, at_least) = (merged.groups.len() as u64, merged.at_least);
    let groups = stream::iter(merged.select(select))
        .map(|((name, error), group)| group_document(reads, name, error, group))
        .buffered(MAX_CONCURRENT_READS)
        .try_collect()
        .await?;
    Ok(Failures { groups, errors, at_least, incomplete: reads.incomplete().await? })
}

impl Groups {
    async fn read(reads: &Reads, task_type: Option<&str>) -> Result<Self, ApiError> {
        let hours = last_hours(ERROR_HOURS);
        let requested_hours = &hours;
        let mut by_type = stream::iter(partitions_and_types(reads, task_type).await?)
            .map(|(partition, name)| async move {
                let groups = stored(reads.store.error_groups(partition, &name, MAX_GROUPS)).await?;
                let summaries = stored(reads.store.error_summaries(partition, &name, requested_hours)).await?;
                Ok::<_, ApiError>((partition, name, groups, summaries))
            })
            .buffer_unordered(MAX_CONCURRENT_READS);
        let mut merged = Self::default();
        while let Some((partition, name, groups, summaries)) = by_type.try_next().await? {
            merged.add(partition, &name, groups);
            merged.add_attempts(&name, &summaries, &hours);
        }
        Ok(merged)
    }

    fn add(&mut self, partition: u32, name: &Arc<str>, error_groups: ErrorGroups) {
        self.at_least |= error_groups.total > error_groups.groups.len() as u64;
        for ErrorGroup { error, count, first, last } in error_groups.groups {
            let group = self.groups.entry((name.clone(), error)).or_insert_with(|| SimilarFailures {
                count: 0,
                first_ms: first.seen_ms,
                last: last.clone(),
                partition,
                by_hour: Vec::new(),
            });
            group.count += count;
            group.first_ms = group.first_ms.min(first.seen_ms);
            if last > group.last {
                (group.last, group.partition) = (last, partition);
            }
        }
    }

    fn add_attempts(&mut self, name: &Arc<str>, summaries: &[(i64, ErrorSummary)], hours: &[i64]) {
        for (hour, summary) in summaries {
            let Ok(index) = hours.binary_search(hour) else { continue };
            for error in &summary.errors {
                let key = (name.clone(), error.fingerprint);
                self.attempts.entry(key).or_insert_with(|| vec![0; hours.len()])[index] += error.attempts;
            }
        }
    }

    /// Returns the selected groups with their failed attempts.
    fn select(mut self, select: impl FnOnce(&mut Vec<KeyedGroup>)) -> Vec<KeyedGroup> {
        let mut groups: Vec<KeyedGroup> = self.groups.into_iter().collect();
        select(&mut groups);
        for (key, group) in &mut groups {
            let none = || vec![0; ERROR_HOURS.unsigned_abs() as usize];
            group.by_hour = self.attempts.remove(key).unwrap_or_else(none);
        }
        groups
    }
}

async fn group_document(
    reads: &Reads,
    name: Arc<str>,
    error: Fingerprint,
    group: SimilarFailures,
) -> Result<FailureGroup, ApiError> {
    let index = Index::Failed { task_type: name.clone(), error };
    let newest = reads.page(group.partition, &index, None, SAMPLED_TASKS).await?;
    let ids: Vec<TaskId> = newest.into_iter().map(|entry| entry.id).collect();
    let tasks: Vec<_> = reads.read_many(group.partition, &ids).await?.into_iter().flatten().collect();
    // Tasks may have been removed or run again since the group was read.
    let shown = tasks.iter().find(|task| task.id == group.last.id).or(tasks.first());
    let workers: BTreeSet<&str> = tasks.iter().filter_map(|task| task.record.worker.as_deref()).collect();
    Ok(FailureGroup {
        task_type: name.to_string(),
        error: error.to_string(),
        text: shown.map_or_else(String::new, |task| group_text(task.record.outcome.error.as_deref())),
        count: group.count,
        first: time_text(group.first_ms),
        last: time_text(group.last.seen_ms),
        newest: group.last.id.to_string(),
        newest_superseded: shown.is_some_and(|task| task.superseded && task.id == group.last.id),
        workers: workers.into_iter().map(str::to_owned).collect(),
        attempts_by_hour: group.by_hour,
    })
}
