//! Queues of types, searches without matches, long lists, and the spans of a timeline.

use kafleet::broker::{Broker, Commit, Partition, ProducerRecord};
use kafleet::documents::{TaskPage, TypeDocument};
use kafleet::model::event::{AttemptFailure, Kind, Payload};
use kafleet::model::offsets::{CompletedOffsets, Mark, Metadata, PendingRetries};
use kafleet::runtime::now_ms;
use serde_json::json;

use crate::api::dead_letters::{LETTER, NewLetter, with_letters};
use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet};
use crate::ui::browser::Browser;
use crate::ui::pages::fleet_with_tree;

/// Completes all tasks of `echo` but the first of each partition, like a worker. Returns the ids of the first ones.
fn complete_all_but_the_first(fleet: &Fleet) -> Vec<String> {
    let mut held = Vec::new();
    for index in 0..2 {
        let partition = Partition::new(fleet.names.tasks("echo"), index);
        let ends = fleet.log.watermarks(&partition, DEADLINE).unwrap();
        let records: Vec<_> = (ends.low..ends.high).filter_map(|offset| fleet.record(&partition, offset)).collect();
        let Some(first) = records.first() else { continue };
        let mut completed = CompletedOffsets::starting_at(first.offset);
        for record in &records {
            completed.deliver(record.offset);
            if record.offset > first.offset {
                completed.complete(record.offset);
            }
        }
        held.extend(
            kafleet::broker::header_value(&first.headers, "ce_id").map(|id| String::from_utf8_lossy(id).into()),
        );
        let metadata = Metadata::encode(&completed, Mark::Open, ends.high, 0, &PendingRetries::default());
        let commit = Commit { partition, offset: completed.watermark(), metadata };
        fleet.log.set_group_offsets(&fleet.names.group_id("echo", "echo"), &[commit], DEADLINE).unwrap();
    }
    held
}

#[tokio::test]
async fn queue_shows_the_tasks_that_hold_back_their_partitions() {
    let fleet = fleet().await;
    for n in 0..12 {
        fleet.echo(&format!("order-{n}")).await;
    }
    fleet.folded().await;
    let held = complete_all_but_the_first(&fleet);
    assert_eq!(held.len(), 2, "both partitions have tasks");
    let page = Browser::new(&fleet).open("/types/echo").await;
    page.has(&["Partitions", "as of", "unfinished records", "Held back by"]);
    let (_, partitions) = page.text.split_once("id=\"partitions\"").unwrap();
    for id in &held {
        assert!(partitions.contains(&format!("href=\"/tasks/{id}\"")), "{id} in {partitions}");
    }
    let queue = fleet.get::<TypeDocument>("/v1/types/echo").await.queue.unwrap();
    assert_eq!((queue.lag, queue.at_most, queue.oldest_at_least), (2, false, false), "{queue:?}");
    assert!(queue.oldest_at.is_some());
}

#[tokio::test]
async fn lists_of_types_show_lag_and_age_of_those_with_a_backlog() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    for path in ["/", "/types"] {
        eventually("the sample", async || browser.open(path).await.text.contains("<time class=\"age\"")).await;
    }
}

#[tokio::test]
async fn list_of_types_shows_the_lag_of_idle_types_as_their_pages_do() {
    let fleet = fleet().await;
    // Its worker has not committed yet.
    fleet.echo("order").await;
    fleet.succeed("order", json!(1)).await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    eventually("the sample", async || {
        let page = browser.open("/types").await.text;
        let (_, row) = page.split_once("id=\"y-echo\"").unwrap();
        let (_, lag) = row.split_once("data-label=\"Lag\"").unwrap();
        lag.split_once("</td>").unwrap().0.ends_with('1')
    })
    .await;
    browser.open("/types/echo").await.has(&["1<span class=\"quiet\"> unfinished record</span>"]);
}

#[tokio::test]
async fn list_of_types_names_the_span_of_its_numbers_and_counts_own_failures() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    for path in ["/", "/types"] {
        let page = browser.open(path).await;
        page.has(&[
            "title=\"tasks ended in the last full minute\">Ended/min</th>",
            "title=\"all retained tasks that failed by themselves\">Failed</th>",
            "title=\"last 5 full minutes\">Trend</th>",
        ]);
        // The parent has failed through its child only.
        let (_, row) = page.text.split_once("id=\"y-echo\"").unwrap();
        let (row, _) = row.split_once("</tr>").unwrap();
        assert!(row.contains("own%3Afailed%2Cexpired+level%3Aany\">1</a>"), "{row}");
    }
}

#[tokio::test]
async fn backlog_has_its_flow_on_the_page_of_the_type() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    fleet.folded().await;
    let page = Browser::new(&fleet).open("/types/echo").await;
    page.has(&["<dt>Flow</dt>", "a minute: stalled, no worker takes it"]);
}

#[tokio::test]
async fn search_without_matches_says_what_excludes_how_many() {
    let fleet = fleet_with_tree().await;
    let page: TaskPage = fleet.get("/v1/tasks?q=type:echo+tag:shop+creator:nobody").await;
    let excluded: Vec<(&str, u64)> = page.excluded.iter().map(|it| (it.term.as_str(), it.tasks)).collect();
    assert_eq!(excluded, [("tag:shop", 1), ("creator:nobody", 2)], "a search for a type looks at all levels");
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks?q=tag:shop+creator:nobody").await;
    page.has(&[
        "<code>creator:nobody</code> excludes 1 of 1 task",
        "href=\"/tasks?q=tag%3Ashop\"",
        "Search without it",
    ]);
    browser.open("/tasks?q=tag:shop").await.lacks(&["excludes"]);
}

