//! Dead letters are resolved exactly once, and similar records are not mistaken for resolutions.

use std::time::Duration;

use kafleet::broker::{Broker, BrokerError, GroupEvent, Partition, ProducerRecord};
use kafleet::dead_letters::DeadLetterId;
use kafleet::documents::{DeadLetterDetail, DeadLetterOutcome, DeadLetterPage, DeadLetterResults, History, Status};
use kafleet::model::event::{Announcement, Event, Kind};
use kafleet::model::record::state::State;
use kafleet::model::task::MAX_RUN;
use kafleet_testkit::faults::unavailable;
use kafleet_testkit::faults::{Call, read_nodes, transaction};
use reqwest::Method;
use serde_json::json;

use crate::api::bulk::{ended, order, progress};
use crate::api::client::{Client, problem};
use crate::api::dead_letters::{LETTER, NewLetter, with_letters};
use crate::api::fixture::{DEADLINE, Fleet, PARTITIONS, eventually};

impl Client {
    /// Sends these requests concurrently; returns the status and problem code of each response.
    async fn at_once(&self, urls: Vec<String>) -> Vec<(u16, String)> {
        let send = |url: String| async move {
            let answer = self.http.post(url).send().await.unwrap();
            let status = answer.status().as_u16();
            let body: serde_json::Value = answer.json().await.unwrap();
            (status, body["code"].as_str().unwrap_or_default().to_owned())
        };
        futures::future::join_all(urls.into_iter().map(send)).await
    }
}

impl Fleet {
    /// Creates a failed task and its dead letter.
    pub async fn dead_task(&self, id: &str, partition: i32) -> String {
        self.echo(id).await;
        self.fail(id, "no").await;
        self.folded().await;
        self.letter(
            NewLetter { key: id, task: Some((id, 1)), headers: &[("ce_id", id.as_bytes())], ..LETTER },
            partition,
        )
        .await
    }

    /// Resolution markers in one partition of the dead letters of `echo`.
    fn marks(&self, partition: i32) -> usize {
        let at = Partition::new(self.names.dead("echo"), partition);
        let ends = self.log.watermarks(&at, DEADLINE).unwrap();
        let is_mark = |offset: &i64| {
            let record = self.record(&at, *offset);
            record.is_some_and(|record| record.headers.iter().any(|(name, _)| name == "kafleet_marks"))
        };
        (ends.low..ends.high).filter(is_mark).count()
    }

    /// Retry requests of a task in the log, including ignored ones.
    pub fn asked(&self, id: &str) -> usize {
        let is_of = |event: &Event| event.kind() == Kind::RetryRequested && event.id.as_str() == id;
        let of = |number: u32| {
            let at = Partition::new(self.names.events(), number as i32);
            let ends = self.log.watermarks(&at, DEADLINE).unwrap();
            let events = (ends.low..ends.high).filter_map(|offset| self.record(&at, offset)?.value);
            events.filter(|value| Event::decode(value).is_ok_and(|event| is_of(&event))).count()
        };
        (0..PARTITIONS).map(of).sum()
    }
}

#[tokio::test]
async fn concurrent_redrives_over_two_apis_start_one_run() {
    let fleet = with_letters().await;
    let other = fleet.second_api().await;
    let letter = fleet.dead_task("a", 0).await;
    // Both requests find the letter unresolved before either one commits.
    let meeting = fleet.faults.on(transaction("")).times(2).block();
    let url = |n: usize| {
        format!("{}/v1/dead-letters/{letter}/redrive", if n.is_multiple_of(2) { &fleet.base } else { &other })
    };
    let (answers, ()) = tokio::join!(fleet.at_once((0..8).map(url).collect()), async {
        eventually("two transactions are about to commit", async || meeting.hits() == 2).await;
        meeting.lift();
    });
    let count =
        |expected: (u16, &str)| answers.iter().filter(|(status, code)| (*status, code.as_str()) == expected).count();
    assert_eq!((count((200, "")), count((409, "already_redriven"))), (1, 7), "{answers:?}");
    assert_eq!((fleet.marks(0), fleet.asked("a")), (1, 1));
    fleet.folded().await;
    let task: Status = fleet.get("/v1/tasks/a").await;
    assert_eq!((task.run, task.state), (2, State::Queued));
}

