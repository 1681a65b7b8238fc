//! Ways of a value into a fleet.

use std::future::Future;
use std::pin::Pin;

use kafleet::client::{Client, NewTask};
use kafleet::model::json::RawJson;
use kafleet::model::record::state::State;
use reqwest::Method;
use serde_json::Value;

use super::outside;
use super::ways_out::value_at;
use crate::cli::run::{RunResult, kafleet, run, run_with_stdin};
use crate::fleet::http_receiver::Receiver;
use crate::fleet::in_process::{Fleet, eventually};

/// Location where a value arrives.
#[derive(Debug)]
pub enum Location {
    /// Params of a task.
    Params(String),
    /// Field of the status of a task, by its JSON pointer.
    Status(String, &'static str),
    /// Part of a document of the API, by its path and a JSON pointer.
    Document(String, &'static str),
    /// Value that has been read.
    Text(String),
}

/// Gives on a value under a new id. The error is the refusal.
type Sending<'a> = Pin<Box<dyn Future<Output = Result<Location, String>> + 'a>>;

pub struct WayIn {
    /// Name in the documentation.
    pub name: &'static str,
    pub send: for<'a> fn(&'a Fleet, &'a str, &'a str) -> Sending<'a>,
}

macro_rules! ways {
    ($($name:literal => $send:expr,)*) => {
        pub const WAYS: &[WayIn] =
            &[$(WayIn { name: $name, send: |fleet, id, value| Box::pin(async move { $send(fleet, id, value).await }) },)*];
    };
}

ways! {
    "`POST /v1/tasks`: params" => api_params,
    "`POST /v1/tasks`: options" => api_options,
    "`POST /v1/tasks`: `then`" => api_continuation,
    "`POST /v1/batches`" => api_batch,
    "`POST /v1/batches?atomic=true`" => api_atomic_batch,
    "`POST /v1/batches`, lines" => api_lines,
    "`PATCH /v1/tasks/{id}`: options" => api_patch,
    "`PUT /v1/tasks/{id}/state`: result" => api_report,
    "`POST /v1/schedules`" => api_schedule,
    "`POST /v1/schedules/{id}/backfill`" => api_backfill,
    "`POST /v1/dead-letters/{letter}/redrive`" => api_redrive,
    "record in binary mode" => record,
    "record in structured mode" => structured_record,
    "result of a handler" => relayed_result,
    "output of an `exec` program" => program_output,
    "response of an `http` service" => service_response,
    "progress of a handler" => relayed_progress,
    "`cx.spawn`" => relayed_child,
    "`cx.spawn_now`" => relayed_child_at_once,
    "`cx.then`" => relayed_continuation,
    "Rust client" => rust_client,
    "`kafleet submit`" => cli_params,
    "`kafleet submit TYPE --options`" => cli_options,
    "`kafleet submit TYPE --then`" => cli_continuation,
    "`kafleet submit -`" => cli_documents,
    "`kafleet submit TYPE -`" => cli_lines,
    "`kafleet submit --atomic`" => cli_atomic,
    "`kafleet update ID --options`" => cli_update,
    "`kafleet report ID succeeded --result`" => cli_report,
    "`kafleet schedules create`" => cli_schedule,
    "`kafleet dead-letters redrive --params`" => cli_redrive,
    "params, on stdin of an `exec` program" => program_params,
    "params, in the request of `http`" => service_params,
    "params, in a schedule" => shown_schedule,
    "params, in a dead letter" => shown_dead_letter,
    "result, in the body of a callback" => result_in_callback,
    "result of a child, by `with_results`" => result_for_continuation,
}

type SendResult = Result<Location, String>;

fn params_of(id: &str) -> SendResult {
    Ok(Location::Params(id.to_owned()))
}

fn options_of(id: &str) -> SendResult {
    Ok(Location::Status(id.to_owned(), "/options/n"))
}

fn result_of(id: &str) -> SendResult {
    Ok(Location::Status(id.to_owned(), "/result"))
}

async fn call(fleet: &Fleet, method: Method, path: &str, body: String) -> Result<String, String> {
    let (path, media) = match path.strip_suffix("#lines") {
        Some(path) => (path, "application/x-ndjson"),
        None => (path, "application/json"),
    };
    let client = kafleet_testkit::http::client();
    // Not before the tracker has caught up, which a loaded machine delays.
    eventually(&format!("an answer to {path}"), || async {
        let request = client.request(method.clone(), format!("{}{path}", fleet.api)).header("content-type", media);
        let response = request.body(body.clone()).send().await.unwrap();
        let (status, text) = (response.status(), response.text().await.unwrap());
        if status.is_success() || text.contains("do not repeat it") {
            Some(Ok(text))
        } else {
            (!text.contains(r#""code":"not_visible_yet""#)).then_some(Err(text))
        }
    })
    .await
}

/// Creates a task with more fields.
async fn create(fleet: &Fleet, id: &str, fields: &str) -> Result<(), String> {
    call(fleet, Method::POST, "/v1/tasks", format!(r#"{{"id":"{id}",{fields}}}"#)).await.map(drop)
}

async fn api_params(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    create(fleet, id, &format!(r#""type": "echo", "params":{value}"#)).await?;
    fleet.wait_for_end(id).await;
    params_of(id)
}

async fn api_options(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    create(fleet, id, &format!(r#""type": "echo", "options": {{ "n": {value} }}"#)).await?;
    options_of(id)
}

async fn api_continuation(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    create(fleet, id, &format!(r#""type":"echo","then":[{{"type":"echo","params":{value}}}]"#)).await?;
    fleet.wait_for_end(id).await;
    params_of(&format!("{id}:then"))
}

/// Creates a batch of one task, whose problem is part of a successful response.
async fn batch(fleet: &Fleet, path: &str, body: String, id: &str) -> SendResult {
    let text = call(fleet, Method::POST, path, body).await?;
    if text.contains(r#""refused":1"#) {
        return Err(text);
    }
    params_of(id)
}

async fn api_batch(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    batch(fleet, "/v1/batches", format!(r#"[{{"type":"echo","id":"{id}","params":{value}}}]"#), id).await
}

async fn api_atomic_batch(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let body = format!(r#"[{{"type":"echo","id":"{id}","params":{value}}}]"#);
    batch(fleet, "/v1/batches?atomic=true", body, id).await
}

async fn api_lines(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    batch(fleet, "/v1/batches#lines", format!("{{\"type\":\"echo\",\"id\":\"{id}\",\"params\":{value}}}\n"), id).await
}

async fn api_patch(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    create(fleet, id, r#""type":"echo""#).await?;
    fleet.wait_for_end(id).await;
    call(fleet, Method::PATCH, &format!("/v1/tasks/{id}"), format!(r#"{{"options":{{"n":{value}}}}}"#)).await?;
    options_of(id)
}

async fn external(fleet: &Fleet, id: &str) -> Result<(), String> {
    create(fleet, id, r#""type":"outside","external":true"#).await?;
    fleet.wait_for_record(id).await;
    Ok(())
}

async fn api_report(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    external(fleet, id).await?;
    let body = format!(r#"{{"state":"succeeded","result":{value}}}"#);
    call(fleet, Method::PUT, &format!("/v1/tasks/{id}/state"), body).await?;
    result_of(id)
}

/// Fires a schedule once.
async fn trigger(fleet: &Fleet, id: &str) -> SendResult {
    first_task(fleet, &call(fleet, Method::POST, &format!("/v1/schedules/{id}/trigger"), "{}".to_owned()).await?).await
}

/// Returns the first task that a request has created.
async fn first_task(fleet: &Fleet, response: &str) -> SendResult {
    let document: Value = serde_json::from_str(response).unwrap();
    let task = document["tasks"][0].as_str().unwrap();
    fleet.wait_for_record(task).await;
    params_of(task)
}

async fn create_schedule(fleet: &Fleet, id: &str, value: &str) -> Result<(), String> {
    let task = format!(r#"{{"type":"echo","params":{value}}}"#);
    let body = format!(r#"{{"id":"{id}","spec":{{"every":"1d","task":{task}}}}}"#);
    call(fleet, Method::POST, "/v1/schedules", body).await.map(drop)
}

async fn api_schedule(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    create_schedule(fleet, id, value).await?;
    trigger(fleet, id).await
}

async fn api_backfill(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    create_schedule(fleet, id, value).await?;
    let path = format!("/v1/schedules/{id}/backfill?from=2026-01-01T12:00:00Z&to=2026-01-02T12:00:00Z");
    first_task(fleet, &call(fleet, Method::POST, &path, String::new()).await?).await
}

/// Makes a dead letter and returns its id.
async fn dead_letter(fleet: &Fleet, id: &str, value: &str) -> Result<String, String> {
    create(fleet, id, &format!(r#""type":"relay","params":{{"by":"dead_letter","value":{value}}}"#)).await?;
    fleet.wait_for_end(id).await;
    let subject = format!("a dead letter of `{id}`");
    let letter = eventually(&subject, || async {
        let page = fleet.get("/v1/dead-letters?type=relay").await;
        let letter = page["letters"].as_array()?.iter().find(|letter| letter["task"] == id)?;
        Some(letter["id"].as_str().unwrap().to_owned())
    });
    Ok(letter.await)
}

async fn redriven(fleet: &Fleet, id: &str) -> SendResult {
    eventually(&format!("`{id}` has succeeded"), || async {
        fleet.record(id).await.filter(|task_record| task_record.state == State::Succeeded)
    })
    .await;
    result_of(id)
}

async fn api_redrive(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let letter = dead_letter(fleet, id, "1").await?;
    let body = format!(r#"{{"params":{{"by":"result","value":{value}}}}}"#);
    call(fleet, Method::POST, &format!("/v1/dead-letters/{letter}/redrive"), body).await?;
    redriven(fleet, id).await
}

/// Runs a task, and returns its result.
async fn run_task(fleet: &Fleet, id: &str, task_type: &str, params: &str) -> SendResult {
    create(fleet, id, &format!(r#""type":"{task_type}","params":{params}"#)).await?;
    ended(fleet, id).await.and(result_of(id))
}

async fn program_params(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    run_task(fleet, id, outside::PROGRAM, value).await
}

async fn program_output(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), value).unwrap();
    run_task(fleet, id, outside::READER, &format!("\"{}\"", file.path().display())).await
}

async fn service_params(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    run_task(fleet, id, outside::SERVICE, value).await
}

async fn service_response(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    run_task(fleet, id, outside::SERVICE, &Value::from(value).to_string()).await
}

/// Waits for the end of a task without announcement; the error is that of its dead letter.
async fn ended(fleet: &Fleet, id: &str) -> SendResult {
    let record = fleet.wait_for_end(id).await;
    match record.outcome.error {
        Some(error) => Err(error.message.clone()),
        None => params_of(id),
    }
}

async fn record(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    fleet.publish_bare("echo", &[("ce_id", id.as_bytes())], value).await;
    ended(fleet, id).await
}

/// The id is a header, because it is known of a document that cannot be read.
async fn structured_record(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let headers: [(&str, &[u8]); 2] = [("content-type", b"application/cloudevents+json"), ("ce_id", id.as_bytes())];
    let document = format!(r#"{{"specversion":"1.0","type":"echo","source":"/","data":{value}}}"#);
    fleet.publish_bare("echo", &headers, &document).await;
    ended(fleet, id).await
}

async fn relay(fleet: &Fleet, id: &str, by: &str, value: &str) -> Result<(), String> {
    create(fleet, id, &format!(r#""type":"relay","params":{{"by":"{by}","value":{value}}}"#)).await?;
    fleet.wait_for_end(id).await;
    Ok(())
}

async fn relayed_result(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    relay(fleet, id, "result", value).await?;
    result_of(id)
}

async fn relayed_progress(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    relay(fleet, id, "progress", value).await?;
    Ok(Location::Status(id.to_owned(), "/progress"))
}

async fn relayed_child(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    relay(fleet, id, "child", value).await?;
    params_of(&format!("{id}:c"))
}

async fn relayed_child_at_once(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    relay(fleet, id, "child_at_once", value).await?;
    params_of(&format!("{id}:c"))
}

async fn relayed_continuation(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    relay(fleet, id, "continuation", value).await?;
    params_of(&format!("{id}:then"))
}

async fn rust_client(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let params = RawJson::parse(value.as_bytes()).map_err(|error| error.to_string())?;
    let client = Client::new(&fleet.api).map_err(|error| error.to_string())?;
    client.submit(NewTask::new("echo", params).id(id)).await.map_err(|error| error.to_string())?;
    fleet.wait_for_end(id).await;
    params_of(id)
}

async fn shown_schedule(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    create_schedule(fleet, id, value).await?;
    Ok(Location::Document(format!("/v1/schedules/{id}"), "/spec/task/params"))
}

async fn shown_dead_letter(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let letter = dead_letter(fleet, id, value).await?;
    Ok(Location::Document(format!("/v1/dead-letters/{letter}"), "/params/value"))
}

async fn result_in_callback(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let receiver = Receiver::start().await;
    let actions = format!(r#"[{{"on":["succeeded"],"callback":{{"url":"{}/ok"}}}}]"#, receiver.url);
    let params = format!(r#"{{"by":"result","value":{value}}}"#);
    create(fleet, id, &format!(r#""type":"relay","params":{params},"actions":{actions}"#)).await?;
    let call = eventually(&format!("a callback of `{id}`"), || async { receiver.calls("ok").pop() }).await;
    Ok(Location::Text(value_at(&call.body, "/data/result").unwrap_or(call.body)))
}

async fn result_for_continuation(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let params = format!(r#"{{"by":"child_result","value":{value}}}"#);
    let then = r#"[{"type":"echo","with_results":true}]"#;
    create(fleet, id, &format!(r#""type":"relay","params":{params},"then":{then}"#)).await?;
    fleet.wait_for_end(id).await;
    Ok(Location::Document(format!("/v1/tasks/{id}:then/params"), "/params/results/0/output"))
}

/// Runs the command line; a failure is the refusal.
async fn cli(fleet: &Fleet, words: &[&str], input: Option<&str>) -> Result<(), String> {
    run_cli(fleet, words, input).await.map(drop)
}

/// Runs the command line and returns its output.
pub async fn run_cli(fleet: &Fleet, words: &[&str], input: Option<&str>) -> Result<String, String> {
    let mut command = kafleet(words);
    command.env("KAFLEET_API", &fleet.api);
    let input = input.map(str::to_owned);
    let ran = move || match input {
        Some(input) => run_with_stdin(command, &input),
        None => run(command),
    };
    let RunResult { code, out, err } = tokio::task::spawn_blocking(ran).await.unwrap();
    if code == Some(0) { Ok(out) } else { Err(format!("{code:?} {out} {err}")) }
}

async fn cli_params(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    cli(fleet, &["submit", "echo", value, "--id", id], None).await?;
    fleet.wait_for_end(id).await;
    params_of(id)
}

async fn cli_options(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    cli(fleet, &["submit", "echo", "1", "--id", id, "--options", &format!("{{\"n\":{value}}}")], None).await?;
    options_of(id)
}

async fn cli_continuation(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let then = format!(r#"{{"type":"echo","params":{value}}}"#);
    cli(fleet, &["submit", "echo", "1", "--id", id, "--then", &then], None).await?;
    fleet.wait_for_end(id).await;
    params_of(&format!("{id}:then"))
}

async fn cli_documents(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    cli(fleet, &["submit", "-"], Some(&format!(r#"{{"type":"echo","id":"{id}","params":{value}}}"#))).await?;
    params_of(id)
}

/// The lines have no ids: the one child of a parent is found by its tree.
async fn cli_lines(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    external(fleet, id).await?;
    cli(fleet, &["submit", "echo", "-", "--parent", id], Some(value)).await?;
    let subject = format!("a child of `{id}`");
    let child = eventually(&subject, || async {
        let tree = fleet.get(&format!("/v1/tasks/{id}/tree")).await;
        Some(tree["below"][0]["id"].as_str()?.to_owned())
    });
    params_of(&child.await)
}

async fn cli_atomic(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let document = format!(r#"{{"type":"echo","id":"{id}","params":{value}}}"#);
    cli(fleet, &["submit", "--atomic", "-"], Some(&document)).await?;
    params_of(id)
}

async fn cli_update(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    create(fleet, id, r#""type":"echo""#).await?;
    fleet.wait_for_end(id).await;
    cli(fleet, &["update", id, "--options", &format!("{{\"n\":{value}}}")], None).await?;
    options_of(id)
}

async fn cli_report(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    external(fleet, id).await?;
    cli(fleet, &["report", id, "succeeded", "--result", value], None).await?;
    result_of(id)
}

async fn cli_schedule(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    cli(fleet, &["schedules", "create", id, "echo", value, "--every", "1d"], None).await?;
    trigger(fleet, id).await
}

async fn cli_redrive(fleet: &Fleet, id: &str, value: &str) -> SendResult {
    let letter = dead_letter(fleet, id, "1").await?;
    let params = format!(r#"{{"by":"result","value":{value}}}"#);
    cli(fleet, &["dead-letters", "redrive", &letter, "--params", &params], None).await?;
    redriven(fleet, id).await
}
