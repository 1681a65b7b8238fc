//! Unique tasks in the projection: decisions about asks, and what starts, ends and removals of trees mean for a key.
//!
//! In: events of tasks whose ids have a tag, and the state of that key, which must be loaded with its tasks
//! ([`UniqueKeys::missing`](super::UniqueKeys::missing)). An accepted ask becomes a `scheduled` event of its task, with the record; the tracker
//! releases it like any other. A kept task has no release timer while another task of its key is open.
//!
//! Invariant: a key waits exactly while the roots it names are open. Each change of a root's state therefore passes
//! [`follow_root`].

use std::sync::Arc;

use super::deferred_record::DeferredRecord;
use super::records::Records;
use super::refresh::refresh;
use super::unique_keys::CLEAR_ACTION;
use super::{Cause, LogPosition, Verdict};
use crate::encode_error::EncodeError;
use crate::event::{Announcement, Event, Kind, Payload};
use crate::outbox::{MAX_DEFERRED_BYTES, RecordCopy};
use crate::record::state::State;
use crate::record::{Definition, HistoryEntry};
use crate::task::id::TaskId;
use crate::unique::id::is_of_type;
use crate::unique::state::{Ask, Decision, KeptTask, KeyState};

/// Forgets a key at the request of an operator. A kept task starts then.
pub(super) fn clear_key(records: &mut Records, event: &Event, cause: Cause<'_>) {
    let Payload::Operated { action: Some(action), target: Some(tag) } = &event.payload else { return };
    if &**action != CLEAR_ACTION || records.keys.state(tag).is_none() {
        return;
    }
    if let Some(kept) = records.keys.state_mut(tag).take().and_then(|key| key.kept) {
        let_start(records, &kept, cause);
    }
}

/// Returns true if the root of a task is known and its tree is open.
pub(super) fn is_root_open(records: &Records, id: &TaskId) -> bool {
    records.task(id.root()).is_some_and(|root| !root.state.is_terminal())
}

/// Projects an event of a task whose id has a tag.
pub(super) fn fold_of_key(
    records: &mut Records,
    tag: &str,
    event: &Event,
    cause: Cause<'_>,
) -> Result<Verdict, EncodeError> {
    let was_open = is_root_open(records, &event.id);
    let verdict = match &event.payload {
        Payload::Asked { .. } => return ask(records, tag, event, cause),
        Payload::Released { ask: Some(ask), .. } => release(records, tag, event, *ask, cause)?,
        _ => records.fold(event, cause)?,
    };
    follow_root(records, tag, was_open, cause);
    Ok(verdict)
}

/// Decides about an ask, and creates or changes the task that it is accepted as.
fn ask(records: &mut Records, tag: &str, event: &Event, cause: Cause<'_>) -> Result<Verdict, EncodeError> {
    let Payload::Asked { record: Some(record) } = &event.payload else { return Ok(Verdict::NoRecord) };
    let Some(announcement) = event.task.as_deref() else { return Ok(Verdict::NoRecord) };
    let rule = announcement.policy.as_ref().and_then(|policy| policy.unique.as_ref());
    let Some(rule) = rule.filter(|_| event.id.is_root() && is_of_type(tag, &announcement.task_type)) else {
        return Ok(Verdict::NoRecord);
    };
    let is_known = records.task(event.id.as_str()).is_some_and(|task| task.definition.announced);
    if is_known || (records.keys.state(tag).is_none() && is_cut(records, cause)) {
        return Ok(Verdict::Ignored);
    }
    let LogPosition { offset, log_time_ms } = cause.position;
    let ask = Ask { id: event.id.as_str(), rule, offset, now_ms: log_time_ms };
    let key = records.keys.state_mut(tag).get_or_insert_default();
    let decision = key.ask(&ask);
    let (waits, held_until_ms) = (key.kept_waits(), key.held_until_ms);
    let verdict = key.answers.last().filter(|_| decision != Decision::Repeated).map(|answer| answer.verdict);
    records.keys.verdicts.extend(verdict.map(|verdict| (announcement.task_type.clone(), verdict)));
    match decision {
        Decision::Repeated => return Ok(Verdict::Ignored),
        Decision::Joins => {}
        Decision::Starts => create(records, event, record, log_time_ms, false, cause)?,
        Decision::Keeps { due_ms } => create(records, event, record, due_ms, waits, cause)?,
        Decision::Replaces { kept, due_ms } => {
            if let Ok(kept) = TaskId::parse(&kept) {
                replace(records, &kept, event, (announcement, record), due_ms, cause)?;
            }
        }
    }
    if decision_starts(records.keys.state(tag), event.id.as_str()) {
        hold(records, &event.id, held_until_ms);
    }
    Ok(Verdict::Applied)
}

