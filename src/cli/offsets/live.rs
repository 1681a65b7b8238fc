//! Telling running workers where to begin: Kafka takes no commits from outside while their group has members.

use std::sync::Arc;
use std::time::Duration;

use super::Placed;
use crate::broker::Broker;
use crate::broker::shared_producer::SharedProducer;
use crate::cli::exit::{Code, Failure};
use crate::cli::setup::CALL_DEADLINE;
use crate::config::Names;
use crate::control::{self, CONTROL_VERSION, ControlKey, ControlRecord, ControlState, ControlWatch, Offsets};
use crate::runtime::now_ms;

/// How long the workers may take to obey.
const OBEY_DEADLINE: Duration = Duration::from_secs(20);

/// Writes an order for each partition, and waits until workers have obeyed and removed them. What is not obeyed is taken
/// back, and an error.
pub async fn tell(broker: Arc<dyn Broker>, names: &Names, task_type: &str, placed: &[Placed]) -> Result<(), Failure> {
    let link = SharedProducer::open(broker.clone(), None).map_err(Failure::failed)?;
    let board = ControlWatch::new(ControlState::without_cancels());
    let _keeping = control::keep(board.clone(), broker, names, None);
    board.whole_within(CALL_DEADLINE, names).await.map_err(Failure::unavailable)?;
    let key = |one: &Placed| ControlKey::Offsets(task_type.to_owned(), one.partition);
    let mut last = 0;
    for one in placed {
        let said = ControlRecord::Offsets(Offsets { v: CONTROL_VERSION, at_ms: now_ms(), offset: one.now });
        last = control::order(&link, names, &key(one), &said).await.map_err(Failure::unavailable)?.offset;
    }
    let open = || -> Vec<&Placed> {
        let orders = board.orders();
        placed.iter().filter(|one| orders.offsets.contains_key(&(task_type.to_owned(), one.partition))).collect()
    };
    let obeyed = async {
        board.reached(last).await;
        let mut changes = board.changes();
        while !open().is_empty() && changes.changed().await.is_ok() {}
    };
    let outcome = tokio::time::timeout(OBEY_DEADLINE, obeyed).await;
    if outcome.is_ok() {
        return Ok(());
    }
    let left = open();
    for one in &left {
        control::withdraw(&link, names, &key(one)).await.map_err(Failure::unavailable)?;
    }
    let partitions: Vec<String> = left.iter().map(|one| one.partition.to_string()).collect();
    Err(Failure::new(
        Code::Failed,
        format_args!(
            "no worker has taken up partition {} of `{task_type}` within {} s",
            partitions.join(", "),
            OBEY_DEADLINE.as_secs()
        ),
    )
    .hint(format_args!("stop the workers of `{task_type}`, run this again, then start them")))
}
