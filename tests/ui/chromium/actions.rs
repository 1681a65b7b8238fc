//! Actions by keyboard, without JavaScript, on selected rows, and in two tabs.

use kafleet::config::Role;
use kafleet::documents::Status;
use kafleet::model::event::{AttemptFailure, Payload};
use kafleet_testkit::services;
use serde_json::json;

use super::{ENTER, ESCAPE, STARTED, TAB, Tab, is_in_run, with_browser};
use crate::api::fixture::{Fleet, eventually, fleet};
use crate::ui::browser::{guarded_fleet, token};
use crate::ui::pages::fleet_with_tree;

async fn guarded_fleet_with_failure() -> Fleet {
    let fleet = guarded_fleet().await;
    let create = fleet.request(reqwest::Method::POST, "/v1/tasks").bearer_auth(token(Role::Operate));
    let made = create.json(&json!({"type": "echo", "id": "order"})).send().await.unwrap();
    assert!(made.status().is_success());
    fleet.fail("order", "no answer").await;
    fleet.folded().await;
    fleet
}

/// Moves the focus forward until it is on an element.
async fn tab_to(tab: &Tab, css: &str) {
    for _ in 0..60 {
        if tab.is(&format!("document.activeElement.matches({})", json!(css))).await {
            return;
        }
        tab.press(TAB).await;
    }
    panic!("the focus does not reach {css}");
}

/// Waits for a page with its script.
async fn page(tab: &Tab, path: &str) {
    tab.wait(&format!("location.pathname == {} && {STARTED}", json!(path))).await;
}

#[tokio::test]
async fn failed_task_is_found_and_retried_by_keyboard_alone() {
    let fleet = guarded_fleet_with_failure().await;
    with_browser(&fleet, "keyboard", async |tab| {
        tab.go("/").await;
        tab_to(tab, "input[name=token]").await;
        tab.press(&token(Role::Operate)).await;
        tab.press(ENTER).await;
        page(tab, "/").await;
        tab.press("gt").await;
        page(tab, "/tasks").await;
        tab.press("j").await;
        tab.wait("document.activeElement.matches('tr a')").await;
        tab.press(ENTER).await;
        page(tab, "/tasks/order").await;
        for leave in [true, false] {
            tab_to(tab, "a[href$='/retry']").await;
            tab.press(ENTER).await;
            tab.wait("document.querySelector('dialog[open] input[name=reason]')").await;
            if leave {
                tab.press(ESCAPE).await;
                tab.wait("!document.querySelector('dialog[open]')").await;
            }
        }
        tab_to(tab, "dialog input[name=reason]").await;
        tab.press("the network is back").await;
        tab.press(ENTER).await;
        tab.see("The retry was accepted").await;
        page(tab, "/tasks/order").await;
        tab.press("?").await;
        tab.wait("document.querySelector('dialog#keys[open]')").await;
    })
    .await;
}

#[tokio::test]
async fn selected_tasks_are_retried_together() {
    let fleet = fleet().await;
    for id in ["a", "b", "c"] {
        fleet.echo(id).await;
        fleet.fail(id, "no answer").await;
    }
    fleet.folded().await;
    with_browser(&fleet, "bulk", async |tab| {
        tab.go("/tasks?q=state:failed").await;
        page(tab, "/tasks").await;
        tab.click("#t-a input[type=checkbox]").await;
        tab.press("x").await;
        tab.click("#t-c input[type=checkbox]").await;
        tab.see("2 selected").await;
        tab.click("button[name=action][value=retry]").await;
        tab.see("2 of 2 matching tasks would change").await;
        tab.fill("input[name=reason]", "together").await;
        tab.press(ENTER).await;
        tab.see("The bulk action was requested.").await;
        tab.wait("document.querySelector('main').dataset.state == 'succeeded'").await;
    })
    .await;
    if services::address("KAFLEET_TEST_BROWSER").is_some() {
        for (id, run) in [("a", 2), ("c", 2), ("b", 1)] {
            is_in_run(&fleet, id, run).await;
        }
    }
}

