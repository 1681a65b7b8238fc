//! The client of the REST API, against a fleet in memory and against APIs that fail.

mod scripted_api;

use std::time::Duration;

use futures::TryStreamExt;
use kafleet::client::{CancelTask, Client, Error, Method, NewTask, RetryTask, State, TaskType};
use kafleet::handlers::{Context, Task, TaskResult};
use kafleet_testkit::wait::DEADLINE;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cli::client::Dev;
use scripted_api::{Answer, ScriptedApi};

/// The type `echo` as a program sees it that has no worker: the result is the params.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Greeting {
    hello: String,
}

impl TaskType for Greeting {
    const TYPE: &'static str = "echo";
    type Output = Greeting;
}

/// Type of an echo as a Rust task, which needs no other implementation.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
struct CountedTask {
    count: u32,
}

impl Task for CountedTask {
    const TYPE: &'static str = "echo";
    type Output = Value;

    async fn run(self, _: Context) -> TaskResult<Value> {
        Ok(json!({"count": self.count}))
    }
}

fn greeting() -> Greeting {
    Greeting { hello: "world".into() }
}

fn dev() -> (Dev, Client) {
    let dev = Dev::start();
    let client = Client::new(dev.api()).unwrap();
    (dev, client)
}

#[tokio::test]
async fn result_has_the_type_of_the_task() {
    let (_dev, client) = dev();
    assert_eq!(client.run(greeting()).await.unwrap(), greeting());
    assert_eq!(client.run(CountedTask { count: 3 }.to_new_task()).wait(DEADLINE).await.unwrap(), json!({"count": 3}));
    let wrong: Result<Vec<u8>, Error> = client.run(NewTask::of("echo", &greeting())).await;
    assert!(matches!(wrong, Err(Error::Output { .. })), "{wrong:?}");
}

#[tokio::test]
async fn submitted_task_has_its_options() {
    let (_dev, client) = dev();
    let submit = || client.submit(greeting()).id("cover-42").name("Cover").tag("shop").delay(Duration::from_secs(600));
    let handle = submit().await.unwrap();
    assert_eq!(handle.id(), "cover-42");
    let status = handle.status().await.unwrap();
    assert_eq!(status.state, State::Scheduled);
    let shown = serde_json::to_value(&status).unwrap();
    assert_eq!((&shown["name"], &shown["tags"]), (&json!("Cover"), &json!(["shop"])));
    let again = submit().await.unwrap();
    assert_eq!(again.id(), "cover-42", "the same task is accepted again");
    let waited = handle.result(Duration::from_millis(50)).await;
    let Err(Error::Deadline { status: Some(status), .. }) = waited else { panic!("{waited:?}") };
    assert_eq!(status.state, State::Scheduled);
}

#[tokio::test]
async fn refusals_keep_the_problem_document() {
    let (_dev, client) = dev();
    let unknown = client.submit(NewTask::new("ehco", json!({}))).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.is_not_found()), (Some("unknown_type"), true));
    assert!(unknown.problem().unwrap().hint.as_deref().unwrap().contains("did you mean `echo`"), "{unknown}");
    assert!(!unknown.is_temporary());

    let invalid = client.submit(NewTask::new("foreach", json!({"items": 1}))).await.unwrap_err();
    assert_eq!(invalid.code(), Some("schema"), "{invalid}");
    assert!(invalid.problem().unwrap().pointer.as_deref().unwrap().starts_with("/params"), "{invalid:?}");

    client.submit(greeting()).id("taken").await.unwrap();
    let conflict = client.submit(NewTask::new("echo", json!({"other": 1}))).id("taken").await.unwrap_err();
    assert_eq!(conflict.problem().unwrap().existing.as_deref(), Some("taken"));
    assert_eq!(client.status("nobody").await.unwrap_err().code(), Some("not_found"));
    assert_eq!(client.tree("nobody").await.unwrap_err().code(), Some("not_found"));
    let cancel = client.cancel("nobody", &CancelTask::default()).await.unwrap_err();
    assert_eq!(cancel.code(), Some("not_found"));
}

#[tokio::test]
async fn failed_task_is_an_error_with_its_status() {
    let (_dev, client) = dev();
    let error = client.run(NewTask::new("broken", json!({}))).id("b").retries(0).await.unwrap_err();
    let Error::Task(status) = &error else { panic!("{error:?}") };
    assert_eq!((status.state, status.error.as_ref().unwrap().attempt), (State::Failed, 1));
    assert!(error.to_string().contains("no luck"), "{error}");

    let retried = client.retry("b", &RetryTask::default()).await.unwrap();
    assert_eq!(retried.run, 2);
    let ended = client.handle::<Value>("b").ended(DEADLINE).await.unwrap();
    assert_eq!(ended.state, State::Failed);
}

