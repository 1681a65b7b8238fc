//! Lists and parts of pages: cards, filters, trees, logs, distributions, the system.

use kafleet::documents::{DurationStats, SystemDocument};
use kafleet::model::units::duration::Millis;
use serde_json::json;

use crate::api::fixture::{eventually, fleet};
use crate::api::why::send_heartbeat_of;
use crate::ui::browser::Browser;
use crate::ui::pages::{OF_TASK, PLAIN, fleet_with_tree};
use crate::ui::shop::Past;

#[tokio::test]
async fn every_table_is_drawn_as_cards_in_a_narrow_box() {
    let fleet = fleet_with_tree().await;
    send_heartbeat_of(&fleet, "node-7", 8, 1, &["order:fetch"]).await;
    let browser = Browser::new(&fleet);
    eventually("the worker", async || browser.get("/workers/node-7").await.status == 200).await;
    let of_task = OF_TASK.iter().map(|page| format!("/tasks/order{page}"));
    for path in PLAIN.iter().map(|path| (*path).to_owned()).chain(of_task).chain(["/workers/node-7".to_owned()]) {
        let page = browser.open(&path).await;
        for table in page.text.split("<table").skip(1) {
            let (tag, rest) = table.split_once('>').unwrap();
            let is_known = ["cards", "tasks", "timeline"].iter().any(|class| tag.contains(class));
            assert!(is_known, "{path}: a table with{tag} has no cards");
            let rows = rest.split("</table>").next().unwrap();
            let body = rows.split_once("<tbody>").map_or("", |(_, body)| body);
            let has_labels = body
                .split("<td")
                .skip(1)
                .all(|column| column.starts_with(" data-label") || column.starts_with(" class=\"action\""));
            assert!(!tag.contains("cards") || has_labels || body.contains("colspan"), "{path}: {body}");
        }
    }
    // The number of children is no longer hidden on phones.
    browser.open("/tasks").await.has(&["data-label=\"Children\""]);
}

#[tokio::test]
async fn types_are_filtered_and_sorted_by_the_url() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/types?text=ECH&sort=open").await;
    page.has(&["id=\"y-echo\"", "href=\"/types?text=ECH&amp;sort=failed\"", "value=\"ECH\""])
        .lacks(&["id=\"y-resize\""]);
    browser.open("/types?text=nothing").await.has(&["No type has this text"]);
    assert_eq!(browser.get("/types?sort=odd").await.status, 400);
}

#[tokio::test]
async fn circuit_of_a_type_is_set_by_a_form() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    browser.open("/types/echo").await.lacks(&["/types/echo/circuit"]);
    browser.submit("/types/echo/circuit", "state=open&reason=provider+down").await.has(&["The circuit was set"]);
    let page = browser.open("/types/echo").await;
    page.has(&["open by an operator since ", "provider down", "href=\"/types/echo/circuit\""]);
    browser.open("/types/echo/circuit").await.has(&["value=\"auto\" selected", "kafleet types circuit echo auto"]);
    assert_eq!(browser.post("/types/echo/circuit", "state=ajar").await.status, 400);
}

#[tokio::test]
async fn tree_shows_its_critical_path_and_the_kinds_of_its_errors() {
    let fleet = fleet_with_tree().await;
    for n in [10, 9, 7] {
        fleet.echo(&format!("order:s{n}")).await;
    }
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks/order/tree").await;
    page.has(&["id=\"kinds\"", ">1 task</a>", "under%3Aorder+type%3Aecho", "Retry…"]);
    let positions = ["id=\"t-order:s7\"", "id=\"t-order:s9\"", "id=\"t-order:s10\""].map(|row| page.text.find(row));
    assert!(positions[0].is_some() && positions.is_sorted(), "{positions:?}");
    let open = browser.open("/tasks/order/tree?only=open").await;
    open.has(&["Open tasks of the tree", "id=\"t-order:s7\""]).lacks(&["id=\"t-order:fetch\""]);
    let failed = browser.open("/tasks/order/tree?only=failed").await;
    failed.has(&["id=\"t-order:fetch\""]).lacks(&["id=\"t-order:s7\""]);
    assert_eq!(browser.get("/tasks/order/tree?only=odd").await.status, 400);
    for n in [10, 9, 7] {
        fleet.succeed(&format!("order:s{n}"), json!(1)).await;
    }
    fleet.folded().await;
    browser.open("/tasks/order/tree").await.has(&["id=\"path\">Critical path: <a href=\"/tasks/order\""]);
}