#[tokio::test]
async fn redrive_with_other_params_runs_the_task_with_them() {
    let fleet = with_letters().await;
    let letter = fleet.dead_task("a", 0).await;
    let (status, answer) = fleet.post(&format!("/v1/dead-letters/{letter}/redrive"), json!({"params": {"n": 2}})).await;
    assert_eq!(status, 200, "{answer}");
    eventually("the changed params", async || {
        let answer = fleet.request(Method::GET, "/v1/tasks/a/params").send().await.unwrap();
        answer.json::<serde_json::Value>().await.unwrap()["params"] == json!({"n": 2})
    })
    .await;
    let task: Status = fleet.get("/v1/tasks/a").await;
    assert_eq!((task.run, task.state), (2, State::Queued));
    let history: serde_json::Value = fleet.get("/v1/tasks/a/history").await;
    assert!(history.to_string().contains("with changed params"), "{history}");
}

#[tokio::test]
async fn params_of_a_redrive_are_checked_before_anything_is_written() {
    let fleet = with_letters().await;
    let given = NewLetter { task_type: "resize", task: None, value: br#"{"url":7}"#, ..LETTER };
    let letter = fleet.letter(given, 0).await;
    let path = format!("/v1/dead-letters/{letter}/redrive");
    let refused = problem(fleet.request(Method::POST, &path).json(&json!({"params": {"url": 7, "width": 1}}))).await;
    assert_eq!((refused.code.as_str(), refused.pointer.as_deref()), ("schema", Some("/params/url")));
    assert_eq!(fleet.published("resize"), 0);
    let (status, answer) = fleet.post(&path, json!({"params": {"url": "a", "width": 1}})).await;
    assert_eq!((status, fleet.published("resize")), (200, 1), "{answer}");
    let at = |number: i32| Partition::new(fleet.names.tasks("resize"), number);
    let record = (0..2).find_map(|number| fleet.record(&at(number), 0)).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&record.value.unwrap()).unwrap();
    assert_eq!(value, json!({"url": "a", "width": 1}));
}

#[tokio::test]
async fn concurrent_drop_and_redrive_resolve_a_letter_once() {
    let fleet = with_letters().await;
    let other = fleet.second_api().await;
    let letter = fleet.dead_task("a", 1).await;
    let url = |n: usize| {
        let (base, verb) =
            [(&fleet.base, "drop"), (&other, "redrive"), (&fleet.base, "redrive"), (&other, "drop")][n % 4];
        format!("{base}/v1/dead-letters/{letter}/{verb}")
    };
    let answers = fleet.at_once((0..8).map(url).collect()).await;
    let done: Vec<usize> =
        answers.iter().enumerate().filter(|(_, (status, _))| *status == 200).map(|(n, _)| n).collect();
    let [done] = done[..] else { panic!("exactly one request succeeds: {answers:?}") };
    let (asked, code) = if matches!(done % 4, 1 | 2) { (1, "already_redriven") } else { (0, "already_dropped") };
    assert!(answers.iter().all(|(status, answer)| *status == 200 || answer == code), "{answers:?}");
    assert_eq!((fleet.marks(1), fleet.asked("a")), (1, asked));
}

