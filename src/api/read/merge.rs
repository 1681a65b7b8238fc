//! One index over all partitions, or several that have no task in common, newest first.

use std::collections::VecDeque;

use futures::stream::{self, StreamExt, TryStreamExt};

use super::consistency::TaskView;
use crate::api::Api;
use crate::api::http::problem::ApiError;
use crate::model::task::id::TaskId;
use crate::store::{Entry, Index};

/// Partitions asked at once.
const AT_ONCE: usize = 32;
/// Entries read ahead of an index where there are many of them.
const MIN_PAGE: usize = 16;

/// A place in the merged index.
pub struct Merge<'a> {
    api: &'a Api,
    lanes: Vec<IndexStream>,
    /// Entries asked of a lane at a time.
    page: usize,
}

/// An index of a partition.
struct IndexStream {
    partition: u32,
    index: Index,
    /// The last entry that was read.
    after: Option<Entry>,
    ahead: VecDeque<Entry>,
    exhausted: bool,
}

impl<'a> Merge<'a> {
    /// Begins behind `after`; about `page` entries are read ahead of each partition.
    pub fn new(api: &'a Api, indexes: Vec<Index>, after: Option<Entry>, page: usize) -> Self {
        let page = (page / indexes.len().max(1)).max(MIN_PAGE.min(page));
        let lane =
            |partition, index| IndexStream { partition, index, after: after.clone(), ahead: VecDeque::new(), exhausted: false };
        let of = |partition| indexes.iter().map(move |index| lane(partition, index.clone()));
        Self { api, lanes: api.partitions().into_iter().flat_map(of).collect(), page }
    }

    /// The next entries, at most `limit`, with the records that they still have. Empty: there are no more.
    pub async fn next(&mut self, limit: usize) -> Result<Vec<(Entry, Option<TaskView>)>, ApiError> {
        let mut entries = Vec::with_capacity(limit);
        while entries.len() < limit {
            self.fill().await?;
            let Some(newest) = self.lanes.iter_mut().max_by(|a, b| a.ahead.front().cmp(&b.ahead.front())) else { break };
            let Some(entry) = newest.ahead.pop_front() else { break };
            entries.push((newest.partition, entry));
        }
        self.records(entries).await
    }

    /// Reads on where nothing is at hand.
    async fn fill(&mut self) -> Result<(), ApiError> {
        let (api, page) = (self.api, self.page);
        let empty = self.lanes.iter_mut().filter(|lane| lane.ahead.is_empty() && !lane.exhausted);
        stream::iter(empty.map(Ok))
            .try_for_each_concurrent(AT_ONCE, |lane| async move {
                let entries = api.page(lane.partition, &lane.index, lane.after.as_ref(), page).await?;
                lane.exhausted = entries.len() < page;
                lane.after = entries.last().cloned().or(lane.after.take());
                lane.ahead = entries.into();
                Ok(())
            })
            .await
    }

    /// The records of entries, each partition asked once.
    async fn records(&self, entries: Vec<(u32, Entry)>) -> Result<Vec<(Entry, Option<TaskView>)>, ApiError> {
        let mut by_partition: std::collections::BTreeMap<u32, (Vec<usize>, Vec<TaskId>)> = Default::default();
        for (place, (partition, entry)) in entries.iter().enumerate() {
            let (places, ids) = by_partition.entry(*partition).or_default();
            places.push(place);
            ids.push(entry.id.clone());
        }
        let api = self.api;
        let looked: Vec<_> = stream::iter(by_partition)
            .map(|(partition, (places, ids))| async move { Ok::<_, ApiError>((places, api.look_many(partition, &ids).await?)) })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let mut records: Vec<(Entry, Option<TaskView>)> = entries.into_iter().map(|(_, entry)| (entry, None)).collect();
        for (place, found) in looked.into_iter().flat_map(|(places, found)| places.into_iter().zip(found)) {
            records[place].1 = found;
        }
        Ok(records)
    }
}
