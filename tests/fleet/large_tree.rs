//! A tree of 1,110 children over three levels.

use kafleet::model::record::TaskRecord;
use kafleet::model::record::rollup::children_of;
use kafleet::model::record::state::State;
use serde_json::json;

use crate::fleet::in_process::{Fleet, eventually};
use crate::fleet::task_types::Branch;

const WIDTH: u32 = 10;
/// 10 + 100 + 1,000.
const BELOW: u64 = 1_110;

fn branch() -> Branch {
    Branch { widths: vec![WIDTH; 3], held: None, failing: None, ..Branch::default() }
}

/// Ids of all tasks of the tree, level by level.
fn ids(root: &str) -> Vec<Vec<String>> {
    let mut levels = vec![vec![root.to_owned()]];
    for _ in 0..3 {
        let last = &levels[levels.len() - 1];
        let next = last.iter().flat_map(|id| (0..WIDTH).map(move |n| format!("{id}:{n}"))).collect();
        levels.push(next);
    }
    levels
}

/// Numbers of direct children and of all descendants in a state.
fn counts(task_record: &TaskRecord, state: State) -> (u64, u64) {
    let (children, _, tree) = children_of(&task_record.tree.below);
    (children.get(state), tree.get(state))
}

async fn root_ends_with_its_last_child(mut fleet: Fleet) {
    fleet.start_worker();
    fleet.start_worker();
    fleet.publish("branch", "big", &Branch { held: Some(vec![9, 4, 9]), ..branch() }).await;
    // All but the last leaf and the two tasks between it and the root.
    let most = BELOW - 3;
    let root = eventually("all but one leaf are done", || async {
        let is_done =
            |root: &TaskRecord| counts(root, State::Succeeded).1 == most && counts(root, State::Running).1 == 1;
        fleet.record("big").await.filter(|root| root.own == State::Succeeded && is_done(root))
    })
    .await;
    assert_eq!((root.own, root.state, root.times.ended_at_ms), (State::Succeeded, State::WaitingForChildren, None));
    assert_eq!(counts(&root, State::Succeeded).0, 9);
    let waiting = State::WaitingForChildren;
    for (id, direct, below) in [("big", 1, 2), ("big:9", 1, 1), ("big:9:4", 0, 0)] {
        let task_record = fleet.record(id).await.unwrap();
        assert_eq!((task_record.state, counts(&task_record, waiting)), (waiting, (direct, below)), "{id}");
    }
    assert_eq!(fleet.record("big:9:4:9").await.unwrap().state, State::Running);
    fleet.gate.open();
    let root = fleet.wait_for_end("big").await;
    assert_eq!((root.state, counts(&root, State::Succeeded)), (State::Succeeded, (10, BELOW)));
    assert_eq!(root.tree.last_end.unwrap().by, "big:9:4:9", "the last child ended the root");
    assert_tree(&fleet, "big", &[]).await;
    let tree = fleet.get("/v1/tasks/big").await["tree"].clone();
    assert_eq!(
        (&tree["total"], &tree["successful"], &tree["pending"]),
        (&json!(BELOW + 1), &json!(BELOW + 1), &json!(0))
    );
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

async fn one_failed_leaf_fails_the_root(mut fleet: Fleet) {
    fleet.start_worker();
    fleet.start_worker();
    fleet
        .publish("branch", "bad", &Branch { failing: Some(vec![4, 5, 6]), held: Some(vec![0, 0, 0]), ..branch() })
        .await;
    eventually("one leaf has failed and only the held one is open", || async {
        let root = fleet.record("bad").await.filter(|root| root.own == State::Succeeded)?;
        (counts(&root, State::Failed).1 == 3 && counts(&root, State::Succeeded).1 == BELOW - 6).then_some(())
    })
    .await;
    assert_eq!(
        fleet.record("bad").await.unwrap().state,
        State::WaitingForChildren,
        "a failed child does not end the root early"
    );
    fleet.gate.open();
    let root = fleet.wait_for_end("bad").await;
    assert_eq!((root.own, root.state), (State::Succeeded, State::Failed));
    assert_tree(&fleet, "bad", &["bad", "bad:4", "bad:4:5", "bad:4:5:6"]).await;
    let leaf = fleet.record("bad:4:5:6").await.unwrap();
    assert_eq!(leaf.outcome.error.unwrap().message, "this one fails");
    fleet.assert_store_matches_log().await;
    fleet.stop().await;
}

/// Checks that every task has succeeded except those listed, and that its counts are the sums over its descendants.
async fn assert_tree(fleet: &Fleet, root: &str, failed: &[&str]) {
    let levels = ids(root);
    let below_of = [1_110, 110, 10, 0];
    for (level, ids) in levels.iter().enumerate() {
        for id in ids {
            let task_record = fleet.record(id).await.unwrap_or_else(|| panic!("`{id}` has no record"));
            let has_failed = failed.contains(&id.as_str());
            let expect = if has_failed { State::Failed } else { State::Succeeded };
            assert_eq!((task_record.state, task_record.history.duplicates), (expect, 0), "{id}");
            // Each task above the failed leaf has one failed child.
            let direct = u64::from(has_failed && level < 3);
            let below = if has_failed { 3 - level as u64 } else { 0 };
            assert_eq!(counts(&task_record, State::Failed), (direct, below), "failed descendants of `{id}`");
            let width = if level < 3 { 10 } else { 0 };
            assert_eq!(
                counts(&task_record, State::Succeeded),
                (width - direct, below_of[level] - below),
                "succeeded descendants of `{id}`"
            );
            let (children, _, tree) = children_of(&task_record.tree.below);
            assert_eq!((children.total(), tree.total()), (width, below_of[level]), "{id}");
        }
    }
}

cases! {
    root_ends_with_its_last_child,
    one_failed_leaf_fails_the_root,
}
