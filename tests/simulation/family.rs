//! What a task and its children owe one another: whose failure counts, what follows, and who may be cancelled.

use std::collections::{BTreeMap, BTreeSet};

use kafleet::handlers::On;
use kafleet::model::event::Kind;
use kafleet::model::record::TaskRecord;
use kafleet::model::record::state::State;
use kafleet::model::schedule::Overlap;

use crate::fleet::Fleet;
use crate::orders;
use crate::story::{Story, then_segment};
use crate::trees::{Follow, Script};
use crate::verdict::{Records, log};

/// What the story says of one task.
pub struct Part {
    pub script: Script,
    /// Its failure does not matter to its parent.
    pub ignored: bool,
}

/// All tasks that a story may have, but those that recur.
pub fn parts(story: &Story) -> BTreeMap<String, Part> {
    let mut parts = BTreeMap::new();
    for (root, (_, script)) in story.roots.iter().enumerate() {
        part(Story::id(root, &[]), script, false, &mut parts);
    }
    for (batch, tasks) in story.batches.iter().enumerate() {
        for (n, task) in tasks.iter().enumerate() {
            part(story.ordered_id(batch, n), &task.script, false, &mut parts);
        }
    }
    parts
}

fn part(id: String, script: &Script, ignored: bool, parts: &mut BTreeMap<String, Part>) {
    for (n, kid) in script.children.iter().enumerate() {
        part(format!("{id}:c{n}"), &kid.script, kid.ignored, parts);
    }
    for (n, then) in script.thens.iter().enumerate() {
        part(format!("{id}:{}", then_segment(n)), &then.kid.script, then.kid.ignored, parts);
    }
    parts.insert(id, Part { script: script.clone(), ignored });
}

fn is_then(id: &str) -> bool {
    let segment = id.rsplit(':').next().unwrap_or_default();
    segment == "then" || segment.starts_with("then-")
}

pub fn is_failure(state: State) -> bool {
    matches!(state, State::Failed | State::Cancelled | State::Expired)
}

fn severity(state: State) -> u8 {
    match state {
        State::Succeeded => 0,
        State::Cancelled => 1,
        State::Expired => 2,
        State::Failed => 3,
        _ => 4,
    }
}

/// Children that count for a task: those of its run or a later one.
pub fn counted<'a>(records: &'a Records, id: &'a str, run: u32) -> impl Iterator<Item = (&'a String, &'a TaskRecord)> {
    let below = format!("{id}:");
    let direct = move |child: &str| child.strip_prefix(&below).is_some_and(|rest| !rest.contains(':'));
    records.iter().filter(move |(child, node)| direct(child) && node.run >= run)
}

/// Children, continuations or the others, whose failure counts, if there are more than may fail.
fn lost(fleet: &Fleet, records: &Records, id: &str, node: &TaskRecord, thens: bool) -> Vec<State> {
    let ignored = |child: &str| fleet.parts.get(child).is_some_and(|part| part.ignored);
    let mine = counted(records, id, node.run).filter(|(child, _)| is_then(child) == thens && !ignored(child));
    let lost: Vec<State> = mine.map(|(_, child)| child.state).filter(|state| is_failure(*state)).collect();
    let may_fail = fleet.parts.get(id).and_then(|part| part.script.max_failed).filter(|_| node.announced && !thens);
    if lost.len() > may_fail.unwrap_or(0) as usize { lost } else { Vec::new() }
}

fn worst(states: impl IntoIterator<Item = State>) -> State {
    states.into_iter().max_by_key(|state| severity(*state)).unwrap_or(State::Succeeded)
}

/// What a task has come to with its children, but without what follows it. None: something is still open.
pub fn settled(fleet: &Fleet, records: &Records, id: &str, node: &TaskRecord) -> Option<State> {
    let open =
        |thens: bool| counted(records, id, node.run).any(|(child, node)| is_then(child) == thens && !node.state.is_terminal());
    (node.own.is_terminal() && !open(false)).then(|| worst(lost(fleet, records, id, node, false).into_iter().chain([node.own])))
}

/// The state of a task that has ended itself.
pub fn combined(fleet: &Fleet, records: &Records, id: &str, node: &TaskRecord) -> State {
    let open = counted(records, id, node.run).any(|(_, child)| !child.state.is_terminal());
    match settled(fleet, records, id, node).filter(|_| !open) {
        Some(settled) => worst(lost(fleet, records, id, node, true).into_iter().chain([settled])),
        None => State::WaitingForChildren,
    }
}

fn follows(on: On, state: State) -> bool {
    match on {
        On::Succeeded => state == State::Succeeded,
        On::Failed => matches!(state, State::Failed | State::Expired),
        On::Ended => true,
    }
}

