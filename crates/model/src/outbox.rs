//! Timers and effects of a task, as data: work that the projection leaves to the tracker.
//!
//! Both follow from the task's record: at most one timer, for the next thing due, and a list of effects. The store
//! indexes the tasks that have one; the details are in the record.

use std::borrow::Cow;
use std::sync::Arc;

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use super::encode_error::EncodeError;
use super::json::RawJson;
use super::record::TaskRecord;
use super::record::notifications::NotificationDelivery;
use super::record::state::State;
use super::retry::{RunUsage, Waits};
use super::task::id::TaskId;
use super::task::{TaskSpec, header};
use super::units::time::MAX_TIME_MS;

/// Maximum size of the deferred records of one events partition in the store, in bytes. Records beyond it are read
/// from the events topic when they are due.
pub const MAX_DEFERRED_BYTES: u64 = 256 << 20;
/// Time after a cancel at which the tracker ends a task that no worker holds.
pub const CANCEL_GRACE_MS: i64 = 2_000;
/// Maximum number of pending effects of one task, notifications not counted.
pub const MAX_EFFECTS: usize = 16;
/// Maximum length of a cancel's reason in the records of descendants, in characters.
const MAX_INHERITED_REASON_CHARS: usize = 256;
/// Maximum number of pending notifications of one task.
pub const MAX_NOTIFICATIONS: usize = 256;
/// Reason shown for tasks ended because their tree exceeded its maximum age.
pub const OVERDUE: &str = "open longer than max_tree_age";

/// Complete task record that the tracker stores until the task is due, since a topic may not retain it long enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RecordCopy {
    /// Ordering key; `None`: the task's id, or `binary_key` if set.
    #[serde(default)]
    pub key: Option<String>,
    pub headers: Vec<(String, String)>,
    #[schemars(with = "serde_json::Value")]
    pub params: RawJson,
    /// Key that is not UTF-8, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary_key: Option<String>,
    /// Headers that are not UTF-8, in base64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub binary_headers: Vec<(String, String)>,
}

impl RecordCopy {
    /// Creates a record from `headers` of a task, as its publisher writes them.
    pub fn new(task: &TaskSpec, headers: Vec<(&str, Cow<'_, str>)>) -> Self {
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
        let key = task.key.as_deref().map(str::to_owned);
        Self { key, headers, params: task.params.clone(), binary_key: None, binary_headers: Vec::new() }
    }

    /// Copies a record unchanged.
    pub fn of<'a>(key: Option<&[u8]>, headers: impl Iterator<Item = (&'a str, &'a [u8])>, params: RawJson) -> Self {
        let mut copy = Self { key: None, headers: Vec::new(), params, binary_key: None, binary_headers: Vec::new() };
        copy.set_key(key);
        headers.for_each(|(name, value)| copy.add(name, value));
        copy
    }

    /// Adds the original key and the headers that are not kafleet's own.
    pub fn with_foreign_headers<'a>(
        mut self,
        key: Option<&[u8]>,
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Self {
        self.set_key(key);
        headers.filter(|(name, _)| !header::is_known(name)).for_each(|(name, value)| self.add(name, value));
        self
    }

    fn set_key(&mut self, key: Option<&[u8]>) {
        match key.map(|key| std::str::from_utf8(key).map_err(|_| BASE64.encode(key))) {
            Some(Ok(text)) => self.key = Some(text.to_owned()),
            Some(Err(encoded)) => self.binary_key = Some(encoded),
            None => {}
        }
    }

    fn add(&mut self, name: &str, value: &[u8]) {
        match std::str::from_utf8(value) {
            Ok(text) => self.headers.push((name.to_owned(), text.to_owned())),
            Err(_) => self.binary_headers.push((name.to_owned(), BASE64.encode(value))),
        }
    }

    /// Returns `None` if the task's id is the key.
    pub fn key_bytes(&self) -> Option<Vec<u8>> {
        let binary = self.binary_key.as_ref().and_then(|key| BASE64.decode(key.as_bytes()).ok());
        binary.or_else(|| self.key.clone().map(String::into_bytes))
    }

