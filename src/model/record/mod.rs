//! What the store keeps of a task: one compact value, written once per changed task and batch.

pub mod attachment;
pub mod notifications;
pub mod rollup;
pub mod state;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::event::{ErrorInfo, Kind};
use super::json::RawJson;
use super::outbox::{Cancel, Effect};
use super::record::attachment::Attached;
use super::record::notifications::NotificationLog;
use super::record::rollup::RunCounts;
use super::record::state::{Category, State};
use super::retention::ExpiryKind;
use super::task::continuation::{Continuation, ids_below};
use super::task::id::TaskId;
use super::task::{OnFailure, Policy, Position};

/// Entries of history that a record keeps; the oldest after the first go first.
pub const MAX_HISTORY: usize = 64;
/// The longest message kept in history, in characters.
pub const MAX_MESSAGE_CHARS: usize = 2_000;

/// The record of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// None while the task is only expected.
    pub task_type: Option<Arc<str>>,
    /// What the task itself reached.
    pub own: State,
    /// Own state combined with the children's.
    pub state: State,
    pub run: u32,
    pub attempt: u32,
    pub worker: Option<Arc<str>>,
    /// Where the task's record is.
    pub position: Option<Position>,
    pub hash: Option<Box<str>>,
    /// The policy has been seen; before that nothing is triggered.
    pub announced: bool,
    /// Kept as JSON text, because a policy leaves out what is not set.
    #[serde(with = "super::json::as_text")]
    pub policy: Option<Box<Policy>>,
    /// Its policy is not that of its record any more: who publishes that again changes it.
    pub patched: bool,
    /// Log time of the first event about it: the order of lists.
    pub seen_ms: i64,
    pub created_at_ms: Option<i64>,
    pub started_at_ms: Option<i64>,
    pub ended_at_ms: Option<i64>,
    pub due_ms: Option<i64>,
    pub progress: Option<RawJson>,
    pub output: Option<RawJson>,
    pub error: Option<Box<ErrorInfo>>,
    /// A reported failure sticks within its run.
    pub fault: bool,
    /// Counts of what is below, grouped by the run of the direct child.
    pub below: Vec<RunCounts>,
    /// First start and last end of anything in this subtree.
    pub first_start: Option<Box<Moment>>,
    pub last_end: Option<Box<Moment>>,
    /// The highest run in the tree (kept at the root).
    pub highest_run: u32,
    pub history: Vec<HistoryEntry>,
    pub history_dropped: u32,
    /// Terminal events after the first of a run.
    pub duplicates: u32,
    pub log_lines: u32,
    pub log_dropped: u32,
    /// What lies beside it, in the order in which it came.
    pub attachments: Vec<Attached>,
    /// The place after the last event folded into it.
    pub folded_to: i64,
    /// Requests up to this place in the events partition were made before it; -1: before all of them.
    pub asof: i64,
    pub cancel: Option<Box<Cancel>>,
    /// Bytes of its record that the tracker keeps until it is due; 0: it keeps none.
    pub kept: u32,
    /// Of the waits of this run, each named by the attempt before it, those before this one have ended in a release.
    pub released: u32,
    /// The offset of the event that carries its record in full, where one does.
    pub told_at: Option<i64>,
    /// What is to be done outside, in this order ([`TaskRecord::want`]).
    pub effects: Vec<Effect>,
    /// What its handler has said is to follow, in this run.
    #[serde(with = "super::json::as_text")]
    pub handler_continuations: Option<Vec<Continuation>>,
    /// A bit for each continuation that is made in this run.
    pub created_mask: u16,
    /// What comes next by log time alone.
    pub age: Option<ExpiryKind>,
    /// At the top of its tree.
    pub root: bool,
    /// Something has been counted below it: it may have children, also some that count no more.
    pub has_below: bool,
    /// The worker that had it has gone silent since.
    pub silent: bool,
    /// Who has been told of it, where somebody is to be told.
    pub told: Option<Box<NotificationLog>>,
    /// A finished tree is kept until this time at least, epoch milliseconds (kept at the root).
    pub hold_ms: i64,
}

