//! Recomputation of all derived data from the records alone, to compare the projection with.

use super::*;

/// Decoded records by id.
type TaskRecords<'a> = BTreeMap<&'a TaskId, TaskRecord>;

/// Checks counts, states, continuations, counters and indexes of a store against a recomputation.
pub(super) fn recompute(projected: &ProjectedStore) {
    let tasks: TaskRecords<'_> =
        projected.task_records.iter().map(|(id, bytes)| (id, TaskRecord::decode(bytes).unwrap())).collect();
    for (id, task) in &tasks {
        recompute_counts(&tasks, id, task);
        recompute_state(&tasks, id, task);
    }
    let typed: BTreeMap<(Arc<str>, State), i64> = tasks
        .values()
        .filter_map(|task| Some((task.task_type.clone()?, task.state)))
        .fold(BTreeMap::new(), |mut counts, key| {
            *counts.entry(key).or_default() += 1;
            counts
        });
    assert_eq!(projected.counts, typed, "counters");
    recompute_outbox(projected, &tasks);
}

/// Returns true unless a newer run of its parent supersedes the task.
fn is_counted(tasks: &TaskRecords<'_>, child: &TaskId) -> bool {
    let parent = child.parent_id().and_then(|parent| tasks.get(&parent));
    parent.is_some_and(|parent| tasks[child].run >= parent.run)
}

/// Direct children that count: continuations, or the others.
fn children<'a>(tasks: &'a TaskRecords<'_>, id: &TaskId, continuations: bool) -> Vec<&'a TaskRecord> {
    let is_child = |child: &TaskId| child.parent() == Some(id.as_str()) && is_counted(tasks, child);
    let matching = tasks.iter().filter(|(child, _)| is_child(child));
    matching.filter(|(child, _)| number_of(child.segment()).is_some() == continuations).map(|(_, task)| task).collect()
}

/// Returns whether a task is below `top`, and it and all tasks in between are counted.
fn is_counted_in_tree(tasks: &TaskRecords<'_>, task: &TaskId, top: &TaskId) -> bool {
    let between = task.ancestors().take_while(|above| *above != top.as_str());
    let mut between = between.map(|above| TaskId::parse(above).unwrap());
    let is_below = *task != *top && task.is_within(top.as_str());
    is_below && is_counted(tasks, task) && between.all(|above| is_counted(tasks, &above))
}

/// Checks the counts of a task against all records below it.
fn recompute_counts(tasks: &TaskRecords<'_>, id: &TaskId, task: &TaskRecord) {
    let mut by_state = Counts::default();
    for child in [children(tasks, id, true), children(tasks, id, false)].concat() {
        by_state.add(child.state, 1);
    }
    let mut tree = Counts::default();
    let mut restartable = 0;
    for (below, task) in tasks {
        if is_counted_in_tree(tasks, below, id) {
            tree.add(task.state, 1);
            restartable += u64::from(task.is_restartable());
        }
    }
    let (have, _, have_tree) = children_of(&task.tree.below);
    assert_eq!(have, by_state, "children of {id}");
    assert_eq!(have_tree, tree, "tree of {id}");
    assert_eq!(task.restartable_below(), restartable, "restartable tasks below {id}");
}

/// Worst state of the failed children that matter, if they are more than tolerated.
fn worst_of(children: &[&TaskRecord], tolerated: u32) -> Option<State> {
    let failed =
        children.iter().filter(|child| child.definition.on_failure() == OnFailure::Fail).map(|child| child.state);
    let failed: Vec<State> = failed.filter(|state| state.category() == Category::Failed).collect();
    failed.iter().max().copied().filter(|_| failed.len() > tolerated as usize)
}

/// Checks the state of a task and its continuations against the definition.
fn recompute_state(tasks: &TaskRecords<'_>, id: &TaskId, task: &TaskRecord) {
    let is_cancelling = !task.own.is_terminal() && task.cancelled_by().is_some();
    assert_eq!(task.state == State::Cancelling, is_cancelling, "{id} is being cancelled");
    assert!(
        is_cancelling || task.state == combine(task.own, &task.tree.below, task.definition.tolerated()),
        "state of {id}"
    );
    let regular = children(tasks, id, false);
    let continuations = children(tasks, id, true);
    let is_pending =
        |children: &[&TaskRecord]| children.iter().any(|child| child.state.category() == Category::Pending);
    let pending = is_pending(&regular) || is_pending(&continuations);
    let worst = worst_of(&regular, task.definition.tolerated());
    let fails_fast = task.definition.policy.as_ref().is_some_and(|policy| policy.rules.fail_fast);
    if fails_fast && worst.is_some_and(|worst| worst > State::Cancelled) {
        assert!(task.requests.cancel.is_some(), "{id} fails fast: a cancel must be in force");
    }
    let ended = task.own.max(worst.unwrap_or(State::Succeeded));
    let state = match task.own {
        _ if is_cancelling => State::Cancelling,
        own if !own.is_terminal() => own,
        _ if pending => State::WaitingForChildren,
        _ => ended.max(worst_of(&continuations, 0).unwrap_or(State::Succeeded)),
    };
    assert_eq!(task.state, state, "state of {id} by the definition");
    let may_continue = task.definition.announced && task.own.is_terminal() && !is_pending(&regular);
    for (n, then) in task.continuations().enumerate().filter(|_| may_continue) {
        let created = task.continuations.created_mask & (1 << n) != 0;
        assert!(created || !then.on.is(ended), "{id}: continuation {n} is missing");
        assert!(
            !created || tasks[&id.child(&segment(n)).unwrap()].run >= task.run,
            "{id}: continuation {n} has no record"
        );
    }
    assert!(!task.state.is_terminal() || (task.own.is_terminal() && !pending), "{id} has ended before its children");
}

/// Checks the indexes of timers and effects and the deferred records against the task records.
fn recompute_outbox(projected: &ProjectedStore, tasks: &TaskRecords<'_>) {
    let entry = |index: Index, seen_ms, id: &TaskId| format!("{:?}", (index, Entry { seen_ms, id: id.clone() }));
    let timers = tasks.iter().filter_map(|(id, task)| Some(entry(Index::Timers, task.timer()?.due_ms, id)));
    let effects = tasks.iter().filter_map(|(id, task)| Some(entry(Index::Effects, task.turn()?, id)));
    let expected: BTreeSet<String> = timers.chain(effects).collect();
    let entries = projected.index.iter().filter(|text| text.starts_with("(Timers") || text.starts_with("(Effects"));
    assert_eq!(entries.cloned().collect::<BTreeSet<_>>(), expected, "timers and effects");
    let waiting = tasks
        .iter()
        .filter(|(_, task)| task.deferral.stored_bytes() > 0)
        .map(|(id, task)| ((*id).clone(), task.deferral.record_bytes as usize));
    let records = projected.deferred.iter().map(|(id, projected)| (id.clone(), projected.len()));
    assert_eq!(records.collect::<Vec<_>>(), waiting.collect::<Vec<_>>(), "deferred records");
    for (id, task) in tasks {
        assert!(
            task.deferral.record_bytes == 0 || matches!(task.own, State::Scheduled | State::Retrying),
            "{id} has a deferred record but does not wait"
        );
        assert!(task.effects.len() <= 40, "effects of {id}");
    }
}
