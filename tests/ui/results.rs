//! Links to the results of actions that stand on other pages, and verdicts about unique tasks.

use kafleet::documents::TaskPage;
use kafleet::model::event::{AttemptFailure, Payload};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::api::dead_letters::{LETTER, NewLetter, with_letters};
use crate::api::fixture::{Fleet, eventually, fleet};
use crate::ui::browser::{Browser, Page};
use crate::ui::pages::fleet_with_tree;

fn form(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// URL of the link to the result of an action.
fn there(page: &Page) -> String {
    let (before, _) = page.text.split_once("\">Go there</a>").unwrap_or_else(|| panic!("no link in {}", page.text));
    before.rsplit_once("href=\"").unwrap().1.replace("&amp;", "&")
}

/// Follows the link to the result of an action.
async fn follow(browser: &Browser<'_>, page: &Page) -> Page {
    browser.open(&there(page)).await
}

async fn fail(fleet: &Fleet, id: &str) {
    fleet.publish_event(id, Payload::Failed(AttemptFailure::new("TooWide", "photo", 1)), |_| {}).await;
}

#[tokio::test]
async fn actions_on_a_tree_lead_to_its_tasks() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.submit("/tasks/order/retry-failed", "reason=healed").await;
    assert_eq!(there(&page), "/tasks/order/tree?only=open");
    follow(&browser, &page).await.has(&["order:fetch"]);
    let page = browser.submit("/tasks/order/cancel", "reason=late").await;
    assert_eq!(there(&page), "/tasks/order/tree");
    fleet.echo("alone").await;
    browser.submit("/tasks/alone/cancel", "").await.has(&["The cancel was requested."]).lacks(&["Go there"]);
}

#[tokio::test]
async fn bulk_actions_lead_to_their_tasks_in_their_new_states() {
    let fleet = fleet().await;
    for id in ["a", "b"] {
        fleet.create(json!({"type": "echo", "id": id, "tags": ["shop"]})).await;
        fail(&fleet, id).await;
    }
    fleet.create(json!({"type": "echo", "id": "other"})).await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    let q = "type:echo tag:shop own:failed,expired error:TooWide";
    let fields = form(&[("action", "retry"), ("q", q), ("expected", "2"), ("limit", "3")]);
    let page = browser.submit("/bulk/new", &fields).await;
    page.has(&["The bulk action was requested."]);
    eventually("the new runs", async || {
        let tasks = fleet.get::<TaskPage>("/v1/tasks?q=tag:shop").await.tasks;
        tasks.iter().all(|task| task.run == 2)
    })
    .await;
    fleet.folded().await;
    follow(&browser, &page).await.has(&["t-a\"", "t-b\""]).lacks(&["t-other\""]);
    let fields = form(&[("action", "cancel"), ("id", "a"), ("id", "b"), ("expected", "2"), ("limit", "3")]);
    let page = browser.submit("/bulk/new", &fields).await;
    assert_eq!(there(&page), "/tasks?q=id%3Aa%2Cb");
}

#[tokio::test]
async fn dead_letters_lead_to_their_task_and_to_the_others() {
    let fleet = with_letters().await;
    for id in ["a", "b"] {
        fleet.create(json!({"type": "resize", "id": id, "params": {"url": "a", "width": 1}})).await;
        fail(&fleet, id).await;
        let headers = [("ce_id", id.as_bytes())];
        let letter = NewLetter { task_type: "resize", key: id, task: Some((id, 1)), headers: &headers, ..LETTER };
        fleet.letter(NewLetter { value: br#"{"url": "a", "width": 1}"#, ..letter }, 0).await;
    }
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    let page = browser.submit("/dead-letters/resize:0:0/redrive", "reason=cured").await;
    assert_eq!(there(&page), "/tasks/a");
    let page = browser.submit("/dead-letters/resize:0:1/drop", "reason=useless").await;
    assert_eq!(there(&page), "/dead-letters?type=resize");
    let fields = "action=redrive&type=resize&expected=1&limit=3";
    assert_eq!(there(&browser.submit("/bulk/new", fields).await), "/tasks?q=type%3Aresize+level%3Aany");
}

#[tokio::test]
async fn schedules_and_kill_switches_lead_to_their_tasks() {
    let fleet = fleet().await;
    let spec = r#"{"cron": "0 3 * * *", "task": {"type": "echo"}}"#;
    let browser = Browser::new(&fleet);
    browser.submit("/new-schedule", &form(&[("id", "nightly"), ("spec", spec)])).await.has(&["was created"]);
    let page = browser.submit("/schedules/nightly/trigger", "").await;
    assert!(there(&page).starts_with("/tasks/nightly"), "{}", there(&page));
    let page = browser.submit("/schedules/nightly/delete", "").await;
    assert_eq!(there(&page), "/tasks?q=schedule%3Anightly");
    for (fields, search) in [
        ("tag=shop&type=echo", "type%3Aecho+tag%3Ashop+state%3Acancelled+level%3Aany"),
        ("prefix=batch-", "batch-+state%3Acancelled+level%3Aany"),
    ] {
        let page = browser.submit("/kill-switches/new", fields).await;
        assert_eq!(there(&page), format!("/tasks?q={search}"));
        assert_eq!(browser.get(&there(&page)).await.status, StatusCode::OK, "{fields}");
    }
}

#[tokio::test]
async fn link_to_a_result_stays_on_the_pages_of_tasks() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks/order?done=retried&there=https%3A%2F%2Fevil.example").await;
    page.has(&["The retry was accepted"]).lacks(&["Go there", "href=\"https://evil.example"]);
    browser.open("/tasks/order?there=%2Ftasks").await.lacks(&["Go there"]);
}

#[tokio::test]
async fn many_submitted_tasks_are_found_and_have_their_verdicts() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let skip = json!({"type": "echo", "params": 1, "unique": "customer-42"});
    let latest = json!({"type": "echo", "params": 2, "unique": {"key": "customer-42", "mode": "latest"}});
    let plain = json!({"type": "echo", "params": 3, "id": "plain"});
    let lines = |tasks: &[&Value]| tasks.iter().map(|task| format!("{task}\n")).collect::<String>();
    let submit = async |number: &str, tasks: &[&Value]| {
        browser.submit("/new/many", &form(&[("form", number), ("tasks", &lines(tasks))])).await
    };
    let first = submit("f", &[&skip, &plain]).await;
    first.has(&["The tasks were submitted. Of the unique ones, 1 started."]).lacks(&["kept", "joined"]);
    let found = follow(&browser, &first).await;
    found.has(&["plain", "customer-42~~f-"]);
    let second = submit("g", &[&skip, &latest]).await;
    second.has(&["Of the unique ones, 1 is kept, 1 joined <a href=\"/tasks/echo", "customer-42~~f-"]);
    fleet.folded().await;
    assert_eq!(fleet.get::<TaskPage>("/v1/tasks").await.tasks.len(), 3, "the one that joined is no task");
    submit("h", &[&plain]).await.has(&["The tasks were submitted."]).lacks(&["unique"]);
}
