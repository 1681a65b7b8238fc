//! Failed tasks of a large tree are found and retried with few clicks.

use futures::StreamExt;
use kafleet::documents::Status;
use kafleet::model::event::{Announcement, Event, Payload};
use kafleet::runtime::now_ms;
use kafleet::store::memory::{MemoryStore, MemoryStoreOptions};
use kafleet_testkit::services;
use serde_json::{Value, json};

use super::{STARTED, Tab, with_browser};
use crate::api::fixture::{Fleet, eventually, fleet_on};

/// Tasks of the tree; `KAFLEET_TEST_TREE` names another number, such as 1000000 for a run by hand.
const TASKS: usize = 100_000;
/// Children of a task that has some.
const CHILDREN: usize = 1_000;
const FAILED: usize = 12;
/// Events on their way at once.
const IN_FLIGHT: usize = 1_000;
/// Tasks between two waits for the projection.
const CHUNK: usize = 20_000;

/// Publishes a tree in which only some leaves have failed; returns their ids.
async fn publish_tree(fleet: &Fleet, tasks: usize) -> Vec<String> {
    let parents: Vec<String> = (0..tasks.div_ceil(CHILDREN)).map(|n| format!("order:p{n}")).collect();
    fleet.announce("order", "echo", None).await;
    for parent in &parents {
        fleet.announce(parent, "echo", None).await;
    }
    fleet.folded().await;
    let failed: Vec<String> = (0..FAILED).map(|n| format!("{}:failing-{n}", parents[n * 7 % parents.len()])).collect();
    for id in &failed {
        fleet.echo(id).await;
        fleet.fail(id, &format!("no answer from 10.0.0.{}", id.len())).await;
    }
    let leaves: Vec<String> =
        (0..tasks - parents.len() - FAILED - 1).map(|n| format!("{}:{n}", parents[n / CHILDREN])).collect();
    for chunk in leaves.chunks(CHUNK) {
        let publish = |id: &String| succeed_at_once(fleet, id.clone());
        futures::stream::iter(chunk.iter().map(publish)).buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
        fleet.folded().await;
    }
    for parent in parents.iter().map(String::as_str).chain(["order"]) {
        fleet.succeed(parent, Value::Null).await;
    }
    fleet.folded().await;
    failed
}

/// Publishes an event that announces a task and reports its end.
async fn succeed_at_once(fleet: &Fleet, id: String) {
    let ended = Payload::Succeeded { started_at_ms: Some(now_ms()), output: None };
    let announce = |event: &mut Event| {
        event.attempt = 1;
        let (task_type, created_at_ms) = ("echo".into(), event.at_ms);
        let (position, hash, policy, asof, trace) = (None, None, None, None, None);
        event.task = Some(Box::new(Announcement { task_type, created_at_ms, position, hash, policy, asof, trace }));
    };
    fleet.publish_event(&id, ended, announce).await;
}

/// Clicks what has this text, in one step: an update of the page removes marks.
async fn click_text(tab: &Tab, css: &str, text: &str) {
    let click = format!(
        "(() => {{ const all = [...document.querySelectorAll({})];
        const found = all.find((it) => it.innerText.trim() == {}); found?.click(); return found; }})()",
        json!(css),
        json!(text)
    );
    tab.wait(&click).await;
}

#[tokio::test]
async fn failures_of_a_large_tree_are_found_and_retried_with_five_clicks() {
    let Some(_) = services::address("KAFLEET_TEST_BROWSER") else { return };
    let tasks = std::env::var("KAFLEET_TEST_TREE").map_or(TASKS, |number| number.parse().unwrap());
    // More than the default of the store in memory, which is that of a development machine.
    let store = MemoryStoreOptions { max_records: 2 * tasks, max_bytes: 8 << 30, ..MemoryStoreOptions::default() };
    let fleet = fleet_on(MemoryStore::new(store)).await;
    let failed = publish_tree(&fleet, tasks).await;
    with_browser(&fleet, "large-tree", async |tab| {
        tab.go("/tasks/order/tree").await;
        // The failed ones, their parents, and the root.
        tab.see(&format!("{} failed", FAILED + tasks.div_ceil(CHILDREN).min(FAILED) + 1)).await;
        tab.wait(&format!("document.querySelectorAll('#failed tbody tr').length == {FAILED}")).await;
        tab.screenshot("large-tree").await;
        tab.go("/").await;
        tab.wait(STARTED).await;
        tab.click("nav.wide a[href='/failures']").await;
        tab.wait(&format!("location.pathname == '/failures' && {STARTED}")).await;
        click_text(tab, "td.number a", &FAILED.to_string()).await;
        tab.wait(&format!("location.pathname == '/tasks' && {STARTED}")).await;
        tab.click(".choice .all input").await;
        tab.click("button[name=action][value=retry]").await;
        tab.see(&format!("{FAILED} of {FAILED} matching tasks would change")).await;
        tab.fill("input[name=reason]", "the network is back").await;
        click_text(tab, "main form.action button", &format!("Retry {FAILED} tasks")).await;
        tab.wait("document.querySelector('main').dataset.state == 'succeeded'").await;
    })
    .await;
    for id in &failed {
        eventually("a new run", async || fleet.get::<Status>(&format!("/v1/tasks/{id}")).await.run > 1).await;
    }
    assert_eq!(fleet.published("echo"), 2 * FAILED, "nothing else runs again");
}
