//! The cases. Each gets an empty store.

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
    Checkpoint, Entry, Index, LogPage, MAX_LOG_BYTES, MAX_LOG_LINES, MAX_NOTICE_IDS, Notice, Outbox, Reservation, Stage, Store,
    StoreError, TypeCount,
};

use crate::bench::*;

pub async fn a_partition_begins_without_a_fence(bench: &Bench) {
    let (mut writer, found) = bench.open(0).await;
    assert_eq!(found, None);
    assert_eq!(bench.store.fences(&[0]).await.unwrap(), [None]);
    writer.apply(&full_batch("a"), None, fence(10)).await.unwrap();
    writer.apply(&full_batch("b"), Some(fence(10)), fence(12)).await.unwrap();
    assert_eq!(bench.store.fences(&[0]).await.unwrap(), [Some(fence(12))]);
    assert_eq!(bench.open(0).await.1, Some(fence(12)));
    assert_eq!(bench.store.check().await, Ok(()));
}

pub async fn a_batch_from_a_stale_place_changes_nothing(bench: &Bench) {
    bench.put(0, Changes::default()).await;
    for stale in [None, Some(fence(0)), Some(Checkpoint { version: 9, ..fence(1) })] {
        let (mut writer, _) = bench.open(0).await;
        let refused = writer.apply(&full_batch("a"), stale, fence(9)).await;
        assert_eq!(refused, Err(StoreError::Conflict { found: Some(fence(1)) }));
    }
    expect_untouched(&*bench.store, "a").await;
    assert_eq!(bench.store.fences(&[0]).await.unwrap(), [Some(fence(1))]);
}

pub async fn of_two_writers_the_second_wins(bench: &Bench) {
    let (mut first, _) = bench.open(0).await;
    first.apply(&Changes::default(), None, fence(1)).await.unwrap();
    let (mut second, found) = bench.open(0).await;
    second.apply(&Changes::default(), found, fence(2)).await.unwrap();
    let refused = first.apply(&full_batch("a"), Some(fence(1)), fence(3)).await;
    assert_eq!(refused, Err(StoreError::Conflict { found: Some(fence(2)) }));
    expect_untouched(&*bench.store, "a").await;
    second.apply(&full_batch("a"), Some(fence(2)), fence(3)).await.unwrap();
}

pub async fn a_wiped_store_is_noticed(bench: &Bench) {
    let (mut writer, _) = bench.open(0).await;
    writer.apply(&full_batch("a"), None, fence(1)).await.unwrap();
    bench.wipe().await;
    let refused = writer.apply(&full_batch("b"), Some(fence(1)), fence(2)).await;
    assert_eq!(refused, Err(StoreError::Conflict { found: None }));
    expect_untouched(&*bench.store, "b").await;
    let (mut writer, found) = bench.open(0).await;
    assert_eq!(found, None);
    writer.apply(&full_batch("a"), None, fence(2)).await.unwrap();
}

pub async fn a_store_that_went_back_is_noticed(bench: &Bench) {
    let (mut writer, _) = bench.open(0).await;
    writer.apply(&Changes::default(), None, fence(1)).await.unwrap();
    let saved = bench.save().await;
    writer.apply(&full_batch("a"), Some(fence(1)), fence(2)).await.unwrap();
    bench.go_back(&saved).await;
    let refused = writer.apply(&full_batch("b"), Some(fence(2)), fence(3)).await;
    assert_eq!(refused, Err(StoreError::Conflict { found: Some(fence(1)) }));
    expect_untouched(&*bench.store, "a").await;
    let (mut writer, found) = bench.open(0).await;
    writer.apply(&full_batch("a"), found, fence(2)).await.unwrap();
}

/// What was read in between belongs to a store that is gone: the empty one before it is another than the one after it.
pub async fn what_came_and_went_is_noticed(bench: &Bench) {
    let (mut early, found) = bench.open(0).await;
    assert_eq!(found, None);
    bench.put(0, full_batch("a")).await;
    assert!(early.nodes(&[id("a")]).await.unwrap()[0].is_some());
    bench.wipe().await;
    let refused = early.apply(&full_batch("b"), None, fence(1)).await;
    assert_eq!(refused, Err(StoreError::Conflict { found: None }));
    expect_untouched(&*bench.store, "b").await;
    let (mut late, found) = bench.open(0).await;
    late.apply(&full_batch("a"), found, fence(1)).await.unwrap();
}

