//! Dead letters over the API: from the worker that writes them to the redriven run.

use kafleet::broker::{Partition, Record};
use kafleet::handlers::TypeRegistration;
use kafleet::model::record::state::State;
use kafleet::runtime::now_ms;
use kafleet_testkit::records::committed_record;
use reqwest::Method;
use serde_json::{Value, json};

use crate::fleet::in_process::{DEADLINE, Fleet, eventually};
use crate::fleet::rebuild_after_wipe::call;
use crate::fleet::task_types::BrokenTask;

/// Waits until a type has this number of dead letters, and returns them.
async fn wait_for_letters(fleet: &Fleet, task_type: &str, count: usize) -> Vec<Value> {
    eventually(&format!("{count} dead letters of `{task_type}`"), || async {
        let page = fleet.get(&format!("/v1/dead-letters?type={task_type}")).await;
        let letters = page["letters"].as_array()?.clone();
        (letters.len() == count).then_some(letters)
    })
    .await
}

/// Publishes a failing task without kafleet's producer, and waits for its dead letter.
async fn dead_letter(fleet: &Fleet, task_type: &str, (parent, id): (&str, &str), value: &str, count: usize) -> Value {
    let own: [(&str, &[u8]); 3] = [("ce_tags", b"t1"), ("x-own", b"kept"), ("ce_retries", b"0")];
    let headers = [&[("ce_id", id.as_bytes()), ("ce_parent", parent.as_bytes())][..], &own].concat();
    fleet.publish_bare(task_type, &headers, value).await;
    let of_task = |letter: &Value| letter["task"] == format!("{parent}:{id}");
    let letter = wait_for_letters(fleet, task_type, count).await.into_iter().find(of_task).expect(id);
    // The next dead letter is younger by at least a millisecond.
    let at: jiff::Timestamp = letter["at"].as_str().unwrap().parse().unwrap();
    eventually("the clock advances", || async { now_ms() > at.as_millisecond() }).await;
    letter
}

