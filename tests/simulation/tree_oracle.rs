//! Relations of tasks and their children: rollup of failures, continuations, and permitted cancellations.

use std::collections::{BTreeMap, BTreeSet};

use kafleet::handlers::On;
use kafleet::model::event::{CancelScope, Kind, Payload};
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::model::schedule::Overlap;

use crate::fleet::Fleet;
use crate::kills::may_have_killed;
use crate::request_oracle;
use crate::scenario::{Scenario, continuation_segment};
use crate::task_types::{ContinuationSpec, Script};
use crate::verdict::{Records, log};

/// Task of a scenario.
pub struct ScriptedTask {
    pub script: Script,
    /// The parent ignores the task's failure.
    pub ignore_failure: bool,
}

/// All tasks of a scenario except those of schedules, by id.
pub fn scripted_tasks(scenario: &Scenario) -> BTreeMap<String, ScriptedTask> {
    let mut scripted_tasks = BTreeMap::new();
    for (root, (_, script)) in scenario.roots.iter().enumerate() {
        add_task(Scenario::id(root, &[]), script, false, &mut scripted_tasks);
    }
    for (batch, tasks) in scenario.batches.iter().enumerate() {
        for (n, task) in tasks.iter().enumerate() {
            add_task(scenario.batch_task_id(batch, n), &task.script, false, &mut scripted_tasks);
        }
    }
    scripted_tasks
}

fn add_task(id: String, script: &Script, ignore_failure: bool, scripted_tasks: &mut BTreeMap<String, ScriptedTask>) {
    for (n, task) in script.children.iter().enumerate() {
        add_task(format!("{id}:c{n}"), &task.script, task.ignore_failure, scripted_tasks);
    }
    for (n, then) in script.continuations.iter().enumerate() {
        add_task(
            format!("{id}:{}", continuation_segment(n)),
            &then.task.script,
            then.task.ignore_failure,
            scripted_tasks,
        );
    }
    scripted_tasks.insert(id, ScriptedTask { script: script.clone(), ignore_failure });
}

fn is_continuation(id: &str) -> bool {
    let segment = id.rsplit(':').next().unwrap_or_default();
    segment == "then" || segment.starts_with("then-")
}

pub fn is_failure(state: State) -> bool {
    matches!(state, State::Failed | State::Cancelled | State::Expired)
}

/// Severity of an outcome, defined independently of the order of [`State`].
fn severity(state: State) -> u8 {
    match state {
        State::Succeeded => 0,
        State::Cancelled => 1,
        State::Expired => 2,
        State::Failed => 3,
        _ => 4,
    }
}

/// Direct children that count for a task in run `run`: those in the same run or a later one.
pub fn counted<'a>(records: &'a Records, id: &'a str, run: u32) -> impl Iterator<Item = (&'a String, &'a TaskRecord)> {
    let below = format!("{id}:");
    let direct = move |child: &str| child.strip_prefix(&below).is_some_and(|rest| !rest.contains(':'));
    records.iter().filter(move |(child, task_record)| direct(child) && task_record.run >= run)
}

/// States of the failed children, or of the failed continuations, that make the task fail. Empty if there are at most
/// `max_failed`; no failed continuation is tolerated.
fn lost(fleet: &Fleet, records: &Records, id: &str, task_record: &TaskRecord, continuations: bool) -> Vec<State> {
    let ignore_failure = |child: &str| fleet.scripted_tasks.get(child).is_some_and(|spec| spec.ignore_failure);
    let candidates = counted(records, id, task_record.run)
        .filter(|(child, _)| is_continuation(child) == continuations && !ignore_failure(child));
    let lost: Vec<State> = candidates.map(|(_, child)| child.state).filter(|state| is_failure(*state)).collect();
    let may_fail = fleet
        .scripted_tasks
        .get(id)
        .and_then(|spec| spec.script.max_failed)
        .filter(|_| task_record.definition.announced && !continuations);
    if lost.len() > may_fail.unwrap_or(0) as usize { lost } else { Vec::new() }
}

fn worst(states: impl IntoIterator<Item = State>) -> State {
    states.into_iter().max_by_key(|state| severity(*state)).unwrap_or(State::Succeeded)
}

/// State of a task combined with its children's, without continuations. `None` while the task or a child is pending.
pub fn settled(fleet: &Fleet, records: &Records, id: &str, task_record: &TaskRecord) -> Option<State> {
    let open = |continuations: bool| {
        counted(records, id, task_record.run)
            .any(|(child, task_record)| is_continuation(child) == continuations && !task_record.state.is_terminal())
    };
    (task_record.own.is_terminal() && !open(false))
        .then(|| worst(lost(fleet, records, id, task_record, false).into_iter().chain([task_record.own])))
}

/// State of a task whose own state is terminal.
pub fn combined(fleet: &Fleet, records: &Records, id: &str, task_record: &TaskRecord) -> State {
    let open = counted(records, id, task_record.run).any(|(_, child)| !child.state.is_terminal());
    match settled(fleet, records, id, task_record).filter(|_| !open) {
        Some(settled) => worst(lost(fleet, records, id, task_record, true).into_iter().chain([settled])),
        None => State::WaitingForChildren,
    }
}

/// Returns true if a continuation with this condition starts after this outcome.
fn follows(on: On, state: State) -> bool {
    match on {
        On::Succeeded => state == State::Succeeded,
        On::Failed => matches!(state, State::Failed | State::Expired),
        On::Ended => true,
    }
}

