//! Conformance cases. Each gets an empty store.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use kafleet::model::projection::changes::Changes;
use kafleet::model::record::state::State;
use kafleet::model::record::{HistoryEntry, Moment};
use kafleet::model::task::Position;
use kafleet::store::{
    Checkpoint, Entry, Index, LogPage, MAX_LOG_BYTES, MAX_LOG_LINES, MAX_NOTICE_IDS, MAX_NOTICE_TYPES, Notice, Outbox,
    Reservation, Stage, Store, StoreError, TypeCount,
};

use crate::store_conformance::fixture::*;

mod pages;
mod reservations;
mod statistics;

pub use pages::*;
pub use reservations::*;
pub use statistics::*;

pub async fn partition_starts_without_a_checkpoint(fixture: &Fixture) {
    let (mut writer, found) = fixture.open(0).await;
    assert_eq!(found, None);
    assert_eq!(fixture.store.checkpoints(&[0]).await.unwrap(), [None]);
    writer.apply(&full_batch("a"), None, checkpoint(10)).await.unwrap();
    writer.apply(&full_batch("b"), Some(checkpoint(10)), checkpoint(12)).await.unwrap();
    assert_eq!(fixture.store.checkpoints(&[0]).await.unwrap(), [Some(checkpoint(12))]);
    assert_eq!(fixture.open(0).await.1, Some(checkpoint(12)));
    assert_eq!(fixture.store.check().await, Ok(()));
}

pub async fn batch_from_a_stale_checkpoint_is_rejected(fixture: &Fixture) {
    fixture.put(0, Changes::default()).await;
    for stale in [None, Some(checkpoint(0)), Some(Checkpoint { version: 9, ..checkpoint(1) })] {
        let (mut writer, _) = fixture.open(0).await;
        let refused = writer.apply(&full_batch("a"), stale, checkpoint(9)).await;
        assert_eq!(refused, Err(StoreError::Conflict { stored: Some(checkpoint(1)) }));
    }
    expect_untouched(&*fixture.store, "a").await;
    assert_eq!(fixture.store.checkpoints(&[0]).await.unwrap(), [Some(checkpoint(1))]);
}

pub async fn second_writer_fences_the_first(fixture: &Fixture) {
    let (mut first, _) = fixture.open(0).await;
    first.apply(&Changes::default(), None, checkpoint(1)).await.unwrap();
    let (mut second, found) = fixture.open(0).await;
    second.apply(&Changes::default(), found, checkpoint(2)).await.unwrap();
    let refused = first.apply(&full_batch("a"), Some(checkpoint(1)), checkpoint(3)).await;
    assert_eq!(refused, Err(StoreError::Conflict { stored: Some(checkpoint(2)) }));
    expect_untouched(&*fixture.store, "a").await;
    second.apply(&full_batch("a"), Some(checkpoint(2)), checkpoint(3)).await.unwrap();
}

pub async fn wiped_store_is_detected(fixture: &Fixture) {
    let (mut writer, _) = fixture.open(0).await;
    writer.apply(&full_batch("a"), None, checkpoint(1)).await.unwrap();
    fixture.wipe().await;
    let refused = writer.apply(&full_batch("b"), Some(checkpoint(1)), checkpoint(2)).await;
    assert_eq!(refused, Err(StoreError::Conflict { stored: None }));
    expect_untouched(&*fixture.store, "b").await;
    let (mut writer, found) = fixture.open(0).await;
    assert_eq!(found, None);
    writer.apply(&full_batch("a"), None, checkpoint(2)).await.unwrap();
}

