//! Releases of deferred tasks whose records are not in the store, or cannot be published.

use kafleet::model::outbox::MAX_DEFERRED_BYTES;
use kafleet::model::projection::FOLD_VERSION;
use kafleet::model::projection::changes::Changes;
use kafleet::store::Checkpoint;
use kafleet_testkit::faults::{Call, transaction};

use super::*;

/// Starts all partitions of the store with the limit of deferred records used up.
async fn fill_deferred(fixture: &Fixture) {
    for partition in fixture.all() {
        let (mut writer, from) = fixture.store.open(partition).await.unwrap();
        let full = Checkpoint { version: FOLD_VERSION, deferred_bytes: MAX_DEFERRED_BYTES, ..Checkpoint::default() };
        writer.apply(&Changes::default(), from, full).await.unwrap();
    }
}

pub async fn records_without_room_in_the_store_are_released_from_the_log(fixture: Fixture) {
    make_topics(&fixture);
    fill_deferred(&fixture).await;
    fixture.write(&many(100, "m")).await;
    let tracker = fixture.tracker().await;
    fixture.write(&[scheduled("far", now_ms() + 3_600_000)]).await;
    let waiting = until_state(&fixture, "far", State::Scheduled).await;
    assert_eq!((waiting.deferral.is_deferred(), waiting.deferral.stored_bytes()), (true, 0));
    eventually("all tasks are released", || async { published(&fixture).len() == 100 }).await;
    let records = read_all(&fixture, &fixture.names.tasks(TYPE));
    assert_eq!(records.len(), 100, "each is released once");
    for record in records {
        let task = header(&record, "ce_id").unwrap();
        assert_eq!(record.value.as_deref(), Some(format!("{{\"of\":\"{task}\"}}").as_bytes()));
        assert_eq!(header(&record, "ce_notbefore"), None);
        until_state(&fixture, task, State::Queued).await;
    }
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// A topic that cannot be written holds up its own tasks only.
#[tokio::test(flavor = "multi_thread")]
async fn unwritable_topic_holds_up_no_other() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let (fixture, faults) = fixture.with_faults();
    let no_leader = BrokerError::Unavailable("no leader, on purpose".into());
    let unwritable = faults.on(transaction(fixture.names.tasks("child"))).fail(no_leader);
    let tracker = fixture.tracker().await;
    let of_child = |mut event: Event| {
        event.task.as_mut().unwrap().task_type = "child".into();
        event
    };
    // More than a pass looks at.
    let held = || many(1_000, "held").into_iter().map(of_child);
    fixture.write(&held().collect::<Vec<_>>()).await;
    fixture.write(&many(20, "free")).await;
    for round in 0..3 {
        let task = format!("later-{round}");
        fixture.write(&[scheduled(&task, now_ms() - 1)]).await;
        until_state(&fixture, &task, State::Queued).await;
    }
    eventually("the other topic's tasks are released", || async { published(&fixture).len() == 23 }).await;
    assert_eq!(task_record(&fixture, "held-0").await.unwrap().state, State::Scheduled);
    tracker.expect_reason("timers of events partition 0", "no leader").await;
    fixture.write(&[event(Kind::CancelRequested, "held-0")]).await;
    until_state(&fixture, "held-0", State::Cancelled).await;
    unwritable.lift();
    for event in held().skip(1) {
        until_state(&fixture, event.id.as_str(), State::Queued).await;
    }
    assert_eq!(read_all(&fixture, &fixture.names.tasks("child")).len(), 999, "each is released once");
    tracker.expect_ready().await;
    tracker.stop().await;
}

/// Several refused entries in one batch, of which each has to be refused alone before it is replaced by its failure.
#[tokio::test(flavor = "multi_thread")]
async fn refused_records_fail_their_tasks_and_hold_up_no_others() {
    let (fixture, _) = fixture(1);
    make_topics(&fixture);
    let (fixture, faults) = fixture.with_faults();
    let is_large = |record: &ProducerRecord<'_>| record.value.is_some_and(|value| value.starts_with(b"{\"large\""));
    let has_large = move |call: &Call<'_>| matches!(call, Call::Transaction(records) if records.iter().any(is_large));
    faults.on(has_large).fail(BrokerError::TooLarge("too large, on purpose".into()));
    let mut events = many(20, "good");
    for n in 0..5 {
        let mut large = scheduled(&format!("large-{n}"), now_ms() - 1);
        let params = RawJson::parse(format!("{{\"large\":{n}}}").as_bytes()).unwrap();
        if let Payload::Scheduled { record, .. } = &mut large.payload {
            record.as_mut().unwrap().params = params;
        }
        events.push(large);
    }
    let tracker = fixture.tracker().await;
    fixture.write(&events).await;
    for n in 0..5 {
        let failed = until_state(&fixture, &format!("large-{n}"), State::Failed).await;
        assert!(failed.outcome.error.unwrap().message.contains("too large"));
    }
    eventually("the others are released", || async { published(&fixture).len() == 20 }).await;
    tracker.expect_ready().await;
    tracker.stop().await;
}
