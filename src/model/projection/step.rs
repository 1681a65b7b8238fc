//! Applies one event to the record of its own task.

use super::history::{history_entry, late_announcement};
use super::interruptions::{add_unreported, interrupt};
use super::reports::{attach, report};
use super::state_machine::advance;
use super::step_outcome::Step;
use super::{LogPosition, Verdict, attachments, notifications, requests};
use crate::model::event::{Announcement, Event, Kind, Payload};
use crate::model::record::TaskRecord;
use crate::model::record::state::State;
use crate::model::task::Position;
use crate::model::task::id::TaskId;

pub(super) fn step(node: &mut TaskRecord, event: &Event, position: LogPosition, next_run: u32) -> Step {
    match &event.payload {
        Payload::CancelRequested(scope) => return requests::cancel(node, event, scope, position),
        Payload::RetryRequested { .. } => return requests::retry(node, event, position, next_run),
        Payload::EffectDone { effect, position } => {
            return requests::effect_done(node, effect.as_deref(), *position);
        }
        Payload::Patched { patch } => return requests::patch(node, patch.as_deref()),
        Payload::Attached { .. } | Payload::Detached { .. } => return attachments::attach(node, event),
        Payload::WorkerSilent => return mark_silent(node, event),
        // A log line that was not written by an attempt belongs to the task, whatever its current run.
        Payload::Log { .. } if event.worker.is_none() => {
            return Step { in_history: false, ..Step::of(attach(node, event)) };
        }
        Payload::Checked { check } => return notifications::run_check(node, *check, event.at_ms, position),
        _ => {}
    }
    if event.run < node.run {
        return Step::of(Verdict::Ignored);
    }
    if event.run > node.run {
        if !event.kind().creates() {
            return Step::of(Verdict::Ignored);
        }
        begin_run(node, event.run);
    }
    if event.kind() == Kind::Cancelled && node.own == State::Cancelled {
        // A worker has come to the record of a task that the tracker has ended: the event confirms that end.
        return Step { in_history: false, ..Step::of(Verdict::Ignored) };
    }
    let conflict = event.task.as_ref().and_then(|task| announce(node, &event.id, task));
    let announces =
        event.kind() == Kind::Submitted || (event.kind() == Kind::Scheduled && event.payload.record().is_some());
    if conflict.is_some() && announces {
        return Step { conflict, ..Step::of(Verdict::Ignored) };
    }
    // Handler continuations are numbered after the policy's, so the policy must be known.
    let then = event.payload.continuations();
    if !then.is_empty() && node.definition.announced && !node.own.is_terminal() {
        node.continuations.from_handler = Some(then.to_vec());
    }
    let was_started = node.times.started_at_ms.is_some();
    let mut passed = notifications::passed_states(node, event);
    let verdict = match event.kind() {
        Kind::Progress | Kind::Log => attach(node, event),
        Kind::Reported => report(node, event),
        Kind::Interrupted => interrupt(node, event),
        _ => {
            add_unreported(node, event, position);
            advance(node, event, position)
        }
    };
    if verdict == Verdict::Ignored {
        passed.clear();
    }
    let is_late_announcement = is_late_announcement(node, event, verdict);
    let in_history = event.kind().is_in_history();
    let started = !was_started && node.times.started_at_ms.is_some();
    Step { in_history, started, conflict, passed, is_late_announcement, ..Step::of(verdict) }
}

fn is_late_announcement(node: &TaskRecord, event: &Event, verdict: Verdict) -> bool {
    verdict == Verdict::Ignored && event.kind() == Kind::Submitted && node.history.has_unannounced_events(node.run)
}

/// Begin of the message about a second task with the id of another.
pub const CONFLICT: &str = "spawn_conflict";

/// Adds the event to the history.
pub(super) fn add_to_history(node: &mut TaskRecord, event: &Event, position: LogPosition, step: &Step) {
    if step.is_late_announcement {
        node.history.insert_announcement(late_announcement(event, position));
    } else if step.verdict == Verdict::Ignored && is_inherited_cancel(event) && node.own == State::Cancelled {
        // A worker cancelled the descendant before the tracker's request was projected: the request is listed first.
        node.history.insert_before_cancelled(history_entry(event, position, Verdict::Applied));
    } else if step.in_history {
        node.history.push(history_entry(event, position, step.verdict));
    }
}