pub async fn restored_store_is_detected(fixture: &Fixture) {
    let (mut writer, _) = fixture.open(0).await;
    writer.apply(&Changes::default(), None, checkpoint(1)).await.unwrap();
    let saved = fixture.save().await;
    writer.apply(&full_batch("a"), Some(checkpoint(1)), checkpoint(2)).await.unwrap();
    fixture.restore(&saved).await;
    let refused = writer.apply(&full_batch("b"), Some(checkpoint(2)), checkpoint(3)).await;
    assert_eq!(refused, Err(StoreError::Conflict { stored: Some(checkpoint(1)) }));
    expect_untouched(&*fixture.store, "a").await;
    let (mut writer, found) = fixture.open(0).await;
    writer.apply(&full_batch("a"), found, checkpoint(2)).await.unwrap();
}

/// Data written and removed in between is detected: the empty store before it differs from the empty store after it.
pub async fn temporary_data_is_detected(fixture: &Fixture) {
    let (mut early, found) = fixture.open(0).await;
    assert_eq!(found, None);
    fixture.put(0, full_batch("a")).await;
    assert!(early.task_records(&[id("a")]).await.unwrap()[0].is_some());
    fixture.wipe().await;
    let refused = early.apply(&full_batch("b"), None, checkpoint(1)).await;
    assert_eq!(refused, Err(StoreError::Conflict { stored: None }));
    expect_untouched(&*fixture.store, "b").await;
    let (mut late, found) = fixture.open(0).await;
    late.apply(&full_batch("a"), found, checkpoint(1)).await.unwrap();
}

/// A store that is restored and wiped as a whole is detected too.
pub async fn store_restored_twice_is_detected(fixture: &Fixture) {
    let empty = fixture.save().await;
    fixture.put(0, full_batch("a")).await;
    let full = fixture.save().await;
    fixture.restore(&empty).await;
    let (mut writer, found) = fixture.open(0).await;
    assert_eq!(found, None);
    fixture.restore(&full).await;
    assert!(writer.task_records(&[id("a")]).await.unwrap()[0].is_some());
    fixture.restore(&empty).await;
    let refused = writer.apply(&full_batch("b"), None, checkpoint(1)).await;
    assert_eq!(refused, Err(StoreError::Conflict { stored: None }));
    expect_untouched(&*fixture.store, "b").await;
}

pub async fn writer_is_closed_after_a_rejection(fixture: &Fixture) {
    let (mut writer, _) = fixture.open(0).await;
    assert!(writer.apply(&Changes::default(), Some(checkpoint(5)), checkpoint(6)).await.is_err());
    let notice = "the writer is closed: open a new one";
    assert!(is_unavailable(&writer.apply(&Changes::default(), None, checkpoint(1)).await, notice));
    assert!(is_unavailable(&writer.task_records(&[id("a")]).await.map(drop), notice));
    assert_eq!(fixture.store.checkpoints(&[0]).await.unwrap(), [None]);
}

pub async fn empty_batch_moves_the_checkpoint(fixture: &Fixture) {
    let (mut writer, _) = fixture.open(0).await;
    writer.apply(&Changes::default(), None, checkpoint(0)).await.unwrap();
    writer.apply(&Changes::default(), Some(checkpoint(0)), checkpoint(7)).await.unwrap();
    assert_eq!(fixture.store.checkpoints(&[0]).await.unwrap(), [Some(checkpoint(7))]);
}