    /// Number of waits of the run that the record counts.
    pub fn waits(&self) -> u32 {
        let header = self.headers.iter().find(|(name, _)| name == header::WAITS);
        header.and_then(|(_, text)| text.parse::<Waits>().ok()).map_or(0, |waits| waits.number)
    }

    /// All headers, binary ones last.
    pub fn header_bytes(&self) -> Vec<(String, Vec<u8>)> {
        let text = self.headers.iter().map(|(name, value)| (name.clone(), value.clone().into_bytes()));
        let binary = self
            .binary_headers
            .iter()
            .map(|(name, value)| (name.clone(), BASE64.decode(value.as_bytes()).unwrap_or_default()));
        text.chain(binary).collect()
    }

    /// Headers for publishing after the wait: without start time, and with the number of attempts used so far. The waits
    /// of the run are in the record already.
    pub fn released(&self, used: RunUsage) -> Vec<(String, Vec<u8>)> {
        let mut headers = self.header_bytes();
        headers.retain(|(name, _)| name != header::NOT_BEFORE && name != header::ATTEMPT);
        if used > RunUsage::default() {
            // A task that has started cannot expire.
            headers.retain(|(name, _)| name != header::EXPIRES);
        }
        if used.attempts > 0 {
            headers.push((header::ATTEMPT.to_owned(), used.attempts.to_string().into_bytes()));
        }
        headers
    }

    /// Headers of a unique task that its key has let start: with the id of the task that is kept for the newest ask, and
    /// with the mark that the ask was decided.
    pub fn set_decided(headers: &mut Vec<(String, Vec<u8>)>, id: &TaskId) {
        let set = [(header::ID, id.as_str()), (header::ANNOUNCED, "1"), (header::ASKED, "1")];
        headers.retain(|(name, _)| set.iter().all(|(own, _)| own != name));
        headers.extend(set.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())));
    }

    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let Self { key, headers, params, binary_key, binary_headers } = self;
        Ok(postcard::to_allocvec(&(key, headers, params, binary_key, binary_headers))?)
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (key, headers, params, binary_key, binary_headers) = postcard::from_bytes(bytes).ok()?;
        Some(Self { key, headers, params, binary_key, binary_headers })
    }
}

/// Next thing due for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// Epoch milliseconds.
    pub due_ms: i64,
    pub kind: TimerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// Publish the deferred record to its topic.
    Release,
    /// Expire the deferred task, whose start deadline passes before its release.
    Expire,
    /// End a cancelled task that no worker holds.
    Cancel,
    /// Run the state check of this index.
    Check(u32),
}

/// Bit added to the index score of a withdrawal: higher than any offset, and still an exact integer in Redis.
const WITHDRAWAL_BIT: i64 = 1 << 52;

/// Offset of the event that caused a cancel's withdrawal; `None` if `turn` ([`TaskRecord::turn`]) is the score of
/// other effects.
pub fn withdrawal_cause(turn: i64) -> Option<i64> {
    (turn & WITHDRAWAL_BIT != 0).then_some(turn & !WITHDRAWAL_BIT)
}

/// Cancel request stored in the records it applies to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredCancel {
    /// Offset of the request in the events partition: it applies to tasks with a lower `ce_asof`.
    pub asof: i64,
    /// Time at which the tracker ends the task if no worker holds it, epoch milliseconds.
    pub due_ms: i64,
    /// True while the cancel is, or is about to be, on the control topic under this task's id. False for a cancel
    /// inherited from an ancestor, and once the withdrawal is scheduled.
    pub named: bool,
    /// Whether the request covers the descendants too.
    pub subtree: bool,
    /// True if nothing requested it: a child failed, and the task fails fast.
    pub tripped: bool,
    /// A descendant was created after this cancel and is exempt from it; a repeated cancel will include it.
    pub outlived: bool,
    pub request: CancelRequest,
}

