//! What the fold wants done later or elsewhere: timers and effects, as data.
//!
//! Both are read off a task's record: a task has at most one timer, the next thing due about it, and a list of effects.
//! The store keeps an index of either, so that what is due is found; what it is, the record says.

use std::borrow::Cow;
use std::sync::Arc;

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use super::json::RawJson;
use super::record::TaskRecord;
use super::record::notifications::Delivery;
use super::record::state::State;
use super::task::{Task, header};

/// The most bytes of records that wait at the tracker, per events partition. What would go beyond fails.
pub const MAX_KEPT_BYTES: u64 = 256 << 20;
/// How long after a cancel a task that no worker holds is ended.
pub const CANCEL_GRACE_MS: i64 = 2_000;
/// Effects of one task that wait to be done.
pub const MAX_EFFECTS: usize = 16;
/// Characters of a cancel's reason that each task below the cancelled one keeps.
const MAX_PASSED_ON_CHARS: usize = 256;
/// Deliveries of one task that wait to be published.
pub const MAX_NOTIFICATIONS: usize = 256;
/// What is said of what a tree's age has ended.
pub const OVERDUE: &str = "open longer than max_tree_age";

/// A task's record in full. What waits longer than Kafka keeps it carries it along.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct KeptRecord {
    /// The ordering key; none: the task's id, or `binary_key`.
    #[serde(default)]
    pub key: Option<String>,
    pub headers: Vec<(String, String)>,
    #[schemars(with = "serde_json::Value")]
    pub params: RawJson,
    /// A key that is no text, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary_key: Option<String>,
    /// Headers that are no text, in base64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub binary_headers: Vec<(String, String)>,
}

impl KeptRecord {
    /// `headers` as [`crate::publish::task_headers`] writes them.
    pub fn new(task: &Task, key: Option<String>, headers: Vec<(&str, Cow<'_, str>)>) -> Self {
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
        Self { key, headers, params: task.params.clone(), binary_key: None, binary_headers: Vec::new() }
    }

    /// A record as it was.
    pub fn of<'a>(key: Option<&[u8]>, headers: impl Iterator<Item = (&'a str, &'a [u8])>, params: RawJson) -> Self {
        let mut kept = Self { key: None, headers: Vec::new(), params, binary_key: None, binary_headers: Vec::new() };
        kept.set_key(key);
        headers.for_each(|(name, value)| kept.add(name, value));
        kept
    }

    /// With what the task's record says beyond the task: its key, and headers that are not kafleet's.
    pub fn with_strangers<'a>(mut self, key: Option<&[u8]>, headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Self {
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

    /// None: the task's id is the key.
    pub fn key_bytes(&self) -> Option<Vec<u8>> {
        let binary = self.binary_key.as_ref().and_then(|key| BASE64.decode(key.as_bytes()).ok());
        binary.or_else(|| self.key.clone().map(String::into_bytes))
    }

    /// All headers, those that are no text last.
    pub fn header_bytes(&self) -> Vec<(String, Vec<u8>)> {
        let text = self.headers.iter().map(|(name, value)| (name.clone(), value.clone().into_bytes()));
        let binary =
            self.binary_headers.iter().map(|(name, value)| (name.clone(), BASE64.decode(value.as_bytes()).unwrap_or_default()));
        text.chain(binary).collect()
    }

    /// The headers when it is published after its wait: it may start at once, and goes on from these attempts.
    pub fn released(&self, attempts: u32) -> Vec<(String, Vec<u8>)> {
        let mut headers = self.header_bytes();
        headers.retain(|(name, _)| name != header::NOT_BEFORE && name != header::ATTEMPT);
        if attempts > 0 {
            // Only the first attempt can be too late.
            headers.retain(|(name, _)| name != header::EXPIRES);
            headers.push((header::ATTEMPT.to_owned(), attempts.to_string().into_bytes()));
        }
        headers
    }

