//! Pictures of all pages on three fleets in four views, for people to look at: `target/screenshots/FLEET-PAGE-VIEW.png`.
//! `tests/screenshot --all` takes them.

use kafleet::model::units::duration::Millis;
use kafleet_testkit::services;
use serde_json::json;

use super::{PHONE_DARK, PHONE_LIGHT, View, WIDE_DARK, WIDE_LIGHT, with_browser};
use crate::api::fixture::{Fleet, fleet};
use crate::ui::load::publish_tree;
use crate::ui::shop::{OldTask, Past, Shop, TYPES, named, shop};
use crate::ui::visits::documents;

/// Set for a run that takes pictures; other runs have no use for them.
const PICTURES: &str = "KAFLEET_PICTURES";

/// Both themes of a window: its page is loaded once.
const WINDOWS: [[View; 2]; 2] = [[WIDE_LIGHT, WIDE_DARK], [PHONE_LIGHT, PHONE_DARK]];

/// Tasks of the tree of the large fleet.
const LARGE: usize = 30_000;
/// Children of its tasks that have some.
const CHILDREN: usize = 1_000;
/// Types, and failed tasks with an error of their own, of the large fleet.
const NUMBER: u64 = 150;

/// Name of a page in its pictures.
fn name_of(path: &str) -> String {
    let name: String = path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let end = &name[name.len().saturating_sub(60)..];
    if name == "-" { "overview".to_owned() } else { end.trim_matches('-').to_owned() }
}

/// `more`: pages besides those of the table.
async fn take_pictures(fleet: &str, shop: &Shop, more: &[String]) {
    let pages = [documents(shop).await, more.to_vec()].concat();
    with_browser(&shop.fleet, fleet, async |tab| {
        for path in &pages {
            for views in WINDOWS {
                tab.resize(views[0].width).await;
                tab.open(path).await;
                for view in views {
                    tab.set_theme(view.theme).await;
                    tab.screenshot(&format!("{fleet}-{}-{}", name_of(path), view.name)).await;
                }
            }
        }
    })
    .await;
}

fn are_wanted() -> bool {
    std::env::var_os(PICTURES).is_some() && services::address("KAFLEET_TEST_BROWSER").is_some()
}

#[tokio::test]
async fn pictures_of_a_shop_are_taken() {
    if are_wanted() {
        let shop = shop().await;
        let more = unique_pages(&shop.fleet).await;
        take_pictures("shop", &shop, &more).await;
    }
}

#[tokio::test]
async fn pictures_of_an_empty_fleet_are_taken() {
    if are_wanted() {
        take_pictures("empty", &Shop { fleet: fleet().await, bulk: "none".into() }, &[]).await;
    }
}

#[tokio::test]
async fn pictures_of_a_large_fleet_are_taken() {
    if are_wanted() {
        let fleet = fleet().await;
        fleet.create_topics(&TYPES);
        publish_tree(&fleet, LARGE, CHILDREN).await;
        add_many(&fleet).await;
        take_pictures("big", &Shop { fleet, bulk: "none".into() }, &[]).await;
    }
}

/// Submits an open and a kept task of one key. Returns the pages about them.
async fn unique_pages(fleet: &Fleet) -> Vec<String> {
    let unique = json!({"key": "customer-42", "mode": "latest"});
    let mut pages = Vec::new();
    for n in 0..2 {
        let task =
            fleet.submitted(json!({"type": "resize", "params": {"url": "a", "width": n}, "unique": unique})).await;
        pages.push(format!("/tasks/{}", task.id));
    }
    fleet.folded().await;
    let forget = format!("{}/forget-key", pages[0]);
    pages.push(forget);
    pages
}

/// Adds many types, schedules, kill switches and messages of an error.
async fn add_many(fleet: &Fleet) {
    for n in 0..NUMBER {
        let (id, task_type) = (format!("import-{n}"), format!("import-of-supplier-{n}"));
        fleet.announce(&id, &task_type, None).await;
        let (id, policy) = (format!("order-{n}"), named(&format!("order of customer {n}"), "shop"));
        fleet.old_task(OldTask { id: &id, task_type: "charge", age: Millis::secs(60 + n), policy }).await;
        let customer = "x".repeat(n as usize % 40 + 1);
        fleet
            .old_failure(&id, 1, [50, 49].map(Millis::secs), ("PaymentDeclined", &format!("card of {customer}")))
            .await;
    }
    for n in 0..NUMBER / 5 {
        let spec = json!({"every": "1h", "task": {"type": "echo", "params": {}}});
        fleet.post("/v1/schedules", json!({"id": format!("hourly-{n}"), "spec": spec})).await;
    }
    fleet.folded().await;
}
