//! Adaptive limit of a type whose service takes few calls at once: among workers that join and leave, and trackers that are
//! away, the workers together never run more attempts than the limit in force.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::broker::{Partition, ProducerRecord};
use kafleet::control::{AdaptiveRecord, ControlKey};
use kafleet::handlers::{Context, Failure, Task, TaskResult, TypeRegistration};
use kafleet::model::adaptive::setting::Adaptive;
use kafleet::model::record::state::State;
use kafleet::model::task::header;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::fleet::{CALL, Fleet};
use crate::host::{START_MS, elapsed_ms};
use crate::journal::{Execution, Journal};
use crate::scenario::{FaultMode, Scenario};
use crate::step::Step;
use crate::verdict::Records;

/// Error kind by which the service refuses a call.
const REFUSED: &str = "overloaded";
/// Duration of a call: the time that a worker assumes before it knows the usual one, so that a slot that has moved to another
/// worker is used there only after the call of the one that has lost it.
const CALL_MS: u64 = 100;
/// Smallest limit.
const MIN: u32 = 2;
/// Time for which a limit is in force after the next one is written: until all workers have read it and their calls have ended.
const TAKEOVER_MS: u64 = 400;
/// Time around a move of partitions in which calls of the old and of the new owner overlap.
const MOVE_MS: u64 = 2_500;

/// Task that calls the service.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MeteredCall;

impl Task for MeteredCall {
    const TYPE: &'static str = "metered";
    const CONCURRENCY: u32 = 6;
    const RETRIES: u32 = 1_000;
    const MIN_BACKOFF: Duration = Duration::from_millis(50);
    const MAX_BACKOFF: Duration = Duration::from_millis(200);
    type Output = ();

    async fn run(self, cx: Context) -> TaskResult<()> {
        let journal = cx.state::<Arc<Journal>>();
        let _running = journal.record_start(&Execution::of::<Self>(&cx));
        let call = journal.metered.call();
        tokio::time::sleep(Duration::from_millis(CALL_MS)).await;
        if call.is_refused { Err(Failure::retry("busy").of_kind(REFUSED)) } else { Ok(()) }
    }
}

/// Registration of the type with an adaptive limit.
pub fn metered() -> TypeRegistration {
    let mut registration = TypeRegistration::of::<MeteredCall>();
    registration.policy.adaptive = Some(Adaptive { min: MIN, ..Adaptive::default() });
    registration
}

/// The service, and the calls that it has received.
#[derive(Default)]
pub struct MeteredService {
    /// Calls that it takes at once.
    capacity: Mutex<usize>,
    running: Mutex<usize>,
    /// Start of each call, and the number of calls then, itself included. Milliseconds since the start of the simulation.
    starts: Mutex<Vec<(u64, usize)>>,
    /// Ids of the submitted tasks.
    submitted: Mutex<BTreeSet<String>>,
}

/// Call that ends on drop.
struct RunningCall<'a> {
    service: &'a MeteredService,
    is_refused: bool,
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        *self.service.running.lock() -= 1;
    }
}

impl MeteredService {
    fn call(&self) -> RunningCall<'_> {
        let mut running = self.running.lock();
        *running += 1;
        self.starts.lock().push((elapsed_ms(), *running));
        RunningCall { service: self, is_refused: *running > *self.capacity.lock() }
    }
}

/// Adds groups of calls to some of the scenarios. Not from the generator of the rest, so that seeds keep it.
pub fn add_metered_calls(scenario: &mut Scenario) {
    let rng = &mut Rng::with_seed(scenario.seed.rotate_left(32) ^ 0x4144_4150);
    if rng.u8(..5) > 0 {
        return;
    }
    for group in 0..rng.usize(1..4) {
        let step = Step::MeteredCalls { group, count: rng.usize(30..160), capacity: rng.usize(2..12) };
        scenario.add(rng.u64(..scenario.fault_ms / 2), step);
    }
}

/// Submits the tasks of a group with a plain producer. The service takes `capacity` calls at once from now on.
pub async fn metered_calls(fleet: &Fleet, group: usize, count: usize, capacity: usize) {
    let service = &fleet.journal.metered;
    *service.capacity.lock() = capacity;
    let (topic, params) = (fleet.names.tasks(MeteredCall::TYPE), json!(MeteredCall).to_string());
    let producer = SharedProducer::open(fleet.broker.clone(), None).unwrap();
    for id in (0..count).map(|n| format!("m{group}-{n}")) {
        service.submitted.lock().insert(id.clone());
        let headers: [(&str, &[u8]); 1] = [(header::ID, id.as_bytes())];
        let (key, value) = (Some(id.as_bytes()), Some(params.as_bytes()));
        let record = ProducerRecord { topic: &topic, partition: None, key, value, headers: &headers };
        while producer.deliver(record, CALL).await.is_err() {}
    }
}

/// Checks the tasks and the calls. Returns the number of their records.
pub fn judge(fleet: &Fleet, records: &Records, violations: &mut Vec<String>) -> usize {
    let submitted = fleet.journal.metered.submitted.lock();
    for id in submitted.iter() {
        let state = records.get(id).map(|record| (record.own, record.run));
        if state != Some((State::Succeeded, 1)) {
            violations.push(format!("`{id}` must be succeeded although the service refuses calls, and is {state:?}"));
        }
    }
    // A crashed or frozen worker, and one without the broker, does not know that its partitions have moved.
    if fleet.scenario.fault_mode != FaultMode::All {
        bounded(fleet, violations);
    }
    submitted.len()
}

/// Checks at each start of a call that the calls together are within the limit in force.
fn bounded(fleet: &Fleet, violations: &mut Vec<String>) {
    let (service, limits) = (&fleet.journal.metered, limits(fleet));
    let (starts, moves) = (service.starts.lock(), fleet.fault_rng.moves.lock());
    for (at_ms, running) in starts.iter() {
        let is_moving = moves.iter().any(|moved| at_ms.abs_diff(*moved) < MOVE_MS);
        let bound = limit_at(&limits, *at_ms).ceil() as usize;
        if !is_moving && *running > bound {
            violations.push(format!("{running} calls ran at {at_ms} ms under an adaptive limit of {bound}"));
            return;
        }
    }
}

/// Largest limit in force at a time.
fn limit_at(limits: &[(u64, f64)], at_ms: u64) -> f64 {
    let ended = limits.iter().rposition(|(from_ms, _)| from_ms + TAKEOVER_MS < at_ms).unwrap_or(0);
    let known = limits[ended..].iter().take_while(|(from_ms, _)| *from_ms <= at_ms);
    known.map(|(_, limit)| *limit).fold(f64::from(MIN), f64::max)
}

/// Limits that the learner has decided, with their times.
fn limits(fleet: &Fleet) -> Vec<(u64, f64)> {
    let mut limits = vec![(0, f64::from(MIN))];
    let key = ControlKey::Adaptive(MeteredCall::TYPE.to_owned()).to_string();
    fleet.each_record(&Partition::new(fleet.names.control().as_str(), 0), &mut |record| {
        let value = record.value.filter(|_| record.key == Some(key.as_bytes()));
        let Some(Ok(decided)) = value.map(serde_json::from_slice::<AdaptiveRecord>) else { return };
        limits.push(((record.timestamp_ms - START_MS).unsigned_abs(), decided.learned.limit));
    });
    limits
}
