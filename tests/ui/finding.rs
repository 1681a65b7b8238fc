//! Finding tasks: choices, sorting, columns, titles, named views and exports.

use kafleet::config::Role;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::ui::browser::{Browser, guarded_fleet, token};
use crate::ui::pages::fleet_with_tree;

#[tokio::test]
async fn choices_are_merged_into_the_search() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    for (path, location) in [
        ("/tasks?q=tag:shop&type=echo&state=*&error=*&time=*&was=%3Dtag:shop", "/tasks?q=tag%3Ashop+type%3Aecho"),
        ("/tasks?q=&type=*&state=failed&error=*&time=1h&was=%3D", "/tasks?q=state%3Afailed+from%3A1h"),
        ("/tasks?q=state:failed&state=*&was=%3Dstate:failed&columns=id,error", "/tasks?q=&columns=id%2Cerror"),
        ("/tasks?q=type:echo&type=*&was=%3D", "/tasks?q=type%3Aecho"),
        (
            "/tasks?q=state:failed&column=id&column=tags&sort=oldest",
            "/tasks?q=state%3Afailed&sort=oldest&columns=id%2Ctags",
        ),
    ] {
        let page = browser.get(path).await;
        assert_eq!((page.status, page.header("location")), (StatusCode::SEE_OTHER, location), "{path}");
    }
    let page = browser.open("/tasks?q=type:echo+state:failed").await;
    page.has(&["<option value=\"echo\" selected>echo</option>", "<option value=\"failed\" selected>failed</option>"]);
    page.has(&["<option value=\"error\">error</option>", "placeholder=\"type:"]);
}

#[tokio::test]
async fn list_has_one_search_and_a_title_that_names_it() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks?q=state:failed+type:echo+from:1h").await;
    page.has(&["<title>failed echo, last hour · Tasks · kafleet</title>"]);
    assert_eq!(page.text.matches("name=\"q\" type=\"search\"").count(), 1, "{}", page.text);
    let other = browser.open("/types").await;
    assert_eq!(other.text.matches("name=\"q\" type=\"search\"").count(), 1, "{}", other.text);
}

#[tokio::test]
async fn tabs_and_tags_are_shown_for_any_search() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks?q=tag:shop+from:1d").await;
    page.has(&["aria-label=\"states\"", "failed <span class=\"number\">1</span>", "1 task, newest first"]);
    page.has(&["<a class=\"tag\" href=\"/tasks?q=tag%3Ashop\">shop</a>", "data-whole-page"]);
}

#[tokio::test]
async fn headings_lead_to_each_order_that_a_search_permits() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let failed = browser.open("/tasks?q=state:failed+level:any").await;
    failed.has(&["href=\"/tasks?q=state%3Afailed+level%3Aany&amp;sort=oldest\""]).lacks(&["sort=longest"]);
    let oldest = browser.open("/tasks?q=state:failed+level:any&sort=oldest").await;
    oldest.has(&["aria-sort=\"ascending\"", "2 tasks, oldest first", "kafleet list --sort oldest"]);
    let first = oldest.text.find("id=\"t-order\"").unwrap();
    assert!(first < oldest.text.find("id=\"t-order:fetch\"").unwrap(), "{}", oldest.text);
    let refused = browser.open("/tasks?q=tag:shop&sort=longest").await;
    refused.has(&["names no open state", "href=\"/tasks?q=tag%3Ashop\">Newest first"]);
    browser.open("/tasks?q=tag:shop").await.lacks(&["sort=oldest", "sort=longest"]);
}

#[tokio::test]
async fn columns_of_the_url_are_shown() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks?q=tag:shop&columns=name,tags,creator").await;
    page.has(&["<th scope=\"col\">Name</th><th scope=\"col\">Tags</th>", "first order", "id=\"t-order\""]);
    page.has(&["href=\"/tasks/order\"", "columns=name%2Ctags%2Ccreator"]).lacks(&["<th scope=\"col\">Type</th>"]);
    let wrong = browser.get("/tasks?q=tag:shop&columns=nmae").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    wrong.has(&["did you mean <code>name</code>?"]);
}

