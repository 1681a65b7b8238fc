//! Requests from many clients to real processes, and the final state of the fleet compared with every response.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use kafleet::config::Names;
use kafleet::control::{ControlState, ControlWatch, follow_control};
use kafleet::model::event::{Event, Kind};
use kafleet_testkit::services::connect;
use reqwest::Method;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use crate::RunFolder;
use crate::executions::Executions;
use crate::fleet::{Fleet, PREFIX};
use crate::kafka::Cluster;
use crate::redis::Single;
use crate::requests::{Item, Requests};
use crate::topics::Topics;

/// Maximum time after the last fault for all tasks to end.
const END_DEADLINE: Duration = Duration::from_secs(240);
/// Maximum time after the end of all tasks until no cancel is on the control topic.
const WITHDRAWAL_DEADLINE: Duration = Duration::from_secs(30);
/// Trees that are still open this long after the last request are cancelled: some never end by themselves.
const OPEN: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const AT_ONCE: usize = 16;

/// Fault that is injected into the fleet.
#[derive(Clone, Copy)]
enum Fault {
    WorkerKilled(usize),
    WorkerFrozen(usize),
    TrackerFrozen(usize),
    KafkaRestarted,
    RedisKilled,
    RedisWiped,
}

use Fault::*;

/// Start of each fault, in thousandths of the run's length.
const SHORT: &[(u64, Fault)] =
    &[(200, WorkerKilled(0)), (400, RedisWiped), (550, KafkaRestarted), (750, TrackerFrozen(0))];
const LONG: &[(u64, Fault)] = &[
    (70, WorkerKilled(0)),
    (130, TrackerFrozen(0)),
    (220, RedisWiped),
    (300, KafkaRestarted),
    (400, WorkerKilled(1)),
    (470, RedisKilled),
    (560, KafkaRestarted),
    (650, WorkerFrozen(2)),
    (760, RedisWiped),
    (820, WorkerKilled(2)),
    (880, KafkaRestarted),
];

struct Environment {
    kafka: Cluster,
    redis: Single,
    fleet: Fleet,
}

/// Returns the violations, one per line.
pub async fn run(seed: u64, length: Duration, is_short: bool) -> Vec<String> {
    println!("requests: seed {seed}");
    let mut folder = RunFolder(tempfile::tempdir().unwrap());
    let begun = Instant::now();
    let (kafka, redis) = (Cluster::start(folder.0.path(), 1).await, Single::start(folder.0.path()));
    let fleet = Fleet::start(folder.0.path(), &kafka, &redis.url(), seed).await;
    let mut environment = Environment { kafka, redis, fleet };
    let report = |step: &str| println!("requests: {:4.0} s  {step}", begun.elapsed().as_secs_f64());
    report("the fleet runs");
    let mut rng = fastrand::Rng::with_seed(seed);
    let requests = Requests::new(environment.fleet.calls.clone(), environment.fleet.outage.clone());
    let clients = tokio::spawn(requests.clone().clients(rng.fork()));
    let from = Instant::now();
    for (share, fault) in if is_short { SHORT } else { LONG } {
        sleep_until(from + length.mul_f64(*share as f64 / 1_000.0)).await;
        report(&environment.inject(*fault).await);
    }
    sleep_until(from + length).await;
    requests.end();
    clients.await.unwrap();
    report("the last request is sent");
    let mut violations = judge(&mut environment, &requests, &report).await;
    violations.append(&mut requests.answers.wrong.lock());
    if !violations.is_empty() {
        folder.keep();
        let (seconds, logs) = (length.as_secs_f64(), folder.0.path().display());
        violations.push(format!("run with KAFLEET_SEED={seed} KAFLEET_REQUESTS={seconds:.0}; logs: {logs}"));
    }
    violations
}

impl Environment {
    async fn inject(&mut self, fault: Fault) -> String {
        let roles = &mut self.fleet;
        match fault {
            WorkerKilled(n) => {
                restart(&mut roles.workers[n], Duration::from_secs(2)).await;
                format!("worker {n} was killed")
            }
            WorkerFrozen(n) => {
                freeze(&roles.workers[n], Duration::from_secs(10)).await;
                format!("worker {n} was frozen")
            }
            TrackerFrozen(n) => {
                freeze(&roles.trackers[n], Duration::from_secs(8)).await;
                format!("tracker {n} was frozen")
            }
            KafkaRestarted => {
                restart(&mut self.kafka.brokers[0], Duration::from_secs(2)).await;
                "Kafka was killed and restarted".to_owned()
            }
            RedisKilled => {
                restart(&mut self.redis.server, Duration::from_secs(3)).await;
                "Redis was killed and restarted empty".to_owned()
            }
            RedisWiped => {
                self.redis.wipe().await;
                "Redis was wiped".to_owned()
            }
        }
    }
}

