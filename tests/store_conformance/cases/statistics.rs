//! Statistics, errors and requests.

use std::sync::Arc;

use kafleet::model::error_fingerprint::Fingerprint;
use kafleet::model::projection::audit::{AuditEntry, MAX_AUDIT};
use kafleet::model::projection::changes::Changes;
use kafleet::model::record::state::State;
use kafleet::model::statistics::aggregate::{Aggregate, AggregateKey, Level};
use kafleet::model::statistics::errors::ErrorSummary;
use kafleet::model::statistics::{ListedSeries, Overview, StatisticsChanges};
use kafleet::store::{Entry, ErrorGroup, ErrorLevel, Index, TypeCount};

use crate::store_conformance::fixture::*;

const MINUTE: i64 = 29_401_234;

fn key(level: Level) -> AggregateKey {
    AggregateKey::of_minute(level, MINUTE)
}

fn aggregate(opened: u64) -> Aggregate {
    let mut aggregate = Aggregate { opened, ..Aggregate::default() };
    aggregate.wait.record(opened);
    aggregate
}

fn overview(series: &[&str]) -> Overview {
    let series = series.iter().map(|name| ListedSeries { name: (*name).into(), day: key(Level::Day).number }).collect();
    Overview { minute: Some(MINUTE), began: 7, first_ms: Some(1_764_074_040_000), series }
}

fn written(series: &str, level: Level, opened: u64) -> (Arc<str>, AggregateKey, Option<Vec<u8>>) {
    (series.into(), key(level), Some(aggregate(opened).encode().unwrap()))
}

fn counted(
    aggregates: Vec<(Arc<str>, AggregateKey, Option<Vec<u8>>)>,
    errors: Vec<(Arc<str>, i64, Option<Vec<u8>>)>,
) -> Changes {
    let overview = Some(overview(&["*", "echo"]).encode().unwrap());
    Changes { statistics: StatisticsChanges { overview, aggregates, errors, open: 0 }, ..Changes::default() }
}

pub async fn statistics_are_read_with_counters_and_checkpoint(fixture: &Fixture) {
    assert_eq!(fixture.store.statistics(0, &["echo".into()], &[key(Level::Hour)]).await.unwrap(), Default::default());
    let mut errors = ErrorSummary::default();
    errors.record(Fingerprint(7), "broken", Some(5));
    let hour = MINUTE.div_euclid(60);
    let mut changes = counted(
        vec![written("echo", Level::Minute, 3), written("echo", Level::Hour, 5), written("*", Level::Minute, 9)],
        vec![("echo".into(), hour, Some(errors.encode().unwrap()))],
    );
    changes.counts = vec![("echo".into(), State::Queued, 4)];
    let checkpoint = fixture.put(0, changes).await;
    let found = fixture.store.statistics(0, &["echo".into(), "other".into()], &[key(Level::Hour)]).await.unwrap();
    assert_eq!((found.checkpoint, found.overview), (Some(checkpoint), Some(overview(&["*", "echo"]))));
    assert_eq!(found.counts, [TypeCount { task_type: "echo".into(), state: State::Queued, count: 4 }]);
    let (minute, of_hour) =
        (("echo".into(), key(Level::Minute), aggregate(3)), ("echo".into(), key(Level::Hour), aggregate(5)));
    assert_eq!(found.aggregates, [of_hour.clone(), minute.clone()], "the open minute is always read");
    let by_name = fixture.store.statistics(0, &["echo".into()], &[key(Level::Minute)]).await.unwrap();
    assert_eq!(by_name.aggregates, std::slice::from_ref(&minute));
    let found = fixture.store.error_summaries(0, "echo", &[hour - 1, hour]).await.unwrap();
    assert_eq!(found, [(hour, errors.clone())]);
    assert_eq!(fixture.store.error_summaries(0, "echo", &[]).await.unwrap(), []);
    // The next writer resumes with the aggregates that may still change.
    let stored = fixture.open(0).await.0.statistics().await.unwrap();
    assert_eq!(stored.overview, Some(overview(&["*", "echo"])));
    assert_eq!(stored.aggregates.len(), 3);
    assert!(stored.aggregates.contains(&minute) && stored.aggregates.contains(&of_hour), "{:?}", stored.aggregates);
    assert_eq!(stored.errors, [("echo".into(), errors)]);
    assert!(fixture.open(1).await.0.statistics().await.unwrap().overview.is_none());
}

