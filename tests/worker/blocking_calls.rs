//! Blocking calls of handlers run on threads that the worker does not need itself.

use std::time::Duration;

use kafleet::handlers::Child;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::units::duration::Millis;
use serde_json::{Value, json};

use crate::worker::fleet::{eventually, memory};
use crate::worker::types::{Kind, ok};

/// A type whose blocking calls return when the file exists, also after the end of their attempts.
fn calls(gate: std::path::PathBuf) -> Kind {
    let kind = Kind::new("calls", move |_, cx| {
        let gate = gate.clone();
        async move {
            let call = move || {
                while !gate.exists() {
                    // Blocks its thread until the test lets it go.
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            };
            cx.blocking(call).await?;
            ok(json!(null))
        }
    });
    kind.slots(4).retries(0, Millis(20)).timeout(Millis::secs(3))
}

#[test]
fn hanging_calls_keep_their_slots_and_leave_threads_to_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("open");
    // Four blocking threads for the worker itself.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let parent = Kind::new("parent", |_: Value, cx| async move {
            cx.spawn_child(Child::new("echo", json!(1)));
            ok(json!(null))
        });
        let (fleet, _) = memory(1, &[calls(gate.clone()), parent, Kind::echo("echo")]).await;
        let worker = fleet.worker();
        fleet.send_many("calls", "c", 4, "0").await;
        for end in fleet.wait_for_results(4).await {
            assert_eq!(end.payload.error().unwrap().kind, "timeout", "the timeout is published in time");
        }
        eventually("the slots count as stuck", async || worker.metric("kafleet_slots_stuck", "calls") == 4.0).await;
        // Looking up the topics of its children blocks a thread.
        fleet.send("parent", "p", "0").await;
        assert_eq!(fleet.result_of("p").await.kind(), EventKind::Succeeded);
        fleet.send("calls", "next", "0").await;
        std::fs::write(&gate, "").unwrap();
        assert_eq!(fleet.result_of("next").await.kind(), EventKind::Succeeded);
        eventually("the slots are free", async || worker.metric("kafleet_slots_stuck", "calls") == 0.0).await;
        worker.stop().await;
        fleet.assert_clean("calls").await;
    });
}
