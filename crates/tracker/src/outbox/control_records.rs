//! Records of cancels on the control topic.

use std::sync::Arc;

use kafleet_fleet::control::{CONTROL_VERSION, Cancel, ControlKey};
use kafleet_model::encode_error::EncodeError;
use kafleet_model::record::TaskRecord;
use kafleet_model::task::id::TaskId;

use super::entry::OutboxMessage;

/// Partition of the control topic, which has only one.
const CONTROL_PARTITION: i32 = 0;

/// Record of a task's cancel; `None` deletes it.
pub(super) fn cancel_record(topic: &Arc<str>, id: &TaskId, value: Option<String>) -> OutboxMessage {
    OutboxMessage::plain(
        topic.clone(),
        CONTROL_PARTITION,
        ControlKey::Cancel(id.to_string()).to_string(),
        value.map(String::into_bytes),
    )
}

/// Record published before a subtree command starts, so that running tasks stop soon. The API server may have
/// published it already. `scope`: the cancel's offset, and whether it applies to the whole tree.
pub(super) fn first_cancel_record(
    topic: &Arc<str>,
    id: &TaskId,
    task: &TaskRecord,
    scope: (i64, bool),
    now: i64,
) -> Result<OutboxMessage, EncodeError> {
    let (asof, subtree) = scope;
    let request = task.requests.cancel.as_deref().filter(|cancel| cancel.asof == asof).map(|cancel| &cancel.request);
    let reason = request.and_then(|request| request.reason.as_deref()).map(str::to_owned);
    let by = request.and_then(|request| request.by.as_deref()).map(str::to_owned);
    let cancel = Cancel { v: CONTROL_VERSION, asof, at_ms: now, subtree, reason, by };
    Ok(cancel_record(topic, id, Some(serde_json::to_string(&cancel)?)))
}
