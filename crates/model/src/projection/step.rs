//! Applies one event to the record of its own task.

use super::history::{history_entry, late_announcement};
use super::interruptions::{add_unreported, interrupt};
use super::reports::{attach, report};
use super::state_machine::advance;
use super::step_outcome::Step;
use super::{LogPosition, Verdict, attachments, notifications, requests};
use crate::event::{Announcement, Event, Kind, Payload};
use crate::record::TaskRecord;
use crate::record::state::State;
use crate::task::Position;
use crate::task::id::TaskId;
use crate::task::param_tags::{MAX_INDEXED, is_param_tag};

pub(super) fn step(task: &mut TaskRecord, event: &Event, position: LogPosition, next_run: u32) -> Step {
    match &event.payload {
        Payload::CancelRequested(scope) => return requests::cancel(task, event, scope, position),
        Payload::RetryRequested { .. } => return requests::retry(task, event, position, next_run),
        Payload::EffectDone { effect, position } => {
            return requests::effect_done(task, effect.as_deref(), *position);
        }
        Payload::Patched { patch } => return requests::patch(task, patch.as_deref()),
        Payload::Attached { .. } | Payload::Detached { .. } => return attachments::attach(task, event),
        Payload::WorkerSilent => return mark_silent(task, event),
        // A log line that was not written by an attempt belongs to the task, whatever its current run.
        Payload::Log { .. } if event.worker.is_none() => {
            return Step { in_history: false, ..Step::of(attach(task, event)) };
        }
        Payload::Checked { check } => return notifications::run_check(task, *check, event.at_ms, position),
        _ => {}
    }
    if event.run < task.run {
        return Step::of(Verdict::Ignored);
    }
    if event.run > task.run {
        if !event.kind().creates() {
            return Step::of(Verdict::Ignored);
        }
        begin_run(task, event.run);
    }
    if event.kind() == Kind::Cancelled && task.own == State::Cancelled {
        // A worker has come to the record of a task that the tracker has ended: the event confirms that end.
        return Step { in_history: false, ..Step::of(Verdict::Ignored) };
    }
    let conflict = event.task.as_ref().and_then(|announcement| announce(task, &event.id, announcement));
    let announces =
        event.kind() == Kind::Submitted || (event.kind() == Kind::Scheduled && event.payload.record().is_some());
    if conflict.is_some() && announces {
        return Step { conflict, ..Step::of(Verdict::Ignored) };
    }
    // Handler continuations are numbered after the policy's, so the policy must be known.
    let then = event.payload.continuations();
    if !then.is_empty() && task.definition.announced && !task.own.is_terminal() {
        task.continuations.from_handler = Some(then.to_vec());
    }
    let was_started = task.times.started_at_ms.is_some();
    let mut passed = notifications::passed_states(task, event);
    let verdict = match event.kind() {
        Kind::Progress | Kind::Log => attach(task, event),
        Kind::Reported => report(task, event),
        Kind::Interrupted => interrupt(task, event),
        _ => {
            add_unreported(task, event, position);
            advance(task, event, position)
        }
    };
    if verdict == Verdict::Ignored {
        passed.clear();
    }
    let is_late_announcement = is_late_announcement(task, event, verdict);
    let in_history = event.kind().is_in_history();
    let started = !was_started && task.times.started_at_ms.is_some();
    Step { in_history, started, conflict, passed, is_late_announcement, ..Step::of(verdict) }
}

fn is_late_announcement(task: &TaskRecord, event: &Event, verdict: Verdict) -> bool {
    verdict == Verdict::Ignored && event.kind() == Kind::Submitted && task.history.has_unannounced_events(task.run)
}

/// Begin of the message about a second task with the id of another.
pub const CONFLICT: &str = "spawn_conflict";

/// Adds the event to the history.
pub(super) fn add_to_history(task: &mut TaskRecord, event: &Event, position: LogPosition, step: &Step) {
    if step.is_late_announcement {
        task.history.insert_announcement(late_announcement(event, position));
    } else if step.verdict == Verdict::Ignored && is_inherited_cancel(event) && task.own == State::Cancelled {
        // A worker cancelled the descendant before the tracker's request was projected: the request is listed first.
        task.history.insert_before_cancelled(history_entry(event, position, Verdict::Applied));
    } else if step.in_history {
        task.history.push(history_entry(event, position, step.verdict));
    }
}

/// Distinguishes the cancel of a descendant, published by the tracker, from a request for the task itself.
fn is_inherited_cancel(event: &Event) -> bool {
    matches!(&event.payload, Payload::CancelRequested(scope) if scope.asof.is_some())
}

