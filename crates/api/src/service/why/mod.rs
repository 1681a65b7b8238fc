//! `GET /v1/tasks/{id}/why`: explains the state of a task, from the store and the committed offsets of the task's
//! consumer group.

use kafleet_broker::Watermarks;
use kafleet_documents::{Finding, Reason, Why};
use kafleet_model::event::{ErrorInfo, InterruptionReason, Kind};
use kafleet_model::projection::CONFLICT;
use kafleet_model::record::state::{Category, State};
use kafleet_model::record::{HistoryEntry, TaskRecord};
use kafleet_model::retention::{NEVER_ANNOUNCED, REMOVED};
use kafleet_model::task::Position;
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;

use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::read::descendants::Inspection;
use crate::read::status::last_start;
use crate::service::context::{After, RequestContext};
use crate::state::Api;

mod continuations;
mod count;
mod fleet;
mod queue_reads;
mod queued;
mod signs;
mod unique;

use continuations::explain_unstarted;
pub(crate) use fleet::consumer_group;
use fleet::{blocking_commands, explain_taken, explain_workers, heartbeat_of};
use queue_reads::QueueReads;
pub use queue_reads::RecentQueues;
use queued::explain_queued;
pub(crate) use queued::task_of;
use signs::SignOfLife;

/// Maximum tasks of a tree that are inspected.
const MAX_INSPECTED: usize = 2_000;
/// Maximum open tasks that are listed.
const MAX_LISTED: usize = 10;
/// Projection lag in events below which it is not reported: a short lag and transaction markers are normal.
const MIN_REPORTED_LAG: i64 = 100;

/// Explains the state of a task. Everything is read now, and the progress of its partition is measured for a second.
pub(crate) async fn why(
    RequestContext { api, .. }: RequestContext,
    id: TaskId,
    After(after): After,
) -> Result<Why, ApiError> {
    explain(&api, &id, after, None).await
}

/// Variant of [`why`] that shares reads of the task's queue with other requests.
pub async fn why_soon(api: &Api, id: &TaskId, recent: &RecentQueues) -> Result<Why, ApiError> {
    explain(api, id, None, Some(recent)).await
}

async fn explain(
    api: &Api,
    id: &TaskId,
    after: Option<Position>,
    recent: Option<&RecentQueues>,
) -> Result<Why, ApiError> {
    let reads = QueueReads { api, recent };
    let task = api.reads.find(id, after).await?;
    let mut findings = match task.record.state {
        State::Queued if !task.record.is_external() => {
            let mut findings = blocking_commands(api, &task).await?;
            let is_blocked = !findings.is_empty();
            findings.extend(explain_queued(&reads, &task, is_blocked).await?);
            findings.extend(interruptions(&task.record).map(|text| Finding::new(Reason::Interrupted, text)));
            findings
        }
        State::WaitingForChildren => explain_waiting(&reads, &task).await?,
        State::Scheduled if task.record.deferral.waits_for_key => vec![unique::explain(api, &task).await?],
        State::Scheduled | State::Retrying if is_due(&task.record) && !task.record.is_external() => {
            let mut findings = holding(&reads, &task).await?;
            findings.push(explain_taken(api, &task).await);
            findings
        }
        state if state.is_terminal() => explain_ended(api, &task).await?,
        _ => vec![explain_taken(api, &task).await],
    };
    if task.record.state.is_terminal() {
        findings.extend(explain_unstarted(api, &task).await?);
    }
    findings.extend(explain_same_id(&task));
    findings.extend(explain_lag(&reads, &task).await?);
    Ok(Why { id: task.id.to_string(), state: task.record.state, findings })
}

/// Returns what holds a task whose time has come.
pub(crate) async fn holds(api: &Api, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
    holding(&QueueReads { api, recent: None }, task).await
}

async fn holding(reads: &QueueReads<'_>, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
    let mut findings = blocking_commands(reads.api, task).await?;
    findings.extend(explain_workers(reads, task).await?);
    findings.retain(|finding| finding.code != Reason::MisplacedKeys);
    Ok(findings)
}

/// Whether the time of the task's next start has come.
fn is_due(record: &TaskRecord) -> bool {
    record.times.due_ms.is_some_and(|due_ms| due_ms <= now_ms())
}

