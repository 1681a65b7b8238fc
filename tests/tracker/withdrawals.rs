//! Cancels leave the control topic as fast as they came, once workers are past what they ended.

use std::time::{Duration, Instant};

use kafleet::broker::{Commit, Partition};
use kafleet::control::{ControlState, ControlWatch, keep};
use kafleet::model::event::{Event, Kind};

use crate::cases::agrees;
use crate::firing::{make_topics, put_task};
use crate::ground::{DEADLINE, Ground, until};
use crate::story::{event, submitted};

const TREES: usize = 3_000;
/// Each on its own takes some 50 ms or more: minutes for all of them.
const SOON: Duration = Duration::from_secs(45);

pub async fn cancels_of_small_trees_leave_together(ground: Ground) {
    make_topics(&ground);
    put_task(&ground, "x").await;
    let trees: Vec<String> = (0..TREES).map(|n| format!("t{n}")).collect();
    let story: Vec<Event> = trees
        .iter()
        .flat_map(|tree| [submitted(tree), submitted(&format!("{tree}:child")), event(Kind::CancelRequested, tree)])
        .collect();
    ground.write(&story).await;
    let board = ControlWatch::new(ControlState::default());
    let _reading = keep(board.clone(), ground.broker.clone(), &ground.names, None);
    let tracker = ground.tracker().await;
    let told = || board.orders().cancels().len();
    until("workers are told of all cancels", || async { told() == TREES }).await;
    until("all have ended", || async {
        let nodes = ground.store.counts(&ground.all()).await.unwrap();
        nodes.iter().all(|count| count.state.is_terminal())
    })
    .await;
    assert_eq!(told(), TREES, "no worker is past the record in the topic");
    let topic = ground.names.tasks("root");
    let commit = |index| Commit { partition: Partition::new(topic.as_str(), index), offset: 1, metadata: String::new() };
    let begun = Instant::now();
    ground.broker.set_group_offsets(&ground.names.group("root"), &[commit(1)], DEADLINE).unwrap();
    until("workers are told of none", || async { told() == 0 }).await;
    let took = begun.elapsed();
    eprintln!("{TREES} cancels left within {took:.2?}");
    assert!(took < SOON, "{TREES} cancels left within {took:?}");
    agrees(&ground).await;
    tracker.stop().await;
}

everywhere! {
    cancels_of_small_trees_leave_together,
}
