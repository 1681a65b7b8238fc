//! Every page: contents, empty states, problems, entity tags.

use std::time::Instant;

use kafleet::model::event::{AttemptFailure, Kind, Payload};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::api::dead_letters::{LETTER, NewLetter, with_letters};
use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet};
use crate::ui::browser::Browser;

/// Pages that need no data.
pub const PLAIN: &[&str] = &[
    "/",
    "/tasks",
    "/search",
    "/new",
    "/new/many",
    "/dead-letters",
    "/dead-letters/drop",
    "/types",
    "/types/echo",
    "/types/echo/pause",
    "/types/echo/resume",
    "/types/echo/limits",
    "/types/echo/circuit",
    "/failures",
    "/audit",
    "/bulk",
    "/bulk/new",
    "/workers",
    "/schedules",
    "/new-schedule",
    "/v",
    "/new-view",
    "/v/none/delete",
    "/kill-switches",
    "/kill-switches/new",
    "/kill-switches/some-tag/off",
    "/system",
    "/help",
];

/// Pages of the task `order`.
pub const OF_TASK: &[&str] = &[
    "",
    "/tree",
    "/timeline",
    "/log",
    "/cancel",
    "/retry",
    "/retry-failed",
    "/forget-key",
    "/start-now",
    "/edit",
    "/append",
    "/attach",
];

/// Fleet with a tree of which a child has failed.
pub async fn fleet_with_tree() -> Fleet {
    let fleet = fleet().await;
    add_tree(&fleet).await;
    fleet
}

/// Adds the task `order`, of which a child has failed.
pub async fn add_tree(fleet: &Fleet) {
    fleet.create(json!({"type": "echo", "id": "order", "name": "first order", "tags": ["shop"]})).await;
    fleet.echo("order:fetch").await;
    fleet.publish_event("order", Kind::Started, |event| event.attempt = 1).await;
    fleet.succeed("order", json!({"total": 7})).await;
    fleet.publish_event("order:fetch", Kind::Started, |event| event.attempt = 1).await;
    fleet.fail("order:fetch", "no answer from `10.0.0.7`").await;
    fleet.folded().await;
}

#[tokio::test]
async fn every_page_has_a_title_and_the_security_headers() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let of_task: Vec<String> = OF_TASK.iter().map(|page| format!("/tasks/order{page}")).collect();
    for path in PLAIN.iter().copied().chain(of_task.iter().map(String::as_str)) {
        let page = browser.open(path).await;
        page.has(&["<title>", "</title>", "<h1", "<main id=\"main\"", "lang=\"en\"", "name=\"viewport\""]);
        page.lacks(&["style=\"", "<script>", "onclick"]);
        assert!(page.header("content-security-policy").contains("default-src 'none'"), "{path}");
        for (name, value) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(page.header(name), value, "{path}: {name}");
        }
    }
}

#[tokio::test]
async fn forms_and_pages_show_their_commands() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    for (path, command) in [
        ("/tasks?q=tag:shop", "kafleet list tag:shop"),
        ("/failures?type=echo", "kafleet failures --type echo"),
        ("/audit", "kafleet audit"),
        ("/types/echo", "kafleet stats echo"),
        ("/tasks/order", "kafleet status order"),
        ("/tasks/order/tree", "kafleet tree order"),
        ("/tasks/order/log", "kafleet log order --follow"),
        ("/tasks/order/retry", "kafleet retry order"),
        ("/types/echo/pause", "kafleet types pause echo"),
        ("/dead-letters", "kafleet dead-letters list"),
        ("/workers", "kafleet workers"),
        ("/schedules", "kafleet schedules list"),
        ("/system", "kafleet doctor"),
    ] {
        browser.open(path).await.has(&[command, "curl -s"]);
    }
}

