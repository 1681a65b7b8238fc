//! Record of a task in the store: one compact value, written once per changed task and batch.
//!
//! It answers `GET /v1/tasks/{id}` alone, and holds all that the projection needs to fold the next event of the task:
//! own state and state, the definition, times, result, counts of the descendants, requests, pending effects, and a
//! bounded history. Log lines, attachments and the params of delayed tasks are stored beside it.
//!
//! Invariant: the record follows from the log. Nothing but the projection writes it, and its format may change with the
//! fold version, because a store of another version is projected again instead of being migrated.
//!
//! Read next: [`state`] and [`rollup`], then `crates/model/src/projection/mod.rs`.

pub mod attachment;
pub mod log_line;
pub mod notifications;
pub mod rollup;
pub mod state;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::encode_error::EncodeError;
use super::event::{ErrorInfo, Kind};
use super::json::RawJson;
use super::outbox::{Effect, StoredCancel};
use super::record::attachment::AttachmentEntry;
use super::record::notifications::NotificationLog;
use super::record::rollup::RunCounts;
use super::record::state::{Category, State};
use super::retention::Expiry;
use super::retry::RunUsage;
use super::task::continuation::{Continuation, ids_below};
use super::task::id::TaskId;
use super::task::{OnFailure, Policy, Position};
use super::trace::SpanContext;

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
    /// Worker of the last attempt.
    pub worker: Option<Arc<str>>,
    /// The worker that held the task has stopped sending heartbeats.
    pub silent: bool,
    pub definition: Definition,
    pub times: RunTimes,
    pub outcome: RunOutcome,
    pub tree: TreeStatus,
    pub history: EventHistory,
    pub log: LogCounts,
    /// Attachments in the order of arrival.
    pub attachments: Vec<AttachmentEntry>,
    pub requests: Requests,
    pub deferral: Deferral,
    /// Pending effects in the order of execution ([`TaskRecord::push_effect`]).
    pub effects: Vec<Effect>,
    pub continuations: ContinuationStatus,
    /// Notification state, for tasks with actions or checks.
    pub notifications: Option<Box<NotificationLog>>,
    /// Offset after the last event projected into the record.
    pub folded_to: i64,
}

/// Definition of the task as its creator requested it, and the position of its record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// Position of the task's record.
    pub position: Option<Position>,
    /// Hash of the task's record.
    pub hash: Option<Box<str>>,
    /// Set once an announcement with the policy has arrived; no rule is evaluated before.
    pub announced: bool,
    /// Stored as JSON text, because a policy omits fields that are not set.
    #[serde(with = "super::json::as_text")]
    pub policy: Option<Box<Policy>>,
    /// The policy differs from the one in the task's record and replaces it when the record is published again.
    pub patched: bool,
    /// Offset of an event that contains the task's complete record, if any.
    pub record_event_offset: Option<i64>,
    /// Trace context in the task's record, which may be that of an earlier run.
    pub trace: Option<SpanContext>,
}

/// Times of the current run, epoch milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunTimes {
    /// Log time of the first event: the order of lists.
    pub seen_ms: i64,
    pub created_at_ms: Option<i64>,
    pub started_at_ms: Option<i64>,
    pub ended_at_ms: Option<i64>,
    /// Start of the next attempt, while the task is scheduled or waits for a retry.
    pub due_ms: Option<i64>,
    /// Time from which the task could start, until it starts: the later of creation and `not_before`, or the time of
    /// the retry. By the writers' clocks, for statistics only.
    pub ready_ms: Option<i64>,
    /// Log time at which the own state became failed or expired.
    pub failed_ms: Option<i64>,
    /// Next expiry by log time.
    pub expiry: Option<Expiry>,
}

/// Values reported by the attempts of the current run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunOutcome {
    pub progress: Option<RawJson>,
    pub output: Option<RawJson>,
    pub error: Option<Box<ErrorInfo>>,
    /// An external task was reported as failed in this run, which later reports cannot undo.
    pub fault: bool,
}

/// Position in the tree, and totals of the descendants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TreeStatus {
    /// Set for the root of a tree.
    pub root: bool,
    /// Set when the first descendant is counted, and never reset: only such a task is searched for descendants when
    /// its tree is removed.
    pub has_below: bool,
    /// Counts of the descendants, grouped by the run of the direct child.
    pub below: Vec<RunCounts>,
    /// First start of any task in this subtree.
    pub first_start: Option<Box<Moment>>,
    /// Last end of any task in this subtree.
    pub last_end: Option<Box<Moment>>,
    /// Highest run in the tree (root only).
    pub highest_run: u32,
    /// Earliest removal of the finished tree, epoch milliseconds (root only).
    pub hold_ms: i64,
}

