//! Continuations: tasks started when a task and all its descendants have ended.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::action::{Action, Check, NotificationRules};
use super::document::{ContinueFields, document};
use super::field::Scope;
use super::id::{TaskId, check_type};
use super::{MAX_POLICY_BYTES, MAX_TEXT_CHARS, OnFailure, Policy};
use crate::event::ErrorInfo;
use crate::json::{RawJson, check_depth};
use crate::record::state::State;

/// Maximum number of continuations of one task.
pub const MAX_CONTINUATIONS: usize = 8;
/// Maximum length of a chain of continuations.
pub const MAX_CHAIN: usize = 16;
/// Maximum size of params joined from results, in bytes.
pub const MAX_JOINED_BYTES: usize = 1 << 20;

const SEGMENT: &str = "then";

/// Task started when another one has ended, as its child `then`, `then-2`, ….
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Continuation {
    /// Outcome that starts the continuation.
    #[serde(default)]
    pub on: On,
    /// Name of the continuation's type.
    #[serde(rename = "type")]
    pub task_type: Arc<str>,
    /// Params, any JSON.
    #[serde(default, skip_serializing_if = "RawJson::is_null")]
    pub params: RawJson,
    /// Changes the params to `{"params": …, "task": {…}, "results": [{…}, …]}`: the given params, the outcome of the
    /// task, and the outcomes of its children.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_results: bool,
    /// Ordering key; default: the continuation's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Options of the task; unset ones have the defaults of its type.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing, with = "ContinueFields")]
    pub policy: Policy,
}

document!(Continuation, Scope::Continue, policy);

/// Outcome of a task, including its regular children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// Succeeded, with all its regular children (default).
    #[default]
    Succeeded,
    /// Failed or expired, not cancelled.
    Failed,
    /// Any outcome, including cancelled.
    Ended,
}

impl On {
    /// Returns whether a task that ended in this state starts the continuation.
    pub const fn is(self, state: State) -> bool {
        match self {
            Self::Succeeded => matches!(state, State::Succeeded),
            Self::Failed => matches!(state, State::Failed | State::Expired),
            Self::Ended => state.is_terminal(),
        }
    }
}

/// Params of a continuation with `with_results`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Joined<P> {
    /// Params given to [`Continuation::new`].
    pub params: P,
    /// Preceding task.
    pub task: Ended,
    /// Other children of the task, in the order they were first seen.
    pub results: Vec<Ended>,
}

/// Outcome of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Ended {
    /// Task id.
    pub id: TaskId,
    /// Name of the type; `None` if it is unknown.
    #[serde(rename = "type")]
    pub task_type: Option<Arc<str>>,
    /// State in which the task ended.
    pub state: State,
    /// Result of a task that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<RawJson>,
    /// Error of a task that did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<ErrorInfo>>,
}

impl Ended {
    /// Deserialises the output.
    ///
    /// # Errors
    /// The task has no output because it failed, or the output has another type.
    pub fn output<T: DeserializeOwned>(&self) -> Result<T, String> {
        let text = self
            .output
            .as_ref()
            .map(|output| output.text())
            .ok_or_else(|| format!("`{}` has no output: it is {}", self.id, self.state))?;
        serde_json::from_str(text).map_err(|error| format!("the output of `{}` cannot be read: {error}", self.id))
    }
}

impl Continuation {
    /// Creates a continuation of any type, which starts after success.
    pub fn new(task_type: &str, params: impl Into<RawJson>) -> Self {
        Self {
            on: On::Succeeded,
            task_type: task_type.into(),
            params: params.into(),
            with_results: false,
            key: None,
            policy: Policy::default(),
        }
    }

    /// Sets the outcome that starts the continuation. Default: success.
    pub fn on(self, on: On) -> Self {
        Self { on, ..self }
    }

    /// Joins the results into the params, which become a [`Joined`].
    pub fn with_results(self) -> Self {
        Self { with_results: true, ..self }
    }