#[tokio::test]
async fn watch_ends_with_the_task() {
    let (_dev, client) = dev();
    let handle = client.submit(NewTask::new("sleeps", json!({}))).await.unwrap();
    let mut changes = std::pin::pin!(handle.watch(DEADLINE));
    while changes.try_next().await.unwrap().unwrap().state != State::Running {}
    handle.cancel().await.unwrap();
    let mut states = Vec::new();
    while let Some(status) = changes.try_next().await.unwrap() {
        states.push(status.state);
    }
    assert_eq!(states.last(), Some(&State::Cancelled), "{states:?}");

    client.submit(greeting()).id("later").delay(Duration::from_secs(600)).await.unwrap();
    let late: Result<Vec<_>, Error> = client.watch("later", Duration::from_millis(300)).try_collect().await;
    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
}

#[tokio::test]
async fn batch_has_an_outcome_for_each_task() {
    let (_dev, client) = dev();
    let tasks: Vec<NewTask> = (0..1_200)
        .map(|n| NewTask::new(if n == 700 { "unknown" } else { "echo" }, json!({"n": n})).id(format!("n-{n}")))
        .collect();
    let outcomes = client.submit_many(tasks).await;
    assert_eq!(outcomes.len(), 1_200);
    for (n, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(handle) => assert_eq!(handle.id(), format!("n-{n}")),
            Err(error) => assert_eq!((n, error.code()), (700, Some("unknown_type")), "{error}"),
        }
    }
    let last = outcomes.last().unwrap().as_ref().unwrap();
    assert_eq!(last.result(DEADLINE).await.unwrap(), json!({"n": 1_199}));
}

#[tokio::test]
async fn tree_contains_the_children() {
    let (_dev, client) = dev();
    client.submit(NewTask::new("echo", json!({}))).id("p").await.unwrap();
    let child = client.submit(greeting()).parent("p").id("c").await.unwrap();
    assert_eq!(child.id(), "p:c");
    child.ended(DEADLINE).await.unwrap();
    let tree = client.tree("p").await.unwrap();
    assert_eq!(tree.below.iter().map(|node| node.id.as_str()).collect::<Vec<_>>(), ["p:c"]);
}

#[tokio::test]
async fn any_endpoint_can_be_called() {
    let (_dev, client) = dev();
    let types: Value = client.request(Method::GET, &["v1", "types"]).receive().await.unwrap();
    assert!(types["types"].as_array().unwrap().iter().any(|document| document["type"] == "echo"), "{types}");
}

#[tokio::test]
async fn absent_api_is_reported_when_the_repetitions_are_over() {
    // Nothing listens on this port.
    let client = Client::builder("http://127.0.0.1:9").repeat_for(Duration::from_millis(200)).build().unwrap();
    let begun = std::time::Instant::now();
    let error = client.submit(greeting()).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { api, .. } if api == "http://127.0.0.1:9"), "{error:?}");
    assert!(begun.elapsed() >= Duration::from_millis(100), "the request was repeated");
    let outcomes = client.submit_many([greeting(), greeting()]).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::Unreachable { .. }))), "{outcomes:?}");
}

