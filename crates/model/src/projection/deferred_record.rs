//! Deferred task records: stored with the event that carries them, removed with the event that ends the wait. Where the
//! store has no room, only the event's position is kept.

use super::{LogPosition, Verdict};
use crate::encode_error::EncodeError;
use crate::event::{Event, Kind};
use crate::record::TaskRecord;
use crate::record::state::State;

/// Change of a task's deferred record in the store.
pub(super) enum DeferredRecord {
    Put(Vec<u8>),
    Drop,
}

/// Keeps or forgets the deferred record of a task. `before`: its bytes in the store so far; `room`: free bytes of the
/// partition.
pub(super) fn update_deferred_record(
    task: &mut TaskRecord,
    event: &Event,
    verdict: Verdict,
    position: LogPosition,
    before: u32,
    room: u64,
) -> Result<Option<DeferredRecord>, EncodeError> {
    let waits = matches!(task.own, State::Scheduled | State::Retrying);
    // Only these kinds defer a task. The purpose of a record in an unknown kind of a newer version is not known.
    let brings = verdict == Verdict::Applied && matches!(event.kind(), Kind::Scheduled | Kind::Retrying);
    if let Some(record) = event.payload.record().filter(|_| brings && waits) {
        let bytes = record.encode()?;
        task.definition.record_event_offset = Some(position.offset);
        task.deferral.record_bytes = bytes.len() as u32;
        task.deferral.only_in_log = bytes.len() as u64 > room + u64::from(before);
        if !task.deferral.only_in_log {
            return Ok(Some(DeferredRecord::Put(bytes)));
        }
    } else if !waits || brings {
        task.deferral.clear_record();
    }
    Ok((before > 0 && task.deferral.stored_bytes() == 0).then_some(DeferredRecord::Drop))
}
