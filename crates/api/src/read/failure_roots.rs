//! Failed tasks by the type of their root: what makes trees fail.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use kafleet_documents::{FailureGroup, Failures};
use kafleet_model::error_fingerprint::group_text;
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use kafleet_store::{Entry, ErrorLevel, Index};

use super::failures::{FailuresQuery, GroupKey, group_document};
use super::letter_counts::LetterCounts;
use super::statistics::MAX_CONCURRENT_READS;
use crate::http::problem::ApiError;
use crate::read::reads::Reads;

/// Most frequent kinds of errors whose tasks are read.
const MAX_KINDS: usize = 50;
/// Failed tasks that are read in all, the newest of each kind and partition.
const MAX_TASKS: usize = 5_000;
/// Smallest number of tasks read of a kind and partition.
const MIN_TASKS: usize = 20;
/// Place of roots whose record has been removed or has no type.
const UNKNOWN_TYPE: &str = "";

/// Tasks with an error below roots of one type.
struct Below {
    tasks: u64,
    roots: BTreeSet<TaskId>,
    /// Log time at which the first one ended.
    first_ms: i64,
    /// Task that ended last, and its partition.
    last: (Entry, u32),
}

impl Below {
    /// Adds the tasks of a root in a partition.
    fn add(&mut self, tasks: RootFailures, partition: u32) {
        self.tasks += tasks.count;
        self.roots.insert(tasks.root);
        self.first_ms = self.first_ms.min(tasks.first_ms);
        if tasks.last > self.last.0 {
            self.last = (tasks.last, partition);
        }
    }
}

/// Groups the newest failed tasks by the type of their root and the kind of their error, most roots first.
pub(crate) async fn failures(
    reads: &Reads,
    query: &FailuresQuery,
    letters: Option<&LetterCounts>,
) -> Result<Failures, ApiError> {
    let merged = query.groups(reads, ErrorLevel::Kind, letters).await?;
    let mut at_least = merged.is_cut() || merged.groups.len() > MAX_KINDS;
    let mut kinds = merged.with_occurrences(reads).await?;
    kinds.sort_by_key(|(_, group)| Reverse(group.recent));
    kinds.truncate(MAX_KINDS);
    let limit = (MAX_TASKS / (kinds.len() * reads.partitions().len()).max(1)).max(MIN_TASKS);
    let since_ms = query.since_ms.unwrap_or(0);
    let mut rows = Vec::new();
    for kind in kinds {
        let (below, is_cut) = below_roots(reads, &kind.0, since_ms, limit).await?;
        at_least |= is_cut;
        let (key, group) = kind;
        rows.extend(rows_of(&group_document(reads, key, group).await?, below));
    }
    rows.sort_by_key(|row| Reverse((row.document.roots, row.document.count)));
    let mut errors = rows.len() as u64;
    let mut groups = match query.text.as_deref().map(str::to_lowercase) {
        Some(text) => {
            let mut groups = with_newest(reads, rows).await?;
            groups.retain(|group| super::failures::contains(group, &text));
            errors = groups.len() as u64;
            groups
        }
        None => {
            rows.truncate(query.limit);
            with_newest(reads, rows).await?
        }
    };
    groups.truncate(query.limit);
    let (since, incomplete) = (query.since_ms.map(time_text), reads.incomplete().await?);
    Ok(Failures { groups, errors, at_least, since, incomplete, ..Failures::default() })
}

/// Row of the list, with what is still to be read for it.
struct Row {
    document: FailureGroup,
    /// Task that ended last and its partition, unless it is that of all tasks with the error, which was read already.
    unread: Option<(u32, TaskId)>,
}

/// Rows of a kind of errors by the type of the roots. Times and numbers are those of the tasks of a row.
fn rows_of(of_kind: &FailureGroup, below: BTreeMap<String, Below>) -> Vec<Row> {
    let row = |(root_type, below): (String, Below)| {
        let (newest, partition) = below.last;
        let document = FailureGroup {
            count: below.tasks,
            roots: Some(below.roots.len() as u64),
            root_type: Some(root_type),
            first: time_text(below.first_ms),
            last: time_text(newest.seen_ms),
            newest: newest.id.to_string(),
            ..of_kind.clone()
        };
        let is_read = *newest.id.as_str() == *of_kind.newest;
        Row { document, unread: (!is_read).then_some((partition, newest.id)) }
    };
    below.into_iter().map(row).collect()
}

