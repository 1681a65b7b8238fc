//! Verdict on the final state of a scenario, based on scripts, requests and the log. It shares the decoding of
//! records and events with the product, but no decisions.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;

use kafleet::broker::{Broker, Partition};
use kafleet::model::event::{Event, Kind};
use kafleet::model::offsets::{Mark, Metadata};
use kafleet::model::projection::changes::Index;
use kafleet::model::record::TaskRecord;
use kafleet::model::record::rollup::children_of;
use kafleet::model::record::state::State;
use kafleet::model::task::id::TaskId;
use kafleet::store::Store;
use kafleet::tracker::project::projection::LoggedEvent;

use crate::adaptive;
use crate::apps;
use crate::deliveries;
use crate::fleet::{CALL, Fleet};
use crate::outages;
use crate::published;
use crate::repeats;
use crate::request_oracle;
use crate::retries;
use crate::scenario::{Scenario, continuation_segment};
use crate::schedules::{self, overlaps};
use crate::statistics;
use crate::task_types::{Script, task_type};
use crate::tree_oracle::{combined, continuations, counted, may_be_cancelled, tripped};
use crate::unique;

pub type Records = BTreeMap<String, TaskRecord>;

/// All records that are reachable from the roots.
pub async fn records(fleet: &Fleet) -> Rc<Records> {
    let writes = fleet.fault_rng.writes.load(SeqCst);
    let (then, record_count) = fleet.records_cache.borrow().clone();
    if writes == then {
        return record_count;
    }
    let read = Rc::new(read(fleet).await);
    *fleet.records_cache.borrow_mut() = (writes, read.clone());
    read
}

async fn read(fleet: &Fleet) -> Records {
    let mut all = Records::new();
    for partition in 0..fleet.scenario.events_partitions {
        let mut open = vec![Index::Roots];
        while let Some(index) = open.pop() {
            let page = fleet.store().page(partition, &index, None, 10_000).await.unwrap();
            let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
            for (id, task_record) in ids.iter().zip(fleet.store().task_records(partition, &ids).await.unwrap()) {
                open.push(Index::Children(id.clone()));
                if let Some(task_record) = task_record {
                    all.insert(id.to_string(), task_record);
                }
            }
        }
    }
    all
}

/// Contents of a store whose trees should all be removed, once the log is folded.
pub async fn remaining(fleet: &Fleet) -> Vec<String> {
    let mut remaining: Vec<String> = unfolded(fleet).await.into_iter().collect();
    remaining.extend(records(fleet).await.keys().cloned());
    for partition in 0..fleet.scenario.events_partitions {
        for index in [Index::Timers, Index::Effects, Index::Ages, Index::Roots] {
            let page = fleet.store().page(partition, &index, None, 10).await.unwrap();
            remaining.extend(page.iter().map(|entry| format!("{entry:?} in {index:?}")));
        }
        let counts = fleet.store().counts(&[partition]).await.unwrap();
        remaining.extend(counts.iter().map(|count| format!("{count:?}")));
    }
    statistics::judge(fleet, &mut remaining).await;
    remaining
}

/// Describes pending work.
pub async fn pending_work(fleet: &Fleet) -> Option<String> {
    if let Some(reason) = unfinished(fleet).await {
        return Some(reason);
    }
    for number in 0..fleet.scenario.events_partitions {
        let outbox = fleet.store().outbox(number, 10).await.unwrap();
        if !outbox.timers.is_empty() || !outbox.effects.is_empty() {
            return Some(format!("events partition {number} has pending work: {outbox:?}"));
        }
    }
    schedules::pending_work(fleet)
}

