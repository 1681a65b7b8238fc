//! Every page at each width, in both themes: no accessibility violations, no sideways scroll. Leaves screenshots.

use kafleet::broker::{Broker, TopicSpec};
use kafleet::config::Role;
use kafleet::runtime::now_ms;
use kafleet_testkit::services;
use serde_json::{Value, json};

use super::{ENTER, NARROW, Tab, WIDE, with_browser};
use crate::api::dead_letters::{LETTER, NewLetter};
use crate::api::fixture::{DEADLINE, Fleet};
use crate::api::why::send_heartbeat_of;
use crate::ui::browser::{guarded_fleet, token};
use crate::ui::pages::{OF_TASK, PLAIN, fleet_with_tree};

/// Width of a usual window at a zoom of 200 %.
const ZOOMED: u32 = WIDE / 2;
/// Pages besides those without data and those of a task.
const OTHERS: &[&str] = &[
    "/tasks?q=type:echo+state:failed+level:any",
    "/tasks?q=stat:failed",
    "/bulk/new?action=retry&q=type:echo+level:any",
    "/new?like=order",
];

fn pages() -> Vec<String> {
    let of_task = OF_TASK.iter().map(|page| format!("/tasks/order{page}"));
    let of_ids =
        [longest_id(), lowest_id()].map(|id| ["", "/tree", "/timeline"].map(|page| format!("/tasks/{id}{page}")));
    let of_task = of_task.chain(of_ids.into_iter().flatten());
    PLAIN.iter().chain(OTHERS).chain(OF_DATA).map(|page| (*page).to_owned()).chain(of_task).collect()
}

/// Name of a page's screenshots.
fn name_of(path: &str) -> String {
    let name: String = path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let end = &name[name.len().saturating_sub(60)..];
    if name == "-" { "overview".to_owned() } else { end.trim_matches('-').to_owned() }
}

/// Id of the greatest length, of the longest possible segments.
fn longest_id() -> String {
    [128, 128, 128, 125].map(|length| "w".repeat(length)).join(":")
}

/// Id of a task at the lowest possible level.
fn lowest_id() -> String {
    vec!["level"; 64].join(":")
}

/// Pages of what a [`fleet_with_data`] contains.
const OF_DATA: &[&str] = &[
    "/dead-letters/echo:0:0",
    "/dead-letters/echo:0:0/redrive",
    "/dead-letters/echo:0:0/edit",
    "/workers/node-7",
    "/schedules/nightly",
    "/schedules/nightly/edit",
    "/tasks/thumb",
];

async fn fleet_with_data() -> Fleet {
    let fleet = fleet_with_tree().await;
    fleet.create(json!({"type": "resize", "id": "thumb", "params": {"url": "a", "width": 1}, "delay": "1h"})).await;
    let topic =
        |name: &str| TopicSpec { name: fleet.names.dead(name), partitions: 1, replication: None, config: Vec::new() };
    fleet.log.apply_topics(&[topic("echo"), topic("resize")], DEADLINE).unwrap();
    fleet.letter(NewLetter { task: Some(("order:fetch", 1)), key: "order:fetch", at_ms: now_ms(), ..LETTER }, 0).await;
    send_heartbeat_of(&fleet, "node-7", 8, 1, &["order:fetch"]).await;
    let spec = json!({"cron": "0 3 * * MON-FRI", "timezone": "Europe/Berlin", "task": {"type": "echo", "params": {}}});
    let (status, answer) = fleet.post("/v1/schedules", json!({"id": "nightly", "spec": spec})).await;
    assert_eq!(status, 201, "{answer}");
    for id in [longest_id(), lowest_id()] {
        fleet.announce(&id, "echo", None).await;
    }
    let lines = json!({"lines": ["connecting to 10.0.0.7", "no answer within 2 s", "connecting to 10.0.0.8"]});
    fleet.post("/v1/tasks/order/log", lines).await;
    fleet.folded().await;
    fleet
}

#[tokio::test]
async fn pages_are_accessible_in_both_themes() {
    let fleet = fleet_with_data().await;
    with_browser(&fleet, "accessible", async |tab| {
        let folder = services::address("KAFLEET_TEST_BROWSER").unwrap();
        let checker = std::fs::read_to_string(format!("{folder}/axe.min.js")).unwrap();
        // The checker is no script of the pages.
        tab.driver.devtools("Page.setBypassCSP", json!({"enabled": true})).await;
        let mut violations = Vec::new();
        for path in pages() {
            tab.go(&path).await;
            tab.driver.run(&checker).await;
            for theme in ["light", "dark"] {
                tab.set_theme(theme).await;
                let found = violations_of(tab).await;
                violations.extend(found.into_iter().map(|found| format!("{path} {theme}: {found}")));
                tab.screenshot(&format!("{}-wide-{theme}", name_of(&path))).await;
            }
        }
        assert!(violations.is_empty(), "{violations:#?}");
    })
    .await;
}

async fn violations_of(tab: &Tab) -> Vec<String> {
    let script = "const done = arguments[arguments.length - 1];
        const text = (node) => `${node.target.join(' ')}: ${node.failureSummary}`;
        axe.run(document, {resultTypes: ['violations']}).then(
            (result) => done(result.violations.map((it) => `${it.id}: ${it.nodes.map(text).join('; ')}`)),
            (error) => done([String(error)]));";
    let violations = tab.driver.run_async(script).await;
    violations.as_array().unwrap().iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[tokio::test]
async fn pages_fit_narrow_and_zoomed_windows() {
    let fleet = fleet_with_data().await;
    with_browser(&fleet, "narrow", async |tab| {
        let mut wide = Vec::new();
        for path in pages() {
            for width in [ZOOMED, NARROW] {
                tab.resize(width).await;
                tab.go(&path).await;
                if !tab.is("document.documentElement.scrollWidth <= innerWidth").await {
                    wide.push(format!("{path} at {width} px"));
                }
            }
            for theme in ["light", "dark"] {
                tab.set_theme(theme).await;
                tab.screenshot(&format!("{}-narrow-{theme}", name_of(&path))).await;
            }
        }
        assert!(wide.is_empty(), "these scroll sideways: {wide:#?}");
    })
    .await;
}

#[tokio::test]
async fn login_page_fits_and_grants_the_role_of_the_token() {
    let fleet = guarded_fleet().await;
    with_browser(&fleet, "login", async |tab| {
        for width in [WIDE, NARROW] {
            tab.resize(width).await;
            tab.go("/").await;
            assert!(tab.path().await.starts_with("/login"));
            assert!(tab.is("document.documentElement.scrollWidth <= innerWidth").await);
            for theme in ["light", "dark"] {
                tab.set_theme(theme).await;
                tab.screenshot(&format!("login-{width}-{theme}")).await;
            }
        }
        tab.fill("input[name=token]", &token(Role::Read)).await;
        tab.press(ENTER).await;
        tab.wait("location.pathname == '/'").await;
        assert!(!tab.is("document.querySelector('header a[href=\"/new\"]')").await, "the role `read` submits nothing");
    })
    .await;
}
