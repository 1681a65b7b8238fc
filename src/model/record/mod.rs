//! Record of a task in the store: one compact value, written once per changed task and batch.

pub mod attachment;
pub mod notifications;
pub mod rollup;
pub mod state;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::encode_error::EncodeError;
use super::event::{ErrorInfo, Kind};
use super::json::RawJson;
use super::outbox::{Cancel, Effect};
use super::record::attachment::Attached;
use super::record::notifications::NotificationLog;
use super::record::rollup::RunCounts;
use super::record::state::{Category, State};
use super::retention::Expiry;
use super::task::continuation::{Continuation, ids_below};
use super::task::id::TaskId;
use super::task::{OnFailure, Policy, Position};

/// Maximum number of history entries in a record. The first entry stays; the oldest after it are dropped.
pub const MAX_HISTORY: usize = 64;
/// Maximum length of a message in the history, in characters.
pub const MAX_MESSAGE_CHARS: usize = 2_000;

/// Record of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// `None` while the task is only expected.
    pub task_type: Option<Arc<str>>,
    /// State of the task itself, without its children.
    pub own: State,
    /// Own state combined with the children's.
    pub state: State,
    pub run: u32,
    pub attempt: u32,
    pub worker: Option<Arc<str>>,
    /// Position of the task's record.
    pub position: Option<Position>,
    pub hash: Option<Box<str>>,
    /// Set once an announcement with the policy has arrived; no rule is evaluated before.
    pub announced: bool,
    /// Stored as JSON text, because a policy omits fields that are not set.
    #[serde(with = "super::json::as_text")]
    pub policy: Option<Box<Policy>>,
    /// The policy differs from the one in the task's record and replaces it when the record is published again.
    pub patched: bool,
    /// Log time of the first event: the order of lists.
    pub seen_ms: i64,
    pub created_at_ms: Option<i64>,
    pub started_at_ms: Option<i64>,
    pub ended_at_ms: Option<i64>,
    pub due_ms: Option<i64>,
    pub progress: Option<RawJson>,
    pub output: Option<RawJson>,
    pub error: Option<Box<ErrorInfo>>,
    /// An external task was reported as failed in this run, which later reports cannot undo.
    pub fault: bool,
    /// Counts of the descendants, grouped by the run of the direct child.
    pub below: Vec<RunCounts>,
    /// First start and last end of any task in this subtree.
    pub first_start: Option<Box<Moment>>,
    pub last_end: Option<Box<Moment>>,
    /// Highest run in the tree (root only).
    pub highest_run: u32,
    pub history: Vec<HistoryEntry>,
    pub history_dropped: u32,
    /// Number of terminal events after the first of a run.
    pub duplicates: u32,
    pub log_lines: u32,
    pub log_dropped: u32,
    /// Attachments in the order of arrival.
    pub attachments: Vec<Attached>,
    /// Offset after the last event projected into the record.
    pub folded_to: i64,
    /// Offset in the events partition; requests up to it do not apply to the task. -1: all requests apply.
    pub asof: i64,
    pub cancel: Option<Box<Cancel>>,
    /// Size of the deferred record that the tracker stores until the task is due, in bytes; 0: none.
    pub kept: u32,
    /// Waits of this run that began after an attempt lower than this number have ended with a release.
    pub released: u32,
    /// Offset of an event that contains the task's complete record, if any.
    pub record_event_offset: Option<i64>,
    /// Pending effects in the order of execution ([`TaskRecord::push_effect`]).
    pub effects: Vec<Effect>,
    /// Continuations added by the handler in this run.
    #[serde(with = "super::json::as_text")]
    pub handler_continuations: Option<Vec<Continuation>>,
    /// Bit mask of the continuations created in this run.
    pub created_mask: u16,
    /// Next expiry by log time.
    pub expiry: Option<Expiry>,
    /// Set for the root of a tree.
    pub root: bool,
    /// Set once a descendant was counted, even if none counts any more.
    pub has_below: bool,
    /// The worker that held the task has stopped sending heartbeats.
    pub silent: bool,
    /// Notification state, for tasks with actions or checks.
    pub told: Option<Box<NotificationLog>>,
    /// Earliest removal of the finished tree, epoch milliseconds (root only).
    pub hold_ms: i64,
}

/// Time, and the task that caused it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub at_ms: i64,
    pub by: String,
}

/// Entry of a task's history: one event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub kind: Kind,
    pub at_ms: i64,
    pub offset: i64,
    pub run: u32,
    pub attempt: u32,
    pub worker: Option<Arc<str>>,
    pub message: Option<String>,
    /// Code of the error in the event.
    pub error_kind: Option<Box<str>>,
    /// Duration of the ended attempt, if no `started` event preceded, in milliseconds.
    pub took_ms: Option<u32>,
    /// Name of the API token that made the request.
    pub by: Option<Arc<str>>,
    /// The event changed nothing.
    pub ignored: bool,
}