/// Display data of a cancel request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// Task named in the request; `None`: this task.
    pub with: Option<Box<str>>,
    /// Name of the API token.
    pub by: Option<Arc<str>>,
    pub reason: Option<Box<str>>,
}

impl CancelRequest {
    /// Request as stored with descendants of `named`. There may be many of them, so a long reason is cut.
    pub fn below(&self, named: &str) -> Self {
        let cut = |reason: &str| reason.chars().take(MAX_INHERITED_REASON_CHARS).collect::<String>().into();
        let with = self.with.clone().unwrap_or_else(|| named.into());
        Self { with: Some(with), by: self.by.clone(), reason: self.reason.as_deref().map(cut) }
    }

    /// Error message of a task ended by the request; `when` describes the point in the task's life.
    pub fn message(&self, when: &str) -> String {
        cancel_message(self.with.as_deref(), when, self.reason.as_deref())
    }
}

/// Cancel message: `Job was cancelled.`, and how: on request, with the ancestor that the request named, or by the tracker at
/// the end of a tree that exceeded its maximum age.
pub fn cancel_message(with: Option<&str>, when: &str, reason: Option<&str>) -> String {
    let origin = match with {
        Some(with) => format!("With `{with}`"),
        None if reason == Some(OVERDUE) => "By the tracker".to_owned(),
        None => "On request".to_owned(),
    };
    let error = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("Job was cancelled. {origin}{when}{error}")
}

/// One-time action of the tracker outside the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// Offset of the event that caused the effect.
    pub cause: i64,
    pub kind: EffectKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EffectKind {
    /// Publish the task's record for this run.
    Publish { run: u32 },
    /// Request a retry, in this run, of each restartable descendant.
    RetryFailed { run: u32 },
    /// Publish the cancel to the workers, and request it for each pending descendant.
    Cancel { asof: i64, subtree: bool },
    /// Withdraw the cancel from the workers, because no descendant is pending any more. Not before this time, epoch
    /// milliseconds: the requester may still be about to publish the cancel.
    WithdrawCancel { due_ms: i64 },
    /// Publish the task itself, which is a continuation.
    PublishContinuation { run: u32 },
    /// End each pending task of a tree that exceeded its maximum age, and publish the cancel to the workers.
    End { asof: i64 },
    /// Publish a notification task.
    NotifyAction(NotificationDelivery),
}

impl Effect {
    /// Id of the effect: the same in every projection of the log.
    pub fn id(&self) -> String {
        let name = match self.kind {
            EffectKind::Publish { .. } => "publish",
            EffectKind::RetryFailed { .. } => "retry-failed",
            EffectKind::Cancel { .. } => "cancel",
            EffectKind::WithdrawCancel { .. } => "uncancel",
            EffectKind::PublishContinuation { .. } => "follow",
            EffectKind::End { .. } => "end",
            // One event can cause several notifications.
            EffectKind::NotifyAction(delivery) => {
                return format!("notify-{}-{}-{}", self.cause, delivery.change, delivery.rule);
            }
        };
        format!("{name}-{}", self.cause)
    }

    pub const fn is_notification(&self) -> bool {
        matches!(self.kind, EffectKind::NotifyAction(_))
    }
}

impl TaskRecord {
    /// Cancel in force for the task. A task created or retried after the request is exempt.
    pub fn cancelled_by(&self) -> Option<&StoredCancel> {
        self.requests.cancel.as_deref().filter(|cancel| cancel.asof > self.requests.asof)
    }

    /// Returns the cancel that already covers a new request for the task, or with `subtree` for its descendants too.
    pub fn covering_cancel(&self, subtree: bool) -> Option<&StoredCancel> {
        let as_much = |cancel: &&StoredCancel| cancel.named && (!subtree || (cancel.subtree && !cancel.outlived));
        self.cancelled_by().filter(as_much)
    }

