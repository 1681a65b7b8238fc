//! Promises of [`OutboxTable`] and [`OutboxSession`], for every implementation.

use std::time::Duration;

use super::tables::{InMemory, InPostgres, TestedTable, row};
use crate::cursor::{Cursor, Scan};
use crate::memory::{MemoryOutbox, NewRow};
use crate::row::{DeadRow, FieldsColumn, MAX_COLUMN_BYTES, OutboxRow, RowKey};
use crate::table::{LeaseState, MAX_SCAN_BYTES, OutboxSession};

const LONG: Duration = Duration::from_secs(60);

/// Runs each case on each table.
macro_rules! conformance {
    ($($case:ident),* $(,)?) => {
        mod memory {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                super::$case(&InMemory(MemoryOutbox::new(1))).await;
            })*
        }
        mod postgres {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                let Some(table) = InPostgres::create(concat!("outbox_", stringify!($case))).await else { return };
                super::$case(&table).await;
            })*
        }
    };
}

conformance!(
    rows_appear_at_their_commit,
    rolled_back_rows_never_appear,
    rows_are_read_in_the_order_of_their_numbers,
    late_commit_is_in_a_gap,
    columns_are_read_as_they_were_written,
    long_columns_are_not_read,
    scan_is_bounded_by_bytes,
    finished_rows_are_gone,
    row_with_another_id_stays,
    dead_rows_are_listed_retried_and_dropped,
    lease_has_one_holder,
    lease_ends_by_itself,
    released_lease_is_free_at_once,
    identity_is_the_same_for_all_sessions,
    commit_ends_the_wait,
    horizon_follows_open_transactions,
);

async fn rows(session: &dyn OutboxSession) -> Vec<OutboxRow> {
    session.scan(&Cursor::default().scan(1_000)).await.unwrap().rows
}

async fn ids(session: &dyn OutboxSession) -> Vec<String> {
    rows(session).await.into_iter().map(|row| row.key.id).collect()
}

async fn rows_appear_at_their_commit(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    let transaction = tested.begin(vec![row("a"), row("b")]).await;
    assert!(rows(&*session).await.is_empty());
    transaction.commit().await;
    assert_eq!(ids(&*session).await, ["a", "b"]);
    let stats = tested.table().stats().await.unwrap();
    assert_eq!((stats.rows, stats.dead, stats.first.is_some()), (2, 0, true));
    assert!(stats.oldest < LONG, "{stats:?}");
}

async fn rolled_back_rows_never_appear(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    tested.begin(vec![row("a")]).await.roll_back().await;
    tested.commit(vec![row("b")]).await;
    assert_eq!(ids(&*session).await, ["b"]);
}

async fn rows_are_read_in_the_order_of_their_numbers(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    tested.commit((0..30).map(|n| row(&format!("row-{n:02}"))).collect()).await;
    let found = rows(&*session).await;
    assert!(found.is_sorted_by_key(|row| row.key.seq));
    assert!(found.is_sorted_by_key(|row| row.key.id.clone()));
    let scan = Scan { gaps: Vec::new(), after: found[9].key.seq, limit: 5 };
    let next = session.scan(&scan).await.unwrap().rows;
    assert_eq!(next, found[10..15]);
}

async fn late_commit_is_in_a_gap(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    let late = tested.begin(vec![row("late")]).await;
    tested.commit(vec![row("early")]).await;
    let mut cursor = Cursor::default();
    let scanned = session.scan(&cursor.scan(10)).await.unwrap();
    let seqs: Vec<i64> = scanned.rows.iter().map(|row| row.key.seq).collect();
    cursor.pass(&seqs, scanned.horizon, 0);
    late.commit().await;
    tested.commit(vec![row("last")]).await;
    let next = session.scan(&cursor.scan(10)).await.unwrap().rows;
    assert_eq!(next.iter().map(|row| row.key.id.as_str()).collect::<Vec<_>>(), ["late", "last"]);
}

