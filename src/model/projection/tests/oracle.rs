//! Recomputation of all derived data from the records alone, to compare the projection with.

use super::*;

/// Decoded records by id.
type Nodes<'a> = BTreeMap<&'a TaskId, TaskRecord>;

/// Checks counts, states, continuations, counters and indexes of a store against a recomputation.
pub(super) fn recompute(folded: &FoldedStore) {
    let nodes: Nodes<'_> = folded.nodes.iter().map(|(id, bytes)| (id, TaskRecord::decode(bytes).unwrap())).collect();
    for (id, node) in &nodes {
        recompute_counts(&nodes, id, node);
        recompute_state(&nodes, id, node);
    }
    let typed: BTreeMap<(Arc<str>, State), i64> = nodes
        .values()
        .filter_map(|node| Some((node.task_type.clone()?, node.state)))
        .fold(BTreeMap::new(), |mut counts, key| {
            *counts.entry(key).or_default() += 1;
            counts
        });
    assert_eq!(folded.counts, typed, "counters");
    recompute_outbox(folded, &nodes);
}

/// Returns true unless a newer run of its parent supersedes the task.
fn is_counted(nodes: &Nodes<'_>, child: &TaskId) -> bool {
    let parent = child.parent_id().and_then(|parent| nodes.get(&parent));
    parent.is_some_and(|parent| nodes[child].run >= parent.run)
}

/// Direct children that count: continuations, or the others.
fn children<'a>(nodes: &'a Nodes<'_>, id: &TaskId, continuations: bool) -> Vec<&'a TaskRecord> {
    let is_child = |child: &TaskId| child.parent() == Some(id.as_str()) && is_counted(nodes, child);
    let wanted = nodes.iter().filter(|(child, _)| is_child(child));
    wanted.filter(|(child, _)| number_of(child.segment()).is_some() == continuations).map(|(_, node)| node).collect()
}

/// Returns whether a task is below `top`, and it and all tasks in between are counted.
fn is_counted_in_tree(nodes: &Nodes<'_>, task: &TaskId, top: &TaskId) -> bool {
    let between = task.ancestors().take_while(|above| *above != top.as_str());
    let mut between = between.map(|above| TaskId::parse(above).unwrap());
    let is_below = *task != *top && task.is_within(top.as_str());
    is_below && is_counted(nodes, task) && between.all(|above| is_counted(nodes, &above))
}

/// Checks the counts of a task against all records below it.
fn recompute_counts(nodes: &Nodes<'_>, id: &TaskId, node: &TaskRecord) {
    let mut by_state = Counts::default();
    for child in [children(nodes, id, true), children(nodes, id, false)].concat() {
        by_state.add(child.state, 1);
    }
    let mut tree = Counts::default();
    let mut restartable = 0;
    for (below, node) in nodes {
        if is_counted_in_tree(nodes, below, id) {
            tree.add(node.state, 1);
            restartable += u64::from(node.is_restartable());
        }
    }
    let (have, _, have_tree) = children_of(&node.tree.below);
    assert_eq!(have, by_state, "children of {id}");
    assert_eq!(have_tree, tree, "tree of {id}");
    assert_eq!(node.restartable_below(), restartable, "restartable tasks below {id}");
}

/// Worst state of the failed children that matter, if they are more than tolerated.
fn worst_of(children: &[&TaskRecord], tolerated: u32) -> Option<State> {
    let failed =
        children.iter().filter(|child| child.definition.on_failure() == OnFailure::Fail).map(|child| child.state);
    let failed: Vec<State> = failed.filter(|state| state.category() == Category::Failed).collect();
    failed.iter().max().copied().filter(|_| failed.len() > tolerated as usize)
}

/// Checks the state of a task and its continuations against the definition.
fn recompute_state(nodes: &Nodes<'_>, id: &TaskId, node: &TaskRecord) {
    let is_cancelling = !node.own.is_terminal() && node.cancelled_by().is_some();
    assert_eq!(node.state == State::Cancelling, is_cancelling, "{id} is being cancelled");
    assert!(
        is_cancelling || node.state == combine(node.own, &node.tree.below, node.definition.tolerated()),
        "state of {id}"
    );
    let regular = children(nodes, id, false);
    let continuations = children(nodes, id, true);
    let is_pending =
        |children: &[&TaskRecord]| children.iter().any(|child| child.state.category() == Category::Pending);
    let pending = is_pending(&regular) || is_pending(&continuations);
    let worst = worst_of(&regular, node.definition.tolerated());
    let fails_fast = node.definition.policy.as_ref().is_some_and(|policy| policy.rules.fail_fast);
    if fails_fast && worst.is_some_and(|worst| worst > State::Cancelled) {
        assert!(node.requests.cancel.is_some(), "{id} fails fast: a cancel must be in force");
    }
    let ended = node.own.max(worst.unwrap_or(State::Succeeded));
    let state = match node.own {
        _ if is_cancelling => State::Cancelling,
        own if !own.is_terminal() => own,
        _ if pending => State::WaitingForChildren,
        _ => ended.max(worst_of(&continuations, 0).unwrap_or(State::Succeeded)),
    };
    assert_eq!(node.state, state, "state of {id} by the definition");
    let may_continue = node.definition.announced && node.own.is_terminal() && !is_pending(&regular);
    for (n, then) in node.continuations().enumerate().filter(|_| may_continue) {
        let created = node.continuations.created_mask & (1 << n) != 0;
        assert!(created || !then.on.is(ended), "{id}: continuation {n} is missing");
        assert!(
            !created || nodes[&id.child(&segment(n)).unwrap()].run >= node.run,
            "{id}: continuation {n} has no record"
        );
    }
    assert!(!node.state.is_terminal() || (node.own.is_terminal() && !pending), "{id} has ended before its children");
}

/// Checks the indexes of timers and effects and the deferred records against the task records.
fn recompute_outbox(folded: &FoldedStore, nodes: &Nodes<'_>) {
    let entry = |index: Index, seen_ms, id: &TaskId| format!("{:?}", (index, Entry { seen_ms, id: id.clone() }));
    let timers = nodes.iter().filter_map(|(id, node)| Some(entry(Index::Timers, node.timer()?.due_ms, id)));
    let effects = nodes.iter().filter_map(|(id, node)| Some(entry(Index::Effects, node.turn()?, id)));
    let expected: BTreeSet<String> = timers.chain(effects).collect();
    let found = folded.index.iter().filter(|text| text.starts_with("(Timers") || text.starts_with("(Effects"));
    assert_eq!(found.cloned().collect::<BTreeSet<_>>(), expected, "timers and effects");
    let waiting = nodes
        .iter()
        .filter(|(_, node)| node.deferral.stored_bytes() > 0)
        .map(|(id, node)| ((*id).clone(), node.deferral.record_bytes as usize));
    let records = folded.deferred.iter().map(|(id, folded)| (id.clone(), folded.len()));
    assert_eq!(records.collect::<Vec<_>>(), waiting.collect::<Vec<_>>(), "deferred records");
    for (id, node) in nodes {
        assert!(
            node.deferral.record_bytes == 0 || matches!(node.own, State::Scheduled | State::Retrying),
            "{id} has a deferred record but does not wait"
        );
        assert!(node.effects.len() <= 40, "effects of {id}");
    }
}