/// Creates the task of an accepted ask, deferred with its record.
fn create(
    records: &mut Records,
    event: &Event,
    record: &RecordCopy,
    due_ms: i64,
    waits_for_key: bool,
    cause: Cause<'_>,
) -> Result<(), EncodeError> {
    let payload = Payload::Scheduled { due_ms: Some(due_ms), record: Some(Box::new(record.clone())) };
    records.fold(&Event { payload, ..event.clone() }, cause)?;
    set_waits(records, &event.id, waits_for_key, None);
    Ok(())
}

/// Gives the kept task the record and the options of a newer ask.
fn replace(
    records: &mut Records,
    kept: &TaskId,
    event: &Event,
    (announcement, record): (&Announcement, &RecordCopy),
    due_ms: i64,
    cause: Cause<'_>,
) -> Result<(), EncodeError> {
    let bytes = record.encode()?;
    let room = MAX_DEFERRED_BYTES.saturating_sub(records.deferred_bytes);
    let Some(task) = records.task_mut(kept).filter(|task| task.own == State::Scheduled) else { return Ok(()) };
    let before = task.deferral.stored_bytes();
    task.deferral.record_bytes = bytes.len() as u32;
    task.deferral.only_in_log = bytes.len() as u64 > room + u64::from(before);
    let definition = &mut task.definition;
    definition.record_event_offset = Some(cause.position.offset);
    set_definition(definition, announcement);
    task.times.due_ms = Some(due_ms);
    let (run, message) = (task.run, format!("replaced by `{}`", event.id));
    let at = (event.at_ms, cause.position.offset);
    task.history.push(HistoryEntry { by: event.by.clone(), ..HistoryEntry::of_fold(Kind::Asked, run, at, message) });
    task.folded_to = cause.position.offset + 1;
    let now = task.deferral.stored_bytes();
    refresh(task, cause);
    let change = if now > 0 { DeferredRecord::Put(bytes) } else { DeferredRecord::Drop };
    if now > 0 || before > 0 {
        records.record_deferred(kept, change, before, now);
    }
    Ok(())
}

/// Projects the release of a unique task. The record may have been that of an earlier ask than the newest, which is
/// then kept as a task of its own.
fn release(
    records: &mut Records,
    tag: &str,
    event: &Event,
    ask: i64,
    cause: Cause<'_>,
) -> Result<Verdict, EncodeError> {
    let kept = records.keys.state(tag).and_then(|key| key.kept.clone());
    let kept = kept.filter(|kept| *kept.id == *event.id.as_str());
    let newest = records
        .task(event.id.as_str())
        .map(|task| (task.definition.clone(), task.task_type.clone().unwrap_or_default(), task.deferral.record_bytes));
    // The announcement is that of the released record, which may differ from the newest one without being a conflict.
    let verdict = records.fold(&Event { task: None, ..event.clone() }, cause)?;
    if verdict != Verdict::Applied {
        return Ok(verdict);
    }
    if let Some((task, announcement)) = records.task_mut(&event.id).zip(event.task.as_deref()) {
        set_definition(&mut task.definition, announcement);
    }
    let Some(kept) = kept else { return Ok(verdict) };
    let now_ms = cause.position.log_time_ms;
    let Some(key) = records.keys.state_mut(tag) else { return Ok(verdict) };
    let leaves_newer = key.release(&kept.id, ask, now_ms);
    let (held_until_ms, newer) = (key.held_until_ms, key.kept.clone().filter(|_| leaves_newer));
    hold(records, &event.id, held_until_ms);
    if let Some((newer, (definition, task_type, bytes))) = newer.zip(newest) {
        keep_newer(records, &newer, event, (definition, task_type, bytes), cause)?;
    }
    Ok(verdict)
}