/// The same where it is brought back and lost as a whole.
pub async fn a_store_that_went_back_twice_is_noticed(bench: &Bench) {
    let empty = bench.save().await;
    bench.put(0, full_batch("a")).await;
    let full = bench.save().await;
    bench.go_back(&empty).await;
    let (mut writer, found) = bench.open(0).await;
    assert_eq!(found, None);
    bench.go_back(&full).await;
    assert!(writer.nodes(&[id("a")]).await.unwrap()[0].is_some());
    bench.go_back(&empty).await;
    let refused = writer.apply(&full_batch("b"), None, fence(1)).await;
    assert_eq!(refused, Err(StoreError::Conflict { found: None }));
    expect_untouched(&*bench.store, "b").await;
}

pub async fn a_writer_is_closed_after_a_refusal(bench: &Bench) {
    let (mut writer, _) = bench.open(0).await;
    assert!(writer.apply(&Changes::default(), Some(fence(5)), fence(6)).await.is_err());
    let told = "the writer is closed: open a new one";
    assert!(is_unavailable(&writer.apply(&Changes::default(), None, fence(1)).await, told));
    assert!(is_unavailable(&writer.nodes(&[id("a")]).await.map(drop), told));
    assert_eq!(bench.store.fences(&[0]).await.unwrap(), [None]);
}

pub async fn an_empty_batch_moves_the_fence(bench: &Bench) {
    let (mut writer, _) = bench.open(0).await;
    writer.apply(&Changes::default(), None, fence(0)).await.unwrap();
    writer.apply(&Changes::default(), Some(fence(0)), fence(7)).await.unwrap();
    assert_eq!(bench.store.fences(&[0]).await.unwrap(), [Some(fence(7))]);
}

pub async fn records_come_back_as_they_were(bench: &Bench) {
    let mut rich = node(3);
    rich.position = Some(Position { partition: 1, offset: i64::MAX });
    rich.last_end = Some(Box::new(Moment { at_ms: -1, by: "ü".into() }));
    rich.history.push(HistoryEntry {
        kind: kafleet::model::event::Kind::Warned,
        at_ms: 1,
        offset: 2,
        run: 3,
        attempt: 4,
        worker: Some("w".into()),
        message: Some("two\nlines and a zero\0".into()),
        error_kind: Some("own".into()),
        took_ms: Some(u32::MAX),
        by: Some("ops".into()),
        ignored: true,
    });
    let changes = Changes { nodes: vec![(id("a"), rich.encode()), record("a:b", 1)], ..Changes::default() };
    let (mut writer, _) = bench.open(0).await;
    writer.apply(&changes, None, fence(1)).await.unwrap();
    let wanted = [id("a:b"), id("unknown"), id("a"), id("a:b")];
    let expect = [Some(node(1)), None, Some(rich), Some(node(1))];
    assert_eq!(writer.nodes(&wanted).await.unwrap(), expect);
    assert_eq!(bench.store.nodes(0, &wanted).await.unwrap(), expect);
    assert_eq!(bench.store.nodes(0, &[]).await.unwrap(), []);
    assert_eq!(writer.nodes(&[]).await.unwrap(), []);
    // A read between two batches does not loosen the fence.
    writer.apply(&Changes { nodes: vec![record("a:b", 2)], ..Changes::default() }, Some(fence(1)), fence(2)).await.unwrap();
    assert_eq!(bench.store.nodes(0, &[id("a:b")]).await.unwrap(), [Some(node(2))]);
}

pub async fn a_batch_larger_than_a_command_is_one(bench: &Bench) {
    const MANY: i64 = 2_500;
    let ids: Vec<_> = (0..MANY).map(|n| id(&format!("r{n:05}"))).collect();
    let entries = || ids.iter().map(|id| Entry { seen_ms: 1, id: id.clone() });
    let mut changes = adds(&Index::Roots, entries());
    changes.nodes = (0..).zip(&ids).map(|(run, id)| (id.clone(), node(run).encode())).collect();
    bench.put(0, changes).await;
    let nodes = bench.store.nodes(0, &ids).await.unwrap();
    assert!((0..).zip(&nodes).all(|(run, found)| found.as_ref() == Some(&node(run))));
    let (mut writer, from) = bench.open(0).await;
    assert_eq!(writer.nodes(&ids).await.unwrap(), nodes);
    assert_eq!(bench.store.page(0, &Index::Roots, None, 9_999).await.unwrap().len(), MANY as usize);
    writer.apply(&removes(&Index::Roots, entries()), from, fence(2)).await.unwrap();
    assert_eq!(bench.store.page(0, &Index::Roots, None, 9_999).await.unwrap(), []);
}

