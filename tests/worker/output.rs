//! Progress, log lines, warnings, and metrics.

use std::time::Duration;

use kafleet::handlers::Failure;
use kafleet::model::event::{Event, Kind as EventKind, Payload};
use kafleet::model::units::duration::Millis;
use serde_json::{Value, json};

use crate::worker::fleet::{eventually, memory};
use crate::worker::types::{Gate, Kind, ok};

fn lines(events: &[Event], id: &str) -> Vec<String> {
    events.iter().filter(|event| event.id.as_str() == id).flat_map(|event| event.payload.lines().to_vec()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_published_in_order_between_start_and_result() {
    let kind = Kind::new("talks", |_, cx| async move {
        cx.log("one");
        cx.progress(json!(1));
        cx.progress(json!(2));
        cx.warn("hot");
        cx.log("two");
        cx.attach("note", "text/plain", "old")?;
        cx.attach("note", "text/plain", "new")?;
        assert!(cx.attach("a/b", "text/plain", "x").is_err());
        ok(Value::Null)
    });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("talks", "t", "0").await;
    let worker = fleet.worker();
    fleet.result_of("t").await;
    worker.stop().await;
    let events = fleet.events.all();
    assert_eq!(fleet.kinds_of("t"), ["started", "warned", "progress", "attached", "log", "succeeded"]);
    let Payload::Attached { attachment: Some(attachment) } = &events[3].payload else { panic!("{:?}", events[3]) };
    assert_eq!(attachment.data, b"new", "the newest attachment of a name is kept");
    assert_eq!(events[2].payload.output().unwrap().value().unwrap(), json!(2), "the newest progress is kept");
    assert_eq!(lines(&events, "t"), ["one", "two"]);
    assert!(events.iter().all(|event| event.attempt == 1), "{events:?}");
}

/// The tracker drops events of a task that it does not know.
#[tokio::test(flavor = "multi_thread")]
async fn no_output_is_published_before_the_start_of_an_attempt() {
    let gate = Gate::closed();
    let inner = gate.clone();
    let kind = Kind::new("talks", move |_, cx| {
        let gate = inner.clone();
        async move {
            cx.log(format!("line of {}", cx.id));
            gate.pass("go").await;
            ok(Value::Null)
        }
    });
    let (mut fleet, _) = memory(1, &[kind.slots(100)]).await;
    fleet.config.started_delay = Millis(150);
    let worker = fleet.worker();
    for n in 0..20 {
        fleet.send("talks", &format!("t{n}"), "0").await;
        // Not a wait for a condition: the starts are spread over the intervals at which output is flushed.
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let all = |events: &[Event]| events.iter().filter(|event| event.kind() == EventKind::Log).count() == 20;
    fleet.events.wait("20 log events", all).await;
    gate.open();
    fleet.wait_for_results(20).await;
    worker.stop().await;
    for n in 0..20 {
        assert_eq!(fleet.kinds_of(&format!("t{n}")), ["started", "log", "succeeded"], "t{n}");
    }
}

/// A clone of the context outlives the attempt in work that cannot be stopped.
#[tokio::test(flavor = "multi_thread")]
async fn no_output_is_published_after_the_end_of_an_attempt() {
    let gate = Gate::closed();
    let inner = gate.clone();
    let kind = Kind::new("lingers", move |_, cx| {
        let gate = inner.clone();
        async move {
            let late = cx.clone();
            if cx.number == 1 {
                tokio::spawn(async move {
                    gate.pass("late").await;
                    late.log("too late");
                    late.progress(json!("too late"));
                    gate.open_for("second");
                });
                return Err(Failure::retry("first"));
            }
            gate.open_for("late");
            gate.pass("second").await;
            cx.log("second");
            ok(Value::Null)
        }
    });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("lingers", "t", "0").await;
    let worker = fleet.worker();
    fleet.result_of("t").await;
    worker.stop().await;
    let events = fleet.events.all();
    assert_eq!(lines(&events, "t"), ["second"]);
    assert!(events.iter().all(|event| event.kind() != EventKind::Progress), "{events:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_beyond_the_limit_is_dropped_and_counted() {
    let kind = Kind::new("talks", |_, cx| async move {
        (0..100).for_each(|_| cx.log("x".repeat(1 << 10)));
        cx.progress("y".repeat(20 << 10));
        ok(Value::Null)
    });
    let (fleet, _) = memory(1, &[kind]).await;
    fleet.send("talks", "t", "0").await;
    let worker = fleet.worker();
    fleet.result_of("t").await;
    worker.stop().await;
    let events = fleet.events.all();
    let bytes: usize = lines(&events, "t").iter().map(String::len).sum();
    let dropped = |event: &Event| if let Payload::Log { dropped, .. } = event.payload { dropped } else { 0 };
    let dropped: u32 = events.iter().map(dropped).sum();
    assert!(bytes <= 64 << 10, "{bytes} bytes");
    assert_eq!(
        lines(&events, "t").len() as u32 + dropped,
        101,
        "every line is published or counted as dropped, including the line about progress"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_few_tasks_exactly() {
    let kind = Kind::new("mixed", |params: Value, _| async move {
        if params == json!("fail") { Err(Failure::fail("no")) } else { ok(params) }
    });
    let (fleet, _) = memory(1, &[kind]).await;
    for (id, params) in [("a", "1"), ("b", "\"fail\""), ("c", "not JSON")] {
        fleet.send("mixed", id, params).await;
    }
    let worker = fleet.worker();
    fleet.wait_for_results(3).await;
    let finished = |outcome: &str| worker.metric("kafleet_tasks_finished_total", outcome);
    eventually("all outcomes are counted", async || {
        (finished("succeeded"), finished("failed"), finished("rejected")) == (1.0, 1.0, 1.0)
    })
    .await;
    assert_eq!(worker.metric("kafleet_tasks_started_total", "mixed"), 2.0);
    assert_eq!(worker.metric("kafleet_dead_letters_total", "bad_json"), 1.0);
    assert_eq!(worker.metric("kafleet_tasks_in_flight", "mixed"), 0.0);
    worker.stop().await;
}
