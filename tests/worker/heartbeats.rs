//! What workers tell of themselves.

use std::time::Instant;

use kafleet::control::beat::{Beat, BeatState};

use crate::fleet::{DEADLINE, Fleet, memory, pause, until};
use crate::types::{Gate, Journal, gated};

async fn last_beat(fleet: &Fleet) -> Beat {
    let records = fleet.records(&fleet.names.workers(), 1, 1).await;
    let record = records.last().unwrap();
    let beat: Beat = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
    assert_eq!(record.key.as_deref(), Some(beat.id.as_bytes()));
    beat
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_tells_what_it_does_and_that_it_stops() {
    let (journal, gate) = (Journal::default(), Gate::closed());
    let (fleet, _) = memory(2, &[gated("work", &journal, &gate).slots(150)]).await;
    fleet.send_many("work", "t", 120, "0").await;
    let worker = fleet.worker();
    until("all run", || journal.running() == 120).await;
    let end = Instant::now() + DEADLINE;
    let beat = loop {
        let beat = last_beat(&fleet).await;
        if beat.types[0].in_flight == 120 {
            break beat;
        }
        assert!(Instant::now() < end, "{beat:?}");
        pause().await;
    };
    assert_eq!((beat.state, beat.running.len()), (BeatState::Running, 100));
    let part = &beat.types[0];
    assert_eq!((part.task_type.as_str(), part.slots, part.paused, &part.partitions[..]), ("work", 150, false, &[0, 1][..]));
    assert!(beat.held_bytes > 0 && beat.started_ms > 0 && beat.running[0].began_ms >= beat.started_ms);
    gate.open();
    fleet.wait_for_results(120).await;
    worker.stop().await;
    let beat = last_beat(&fleet).await;
    assert_eq!((beat.state, beat.types[0].finished.get("succeeded")), (BeatState::Stopped, Some(&120)));
}
