//! Searches, lists and bulk actions: levels, counts, and what cannot be found.

use kafleet::config::{ApiConfig, TypePolicy};
use kafleet::documents::TaskPage;
use kafleet::handlers::builtin::echo::Echo;
use kafleet::handlers::{Registry, TypeRegistration};
use kafleet::model::event::{AttemptFailure, Kind, Payload};
use reqwest::Method;
use serde_json::json;

use crate::api::fixture::{Fleet, eventually, fleet, unfolded_with};
use crate::ui::browser::{Browser, Page};
use crate::ui::pages::{OF_TASK, PLAIN, fleet_with_tree};

#[tokio::test]
async fn number_and_list_of_a_tab_have_the_same_level() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks?q=type:echo").await;
    page.has(&["id=\"t-order\"", "id=\"t-order:fetch\"", "failed <span class=\"number\">2</span>"]);
    page.has(&["aria-current=\"page\">all levels</a>", "href=\"/tasks?q=type%3Aecho+level%3Aroots\">roots</a>"]);
    let roots = browser.open("/tasks?q=type:echo+level:roots").await;
    roots.has(&["id=\"t-order\"", "aria-current=\"page\">roots</a>"]).lacks(&["id=\"t-order:fetch\""]);
    roots.lacks(&["<span class=\"number\">2</span>"]);
}

#[tokio::test]
async fn search_without_a_root_names_the_tasks_of_other_levels() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks?q=own:failed").await;
    page.has(&[
        "No root task matches this search.",
        "href=\"/tasks?q=own%3Afailed+level%3Aany\">1 on other levels</a>",
    ]);
}

#[tokio::test]
async fn word_finds_the_beginning_of_an_id_and_names_what_was_not_searched() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    browser.open("/tasks?q=ord").await.has(&["id=\"t-order\""]);
    browser.open("/tasks?q=ada").await.has(&["Params, results and logs are not searched"]);
    browser.open("/tasks?q=tag:ada").await.lacks(&["are not searched: give"]);
}

#[tokio::test]
async fn continued_search_counts_what_it_has_looked_at() {
    let fleet = fleet_with_tree().await;
    let page = Browser::new(&fleet).open("/search?q=tag:other&looked=20000").await;
    page.has(&["looked at 20,001 tasks", "data-topic=\"\"", "No task matches this search."]);
}

/// Text of a page without its commands, which are for programs.
fn text_of(page: &Page) -> String {
    let mut html = page.text.clone();
    for (start, end) in
        [("<details class=\"commands\">", "</details>"), ("<p class=\"quiet code\">", "</p>"), ("<", ">")]
    {
        while let Some((before, rest)) = html.split_once(start) {
            html = format!("{before} {}", rest.split_once(end).unwrap_or_default().1);
        }
    }
    html
}

#[tokio::test]
async fn pages_speak_of_pages_and_not_of_requests() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let mut pages = Vec::new();
    for path in PLAIN {
        pages.push(((*path).to_owned(), browser.get(path).await));
    }
    for page in OF_TASK {
        let path = format!("/tasks/order{page}");
        pages.push((path.clone(), browser.get(&path).await));
    }
    for path in [
        "/tasks?cursor=odd",
        "/tasks?q=type:none",
        "/types/nothing",
        "/schedules/nothing",
        "/tasks/nothing",
        "/tasks/order/attachments/nothing",
        "/dead-letters/odd",
        "/nothing",
    ] {
        pages.push((path.to_owned(), browser.get(path).await));
    }
    for (path, form) in [
        ("/new", "type=resize&params=%7B%22url%22%3A+1%7D"),
        ("/new", "type=none&params=%7B%7D"),
        ("/kill-switches/none/off", ""),
        ("/tasks/order:fetch/retry-failed", ""),
        ("/schedules/none/pause", ""),
        ("/tasks/order/cancel", ""),
    ] {
        pages.push((format!("POST {path}"), browser.post(path, form).await));
    }
    for (path, page) in &pages {
        let text = text_of(page);
        for term in ["GET /", "POST /", "PUT /", "DELETE /", "cursor", "only_failed"] {
            assert!(!text.contains(term), "{path} contains `{term}`: {text}");
        }
    }
    browser.get("/schedules/nothing").await.has(&["href=\"/schedules\">All schedules</a>"]);
    let refused = browser.post("/new", "type=resize&params=%7B%22url%22%3A+1%7D").await;
    refused.has(&["href=\"/types/resize#schema\">Schema of resize</a>"]);
}

#[tokio::test]
async fn external_task_offers_no_action_that_it_refuses() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "approval", "id": "ext", "external": true})).await;
    fleet.request(Method::PUT, "/v1/tasks/ext/state").json(&json!({"state": "failed"})).send().await.unwrap();
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    browser.open("/tasks/ext").await.has(&["Edit…"]).lacks(&["Retry…", "Retry failed…", "Submit a copy…"]);
    browser.open("/tasks/ext/retry").await.has(&["The system that runs this external task"]).lacks(&["Retry the task"]);
}

