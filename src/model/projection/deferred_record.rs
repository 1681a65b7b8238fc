//! Deferred task records: stored with the event that carries them, removed with the event that ends the wait.

use super::{LogPosition, Verdict};
use crate::model::encode_error::EncodeError;
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::outbox::MAX_DEFERRED_BYTES;
use crate::model::record::TaskRecord;
use crate::model::record::state::State;

/// Change of a task's deferred record in the store.
pub(super) enum DeferredRecord {
    Put(Vec<u8>),
    Drop,
}

/// Stores or removes the deferred record. `before`: bytes stored so far; `room`: free bytes of the partition.
pub(super) fn keep(
    node: &mut TaskRecord,
    event: &Event,
    verdict: Verdict,
    position: LogPosition,
    before: u32,
    room: u64,
) -> Result<Option<DeferredRecord>, EncodeError> {
    let waits = matches!(node.own, State::Scheduled | State::Retrying);
    // Only these kinds defer a task. The purpose of a record in an unknown kind of a newer version is not known.
    let brings = verdict == Verdict::Applied && matches!(event.kind(), Kind::Scheduled | Kind::Retrying);
    if let Some(record) = event.payload.record().filter(|_| brings && waits) {
        let bytes = record.encode()?;
        if bytes.len() as u64 <= room + u64::from(before) {
            (node.deferral.record_bytes, node.definition.record_event_offset) =
                (bytes.len() as u32, Some(position.offset));
            return Ok(Some(DeferredRecord::Put(bytes)));
        }
        node.definition.record_event_offset = Some(position.offset);
        refuse(node, event.attempt);
    } else if !waits || brings {
        node.deferral.record_bytes = 0;
    }
    Ok((before > 0 && node.deferral.record_bytes == 0).then_some(DeferredRecord::Drop))
}

fn refuse(node: &mut TaskRecord, attempt: u32) {
    let message = format!(
        "too many tasks are deferred in this events partition: at most {} MiB of records are stored (hint: retry it later, or use more events partitions)",
        MAX_DEFERRED_BYTES >> 20
    );
    node.own = State::Failed;
    node.deferral.record_bytes = 0;
    node.times.due_ms = None;
    node.outcome.error = Some(Box::new(ErrorInfo::new("too_many_waiting", message, attempt)));
}
