//! Explanation of a queued task by its position relative to the committed offset of its partition.

use kafleet_broker::{CommittedOffset, OpenTransaction, Partition, Record, Watermarks};
use kafleet_documents::{Finding, FlowDocument, FlowVerdict, Reason};
use kafleet_model::offsets::{CompletedOffsets, MAX_SPAN, Metadata};
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{Position, RecordSource, read_task};
use kafleet_model::units::time::time_text;

use super::age;
use super::count::Count;
use super::fleet::explain_workers;
use super::queue_reads::{Progress, QueueReads};
use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::service::types::flow_of;

/// Position of a queued task relative to the offsets of its partition.
#[derive(Debug, PartialEq, Eq)]
enum QueuePosition {
    /// Retention has removed the record; the log starts at `first`.
    Deleted { first: i64 },
    /// Nothing has been committed for this partition, whose log starts at `from`.
    NeverConsumed { from: i64 },
    /// A worker has completed the task.
    Consumed,
    /// The task is not completed. `full`: the map of completed offsets has reached its limit, so the worker starts no
    /// further tasks of the partition.
    Pending { completed: Box<CompletedOffsets>, full: bool },
}

/// Compares the task's offset with the committed offsets.
fn queue_position_of(offset: i64, ends: Watermarks, committed: Option<&CommittedOffset>) -> QueuePosition {
    if offset < ends.low {
        return QueuePosition::Deleted { first: ends.low };
    }
    // A commit beyond the end belongs to an earlier topic of the same name.
    let Some(committed) = committed.filter(|committed| committed.offset <= ends.high) else {
        return QueuePosition::NeverConsumed { from: ends.low };
    };
    let completed = Metadata::decode(committed.offset, &committed.metadata)
        .map_or_else(|| CompletedOffsets::starting_at(committed.offset), |metadata| metadata.completed);
    if completed.is_done(offset) {
        return QueuePosition::Consumed;
    }
    let span = completed.end() - completed.watermark();
    let full = Metadata::is_nearly_full(&committed.metadata) || span > MAX_SPAN;
    QueuePosition::Pending { completed: Box::new(completed), full }
}

/// Explains the queue position of a task; `is_blocked`: a pause or a kill switch already explains the wait.
pub(super) async fn explain_queued(
    reads: &QueueReads<'_>,
    task: &TaskView,
    is_blocked: bool,
) -> Result<Vec<Finding>, ApiError> {
    if task.record.is_to_be_published() {
        let message = "a retry was requested, and a tracker will publish the record again shortly; if this \
                       persists, check that one is running";
        return Ok(vec![Finding::new(Reason::RepublishPending, message)]);
    }
    let (Some(position), Some(task_type)) = (task.record.definition.position, task.record.task_type.clone()) else {
        let message = "an event has announced it without the position of its record, and no worker has taken it; check \
                       that its producer has published the record";
        return Ok(vec![Finding::new(Reason::NotPublished, message)]);
    };
    let partition = Partition::new(reads.api.topology.names.tasks(&task_type), position.partition);
    let offsets = reads.offsets(&task_type, &partition).await?;
    let queue_position = queue_position_of(position.offset, offsets.ends, offsets.committed.as_ref());
    let transaction = match queue_position {
        QueuePosition::NeverConsumed { .. } | QueuePosition::Pending { .. } => {
            explain_transaction(reads, &partition, position.offset).await?
        }
        QueuePosition::Deleted { .. } | QueuePosition::Consumed => None,
    };
    let is_blocked = is_blocked || transaction.is_some();
    let mut findings = match queue_position {
        QueuePosition::NeverConsumed { .. } | QueuePosition::Pending { .. } => explain_workers(reads, task).await?,
        QueuePosition::Deleted { .. } | QueuePosition::Consumed => Vec::new(),
    };
    findings.extend(match queue_position {
        QueuePosition::Deleted { first } => vec![explain_deleted(&partition, first, position.offset)],
        // The worker refuses the partition, which the finding about its start offset reports.
        QueuePosition::NeverConsumed { .. } if findings.iter().any(|finding| finding.code == Reason::NoStartOffset) => {
            Vec::new()
        }
        QueuePosition::NeverConsumed { from } => {
            vec![explain_never_consumed(reads, &task_type, &partition, from, position.offset).await?]
        }
        QueuePosition::Consumed => vec![Finding::new(
            Reason::ResultPending,
            "a worker has finished it, and its result is not visible yet; if this persists, the event with its result \
             was lost: cancel the task, then retry it",
        )],
        QueuePosition::Pending { completed, full } => {
            let watermark = completed.watermark();
            let ahead = reads.count_below(&partition, &completed, position.offset).await?;
            let is_explained = is_blocked || !findings.is_empty();
            let progress = reads.progress(&task_type, &partition, &offsets).await?;
            let queue = explain_queue_position(reads, &task_type, &partition, ahead, progress, is_explained).await?;
            let blocked =
                if full { Some(explain_blocked(reads, &task_type, &partition, watermark).await?) } else { None };
            blocked.into_iter().chain([queue]).collect()
        }
    });
    Ok(transaction.into_iter().chain(findings).collect())
}