pub async fn indexes_have_their_order(bench: &Bench) {
    let children = Index::Children(id("p"));
    let members = Index::Members { task_type: "echo".into(), state: State::Running };
    let scattered = [entry(5, "p:b"), entry(9, "p:a"), entry(5, "p:B"), entry(-1, "p:z"), entry(5, "p:a-"), entry(5, "p:a")];
    let oldest_first = ["p:z", "p:B", "p:a-", "p:b", "p:a"];
    for index in [&children, &members, &Index::Roots] {
        assert_eq!(bench.store.page(0, index, None, 10).await.unwrap(), [], "nothing yet");
        // The last one only moves `p:a` to where the second put it: an entry has one place.
        bench.put(0, adds(index, scattered[..5].iter().cloned())).await;
    }
    assert_eq!(ids(&bench.store.page(0, &children, None, 10).await.unwrap()), oldest_first);
    let newest_first: Vec<_> = oldest_first.into_iter().rev().collect();
    for index in [&members, &Index::Roots] {
        assert_eq!(ids(&bench.store.page(0, index, None, 10).await.unwrap()), newest_first);
        assert_eq!(ids(&bench.store.page(0, index, None, 2).await.unwrap()), newest_first[..2]);
        assert_eq!(bench.store.page(0, index, None, 0).await.unwrap(), []);
    }
    assert_eq!(bench.store.page(0, &children, None, 1).await.unwrap(), [entry(-1, "p:z")]);
}

pub async fn a_task_moves_between_indexes(bench: &Bench) {
    let members = |state| Index::Members { task_type: "echo".into(), state };
    let (running, failed) = (members(State::Running), members(State::Failed));
    bench.put(0, adds(&running, [entry(1, "a"), entry(2, "b")])).await;
    let mut changes = adds(&failed, [entry(1, "a")]);
    changes.removed = vec![(running.clone(), entry(1, "a")), (running.clone(), entry(3, "never-there"))];
    bench.put(0, changes).await;
    assert_eq!(ids(&bench.store.page(0, &running, None, 10).await.unwrap()), ["b"]);
    assert_eq!(ids(&bench.store.page(0, &failed, None, 10).await.unwrap()), ["a"]);
    let other_type = Index::Members { task_type: "other".into(), state: State::Failed };
    assert_eq!(bench.store.page(0, &other_type, None, 10).await.unwrap(), []);
}

pub async fn pages_go_on_after_what_is_gone(bench: &Bench) {
    for index in [Index::Roots, Index::Children(id("p"))] {
        let all: Vec<Entry> = (0..10).map(|n| entry(n / 3, &format!("t{n}"))).collect();
        bench.put(0, adds(&index, all.clone())).await;
        bench.put(0, removes(&index, [all[4].clone()])).await;
        let after = bench.store.page(0, &index, Some(&all[4]), 3).await.unwrap();
        let expect = if index == Index::Roots { ["t3", "t2", "t1"] } else { ["t5", "t6", "t7"] };
        assert_eq!(ids(&after), expect);
        // Places at which nothing has ever been, before everything, behind everything, and in between.
        let (first, last) = (entry(-5, "x"), entry(99, "x"));
        let (before_all, behind_all) = if index == Index::Roots { (&last, &first) } else { (&first, &last) };
        assert_eq!(bench.store.page(0, &index, Some(before_all), 99).await.unwrap().len(), 9);
        assert_eq!(bench.store.page(0, &index, Some(behind_all), 99).await.unwrap(), []);
        let between = bench.store.page(0, &index, Some(&entry(1, "t3a")), 1).await.unwrap();
        assert_eq!(ids(&between), if index == Index::Roots { ["t3"] } else { ["t5"] });
    }
}

pub async fn what_is_due_comes_with_its_fence(bench: &Bench) {
    assert_eq!(bench.store.outbox(0, 10).await.unwrap(), Outbox::default());
    let due = [entry(30, "a"), entry(10, "b:c"), entry(20, "a:x"), entry(-1, "d")];
    bench.put(0, adds(&Index::Timers, due.iter().cloned())).await;
    bench.put(0, adds(&Index::Effects, [entry(7, "b"), entry(5, "a")])).await;
    let outbox = bench.store.outbox(0, 3).await.unwrap();
    assert_eq!((ids(&outbox.timers), ids(&outbox.effects)), (vec!["d", "b:c", "a:x"], vec!["a", "b"]));
    assert_eq!((outbox.fence, &outbox.timers[1]), (Some(fence(2)), &due[1]));
    // A timer is put off, another one is gone, an effect is done.
    let mut changes = adds(&Index::Timers, [entry(40, "b:c")]);
    changes.removed = vec![(Index::Timers, due[1].clone()), (Index::Timers, due[3].clone()), (Index::Effects, entry(5, "a"))];
    bench.put(0, changes).await;
    let outbox = bench.store.outbox(0, 10).await.unwrap();
    assert_eq!((ids(&outbox.timers), ids(&outbox.effects)), (vec!["a:x", "a", "b:c"], vec!["b"]));
    assert_eq!(outbox.fence, Some(fence(3)));
    assert_eq!(bench.store.outbox(1, 10).await.unwrap(), Outbox::default());
}