/// First and newest events of the task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventHistory {
    /// At most [`MAX_HISTORY`] entries: the first one, and the newest.
    pub entries: Vec<HistoryEntry>,
    /// Number of entries removed to make room.
    pub dropped: u32,
    /// Number of terminal events after the first of a run.
    pub duplicates: u32,
    /// Number of attempts of the current run that ended without an outcome and started again.
    pub interruptions: u32,
}

/// Number of log lines received, and of lines that their writers dropped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogCounts {
    pub lines: u32,
    pub dropped: u32,
}

/// Cancel and retry requests of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// Offset in the events partition; requests up to it do not apply to the task. -1: all requests apply.
    pub asof: i64,
    pub cancel: Option<Box<StoredCancel>>,
}

/// Wait of a task whose record the tracker publishes at the due time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Deferral {
    /// Size of the record that the tracker publishes when the task is due, in bytes; 0: the task is not deferred.
    pub record_bytes: u32,
    /// True if the store had no room for the record, which is then read from the event that brought it.
    pub only_in_log: bool,
    /// Waits of the current run that do not count as attempts.
    pub waits: u32,
    /// The handovers of this run up to this one are over, because their records were released; late events that defer
    /// them again are ignored.
    pub released: Option<RunUsage>,
    /// The unique task is kept until another one of its key has ended.
    pub waits_for_key: bool,
}

impl Deferral {
    /// Returns true if the tracker holds the record until the task is due.
    pub const fn is_deferred(&self) -> bool {
        self.record_bytes > 0
    }

    /// Bytes of the record in the store.
    pub const fn stored_bytes(&self) -> u32 {
        if self.only_in_log { 0 } else { self.record_bytes }
    }

    /// Forgets the record, and returns its bytes in the store.
    pub(crate) const fn clear_record(&mut self) -> u32 {
        let stored = self.stored_bytes();
        (self.record_bytes, self.only_in_log, self.waits_for_key) = (0, false, false);
        stored
    }
}

/// Continuations that the current run has added and created.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContinuationStatus {
    /// Continuations added by the handler in this run.
    #[serde(with = "super::json::as_text")]
    pub from_handler: Option<Vec<Continuation>>,
    /// Bit mask of the continuations created in this run.
    pub created_mask: u16,
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
    #[serde(with = "kind_number")]
    pub kind: Kind,
    pub at_ms: i64,
    pub offset: i64,
    pub run: u32,
    pub attempt: u32,
    pub worker: Option<Arc<str>>,
    pub message: Option<String>,
    /// Code of the error in the event.
    pub error_kind: Option<Box<str>>,
    /// Waits of the run, with the one that this event reports; 0 in other events.
    pub waits: u32,
    /// Duration of the ended attempt in milliseconds, if the event contains the start of the attempt.
    pub took_ms: Option<u32>,
    /// Name of the API token that made the request.
    pub by: Option<Arc<str>>,
    /// The event changed nothing.
    pub ignored: bool,
}

/// Stores a kind as its number, which no new kind changes.
mod kind_number {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Kind;

    pub(super) fn serialize<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(kind.number())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
        Ok(Kind::of_number(u8::deserialize(from)?))
    }
}

