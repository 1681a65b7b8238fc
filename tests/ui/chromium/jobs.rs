//! The eight jobs of an operator, from the overview, with the number of actions that each may take.

use std::collections::BTreeMap;

use kafleet::broker::{Broker, Partition};
use kafleet::config::ApiConfig;
use kafleet::documents::{BulkProgress, Status, TaskPage, TypeDocument};
use kafleet::model::event::{AttemptFailure, Kind, Payload};
use kafleet::model::record::state::State;
use kafleet::model::task::Policy;
use kafleet::model::units::duration::Millis;
use kafleet::runtime::now_ms;
use reqwest::Method;
use serde_json::{Value, json};

use super::operator::Operator;
use super::{COMPLETE, Turn, is_in_run};
use crate::api::dead_letters::{LETTER, NewLetter};
use crate::api::fixture::{DEADLINE, Fleet, eventually, fleet, unfolded};
use crate::api::why::send_heartbeat_of;
use crate::cli::client::Dev;
use crate::ui::shop::{OldTask, Past, TYPES, retrying};

/// Fleet with the types of a shop.
async fn fleet_of_a_shop() -> Fleet {
    let fleet = fleet().await;
    fleet.create_topics(&TYPES);
    fleet
}

/// Adds an order of a customer with a payment, which ends by itself; the order has done its own work.
async fn add_order(fleet: &Fleet, id: &str, customer: &str) {
    let name = format!("order of {customer}");
    let tag = format!("shop-{id}");
    fleet.submitted(json!({"type": "order", "id": id, "name": name, "tags": [tag]})).await;
    let payment =
        json!({"type": "charge", "id": "charge", "parent": id, "params": {"customer": customer, "amount": 7}});
    fleet.submitted(payment).await;
    fleet.succeed(id, json!(1)).await;
}

async fn fail(fleet: &Fleet, id: &str, kind: &str, message: &str) {
    fleet.publish_event(id, Payload::Failed(AttemptFailure::new(kind, message, 1)), |event| event.attempt = 1).await;
}

/// Ids and customers of trees whose payment was declined.
const DECLINED: [(&str, &str); 3] = [("order-41", "Ada"), ("order-42", "Ken"), ("order-43", "Alan")];

#[tokio::test]
async fn cause_of_failed_tasks_is_read_and_a_kind_retried_with_two_actions() {
    let Some(turn) = Turn::take().await else { return };
    let fleet = fleet_of_a_shop().await;
    for (id, customer) in DECLINED {
        add_order(&fleet, id, customer).await;
        fail(&fleet, &format!("{id}:charge"), "PaymentDeclined", &format!("card of {customer}")).await;
    }
    add_order(&fleet, "order-44", "Grace").await;
    fail(&fleet, "order-44:charge", "GatewayTimeout", "no answer within 2 s").await;
    fleet.folded().await;
    turn.run(&fleet.base, "job-failures", async |tab| {
        let operator = Operator::at_overview(tab).await;
        operator.reads(&["charge", "PaymentDeclined", "GatewayTimeout"]).await;
        operator.click_in("PaymentDeclined", "Retry…").await;
        operator.reads(&["3 of 3 matching tasks would change"]).await;
        operator.click("Retry 3 tasks").await;
        operator.reads(&["The bulk action was requested."]).await;
        assert!(operator.actions() <= 2, "{} actions", operator.actions());
        for (id, _) in DECLINED {
            is_in_run(&fleet, &format!("{id}:charge"), 2).await;
        }
    })
    .await;
    assert_eq!(fleet.get::<Status>("/v1/tasks/order-44:charge").await.run, 1, "of another kind");
}