/// What is to follow is there as soon as its time has come, and nothing else is.
pub fn continuations(fleet: &Fleet, records: &Records, id: &str, node: &TaskRecord, wrong: &mut Vec<String>) {
    let with_thens = |part: &&Part| node.announced && !node.is_external() && !part.script.thens.is_empty();
    let Some(part) = fleet.parts.get(id).filter(with_thens) else { return };
    let Some(settled) = settled(fleet, records, id, node) else { return };
    for (n, then) in part.script.thens.iter().enumerate() {
        let next = format!("{id}:{}", then_segment(n));
        let there = records.get(&next).filter(|next| next.run >= node.run);
        let wanted = follows(then.on, settled);
        let known = !then.said || node.own == State::Succeeded;
        if wanted && known && there.is_none() {
            wrong.push(format!("run {} of `{id}` has come to {settled}, and `{next}` does not follow", node.run));
        }
        if !wanted && there.is_some() && !fleet.retried.get() {
            wrong.push(format!("`{next}` follows {:?}, and `{id}` has come to {settled}", then.on));
        }
        told(fleet, records, (id, node), (&next, then), settled, wrong);
    }
}

/// What a continuation is told of the others is so, where nothing has changed since.
fn told(
    fleet: &Fleet,
    records: &Records,
    (id, node): (&str, &TaskRecord),
    (next, then): (&str, &Follow),
    settled: State,
    wrong: &mut Vec<String>,
) {
    let joined = fleet.journal.joined.lock().get(next).cloned();
    let Some((state, results)) = joined.filter(|_| then.joins && !fleet.retried.get()) else { return };
    let others = counted(records, id, node.run).filter(|(child, _)| !is_then(child));
    let are: BTreeMap<String, State> = others.map(|(child, node)| (child.clone(), node.state)).collect();
    // A kill switch has ended it, and whoever took it over from a dead worker, when that was off, has run it: its end stays,
    // and its children are there.
    let is_done_again = node.duplicates > 0 && matches!(node.own, State::Cancelled | State::Expired);
    // Its time was over for whoever took it over from a frozen worker, which then goes on and has children.
    let is_late = node.error.as_ref().is_some_and(|error| &*error.kind == "timeout")
        && results.len() < are.len()
        && results.iter().all(|(child, state)| are.get(child) == Some(state));
    if is_done_again || is_late {
        return;
    }
    if (state, &results) != (settled, &are) {
        wrong.push(format!("`{next}` was told {state} and {results:?}; it is {settled} and {are:?}"));
    }
}

/// It is this task, or lies below it.
pub fn within(id: &str, above: &str) -> bool {
    id == above || id.strip_prefix(above).is_some_and(|rest| rest.starts_with(':'))
}

/// Somebody asked for it, or something that failed beside it did.
pub fn may_be_cancelled(fleet: &Fleet, records: &Records, id: &str, run: u32) -> bool {
    let asked = |all: &BTreeSet<String>| all.iter().any(|above| within(id, above));
    let replaced =
        fleet.plans.borrow().iter().any(|(n, plan)| plan.wish.overlap == Overlap::Replace && id.starts_with(&format!("s{n}.")));
    let tripped = |(above, part): (&String, &Part)| within(id, above) && part.script.fail_fast && tripped(fleet, records, above);
    asked(&fleet.killed.borrow())
        || replaced
        || fleet.parts.iter().any(tripped)
        || (asked(&fleet.cancels.borrow()) && (run == 1 || is_cancelled_again(fleet, id)))
}

/// After the first retry of it or of what it lies below there was one more cancel: those before it are over with it.
fn is_cancelled_again(fleet: &Fleet, id: &str) -> bool {
    let log = log(fleet);
    let mut events = log.iter().filter(|event| within(id, event.id.as_str()));
    events.find(|event| event.kind == Kind::RetryRequested);
    // One that names another place tells of an earlier one.
    events.any(|event| event.kind == Kind::CancelRequested && event.asof.is_none())
}

/// What failed beside or below it cancels what is open there.
pub fn tripped(fleet: &Fleet, records: &Records, id: &str) -> bool {
    let lost = records.get(id).map(|node| lost(fleet, records, id, node, false)).unwrap_or_default();
    // A task of a batch may fail before its own child is published, which opens it again: what it failed stays cancelled.
    let had_failed = |(below, node): (&String, &TaskRecord)| {
        below != id && within(below, id) && matches!(node.own, State::Failed | State::Expired)
    };
    let was_lost = orders::is_ordered(id) && records.iter().any(had_failed);
    // A retry may have made good what failed.
    fleet.retried.get() || was_lost || lost.iter().any(|state| *state != State::Cancelled)
}
