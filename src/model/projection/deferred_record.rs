//! Records of tasks that wait at the tracker: kept with the event that brings them, dropped with the one that ends the wait.

use super::{Place, Verdict};
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::outbox::MAX_KEPT_BYTES;
use crate::model::record::TaskRecord;
use crate::model::record::state::State;

pub(super) enum DeferredRecord {
    Put(Vec<u8>),
    Drop,
}

/// `before`: the bytes kept until now; `room`: what the partition may keep besides.
pub(super) fn keep(
    node: &mut TaskRecord,
    event: &Event,
    verdict: Verdict,
    place: Place,
    before: u32,
    room: u64,
) -> Option<DeferredRecord> {
    let waits = matches!(node.own, State::Scheduled | State::Retrying);
    // Of a kind that a newer version writes nobody here knows what its record is for.
    let brings = verdict == Verdict::Applied && matches!(event.kind, Kind::Scheduled | Kind::Retrying);
    if let Some(record) = event.record.as_deref().filter(|_| brings && waits) {
        let bytes = record.encode();
        if bytes.len() as u64 <= room + u64::from(before) {
            (node.kept, node.told_at) = (bytes.len() as u32, Some(place.offset));
            return Some(DeferredRecord::Put(bytes));
        }
        node.told_at = Some(place.offset);
        refuse(node, event.attempt);
    } else if !waits || brings {
        node.kept = 0;
    }
    (before > 0 && node.kept == 0).then_some(DeferredRecord::Drop)
}

fn refuse(node: &mut TaskRecord, attempt: u32) {
    let told = format!(
        "too many tasks of this events partition wait for their time: {} MiB of records are kept at most (hint: retry it later, or use more events partitions)",
        MAX_KEPT_BYTES >> 20
    );
    node.own = State::Failed;
    node.kept = 0;
    node.due_ms = None;
    node.error = Some(Box::new(ErrorInfo::new("too_many_waiting", told, attempt)));
}
