//! History of a task as a document.

use kafleet_documents::{History, HistoryItem};
use kafleet_model::event::Kind;
use kafleet_model::record::{HistoryEntry, TaskRecord};
use kafleet_model::units::time::time_text;

use crate::read::consistency::TaskView;

/// Kind of the events with which a worker adds continuations to an attempt that runs. In the log they are `started` events.
const CONTINUATIONS_ADDED: &str = "continuations_added";

pub fn history(task: &TaskView) -> History {
    let record = &task.record;
    let item = |(n, entry): (usize, &HistoryEntry)| HistoryItem {
        kind: if adds_continuations(record, n) { CONTINUATIONS_ADDED } else { entry.kind.name() }.to_owned(),
        ..history_item(task.partition, entry)
    };
    History {
        id: task.id.to_string(),
        events: record.history.entries.iter().enumerate().map(item).collect(),
        dropped: record.history.dropped,
        duplicates: record.history.duplicates,
    }
}

fn history_item(partition: u32, entry: &HistoryEntry) -> HistoryItem {
    HistoryItem {
        kind: entry.kind.name().to_owned(),
        at: time_text(entry.at_ms),
        run: entry.run,
        attempt: entry.attempt,
        worker: entry.worker.as_deref().map(str::to_owned),
        message: entry.message.clone(),
        error_kind: entry.error_kind.as_deref().map(str::to_owned),
        waits: entry.waits,
        started_at: entry.took_ms.map(|took| time_text(entry.at_ms.saturating_sub(took.into()))),
        by: entry.by.as_deref().map(str::to_owned),
        ignored: entry.ignored,
        position: format!("{partition}:{}", entry.offset),
    }
}

/// Newest entry of the run that starts an attempt.
pub(crate) fn last_start(record: &TaskRecord) -> Option<&HistoryEntry> {
    let entries = record.history.entries.iter().enumerate().rev();
    let is_start =
        |(_, entry): &(usize, &HistoryEntry)| entry.run == record.run && entry.kind == Kind::Started && !entry.ignored;
    entries.filter(is_start).find(|(n, _)| !adds_continuations(record, *n)).map(|(_, entry)| entry)
}

/// Returns true if an entry is a `started` that only adds the continuations of the handler: of an attempt that runs already.
/// The start that the end of the attempt states decides, because a worker that has crashed starts the attempt again.
/// The first `started` of an attempt stands for its start, also where it adds continuations: a quick attempt sends no other.
fn adds_continuations(record: &TaskRecord, at: usize) -> bool {
    let entries = &record.history.entries;
    let entry = &entries[at];
    // Of earlier runs the record does not know whether there were any.
    let may_have_any = entry.run < record.run || record.continuations.from_handler.is_some();
    if entry.kind != Kind::Started || entry.ignored || !may_have_any {
        return false;
    }
    let is_same = |other: &&HistoryEntry| (other.run, other.attempt) == (entry.run, entry.attempt) && !other.ignored;
    let mut earlier = entries[..at].iter().rev().filter(is_same);
    let before = earlier.find(|other| other.kind == Kind::Started || ends_attempt(other.kind));
    let Some(start) = before.filter(|before| before.kind == Kind::Started) else { return false };
    let end = entries[at + 1..].iter().filter(is_same).find(|other| ends_attempt(other.kind));
    match end.and_then(|end| Some((end.at_ms, end.took_ms?))) {
        Some((end_ms, took_ms)) => entry.at_ms > end_ms.saturating_sub(took_ms.into()),
        None => start.worker == entry.worker,
    }
}

const fn ends_attempt(kind: Kind) -> bool {
    matches!(kind, Kind::Succeeded | Kind::Failed | Kind::Retrying | Kind::Interrupted | Kind::Cancelled)
}