#[tokio::test]
async fn redrive_with_unknown_outcome_takes_effect_once() {
    let fleet = with_letters().await;
    let (committed, lost) = (fleet.dead_task("a", 0).await, fleet.dead_task("b", 1).await);
    // Committed, but reported as unknown.
    let in_doubt = BrokerError::InDoubt("in doubt on purpose".into());
    fleet.faults.on(transaction("")).times(1).lose_reply(in_doubt);
    assert_eq!(
        fleet.settle(&format!("/v1/dead-letters/{committed}/redrive")).await.done,
        std::slice::from_ref(&committed)
    );
    assert_eq!((fleet.marks(0), fleet.asked("a")), (1, 1));
    let again = problem(fleet.request(Method::POST, &format!("/v1/dead-letters/{committed}/redrive"))).await;
    assert_eq!((again.status, again.code.as_str()), (409, "already_redriven"));
    // Written, but neither committed nor aborted until the next producer is opened.
    fleet.log.hold_transactions(&fleet.names.dead("echo"), true);
    let path = format!("/v1/dead-letters/{lost}/redrive");
    let (outcome, ()) = tokio::join!(fleet.settle(&path), async {
        let at = Partition::new(fleet.names.dead("echo"), 1);
        eventually("a transaction is held open", async || fleet.log.watermarks(&at, DEADLINE).unwrap().high > 1).await;
        // An open transaction does not block listing.
        assert_eq!(fleet.listed("").await, std::slice::from_ref(&lost));
        fleet.log.hold_transactions(&fleet.names.dead("echo"), false);
    });
    assert_eq!(outcome.done, [lost]);
    assert_eq!((fleet.marks(1), fleet.asked("b")), (1, 1));
    fleet.folded().await;
    for id in ["a", "b"] {
        let task: Status = fleet.get(&format!("/v1/tasks/{id}")).await;
        assert_eq!((task.run, task.state), (2, State::Queued), "{id}");
    }
}

#[tokio::test]
async fn two_letters_of_one_run_start_one_run() {
    let fleet = with_letters().await;
    let first = fleet.dead_task("a", 0).await;
    let second = fleet.letter(NewLetter { headers: &[("ce_id", b"a")], ..LETTER }, 1).await;
    let action = order(&fleet, json!({"action": "redrive", "ids": [first, second]})).await;
    let progress = progress(&ended(&fleet, &action.id).await);
    assert_eq!((progress.done, progress.skipped, progress.refused), (1, 1, 0), "{progress:?}");
    assert_eq!(fleet.asked("a"), 1);
    fleet.folded().await;
    assert!(fleet.listed("").await.is_empty(), "the other dead letter belongs to an earlier run");
}

#[tokio::test]
async fn letter_of_a_task_that_has_moved_on_is_neither_listed_nor_redriven() {
    let fleet = with_letters().await;
    let (cured, open) = (fleet.dead_task("a", 0).await, fleet.dead_task("b", 0).await);
    assert_eq!(fleet.listed("").await.len(), 2);
    let (status, answer) = fleet.post("/v1/tasks/a/retry", json!({})).await;
    assert_eq!(status, 202, "{answer}");
    fleet.publish_event("a", Kind::Succeeded, |event| event.run = 2).await;
    fleet.folded().await;
    assert_eq!(fleet.listed("").await, [open]);
    let refused = problem(fleet.request(Method::POST, &format!("/v1/dead-letters/{cured}/redrive"))).await;
    assert_eq!((refused.status, refused.code.as_str()), (409, "dead_letter_superseded"), "{refused:?}");
    let shown: DeadLetterDetail = fleet.get(&format!("/v1/dead-letters/{cured}")).await;
    assert_eq!((shown.outcome, shown.letter.run), (Some(DeadLetterOutcome::Superseded), Some(1)));
    // Dead letter of a task that has ended differently on another worker.
    fleet.echo("c").await;
    fleet.succeed("c", json!(1)).await;
    fleet.folded().await;
    let late =
        fleet.letter(NewLetter { key: "c", task: Some(("c", 1)), headers: &[("ce_id", b"c")], ..LETTER }, 1).await;
    let refused = problem(fleet.request(Method::POST, &format!("/v1/dead-letters/{late}/redrive"))).await;
    assert_eq!((refused.status, refused.code.as_str()), (409, "dead_letter_superseded"), "{refused:?}");
    let task: Status = fleet.get("/v1/tasks/c").await;
    assert_eq!((task.run, task.state), (1, State::Succeeded));
    assert_eq!(fleet.settle(&format!("/v1/dead-letters/{late}/drop")).await.done, [late]);
}

