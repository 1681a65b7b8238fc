//! Dead letters: list, show, drop, redrive.

use kafleet::broker::{Broker, Partition, ProducerRecord, TopicSpec};
use kafleet::dead_letters::DeadLetterId;
use kafleet::dead_letters::headers::{DeadLetterHeaders, headers};
use kafleet::documents::{DeadLetterDetail, DeadLetterOutcome, DeadLetterPage, DeadLetterResults, History, Status};
use kafleet::model::event::{AttemptFailure, Payload};
use kafleet::model::record::state::State;
use kafleet::model::task::Position;
use kafleet::model::task::id::TaskId;
use reqwest::Method;
use serde_json::json;

use crate::api::client::{Client, problem};
use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet};

const PARTITIONS: u32 = 2;

pub async fn with_letters() -> Fleet {
    let fleet = fleet().await;
    make_letter_topics(&fleet);
    fleet
}

/// Creates the dead-letter topics of a fleet.
pub fn make_letter_topics(fleet: &Fleet) {
    let topic = |name: &str| TopicSpec {
        name: fleet.names.dead(name),
        partitions: PARTITIONS,
        replication: None,
        config: Vec::new(),
    };
    fleet.log.apply_topics(&[topic("echo"), topic("resize")], DEADLINE).unwrap();
}

/// Dead letter in the format of a worker.
pub struct NewLetter<'a> {
    pub task_type: &'a str,
    pub key: &'a str,
    /// Task and run of the dead letter.
    pub task: Option<(&'a str, u32)>,
    pub code: &'a str,
    pub message: &'a str,
    pub at_ms: i64,
    pub value: &'a [u8],
    pub headers: &'a [(&'a str, &'a [u8])],
    pub source: Position,
    pub reference: bool,
}

pub const LETTER: NewLetter<'_> = NewLetter {
    task_type: "echo",
    key: "a",
    task: Some(("a", 1)),
    code: "exhausted",
    message: "it would not do",
    at_ms: 1_000,
    value: br#"{"n":1}"#,
    headers: &[],
    source: Position { partition: 0, offset: 7 },
    reference: false,
};

impl Client {
    pub async fn listed(&self, query: &str) -> Vec<String> {
        let page: DeadLetterPage = self.get(&format!("/v1/dead-letters{query}")).await;
        page.letters.into_iter().map(|letter| letter.id).collect()
    }

    pub async fn settle(&self, path: &str) -> DeadLetterResults {
        let (status, body) = self.post(path, json!(null)).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_value(body).unwrap()
    }
}

impl Fleet {
    pub async fn letter(&self, given: NewLetter<'_>, partition: i32) -> String {
        let Position { partition: from, offset } = given.source;
        let topic = self.names.tasks(given.task_type);
        let task = given.task.map(|(id, run)| (TaskId::parse(id).unwrap(), run));
        let letter = DeadLetterHeaders {
            code: given.code,
            message: given.message,
            pointer: None,
            topic: &topic,
            partition: from,
            offset,
            key: Some(b"own-key"),
            task: task.as_ref().map(|(id, run)| (id, *run)),
            worker: "w-1",
            at_ms: given.at_ms,
            reference: given.reference,
        };
        let ours = headers(&letter);
        let ours = ours.iter().map(|(name, value)| (*name, value.as_bytes()));
        let all: Vec<(&str, &[u8])> = given.headers.iter().copied().chain(ours).collect();
        let record = ProducerRecord {
            topic: &self.names.dead(given.task_type),
            partition: Some(partition),
            key: Some(given.key.as_bytes()),
            value: Some(given.value),
            headers: &all,
        };
        let position = self.publisher.producer().deliver(record, DEADLINE).await.unwrap();
        DeadLetterId { task_type: given.task_type.into(), partition, offset: position.offset }.to_string()
    }
}

