//! Actions by forms, as seen by the API afterwards.

use kafleet::config::RateBy;
use kafleet::documents::{KillSwitches, LogDocument, ScheduleDocument, Schedules, Status, TaskPage, Types};
use kafleet::model::event::{AttemptFailure, Kind, Payload};
use kafleet::model::record::state::State;
use kafleet::runtime::now_ms;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::dead_letters::{LETTER, NewLetter, with_letters};
use crate::api::fixture::{eventually, fleet};
use crate::ui::browser::Browser;
use crate::ui::pages::fleet_with_tree;

#[tokio::test]
async fn task_is_cancelled_with_its_reason() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    let browser = Browser::new(&fleet);
    browser.open("/tasks/order/cancel").await.has(&["Cancel 1 task", "name=\"reason\""]);
    let page = browser.submit("/tasks/order/cancel", "reason=ordered+twice").await;
    page.has(&["The cancel was requested.", "ordered twice"]).lacks(&["Not visible yet"]);
    let history: Value = fleet.get("/v1/tasks/order/history").await;
    assert!(history.to_string().contains("ordered twice"), "{history}");
}

#[tokio::test]
async fn tasks_of_a_file_are_submitted_once() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    browser.open("/new/many").await.has(&["name=\"form\"", "data-into=\"f-tasks\""]);
    let form = |lines: &[&str]| {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        serde_urlencoded(&[("form", "f"), ("tasks", &text)])
    };
    let (good, bad) = (r#"{"type":"echo","params":{"n":1}}"#, r#"{"type":"resize","params":{"url":7}}"#);
    let page = browser.post("/new/many", &form(&[good, bad, good])).await;
    assert_eq!(page.status, StatusCode::BAD_REQUEST);
    page.has(&["1 of 3 tasks were not accepted: task 2", "value=\"f\"", "&quot;url&quot;:7"]);
    assert_eq!((fleet.published("echo"), fleet.published("resize")), (2, 0));
    let mended = r#"{"type":"resize","id":"thumb","params":{"url":"a","width":7}}"#;
    browser.submit("/new/many", &form(&[mended, good, good])).await.has(&["The tasks were submitted."]);
    assert_eq!((fleet.published("echo"), fleet.published("resize")), (2, 1), "nothing is submitted twice");
}

#[tokio::test]
async fn task_of_a_form_is_submitted_once() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    browser.open("/new").await.has(&["name=\"form\""]);
    let form = serde_urlencoded(&[("form", "f"), ("type", "echo"), ("params", "{\"n\": 1}")]);
    let unacknowledged = fleet.faults.unacknowledged_writes();
    let page = browser.post("/new", &form).await;
    assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE);
    page.has(&["not_announced", "name=\"form\" value=\"f\""]);
    unacknowledged.lift();
    browser.submit("/new", &form).await.has(&["The task was submitted.", "f-"]);
    browser.submit("/new", &form).await.has(&["The same task already existed; nothing was submitted."]);
    let changed = serde_urlencoded(&[("form", "f"), ("type", "echo"), ("params", "{\"n\": 2}")]);
    browser.submit("/new", &changed).await.has(&["The task was submitted."]);
    fleet.folded().await;
    assert_eq!(fleet.get::<TaskPage>("/v1/tasks").await.tasks.len(), 2);
}

fn serde_urlencoded(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

#[tokio::test]
async fn refused_action_shows_the_form_with_the_problem() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.post("/tasks/order/cancel", "reason=too+late").await;
    assert_eq!(page.status, StatusCode::CONFLICT);
    page.has(&["already_finished", "value=\"too late\"", "action=\"/tasks/order/cancel\""]);
    let page = browser.post("/new", "type=resize&params=%7B%22url%22%3A+1%7D&name=mine").await;
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", page.text);
    page.has(&["<code>schema</code>", "/params", "value=\"mine\"", "&quot;url&quot;: 1"]);
    let page = browser.post("/new", "type=echo&params=%7Bodd").await;
    assert_eq!(page.status, StatusCode::BAD_REQUEST);
    page.has(&["bad_json", "{odd"]);
}

#[tokio::test]
async fn task_and_its_failed_tasks_are_retried() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    browser.open("/tasks/order/retry-failed").await.has(&["<strong>1 task</strong>", ">Retry 1 task</button>"]);
    browser.submit("/tasks/order/retry-failed", "reason=healed").await.has(&["the failed tasks run again"]);
    let child: Status = fleet.get("/v1/tasks/order:fetch").await;
    assert_eq!((child.run, child.state.is_terminal()), (2, false));
    let failed = Payload::Failed(AttemptFailure::new("error", "once more", 1));
    fleet.publish_event("order:fetch", failed, |event| event.run = 2).await;
    fleet.folded().await;
    browser.submit("/tasks/order/retry", "").await.has(&["The retry was accepted"]);
    assert!(fleet.get::<Status>("/v1/tasks/order").await.run > 1);
}

