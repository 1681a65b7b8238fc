//! Errors and slow attempts, merged over all partitions.
//!
//! Groups are read with bounds, and counts of a group are exact: the store holds them by kind and by message.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use kafleet_documents::{FailureGroup, Failures, Slowest, SlowestAttempt};
use kafleet_model::error_fingerprint::{Fingerprint, group_text};
use kafleet_model::event::ErrorInfo;
use kafleet_model::record::state::State;
use kafleet_model::statistics::aggregate::{hour_of, minute_of};
use kafleet_model::statistics::errors::{ErrorSummary, SlowAttempt};
use kafleet_model::statistics::{ALL, OTHERS};
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;
use kafleet_store::{Entry, ErrorGroup, ErrorGroups, ErrorLevel, Index};

pub use super::failure_groups::{FailuresBy, FailuresSort};
use super::letter_counts::LetterCounts;
use super::statistics::MAX_CONCURRENT_READS;
use crate::backends::stored;
use crate::http::problem::ApiError;
use crate::read::reads::Reads;

/// Groups whose texts are searched: the first ones in the order of a query.
const MAX_SEARCHED: usize = 200;
/// Largest groups of failed tasks read per type and partition.
const MAX_GROUPS: usize = 200;
/// Hours for which errors are kept.
pub(crate) const ERROR_HOURS: i64 = 24;
/// Newest tasks of a group whose workers are listed.
const SAMPLED_TASKS: usize = 20;
const HOUR_MS: i64 = 3_600_000;

/// Partition of the events topic with one of its types.
type Source = (u32, Arc<str>);

/// Types of a partition that are read if no type is given.
#[derive(Clone, Copy)]
enum TypesOf {
    /// Types with tasks or statistics.
    Statistics,
    /// Types with tasks that have not succeeded: only they may have failed tasks.
    Failures,
}

/// Lists each partition with each of its types, or with the given one.
async fn partitions_and_types(reads: &Reads, task_type: Option<&str>, types: TypesOf) -> Result<Vec<Source>, ApiError> {
    let per_partition: Vec<Vec<Source>> = stream::iter(reads.partitions())
        .map(|partition| async move {
            let types = match (task_type, types) {
                (Some(task_type), _) => BTreeSet::from([task_type.into()]),
                (None, TypesOf::Statistics) => types_with_statistics(reads, partition).await?,
                (None, TypesOf::Failures) => types_with_failures(reads, partition).await?,
            };
            Ok::<_, ApiError>(types.into_iter().map(|name| (partition, name)).collect())
        })
        .buffer_unordered(MAX_CONCURRENT_READS)
        .try_collect()
        .await?;
    Ok(per_partition.into_iter().flatten().collect())
}

async fn types_with_statistics(reads: &Reads, partition: u32) -> Result<BTreeSet<Arc<str>>, ApiError> {
    let statistics = stored(reads.store.statistics(partition, &[], &[])).await?;
    let listed = statistics.overview.into_iter().flat_map(|overview| overview.series).map(|listed| listed.name);
    let names = statistics.counts.into_iter().map(|count| count.task_type).chain(listed);
    Ok(names.filter(|name| !matches!(&**name, ALL | OTHERS)).collect())
}

