//! Continuations: tasks started when a task and all its descendants have ended.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::action::{Action, Check, NotificationRules};
use super::id::{TaskId, check_type};
use super::{MAX_POLICY_BYTES, MAX_RETRIES, MAX_TEXT_CHARS, OnFailure, Policy, Rules, check_tags};
use crate::model::event::ErrorInfo;
use crate::model::json::RawJson;
use crate::model::record::state::State;
use crate::model::units::duration::Millis;

/// Maximum number of continuations of one task.
pub const MAX_CONTINUATIONS: usize = 8;
/// Maximum length of a chain of continuations.
pub const MAX_CHAIN: usize = 16;
/// Maximum size of params joined from results, in bytes.
pub const MAX_JOINED_BYTES: usize = 1 << 20;

const SEGMENT: &str = "then";

/// Task started when another one has ended, as its child `then`, `then-2`, ….
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Continuation {
    /// Outcome that starts the continuation.
    #[serde(default)]
    pub on: On,
    #[serde(rename = "type")]
    pub task_type: Arc<str>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
    /// Changes the params to `{"params": …, "task": {…}, "results": [{…}, …]}`: the given params, the outcome of the
    /// task, and the outcomes of its children.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_results: bool,
    /// Ordering key; default: the continuation's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_backoff: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Effect of its failure on the preceding task.
    #[serde(default, skip_serializing_if = "is_fail")]
    pub on_failure: OnFailure,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_fast: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failed: Option<u32>,
    /// Notifications when the continuation reaches a state; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// State checks at given times; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// Continuations of the continuation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Continuation>,
}

/// Outcome of a task, including its regular children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum On {
    #[default]
    Succeeded,
    /// Failed or expired, not cancelled.
    Failed,
    /// Any outcome, including cancelled.
    Ended,
}

impl On {
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
    pub params: P,
    /// Preceding task.
    pub task: Ended,
    /// Its other children, in the order they were first seen.
    pub results: Vec<Ended>,
}

/// Outcome of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Ended {
    pub id: TaskId,
    #[serde(rename = "type")]
    pub task_type: Option<Arc<str>>,
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<RawJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<ErrorInfo>>,
}

impl Continuation {
    pub fn new(task_type: &str, params: Value) -> Self {
        Self {
            on: On::Succeeded,
            task_type: task_type.into(),
            params,
            with_results: false,
            key: None,
            name: None,
            tags: Vec::new(),
            retries: None,
            min_backoff: None,
            max_backoff: None,
            timeout: None,
            on_failure: OnFailure::Fail,
            fail_fast: false,
            max_failed: None,
            actions: Vec::new(),
            checks: Vec::new(),
            then: Vec::new(),
        }
    }

    pub fn on(self, on: On) -> Self {
        Self { on, ..self }
    }

    /// Joins the results into the params, which become a [`Joined`].
    pub fn with_results(self) -> Self {
        Self { with_results: true, ..self }
    }

    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Keeps a failure of the continuation from failing the preceding task.
    pub fn ignore_failure(self) -> Self {
        Self { on_failure: OnFailure::Ignore, ..self }
    }

    /// Adds a continuation of the continuation.
    pub fn then(mut self, next: Continuation) -> Self {
        self.then.push(next);
        self
    }

    /// Adds an action.
    pub fn action(mut self, action: Action) -> Self {
        self.actions.push(action);
        self
    }

    /// Adds a state check.
    pub fn check(mut self, check: Check) -> Self {
        self.checks.push(check);
        self
    }

    pub fn rules(&self) -> Rules {
        Rules {
            fail_fast: self.fail_fast,
            max_failed: self.max_failed,
            then: self.then.clone(),
            actions: self.actions.clone(),
            checks: self.checks.clone(),
            ..Rules::default()
        }
    }

    pub fn policy(&self) -> Policy {
        Policy {
            retries: self.retries,
            min_backoff: self.min_backoff,
            max_backoff: self.max_backoff,
            timeout: self.timeout,
            on_failure: self.on_failure,
            name: self.name.clone(),
            tags: self.tags.clone(),
            rules: self.rules(),
            ..Policy::default()
        }
    }
}

/// Checks continuations. The error has the JSON pointer into the list and the reason.
pub fn check_continuations(continuations: &[Continuation]) -> Result<(), (String, String)> {
    check(continuations, 1, "")?;
    for (n, then) in continuations.iter().enumerate() {
        let bytes = serde_json::to_vec(&then.rules()).map_or(0, |text| text.len());
        if bytes > MAX_POLICY_BYTES {
            let why = format!(
                "its continuations and notifications have {bytes} bytes: at most {MAX_POLICY_BYTES} are allowed"
            );
            return Err((format!("/{n}"), why));
        }
    }
    Ok(())
}

fn check(continuations: &[Continuation], depth: usize, at: &str) -> Result<(), (String, String)> {
    let wrong = |what: &str, why: String| Err((format!("{at}{what}"), why));
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
        if let Err(why) = check_type(&then.task_type) {
            return wrong(&format!("/{n}/type"), why);
        }
        if let Err(why) = check_tags(&then.tags) {
            return wrong(&format!("/{n}/tags"), why);
        }
        let long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.chars().count() > MAX_TEXT_CHARS);
        for (field, bad) in [("name", long(&then.name)), ("key", long(&then.key))] {
            if bad {
                return wrong(&format!("/{n}/{field}"), format!("it has more than {MAX_TEXT_CHARS} characters"));
            }
        }
        if then.retries.is_some_and(|retries| retries > MAX_RETRIES) {
            return wrong(&format!("/{n}/retries"), format!("at most {MAX_RETRIES} retries are allowed"));
        }
        NotificationRules { at: format!("{at}/{n}"), actions: &then.actions, checks: &then.checks }.check()?;
        check(&then.then, depth + 1, &format!("{at}/{n}/then"))?;
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
            ids_below(&next, &then.then, 0, ids);
        }
    }
}

fn is_fail(on_failure: &OnFailure) -> bool {
    *on_failure == OnFailure::Fail
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