/// Explains that another task was submitted with the id of this one. A worker runs each of their records that it does not
/// know as finished, but only one result counts.
fn explain_same_id(task: &TaskView) -> Option<Finding> {
    // The history of a parent has the conflicts of its children too.
    let start = format!("{CONFLICT}: `{}`", task.id);
    let of_another = |entry: &&HistoryEntry| entry.message.as_deref().is_some_and(|text| text.starts_with(&start));
    let entry = task.record.history.entries.iter().rev().find(of_another)?;
    let message = format!(
        "another task was submitted with this id at {}: the first one counts, and the other one's result is ignored; give each \
         task an id of its own",
        time_text(entry.at_ms)
    );
    Some(Finding::new(Reason::SameId, message))
}

/// Explains a task from its own record.
fn explain_record(task: &TaskView) -> Finding {
    let record = &task.record;
    match record.own {
        State::Expected => Finding::new(
            Reason::NotPublished,
            "a child or an event refers to this task, but it has not been published; check that its producer is \
             running",
        ),
        _ if record.is_external() => {
            let message = format!("the task is run by an external system, which last reported it as {}", record.own);
            Finding::new(Reason::External, message)
        }
        State::Scheduled => Finding::new(Reason::Scheduled, scheduled(record)),
        State::Retrying if record.history.ends_with_wait(record.run) => Finding::new(Reason::Waiting, waiting(record)),
        State::Retrying => Finding::new(Reason::Retrying, retrying(record)),
        _ if record.silent => {
            let rest = "that worker sends no heartbeats: the task runs again once its partitions are reassigned";
            Finding::new(Reason::WorkerSilent, format!("{}; {rest}", running(task)))
        }
        _ => Finding::new(Reason::Running, running(task)),
    }
}

fn scheduled(record: &TaskRecord) -> String {
    let last = record.outcome.error.as_deref().map(|error| format!("; the last error was {}", error_text(Some(error))));
    format!("it is scheduled to start {}{}", due(record), last.unwrap_or_default())
}

fn retrying(record: &TaskRecord) -> String {
    let error = error_text(record.outcome.error.as_deref());
    format!("attempt {} failed: {error}; the next attempt starts {}", record.attempt, due(record))
}

fn waiting(record: &TaskRecord) -> String {
    let error = error_text(record.outcome.error.as_deref());
    let waits = record.deferral.waits;
    format!("it waits (number {waits}), which does not count as an attempt: {error}; it runs again {}", due(record))
}

fn due(record: &TaskRecord) -> String {
    match record.times.due_ms {
        None => "at an unknown time".to_owned(),
        Some(due_ms) if is_due(record) => format!("now: it has been due since {}", time_text(due_ms)),
        Some(due_ms) => format!("at {}", time_text(due_ms)),
    }
}

fn running(task: &TaskView) -> String {
    let record = &task.record;
    let worker = record.worker.as_deref().unwrap_or("an unknown worker");
    let started_ms = last_start(record).map(|entry| entry.at_ms).or(record.times.started_at_ms);
    let since = started_ms.map_or_else(String::new, |at| format!(" since {}", time_text(at)));
    let before = interruptions(record).map_or_else(String::new, |text| format!("{text}; "));
    format!("{before}attempt {} is running on `{worker}`{since}", record.attempt.max(1))
}

/// Describes the starts of the run that ended without an outcome, and the last of them.
fn interruptions(record: &TaskRecord) -> Option<String> {
    let times = match record.history.interruptions {
        0 => return None,
        1 => "interrupted once".to_owned(),
        times => format!("interrupted {times} times"),
    };
    let last = last_of(record, Kind::Interrupted).and_then(|entry| {
        let reason = InterruptionReason::of_code(entry.error_kind.as_deref()?)?;
        Some(format!(", last by {}", reason.cause(entry.worker.as_deref().unwrap_or("an unknown worker"))))
    });
    Some(times + &last.unwrap_or_default())
}

/// Newest entry of the run in the history that is an event of this kind and has not been ignored.
fn last_of(record: &TaskRecord, kind: Kind) -> Option<&HistoryEntry> {
    record.history.entries.iter().rev().find(|entry| entry.run == record.run && entry.kind == kind && !entry.ignored)
}

fn ended(state: State) -> String {
    if state == State::Cancelled { "was cancelled".to_owned() } else { state.to_string() }
}

