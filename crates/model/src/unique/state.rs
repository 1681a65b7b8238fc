//! State of one key, and what an ask, a release, an end and a new run do to it: a pure function of the log.

use serde::{Deserialize, Serialize};

use super::{UniqueMode, UniqueRule};
use crate::encode_error::EncodeError;

/// Number of asks whose verdicts a key remembers, so that a repeated request gets the same one.
pub const MAX_ANSWERS: usize = 16;
/// Maximum number of tasks of a key that are known to be open. More than one is open only after a retry by hand.
const MAX_OPEN: usize = 16;

/// Verdict about an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskVerdict {
    /// The task starts.
    Started,
    /// The task is kept until it may start. A newer one replaces its params.
    Kept,
    /// An open or recent task stands for it, and its params are dropped.
    Joined,
}

impl AskVerdict {
    /// All verdicts.
    pub const ALL: [Self; 3] = [Self::Started, Self::Kept, Self::Joined];

    /// Name in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Kept => "kept",
            Self::Joined => "joined",
        }
    }
}

/// Ask at a position of the log.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Id that the task gets if the ask is accepted.
    pub id: &'a str,
    /// Complete rule of the task.
    pub rule: &'a UniqueRule,
    /// Offset of the event in its partition.
    pub offset: i64,
    /// Log time, epoch milliseconds.
    pub now_ms: i64,
}

/// Decision about an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The ask was decided before, and changes nothing.
    Repeated,
    /// Another task stands for it.
    Joins,
    /// Its task starts now.
    Starts,
    /// Its task waits until `due_ms`, and for the open task.
    Keeps {
        /// Earliest start, epoch milliseconds.
        due_ms: i64,
    },
    /// Its params replace those of the kept task, which is then due at `due_ms`.
    Replaces {
        /// Id of the kept task.
        kept: Box<str>,
        /// Earliest start, epoch milliseconds.
        due_ms: i64,
    },
}

/// Task that is kept until it may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptTask {
    /// Id of the task: that of the first ask since the last start.
    pub id: Box<str>,
    /// Time of the first ask since the last start.
    pub first_ask_ms: i64,
    /// Earliest start by the rule of the newest ask, epoch milliseconds.
    pub due_ms: i64,
    /// The newest ask, whose params the task has.
    pub ask: Box<str>,
    /// Offset of the newest ask.
    pub ask_offset: i64,
    /// Least time between two starts by the newest ask, in milliseconds; 0: none.
    pub throttle_ms: i64,
}

/// Verdict about an ask, and the task that stands for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskAnswer {
    /// Id of the ask.
    pub ask: Box<str>,
    /// Verdict about it.
    pub verdict: AskVerdict,
    /// Id of the task that stands for it.
    pub task: Box<str>,
}

/// Number of asks of a key by verdict, since the key is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskCounts {
    /// Tasks that started at once.
    pub started: u64,
    /// Tasks that were kept, or replaced a kept one.
    pub kept: u64,
    /// Asks for which another task stands.
    pub joined: u64,
}

/// State of a key of unique tasks in the projection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyState {
    /// Tasks that have started and whose trees are open: one, or more after a retry by hand.
    pub open: Vec<Box<str>>,
    /// Task that waits for its start.
    pub kept: Option<KeptTask>,
    /// Task that started last.
    pub last: Option<Box<str>>,
    /// Log time of the last start.
    pub last_start_ms: i64,
    /// Log time of the last ask.
    pub last_ask_ms: i64,
    /// Time until which the state is needed although no task is open, epoch milliseconds.
    pub held_until_ms: i64,
    /// Verdicts about the newest asks, oldest first; at most [`MAX_ANSWERS`].
    pub answers: Vec<AskAnswer>,
    /// Number of asks by verdict.
    pub counts: AskCounts,
}

impl KeyState {
    /// Key of which an open task is known without its ask, as in a log whose beginning has been removed.
    pub fn of_open(task: &str) -> Self {
        Self { open: vec![task.into()], last: Some(task.into()), ..Self::default() }
    }