#[tokio::test]
async fn task_page_shows_state_reason_result_and_children() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks/order").await;
    page.has(&[
        "first order",
        "✘\u{fe0e}",
        "(own: succeeded)",
        "&quot;total&quot;</span>: <span class=\"digits\">7",
        "/tasks/order:fetch",
        "Retry failed…",
    ]);
    page.has(&["<title>✘\u{fe0e} first order · kafleet</title>", "data-topic=\"tree:order\""]);
    page.has(&["<a href=\"/tasks/order:fetch\"><code>order:fetch</code></a> below it failed"]);
    // Bookmarks and links lead to the parts of the page.
    page.has(&["id=\"why\"", "id=\"result\"", "id=\"children\"", "id=\"log\"", "id=\"definition\""]);
    let tree = browser.open("/tasks/order/tree").await;
    tree.has(&["id=\"e-order:fetch\"", "id=\"t-order:fetch\"", "by themselves, newest first"]);
    browser.open("/tasks/order/timeline").await.has(&["2 of 2 tasks", "<rect"]);
    browser.open("/tasks/order/tree/mermaid").await.has(&["flowchart TD"]);
    let raw = browser.open("/tasks/order/result").await;
    assert_eq!((raw.text.as_str(), raw.header("content-type")), ("{\"total\":7}", "text/plain; charset=utf-8"));
    assert!(raw.header("content-security-policy").starts_with("sandbox"));
}

#[tokio::test]
async fn branches_open_by_url() {
    let fleet = fleet_with_tree().await;
    fleet.echo("order:fetch:part").await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    browser.open("/tasks/order/tree").await.has(&["open=order%3Afetch", "▸"]).lacks(&["id=\"t-order:fetch:part\""]);
    browser.open("/tasks/order/tree?open=order%3Afetch").await.has(&["id=\"t-order:fetch:part\"", "▾"]);
}

#[tokio::test]
async fn search_opens_the_task_of_an_id_and_lists_parts_of_names() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    assert_eq!(browser.get("/tasks?q=order:fetch").await.header("location"), "/tasks/order:fetch");
    browser.open("/tasks?q=%22st+ord%22").await.has(&["id=\"t-order\""]).lacks(&["id=\"t-order:fetch\""]);
    let page = browser.open("/tasks?q=state:failed+level:any").await;
    page.has(&[
        "id=\"t-order:fetch\"",
        "aria-current=\"page\"",
        "title=\"from the indexes by type and state\">2 tasks, newest first",
    ]);
    page.has(&["href=\"/tasks?q=level%3Aany+state%3Afailed\"", "failed <span class=\"number\">2</span>"]);
    browser.open("/tasks?q=tag:nothing").await.has(&["No task matches this search.", "Search all levels"]);
    let page = browser.open("/tasks?q=id:order,other").await;
    page.has(&["id=\"t-order\"", "There is no task <code>other</code>"]);
}

#[tokio::test]
async fn mistake_in_a_search_is_marked_with_a_suggestion() {
    let fleet = fleet_with_tree().await;
    let page = Browser::new(&fleet).open("/tasks?q=type:echo+stat:failed").await;
    page.has(&[
        "type:echo <mark>stat</mark>:failed",
        "did you mean <a href=\"/tasks?q=type%3Aecho+state%3Afailed\"><code>state</code></a>?",
        "value=\"type:echo stat:failed\"",
    ]);
}

#[tokio::test]
async fn failures_are_grouped_with_the_search_for_their_tasks() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/failures").await;
    page.has(&["no answer from `10.0.0.7`", "<strong>1</strong> kind of error", "/tasks/order:fetch"]);
    page.lacks(&["/tasks/order\""]);
    let (_, link) = page.text.split_once("<a class=\"bad\" href=\"").unwrap();
    let link = link.split('"').next().unwrap().replace("&amp;", "&");
    let found = browser.open(&link).await;
    found.has(&["id=\"t-order:fetch\"", "from the indexes of failed tasks by error"]).lacks(&["id=\"t-order\""]);
    browser.open("/failures?type=resize").await.has(&["No retained task of this type has failed."]);
    browser.open("/").await.has(&["new error", "no answer from", "Newest kinds of errors"]);
    browser.open("/types/echo").await.has(&["Errors of failed tasks", "no answer from"]);
}