#[tokio::test]
async fn timeline_shows_waits_attempts_and_children() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    let at = now_ms();
    let event = async |id: &str, payload: Payload, attempt: u32, after_ms: i64| {
        fleet
            .publish_event(id, payload, |event| {
                event.attempt = attempt;
                event.at_ms = at + after_ms;
            })
            .await
    };
    event("order", Kind::Started.into(), 1, 1_000).await;
    let failure = AttemptFailure::new("timeout", "no answer", 1);
    event("order", Payload::Retrying { failure, due_ms: None, record: None, waits: 0 }, 1, 2_000).await;
    event("order", Kind::Started.into(), 2, 5_000).await;
    fleet.echo("order:part").await;
    event("order", Payload::Succeeded { started_at_ms: Some(at + 5_000), output: None }, 2, 6_000).await;
    event("order:part", Kind::Started.into(), 1, 6_500).await;
    event("order:part", Payload::Succeeded { started_at_ms: Some(at + 6_500), output: None }, 1, 9_000).await;
    fleet.folded().await;
    let page = Browser::new(&fleet).open("/tasks/order/timeline").await;
    page.has(&["attempt 1: failed, 1.0 s", "waited for the next attempt, 3.0 s", "attempt 2: succeeded, 1.0 s"]);
    page.has(&["waited for its children, 3.0 s", "attempt 1: succeeded, 2.5 s", "on the critical path"]);
    page.lacks(&["Critical path and failed tasks"]);
}

#[tokio::test]
async fn timeline_of_a_large_tree_begins_with_its_critical_path_and_failed_tasks() {
    let fleet = fleet().await;
    fleet.announce("order", "echo", None).await;
    fleet.succeed("order", json!(1)).await;
    for n in 0..120 {
        let id = format!("order:{n}");
        fleet.announce(&id, "echo", None).await;
        if n == 110 {
            fleet.fail(&id, "no answer").await
        } else {
            fleet.succeed(&id, json!(n)).await
        };
    }
    fleet.folded().await;
    let page = Browser::new(&fleet).open("/tasks/order/timeline").await;
    let (first, rest) = page.text.split_once("All tasks, by creation").unwrap();
    assert!(first.contains("id=\"e-order:110\"") && first.contains("id=\"e-order:119\""), "{first}");
    assert!(rest.contains("id=\"t-order\"") && rest.contains("100 of 121 tasks"), "{rest}");
}

#[tokio::test]
async fn long_lists_have_pages() {
    let fleet = fleet().await;
    let (topic, now) = (fleet.names.workers(), now_ms());
    for n in 0..1_000 {
        let id = format!("node-{n:04}");
        let beat = json!({"v": 1, "id": id, "host": "host", "pid": 42, "version": "0", "state": "running", "started_ms": now,
            "at_ms": now, "every_ms": 60_000, "held_bytes": 0, "types": [], "running": []});
        let value = beat.to_string();
        let (key, value) = (Some(id.as_bytes()), Some(value.as_bytes()));
        let record = ProducerRecord { topic: &topic, partition: Some(0), key, value, headers: &[] };
        fleet.publisher.producer().deliver(record, DEADLINE).await.unwrap();
    }
    for n in 0..201 {
        fleet.announce(&format!("task-{n}"), &format!("type-{n:03}"), None).await;
    }
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    eventually("all workers", async || browser.open("/workers").await.text.contains("workers 1 to 200 of 1,000")).await;
    let last = browser.open("/workers?page=5").await;
    last.has(&["id=\"w-node-0999\"", "workers 801 to 1,000 of 1,000", "page=4"])
        .lacks(&["page=6", "id=\"w-node-0799\""]);
    browser.open("/types").await.has(&["types 1 to 200 of 203", "href=\"/types?page=2\""]);
    browser.open("/types?page=2").await.has(&["types 201 to 203 of 203"]);
    browser.open("/").await.has(&["Types with the most open tasks"]);
}

#[tokio::test]
async fn dead_letters_are_filtered_and_counted_in_the_title_of_the_failures() {
    let fleet = with_letters().await;
    for n in 0..4 {
        let (task_type, code) = if n == 3 { ("resize", "schema") } else { ("echo", "exhausted") };
        fleet.letter(NewLetter { task_type, code, key: "other", task: None, at_ms: 1_000 + n, ..LETTER }, 0).await;
    }
    let browser = Browser::new(&fleet);
    let page = browser.open("/dead-letters").await;
    page.has(&["without a failed task", "value=\"echo:0:0\"", "value=\"resize:0:0\""]).lacks(&["looked at"]);
    browser.open("/dead-letters?type=echo").await.has(&["Redrive matching…"]).lacks(&["value=\"resize:0:0\""]);
    browser.open("/dead-letters?kind=KeyError").await.has(&["No unresolved dead letter matches these filters."]);
    browser.open("/dead-letters?without_failure=true").await.has(&["--without-failure", "value=\"resize:0:0\""]);
    browser.open("/failures").await.has(&[">4 dead letters</a> belong to no failed task"]);
    eventually("the counts", async || {
        browser
            .open("/help")
            .await
            .text
            .contains("title=\"0 kinds of errors in the last hour, 4 unresolved dead letters\"")
    })
    .await;
}

#[tokio::test]
async fn navigation_counts_the_errors_of_the_last_hour() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    eventually("the counts", async || {
        browser.open("/help").await.text.contains("title=\"1 kind of error in the last hour, 0 unresolved dead letters\">Failures <span class=\"badge\">1</span>")
    })
    .await;
}