fn error_text(error: Option<&ErrorInfo>) -> String {
    error.map_or_else(|| "no error recorded".to_owned(), |error| error.text().into_owned())
}

fn age(ms: i64) -> String {
    match ms.max(0) {
        ms if ms < 10_000 => format!("{:.1} s", ms as f64 / 1e3),
        ms if ms < 600_000 => format!("{} s", ms / 1_000),
        ms => format!("{} min", ms / 60_000),
    }
}

/// Lists the open descendants, deepest first.
async fn explain_waiting(reads: &QueueReads<'_>, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
    let (mut open, inspected) = open_descendants(reads.api, task).await?;
    open.sort_by_key(|child| std::cmp::Reverse(child.id.as_str().matches(':').count()));
    let pending = crate::read::status::status(task).tree.pending.saturating_sub(1);
    let mut findings = Vec::new();
    for child in open.iter().take(MAX_LISTED) {
        findings.push(open_child(reads, child).await?);
    }
    if let (Some(first), true) = (findings.first_mut(), pending > 1) {
        first.message += &format!(" ({pending} tasks below are open in total)");
    }
    if findings.is_empty() {
        let message = format!("{pending} tasks below it are open, but none of the first {inspected} inspected");
        findings.push(Finding::new(Reason::OpenChild, message));
    }
    Ok(findings)
}

/// Finds descendants that are open themselves. Returns the number of inspected tasks too.
async fn open_descendants(api: &Api, task: &TaskView) -> Result<(Vec<TaskView>, usize), ApiError> {
    let (mut open, mut ahead) = (Vec::new(), vec![task.id.clone()]);
    let mut inspection = Inspection::new(&api.reads, task.partition, MAX_INSPECTED);
    while let Some(parent) = ahead.pop() {
        for child in inspection.children(&parent, MAX_LISTED, |state| !state.is_terminal()).await? {
            if child.record.own.is_terminal() { ahead.push(child.id) } else { open.push(child) }
        }
    }
    Ok((open, inspection.inspected))
}

async fn open_child(reads: &QueueReads<'_>, child: &TaskView) -> Result<Finding, ApiError> {
    let now = now_ms();
    let is_queued = child.record.own == State::Queued && !child.record.is_external();
    let held = if is_queued { holding(reads, child).await? } else { Vec::new() };
    let heartbeat = heartbeat_of(reads.api, child).filter(|_| child.record.own == State::Running);
    // Its progress and its log are not read here: their silence cannot be named.
    let sign = heartbeat.and_then(|heartbeat| SignOfLife::newest(child, None, Some(&heartbeat)));
    let sign =
        sign.filter(|sign| !sign.is_silent(now)).map_or_else(String::new, |sign| format!("; {}", sign.text(now)));
    let because = summarize(child, &held) + &sign;
    let message = format!("`{}` is {}: {because}", child.id, child.record.own);
    Ok(Finding::new(Reason::OpenChild, message).about(&child.id))
}

/// Explains an ended task by its own end, or by the deepest descendant that decided it.
async fn explain_ended(api: &Api, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
    let state = task.record.state;
    if let Some(explain_lost) = explain_lost(task) {
        return Ok(vec![explain_lost]);
    }
    if task.record.own == state {
        return Ok(vec![Finding::new(Reason::Ended, own_end(task))]);
    }
    let mut inspection = Inspection::new(&api.reads, task.partition, MAX_INSPECTED);
    let deciding_descendant = inspection.deciding_descendant(&task.id, |other| other == state).await?;
    Ok(vec![match deciding_descendant {
        Some(child) => {
            let error = error_text(child.record.outcome.error.as_deref());
            let message = format!("`{}` below it {}: {error}", child.id, ended(state));
            Finding::new(Reason::FailedChild, message).about(&child.id)
        }
        None => {
            let inspected = inspection.inspected;
            let message = format!("a task below it {}, but none of the first {inspected} inspected", ended(state));
            Finding::new(Reason::FailedChild, message)
        }
    }])
}