/// Describes unfinished work: events not folded, tasks without an end, or offsets not committed.
pub async fn unfinished(fleet: &Fleet) -> Option<String> {
    let (broker, names) = (&fleet.broker, &fleet.names);
    if let Some(reason) = unfolded(fleet).await {
        return Some(reason);
    }
    let records = records(fleet).await;
    if let Some((id, task_record)) = records.iter().find(|(_, task_record)| !task_record.state.is_terminal()) {
        return Some(format!("`{id}` is {}: {task_record:?}", task_record.state));
    }
    for (partition, end) in task_partitions(fleet) {
        let group = names.group(names.type_of(&partition.topic).unwrap_or_default());
        let committed = broker.group_offsets(&group, std::slice::from_ref(&partition), CALL).unwrap().pop().flatten();
        if !is_passed(fleet, &partition, committed.as_ref().map_or(0, |committed| committed.offset), end) {
            return Some(format!("{partition} is committed to {committed:?} of {end}"));
        }
    }
    None
}

pub async fn unfolded(fleet: &Fleet) -> Option<String> {
    for number in 0..fleet.scenario.events_partitions {
        let end = fleet.broker.watermarks(&Partition::new(fleet.names.events(), number as i32), CALL).unwrap().high;
        let checkpoint = fleet.store().checkpoints(&[number]).await.unwrap()[0];
        if checkpoint.map_or(0, |checkpoint| checkpoint.offset) < end {
            return Some(format!("events partition {number} is folded to {checkpoint:?} of {end}"));
        }
    }
    None
}

fn task_partitions(fleet: &Fleet) -> Vec<(Partition, i64)> {
    let topics = fleet.broker.topics(&fleet.names.tasks(""), CALL).unwrap();
    let all = topics
        .iter()
        .flat_map(|info| (0..info.partitions).map(|index| Partition::new(info.name.as_str(), index as i32)));
    all.map(|partition| (partition.clone(), fleet.broker.watermarks(&partition, CALL).unwrap().high)).collect()
}

/// The remaining offsets may be transaction markers, which no consumer receives.
fn is_passed(fleet: &Fleet, partition: &Partition, committed: i64, end: i64) -> bool {
    committed >= end || fleet.broker.first_visible(partition, committed, CALL).unwrap().offset >= end
}

/// Returns all violations.
pub async fn judge(fleet: &Fleet) -> Vec<String> {
    let records = records(fleet).await;
    let log = log(fleet);
    let mut violations = Vec::new();
    let mut record_count = submitted_tasks(fleet, &records, &log, &mut violations);
    statistics::judge(fleet, &mut violations).await;
    schedules::judge(fleet, &log, &mut violations);
    retries::judge(fleet, &records, &mut violations).await;
    repeats::judge(fleet, &log, &mut violations);
    request_oracle::judge(fleet, &records, &mut violations);
    record_count += deliveries::judge(fleet, &records, &log, &mut violations).await;
    apps::deaths::judge(fleet, &log, &mut violations);
    record_count += outages::judge(fleet, &records, &log, &mut violations);
    record_count += adaptive::judge(fleet, &records, &mut violations);
    record_count += unique::judge(fleet, &records, &log, &mut violations);
    if record_count != records.len() {
        violations.push(format!("{} records, {record_count} tasks: {:?}", records.len(), records.keys()));
    }
    violations.extend(invariant_violations(fleet, &records));
    counts(fleet, &records, &mut violations).await;
    outcomes(&log, &records, &mut violations);
    published::check_published_once(&log, &mut violations);
    published::check_records(fleet, &log, &mut violations);
    cancels(fleet, &mut violations);
    violations
}

/// Checks the submitted roots, the batches and the tasks of schedules; returns the number of their records.
fn submitted_tasks(fleet: &Fleet, records: &Records, log: &[Event], violations: &mut Vec<String>) -> usize {
    let mut record_count = 0;
    let mut check = |id: &str, script: &Script, unordered: bool, violations: &mut Vec<String>| {
        check_task(fleet, records, id, script, unordered, &mut record_count, violations);
    };
    let mut external_tasks = 0;
    for (root, (unordered, external)) in fleet.requests.submitted.borrow().iter() {
        let id = Scenario::id(*root, &[]);
        match external {
            Some(fails) => {
                external_tasks += 1;
                check_external(fleet, records, &id, *fails, violations);
            }
            None => check(&id, &fleet.scenario.roots[*root].1, *unordered, violations),
        }
    }
    for (batch, tasks) in fleet.scenario.batches.iter().enumerate() {
        for (n, task) in tasks.iter().enumerate() {
            let id = fleet.scenario.batch_task_id(batch, n);
            if records.contains_key(&id) {
                check(&id, &task.script, task.unordered, violations);
            }
        }
    }
    for (id, schedule) in schedules::tasks(fleet, log) {
        check(&id, &schedule.spec.script, schedule.spec.unordered, violations);
    }
    record_count + external_tasks
}