    pub fn encode(&self) -> Vec<u8> {
        let Self { key, headers, params, binary_key, binary_headers } = self;
        postcard::to_allocvec(&(key, headers, params, binary_key, binary_headers)).unwrap_or_default()
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (key, headers, params, binary_key, binary_headers) = postcard::from_bytes(bytes).ok()?;
        Some(Self { key, headers, params, binary_key, binary_headers })
    }
}

/// The next thing that is due about a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// Epoch milliseconds.
    pub due_ms: i64,
    pub what: TimerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// The record that the tracker keeps goes to its topic.
    Release,
    /// It waits at the tracker, and may no longer start.
    Expire,
    /// It is cancelled, and no worker holds it.
    Cancel,
    /// Its state is to be looked at, by the check of this number.
    Check(u32),
}

/// Above every offset, and a whole number to Redis still.
const BEHIND: i64 = 1 << 52;

/// The cause of the effect that takes a cancel back, where a turn ([`TaskRecord::turn`]) is that of one.
pub fn withdrawal_cause(turn: i64) -> Option<i64> {
    (turn & BEHIND != 0).then_some(turn & !BEHIND)
}

/// A request that stays on the record of the task it named, and what it applies to below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    /// Where the request lies in the events partition: it applies to tasks with a lower `ce_asof`.
    pub asof: i64,
    /// When a task that no worker holds is ended.
    pub due_ms: i64,
    /// The request named this task, not one above it.
    pub named: bool,
    /// It also applies to what is below.
    pub subtree: bool,
    /// Nobody asked for it: a child has failed, and the task fails fast.
    pub tripped: bool,
    /// Something below was made later on purpose, and does not mind: who asks again means that too.
    pub outlived: bool,
    pub request: CancelRequest,
}

/// What is shown of a request to cancel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// The task that the request named; none: this task.
    pub with: Option<Box<str>>,
    /// The name of the token.
    pub by: Option<Arc<str>>,
    pub reason: Option<Box<str>>,
}

impl CancelRequest {
    /// The same request as tasks below `named` tell it: many of them, so a long reason is cut.
    pub fn below(&self, named: &str) -> Self {
        let cut = |reason: &str| reason.chars().take(MAX_PASSED_ON_CHARS).collect::<String>().into();
        let with = self.with.clone().unwrap_or_else(|| named.into());
        Self { with: Some(with), by: self.by.clone(), reason: self.reason.as_deref().map(cut) }
    }

    /// The error message of a task that the request ends; `when` says at what point of its life.
    pub fn message(&self, when: &str) -> String {
        cancel_message(self.with.as_deref(), when, self.reason.as_deref())
    }
}

/// Why a task is cancelled: `cancelled on request`, or `cancelled with` the task above it that the request named.
pub fn cancel_message(with: Option<&str>, when: &str, reason: Option<&str>) -> String {
    let what = with.map_or("on request".to_owned(), |with| format!("with `{with}`"));
    let why = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("cancelled {what}{when}{why}")
}

/// Something that the tracker does outside, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// The offset of the event that it comes from.
    pub cause: i64,
    pub what: EffectKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EffectKind {
    /// Publish the task's record for this run.
    Publish { run: u32 },
    /// Ask for a retry, in this run, of each task below that has not succeeded itself.
    RetryFailed { run: u32 },
    /// Tell the workers, and each pending task below.
    Cancel { asof: i64, subtree: bool },
    /// Nothing below is pending any more: workers need not know. Not before this time, epoch milliseconds: whoever asked may
    /// be about to tell them.
    Uncancel { due_ms: i64 },
    /// Publish the continuation that the task is.
    Follow { run: u32 },
    /// The tree is too old: end each pending task below, and tell the workers.
    End { asof: i64 },
    /// Publish the task that tells somebody of it.
    NotifyAction(Delivery),
}

