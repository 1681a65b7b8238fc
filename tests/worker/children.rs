//! Children of attempts.

use kafleet::handlers::{Child, Failure};
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use serde_json::{Value, json};

use crate::worker::fleet::memory;
use crate::worker::types::{Gate, Kind, ok};

#[tokio::test(flavor = "multi_thread")]
async fn children_are_published_before_their_parent_ends() {
    let kind = Kind::new("parent", |_, cx| async move {
        for _ in 0..3 {
            cx.spawn_child(Child::new("echo", json!({"b": 1, "a": 2})));
        }
        cx.spawn_child(Child::new("echo", json!(1)).id("own").key("k").name("mine"));
        ok(Value::Null)
    });
    // No worker runs the children, so all events come from the parent's worker.
    let (fleet, _) = memory(1, &[kind.clone(), Kind::echo("echo")]).await;
    fleet.send_record("parent", None, None, Some(b"0"), &[("ce_id", "p"), ("ce_run", "3")]).await;
    let worker = fleet.worker_of(&[kind]);
    fleet.result_of("p").await;
    worker.stop().await;

    let tasks = fleet.records(&fleet.names.tasks("echo"), 1, 4).await;
    let header = |n: usize, name: &str| {
        tasks[n]
            .headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| String::from_utf8(value.clone().unwrap()).unwrap())
    };
    let ids: Vec<String> = (0..tasks.len()).map(|n| header(n, "ce_id").unwrap()).collect();
    let base =
        format!("p:echo-{}", kafleet::model::task::hash::spawn_hash("echo", &json!({"a": 2, "b": 1}).into()).unwrap());
    assert_eq!(
        ids,
        [base.clone(), format!("{base}-2"), format!("{base}-3"), "p:own".into()],
        "equal children are numbered from the second on"
    );
    assert_eq!((header(3, "ce_parent").as_deref(), header(3, "ce_run").as_deref()), (Some("p"), Some("3")));
    assert_eq!((header(3, "ce_name").as_deref(), tasks[3].key.as_deref()), (Some("mine"), Some(&b"k"[..])));
    let events = fleet.events.all();
    // On a busy machine the attempt may last long enough for a `started` event.
    let order: Vec<_> = events.iter().map(|event| event.kind()).filter(|kind| *kind != EventKind::Started).collect();
    assert_eq!(
        order,
        [vec![EventKind::Submitted; 4], vec![EventKind::Succeeded]].concat(),
        "events of a tree are in one partition, in order"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_attempt_publishes_no_children() {
    let kind = Kind::new("parent", |params: Value, cx| async move {
        cx.spawn_child(Child::new("echo", json!(cx.number)));
        match params.as_str().unwrap() {
            "retries" if cx.number < 3 => Err(Failure::retry("again")),
            "fails" => Err(Failure::fail("no")),
            "panics" => panic!("no"),
            "too-large" => ok(json!("x".repeat(300 << 10))),
            "bad-child" => {
                cx.spawn_child(Child::new("echo", json!(1)).id("not:a:segment"));
                ok(Value::Null)
            }
            "times-out" => std::future::pending().await,
            _ => ok(Value::Null),
        }
    });
    let kind = kind.timeout(Millis(40));
    let (fleet, _) = memory(1, &[kind, Kind::echo("echo")]).await;
    let ids = ["retries", "fails", "panics", "too-large", "bad-child", "times-out"];
    for id in ids {
        fleet.send("parent", id, &format!("\"{id}\"")).await;
    }
    let worker = fleet.worker();
    for id in ids {
        let kind = fleet.result_of(id).await.kind();
        assert_eq!(kind, if id == "retries" { EventKind::Succeeded } else { EventKind::Failed }, "{id}");
    }
    let end = fleet.result_of("bad-child").await;
    let bad = end.payload.error().unwrap();
    assert!(bad.kind == "bad_child" && bad.message.contains("not:a:segment"), "{bad:?}");
    let children = fleet.records(&fleet.names.tasks("echo"), 1, 1).await;
    worker.stop().await;
    assert_eq!(fleet.end_of(&fleet.names.tasks("echo"), 0).await, 1, "{children:?}");
    assert_eq!(children[0].value.as_deref(), Some(&b"3"[..]), "only the third attempt succeeds and spawns");
}

#[tokio::test(flavor = "multi_thread")]
async fn early_children_are_published_at_once_and_not_repeated_by_retries() {
    let gate = Gate::closed();
    let inner = gate.clone();
    let kind = Kind::new("parent", move |_, cx| {
        let gate = inner.clone();
        async move {
            let children =
                vec![Child::new("echo", json!(1)), Child::new("echo", json!(1)), Child::new("echo", json!(2))];
            let ids = cx.spawn_now(children).await?;
            gate.pass("go").await;
            if cx.number < 3 { Err(Failure::retry("again")) } else { ok(json!(ids.len())) }
        }
    });
    let (mut fleet, _) = memory(1, &[kind, Kind::echo("echo")]).await;
    // Longer waits for a retry are left to the tracker, except for a task that has called `spawn_now`: only this worker
    // knows which children it has published.
    fleet.config.inline_retry_max = Millis(1);
    fleet.send("parent", "p", "0").await;
    let worker = fleet.worker();
    // The children complete while the parent still runs.
    let three = |events: &[kafleet::model::event::Event]| crate::worker::tail::ended_ids(events) == 3;
    fleet.events.wait("three children at the end of the attempt", three).await;
    gate.open();
    assert_eq!(fleet.result_of("p").await.payload.output().unwrap().value().unwrap(), json!(3));
    worker.stop().await;
    assert_eq!(fleet.end_of(&fleet.names.tasks("echo"), 0).await, 3, "three attempts publish each child once");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_children_are_published_without_a_round_trip_each() {
    let kind = Kind::new("parent", |_, cx| async move {
        (0..1_000).for_each(|n| cx.spawn_child(Child::new("echo", json!(n))));
        ok(Value::Null)
    });
    let (fleet, _) = memory(4, &[kind, Kind::echo("echo")]).await;
    fleet.send("parent", "p", "0").await;
    let worker = fleet.worker();
    fleet.wait_for_results(1_001).await;
    assert_eq!(worker.metric("kafleet_tasks_submitted_total", "type=\"echo\""), 1_000.0);
    worker.stop().await;
    fleet.assert_clean("echo").await;
}
