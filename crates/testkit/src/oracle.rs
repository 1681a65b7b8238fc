//! Expected contents of a store: the same log, folded from the start into an empty store.

use std::collections::{BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use kafleet_broker::{Broker, ConsumerSpec, Partition, StartOffset};
use kafleet_config::Names;
use kafleet_model::event::Event;
use kafleet_model::projection::audit::MAX_AUDIT;
use kafleet_model::projection::changes::{Entry, Index};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::State;
use kafleet_model::retention::ExpiryKind;
use kafleet_model::statistics::Overview;
use kafleet_model::statistics::aggregate::{AggregateKey, Level};
use kafleet_model::task::id::TaskId;
use kafleet_store::memory::MemoryStore;
use kafleet_store::{ErrorLevel, Store};
use kafleet_tracker::project::projection::{LoggedEvent, Projection};

use crate::wait::DEADLINE;

/// Events per batch; differs from the trackers' batches on purpose.
const BATCH: usize = 333;
/// Small, to cover paging.
const PAGE: usize = 700;

/// The log, folded from the start.
pub struct Oracle {
    pub store: MemoryStore,
    pub task_records: Vec<Vec<(TaskId, TaskRecord)>>,
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
        let take = &mut |record: &kafleet_broker::RecordRef<'_>| {
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
        let (store, mut task_records, mut ends, mut count) = (MemoryStore::default(), Vec::new(), Vec::new(), 0);
        for number in 0..partitions {
            let (broker, partition) = (broker.clone(), Partition::new(names.events(), number as i32));
            let read = move || (broker.watermarks(&partition, DEADLINE).unwrap().low, read_log(&*broker, &partition));
            let (first, (events, end)) = tokio::task::spawn_blocking(read).await.unwrap();
            count += events.len();
            task_records.push(fold(&store, number, events, (first, end)).await);
            ends.push(end);
        }
        Self { store, task_records, events: count, ends }
    }

    pub fn tasks(&self) -> usize {
        self.task_records.iter().map(Vec::len).sum()
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
        let all: Vec<u32> = (0..self.task_records.len() as u32).collect();
        for (number, task_records) in all.iter().zip(&self.task_records) {
            equal_task_records(store, *number, task_records).await;
            equal_pages(store, &self.store, *number, task_records).await;
            has_done(store, *number, task_records).await;
            equal_logs(store, &self.store, *number, task_records).await;
            equal_kept(store, &self.store, *number, task_records).await;
            equal_attachments(store, &self.store, *number, task_records).await;
            equal_keys(store, &self.store, *number, task_records).await;
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
    let task_records = folding.working_set().task_records();
    task_records.map(|(id, task_record)| (id.clone(), task_record.clone())).collect()
}

async fn equal_task_records(store: &dyn Store, number: u32, task_records: &[(TaskId, TaskRecord)]) {
    for chunk in task_records.chunks(1_000) {
        let ids: Vec<TaskId> = chunk.iter().map(|(id, _)| id.clone()).collect();
        for ((id, expect), stored) in chunk.iter().zip(store.task_records(number, &ids).await.unwrap()) {
            let stored = stored.unwrap_or_else(|| panic!("`{id}` of partition {number} has no record"));
            assert_eq!(stored, *expect, "the record of `{id}`");
        }
    }
}

async fn equal_pages(store: &dyn Store, expect: &MemoryStore, number: u32, task_records: &[(TaskId, TaskRecord)]) {
    let parents: BTreeSet<TaskId> = task_records.iter().filter_map(|(id, _)| id.parent_id()).collect();
    let types: BTreeSet<Arc<str>> =
        task_records.iter().filter_map(|(_, task_record)| task_record.task_type.clone()).collect();
    let indexed: Vec<State> = State::ALL.into_iter().filter(|state| state.is_indexed()).collect();
    let members = types.iter().flat_map(|task_type| {
        indexed.iter().map(|state| Index::Members { task_type: task_type.clone(), state: *state })
    });
    let indexes = [Index::Roots, Index::Timers, Index::Effects, Index::Ages]
        .into_iter()
        .chain(parents.into_iter().map(Index::Children))
        .chain(members);
    for index in indexes {
        let (stored, expected) = (all_of(store, number, &index).await, all_of(expect, number, &index).await);
        assert_eq!(stored, expected, "{index:?} of partition {number}");
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
async fn has_done(store: &dyn Store, number: u32, task_records: &[(TaskId, TaskRecord)]) {
    let (mut stored, mut after_ms) = (BTreeSet::new(), i64::MIN);
    loop {
        let page = store.done(number, after_ms, 10_000).await.unwrap();
        let Some(first) = page.first() else { break };
        assert!(
            first.seen_ms > after_ms && page.iter().all(|entry| entry.seen_ms == first.seen_ms),
            "a page has a single time"
        );
        after_ms = first.seen_ms;
        stored.extend(page);
    }
    for (id, task_record) in task_records {
        if let Some(age) = task_record.times.expiry.filter(|age| age.kind == ExpiryKind::Done) {
            let entry = Entry { seen_ms: age.due_ms, id: id.clone() };
            assert!(stored.contains(&entry), "partition {number} lacks the removal time of `{id}`");
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
    let stored = store.statistics(number, &[], &[]).await.unwrap().overview;
    assert_eq!(stored, expect.statistics(number, &[], &[]).await.unwrap().overview, "overview of partition {number}");
    let Some(overview) = stored else { return };
    let aggregates = kept_aggregates(&overview);
    let hours: Vec<i64> = overview.open_hour().into_iter().flat_map(|hour| hour - 48..=hour).collect();
    for listed in &overview.series {
        let series = std::slice::from_ref(&listed.name);
        let subject = format!("`{}` in partition {number}", listed.name);
        let stored = store.statistics(number, series, &aggregates).await.unwrap().aggregates;
        assert!(!stored.is_empty(), "statistics of {subject}");
        assert_eq!(
            stored,
            expect.statistics(number, series, &aggregates).await.unwrap().aggregates,
            "statistics of {subject}"
        );
        let stored = store.error_summaries(number, &listed.name, &hours).await.unwrap();
        assert_eq!(stored, expect.error_summaries(number, &listed.name, &hours).await.unwrap(), "errors of {subject}");
    }
}

async fn equal_errors(store: &dyn Store, expect: &MemoryStore, number: u32) {
    for task_type in expect.counts(&[number]).await.unwrap().into_iter().map(|count| count.task_type) {
        for level in [ErrorLevel::Kind, ErrorLevel::Message] {
            let stored = store.error_groups(number, &task_type, level, 0, 10_000).await.unwrap();
            let expected = expect.error_groups(number, &task_type, level, 0, 10_000).await.unwrap();
            assert_eq!(stored, expected, "failed tasks of `{task_type}` by {level:?} in partition {number}");
            for group in expected.groups {
                let index = Index::Failed { task_type: task_type.clone(), error: group.error };
                let (stored, expected) = (all_of(store, number, &index).await, all_of(expect, number, &index).await);
                assert_eq!(stored, expected, "{index:?} of partition {number}");
            }
        }
    }
    let stored = store.requests(number, MAX_AUDIT).await.unwrap();
    assert_eq!(stored, expect.requests(number, MAX_AUDIT).await.unwrap(), "requests in partition {number}");
}

async fn equal_logs(store: &dyn Store, expect: &MemoryStore, number: u32, task_records: &[(TaskId, TaskRecord)]) {
    for (id, _) in task_records.iter().filter(|(_, task_record)| task_record.log.lines > 0) {
        let stored = store.log_lines(number, id, 0, 10_000).await.unwrap();
        assert_eq!(stored, expect.log_lines(number, id, 0, 10_000).await.unwrap(), "the log of `{id}`");
    }
}

async fn equal_kept(store: &dyn Store, expect: &MemoryStore, number: u32, task_records: &[(TaskId, TaskRecord)]) {
    let ids: Vec<TaskId> = task_records.iter().map(|(id, _)| id.clone()).collect();
    let stored = store.deferred(number, &ids).await.unwrap();
    for (((id, task_record), stored), expect) in
        task_records.iter().zip(stored).zip(expect.deferred(number, &ids).await.unwrap())
    {
        assert_eq!(stored, expect, "the deferred record of `{id}`");
        assert_eq!(
            stored.map_or(0, |deferred| deferred.len()),
            task_record.deferral.stored_bytes() as usize,
            "the size of the deferred record of `{id}`"
        );
    }
}

/// Compares the keys of unique tasks, by the tags of the tasks.
async fn equal_keys(store: &dyn Store, expect: &MemoryStore, number: u32, task_records: &[(TaskId, TaskRecord)]) {
    let tags: BTreeSet<&str> = task_records.iter().filter_map(|(id, _)| id.tag()).collect();
    let tags: Vec<String> = tags.into_iter().map(str::to_owned).collect();
    let stored = store.unique_keys(number, &tags).await.unwrap();
    assert_eq!(stored, expect.unique_keys(number, &tags).await.unwrap(), "the keys {tags:?} of partition {number}");
}

async fn equal_attachments(
    store: &dyn Store,
    expect: &MemoryStore,
    number: u32,
    task_records: &[(TaskId, TaskRecord)],
) {
    for (id, name) in task_records
        .iter()
        .flat_map(|(id, task_record)| task_record.attachments.iter().map(move |attachment| (id, &attachment.name)))
    {
        let stored = store.attachment(number, id, name).await.unwrap();
        assert!(stored.is_some(), "`{name}` of `{id}` is listed but missing");
        assert_eq!(stored, expect.attachment(number, id, name).await.unwrap(), "`{name}` of `{id}`");
    }
}