#[tokio::test]
async fn tree_names_continuations_that_did_not_start() {
    let fleet = fleet().await;
    fleet.create(json!({"type": "echo", "id": "a", "then": [{"type": "echo", "on": "failed"}]})).await;
    fleet.succeed("a", json!(1)).await;
    fleet.folded().await;
    let page = Browser::new(&fleet).open("/tasks/a/tree").await;
    page.has(&["id=\"unstarted\"", "<code>then</code>", "starts only if the task or a child of it fails"]);
}

#[tokio::test]
async fn log_finds_a_text_and_marks_errors() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    fleet.folded().await;
    let lines = json!({"lines": ["connecting", "Traceback (most recent call last):", "  File \"a.py\"", "KeyError: 'b'", "[WARN] slow"]});
    fleet.post("/v1/tasks/order/log", lines).await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks/order/log?find=keyerror&wrap=no").await;
    page.has(&["1 line of 5 on this page with <code>keyerror</code>: <a href=\"#l4\">4</a>", "<mark>KeyError</mark>"]);
    page.has(&["class=\"log unwrapped\"", "download=\"order.log\"", "wrap lines"]);
    assert_eq!(page.text.matches("<li class=\"bad\"").count(), 3, "{}", page.text);
    page.has(&["<li class=\"attention\" id=\"l5\""]);
    browser.open("/tasks/order/log?from=99").await.has(&["No line is on this page; the log has 5 lines."]);
}

#[tokio::test]
async fn run_times_of_a_type_have_a_histogram() {
    let fleet = fleet_with_tree().await;
    fleet.echo("slow").await;
    fleet.old_success("slow", 1, [Millis::secs(60), Millis::secs(1)]).await;
    fleet.folded().await;
    let stats: DurationStats = fleet.get("/v1/stats/durations?type=echo").await;
    assert_eq!((stats.run.summary.count, stats.run.buckets.iter().map(|bucket| bucket.count).sum::<u64>()), (2, 2));
    assert!(stats.from < stats.to && stats.run.summary.p50.is_some(), "{stats:?}");
    let page = Browser::new(&fleet).open("/types/echo").await;
    page.has(&["id=\"durations\"", "<svg class=\"histogram\"", "<title>p50 ", "kafleet stats echo --durations"]);
    let positions = ["id=\"partitions\"", "id=\"durations\"", "id=\"slowest\""].map(|part| page.text.find(part));
    assert!(positions[0].is_some() && positions.is_sorted(), "{positions:?}");
}

#[tokio::test]
async fn system_shows_the_services_that_the_api_describes() {
    let fleet = fleet_with_tree().await;
    let system: SystemDocument = fleet.get("/v1/system").await;
    assert_eq!((system.not_ready, system.incomplete.len()), (None, 0));
    assert!(system.partitions.iter().all(|partition| partition.behind() == 0), "{:?}", system.partitions);
    assert!(system.partitions.iter().any(|partition| partition.fold_version == Some(system.fold_version)));
    let page = Browser::new(&fleet).open("/system").await;
    page.has(&[
        "ready</span><span class=\"name\">this API</span>",
        "<span class=\"value\">0</span><span class=\"name\">offsets behind, 4 partitions</span>",
        "<dt>Fold version</dt>",
        "<dt>Started</dt>",
        "href=\"/metrics\"",
        "href=\"/openapi.json\"",
        "Newest event",
    ]);
}

#[tokio::test]
async fn worker_page_says_how_to_stop_the_worker() {
    let fleet = fleet_with_tree().await;
    send_heartbeat_of(&fleet, "node-7", 8, 1, &["order:fetch"]).await;
    let browser = Browser::new(&fleet);
    eventually("the worker", async || browser.get("/workers/node-7").await.status == 200).await;
    let page = browser.open("/workers/node-7").await;
    page.has(&["send SIGTERM to process 42", "kill -TERM 42", "<dt>Up</dt>", "0 bytes"]);
    browser.open("/workers").await.has(&["data-label=\"Memory\"", "1 alive · 1 of 8 slots in use"]);
}