/// Checks that an external task has the reported state.
fn check_external(fleet: &Fleet, records: &Records, id: &str, fails: bool, violations: &mut Vec<String>) {
    let expected_state = if fails { State::Failed } else { State::Succeeded };
    let is = records.get(id).map(|task_record| task_record.own);
    if is != Some(expected_state) && !(is == Some(State::Cancelled) && may_be_cancelled(fleet, records, id, 1)) {
        violations.push(format!("`{id}` was reported as {expected_state} and is {is:?}"));
    }
}

/// Invariants at any time: states and counts are consistent, and a succeeded task has its children.
pub fn invariant_violations(fleet: &Fleet, records: &Records) -> Vec<String> {
    let mut violations = Vec::new();
    for (id, task_record) in records {
        rollup(fleet, records, id, task_record, &mut violations);
        continuations(fleet, records, id, task_record, &mut violations);
    }
    for (root, (unordered, _)) in
        fleet.requests.submitted.borrow().iter().filter(|(_, (_, external))| external.is_none())
    {
        let (id, script) = (Scenario::id(*root, &[]), &fleet.scenario.roots[*root].1);
        check_children_exist(records, &id, script, &mut violations);
        if records.get(&id).is_some_and(|task_record| task_record.state.is_terminal()) {
            check_task(fleet, records, &id, script, *unordered, &mut 0, &mut violations);
        }
    }
    overlaps(fleet, records, &mut violations);
    violations
}

/// Checks that a succeeded parent has its children.
fn check_children_exist(records: &Records, id: &str, script: &Script, violations: &mut Vec<String>) {
    let Some(task_record) = records.get(id) else { return };
    for (n, task) in script.children.iter().enumerate() {
        let child = format!("{id}:c{n}");
        if task_record.own == State::Succeeded && records.get(&child).is_none_or(|child| child.run < task_record.run) {
            violations.push(format!("run {} of `{id}` has succeeded, and `{child}` does not exist", task_record.run));
        }
        check_children_exist(records, &child, &task.script, violations);
    }
}

/// Checks a task and its tree against the script.
fn check_task(
    fleet: &Fleet,
    records: &Records,
    id: &str,
    script: &Script,
    unordered: bool,
    record_count: &mut usize,
    violations: &mut Vec<String>,
) {
    let Some(task_record) = records.get(id) else { return violations.push(format!("`{id}` is lost")) };
    *record_count += 1;
    if task_record.task_type.as_deref() != Some(task_type(unordered)) {
        violations.push(format!("`{id}` has the type {:?}", task_record.task_type));
    }
    let expected_state = script.expected_state(task_record.run, unordered);
    let is_under_way = !task_record.own.is_terminal() && is_superseded(records, id);
    if task_record.own != expected_state && !is_under_way && !may_differ(fleet, records, id, task_record, script) {
        violations.push(format!(
            "run {} of `{id}` must be {expected_state} and is {}: {:?}",
            task_record.run, task_record.own, task_record.outcome.error
        ));
    }
    if task_record.run > 1 && !fleet.requests.retried.get() {
        violations.push(format!("`{id}` is in run {} without a retry request", task_record.run));
    }
    for (n, task) in script.children.iter().enumerate() {
        let child = format!("{id}:c{n}");
        if records.contains_key(&child) {
            if script.expected_state(u32::MAX, unordered) != State::Succeeded {
                violations.push(format!("`{child}` exists though `{id}` never succeeds"));
            }
            check_task(fleet, records, &child, &task.script, task.unordered, record_count, violations);
        }
    }
    for (n, then) in script.continuations.iter().enumerate() {
        let next = format!("{id}:{}", continuation_segment(n));
        if records.contains_key(&next) {
            check_task(fleet, records, &next, &then.task.script, then.task.unordered, record_count, violations);
        }
    }
}

