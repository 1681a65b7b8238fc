//! Time since which a task is in its state.

use kafleet_model::event::Kind;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::state::State;

use super::history::last_start;

/// Returns the time since which an open task is in its state, epoch milliseconds: of a task that runs the start of its attempt.
/// `None` for ended tasks.
pub(crate) fn state_since(record: &TaskRecord) -> Option<i64> {
    let times = &record.times;
    let newest = |kinds: &[Kind]| newest_of(record, kinds);
    match record.state {
        State::Running | State::Warning => {
            last_start(record).map(|entry| entry.at_ms).or(newest(&[Kind::Reported])).or(times.started_at_ms)
        }
        State::Queued => {
            let again = newest(&[Kind::Released, Kind::Interrupted, Kind::RetryRequested]);
            again.max(times.ready_ms).or(newest(&[Kind::Reported])).or(times.created_at_ms)
        }
        State::Retrying => newest(&[Kind::Retrying]),
        State::Cancelling => newest(&[Kind::CancelRequested]),
        State::WaitingForChildren => newest(&[Kind::Succeeded, Kind::Failed, Kind::Cancelled, Kind::Expired])
            .or(newest(&[Kind::Reported]))
            .or(times.started_at_ms),
        State::Scheduled | State::Expected => times.created_at_ms.or(Some(times.seen_ms)),
        State::Succeeded | State::Cancelled | State::Expired | State::Failed => None,
    }
}

/// Time of the newest entry of these kinds in the run's history that had an effect.
fn newest_of(record: &TaskRecord, kinds: &[Kind]) -> Option<i64> {
    let mut entries = record.history.entries.iter().rev();
    let is_one = |kind: Kind, run: u32| kinds.contains(&kind) && (run == record.run || kind == Kind::RetryRequested);
    entries.find(|entry| is_one(entry.kind, entry.run) && !entry.ignored).map(|entry| entry.at_ms)
}
