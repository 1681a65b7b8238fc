//! A worker takes up a partition from a commit that was written by hand, in the documented format.

use kafleet::broker::{Commit, Partition};
use kafleet::model::record::state::State;
use serde_json::json;

use crate::inside::{DEADLINE, Fleet};

/// `r:AQQC`: from the committed offset on, 1 not done, 4 done, 2 not done. What is done is not run again, the rest is.
async fn a_commit_written_by_hand_is_read(mut fleet: Fleet) {
    for n in 0..8 {
        let headers = [("ce_id", format!("t-{n}"))];
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let topic = fleet.names.tasks("echo");
        let record = kafleet::broker::ProducerRecord {
            topic: &topic,
            partition: Some(2),
            key: None,
            value: Some(b"{\"n\":1}"),
            headers: &headers,
        };
        fleet.publisher.link().deliver(record, DEADLINE).await.unwrap();
    }
    let commit = Commit {
        partition: Partition::new(fleet.names.tasks("echo"), 2),
        offset: 1,
        metadata: "kf1 open 500 0 r:AQQC".to_owned(),
    };
    let (broker, group) = (fleet.broker.clone(), fleet.names.group("echo"));
    tokio::task::spawn_blocking(move || broker.set_group_offsets(&group, &[commit], DEADLINE)).await.unwrap().unwrap();
    fleet.start_worker();
    for n in [1, 6, 7] {
        assert_eq!(fleet.ended(&format!("t-{n}")).await.state, State::Succeeded);
    }
    // Everything of the partition is done by now: a task behind them all has run.
    let last = fleet.publish("echo", "last", &json!(1)).await;
    fleet.ended("last").await;
    fleet.get(&format!("/v1/tasks/last?after={}", last.position)).await;
    for n in [0, 2, 3, 4, 5] {
        // The tracker may have announced it: what it says is that it was never run.
        let node = fleet.node(&format!("t-{n}")).await;
        assert!(node.is_none_or(|node| node.state == State::Queued), "`t-{n}` was done already");
    }
    fleet.agrees().await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_memory() {
    a_commit_written_by_hand_is_read(Fleet::in_memory().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_kafka_and_redis() {
    let Some(fleet) = Fleet::real().await else { return };
    a_commit_written_by_hand_is_read(fleet).await;
}