#[tokio::test]
async fn listing_reads_the_store_in_batches() {
    let fleet = with_letters().await;
    for n in 0..150 {
        let id = format!("t-{n}");
        fleet.letter(NewLetter { key: &id, task: Some((&id, 1)), ..LETTER }, n % 2).await;
    }
    let reads = fleet.faults.count(read_nodes);
    let page: DeadLetterPage = fleet.get("/v1/dead-letters?limit=150").await;
    assert_eq!(page.letters.len(), 150);
    assert!(reads.hits() <= PARTITIONS as usize, "{} reads for 150 letters", reads.hits());
}

/// Delay of the first records; longer than readers wait before they check the end of the topic.
const LATE: Duration = Duration::from_millis(1_200);

#[tokio::test]
async fn slow_fetch_hides_no_letter() {
    let fleet = with_letters().await;
    let mut all = Vec::new();
    for n in 0..3 {
        all.insert(0, fleet.letter(NewLetter { at_ms: 1_000 + n, ..LETTER }, 0).await);
    }
    let dropped = all.remove(0);
    fleet.settle(&format!("/v1/dead-letters/{dropped}/drop")).await;
    let is_late = |call: &Call<'_>| matches!(call, Call::Poll(reader) if reader.opened.elapsed() < LATE);
    fleet.faults.on(is_late).answer(Vec::<GroupEvent>::new());
    assert_eq!(fleet.listed("").await, all);
    // Nor does it hide a resolution marker.
    let other = fleet.second_api().await;
    let page: DeadLetterPage =
        fleet.http.get(format!("{other}/v1/dead-letters")).send().await.unwrap().json().await.unwrap();
    assert_eq!(page.letters.into_iter().map(|letter| letter.id).collect::<Vec<_>>(), all);
}

#[tokio::test]
async fn record_resembling_a_marker_is_listed_and_hides_no_letter() {
    let fleet = with_letters().await;
    let topic = fleet.names.dead("echo");
    let mut all = vec![fleet.dead_task("a", 0).await];
    // The original record of the foreign producer had headers with these names.
    let headers: &[(&str, &[u8])] =
        &[("ce_id", b"b"), ("kafleet_marks", b"0"), ("kafleet_resolution", b"dropped"), ("kafleet_code", b"x")];
    let with_headers = fleet.letter(NewLetter { key: "b", task: Some(("b", 1)), headers, ..LETTER }, 0).await;
    all.push(with_headers.clone());
    let digest: &[u8] = b"0123456789abcdef";
    let request: &[u8] = b"0190a5a0-0000-7000-8000-000000000000";
    let forms: [&[(&str, &[u8])]; 5] = [
        &[("kafleet_marks", b"0")],
        &[("kafleet_marks", b"0"), ("kafleet_resolution", b"redriven"), ("kafleet_time", b"7")],
        &[
            ("kafleet_marks", b"0"),
            ("kafleet_letter", digest),
            ("kafleet_resolution", b"redriven"),
            ("kafleet_time", b"7"),
            ("kafleet_request", request),
        ],
        &[
            ("kafleet_marks", b"900"),
            ("kafleet_letter", digest),
            ("kafleet_resolution", b"dropped"),
            ("kafleet_time", b"7"),
            ("kafleet_request", request),
        ],
        &[("kafleet_\x01", b"\xff\xfe"), ("ce_id", b"\xff")],
    ];
    for headers in forms {
        let record = ProducerRecord { topic: &topic, partition: Some(0), key: None, value: None, headers };
        let position = fleet.publisher.producer().deliver(record, DEADLINE).await.unwrap();
        all.push(DeadLetterId { task_type: "echo".into(), partition: 0, offset: position.offset }.to_string());
    }
    let mut listed = fleet.listed("").await;
    listed.sort();
    all.sort();
    assert_eq!(listed, all);
    let shown: DeadLetterDetail = fleet.get(&format!("/v1/dead-letters/{with_headers}")).await;
    let names: Vec<&str> = shown.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["ce_id", "kafleet_marks", "kafleet_resolution", "kafleet_code"],
        "the headers of the original record stay"
    );
    assert_eq!(shown.letter.code, "exhausted");

    let foreign = all.last().unwrap();
    let refused = problem(fleet.request(Method::POST, &format!("/v1/dead-letters/{foreign}/redrive"))).await;
    assert_eq!((refused.status, refused.code.as_str()), (409, "unreadable_dead_letter"), "{refused:?}");
    let (status, dropped) = fleet.post("/v1/dead-letters/drop", json!({"type": "echo", "code": "unreadable"})).await;
    assert_eq!((status, dropped["done"].as_array().unwrap().len()), (200, forms.len()), "{dropped}");
    assert_eq!(fleet.listed("").await.len(), 2);
    for letter in fleet.listed("").await {
        fleet.settle(&format!("/v1/dead-letters/{letter}/drop")).await;
    }
    assert!(fleet.listed("").await.is_empty());
    assert_eq!(fleet.marks(0), all.len() + 4 + 1, "markers of kafleet and records that resemble them");
}