impl Effect {
    /// The same whenever the log is folded.
    pub fn id(&self) -> String {
        let what = match self.what {
            EffectKind::Publish { .. } => "publish",
            EffectKind::RetryFailed { .. } => "retry-failed",
            EffectKind::Cancel { .. } => "cancel",
            EffectKind::Uncancel { .. } => "uncancel",
            EffectKind::Follow { .. } => "follow",
            EffectKind::End { .. } => "end",
            // One event can bring several about.
            EffectKind::NotifyAction(delivery) => return format!("tell-{}-{}-{}", self.cause, delivery.change, delivery.rule),
        };
        format!("{what}-{}", self.cause)
    }

    pub const fn is_tell(&self) -> bool {
        matches!(self.what, EffectKind::NotifyAction(_))
    }
}

impl TaskRecord {
    /// The cancel that applies to it, if one does: a task of a later retry does not mind.
    pub fn cancelled_by(&self) -> Option<&Cancel> {
        self.cancel.as_deref().filter(|cancel| cancel.asof > self.asof)
    }

    /// The request that says as much as one for the task, or for what is below it too, would say now.
    pub fn asked(&self, subtree: bool) -> Option<&Cancel> {
        let as_much = |cancel: &&Cancel| cancel.named && (!subtree || (cancel.subtree && !cancel.outlived));
        self.cancelled_by().filter(as_much)
    }

    /// A worker that lives would end it.
    pub fn is_held(&self) -> bool {
        match self.own {
            _ if self.silent => false,
            State::Running | State::Warning => !self.is_external(),
            // In the worker's own waiting room.
            State::Retrying | State::Scheduled => self.kept == 0 && self.worker.is_some(),
            _ => false,
        }
    }

    /// Where it stands among those with effects: by the cause of its first one, and behind all others where that may have to
    /// wait for the workers. However many of those there are, they hide nobody.
    pub fn turn(&self) -> Option<i64> {
        let first = self.effects.first()?;
        Some(if matches!(first.what, EffectKind::Uncancel { .. }) { first.cause | BEHIND } else { first.cause })
    }