async fn types_with_failures(reads: &Reads, partition: u32) -> Result<BTreeSet<Arc<str>>, ApiError> {
    let counts = stored(reads.store.counts(&[partition])).await?;
    let may_have = counts.into_iter().filter(|count| count.state != State::Succeeded && count.count > 0);
    Ok(may_have.map(|count| count.task_type.as_ref().into()).collect())
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
    let by_type: Vec<_> = stream::iter(partitions_and_types(reads, task_type, TypesOf::Statistics).await?)
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

/// Failed tasks to list.
#[derive(Clone, Debug, Default)]
pub struct FailuresQuery {
    pub task_type: Option<String>,
    /// Only errors of this kind.
    pub kind: Option<String>,
    pub by: FailuresBy,
    /// Start of the time in which the counted tasks ended. `None`: all retained tasks.
    pub since_ms: Option<i64>,
    pub sort: FailuresSort,
    /// Part of the kind, of the message or of the name of a worker, in any case.
    pub text: Option<String>,
    /// Only errors with unresolved dead letters.
    pub with_dead_letters: bool,
    pub limit: usize,
}

impl FailuresQuery {
    pub(super) const fn level(&self) -> ErrorLevel {
        match self.by {
            FailuresBy::Message => ErrorLevel::Message,
            FailuresBy::Kind | FailuresBy::Root => ErrorLevel::Kind,
        }
    }

    /// Reads the groups that the query selects.
    pub(super) async fn groups(
        &self,
        reads: &Reads,
        level: ErrorLevel,
        letters: Option<&LetterCounts>,
    ) -> Result<Groups, ApiError> {
        let mut groups = Groups::read(reads, self.task_type.as_deref(), level, self.since_ms.unwrap_or(0)).await?;
        let kind = self.kind.as_deref().map(Fingerprint::of_kind);
        let has_letters =
            |name: &str, error| !self.with_dead_letters || letters.is_some_and(|letters| letters.of(name, error) > 0);
        groups.groups.retain(|(name, error), group| {
            group.recent > 0 && kind.is_none_or(|kind| error.kind() == kind) && has_letters(name, *error)
        });
        Ok(groups)
    }

    fn sort(&self, groups: &mut [KeyedGroup]) {
        groups.sort_by_key(|(_, group)| {
            let last_ms = group.last.seen_ms;
            match self.sort {
                FailuresSort::Count => Reverse((group.recent.cast_signed(), last_ms)),
                FailuresSort::First => Reverse((group.first_ms, last_ms)),
                FailuresSort::Last => Reverse((last_ms, group.first_ms)),
            }
        });
    }
}

/// Failed tasks of a type with similar errors.
#[derive(Clone)]
pub(super) struct SimilarFailures {
    pub(super) count: u64,
    /// Number of tasks that ended in the range.
    pub(super) recent: u64,
    first_ms: i64,
    last: Entry,
    /// Partition of the task that ended last.
    partition: u32,
    occurrences: Occurrences,
}

/// Occurrences of an error in the last hours.
#[derive(Clone, Default)]
struct Occurrences {
    /// Failed attempts of each hour.
    attempts: Vec<u64>,
    /// Log time at which the error first ended a task.
    first_end_ms: Option<i64>,
}

/// Type and error of a group.
pub(super) type GroupKey = (Arc<str>, Fingerprint);
/// Group with its type and error.
pub(super) type KeyedGroup = (GroupKey, SimilarFailures);

/// Groups of failed tasks, merged over the partitions.
pub(super) struct Groups {
    pub(super) groups: BTreeMap<GroupKey, SimilarFailures>,
    /// Types with more groups in a partition than were read.
    pub(super) cut_types: BTreeSet<Arc<str>>,
    level: ErrorLevel,
    /// Partitions with their types, which were read.
    sources: Vec<Source>,
}

/// Groups failed tasks by error. Returns the groups that come first in the order of the query. `letters`: numbers of dead
/// letters, if they are known.
pub(crate) async fn failures(
    reads: &Reads,
    query: &FailuresQuery,
    letters: Option<&LetterCounts>,
) -> Result<Failures, ApiError> {
    let merged = query.groups(reads, query.level(), letters).await?;
    let (mut errors, mut at_least) = (merged.groups.len(), merged.is_cut());
    let mut groups = merged.with_occurrences(reads).await?;
    query.sort(&mut groups);
    if query.text.is_some() {
        at_least |= errors > MAX_SEARCHED;
        groups.truncate(MAX_SEARCHED);
    } else {
        groups.truncate(query.limit);
    }
    let mut groups = documents(reads, groups).await?;
    if let Some(text) = &query.text {
        groups.retain(|group| contains(group, &text.to_lowercase()));
        errors = groups.len();
        groups.truncate(query.limit);
    }
    let messages_at_least = match query.by {
        FailuresBy::Kind => count_messages(reads, query, letters, &mut groups).await?,
        FailuresBy::Message | FailuresBy::Root => false,
    };
    let (since, incomplete) = (query.since_ms.map(time_text), reads.incomplete().await?);
    let errors = errors as u64;
    let failures = Failures { groups, errors, at_least, messages_at_least, since, incomplete, ..Failures::default() };
    Ok(with_letters(failures, letters))
}

/// Returns true if kind, message or worker contain a text in lower case.
pub(super) fn contains(group: &FailureGroup, text: &str) -> bool {
    let mut texts = group.kind.iter().chain([&group.text]).chain(&group.workers);
    texts.any(|value| value.to_lowercase().contains(text))
}

/// Counts the messages of kinds, in the range of the query. Returns whether there may be more.
async fn count_messages(
    reads: &Reads,
    query: &FailuresQuery,
    letters: Option<&LetterCounts>,
    kinds: &mut [FailureGroup],
) -> Result<bool, ApiError> {
    let messages = query.groups(reads, ErrorLevel::Message, letters).await?;
    let mut counts: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for (name, error) in messages.groups.keys() {
        *counts.entry((&**name, error.kind().to_string())).or_default() += 1;
    }
    for kind in kinds {
        kind.messages = counts.get(&(kind.task_type.as_str(), kind.error.clone())).copied();
    }
    Ok(messages.is_cut())
}

/// Groups the failed tasks of all types by kind of error. Returns the groups that have begun last, and of the others those
/// whose newest task ended last, up to `limit` of each.
pub(crate) async fn newest_failures(
    reads: &Reads,
    limit: usize,
    letters: Option<&LetterCounts>,
) -> Result<Failures, ApiError> {
    let merged = Groups::read(reads, None, ErrorLevel::Kind, 0).await?;
    let (errors, at_least) = (merged.groups.len() as u64, merged.is_cut());
    let mut groups = merged.with_occurrences(reads).await?;
    groups.sort_by_key(|(_, group)| Reverse(group.first_ms));
    let mut others = groups.split_off(limit.min(groups.len()));
    others.sort_by_key(|(_, group)| Reverse(group.last.seen_ms));
    groups.extend(others.into_iter().take(limit));
    let groups = documents(reads, groups).await?;
    let failures = Failures { groups, errors, at_least, incomplete: reads.incomplete().await?, ..Failures::default() };
    Ok(with_letters(failures, letters))
}

fn with_letters(failures: Failures, letters: Option<&LetterCounts>) -> Failures {
    match letters {
        Some(letters) => letters.added_to(failures),
        None => failures,
    }
}

/// Counts the kinds of errors, by type, that have ended a task since this log time.
pub async fn errors_since(reads: &Reads, since_ms: i64) -> Result<usize, ApiError> {
    let merged = Groups::read(reads, None, ErrorLevel::Kind, since_ms).await?;
    Ok(merged.groups.values().filter(|group| group.recent > 0).count())
}

/// Finds the group of the failed tasks of a type with errors like this one, if it is among the largest ones.
pub async fn same_error(reads: &Reads, task_type: &str, error: &ErrorInfo) -> Result<Option<FailureGroup>, ApiError> {
    let mut merged = Groups::read(reads, Some(task_type), ErrorLevel::Message, 0).await?;
    let fingerprint = Fingerprint::of(Some(error));
    merged.groups.retain(|(_, error), _| *error == fingerprint);
    match merged.with_occurrences(reads).await?.into_iter().next() {
        Some((key, group)) => group_document(reads, key, group).await.map(Some),
        None => Ok(None),
    }
}

/// Lists the kinds of the errors of the failed tasks of a type. `None`: there are too many.
pub(crate) async fn kinds_of(reads: &Reads, task_type: &str) -> Result<Option<BTreeSet<Fingerprint>>, ApiError> {
    let merged = Groups::read(reads, Some(task_type), ErrorLevel::Kind, 0).await?;
    let is_complete = !merged.is_cut();
    Ok(is_complete.then(|| merged.groups.into_keys().map(|(_, kind)| kind).collect()))
}

async fn documents(reads: &Reads, groups: Vec<KeyedGroup>) -> Result<Vec<FailureGroup>, ApiError> {
    stream::iter(groups)
        .map(|(key, group)| group_document(reads, key, group))
        .buffered(MAX_CONCURRENT_READS)
        .try_collect()
        .await
}

impl Groups {
    pub(super) async fn read(
        reads: &Reads,
        task_type: Option<&str>,
        level: ErrorLevel,
        since_ms: i64,
    ) -> Result<Self, ApiError> {
        let sources = partitions_and_types(reads, task_type, TypesOf::Failures).await?;
        let mut by_type = stream::iter(sources.clone())
            .map(|(partition, name)| async move {
                let groups = stored(reads.store.error_groups(partition, &name, level, since_ms, MAX_GROUPS)).await?;
                Ok::<_, ApiError>((partition, name, groups))
            })
            .buffer_unordered(MAX_CONCURRENT_READS);
        let mut merged = Self { groups: BTreeMap::new(), cut_types: BTreeSet::new(), level, sources };
        while let Some((partition, name, groups)) = by_type.try_next().await? {
            merged.add(partition, &name, groups);
        }
        Ok(merged)
    }

    /// Whether there are groups that were not read.
    pub(super) fn is_cut(&self) -> bool {
        !self.cut_types.is_empty()
    }

    fn add(&mut self, partition: u32, name: &Arc<str>, error_groups: ErrorGroups) {
        if error_groups.total > error_groups.groups.len() as u64 {
            self.cut_types.insert(name.clone());
        }
        for ErrorGroup { error, count, recent, first, last } in error_groups.groups {
            let group = self.groups.entry((name.clone(), error)).or_insert_with(|| SimilarFailures {
                count: 0,
                recent: 0,
                first_ms: first.seen_ms,
                last: last.clone(),
                partition,
                occurrences: Occurrences::default(),
            });
            group.count += count;
            group.recent += recent;
            group.first_ms = group.first_ms.min(first.seen_ms);
            if last > group.last {
                (group.last, group.partition) = (last, partition);
            }
        }
    }

    /// Reads the occurrences of the groups. They are not read with them: many callers only count groups.
    pub(super) async fn with_occurrences(self, reads: &Reads) -> Result<Vec<KeyedGroup>, ApiError> {
        let hours = last_hours(ERROR_HOURS);
        let requested_hours = &hours;
        let types: BTreeSet<Arc<str>> = self.groups.keys().map(|(name, _)| name.clone()).collect();
        let sources = self.sources.into_iter().filter(|(_, name)| types.contains(name));
        let mut by_type = stream::iter(sources)
            .map(|(partition, name)| async move {
                let summaries = stored(reads.store.error_summaries(partition, &name, requested_hours)).await?;
                Ok::<_, ApiError>((name, summaries))
            })
            .buffer_unordered(MAX_CONCURRENT_READS);
        let mut occurrences = BTreeMap::new();
        while let Some((name, summaries)) = by_type.try_next().await? {
            add_occurrences(&mut occurrences, &name, self.level, &summaries, &hours);
        }
        let with_occurrences = |(key, mut group): KeyedGroup| {
            group.occurrences = occurrences.remove(&key).unwrap_or_default();
            group.occurrences.attempts.resize(hours.len(), 0);
            (key, group)
        };
        Ok(self.groups.into_iter().map(with_occurrences).collect())
    }
}

fn add_occurrences(
    occurrences: &mut BTreeMap<GroupKey, Occurrences>,
    name: &Arc<str>,
    level: ErrorLevel,
    summaries: &[(i64, ErrorSummary)],
    hours: &[i64],
) {
    for (hour, summary) in summaries {
        let Ok(index) = hours.binary_search(hour) else { continue };
        let counts = match level {
            ErrorLevel::Kind => &summary.kinds,
            ErrorLevel::Message => &summary.errors,
        };
        for error in counts {
            let found = occurrences.entry((name.clone(), error.fingerprint)).or_default();
            found.attempts.resize(hours.len(), 0);
            found.attempts[index] += error.attempts;
            found.first_end_ms = [found.first_end_ms, error.first_end_ms].into_iter().flatten().min();
        }
    }
}

pub(super) async fn group_document(
    reads: &Reads,
    (name, error): GroupKey,
    group: SimilarFailures,
) -> Result<FailureGroup, ApiError> {
    let index = Index::Failed { task_type: name.clone(), error };
    let newest = reads.page(group.partition, &index, None, SAMPLED_TASKS).await?;
    let ids: Vec<TaskId> = newest.into_iter().map(|entry| entry.id).collect();
    let tasks: Vec<_> = reads.read_many(group.partition, &ids).await?.into_iter().flatten().collect();
    // Tasks may have been removed or run again since the group was read.
    let shown = tasks.iter().find(|task| task.id == group.last.id).or(tasks.first());
    let shown_error = shown.and_then(|task| task.record.outcome.error.as_deref());
    let workers: BTreeSet<&str> = tasks.iter().filter_map(|task| task.record.worker.as_deref()).collect();
    let first_seen_ms = group.occurrences.first_end_ms.map_or(group.first_ms, |first_ms| first_ms.min(group.first_ms));
    Ok(FailureGroup {
        task_type: name.to_string(),
        error: error.to_string(),
        kind: shown_error.map(|error| error.kind.clone()),
        text: shown.map_or_else(String::new, |_| group_text(shown_error)),
        count: group.recent,
        retained: group.count,
        dead_letters: None,
        messages: None,
        root_type: None,
        roots: None,
        first: time_text(group.first_ms),
        last: time_text(group.last.seen_ms),
        first_seen: time_text(first_seen_ms),
        newest: group.last.id.to_string(),
        newest_superseded: shown.is_some_and(|task| task.superseded && task.id == group.last.id),
        workers: workers.into_iter().map(str::to_owned).collect(),
        attempts_by_hour: group.occurrences.attempts,
    })
}
