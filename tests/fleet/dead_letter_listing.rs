//! Dead-letter listing amid transactions, foreign records and several apis: it equals the contents of the topic.

use std::collections::BTreeSet;
use std::time::Duration;

use kafleet::broker::{Partition, ProducerRecord};
use kafleet::handlers::TypeRegistration;
use kafleet::model::record::state::State;
use reqwest::Method;
use serde_json::{Value, json};

use crate::fleet::in_process::{DEADLINE, Fleet, eventually};
use crate::fleet::rebuild_after_wipe::call;
use crate::fleet::task_types::BrokenTask;

const CALL: Duration = Duration::from_secs(60);

/// Ids of all listed dead letters, over all pages.
async fn listed(fleet: &Fleet, task_type: &str) -> BTreeSet<String> {
    let (mut found, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let page = fleet.get(&format!("/v1/dead-letters?type={task_type}&limit=7{cursor}")).await;
        let letters = page["letters"].as_array().unwrap();
        for letter in letters {
            assert!(found.insert(letter["id"].as_str().unwrap().to_owned()), "listed twice: {letter}");
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

/// Ids of the committed records of the dead-letter topic, without resolution markers.
async fn letters_in_topic(fleet: &Fleet, task_type: &str) -> BTreeSet<String> {
    let (broker, topic, name) = (fleet.broker.clone(), fleet.names.dead(task_type), task_type.to_owned());
    let read = move || {
        let info = broker.topics(&topic, DEADLINE).unwrap().into_iter().find(|info| info.name == topic).unwrap();
        let mut found = BTreeSet::new();
        for index in 0..info.partitions as i32 {
            let at = Partition::new(topic.as_str(), index);
            let end = broker.watermarks(&at, DEADLINE).unwrap().high;
            let mut next = 0;
            while next < end {
                let probe = broker.first_visible(&at, next, DEADLINE).unwrap();
                let Some(record) = probe.record else { break };
                if record.headers.iter().all(|(header, _)| header != "kafleet_request") {
                    found.insert(format!("{name}:{index}:{}", record.offset));
                }
                next = record.offset + 1;
            }
        }
        found
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

/// Waits until the topic holds this number of dead letters.
async fn wait_for_letters(fleet: &Fleet, task_type: &str, count: usize) -> BTreeSet<String> {
    eventually(&format!("{count} dead letters of `{task_type}`"), || async {
        let found = letters_in_topic(fleet, task_type).await;
        (found.len() == count).then_some(found)
    })
    .await
}

async fn publish_failing(fleet: &Fleet, id: &str) {
    fleet.publish_bare("broken", &[("ce_id", id.as_bytes()), ("ce_retries", b"0")], "{}").await;
}

/// Writes records to the dead-letter topic as a foreign producer: committed, aborted and outside of transactions.
async fn write_foreign_records(fleet: &Fleet) -> usize {
    let (broker, topic) = (fleet.broker.clone(), fleet.names.dead("broken"));
    let write = move || {
        let mut producer = broker.transactional_producer("stranger").unwrap();
        let mark: [(&str, &[u8]); 3] =
            [("kafleet_marks", b"0"), ("kafleet_resolution", b"dropped"), ("kafleet_time", b"1")];
        let none: [(&str, &[u8]); 0] = [];
        let record = |headers| ProducerRecord { topic: &topic, partition: Some(0), key: None, value: None, headers };
        for _ in 0..3 {
            producer.send_all(&[record(&mark), record(&none)], DEADLINE).unwrap();
        }
        let nowhere = ProducerRecord { topic: "no such topic", ..record(&none) };
        assert!(producer.send_all(&[record(&mark), nowhere], DEADLINE).is_err(), "the transaction is aborted");
    };
    tokio::task::spawn_blocking(write).await.unwrap();
    let topic = fleet.names.dead("broken");
    let garbage = ProducerRecord {
        topic: &topic,
        partition: Some(0),
        key: None,
        value: Some(b"\xff"),
        headers: &[("x", b"\xfe")],
    };
    fleet.publisher.producer().deliver(garbage, DEADLINE).await.unwrap();
    7
}

async fn listing_equals_the_topic(mut fleet: Fleet) {
    fleet.add_type("broken", TypeRegistration::of::<BrokenTask>()).await;
    fleet.start_worker();
    for n in 0..20 {
        publish_failing(&fleet, &format!("k-{n}")).await;
    }
    wait_for_letters(&fleet, "broken", 20).await;
    let more = write_foreign_records(&fleet).await;
    for n in 20..30 {
        publish_failing(&fleet, &format!("k-{n}")).await;
    }
    let all = wait_for_letters(&fleet, "broken", 30 + more).await;
    assert_eq!(listed(&fleet, "broken").await, all);

    // Each drop is a transaction, followed by a marker.
    let mut left = all.clone();
    for letter in all.iter().step_by(4) {
        call(&fleet, Method::POST, &format!("/v1/dead-letters/{letter}/drop"), Value::Null).await;
        left.remove(letter);
        assert_eq!(listed(&fleet, "broken").await, left, "immediately after dropping {letter}");
    }
    // An API without any cached offsets lists the same.
    let old = fleet.api.clone();
    fleet.start_api_on(fleet.broker.clone()).await;
    assert_ne!(fleet.api, old);
    assert_eq!(listed(&fleet, "broken").await, left);
    let dropped = call(&fleet, Method::POST, "/v1/dead-letters/drop", json!({"type": "broken", "limit": 1000})).await;
    assert_eq!(dropped["done"].as_array().unwrap().len(), left.len(), "{dropped}");
    assert!(listed(&fleet, "broken").await.is_empty());
    fleet.stop().await;
}

async fn concurrent_redrives_start_one_run(mut fleet: Fleet) {
    fleet.add_type("broken", TypeRegistration::of::<BrokenTask>()).await;
    fleet.start_worker();
    let first = fleet.api.clone();
    fleet.start_api_on(fleet.broker.clone()).await;
    let apis = [first, fleet.api.clone()];
    for id in ["a", "b"] {
        publish_failing(&fleet, id).await;
        fleet.wait_for_end(id).await;
    }
    wait_for_letters(&fleet, "broken", 2).await;
    fleet.gate.open();
    let page = fleet.get("/v1/dead-letters?type=broken").await;
    let of = |id: &str| {
        page["letters"].as_array().unwrap().iter().find(|letter| letter["task"] == id).unwrap()["id"].clone()
    };
    let (letter, other) = (of("a"), of("b"));
    let client = kafleet_testkit::http::builder().timeout(CALL).build().unwrap();
    let send = |n: usize| {
        let request = client.post(format!("{}/v1/dead-letters/{}/redrive", apis[n % 2], letter.as_str().unwrap()));
        async move {
            let response = request.send().await.unwrap();
            let status = response.status().as_u16();
            (status, response.json::<Value>().await.unwrap()["code"].as_str().unwrap_or_default().to_owned())
        }
    };
    let responses = futures::future::join_all((0..8).map(send)).await;
    let count =
        |expected: (u16, &str)| responses.iter().filter(|(status, code)| (*status, code.as_str()) == expected).count();
    assert_eq!((count((200, "")), count((409, "already_redriven"))), (1, 7), "{responses:?}");
    eventually("the redriven task succeeds", || async {
        fleet.record("a").await.filter(|task_record| task_record.state == State::Succeeded)
    })
    .await;
    let history = fleet.get("/v1/tasks/a/history").await;
    let requested =
        history["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "retry_requested").count();
    assert_eq!((requested, fleet.record("a").await.unwrap().run), (1, 2), "{history}");

    // A retry makes the other dead letter obsolete.
    call(&fleet, Method::POST, "/v1/tasks/b/retry", json!({})).await;
    eventually("the retried task succeeds", || async {
        fleet.record("b").await.filter(|task_record| task_record.state == State::Succeeded)
    })
    .await;
    assert!(listed(&fleet, "broken").await.is_empty());
    let redriven =
        client.post(format!("{}/v1/dead-letters/{}/redrive", fleet.api, other.as_str().unwrap())).send().await.unwrap();
    let status = redriven.status().as_u16();
    assert_eq!(
        (status, redriven.json::<Value>().await.unwrap()["code"].as_str()),
        (409, Some("dead_letter_superseded"))
    );
    fleet.assert_store_matches_log().await;
    assert_eq!(fleet.record("b").await.unwrap().run, 2);
    fleet.stop().await;
}

cases! {
    listing_equals_the_topic,
    concurrent_redrives_start_one_run,
}
