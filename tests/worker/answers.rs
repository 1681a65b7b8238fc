//! What becomes of each kind of answer.

use std::time::Duration;

use kafleet::handlers::Failure;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use serde_json::{Value, json};

use crate::fleet::{Fleet, memory};
use crate::types::{Gate, Kind, ok};

#[tokio::test(flavor = "multi_thread")]
async fn a_success_says_everything_about_the_task() {
    let (fleet, _) = memory(2, &[Kind::echo("echo")]).await;
    let headers = [("ce_id", "t-1"), ("ce_name", "first"), ("ce_tags", "a,b"), ("ce_time", "2026-01-31T12:00:00.500Z")];
    let place = fleet.send_record("echo", None, None, Some(b"{\"n\": 1}"), &headers).await;
    let worker = fleet.worker();
    let done = fleet.result_of("t-1").await;
    worker.stop().await;

    assert_eq!((done.kind, done.run, done.attempt), (EventKind::Succeeded, 1, 1));
    assert_eq!(done.output.unwrap().value().unwrap(), json!({"n": 1}));
    let started = done.started_at_ms.expect("no `started` was written, so the result says when");
    assert!(started <= done.at_ms && done.at_ms - started < 60_000);
    let told = done.task.expect("the producer announced nothing, so the result does");
    assert_eq!((&*told.task_type, told.position, told.created_at_ms), ("echo", Some(place), 1_769_860_800_500));
    let policy = told.policy.unwrap();
    assert_eq!((policy.name.as_deref(), policy.tags), (Some("first"), vec!["a".to_owned(), "b".to_owned()]));
    assert!(done.worker.is_some_and(|worker| !worker.is_empty()));
    assert_eq!(fleet.kinds_of("t-1"), ["succeeded"], "a short task costs one event");
    fleet.assert_clean("echo").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_anything_is_a_task() {
    let (fleet, _) = memory(1, &[Kind::echo("echo")]).await;
    let place = fleet.send_record("echo", None, None, Some(b"7"), &[]).await;
    let worker = fleet.worker();
    let done = fleet.wait_for_results(1).await.remove(0);
    worker.stop().await;
    assert!(done.id.as_str().starts_with(&format!("echo-{}-{}-", place.partition, place.offset)), "{}", done.id);
    assert_eq!(done.output.unwrap().value().unwrap(), json!(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_task_says_that_it_has_started() {
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
    fleet.events.wait("`started`", |events| events.iter().any(|event| event.kind == EventKind::Started)).await;
    gate.open();
    let done = fleet.result_of("s").await;
    worker.stop().await;
    assert_eq!(fleet.kinds_of("s"), ["started", "succeeded"]);
    let first = fleet.events.all().remove(0);
    assert_eq!(
        (first.task.as_ref(), Some(first.at_ms)),
        (done.task.as_ref(), done.started_at_ms),
        "either may be all that arrives"
    );
    assert_eq!(&*done.task.unwrap().task_type, "slow");
}

/// Three attempts, all failing: one event each, then the dead letter.
pub async fn retries_until_exhausted(fleet: Fleet) {
    fleet.send_record("failing", None, None, Some(b"{\"a\":1}"), &[("ce_id", "f"), ("x-own", "kept")]).await;
    let worker = fleet.worker();
    let end = fleet.result_of("f").await;
    worker.stop().await;

    let events: Vec<_> = fleet.events.all().into_iter().filter(|event| event.kind != EventKind::Started).collect();
    let told: Vec<_> = events.iter().map(|event| (event.kind, event.attempt, &*event.error.as_ref().unwrap().message)).collect();
    assert_eq!(
        told,
        [
            (EventKind::Retrying, 1, "attempt 1 broke"),
            (EventKind::Retrying, 2, "attempt 2 broke"),
            (EventKind::Failed, 3, "attempt 3 broke")
        ]
    );
    for (event, wait) in events.iter().zip([20, 40]) {
        let due = event.due_ms.unwrap() - event.at_ms;
        assert!((wait..=wait + wait / 5 + 1).contains(&due), "waits double, with up to 20 % on top: {due} ms for {wait}");
    }
    assert_eq!(end.error.unwrap().kind, "error");
    let dead = fleet.dead("failing", 1).await;
    assert_eq!((dead.len(), &*dead[0].code, &*dead[0].error), (1, "exhausted", "attempt 3 broke"));
    assert_eq!(dead[0].record.value.as_deref(), Some(&b"{\"a\":1}"[..]));
    assert!(dead[0].record.headers.contains(&("x-own".into(), Some(b"kept".to_vec()))), "the record's own headers stay");
    fleet.assert_clean("failing").await;
}

pub fn failing() -> Kind {
    Kind::new("failing", |_, cx| async move { Err(Failure::retry(format!("attempt {} broke", cx.number))) })
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_made_again_until_they_are_exhausted() {
    retries_until_exhausted(memory(1, &[failing()]).await.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_attempt_can_succeed_and_headers_override_the_policy() {
    let kind = Kind::new("flaky", |params: Value, cx| async move {
        if u64::from(cx.number) < params.as_u64().unwrap() { Err(Failure::retry("not yet")) } else { ok(json!(cx.number)) }
    });
    let (fleet, _) = memory(1, &[kind]).await;
    let own = [("ce_id", "more"), ("ce_retries", "6"), ("ce_minbackoff", "1ms"), ("ce_maxbackoff", "2ms")];
    fleet.send_record("flaky", None, None, Some(b"6"), &own).await;
    fleet.send_record("flaky", None, None, Some(b"2"), &[("ce_id", "none"), ("ce_retries", "0")]).await;
    fleet.send_record("flaky", None, None, Some(b"3"), &[("ce_id", "used"), ("ce_attempt", "2")]).await;
    let worker = fleet.worker();
    let (more, none, used) = (fleet.result_of("more").await, fleet.result_of("none").await, fleet.result_of("used").await);
    worker.stop().await;
    assert_eq!((more.kind, more.attempt), (EventKind::Succeeded, 6));
    assert_eq!((none.kind, none.attempt), (EventKind::Failed, 1));
    assert_eq!((used.kind, used.attempt), (EventKind::Succeeded, 3), "attempts used before count");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_final_failure_and_a_dead_one_are_not_tried_again() {
    let kind = Kind::new("no", |params: Value, _| async move {
        Err(if params == json!("dead") { Failure::dead("look at this") } else { Failure::fail("no").of_kind("refused") })
    });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("no", "final", "\"final\"").await;
    fleet.send("no", "dead", "\"dead\"").await;
    let worker = fleet.worker();
    let (last, dead) = (fleet.result_of("final").await, fleet.result_of("dead").await);
    worker.stop().await;
    let error = last.error.unwrap();
    assert_eq!((last.kind, last.attempt, &*error.kind, &*error.message), (EventKind::Failed, 1, "refused", "no"));
    assert_eq!((dead.kind, dead.attempt), (EventKind::Failed, 1));
    let letters = fleet.dead("no", 1).await;
    assert_eq!(letters.len(), 1, "only the one that asked for it");
    assert_eq!((&*letters[0].code, &*letters[0].error), ("dead", "look at this"));
    assert_eq!(letters[0].record.key.as_deref(), Some(&b"dead"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn panics_are_failed_attempts_wherever_they_come() {
    /// Panics when it is dropped.
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
                tokio::time::sleep(Duration::from_millis(10)).await;
                panic!("later");
            }
            "drop" => {
                let _bomb = Bomb;
                tokio::time::sleep(Duration::from_millis(10)).await;
                ok(json!("never told"))
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
        assert_eq!((end.kind, end.attempt), (EventKind::Succeeded, 2), "{id}: {end:?}");
        let kinds = fleet.events.all();
        let retrying = kinds.iter().find(|event| event.id.as_str() == id && event.kind == EventKind::Retrying).unwrap();
        assert!(["panic", "timeout"].contains(&&*retrying.error.as_ref().unwrap().kind), "{retrying:?}");
    }
    worker.stop().await;
    fleet.assert_clean("panics").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_when_it_is_dropped_on_the_spot_harms_nobody() {
    struct Bomb(bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 {
                panic!("in drop");
            }
        }
    }
    impl std::future::Future for Bomb {
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
async fn a_timeout_first_asks_then_drops() {
    let kind = Kind::new("slow", |params: Value, cx| async move {
        if params == json!("heeds") {
            cx.cancelled().cancelled().await;
            return ok(json!("in the grace"));
        }
        std::future::pending().await
    });
    let (fleet, _) = memory(1, &[kind.timeout(Millis(30)).retries(1, Millis(1))]).await;
    fleet.send("slow", "heeds", "\"heeds\"").await;
    fleet.send("slow", "ignores", "0").await;
    fleet.send_record("slow", None, None, Some(b"0"), &[("ce_id", "own"), ("ce_timeout", "40ms"), ("ce_retries", "0")]).await;
    let worker = fleet.worker();
    let (heeds, ignores, own) = (fleet.result_of("heeds").await, fleet.result_of("ignores").await, fleet.result_of("own").await);
    worker.stop().await;
    assert_eq!((heeds.kind, heeds.output.unwrap().value().unwrap()), (EventKind::Succeeded, json!("in the grace")));
    let error = ignores.error.unwrap();
    assert_eq!((ignores.kind, ignores.attempt, &*error.kind), (EventKind::Failed, 2, "timeout"));
    assert!(error.message.contains("had not ended"), "{}", error.message);
    assert_eq!((own.kind, own.attempt), (EventKind::Failed, 1));
    fleet.assert_clean("slow").await;
}

/// The children of such an attempt have to be published after its deadline: it is over all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_the_grace_may_have_children() {
    let kind = Kind::new("slow", |_, cx| async move {
        cx.spawn_child(kafleet::handlers::Child::new("echo", json!(1)).id("kid"));
        cx.cancelled().cancelled().await;
        ok(Value::Null)
    });
    let (fleet, _) = memory(1, &[kind.timeout(Millis(30)), Kind::echo("echo")]).await;
    fleet.send("slow", "p", "0").await;
    let worker = fleet.worker();
    assert_eq!(fleet.result_of("p").await.kind, EventKind::Succeeded);
    assert_eq!(fleet.result_of("p:kid").await.kind, EventKind::Succeeded);
    worker.stop().await;
    fleet.assert_clean("slow").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_fires_its_own_token_still_answers() {
    let kind = Kind::new("own", |_, cx| async move {
        cx.cancelled().cancel();
        tokio::time::sleep(Duration::from_millis(5)).await;
        Err(Failure::fail("stopped by itself"))
    });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("own", "a", "0").await;
    let worker = fleet.worker();
    let end = fleet.result_of("a").await;
    worker.stop().await;
    assert_eq!((end.kind, &*end.error.unwrap().message), (EventKind::Failed, "stopped by itself"));
    fleet.assert_clean("own").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_at_the_edge_of_what_can_be_written_stop_nobody() {
    let kind = Kind::new("edge", |params: Value, _| async move {
        if params == json!("for ever") { Err(Failure::retry_after("later", Duration::MAX)) } else { ok(params) }
    });
    let (fleet, _) = memory(1, &[kind]).await;
    let (least, most) = (i64::MIN.to_string(), i64::MAX.to_string());
    fleet.send("edge", "for-ever", "\"for ever\"").await;
    fleet.send_record("edge", None, None, Some(b"1"), &[("ce_id", "born-early"), ("ce_time", &least)]).await;
    fleet.send_record("edge", None, None, Some(b"1"), &[("ce_id", "born-late"), ("ce_time", &most), ("ce_expires", "1h")]).await;
    fleet.send_record("edge", None, None, Some(b"1"), &[("ce_id", "expired"), ("ce_expires", &least)]).await;
    fleet.send_record("edge", None, None, Some(b"1"), &[("ce_id", "put-off"), ("ce_notbefore", &most)]).await;
    fleet.send_record("edge", None, None, Some(b"1"), &[("ce_id", "long"), ("ce_timeout", "9223372036854775807ms")]).await;
    fleet.send("edge", "last", "1").await;
    let worker = fleet.worker();
    for id in ["born-early", "born-late", "long", "last"] {
        assert_eq!(fleet.result_of(id).await.kind, EventKind::Succeeded, "{id}");
    }
    assert_eq!(fleet.result_of("expired").await.kind, EventKind::Expired);
    fleet.events.wait("the others wait", |events| events.iter().any(|event| event.kind == EventKind::Scheduled)).await;
    worker.stop().await;
    assert_eq!((fleet.kinds_of("put-off"), fleet.kinds_of("for-ever")), (vec!["scheduled".into()], vec!["retrying".into()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_too_large_fails_and_says_what_to_do() {
    let kind = Kind::new("large", |params: Value, _| async move { ok(json!("x".repeat(params.as_u64().unwrap() as usize))) });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("large", "fits", "262142").await;
    fleet.send("large", "too-large", "262143").await;
    let worker = fleet.worker();
    let (fits, not) = (fleet.result_of("fits").await, fleet.result_of("too-large").await);
    worker.stop().await;
    assert_eq!(fits.kind, EventKind::Succeeded);
    let error = not.error.unwrap();
    assert_eq!((not.kind, &*error.kind, not.attempt), (EventKind::Failed, "result_too_large", 1));
    assert!(error.message.contains("262145 bytes") && error.message.contains("return a link"), "{}", error.message);
}

/// The worker's own limit lets it pass, the topic does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_the_topic_refuses_becomes_a_small_failure() {
    let kind = Kind::new("large", |_, _| async move { ok(json!("x".repeat(5 << 20))) });
    let (mut fleet, _) = memory(1, &[kind]).await;
    fleet.config.max_output = crate::fleet::bytes(16 << 20);
    fleet.send("large", "a", "0").await;
    let worker = fleet.worker();
    let end = fleet.result_of("a").await;
    worker.stop().await;
    assert_eq!((end.kind, &*end.error.unwrap().kind), (EventKind::Failed, "result_too_large"));
    assert!(end.task.is_some(), "the small one says what the large one would have said");
    fleet.assert_clean("large").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_waits_for_its_time_and_expires_after_it() {
    let (fleet, _) = memory(1, &[Kind::echo("echo").slots(1)]).await;
    let worker = fleet.worker();
    fleet.send("echo", "first", "1").await;
    fleet.result_of("first").await;
    // The worker runs; far enough off for a busy machine to look at it before.
    let time = kafleet::runtime::now_ms() + 6_000;
    let (soon, past) = (time.to_string(), "2020-01-01T00:00:00Z");
    fleet.send_record("echo", None, None, Some(b"1"), &[("ce_id", "later"), ("ce_notbefore", &soon)]).await;
    fleet.send_record("echo", None, None, Some(b"1"), &[("ce_id", "late"), ("ce_expires", past)]).await;
    fleet.send("echo", "now", "1").await;
    let (now_event, late, later) = (fleet.result_of("now").await, fleet.result_of("late").await, fleet.result_of("later").await);
    worker.stop().await;
    assert_eq!((now_event.kind, late.kind, later.kind), (EventKind::Succeeded, EventKind::Expired, EventKind::Succeeded));
    assert!(later.started_at_ms.unwrap() >= time, "not before its time");
    assert!(now_event.at_ms < later.started_at_ms.unwrap(), "what waits holds no slot");
    assert!(late.error.unwrap().message.contains("late"));
    assert_eq!(fleet.kinds_of("later"), ["scheduled", "succeeded"]);
    assert_eq!(fleet.events.all().iter().find(|event| event.kind == EventKind::Scheduled).unwrap().due_ms, Some(time));
    fleet.assert_clean("echo").await;
}

/// Its key and the headers of others go with it, also those that are no text.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_handed_to_the_tracker_is_the_whole_record() {
    use kafleet::broker::ProducerRecord;
    let kind = Kind::new("far", |_: Value, _| async move { Err(Failure::retry_after("not yet", Duration::from_secs(40))) });
    let (fleet, _) = memory(1, &[kind]).await;
    let topic = fleet.names.tasks("far");
    let headers: [(&str, &[u8]); 4] = [("ce_id", b"a"), ("x-text", b"kept"), ("x-bytes", b"\xff\x00"), ("ce_subject", b"theirs")];
    for (key, id) in [(&b"\xfe"[..], "binary"), (b"customer-7", "text")] {
        let headers: Vec<_> = [("ce_id", id.as_bytes())].into_iter().chain(headers[1..].iter().copied()).collect();
        let record = ProducerRecord { topic: &topic, partition: None, key: Some(key), value: Some(b"1"), headers: &headers };
        fleet.link.deliver(record, crate::fleet::DEADLINE).await.unwrap();
    }
    let worker = fleet.worker();
    fleet.wait_committed("far").await;
    worker.stop().await;
    let events = fleet.events.all();
    for (id, key) in [("binary", &b"\xfe"[..]), ("text", b"customer-7")] {
        let kept = events.iter().find(|event| event.id.as_str() == id && event.record.is_some()).unwrap().record.clone().unwrap();
        assert_eq!(kept.key_bytes().as_deref(), Some(key));
        let released = kept.released(1);
        for (name, value) in [("ce_id", id.as_bytes()), ("ce_attempt", b"1")].iter().chain(&headers[1..]) {
            assert_eq!(released.iter().filter(|(own, held)| own == name && held == value).count(), 1, "{name}: {released:?}");
        }
    }
    fleet.assert_clean("far").await;
}

/// Without order, what waits long is handed over with its record: the input is done, and other work has the room.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_long_is_handed_to_the_tracker() {
    let kind = || Kind::new("far", |_: Value, _| async move { Err(Failure::retry_after("not yet", Duration::from_secs(40))) });
    let (fleet, _) = memory(1, &[kind()]).await;
    let at = (kafleet::runtime::now_ms() + 60_000).to_string();
    let headers = [("ce_id", "later"), ("ce_notbefore", at.as_str()), ("ce_tags", "t")];
    fleet.send_record("far", None, None, Some(b"{\"n\":1}"), &headers).await;
    fleet.send("far", "again", "2").await;
    let worker = fleet.worker();
    fleet.wait_committed("far").await;
    let events = fleet.events.all();
    for (id, what, params, attempt) in [("later", EventKind::Scheduled, "{\"n\":1}", 0), ("again", EventKind::Retrying, "2", 1)] {
        let event = events.iter().find(|event| event.id.as_str() == id && event.kind == what).expect(id);
        let record = event.record.as_ref().expect("its record");
        assert_eq!((record.params.text(), event.attempt, event.due_ms.is_some()), (params, attempt, true));
        assert!(record.headers.iter().any(|(name, value)| name == "ce_id" && value == id));
        assert!(event.task.is_some(), "it says everything");
    }
    worker.stop().await;
    // In order, nobody may overtake it: it waits in the worker.
    let (fleet, _) = memory(1, &[kind().order(kafleet::config::Order::Key)]).await;
    fleet.send("far", "again", "2").await;
    let worker = fleet.worker();
    fleet.events.wait("it waits", |events| events.iter().any(|event| event.kind == EventKind::Retrying)).await;
    worker.stop().await;
    assert!(fleet.events.all().iter().all(|event| event.record.is_none()));
}
