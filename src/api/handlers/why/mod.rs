//! `GET /v1/tasks/{id}/why`: explains the state of a task, from the store and the committed offsets of the task's
//! consumer group.

use fleet::{blocking_commands, consumer_lag, explain_taken, explain_workers};
use std::time::Duration;

use axum::response::Response;

use crate::api::backends::KAFKA_DEADLINE;
use crate::api::documents::{Finding, Reason, Why};
use crate::api::http::problem::ApiError;
use crate::api::http::request::ApiRequest;
use crate::api::http::response::json_answer;
use crate::api::read::consistency::TaskView;
use crate::api::state::Api;
use crate::broker::{Broker, Committed, Partition, Watermarks};
use crate::model::event::{ErrorInfo, Kind};
use crate::model::offsets::{Completed, FULL_METADATA_BYTES, MAX_SPAN, Metadata};
use crate::model::record::state::{Category, State};
use crate::model::retention::{NEVER_ANNOUNCED, REMOVED};
use crate::model::task::id::TaskId;
use crate::model::task::{Position, Source, read_task};
use crate::publish::time_text;
use crate::runtime::now_ms;
use crate::store::Index;

mod count;
mod fleet;

use count::{Count, Counter};

/// Time over which the throughput of a partition is measured.
const SAMPLE: Duration = Duration::from_secs(1);
/// Maximum tasks of a tree that are inspected.
const MAX_INSPECTED: usize = 2_000;
/// Children read at a time.
const PAGE: usize = 200;
/// Maximum open tasks that are listed.
const MAX_LISTED: usize = 10;
/// Projection lag in events below which it is not reported: a short lag and transaction markers are normal.
const MIN_REPORTED_LAG: i64 = 100;

pub(crate) async fn why(request: ApiRequest) -> Result<Response, ApiError> {
    let api = &request.api;
    let task = api.reads.find(&request.id()?, request.after()?).await?;
    let mut findings = match task.record.state {
        State::Queued if !task.record.is_external() => {
            let mut findings = blocking_commands(api, &task).await?;
            findings.extend(explain_queued(api, &task).await?);
            findings
        }
        State::WaitingForChildren => explain_waiting(api, &task).await?,
        state if state.is_terminal() => explain_ended(api, &task).await?,
        _ => vec![explain_taken(api, &task)],
    };
    findings.extend(explain_lag(api, &task).await?);
    let why = Why { id: task.id.to_string(), state: task.record.state, findings };
    Ok(json_answer(200, &why))
}

impl Finding {
    fn new(code: Reason, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), ..Self::default() }
    }

    fn about(self, task: &TaskId) -> Self {
        Self { task: Some(task.to_string()), ..self }
    }
}

/// Explains a task from its own record.
fn explain_record(task: &TaskView) -> Finding {
    let node = &task.record;
    let due = || node.due_ms.map_or_else(|| "at an unknown time".to_owned(), |due| format!("at {}", time_text(due)));
    match node.own {
        State::Expected => Finding::new(
            Reason::NotPublished,
            "a child or an event refers to this task, but it has not been published; check that its producer is \
             running",
        ),
        _ if node.is_external() => {
            let message = format!("the task is run by an external system, which last reported it as {}", node.own);
            Finding::new(Reason::External, message)
        }
        State::Scheduled => {
            let last = node.error.as_deref().map(|error| format!("; the last error was {}", error_text(Some(error))));
            Finding::new(Reason::Scheduled, format!("it is scheduled to start {}{}", due(), last.unwrap_or_default()))
        }
        State::Retrying => {
            let error = error_text(node.error.as_deref());
            Finding::new(
                Reason::Retrying,
                format!("attempt {} failed: {error}; the next attempt starts {}", node.attempt, due()),
            )
        }
        _ if node.silent => {
            let message = format!(
                "{}; that worker sends no heartbeats: the task runs again once its partitions are reassigned",
                running(task)
            );
            Finding::new(Reason::WorkerSilent, message)
        }
        _ => Finding::new(Reason::Running, running(task)),
    }
}