pub async fn records_round_trip(fixture: &Fixture) {
    let mut rich = task_record(3);
    rich.definition.position = Some(Position { partition: 1, offset: i64::MAX });
    rich.tree.last_end = Some(Box::new(Moment { at_ms: -1, by: "ü".into() }));
    rich.history.entries.push(HistoryEntry {
        kind: kafleet::model::event::Kind::Warned,
        at_ms: 1,
        offset: 2,
        run: 3,
        attempt: 4,
        worker: Some("w".into()),
        message: Some("two\nlines and a zero\0".into()),
        error_kind: Some("own".into()),
        waits: 6,
        took_ms: Some(u32::MAX),
        by: Some("ops".into()),
        ignored: true,
    });
    let changes =
        Changes { task_records: vec![(id("a"), rich.encode().unwrap()), record("a:b", 1)], ..Changes::default() };
    let (mut writer, _) = fixture.open(0).await;
    writer.apply(&changes, None, checkpoint(1)).await.unwrap();
    let ids = [id("a:b"), id("unknown"), id("a"), id("a:b")];
    let expect = [Some(task_record(1)), None, Some(rich), Some(task_record(1))];
    assert_eq!(writer.task_records(&ids).await.unwrap(), expect);
    assert_eq!(fixture.store.task_records(0, &ids).await.unwrap(), expect);
    assert_eq!(fixture.store.task_records(0, &[]).await.unwrap(), []);
    assert_eq!(writer.task_records(&[]).await.unwrap(), []);
    // Reads between two batches keep the guard on the checkpoint.
    writer
        .apply(
            &Changes { task_records: vec![record("a:b", 2)], ..Changes::default() },
            Some(checkpoint(1)),
            checkpoint(2),
        )
        .await
        .unwrap();
    assert_eq!(fixture.store.task_records(0, &[id("a:b")]).await.unwrap(), [Some(task_record(2))]);
}

pub async fn batch_larger_than_a_command_is_atomic(fixture: &Fixture) {
    const ROOTS: i64 = 2_500;
    let ids: Vec<_> = (0..ROOTS).map(|n| id(&format!("r{n:05}"))).collect();
    let entries = || ids.iter().map(|id| Entry { seen_ms: 1, id: id.clone() });
    let mut changes = adds(&Index::Roots, entries());
    changes.task_records = (0..).zip(&ids).map(|(run, id)| (id.clone(), task_record(run).encode().unwrap())).collect();
    fixture.put(0, changes).await;
    let nodes = fixture.store.task_records(0, &ids).await.unwrap();
    assert!((0..).zip(&nodes).all(|(run, found)| found.as_ref() == Some(&task_record(run))));
    let (mut writer, from) = fixture.open(0).await;
    assert_eq!(writer.task_records(&ids).await.unwrap(), nodes);
    assert_eq!(fixture.store.page(0, &Index::Roots, None, 9_999).await.unwrap().len(), ROOTS as usize);
    writer.apply(&removes(&Index::Roots, entries()), from, checkpoint(2)).await.unwrap();
    assert_eq!(fixture.store.page(0, &Index::Roots, None, 9_999).await.unwrap(), []);
}

pub async fn outbox_is_read_with_its_checkpoint(fixture: &Fixture) {
    assert_eq!(fixture.store.outbox(0, 10).await.unwrap(), Outbox::default());
    let due = [entry(30, "a"), entry(10, "b:c"), entry(20, "a:x"), entry(-1, "d")];
    fixture.put(0, adds(&Index::Timers, due.iter().cloned())).await;
    fixture.put(0, adds(&Index::Effects, [entry(7, "b"), entry(5, "a")])).await;
    let outbox = fixture.store.outbox(0, 3).await.unwrap();
    assert_eq!((ids(&outbox.timers), ids(&outbox.effects)), (vec!["d", "b:c", "a:x"], vec!["a", "b"]));
    assert_eq!((outbox.checkpoint, &outbox.timers[1]), (Some(checkpoint(2)), &due[1]));
    // One timer is postponed, another removed, and an effect completed.
    let mut changes = adds(&Index::Timers, [entry(40, "b:c")]);
    changes.removed =
        vec![(Index::Timers, due[1].clone()), (Index::Timers, due[3].clone()), (Index::Effects, entry(5, "a"))];
    fixture.put(0, changes).await;
    let outbox = fixture.store.outbox(0, 10).await.unwrap();
    assert_eq!((ids(&outbox.timers), ids(&outbox.effects)), (vec!["a:x", "a", "b:c"], vec!["b"]));
    assert_eq!(outbox.checkpoint, Some(checkpoint(3)));
    assert_eq!(fixture.store.outbox(1, 10).await.unwrap(), Outbox::default());
}