pub async fn finished_roots_come_by_the_time_of_their_removal(bench: &Bench) {
    assert_eq!(bench.store.done(0, i64::MIN, 10).await.unwrap(), []);
    let done = |entries: &[Entry]| Changes { done: entries.to_vec(), ..Changes::default() };
    let with = |done_with| Changes { done_with: Some(done_with), ..Changes::default() };
    bench.put(0, done(&[entry(20, "a"), entry(10, "b"), entry(20, "c")])).await;
    bench.put(0, done(&[entry(20, "b"), entry(1_700_000_000_000, "z")])).await;
    let first = bench.store.done(0, i64::MIN, 10).await.unwrap();
    assert_eq!(first, [entry(10, "b")], "one time at once");
    assert_eq!(bench.store.done(0, 10, 10).await.unwrap(), [entry(20, "a"), entry(20, "c"), entry(20, "b")]);
    assert_eq!(bench.store.done(0, 10, 2).await.unwrap(), [entry(20, "a"), entry(20, "c")]);
    assert_eq!(bench.store.done(0, 20, 10).await.unwrap(), [entry(1_700_000_000_000, "z")]);
    assert_eq!(bench.store.done(1, i64::MIN, 10).await.unwrap(), []);
    // Dealt with: all of a time, a part of the next, more than there is.
    bench.put(0, with((10, 1))).await;
    assert_eq!(ids(&bench.store.done(0, i64::MIN, 10).await.unwrap()), ["a", "c", "b"]);
    bench.put(0, with((20, 2))).await;
    assert_eq!(ids(&bench.store.done(0, i64::MIN, 10).await.unwrap()), ["b"]);
    bench.put(0, with((20, 9))).await;
    bench.put(0, with((15, 9))).await;
    assert_eq!(ids(&bench.store.done(0, i64::MIN, 10).await.unwrap()), ["z"]);
    // A batch that is refused adds and drops nothing.
    let (mut writer, _) = bench.open(0).await;
    assert!(writer.apply(&with((1_700_000_000_000, 1)), Some(fence(99)), fence(100)).await.is_err());
    assert_eq!(ids(&bench.store.done(0, i64::MIN, 10).await.unwrap()), ["z"]);
}

pub async fn kept_records_stay_until_they_are_dropped(bench: &Bench) {
    let wanted: Vec<_> = (0..40).map(|n| id(&format!("r:{n}"))).collect();
    let keep = |kept| Changes { kept, ..Changes::default() };
    assert_eq!(bench.store.kept(0, &[]).await.unwrap(), Vec::<Option<Vec<u8>>>::new());
    bench.put(0, keep(wanted[..30].iter().map(|id| (id.clone(), Some(id.as_str().as_bytes().to_vec()))).collect())).await;
    let large = vec![0xff; 1 << 20];
    bench
        .put(0, keep(vec![(wanted[0].clone(), None), (wanted[35].clone(), None), (wanted[1].clone(), Some(large.clone()))]))
        .await;
    let kept = bench.store.kept(0, &wanted).await.unwrap();
    assert_eq!((&kept[0], &kept[1], &kept[35]), (&None, &Some(large), &None));
    assert_eq!((kept[29].as_deref(), &kept[30]), (Some(&b"r:29"[..]), &None));
    assert_eq!(bench.store.kept(1, &wanted[1..2]).await.unwrap(), [None]);
    // A batch that is refused keeps and drops nothing.
    let (mut writer, _) = bench.open(0).await;
    assert!(writer.apply(&keep(vec![(wanted[29].clone(), None)]), Some(fence(99)), fence(100)).await.is_err());
    assert!(bench.store.kept(0, &wanted[29..30]).await.unwrap()[0].is_some());
}

/// Pages through an index to its end.
async fn walk(store: &dyn Store, index: &Index, limit: usize) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let page = store.page(0, index, all.last(), limit).await.unwrap();
        if page.is_empty() {
            return all;
        }
        assert!(page.len() <= limit);
        // Whoever writes meanwhile gets a turn, also where nothing waits.
        tokio::task::yield_now().await;
        all.extend(page);
    }
}

pub async fn pages_are_exact_where_all_share_a_time(bench: &Bench) {
    for index in [Index::Children(id("p")), Index::Roots] {
        let all: Vec<Entry> = (0..4_000).map(|n| entry(7, &format!("t{n:05}"))).collect();
        bench.put(0, adds(&index, all.clone())).await;
        let mut walked = walk(&*bench.store, &index, 333).await;
        if index == Index::Roots {
            walked.reverse();
        }
        assert_eq!(walked, all);
        // The place to go on from has gone, among thousands of the same time.
        bench.put(0, removes(&index, [all[2_000].clone()])).await;
        let next = bench.store.page(0, &index, Some(&all[2_000]), 1).await.unwrap();
        assert_eq!(ids(&next), [if index == Index::Roots { "t01999" } else { "t02001" }]);
    }
}