    /// Sets the display name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.policy.name = Some(name.into());
        self
    }

    /// Keeps a failure of the continuation from failing the preceding task.
    pub fn ignore_failure(mut self) -> Self {
        self.policy.on_failure = OnFailure::Ignore;
        self
    }

    /// Adds a continuation of the continuation.
    pub fn then(mut self, next: Continuation) -> Self {
        self.policy.rules.then.push(next);
        self
    }

    /// Adds an action.
    pub fn action(mut self, action: Action) -> Self {
        self.policy.rules.actions.push(action);
        self
    }

    /// Adds a state check.
    pub fn check(mut self, check: Check) -> Self {
        self.policy.rules.checks.push(check);
        self
    }
}

/// Checks continuations. The error has the JSON pointer into the list and the reason.
pub fn check_continuations(continuations: &[Continuation]) -> Result<(), (String, String)> {
    check(continuations, 1, "")?;
    for (n, then) in continuations.iter().enumerate() {
        let bytes = serde_json::to_vec(&then.policy.rules).map_or(0, |text| text.len());
        if bytes > MAX_POLICY_BYTES {
            let reason = format!(
                "its continuations and notifications have {bytes} bytes: at most {MAX_POLICY_BYTES} are allowed"
            );
            return Err((format!("/{n}"), reason));
        }
    }
    Ok(())
}

fn check(continuations: &[Continuation], depth: usize, at: &str) -> Result<(), (String, String)> {
    let wrong = |field: &str, reason: String| Err((format!("{at}{field}"), reason));
    if continuations.len() > MAX_CONTINUATIONS {
        return wrong(
            "",
            format!("{} continuations: at most {MAX_CONTINUATIONS} of one task are allowed", continuations.len()),
        );
    }
    if depth > MAX_CHAIN && !continuations.is_empty() {
        return wrong("", format!("the chain has more than {MAX_CHAIN} continuations"));
    }
    for (n, then) in continuations.iter().enumerate() {
        check_one(then, format!("{at}/{n}"))?;
        check(&then.policy.rules.then, depth + 1, &format!("{at}/{n}/then"))?;
    }
    Ok(())
}

/// Checks a continuation without those that follow it.
fn check_one(then: &Continuation, at: String) -> Result<(), (String, String)> {
    if let Err(error) = check_type(&then.task_type) {
        return Err((format!("{at}/type"), error));
    }
    if then.key.as_ref().is_some_and(|key| key.chars().count() > MAX_TEXT_CHARS) {
        return Err((format!("{at}/key"), format!("it has more than {MAX_TEXT_CHARS} characters")));
    }
    if let Err(error) = check_depth(&then.params) {
        return Err((format!("{at}/params"), error));
    }
    if let Some((field, error)) = then.policy.errors().into_iter().next() {
        return Err((format!("{at}/{field}"), error));
    }
    let rules = &then.policy.rules;
    NotificationRules { at, actions: &rules.actions, checks: &rules.checks }.check()
}

/// Checks that the ids of these continuations, and of all their own continuations, are valid, and that the task does not get
/// too many. `first`: number of continuations that the task has already. The error has the JSON pointer into the list and
/// the reason.
pub fn check_continuation_ids(
    id: &TaskId,
    continuations: &[Continuation],
    first: usize,
) -> Result<(), (String, String)> {
    for (n, then) in continuations.iter().enumerate() {
        let at = format!("/{n}");
        if first + n >= MAX_CONTINUATIONS {
            let reason = format!("the task has {first} continuations already: at most {MAX_CONTINUATIONS} are allowed");
            return Err((at, reason));
        }
        let next = match id.child(&segment(first + n)) {
            Ok(next) => next,
            Err(reason) => return Err((at, format!("the continuation would have no valid id: {reason}"))),
        };
        let below = check_continuation_ids(&next, &then.policy.rules.then, 0);
        below.map_err(|(below, reason)| (format!("{at}/then{below}"), reason))?;
    }
    Ok(())
}

/// Id segment of a continuation by its number from 0.
pub fn segment(number: usize) -> String {
    if number == 0 { SEGMENT.to_owned() } else { format!("{SEGMENT}-{}", number + 1) }
}

/// Number of the continuation with this id segment; `None` for regular children.
pub fn number_of(segment: &str) -> Option<usize> {
    let rest = segment.strip_prefix(SEGMENT)?;
    if rest.is_empty() {
        return Some(0);
    }
    let number: usize = rest.strip_prefix('-')?.parse().ok()?;
    ((2..=MAX_CONTINUATIONS).contains(&number) && !rest.starts_with("-0")).then(|| number - 1)
}

