//! Task types of this project: an order is packed in parallel, and gets a receipt.

use std::process::ExitCode;
use std::time::Duration;

use kafleet::handlers::{Child, Context, Ended, Failure, Task, TaskResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Prices in cents.
const PRICES: &[(&str, u32)] = &[("cups", 1200), ("tea", 450)];

/// Packs each item in a task of its own, and has a receipt written at the end.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Order {
    customer: String,
    items: Vec<String>,
}

impl Task for Order {
    const TYPE: &'static str = "order";
    type Output = usize;

    async fn run(self, cx: Context) -> TaskResult<usize> {
        for (number, item) in self.items.iter().enumerate() {
            let pack = Pack { item: item.clone() };
            cx.spawn_child(Child::of(&pack).id(number.to_string()).name(item));
        }
        cx.then(Receipt::join(Customer {
            customer: self.customer,
        })?);
        Ok(self.items.len())
    }
}

/// Packs one item and returns its price.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Pack {
    item: String,
}

impl Task for Pack {
    const TYPE: &'static str = "pack";
    const RETRIES: u32 = 3;
    const TIMEOUT: Duration = Duration::from_secs(30);
    type Output = u32;

    async fn run(self, cx: Context) -> TaskResult<u32> {
        let Some((item, price)) = PRICES.iter().find(|(item, _)| *item == self.item) else {
            // Not retried.
            return Err(Failure::fail(format!("there is no {}", self.item)).of_kind("unknown_item"));
        };
        if cx.number == 1 {
            // Shows a retry: the next attempt starts after a second.
            return Err(Failure::retry("the warehouse does not answer"));
        }
        cx.log(format!("packing {item}"));
        Ok(*price)
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Customer {
    customer: String,
}

/// Adds up the prices, when all items of an order have been packed. Its params are those of `Order`, and the outcomes
/// of the order and of its children.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Receipt {
    params: Customer,
    task: Ended,
    results: Vec<Ended>,
}

impl Task for Receipt {
    const TYPE: &'static str = "receipt";
    type Output = String;

    async fn run(self, _: Context) -> TaskResult<String> {
        let prices = self
            .results
            .iter()
            .filter_map(|ended| ended.output::<u32>().ok());
        let total: u32 = prices.sum();
        Ok(format!(
            "{} pays {}.{:02}",
            self.params.customer,
            total / 100,
            total % 100
        ))
    }
}

/// Reports the stock. A schedule in kafleet.toml submits it.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Report {}

impl Task for Report {
    const TYPE: &'static str = "report";
    type Output = String;

    async fn run(self, _: Context) -> TaskResult<String> {
        Ok(format!("{} items are for sale", PRICES.len()))
    }
}

fn main() -> ExitCode {
    kafleet::app()
        .task::<Order>()
        .task::<Pack>()
        .task::<Receipt>()
        .task::<Report>()
        .main()
}

#[cfg(test)]
mod tests {
    use kafleet::handlers::Fail;
    use kafleet::handlers::testing::TestRun;
    use serde_json::json;

    use super::*;

    fn pack(item: &str) -> Pack {
        Pack { item: item.into() }
    }

    #[tokio::test]
    async fn order_spawns_a_task_for_each_item_and_a_receipt() {
        let order = Order {
            customer: "ada".into(),
            items: vec!["tea".into(), "cups".into()],
        };
        let run = TestRun::new().run(order).await;
        assert_eq!(run.output(), json!(2));
        assert_eq!(run.children[0].params, json!({"item": "tea"}));
        assert_eq!(run.children[1].params, json!({"item": "cups"}));
        assert_eq!(run.continuations[0].params, json!({"customer": "ada"}));
    }

    #[tokio::test]
    async fn item_is_packed_in_the_second_attempt() {
        let first = TestRun::new().run(pack("tea")).await;
        assert_eq!(first.failure().then, Fail::Retry { after: None });
        let second = TestRun::new().attempt(2).run(pack("tea")).await;
        assert_eq!(second.output(), json!(450));
        assert_eq!(second.log(), ["packing tea"]);
    }

    #[tokio::test]
    async fn unknown_item_is_not_retried() {
        let run = TestRun::new().run(pack("coffee")).await;
        assert_eq!(run.failure().then, Fail::Final);
        assert_eq!(run.failure().kind, "unknown_item");
    }

    #[tokio::test]
    async fn receipt_adds_up_the_prices() {
        let ended = |id: &str, output: u32| json!({"id": id, "type": "pack", "state": "succeeded", "output": output});
        let receipt: Receipt = serde_json::from_value(json!({
            "params": {"customer": "ada"},
            "task": ended("first", 2),
            "results": [ended("first:0", 450), ended("first:1", 1200)],
        }))
        .unwrap();
        assert_eq!(
            TestRun::new().run(receipt).await.output(),
            json!("ada pays 16.50")
        );
    }
}