    /// Returns true if a live worker is responsible for ending the task.
    pub fn is_held(&self) -> bool {
        match self.own {
            _ if self.silent => false,
            State::Running | State::Warning => !self.is_external(),
            // The worker itself waits for the next attempt.
            State::Retrying | State::Scheduled => !self.deferral.is_deferred() && self.worker.is_some(),
            _ => false,
        }
    }

    /// Score in the index of tasks with effects: the offset of the event that caused the first effect. Withdrawals
    /// may have to wait for workers and sort after everything else, so that they never block other tasks.
    pub fn turn(&self) -> Option<i64> {
        let first = self.effects.first()?;
        Some(if matches!(first.kind, EffectKind::WithdrawCancel { .. }) {
            first.cause | WITHDRAWAL_BIT
        } else {
            first.cause
        })
    }

    /// Returns true if the record of the current run is not in its topic yet; the known position then belongs to the record
    /// of an older run.
    pub fn is_to_be_published(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect.kind, EffectKind::Publish { run } if run == self.run))
    }

    /// Appends an effect. A withdrawal of a cancel stays last, because it may have to wait for workers.
    pub fn push_effect(&mut self, effect: Effect) {
        let last = self
            .effects
            .iter()
            .position(|effect| matches!(effect.kind, EffectKind::WithdrawCancel { .. }))
            .unwrap_or(self.effects.len());
        self.effects.insert(last, effect);
    }

    /// Number of effects that are not notifications.
    pub fn request_effects(&self) -> usize {
        self.effects.iter().filter(|effect| !effect.is_notification()).count()
    }

    /// Next thing due: a check of the task or its own timer. A foreign event may name any number as a time; one that a
    /// store's index cannot hold exactly is cut.
    pub fn timer(&self) -> Option<Timer> {
        let check = self.notifications.as_ref().and_then(|log| log.next_check());
        let check = check.map(|(due_ms, number)| Timer { due_ms, kind: TimerKind::Check(number as u32) });
        let next = self.own_timer().into_iter().chain(check).min_by_key(|timer| timer.due_ms);
        next.map(|timer| Timer { due_ms: timer.due_ms.clamp(0, MAX_TIME_MS), ..timer })
    }

    /// Timer of the task itself, without its checks.
    fn own_timer(&self) -> Option<Timer> {
        if self.own.is_terminal() {
            return None;
        }
        if let Some(cancel) = self.cancelled_by() {
            return (!self.is_held()).then_some(Timer { due_ms: cancel.due_ms, kind: TimerKind::Cancel });
        }
        if !self.deferral.is_deferred() {
            return None;
        }
        let release = Timer { due_ms: self.times.due_ms.unwrap_or_default(), kind: TimerKind::Release };
        let expires = self.definition.policy.as_ref().and_then(|policy| policy.expires_at_ms);
        // Only the first attempt can expire.
        let is_first = |at: &i64| *at < release.due_ms || self.deferral.waits_for_key;
        let expiry = expires.filter(|at| self.own == State::Scheduled && is_first(at));
        match expiry {
            Some(due_ms) => Some(Timer { due_ms, kind: TimerKind::Expire }),
            None if self.deferral.waits_for_key => None,
            None => Some(release),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancel_message_names_its_origin() {
        for (with, reason, expected) in [
            (None, None, "Job was cancelled. On request"),
            (None, Some("too dear"), "Job was cancelled. On request: too dear"),
            (Some("r"), Some(OVERDUE), "Job was cancelled. With `r`: open longer than max_tree_age"),
            (None, Some(OVERDUE), "Job was cancelled. By the tracker: open longer than max_tree_age"),
        ] {
            assert_eq!(cancel_message(with, "", reason), expected);
        }
    }

    #[test]
    fn unpublished_record_of_a_later_run_is_pending_publication() {
        let mut task = TaskRecord::expected(2, 0);
        for (kind, expected) in [
            (EffectKind::WithdrawCancel { due_ms: 0 }, false),
            (EffectKind::Publish { run: 1 }, false),
            (EffectKind::RetryFailed { run: 2 }, false),
            (EffectKind::Publish { run: 2 }, true),
        ] {
            task.effects.push(Effect { cause: 7, kind });
            assert_eq!(task.is_to_be_published(), expected, "{kind:?}");
        }
    }

    #[test]
    fn released_record_starts_at_once_and_keeps_its_attempts() {
        let headers =
            [("ce_id", "a"), ("ce_notbefore", "2030-01-01T00:00:00Z"), ("ce_attempt", "1"), ("ce_expires", "9h")];
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        let copy = RecordCopy::of(None, headers, RawJson::null());
        let headers = |attempts, waits| {
            let text = |(name, value): (String, Vec<u8>)| format!("{name}={}", String::from_utf8(value).unwrap());
            copy.released(RunUsage { attempts, waits }).into_iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(headers(0, 0), ["ce_id=a", "ce_expires=9h"]);
        assert_eq!(headers(3, 0), ["ce_id=a", "ce_attempt=3"]);
        assert_eq!(headers(0, 2), ["ce_id=a"]);
        assert_eq!(RecordCopy::decode(&copy.encode().unwrap()), Some(copy));
    }

    #[test]
    fn binary_key_and_headers_are_preserved() {
        let headers: [(&str, &[u8]); 3] = [("x", b"\xff\x00"), ("ce_id", b"other"), ("y", b"text")];
        let mut copy = RecordCopy::of(None, [("ce_id", b"a".as_slice())].into_iter(), RawJson::null());
        copy = copy.with_foreign_headers(Some(b"\xfekey"), headers.into_iter());
        let json = serde_json::to_string(&copy).unwrap();
        let bytes = copy.encode().unwrap();
        for copy in [serde_json::from_str(&json).unwrap(), RecordCopy::decode(&bytes).unwrap()] {
            let text = |value: &str| value.as_bytes().to_vec();
            let expected = [("ce_id", text("a")), ("y", text("text")), ("x", vec![0xff, 0])];
            assert_eq!(
                copy.header_bytes(),
                expected.map(|(name, value)| (name.to_owned(), value)),
                "the record's own id is kept"
            );
            assert_eq!(copy.key_bytes().as_deref(), Some(&b"\xfekey"[..]));
        }
    }

    #[test]
    fn timer_is_the_earliest_thing_due() {
        let mut task = TaskRecord::expected(1, 0);
        let due = |task: &TaskRecord| task.timer().map(|timer| (timer.due_ms, timer.kind));
        assert_eq!(due(&task), None);
        (task.own, task.times.due_ms, task.deferral.record_bytes) = (State::Scheduled, Some(50), 7);
        assert_eq!(due(&task), Some((50, TimerKind::Release)));
        task.definition.policy.get_or_insert_default().expires_at_ms = Some(40);
        assert_eq!(due(&task), Some((40, TimerKind::Expire)));
        task.own = State::Retrying;
        assert_eq!(due(&task), Some((50, TimerKind::Release)), "a deferred retry does not expire");
        task.requests.cancel =
            Some(Box::new(StoredCancel { asof: 9, due_ms: 20, named: true, subtree: true, ..StoredCancel::default() }));
        assert_eq!(due(&task), Some((20, TimerKind::Cancel)));
        task.requests.asof = 9;
        assert_eq!(due(&task), Some((50, TimerKind::Release)), "the cancel does not apply to a later retry");
        (task.requests.asof, task.deferral.record_bytes, task.worker) = (-1, 0, Some("w".into()));
        assert_eq!(due(&task), None, "the worker waits for the next attempt");
        task.own = State::Queued;
        assert_eq!(due(&task), Some((20, TimerKind::Cancel)));
        (task.own, task.silent) = (State::Running, false);
        assert_eq!(due(&task), None, "the worker ends the task");
        task.silent = true;
        assert_eq!(due(&task), Some((20, TimerKind::Cancel)), "the tracker ends the task whose worker is silent");
        task.own = State::Cancelled;
        assert_eq!(due(&task), None);
    }
}
