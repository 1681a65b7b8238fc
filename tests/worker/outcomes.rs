//! Outcomes of tasks for each result of an attempt.

use std::time::Duration;

use kafleet::handlers::Failure;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use kafleet::model::units::time::MAX_TIME_MS;
use serde_json::{Value, json};

use crate::worker::fleet::{Fleet, memory};
use crate::worker::types::{Gate, Kind, ok};

#[tokio::test(flavor = "multi_thread")]
async fn success_event_contains_everything_about_the_task() {
    let (fleet, _) = memory(2, &[Kind::echo("echo")]).await;
    let headers = [("ce_id", "t-1"), ("ce_name", "first"), ("ce_tags", "a,b"), ("ce_time", "2026-01-31T12:00:00.500Z")];
    let position = fleet.send_record("echo", None, None, Some(b"{\"n\": 1}"), &headers).await;
    let worker = fleet.worker();
    let done = fleet.result_of("t-1").await;
    worker.stop().await;

    assert_eq!((done.kind(), done.run, done.attempt), (EventKind::Succeeded, 1, 1));
    assert_eq!(done.payload.output().unwrap().value().unwrap(), json!({"n": 1}));
    let started =
        done.payload.started_at_ms().expect("no `started` was written, so the result contains the start time");
    assert!(started <= done.at_ms && done.at_ms - started < 60_000);
    let announcement = done.task.expect("the producer published no announcement, so the result contains it");
    assert_eq!(
        (&*announcement.task_type, announcement.position, announcement.created_at_ms),
        ("echo", Some(position), 1_769_860_800_500)
    );
    let policy = announcement.policy.unwrap();
    assert_eq!((policy.name.as_deref(), policy.tags), (Some("first"), vec!["a".to_owned(), "b".to_owned()]));
    assert!(done.worker.is_some_and(|worker| !worker.is_empty()));
    assert_eq!(fleet.kinds_of("t-1"), ["succeeded"], "a short task costs one event");
    fleet.assert_clean("echo").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn record_without_headers_is_a_task() {
    let (fleet, _) = memory(1, &[Kind::echo("echo")]).await;
    let position = fleet.send_record("echo", None, None, Some(b"7"), &[]).await;
    let worker = fleet.worker();
    let done = fleet.wait_for_results(1).await.remove(0);
    worker.stop().await;
    assert!(done.id.as_str().starts_with(&format!("echo-{}-{}-", position.partition, position.offset)), "{}", done.id);
    assert_eq!(done.payload.output().unwrap().value().unwrap(), json!(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn longer_task_publishes_a_started_event() {
    let gate = Gate::closed();
    let inner = gate.clone();
    let kind = Kind::new("slow", move |_, cx| {
        let gate = inner.clone();
        async move {
            gate.pass(cx.id.as_str()).await;
            ok(json!("done"))
        }
    });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("slow", "s", "null").await;
    let worker = fleet.worker();
    fleet.events.wait("`started`", |events| events.iter().any(|event| event.kind() == EventKind::Started)).await;
    gate.open();
    let done = fleet.result_of("s").await;
    worker.stop().await;
    assert_eq!(fleet.kinds_of("s"), ["started", "succeeded"]);
    let first = fleet.events.all().remove(0);
    assert_eq!(
        (first.task.as_ref(), Some(first.at_ms)),
        (done.task.as_ref(), done.payload.started_at_ms()),
        "each of the two events is complete by itself"
    );
    assert_eq!(&*done.task.unwrap().task_type, "slow");
}

/// Fails three attempts; checks one event for each, and the dead letter.
pub async fn retries_until_exhausted(fleet: Fleet) {
    fleet.send_record("failing", None, None, Some(b"{\"a\":1}"), &[("ce_id", "f"), ("x-own", "kept")]).await;
    let worker = fleet.worker();
    let end = fleet.result_of("f").await;
    worker.stop().await;

    let events: Vec<_> = fleet.events.all().into_iter().filter(|event| event.kind() != EventKind::Started).collect();
    let outcomes: Vec<_> =
        events.iter().map(|event| (event.kind(), event.attempt, &*event.payload.error().unwrap().message)).collect();
    assert_eq!(
        outcomes,
        [
            (EventKind::Retrying, 1, "attempt 1 broke"),
            (EventKind::Retrying, 2, "attempt 2 broke"),
            (EventKind::Failed, 3, "attempt 3 broke")
        ]
    );
    for (event, wait) in events.iter().zip([20, 40]) {
        let due = event.payload.due_ms().unwrap() - event.at_ms;
        assert!(
            (wait..=wait + wait / 5 + 1).contains(&due),
            "backoff doubles, with up to 20 % jitter: {due} ms for {wait}"
        );
    }
    assert_eq!(end.payload.error().unwrap().kind, "error");
    let dead = fleet.dead("failing", 1).await;
    assert_eq!((dead.len(), &*dead[0].code, &*dead[0].error), (1, "exhausted", "attempt 3 broke"));
    assert_eq!(dead[0].record.value.as_deref(), Some(&b"{\"a\":1}"[..]));
    assert!(
        dead[0].record.headers.contains(&("x-own".into(), Some(b"kept".to_vec()))),
        "the record's own headers are kept"
    );
    fleet.assert_clean("failing").await;
}

pub fn failing() -> Kind {
    Kind::new("failing", |_, cx| async move { Err(Failure::retry(format!("attempt {} broke", cx.number))) })
}

#[tokio::test(flavor = "multi_thread")]
async fn task_is_retried_until_attempts_are_exhausted() {
    retries_until_exhausted(memory(1, &[failing()]).await.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn later_attempt_can_succeed_and_headers_override_the_policy() {
    let kind = Kind::new("flaky", |params: Value, cx| async move {
        if u64::from(cx.number) < params.as_u64().unwrap() {
            Err(Failure::retry("not yet"))
        } else {
            ok(json!(cx.number))
        }
    });
    let (fleet, _) = memory(1, &[kind]).await;
    let headers = [("ce_id", "more"), ("ce_retries", "6"), ("ce_minbackoff", "1ms"), ("ce_maxbackoff", "2ms")];
    fleet.send_record("flaky", None, None, Some(b"6"), &headers).await;
    fleet.send_record("flaky", None, None, Some(b"2"), &[("ce_id", "none"), ("ce_retries", "0")]).await;
    fleet.send_record("flaky", None, None, Some(b"3"), &[("ce_id", "used"), ("ce_attempt", "2")]).await;
    let worker = fleet.worker();
    let more = fleet.result_of("more").await;
    let none = fleet.result_of("none").await;
    let used = fleet.result_of("used").await;
    worker.stop().await;
    assert_eq!((more.kind(), more.attempt), (EventKind::Succeeded, 6));
    assert_eq!((none.kind(), none.attempt), (EventKind::Failed, 1));
    assert_eq!((used.kind(), used.attempt), (EventKind::Succeeded, 3), "attempts on earlier workers count");
}

#[tokio::test(flavor = "multi_thread")]
async fn final_and_dead_failures_are_not_retried() {
    let kind = Kind::new("no", |params: Value, _| async move {
        Err(if params == json!("dead") {
            Failure::dead("look at this")
        } else {
            Failure::fail("no").of_kind("refused")
        })
    });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("no", "final", "\"final\"").await;
    fleet.send("no", "dead", "\"dead\"").await;
    let worker = fleet.worker();
    let last = fleet.result_of("final").await;
    let dead = fleet.result_of("dead").await;
    worker.stop().await;
    let error = last.payload.error().unwrap();
    assert_eq!((last.kind(), last.attempt, &*error.kind, &*error.message), (EventKind::Failed, 1, "refused", "no"));
    assert_eq!((dead.kind(), dead.attempt), (EventKind::Failed, 1));
    let letters = fleet.dead("no", 1).await;
    assert_eq!(letters.len(), 1, "only the dead failure becomes a dead letter");
    assert_eq!((&*letters[0].code, &*letters[0].error), ("dead", "look at this"));
    assert_eq!(letters[0].record.key.as_deref(), Some(&b"dead"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_at_any_point_is_a_failed_attempt() {
    /// Panics on drop.
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    let kind = Kind::new("panics", |params: Value, cx| async move {
        if cx.number > 1 {
            return ok(json!("recovered"));
        }
        match params.as_str().unwrap() {
            "first poll" => panic!("at once"),
            "later" => {
                // The handler returns to the executor once before it panics.
                tokio::time::sleep(Duration::from_millis(10)).await;
                panic!("later");
            }
            "drop" => {
                let _bomb = Bomb;
                // The handler returns to the executor once before its value is dropped.
                tokio::time::sleep(Duration::from_millis(10)).await;
                ok(json!("never published"))
            }
            _ => {
                let _bomb = Bomb;
                std::future::pending().await
            }
        }
    });
    let (fleet, _) = memory(1, &[kind.slots(1).timeout(Millis(50))]).await;
    for id in ["first-poll", "later", "drop", "drop-at-timeout"] {
        fleet.send("panics", id, &format!("\"{}\"", id.replacen('-', " ", 1))).await;
    }
    let worker = fleet.worker();
    for id in ["first-poll", "later", "drop", "drop-at-timeout"] {
        let end = fleet.result_of(id).await;
        assert_eq!((end.kind(), end.attempt), (EventKind::Succeeded, 2), "{id}: {end:?}");
        let kinds = fleet.events.all();
        let retrying =
            kinds.iter().find(|event| event.id.as_str() == id && event.kind() == EventKind::Retrying).unwrap();
        assert!(["panic", "timeout"].contains(&&*retrying.payload.error().unwrap().kind), "{retrying:?}");
    }
    worker.stop().await;
    fleet.assert_clean("panics").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_on_drop_after_the_answer_does_not_change_the_result() {
    struct Bomb(bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 {
                panic!("in drop");
            }
        }
    }
    impl Future for Bomb {
        type Output = kafleet::handlers::Answer;
        fn poll(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
            std::task::Poll::Ready(ok(json!("done")))
        }
    }
    let (fleet, _) = memory(1, &[Kind::new("bombs", |params: Value, _| Bomb(params == json!("bomb")))]).await;
    fleet.send("bombs", "a", "\"bomb\"").await;
    fleet.send("bombs", "b", "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(2).await;
    worker.stop().await;
    fleet.assert_clean("bombs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn timeout_cancels_the_attempt_then_drops_it() {
    let kind = Kind::new("slow", |params: Value, cx| async move {
        if params == json!("stops") {
            cx.cancelled().cancelled().await;
            return ok(json!("in the grace"));
        }
        std::future::pending().await
    });
    let (fleet, _) = memory(1, &[kind.timeout(Millis(30)).retries(1, Millis(1))]).await;
    fleet.send("slow", "stops", "\"stops\"").await;
    fleet.send("slow", "ignores", "0").await;
    fleet
        .send_record("slow", None, None, Some(b"0"), &[("ce_id", "own"), ("ce_timeout", "40ms"), ("ce_retries", "0")])
        .await;
    let worker = fleet.worker();
    let stops = fleet.result_of("stops").await;
    let ignores = fleet.result_of("ignores").await;
    let result = fleet.result_of("own").await;
    worker.stop().await;
    assert_eq!(
        (stops.kind(), stops.payload.output().unwrap().value().unwrap()),
        (EventKind::Succeeded, json!("in the grace"))
    );
    let error = ignores.payload.error().unwrap();
    assert_eq!((ignores.kind(), ignores.attempt, &*error.kind), (EventKind::Failed, 2, "timeout"));
    assert!(error.message.starts_with("timeout of 30 ms, stopped "), "{}", error.message);
    assert_eq!((result.kind(), result.attempt), (EventKind::Failed, 1));
    fleet.assert_clean("slow").await;
}

/// The children of an attempt that answers within the grace period are published after its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn answer_in_the_grace_period_may_have_children() {
    let kind = Kind::new("slow", |_, cx| async move {
        cx.spawn_child(kafleet::handlers::Child::new("echo", json!(1)).id("kid"));
        cx.cancelled().cancelled().await;
        ok(Value::Null)
    });
    let (fleet, _) = memory(1, &[kind.timeout(Millis(30)), Kind::echo("echo")]).await;
    fleet.send("slow", "p", "0").await;
    let worker = fleet.worker();
    assert_eq!(fleet.result_of("p").await.kind(), EventKind::Succeeded);
    assert_eq!(fleet.result_of("p:kid").await.kind(), EventKind::Succeeded);
    worker.stop().await;
    fleet.assert_clean("slow").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_that_cancels_its_own_token_still_answers() {
    let kind = Kind::new("own", |_, cx| async move {
        cx.cancelled().cancel();
        // Time in which the worker could take the token for a cancel.
        tokio::time::sleep(Duration::from_millis(5)).await;
        Err(Failure::fail("stopped by itself"))
    });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("own", "a", "0").await;
    let worker = fleet.worker();
    let end = fleet.result_of("a").await;
    worker.stop().await;
    assert_eq!((end.kind(), &*end.payload.error().unwrap().message), (EventKind::Failed, "stopped by itself"));
    fleet.assert_clean("own").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extreme_timestamps_stop_no_other_task() {
    let kind = Kind::new("edge", |params: Value, _| async move {
        if params == json!("for ever") { Err(Failure::retry_after("later", Duration::MAX)) } else { ok(params) }
    });
    let (fleet, _) = memory(1, &[kind]).await;
    let most = MAX_TIME_MS.to_string();
    fleet.send("edge", "for-ever", "\"for ever\"").await;
    for (id, header, text) in [
        ("born-early", "ce_time", "0001-01-01T00:00:00Z"),
        ("born-late", "ce_time", &most),
        ("expired", "ce_expires", "0001-01-01T00:00:00Z"),
        ("put-off", "ce_notbefore", &most),
        ("nanoseconds", "ce_notbefore", "1770000000000000000"),
        ("long", "ce_timeout", "9223372036854775807ms"),
    ] {
        fleet.send_record("edge", None, None, Some(b"1"), &[("ce_id", id), (header, text)]).await;
    }
    fleet.send("edge", "last", "1").await;
    let worker = fleet.worker();
    for id in ["born-early", "born-late", "last"] {
        assert_eq!(fleet.result_of(id).await.kind(), EventKind::Succeeded, "{id}");
    }
    assert_eq!(fleet.result_of("expired").await.kind(), EventKind::Expired);
    for (id, reason) in [
        ("nanoseconds", "before the year 10000"),
        ("put-off", "start more than 30d from now"),
        ("long", "longer than a tree may stay open"),
    ] {
        let refused = fleet.result_of(id).await;
        assert!(refused.payload.error().is_some_and(|error| error.message.contains(reason)), "{refused:?}");
    }
    fleet
        .events
        .wait("the other attempt is scheduled", |events| events.iter().any(|event| event.kind() == EventKind::Retrying))
        .await;
    worker.stop().await;
    assert_eq!(fleet.kinds_of("for-ever"), ["retrying"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn result_that_is_too_large_fails_with_a_hint() {
    let kind =
        Kind::new("large", |params: Value, _| async move { ok(json!("x".repeat(params.as_u64().unwrap() as usize))) });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("large", "fits", "262142").await;
    fleet.send("large", "too-large", "262143").await;
    let worker = fleet.worker();
    let fits = fleet.result_of("fits").await;
    let not = fleet.result_of("too-large").await;
    worker.stop().await;
    assert_eq!(fits.kind(), EventKind::Succeeded);
    let error = not.payload.error().unwrap();
    assert_eq!((not.kind(), &*error.kind, not.attempt), (EventKind::Failed, "result_too_large", 1));
    assert!(error.message.contains("262145 bytes") && error.message.contains("return a link"), "{}", error.message);
}

/// The result is within the worker's limit and above the topic's.
#[tokio::test(flavor = "multi_thread")]
async fn result_that_the_topic_rejects_becomes_a_small_failure() {
    let kind = Kind::new("large", |_, _| async move { ok(json!("x".repeat(5 << 20))) });
    let (mut fleet, _) = memory(1, &[kind]).await;
    fleet.config.max_output = crate::worker::fleet::bytes(16 << 20);
    fleet.send("large", "a", "0").await;
    let worker = fleet.worker();
    let end = fleet.result_of("a").await;
    worker.stop().await;
    assert_eq!((end.kind(), &*end.payload.error().unwrap().kind), (EventKind::Failed, "result_too_large"));
    assert!(end.task.is_some(), "the replacement keeps the announcement");
    fleet.assert_clean("large").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_starts_at_not_before_and_fails_after_expiry() {
    let (fleet, _) = memory(1, &[Kind::echo("echo").slots(1)]).await;
    let worker = fleet.worker();
    fleet.send("echo", "first", "1").await;
    fleet.result_of("first").await;
    // Far enough in the future for a busy machine to read the record before it.
    let time = kafleet::runtime::now_ms() + 6_000;
    let soon = time.to_string();
    let past = "2020-01-01T00:00:00Z";
    fleet.send_record("echo", None, None, Some(b"1"), &[("ce_id", "later"), ("ce_notbefore", &soon)]).await;
    fleet.send_record("echo", None, None, Some(b"1"), &[("ce_id", "late"), ("ce_expires", past)]).await;
    fleet.send("echo", "now", "1").await;
    let now_event = fleet.result_of("now").await;
    let late = fleet.result_of("late").await;
    let later = fleet.result_of("later").await;
    worker.stop().await;
    assert_eq!(
        (now_event.kind(), late.kind(), later.kind()),
        (EventKind::Succeeded, EventKind::Expired, EventKind::Succeeded)
    );
    assert!(later.payload.started_at_ms().unwrap() >= time, "started too early");
    assert!(now_event.at_ms < later.payload.started_at_ms().unwrap(), "a waiting task holds a slot");
    assert!(late.payload.error().unwrap().message.contains("before its expiry, which passed"));
    assert_eq!(fleet.kinds_of("later"), ["scheduled", "succeeded"]);
    assert_eq!(
        fleet.events.all().iter().find(|event| event.kind() == EventKind::Scheduled).unwrap().payload.due_ms(),
        Some(time)
    );
    fleet.assert_clean("echo").await;
}

/// The record's key and foreign headers are kept, including binary ones.
#[tokio::test(flavor = "multi_thread")]
async fn task_handed_over_to_the_tracker_keeps_its_whole_record() {
    use kafleet::broker::ProducerRecord;
    let kind =
        Kind::new("far", |_: Value, _| async move { Err(Failure::retry_after("not yet", Duration::from_secs(40))) });
    let (fleet, _) = memory(1, &[kind]).await;
    let topic = fleet.names.tasks("far");
    let headers: [(&str, &[u8]); 4] =
        [("ce_id", b"a"), ("x-text", b"kept"), ("x-bytes", b"\xff\x00"), ("ce_subject", b"theirs")];
    for (key, id) in [(&b"\xfe"[..], "binary"), (b"customer-7", "text")] {
        let headers: Vec<_> = [("ce_id", id.as_bytes())].into_iter().chain(headers[1..].iter().copied()).collect();
        let record =
            ProducerRecord { topic: &topic, partition: None, key: Some(key), value: Some(b"1"), headers: &headers };
        fleet.producer.deliver(record, crate::worker::fleet::DEADLINE).await.unwrap();
    }
    let worker = fleet.worker();
    fleet.wait_committed("far").await;
    worker.stop().await;
    let events = fleet.events.all();
    for (id, key) in [("binary", &b"\xfe"[..]), ("text", b"customer-7")] {
        let kept = events
            .iter()
            .find(|event| event.id.as_str() == id && event.payload.record().is_some())
            .unwrap()
            .payload
            .record()
            .unwrap();
        assert_eq!(kept.key_bytes().as_deref(), Some(key));
        let released = kept.released(kafleet::model::retry::RunUsage { attempts: 1, waits: 0 });
        for (name, value) in [("ce_id", id.as_bytes()), ("ce_attempt", b"1")].iter().chain(&headers[1..]) {
            assert_eq!(
                released.iter().filter(|(own, kept)| own == name && kept == value).count(),
                1,
                "{name}: {released:?}"
            );
        }
    }
    fleet.assert_clean("far").await;
}

/// A long wait of an unordered task is handed over to the tracker with its record, which completes the input.
#[tokio::test(flavor = "multi_thread")]
async fn task_with_a_long_wait_is_handed_over_to_the_tracker() {
    let kind =
        || Kind::new("far", |_: Value, _| async move { Err(Failure::retry_after("not yet", Duration::from_secs(40))) });
    let (fleet, _) = memory(1, &[kind()]).await;
    let at = (kafleet::runtime::now_ms() + 60_000).to_string();
    let headers = [("ce_id", "later"), ("ce_notbefore", at.as_str()), ("ce_tags", "t")];
    fleet.send_record("far", None, None, Some(b"{\"n\":1}"), &headers).await;
    fleet.send("far", "again", "2").await;
    let worker = fleet.worker();
    fleet.wait_committed("far").await;
    let events = fleet.events.all();
    for (id, kind, params, attempt) in
        [("later", EventKind::Scheduled, "{\"n\":1}", 0), ("again", EventKind::Retrying, "2", 1)]
    {
        let event = events.iter().find(|event| event.id.as_str() == id && event.kind() == kind).expect(id);
        let record = event.payload.record().expect("its record");
        assert_eq!((record.params.text(), event.attempt, event.payload.due_ms().is_some()), (params, attempt, true));
        assert!(record.headers.iter().any(|(name, value)| name == "ce_id" && value == id));
        assert!(event.task.is_some(), "the event contains the announcement");
    }
    worker.stop().await;
    // No later task may overtake one of an ordered type: it waits in the worker.
    let (fleet, _) = memory(1, &[kind().order(kafleet::config::Order::Key)]).await;
    fleet.send("far", "again", "2").await;
    let worker = fleet.worker();
    fleet
        .events
        .wait("the retry is delayed", |events| events.iter().any(|event| event.kind() == EventKind::Retrying))
        .await;
    worker.stop().await;
    assert!(fleet.events.all().iter().all(|event| event.payload.record().is_none()));
}