    /// The record of its run is not in its topic yet: where the last one lies says nothing.
    pub fn is_to_be_published(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect.what, EffectKind::Publish { run } if run == self.run))
    }

    /// To be done behind all others, but before a cancel is taken back: that may have to wait for the workers.
    pub fn want(&mut self, effect: Effect) {
        let last = self
            .effects
            .iter()
            .position(|effect| matches!(effect.what, EffectKind::Uncancel { .. }))
            .unwrap_or(self.effects.len());
        self.effects.insert(last, effect);
    }

    /// Effects that somebody has asked for, or that end it: what it tells others is none of them.
    pub fn requests(&self) -> usize {
        self.effects.iter().filter(|effect| !effect.is_tell()).count()
    }

    pub fn timer(&self) -> Option<Timer> {
        let check = self.told.as_ref().and_then(|told| told.next_check());
        let check = check.map(|(due_ms, number)| Timer { due_ms, what: TimerKind::Check(number as u32) });
        self.own_timer().into_iter().chain(check).min_by_key(|timer| timer.due_ms)
    }

    /// What is due about the task itself.
    fn own_timer(&self) -> Option<Timer> {
        if self.own.is_terminal() {
            return None;
        }
        if let Some(cancel) = self.cancelled_by() {
            return (!self.is_held()).then_some(Timer { due_ms: cancel.due_ms, what: TimerKind::Cancel });
        }
        if self.kept == 0 {
            return None;
        }
        let release = Timer { due_ms: self.due_ms.unwrap_or_default(), what: TimerKind::Release };
        let expires = self.policy.as_ref().and_then(|policy| policy.expires_at_ms);
        // Only the first attempt can be too late.
        let expiry = expires.filter(|at| self.own == State::Scheduled && *at < release.due_ms);
        Some(expiry.map_or(release, |due_ms| Timer { due_ms, what: TimerKind::Expire }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_a_later_run_is_not_out_before_it_is_published() {
        let mut node = TaskRecord::expected(2, 0);
        for (what, expected) in [
            (EffectKind::Uncancel { due_ms: 0 }, false),
            (EffectKind::Publish { run: 1 }, false),
            (EffectKind::RetryFailed { run: 2 }, false),
            (EffectKind::Publish { run: 2 }, true),
        ] {
            node.effects.push(Effect { cause: 7, what });
            assert_eq!(node.is_to_be_published(), expected, "{what:?}");
        }
    }

    #[test]
    fn a_released_record_starts_at_once_and_goes_on_from_its_attempts() {
        let headers = [("ce_id", "a"), ("ce_notbefore", "2030-01-01T00:00:00Z"), ("ce_attempt", "1"), ("ce_expires", "9h")];
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        let kept = KeptRecord::of(None, headers, RawJson::null());
        let told = |attempts| {
            let text = |(name, value): (String, Vec<u8>)| format!("{name}={}", String::from_utf8(value).unwrap());
            kept.released(attempts).into_iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(told(0), ["ce_id=a", "ce_expires=9h"]);
        assert_eq!(told(3), ["ce_id=a", "ce_attempt=3"]);
        assert_eq!(KeptRecord::decode(&kept.encode()), Some(kept));
    }

    #[test]
    fn what_is_no_text_is_kept_too() {
        let headers: [(&str, &[u8]); 3] = [("x", b"\xff\x00"), ("ce_id", b"other"), ("y", b"text")];
        let mut kept = KeptRecord::of(None, [("ce_id", b"a".as_slice())].into_iter(), RawJson::null());
        kept = kept.with_strangers(Some(b"\xfekey"), headers.into_iter());
        let (json, bytes) = (serde_json::to_string(&kept).unwrap(), kept.encode());
        for kept in [serde_json::from_str(&json).unwrap(), KeptRecord::decode(&bytes).unwrap()] {
            let text = |value: &str| value.as_bytes().to_vec();
            let expected = [("ce_id", text("a")), ("y", text("text")), ("x", vec![0xff, 0])];
            assert_eq!(kept.header_bytes(), expected.map(|(name, value)| (name.to_owned(), value)), "its own id stays");
            assert_eq!(kept.key_bytes().as_deref(), Some(&b"\xfekey"[..]));
        }
    }

    #[test]
    fn the_next_thing_due_is_read_off_the_record() {
        let mut node = TaskRecord::expected(1, 0);
        let due = |node: &TaskRecord| node.timer().map(|timer| (timer.due_ms, timer.what));
        assert_eq!(due(&node), None);
        (node.own, node.due_ms, node.kept) = (State::Scheduled, Some(50), 7);
        assert_eq!(due(&node), Some((50, TimerKind::Release)));
        node.policy.get_or_insert_default().expires_at_ms = Some(40);
        assert_eq!(due(&node), Some((40, TimerKind::Expire)));
        node.own = State::Retrying;
        assert_eq!(due(&node), Some((50, TimerKind::Release)), "a retry does not expire");
        node.cancel = Some(Box::new(Cancel { asof: 9, due_ms: 20, named: true, subtree: true, ..Cancel::default() }));
        assert_eq!(due(&node), Some((20, TimerKind::Cancel)));
        node.asof = 9;
        assert_eq!(due(&node), Some((50, TimerKind::Release)), "a later retry of it runs");
        (node.asof, node.kept, node.worker) = (-1, 0, Some("w".into()));
        assert_eq!(due(&node), None, "it waits in a worker");
        node.own = State::Queued;
        assert_eq!(due(&node), Some((20, TimerKind::Cancel)));
        (node.own, node.silent) = (State::Running, false);
        assert_eq!(due(&node), None, "its worker ends it");
        node.silent = true;
        assert_eq!(due(&node), Some((20, TimerKind::Cancel)), "and nobody waits for one that is not heard of");
        node.own = State::Cancelled;
        assert_eq!(due(&node), None);
    }
}
