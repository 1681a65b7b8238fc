//! Loaded keys of unique tasks.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::encode_error::EncodeError;
use crate::event::{Event, Payload};
use crate::task::id::TaskId;
use crate::unique::AskVerdict;
use crate::unique::id::tag_of;
use crate::unique::state::KeyState;

/// Action of an operator that forgets a key; its target is the tag.
pub const CLEAR_ACTION: &str = "clear_unique";

/// Tag of a key with its encoded state. `None`: the key is forgotten.
type KeyChange = (String, Option<Vec<u8>>);

/// Loaded keys of unique tasks, and their pending changes.
#[derive(Default)]
pub struct UniqueKeys {
    entries: FxHashMap<Box<str>, KeyEntry>,
    /// Changed keys in the order of their first change.
    dirty: Vec<Box<str>>,
    /// Tasks of the keys that were loaded, which must be loaded too.
    tasks: Vec<TaskId>,
    /// Verdicts about asks by type, since they were last taken.
    pub(super) verdicts: Vec<(Arc<str>, AskVerdict)>,
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
    /// Tags of the keys that these events need and that are not loaded. Load them before the records, because the tasks
    /// of a key are among [`missing_records`](super::WorkingSet::missing_records).
    pub fn missing<'a>(&self, events: impl IntoIterator<Item = &'a Event>) -> Vec<String> {
        self.unloaded(events.into_iter().filter_map(|event| match &event.payload {
            Payload::Operated { action, target } => {
                target.as_deref().filter(|_| action.as_deref() == Some(CLEAR_ACTION))
            }
            _ => tag_of(event.id.as_str()),
        }))
    }

    /// Tags of the keys of these tasks that are not loaded.
    pub fn missing_of<'a>(&self, ids: impl IntoIterator<Item = &'a TaskId>) -> Vec<String> {
        self.unloaded(ids.into_iter().filter_map(TaskId::tag))
    }

    fn unloaded<'a>(&self, tags: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut seen = FxHashSet::default();
        tags.filter(|tag| !self.entries.contains_key(*tag) && seen.insert(*tag)).map(str::to_owned).collect()
    }

    /// Loads the state of a key, `None` if the store has none.
    pub fn load(&mut self, tag: &str, state: Option<KeyState>) {
        self.tasks.extend(state.iter().flat_map(KeyState::tasks).filter_map(|id| TaskId::parse(id).ok()));
        let entry = KeyEntry { is_stored: state.is_some(), state, is_dirty: false };
        self.entries.insert(tag.into(), entry);
    }

    /// Takes the ids of the tasks of the keys that were loaded.
    pub(super) fn take_tasks(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.tasks)
    }

    /// Takes the verdicts about asks, with the types of the tasks.
    pub fn take_verdicts(&mut self) -> Vec<(Arc<str>, AskVerdict)> {
        std::mem::take(&mut self.verdicts)
    }

    pub(super) fn state(&self, tag: &str) -> Option<&KeyState> {
        self.entries.get(tag)?.state.as_ref()
    }

    /// Returns the state for a change. Creates the entry of a key that is not loaded.
    pub(super) fn state_mut(&mut self, tag: &str) -> &mut Option<KeyState> {
        let entry = self.entries.entry(tag.into()).or_default();
        if !entry.is_dirty {
            entry.is_dirty = true;
            self.dirty.push(tag.into());
        }
        &mut entry.state
    }

    /// Takes the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Result<Vec<KeyChange>, EncodeError> {
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
