//! Failures: kinds of errors with their messages, ranges, roots; errors on other pages.

use kafleet::model::event::{AttemptFailure, Kind, Payload};

use crate::api::fixture::{Fleet, fleet};
use crate::api::lists::next_millisecond;
use crate::ui::browser::Browser;

async fn fail(fleet: &Fleet, id: &str, kind: &str, message: &str) {
    fail_run(fleet, id, 1, kind, message).await;
}

async fn fail_run(fleet: &Fleet, id: &str, run: u32, kind: &str, message: &str) {
    let failure = Payload::Failed(AttemptFailure::new(kind, message, 1));
    fleet.publish_event(id, failure, |event| event.run = run).await;
}

/// Trees of type `order` whose charge was declined, with a message for each customer.
async fn fleet_with_orders() -> Fleet {
    let fleet = fleet().await;
    for customer in ["Ada", "Ken", "Alan"] {
        let order = customer.to_lowercase();
        fleet.announce(&order, "order", None).await;
        fleet.announce(&format!("{order}:pack"), "pack", None).await;
        fleet.announce(&format!("{order}:charge"), "charge", None).await;
        fail(&fleet, &format!("{order}:charge"), "PaymentDeclined", &format!("card of {customer}")).await;
        fleet.succeed(&format!("{order}:pack"), serde_json::json!(1)).await;
        fleet.succeed(&order, serde_json::json!(1)).await;
    }
    fleet.folded().await;
    fleet
}

#[tokio::test]
async fn messages_of_a_kind_are_listed_below_it() {
    let fleet = fleet_with_orders().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/failures").await;
    page.has(&["<strong>3</strong> tasks", "<strong>1</strong> kind of error", "<summary>3 messages</summary>"]);
    page.has(&[">PaymentDeclined</a>", "PaymentDeclined: card of Ada", "PaymentDeclined: card of Ken"]);
    page.has(&["action=retry&amp;q=type%3Acharge+own%3Afailed%2Cexpired+error%3APaymentDeclined+level%3Aany"]);
    browser
        .open("/bulk/new?action=retry&q=type:charge+own:failed,expired+error:PaymentDeclined+level:any")
        .await
        .has(&["3 tasks"]);
    browser.open("/failures?text=card+of+ken").await.has(&["card of Ken"]).lacks(&["card of Ada"]);
    browser.open("/failures?type=charge&kind=PaymentDeclined").await.has(&["<strong>3</strong> errors"]);
    browser.open("/").await.has(&["new error", ">PaymentDeclined</a> in 3 tasks since "]);
}

#[tokio::test]
async fn range_of_failures_is_named_and_kept() {
    let fleet = fleet_with_orders().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/failures?since=1h&type=charge").await;
    page.has(&["<strong>3</strong> tasks in the last 1h", "href=\"/failures?type=charge&amp;since=24h\""]);
    page.has(&["kafleet failures --type charge --since 1h --by kind"]);
    for _ in 0..3 {
        next_millisecond().await;
    }
    browser.open("/failures?since=1ms").await.has(&["No retained task has failed in this time."]);
    assert_eq!(browser.get("/failures?since=soon").await.status, 400);
}

#[tokio::test]
async fn failures_by_root_name_the_trees_that_fail() {
    let fleet = fleet_with_orders().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/failures?by=root").await;
    page.has(&["Type of the roots", "/types/order", "/types/charge", ">PaymentDeclined</a>"]);
    page.has(&["kafleet failures --by root"]);
}

#[tokio::test]
async fn retried_error_is_back_instead_of_new() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    // A retry publishes the record again, so there must be one.
    fleet.echo("t").await;
    fail(&fleet, "t", "PaymentDeclined", "card of Ada").await;
    fleet.folded().await;
    browser.open("/failures").await.lacks(&["back since"]);
    fleet.publish_event("t", Kind::RetryRequested, |_| {}).await;
    next_millisecond().await;
    fail_run(&fleet, "t", 2, "PaymentDeclined", "card of Ada").await;
    fleet.folded().await;
    browser.open("/failures").await.has(&["back since"]);
    browser.open("/").await.has(&[">PaymentDeclined</a> in 1 task back since "]);
}

#[tokio::test]
async fn failed_parent_names_the_error_below_it() {
    let fleet = fleet_with_orders().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks?q=type:order+state:failed+level:any").await;
    page.has(&["1 of 2 failed: ", "href=\"/tasks/ada:charge\"", "charge · PaymentDeclined: card of Ada"]);
}

#[tokio::test]
async fn error_of_a_task_leads_to_the_tasks_with_the_same_error() {
    let fleet = fleet_with_orders().await;
    let browser = Browser::new(&fleet);
    browser.open("/tasks/ada:charge").await.has(&["same error: ", ">1 task</a> · first <time"]);
    browser.open("/tasks/ada").await.lacks(&["same error: "]);
}

#[tokio::test]
async fn only_rows_of_tasks_can_be_selected() {
    let fleet = fleet_with_orders().await;
    let browser = Browser::new(&fleet);
    browser.open("/failures").await.lacks(&["data-task"]);
    browser.open("/tasks?q=type:order+level:any").await.has(&["<tr id=\"t-ada\" data-task"]);
}