    /// Encodes the state for the store.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(postcard::to_allocvec(self)?)
    }

    /// Reads bytes of [`Self::encode`]. `None`: another version wrote them.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    /// Task that stands for the key: the open one, else the kept one, else the last one.
    pub fn standing(&self) -> Option<&str> {
        let kept = self.kept.as_ref().map(|kept| &*kept.id);
        self.open.first().map(|id| &**id).or(kept).or(self.last.as_deref())
    }

    /// Verdict about an ask, if it is among the newest.
    pub fn answer(&self, ask: &str) -> Option<&AskAnswer> {
        self.answers.iter().rev().find(|answer| &*answer.ask == ask)
    }

    /// Ids of the tasks that the state names.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        let kept = self.kept.as_ref().map(|kept| &*kept.id);
        self.open.iter().map(|id| &**id).chain(kept).chain(self.last.as_deref())
    }

    /// Returns true once the state has no effect on later asks.
    pub fn is_over(&self, now_ms: i64) -> bool {
        self.open.is_empty() && self.kept.is_none() && self.held_until_ms <= now_ms
    }

    /// Returns true if the kept task waits for the end of another one.
    pub fn kept_waits(&self) -> bool {
        self.kept.is_some() && !self.open.is_empty()
    }

    /// Decides about an ask.
    pub fn ask(&mut self, ask: &Ask<'_>) -> Decision {
        if self.answer(ask.id).is_some() {
            return Decision::Repeated;
        }
        self.last_ask_ms = ask.now_ms;
        let decision = self.decide(ask);
        let (verdict, task): (_, Box<str>) = match &decision {
            Decision::Repeated => return decision,
            Decision::Joins => (AskVerdict::Joined, self.standing().unwrap_or(ask.id).into()),
            Decision::Starts => (AskVerdict::Started, ask.id.into()),
            Decision::Keeps { .. } => (AskVerdict::Kept, ask.id.into()),
            Decision::Replaces { kept, .. } => (AskVerdict::Kept, kept.clone()),
        };
        self.accept(ask, &decision);
        self.record_answer(AskAnswer { ask: ask.id.into(), verdict, task });
        decision
    }

    fn decide(&self, ask: &Ask<'_>) -> Decision {
        let (rule, now_ms) = (ask.rule, ask.now_ms);
        let due_ms = match rule.mode() {
            UniqueMode::Skip => {
                let is_recent = self.last.is_some() && now_ms < self.last_start_ms.saturating_add(rule.for_ms());
                let has_task = !self.open.is_empty() || self.kept.is_some();
                return if has_task || is_recent { Decision::Joins } else { Decision::Starts };
            }
            UniqueMode::Latest => now_ms,
            UniqueMode::Debounce => {
                let first_ms = self.kept.as_ref().map_or(now_ms, |kept| kept.first_ask_ms);
                let latest_ms = rule.max_ms().map_or(i64::MAX, |max_ms| first_ms.saturating_add(max_ms));
                now_ms.saturating_add(rule.window_ms()).min(latest_ms)
            }
            UniqueMode::Throttle if self.last.is_some() => {
                now_ms.max(self.last_start_ms.saturating_add(rule.window_ms()))
            }
            UniqueMode::Throttle => now_ms,
        };
        match &self.kept {
            Some(kept) => Decision::Replaces { kept: kept.id.clone(), due_ms },
            None if self.open.is_empty() && due_ms <= now_ms => Decision::Starts,
            None => Decision::Keeps { due_ms },
        }
    }

    fn accept(&mut self, ask: &Ask<'_>, decision: &Decision) {
        let (rule, now_ms) = (ask.rule, ask.now_ms);
        let throttle_ms = if rule.mode() == UniqueMode::Throttle { rule.window_ms() } else { 0 };
        match decision {
            Decision::Repeated | Decision::Joins => {}
            Decision::Starts => {
                let remember_ms = if rule.mode() == UniqueMode::Skip { rule.for_ms() } else { throttle_ms };
                self.start(ask.id.into(), now_ms, remember_ms);
            }
            Decision::Keeps { due_ms } => {
                self.kept = Some(KeptTask {
                    id: ask.id.into(),
                    first_ask_ms: now_ms,
                    due_ms: *due_ms,
                    ask: ask.id.into(),
                    ask_offset: ask.offset,
                    throttle_ms,
                });
            }
            Decision::Replaces { due_ms, .. } => {
                if let Some(kept) = &mut self.kept {
                    (kept.due_ms, kept.throttle_ms) = (*due_ms, throttle_ms);
                    (kept.ask, kept.ask_offset) = (ask.id.into(), ask.offset);
                }
            }
        }
    }

    fn start(&mut self, task: Box<str>, now_ms: i64, remember_ms: i64) {
        if !self.open.contains(&task) && self.open.len() < MAX_OPEN {
            self.open.push(task.clone());
        }
        (self.last, self.last_start_ms) = (Some(task), now_ms);
        if remember_ms > 0 {
            self.held_until_ms = self.held_until_ms.max(now_ms.saturating_add(remember_ms));
        }
    }

    fn record_answer(&mut self, answer: AskAnswer) {
        match answer.verdict {
            AskVerdict::Started => self.counts.started += 1,
            AskVerdict::Kept => self.counts.kept += 1,
            AskVerdict::Joined => self.counts.joined += 1,
        }
        if self.answers.len() >= MAX_ANSWERS {
            self.answers.remove(0);
        }
        self.answers.push(answer);
    }

    /// Starts the kept task, whose record was released with the params of the ask at `ask_offset`. Returns true if a newer
    /// ask is kept from now on, as a task of its own.
    pub fn release(&mut self, task: &str, ask_offset: i64, now_ms: i64) -> bool {
        let Some(kept) = self.kept.take_if(|kept| &*kept.id == task) else { return false };
        self.start(task.into(), now_ms, kept.throttle_ms);
        if kept.ask_offset <= ask_offset {
            return false;
        }
        let due_ms = kept.due_ms.max(now_ms.saturating_add(kept.throttle_ms));
        self.answers.iter_mut().filter(|answer| answer.ask == kept.ask).for_each(|answer| {
            answer.task.clone_from(&kept.ask);
        });
        self.kept = Some(KeptTask { id: kept.ask.clone(), first_ask_ms: now_ms, due_ms, ..kept });
        true
    }

    /// Ends the tree of a task. Returns true if that lets the kept task start.
    pub fn end(&mut self, task: &str) -> bool {
        let was_waiting = self.kept_waits();
        self.open.retain(|open| &**open != task);
        self.kept.take_if(|kept| &*kept.id == task);
        was_waiting && self.open.is_empty() && self.kept.is_some()
    }

    /// Notes that a task of the key has started without an ask: in a new run, or in a log whose beginning is gone. Returns
    /// true if the kept task waits for it from now on.
    pub fn reopen(&mut self, task: &str) -> bool {
        let is_kept = self.kept.as_ref().is_some_and(|kept| &*kept.id == task);
        if is_kept || self.open.len() >= MAX_OPEN || self.open.iter().any(|open| &**open == task) {
            return false;
        }
        let was_waiting = self.kept_waits();
        self.open.push(task.into());
        self.last.get_or_insert_with(|| task.into());
        self.kept_waits() && !was_waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBOUNCE: &str = r#"{"key":"k","mode":"debounce","window":"10ms","max":"25ms"}"#;
    const THROTTLE: &str = r#"{"key":"k","mode":"throttle","window":"10ms"}"#;
    const LATEST: &str = r#"{"key":"k","mode":"latest"}"#;
    const SKIP: &str = r#"{"key":"k","mode":"skip","for":"10ms"}"#;

    fn ask(key: &mut KeyState, id: &str, rule: &str, now_ms: i64) -> Decision {
        let rule = UniqueRule::parse(rule).unwrap();
        key.ask(&Ask { id, rule: &rule, offset: now_ms, now_ms })
    }

    #[test]
    fn skip_joins_the_open_task_and_the_recent_one() {
        let mut key = KeyState::default();
        assert_eq!(ask(&mut key, "a", SKIP, 100), Decision::Starts);
        assert_eq!(ask(&mut key, "b", SKIP, 101), Decision::Joins);
        assert!(!key.end("a") && !key.is_over(109) && key.is_over(110));
        assert_eq!(ask(&mut key, "c", SKIP, 109), Decision::Joins);
        assert_eq!(key.answer("c").unwrap().task, "a".into());
        assert_eq!(ask(&mut key, "d", SKIP, 110), Decision::Starts);
        assert_eq!(key.counts, AskCounts { started: 2, kept: 0, joined: 2 });
    }

    #[test]
    fn latest_keeps_the_newest_until_the_open_task_has_ended() {
        let mut key = KeyState::default();
        assert_eq!(ask(&mut key, "a", LATEST, 1), Decision::Starts);
        assert_eq!(ask(&mut key, "b", LATEST, 2), Decision::Keeps { due_ms: 2 });
        assert_eq!(ask(&mut key, "c", LATEST, 3), Decision::Replaces { kept: "b".into(), due_ms: 3 });
        assert!(key.kept_waits() && key.end("a") && !key.kept_waits());
        assert!(!key.release("b", 3, 4));
        assert_eq!((&*key.open, key.kept.is_none()), (&["b".into()][..], true));
    }

    #[test]
    fn released_task_leaves_a_newer_ask_behind_as_a_task_of_its_own() {
        let mut key = KeyState::default();
        ask(&mut key, "a", LATEST, 1);
        ask(&mut key, "b", LATEST, 2);
        key.end("a");
        ask(&mut key, "c", LATEST, 5);
        assert!(key.release("b", 2, 6));
        assert_eq!((&*key.kept.as_ref().unwrap().id, &*key.answer("c").unwrap().task), ("c", "c"));
        assert!(key.kept_waits() && key.end("b"));
    }

    #[test]
    fn debounce_waits_for_silence_and_at_most_for_its_longest_wait() {
        let mut key = KeyState::default();
        assert_eq!(ask(&mut key, "a", DEBOUNCE, 100), Decision::Keeps { due_ms: 110 });
        for (now_ms, due_ms) in [(105, 115), (114, 124), (120, 125), (124, 125)] {
            let id = format!("b{now_ms}");
            assert_eq!(ask(&mut key, &id, DEBOUNCE, now_ms), Decision::Replaces { kept: "a".into(), due_ms });
        }
        assert!(!key.kept_waits(), "nothing is open");
    }

    #[test]
    fn throttle_starts_at_most_once_within_its_window() {
        let mut key = KeyState::default();
        assert_eq!(ask(&mut key, "a", THROTTLE, 100), Decision::Starts);
        assert!(!key.end("a") && !key.is_over(109));
        assert_eq!(ask(&mut key, "b", THROTTLE, 103), Decision::Keeps { due_ms: 110 });
        assert!(!key.release("b", 103, 110));
        key.end("b");
        assert_eq!(key.held_until_ms, 120);
        assert_eq!(ask(&mut key, "c", THROTTLE, 120), Decision::Starts);
    }

    #[test]
    fn repeated_ask_changes_nothing() {
        let mut key = KeyState::default();
        ask(&mut key, "a", SKIP, 1);
        let before = key.clone();
        assert_eq!(ask(&mut key, "a", SKIP, 50), Decision::Repeated);
        assert_eq!(key, before);
        assert_eq!(KeyState::decode(&key.encode().unwrap()), Some(key));
    }

    #[test]
    fn retry_by_hand_reopens_the_key() {
        let mut key = KeyState::default();
        ask(&mut key, "a", LATEST, 1);
        key.end("a");
        ask(&mut key, "b", LATEST, 2);
        assert!(!key.reopen("a"), "nothing is kept");
        ask(&mut key, "c", LATEST, 3);
        assert!(!key.end("b") && key.end("a"), "both are open");
        assert!(key.reopen("a"), "the kept task waits again");
    }
}