fn running(task: &TaskView) -> String {
    let node = &task.record;
    let now = now_ms();
    let worker = node.worker.as_deref().unwrap_or("an unknown worker");
    let since = node.started_at_ms.map_or_else(String::new, |at| format!(" since {}", time_text(at)));
    let received = node.history.iter().map(|entry| entry.at_ms).max();
    let received = received.map_or_else(String::new, |at| format!("; its last event is {} old", age(now - at)));
    format!("attempt {} is running on `{worker}`{since}{received}", node.attempt.max(1))
}

fn ended(state: State) -> String {
    if state == State::Cancelled { "was cancelled".to_owned() } else { state.to_string() }
}

fn error_text(error: Option<&ErrorInfo>) -> String {
    error.map_or_else(|| "no error recorded".to_owned(), |error| format!("{}: {}", error.kind, error.message))
}

fn age(ms: i64) -> String {
    match ms.max(0) {
        ms if ms < 10_000 => format!("{:.1} s", ms as f64 / 1e3),
        ms if ms < 600_000 => format!("{} s", ms / 1_000),
        ms => format!("{} min", ms / 60_000),
    }
}

/// Position of a queued task relative to the committed offset.
#[derive(Debug, PartialEq, Eq)]
enum QueuePosition {
    Deleted { first: i64 },
    NeverConsumed { from: i64 },
    Consumed,
    Pending { completed: Box<Completed>, full: bool },
}

/// Compares the task's offset with the committed offsets.
fn queue_position_of(offset: i64, ends: Watermarks, committed: Option<&Committed>) -> QueuePosition {
    if offset < ends.first {
        return QueuePosition::Deleted { first: ends.first };
    }
    // A commit beyond the end belongs to an earlier topic of the same name.
    let Some(committed) = committed.filter(|committed| committed.offset <= ends.end) else {
        return QueuePosition::NeverConsumed { from: ends.first };
    };
    let completed = Metadata::decode(committed.offset, &committed.metadata)
        .map_or_else(|| Completed::starting_at(committed.offset), |metadata| metadata.completed);
    if completed.is_done(offset) {
        return QueuePosition::Consumed;
    }
    let span = completed.end() - completed.watermark();
    let full = committed.metadata.len() > FULL_METADATA_BYTES || span > MAX_SPAN;
    QueuePosition::Pending { completed: Box::new(completed), full }
}

async fn explain_queued(api: &Api, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
    if task.record.is_to_be_published() {
        let message = "a retry was requested, and a tracker will publish the record again shortly; if this \
                       persists, check that one is running";
        return Ok(vec![Finding::new(Reason::RepublishPending, message)]);
    }
    let (Some(position), Some(task_type)) = (task.record.position, task.record.task_type.clone()) else {
        return Ok(vec![explain_record(task)]);
    };
    let names = api.publisher.names();
    let partition = Partition::new(names.tasks(&task_type), position.partition);
    let ends = api.reads.broker.watermarks(&partition).await?;
    let committed = committed_offset(api, &task_type, &partition).await?;
    let queue_position = queue_position_of(position.offset, ends, committed.as_ref());
    let mut findings = match queue_position {
        QueuePosition::NeverConsumed { .. } | QueuePosition::Pending { .. } => explain_workers(api, task).await?,
        QueuePosition::Deleted { .. } | QueuePosition::Consumed => Vec::new(),
    };
    findings.extend(match queue_position {
        QueuePosition::Deleted { first } => vec![Finding::new(
            Reason::RecordGone,
            format!(
                "its record at {partition}, offset {}, has been deleted: the log starts at {first}; retention \
                 was too short for the backlog",
                position.offset
            ),
        )],
        // The finding about the missing start offset suffices.
        QueuePosition::NeverConsumed { .. } if findings.iter().any(|finding| finding.code == Reason::NoStartOffset) => {
            Vec::new()
        }
        QueuePosition::NeverConsumed { from } => {
            let ahead = count_below(api, &partition, Completed::starting_at(from), position.offset).await?;
            let before = ahead.text("task", "tasks");
            let message = format!(
                "no worker has consumed {partition} yet, with {before} ahead of this one; check that one runs \
                 with `--types {task_type}`"
            );
            vec![Finding {
                ahead: Some(ahead.tasks),
                at_most: ahead.at_most,
                ..Finding::new(Reason::NeverConsumed, message)
            }]
        }
        QueuePosition::Consumed => vec![Finding::new(
            Reason::ResultPending,
            "a worker has finished it, and its result is not visible yet; if this persists, its last event was \
             lost with the log of its partition",
        )],
        QueuePosition::Pending { completed, full } => {
            let watermark = completed.watermark();
            let ahead = count_below(api, &partition, *completed, position.offset).await?;
            let mut findings = vec![explain_queue_position(api, &task_type, &partition, ahead, watermark).await?];
            if full {
                findings.insert(0, explain_blocked(api, &task_type, &partition, watermark).await?);
            }
            findings
        }
    });
    Ok(findings)
}