pub async fn removed_aggregates_are_gone(fixture: &Fixture) {
    let hour = MINUTE.div_euclid(60);
    let errors = ErrorSummary::default().encode().unwrap();
    let aggregates = vec![written("echo", Level::Minute, 3), written("echo", Level::Hour, 5)];
    fixture.put(0, counted(aggregates, vec![("echo".into(), hour, Some(errors))])).await;
    let gone = vec![
        written("echo", Level::Hour, 6),
        ("echo".into(), key(Level::Hour), None),
        ("echo".into(), key(Level::Day), None),
    ];
    fixture.put(0, counted(gone, vec![("echo".into(), hour, None)])).await;
    let stored = fixture.store.statistics(0, &["echo".into()], &[key(Level::Hour)]).await.unwrap();
    assert_eq!(stored.aggregates, [("echo".into(), key(Level::Minute), aggregate(3))]);
    assert_eq!(fixture.store.error_summaries(0, "echo", &[hour]).await.unwrap(), []);
}

/// Adds failed tasks to the indexes of their error and of its kind, or removes them.
fn failed(error: u64, tasks: &[(i64, &str)], is_removal: bool) -> Changes {
    let error = Fingerprint(error);
    let indexes = [error, error.kind()].map(|error| Index::Failed { task_type: "echo".into(), error });
    let of = |index: &Index| tasks.iter().map(|(at_ms, id)| (index.clone(), entry(*at_ms, id))).collect::<Vec<_>>();
    let entries = indexes.iter().flat_map(of).collect();
    let change = tasks.len() as i64 * if is_removal { -1 } else { 1 };
    let (added, removed) = if is_removal { (Vec::new(), entries) } else { (entries, Vec::new()) };
    Changes { added, removed, errors: vec![("echo".into(), error, change)], ..Changes::default() }
}

async fn groups(fixture: &Fixture, level: ErrorLevel, since_ms: i64, limit: usize) -> (Vec<ErrorGroup>, u64) {
    let stored = fixture.store.error_groups(0, "echo", level, since_ms, limit).await.unwrap();
    (stored.groups, stored.total)
}

fn group(error: u64, count: u64, recent: u64, first: Entry, last: Entry) -> ErrorGroup {
    ErrorGroup { error: Fingerprint(error), count, recent, first, last }
}

pub async fn errors_are_grouped_by_frequency(fixture: &Fixture) {
    let by_message = async |limit: usize| groups(fixture, ErrorLevel::Message, 0, limit).await;
    assert_eq!(by_message(10).await, (vec![], 0));
    fixture.put(0, failed(1, &[(5, "a"), (9, "b")], false)).await;
    fixture.put(0, failed(2, &[(4, "c"), (3, "d"), (7, "e")], false)).await;
    fixture.put(0, failed(3, &[(6, "f")], false)).await;
    let all = [
        group(2, 3, 3, entry(3, "d"), entry(7, "e")),
        group(1, 2, 2, entry(5, "a"), entry(9, "b")),
        group(3, 1, 1, entry(6, "f"), entry(6, "f")),
    ];
    assert_eq!(by_message(10).await, (all.to_vec(), 3));
    assert_eq!(by_message(2).await, (all[..2].to_vec(), 3));
    let index = Index::Failed { task_type: "echo".into(), error: Fingerprint(2) };
    assert_eq!(ids(&fixture.store.page(0, &index, None, 2).await.unwrap()), ["e", "c"], "newest first");
    fixture.put(0, failed(3, &[(6, "f")], true)).await;
    fixture.put(0, failed(2, &[(7, "e")], true)).await;
    let tie = vec![group(2, 2, 2, entry(3, "d"), entry(4, "c")), all[1].clone()];
    assert_eq!(by_message(10).await, (tie, 2), "a group without tasks does not exist");
}

