//! The backoff between attempts, which starts again after a long attempt.

use std::time::Duration;

use kafleet::handlers::Failure;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use serde_json::Value;

use crate::worker::fleet::{Fleet, memory};
use crate::worker::types::Kind;

const LONG: Duration = Duration::from_millis(1_500);
/// Far longer than an attempt that fails at once.
const RESET: Millis = Millis::secs(1);

/// A type whose attempts fail, the fourth one after a long time.
fn failing() -> Kind {
    let kind = Kind::new("failing", |_: Value, cx| async move {
        if cx.number == 4 {
            // The work of the attempt, which lasts longer than the reset.
            tokio::time::sleep(LONG).await;
        }
        Err(Failure::retry("no"))
    });
    let mut kind = kind.retries(5, Millis(10));
    kind.registered.policy.max_backoff = Millis::secs(60);
    kind
}

/// Waits after the attempts of a task, with the number of each attempt.
async fn waits(fleet: &Fleet, id: &str) -> Vec<(u32, i64)> {
    fleet.result_of(id).await;
    let is_retry =
        |event: &kafleet::model::event::Event| event.id.as_str() == id && event.kind() == EventKind::Retrying;
    let retries = fleet.events.all().into_iter().filter(is_retry);
    retries.map(|event| (event.attempt, event.payload.due_ms().unwrap() - event.at_ms)).collect()
}

fn assert_backoff(waits: &[(u32, i64)], expected: &[(u32, i64)]) {
    assert_eq!(waits.len(), expected.len(), "{waits:?}");
    for ((attempt, wait), (number, base)) in waits.iter().zip(expected) {
        assert_eq!(attempt, number);
        assert!((*base..=base * 12 / 10).contains(wait), "attempt {attempt}: {wait} ms instead of {base} and 20 %");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn backoff_starts_again_after_a_long_attempt() {
    let mut kind = failing();
    kind.registered.policy.backoff_reset = Some(RESET);
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("failing", "a", "1").await;
    fleet.send_record("failing", None, None, Some(b"1"), &[("ce_id", "never"), ("ce_backoffreset", "1m")]).await;
    let worker = fleet.worker();
    assert_backoff(&waits(&fleet, "a").await, &[(1, 10), (2, 20), (3, 40), (4, 10), (5, 20)]);
    assert_backoff(&waits(&fleet, "never").await, &[(1, 10), (2, 20), (3, 40), (4, 80), (5, 160)]);
    worker.stop().await;
}

/// A long backoff is spent at the tracker, and another worker continues with the task.
#[tokio::test(flavor = "multi_thread")]
async fn backoff_continues_from_its_start_in_another_worker() {
    let mut kind = failing();
    kind.registered.policy.backoff_reset = Some(RESET);
    let (mut fleet, _) = memory(1, &[kind]).await;
    fleet.config.inline_retry_max = Millis(5);
    let used = [("ce_id", "used"), ("ce_attempt", "3"), ("ce_retries", "9")];
    fleet.send_record("failing", None, None, Some(b"1"), &used).await;
    let again = [("ce_id", "again"), ("ce_attempt", "5"), ("ce_retries", "9"), ("ce_backofffrom", "3")];
    fleet.send_record("failing", None, None, Some(b"1"), &again).await;
    let worker = fleet.worker();
    fleet.wait_committed("failing").await;
    worker.stop().await;
    let events = fleet.events.all();
    let event = |id: &str| events.iter().find(|event| event.id.as_str() == id && event.payload.record().is_some());
    let used = event("used").expect("it is handed over");
    let header = used.payload.record().unwrap().headers.iter().find(|(name, _)| name == "ce_backofffrom");
    assert_eq!(header.map(|(_, value)| value.as_str()), Some("3"));
    let again = event("again").expect("it is handed over");
    assert_backoff(&[(again.attempt, again.payload.due_ms().unwrap() - again.at_ms)], &[(6, 40)]);
}
