//! Expected contents of a store: the same log, folded from the start into an empty store.

use std::collections::{BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use kafleet::broker::{Broker, ConsumerSpec, Partition, StartOffset};
use kafleet::config::Names;
use kafleet::model::event::Event;
use kafleet::model::projection::audit::MAX_AUDIT;
use kafleet::model::projection::changes::{Entry, Index};
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::model::retention::ExpiryKind;
use kafleet::model::statistics::Overview;
use kafleet::model::statistics::aggregate::{AggregateKey, Level};
use kafleet::model::task::id::TaskId;
use kafleet::store::Store;
use kafleet::store::memory::MemoryStore;
use kafleet::tracker::project::projection::{LoggedEvent, Projection};

use crate::support::wait::DEADLINE;

/// Events per batch; differs from the trackers' batches on purpose.
const BATCH: usize = 333;
/// Small, to cover paging.
const PAGE: usize = 700;

/// The log, folded from the start.
pub struct Oracle {
    pub store: MemoryStore,
    pub nodes: Vec<Vec<(TaskId, TaskRecord)>>,
    pub events: usize,
    /// Ends of the partitions when they were read.
    pub ends: Vec<i64>,
}

/// Reads all events of a partition in order; invalid records are skipped.
pub fn read_log(broker: &dyn Broker, partition: &Partition) -> (Vec<LoggedEvent>, i64) {
    let ends = broker.watermarks(partition, DEADLINE).unwrap();
    let mut consumer = broker.consumer(&ConsumerSpec::default()).unwrap();
    consumer.assign(&[(partition.clone(), StartOffset::Beginning)]).unwrap();
    let (mut events, mut next, started) = (Vec::new(), ends.low, Instant::now());
    while next < ends.high {
        assert!(started.elapsed() < DEADLINE, "{partition} is read up to {next} of {}", ends.high);
        let take = &mut |record: &kafleet::broker::RecordRef<'_>| {
            next = record.offset + 1;
            if let Ok(event) = Event::decode(record.value.unwrap_or_default()) {
                events.push(LoggedEvent { event, offset: record.offset, timestamp_ms: record.timestamp_ms });
            }
        };
        consumer.poll(5_000, Duration::from_millis(100), take).unwrap();
        // Transaction markers are not delivered.
        next = consumer.positions().unwrap().first().map_or(next, |(_, partition)| next.max(*partition));
    }
    consumer.close(DEADLINE);
    (events, ends.high)
}

impl Oracle {
    pub async fn of(broker: Arc<dyn Broker>, names: &Names, partitions: u32) -> Self {
        let (store, mut nodes, mut ends, mut count) = (MemoryStore::default(), Vec::new(), Vec::new(), 0);
        for number in 0..partitions {
            let (broker, partition) = (broker.clone(), Partition::new(names.events(), number as i32));
            let read = move || (broker.watermarks(&partition, DEADLINE).unwrap().low, read_log(&*broker, &partition));
            let (first, (events, end)) = tokio::task::spawn_blocking(read).await.unwrap();
            count += events.len();
            nodes.push(fold(&store, number, events, (first, end)).await);
            ends.push(end);
        }
        Self { store, nodes, events: count, ends }
    }

    pub fn tasks(&self) -> usize {
        self.nodes.iter().map(Vec::len).sum()
    }

    /// Compares with a store that may still be written to; `is_at` returns whether the log and the store's
    /// checkpoints are at these offsets. A difference counts only if they are so before and after it; otherwise
    /// returns `None`.
    pub async fn settles(self, store: &dyn Store, is_at: impl AsyncFn(&[i64]) -> bool) -> Option<Self> {
        let before = is_at(&self.ends).await;
        match AssertUnwindSafe(self.equals(store)).catch_unwind().await {
            Ok(()) => Some(self),
            Err(difference) if before && is_at(&self.ends).await => std::panic::resume_unwind(difference),
            Err(_) => None,
        }
    }