#[tokio::test]
async fn task_is_submitted_copied_and_edited() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let form = "type=echo&id=order&params=%7B%22a%22%3A+1%7D&name=An+order&tags=shop%2C+urgent&fields=%7B%22retries%22%3A+5%7D&delay=1h";
    browser.submit("/new", form).await.has(&["The task was submitted.", "An order", "Start now…"]);
    let made: Status = fleet.get("/v1/tasks/order").await;
    assert_eq!(made.fields.tags, ["shop", "urgent"]);
    browser.open("/tasks/order").await.has(&["none yet, at most 6"]);
    browser.open("/new?like=order").await.has(&["&quot;a&quot;: 1", "value=\"An order\"", "value=\"shop, urgent\""]);
    browser.open("/tasks/order/edit").await.has(&["value=\"An order\""]);
    browser
        .submit("/tasks/order/edit", "name=Another&tags=shop&fields=%7B%22retries%22%3A+7%7D")
        .await
        .has(&["The task was changed."]);
    let changed: Status = fleet.get("/v1/tasks/order").await;
    assert_eq!(changed.fields.name.as_deref(), Some("Another"));
    browser.open("/tasks/order").await.has(&["none yet, at most 8"]);
    assert_eq!(changed.fields.tags, ["shop"]);
    browser.submit("/tasks/order/start-now", "").await.has(&["The task starts now."]);
}

#[tokio::test]
async fn circuit_of_a_type_is_closed() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    assert!(!browser.open("/types/echo").await.text.contains("Close the circuit…"));
    let open = json!({"state": "open", "reason": "the bureau is closed"});
    let set = fleet.request(Method::PUT, "/v1/types/echo/circuit").json(&open).send().await.unwrap();
    assert_eq!(set.status(), StatusCode::OK);
    eventually("the circuit is known", async || browser.open("/types/echo").await.text.contains("Close the circuit…"))
        .await;
    let page = browser.open("/types/echo/circuit").await;
    page.has(&["Circuit of echo", "kafleet types circuit echo auto", "<h2>Now</h2>", "open by ", "on no worker"]);
    let form = "state=closed&reason=they+answer+again";
    browser.submit("/types/echo/circuit", form).await.has(&[
        "The circuit was set",
        "Release the circuit…",
        "they answer again",
    ]);
}

#[tokio::test]
async fn waiting_retry_is_started_now() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    let failure = AttemptFailure::new("error", "down", 1);
    let wait = Payload::Retrying { failure, due_ms: Some(now_ms() + 3_600_000), record: None, waits: 0 };
    fleet.publish_event("order", wait, |event| event.attempt = 1).await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    browser.open("/tasks/order").await.has(&["Start now…"]);
    browser
        .open("/tasks/order/start-now")
        .await
        .has(&["Starts the next attempt now instead of at", "kafleet start order"]);
    browser
        .submit("/tasks/order/start-now", "reason=urgent")
        .await
        .has(&["The task starts now.", "has been due since"]);
    browser.open("/audit").await.has(&["start", "urgent"]);
    let bulk = browser.open("/bulk/new?action=start_now&q=type%3Aecho").await;
    bulk.has(&["due already", "Tasks that wait for their start or their next attempt start now"]);
    let running = fleet.echo("running").await.id;
    fleet.publish_event(&running, Kind::Started, |event| event.attempt = 1).await;
    fleet.folded().await;
    assert!(!browser.open("/tasks/running").await.text.contains("Start now…"));
    browser.open("/tasks/running/start-now").await.has(&["It waits for no time: there is nothing to start."]);
}

#[tokio::test]
async fn lines_and_texts_are_added_to_a_task() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    let browser = Browser::new(&fleet);
    browser.submit("/tasks/order/append", "lines=one%0D%0Atwo").await.has(&["id=\"l1\"", "two"]);
    let log: LogDocument = fleet.get("/v1/tasks/order/log").await;
    assert_eq!(log.lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    browser.submit("/tasks/order/attach", "name=notes.txt&text=remember").await.has(&["notes.txt"]);
    let raw = browser.open("/tasks/order/attachments/notes.txt").await;
    assert_eq!((raw.text.as_str(), raw.header("content-disposition")), ("remember", "attachment"));
    assert!(raw.header("content-security-policy").starts_with("sandbox"));
}