fn own_end(task: &TaskView) -> String {
    let state = task.record.state;
    let error = task.record.outcome.error.as_deref();
    match state.category() {
        Category::Successful if task.record.is_external() => format!("it {}", ended(state)),
        Category::Successful => format!("it {} on attempt {}", ended(state), task.record.attempt.max(1)),
        _ if error.is_some_and(|error| error.kind == "cancelled") => {
            error.map_or("it was cancelled".to_owned(), |error| error.message.clone())
        }
        _ => format!("it {}: {}", ended(state), error_text(error)),
    }
}

/// Reports projection lag, because of which the response may be out of date.
async fn explain_lag(reads: &QueueReads<'_>, task: &TaskView) -> Result<Option<Finding>, ApiError> {
    let api = reads.api;
    let Watermarks { high: end, low: first } = reads.ends(&api.reads.events(task.partition)).await?;
    let projected = api.reads.checkpoint(task.partition).await?.map_or(first, |checkpoint| checkpoint.offset);
    let lag = end.saturating_sub(projected);
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
    let record = &task.record;
    let is_expired = record.own == State::Expired && record.state == State::Expired;
    let error = record.outcome.error.as_deref().filter(|_| is_expired)?;
    let noticed = record.times.ended_at_ms.map_or_else(String::new, |at| format!("; detected at {}", time_text(at)));
    let message = match error.message.as_str() {
        REMOVED => removed(record, &noticed),
        NEVER_ANNOUNCED => {
            let named = time_text(record.times.seen_ms);
            format!(
                "a child or an event referred to it at {named}, but it was never published{noticed}; check its producer"
            )
        }
        _ => return None,
    };
    Some(Finding::new(Reason::Lost, message))
}

/// Text about a task whose record Kafka's retention has deleted.
fn removed(record: &TaskRecord, noticed: &str) -> String {
    let position = record.definition.position.map_or("-".to_owned(), |position| position.to_string());
    let deleted = format!(
        "Kafka's retention deleted its record, {position} of the topic of `{}`",
        record.task_type.as_deref().unwrap_or("-")
    );
    let is_late = |entry: &&HistoryEntry| entry.ignored && entry.run == record.run && is_result(entry.kind);
    match record.history.entries.iter().find(is_late) {
        Some(late) => format!(
            "{deleted}{noticed}; `{}`, which had been disconnected, reported {} at {}, too late to count",
            late.worker.as_deref().unwrap_or("an unknown worker"),
            late.kind.name(),
            time_text(late.at_ms)
        ),
        None if record.times.started_at_ms.is_some() => {
            let worker = record.worker.as_deref().unwrap_or("an unknown worker");
            format!(
                "`{worker}`, which ran it, has stopped, and {deleted}, so that no other worker can run it{noticed}; \
                 submit it again, and raise `task_retention`"
            )
        }
        None => format!(
            "{deleted}, before a worker started it{noticed}; submit it again, and check that workers keep up or raise \
             `task_retention`"
        ),
    }
}

/// Summarizes why a descendant is open. `held`: what holds it back beside its own state, such as a pause of its type.
fn summarize(task: &TaskView, held: &[Finding]) -> String {
    if let Some(first) = held.first() {
        let before = interruptions(&task.record).map_or_else(String::new, |text| format!("{text}; "));
        return before + &first.message;
    }
    match task.record.own {
        State::Queued if !task.record.is_external() => match interruptions(&task.record) {
            Some(text) => format!("{text}; no worker has started it again"),
            None => "no worker has started it".to_owned(),
        },
        _ => explain_record(task).message,
    }
}

#[cfg(test)]
mod tests {
    use kafleet_model::trace::Sampler;
    use kafleet_store::Checkpoint;

    use super::*;
    use crate::read::mask::Masks;

    #[test]
    fn queued_descendant_is_explained_by_what_holds_it() {
        let record = TaskRecord { own: State::Queued, state: State::Queued, ..TaskRecord::expected(1, 0) };
        let id = TaskId::parse("ken:then").unwrap();
        let (checkpoint, sampler) = (Checkpoint::default(), Sampler::NEVER);
        let task =
            TaskView { id, partition: 0, checkpoint, record, superseded: false, sampler, masks: Masks::default() };
        let paused = Finding::new(Reason::Paused, "the type `mail` has been paused: the mail server is replaced");
        assert_eq!(summarize(&task, &[paused]), "the type `mail` has been paused: the mail server is replaced");
        assert_eq!(summarize(&task, &[]), "no worker has started it");
    }
}
