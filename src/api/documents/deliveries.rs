//! What others have been told of a task.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::event::ErrorInfo;
use crate::model::record::state::State;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Deliveries {
    /// The newest first; at most 32.
    pub items: Vec<Delivery>,
    /// Older ones that are not in `items`.
    pub unlisted: u32,
    /// Not made, because too many were waiting.
    pub refused: u32,
    /// Checks whose time has not come.
    pub checks_due: Vec<CheckDue>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delivery {
    /// Its own task, and what the receiver is given (`webhook-id`, `Message-ID`); the same for each attempt.
    pub id: String,
    /// What asks for it: `actions/0`, `checks/1/failed`.
    pub rule: String,
    /// `callback` or `email`.
    pub kind: String,
    /// The state that it tells.
    pub state: State,
    pub run: u32,
    pub at: String,
    pub outcome: Outcome,
    pub attempts: u32,
    /// Why the last attempt failed.
    pub error: Option<ErrorInfo>,
    /// When the next attempt is due.
    pub due_at: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Pending,
    Delivered,
    /// It is not tried again by itself: it is a dead letter, and `retry` of its task tries it again.
    Failed,
    /// The record of its task is no longer kept.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckDue {
    /// From 0.
    pub number: usize,
    pub at: String,
}
