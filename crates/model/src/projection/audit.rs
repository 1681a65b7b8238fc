//! Audit log: requests of users found in the events, whether or not they took effect.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::LogPosition;
use crate::encode_error::EncodeError;
use crate::event::{BULK_FIELD, CancelScope, Event, Payload};
use crate::record::MAX_MESSAGE_CHARS;
use crate::task::id::MAX_ID_BYTES;

/// Maximum number of requests kept in a partition.
pub const MAX_AUDIT: usize = 1_000;
/// Maximum length of an action; the longest known one is `delete_kill_switch`.
const MAX_ACTION_CHARS: usize = 40;

/// Request of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Offset of the event.
    pub offset: i64,
    /// Time by the writer's clock, epoch milliseconds.
    pub at_ms: i64,
    /// Name of the API token; `None` if the API has no tokens.
    pub by: Option<Arc<str>>,
    /// Action, such as `cancel` or `pause_type`.
    pub action: String,
    /// Name or id of the task, type, schedule, kill switch or dead letter.
    pub target: String,
    pub reason: Option<String>,
}

impl AuditEntry {
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Reads bytes of [`Self::encode`]. `None`: damaged, or with a field that is missing.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Request that an event records, if any. Requests that the tracker derives from another request are not audited.
    pub(super) fn of(event: &Event, position: LogPosition) -> Option<Self> {
        // The bulk action itself has an audit entry of its own.
        if event.extra.contains_key(BULK_FIELD) {
            return None;
        }
        let (action, target) = action_of(event)?;
        let clipped = |text: &str, chars| text.chars().take(chars).collect::<String>();
        Some(Self {
            offset: position.offset,
            at_ms: event.at_ms,
            by: event.by.as_deref().map(|by| clipped(by, MAX_ID_BYTES).into()),
            action: clipped(action, MAX_ACTION_CHARS),
            target: clipped(target, MAX_ID_BYTES),
            reason: event.message.as_deref().map(|reason| clipped(reason, MAX_MESSAGE_CHARS)),
        })
    }
}

/// Returns the action that an event requests, and its target.
fn action_of(event: &Event) -> Option<(&str, &str)> {
    match &event.payload {
        Payload::CancelRequested(CancelScope { asof: None, .. }) => Some(("cancel", event.id.as_str())),
        Payload::RetryRequested { new_run: None, only_failed, .. } => {
            Some((if *only_failed { "retry_failed" } else { "retry" }, event.id.as_str()))
        }
        Payload::Patched { patch } => {
            let is_start = patch.as_ref().is_some_and(|patch| patch.next_start.is_some());
            Some((if is_start { "start" } else { "edit" }, event.id.as_str()))
        }
        Payload::DeadDropped => Some(("drop", event.id.as_str())),
        Payload::Operated { action: Some(action), target: Some(target) } => Some((&**action, &**target)),
        _ => None,
    }
}
