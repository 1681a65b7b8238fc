//! Open pages follow changes, also on a slow link, and keep what the reader does.

use kafleet::config::Role;
use kafleet::model::event::Kind;
use serde_json::json;

use super::{ENTER, STARTED, Tab, with_browser};
use crate::api::fixture::{Fleet, fleet};
use crate::ui::browser::{guarded_fleet, token};

async fn shows_state(tab: &Tab, state: &str) {
    tab.wait(&format!("document.querySelector('main').dataset.state == '{state}'")).await;
}

async fn open_task(tab: &Tab, fleet: &Fleet) {
    fleet.echo("order").await;
    fleet.folded().await;
    tab.go("/tasks/order").await;
    tab.wait(STARTED).await;
    shows_state(tab, "queued").await;
}

#[tokio::test]
async fn open_page_shows_changes_and_keeps_its_elements() {
    let fleet = fleet().await;
    with_browser(&fleet, "live", async |tab| {
        open_task(tab, &fleet).await;
        tab.driver.run("window.heading = document.querySelector('h1'); return null").await;
        tab.click("#definition > summary").await;
        fleet.publish_event("order", Kind::Started, |event| event.attempt = 1).await;
        shows_state(tab, "running").await;
        fleet.succeed("order", json!({"total": 7})).await;
        shows_state(tab, "succeeded").await;
        tab.wait("document.title.startsWith('\u{2714}')").await;
        assert!(tab.is("window.heading === document.querySelector('h1')").await, "the element is another one");
        assert!(tab.is("document.querySelector('#definition').open").await, "an open block was closed");
    })
    .await;
}

#[tokio::test]
async fn new_rows_are_held_back_while_the_reader_types() {
    let fleet = fleet().await;
    fleet.echo("first").await;
    fleet.folded().await;
    with_browser(&fleet, "held-back", async |tab| {
        tab.go("/tasks").await;
        tab.wait(&format!("{STARTED} && document.querySelector('#t-first')")).await;
        tab.fill("#search", "tag:sh").await;
        for id in ["late-1", "late-2", "late-3"] {
            fleet.echo(id).await;
        }
        fleet.succeed("first", json!(7)).await;
        tab.see("3 new").await;
        tab.wait("document.querySelector('#t-first').innerText.includes('succeeded')").await;
        assert!(tab.is("document.querySelectorAll('main tbody tr').length == 1").await, "rows moved");
        tab.press("op").await;
        assert!(tab.is("document.activeElement.id == 'search' && document.activeElement.value == 'tag:shop'").await);
        tab.click("#new-rows").await;
        tab.wait("document.querySelector('#t-late-3')").await;
        assert!(tab.is("document.querySelector('#search').value == 'tag:shop'").await, "the text is gone");
    })
    .await;
}

#[tokio::test]
async fn page_of_a_missing_task_shows_the_task_once_it_is_there() {
    let fleet = fleet().await;
    with_browser(&fleet, "missing", async |tab| {
        tab.go("/tasks/order").await;
        tab.wait(STARTED).await;
        tab.see("there is no task").await;
        fleet.echo("order").await;
        shows_state(tab, "queued").await;
        assert!(tab.is("document.querySelector('#trouble').hidden").await);
    })
    .await;
}

#[tokio::test]
async fn page_on_a_slow_link_still_follows_changes() {
    let fleet = fleet().await;
    with_browser(&fleet, "slow", async |tab| {
        let link = json!({"offline": false, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000});
        tab.driver.devtools("Network.enable", json!({})).await;
        tab.driver.devtools("Network.emulateNetworkConditions", link).await;
        open_task(tab, &fleet).await;
        for attempt in 1..20 {
            fleet.publish_event("order", Kind::Progress, |event| event.attempt = attempt).await;
        }
        fleet.succeed("order", json!(1)).await;
        shows_state(tab, "succeeded").await;
    })
    .await;
}

#[tokio::test]
async fn page_says_that_the_session_has_ended() {
    let fleet = guarded_fleet().await;
    with_browser(&fleet, "signed-out", async |tab| {
        tab.go("/tasks").await;
        tab.fill("input[name=token]", &token(Role::Read)).await;
        tab.press(ENTER).await;
        tab.wait(&format!("location.pathname == '/tasks' && {STARTED}")).await;
        tab.driver.delete_cookies().await;
        fleet.announce("late", "echo", None).await;
        tab.wait("document.querySelector('#trouble').textContent == 'signed out'").await;
        assert!(tab.is("document.querySelector('main').innerText.includes('Tasks')").await, "the page stays");
        tab.click("#trouble").await;
        tab.wait("location.pathname == '/login'").await;
    })
    .await;
}