/// Creates the task of an ask that came too late for a release. Its record is in its event.
fn keep_newer(
    records: &mut Records,
    kept: &KeptTask,
    event: &Event,
    (definition, task_type, record_bytes): (Definition, Arc<str>, u32),
    cause: Cause<'_>,
) -> Result<(), EncodeError> {
    let Ok(id) = TaskId::parse(&kept.id) else { return Ok(()) };
    let announcement = Announcement {
        task_type,
        created_at_ms: event.at_ms,
        position: None,
        hash: definition.hash,
        policy: definition.policy,
        asof: None,
        trace: definition.trace,
    };
    let payload = Payload::Scheduled { due_ms: Some(kept.due_ms), record: None };
    let scheduled = Event { task: Some(Box::new(announcement)), ..Event::new(payload, id.clone(), 1, event.at_ms) };
    records.fold(&scheduled, Cause { id: &id, ..cause })?;
    if let Some(task) = records.task_mut(&id) {
        (task.deferral.record_bytes, task.deferral.only_in_log) = (record_bytes, true);
        task.definition.record_event_offset = Some(kept.ask_offset);
    }
    set_waits(records, &id, true, None);
    Ok(())
}

/// Applies to the key what has become of the root of the event's tree.
pub(super) fn follow_root(records: &mut Records, tag: &str, was_open: bool, cause: Cause<'_>) {
    let root = cause.id.root();
    let is_open = is_root_open(records, cause.id);
    if was_open == is_open {
        return;
    }
    if !is_open {
        let Some(key) = records.keys.state(tag).filter(|key| key.tasks().any(|task| task == root)) else { return };
        let mut ended = key.clone();
        let lets_start = ended.end(root);
        let kept = ended.kept.clone().filter(|_| lets_start);
        *records.keys.state_mut(tag) = Some(ended);
        if let Some(kept) = kept {
            let_start(records, &kept, cause);
        }
        return;
    }
    if records.keys.state(tag).is_none() {
        let is_unique = records.task(root).is_some_and(|task| {
            task.own != State::Expected && task.task_type.as_deref().is_some_and(|name| is_of_type(tag, name))
        });
        if is_unique && is_cut(records, cause) {
            *records.keys.state_mut(tag) = Some(KeyState::of_open(root));
        }
        return;
    }
    if let Some(key) = records.keys.state_mut(tag)
        && key.reopen(root)
        && let Some(kept) = key.kept.as_ref().and_then(|kept| TaskId::parse(&kept.id).ok())
    {
        set_waits(records, &kept, true, None);
    }
}

/// Lets a kept task start when it is due, and not before now.
fn let_start(records: &mut Records, kept: &KeptTask, cause: Cause<'_>) {
    if let Ok(id) = TaskId::parse(&kept.id) {
        set_waits(records, &id, false, Some(kept.due_ms.max(cause.position.log_time_ms)));
    }
}

fn set_waits(records: &mut Records, id: &TaskId, waits_for_key: bool, due_ms: Option<i64>) {
    let Some(task) = records.task_mut(id).filter(|task| task.deferral.is_deferred()) else { return };
    task.deferral.waits_for_key = waits_for_key;
    task.times.due_ms = due_ms.or(task.times.due_ms);
}

/// Keeps the record of a task until its key may be forgotten.
fn hold(records: &mut Records, id: &TaskId, until_ms: i64) {
    if let Some(task) = records.task_mut(id) {
        task.tree.hold_ms = task.tree.hold_ms.max(until_ms);
    }
}

/// Returns true near the beginning of a log whose earlier events have been removed: the tasks of a key may be unknown.
fn is_cut(records: &Records, cause: Cause<'_>) -> bool {
    let overview = records.statistics.overview();
    let now_ms = cause.position.log_time_ms;
    let first_ms = overview.first_ms.unwrap_or(now_ms);
    overview.began > 0 && now_ms < first_ms.saturating_add(cause.ages.lifetimes.max_tree_age_ms)
}

/// Returns true if the ask is the last start of its key.
fn decision_starts(key: Option<&KeyState>, ask: &str) -> bool {
    key.is_some_and(|key| key.last.as_deref() == Some(ask))
}

/// Takes over the definition of its task from a newer record.
fn set_definition(definition: &mut Definition, announcement: &Announcement) {
    definition.hash.clone_from(&announcement.hash);
    definition.policy.clone_from(&announcement.policy);
    definition.trace = announcement.trace.or(definition.trace);
    definition.patched = false;
}
