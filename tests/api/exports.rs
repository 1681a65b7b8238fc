//! Exports of searches: `GET /v1/export`.

use futures::StreamExt;
use kafleet::documents::ExportEnd;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::fixture::{Fleet, eventually, fleet};

async fn text(fleet: &Fleet, query: &str) -> String {
    let response = fleet.request(Method::GET, &format!("/v1/export?{query}")).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{query}");
    response.text().await.unwrap()
}

fn end_of(lines: &[Value]) -> ExportEnd {
    serde_json::from_value(lines.last().unwrap()["end"].clone()).unwrap()
}

async fn lines(fleet: &Fleet, query: &str) -> Vec<Value> {
    text(fleet, query).await.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn five_tasks() -> Fleet {
    let fleet = fleet().await;
    for (id, name) in [("a", "=SUM(A1)"), ("b", "-2"), ("c", "two, \"three\""), ("d", "plain"), ("e", "@x")] {
        fleet.create(json!({"type": "echo", "id": id, "name": name, "tags": ["t"]})).await;
    }
    fleet.folded().await;
    fleet
}

#[tokio::test]
async fn tasks_are_exported_as_documents_and_the_end_says_whether_all_were() {
    let fleet = five_tasks().await;
    let all = lines(&fleet, "q=tag:t").await;
    let ids: Vec<&str> = all.iter().filter_map(|line| line["id"].as_str()).collect();
    assert_eq!(ids, ["e", "d", "c", "b", "a"]);
    assert_eq!(end_of(&all), ExportEnd { complete: true, tasks: 5, reason: None, next: None });
    let first = lines(&fleet, "q=tag:t&limit=2").await;
    let end = end_of(&first);
    assert_eq!((end.complete, end.tasks, end.reason.as_deref()), (false, 2, Some("the limit is reached")));
    let rest = lines(&fleet, &format!("q=tag:t&cursor={}", end.next.unwrap())).await;
    assert_eq!(rest.iter().filter_map(|line| line["id"].as_str()).collect::<Vec<_>>(), ["c", "b", "a"]);
    assert!(end_of(&rest).complete);
    let columns = lines(&fleet, "q=tag:t&columns=id,state&limit=1").await;
    assert_eq!(columns[0], json!({"id": "e", "state": "queued"}));
}

#[tokio::test]
async fn csv_holds_no_formulas() {
    let fleet = five_tasks().await;
    let csv = text(&fleet, "format=csv&columns=id,name&q=tag:t").await;
    let expected =
        "id,name\r\ne,'@x\r\nd,plain\r\nc,\"two, \"\"three\"\"\"\r\nb,'-2\r\na,'=SUM(A1)\r\n# complete: 5 tasks\r\n";
    assert_eq!(csv, expected);
    let response = fleet.request(Method::GET, "/v1/export?format=csv").send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/csv; charset=utf-8");
    assert_eq!(response.headers()["content-disposition"], "attachment; filename=\"tasks.csv\"");
}

#[tokio::test]
async fn mistakes_in_an_export_are_problems() {
    let fleet = five_tasks().await;
    for (query, code) in [
        ("q=stat:failed", "bad_parameter"),
        ("format=xml", "bad_parameter"),
        ("columns=id,nothing", "bad_parameter"),
        ("limit=1000001", "bad_parameter"),
        ("cursor=odd", "bad_cursor"),
        ("sort=oldest", "unknown_parameter"),
    ] {
        let response = fleet.request(Method::GET, &format!("/v1/export?{query}")).send().await.unwrap();
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["code"], json!(code), "{query}");
    }
}

#[tokio::test]
async fn exports_at_once_are_bounded_and_a_client_that_leaves_ends_its_own() {
    let fleet = fleet().await;
    // Each page is larger than the buffers of a connection, so that an export waits for its client.
    let name = "n".repeat(500);
    for n in 0..40 {
        let options = json!({"text": "x".repeat(8_000)});
        let tasks: Vec<Value> = (0..100)
            .map(|m| json!({"type": "echo", "id": format!("t{n}-{m}"), "name": name, "options": options}))
            .collect();
        fleet.post("/v1/batches", json!(tasks)).await;
    }
    fleet.folded().await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let response = fleet.request(Method::GET, "/v1/export").send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let mut stream = response.bytes_stream();
        assert!(stream.next().await.unwrap().is_ok());
        streams.push(stream);
    }
    let busy = fleet.request(Method::GET, "/v1/export").send().await.unwrap();
    assert_eq!(busy.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(busy.json::<Value>().await.unwrap()["code"], json!("overloaded"));
    drop(streams);
    eventually("there is room for an export", async || {
        fleet.request(Method::GET, "/v1/export?limit=1").send().await.unwrap().status() == StatusCode::OK
    })
    .await;
}