/// Whether the task or an ancestor belongs to an earlier run of its parent, which does not wait for it.
fn is_superseded(records: &Records, id: &str) -> bool {
    let Some((above, _)) = id.rsplit_once(':') else { return false };
    let run = |id: &str| records.get(id).map_or(0, |task_record| task_record.run);
    run(id) < run(above) || is_superseded(records, above)
}

/// Whether the run may expire: a retry has no expiry, but a batch that creates its tasks again in a later run of the parent.
fn may_expire(id: &str, task_record: &TaskRecord) -> bool {
    let is_batch_task = request_oracle::is_batch_task(id);
    let is_announced = || task_record.definition.policy.as_ref().is_some_and(|policy| policy.expires_at_ms.is_some());
    if task_record.run == 1 { is_batch_task || !id.contains(':') } else { is_batch_task && is_announced() }
}

/// Whether a cancel, a timeout or a failed child explains another state than the script's.
fn may_differ(fleet: &Fleet, records: &Records, id: &str, task_record: &TaskRecord, script: &Script) -> bool {
    match task_record.own {
        State::Cancelled => may_be_cancelled(fleet, records, id, task_record.run),
        State::Expired => script.expires_ms.is_some() && may_expire(id, task_record),
        State::Failed if is_failed_by_child(task_record) => script.fail_fast && tripped(fleet, records, id),
        State::Failed if fleet.journal.deaths.has_exhausted(id) => true,
        // An attempt that failed after its child reports its own error.
        State::Failed if request_oracle::is_batch_task(id) && script.fail_fast && tripped(fleet, records, id) => true,
        State::Failed => {
            let is_frozen =
                || task_record.task_type.as_deref().is_some_and(|name| apps::may_time_out(&fleet.scenario, name));
            let has_limit = script.total_timeout_ms.is_some() || is_frozen();
            has_limit && task_record.outcome.error.as_ref().is_some_and(|error| error.kind == "timeout")
        }
        _ => false,
    }
}

/// Whether the task failed fast while it was running: it was executed again beside children of an earlier execution
/// or of a retry.
fn is_failed_by_child(task_record: &TaskRecord) -> bool {
    task_record.own == State::Failed
        && task_record.outcome.error.as_ref().is_some_and(|error| error.kind == "child_failed")
}

fn tree(records: &Records, id: &str, run: u32, sums: &mut BTreeMap<State, u64>) {
    for (child, task_record) in counted(records, id, run) {
        *sums.entry(task_record.state).or_default() += 1;
        tree(records, child, task_record.run, sums);
    }
}

/// Checks the state of a task against its own state and its children's, and its counts.
fn rollup(fleet: &Fleet, records: &Records, id: &str, task_record: &TaskRecord, violations: &mut Vec<String>) {
    let combined = combined(fleet, records, id, task_record);
    let fits = match task_record.own.is_terminal() {
        true => task_record.state == combined,
        false if task_record.state == State::Cancelling => may_be_cancelled(fleet, records, id, task_record.run),
        false => task_record.state == task_record.own,
    };
    if !fits {
        violations.push(format!(
            "`{id}` is {} itself and {combined} with its children, but recorded as {}",
            task_record.own, task_record.state
        ));
    }
    let mut sums = BTreeMap::new();
    tree(records, id, task_record.run, &mut sums);
    let (_, _, reported) = children_of(&task_record.tree.below);
    for state in State::ALL {
        let (reported, is) = (reported.get(state), sums.get(&state).copied().unwrap_or_default());
        if reported != is {
            violations.push(format!("`{id}` counts {reported} descendants that are {state}; there are {is}"));
        }
    }
}

