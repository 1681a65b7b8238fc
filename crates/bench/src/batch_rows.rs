//! Handlers of `bench batch`, whose calls take 2 ms, with one task and with many.

use std::sync::OnceLock;
use std::time::Duration;

use kafleet_config::{BatchPolicy, TypePolicy};
use kafleet_handlers::{BatchContext, BatchTask, Context, Failure, Item, Registry, TaskResult, TypeRegistration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NOOP;

/// Time of a call.
pub(super) const CALL: Duration = Duration::from_millis(2);

/// Type of the worker. `max`: tasks in a call; `None`: one. `bad`: id of the task whose calls fail.
pub(super) fn rows(slots: u32, max: Option<u32>, bad: Option<String>) -> Registry {
    let mut registry = Registry::default();
    let registered = match max {
        Some(max) => {
            let registered = TypeRegistration::of::<Row>();
            let batch = registered.policy.batch.clone().map(|batch| BatchPolicy { max, ..batch });
            let policy = TypePolicy { concurrency: Some(slots), batch, ..registered.policy.clone() };
            TypeRegistration { policy, ..registered }
        }
        None => {
            let policy = TypePolicy { concurrency: Some(slots), ..TypePolicy::default() };
            TypeRegistration { policy, ..TypeRegistration::of_fn(single) }
        }
    };
    registry.add(NOOP, registered);
    if let Some(bad) = bad {
        BAD_ROW.get_or_init(|| bad);
    }
    registry
}

/// Id of the task whose calls fail, in a worker that has one.
static BAD_ROW: OnceLock<String> = OnceLock::new();

/// Params of the tasks.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Row {
    order: u64,
}

impl BatchTask for Row {
    const TYPE: &'static str = NOOP;
    type Output = ();

    async fn run_batch(items: Vec<Item<Self>>, _: BatchContext) -> TaskResult<Vec<TaskResult<()>>> {
        tokio::time::sleep(CALL).await;
        match BAD_ROW.get().and_then(|bad| items.iter().find(|item| item.cx.id.as_str() == bad)) {
            Some(item) => Err(Failure::fail(format!("the order {} cannot be stored", item.order))),
            None => Ok(items.iter().map(|_| Ok(())).collect()),
        }
    }
}

/// Call with one task.
async fn single(_: Row, _: Context) -> TaskResult<()> {
    tokio::time::sleep(CALL).await;
    Ok(())
}