impl HistoryEntry {
    /// Entry for an action of the projection itself.
    pub fn of_fold(kind: Kind, run: u32, (at_ms, offset): (i64, i64), message: String) -> Self {
        Self {
            kind,
            at_ms,
            offset,
            run,
            attempt: 0,
            worker: None,
            message: Some(message),
            error_kind: None,
            took_ms: None,
            by: None,
            ignored: false,
        }
    }
}

impl TaskRecord {
    /// Creates the record of a task that other events name but that is not announced yet.
    pub fn expected(run: u32, seen_ms: i64) -> Self {
        Self {
            task_type: None,
            own: State::Expected,
            state: State::Expected,
            run,
            attempt: 0,
            worker: None,
            position: None,
            hash: None,
            announced: false,
            policy: None,
            patched: false,
            seen_ms,
            created_at_ms: None,
            started_at_ms: None,
            ended_at_ms: None,
            due_ms: None,
            progress: None,
            output: None,
            error: None,
            fault: false,
            below: Vec::new(),
            first_start: None,
            last_end: None,
            highest_run: run,
            history: Vec::new(),
            history_dropped: 0,
            duplicates: 0,
            log_lines: 0,
            log_dropped: 0,
            attachments: Vec::new(),
            folded_to: 0,
            asof: -1,
            cancel: None,
            kept: 0,
            released: 0,
            record_event_offset: None,
            effects: Vec::new(),
            handler_continuations: None,
            created_mask: 0,
            expiry: None,
            root: false,
            has_below: false,
            silent: false,
            told: None,
            hold_ms: 0,
        }
    }

    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(postcard::to_allocvec(self)?)
    }

    /// Returns `None` for bytes of another version; the caller rebuilds the store.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    /// Returns true if a retry of failed tasks restarts this task: workers run it, and it failed, expired or was
    /// cancelled.
    pub fn is_restartable(&self) -> bool {
        self.own.category() == Category::Failed && self.announced && !self.is_external()
    }

    /// Number of restartable descendants.
    pub fn restartable_below(&self) -> u64 {
        self.below.iter().map(|group| group.restartable).sum()
    }

    pub fn is_external(&self) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.rules.external)
    }

    pub fn blocks_when_done(&self) -> bool {
        self.policy.as_ref().is_none_or(|policy| policy.rules.block_when_done)
    }

    pub fn on_failure(&self) -> OnFailure {
        self.policy.as_ref().map_or(OnFailure::Fail, |policy| policy.on_failure)
    }

    /// Returns true if the task has continuations.
    pub fn has_continuations(&self) -> bool {
        self.handler_continuations.is_some() || self.policy.as_ref().is_some_and(|policy| !policy.rules.then.is_empty())
    }

    /// Continuations in the order of their numbers.
    pub fn continuations(&self) -> impl Iterator<Item = &Continuation> {
        let asked = self.policy.as_ref().map_or(&[][..], |policy| &policy.rules.then);
        asked.iter().chain(self.handler_continuations.iter().flatten())
    }

    /// Ids that the continuations and their own continuations may have.
    pub fn continuation_ids(&self, id: &TaskId, ids: &mut Vec<TaskId>) {
        let asked = self.policy.as_ref().map_or(&[][..], |policy| &policy.rules.then);
        ids_below(id, asked, 0, ids);
        ids_below(id, self.handler_continuations.as_deref().unwrap_or_default(), asked.len(), ids);
    }

    /// Number of children that may fail before the task fails.
    pub fn tolerated(&self) -> u32 {
        self.policy.as_ref().and_then(|policy| policy.rules.max_failed).unwrap_or(0)
    }

    pub fn push_history(&mut self, entry: HistoryEntry) {
        self.make_room_in_history();
        self.history.push(entry);
    }

    /// Inserts a late announcement before the first entry of its run that created or moved the record.
    pub fn insert_announcement(&mut self, entry: HistoryEntry) {
        self.make_room_in_history();
        let first = self.history.iter().position(|known| known.run == entry.run && known.kind.creates());
        self.history.insert(first.unwrap_or(self.history.len()), entry);
    }

    /// Inserts a late cancel request before the end that it caused.
    pub fn insert_before_cancelled(&mut self, entry: HistoryEntry) {
        self.make_room_in_history();
        let end = self.history.iter().rposition(|known| known.run == entry.run && known.kind == Kind::Cancelled);
        self.history.insert(end.unwrap_or(self.history.len()), entry);
    }

    fn make_room_in_history(&mut self) {
        if self.history.len() >= MAX_HISTORY {
            // The first entry shows the origin of the task and stays.
            self.history.remove(1);
            self.history_dropped += 1;
        }
    }

    /// Returns true if the history of this run contains events of attempts but no `submitted`.
    pub fn has_unannounced_events(&self) -> bool {
        let mut of_run = self.history.iter().filter(|entry| entry.run == self.run);
        of_run.clone().any(|entry| entry.worker.is_some()) && !of_run.any(|entry| entry.kind == Kind::Submitted)
    }
}
