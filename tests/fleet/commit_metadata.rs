//! A worker resumes a partition from a handwritten commit in the documented metadata format.

use kafleet::broker::{Commit, Partition};
use kafleet::model::record::state::State;
use serde_json::json;

use crate::fleet::in_process::{DEADLINE, Fleet};

/// `r:AQQC` are run lengths from the committed offset on: 1 open, 4 done, 2 open. Open tasks run; done ones do not
/// run again.
async fn worker_resumes_from_handwritten_commit(mut fleet: Fleet) {
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
        fleet.publisher.producer().deliver(record, DEADLINE).await.unwrap();
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
        assert_eq!(fleet.wait_for_end(&format!("t-{n}")).await.state, State::Succeeded);
    }
    // A task behind all others has ended, so the whole partition is done.
    let last = fleet.publish("echo", "last", &json!(1)).await;
    fleet.wait_for_end("last").await;
    fleet.get(&format!("/v1/tasks/last?after={}", last.position)).await;
    for n in [0, 2, 3, 4, 5] {
        // The announcer may have announced the task, but no worker has run it.
        let task_record = fleet.record(&format!("t-{n}")).await;
        assert!(
            task_record.is_none_or(|task_record| task_record.state == State::Queued),
            "`t-{n}` was already done and ran again"
        );
    }
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

cases! {
    worker_resumes_from_handwritten_commit,
}
