//! Counters by type and state are exact at every moment: after each batch they equal a count of all records, with
//! several writers, with duplicate events, and while old trees are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use kafleet::model::error_fingerprint::Fingerprint;
use kafleet::model::projection::changes::{Entry, Index};
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::model::statistics::aggregate::{AggregateKey, Level};
use kafleet::model::task::id::TaskId;
use kafleet::store::memory::MemoryStore;
use kafleet::store::{ErrorLevel, Store, TypeCount};
use kafleet::tracker::project::projection::{LoggedEvent, Projection};
use kafleet_testkit::oracle::kept_aggregates;
use kafleet_testkit::redis::Server;

use crate::tracker::ages::{TASKS, logged, steps_to_events};

type Counts = BTreeMap<(Arc<str>, State), u64>;

async fn everything(store: &dyn Store, index: &Index) -> Vec<(Entry, TaskRecord)> {
    let (mut stored, mut after) = (Vec::new(), None);
    loop {
        let page = store.page(0, index, after.as_ref(), 100).await.unwrap();
        let Some(last) = page.last().cloned() else { return stored };
        let ids: Vec<TaskId> = page.iter().map(|entry| entry.id.clone()).collect();
        let task_records = store.task_records(0, &ids).await.unwrap();
        stored.extend(
            page.into_iter()
                .zip(task_records)
                .map(|(entry, task_record)| (entry, task_record.expect("every listed task has a record"))),
        );
        after = Some(last);
    }
}

/// Reads all records from the roots down.
async fn records(store: &dyn Store) -> Vec<(TaskId, TaskRecord)> {
    let (mut all, mut open) = (Vec::new(), vec![Index::Roots]);
    while let Some(index) = open.pop() {
        for (entry, task_record) in everything(store, &index).await {
            open.push(Index::Children(entry.id.clone()));
            all.push((entry.id, task_record));
        }
    }
    all
}

async fn expect_exact(store: &dyn Store, when: &str) {
    let records = records(store).await;
    let mut counts = Counts::new();
    let mut members: BTreeMap<(Arc<str>, State), BTreeSet<TaskId>> = BTreeMap::new();
    for (id, task_record) in &records {
        let Some(task_type) = &task_record.task_type else { continue };
        *counts.entry((task_type.clone(), task_record.state)).or_default() += 1;
        if task_record.state.is_indexed() {
            members.entry((task_type.clone(), task_record.state)).or_default().insert(id.clone());
        }
    }
    let stored: Counts = store
        .counts(&[0])
        .await
        .unwrap()
        .into_iter()
        .map(|TypeCount { task_type, state, count }| ((task_type, state), count))
        .collect();
    assert_eq!(stored, counts, "{when}");
    expect_exact_statistics(store, &records, when).await;
    for task_type in ["root", "child"] {
        for state in State::ALL.into_iter().filter(|state| state.is_indexed()) {
            let index = Index::Members { task_type: task_type.into(), state };
            let listed: BTreeSet<TaskId> =
                everything(store, &index).await.into_iter().map(|(entry, _)| entry.id).collect();
            assert_eq!(
                listed,
                members.remove(&(task_type.into(), state)).unwrap_or_default(),
                "{when}: {task_type} {state}"
            );
        }
    }
}

