//! Unique tasks in the projection: decisions about asks, and what starts, ends and removals of trees mean for a key.
//!
//! In: events of tasks whose ids have a tag, and the state of that key, which must be loaded with its tasks
//! ([`WorkingSet::missing_keys`]). An accepted ask becomes a `scheduled` event of its task, with the record; the tracker
//! releases it like any other. A kept task has no release timer while another task of its key is open.
//!
//! Invariant: a key waits exactly while the roots it names are open. Each change of a root's state therefore passes
//! [`Records::follow_root`].

use rustc_hash::{FxHashMap, FxHashSet};

use super::deferred_record::DeferredRecord;
use super::records::Records;
use super::refresh::refresh;
use super::{Cause, LogPosition, Verdict, WorkingSet};
use crate::encode_error::EncodeError;
use crate::event::{Announcement, Event, Kind, Payload};
use crate::outbox::{MAX_DEFERRED_BYTES, RecordCopy};
use crate::record::state::State;
use crate::record::{Definition, HistoryEntry};
use crate::task::id::TaskId;
use crate::unique::id::{is_of_type, tag_of};
use crate::unique::state::{Ask, Decision, KeptTask, KeyState};

/// Action of an operator that forgets a key; its target is the tag.
pub const CLEAR_ACTION: &str = "clear_unique";

/// Loaded keys of unique tasks, and their pending changes.
#[derive(Default)]
pub(super) struct UniqueKeys {
    entries: FxHashMap<Box<str>, KeyEntry>,
    /// Changed keys in the order of their first change.
    dirty: Vec<Box<str>>,
}

#[derive(Default)]
struct KeyEntry {
    /// `None`: nothing is known about the key.
    state: Option<KeyState>,
    /// The store has a state.
    is_stored: bool,
    is_dirty: bool,
}

impl UniqueKeys {
    fn state(&self, tag: &str) -> Option<&KeyState> {
        self.entries.get(tag)?.state.as_ref()
    }

    /// Returns the state for a change. Creates the entry of a key that is not loaded.
    fn state_mut(&mut self, tag: &str) -> &mut Option<KeyState> {
        let entry = self.entries.entry(tag.into()).or_default();
        if !entry.is_dirty {
            entry.is_dirty = true;
            self.dirty.push(tag.into());
        }
        &mut entry.state
    }

    /// Takes the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Result<Vec<(String, Option<Vec<u8>>)>, EncodeError> {
        let mut changes = Vec::with_capacity(self.dirty.len());
        for tag in std::mem::take(&mut self.dirty) {
            let Some(entry) = self.entries.get_mut(&tag) else { continue };
            entry.is_dirty = false;
            let was_stored = std::mem::replace(&mut entry.is_stored, entry.state.is_some());
            // A key that was made and forgotten within one batch was never stored.
            if was_stored || entry.is_stored {
                let state = entry.state.as_ref().map(KeyState::encode).transpose()?;
                changes.push((tag.into(), state));
            }
        }
        Ok(changes)
    }

    /// Drops the loaded states. Call between batches only.
    pub(super) fn unload(&mut self) {
        self.entries.clear();
    }

    /// Forgets the key of a root that is removed, if nothing of it matters any more.
    pub(super) fn forget_removed(&mut self, id: &TaskId, log_time_ms: i64) {
        let Some(tag) = id.tag().filter(|_| id.is_root()) else { return };
        if self.state(tag).is_some_and(|key| key.is_over(log_time_ms)) {
            *self.state_mut(tag) = None;
        }
    }
}

