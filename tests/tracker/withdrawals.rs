//! Cancels are withdrawn in few transactions once workers have committed past the tasks.

use std::time::{Duration, Instant};

use kafleet::broker::{Commit, Partition};
use kafleet::control::{ControlState, ControlWatch, follow_control};
use kafleet::model::event::{Event, Kind};

use crate::tracker::cases::expect_agreement;
use crate::tracker::event_log::{event, submitted};
use crate::tracker::fixture::{DEADLINE, Fixture, eventually};
use crate::tracker::outbox::{make_topics, put_task};

const TREES: usize = 3_000;
/// Upper bound: one transaction per cancel, at 50 ms or more each, would take minutes.
const SOON: Duration = Duration::from_secs(45);

pub async fn cancels_of_small_trees_are_withdrawn_together(fixture: Fixture) {
    make_topics(&fixture);
    put_task(&fixture, "x").await;
    let trees: Vec<String> = (0..TREES).map(|n| format!("t{n}")).collect();
    let event_log: Vec<Event> = trees
        .iter()
        .flat_map(|tree| [submitted(tree), submitted(&format!("{tree}:child")), event(Kind::CancelRequested, tree)])
        .collect();
    fixture.write(&event_log).await;
    let control = ControlWatch::new(ControlState::default());
    let _reading = follow_control(control.clone(), fixture.broker.clone(), &fixture.names, None);
    let tracker = fixture.tracker().await;
    let active_cancels = || control.state().cancels().len();
    eventually("all cancels are on the control topic", || async { active_cancels() == TREES }).await;
    eventually("all tasks have ended", || async {
        let counts = fixture.store.counts(&fixture.all()).await.unwrap();
        counts.iter().all(|count| count.state.is_terminal())
    })
    .await;
    assert_eq!(active_cancels(), TREES, "cancels stay until workers have committed past the record");
    let topic = fixture.names.tasks("root");
    let commit =
        |index| Commit { partition: Partition::new(topic.as_str(), index), offset: 1, metadata: String::new() };
    let started = Instant::now();
    fixture.broker.set_group_offsets(&fixture.names.group("root"), &[commit(1)], DEADLINE).unwrap();
    eventually("no cancel is on the control topic", || async { active_cancels() == 0 }).await;
    let took = started.elapsed();
    eprintln!("{TREES} cancels were withdrawn within {took:.2?}");
    assert!(took < SOON, "{TREES} cancels were withdrawn within {took:?}");
    expect_agreement(&fixture).await;
    tracker.stop().await;
}

everywhere! {
    cancels_of_small_trees_are_withdrawn_together,
}
