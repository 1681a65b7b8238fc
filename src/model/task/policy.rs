//! Options of a task beyond type and params.

use serde::{Deserialize, Serialize};

use super::action::{Action, Check};
use super::continuation::Continuation;
use crate::model::units::duration::Millis;

/// Effect of a failed child on its parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The parent fails too.
    #[default]
    Fail,
    /// The parent is not affected.
    Ignore,
}

/// Options of a task beyond type and params. Unset fields default to the settings of the type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Policy {
    /// Earliest start (epoch ms).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before_ms: Option<i64>,
    /// Latest start (epoch ms).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_backoff: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Millis>,
    /// Timeout of one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Timeout of all attempts and waits together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_timeout: Option<Millis>,
    #[serde(skip_serializing_if = "is_default")]
    pub on_failure: OnFailure,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    #[serde(flatten)]
    pub rules: Rules,
}

/// Part of the policy that travels as JSON in `ce_policy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Rules {
    /// Free-form options; a JSON object that people may change later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<serde_json::Value>,
    /// The task runs outside the fleet, and its state is reported.
    #[serde(skip_serializing_if = "is_default")]
    pub external: bool,
    /// Whether reports after the end are ignored (external tasks).
    #[serde(skip_serializing_if = "is_true")]
    pub block_when_done: bool,
    /// Cancels the task and everything pending below when a child fails beyond `max_failed`.
    #[serde(skip_serializing_if = "is_default")]
    pub fail_fast: bool,
    /// Number of direct children that may fail, be cancelled or expire before the task fails. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failed: Option<u32>,
    /// Continuations, started once the task and everything below have ended; at most 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Continuation>,
    /// Notifications when the task reaches a state; at most 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// State checks at given times; at most 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            options: None,
            external: false,
            block_when_done: true,
            fail_fast: false,
            max_failed: None,
            then: Vec::new(),
            actions: Vec::new(),
            checks: Vec::new(),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_true(value: &bool) -> bool {
    *value
}
