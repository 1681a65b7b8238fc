//! Merge of one index over all partitions, or of several disjoint indexes, newest first.

use std::collections::VecDeque;

use futures::stream::{self, StreamExt, TryStreamExt};
use kafleet_model::task::id::TaskId;
use kafleet_store::{Entry, Index};

use super::consistency::TaskView;
use crate::http::problem::ApiError;
use crate::read::reads::Reads;

/// Maximum concurrent partition reads.
const MAX_CONCURRENT_READS: usize = 32;
/// Minimum entries prefetched per index.
const MIN_PAGE: usize = 16;

/// Cursor over the merged indexes.
pub(crate) struct Merge<'a> {
    reads: &'a Reads,
    streams: Vec<IndexStream>,
    /// Entries read from an index at a time.
    page: usize,
}

/// Index of one partition.
struct IndexStream {
    partition: u32,
    index: Index,
    /// Last entry read.
    after: Option<Entry>,
    /// Entries read but not returned, newest first.
    ahead: VecDeque<Entry>,
    /// No entries follow those in `ahead`.
    exhausted: bool,
}

impl<'a> Merge<'a> {
    /// Starts after `after`; prefetches about `page` entries per partition.
    pub(crate) fn new(reads: &'a Reads, indexes: Vec<Index>, after: Option<Entry>, page: usize) -> Self {
        let page = (page / indexes.len().max(1)).max(MIN_PAGE.min(page));
        let index_stream = |partition, index| IndexStream {
            partition,
            index,
            after: after.clone(),
            ahead: VecDeque::new(),
            exhausted: false,
        };
        let of = |partition| indexes.iter().map(move |index| index_stream(partition, index.clone()));
        Self { reads, streams: reads.partitions().into_iter().flat_map(of).collect(), page }
    }

    /// Returns at most `limit` further entries with their records, `None` for a record that has been removed. An empty
    /// result marks the end.
    pub(crate) async fn next(&mut self, limit: usize) -> Result<Vec<(Entry, Option<TaskView>)>, ApiError> {
        let mut entries = Vec::with_capacity(limit);
        while entries.len() < limit {
            self.fill().await?;
            let Some(newest) = self.streams.iter_mut().max_by(|a, b| a.ahead.front().cmp(&b.ahead.front())) else {
                break;
            };
            let Some(entry) = newest.ahead.pop_front() else { break };
            entries.push((newest.partition, entry));
        }
        self.records(entries).await
    }

    /// Refills the streams that have no prefetched entries.
    async fn fill(&mut self) -> Result<(), ApiError> {
        let reads = self.reads;
        let page = self.page;
        let empty =
            self.streams.iter_mut().filter(|index_stream| index_stream.ahead.is_empty() && !index_stream.exhausted);
        stream::iter(empty.map(Ok))
            .try_for_each_concurrent(MAX_CONCURRENT_READS, |index_stream| async move {
                let entries =
                    reads.page(index_stream.partition, &index_stream.index, index_stream.after.as_ref(), page).await?;
                index_stream.exhausted = entries.len() < page;
                index_stream.after = entries.last().cloned().or(index_stream.after.take());
                index_stream.ahead = entries.into();
                Ok(())
            })
            .await
    }

    /// Reads the records of entries, with one call per partition.
    async fn records(&self, entries: Vec<(u32, Entry)>) -> Result<Vec<(Entry, Option<TaskView>)>, ApiError> {
        let mut by_partition: std::collections::BTreeMap<u32, (Vec<usize>, Vec<TaskId>)> = Default::default();
        for (index, (partition, entry)) in entries.iter().enumerate() {
            let (indexes, ids) = by_partition.entry(*partition).or_default();
            indexes.push(index);
            ids.push(entry.id.clone());
        }
        let reads = self.reads;
        let reads: Vec<_> = stream::iter(by_partition)
            .map(|(partition, (indexes, ids))| async move {
                Ok::<_, ApiError>((indexes, reads.read_many(partition, &ids).await?))
            })
            .buffer_unordered(MAX_CONCURRENT_READS)
            .try_collect()
            .await?;
        let mut records: Vec<(Entry, Option<TaskView>)> = entries.into_iter().map(|(_, entry)| (entry, None)).collect();
        for (index, task) in reads.into_iter().flat_map(|(indexes, tasks)| indexes.into_iter().zip(tasks)) {
            records[index].1 = task;
        }
        Ok(records)
    }
}