impl HistoryEntry {
    /// Entry for a change by the projection itself, such as an expiry.
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
            waits: 0,
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
            silent: false,
            definition: Definition::default(),
            times: RunTimes { seen_ms, ..RunTimes::default() },
            outcome: RunOutcome::default(),
            tree: TreeStatus { highest_run: run, ..TreeStatus::default() },
            history: EventHistory::default(),
            log: LogCounts::default(),
            attachments: Vec::new(),
            requests: Requests { asof: -1, cancel: None },
            deferral: Deferral::default(),
            effects: Vec::new(),
            continuations: ContinuationStatus::default(),
            notifications: None,
            folded_to: 0,
        }
    }

    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(postcard::to_allocvec(self)?)
    }

    /// Returns `None` for bytes that this version cannot decode: the partition must then be folded again.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    /// Attempts and waits of the current run.
    pub const fn used(&self) -> RunUsage {
        RunUsage { attempts: self.attempt, waits: self.deferral.waits }
    }

    /// Returns true if a retry of failed tasks restarts this task: workers run it, and it failed, expired or was
    /// cancelled.
    pub fn is_restartable(&self) -> bool {
        self.own.category() == Category::Failed && self.definition.announced && !self.is_external()
    }

    /// Number of restartable descendants.
    pub fn restartable_below(&self) -> u64 {
        self.tree.below.iter().map(|group| group.restartable).sum()
    }

    /// Returns true if no worker runs the task: another system reports its states.
    pub fn is_external(&self) -> bool {
        self.definition.policy.as_ref().is_some_and(|policy| policy.rules.external)
    }

    /// Returns true if reports on an external task are ignored after its end.
    pub fn blocks_when_done(&self) -> bool {
        self.definition.policy.as_ref().is_none_or(|policy| policy.rules.block_when_done)
    }

    /// Returns true if the task has continuations.
    pub fn has_continuations(&self) -> bool {
        self.continuations.from_handler.is_some()
            || self.definition.policy.as_ref().is_some_and(|policy| !policy.rules.then.is_empty())
    }

    /// Continuations in the order of their numbers.
    pub fn continuations(&self) -> impl Iterator<Item = &Continuation> {
        let from_policy = self.definition.policy.as_ref().map_or(&[][..], |policy| &policy.rules.then);
        from_policy.iter().chain(self.continuations.from_handler.iter().flatten())
    }

    /// Appends the ids that the continuations, and their own continuations, may have.
    pub fn continuation_ids(&self, id: &TaskId, ids: &mut Vec<TaskId>) {
        let from_policy = self.definition.policy.as_ref().map_or(&[][..], |policy| &policy.rules.then);
        ids_below(id, from_policy, 0, ids);
        ids_below(id, self.continuations.from_handler.as_deref().unwrap_or_default(), from_policy.len(), ids);
    }
}

impl Definition {
    /// Returns true if the task was asked for with a key of unique tasks.
    pub fn is_unique(&self) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.unique.is_some())
    }

    pub fn on_failure(&self) -> OnFailure {
        self.policy.as_ref().map_or(OnFailure::Fail, |policy| policy.on_failure)
    }

    /// Number of children that may fail before the task fails.
    pub fn tolerated(&self) -> u32 {
        self.policy.as_ref().and_then(|policy| policy.rules.max_failed).unwrap_or(0)
    }
}

impl EventHistory {
    pub fn push(&mut self, entry: HistoryEntry) {
        self.make_room();
        self.entries.push(entry);
    }

    /// Inserts a late announcement before the first entry of its run with a kind that creates records
    /// ([`Kind::creates`]).
    pub fn insert_announcement(&mut self, entry: HistoryEntry) {
        self.make_room();
        let first = self.entries.iter().position(|earlier| earlier.run == entry.run && earlier.kind.creates());
        self.entries.insert(first.unwrap_or(self.entries.len()), entry);
    }

    /// Inserts a late cancel request before the `cancelled` entry that it caused.
    pub fn insert_before_cancelled(&mut self, entry: HistoryEntry) {
        self.make_room();
        let end = self.entries.iter().rposition(|earlier| earlier.run == entry.run && earlier.kind == Kind::Cancelled);
        self.entries.insert(end.unwrap_or(self.entries.len()), entry);
    }

    /// Returns true if the newest attempt of the run ended with a wait.
    pub fn ends_with_wait(&self, run: u32) -> bool {
        let is_end = |entry: &&HistoryEntry| entry.run == run && entry.kind == Kind::Retrying && !entry.ignored;
        self.entries.iter().rev().find(is_end).is_some_and(|entry| entry.waits > 0)
    }

    fn make_room(&mut self) {
        if self.entries.len() >= MAX_HISTORY {
            // The first entry shows the origin of the task and stays.
            self.entries.remove(1);
            self.dropped += 1;
        }
    }

    /// Returns true if the entries of the run contain events of attempts but no `submitted`.
    pub fn has_unannounced_events(&self, run: u32) -> bool {
        let mut of_run = self.entries.iter().filter(|entry| entry.run == run);
        of_run.clone().any(|entry| entry.worker.is_some()) && !of_run.any(|entry| entry.kind == Kind::Submitted)
    }
}