pub async fn pages_are_stable_under_writes(bench: &Bench) {
    for index in [Index::Roots, Index::Children(id("p"))] {
        // What stays, with room between for what comes and goes, much of it at the same time.
        let stays: Vec<Entry> = (0..600).map(|n| entry(n / 200, &format!("t{n:04}"))).collect();
        let fence = bench.put(0, adds(&index, stays.clone())).await;
        let (done, written) = (AtomicBool::new(false), AtomicI64::new(0));
        let churn = churn(bench, &index, fence, &done, &written);
        let walks = async {
            let mut walks = 0;
            while walks < 15 || written.load(Ordering::Relaxed) <= 10 {
                walks += 1;
                let walked = walk(&*bench.store, &index, 50).await;
                let in_order = |pair: &[Entry]| if index == Index::Roots { pair[0] > pair[1] } else { pair[0] < pair[1] };
                assert!(walked.windows(2).all(in_order), "out of order, or twice");
                let walked: BTreeSet<Entry> = walked.into_iter().collect();
                let missed: Vec<_> = stays.iter().filter(|entry| !walked.contains(entry)).collect();
                assert!(missed.is_empty(), "missed {missed:?}");
            }
            done.store(true, Ordering::Relaxed);
        };
        let writes_on = tokio::time::timeout(DEADLINE, async { tokio::join!(walks, churn) }).await;
        assert!(writes_on.is_ok(), "only {written:?} batches were written meanwhile");
    }
}