async fn restart(process: &mut crate::process::Process, after: Duration) {
    process.kill();
    sleep(after).await;
    process.start();
}

async fn freeze(process: &crate::process::Process, span: Duration) {
    process.freeze();
    sleep(span).await;
    process.resume();
}

async fn judge(environment: &mut Environment, requests: &Requests, report: &impl Fn(&str)) -> Vec<String> {
    environment.fleet.restart_exited();
    requests.reset(Instant::now() + END_DEADLINE).await;
    let all: BTreeSet<String> = requests.answers.items.lock().keys().cloned().collect();
    let roots = all.iter().filter(|id| !id.contains(':')).cloned().collect();
    // A root does not wait for superseded tasks below it. A superseded task that never ends blocks the commits of its
    // partition, and so the withdrawal of cancels.
    for ids in [roots, all] {
        let open = settle(environment, requests, ids).await;
        if !open.is_empty() {
            return vec![format!("not ended within {END_DEADLINE:?}: {open:?}")];
        }
    }
    report("all tasks have ended");
    let addresses = environment.kafka.addresses();
    let mut violations = withdrawn(&addresses, report).await;
    let topics = tokio::task::block_in_place(|| Topics::read_all(&addresses));
    violations.extend(std::mem::take(&mut environment.fleet.unexpected_exits));
    let items = requests.answers.items.lock().clone();
    let documents = documents(requests, items.keys()).await;
    let log = Log::of(&topics);
    let executions = Executions::read(&environment.fleet.executions);
    report(&summary(requests, &items, &topics, &executions));
    created(&items, &documents, &log, &topics, &mut violations);
    done(&documents, &executions, &mut violations);
    waited(requests, &documents, &mut violations);
    asked(requests, &documents, &log, &mut violations);
    redriven(requests, &topics, &log, &mut violations);
    violations
}

/// Waits until no cancel is on the control topic.
async fn withdrawn(addresses: &str, report: &impl Fn(&str)) -> Vec<String> {
    let kafka = connect(addresses.to_owned());
    let (control, ended) = (ControlWatch::new(ControlState::default()), Instant::now());
    let _reading = follow_control(control.clone(), kafka, &Names::new(PREFIX), None);
    control.wait_until_read_within(END_DEADLINE, &Names::new(PREFIX)).await.unwrap();
    let first = control.state().cancels().len();
    while control.state().cancels().len() > 0 && ended.elapsed() < WITHDRAWAL_DEADLINE {
        sleep(Duration::from_millis(50)).await;
    }
    let left: Vec<String> = control.state().cancels().map(|(id, _)| id.to_owned()).collect();
    report(&format!("{first} cancels were active; {} are after {:.1} s", left.len(), ended.elapsed().as_secs_f64()));
    left.iter().map(|id| format!("the cancel of `{id}` is still on the control topic")).collect()
}

fn summary(requests: &Requests, items: &BTreeMap<String, Item>, topics: &Topics, executions: &Executions) -> String {
    let of = |is: &dyn Fn(&Item) -> bool| items.values().filter(|item| is(item)).count();
    let load = |number: &std::sync::atomic::AtomicUsize| number.load(std::sync::atomic::Ordering::Relaxed);
    let unknown = counts(items.values().flat_map(|item| &item.codes).map(String::as_str));
    let all = executions.by_task.values().flatten();
    let ends = counts(all.map(|execution| execution.end.as_deref().unwrap_or("lost")));
    format!(
        "{} calls, {} without a response; {} tasks: {} accepted, {} unknown, {} rejected, codes {unknown:?}; {} executions, ends {ends:?}, {} events; \
         {} cancels, {} retries, {} changes, {} redrives accepted",
        load(&requests.answers.calls),
        load(&requests.answers.unanswered),
        items.len(),
        of(&|item| item.accepted > 0),
        of(&|item| item.accepted == 0 && item.unknown > 0),
        of(&|item| item.accepted == 0 && item.unknown == 0),
        executions.count,
        topics.events.len(),
        requests.answers.cancels.lock().len(),
        requests.answers.retries.lock().len(),
        requests.answers.names.lock().len(),
        requests.answers.redrives.lock().values().sum::<u32>(),
    )
}