#[tokio::test]
async fn lost_and_unavailable_answers_are_repeated_with_the_same_id() {
    let created = json!({"items": [], "accepted": 0, "refused": 0, "unknown": 0});
    let api = ScriptedApi::start([Answer::Close, Answer::unavailable(), Answer::Json(200, created)]).await;
    let client = Client::new(&api.url).unwrap();
    let error = client.submit(greeting()).await.unwrap_err();
    assert!(matches!(error, Error::Unexpected { status: 200, .. }), "not a status document: {error:?}");
    let requests = api.requests();
    let ids: Vec<&Value> = requests.iter().map(|request| &request["id"]).collect();
    assert!(ids.len() == 3 && ids[0].is_string() && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[tokio::test]
async fn only_open_items_of_a_batch_are_repeated() {
    let item = |index: usize, problem: Option<u16>| match problem {
        None => json!({"index": index, "id": "x", "outcome": "accepted", "position": "0:1"}),
        Some(status) => json!({"index": index, "outcome": "refused", "problem": scripted_api::problem(status)}),
    };
    let batch =
        |items: Vec<Value>| Answer::Json(200, json!({"items": items, "accepted": 0, "refused": 0, "unknown": 0}));
    let first = batch(vec![item(0, None), item(1, Some(503)), item(2, Some(422))]);
    let api = ScriptedApi::start([first, batch(vec![item(0, None)])]).await;
    let client = Client::new(&api.url).unwrap();
    let outcomes = client.submit_many([greeting(), greeting(), greeting()]).await;
    let codes: Vec<Option<u16>> =
        outcomes.iter().map(|outcome| outcome.as_ref().err().map(|error| error.problem().unwrap().status)).collect();
    assert_eq!(codes, [None, None, Some(422)]);
    let requests = api.requests();
    assert_eq!(requests[1].as_array().unwrap(), &requests[0].as_array().unwrap()[1..2]);
}

#[tokio::test]
async fn created_tasks_of_a_batch_keep_their_handles_when_its_repetition_is_refused() {
    let items = json!([
        {"index": 0, "id": "x", "outcome": "accepted", "position": "0:1"},
        {"index": 1, "outcome": "refused", "problem": scripted_api::problem(503)},
    ]);
    let first = Answer::Json(200, json!({"items": items, "accepted": 1, "refused": 1, "unknown": 0}));
    let api = ScriptedApi::start([first, Answer::Json(401, scripted_api::problem(401))]).await;
    let outcomes = Client::new(&api.url).unwrap().submit_many([greeting(), greeting()]).await;
    assert_eq!(outcomes[0].as_ref().map(|handle| handle.id().to_owned()).ok().as_deref(), Some("x"), "{outcomes:?}");
    assert_eq!(outcomes[1].as_ref().err().and_then(Error::problem).map(|problem| problem.status), Some(503));
}

#[tokio::test]
async fn retry_is_not_repeated() {
    let api = ScriptedApi::start([Answer::unavailable()]).await;
    let client = Client::new(&api.url).unwrap();
    let error = client.retry("a", &RetryTask::default()).await.unwrap_err();
    assert_eq!(error.problem().unwrap().status, 503);
    assert_eq!(api.requests().len(), 1);
}

#[tokio::test]
async fn silent_api_does_not_block_the_caller() {
    let api = ScriptedApi::start([Answer::Never, Answer::Never]).await;
    let client = Client::builder(&api.url).repeat_for(Duration::ZERO).build().unwrap();
    let request = client.request(Method::GET, &["v1", "types"]).timeout(Duration::from_millis(50));
    let error = request.receive::<Value>().await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
    let error = client.run(greeting()).id("g").wait(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(&error, Error::Deadline { id, status: None } if id == "g"), "{error:?}");
}

const HTML: &str = "content-type: text/html; charset=utf-8\r\n";
const JSON: &str = "content-type: application/json\r\n";
const TEXT: &str = "content-type: text/plain\r\n";

#[tokio::test]
async fn answer_of_another_server_is_reported_with_the_address() {
    const PAGE: &str = "<html>Welcome</html>";
    for (answer, expected) in [
        (Answer::Other(200, HTML, PAGE), "200 text/html"),
        (Answer::Other(404, HTML, PAGE), "404 text/html"),
        (
            Answer::Other(200, JSON, "{}"),
            "200 application/json, a document of another service or version: missing field",
        ),
        (Answer::Other(404, JSON, "{\"error\": \"x\"}"), "404 application/json, {\"error\": \"x\"}"),
        (Answer::Other(200, "", ""), "200 without a media type, empty"),
        (Answer::Other(404, TEXT, "404 page\nnot found"), "404 text/plain, 404 page not found"),
        (Answer::Other(502, TEXT, "no upstream"), "502 text/plain, no upstream"),
    ] {
        let api = ScriptedApi::start([answer]).await;
        let client = Client::builder(&api.url).repeat_for(Duration::ZERO).build().unwrap();
        let error = client.status("a").await.unwrap_err();
        assert!(matches!(error, Error::Unexpected { .. }), "{expected}: {error:?}");
        let beginning = format!("`{}` answered, but it is not kafleet (GET /v1/tasks/a: {expected}", api.url);
        assert!(error.to_string().starts_with(&beginning), "{error}");
    }
}

#[tokio::test]
async fn redirect_to_a_login_page_is_reported() {
    let redirect = Answer::Other(302, "location: /login?next=a\r\n", "");
    let api = ScriptedApi::start([redirect, Answer::Other(200, HTML, "")]).await;
    let error = Client::new(&api.url).unwrap().status("a").await.unwrap_err();
    let expected = format!("200 text/html, after a redirect to {}/login?next=a", api.url);
    assert!(error.to_string().contains(&expected), "{error}");
}

#[tokio::test]
async fn answer_of_a_proxy_is_repeated() {
    let api =
        ScriptedApi::start([Answer::Other(502, TEXT, "no upstream"), Answer::Json(404, scripted_api::problem(404))]);
    let error = Client::new(&api.await.url).unwrap().status("a").await.unwrap_err();
    assert!(error.is_not_found(), "{error:?}");
}

#[tokio::test]
async fn stream_of_another_server_is_reported() {
    let api = ScriptedApi::start([Answer::Other(200, HTML, "<html></html>")]).await;
    let client = Client::new(&api.url).unwrap();
    let error = std::pin::pin!(client.watch("a", DEADLINE)).try_next().await.unwrap_err();
    assert!(error.to_string().ends_with("(GET /v1/tasks/a/watch: 200 text/html)"), "{error}");
}