async fn committed_offset(api: &Api, task_type: &str, partition: &Partition) -> Result<Option<Committed>, ApiError> {
    let group = api.publisher.names().group(task_type);
    let committed = api.reads.broker.group_offsets(&group, vec![partition.clone()]).await?;
    Ok(committed.into_iter().next().flatten())
}

async fn count_below(api: &Api, partition: &Partition, completed: Completed, to: i64) -> Result<Count, ApiError> {
    let at = partition.clone();
    let count = move |broker: &dyn Broker, deadline| Counter::new(broker, deadline).open_below(&at, &completed, to);
    Ok(api.reads.broker.call(count).await?)
}

/// Measures the throughput of the partition.
async fn explain_queue_position(
    api: &Api,
    task_type: &str,
    partition: &Partition,
    ahead: Count,
    watermark: i64,
) -> Result<Finding, ApiError> {
    let begun = tokio::time::Instant::now();
    tokio::time::sleep(SAMPLE).await;
    let moved =
        committed_offset(api, task_type, partition).await?.map_or(0, |committed| committed.offset - watermark).max(0);
    let rate = moved as f64 / begun.elapsed().as_secs_f64();
    let expected_in_ms = (rate > 0.0).then(|| (ahead.tasks as f64 / rate * 1e3) as u64);
    let when = match expected_in_ms {
        Some(ms) => format!("at {rate:.0}/s: expected to start in {}", age(ms as i64)),
        None => {
            format!("without progress for {} s; check `kafleet workers` and the log of its worker", SAMPLE.as_secs())
        }
    };
    let lag = consumer_lag(api, task_type).await?;
    let mut message = match ahead.tasks {
        0 => "it is next in its partition but has not started; it may start any moment, or all slots are in use"
            .to_owned(),
        _ => format!("{} ahead of it in {partition}, {when}", ahead.text("task is", "tasks are")),
    };
    if let Some(lag) = lag {
        message += &format!(
            "; {} unfinished in total",
            lag.text(&format!("of `{task_type}` is"), &format!("of `{task_type}` are"))
        );
    }
    let at_most = ahead.at_most || lag.is_some_and(|lag| lag.at_most);
    let (lag, finding) = (lag.map(|lag| lag.tasks), Finding::new(Reason::QueuedBehind, message));
    Ok(Finding { ahead: Some(ahead.tasks), at_most, rate: Some(rate), lag, expected_in_ms, ..finding })
}

/// Explains head-of-line blocking: the task at the watermark does not end, and the commit metadata is full.
async fn explain_blocked(
    api: &Api,
    task_type: &str,
    partition: &Partition,
    watermark: i64,
) -> Result<Finding, ApiError> {
    let record = api.reads.broker.read_at(partition, watermark).await?;
    let task_type = task_type.into();
    let holder = record.and_then(|record| {
        let position = Position { partition: partition.index, offset: watermark };
        let value = record.value.as_deref();
        let source = Source { task_type: &task_type, position, timestamp_ms: record.timestamp_ms, value };
        let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
        read_task(&source, headers).ok().map(|task| task.id)
    });
    let message = format!("the task at offset {watermark} of {partition} has not ended and blocks the tasks behind it");
    let finding = Finding::new(Reason::HeadOfLineBlocked, message);
    Ok(match holder {
        Some(id) => finding.about(&id),
        None => finding,
    })
}