    /// Asserts that every record, counter, index, log and attachment is equal in this store.
    pub async fn equals(&self, store: &dyn Store) {
        let all: Vec<u32> = (0..self.nodes.len() as u32).collect();
        for (number, nodes) in all.iter().zip(&self.nodes) {
            equal_nodes(store, *number, nodes).await;
            equal_pages(store, &self.store, *number, nodes).await;
            has_done(store, *number, nodes).await;
            equal_logs(store, &self.store, *number, nodes).await;
            equal_kept(store, &self.store, *number, nodes).await;
            equal_attachments(store, &self.store, *number, nodes).await;
            equal_statistics(store, &self.store, *number).await;
            equal_errors(store, &self.store, *number).await;
        }
        assert_eq!(store.counts(&all).await.unwrap(), self.store.counts(&all).await.unwrap(), "counts");
    }
}

async fn fold(
    store: &MemoryStore,
    number: u32,
    events: Vec<LoggedEvent>,
    (first, end): (i64, i64),
) -> Vec<(TaskId, TaskRecord)> {
    let mut folding = Projection::open(Arc::new(store.clone()), number).await.unwrap();
    folding.begin_empty(first, end);
    let mut events = VecDeque::from(events);
    while !events.is_empty() {
        let batch: Vec<LoggedEvent> = events.drain(..BATCH.min(events.len())).collect();
        let next = events.front().map_or(end, |logged| logged.offset);
        folding.fold(&batch, next).await.unwrap();
    }
    let nodes = folding.working_set().nodes();
    nodes.map(|(id, node)| (id.clone(), node.clone())).collect()
}

async fn equal_nodes(store: &dyn Store, number: u32, nodes: &[(TaskId, TaskRecord)]) {
    for chunk in nodes.chunks(1_000) {
        let ids: Vec<TaskId> = chunk.iter().map(|(id, _)| id.clone()).collect();
        for ((id, expect), found) in chunk.iter().zip(store.nodes(number, &ids).await.unwrap()) {
            let found = found.unwrap_or_else(|| panic!("`{id}` of partition {number} has no record"));
            assert_eq!(found, *expect, "the record of `{id}`");
        }
    }
}

async fn equal_pages(store: &dyn Store, expect: &MemoryStore, number: u32, nodes: &[(TaskId, TaskRecord)]) {
    let parents: BTreeSet<TaskId> = nodes.iter().filter_map(|(id, _)| id.parent_id()).collect();
    let types: BTreeSet<Arc<str>> = nodes.iter().filter_map(|(_, node)| node.task_type.clone()).collect();
    let indexed: Vec<State> = State::ALL.into_iter().filter(|state| state.is_indexed()).collect();
    let members = types.iter().flat_map(|task_type| {
        indexed.iter().map(|state| Index::Members { task_type: task_type.clone(), state: *state })
    });
    let indexes = [Index::Roots, Index::Timers, Index::Effects, Index::Ages]
        .into_iter()
        .chain(parents.into_iter().map(Index::Children))
        .chain(members);
    for index in indexes {
        let (found, expected) = (all_of(store, number, &index).await, all_of(expect, number, &index).await);
        assert_eq!(found, expected, "{index:?} of partition {number}");
    }
}

async fn all_of(store: &dyn Store, number: u32, index: &Index) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let page = store.page(number, index, all.last(), PAGE).await.unwrap();
        let last = page.len() < PAGE;
        all.extend(page);
        if last {
            return all;
        }
    }
}

/// Checks that every finished root is listed under its removal time. Additional entries are allowed.
async fn has_done(store: &dyn Store, number: u32, nodes: &[(TaskId, TaskRecord)]) {
    let (mut found, mut after_ms) = (BTreeSet::new(), i64::MIN);
    loop {
        let page = store.done(number, after_ms, 10_000).await.unwrap();
        let Some(first) = page.first() else { break };
        assert!(
            first.seen_ms > after_ms && page.iter().all(|entry| entry.seen_ms == first.seen_ms),
            "a page has a single time"
        );
        after_ms = first.seen_ms;
        found.extend(page);
    }
    for (id, node) in nodes {
        if let Some(age) = node.times.expiry.filter(|age| age.kind == ExpiryKind::Done) {
            let entry = Entry { seen_ms: age.due_ms, id: id.clone() };
            assert!(found.contains(&entry), "partition {number} lacks the removal time of `{id}`");
        }
    }
}