#[tokio::test]
async fn charts_show_what_was_opened_and_ended() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    for path in ["/", "/types/echo"] {
        let page = browser.open(path).await;
        page.has(&["aria-label=\"Ended: succeeded 0 to 1, failed 0 to 1\"", "As a table, by minute"]);
        for range in ["3h", "24h", "7d", "30d"] {
            let page = browser.open(&format!("{path}?range={range}")).await;
            page.has(&[
                "aria-label=\"Ended: succeeded 0 to 1, failed 0 to 1\"",
                &format!("aria-current=\"page\">{range}</a>"),
            ]);
        }
    }
}

#[tokio::test]
async fn charts_are_compared_with_an_earlier_time_and_have_any_range() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    for path in ["/", "/types/echo"] {
        let page = browser.open(&format!("{path}?range=24h&compare=week")).await;
        page.has(&["aria-current=\"true\">a week ago</a>", "Nothing was counted a week ago", "Total</th>"]);
        page.has(&[&format!("href=\"{path}?range=7d&amp;compare=week\"")]);
        let page = browser.open(&format!("{path}?from=2h&to=1h&compare=yesterday")).await;
        page.has(&["value=\"2h\"", "from=2h&amp;to=1h&amp;compare=week"]);
        browser.open(&format!("{path}?from=soon")).await.has(&["The statistics", "from"]);
    }
}

#[tokio::test]
async fn charts_name_the_unit_of_their_counts() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    for (range, unit) in
        [("1h", "tasks a minute"), ("24h", "tasks per 10 min"), ("7d", "tasks an hour"), ("30d", "tasks a day")]
    {
        browser.open(&format!("/?range={range}")).await.has(&[unit]);
    }
}

#[tokio::test]
async fn overview_counts_the_changes_of_the_last_hour_and_marks_them_in_the_charts() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    browser.open("/").await.lacks(&["id=\"changes\"", "class=\"mark\""]);
    browser.submit("/types/echo/pause", "reason=disk+full").await;
    eventually("the change", async || browser.open("/").await.text.contains("<a href=\"/audit\">1 change</a>")).await;
    for path in ["/", "/types/echo"] {
        browser.open(path).await.has(&["class=\"mark\"", "pause type echo: disk full</title>"]);
    }
    browser.open("/types/resize").await.lacks(&["class=\"mark\""]);
}

#[tokio::test]
async fn overview_sorts_troubles_by_weight_and_leads_to_their_actions() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    browser.submit("/types/echo/pause", "reason=disk+full").await;
    let page = browser.open("/").await;
    let (_, troubles) = page.text.split_once("Needs attention").unwrap();
    let positions = ["new error", "paused"].map(|trouble| troubles.find(trouble));
    assert!(positions[0].is_some() && positions.is_sorted(), "{positions:?}");
    page.has(&["href=\"/types/echo/resume\"", "Resume…", "opened in the last full minute"]);
}

#[tokio::test]
async fn overview_of_a_fleet_without_troubles_says_so() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    browser.open("/").await.has(&["No worker runs; lag 0, no new error"]).lacks(&["Needs attention"]);
}

#[tokio::test]
async fn requests_are_listed_with_their_targets() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    browser.open("/audit").await.has(&["Nobody has cancelled"]);
    browser.submit("/tasks/order/retry", "reason=once+more").await;
    browser.submit("/types/echo/pause", "reason=disk+full").await;
    let begun = Instant::now();
    loop {
        let page = browser.open("/audit").await;
        if page.text.contains("pause type") || begun.elapsed() > DEADLINE {
            page.has(&["once more", "href=\"/tasks/order\"", "pause type", "href=\"/types/echo\"", "disk full"]);
            let page = browser.open("/audit?action=pause+type&from=1h").await;
            page.has(&["disk full", "kafleet audit --action pause_type --from 1h"]).lacks(&["once more"]);
            browser.open("/audit?by=ada").await.has(&["No request matches these filters."]);
            return;
        }
    }
}