#[tokio::test]
async fn type_is_paused_limited_and_resumed() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    browser.submit("/types/echo/pause", "reason=disk+full").await.has(&["disk full", "Resume"]);
    let echo = async || {
        let types: Types = fleet.get("/v1/types").await;
        types.types.into_iter().find(|document| document.name == "echo").unwrap()
    };
    assert_eq!(echo().await.paused.unwrap().reason.as_deref(), Some("disk full"));
    browser.open("/").await.has(&["Needs attention", "disk full"]);
    browser.submit("/types/echo/resume", "").await.has(&["Pause…"]);
    browser
        .submit("/types/echo/limits", "slots=3&max_concurrency=&rate_count=100&rate_per=1m&rate_by=type")
        .await
        .has(&["3 slots a worker"]);
    let limits = echo().await.limits;
    assert_eq!((limits.slots, limits.max_concurrency, limits.rate.unwrap().count), (Some(3), None, 100));
    browser.open("/types/echo/limits").await.has(&["value=\"3\"", "value=\"100\"", "value=\"1m\""]);
    browser.submit("/types/echo/limits", "rate_count=10&rate_per=1s&rate_burst=5&rate_by=key").await;
    let rate = echo().await.limits.rate.unwrap();
    assert_eq!((rate.burst, rate.by), (5, RateBy::Key));
    let form = browser.open("/types/echo/limits").await;
    form.has(&["name=\"rate_burst\" value=\"5\"", "<option value=\"key\" selected>"]);
    let page = browser.post("/types/echo/limits", "slots=many").await;
    assert_eq!(page.status, StatusCode::BAD_REQUEST);
    page.has(&["is not a whole number", "value=\"many\""]);
}

#[tokio::test]
async fn dead_letter_is_edited_and_redriven() {
    let fleet = with_letters().await;
    fleet.echo("order").await;
    fleet.fail("order", "no answer").await;
    fleet.folded().await;
    let letter = fleet.letter(NewLetter { task: Some(("order", 1)), key: "order", ..LETTER }, 0).await;
    let browser = Browser::new(&fleet);
    let page = format!("/dead-letters/{letter}");
    browser.open(&page).await.has(&["Edit and redrive…", "unresolved"]);
    browser.open(&format!("{page}/edit")).await.has(&["Starts a new run", "&quot;n&quot;: 1"]);
    let wrong = browser.post(&format!("{page}/edit"), "params=%7Bodd").await;
    wrong.has(&["bad_json", "{odd"]);
    browser.submit(&format!("{page}/edit"), "params=%7B%22n%22%3A2%7D").await.has(&["The dead letter was redriven"]);
    eventually("the new run", async || fleet.get::<Status>("/v1/tasks/order").await.run == 2).await;
    let again = browser.post(&format!("{page}/edit"), "params=1").await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    again.has(&["already_redriven"]);
}

#[tokio::test]
async fn kill_switch_is_set_and_deleted() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    browser.submit("/kill-switches/new", "tag=batch-7&reason=bad+input").await.has(&[
        "batch-7",
        "bad input",
        "/kill-switches/batch-7/off",
    ]);
    assert_eq!(fleet.get::<KillSwitches>("/v1/kill-switches").await.kills.len(), 1);
    browser.submit("/kill-switches/batch-7/off", "").await.has(&["The kill switch is off."]);
    assert!(fleet.get::<KillSwitches>("/v1/kill-switches").await.kills.is_empty());
}

#[tokio::test]
async fn schedule_is_created_changed_paused_and_deleted() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let spec = |cron: &str| {
        let spec = json!({"cron": cron, "task": {"type": "echo", "params": {}}}).to_string();
        url::form_urlencoded::byte_serialize(spec.as_bytes()).collect::<String>()
    };
    browser.submit("/new-schedule", &format!("id=nightly&spec={}", spec("0 3 * * *"))).await.has(&["0 3 * * *"]);
    browser.submit("/schedules/nightly/edit", &format!("spec={}", spec("0 4 * * *"))).await.has(&["0 4 * * *"]);
    browser.submit("/schedules/nightly/pause", "reason=holiday").await.has(&["holiday", "Resume…"]);
    browser.submit("/schedules/nightly/resume", "").await.has(&["active"]);
    let owner = async || fleet.get::<ScheduleDocument>("/v1/schedules/nightly").await.owner;
    assert_eq!(owner().await, None);
    let known: Value = fleet.get("/v1/schedules/nightly").await;
    fleet.request(Method::PUT, "/v1/schedules/nightly?owner=config").json(&known["spec"]).send().await.unwrap();
    browser.submit("/schedules/nightly/edit", &format!("spec={}", spec("0 5 * * *"))).await.has(&["0 5 * * *"]);
    assert_eq!(owner().await.as_deref(), Some("config"), "the configuration file still manages it");
    let page = browser.post("/schedules/nightly/edit", &format!("spec={}", spec("odd"))).await;
    assert_eq!(page.status, StatusCode::BAD_REQUEST);
    page.has(&["bad_field", "&quot;odd&quot;"]);
    browser.submit("/schedules/nightly/delete", "").await.has(&["The schedule was deleted."]);
    assert!(fleet.get::<Schedules>("/v1/schedules").await.schedules.is_empty());
}

#[tokio::test]
async fn cancel_of_an_ended_task_offers_no_button() {
    let fleet = fleet_with_tree().await;
    let page = Browser::new(&fleet).open("/tasks/order/cancel").await;
    page.has(&["It has already ended"]).lacks(&["type=\"submit\">Cancel"]);
    assert_eq!(fleet.get::<Status>("/v1/tasks/order").await.state, State::Failed);
}