async fn counts(fleet: &Fleet, records: &Records, violations: &mut Vec<String>) {
    let mut is: BTreeMap<(String, State), u64> = BTreeMap::new();
    for task_record in records.values() {
        let name = task_record.task_type.as_deref().unwrap_or_default().to_owned();
        *is.entry((name, task_record.state)).or_default() += 1;
    }
    let all: Vec<u32> = (0..fleet.scenario.events_partitions).collect();
    let reported = fleet.store().counts(&all).await.unwrap();
    let reported: BTreeMap<_, _> =
        reported.into_iter().map(|count| ((count.task_type.to_string(), count.state), count.count)).collect();
    if reported != is {
        violations.push(format!("the counts by type are {reported:?}; there are {is:?}"));
    }
}

/// All committed events, by partition and in order.
pub fn log(fleet: &Fleet) -> Vec<Event> {
    let all = (0..fleet.scenario.events_partitions).flat_map(|number| logged(fleet, number));
    all.map(|logged| logged.event).collect()
}

/// Writes the events of all partitions to the log of the test.
pub fn log_events(fleet: &Fleet) {
    for number in 0..fleet.scenario.events_partitions {
        for LoggedEvent { event, offset, timestamp_ms } in logged(fleet, number) {
            let at_ms = timestamp_ms - crate::host::START_MS;
            tracing::debug!(partition = number, offset, at_ms, ?event, "event of the failed scenario");
        }
    }
}

pub fn logged(fleet: &Fleet, number: u32) -> Vec<LoggedEvent> {
    let mut all = Vec::new();
    fleet.each_record(&Partition::new(fleet.names.events(), number as i32), &mut |record| {
        let event = Event::decode(record.value.unwrap_or_default()).unwrap();
        all.push(LoggedEvent { event, offset: record.offset, timestamp_ms: record.timestamp_ms });
    });
    all
}

/// Checks that the first terminal event of a run decides its state.
fn outcomes(log: &[Event], records: &Records, violations: &mut Vec<String>) {
    let mut first: BTreeMap<(String, u32), State> = BTreeMap::new();
    for event in log {
        let state = match event.kind() {
            Kind::Succeeded => State::Succeeded,
            Kind::Failed => State::Failed,
            Kind::Cancelled => State::Cancelled,
            Kind::Expired => State::Expired,
            _ => continue,
        };
        first.entry((event.id.to_string(), event.run)).or_insert(state);
    }
    for (id, task_record) in records.iter().filter(|(_, task_record)| !task_record.is_external()) {
        let reported = first.get(&(id.clone(), task_record.run));
        // The worker reports the cancellation of its attempt.
        let failed_fast =
            is_failed_by_child(task_record) || (task_record.own == State::Failed && request_oracle::is_batch_task(id));
        let stopped = reported == Some(&State::Cancelled) && failed_fast;
        if reported != Some(&task_record.own) && !stopped {
            violations.push(format!(
                "run {} of `{id}` is {reported:?} in the log and {} in the store",
                task_record.run, task_record.own
            ));
        }
    }
}

/// Checks that no cancel is left, which would cancel a later task with the same id.
fn cancels(fleet: &Fleet, violations: &mut Vec<String>) {
    let reported = request_oracle::active_cancels(fleet);
    if !reported.is_empty() && !request_oracle::may_leave_cancels(fleet) {
        violations.push(format!("workers still have cancels: {reported:?}"));
    }
}

/// Checks the final commits of stopped workers: everything is committed, with the clean mark.
pub fn final_commit_violations(fleet: &Fleet) -> Vec<String> {
    let mut violations = Vec::new();
    for (partition, end) in task_partitions(fleet) {
        let group = fleet.names.group(fleet.names.type_of(&partition.topic).unwrap_or_default());
        let committed =
            fleet.broker.group_offsets(&group, std::slice::from_ref(&partition), CALL).unwrap().pop().flatten();
        let Some(committed) = committed else {
            violations.push(format!("{partition} was never committed"));
            continue;
        };
        let clean = Metadata::decode(committed.offset, &committed.metadata)
            .is_some_and(|metadata| metadata.mark == Mark::Clean);
        if !is_passed(fleet, &partition, committed.offset, end) || !clean {
            violations.push(format!("{partition} ends at {end} and its final commit is {committed:?}"));
        }
    }
    violations
}