/// Explains that an open transaction before the task hides it from its worker.
async fn explain_transaction(
    reads: &QueueReads<'_>,
    partition: &Partition,
    offset: i64,
) -> Result<Option<Finding>, ApiError> {
    let transaction = reads.open_transaction(partition).await?;
    let before = transaction.filter(|transaction| transaction.offset <= offset);
    Ok(before.map(|OpenTransaction { offset, since_ms, .. }| {
        let message = format!(
            "an open transaction of a producer holds back {partition} since {}: no worker sees anything from offset {offset} \
             on until it ends; find its producer with Kafka's `kafka-transactions.sh`; when that is gone, Kafka aborts the \
             transaction after its `transaction.timeout.ms`",
            time_text(since_ms)
        );
        Finding::new(Reason::OpenTransaction, message)
    }))
}

fn explain_deleted(partition: &Partition, first: i64, offset: i64) -> Finding {
    let message = format!(
        "its record at {partition}, offset {offset}, has been deleted: the log starts at {first}; a worker that has \
         fetched it still runs it, otherwise it expires; raise `task_retention` or add workers"
    );
    Finding::new(Reason::RecordGone, message)
}

async fn explain_never_consumed(
    reads: &QueueReads<'_>,
    task_type: &str,
    partition: &Partition,
    from: i64,
    offset: i64,
) -> Result<Finding, ApiError> {
    let ahead = reads.count_below(partition, &CompletedOffsets::starting_at(from), offset).await?;
    let message = format!(
        "no worker has consumed {partition} yet, with {} ahead of this one; check that one runs with `--types \
         {task_type}`",
        ahead.text("task", "tasks")
    );
    let finding = Finding::new(Reason::NeverConsumed, message);
    Ok(Finding { ahead: Some(ahead.tasks), at_most: ahead.at_most, ..finding })
}

/// Explains that a task waits for those ahead of it, and estimates its start from the progress of the committed offset.
/// `is_explained`: another finding already names the reason.
async fn explain_queue_position(
    reads: &QueueReads<'_>,
    task_type: &str,
    partition: &Partition,
    ahead: Count,
    progress: Option<Progress>,
    is_explained: bool,
) -> Result<Finding, ApiError> {
    let rate = progress.map(Progress::rate);
    let flow = flow_of(reads.api, task_type).await;
    let lag = reads.lag(task_type).await?;
    let expected_in_ms = match rate.filter(|rate| *rate > 0.0) {
        Some(rate) => Some((ahead.tasks as f64 / rate * 1e3) as u64),
        None if is_explained => None,
        None => expected_by_flow(reads, task_type, ahead, flow.as_ref()).await?,
    };
    let mut message = match ahead.tasks {
        0 if is_explained => "it is next in its partition".to_owned(),
        0 => "it is next in its partition but has not started; it may start any moment, or all slots are in use"
            .to_owned(),
        _ => {
            let when = progress.map(|progress| progress_text(progress, expected_in_ms, is_explained));
            let when = when.map_or_else(String::new, |when| format!(", {when}"));
            format!("{} ahead of it in {partition}{when}", ahead.text("task is", "tasks are"))
        }
    };
    if let Some(lag) = lag {
        message += &format!(
            "; {} unfinished in total",
            lag.text(&format!("of `{task_type}` is"), &format!("of `{task_type}` are"))
        );
    }
    let is_known = |flow: &&FlowDocument| !matches!(flow.verdict, FlowVerdict::Unknown | FlowVerdict::KeepingUp);
    message += &flow.as_ref().filter(is_known).map_or_else(String::new, |flow| format!("; {}", flow.text()));
    let at_most = ahead.at_most || lag.is_some_and(|lag| lag.at_most);
    let (lag, finding) = (lag.map(|lag| lag.tasks), Finding::new(Reason::QueuedBehind, message));
    Ok(Finding { ahead: Some(ahead.tasks), at_most, rate, lag, expected_in_ms, ..finding })
}