fn counts<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}

/// Waits until these tasks have ended, and cancels those that do not end by themselves. Returns the tasks that are
/// still open.
async fn settle(environment: &mut Environment, requests: &Requests, mut open: BTreeSet<String>) -> BTreeSet<String> {
    let begun = Instant::now();
    while begun.elapsed() < END_DEADLINE {
        environment.fleet.restart_exited();
        let statuses = open.iter().cloned().map(|id| async move {
            let is_open = is_open(requests, &id).await;
            if is_open && begun.elapsed() > OPEN {
                requests.cancel(&id).await;
            }
            is_open.then_some(id)
        });
        open = futures::stream::iter(statuses).buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await;
        if open.is_empty() {
            break;
        }
        sleep(POLL_INTERVAL).await;
    }
    open
}

async fn is_open(requests: &Requests, id: &str) -> bool {
    let until = Instant::now() + END_DEADLINE;
    match requests.apis.call(Method::GET, &format!("/v1/tasks/{id}"), None, until).await {
        Ok(reply) if reply.status == 404 => false,
        Ok(reply) => !is_ended(&reply.body),
        Err(_) => true,
    }
}

fn is_ended(document: &Value) -> bool {
    ["succeeded", "failed", "cancelled", "expired"].iter().any(|end| document["state"] == *end)
}

/// Reads the status of each task from the API; unknown tasks are omitted.
async fn documents(requests: &Requests, ids: impl Iterator<Item = &String>) -> BTreeMap<String, Value> {
    let until = Instant::now() + END_DEADLINE;
    let statuses = ids.cloned().map(|id| async move {
        let reply = requests.apis.call(Method::GET, &format!("/v1/tasks/{id}"), None, until).await;
        let reply = reply.unwrap_or_else(|error| panic!("`{id}`: {error}"));
        (reply.status == 200).then_some((id, reply.body))
    });
    futures::stream::iter(statuses).buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await
}

/// Contents of the events topic, indexed by position and by task.
struct Log<'a> {
    by_place: BTreeMap<String, &'a Event>,
    by_task: BTreeMap<&'a str, Vec<&'a Event>>,
}

impl<'a> Log<'a> {
    fn of(topics: &'a Topics) -> Self {
        let (mut by_place, mut by_task) = (BTreeMap::new(), BTreeMap::<&str, Vec<&Event>>::new());
        for (partition, offset, event) in &topics.events {
            by_place.insert(format!("{partition}:{offset}"), event);
            by_task.entry(event.id.as_str()).or_default().push(event);
        }
        Self { by_place, by_task }
    }

    fn of_task(&self, id: &str) -> &[&'a Event] {
        self.by_task.get(id).map_or(&[], Vec::as_slice)
    }
}

/// Checks that an accepted task is in the log and in the store, and a rejected one in neither. A task with an unknown
/// outcome is in both or in neither.
fn created(
    items: &BTreeMap<String, Item>,
    documents: &BTreeMap<String, Value>,
    log: &Log,
    topics: &Topics,
    violations: &mut Vec<String>,
) {
    for (id, item) in items {
        // A task that its API could not announce is announced by its worker.
        let is_announced = log.of_task(id).iter().any(|event| event.task.is_some());
        let is_known = documents.get(id).is_some_and(|document| document["state"] != "expected");
        let has_record = topics.tasks.keys().any(|(task, ..)| task == id);
        if item.accepted > 0 && !(is_announced && is_known) {
            violations
                .push(format!("`{id}` was accepted ({item:?}): in the log: {is_announced}, in the store: {is_known}"));
        }
        if item.accepted == 0 && item.unknown == 0 && (is_announced || has_record) {
            violations.push(format!(
                "`{id}` was rejected ({item:?}): in the log: {is_announced}, in its topic: {has_record}"
            ));
        }
        let created = log.of_task(id).iter().filter(|event| event.run == 1 && event.kind() == Kind::Submitted).count();
        if created > 1 + item.unknown as usize {
            violations.push(format!("`{id}` was created {created} times ({item:?})"));
        }
        if is_announced != is_known {
            violations.push(format!("`{id}` ({item:?}): in the log: {is_announced}, in the store: {is_known}"));
        }
    }
}