impl WorkingSet {
    /// Tags of the keys that these events need and that are not loaded. Load them before the records, because the tasks
    /// of a key are among [`WorkingSet::missing_records`].
    pub fn missing_keys<'a>(&self, events: impl IntoIterator<Item = &'a Event>) -> Vec<String> {
        let targets = events.into_iter().filter_map(|event| match &event.payload {
            Payload::Operated { action, target } => {
                target.as_deref().filter(|_| action.as_deref() == Some(CLEAR_ACTION))
            }
            _ => tag_of(event.id.as_str()),
        });
        self.unloaded(targets)
    }

    /// Tags of the keys of these tasks that are not loaded.
    pub fn missing_keys_of<'a>(&self, ids: impl IntoIterator<Item = &'a TaskId>) -> Vec<String> {
        self.unloaded(ids.into_iter().filter_map(TaskId::tag))
    }

    fn unloaded<'a>(&self, tags: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut seen = FxHashSet::default();
        tags.filter(|tag| !self.records.keys.entries.contains_key(*tag) && seen.insert(*tag))
            .map(str::to_owned)
            .collect()
    }

    /// Loads the state of a key, `None` if the store has none.
    pub fn load_key(&mut self, tag: &str, state: Option<KeyState>) {
        let tasks = state.iter().flat_map(KeyState::tasks).filter_map(|id| TaskId::parse(id).ok());
        self.records.missing.extend(tasks);
        let entry = KeyEntry { is_stored: state.is_some(), state, is_dirty: false };
        self.records.keys.entries.insert(tag.into(), entry);
    }

    /// State of a loaded key.
    pub fn key(&self, tag: &str) -> Option<&KeyState> {
        self.records.keys.state(tag)
    }

    /// Forgets a key at the request of an operator. A kept task starts then.
    pub(super) fn clear_key(&mut self, event: &Event, position: LogPosition) {
        let Payload::Operated { action: Some(action), target: Some(tag) } = &event.payload else { return };
        if &**action != CLEAR_ACTION || self.records.keys.state(tag).is_none() {
            return;
        }
        let cause = Cause { id: &event.id, at_ms: event.at_ms, position, ages: &self.ages };
        if let Some(kept) = self.records.keys.state_mut(tag).take().and_then(|key| key.kept) {
            self.records.let_start(&kept, cause);
        }
    }
}

impl Records {
    /// Returns true if the root of a task is known and its tree is open.
    pub(super) fn is_root_open(&self, id: &TaskId) -> bool {
        self.task(id.root()).is_some_and(|root| !root.state.is_terminal())
    }

    /// Projects an event of a task whose id has a tag.
    pub(super) fn fold_of_key(&mut self, tag: &str, event: &Event, cause: Cause<'_>) -> Result<Verdict, EncodeError> {
        let was_open = self.is_root_open(&event.id);
        let verdict = match &event.payload {
            Payload::Asked { .. } => return self.ask(tag, event, cause),
            Payload::Released { ask: Some(ask), .. } => self.release(tag, event, *ask, cause)?,
            _ => self.fold(event, cause)?,
        };
        self.follow_root(tag, was_open, cause);
        Ok(verdict)
    }

    /// Decides about an ask, and creates or changes the task that it is accepted as.
    fn ask(&mut self, tag: &str, event: &Event, cause: Cause<'_>) -> Result<Verdict, EncodeError> {
        let Payload::Asked { record: Some(record) } = &event.payload else { return Ok(Verdict::NoRecord) };
        let Some(announcement) = event.task.as_deref() else { return Ok(Verdict::NoRecord) };
        let rule = announcement.policy.as_ref().and_then(|policy| policy.unique.as_ref());
        let Some(rule) = rule.filter(|_| event.id.is_root() && is_of_type(tag, &announcement.task_type)) else {
            return Ok(Verdict::NoRecord);
        };
        let is_known = self.task(event.id.as_str()).is_some_and(|task| task.definition.announced);
        if is_known || (self.keys.state(tag).is_none() && self.is_cut(cause)) {
            return Ok(Verdict::Ignored);
        }
        let LogPosition { offset, log_time_ms } = cause.position;
        let ask = Ask { id: event.id.as_str(), rule, offset, now_ms: log_time_ms };
        let key = self.keys.state_mut(tag).get_or_insert_default();
        let decision = key.ask(&ask);
        let (waits, held_until_ms) = (key.kept_waits(), key.held_until_ms);
        let verdict = key.answers.last().filter(|_| decision != Decision::Repeated).map(|answer| answer.verdict);
        self.verdicts.extend(verdict.map(|verdict| (announcement.task_type.clone(), verdict)));
        match decision {
            Decision::Repeated => return Ok(Verdict::Ignored),
            Decision::Joins => {}
            Decision::Starts => self.create(event, record, log_time_ms, false, cause)?,
            Decision::Keeps { due_ms } => self.create(event, record, due_ms, waits, cause)?,
            Decision::Replaces { kept, due_ms } => {
                if let Ok(kept) = TaskId::parse(&kept) {
                    self.replace(&kept, event, (announcement, record), due_ms, cause)?;
                }
            }
        }
        if decision_starts(self.keys.state(tag), event.id.as_str()) {
            self.hold(&event.id, held_until_ms);
        }
        Ok(Verdict::Applied)
    }