#[tokio::test]
async fn redrive_is_rejected_at_the_maximum_run() {
    let fleet = with_letters().await;
    fleet.echo("a").await;
    fleet.publish_event("a", Kind::Failed, |event| event.run = u32::MAX).await;
    fleet.publish_event("b", Kind::Failed, |event| event.run = MAX_RUN + 1).await;
    fleet.folded().await;
    let task: Status = fleet.get("/v1/tasks/a").await;
    assert_eq!((task.run, task.state), (1, State::Queued), "the task has no such run");
    assert_eq!(fleet.problem("/v1/tasks/b").await.code, "not_found");
    let announced = Announcement {
        task_type: "echo".into(),
        created_at_ms: 1,
        position: None,
        hash: None,
        policy: None,
        asof: None,
        trace: None,
    };
    fleet
        .publish_event("a", Kind::Failed, |event| (event.run, event.task) = (MAX_RUN, Some(Box::new(announced))))
        .await;
    fleet.folded().await;
    let refused = problem(fleet.request(Method::POST, "/v1/tasks/a/retry").json(&json!({}))).await;
    assert_eq!((refused.status, refused.code.as_str()), (409, "too_many_runs"), "{refused:?}");
    let letter = fleet.letter(NewLetter { task: Some(("a", MAX_RUN)), ..LETTER }, 0).await;
    let refused = problem(fleet.request(Method::POST, &format!("/v1/dead-letters/{letter}/redrive"))).await;
    assert_eq!((refused.status, refused.code.as_str()), (409, "too_many_runs"), "{refused:?}");
    let history: History = fleet.get("/v1/tasks/a/history").await;
    assert!(history.events.iter().all(|event| event.kind != "retry_requested"), "{history:?}");
}

#[tokio::test]
async fn outage_ends_the_drop_of_many_letters_at_the_first_one() {
    let fleet = with_letters().await;
    let tasks = ["a", "a:b", "a:c", "a:d", "a:e"];
    for id in tasks {
        fleet.dead_task(id, 0).await;
    }
    // The list reads all tasks at once, as they are in one partition.
    let reads = fleet.faults.count(read_nodes);
    fleet.faults.on(read_nodes).after(1).fail(unavailable());
    let (status, outcome) = fleet.post("/v1/dead-letters/drop", json!({"type": "echo"})).await;
    assert_eq!(status, 200, "{outcome}");
    let outcome: DeadLetterResults = serde_json::from_value(outcome).unwrap();
    assert!(outcome.done.is_empty() && outcome.refused.len() == tasks.len(), "{outcome:?}");
    assert!(outcome.refused.iter().all(|refused| refused.reason.contains("on purpose")), "{outcome:?}");
    assert_eq!(reads.hits(), 2, "one read of the list, and one that failed");
}