/// Checks that every succeeded task was executed.
fn done(documents: &BTreeMap<String, Value>, executions: &Executions, violations: &mut Vec<String>) {
    for (id, document) in documents {
        let run = document["run"].as_u64().unwrap_or_default() as u32;
        if document["own_state"] == "succeeded" && executions.ends(id, run, "succeeded") == 0 {
            violations.push(format!("`{id}` succeeded in run {run} without an execution: {document}"));
        }
    }
}

/// Checks that waits and outages of a service are no failures: a task that should succeed has failed at most because of
/// its children (`fail_fast`).
fn waited(requests: &Requests, documents: &BTreeMap<String, Value>, violations: &mut Vec<String>) {
    let params = requests.answers.params.lock();
    for (id, document) in documents {
        let succeeds = params.get(id).is_some_and(|params| params["outcome"] == "succeed");
        if succeeds && document["own_state"] == "failed" && document["error"]["kind"] != "child_failed" {
            violations.push(format!("`{id}` should have waited and succeeded: {document}"));
        }
    }
}

/// Checks that accepted cancels, retries and changes are in the log and took effect once.
fn asked(requests: &Requests, documents: &BTreeMap<String, Value>, log: &Log, violations: &mut Vec<String>) {
    let mut positions = BTreeSet::new();
    for (id, share) in requests.answers.cancels.lock().iter() {
        let is_there = log
            .by_place
            .get(share)
            .is_some_and(|event| event.kind() == Kind::CancelRequested && event.id.as_str() == id);
        if !is_there || !positions.insert(share.clone()) {
            violations
                .push(format!("the accepted cancel of `{id}` at {share} is missing there, or was accepted twice"));
        }
    }
    let mut runs = BTreeSet::new();
    for (id, run) in requests.answers.retries.lock().iter() {
        let requests = log.of_task(id).iter().filter(|event| event.kind() == Kind::RetryRequested).count();
        let is_first = runs.insert((id.clone(), *run));
        if requests == 0 || *run < 2 || !is_first {
            violations.push(format!(
                "the accepted retry of `{id}` into run {run}: {requests} requests in the log, first accepted one: {is_first}"
            ));
        }
    }
    let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let changes = requests.answers.names.lock().clone();
    for (id, name) in &changes {
        names.entry(id).or_default().insert(name);
        let patches =
            log.of_task(id).iter().filter(|event| event.kind() == Kind::Patched && is_patched_to(event, name)).count();
        if patches != 1 {
            violations.push(format!("the accepted name `{name}` of `{id}` is {patches} times in the log"));
        }
    }
    for id in names.keys() {
        let last = log.of_task(id).iter().rfind(|event| event.kind() == Kind::Patched);
        let is = documents.get(*id).and_then(|document| document["name"].as_str()).unwrap_or_default();
        if !last.is_some_and(|event| is_patched_to(event, is)) {
            violations.push(format!("the name of `{id}` is `{is}`, and its last change is {last:?}"));
        }
    }
}

fn is_patched_to(event: &Event, name: &str) -> bool {
    let mut text = Vec::new();
    event.encode(&mut text).unwrap();
    String::from_utf8_lossy(&text).contains(&format!("\"name\":\"{name}\""))
}

/// Checks that a dead letter is redriven once: one accepted request, one resolution marker, and one new run of its
/// task.
fn redriven(requests: &Requests, topics: &Topics, log: &Log, violations: &mut Vec<String>) {
    for (letter, times) in requests.answers.redrives.lock().iter().filter(|(_, times)| **times > 1) {
        violations.push(format!("the redrive of {letter} was accepted {times} times"));
    }
    for (letter, fates) in topics.marks.iter().filter(|(_, fates)| fates.len() > 1) {
        violations.push(format!("{letter} has {} resolution markers: {fates:?}", fates.len()));
    }
    for (letter, _) in requests.answers.redrives.lock().iter() {
        let message = format!("redriven from the dead letter {letter}");
        let events = log.by_task.values().flatten().filter(|event| event.message.as_deref() == Some(&*message));
        let runs: Vec<u32> = events.map(|event| event.run).collect();
        if runs.is_empty() || runs.iter().collect::<BTreeSet<_>>().len() != 1 {
            violations.push(format!("the accepted redrive of {letter} requested a run after each of {runs:?}"));
        }
    }
}

/// Duration in seconds from an environment variable.
pub fn seconds(name: &str) -> Option<Duration> {
    let text = std::env::var(name).ok()?;
    Some(Duration::from_secs_f64(
        text.parse().unwrap_or_else(|_| panic!("{name}: `{text}` is not a number of seconds")),
    ))
}
