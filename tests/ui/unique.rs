//! Unique tasks on pages: the answer of the form, the box of the key, its end.

use kafleet::config::Role;
use kafleet::documents::{TaskPage, UniqueKeyDocument};
use reqwest::StatusCode;

use crate::api::fixture::fleet;
use crate::ui::browser::{Browser, guarded_fleet};

const ECHO: &str = "type=echo&params=1&unique=customer-42";
/// Key and mode of a task that is kept while another one is open.
const LATEST: &str = "type=echo&params=2&unique=%7B%22key%22%3A%22customer-42%22%2C%22mode%22%3A%22latest%22%7D";

#[tokio::test]
async fn form_names_the_verdict_and_leads_to_the_task_that_stands_for_the_key() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    browser.open("/new?type=echo").await.has(&["Unique key"]);
    let page = browser.submit("/new", ECHO).await;
    page.has(&["It stands for its key while it is open.", "id=\"unique\"", "1 started · 0 kept · 0 joined"]);
    let page = browser.submit("/new", ECHO).await;
    page.has(&["Joined <code>echo~", "</code>: this task stands for the key already."]);
    page.has(&["1 started · 0 kept · 1 joined", "this task"]).lacks(&["The task was submitted."]);
    let page = browser.submit("/new", LATEST).await;
    page.has(&["Kept: the params were taken over", "is kept until the open one has ended", "1 started · 1 kept"]);
    fleet.folded().await;
    let roots: TaskPage = fleet.get("/v1/tasks").await;
    assert_eq!(roots.tasks.len(), 2, "the one that joined is no task");
    let key: UniqueKeyDocument = fleet.get("/v1/unique/echo/customer-42").await;
    let found = browser.open(&format!("/tasks?q=type%3Aecho+level%3Aroots+%22{}~~%22", key.tag)).await;
    found.has(&[&key.open[0], &key.kept.unwrap().id]);
}

#[tokio::test]
async fn key_is_forgotten_by_operators_from_the_page_of_its_task() {
    let fleet = guarded_fleet().await;
    let submit = Browser::of_role(&fleet, Role::Submit);
    let submitted = submit.post("/new", ECHO).await;
    let location = submitted.header("location");
    submit.open(location).await.has(&["id=\"unique\""]).lacks(&["Forget the key"]);
    let operator = Browser::of_role(&fleet, Role::Operate);
    let form = format!("{}/forget-key", location.split('?').next().unwrap());
    assert_eq!(submit.post(&form, "").await.status, StatusCode::FORBIDDEN);
    operator.open(&form).await.has(&["the next submission starts at once", "kafleet unique echo customer-42 clear"]);
    let page = operator.submit(&form, "").await;
    page.has(&["The key was forgotten", "No task stands for the key now"]).lacks(&["Forget the key"]);
    let page = operator.post(&form, "").await;
    assert_eq!(page.status, StatusCode::NOT_FOUND, "{}", page.text);
    operator.submit("/new", ECHO).await.has(&["It stands for its key while it is open."]);
}
