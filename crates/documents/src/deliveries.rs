//! Notifications (callbacks and emails) sent about a task.

use kafleet_model::event::ErrorInfo;
use kafleet_model::record::state::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Deliveries {
    /// Newest first, at most 32.
    pub items: Vec<Delivery>,
    /// Older deliveries that `items` omits.
    pub unlisted: u32,
    /// Deliveries skipped because too many were pending.
    pub refused: u32,
    /// Checks that are not due yet.
    pub checks_due: Vec<CheckDue>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delivery {
    /// Id of the delivery's task, also sent to the receiver (`webhook-id`, `Message-ID`). The same for all attempts.
    pub id: String,
    /// Rule that caused the delivery: `actions/0`, `checks/1/failed`.
    pub rule: String,
    /// `callback` or `email`.
    pub kind: String,
    /// State that the notification reports.
    pub state: State,
    pub run: u32,
    pub at: String,
    pub outcome: DeliveryOutcome,
    pub attempts: u32,
    /// Error of the last attempt.
    pub error: Option<ErrorInfo>,
    /// Time of the next attempt.
    pub due_at: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryOutcome {
    Pending,
    Delivered,
    /// Attempts are exhausted. The delivery is a dead letter; retry its task to send it again.
    Failed,
    /// The delivery's task is no longer retained.
    Unknown,
}

impl DeliveryOutcome {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckDue {
    /// Index of the check, from 0.
    pub number: usize,
    pub at: String,
}