/// Lists the open descendants, deepest first.
async fn explain_waiting(api: &Api, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
    let (mut open, mut ahead, mut inspected) = (Vec::new(), vec![task.id.clone()], 0);
    while let Some(parent) = ahead.pop() {
        for child in
            matching_children(api, &parent, task.partition, &mut inspected, |state| !state.is_terminal()).await?
        {
            if child.record.own.is_terminal() { ahead.push(child.id) } else { open.push(child) }
        }
    }
    open.sort_by_key(|child| std::cmp::Reverse(child.id.as_str().matches(':').count()));
    let pending = crate::api::read::status::status(task).tree.pending.saturating_sub(1);
    let mut findings: Vec<Finding> = open
        .iter()
        .take(MAX_LISTED)
        .map(|child| {
            let because = summarize_record(child);
            Finding::new(Reason::OpenChild, format!("`{}` is {}: {because}", child.id, child.record.own))
                .about(&child.id)
        })
        .collect();
    if let (Some(first), true) = (findings.first_mut(), pending > 1) {
        first.message += &format!(" ({pending} tasks below are open in total)");
    }
    if findings.is_empty() {
        let message = format!("{pending} tasks below it are open, but none of the first {inspected} inspected");
        findings.push(Finding::new(Reason::OpenChild, message));
    }
    Ok(findings)
}

/// Explains an ended task by its own end, or by the deepest descendant that decided it.
async fn explain_ended(api: &Api, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
    let state = task.record.state;
    if let Some(explain_lost) = explain_lost(task) {
        return Ok(vec![explain_lost]);
    }
    if task.record.own == state {
        let error = task.record.error.as_deref();
        let message = match state.category() {
            Category::Successful => format!("it {} on attempt {}", ended(state), task.record.attempt.max(1)),
            _ if error.is_some_and(|error| error.kind == "cancelled") => {
                format!("it was {}", error.map_or("cancelled", |error| &error.message))
            }
            _ => format!("it {}: {}", ended(state), error_text(error)),
        };
        return Ok(vec![Finding::new(Reason::Ended, message)]);
    }
    let (mut parent, mut inspected, mut culprit) = (task.id.clone(), 0, None);
    while let Some(child) =
        matching_children(api, &parent, task.partition, &mut inspected, |is| is == state).await?.into_iter().next()
    {
        parent = child.id.clone();
        let found = child.record.own == state;
        culprit = Some(child);
        if found {
            break;
        }
    }
    let message = match &culprit {
        Some(child) => {
            format!("`{}` below it {}: {}", child.id, ended(state), error_text(child.record.error.as_deref()))
        }
        None => format!("a task below it {}, but none of the first {inspected} inspected", ended(state)),
    };
    let finding = Finding::new(Reason::FailedChild, message);
    Ok(vec![match culprit {
        Some(child) => finding.about(&child.id),
        None => finding,
    }])
}

/// Reads children in matching states, within the inspection budget.
async fn matching_children(
    api: &Api,
    parent: &TaskId,
    partition: u32,
    inspected: &mut usize,
    wanted: impl Fn(State) -> bool,
) -> Result<Vec<TaskView>, ApiError> {
    let (index, mut after, mut some) = (Index::Children(parent.clone()), None, Vec::new());
    while *inspected < MAX_INSPECTED && some.len() < MAX_LISTED {
        let entries = api.reads.page(partition, &index, after.as_ref(), PAGE).await?;
        let ids: Vec<TaskId> = entries.iter().map(|entry| entry.id.clone()).collect();
        *inspected += ids.len();
        let found = api.reads.read_many(partition, &ids).await?.into_iter().flatten();
        some.extend(found.filter(|child| !child.superseded && wanted(child.record.state)));
        if entries.len() < PAGE {
            break;
        }
        after = entries.into_iter().next_back();
    }
    Ok(some)
}

