//! Drops and redrives dead letters, each exactly once.
//!
//! The action on a dead letter and its resolution marker are written in one transaction. The transactional id is the
//! name of the dead-letter topic, so opening the producer aborts unfinished transactions of all API instances. The
//! markers are then read to the end of the topic, and only unresolved letters are processed. After an unknown outcome
//! the request looks for its own markers in the same way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Broker, BrokerError, Partition, ProducerRecord, TransactionalProducer};
use kafleet_fleet::dead_letters::headers::has_moved_on;
use kafleet_fleet::dead_letters::{
    DeadLetterId, DeadLetterIndex, DeadLetterRecord, Resolution, ResolvedBy, resolution_headers,
};
use kafleet_model::event::{Event, Payload};
use kafleet_model::record::TaskRecord;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::{Backoff, now_ms};
use rustc_hash::FxHashSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::read_letter;
use super::redriven_record::{ParamsChange, changed_letter, embedded_record};
use crate::http::problem::{ApiError, Code};
use crate::read::consistency::TaskView;
use crate::service::retry::{NewRuns, check_again, check_runs};
use crate::state::Api;

/// Deadline of one chunk of dead letters, including the wait for other requests.
const DEADLINE: Duration = Duration::from_secs(30);
/// Deadline of one transaction; opening the producer has its own deadline.
const SEND_DEADLINE: Duration = Duration::from_secs(10);
const CALL_DEADLINE: Duration = Duration::from_secs(50);
/// Maximum dead letters per transaction, and the size in bytes from which no more are added.
const MAX_CHUNK: usize = 50;
const MAX_CHUNK_BYTES: usize = 8 << 20;
/// Backoff after being fenced by another API instance.
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);
const REPEAT: &str = "it is safe to repeat the request: a dead letter is resolved only once";

/// Parameters of a resolution request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub resolution: Resolution,
    /// Identifies the markers of this request.
    pub number: u128,
    pub change: Option<ParamsChange>,
    pub by: Option<Arc<str>>,
    pub reason: Option<String>,
    /// Bulk action that the request is part of, which the audit log contains instead.
    pub bulk: Option<TaskId>,
}

impl Request {
    /// Request of its own.
    pub(crate) fn new(resolution: Resolution, by: Option<Arc<str>>) -> Self {
        Self { resolution, number: uuid::Uuid::now_v7().as_u128(), change: None, by, reason: None, bulk: None }
    }
}

/// Records for one dead letter, written atomically.
struct PreparedResolution {
    /// Index into the requested ids.
    n: usize,
    /// Partition and offset of the dead letter.
    partition: Partition,
    offset: i64,
    /// Records to write; the marker comes last.
    records: Vec<OwnedRecord>,
}

/// Owned producer record.
struct OwnedRecord {
    topic: String,
    partition: Option<i32>,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Vec<u8>)>,
}

/// Resolves dead letters of one type. Returns one result per id, in order.
pub(crate) async fn resolve_all(
    api: &Api,
    ids: Vec<DeadLetterId>,
    request: &Request,
    runs: &mut NewRuns,
) -> Vec<Result<(), ApiError>> {
    let (mut outcomes, mut chunk_size) = (Vec::with_capacity(ids.len()), MAX_CHUNK);
    while let rest @ [_, ..] = &ids[outcomes.len()..] {
        let some = &rest[..rest.len().min(chunk_size)];
        match resolve_chunk(api, some, request, runs).await {
            Ok(results) => outcomes.extend(results),
            // One dead letter exceeds the limit: continue with one per transaction.
            Err(error) if error.is(Code::TooLarge) && some.len() > 1 => chunk_size = 1,
            Err(error) => outcomes.extend(some.iter().map(|_| Err(error.clone()))),
        }
        // Each of the others would fail in the same way, after its own deadline.
        if let Some(last) = outcomes.last().filter(|last| is_unavailable(last)).cloned() {
            outcomes.resize(ids.len(), last);
        }
    }
    outcomes
}

/// Whether Kafka or the store has not answered, or the store does not cover the task's partition.
fn is_unavailable(outcome: &Result<(), ApiError>) -> bool {
    let codes = [Code::KafkaUnavailable, Code::StoreUnavailable, Code::NotVisibleYet];
    outcome.as_ref().is_err_and(|error| codes.iter().any(|code| error.is(*code)))
}