/// Names of all aggregates that a store may hold.
pub fn kept_aggregates(overview: &Overview) -> Vec<AggregateKey> {
    let Some(minute) = overview.minute else { return Vec::new() };
    let of = |level: Level| {
        let last = AggregateKey::of_minute(level, minute).number;
        let kept = (level.kept_hours() + 24) * 60 / level.minutes();
        (last - kept..=last).map(move |number| AggregateKey { level, number })
    };
    Level::ALL.into_iter().flat_map(of).collect()
}

async fn equal_statistics(store: &dyn Store, expect: &MemoryStore, number: u32) {
    let found = store.statistics(number, &[], &[]).await.unwrap().overview;
    assert_eq!(found, expect.statistics(number, &[], &[]).await.unwrap().overview, "overview of partition {number}");
    let Some(overview) = found else { return };
    let aggregates = kept_aggregates(&overview);
    let hours: Vec<i64> = overview.open_hour().into_iter().flat_map(|hour| hour - 48..=hour).collect();
    for listed in &overview.series {
        let series = std::slice::from_ref(&listed.name);
        let what = format!("`{}` in partition {number}", listed.name);
        let found = store.statistics(number, series, &aggregates).await.unwrap().aggregates;
        assert!(!found.is_empty(), "statistics of {what}");
        assert_eq!(
            found,
            expect.statistics(number, series, &aggregates).await.unwrap().aggregates,
            "statistics of {what}"
        );
        let found = store.error_summaries(number, &listed.name, &hours).await.unwrap();
        assert_eq!(found, expect.error_summaries(number, &listed.name, &hours).await.unwrap(), "errors of {what}");
    }
}

async fn equal_errors(store: &dyn Store, expect: &MemoryStore, number: u32) {
    for task_type in expect.counts(&[number]).await.unwrap().into_iter().map(|count| count.task_type) {
        let found = store.error_groups(number, &task_type, 10_000).await.unwrap();
        let expected = expect.error_groups(number, &task_type, 10_000).await.unwrap();
        assert_eq!(found, expected, "failed tasks of `{task_type}` in partition {number}");
        for group in expected.groups {
            let index = Index::Failed { task_type: task_type.clone(), error: group.error };
            let (found, expected) = (all_of(store, number, &index).await, all_of(expect, number, &index).await);
            assert_eq!(found, expected, "{index:?} of partition {number}");
        }
    }
    let found = store.requests(number, MAX_AUDIT).await.unwrap();
    assert_eq!(found, expect.requests(number, MAX_AUDIT).await.unwrap(), "requests in partition {number}");
}

async fn equal_logs(store: &dyn Store, expect: &MemoryStore, number: u32, nodes: &[(TaskId, TaskRecord)]) {
    for (id, _) in nodes.iter().filter(|(_, node)| node.log.lines > 0) {
        let found = store.log_lines(number, id, 0, 10_000).await.unwrap();
        assert_eq!(found, expect.log_lines(number, id, 0, 10_000).await.unwrap(), "the log of `{id}`");
    }
}

async fn equal_kept(store: &dyn Store, expect: &MemoryStore, number: u32, nodes: &[(TaskId, TaskRecord)]) {
    let ids: Vec<TaskId> = nodes.iter().map(|(id, _)| id.clone()).collect();
    let found = store.deferred(number, &ids).await.unwrap();
    for (((id, node), found), expect) in nodes.iter().zip(found).zip(expect.deferred(number, &ids).await.unwrap()) {
        assert_eq!(found, expect, "the deferred record of `{id}`");
        assert_eq!(
            found.map_or(0, |deferred| deferred.len()),
            node.deferral.record_bytes as usize,
            "the size of the deferred record of `{id}`"
        );
    }
}

async fn equal_attachments(store: &dyn Store, expect: &MemoryStore, number: u32, nodes: &[(TaskId, TaskRecord)]) {
    for (id, name) in nodes.iter().flat_map(|(id, node)| node.attachments.iter().map(move |one| (id, &one.name))) {
        let found = store.attachment(number, id, name).await.unwrap();
        assert!(found.is_some(), "`{name}` of `{id}` is listed but missing");
        assert_eq!(found, expect.attachment(number, id, name).await.unwrap(), "`{name}` of `{id}`");
    }
}