pub async fn finished_roots_are_ordered_by_removal_time(fixture: &Fixture) {
    assert_eq!(fixture.store.done(0, i64::MIN, 10).await.unwrap(), []);
    let done = |entries: &[Entry]| Changes { done: entries.to_vec(), ..Changes::default() };
    let with = |done_with| Changes { done_with: Some(done_with), ..Changes::default() };
    fixture.put(0, done(&[entry(20, "a"), entry(10, "b"), entry(20, "c")])).await;
    fixture.put(0, done(&[entry(20, "b"), entry(1_700_000_000_000, "z")])).await;
    let first = fixture.store.done(0, i64::MIN, 10).await.unwrap();
    assert_eq!(first, [entry(10, "b")], "only one removal time per page");
    assert_eq!(fixture.store.done(0, 10, 10).await.unwrap(), [entry(20, "a"), entry(20, "c"), entry(20, "b")]);
    assert_eq!(fixture.store.done(0, 10, 2).await.unwrap(), [entry(20, "a"), entry(20, "c")]);
    assert_eq!(fixture.store.done(0, 20, 10).await.unwrap(), [entry(1_700_000_000_000, "z")]);
    assert_eq!(fixture.store.done(1, i64::MIN, 10).await.unwrap(), []);
    // Processed: all of one time, a part of the next, more than there is.
    fixture.put(0, with((10, 1))).await;
    assert_eq!(ids(&fixture.store.done(0, i64::MIN, 10).await.unwrap()), ["a", "c", "b"]);
    fixture.put(0, with((20, 2))).await;
    assert_eq!(ids(&fixture.store.done(0, i64::MIN, 10).await.unwrap()), ["b"]);
    fixture.put(0, with((20, 9))).await;
    fixture.put(0, with((15, 9))).await;
    assert_eq!(ids(&fixture.store.done(0, i64::MIN, 10).await.unwrap()), ["z"]);
    // A rejected batch adds and removes nothing.
    let (mut writer, _) = fixture.open(0).await;
    assert!(writer.apply(&with((1_700_000_000_000, 1)), Some(checkpoint(99)), checkpoint(100)).await.is_err());
    assert_eq!(ids(&fixture.store.done(0, i64::MIN, 10).await.unwrap()), ["z"]);
}

pub async fn deferred_records_stay_until_they_are_dropped(fixture: &Fixture) {
    let ids: Vec<_> = (0..40).map(|n| id(&format!("r:{n}"))).collect();
    let keep = |deferred| Changes { deferred, ..Changes::default() };
    assert_eq!(fixture.store.deferred(0, &[]).await.unwrap(), Vec::<Option<Vec<u8>>>::new());
    fixture
        .put(0, keep(ids[..30].iter().map(|id| (id.clone(), Some(id.as_str().as_bytes().to_vec()))).collect()))
        .await;
    let large = vec![0xff; 1 << 20];
    fixture
        .put(0, keep(vec![(ids[0].clone(), None), (ids[35].clone(), None), (ids[1].clone(), Some(large.clone()))]))
        .await;
    let deferred = fixture.store.deferred(0, &ids).await.unwrap();
    assert_eq!((&deferred[0], &deferred[1], &deferred[35]), (&None, &Some(large), &None));
    assert_eq!((deferred[29].as_deref(), &deferred[30]), (Some(&b"r:29"[..]), &None));
    assert_eq!(fixture.store.deferred(1, &ids[1..2]).await.unwrap(), [None]);
    // A rejected batch keeps and removes nothing.
    let (mut writer, _) = fixture.open(0).await;
    assert!(writer.apply(&keep(vec![(ids[29].clone(), None)]), Some(checkpoint(99)), checkpoint(100)).await.is_err());
    assert!(fixture.store.deferred(0, &ids[29..30]).await.unwrap()[0].is_some());
}