/// Checks the numbers of open tasks and the groups of failed tasks against the records.
async fn expect_exact_statistics(store: &dyn Store, records: &[(TaskId, TaskRecord)], when: &str) {
    let Some(overview) = store.statistics(0, &[], &[]).await.unwrap().overview else { return };
    let (aggregates, minute) = (kept_aggregates(&overview), overview.minute.unwrap());
    for listed in overview.series.iter().filter(|listed| &*listed.name != "*") {
        let of_type = |task_record: &TaskRecord| task_record.task_type.as_ref() == Some(&listed.name);
        let stored = store.statistics(0, std::slice::from_ref(&listed.name), &aggregates).await.unwrap();
        let counts = |key: &AggregateKey| match key.level {
            Level::Minute => key.number == minute,
            level => level == Level::Day,
        };
        let sum: i64 = stored
            .aggregates
            .iter()
            .filter(|(_, key, _)| counts(key))
            .map(|(.., aggregate)| aggregate.open_change())
            .sum();
        let open =
            records.iter().filter(|(_, task_record)| of_type(task_record) && !task_record.own.is_terminal()).count();
        assert_eq!(sum, open as i64, "{when}: opened - ended - dropped of `{}`", listed.name);
        let mut failed: BTreeMap<Fingerprint, u64> = BTreeMap::new();
        for (_, task_record) in records.iter().filter(|(_, task_record)| of_type(task_record)) {
            if matches!(task_record.own, State::Failed | State::Expired) {
                *failed.entry(Fingerprint::of(task_record.outcome.error.as_deref())).or_default() += 1;
            }
        }
        let groups = store.error_groups(0, &listed.name, ErrorLevel::Message, 0, 100).await.unwrap();
        let groups: BTreeMap<Fingerprint, u64> =
            groups.groups.into_iter().map(|group| (group.error, group.count)).collect();
        assert_eq!(groups, failed, "{when}: failed tasks of `{}` by error", listed.name);
    }
    let (mut writer, _) = store.open(0).await.unwrap();
    assert_eq!(writer.verify_totals().await.unwrap(), None, "{when}");
}

/// A log with many duplicate events.
fn event_log(random: &mut fastrand::Rng) -> Vec<LoggedEvent> {
    let steps: Vec<(usize, u8, i64)> =
        (0..random.usize(40..160)).map(|_| (random.usize(..TASKS.len()), random.u8(..12), random.i64(0..14))).collect();
    let mut events = steps_to_events(&steps);
    for _ in 0..events.len() / 5 {
        let at = random.usize(..events.len());
        let (_, again) = events[at].clone();
        let later = random.usize(at..events.len());
        let time = events[later].0;
        events.insert(later + 1, (time, again));
    }
    logged(events)
}

/// Two trackers that both consider themselves the partition's owner write alternately, each from its own state.
async fn expect_exact_counts(store: Arc<dyn Store>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let events = event_log(&mut random);
    let end = events.last().map_or(0, |last| last.offset + 1);
    let open = async || Projection::open(store.clone(), 0).await.unwrap();
    let mut owners = [open().await, open().await];
    let (mut refused, mut done) = (0, 0);
    while done < end {
        let owner = random.usize(..2);
        let from = owners[owner].checkpoint().map_or(0, |checkpoint| checkpoint.offset);
        let first = events.partition_point(|logged| logged.offset < from);
        let batch = &events[first..(first + random.usize(1..12)).min(events.len())];
        let next = events.get(first + batch.len()).map_or(end, |logged| logged.offset);
        let is_zombie = owners[owner].checkpoint() != store.checkpoints(&[0]).await.unwrap()[0];
        // The state of a zombie does not match the store and may be inconsistent.
        match AssertUnwindSafe(owners[owner].fold(batch, next)).catch_unwind().await {
            Ok(Ok(_)) if !is_zombie => done = done.max(next),
            Ok(Err(_)) | Err(_) if is_zombie => {
                refused += 1;
                owners[owner] = open().await;
            }
            stored => panic!("seed {seed}: zombie: {is_zombie}, refused: {:?}", stored.map(Result::err)),
        }
        if random.u8(..20) == 0 {
            // It fails and resumes from the store's checkpoint.
            owners[owner] = open().await;
        }
        expect_exact(&*store, &format!("seed {seed}, up to {next}")).await;
    }
    assert!(refused > 0, "seed {seed}: no batch was fenced");
}

#[tokio::test]
async fn counters_are_exact_at_every_moment() {
    for seed in 0..24 {
        expect_exact_counts(Arc::new(MemoryStore::default()), seed).await;
    }
}

#[tokio::test]
async fn counters_are_exact_on_redis() {
    if kafleet_testkit::services::redis().is_none() {
        return;
    }
    let server = Server::start();
    for seed in 0..8 {
        expect_exact_counts(Arc::new(server.store(&format!("s{seed}"))), seed).await;
    }
}