/// Adds and removes entries all over an index until told to stop; counts the batches.
async fn churn(bench: &Bench, index: &Index, from: kafleet::store::Checkpoint, done: &AtomicBool, written: &AtomicI64) {
    let (mut writer, found) = bench.open(0).await;
    assert_eq!(found, Some(from));
    let mut at = from;
    let mut batches = 0;
    while !done.load(Ordering::Relaxed) {
        let entries: Vec<Entry> =
            (0..20).map(|n| entry((batches + n) % 3, &format!("t{:04}x", (batches * 37 + n * 31) % 600))).collect();
        for changes in [adds(index, entries.clone()), removes(index, entries)] {
            let to = fence(at.offset + 1);
            writer.apply(&changes, Some(at), to).await.unwrap();
            at = to;
            batches += 1;
        }
        written.store(batches, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

pub async fn counts_add_up_over_partitions(bench: &Bench) {
    let counts = |counts: Vec<(&str, State, i64)>| Changes {
        counts: counts.into_iter().map(|(task_type, state, change)| (task_type.into(), state, change)).collect(),
        ..Changes::default()
    };
    let count = |task_type: &str, state, count| TypeCount { task_type: task_type.into(), state, count };
    assert_eq!(bench.store.counts(&[0, 1]).await.unwrap(), []);
    bench.put(0, counts(vec![("echo", State::Queued, 5), ("b-c", State::WaitingForChildren, 1)])).await;
    bench.put(1, counts(vec![("echo", State::Queued, 2), ("echo", State::Succeeded, 1)])).await;
    let all = [count("b-c", State::WaitingForChildren, 1), count("echo", State::Queued, 7), count("echo", State::Succeeded, 1)];
    assert_eq!(bench.store.counts(&[0, 1, 2]).await.unwrap(), all);
    assert_eq!(bench.store.counts(&[0]).await.unwrap(), [all[0].clone(), count("echo", State::Queued, 5)]);
    // To zero and up again, in batches of one writer.
    let (mut writer, from) = bench.open(0).await;
    for (n, (change, expect)) in [(-5, 0), (3, 3), (-3, 0), (0, 0), (1, 1)].into_iter().enumerate() {
        let at = fence(from.unwrap().offset + n as i64);
        let changes = if change == 0 { Changes::default() } else { counts(vec![("echo", State::Queued, change)]) };
        writer.apply(&changes, Some(at), fence(at.offset + 1)).await.unwrap();
        let queued: u64 =
            bench.store.counts(&[0]).await.unwrap().iter().filter(|c| c.state == State::Queued).map(|c| c.count).sum();
        assert_eq!(queued, expect);
    }
}

fn lines(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("line {n}")).collect()
}

fn logs(text: &str, lines: Vec<String>) -> Changes {
    Changes { logs: vec![(id(text), lines)], ..Changes::default() }
}

pub async fn logs_keep_their_newest_lines_and_their_numbers(bench: &Bench) {
    assert_eq!(bench.store.log_lines(0, &id("a"), 0, 10).await.unwrap(), LogPage::default());
    let (mut writer, _) = bench.open(0).await;
    let mut changes = logs("a", lines(0..600));
    // Two of one task in a batch, one of another, one without lines.
    changes.logs.extend([(id("a"), lines(600..900)), (id("b"), lines(0..1)), (id("c"), vec![])]);
    writer.apply(&changes, None, fence(1)).await.unwrap();
    let page = bench.store.log_lines(0, &id("a"), 10, 3).await.unwrap();
    assert_eq!(page, LogPage { from: 10, lines: lines(10..13) });
    writer.apply(&logs("a", lines(900..1_250)), Some(fence(1)), fence(2)).await.unwrap();
    let page = bench.store.log_lines(0, &id("a"), 0, 5_000).await.unwrap();
    assert_eq!(page, LogPage { from: 250, lines: lines(250..1_250) });
    assert_eq!(page.lines.len(), MAX_LOG_LINES);
    let page = bench.store.log_lines(0, &id("a"), 1_249, 10).await.unwrap();
    assert_eq!(page, LogPage { from: 1_249, lines: lines(1_249..1_250) });
    let page = bench.store.log_lines(0, &id("a"), 9_999, 10).await.unwrap();
    assert_eq!(page, LogPage { from: 1_250, lines: vec![] });
    assert_eq!(bench.store.log_lines(0, &id("b"), 0, 10).await.unwrap().lines, lines(0..1));
}

pub async fn logs_are_bounded_in_bytes(bench: &Bench) {
    let (mut writer, _) = bench.open(0).await;
    let long = |n: usize| format!("{n}{}", "x".repeat(MAX_LOG_BYTES / 4 - 1));
    for n in 0..6 {
        let from = (n > 0).then(|| fence(n as i64));
        writer.apply(&logs("a", vec![long(n)]), from, fence(n as i64 + 1)).await.unwrap();
    }
    let page = bench.store.log_lines(0, &id("a"), 0, 10).await.unwrap();
    assert_eq!(page, LogPage { from: 2, lines: (2..6).map(long).collect() });
    let too_long = "y".repeat(MAX_LOG_BYTES + 1);
    writer.apply(&logs("a", vec![too_long]), Some(fence(6)), fence(7)).await.unwrap();
    assert_eq!(bench.store.log_lines(0, &id("a"), 0, 10).await.unwrap(), LogPage { from: 7, lines: vec![] });
    writer.apply(&logs("a", vec!["short".into()]), Some(fence(7)), fence(8)).await.unwrap();
    assert_eq!(bench.store.log_lines(0, &id("a"), 0, 10).await.unwrap(), LogPage { from: 7, lines: vec!["short".into()] });
}

pub async fn a_log_goes_on_under_the_next_writer(bench: &Bench) {
    bench.put(0, logs("a", lines(0..1_100))).await;
    bench.put(0, logs("a", lines(1_100..1_101))).await;
    let page = bench.store.log_lines(0, &id("a"), 0, 2).await.unwrap();
    assert_eq!(page, LogPage { from: 101, lines: lines(101..103) });
    let newest = bench.store.log_lines(0, &id("a"), 1_100, 2).await.unwrap();
    assert_eq!(newest, LogPage { from: 1_100, lines: lines(1_100..1_101) });
}

fn publishing(owner: &str) -> Reservation {
    Reservation { hash: "hash".into(), stage: Stage::Publishing { owner: owner.into() } }
}

fn published(offset: i64) -> Reservation {
    Reservation { hash: "hash".into(), stage: Stage::Published(Position { partition: 3, offset }) }
}

pub async fn an_id_is_reserved_once(bench: &Bench) {
    let store = &bench.store;
    let (one, two) = (publishing("one"), publishing("two"));
    assert_eq!(store.reserve(0, &id("a"), 1, &one).await.unwrap(), None);
    assert_eq!(store.reserve(0, &id("a"), 1, &two).await.unwrap(), Some(one.clone()));
    assert_eq!(store.reserve(0, &id("b"), 1, &two).await.unwrap(), None, "another id");
    assert_eq!(store.reserve(0, &id("a"), 2, &two).await.unwrap(), None, "another run");
    let racers = (0..20).map(|n| async move { store.reserve(0, &id("raced"), 1, &publishing(&n.to_string())).await.unwrap() });
    let winners = futures::future::join_all(racers).await.into_iter().filter(Option::is_none).count();
    assert_eq!(winners, 1);
}

pub async fn a_reservation_is_replaced_by_its_holder_alone(bench: &Bench) {
    let store = &bench.store;
    let (one, two, done) = (publishing("one"), publishing("two"), published(42));
    store.reserve(0, &id("a"), 1, &one).await.unwrap();
    assert!(!store.replace_reservation(0, &id("a"), 1, &two, Some(&published(7))).await.unwrap(), "not the holder");
    assert!(!store.replace_reservation(0, &id("a"), 1, &two, None).await.unwrap(), "not the holder");
    assert!(store.replace_reservation(0, &id("a"), 1, &one, Some(&done)).await.unwrap());
    assert!(store.replace_reservation(0, &id("a"), 1, &one, Some(&done)).await.unwrap(), "once more, after a lost answer");
    assert_eq!(store.reserve(0, &id("a"), 1, &one).await.unwrap(), Some(done.clone()));
    assert!(store.replace_reservation(0, &id("a"), 1, &done, None).await.unwrap());
    assert!(store.replace_reservation(0, &id("a"), 1, &done, None).await.unwrap(), "once more, after a lost answer");
    assert!(!store.replace_reservation(0, &id("a"), 1, &one, Some(&one)).await.unwrap(), "a released id is not renewed");
    assert_eq!(store.reserve(0, &id("a"), 1, &one).await.unwrap(), None);
    let in_doubt = Reservation { hash: "hash".into(), stage: Stage::InDoubt };
    store.reserve(0, &id("raced"), 1, &in_doubt).await.unwrap();
    let racers = (0..20).map(|n| {
        let (mine, in_doubt) = (publishing(&n.to_string()), in_doubt.clone());
        async move { store.replace_reservation(0, &id("raced"), 1, &in_doubt, Some(&mine)).await.unwrap() }
    });
    let winners = futures::future::join_all(racers).await.into_iter().filter(|won| *won).count();
    assert_eq!(winners, 1, "one of many takes over");
}

pub async fn a_reservation_expires(bench: &Bench) {
    let (short, long) = (Duration::from_millis(1_500), Duration::from_secs(600));
    let two = publishing("two");
    let is_free = async |store: &dyn Store, name: &str| store.reserve(0, &id(name), 1, &two).await.unwrap().is_none();
    let store = bench.with_reservation_ttl(short, long);
    assert_eq!(store.reserve(0, &id("long"), 1, &publishing("one")).await.unwrap(), None);
    assert_eq!(store.reserve(0, &id("short"), 1, &published(1)).await.unwrap(), None);
    until("the reservation of a published task ends", || is_free(&*store, "short")).await;
    assert!(!is_free(&*store, "long").await, "a lease has a time of its own");
    assert!(store.replace_reservation(0, &id("long"), 1, &publishing("one"), Some(&published(1))).await.unwrap());
    until("the replaced reservation ends", || is_free(&*store, "long")).await;
    let store = bench.with_reservation_ttl(long, short);
    assert_eq!(store.reserve(0, &id("lease"), 1, &publishing("one")).await.unwrap(), None);
    assert_eq!(store.reserve(0, &id("done"), 1, &published(1)).await.unwrap(), None);
    until("the lease ends", || is_free(&*store, "lease")).await;
    assert!(!is_free(&*store, "done").await, "a published task keeps its id for longer");
}

/// Renewed for three of its lifetimes, a lease is still there, unless this machine stood still for one of them.
pub async fn a_renewed_lease_does_not_expire(bench: &Bench) {
    let ttl = Duration::from_secs(4);
    let store = bench.with_reservation_ttl(Duration::from_secs(600), ttl);
    let (one, two) = (publishing("one"), publishing("two"));
    for round in 0.. {
        let name = id(&format!("renewed-{round}"));
        let (begun, mut renewed, mut stood_still) = (Instant::now(), Instant::now(), false);
        store.reserve(0, &name, 1, &one).await.unwrap();
        let mut is_held = true;
        while begun.elapsed() < ttl * 3 {
            tokio::time::sleep(ttl / 20).await;
            is_held &= store.replace_reservation(0, &name, 1, &one, Some(&one)).await.unwrap();
            stood_still |= renewed.elapsed() >= ttl;
            renewed = Instant::now();
        }
        is_held &= store.reserve(0, &name, 1, &two).await.unwrap() == Some(one.clone());
        assert!(is_held || stood_still || renewed.elapsed() >= ttl, "the lease expired although it was renewed");
        if is_held {
            return;
        }
        assert!(round < 10, "this machine stands still again and again");
    }
}

async fn next(notices: &mut BoxStream<'static, Notice>) -> Notice {
    tokio::time::timeout(DEADLINE, notices.next()).await.expect("no notice came").expect("the stream ended")
}

/// What is said of a batch. What is said of others may come late, between the nodes of a cluster.
async fn told_of(notices: &mut BoxStream<'static, Notice>, partition: u32, at: Checkpoint) -> Notice {
    loop {
        let told = next(notices).await;
        match &told {
            Notice::Gap => panic!("nothing was missed"),
            Notice::Changed { partition: of, offset, .. } if (*of, *offset) == (partition, at.offset) => return told,
            Notice::Changed { .. } => {}
        }
    }
}

pub async fn notices_tell_what_changed(bench: &Bench) {
    bench.put(3, full_batch("before")).await;
    let mut notices = bench.store.notices().await.unwrap();
    assert_eq!(next(&mut notices).await, Notice::Gap, "it listens from here on");
    let at = bench.put(3, full_batch("a")).await;
    let expected = Notice::Changed { partition: 3, offset: at.offset, ids: Some(vec![id("a")]) };
    assert_eq!(told_of(&mut notices, 3, at).await, expected);
    let many = |count: usize| Changes { nodes: (0..count).map(|n| record(&format!("t{n}"), 1)).collect(), ..Changes::default() };
    for (count, named) in [(0, true), (MAX_NOTICE_IDS, true), (MAX_NOTICE_IDS + 1, false)] {
        let at = bench.put(4, many(count)).await;
        let Notice::Changed { ids, .. } = told_of(&mut notices, 4, at).await else { unreachable!("a gap") };
        assert_eq!(ids.map(|ids| ids.len()), named.then_some(count));
    }
    let mut second = bench.store.notices().await.unwrap();
    assert_eq!(next(&mut second).await, Notice::Gap);
    let at = bench.put(5, Changes::default()).await;
    assert_eq!(told_of(&mut second, 5, at).await, told_of(&mut notices, 5, at).await, "all listeners hear the same");
}

pub async fn a_slow_listener_is_told_of_a_gap(bench: &Bench) {
    let mut notices = bench.store.notices().await.unwrap();
    assert_eq!(next(&mut notices).await, Notice::Gap);
    let (mut writer, _) = bench.open(0).await;
    for n in 0..1_500 {
        let from = (n > 0).then(|| fence(n));
        writer.apply(&Changes::default(), from, fence(n + 1)).await.unwrap();
    }
    let mut heard = 0;
    while next(&mut notices).await != Notice::Gap {
        heard += 1;
    }
    assert!(heard < 1_500, "all were kept");
    // It goes on after the gap: what is new comes through.
    let told_of_last = async {
        let mut at = 1_500;
        loop {
            writer.apply(&Changes::default(), Some(fence(at)), fence(at + 1)).await.unwrap();
            at += 1;
            let told = next(&mut notices).await;
            if matches!(told, Notice::Changed { offset, .. } if offset > 1_500) {
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, told_of_last).await.expect("nothing new came through");
}

pub async fn partitions_are_apart(bench: &Bench) {
    let partitions: Vec<u32> = (0..32).collect();
    for &partition in &partitions[..31] {
        let changes = Changes { nodes: vec![record("same", partition)], ..full_batch("same") };
        for _ in 0..=partition % 3 {
            bench.put(partition, changes.clone()).await;
        }
    }
    let fences = bench.store.fences(&partitions).await.unwrap();
    let expect: Vec<_> = (0..31).map(|n| Some(fence(n % 3 + 1))).chain([None]).collect();
    assert_eq!(fences, expect);
    assert_eq!(bench.store.fences(&[5, 31, 0]).await.unwrap(), [Some(fence(3)), None, Some(fence(1))]);
    for partition in [0, 17, 30] {
        assert_eq!(bench.store.nodes(partition, &[id("same")]).await.unwrap(), [Some(node(partition))]);
        assert_eq!(bench.store.page(partition, &Index::Roots, None, 9).await.unwrap(), [entry(5, "same")]);
    }
    assert_eq!(bench.store.nodes(31, &[id("same")]).await.unwrap(), [None]);
    let lines: Vec<usize> = bench.store.log_lines(2, &id("same"), 0, 9).await.map(|page| vec![page.lines.len()]).unwrap();
    assert_eq!(lines, [3]);
}

pub async fn attachments_stay_until_they_are_taken_away_or_their_task_goes(bench: &Bench) {
    let attach = |attachments: &[(&str, Option<&[u8]>)]| Changes {
        nodes: vec![record("a", 1)],
        attachments: attachments.iter().map(|(name, data)| (id("a"), (*name).to_owned(), data.map(<[u8]>::to_vec))).collect(),
        ..Changes::default()
    };
    let read = async |name: &str| bench.store.attachment(0, &id("a"), name).await.unwrap();
    assert_eq!(read("x").await, None);
    bench
        .put(0, attach(&[("x", Some(&[0, 255])), ("y", Some(b"first")), ("y", Some(b"second")), ("z", Some(b"")), ("x", None)]))
        .await;
    assert_eq!((read("x").await, read("y").await, read("z").await), (None, Some(b"second".to_vec()), Some(Vec::new())));
    assert_eq!(bench.store.attachment(1, &id("a"), "y").await.unwrap(), None, "another partition's");
    bench.put(0, Changes { gone: vec![id("a")], ..Changes::default() }).await;
    assert_eq!(read("y").await, None);
}