pub async fn counts_add_up_over_partitions(fixture: &Fixture) {
    let counts = |counts: Vec<(&str, State, i64)>| Changes {
        counts: counts.into_iter().map(|(task_type, state, change)| (task_type.into(), state, change)).collect(),
        ..Changes::default()
    };
    let count = |task_type: &str, state, count| TypeCount { task_type: task_type.into(), state, count };
    assert_eq!(fixture.store.counts(&[0, 1]).await.unwrap(), []);
    fixture.put(0, counts(vec![("echo", State::Queued, 5), ("b-c", State::WaitingForChildren, 1)])).await;
    fixture.put(1, counts(vec![("echo", State::Queued, 2), ("echo", State::Succeeded, 1)])).await;
    let all = [
        count("b-c", State::WaitingForChildren, 1),
        count("echo", State::Queued, 7),
        count("echo", State::Succeeded, 1),
    ];
    assert_eq!(fixture.store.counts(&[0, 1, 2]).await.unwrap(), all);
    assert_eq!(fixture.store.counts(&[0]).await.unwrap(), [all[0].clone(), count("echo", State::Queued, 5)]);
    // To zero and up again, in batches of one writer.
    let (mut writer, from) = fixture.open(0).await;
    for (n, (change, expect)) in [(-5, 0), (3, 3), (-3, 0), (0, 0), (1, 1)].into_iter().enumerate() {
        let at = checkpoint(from.unwrap().offset + n as i64);
        let changes = if change == 0 { Changes::default() } else { counts(vec![("echo", State::Queued, change)]) };
        writer.apply(&changes, Some(at), checkpoint(at.offset + 1)).await.unwrap();
        let queued: u64 = fixture
            .store
            .counts(&[0])
            .await
            .unwrap()
            .iter()
            .filter(|c| c.state == State::Queued)
            .map(|c| c.count)
            .sum();
        assert_eq!(queued, expect);
    }
}

fn lines(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("line {n}")).collect()
}

fn logs(text: &str, lines: Vec<String>) -> Changes {
    Changes { logs: vec![(id(text), lines)], ..Changes::default() }
}

pub async fn logs_keep_newest_lines_and_their_numbers(fixture: &Fixture) {
    assert_eq!(fixture.store.log_lines(0, &id("a"), 0, 10).await.unwrap(), LogPage::default());
    let (mut writer, _) = fixture.open(0).await;
    let mut changes = logs("a", lines(0..600));
    // Two of one task in a batch, one of another, one without lines.
    changes.logs.extend([(id("a"), lines(600..900)), (id("b"), lines(0..1)), (id("c"), vec![])]);
    writer.apply(&changes, None, checkpoint(1)).await.unwrap();
    let page = fixture.store.log_lines(0, &id("a"), 10, 3).await.unwrap();
    assert_eq!(page, LogPage { from: 10, lines: lines(10..13) });
    writer.apply(&logs("a", lines(900..1_250)), Some(checkpoint(1)), checkpoint(2)).await.unwrap();
    let page = fixture.store.log_lines(0, &id("a"), 0, 5_000).await.unwrap();
    assert_eq!(page, LogPage { from: 250, lines: lines(250..1_250) });
    assert_eq!(page.lines.len(), MAX_LOG_LINES);
    let page = fixture.store.log_lines(0, &id("a"), 1_249, 10).await.unwrap();
    assert_eq!(page, LogPage { from: 1_249, lines: lines(1_249..1_250) });
    let page = fixture.store.log_lines(0, &id("a"), 9_999, 10).await.unwrap();
    assert_eq!(page, LogPage { from: 1_250, lines: vec![] });
    assert_eq!(fixture.store.log_lines(0, &id("b"), 0, 10).await.unwrap().lines, lines(0..1));
}