#[tokio::test]
async fn reason_of_a_stuck_tree_is_found_with_two_actions() {
    let Some(turn) = Turn::take().await else { return };
    let fleet = fleet_of_a_shop().await;
    for (id, customer) in [("order-41", "Ada"), ("order-42", "Alan")] {
        add_order(&fleet, id, customer).await;
    }
    fleet.succeed("order-41:charge", json!(1)).await;
    let due_ms = now_ms() + 600_000;
    let error = ("GatewayTimeout", "no answer within 2 s");
    fleet.old_event("order-42:charge", 1, Millis::secs(120), Kind::Started).await;
    fleet.old_event("order-42:charge", 1, Millis::secs(110), retrying(error, Some(due_ms), 0)).await;
    fleet.folded().await;
    turn.run(&fleet.base, "job-stuck", async |tab| {
        let operator = Operator::at_overview(tab).await;
        operator.search("alan is:open").await;
        operator.reads(&["order of Alan"]).await;
        operator.click("order-42").await;
        tab.wait("location.pathname == '/tasks/order-42'").await;
        operator.reads(&["order-42:charge", "GatewayTimeout", "no answer within 2 s"]).await;
        // The next attempt, as a time that every reader understands.
        let times = "[...document.querySelectorAll('main time')].map((it) => Date.parse(it.dateTime))";
        assert!(tab.is(&format!("{times}.some((at) => Math.abs(at - {due_ms}) < 1000)")).await, "{}", tab.text().await);
        assert!(operator.actions() <= 2, "{} actions", operator.actions());
        let leads = "[...document.querySelectorAll('main a')].some((it) => it.pathname == '/tasks/order-42:charge')";
        assert!(tab.is(leads).await, "the reason leads to its task");
    })
    .await;
}

/// Fleet in which as many tasks have come in and gone out in each of the last minutes, with a worker.
async fn fleet_with_flow(incoming: u64, outgoing: u64) -> Fleet {
    const MINUTES: u64 = 8;
    let fleet = unfolded(ApiConfig::default()).await;
    let task = async |id: String, age| {
        fleet.old_task(OldTask { id: &id, task_type: "echo", age, policy: Policy::default() }).await;
    };
    for minute in (1..=MINUTES).rev() {
        let age = Millis::secs(60 * minute);
        fleet.log_clock.set_age(age);
        if minute == MINUTES {
            for n in 0..MINUTES * outgoing {
                task(format!("first-{n}"), age).await;
            }
        }
        for n in 0..incoming {
            task(format!("later-{minute}-{n}"), age).await;
        }
        for n in 0..outgoing {
            let id = format!("first-{}", (minute - 1) * outgoing + n);
            fleet.old_success(&id, 1, [age, age]).await;
        }
    }
    fleet.log_clock.set_age(Millis::secs(0));
    fleet.track();
    send_heartbeat_of(&fleet, "node-7", 8, 1, &[]).await;
    fleet.folded().await;
    fleet
}

#[tokio::test]
async fn health_and_end_of_the_backlog_are_read_without_an_action() {
    let Some(turn) = Turn::take().await else { return };
    let fleet = fleet_with_flow(5, 20).await;
    turn.run(&fleet.base, "job-health", async |tab| {
        let operator = Operator::at_overview(tab).await;
        operator.reads(&["All is well: 1 worker", "no new error", "echo", "drained in "]).await;
        assert_eq!(operator.actions(), 0);
    })
    .await;
}

#[tokio::test]
async fn growth_of_the_backlog_is_read_without_an_action() {
    let Some(turn) = Turn::take().await else { return };
    let fleet = fleet_with_flow(20, 5).await;
    turn.run(&fleet.base, "job-growth", async |tab| {
        let operator = Operator::at_overview(tab).await;
        operator.reads(&["Needs attention", "backlog grows", "will not drain"]).await;
        assert_eq!(operator.actions(), 0);
    })
    .await;
}

#[tokio::test]
async fn type_is_paused_limited_and_resumed_with_six_actions() {
    let Some(turn) = Turn::take().await else { return };
    let fleet = fleet().await;
    fleet.echo("waits").await;
    fleet.folded().await;
    let echo = async || fleet.get::<TypeDocument>("/v1/types/echo").await;
    turn.run(&fleet.base, "job-limits", async |tab| {
        let operator = Operator::at_overview(tab).await;
        // From its row, or from its page.
        if !operator.is_offered_in("echo", "Pause…").await {
            operator.click_in("echo", "echo").await;
        }
        operator.click("Pause…").await;
        operator.click("Pause the type").await;
        operator.reads(&["Paused."]).await;
        assert!(echo().await.paused.is_some());
        // On the page itself, or in a dialog.
        tab.wait(COMPLETE).await;
        if !operator.has_field("Slots").await {
            operator.click("Limits…").await;
        }
        operator.fill("Slots", "3").await;
        operator.click("Set").await;
        eventually("the limit", async || echo().await.limits.slots == Some(3)).await;
        operator.click("Resume").await;
        eventually("the resumption", async || echo().await.paused.is_none()).await;
        assert!(operator.actions() <= 6, "{} actions", operator.actions());
    })
    .await;
}