/// Checks that continuations exist exactly when their condition holds.
pub fn continuations(
    fleet: &Fleet,
    records: &Records,
    id: &str,
    task_record: &TaskRecord,
    violations: &mut Vec<String>,
) {
    let with_continuations = |spec: &&ScriptedTask| {
        task_record.definition.announced && !task_record.is_external() && !spec.script.continuations.is_empty()
    };
    let Some(spec) = fleet.scripted_tasks.get(id).filter(with_continuations) else { return };
    let Some(settled) = settled(fleet, records, id, task_record) else { return };
    for (n, then) in spec.script.continuations.iter().enumerate() {
        let next = format!("{id}:{}", continuation_segment(n));
        let existing = records.get(&next).filter(|next| next.run >= task_record.run);
        let is_due = follows(then.on, settled);
        let known = !then.from_handler || task_record.own == State::Succeeded;
        if is_due && known && existing.is_none() {
            violations.push(format!("run {} of `{id}` is {settled}, and `{next}` does not exist", task_record.run));
        }
        if !is_due && existing.is_some() && !fleet.requests.retried.get() {
            violations.push(format!("`{next}` requires {:?}, and `{id}` is {settled}", then.on));
        }
        check_results(fleet, records, (id, task_record), (&next, then), settled, violations);
    }
}

/// Checks the results of the other children that a continuation received, unless they may have changed since.
fn check_results(
    fleet: &Fleet,
    records: &Records,
    (id, task_record): (&str, &TaskRecord),
    (next, then): (&str, &ContinuationSpec),
    settled: State,
    violations: &mut Vec<String>,
) {
    let joined = fleet.journal.joined.lock().get(next).cloned();
    let Some((state, results)) = joined.filter(|_| then.with_results && !fleet.requests.retried.get()) else { return };
    let others = counted(records, id, task_record.run).filter(|(child, _)| !is_continuation(child));
    let actual: BTreeMap<String, State> =
        others.map(|(child, task_record)| (child.clone(), task_record.state)).collect();
    // A worker ended the task because of a kill switch; then the switch was removed, and the next owner of the
    // partition ran the task. The task stays cancelled, but has children.
    let ran_again = task_record.history.duplicates > 0 && matches!(task_record.own, State::Cancelled | State::Expired);
    // While a worker was frozen, the task timed out at the next owner of its partition; then the first worker resumed
    // and created more children.
    let is_late = task_record.outcome.error.as_ref().is_some_and(|error| &*error.kind == "timeout")
        && results.len() < actual.len()
        && results.iter().all(|(child, state)| actual.get(child) == Some(state));
    if ran_again || is_late {
        return;
    }
    if (state, &results) != (settled, &actual) {
        violations.push(format!("`{next}` received {state} and {results:?}; expected {settled} and {actual:?}"));
    }
}

/// Returns true if the task is `above` itself or in its subtree.
pub fn within(id: &str, above: &str) -> bool {
    id == above || id.strip_prefix(above).is_some_and(|rest| rest.starts_with(':'))
}

/// Returns true if a cancel, a kill switch, a schedule or the failure of another task (`fail_fast`) may have cancelled
/// the task.
pub fn may_be_cancelled(fleet: &Fleet, records: &Records, id: &str, run: u32) -> bool {
    let requested = |all: &BTreeSet<String>| all.iter().any(|above| within(id, above));
    let replaced = fleet
        .requests
        .schedules
        .borrow()
        .iter()
        .any(|(n, schedule)| schedule.spec.overlap == Overlap::Replace && id.starts_with(&format!("s{n}.")));
    let tripped = |(above, spec): (&String, &ScriptedTask)| {
        within(id, above) && spec.script.fail_fast && tripped(fleet, records, above)
    };
    requested(&fleet.requests.killed.borrow())
        || may_have_killed(fleet, id)
        || replaced
        || fleet.scripted_tasks.iter().any(tripped)
        || (requested(&fleet.requests.cancels.borrow()) && (run == 1 || is_cancelled_again(fleet, id)))
}

/// Returns true if a cancel follows the first retry of the task or an ancestor. A retry ends earlier cancels.
fn is_cancelled_again(fleet: &Fleet, id: &str) -> bool {
    let log = log(fleet);
    let mut events = log.iter().filter(|event| within(id, event.id.as_str()));
    events.find(|event| event.kind() == Kind::RetryRequested);
    // An `asof` marks the propagation of an earlier request.
    events.any(|event| matches!(event.payload, Payload::CancelRequested(CancelScope { asof: None, .. })))
}

/// Returns true if failures in the subtree may have cancelled its pending tasks.
pub fn tripped(fleet: &Fleet, records: &Records, id: &str) -> bool {
    let lost = records.get(id).map(|task_record| lost(fleet, records, id, task_record, false)).unwrap_or_default();
    // A failed batch task becomes pending again when its child is published; tasks that its failure cancelled stay
    // cancelled.
    let had_failed = |(below, task_record): (&String, &TaskRecord)| {
        below != id && within(below, id) && matches!(task_record.own, State::Failed | State::Expired)
    };
    let was_lost = request_oracle::is_batch_task(id) && records.iter().any(had_failed);
    // So does a task that timed out at one owner of its partition, when a child comes from an attempt of the other owner.
    let timed_out = |(below, task_record): (&String, &TaskRecord)| {
        let error = task_record.outcome.error.as_ref();
        had_failed((below, task_record)) && error.is_some_and(|error| error.kind == "timeout")
    };
    let was_lost = was_lost || records.iter().any(timed_out);
    // A retry may have repaired the failure.
    fleet.requests.retried.get() || was_lost || lost.iter().any(|state| *state != State::Cancelled)
}