/// Resolves as many leading dead letters as fit into one transaction. Retries after being fenced and after
/// unknown outcomes.
async fn resolve_chunk(
    api: &Api,
    ids: &[DeadLetterId],
    request: &Request,
    runs: &mut NewRuns,
) -> Result<Vec<Result<(), ApiError>>, ApiError> {
    let end = Instant::now() + DEADLINE;
    let late = |_| {
        ApiError::new(Code::Overloaded, "other dead-letter requests are in progress; nothing was done").hint("retry")
    };
    let _turn = timeout_at(end, api.dead_letter_lock.lock()).await.map_err(late)?;
    let (mut backoff, mut in_doubt) = (Backoff::new(MIN_BACKOFF, MAX_BACKOFF), false);
    loop {
        let (resolutions, mut outcomes) = prepare(api, ids, request, runs).await;
        let Some(first) = resolutions.first() else { return Ok(outcomes) };
        let (name, dead_letters, input) = (first.partition.topic.clone(), api.dead_letters.clone(), request.clone());
        let send = move |broker: &dyn Broker, _| {
            Ok::<_, BrokerError>(send(broker, &name, &dead_letters, &resolutions, &input))
        };
        let sent = api.reads.broker.with_deadline(CALL_DEADLINE).call(send).await;
        let error = match sent.map_err(|error| from_timeout(error.into()))? {
            Ok(already) => {
                for (n, resolution) in already {
                    outcomes[n] = Err(already_resolved(&ids[n], resolution));
                }
                return Ok(outcomes);
            }
            Err(error) => error,
        };
        // Full jitter, so that two API instances do not keep fencing each other.
        let pause = backoff.next_wait().mul_f64(fastrand::f64());
        in_doubt |= matches!(error, BrokerError::InDoubt(_) | BrokerError::Fatal(_));
        let again = error.is_retryable() || matches!(error, BrokerError::Fenced(_));
        if !again || Instant::now() + pause >= end {
            let error = if in_doubt { ApiError::unacknowledged(&error.to_string()) } else { error.into() };
            return Err(error.hint(REPEAT));
        }
        tracing::info!(%error, "retrying dead-letter transaction");
        sleep(pause).await;
    }
}

/// Tasks that a transaction redrives, and the runs that its request starts.
struct RedrivenTasks<'a> {
    tasks: FxHashSet<TaskId>,
    runs: &'a mut NewRuns,
}