/// Estimates the start of a task by the rate of its type in the last minutes, of which its partition has an equal share. Many
/// types do not end a task in each second.
async fn expected_by_flow(
    reads: &QueueReads<'_>,
    task_type: &str,
    ahead: Count,
    flow: Option<&FlowDocument>,
) -> Result<Option<u64>, ApiError> {
    let Some(per_min) = flow.map(|flow| flow.out_per_min).filter(|rate| *rate > 0.0) else { return Ok(None) };
    let partitions = f64::from(reads.api.types.partitions_of(task_type).await?.max(1));
    Ok(Some((ahead.tasks as f64 * partitions / per_min * 60_000.0) as u64))
}

fn progress_text(progress: Progress, expected_in_ms: Option<u64>, is_explained: bool) -> String {
    match expected_in_ms {
        Some(ms) if progress.moved == 0 => {
            format!("expected to start in about {}, at the rate of its type in the last minutes", age(ms as i64))
        }
        Some(ms) => format!("at {:.0}/s: expected to start in {}", progress.rate(), age(ms as i64)),
        None if is_explained => "without progress at present".to_owned(),
        None => {
            let seconds = progress.within.as_secs().max(1);
            format!("without progress in the last {seconds} s; check `kafleet workers` and the log of its worker")
        }
    }
}

/// Explains head-of-line blocking: the task at the watermark does not end, and the commit metadata is full.
async fn explain_blocked(
    reads: &QueueReads<'_>,
    task_type: &str,
    partition: &Partition,
    watermark: i64,
) -> Result<Finding, ApiError> {
    let record = reads.api.reads.broker.read_at(partition, watermark).await?;
    let position = Position { partition: partition.index, offset: watermark };
    let holder = record.and_then(|record| task_of(&record, task_type, position));
    let message = format!("the task at offset {watermark} of {partition} has not ended and blocks the tasks behind it");
    let finding = Finding::new(Reason::HeadOfLineBlocked, message);
    Ok(match holder {
        Some(id) => finding.about(&id),
        None => finding,
    })
}

/// Id of the task of a record.
pub(crate) fn task_of(record: &Record, task_type: &str, position: Position) -> Option<TaskId> {
    let (task_type, value) = (task_type.into(), record.value.as_deref());
    let source = RecordSource { task_type: &task_type, position, timestamp_ms: record.timestamp_ms, value };
    let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
    read_task(&source, headers).ok().map(|task| task.id)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ENDS: Watermarks = Watermarks { low: 100, high: 500 };

    fn committed(offset: i64, metadata: &str) -> CommittedOffset {
        CommittedOffset { offset, metadata: metadata.to_owned() }
    }

    #[test]
    fn start_is_estimated_by_the_type_where_nothing_has_moved_in_a_second() {
        let progress = |moved| Progress { moved, within: Duration::from_secs(1) };
        assert_eq!(progress_text(progress(3), Some(21_000), false), "at 3/s: expected to start in 21 s");
        assert_eq!(
            progress_text(progress(0), Some(22_000), false),
            "expected to start in about 22 s, at the rate of its type in the last minutes"
        );
        assert!(progress_text(progress(0), None, false).starts_with("without progress in the last 1 s"));
    }

    #[test]
    fn queue_position_follows_from_committed_offsets() {
        let never = queue_position_of(130, ENDS, None);
        assert_eq!(never, QueuePosition::NeverConsumed { from: 100 });
        assert_eq!(queue_position_of(99, ENDS, None), QueuePosition::Deleted { first: 100 });
        // Completed offsets: 103, 108, 109.
        for metadata in ["kf1 open 10500 2 r:AwEEAg", "kf2 open 2 300 r:AAEDAQ r:AwEEAg"] {
            let some = committed(100, metadata);
            let completed =
                Metadata::decode(some.offset, &some.metadata).map(|metadata| Box::new(metadata.completed)).unwrap();
            assert_eq!(queue_position_of(120, ENDS, Some(&some)), QueuePosition::Pending { completed, full: false });
            assert_eq!(queue_position_of(108, ENDS, Some(&some)), QueuePosition::Consumed, "{metadata}");
        }
        assert_eq!(queue_position_of(120, ENDS, Some(&committed(121, ""))), QueuePosition::Consumed);
        assert_eq!(queue_position_of(120, ENDS, Some(&committed(501, ""))), QueuePosition::NeverConsumed { from: 100 });
        let completed = Box::new(CompletedOffsets::starting_at(110));
        assert_eq!(
            queue_position_of(120, ENDS, Some(&committed(110, "?"))),
            QueuePosition::Pending { completed, full: false }
        );
    }
}