    /// Creates the task of an accepted ask, deferred with its record.
    fn create(
        &mut self,
        event: &Event,
        record: &RecordCopy,
        due_ms: i64,
        waits_for_key: bool,
        cause: Cause<'_>,
    ) -> Result<(), EncodeError> {
        let payload = Payload::Scheduled { due_ms: Some(due_ms), record: Some(Box::new(record.clone())) };
        self.fold(&Event { payload, ..event.clone() }, cause)?;
        self.set_waits(&event.id, waits_for_key, None);
        Ok(())
    }

    /// Gives the kept task the record and the options of a newer ask.
    fn replace(
        &mut self,
        kept: &TaskId,
        event: &Event,
        (announcement, record): (&Announcement, &RecordCopy),
        due_ms: i64,
        cause: Cause<'_>,
    ) -> Result<(), EncodeError> {
        let bytes = record.encode()?;
        let room = MAX_DEFERRED_BYTES.saturating_sub(self.deferred_bytes);
        let Some(task) = self.task_mut(kept).filter(|task| task.own == State::Scheduled) else { return Ok(()) };
        let before = task.deferral.stored_bytes();
        task.deferral.record_bytes = bytes.len() as u32;
        task.deferral.only_in_log = bytes.len() as u64 > room + u64::from(before);
        let definition = &mut task.definition;
        definition.record_event_offset = Some(cause.position.offset);
        set_definition(definition, announcement);
        task.times.due_ms = Some(due_ms);
        let (run, message) = (task.run, format!("replaced by `{}`", event.id));
        let at = (event.at_ms, cause.position.offset);
        task.history
            .push(HistoryEntry { by: event.by.clone(), ..HistoryEntry::of_fold(Kind::Asked, run, at, message) });
        task.folded_to = cause.position.offset + 1;
        let now = task.deferral.stored_bytes();
        refresh(task, cause);
        let change = if now > 0 { DeferredRecord::Put(bytes) } else { DeferredRecord::Drop };
        if now > 0 || before > 0 {
            self.record_deferred(kept, change, before, now);
        }
        Ok(())
    }

    /// Projects the release of a unique task. The record may have been that of an earlier ask than the newest, which is
    /// then kept as a task of its own.
    fn release(&mut self, tag: &str, event: &Event, ask: i64, cause: Cause<'_>) -> Result<Verdict, EncodeError> {
        let kept = self.keys.state(tag).and_then(|key| key.kept.clone());
        let kept = kept.filter(|kept| *kept.id == *event.id.as_str());
        let newest = self.task(event.id.as_str()).map(|task| {
            (task.definition.clone(), task.task_type.clone().unwrap_or_default(), task.deferral.record_bytes)
        });
        // The announcement is that of the released record, which may differ from the newest one without being a conflict.
        let verdict = self.fold(&Event { task: None, ..event.clone() }, cause)?;
        if verdict != Verdict::Applied {
            return Ok(verdict);
        }
        if let Some((task, announcement)) = self.task_mut(&event.id).zip(event.task.as_deref()) {
            set_definition(&mut task.definition, announcement);
        }
        let Some(kept) = kept else { return Ok(verdict) };
        let now_ms = cause.position.log_time_ms;
        let Some(key) = self.keys.state_mut(tag) else { return Ok(verdict) };
        let leaves_newer = key.release(&kept.id, ask, now_ms);
        let (held_until_ms, newer) = (key.held_until_ms, key.kept.clone().filter(|_| leaves_newer));
        self.hold(&event.id, held_until_ms);
        if let Some((newer, (definition, task_type, bytes))) = newer.zip(newest) {
            self.keep_newer(&newer, event, (definition, task_type, bytes), cause)?;
        }
        Ok(verdict)
    }