#[tokio::test]
async fn task_is_found_by_id_name_tag_and_a_part_of_its_id_with_one_action_each() {
    let Some(turn) = Turn::take().await else { return };
    let fleet = fleet_of_a_shop().await;
    add_order(&fleet, "order-42", "Lovelace").await;
    add_order(&fleet, "c2f4e8a1-0b7d-4c11-9a53-77d1a0c9b0aa", "Thompson").await;
    fleet.folded().await;
    turn.run(&fleet.base, "job-find", async |tab| {
        for (text, found) in [
            ("Lovelace", "order-42"),
            ("tag:shop-order-42", "order-42"),
            ("order-4", "order-42"),
            ("c2f4e8a1", "c2f4e8a1-0b7d-4c11-9a53-77d1a0c9b0aa"),
        ] {
            let operator = Operator::at_overview(tab).await;
            operator.search(text).await;
            tab.wait(&format!("location.pathname != '/' && {COMPLETE}")).await;
            operator.reads(&[found]).await;
            assert_eq!(operator.actions(), 1, "{text}");
            let others = if found == "order-42" { "Thompson" } else { "Lovelace" };
            assert!(!tab.text().await.contains(others), "{text} finds only {found}");
        }
        let operator = Operator::at_overview(tab).await;
        operator.search("order-42").await;
        tab.wait("location.pathname == '/tasks/order-42'").await;
        assert_eq!(operator.actions(), 1);
    })
    .await;
}

/// Types whose tasks are found by the customer in their params.
const INDEXED: &str = r#"
[types.order]
handler = "echo"
index = ["/customer"]
"#;

#[tokio::test]
async fn task_is_found_by_a_param_with_one_action() {
    let Some(turn) = Turn::take().await else { return };
    let dev = Dev::of_types(INDEXED, &["--no-sample"]);
    for (id, customer) in [("order-41", "Ken"), ("order-42", "Ada")] {
        dev.run(&["submit", "order", &json!({"customer": customer}).to_string(), "--id", id]).exits_with(0);
        dev.wait_until_visible(id);
    }
    turn.run(dev.api(), "job-params", async |tab| {
        let operator = Operator::at_overview(tab).await;
        operator.search("params.customer:Ada").await;
        tab.wait(&format!("location.pathname != '/' && {COMPLETE}")).await;
        operator.reads(&["order-42"]).await;
        assert_eq!(operator.actions(), 1);
        assert!(!tab.text().await.contains("order-41"), "of another customer");
    })
    .await;
}

#[tokio::test]
async fn queued_tasks_are_cancelled_safely_with_five_actions() {
    const QUEUED: usize = 200;
    let Some(turn) = Turn::take().await else { return };
    let fleet = fleet().await;
    let tasks: Vec<Value> = (0..QUEUED).map(|n| json!({"type": "echo", "id": format!("t{n}")})).collect();
    let answer = fleet.request(Method::POST, "/v1/batches").json(&tasks).send().await.unwrap();
    assert!(answer.status().is_success());
    fleet.folded().await;
    turn.run(&fleet.base, "job-cancel", async |tab| {
        let operator = Operator::at_overview(tab).await;
        operator.click("200 queued").await;
        tab.wait(&format!("location.pathname == '/tasks' && {COMPLETE}")).await;
        operator.click("Cancel all…").await;
        operator.reads(&["200 of 200 matching tasks would change"]).await;
        operator.fill("To confirm, type 200", "200").await;
        operator.click("Cancel 200 tasks").await;
        operator.reads(&["The bulk action was requested."]).await;
        assert!(operator.actions() <= 5, "{} actions", operator.actions());
        assert_eq!(ended_bulk_action(&fleet).await.done, QUEUED as u64);
    })
    .await;
}