/// Distinguishes the cancel of a descendant, published by the tracker, from a request for the task itself.
fn is_inherited_cancel(event: &Event) -> bool {
    matches!(&event.payload, Payload::CancelRequested(scope) if scope.asof.is_some())
}

/// Resets the record for a new run. History, log, attachments, requests and effects stay; the counts of children
/// created by earlier runs are dropped.
pub(super) fn begin_run(node: &mut TaskRecord, run: u32) {
    let fresh = TaskRecord::expected(run, node.times.seen_ms);
    let old = std::mem::replace(node, fresh);
    node.task_type = old.task_type;
    (node.definition.position, node.definition.trace) = (old.definition.position, old.definition.trace);
    (node.definition.policy, node.definition.patched) = (old.definition.policy, old.definition.patched);
    node.times.created_at_ms = old.times.created_at_ms;
    node.tree.first_start = old.tree.first_start;
    node.tree.highest_run = old.tree.highest_run;
    node.history.entries = old.history.entries;
    node.history.dropped = old.history.dropped;
    node.history.duplicates = old.history.duplicates;
    node.log.lines = old.log.lines;
    node.log.dropped = old.log.dropped;
    node.attachments = old.attachments;
    (node.requests.cancel, node.definition.record_event_offset, node.effects) =
        (old.requests.cancel, old.definition.record_event_offset, old.effects);
    node.tree.below = old.tree.below;
    node.tree.below.retain(|group| group.run >= run);
    (node.times.expiry, node.tree.has_below, node.tree.root) = (old.times.expiry, old.tree.has_below, old.tree.root);
    (node.notifications, node.tree.hold_ms) = (old.notifications, old.tree.hold_ms);
    if let Some(log) = node.notifications.as_deref_mut() {
        log.begin_run();
    }
}

/// Applies an announcement. Within a run the first one counts; another task with the same id and run is a conflict.
pub(super) fn announce(node: &mut TaskRecord, id: &TaskId, task: &Announcement) -> Option<String> {
    if node.definition.announced {
        return announce_again(node, id, task);
    }
    node.definition.announced = true;
    node.task_type = Some(task.task_type.clone());
    node.times.created_at_ms = Some(task.created_at_ms);
    node.definition.position = task.position;
    node.definition.hash = task.hash.clone();
    node.definition.trace = task.trace.or(node.definition.trace);
    (node.definition.policy, node.definition.patched) = (task.policy.clone(), false);
    node.requests.asof = task.asof.unwrap_or(-1);
    let not_before_ms = task.policy.as_ref().and_then(|policy| policy.not_before_ms);
    node.times.ready_ms = (!node.is_external()).then(|| task.created_at_ms.max(not_before_ms.unwrap_or(i64::MIN)));
    None
}

/// Compares an announcement with the first one; returns the conflict if it is of another task.
fn announce_again(node: &mut TaskRecord, id: &TaskId, task: &Announcement) -> Option<String> {
    let other_type = node.task_type.as_deref() != Some(&*task.task_type);
    let other_hash = node.definition.hash.is_some() && task.hash.is_some() && node.definition.hash != task.hash;
    if !other_type && !other_hash {
        // The same task was published again, after a wait or for a retry.
        node.definition.position = newest(node.definition.position, task.position);
        node.definition.trace = task.trace.or(node.definition.trace);
        if node.definition.hash.is_none() {
            // The first announcement was a worker's, of a record without a hash.
            node.definition.hash = task.hash.clone();
        }
        return None;
    }
    let have = node.task_type.as_deref().unwrap_or_default();
    Some(format!(
        "{CONFLICT}: `{id}` was submitted again with another type or params (first `{have}`, then `{}`)",
        task.task_type
    ))
}

/// Newer of two positions in the same partition; a lower offset comes from a late event.
fn newest(known: Option<Position>, new: Option<Position>) -> Option<Position> {
    match (known, new) {
        (Some(known), Some(new)) if known.partition == new.partition && new.offset < known.offset => Some(known),
        _ => new.or(known),
    }
}

/// Marks the worker of a task as silent. No state changes, but a cancel no longer waits for that worker.
fn mark_silent(node: &mut TaskRecord, event: &Event) -> Step {
    if event.run != node.run || event.worker.is_none() || event.worker != node.worker || !node.is_held() {
        return Step::of(Verdict::Ignored);
    }
    node.silent = true;
    Step::of(Verdict::Applied)
}
