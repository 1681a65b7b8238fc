//! Dead letters over the api: from the worker that writes them to the run that follows.

use std::time::{Duration, Instant};

use kafleet::broker::{Broker, Partition, Record};
use kafleet::handlers::Registered;
use kafleet::model::record::state::State;
use kafleet::runtime::now_ms;
use reqwest::Method;
use serde_json::{Value, json};

use crate::anew::call;
use crate::inside::{DEADLINE, Fleet, until};
use crate::tasks::Broken;

/// The letters of a type, once there are so many.
async fn letters(fleet: &Fleet, task_type: &str, count: usize) -> Vec<Value> {
    until(&format!("{count} letters of `{task_type}`"), || async {
        let page = fleet.get(&format!("/v1/dead?type={task_type}")).await;
        let letters = page["letters"].as_array()?.clone();
        (letters.len() == count).then_some(letters)
    })
    .await
}

/// A task of a producer that knows nothing of kafleet, whose letter is there.
async fn dies(fleet: &Fleet, task_type: &str, (parent, id): (&str, &str), value: &str, count: usize) -> Value {
    let own: [(&str, &[u8]); 3] = [("ce_tags", b"t1"), ("x-own", b"kept"), ("ce_retries", b"0")];
    let headers = [&[("ce_id", id.as_bytes()), ("ce_parent", parent.as_bytes())][..], &own].concat();
    fleet.publish_bare(task_type, &headers, value).await;
    let of_task = |letter: &Value| letter["task"] == format!("{parent}:{id}");
    let letter = letters(fleet, task_type, count).await.into_iter().find(of_task).expect(id);
    // The next one is younger, also by the millisecond.
    let at: jiff::Timestamp = letter["at"].as_str().unwrap().parse().unwrap();
    until("time goes on", || async { (now_ms() > at.as_millisecond()).then_some(()) }).await;
    letter
}

/// What lies there, once it is known whether it is committed.
fn committed(broker: &dyn Broker, at: &Partition, offset: i64) -> Option<Record> {
    let end = Instant::now() + DEADLINE;
    loop {
        match broker.read_at(at, offset, DEADLINE) {
            Ok(found) => return found,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Every record of a topic.
async fn records(fleet: &Fleet, topic: String) -> Vec<Record> {
    let broker = fleet.broker.clone();
    let read = move || {
        let partitions = broker.topics(&topic, DEADLINE).unwrap().into_iter().find(|info| info.name == topic).unwrap().partitions;
        let places = (0..partitions as i32).map(|index| Partition::new(topic.as_str(), index));
        places
            .flat_map(|place| {
                let ends = broker.ends(&place, DEADLINE).unwrap();
                (ends.first..ends.end).filter_map(|offset| committed(&*broker, &place, offset)).collect::<Vec<_>>()
            })
            .collect()
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

async fn state(fleet: &Fleet, id: &str, state: State) {
    until(&format!("`{id}` is {state}"), || async { fleet.node(id).await.filter(|node| node.state == state) }).await;
}

async fn they_are_chosen_and_their_tasks_run_again(mut fleet: Fleet) {
    for name in ["broken", "other"] {
        fleet.add_type(name, Registered::of::<Broken>()).await;
    }
    fleet.start_worker();
    for root in ["r", "s"] {
        fleet.publish("echo", root, &json!(1)).await;
        fleet.ended(root).await;
    }
    let early = dies(&fleet, "broken", ("r", "early"), "{}", 1).await;
    let late = dies(&fleet, "broken", ("r", "late"), "{}", 2).await;
    let unfit = dies(&fleet, "broken", ("s", "unfit"), "7", 3).await;
    dies(&fleet, "other", ("s", "other"), "{}", 1).await;
    assert_eq!([&early, &late, &unfit].map(|letter| &letter["code"]), ["exhausted", "exhausted", "schema"]);
    // A letter may be seen before its task's end is folded.
    for id in ["r:early", "r:late", "s:unfit", "s:other", "r"] {
        state(&fleet, id, State::Failed).await;
    }

    // Of this type, this code, and before that time: one of four.
    fleet.gate.open();
    let chosen = json!({"type": "broken", "code": "exhausted", "to": late["at"]});
    let outcome = call(&fleet, Method::POST, "/v1/dead/redrive", chosen).await;
    assert_eq!((&outcome["done"], &outcome["refused"], &outcome["more"]), (&json!([early["id"]]), &json!([]), &json!(false)));
    state(&fleet, "r:early", State::Succeeded).await;
    let again = fleet.node("r:early").await.unwrap();
    assert_eq!((again.run, again.attempt), (2, 1));
    letters(&fleet, "broken", 2).await;
    let anew = |record: &&Record| record.headers.contains(&("ce_run".into(), Some(b"2".to_vec())));
    let all = records(&fleet, fleet.names.tasks("broken")).await;
    let [record] = all.iter().filter(anew).collect::<Vec<_>>()[..] else { panic!("one record: {all:?}") };
    for (name, value) in [("ce_id", "r:early"), ("ce_tags", "t1"), ("x-own", "kept"), ("ce_retries", "0")] {
        assert!(record.headers.contains(&(name.into(), Some(value.into()))), "{name}: {record:?}");
    }
    let history = fleet.get("/v1/tasks/r:early/history").await;
    let attempt = |run: u32, kind: &str| {
        let events = history["events"].as_array().unwrap();
        events.iter().find(|event| event["run"] == run && event["kind"] == kind).unwrap_or_else(|| panic!("{history}")).clone()
    };
    let (failed, done) = (attempt(1, "failed"), attempt(2, "succeeded"));
    assert_eq!((&failed["attempt"], &failed["message"]), (&json!(1), &json!("it is broken")), "what was wrong");
    assert_eq!(failed["error_kind"], "error");
    let began = match &failed["started_at"] {
        Value::Null => attempt(1, "started")["at"].clone(),
        at => at.clone(),
    };
    assert!(began.as_str().is_some_and(|began| began <= failed["at"].as_str().unwrap()), "and when: {history}");
    assert!(failed["worker"].is_string() && failed["worker"] == done["worker"] && failed["at"].as_str() < done["at"].as_str());
    let asked = attempt(1, "retry_requested");
    assert_eq!(asked["message"], format!("redriven from the dead letter {}", early["id"].as_str().unwrap()));

    // By name. The parent is open while they run, and then as good as they are.
    assert_eq!(fleet.node("r").await.unwrap().state, State::Failed, "the other one has failed");
    call(&fleet, Method::POST, &format!("/v1/dead/{}/redrive", late["id"].as_str().unwrap()), Value::Null).await;
    state(&fleet, "r", State::Succeeded).await;

    // What fits nobody is dropped, which is told on its task.
    let dropped = call(&fleet, Method::POST, "/v1/dead/drop", json!({"type": "broken", "from": unfit["at"]})).await;
    assert_eq!(dropped["done"], json!([unfit["id"]]));
    until("it is told", || async {
        let history = fleet.get("/v1/tasks/s:unfit/history").await;
        history["events"].as_array()?.iter().any(|event| event["kind"] == "dead_dropped").then_some(())
    })
    .await;
    letters(&fleet, "broken", 0).await;
    assert_eq!(letters(&fleet, "other", 1).await[0]["task"], "s:other", "nobody asked for those of another type");
    fleet.agrees().await;
    fleet.stop().await;
}

cases! {
    they_are_chosen_and_their_tasks_run_again,
}