async fn columns_are_read_as_they_were_written(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    let params = "{\"big\":  12345678901234567890.10, \"text\": \"\u{e9}\u{1f600}\"}";
    let full = NewRow {
        id: "order-7".into(),
        task_type: "invoice".into(),
        task_key: Some("customer".into()),
        params: params.into(),
        fields: Some(r#"{"tags": ["a"]}"#.into()),
    };
    tested.commit(vec![full, row("plain")]).await;
    let found = rows(&*session).await;
    assert_eq!(found[0].params.as_deref(), Some(params));
    assert_eq!((found[0].task_type.as_str(), found[0].task_key.as_deref()), ("invoice", Some("customer")));
    assert_eq!(found[0].fields, FieldsColumn::Json(r#"{"tags": ["a"]}"#.into()));
    assert!(found[0].created_at_ms > 1_600_000_000_000, "{}", found[0].created_at_ms);
    assert_eq!((&found[1].task_key, &found[1].fields), (&None, &FieldsColumn::Absent));
}

async fn long_columns_are_not_read(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    let long = format!("\"{}\"", "x".repeat(MAX_COLUMN_BYTES));
    let params = NewRow { params: long.clone(), ..row("params") };
    let fields = NewRow { fields: Some(format!("{{\"name\": {long}}}")), ..row("fields") };
    tested.commit(vec![params, fields, row("short")]).await;
    let found = rows(&*session).await;
    assert_eq!(found[0].params, None);
    assert_eq!(found[1].fields, FieldsColumn::TooLong);
    assert_eq!(found.len(), 3);
}

async fn scan_is_bounded_by_bytes(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    let params = format!("\"{}\"", "x".repeat(1_000_000));
    tested.commit((0..12).map(|n| NewRow { params: params.clone(), ..row(&format!("row-{n}")) }).collect()).await;
    let found = rows(&*session).await;
    assert!((7..=9).contains(&found.len()), "{}", found.len());
    assert!(found.iter().map(OutboxRow::bytes).sum::<usize>() <= MAX_SCAN_BYTES + (1 << 20));
}

async fn finished_rows_are_gone(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    tested.commit(vec![row("a"), row("b"), row("c")]).await;
    let keys: Vec<RowKey> = rows(&*session).await.into_iter().map(|row| row.key).collect();
    let dead = DeadRow { key: keys[1].clone(), reason: "no valid task".into() };
    session.finish(&keys[..1], &[dead]).await.unwrap();
    assert_eq!(ids(&*session).await, ["c"]);
    session.finish(&keys[..1], &[]).await.unwrap();
    assert_eq!(tested.table().stats().await.unwrap().dead, 1);
}

async fn row_with_another_id_stays(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    tested.commit(vec![row("new")]).await;
    let key = RowKey { id: "lost".into(), ..rows(&*session).await[0].key.clone() };
    session.finish(std::slice::from_ref(&key), &[]).await.unwrap();
    session.finish(&[], &[DeadRow { key, reason: "x".into() }]).await.unwrap();
    assert_eq!(ids(&*session).await, ["new"]);
    assert_eq!(tested.table().stats().await.unwrap().dead, 0);
}

async fn dead_rows_are_listed_retried_and_dropped(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    tested.commit(vec![row("a"), row("b"), row("c")]).await;
    let reason = |key: RowKey| DeadRow { reason: format!("because of \0 {}", key.id), key };
    let dead: Vec<DeadRow> = rows(&*session).await.into_iter().map(|row| reason(row.key)).collect();
    session.finish(&[], &dead).await.unwrap();
    let table = tested.table();
    let listed = table.dead_rows(2).await.unwrap();
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|row| row.task_type == "echo" && row.reason.ends_with(&row.id)), "{listed:?}");
    assert!(listed.iter().all(|row| row.died_at_ms >= row.created_at_ms));
    assert_eq!(table.retry_dead(Some(&["b".to_owned(), "x".to_owned()])).await.unwrap(), 1);
    let again = rows(&*session).await;
    assert_eq!(again.iter().map(|row| row.key.id.as_str()).collect::<Vec<_>>(), ["b"]);
    assert!(again[0].key.seq > dead[2].key.seq, "a retried row is the newest one");
    assert_eq!(table.drop_dead(Some(&["a".to_owned()])).await.unwrap(), 1);
    assert_eq!(table.retry_dead(None).await.unwrap(), 1);
    assert_eq!(table.drop_dead(None).await.unwrap(), 0);
    assert_eq!(ids(&*session).await, ["b", "c"]);
}

async fn lease_has_one_holder(tested: &dyn TestedTable) {
    let (first, second) = (tested.table().open().await.unwrap(), tested.table().open().await.unwrap());
    assert_eq!(first.lease("first", LONG).await, Ok(LeaseState::Acquired));
    assert_eq!(second.lease("second", LONG).await, Ok(LeaseState::OwnedBy("first".into())));
    assert_eq!(first.lease("first", LONG).await, Ok(LeaseState::Acquired), "it is renewed");
}

async fn lease_ends_by_itself(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    session.lease("first", Duration::ZERO).await.unwrap();
    kafleet_testkit::wait::eventually("the lease has ended", async || {
        session.lease("second", LONG).await == Ok(LeaseState::Acquired)
    })
    .await;
    assert_eq!(session.lease("first", LONG).await, Ok(LeaseState::OwnedBy("second".into())));
}

async fn released_lease_is_free_at_once(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    session.lease("first", LONG).await.unwrap();
    session.release("second").await.unwrap();
    assert_eq!(session.lease("second", LONG).await, Ok(LeaseState::OwnedBy("first".into())));
    session.release("first").await.unwrap();
    assert_eq!(session.lease("second", LONG).await, Ok(LeaseState::Acquired));
}

async fn identity_is_the_same_for_all_sessions(tested: &dyn TestedTable) {
    let (first, second) = (tested.table().open().await.unwrap(), tested.table().open().await.unwrap());
    assert_eq!(first.identity(), second.identity());
    assert!(!first.identity().is_nil());
}

async fn commit_ends_the_wait(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    let (_, waited) = tokio::join!(tested.commit(vec![row("a")]), async {
        let begun = tokio::time::Instant::now();
        session.wait(LONG).await;
        begun.elapsed()
    });
    assert!(waited < LONG, "{waited:?}");
}

async fn horizon_follows_open_transactions(tested: &dyn TestedTable) {
    let session = tested.table().open().await.unwrap();
    let horizon = async || session.scan(&Cursor::default().scan(1)).await.unwrap().horizon;
    let open = tested.begin(vec![row("a")]).await;
    tested.commit(vec![row("b")]).await;
    let before = horizon().await;
    assert!(before.oldest < before.next, "{before:?}");
    open.commit().await;
    tested.commit(vec![row("c")]).await;
    let ended = async || horizon().await.oldest >= before.next;
    kafleet_testkit::wait::eventually("older transactions have ended", ended).await;
}
