//! Commands about single tasks on the control topic: cancels, and requests to start now.

use kafleet_model::task::start::NextStart;
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::record_value::{InvalidRecord, read};

/// Maximum number of commands of a kind that are kept; the oldest are dropped. The tracker ends the tasks of cancels, and
/// tasks that were to start now start when they are due.
const MAX_COMMANDS: usize = 100_000;

/// `start/<task id>`: ends the wait of the task before this start, if a worker holds the task. It ends nothing but that
/// wait: pauses, circuits, kill switches, ordering keys, slots and rate limits still apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartNow {
    pub v: u32,
    #[serde(default)]
    pub at_ms: i64,
    #[serde(flatten)]
    pub next_start: NextStart,
}

/// Commands of one kind by task id, with the offsets of their records.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TaskCommands<T>(FxHashMap<String, (i64, T)>);

impl<T> Default for TaskCommands<T> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<T: DeserializeOwned> TaskCommands<T> {
    /// Applies a record; a tombstone removes the command.
    pub(super) fn apply_record(&mut self, id: String, value: Option<&[u8]>, offset: i64) -> Result<(), InvalidRecord> {
        let Some(value) = value else {
            self.0.remove(&id);
            return Ok(());
        };
        self.0.insert(id, (offset, read::<T>(value)?));
        if self.0.len() > MAX_COMMANDS {
            self.forget_oldest();
        }
        Ok(())
    }

    /// Drops a tenth of the commands at once, so that the scan is rare.
    fn forget_oldest(&mut self) {
        let mut offsets: Vec<i64> = self.0.values().map(|(offset, _)| *offset).collect();
        offsets.sort_unstable();
        let first_kept = offsets.get(MAX_COMMANDS / 10).copied().unwrap_or_default();
        self.0.retain(|_, (offset, _)| *offset >= first_kept);
        tracing::warn!(
            held = self.0.len(),
            "too many active cancels or starts: the oldest were dropped; the tracker ends cancelled tasks, and tasks that were \
             to start now start when they are due"
        );
    }
}

impl<T> TaskCommands<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, id: &str) -> Option<&T> {
        self.0.get(id).map(|(_, command)| command)
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &T)> {
        self.0.iter().map(|(id, (_, command))| (id.as_str(), command))
    }
}