#[tokio::test]
async fn empty_pages_name_the_next_command() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    for (path, command) in [
        ("/", "kafleet submit echo"),
        ("/tasks", "kafleet submit echo"),
        ("/types/echo", "kafleet submit echo"),
        ("/workers", "kafleet worker"),
        ("/schedules", "kafleet schedules create"),
        ("/kill-switches", "kafleet kill-switch on"),
        ("/v", "kafleet views set"),
    ] {
        browser.open(path).await.has(&[command]);
    }
}

#[tokio::test]
async fn help_explains_states_and_the_search_language() {
    let fleet = fleet().await;
    Browser::new(&fleet).open("/help").await.has(&["waiting for children", "<code>schedule:</code>", "KAFLEET_TOKEN"]);
}

#[tokio::test]
async fn mistakes_are_shown_as_pages() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    for (path, status, code) in [
        ("/tasks/nothing", 404, "not_found"),
        ("/tasks/%20", 400, "bad_id"),
        ("/tasks?cursor=odd", 400, "bad_cursor"),
        ("/types/nothing", 404, "unknown_type"),
        ("/workers/nothing", 404, "not_found"),
        ("/schedules/nothing", 404, "unknown_schedule"),
        ("/dead-letters/echo:0:7", 404, "not_found"),
        ("/dead-letters/odd", 400, "bad_id"),
    ] {
        let page = browser.get(path).await;
        assert_eq!(page.status.as_u16(), status, "{path}: {}", page.text);
        page.has(&[&format!("<code>{code}</code>"), "role=\"alert\"", "<nav"]);
    }
}

#[tokio::test]
async fn unchanged_main_is_answered_with_304() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks/order/tree").await;
    let tag = page.header("etag").to_owned();
    let part = [("kafleet-part", "main"), ("if-none-match", tag.as_str())];
    assert_eq!(browser.send(Method::GET, "/tasks/order/tree", &part, None).await.status, StatusCode::NOT_MODIFIED);
    fleet.echo("order:pack").await;
    fleet.folded().await;
    let begun = Instant::now();
    let changed = loop {
        let page = browser.send(Method::GET, "/tasks/order/tree", &part, None).await;
        if page.status == StatusCode::OK || begun.elapsed() > DEADLINE {
            break page;
        }
    };
    assert_eq!(changed.status, StatusCode::OK);
    assert!(changed.text.starts_with("<main") && changed.text.ends_with("</main>"), "{}", changed.text);
    let dark = browser.send(Method::GET, "/help", &[("cookie", "kafleet-theme=dark")], None).await;
    dark.has(&["data-theme=\"dark\""]);
    assert_eq!(dark.header("etag"), browser.open("/help").await.header("etag"), "the theme is no part of the contents");
}

#[tokio::test]
async fn root_is_a_page_for_browsers_and_a_list_for_programs() {
    let fleet = fleet().await;
    Browser::new(&fleet).open("/").await.has(&["<!DOCTYPE html>"]);
    for path in ["/", "/v1"] {
        let text = fleet.request(Method::GET, path).send().await.unwrap().text().await.unwrap();
        assert!(text.contains("GET /v1/tasks/{id}"), "{path}: {text}");
    }
}

#[tokio::test]
async fn unknown_path_is_answered_with_a_page() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let page = browser.get("/taks").await;
    assert_eq!((page.status, page.header("content-type")), (StatusCode::NOT_FOUND, "text/html; charset=utf-8"));
    page.has(&["there is no page <code>/taks</code>", "href=\"/tasks\""]);
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    let api = browser.get("/v1/taks").await;
    assert_eq!(api.header("content-type"), "application/problem+json", "the API answers programs");
}

