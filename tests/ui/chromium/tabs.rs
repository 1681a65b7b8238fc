//! Many tabs, tabs without the focus, paused updates, and an API that is started again.

use serde_json::json;

use super::{STARTED, Tab, with_browser};
use crate::api::fixture::{Fleet, KillableApi, eventually, fleet};
use crate::ui::browser::Browser;

/// More than the connections that a browser opens to a host.
const TABS: usize = 8;

const STATE: &str = "document.querySelector('main').dataset.state";
/// Number of refreshes of the page that have ended.
const REFRESHES: &str = "performance.getEntriesByType('resource').filter((it) => it.initiatorType == 'fetch').length";

async fn shows_state(tab: &Tab, state: &str) {
    tab.wait(&format!("{STATE} == '{state}'")).await;
}

async fn fleet_with_order() -> Fleet {
    let fleet = fleet().await;
    fleet.echo("order").await;
    fleet.folded().await;
    fleet
}

#[tokio::test]
async fn more_tabs_than_connections_load_and_follow_when_they_are_shown() {
    let fleet = fleet_with_order().await;
    with_browser(&fleet, "many-tabs", async |tab| {
        let mut handles = Vec::new();
        for _ in 0..TABS {
            let (shown, new) = tab.driver.new_tab().await;
            if handles.is_empty() {
                handles.push(shown);
            }
            tab.driver.switch_to(&new).await;
            tab.go("/tasks/order").await;
            tab.wait(STARTED).await;
            shows_state(tab, "queued").await;
            handles.push(new);
        }
        fleet.succeed("order", json!(7)).await;
        for handle in &handles[1..] {
            tab.driver.switch_to(handle).await;
            tab.driver.devtools("Page.bringToFront", json!({})).await;
            shows_state(tab, "succeeded").await;
        }
    })
    .await;
}

#[tokio::test]
async fn tab_without_the_focus_polls() {
    let fleet = fleet_with_order().await;
    with_browser(&fleet, "no-focus", async |tab| {
        tab.go("/tasks/order").await;
        tab.wait(STARTED).await;
        // A visible window behind another one, such as a second screen.
        tab.driver.run("document.hasFocus = () => false; window.dispatchEvent(new Event('blur')); return null").await;
        fleet.succeed("order", json!(7)).await;
        shows_state(tab, "succeeded").await;
        assert!(tab.is("document.querySelector('#trouble').hidden").await);
    })
    .await;
}

#[tokio::test]
async fn paused_page_requests_nothing_until_it_continues() {
    let fleet = fleet_with_order().await;
    with_browser(&fleet, "paused", async |tab| {
        tab.go("/tasks/order").await;
        tab.wait(STARTED).await;
        tab.wait(&format!("{REFRESHES} > 0")).await;
        tab.press(".").await;
        tab.wait("document.querySelector('#live').ariaPressed == 'false'").await;
        let before = tab.driver.run(&format!("return {REFRESHES}")).await;
        fleet.succeed("order", json!(7)).await;
        fleet.folded().await;
        let other = Browser::new(&fleet);
        eventually("another reader sees it", async || other.open("/tasks/order").await.text.contains("succeeded"))
            .await;
        assert!(tab.is(&format!("{STATE} == 'queued' && {REFRESHES} == {before}")).await, "the page has changed");
        tab.press(".").await;
        shows_state(tab, "succeeded").await;
    })
    .await;
}

#[tokio::test]
async fn page_continues_when_the_api_is_started_again() {
    let fleet = fleet_with_order().await;
    let first = fleet.killable_api();
    let base = first.base.clone();
    with_browser(&fleet, "restarted", async |tab| {
        tab.go_to(&base, "/tasks/order").await;
        tab.wait(STARTED).await;
        shows_state(tab, "queued").await;
        first.kill();
        tab.wait("document.querySelector('#trouble').textContent.startsWith('not live since')").await;
        assert!(tab.is(&format!("{STATE} == 'queued'")).await, "the page stays");
        fleet.succeed("order", json!(7)).await;
        let _second = KillableApi::start(&fleet, base.trim_start_matches("http://"));
        shows_state(tab, "succeeded").await;
        tab.wait("document.querySelector('#trouble').hidden").await;
    })
    .await;
}