/// Resets the record for a new run. History, log, attachments, requests and effects stay; the counts of children
/// created by earlier runs are dropped.
pub(super) fn begin_run(task: &mut TaskRecord, run: u32) {
    let fresh = TaskRecord::expected(run, task.times.seen_ms);
    let old = std::mem::replace(task, fresh);
    task.task_type = old.task_type;
    (task.definition.position, task.definition.trace) = (old.definition.position, old.definition.trace);
    (task.definition.policy, task.definition.patched) = (old.definition.policy, old.definition.patched);
    task.times.created_at_ms = old.times.created_at_ms;
    task.tree.first_start = old.tree.first_start;
    task.tree.highest_run = old.tree.highest_run;
    task.history.entries = old.history.entries;
    task.history.dropped = old.history.dropped;
    task.history.duplicates = old.history.duplicates;
    task.log.lines = old.log.lines;
    task.log.dropped = old.log.dropped;
    task.attachments = old.attachments;
    (task.requests.cancel, task.definition.record_event_offset, task.effects) =
        (old.requests.cancel, old.definition.record_event_offset, old.effects);
    task.tree.below = old.tree.below;
    task.tree.below.retain(|group| group.run >= run);
    (task.times.expiry, task.tree.has_below, task.tree.root) = (old.times.expiry, old.tree.has_below, old.tree.root);
    (task.notifications, task.tree.hold_ms) = (old.notifications, old.tree.hold_ms);
    if let Some(log) = task.notifications.as_deref_mut() {
        log.begin_run();
    }
}

/// Applies an announcement. Within a run the first one counts; another task with the same id and run is a conflict.
pub(super) fn announce(task: &mut TaskRecord, id: &TaskId, announcement: &Announcement) -> Option<String> {
    if task.definition.announced {
        return announce_again(task, id, announcement);
    }
    task.definition.announced = true;
    task.task_type = Some(announcement.task_type.clone());
    task.times.created_at_ms = Some(announcement.created_at_ms);
    task.definition.position = announcement.position;
    task.definition.hash = announcement.hash.clone();
    task.definition.trace = announcement.trace.or(task.definition.trace);
    (task.definition.policy, task.definition.patched) = (announcement.policy.clone(), false);
    task.requests.asof = announcement.asof.unwrap_or(-1);
    let not_before_ms = announcement.policy.as_ref().and_then(|policy| policy.not_before_ms);
    task.times.ready_ms =
        (!task.is_external()).then(|| announcement.created_at_ms.max(not_before_ms.unwrap_or(i64::MIN)));
    None
}

/// Compares an announcement with the first one; returns the conflict if it is of another announcement.
fn announce_again(task: &mut TaskRecord, id: &TaskId, announcement: &Announcement) -> Option<String> {
    let other_type = task.task_type.as_deref() != Some(&*announcement.task_type);
    let other_hash =
        task.definition.hash.is_some() && announcement.hash.is_some() && task.definition.hash != announcement.hash;
    if !other_type && !other_hash {
        // The same announcement was published again, after a wait or for a retry.
        task.definition.position = newest(task.definition.position, announcement.position);
        task.definition.trace = announcement.trace.or(task.definition.trace);
        if task.definition.hash.is_none() {
            // The first announcement was a worker's, of a record without a hash.
            task.definition.hash = announcement.hash.clone();
        }
        add_param_tags(task, announcement);
        return None;
    }
    let have = task.task_type.as_deref().unwrap_or_default();
    Some(format!(
        "{CONFLICT}: `{id}` was submitted again with another type or params (first `{have}`, then `{}`)",
        announcement.task_type
    ))
}

/// Adds tags of declared params that the first announcement lacks: its writer did not know the type, which its worker does.
fn add_param_tags(task: &mut TaskRecord, announcement: &Announcement) {
    let given = announcement.policy.iter().flat_map(|policy| &policy.tags).filter(|tag| is_param_tag(tag));
    let present = task.definition.policy.as_deref().map(|policy| policy.tags.as_slice()).unwrap_or_default();
    let room = MAX_INDEXED.saturating_sub(present.iter().filter(|tag| is_param_tag(tag)).count());
    let missing: Vec<String> = given.filter(|tag| !present.contains(tag)).take(room).cloned().collect();
    if !missing.is_empty() {
        task.definition.policy.get_or_insert_default().tags.extend(missing);
    }
}

/// Newer of two positions in the same partition; a lower offset comes from a late event.
fn newest(current: Option<Position>, new: Option<Position>) -> Option<Position> {
    match (current, new) {
        (Some(current), Some(new)) if current.partition == new.partition && new.offset < current.offset => {
            Some(current)
        }
        _ => new.or(current),
    }
}

/// Marks the worker of a task as silent. No state changes, but a cancel no longer waits for that worker.
fn mark_silent(task: &mut TaskRecord, event: &Event) -> Step {
    if event.run != task.run || event.worker.is_none() || event.worker != task.worker || !task.is_held() {
        return Step::of(Verdict::Ignored);
    }
    task.silent = true;
    Step::of(Verdict::Applied)
}