/// Reports projection lag, because of which the response may be out of date.
async fn explain_lag(api: &Api, task: &TaskView) -> Result<Option<Finding>, ApiError> {
    let Watermarks { end, first } = api.reads.event_ends(task.partition, KAFKA_DEADLINE).await?;
    let folded = api.reads.checkpoint(task.partition).await?.map_or(first, |checkpoint| checkpoint.offset);
    let lag = end.saturating_sub(folded);
    let message = || {
        let partition = task.partition;
        let message = format!(
            "the last {lag} events of partition {partition} are not projected yet, so this response may be out \
             of date; check that a tracker is running"
        );
        Finding::new(Reason::ProjectionLag, message)
    };
    Ok((lag > MIN_REPORTED_LAG).then(message))
}

fn is_result(kind: Kind) -> bool {
    matches!(kind, Kind::Succeeded | Kind::Failed)
}

/// Explains a task that was lost without having run.
fn explain_lost(task: &TaskView) -> Option<Finding> {
    let node = &task.record;
    let message =
        node.error.as_deref().filter(|_| node.own == State::Expired && node.state == State::Expired)?.message.as_str();
    let noticed = node.ended_at_ms.map_or_else(String::new, |at| format!("; detected at {}", time_text(at)));
    let message = match message {
        REMOVED => {
            let (partition, name) =
                (node.position.map_or("-".to_owned(), |partition| partition.to_string()), node.task_type.as_deref());
            let name = name.unwrap_or("-");
            match node.history.iter().find(|entry| entry.ignored && entry.run == node.run && is_result(entry.kind)) {
                Some(late) => {
                    let worker = late.worker.as_deref().unwrap_or("an unknown worker");
                    let (kind, at) = (late.kind.name(), time_text(late.at_ms));
                    format!(
                        "Kafka's retention deleted its record, {partition} of the topic of `{name}`{noticed}; \
                         `{worker}`, which had been disconnected, reported {kind} at {at}, too late to count"
                    )
                }
                None => format!(
                    "Kafka's retention deleted its record, {partition} of the topic of `{name}`, before a worker \
                     started it{noticed}; submit it again, and check that workers keep up or raise `task_retention`"
                ),
            }
        }
        NEVER_ANNOUNCED => {
            let named = time_text(node.seen_ms);
            format!(
                "a child or an event referred to it at {named}, but it was never published{noticed}; check its producer"
            )
        }
        _ => return None,
    };
    Some(Finding::new(Reason::Lost, message))
}

fn summarize_record(task: &TaskView) -> String {
    match task.record.own {
        State::Queued if !task.record.is_external() => "no worker has started it".to_owned(),
        _ => explain_record(task).message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: Watermarks = Watermarks { first: 100, end: 500 };

    fn committed(offset: i64, metadata: &str) -> Committed {
        Committed { offset, metadata: metadata.to_owned() }
    }

    #[test]
    fn queue_position_follows_from_committed_offsets() {
        let never = queue_position_of(130, ENDS, None);
        assert_eq!(never, QueuePosition::NeverConsumed { from: 100 });
        assert_eq!(queue_position_of(99, ENDS, None), QueuePosition::Deleted { first: 100 });
        // Completed offsets: 103, 108, 109.
        let some = committed(100, "kf1 open 10500 2 r:AwEEAg");
        let completed =
            Metadata::decode(some.offset, &some.metadata).map(|metadata| Box::new(metadata.completed)).unwrap();
        assert_eq!(queue_position_of(120, ENDS, Some(&some)), QueuePosition::Pending { completed, full: false });
        assert_eq!(queue_position_of(108, ENDS, Some(&some)), QueuePosition::Consumed);
        assert_eq!(queue_position_of(120, ENDS, Some(&committed(121, ""))), QueuePosition::Consumed);
        assert_eq!(queue_position_of(120, ENDS, Some(&committed(501, ""))), QueuePosition::NeverConsumed { from: 100 });
        let completed = Box::new(Completed::starting_at(110));
        assert_eq!(
            queue_position_of(120, ENDS, Some(&committed(110, "?"))),
            QueuePosition::Pending { completed, full: false }
        );
    }
}
