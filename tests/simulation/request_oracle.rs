//! Requests from many clients: batches, cancels, retries, changes, redrives. Every response is recorded, and compared
//! with the final state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::http::Method;
use kafleet::broker::Partition;
use kafleet::control::{Cancel, ControlKey, ControlState};
use kafleet::model::event::{Event, Kind, Payload};
use kafleet::model::task::id::TaskId;
use kafleet::tracker::project::projection::LoggedEvent;
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::requests::Client;
use crate::scenario::FaultMode;
use crate::step::{ProcessId, Step, TaskRequest};
use crate::task_types::task_type;
use crate::verdict::{Records, logged};

const BATCHES: &str = "/v1/batches";
/// Pause between two requests of a client that repeats them.
const RETRY_INTERVAL: Duration = Duration::from_millis(700);
const CALLS: usize = 200;
/// Time within which every healthy worker has read a cancel, and attempts that it had already begun have started.
const HEARD_MS: i64 = 1_000;
/// Maximum time after the end of all tasks until no cancel is on the control topic.
pub const MAX_WITHDRAWAL_MS: u64 = 60_000;

/// Outcomes of a task over all batches that contain it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Item {
    accepted: u32,
    refused: u32,
    unknown: u32,
}

/// All responses.
#[derive(Default)]
pub struct Answers {
    items: BTreeMap<String, Item>,
    /// Accepted cancels: the task, and the reported position of the request.
    cancels: Vec<(String, String)>,
    /// Accepted retries: the task, its new run, and whether only failed tasks are retried.
    retries: Vec<(String, u64, bool)>,
    /// Accepted changes: the task and its new name.
    names: Vec<(String, String)>,
    /// Accepted redrives, by dead letter.
    redrives: BTreeMap<String, u32>,
}