/// A time and the task that caused it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub at_ms: i64,
    pub by: String,
}

/// One accepted event, as people read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub kind: Kind,
    pub at_ms: i64,
    pub offset: i64,
    pub run: u32,
    pub attempt: u32,
    pub worker: Option<Arc<str>>,
    pub message: Option<String>,
    /// The stable word of the error that it tells.
    pub error_kind: Option<Box<str>>,
    /// How long the attempt took that it ends, where no `started` came before it, in milliseconds.
    pub took_ms: Option<u32>,
    /// Who asked for it.
    pub by: Option<Arc<str>>,
    /// The fold did not act on it.
    pub ignored: bool,
}

impl HistoryEntry {
    /// What the fold itself has done.
    pub fn of_fold(kind: Kind, run: u32, (at_ms, offset): (i64, i64), message: String) -> Self {
        let (attempt, worker, error_kind, took_ms, by, ignored) = Default::default();
        Self { kind, at_ms, offset, run, attempt, worker, message: Some(message), error_kind, took_ms, by, ignored }
    }
}

impl TaskRecord {
    /// A task that something named and nobody announced yet.
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
            told_at: None,
            effects: Vec::new(),
            handler_continuations: None,
            created_mask: 0,
            age: None,
            root: false,
            has_below: false,
            silent: false,
            told: None,
            hold_ms: 0,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// None for bytes of another version: the caller treats the store as one to fold anew.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    /// Whether a retry of what failed starts this task again: workers run it, and it has failed, expired or been cancelled.
    pub fn is_restartable(&self) -> bool {
        self.own.category() == Category::Failed && self.announced && !self.is_external()
    }

    /// Number of restartable tasks below it.
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

    /// Something follows it.
    pub fn has_thens(&self) -> bool {
        self.handler_continuations.is_some() || self.policy.as_ref().is_some_and(|policy| !policy.rules.then.is_empty())
    }

    /// What follows it, in the order of their numbers.
    pub fn thens(&self) -> impl Iterator<Item = &Continuation> {
        let asked = self.policy.as_ref().map_or(&[][..], |policy| &policy.rules.then);
        asked.iter().chain(self.handler_continuations.iter().flatten())
    }

    /// The ids that its continuations may have, and those that follow them.
    pub fn then_ids(&self, id: &TaskId, ids: &mut Vec<TaskId>) {
        let asked = self.policy.as_ref().map_or(&[][..], |policy| &policy.rules.then);
        ids_below(id, asked, 0, ids);
        ids_below(id, self.handler_continuations.as_deref().unwrap_or_default(), asked.len(), ids);
    }

    /// So many of its children may fail.
    pub fn tolerated(&self) -> u32 {
        self.policy.as_ref().and_then(|policy| policy.rules.max_failed).unwrap_or(0)
    }

    pub fn remember(&mut self, entry: HistoryEntry) {
        self.make_room_in_history();
        self.history.push(entry);
    }

    /// Adds an announcement that has come late: before the first event that made the record or moved it in that run.
    pub fn remember_announcement(&mut self, entry: HistoryEntry) {
        self.make_room_in_history();
        let first = self.history.iter().position(|known| known.run == entry.run && known.kind.creates());
        self.history.insert(first.unwrap_or(self.history.len()), entry);
    }

    fn make_room_in_history(&mut self) {
        if self.history.len() >= MAX_HISTORY {
            // The first entry tells where the task came from; it stays.
            self.history.remove(1);
            self.history_dropped += 1;
        }
    }

    /// The history of this run has events of attempts and no `submitted`.
    pub fn has_unannounced_events(&self) -> bool {
        let mut of_run = self.history.iter().filter(|entry| entry.run == self.run);
        of_run.clone().any(|entry| entry.worker.is_some()) && !of_run.any(|entry| entry.kind == Kind::Submitted)
    }
}