#[tokio::test]
async fn failed_tasks_of_an_open_tree_can_be_retried() {
    let fleet = fleet().await;
    for id in ["order", "order:fetch", "order:pack", "order:pack:box"] {
        fleet.echo(id).await;
    }
    fleet.fail("order:fetch", "no answer").await;
    fleet.succeed("order", json!(1)).await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    let link = "/bulk/new?action=retry&q=under%3Aorder+own%3Afailed%2Cexpired+level%3Aany";
    for page in ["/tasks/order", "/tasks/order/tree"] {
        let page = browser.open(page).await;
        page.has(&[&format!("href=\"{}\">Retry failed…</a>", link.replace('&', "&amp;"))]).lacks(&["/retry-failed\""]);
        page.has(&["aria-label=\"1 failed, 3 open\""]);
    }
    browser
        .open(link)
        .await
        .has(&["<strong>1</strong> of 1 matching task would change", "in the tree of <code>order</code>"]);
}

async fn bulk_id(fleet: &Fleet) -> String {
    eventually("the bulk action", async || {
        fleet.get::<TaskPage>("/v1/bulk").await.tasks.first().map(|task| task.id.clone())
    })
    .await
}

#[tokio::test]
async fn page_of_a_bulk_action_shows_what_has_become_of_its_tasks() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let failures = browser.open("/failures").await;
    let (_, link) = failures.text.split_once("href=\"/bulk/new?action=retry").unwrap();
    let link = format!("/bulk/new?action=retry{}", link.split('"').next().unwrap().replace("&amp;", "&"));
    let preview = browser.open(&link).await;
    preview.has(&["no answer from", "with the error", "/tasks/order:fetch", "<strong>1</strong> of 1 matching task"]);
    let form = format!("{}&expected=1&limit=2&reason=healed", link.split_once('?').unwrap().1);
    browser.submit("/bulk/new", &form).await.has(&["The bulk action was requested.", "healed", "kafleet-bulk"]);
    let path = format!("/bulk/{}", bulk_id(&fleet).await);
    eventually("the end", async || browser.open(&path).await.text.contains("aria-label=\"1 done\"")).await;
    eventually("the new run", async || browser.open(&path).await.text.contains("1 queued</a>")).await;
    let page = browser.open(&path).await;
    page.has(&["Bulk action: Retry", "with the error", "q=id%3Aorder%3Afetch+state%3Aqueued"]);
    let again = Payload::Failed(AttemptFailure::new("error", "once more", 1));
    fleet.publish_event("order:fetch", again, |event| event.run = 2).await;
    fleet.folded().await;
    browser.open(&path).await.has(&["1 failed again</a>"]);
    let list = browser.open("/bulk").await;
    list.has(&["By</th>", "Reason</th>", "healed", &format!("href=\"{path}\"")]).lacks(&["Children</th>"]);
    let task = browser.open(&path.replace("/bulk/", "/tasks/")).await;
    task.has(&["As a bulk action"]).lacks(&["Retry…", "Edit…", "Submit a copy…"]);
    assert_eq!(browser.get("/bulk/order").await.header("location"), "/tasks/order");
}

#[tokio::test]
async fn preview_names_the_reasons_for_which_tasks_stay_as_they_are() {
    let fleet = fleet_with_tree().await;
    let page = Browser::new(&fleet).open("/bulk/new?action=cancel&q=type:echo").await;
    page.has(&["<strong>0</strong> of 2 matching tasks would change", "2: already ended"]);
}

#[tokio::test]
async fn links_and_colours_of_terminals_leave_nothing_behind() {
    let fleet = fleet().await;
    let name = "\u{1b}]8;;http://evil\u{1b}\\or\u{200b}der\u{1b}]8;;\u{1b}\\";
    fleet.create(json!({"type": "echo", "id": "order", "name": format!("{name} {}", "x".repeat(200))})).await;
    fleet.publish_event("order", Kind::Started, |event| event.attempt = 1).await;
    fleet.fail("order", "\u{1b}[31mred \u{1b}[0m\u{9d}0;title\u{9c}end").await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    for path in ["/tasks", "/tasks/order", "/failures"] {
        let page = browser.open(path).await;
        // The definition of a task is JSON as it was written, with its escapes.
        let (shown, _) = page.text.split_once("id=\"definition\"").unwrap_or((&page.text, ""));
        assert!(shown.contains("red end"), "{path}: {shown}");
        for hidden in ["http://evil", "]8;;", "[31m", "[0m", "0;title"] {
            assert!(!shown.contains(hidden), "{path} shows {hidden}: {shown}");
        }
    }
    let page = browser.open("/tasks/order").await;
    page.has(&["or␣der"]);
    let title = page.text.split_once("<title>").unwrap().1.split_once("</title>").unwrap().0;
    assert!(title.chars().count() < 100, "{title}");
}

#[tokio::test]
async fn empty_answer_names_the_declared_params() {
    let policy = TypePolicy { index: vec!["/customer".into()], mask: vec!["/card".into()], ..TypePolicy::default() };
    let declare = |registry: &mut Registry| {
        registry.add("echo", TypeRegistration { policy, ..TypeRegistration::new(Echo) });
    };
    let fleet = unfolded_with(ApiConfig::default(), declare).await;
    fleet.track();
    let browser = Browser::new(&fleet);
    browser.open("/tasks?q=ada").await.has(&["of params only the declared ones", "<code>params.customer:</code>"]);
    browser.open("/tasks?q=params.customer%3Aada").await.lacks(&["of params only", "is not a qualifier"]);
    browser.open("/types/echo").await.has(&["Searched params", "<code>params.customer</code>", "<code>/card</code>"]);
}