impl Client<'_> {
    pub async fn batch(&self, batch: usize, atomic: bool, repeat: bool) {
        let tasks = &self.fleet.scenario.batches[batch];
        let body: Vec<Value> = (0..tasks.len()).map(|n| self.batch_task(batch, n)).collect();
        let path = if atomic { format!("{BATCHES}?atomic=true") } else { BATCHES.to_owned() };
        for _ in 0..if repeat { CALLS } else { 1 } {
            let answer = self.call(Method::POST, &path, Some(json!(body))).await;
            if self.note(batch, answer.as_ref()) || !repeat {
                return;
            }
            if let Some((status, answer)) = answer.filter(|(status, _)| (400..429).contains(status)) {
                return self.fleet.violation(format!("batch {batch} was rejected: {status}: {answer}"));
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        self.fleet.violation(format!("batch {batch} is not accepted"));
    }

    fn batch_task(&self, batch: usize, n: usize) -> Value {
        let task = &self.fleet.scenario.batches[batch][n];
        let script = &task.script;
        let mut asked = json!({"type": task_type(task.unordered), "params": script, "fail_fast": script.fail_fast});
        match n {
            0 => asked["id"] = json!(self.fleet.scenario.batch_task_id(batch, 0)),
            n => {
                asked["id"] = json!(format!("k{n}"));
                asked["parent"] = json!(self.fleet.scenario.batch_task_id(batch, task.parent));
            }
        }
        let spans = [("expires", script.expires_ms), ("total_timeout", script.total_timeout_ms)];
        spans.into_iter().for_each(|(name, ms)| asked[name] = json!(ms.map(|ms| format!("{ms}ms"))));
        asked
    }

    /// Records a response. Returns whether all tasks are accepted.
    fn note(&self, batch: usize, answer: Option<&(u16, Value)>) -> bool {
        let mut answers = self.fleet.requests.answers.borrow_mut();
        let mut all = true;
        for n in 0..self.fleet.scenario.batches[batch].len() {
            let outcome = match answer {
                Some((200, body)) => body["items"][n]["outcome"].as_str().unwrap_or_default(),
                Some((_, body)) if body["code"] != "outcome_unknown" && body["code"] != "internal" => "refused",
                _ => "unknown",
            };
            let item = answers.items.entry(self.fleet.scenario.batch_task_id(batch, n)).or_default();
            *(match outcome {
                "accepted" => &mut item.accepted,
                "refused" => &mut item.refused,
                _ => &mut item.unknown,
            }) += 1;
            all &= outcome == "accepted";
        }
        all
    }

    pub async fn request(&self, id: &str, ask: TaskRequest) {
        match ask {
            TaskRequest::Cancel => self.cancel(id).await,
            TaskRequest::Retry { only_failed } => self.retry(id, only_failed).await,
            TaskRequest::Rename { name } => {
                let name = format!("n{name}");
                let answer = self.call(Method::PATCH, &format!("/v1/tasks/{id}"), Some(json!({"name": name}))).await;
                if answer.is_some_and(|(status, _)| status == 200) {
                    self.fleet.requests.answers.borrow_mut().names.push((id.to_owned(), name));
                }
            }
        }
    }

    pub async fn cancel(&self, id: &str) {
        self.fleet.requests.cancels.borrow_mut().insert(id.to_owned());
        if let Some((202, body)) = self.call(Method::POST, &format!("/v1/tasks/{id}/cancel"), None).await {
            let position = body["position"].as_str().unwrap_or_default().to_owned();
            self.fleet.requests.answers.borrow_mut().cancels.push((id.to_owned(), position));
        }
    }

    pub async fn retry(&self, id: &str, only_failed: bool) {
        self.fleet.requests.retried.set(true);
        let path = format!("/v1/tasks/{id}/retry");
        if let Some((202, body)) = self.call(Method::POST, &path, Some(json!({"only_failed": only_failed}))).await {
            let run = body["run"].as_u64().unwrap_or_default();
            self.fleet.requests.answers.borrow_mut().retries.push((id.to_owned(), run, only_failed));
        }
    }

    pub async fn redrive(&self, unordered: bool) {
        self.fleet.requests.retried.set(true);
        let path = format!("/v1/dead-letters?type={}&limit=3", task_type(unordered));
        let Some((200, page)) = self.call(Method::GET, &path, None).await else { return };
        for letter in page["letters"].as_array().into_iter().flatten().filter_map(|letter| letter["id"].as_str()) {
            let answer = self.call(Method::POST, &format!("/v1/dead-letters/{letter}/redrive"), None).await;
            if answer.is_some_and(|(status, _)| status == 200) {
                *self.fleet.requests.answers.borrow_mut().redrives.entry(letter.to_owned()).or_default() += 1;
            }
        }
    }
}

/// Tasks with an active cancel on the control topic.
pub fn active_cancels(fleet: &Fleet) -> Vec<String> {
    let mut control = ControlState::default();
    fleet.each_record(&Partition::new(fleet.names.control(), 0), &mut |record| drop(control.apply_record(record)));
    control.cancels().map(|(id, _)| id.to_owned()).collect()
}

/// All cancels that were ever published to the workers, including withdrawn ones, by task.
fn published_cancels(fleet: &Fleet) -> BTreeMap<String, Vec<Cancel>> {
    let mut all = BTreeMap::<String, Vec<Cancel>>::new();
    fleet.each_record(&Partition::new(fleet.names.control(), 0), &mut |record| {
        let key = record.key.and_then(|key| ControlKey::parse(std::str::from_utf8(key).ok()?).ok()?);
        if let (Some(ControlKey::Cancel(id)), Some(value)) = (key, record.value) {
            all.entry(id).or_default().push(serde_json::from_slice(value).unwrap());
        }
    });
    all
}

/// Whether an API that crashes, freezes or loses calls may leave a cancel on the control topic.
pub fn may_leave_cancels(fleet: &Fleet) -> bool {
    let harms = |step: &Step| match step {
        Step::Crash { process_id, .. } | Step::Freeze { process_id, .. } | Step::Restart { process_id, .. } => {
            *process_id == ProcessId::Api
        }
        Step::FailCalls { .. } => true,
        _ => false,
    };
    fleet.scenario.fault_mode == FaultMode::All && fleet.scenario.steps.iter().any(|item| harms(&item.step))
}

/// Whether the task was created in a batch.
pub fn is_batch_task(id: &str) -> bool {
    id.starts_with('b')
}

pub fn judge(fleet: &Fleet, records: &Records, violations: &mut Vec<String>) {
    let mut log: BTreeMap<String, Event> = BTreeMap::new();
    for number in 0..fleet.scenario.events_partitions {
        let all = logged(fleet, number);
        never_begun(fleet, &all, violations);
        published(fleet, records, &all, violations);
        log.extend(all.into_iter().map(|logged| (format!("{number}:{}", logged.offset), logged.event)));
    }
    created(fleet, records, &log, violations);
    asked(fleet, records, &log, violations);
    redriven(fleet, &log, violations);
}

/// Checks that an accepted task is in the log and in the store, and a rejected one in neither. A task with an unknown
/// outcome that is in the log is in the store, too.
fn created(fleet: &Fleet, records: &Records, log: &BTreeMap<String, Event>, violations: &mut Vec<String>) {
    // A worker announces a task whose own event was lost; a repeated request finds it then.
    let announced: BTreeSet<&str> =
        log.values().filter(|event| event.task.is_some()).map(|event| event.id.as_str()).collect();
    let published: BTreeSet<String> = fleet.offset_oracle.ready().into_iter().map(|((id, _), _)| id).collect();
    for (id, item) in &fleet.requests.answers.borrow().items {
        let (in_log, known) = (
            announced.contains(id.as_str()),
            records.get(id).is_some_and(|task_record| task_record.definition.announced),
        );
        if item.accepted > 0 && !(in_log && known) {
            violations.push(format!("`{id}` was accepted ({item:?}): in the log: {in_log}, in the store: {known}"));
        }
        if item.accepted == 0 && item.unknown == 0 && (in_log || known || published.contains(id)) {
            violations.push(format!("`{id}` was rejected ({item:?}): in the log: {in_log}, in the store: {known}"));
        }
        if in_log && !known {
            violations.push(format!("`{id}` ({item:?}) is in the log and not in the store"));
        }
    }
}

/// Checks that a task cancelled before a worker took it never starts. With all kinds of faults a worker may miss a
/// cancel, so that this is not checked.
fn never_begun(fleet: &Fleet, log: &[LoggedEvent], violations: &mut Vec<String>) {
    let times = fleet.journal.start_times.lock();
    let ended = log.iter().filter(|logged| logged.event.kind() == Kind::Cancelled && logged.event.worker.is_none());
    for LoggedEvent { event, timestamp_ms, .. } in ended.filter(|_| fleet.scenario.fault_mode != FaultMode::All) {
        let is_later = |(id, run, at): &&(String, u32, i64)| {
            *id == event.id.as_str() && *run == event.run && *at > timestamp_ms + HEARD_MS
        };
        if let Some((id, run, at)) = times.iter().find(is_later) {
            violations.push(format!("run {run} of `{id}` was cancelled at {timestamp_ms} and started at {at}"));
        }
    }
}

/// Checks that the cancel of every task that the tracker ends before a worker took it is published to the workers.
fn published(fleet: &Fleet, records: &Records, log: &[LoggedEvent], violations: &mut Vec<String>) {
    let cancels = published_cancels(fleet);
    for LoggedEvent { event, offset, .. } in log.iter().filter(|logged| logged.event.kind() == Kind::Cancelled) {
        let record = records.get(event.id.as_str()).filter(|record| event.worker.is_none() && !record.is_external());
        let Some(record) = record.filter(|record| record.run == event.run) else { continue };
        let applies = |cancel: &Cancel| cancel.asof > record.requests.asof && cancel.asof < *offset;
        let is_own = cancels.get(event.id.as_str()).is_some_and(|all| all.iter().any(applies));
        let of_ancestor =
            |id: &str| cancels.get(id).is_some_and(|all| all.iter().any(|cancel| cancel.subtree && applies(cancel)));
        if !is_own && !TaskId::ancestors(&event.id).any(of_ancestor) {
            violations
                .push(format!("`{}` was cancelled by the tracker without a published cancel: {event:?}", event.id));
        }
    }
}

/// Checks that accepted cancels, retries and changes are in the log, each for a single request.
fn asked(fleet: &Fleet, records: &Records, log: &BTreeMap<String, Event>, violations: &mut Vec<String>) {
    let answers = fleet.requests.answers.borrow();
    let (mut positions, mut runs) = (BTreeSet::new(), BTreeSet::new());
    for (id, position) in &answers.cancels {
        let event = log.get(position).filter(|event| event.kind() == Kind::CancelRequested && event.id.as_str() == id);
        if event.is_none() || !positions.insert(position) {
            violations
                .push(format!("the accepted cancel of `{id}` at {position} is missing there, or was accepted twice"));
        }
    }
    for (id, run, only_failed) in &answers.retries {
        // Failed tasks may have been restarted by another retry in the meantime, whose run is then named in both responses.
        let reached = records.get(id).filter(|_| !only_failed).map(|task_record| u64::from(task_record.run));
        let is_repeated = !only_failed && !runs.insert((id, run));
        if is_repeated || reached.is_some_and(|reached| reached < *run) {
            violations
                .push(format!("the retry of `{id}` into run {run} was accepted twice, or had no effect: {reached:?}"));
        }
    }
    for id in answers.names.iter().map(|(id, _)| id).collect::<BTreeSet<_>>() {
        // All positions are in one partition; they are sorted by offset, not as text.
        let mut given: Vec<(i64, &str)> =
            log.iter().filter_map(|(position, event)| Some((number(position), name_in(event, id)?))).collect();
        given.sort_unstable();
        let is = records.get(id).and_then(|task_record| task_record.definition.policy.as_ref()?.name.clone());
        let last = given.last().copied();
        if last.map(|(_, name)| name) != is.as_deref()
            && !last.is_some_and(|(offset, _)| is_created_again(log, id, offset, is.as_deref()))
        {
            violations.push(format!("the name of `{id}` is {is:?}, and its changes are {given:?}"));
        }
        for (_, name) in answers.names.iter().filter(|(other, _)| other == id) {
            if !given.iter().any(|(_, other)| other == name) {
                violations.push(format!("the accepted name `{name}` of `{id}` is not in the log"));
            }
        }
    }
}

/// Whether the task was created again with this name after the offset, in a later run of its parent.
fn is_created_again(log: &BTreeMap<String, Event>, id: &str, after: i64, name: Option<&str>) -> bool {
    let of_task = || log.iter().filter(|(_, event)| event.id.as_str() == id && event.kind().creates());
    let before = of_task().filter(|(offset, _)| number(offset) < after).map(|(_, event)| event.run).max();
    let announced = of_task().filter(|(offset, event)| number(offset) > after && Some(event.run) > before);
    let mut names = announced
        .filter_map(|(_, event)| Some(event.task.as_ref()?.policy.as_ref().and_then(|policy| policy.name.as_deref())));
    names.any(|announced| announced == name)
}

fn number(position: &str) -> i64 {
    position.split_once(':').and_then(|(_, offset)| offset.parse().ok()).unwrap_or_default()
}

/// Name that an event gives to the task.
fn name_in<'a>(event: &'a Event, id: &str) -> Option<&'a str> {
    let Payload::Patched { patch: Some(patch) } = &event.payload else { return None };
    patch.changes.values().name.as_deref().filter(|_| event.id.as_str() == id)
}

/// Checks that a dead letter is redriven once: one accepted request, and one new run of its task.
fn redriven(fleet: &Fleet, log: &BTreeMap<String, Event>, violations: &mut Vec<String>) {
    for (letter, times) in fleet.requests.answers.borrow().redrives.iter().filter(|(_, times)| **times > 1) {
        violations.push(format!("the redrive of {letter} was accepted {times} times"));
    }
    let mut runs: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for event in log.values().filter(|event| event.kind() == Kind::RetryRequested) {
        if let Some(letter) =
            event.message.as_deref().and_then(|message| message.strip_prefix("redriven from the dead letter "))
        {
            runs.entry(letter).or_default().insert(event.run);
        }
    }
    for (letter, runs) in runs.into_iter().filter(|(_, runs)| runs.len() > 1) {
        violations.push(format!("{letter} was redriven after each of the runs {runs:?}"));
    }
}