#[tokio::test]
async fn dead_letters_are_listed_newest_first_over_pages() {
    const START_MS: i64 = 1_700_000_000_000;
    let fleet = with_letters().await;
    let mut expected = Vec::new();
    for n in 0..250_i64 {
        let (task_type, code) = if n % 3 == 0 { ("resize", "schema") } else { ("echo", "exhausted") };
        let given = NewLetter { task_type, code, at_ms: START_MS + n, ..LETTER };
        expected.push(fleet.letter(given, (n % 2) as i32).await);
    }
    expected.reverse();
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let query =
            cursor.map_or_else(|| "?limit=40".to_owned(), |cursor: String| format!("?limit=40&cursor={cursor}"));
        let page: DeadLetterPage = fleet.get(&format!("/v1/dead-letters{query}")).await;
        assert!(page.letters.len() == 40 || page.next.is_none());
        seen.extend(page.letters.into_iter().map(|letter| letter.id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, expected);
    let of_type = |name: &str| expected.iter().filter(|id| id.starts_with(name)).cloned().collect::<Vec<_>>();
    assert_eq!(fleet.listed("?type=resize&limit=200").await, of_type("resize:"));
    assert_eq!(fleet.listed("?code=exhausted&limit=200").await, of_type("echo:"));
    assert_eq!(fleet.listed(&format!("?from={}&to={}", START_MS + 240, START_MS + 242)).await, expected[8..10]);
    let bad = problem(fleet.request(Method::GET, "/v1/dead-letters?cursor=!!")).await;
    assert_eq!((bad.status, bad.code.as_str()), (400, "bad_cursor"));
}

#[tokio::test]
async fn dead_letter_has_the_kind_of_the_error_of_its_task() {
    let fleet = with_letters().await;
    fleet.announce("order", "echo", None).await;
    let failure = Payload::Failed(AttemptFailure::new("KeyError", "'weight'", 1));
    fleet.publish_event("order", failure, |_| {}).await;
    fleet.folded().await;
    let of_run = |run| NewLetter { task: Some(("order", run)), key: "order", ..LETTER };
    let letter = fleet.letter(of_run(1), 0).await;
    let shown: DeadLetterDetail = fleet.get(&format!("/v1/dead-letters/{letter}")).await;
    assert_eq!(shown.letter.kind.as_deref(), Some("KeyError"));
    assert_eq!(shown.letter.error_text(), "KeyError: it would not do");
    let listed: DeadLetterPage = fleet.get("/v1/dead-letters").await;
    assert_eq!(listed.letters[0].kind.as_deref(), Some("KeyError"));
    let unknown = fleet.letter(NewLetter { task: None, code: "bad_json", ..LETTER }, 1).await;
    let shown: DeadLetterDetail = fleet.get(&format!("/v1/dead-letters/{unknown}")).await;
    assert_eq!(shown.letter.kind, None, "the record is not a task");
}

#[tokio::test]
async fn dead_letter_shows_the_original_record() {
    let fleet = with_letters().await;
    let headers: &[(&str, &[u8])] = &[("ce_id", b"a"), ("x", b"\xff")];
    let json = fleet.letter(NewLetter { headers, ..LETTER }, 1).await;
    let shown: DeadLetterDetail = fleet.get(&format!("/v1/dead-letters/{json}")).await;
    assert_eq!((shown.key.as_deref(), shown.outcome), (Some("own-key"), None));
    assert_eq!(shown.params.unwrap(), json!({"n": 1}));
    assert_eq!(shown.headers, [("ce_id".into(), Some("a".into())), ("x".into(), Some("/w==".into()))]);
    assert_eq!(shown.letter.source.as_deref(), Some("t.tasks.echo/0:7"));
    assert_eq!((shown.letter.task.as_deref(), shown.letter.code.as_str()), (Some("a"), "exhausted"));
    let garbage = fleet.letter(NewLetter { value: b"\x00{", code: "bad_json", ..LETTER }, 0).await;
    let shown: DeadLetterDetail = fleet.get(&format!("/v1/dead-letters/{garbage}")).await;
    assert_eq!((shown.params.is_none(), shown.value_base64.as_deref()), (true, Some("AHs=")));
    for (path, status) in [
        ("/v1/dead-letters/echo:0:99", 404),
        ("/v1/dead-letters/none:0:0", 404),
        ("/v1/dead-letters/echo", 400),
        ("/v1/dead-letters/E:0:1", 400),
    ] {
        assert_eq!(problem(fleet.request(Method::GET, path)).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn dropped_letter_is_unlisted_and_recorded_in_the_task_history() {
    let fleet = with_letters().await;
    let (remaining, dropped) = (fleet.letter(LETTER, 0).await, fleet.letter(LETTER, 0).await);
    fleet.echo("a").await;
    assert_eq!(fleet.listed("").await.len(), 2);
    assert_eq!(fleet.settle(&format!("/v1/dead-letters/{dropped}/drop")).await.done, std::slice::from_ref(&dropped));
    assert_eq!(fleet.listed("").await, [remaining]);
    let again = problem(fleet.request(Method::POST, &format!("/v1/dead-letters/{dropped}/drop"))).await;
    assert_eq!((again.status, again.code.as_str()), (409, "already_dropped"));
    let shown: DeadLetterDetail = fleet.get(&format!("/v1/dead-letters/{dropped}")).await;
    assert_eq!(shown.outcome, Some(DeadLetterOutcome::Dropped));
    fleet.folded().await;
    let history: History = fleet.get("/v1/tasks/a/history").await;
    assert!(history.events.iter().any(|event| event.kind == "dead_dropped"), "{history:?}");
}

#[tokio::test]
async fn record_without_a_task_is_republished_unchanged() {
    let fleet = with_letters().await;
    let headers: &[(&str, &[u8])] = &[("trace", b"t-1")];
    let letter = fleet
        .letter(NewLetter { code: "bad_json", value: b"{oops", headers, key: "no id", task: None, ..LETTER }, 1)
        .await;
    fleet.settle(&format!("/v1/dead-letters/{letter}/redrive")).await;
    let records: Vec<_> =
        (0..2).filter_map(|index| fleet.record(&Partition::new(fleet.names.tasks("echo"), index), 0)).collect();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].value.as_deref(), Some(&b"{oops"[..]));
    assert_eq!(records[0].key.as_deref(), Some(&b"own-key"[..]));
    assert_eq!(records[0].headers, [("trace".to_owned(), Some(b"t-1".to_vec()))]);
    assert!(fleet.listed("").await.is_empty());
}

/// Works even if the task's record is gone, because the dead letter contains it.
#[tokio::test]
async fn redriven_task_starts_a_new_run_and_reopens_its_parents() {
    let fleet = with_letters().await;
    fleet.echo("r").await;
    fleet.echo("r:a").await;
    fleet.succeed("r", json!(1)).await;
    let headers: &[(&str, &[u8])] = &[("ce_id", b"a"), ("ce_parent", b"r"), ("ce_run", b"1")];
    let letter = fleet.letter(NewLetter { key: "r:a", task: Some(("r:a", 1)), headers, ..LETTER }, 0).await;
    let early = problem(fleet.request(Method::POST, &format!("/v1/dead-letters/{letter}/redrive"))).await;
    assert_eq!((early.status, early.code.as_str()), (409, "not_finished"));
    fleet.fail("r:a", "no").await;
    fleet.folded().await;
    let topic = fleet.names.tasks("echo");
    let ends = |index: i32| fleet.log.watermarks(&Partition::new(topic.as_str(), index), DEADLINE).unwrap().high;
    let before = [ends(0), ends(1)];
    for index in 0..2 {
        fleet.log.truncate_before(&Partition::new(topic.as_str(), index), before[index as usize]).unwrap();
    }
    let root: Status = fleet.get("/v1/tasks/r").await;
    assert_eq!(root.state, State::Failed);
    fleet.settle(&format!("/v1/dead-letters/{letter}/redrive")).await;
    let again = |index: i32| fleet.record(&Partition::new(topic.as_str(), index), before[index as usize]);
    eventually("the record is in the task topic again", async || again(0).or_else(|| again(1)).is_some()).await;
    let record = again(0).or_else(|| again(1)).unwrap();
    let header = |name: &str| {
        let value = record.headers.iter().find(|(key, _)| key == name)?.1.clone()?;
        String::from_utf8(value).ok()
    };
    assert_eq!((header("ce_id").as_deref(), header("ce_run").as_deref()), (Some("r:a"), Some("2")));
    assert_eq!(record.value.as_deref(), Some(&br#"{"n":1}"#[..]));
    let (root, child): (Status, Status) = (fleet.get("/v1/tasks/r").await, fleet.get("/v1/tasks/r:a").await);
    assert_eq!((root.state, child.state, child.run), (State::WaitingForChildren, State::Queued, 2));
    assert!(fleet.listed("").await.is_empty());
}

/// Dead letter by reference to its source record.
#[tokio::test]
async fn letter_by_reference_is_read_from_its_source() {
    let fleet = with_letters().await;
    let (topic, headers) = (fleet.names.tasks("echo"), [("x", &b"own"[..])]);
    let publish = async |value: &[u8]| {
        let record = ProducerRecord {
            topic: &topic,
            partition: Some(1),
            key: Some(b"k"),
            value: Some(value),
            headers: &headers,
        };
        fleet.publisher.producer().deliver(record, DEADLINE).await.unwrap()
    };
    let by_reference = async |source| {
        let given =
            NewLetter { source, reference: true, value: b"", code: "bad_json", key: "no id", task: None, ..LETTER };
        fleet.letter(given, 0).await
    };
    let (first, second) = (publish(b"{oops").await, publish(b"{again").await);
    let (letter, lost) = (by_reference(first).await, by_reference(second).await);
    let page: DeadLetterPage = fleet.get("/v1/dead-letters").await;
    assert!(page.letters.iter().all(|letter| letter.by_reference) && page.letters.len() == 2);
    let shown: DeadLetterDetail = fleet.get(&format!("/v1/dead-letters/{letter}")).await;
    assert_eq!((shown.value_base64.as_deref(), shown.key.as_deref()), (Some("e29vcHM="), Some("k")));
    assert_eq!(shown.headers, [("x".to_owned(), Some("own".to_owned()))]);
    fleet.settle(&format!("/v1/dead-letters/{letter}/redrive")).await;
    let partition = Partition::new(topic.as_str(), 1);
    let again = |index: i32, offset| fleet.record(&Partition::new(topic.as_str(), index), offset);
    let record = again(1, second.offset + 1).or_else(|| again(0, 0)).expect("the record is in the task topic again");
    assert_eq!((record.value.as_deref(), record.key.as_deref()), (Some(&b"{oops"[..]), Some(&b"k"[..])));
    // A source record deleted by retention cannot be redriven.
    fleet.log.truncate_before(&partition, second.offset + 1).unwrap();
    let gone = problem(fleet.request(Method::POST, &format!("/v1/dead-letters/{lost}/redrive"))).await;
    assert_eq!((gone.status, gone.code.as_str()), (410, "params_gone"), "{gone:?}");
    assert_eq!(fleet.listed("").await, std::slice::from_ref(&lost));
    fleet.settle(&format!("/v1/dead-letters/{lost}/drop")).await;
    assert!(fleet.listed("").await.is_empty());
}

#[tokio::test]
async fn letter_without_a_task_shows_the_id_of_its_header() {
    let fleet = with_letters().await;
    let headers: &[(&str, &[u8])] = &[("ce_run", b"4294967295"), ("ce_id", b"r22")];
    fleet.letter(NewLetter { task: None, code: "bad_header", headers, ..LETTER }, 0).await;
    let page: DeadLetterPage = fleet.get("/v1/dead-letters").await;
    assert_eq!((page.letters[0].task.as_deref(), page.letters[0].run), (Some("r22"), None));
}

#[tokio::test]
async fn selection_of_an_unknown_type_is_refused() {
    let fleet = with_letters().await;
    let listed = problem(fleet.request(Method::GET, "/v1/dead-letters?type=nope")).await;
    let dropped = problem(fleet.request(Method::POST, "/v1/dead-letters/drop").json(&json!({"type": "nope"}))).await;
    for answer in [listed, dropped] {
        assert_eq!((answer.status, &*answer.code), (404, "unknown_type"), "{answer:?}");
        assert!(answer.detail.contains("`nope`"), "{answer:?}");
    }
    assert!(fleet.listed("?type=echo").await.is_empty());
}

#[tokio::test]
async fn selection_resolves_many_letters() {
    let fleet = with_letters().await;
    for n in 0..30_i64 {
        let code = if n % 2 == 0 { "schema" } else { "exhausted" };
        fleet.letter(NewLetter { code, at_ms: 1_000 + n, ..LETTER }, 0).await;
    }
    let call = async |body| {
        let (status, body) = fleet.post("/v1/dead-letters/drop", body).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_value::<DeadLetterResults>(body).unwrap()
    };
    let some = call(json!({"type": "echo", "code": "schema", "limit": 5})).await;
    assert_eq!((some.done.len(), some.more), (5, true));
    let rest = call(json!({"type": "echo", "code": "schema"})).await;
    assert_eq!((rest.done.len(), rest.more), (10, false));
    assert_eq!(fleet.listed("").await.len(), 15);
    let bad = fleet.post("/v1/dead-letters/drop", json!({"type": "echo", "limit": 5000})).await;
    assert_eq!((bad.0, bad.1["pointer"].as_str()), (400, Some("/limit")));
}