pub async fn errors_are_grouped_by_kind(fixture: &Fixture) {
    const KIND: u64 = 7 << 32;
    let by_kind = async |limit: usize| groups(fixture, ErrorLevel::Kind, 0, limit).await;
    let customers: Vec<String> = (0..300).map(|number| format!("t{number}")).collect();
    for (number, id) in (1_i64..).zip(&customers) {
        fixture.put(0, failed(KIND + number as u64, &[(number, id.as_str())], false)).await;
    }
    fixture.put(0, failed((9 << 32) + 1, &[(5, "a")], false)).await;
    let declined = group(KIND, 300, 300, entry(1, "t0"), entry(300, "t299"));
    let other = group(9 << 32, 1, 1, entry(5, "a"), entry(5, "a"));
    assert_eq!(by_kind(10).await, (vec![declined.clone(), other], 2), "a message each, and one kind");
    assert_eq!(by_kind(1).await, (vec![declined], 2));
    for (number, id) in (1_i64..).zip(&customers[..299]) {
        fixture.put(0, failed(KIND + number as u64, &[(number, id.as_str())], true)).await;
    }
    fixture.put(0, failed((9 << 32) + 1, &[(5, "a")], true)).await;
    assert_eq!(by_kind(10).await, (vec![group(KIND, 1, 1, entry(300, "t299"), entry(300, "t299"))], 1));
}

pub async fn recent_failures_are_counted_from_a_time(fixture: &Fixture) {
    fixture.put(0, failed(1, &[(5, "a"), (9, "b"), (9, "c")], false)).await;
    fixture.put(0, failed(2, &[(12, "d")], false)).await;
    for (since_ms, recent) in [(0, [3_u64, 1]), (9, [2, 1]), (10, [0, 1]), (12, [0, 1]), (13, [0, 0])] {
        let (stored, total) = groups(fixture, ErrorLevel::Message, since_ms, 10).await;
        assert_eq!(stored.iter().map(|group| group.recent).collect::<Vec<_>>(), recent, "since {since_ms}");
        assert_eq!((stored[0].count, &stored[0].first, total), (3, &entry(5, "a"), 2), "the rest has no range");
        let (by_kind, _) = groups(fixture, ErrorLevel::Kind, since_ms, 10).await;
        assert_eq!(by_kind[0].recent, recent.iter().sum::<u64>());
    }
}

pub async fn newest_requests_are_kept(fixture: &Fixture) {
    let request = |offset: i64| AuditEntry {
        offset,
        at_ms: 5,
        by: Some("ada".into()),
        action: "cancel".into(),
        target: "order-42".into(),
        reason: None,
    };
    assert_eq!(fixture.store.requests(0, 10).await.unwrap(), []);
    let changes = |offsets: std::ops::Range<i64>| Changes {
        audit: offsets.map(|offset| request(offset).encode().unwrap()).collect(),
        ..Changes::default()
    };
    fixture.put(0, changes(0..3)).await;
    assert_eq!(fixture.store.requests(0, 2).await.unwrap(), [request(2), request(1)]);
    fixture.put(0, changes(3..5)).await;
    fixture.put(0, changes(5..MAX_AUDIT as i64 * 2 + 9)).await;
    let stored = fixture.store.requests(0, MAX_AUDIT).await.unwrap();
    assert_eq!((stored.len(), stored[0].offset, stored[999].offset), (MAX_AUDIT, 2_008, 1_009));
}

pub async fn totals_name_lost_statistics(fixture: &Fixture) {
    let mut whole = failed(1, &[(5, "a")], false);
    whole.counts = vec![("echo".into(), State::Queued, 2), ("echo".into(), State::WaitingForChildren, 1)];
    whole.statistics =
        counted(vec![written("echo", Level::Minute, 2), written("*", Level::Minute, 2)], Vec::new()).statistics;
    whole.statistics.open = 2;
    fixture.put(0, whole).await;
    assert_eq!(fixture.open(0).await.0.verify_totals().await.unwrap(), None);
    let miscounted = Changes { statistics: StatisticsChanges { open: 1, ..Default::default() }, ..Changes::default() };
    fixture.put(0, miscounted).await;
    assert!(fixture.open(0).await.0.verify_totals().await.unwrap().is_some(), "an open task too many");
    let ended = Changes { statistics: StatisticsChanges { open: -1, ..Default::default() }, ..Changes::default() };
    fixture.put(0, ended).await;
    let lost = Changes { errors: Vec::new(), ..failed(1, &[(5, "a")], true) };
    fixture.put(0, lost).await;
    assert!(fixture.open(0).await.0.verify_totals().await.unwrap().is_some(), "a failed task is lost");
}
