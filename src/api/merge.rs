//! One index over all partitions, newest first.

use std::collections::VecDeque;

use futures::stream::{self, StreamExt, TryStreamExt};

use super::Api;
use super::fresh::Found;
use super::problem::Refusal;
use crate::model::id::TaskId;
use crate::store::{Entry, Index};

/// Partitions asked at once.
const AT_ONCE: usize = 32;

/// A place in the merged index.
pub struct Merge<'a> {
    api: &'a Api,
    index: Index,
    lanes: Vec<Lane>,
    /// Entries asked of a partition at a time.
    page: usize,
}

struct Lane {
    partition: u32,
    /// The last entry that was read.
    after: Option<Entry>,
    ahead: VecDeque<Entry>,
    exhausted: bool,
}

impl<'a> Merge<'a> {
    /// Begins behind `after`.
    pub fn new(api: &'a Api, index: Index, after: Option<Entry>, page: usize) -> Self {
        let lane = |partition| Lane { partition, after: after.clone(), ahead: VecDeque::new(), exhausted: false };
        Self { api, index, lanes: api.partitions().into_iter().map(lane).collect(), page }
    }

    /// The next entries, at most `limit`, with the records that they still have. Empty: there are no more.
    pub async fn next(&mut self, limit: usize) -> Result<Vec<(Entry, Option<Found>)>, Refusal> {
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
    async fn fill(&mut self) -> Result<(), Refusal> {
        let (api, index, page) = (self.api, &self.index, self.page);
        let empty = self.lanes.iter_mut().filter(|lane| lane.ahead.is_empty() && !lane.exhausted);
        stream::iter(empty.map(Ok))
            .try_for_each_concurrent(AT_ONCE, |lane| async move {
                let entries = api.page(lane.partition, index, lane.after.as_ref(), page).await?;
                lane.exhausted = entries.len() < page;
                lane.after = entries.last().cloned().or(lane.after.take());
                lane.ahead = entries.into();
                Ok(())
            })
            .await
    }

    /// The records of entries, each partition asked once.
    async fn records(&self, entries: Vec<(u32, Entry)>) -> Result<Vec<(Entry, Option<Found>)>, Refusal> {
        let mut by_partition: std::collections::BTreeMap<u32, (Vec<usize>, Vec<TaskId>)> = Default::default();
        for (place, (partition, entry)) in entries.iter().enumerate() {
            let (places, ids) = by_partition.entry(*partition).or_default();
            places.push(place);
            ids.push(entry.id.clone());
        }
        let api = self.api;
        let looked: Vec<_> = stream::iter(by_partition)
            .map(|(partition, (places, ids))| async move { Ok::<_, Refusal>((places, api.look_many(partition, &ids).await?)) })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let mut records: Vec<(Entry, Option<Found>)> = entries.into_iter().map(|(_, entry)| (entry, None)).collect();
        for (place, found) in looked.into_iter().flat_map(|(places, found)| places.into_iter().zip(found)) {
            records[place].1 = found;
        }
        Ok(records)
    }
}