/// Reads the newest task of each row, those of a partition at once.
async fn with_newest(reads: &Reads, mut rows: Vec<Row>) -> Result<Vec<FailureGroup>, ApiError> {
    let mut by_partition: BTreeMap<u32, Vec<(usize, TaskId)>> = BTreeMap::new();
    for (index, row) in rows.iter_mut().enumerate() {
        if let Some((partition, id)) = row.unread.take() {
            by_partition.entry(partition).or_default().push((index, id));
        }
    }
    let mut read = stream::iter(by_partition)
        .map(|(partition, unread)| async move {
            let (indexes, ids): (Vec<usize>, Vec<TaskId>) = unread.into_iter().unzip();
            Ok::<_, ApiError>((indexes, reads.read_many(partition, &ids).await?))
        })
        .buffer_unordered(MAX_CONCURRENT_READS);
    while let Some((indexes, tasks)) = read.try_next().await? {
        for (index, task) in indexes.into_iter().zip(tasks) {
            let document = &mut rows[index].document;
            document.newest_superseded = task.as_ref().is_some_and(|task| task.superseded);
            if let Some(task) = task {
                document.text = group_text(task.record.outcome.error.as_deref());
            }
        }
    }
    drop(read);
    Ok(rows.into_iter().map(|row| row.document).collect())
}

/// Sorts the newest tasks of a group by the type of their root. The second value: there are more tasks.
async fn below_roots(
    reads: &Reads,
    key: &GroupKey,
    since_ms: i64,
    limit: usize,
) -> Result<(BTreeMap<String, Below>, bool), ApiError> {
    let by_partition: Vec<_> = stream::iter(reads.partitions())
        .map(|partition| async move {
            Ok::<_, ApiError>((partition, tasks_by_root(reads, partition, key, since_ms, limit).await?))
        })
        .buffer_unordered(MAX_CONCURRENT_READS)
        .try_collect()
        .await?;
    let mut below: BTreeMap<String, Below> = BTreeMap::new();
    let mut is_cut = false;
    for (partition, (tasks, is_full)) in by_partition {
        is_cut |= is_full;
        for (root_type, tasks) in tasks {
            let new = || Below {
                tasks: 0,
                roots: BTreeSet::new(),
                first_ms: tasks.first_ms,
                last: (tasks.last.clone(), partition),
            };
            below.entry(root_type).or_insert_with(new).add(tasks, partition);
        }
    }
    Ok((below, is_cut))
}

/// Failed tasks of a root that were read.
struct RootFailures {
    root: TaskId,
    count: u64,
    /// Log time at which the first one ended.
    first_ms: i64,
    /// Task that ended last.
    last: Entry,
}

async fn tasks_by_root(
    reads: &Reads,
    partition: u32,
    (task_type, error): &GroupKey,
    since_ms: i64,
    limit: usize,
) -> Result<(Vec<(String, RootFailures)>, bool), ApiError> {
    let index = Index::Failed { task_type: Arc::clone(task_type), error: *error };
    let entries = reads.page(partition, &index, None, limit).await?;
    let is_recent = |entry: &Entry| entry.seen_ms >= since_ms;
    let is_full = entries.len() == limit && entries.last().is_some_and(is_recent);
    let mut by_root: HashMap<TaskId, RootFailures> = HashMap::new();
    // The newest first.
    for entry in entries.into_iter().filter(is_recent) {
        let Ok(root) = TaskId::parse(entry.id.root()) else { continue };
        let new = || RootFailures { root: root.clone(), count: 0, first_ms: entry.seen_ms, last: entry.clone() };
        let found = by_root.entry(root.clone()).or_insert_with(new);
        found.count += 1;
        found.first_ms = entry.seen_ms;
    }
    let (roots, failures): (Vec<TaskId>, Vec<RootFailures>) = by_root.into_iter().unzip();
    let records = reads.records(partition, &roots).await?;
    let types = records.into_iter().map(|record| {
        let name = record.and_then(|record| record.task_type);
        name.as_deref().unwrap_or(UNKNOWN_TYPE).to_owned()
    });
    Ok((types.zip(failures).collect(), is_full))
}