    /// Creates the task of an ask that came too late for a release. Its record is in its event.
    fn keep_newer(
        &mut self,
        kept: &KeptTask,
        event: &Event,
        (definition, task_type, record_bytes): (Definition, std::sync::Arc<str>, u32),
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
        self.fold(&scheduled, Cause { id: &id, ..cause })?;
        if let Some(task) = self.task_mut(&id) {
            (task.deferral.record_bytes, task.deferral.only_in_log) = (record_bytes, true);
            task.definition.record_event_offset = Some(kept.ask_offset);
        }
        self.set_waits(&id, true, None);
        Ok(())
    }

    /// Applies to the key what has become of the root of the event's tree.
    pub(super) fn follow_root(&mut self, tag: &str, was_open: bool, cause: Cause<'_>) {
        let root = cause.id.root();
        let is_open = self.is_root_open(cause.id);
        if was_open == is_open {
            return;
        }
        if !is_open {
            let Some(key) = self.keys.state(tag).filter(|key| key.tasks().any(|task| task == root)) else { return };
            let mut ended = key.clone();
            let lets_start = ended.end(root);
            let kept = ended.kept.clone().filter(|_| lets_start);
            *self.keys.state_mut(tag) = Some(ended);
            if let Some(kept) = kept {
                self.let_start(&kept, cause);
            }
            return;
        }
        if self.keys.state(tag).is_none() {
            let is_unique = self.task(root).is_some_and(|task| {
                task.own != State::Expected && task.task_type.as_deref().is_some_and(|name| is_of_type(tag, name))
            });
            if is_unique && self.is_cut(cause) {
                *self.keys.state_mut(tag) = Some(KeyState::of_open(root));
            }
            return;
        }
        if let Some(key) = self.keys.state_mut(tag)
            && key.reopen(root)
            && let Some(kept) = key.kept.as_ref().and_then(|kept| TaskId::parse(&kept.id).ok())
        {
            self.set_waits(&kept, true, None);
        }
    }

    /// Lets a kept task start when it is due, and not before now.
    fn let_start(&mut self, kept: &KeptTask, cause: Cause<'_>) {
        if let Ok(id) = TaskId::parse(&kept.id) {
            self.set_waits(&id, false, Some(kept.due_ms.max(cause.position.log_time_ms)));
        }
    }

    fn set_waits(&mut self, id: &TaskId, waits_for_key: bool, due_ms: Option<i64>) {
        let Some(task) = self.task_mut(id).filter(|task| task.deferral.is_deferred()) else { return };
        task.deferral.waits_for_key = waits_for_key;
        task.times.due_ms = due_ms.or(task.times.due_ms);
    }

    /// Keeps the record of a task until its key may be forgotten.
    fn hold(&mut self, id: &TaskId, until_ms: i64) {
        if let Some(task) = self.task_mut(id) {
            task.tree.hold_ms = task.tree.hold_ms.max(until_ms);
        }
    }

    /// Returns true near the beginning of a log whose earlier events have been removed: the tasks of a key may be unknown.
    fn is_cut(&self, cause: Cause<'_>) -> bool {
        let overview = self.statistics.overview();
        let now_ms = cause.position.log_time_ms;
        let first_ms = overview.first_ms.unwrap_or(now_ms);
        overview.began > 0 && now_ms < first_ms.saturating_add(cause.ages.lifetimes.max_tree_age_ms)
    }
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
