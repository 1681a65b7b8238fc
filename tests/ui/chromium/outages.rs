//! Open pages while Redis or Kafka are away.

use serde_json::json;

use super::{STARTED, with_browser};
use crate::api::fixture::fleet;

#[tokio::test]
async fn open_page_survives_an_outage_of_the_store() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    fleet.folded().await;
    with_browser(&fleet, "store-away", async |tab| {
        tab.go("/tasks/order").await;
        tab.wait(STARTED).await;
        let outage = fleet.faults.store_outage();
        tab.wait("document.querySelector('#trouble').textContent.startsWith('not live since')").await;
        assert!(tab.is("document.querySelector('main').dataset.state == 'queued'").await, "the page stays");
        tab.click("nav.wide a[href='/tasks']").await;
        tab.see("store_unavailable").await;
        tab.see("Without the store these still work").await;
        tab.screenshot("store-away").await;
        tab.click("nav.wide a[href='/workers']").await;
        tab.wait("location.pathname == '/workers' && !document.querySelector('main .problem')").await;
        tab.go("/tasks/order").await;
        outage.lift();
        fleet.succeed("order", json!(7)).await;
        tab.wait("document.querySelector('main').dataset.state == 'succeeded'").await;
        tab.wait("document.querySelector('#trouble').hidden").await;
    })
    .await;
}

#[tokio::test]
async fn failed_page_recovers_although_nothing_changes() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    fleet.folded().await;
    with_browser(&fleet, "failed-page", async |tab| {
        let outage = fleet.faults.store_outage();
        tab.go("/tasks/order").await;
        tab.see("store_unavailable").await;
        tab.wait("document.querySelector('#trouble').textContent.startsWith('not live since')").await;
        outage.lift();
        tab.wait("document.querySelector('main').dataset.state == 'queued'").await;
        tab.wait("document.querySelector('#trouble').hidden").await;
    })
    .await;
}

#[tokio::test]
async fn pages_say_that_kafka_is_away_and_show_the_rest() {
    let fleet = fleet().await;
    fleet.echo("order").await;
    fleet.folded().await;
    with_browser(&fleet, "kafka-away", async |tab| {
        fleet.faults.kafka_outage();
        tab.go("/tasks/order").await;
        tab.see("kafka_unavailable").await;
        assert!(tab.is("document.querySelector('main').dataset.state == 'queued'").await, "the rest is shown");
        tab.screenshot("kafka-away").await;
    })
    .await;
}