/// Ids that continuations below a task, and their own continuations, may have.
pub fn ids_below(id: &TaskId, continuations: &[Continuation], first: usize, ids: &mut Vec<TaskId>) {
    for (n, then) in continuations.iter().enumerate().take(MAX_CONTINUATIONS) {
        if let Ok(next) = id.child(&segment(first + n)) {
            ids.push(next.clone());
            ids_below(&next, &then.policy.rules.then, 0, ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_numbered_from_the_second() {
        assert_eq!([0, 1, 7].map(segment), ["then", "then-2", "then-8"]);
        let numbers =
            ["then", "then-2", "then-8", "then-1", "then-9", "then-02", "then-x", "thenx", "other"].map(number_of);
        assert_eq!(numbers, [Some(0), Some(1), Some(7), None, None, None, None, None, None]);
    }

    #[test]
    fn continuations_without_a_valid_id_are_refused() {
        let id = |bytes: usize| {
            TaskId::parse(&["a".repeat(128), "b".repeat(128), "c".repeat(128), "d".repeat(bytes - 387)].join(":"))
                .unwrap()
        };
        let list = |text: &str| serde_json::from_str::<Vec<Continuation>>(text).unwrap();
        let two = list(r#"[{"type":"a"},{"type":"a"}]"#);
        let nested = list(r#"[{"type":"a","then":[{"type":"b"}]}]"#);
        assert_eq!(check_continuation_ids(&id(505), &two, 0), Ok(()), "`:then-2` has 7 bytes");
        assert_eq!(check_continuation_ids(&id(506), &two, 0).unwrap_err().0, "/1");
        assert_eq!(check_continuation_ids(&id(506), &two[..1], 1).unwrap_err().0, "/0", "it is the second one");
        assert_eq!(check_continuation_ids(&id(508), &two, 0).unwrap_err().0, "/0");
        assert_eq!(check_continuation_ids(&id(502), &nested, 0), Ok(()));
        let (at, error) = check_continuation_ids(&id(503), &nested, 0).unwrap_err();
        assert!(at == "/0/then/0" && error.contains("513 bytes"), "{at}: {error}");
        let deepest = TaskId::parse(&["a"; 64].join(":")).unwrap();
        assert!(check_continuation_ids(&deepest, &two, 0).unwrap_err().1.contains("65 levels"));
        assert!(check_continuation_ids(&deepest.parent_id().unwrap(), &two, 0).is_ok());
        let (at, error) = check_continuation_ids(&TaskId::parse("a").unwrap(), &two, 7).unwrap_err();
        assert!(at == "/1" && error.contains("at most 8"), "{at}: {error}");
    }

    #[test]
    fn invalid_continuations_are_refused_with_their_pointer() {
        let of =
            |text: &str| check_continuations(&serde_json::from_str::<Vec<Continuation>>(text).unwrap()).unwrap_err();
        assert_eq!(of(r#"[{"type":"a"},{"type":"B"}]"#).0, "/1/type");
        assert_eq!(of(r#"[{"type":"a","then":[{"type":"a","retries":9999}]}]"#).0, "/0/then/0/retries");
        assert_eq!(of(r#"[{"type":"a","then":[{"type":"b","actions":[{}]}]}]"#).0, "/0/then/0/actions/0");
        let long = "x".repeat(MAX_POLICY_BYTES);
        let large = format!(r#"[{{"type":"a"}},{{"type":"a","then":[{{"type":"a","params":"{long}"}}]}}]"#);
        assert_eq!(of(&large).0, "/1");
        let nine = format!("[{}]", [r#"{"type":"a"}"#; 9].join(","));
        assert!(of(&nine).1.contains("at most 8"));
        let deep = (0..MAX_CHAIN + 1).fold(String::new(), |rest, _| match rest.as_str() {
            "" => r#"[{"type":"a"}]"#.to_owned(),
            rest => format!(r#"[{{"type":"a","then":{rest}}}]"#),
        });
        assert!(of(&deep).1.contains("more than 16 continuations"));
    }
}