/// All committed records of a topic.
async fn records(fleet: &Fleet, topic: String) -> Vec<Record> {
    let broker = fleet.broker.clone();
    let read = move || {
        let partitions =
            broker.topics(&topic, DEADLINE).unwrap().into_iter().find(|info| info.name == topic).unwrap().partitions;
        let partitions = (0..partitions as i32).map(|index| Partition::new(topic.as_str(), index));
        partitions
            .flat_map(|partition| {
                let ends = broker.watermarks(&partition, DEADLINE).unwrap();
                (ends.low..ends.high)
                    .filter_map(|offset| committed_record(&*broker, &partition, offset))
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

async fn wait_for_state(fleet: &Fleet, id: &str, state: State) {
    eventually(&format!("`{id}` is {state}"), || async {
        fleet.record(id).await.filter(|task_record| task_record.state == state)
    })
    .await;
}

/// Checks the second run of `r:early`: its record keeps the headers, and its history distinguishes the runs.
async fn assert_redriven(fleet: &Fleet, letter: &Value) {
    let again = fleet.record("r:early").await.unwrap();
    assert_eq!((again.run, again.attempt), (2, 1));
    wait_for_letters(fleet, "broken", 2).await;
    let is_second_run = |record: &&Record| record.headers.contains(&("ce_run".into(), Some(b"2".to_vec())));
    let all = records(fleet, fleet.names.tasks("broken")).await;
    let [record] = all.iter().filter(is_second_run).collect::<Vec<_>>()[..] else {
        panic!("expected one redriven record: {all:?}")
    };
    for (name, value) in [("ce_id", "r:early"), ("ce_tags", "t1"), ("x-own", "kept"), ("ce_retries", "0")] {
        assert!(record.headers.contains(&(name.into(), Some(value.into()))), "{name}: {record:?}");
    }
    let history = fleet.get("/v1/tasks/r:early/history").await;
    let attempt = |run: u32, kind: &str| {
        let events = history["events"].as_array().unwrap();
        events
            .iter()
            .find(|event| event["run"] == run && event["kind"] == kind)
            .unwrap_or_else(|| panic!("{history}"))
            .clone()
    };
    let (failed, done) = (attempt(1, "failed"), attempt(2, "succeeded"));
    assert_eq!(
        (&failed["attempt"], &failed["message"]),
        (&json!(1), &json!("the gate is closed")),
        "the reason of the first failure"
    );
    assert_eq!(failed["error_kind"], "error");
    let began = match &failed["started_at"] {
        Value::Null => attempt(1, "started")["at"].clone(),
        at => at.clone(),
    };
    assert!(
        began.as_str().is_some_and(|began| began <= failed["at"].as_str().unwrap()),
        "the start of the first attempt: {history}"
    );
    assert!(
        failed["worker"].is_string()
            && failed["worker"] == done["worker"]
            && failed["at"].as_str() < done["at"].as_str()
    );
    let requested = attempt(1, "retry_requested");
    assert_eq!(requested["message"], format!("redriven from the dead letter {}", letter["id"].as_str().unwrap()));
}

async fn selected_dead_letters_are_redriven(mut fleet: Fleet) {
    for name in ["broken", "other"] {
        fleet.add_type(name, TypeRegistration::of::<BrokenTask>()).await;
    }
    fleet.start_worker();
    for root in ["r", "s"] {
        fleet.publish("echo", root, &json!(1)).await;
        fleet.wait_for_end(root).await;
    }
    let early = dead_letter(&fleet, "broken", ("r", "early"), "{}", 1).await;
    let late = dead_letter(&fleet, "broken", ("r", "late"), "{}", 2).await;
    let unfit = dead_letter(&fleet, "broken", ("s", "unfit"), "7", 3).await;
    dead_letter(&fleet, "other", ("s", "other"), "{}", 1).await;
    assert_eq!([&early, &late, &unfit].map(|letter| &letter["code"]), ["exhausted", "exhausted", "schema"]);
    // The dead letter may be visible before the task's failure is folded.
    for id in ["r:early", "r:late", "s:unfit", "s:other", "r"] {
        wait_for_state(&fleet, id, State::Failed).await;
    }

    // Selected by type, code and time: one of four.
    fleet.gate.open();
    let chosen = json!({"type": "broken", "code": "exhausted", "to": late["at"]});
    let action = call(&fleet, Method::POST, "/v1/bulk", json!({"action": "redrive", "letters": chosen})).await;
    let action = action["id"].as_str().unwrap().to_owned();
    wait_for_state(&fleet, &action, State::Succeeded).await;
    let result = fleet.get(&format!("/v1/tasks/{action}")).await["result"].clone();
    assert_eq!((&result["done"], &result["changed"]), (&json!(1), &json!(["r:early"])), "{result}");
    wait_for_state(&fleet, "r:early", State::Succeeded).await;
    assert_redriven(&fleet, &early).await;

    // Redriven by id. The parent is open meanwhile and succeeds with its children.
    assert_eq!(fleet.record("r").await.unwrap().state, State::Failed, "the other child has failed");
    call(&fleet, Method::POST, &format!("/v1/dead-letters/{}/redrive", late["id"].as_str().unwrap()), Value::Null)
        .await;
    wait_for_state(&fleet, "r", State::Succeeded).await;

    // A dropped dead letter leaves an event in the task's history.
    let dropped =
        call(&fleet, Method::POST, "/v1/dead-letters/drop", json!({"type": "broken", "from": unfit["at"]})).await;
    assert_eq!(dropped["done"], json!([unfit["id"]]));
    eventually("the drop is in the history", || async {
        let history = fleet.get("/v1/tasks/s:unfit/history").await;
        history["events"].as_array()?.iter().any(|event| event["kind"] == "dead_dropped").then_some(())
    })
    .await;
    wait_for_letters(&fleet, "broken", 0).await;
    assert_eq!(
        wait_for_letters(&fleet, "other", 1).await[0]["task"],
        "s:other",
        "dead letters of another type are untouched"
    );
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

cases! {
    selected_dead_letters_are_redriven,
}
