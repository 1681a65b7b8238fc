//! Appending to and following the log of a task.

use kafleet::documents::{EndReason, History, LogDocument};
use kafleet::model::event::{Kind, Payload};
use reqwest::Method;
use serde_json::json;

use crate::api::client::problem;
use crate::api::fixture::fleet;
use crate::api::watches::Stream;

pub fn texts(log: &LogDocument) -> Vec<&str> {
    log.lines.iter().map(|line| line.text.as_str()).collect()
}

#[tokio::test]
async fn lines_can_be_appended_in_any_state() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let (status, first) = fleet.post("/v1/tasks/a/log", json!({"lines": ["queued", "two\nlines\n"]})).await;
    assert_eq!((status, &first["lines"], &first["id"]), (202, &json!(3), &json!("a")), "{first}");
    fleet
        .publish_event("a", Kind::Log, |event| {
            event.payload = Payload::log(vec!["from its worker".into()]);
            event.worker = Some("w".into());
        })
        .await;
    fleet.succeed("a", json!(1)).await;
    let (_, last) = fleet.post("/v1/tasks/a/log", json!({"lines": ["it has ended"]})).await;
    let path = format!("/v1/tasks/a/log?after={}", last["position"].as_str().unwrap());
    let log: LogDocument = fleet.get(&path).await;
    assert_eq!(texts(&log), ["queued", "two", "lines", "from its worker", "it has ended"]);
    let times: Vec<&str> = log.lines.iter().map(|line| line.at.as_str()).collect();
    assert_eq!((times[0], times[1]), (times[2], times[2]), "lines of one event have one time");
    assert!(times.is_sorted() && times.iter().all(|at| at.parse::<jiff::Timestamp>().is_ok()), "{times:?}");
    assert_eq!((log.total, log.dropped), (5, 0));
    let history: History = fleet.get("/v1/tasks/a/history").await;
    assert!(history.events.iter().all(|item| item.kind != "log"), "{history:?}");
    let published = fleet.publisher.append_log(&"a".parse().unwrap(), &["over Kafka"]).await.unwrap();
    let log: LogDocument = fleet.get(&format!("/v1/tasks/a/log?from=5&after={published}")).await;
    assert_eq!(texts(&log), ["over Kafka"], "lines published to Kafka directly are appended too");
}

#[tokio::test]
async fn log_is_plain_text_for_clients_that_accept_it() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let (_, last) = fleet.post("/v1/tasks/a/log", json!({"lines": ["one", "zwölf", ""]})).await;
    let path = format!("/v1/tasks/a/log?after={}", last["position"].as_str().unwrap());
    let _: LogDocument = fleet.get(&path).await;
    let text = fleet.request(Method::GET, "/v1/tasks/a/log").header("accept", "text/plain, */*").send().await.unwrap();
    assert_eq!(text.headers()["content-type"], "text/plain; charset=utf-8");
    assert_eq!(text.text().await.unwrap(), "one\nzwölf\n\n");
    let json = fleet.request(Method::GET, "/v1/tasks/a/log").header("accept", "*/*").send().await.unwrap();
    assert_eq!(json.headers()["content-type"], "application/json");
}

#[tokio::test]
async fn invalid_line_is_rejected_with_its_pointer() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let (long, many) = ("x".repeat(16_385), vec!["x"; 1_001]);
    for (path, body, status, code, pointer) in [
        ("/v1/tasks/a/log", json!({"lines": ["ok", long]}), 413, "too_large", Some("/lines/1")),
        ("/v1/tasks/a/log", json!({"lines": many}), 413, "too_large", Some("/lines")),
        ("/v1/tasks/a/log", json!({"lines": []}), 400, "bad_field", Some("/lines")),
        ("/v1/tasks/a/log", json!({"lines": [1]}), 400, "bad_field", Some("/lines/0")),
        ("/v1/tasks/a/log", json!({"line": "x"}), 400, "unknown_field", None),
        ("/v1/tasks/nobody/log", json!({"lines": ["x"]}), 404, "not_found", None),
    ] {
        let answer = problem(fleet.request(Method::POST, path).json(&body)).await;
        assert_eq!((answer.status, answer.code.as_str()), (status, code), "{answer:?}");
        assert!(pointer.is_none() || answer.pointer.as_deref() == pointer, "{answer:?}");
    }
}

#[tokio::test]
async fn log_is_followed_until_the_task_ends() {
    let fleet = fleet().await;
    fleet.echo("a").await;
    let lines = async |text: &[&str]| {
        let (status, _) = fleet.post("/v1/tasks/a/log", json!({"lines": text})).await;
        assert_eq!(status, 202);
    };
    lines(&["0", "1", "2"]).await;
    fleet.folded().await;
    let mut stream = Stream::open_at(&fleet, "/v1/tasks/a/log/watch", "1").await;
    let page = stream.lines().await;
    assert_eq!((page.from, texts(&page)), (1, vec!["1", "2"]), "the stream resumes after the last event received");
    lines(&["3"]).await;
    assert_eq!(texts(&stream.lines().await), ["3"]);
    lines(&["last"]).await;
    fleet.succeed("a", json!(1)).await;
    assert_eq!(texts(&stream.lines().await), ["last"]);
    assert_eq!(stream.end().await, EndReason::Finished);
    let mut later = Stream::open_at(&fleet, "/v1/tasks/a/log/watch?from=4", "").await;
    assert_eq!((texts(&later.lines().await), later.end().await), (vec!["last"], EndReason::Finished));
}