pub async fn logs_are_bounded_in_bytes(fixture: &Fixture) {
    let (mut writer, _) = fixture.open(0).await;
    let long = |n: usize| format!("{n}{}", "x".repeat(MAX_LOG_BYTES / 4 - 1));
    for n in 0..6 {
        let from = (n > 0).then(|| checkpoint(n as i64));
        writer.apply(&logs("a", vec![long(n)]), from, checkpoint(n as i64 + 1)).await.unwrap();
    }
    let page = fixture.store.log_lines(0, &id("a"), 0, 10).await.unwrap();
    assert_eq!(page, LogPage { from: 2, lines: (2..6).map(long).collect() });
    let too_long = "y".repeat(MAX_LOG_BYTES + 1);
    writer.apply(&logs("a", vec![too_long]), Some(checkpoint(6)), checkpoint(7)).await.unwrap();
    assert_eq!(fixture.store.log_lines(0, &id("a"), 0, 10).await.unwrap(), LogPage { from: 7, lines: vec![] });
    writer.apply(&logs("a", vec!["short".into()]), Some(checkpoint(7)), checkpoint(8)).await.unwrap();
    assert_eq!(
        fixture.store.log_lines(0, &id("a"), 0, 10).await.unwrap(),
        LogPage { from: 7, lines: vec!["short".into()] }
    );
}

pub async fn log_continues_under_the_next_writer(fixture: &Fixture) {
    fixture.put(0, logs("a", lines(0..1_100))).await;
    fixture.put(0, logs("a", lines(1_100..1_101))).await;
    let page = fixture.store.log_lines(0, &id("a"), 0, 2).await.unwrap();
    assert_eq!(page, LogPage { from: 101, lines: lines(101..103) });
    let newest = fixture.store.log_lines(0, &id("a"), 1_100, 2).await.unwrap();
    assert_eq!(newest, LogPage { from: 1_100, lines: lines(1_100..1_101) });
}

async fn next(notices: &mut BoxStream<'static, Notice>) -> Notice {
    tokio::time::timeout(DEADLINE, notices.next()).await.expect("no notice came").expect("the stream ended")
}

/// Next notice of this checkpoint. Notices of others may arrive late between the nodes of a cluster.
async fn notice_of(notices: &mut BoxStream<'static, Notice>, partition: u32, at: Checkpoint) -> Notice {
    loop {
        let notice = next(notices).await;
        match &notice {
            Notice::Gap => panic!("no notice was missed"),
            Notice::Changed { partition: of, offset, .. } if (*of, *offset) == (partition, at.offset) => return notice,
            Notice::Changed { .. } => {}
        }
    }
}

pub async fn notices_name_changed_tasks(fixture: &Fixture) {
    fixture.put(3, full_batch("before")).await;
    let mut notices = fixture.store.notices().await.unwrap();
    assert_eq!(next(&mut notices).await, Notice::Gap, "the subscription is active");
    let at = fixture.put(3, full_batch("a")).await;
    let expected =
        Notice::Changed { partition: 3, offset: at.offset, ids: Some(vec![id("a")]), types: Some(vec!["echo".into()]) };
    assert_eq!(notice_of(&mut notices, 3, at).await, expected);
    let many = |count: usize| Changes {
        task_records: (0..count).map(|n| record(&format!("t{n}"), 1)).collect(),
        ..Changes::default()
    };
    for (count, named) in [(0, true), (MAX_NOTICE_IDS, true), (MAX_NOTICE_IDS + 1, false)] {
        let at = fixture.put(4, many(count)).await;
        let Notice::Changed { ids, .. } = notice_of(&mut notices, 4, at).await else { unreachable!("a gap") };
        assert_eq!(ids.map(|ids| ids.len()), named.then_some(count));
    }
    for (count, named) in [(MAX_NOTICE_TYPES, true), (MAX_NOTICE_TYPES + 1, false)] {
        let counts = (0..count).map(|n| (format!("type-{n}").into(), State::Queued, 1)).collect();
        let at = fixture.put(4, Changes { counts, ..Changes::default() }).await;
        let Notice::Changed { types, .. } = notice_of(&mut notices, 4, at).await else { unreachable!("a gap") };
        assert_eq!(types.map(|types| types.len()), named.then_some(count));
    }
    let mut second = fixture.store.notices().await.unwrap();
    assert_eq!(next(&mut second).await, Notice::Gap);
    let at = fixture.put(5, Changes::default()).await;
    assert_eq!(
        notice_of(&mut second, 5, at).await,
        notice_of(&mut notices, 5, at).await,
        "all subscribers receive the same notices"
    );
}