#[tokio::test]
async fn view_is_saved_from_the_list_listed_changed_and_deleted() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let list = browser.open("/tasks?q=state:failed+level:any&sort=oldest").await;
    list.has(&["href=\"/new-view?q=state%3Afailed+level%3Aany&amp;sort=oldest\" data-dialog>Save as view…"]);
    browser
        .open("/new-view?q=state:failed&sort=oldest")
        .await
        .has(&["value=\"state:failed\"", "<option value=\"oldest\" selected>"]);
    let form = "name=failed-orders&q=state:failed+level:any&sort=oldest&columns=id,error&description=of+%3Cb%3Etoday&role=read";
    let view = browser.submit("/new-view", form).await;
    view.has(&["The view was saved.", "<title>failed-orders · Tasks · kafleet</title>", "of &lt;b&gt;today"]);
    view.has(&["id=\"t-order:fetch\"", "2 tasks, oldest first", "<a class=\"saved\" href=\"/v/failed-orders\">"]);
    let again = browser.post("/new-view", form).await;
    assert_eq!(again.status, StatusCode::BAD_REQUEST);
    again.has(&["already exists", "value=\"failed-orders\""]);
    browser.open("/v").await.has(&["failed tasks, all levels, oldest first", "/v/failed-orders/edit"]);
    browser.open("/v/failed-orders/edit").await.has(&["value=\"id,error\"", "value=\"state:failed level:any\""]);
    let wrong = browser.post("/v/failed-orders/edit", "q=stat:failed&sort=newest&role=read").await;
    wrong.has(&["value=\"stat:failed\"", "bad_field"]);
    browser
        .submit("/v/failed-orders/edit", "q=tag:shop&sort=newest&role=read")
        .await
        .has(&["id=\"t-order\"", "1 task"]);
    let missing = browser.get("/v/failed-order").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    missing.has(&["There is no view", "Did you mean <a href=\"/v/failed-orders\">", "<nav"]);
    browser.submit("/v/failed-orders/delete", "").await.has(&["The view was deleted.", "kafleet views set"]);
    fleet.folded().await;
    browser.open("/audit").await.has(&["href=\"/v/failed-orders\""]);
}

#[tokio::test]
async fn views_of_operators_are_hidden_from_others() {
    let fleet = guarded_fleet().await;
    let put = fleet.request(Method::PUT, "/v1/views/secret-view").bearer_auth(token(Role::Operate));
    assert!(put.json(&json!({"role": "operate"})).send().await.unwrap().status().is_success());
    let operator = Browser::of_role(&fleet, Role::Operate);
    operator.open("/v").await.has(&["/v/secret-view", "New view…"]);
    operator.open("/tasks").await.has(&["/v/secret-view", "Save as view…"]);
    let reader = Browser::of_role(&fleet, Role::Read);
    for path in ["/v", "/tasks"] {
        reader.open(path).await.lacks(&["secret-view", "New view…", "Save as view…"]);
    }
    let hidden = reader.get("/v/secret-vieww").await;
    assert_eq!(hidden.status, StatusCode::NOT_FOUND);
    hidden.lacks(&["href=\"/v/secret-view\""]);
}

#[tokio::test]
async fn list_is_exported_with_its_columns() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks?q=tag:shop&columns=id,state").await;
    page.has(&["href=\"/export?q=tag%3Ashop&amp;columns=id%2Cstate&amp;format=csv\" download"]);
    let csv = browser.open("/export?q=tag:shop&columns=id,state&format=csv").await;
    assert_eq!(csv.text, "id,state\r\norder,failed\r\n# complete: 1 tasks\r\n");
    assert_eq!(csv.header("content-disposition"), "attachment; filename=\"tasks.csv\"");
    assert_eq!(browser.get("/export?q=stat:failed").await.status, StatusCode::BAD_REQUEST);
}