#[tokio::test]
async fn bulk_action_is_previewed_confirmed_and_ordered() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    browser.open("/tasks?q=state:failed+level:any").await.has(&["name=\"id\" value=\"order:fetch\"", "Retry…"]);
    browser.open("/failures").await.has(&["/bulk/new?action=retry"]);
    let none = browser.open("/bulk/new?action=retry&selected=yes&q=state:failed").await;
    none.has(&["No task was selected."]);
    let form = "/bulk/new?action=retry&q=type:echo+state:failed+level:any";
    let page = browser.open(form).await;
    page.has(&["<strong>1</strong> of 2 matching tasks", "/tasks/order:fetch", "kafleet bulk retry", "curl -s"]);
    browser.open("/bulk/new?action=retry&q=stat:failed").await.has(&["<mark>stat</mark>"]);
    let refused = browser.post("/bulk/new", "action=retry&q=type:echo&expected=200&limit=220&confirm=20").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    refused.has(&["type this number to confirm it"]);
    let order = "action=retry&q=type:echo+state:failed+level:any&expected=1&limit=2&reason=healed";
    browser.submit("/bulk/new", order).await.has(&["The bulk action was requested.", "kafleet-bulk"]);
    browser.open("/bulk").await.has(&["retry type:echo state:failed level:any"]);
    browser.open("/audit").await.has(&["bulk retry", "healed"]);
}

#[tokio::test]
async fn newest_errors_are_shown_beside_many_larger_ones() {
    const LARGER: usize = 51;
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let fail = async |id: String, kind: String| {
        fleet.echo(&id).await;
        fleet.publish_event(&id, Payload::Failed(AttemptFailure::new(&kind, "broken", 1)), |_| {}).await;
    };
    for n in 0..2 * LARGER {
        let word = "x".repeat(n % LARGER + 1);
        fail(format!("t{n}"), format!("reason_{word}")).await;
    }
    fail("last".to_owned(), "the_newest_reason".to_owned()).await;
    fleet.folded().await;
    let page = browser.open("/").await;
    let (attention, errors) = page.text.split_once("id=\"errors\"").unwrap();
    for part in [attention, errors] {
        assert!(part.contains("the_newest_reason"), "{part}");
    }
    let badge = format!("<span class=\"badge\">{}</span>", LARGER + 1);
    eventually("the number of errors", async || browser.open("/help").await.text.contains(&badge)).await;
}

#[tokio::test]
async fn dropped_letter_of_a_task_leads_to_the_task() {
    let fleet = with_letters().await;
    for id in ["order", "order:1", "order:1:2"] {
        fleet.echo(id).await;
    }
    fleet.fail("order:1:2", "no answer").await;
    fleet.folded().await;
    let letter = fleet.letter(NewLetter { task: Some(("order:1:2", 1)), key: "order", ..LETTER }, 0).await;
    fleet.settle(&format!("/v1/dead-letters/{letter}/drop")).await;
    let foreign = fleet.letter(NewLetter { code: "bad_json", value: b"{oops", task: None, ..LETTER }, 1).await;
    fleet.settle(&format!("/v1/dead-letters/{foreign}/drop")).await;
    fleet.folded().await;
    let page = Browser::new(&fleet).open("/audit").await;
    page.has(&["href=\"/tasks/order:1:2\"", &format!("href=\"/dead-letters/{foreign}\"")]);
}

#[tokio::test]
async fn types_in_trouble_are_listed_first() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "approval", "external": true})).await;
    fleet.create(json!({"type": "resize", "params": {"url": "a", "width": 7}})).await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    browser.submit("/types/echo/pause", "reason=disk+full").await;
    let page = browser.open("/types").await;
    let positions =
        ["/types/resize", "/types/echo", "/types/approval"].map(|path| page.text.find(&format!("\"{path}\"")));
    assert!(
        positions.is_sorted() && positions[0].is_some(),
        "a queue without workers, a pause, the others: {positions:?}"
    );
}