#[tokio::test]
async fn pages_and_actions_work_without_javascript() {
    let fleet = fleet_with_tree().await;
    with_browser(&fleet, "no-script", async |tab| {
        tab.driver.devtools("Emulation.setScriptExecutionDisabled", json!({"value": true})).await;
        tab.go("/").await;
        assert!(!tab.is(STARTED).await);
        tab.fill("#search", "tag:shop").await;
        tab.press(ENTER).await;
        tab.wait("location.pathname == '/tasks'").await;
        tab.click("#t-order a").await;
        tab.wait("location.pathname == '/tasks/order'").await;
        tab.click("a[href$='/tree']").await;
        tab.wait("location.pathname == '/tasks/order/tree'").await;
        tab.click("a[href$='/retry-failed']").await;
        tab.fill("input[name=reason]", "by form").await;
        tab.click("main form.action button").await;
        tab.see("the failed tasks run again").await;
        tab.go("/types/echo/pause").await;
        tab.click("main form.action button").await;
        tab.see("Paused.").await;
        tab.click("form[action='/theme'] button").await;
        tab.wait("document.documentElement.dataset.theme == 'dark'").await;
    })
    .await;
}

#[tokio::test]
async fn second_tab_learns_that_the_first_has_acted() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    fleet.folded().await;
    with_browser(&fleet, "two-tabs", async |tab| {
        tab.go("/tasks/order/cancel").await;
        let (first, second) = tab.driver.new_tab().await;
        tab.driver.switch_to(&second).await;
        tab.go("/tasks/order/cancel").await;
        tab.click("main form.action button").await;
        tab.see("The cancel was requested").await;
        let cancelled = Payload::Cancelled(AttemptFailure::new("cancelled", "on request", 1));
        fleet.publish_event("order", cancelled, |event| event.attempt = 1).await;
        eventually("the end of the task", async || fleet.get::<Status>("/v1/tasks/order").await.state.is_terminal())
            .await;
        tab.driver.switch_to(&first).await;
        tab.click("main form.action button").await;
        tab.see("already_finished").await;
    })
    .await;
}

#[tokio::test]
async fn edited_tasks_of_a_file_stay_when_its_field_has_the_focus() {
    let fleet = fleet().await;
    with_browser(&fleet, "file", async |tab| {
        let file = std::env::temp_dir().join(format!("kafleet-tasks-{}.ndjson", std::process::id()));
        std::fs::write(&file, "{\"type\": \"echo\"}").unwrap();
        tab.go("/new/many").await;
        page(tab, "/new/many").await;
        tab.fill("#f-file", file.to_str().unwrap()).await;
        tab.wait("document.querySelector('#f-tasks').value == '{\"type\": \"echo\"}'").await;
        tab.fill("#f-tasks", "edited").await;
        let focus = "document.querySelector('#f-file').focus(); document.querySelector('#f-file').files[0].text()";
        tab.driver.run_async(&format!("{focus}.then(() => setTimeout(arguments[0]))")).await;
        assert!(tab.is("document.querySelector('#f-tasks').value.includes('edited')").await);
        std::fs::remove_file(file).unwrap();
    })
    .await;
}

#[tokio::test]
async fn late_suggestions_do_not_replace_newer_ones() {
    let fleet = fleet().await;
    with_browser(&fleet, "suggestions", async |tab| {
        tab.go("/help").await;
        page(tab, "/help").await;
        let hold = "window.asked = []; const real = window.fetch; window.fetch = (url, ...rest) => \
                    url.includes('/ui/suggestions') ? new Promise((answer) => asked.push(answer)) : real(url, ...rest);";
        tab.driver.run(hold).await;
        tab.fill("#search", "ty").await;
        tab.wait("asked.length == 1").await;
        tab.fill("#search", "pe").await;
        tab.wait("asked.length == 2").await;
        let answer = "const reply = (value) => new Response(JSON.stringify([{value, label: value}])); \
                      asked[1](reply('newer')); asked[0](reply('late')); setTimeout(arguments[0], 100);";
        tab.driver.run_async(answer).await;
        assert!(tab.is("document.querySelector('#suggestions').options[0].value == 'newer'").await);
    })
    .await;
}