pub async fn slow_listener_receives_a_gap(fixture: &Fixture) {
    let mut notices = fixture.store.notices().await.unwrap();
    assert_eq!(next(&mut notices).await, Notice::Gap);
    let (mut writer, _) = fixture.open(0).await;
    for n in 0..1_500 {
        let from = (n > 0).then(|| checkpoint(n));
        writer.apply(&Changes::default(), from, checkpoint(n + 1)).await.unwrap();
    }
    let mut heard = 0;
    while next(&mut notices).await != Notice::Gap {
        heard += 1;
    }
    assert!(heard < 1_500, "all notices were kept");
    // New notices arrive after the gap.
    let told_of_last = async {
        let mut at = 1_500;
        loop {
            writer.apply(&Changes::default(), Some(checkpoint(at)), checkpoint(at + 1)).await.unwrap();
            at += 1;
            let notice = next(&mut notices).await;
            if matches!(notice, Notice::Changed { offset, .. } if offset > 1_500) {
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, told_of_last).await.expect("no new notice arrived");
}

pub async fn partitions_are_isolated(fixture: &Fixture) {
    let partitions: Vec<u32> = (0..32).collect();
    for &partition in &partitions[..31] {
        let changes = Changes { task_records: vec![record("same", partition)], ..full_batch("same") };
        for _ in 0..=partition % 3 {
            fixture.put(partition, changes.clone()).await;
        }
    }
    let checkpoints = fixture.store.checkpoints(&partitions).await.unwrap();
    let expect: Vec<_> = (0..31).map(|n| Some(checkpoint(n % 3 + 1))).chain([None]).collect();
    assert_eq!(checkpoints, expect);
    assert_eq!(fixture.store.checkpoints(&[5, 31, 0]).await.unwrap(), [Some(checkpoint(3)), None, Some(checkpoint(1))]);
    for partition in [0, 17, 30] {
        assert_eq!(fixture.store.task_records(partition, &[id("same")]).await.unwrap(), [Some(task_record(partition))]);
        assert_eq!(fixture.store.page(partition, &Index::Roots, None, 9).await.unwrap(), [entry(5, "same")]);
    }
    assert_eq!(fixture.store.task_records(31, &[id("same")]).await.unwrap(), [None]);
    let lines: Vec<usize> =
        fixture.store.log_lines(2, &id("same"), 0, 9).await.map(|page| vec![page.lines.len()]).unwrap();
    assert_eq!(lines, [3]);
}

pub async fn attachments_stay_until_removed_or_their_task_is(fixture: &Fixture) {
    let attach = |attachments: &[(&str, Option<&[u8]>)]| Changes {
        task_records: vec![record("a", 1)],
        attachments: attachments
            .iter()
            .map(|(name, data)| (id("a"), (*name).to_owned(), data.map(<[u8]>::to_vec)))
            .collect(),
        ..Changes::default()
    };
    let read = async |name: &str| fixture.store.attachment(0, &id("a"), name).await.unwrap();
    assert_eq!(read("x").await, None);
    fixture
        .put(
            0,
            attach(&[
                ("x", Some(&[0, 255])),
                ("y", Some(b"first")),
                ("y", Some(b"second")),
                ("z", Some(b"")),
                ("x", None),
            ]),
        )
        .await;
    assert_eq!((read("x").await, read("y").await, read("z").await), (None, Some(b"second".to_vec()), Some(Vec::new())));
    assert_eq!(fixture.store.attachment(1, &id("a"), "y").await.unwrap(), None, "another partition's");
    fixture.put(0, Changes { deleted: vec![id("a")], ..Changes::default() }).await;
    assert_eq!(read("y").await, None);
}