/// Waits until the newest bulk action has ended well.
async fn ended_bulk_action(fleet: &Fleet) -> BulkProgress {
    let action = eventually("the end of the bulk action", async || {
        let newest = fleet.get::<TaskPage>("/v1/bulk").await.tasks.into_iter().next();
        newest.filter(|action| action.state.is_terminal())
    })
    .await;
    assert_eq!(action.state, State::Succeeded, "{action:?}");
    BulkProgress::of(&action)
}

#[tokio::test]
async fn letters_of_a_kind_are_redriven_with_a_changed_param_with_five_actions() {
    let Some(turn) = Turn::take().await else { return };
    let fleet = fleet_of_a_shop().await;
    for (n, (id, customer)) in DECLINED.into_iter().enumerate() {
        add_order(&fleet, id, customer).await;
        let task = format!("{id}:charge");
        fail(&fleet, &task, "PaymentDeclined", &format!("card of {customer}")).await;
        let params = json!({"customer": customer, "amount": 7}).to_string();
        let letter = NewLetter {
            task_type: "charge",
            key: &task,
            task: Some((&task, 1)),
            at_ms: now_ms() + n as i64,
            value: params.as_bytes(),
            ..LETTER
        };
        fleet.letter(letter, 0).await;
    }
    fleet.folded().await;
    turn.run(&fleet.base, "job-redrive", async |tab| {
        let operator = Operator::at_overview(tab).await;
        operator.click("Failures").await;
        tab.wait(&format!("location.pathname == '/failures' && {COMPLETE}")).await;
        // In the row of the kind, or below the filter.
        if !operator.is_offered_in("PaymentDeclined", "Redrive").await {
            operator.click("dead letters").await;
        }
        operator.click_in("PaymentDeclined", "Redrive").await;
        operator.fill("Changed params", r#"{"amount": 5}"#).await;
        operator.click("Preview").await;
        operator.click("Redrive 3").await;
        operator.reads(&["The bulk action was requested."]).await;
        assert!(operator.actions() <= 5, "{} actions", operator.actions());
        for (id, _) in DECLINED {
            is_in_run(&fleet, &format!("{id}:charge"), 2).await;
        }
    })
    .await;
    // The other params stay.
    eventually("the new records", async || amounts(&fleet) == BTreeMap::from([(5, 3), (7, 3)])).await;
}

/// Amounts of the records of payments whose customer is stated, with the number of records of each.
fn amounts(fleet: &Fleet) -> BTreeMap<i64, usize> {
    let mut amounts = BTreeMap::new();
    for number in 0..2 {
        let partition = Partition::new(fleet.names.tasks("charge"), number);
        let ends = fleet.log.watermarks(&partition, DEADLINE).unwrap();
        for record in (ends.low..ends.high).filter_map(|offset| fleet.record(&partition, offset)) {
            let params: Value = serde_json::from_slice(&record.value.unwrap_or_default()).unwrap_or_default();
            if params["customer"].is_string() {
                *amounts.entry(params["amount"].as_i64().unwrap_or_default()).or_default() += 1;
            }
        }
    }
    amounts
}

#[tokio::test]
async fn today_is_compared_with_yesterday_with_one_action() {
    let Some(turn) = Turn::take().await else { return };
    let fleet = unfolded(ApiConfig::default()).await;
    let yesterday = (0..12).rev().map(|n| (23 * 60 + 10 * n, 20));
    for (minutes, tasks) in yesterday.chain([(10, 5)]) {
        let age = Millis::secs(60 * minutes);
        fleet.log_clock.set_age(age);
        for n in 0..tasks {
            let id = format!("t-{minutes}-{n}");
            fleet.old_task(OldTask { id: &id, task_type: "echo", age, policy: Policy::default() }).await;
            fleet.old_success(&id, 1, [age, age]).await;
        }
    }
    fleet.log_clock.set_age(Millis::secs(0));
    fleet.track();
    fleet.folded().await;
    turn.run(&fleet.base, "job-compare", async |tab| {
        let operator = Operator::at_overview(tab).await;
        operator.click("yesterday").await;
        tab.wait(&format!("location.search.includes('compare=yesterday') && {COMPLETE}")).await;
        tab.wait("/▼\\s*\\d+/.test(document.body.innerText)").await;
        assert_eq!(operator.actions(), 1);
    })
    .await;
}
