//! Failures: kinds of errors with their messages, ranges, roots; errors on other pages.

use kafleet::documents::{DeadLetterPage, Status};
use kafleet::model::event::{AttemptFailure, Kind, Payload};
use reqwest::StatusCode;
use serde_json::json;

use crate::api::dead_letters::{LETTER, NewLetter, with_letters};
use crate::api::fixture::{Fleet, eventually, fleet};
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
    page.has(&["<strong>3</strong> tasks in the last hour", "href=\"/failures?type=charge&amp;since=24h\""]);
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
    page.has(&[
        "kafleet failures --by root",
        "data-label=\"First\"",
        "data-label=\"Last\"",
        "/bulk/new?action=retry&amp;q=type%3Acharge",
    ]);
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

/// Failed tasks of the type `resize` with their dead letters, one of them with params of another form, a failed task without a
/// letter, and a record that is not a task.
async fn fleet_with_letters() -> Fleet {
    let fleet = with_letters().await;
    for (id, params) in
        [("a", r#"{"url": "a", "width": 1}"#), ("b", r#"{"url": "b", "width": 1}"#), ("c", r#"{"width": 1}"#)]
    {
        fleet.create(json!({"type": "resize", "id": id, "params": {"url": "a", "width": 1}})).await;
        fail(&fleet, id, "TooWide", &format!("photo {id}")).await;
        let headers = [("ce_id", id.as_bytes())];
        let letter = NewLetter { task_type: "resize", key: id, task: Some((id, 1)), headers: &headers, ..LETTER };
        fleet.letter(NewLetter { value: params.as_bytes(), ..letter }, 0).await;
    }
    fleet.echo("other").await;
    fail(&fleet, "other", "Timeout", "no answer").await;
    fleet.letter(NewLetter { task: None, code: "bad_json", value: b"{oops", ..LETTER }, 0).await;
    fleet.folded().await;
    fleet
}

#[tokio::test]
async fn kinds_of_errors_have_their_dead_letters() {
    let fleet = fleet_with_letters().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/failures").await;
    page.has(&["href=\"/dead-letters?type=resize&amp;kind=TooWide\">3<span", "Timeout", "all errors"]);
    page.has(&["href=\"/dead-letters?without_failure=true\">1 dead letter</a> belongs to no failed task"]);
    let page = browser.open("/failures?with_dead_letters=true").await;
    page.has(&["TooWide", "kafleet failures --with-dead-letters --by kind"]).lacks(&["Timeout"]);
    let list = browser.open("/dead-letters?type=resize&kind=TooWide").await;
    list.has(&["value=\"resize:0:0\"", "value=\"resize:0:2\"", "--kind TooWide", "TooWide: it would not do"]);
    browser.open("/dead-letters?without_failure=true").await.has(&["bad_json"]).lacks(&["TooWide"]);
    browser.open("/").await.has(&["href=\"/bulk/new?action=redrive&amp;type=resize&amp;kind=TooWide\""]);
    browser.open("/types/resize").await.has(&["href=\"/dead-letters?type=resize&amp;kind=TooWide\">3<span"]);
}

/// From the overview: its button, the patch, the preview and the button of the form.
#[tokio::test]
async fn dead_letters_of_a_kind_are_redriven_with_one_changed_param_in_four_actions() {
    let fleet = fleet_with_letters().await;
    let browser = Browser::new(&fleet);
    let link = "/bulk/new?action=redrive&type=resize&kind=TooWide";
    browser.open("/").await.has(&[&format!("href=\"{}\"", link.replace('&', "&amp;"))]);
    let page = browser.open(link).await;
    page.has(&["<strong>3</strong> of 3 matching dead letters would change", "Redrive 3 tasks", "Changed params"]);
    page.has(&[
        "dead letters of type <code>resize</code>, with an error of the kind <code>TooWide</code>",
        "Schema of ",
    ]);
    page.has(&["href=\"/tasks/a\"", "href=\"/dead-letters/resize:0:0\"", "TooWide: photo a"]);
    let patched = browser.open(&format!("{link}&patch=%7B%22width%22%3A200%7D")).await;
    patched.has(&["<strong>2</strong> of 3 matching dead letters would change", "Redrive 2 tasks", "name=\"patch\""]);
    patched.has(&[
        "1: The params do not match the type's schema",
        "such as: the changed params of <code>resize:0:2</code>",
    ]);
    patched.has(&["kafleet dead-letters redrive --type resize --kind TooWide --patch", "--limit 3"]);
    let wrong = browser.open(&format!("{link}&patch=%7Bodd")).await;
    wrong.has(&["bad_json", "{odd"]).lacks(&["Redrive 3 tasks"]);
    let order =
        "action=redrive&type=resize&kind=TooWide&patch=%7B%22width%22%3A200%7D&expected=2&limit=3&reason=narrower";
    let ordered = browser.submit("/bulk/new", order).await;
    ordered.has(&["The bulk action was requested.", "Bulk action: Redrive", "narrower", "{&quot;width&quot;:200}"]);
    let bulk = ordered.text.split("href=\"/tasks/").nth(1).unwrap().split(['"', '/']).next().unwrap().to_owned();
    eventually("the end", async || fleet.get::<Status>(&format!("/v1/tasks/{bulk}")).await.state.is_terminal()).await;
    fleet.folded().await;
    let page = browser.open(&format!("/bulk/{bulk}")).await;
    page.has(&["2 done", "1 refused", "href=\"/dead-letters/resize:0:2\"", "the changed params of"]);
    assert_eq!(fleet.get::<Status>("/v1/tasks/a").await.run, 2);
    browser.open("/audit").await.has(&["bulk redrive", "narrower"]);
    browser.open("/bulk").await.has(&["dead letters of type <code>resize</code>"]);
}

#[tokio::test]
async fn selected_dead_letters_are_previewed_and_redriven() {
    let fleet = fleet_with_letters().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/bulk/new?selected=yes&action=redrive&id=resize:0:0&id=echo:0:0").await;
    page.has(&["<strong>2</strong> of 2 matching dead letters would change", "not a task", "2 selected dead letters"]);
    browser.open("/bulk/new?selected=yes&action=redrive").await.has(&["No dead letter was selected."]);
    let form = "action=redrive&id=resize:0:0&id=echo:0:0&expected=2&limit=3";
    browser.submit("/bulk/new", form).await.has(&["2 selected dead letters"]);
    eventually("the new run", async || fleet.get::<Status>("/v1/tasks/a").await.run == 2).await;
}

#[tokio::test]
async fn dead_letter_of_a_task_is_found_behind_many_others() {
    let fleet = fleet_with_letters().await;
    for n in 0..210 {
        let (id, at_ms) = (format!("later-{n}"), 2_000 + n);
        fleet.letter(NewLetter { task_type: "resize", key: &id, task: Some((&id, 1)), at_ms, ..LETTER }, 1).await;
    }
    let browser = Browser::new(&fleet);
    browser.open("/tasks/a").await.has(&["dead letter ", "href=\"/dead-letters/resize:0:0\""]);
    browser.open("/tasks/other").await.lacks(&["dead letter "]);
}

#[tokio::test]
async fn forms_of_a_dead_letter_take_a_reason_and_show_the_schema() {
    let fleet = fleet_with_letters().await;
    let browser = Browser::new(&fleet);
    browser.open("/dead-letters/resize:0:1").await.has(&["TooWide", "Dead letters of this kind"]);
    browser.open("/dead-letters/resize:0:1/edit").await.has(&[
        "Schema of ",
        "name=\"reason\"",
        "TooWide: it would not do",
    ]);
    browser.submit("/dead-letters/resize:0:1/redrive", "reason=cured").await.has(&["The dead letter was redriven"]);
    browser.submit("/dead-letters/resize:0:2/drop", "reason=useless").await.has(&["The dead letter was dropped."]);
    let many = browser.open("/dead-letters/drop?type=echo").await;
    many.has(&["name=\"reason\"", "name=\"kind\"", "or an age: 2h"]);
    let none = browser.open("/dead-letters/drop?type=echo&code=none").await;
    none.has(&["<strong>No dead letter matches.</strong>", "name=\"code\" value=\"none\""])
        .lacks(&["class=\"danger\""]);
    let many = browser.open("/dead-letters/drop").await;
    many.has(&["the preview counts them", "value=\"preview\"", "Unresolved now", "href=\"/dead-letters/resize:0:"]);
    many.lacks(&["class=\"danger\""]);
    browser.submit("/dead-letters/drop", "type=echo&limit=5&reason=old").await.has(&["The dead letter was dropped."]);
    fleet.folded().await;
    browser.open("/audit").await.has(&["cured", "useless", "old"]);
    assert_ne!(browser.post("/dead-letters/redrive", "type=echo").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn drop_of_many_dead_letters_shows_what_matches_before() {
    let fleet = fleet_with_letters().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/dead-letters/drop?type=resize").await;
    let letters: DeadLetterPage = fleet.get("/v1/dead-letters?type=resize").await;
    let number = letters.letters.len();
    assert!(number > 1, "{letters:?}");
    page.has(&[&format!(">Drop {number} dead letters</button>"), "Would be dropped", &letters.letters[0].id]);
    let one = browser.post("/dead-letters/drop", "type=resize&limit=1&show=preview").await;
    assert_eq!(one.status, StatusCode::OK);
    one.has(&["at least 1 dead letter", "value=\"1\""]);
    let left: DeadLetterPage = fleet.get("/v1/dead-letters?type=resize").await;
    assert_eq!(left.letters.len(), number, "a preview drops nothing");
    let wrong = browser.post("/dead-letters/drop", "type=none&show=preview").await;
    wrong.has(&["unknown_type", "value=\"none\""]);
}