/// Prepares the records per dead letter, or the error. Large letters end the chunk early, and so does a failure of Kafka
/// or the store.
async fn prepare(
    api: &Api,
    ids: &[DeadLetterId],
    request: &Request,
    runs: &mut NewRuns,
) -> (Vec<PreparedResolution>, Vec<Result<(), ApiError>>) {
    let (mut resolutions, mut outcomes) = (Vec::new(), Vec::new());
    let (mut redriven, mut bytes) = (RedrivenTasks { tasks: FxHashSet::default(), runs }, 0);
    for (n, id) in ids.iter().enumerate() {
        if bytes >= MAX_CHUNK_BYTES {
            break;
        }
        outcomes.push(match prepare_one(api, n, id, request, &mut redriven).await {
            Ok(Some(resolution)) => {
                bytes += resolution.records.iter().map(OwnedRecord::bytes).sum::<usize>();
                resolutions.push(resolution);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        });
        if outcomes.last().is_some_and(is_unavailable) {
            break;
        }
    }
    (resolutions, outcomes)
}

/// Prepares one dead letter. `None`: an earlier attempt of this request has resolved it.
async fn prepare_one(
    api: &Api,
    n: usize,
    id: &DeadLetterId,
    request: &Request,
    redriven: &mut RedrivenTasks<'_>,
) -> Result<Option<PreparedResolution>, ApiError> {
    let (letter, _) = read_letter(api, id).await?;
    let partition = Partition::new(api.topology.names.dead(&id.task_type), id.partition);
    if let Some(resolved) = api.dead_letters.resolved(&partition, id.offset) {
        return check_resolved(id, &resolved, request);
    }
    let first = match request.resolution {
        Resolution::Dropped => Ok(vec![drop_event(api, &letter, request).await?]),
        Resolution::Redriven => redrive(api, &letter, request, redriven).await,
    };
    let first = match first {
        // The task may have moved on because of a redrive whose marker has not been read yet.
        Err(error) if error.is(Code::DeadLetterSuperseded) || error.is(Code::NotFinished) => {
            read_markers(api, &partition).await?;
            return match api.dead_letters.resolved(&partition, id.offset) {
                Some(resolved) => check_resolved(id, &resolved, request),
                None => Err(error),
            };
        }
        first => first?,
    };
    let marker = marker(api, &letter, request);
    let records = first.into_iter().chain([marker]).collect();
    Ok(Some(PreparedResolution { n, partition, offset: id.offset, records }))
}

/// Reads the markers of a partition to its end.
async fn read_markers(api: &Api, partition: &Partition) -> Result<(), ApiError> {
    let (dead_letters, at) = (api.dead_letters.clone(), partition.clone());
    let broker = api.reads.broker.with_deadline(SEND_DEADLINE);
    Ok(broker.call(move |broker, _| dead_letters.read_all(broker, &at)).await?)
}

/// Returns an event for the history of the task, or for the audit alone if the task has no record.
async fn drop_event(api: &Api, letter: &DeadLetterRecord, request: &Request) -> Result<OwnedRecord, ApiError> {
    let task = match &letter.task {
        Some((id, _)) => api.reads.read(id).await?.map(|view| (id, view)),
        None => None,
    };
    let Some((id, view)) = task else { return operation(api, "drop", letter, request) };
    let mut event = Event::new(Payload::DeadDropped, id.clone(), view.record.run, now_ms());
    event.message = Some(message(format!("the dead letter {} was dropped", letter.id), request));
    event.by = request.by.clone();
    event_record(api, &event)
}

/// Message of the history, with the reason.
fn message(text: String, request: &Request) -> String {
    match &request.reason {
        Some(reason) => format!("{text}: {reason}"),
        None => text,
    }
}

/// Returns an audit event about a dead letter.
fn operation(api: &Api, action: &str, letter: &DeadLetterRecord, request: &Request) -> Result<OwnedRecord, ApiError> {
    let event = Event::operation(action, &letter.id.to_string(), now_ms());
    event_record(api, &Event { by: request.by.clone(), message: request.reason.clone(), ..event })
}

/// Starts a new run of the dead letter's task. If there is no such task, publishes the original record again. Both are
/// audited as a request about the dead letter, because the audit ignores retries with a given run; those of a bulk action
/// are not.
async fn redrive(
    api: &Api,
    letter: &DeadLetterRecord,
    request: &Request,
    redriven: &mut RedrivenTasks<'_>,
) -> Result<Vec<OwnedRecord>, ApiError> {
    let letter = &*changed_letter(api, letter, request.change.as_ref())?;
    let task = match &letter.task {
        Some((id, run)) => api.reads.find_optional(id).await?.map(|view| (view, *run)),
        None => None,
    };
    let mut records = match &request.bulk {
        Some(_) => Vec::new(),
        None => vec![operation(api, "redrive", letter, request)?],
    };
    records.push(match task {
        Some((task, run)) => new_run(api, letter, (&task, run), request, redriven).await?,
        None => original_record(api, letter),
    });
    Ok(records)
}

/// Returns the event that starts a new run of a task.
async fn new_run(
    api: &Api,
    letter: &DeadLetterRecord,
    (task, run): (&TaskView, u32),
    request: &Request,
    redriven: &mut RedrivenTasks<'_>,
) -> Result<OwnedRecord, ApiError> {
    check_run(&task.id, &task.record, run)?;
    let highest = check_runs(api, task).await?;
    if !redriven.tasks.insert(task.id.clone()) {
        return Err(another_letter(&task.id));
    }
    let record = embedded_record(letter).map(Box::new);
    let new_run = Some(redriven.runs.above(&task.id, highest));
    let payload = Payload::RetryRequested { only_failed: false, new_run, record };
    let mut event = Event::new(payload, task.id.clone(), run, now_ms());
    let how = if request.change.is_some() { " with changed params" } else { "" };
    event.message = Some(message(format!("redriven from the dead letter {}{how}", letter.id), request));
    event.by = request.by.clone();
    if let Some(bulk) = &request.bulk {
        event.mark_bulk(bulk.as_str());
    }
    event_record(api, &event)
}

/// Error for a dead letter of a task of which the same request redrives another one.
pub(crate) fn another_letter(task: &TaskId) -> ApiError {
    let reason = format!("another dead letter of `{task}` is redriven by the same request");
    ApiError::new(Code::DeadLetterSuperseded, reason)
}

/// Checks that a task is still at the end of the dead letter's run, and can start another one.
pub(crate) fn check_run(id: &TaskId, record: &TaskRecord, run: u32) -> Result<(), ApiError> {
    if has_moved_on(record, run) {
        let reason = format!("`{id}` is {} in run {}, but the dead letter is of run {run}", record.state, record.run);
        return Err(ApiError::new(Code::DeadLetterSuperseded, reason)
            .hint(format!("to run the task again anyway: POST /v1/tasks/{id}/retry")));
    }
    if record.run < run {
        let reason = format!("`{id}` is in run {}; the end of run {run} is not visible yet", record.run);
        return Err(ApiError::new(Code::NotFinished, reason).hint("retry in a moment"));
    }
    check_again(id, record)
}

/// Returns the original record, addressed to its task topic.
fn original_record(api: &Api, letter: &DeadLetterRecord) -> OwnedRecord {
    let original = &letter.original;
    let headers = original.headers.iter().map(|(name, value)| (name.clone(), value.clone().unwrap_or_default()));
    OwnedRecord {
        topic: api.topology.names.tasks(&letter.id.task_type),
        partition: None,
        key: original.key.clone(),
        value: original.value.clone(),
        headers: headers.collect(),
    }
}

fn marker(api: &Api, letter: &DeadLetterRecord, request: &Request) -> OwnedRecord {
    let headers = resolution_headers(letter, request.resolution, request.number, now_ms());
    OwnedRecord {
        topic: api.topology.names.dead(&letter.id.task_type),
        partition: Some(letter.id.partition),
        key: None,
        value: None,
        headers: headers.map(|(name, value)| (name.to_owned(), value.into_bytes())).to_vec(),
    }
}

fn event_record(api: &Api, event: &Event) -> Result<OwnedRecord, ApiError> {
    let mut value = Vec::with_capacity(256);
    event.encode(&mut value).map_err(BrokerError::from)?;
    Ok(OwnedRecord {
        topic: api.topology.names.events(),
        partition: i32::try_from(api.topology.partition_of_key(event.key())).ok(),
        key: Some(event.key().as_bytes().to_vec()),
        value: Some(value),
        headers: Vec::new(),
    })
}

/// Writes the records of all unresolved dead letters. Returns the letters that other requests have resolved.
fn send(
    broker: &dyn Broker,
    name: &str,
    dead_letters: &DeadLetterIndex,
    resolutions: &[PreparedResolution],
    request: &Request,
) -> Result<Vec<(usize, Resolution)>, BrokerError> {
    let mut producer = broker.transactional_producer(name)?;
    let partitions: BTreeSet<&Partition> = resolutions.iter().map(|resolution| &resolution.partition).collect();
    for partition in partitions {
        dead_letters.read_all(broker, partition)?;
    }
    let (mut already, mut open) = (Vec::new(), Vec::new());
    for resolution in resolutions {
        match dead_letters.resolved(&resolution.partition, resolution.offset) {
            None => open.push(resolution),
            Some(resolved) if is_own(&resolved, request) => {}
            Some(resolved) => already.push((resolution.n, resolved.resolution)),
        }
    }
    send_records(&mut *producer, open.iter().flat_map(|resolution| &resolution.records).collect())?;
    for resolution in open {
        dead_letters.resolve(&resolution.partition, resolution.offset, request.resolution, request.number);
    }
    Ok(already)
}

fn send_records(producer: &mut dyn TransactionalProducer, records: Vec<&OwnedRecord>) -> Result<(), BrokerError> {
    let headers: Vec<Vec<(&str, &[u8])>> = records.iter().map(|record| record.headers()).collect();
    let records: Vec<ProducerRecord<'_>> =
        records.iter().zip(&headers).map(|(record, headers)| record.outgoing(headers)).collect();
    if records.is_empty() { Ok(()) } else { producer.send_all(&records, SEND_DEADLINE).map(drop) }
}

impl OwnedRecord {
    fn bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.value.as_ref().map_or(0, Vec::len) + headers
    }

    fn headers(&self) -> Vec<(&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
    }

    fn outgoing<'a>(&'a self, headers: &'a [(&'a str, &'a [u8])]) -> ProducerRecord<'a> {
        let (key, value) = (self.key.as_deref(), self.value.as_deref());
        ProducerRecord { topic: &self.topic, partition: self.partition, key, value, headers }
    }
}

/// Converts a timeout: the transaction may still commit in the background.
fn from_timeout(error: ApiError) -> ApiError {
    let error =
        if error.is(Code::KafkaUnavailable) { ApiError::unacknowledged(&error.document().detail) } else { error };
    error.hint(REPEAT)
}

/// Returns `None` if this request resolved the letter, and an error if another one did.
fn check_resolved(
    id: &DeadLetterId,
    resolved: &ResolvedBy,
    request: &Request,
) -> Result<Option<PreparedResolution>, ApiError> {
    if is_own(resolved, request) { Ok(None) } else { Err(already_resolved(id, resolved.resolution)) }
}

fn is_own(resolved: &ResolvedBy, request: &Request) -> bool {
    resolved.request == Some(request.number)
}

fn already_resolved(id: &DeadLetterId, resolution: Resolution) -> ApiError {
    let code = match resolution {
        Resolution::Dropped => Code::AlreadyDropped,
        Resolution::Redriven => Code::AlreadyRedriven,
    };
    ApiError::new(code, format!("the dead letter `{id}` has already been {}", resolution.name()))
}
