//! Failed tasks of a large tree are found and retried with few clicks.

use kafleet::documents::Status;
use kafleet_testkit::services;
use serde_json::json;

use super::{STARTED, Tab, with_browser};
use crate::api::fixture::eventually;
use crate::ui::load::{FAILED, fleet_with_room, publish_tree};

/// Tasks of the tree; `KAFLEET_TEST_TREE` names another number, such as 1000000 for a run by hand.
const TASKS: usize = 100_000;
/// Children of a task that has some.
const CHILDREN: usize = 1_000;

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
async fn failures_of_a_large_tree_are_found_and_retried_with_four_clicks() {
    let Some(_) = services::address("KAFLEET_TEST_BROWSER") else { return };
    let tasks = std::env::var("KAFLEET_TEST_TREE").map_or(TASKS, |number| number.parse().unwrap());
    let fleet = fleet_with_room(tasks).await;
    let failed = publish_tree(&fleet, tasks, CHILDREN).await;
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
        click_text(tab, "main a", "Retry all…").await;
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
