//! Unique tasks among crashes: of a key never two are open, the newest kept ask is not lost, and every ask is decided as an
//! oracle decides it from the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use fastrand::Rng;
use kafleet::broker::ProducerRecord;
use kafleet::broker::shared_producer::SharedProducer;
use kafleet::handlers::{Context, Task, TaskResult};
use kafleet::model::event::{Event, Kind, Payload};
use kafleet::model::record::state::State;
use kafleet::model::task::header;
use kafleet::model::unique::id::tag;
use kafleet::model::unique::{UniqueMode, UniqueRule};
use kafleet::model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::fleet::{CALL, Fleet};
use crate::journal::{Execution, Journal};
use crate::requests::Client;
use crate::scenario::Scenario;
use crate::step::{Step, SubmitVia};
use crate::verdict::Records;

/// Windows of the asks, in milliseconds.
const DEBOUNCE_MS: i64 = 700;
const DEBOUNCE_MAX_MS: i64 = 2_500;
const THROTTLE_MS: i64 = 1_500;
/// Maximum difference between the clock of a process and that of the broker.
const CLOCK_MS: i64 = 300;

/// Unique task, which takes some time.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Refresh {
    ask: usize,
    ms: u64,
}

impl Task for Refresh {
    const TYPE: &'static str = "refresh";
    const CONCURRENCY: u32 = 4;
    type Output = usize;

    async fn run(self, cx: Context) -> TaskResult<usize> {
        let journal = cx.state::<Arc<Journal>>();
        let _running = journal.record_start(&Execution::of::<Self>(&cx));
        tokio::time::sleep(Duration::from_millis(self.ms)).await;
        Ok(self.ask)
    }
}

/// Ask for a unique task.
#[derive(Clone, Copy, Debug)]
pub struct UniqueAsk {
    pub ask: usize,
    pub key: usize,
    pub mode: UniqueMode,
    pub ms: u64,
}

impl UniqueAsk {
    fn key(&self) -> String {
        format!("k{}", self.key)
    }

    fn rule(&self) -> UniqueRule {
        let window = |ms: i64| Millis(ms.unsigned_abs());
        let rule = UniqueRule::of_key(self.key()).with_mode(self.mode);
        match self.mode {
            UniqueMode::Debounce => rule.with_window(window(DEBOUNCE_MS)).with_max(window(DEBOUNCE_MAX_MS)),
            UniqueMode::Throttle => rule.with_window(window(THROTTLE_MS)),
            UniqueMode::Skip => rule.with_for(Millis(400)),
            UniqueMode::Latest => rule,
        }
    }
}

/// Adds asks for one or two keys to some of the scenarios. Not from the generator of the rest, so that seeds keep it.
pub fn add_asks(scenario: &mut Scenario) {
    let rng = &mut Rng::with_seed(scenario.seed.rotate_left(32) ^ 0x554e_4951);
    if rng.u8(..4) > 0 {
        return;
    }
    let modes = UniqueMode::ALL;
    let of_key = [modes[rng.usize(..4)], modes[rng.usize(..4)]];
    for ask in 0..rng.usize(2..14) {
        let key = rng.usize(..2);
        let mode = if rng.u8(..5) == 0 { modes[rng.usize(..4)] } else { of_key[key] };
        let via = if rng.u8(..4) == 0 { SubmitVia::Kafka } else { SubmitVia::Api { delay_ms: 0 } };
        scenario.add(rng.u64(..scenario.fault_ms), Step::Ask { ask, key, mode, via, ms: rng.u64(1..2_000) });
    }
}

impl Client<'_> {
    pub async fn ask(&self, asked: UniqueAsk, via: SubmitVia) {
        self.fleet.requests.asked_tasks.borrow_mut().push(asked);
        let (id, params) = (format!("u{}", asked.ask), json!(Refresh { ask: asked.ask, ms: asked.ms }));
        if via == SubmitVia::Kafka {
            return self.ask_by_record(&asked, &id, &params.to_string()).await;
        }
        let body = json!({"type": Refresh::TYPE, "id": id, "params": params, "unique": asked.rule()});
        let response = self.repeat_call(Method::POST, "/v1/tasks", Some(body)).await;
        if response.as_ref().is_none_or(|response| response.0 >= 300) {
            self.fleet.violation(format!("ask {} was not accepted: {response:?}", asked.ask));
        }
    }

    async fn ask_by_record(&self, asked: &UniqueAsk, id: &str, params: &str) {
        let (topic, rule) = (self.fleet.names.tasks(Refresh::TYPE), json!(asked.rule()).to_string());
        let headers: [(&str, &[u8]); 2] = [(header::ID, id.as_bytes()), ("ce_unique", rule.as_bytes())];
        let record = ProducerRecord {
            topic: &topic,
            partition: None,
            key: Some(id.as_bytes()),
            value: Some(params.as_bytes()),
            headers: &headers,
        };
        let producer = SharedProducer::open(self.fleet.broker.clone(), None).unwrap();
        while producer.deliver(record, CALL).await.is_err() {}
    }
}

/// Key by an oracle: the task that was released and has not ended.
#[derive(Default)]
struct Oracle {
    open: Option<String>,
    /// Params that each started task must have, by the position of their ask.
    started: BTreeMap<String, i64>,
}

/// Checks the tasks of all keys. Returns the number of their records.
pub fn judge(fleet: &Fleet, records: &Records, log: &[Event], violations: &mut Vec<String>) -> usize {
    let asked_tasks = fleet.requests.asked_tasks.borrow();
    let keys: BTreeSet<String> = asked_tasks.iter().map(UniqueAsk::key).collect();
    let mut count = 0;
    for key in keys {
        let tag = tag(Refresh::TYPE, &key);
        let of_key: Vec<&Event> = log.iter().filter(|event| event.id.tag() == Some(&tag)).collect();
        let oracle = Oracle::follow(&of_key, violations);
        early_starts(&of_key, &asked_tasks, violations);
        if let Some(open) = &oracle.open {
            violations.push(format!("`{open}` was released and has not ended"));
        }
        for (id, ask) in &oracle.started {
            count += 1;
            let expected = asked_number(of_key[*ask as usize]);
            let record = records.get(id);
            let output =
                record.and_then(|record| record.outcome.output.as_ref()).map(|output| output.text().to_owned());
            let is_right = record.is_some_and(|record| record.own == State::Succeeded) && output == expected;
            if !is_right {
                violations.push(format!(
                    "`{id}` must have succeeded with the params of ask {expected:?}, and has {output:?}"
                ));
            }
        }
    }
    count
}

/// Number of the ask in the params of its record.
fn asked_number(event: &Event) -> Option<String> {
    let record = event.payload.record()?;
    Some(record.params.slice().member("ask")?.text().to_owned())
}

impl Oracle {
    fn follow(log: &[&Event], violations: &mut Vec<String>) -> Self {
        let mut oracle = Self::default();
        for (number, event) in (0_i64..).zip(log) {
            let id = event.id.as_str();
            match event.kind() {
                Kind::Released if event.payload.ask().is_some() => {
                    if let Some(open) = oracle.open.replace(id.to_owned()) {
                        violations.push(format!("`{id}` was released while `{open}` was open"));
                    }
                    if oracle.started.contains_key(id) {
                        violations.push(format!("`{id}` was released twice"));
                    }
                    let ask = released_ask(event, log, number);
                    oracle.started.insert(id.to_owned(), ask);
                }
                Kind::Succeeded | Kind::Failed | Kind::Cancelled => drop(oracle.open.take_if(|open| open == id)),
                _ => {}
            }
        }
        oracle
    }
}

/// Checks that no task is released before it is due by the rule of its ask.
fn early_starts(log: &[&Event], asked_tasks: &[UniqueAsk], violations: &mut Vec<String>) {
    let mut before = -1;
    for (number, event) in (0_i64..).zip(log) {
        if event.kind() != Kind::Released || event.payload.ask().is_none() {
            continue;
        }
        let ask = released_ask(event, log, number);
        let asked = asked_number(log[ask as usize]).and_then(|number| number.parse::<usize>().ok());
        let mode = asked_tasks.iter().find(|task| Some(task.ask) == asked).map(|task| task.mode);
        let (ask_ms, last) = (log[ask as usize].at_ms, usize::try_from(before).ok());
        let mut since = log[(before + 1) as usize..].iter().filter(|event| event.kind() == Kind::Asked);
        let first_ms = since.next().map_or(ask_ms, |event| event.at_ms);
        let due_ms = match mode {
            Some(UniqueMode::Debounce) => (ask_ms + DEBOUNCE_MS).min(first_ms + DEBOUNCE_MAX_MS),
            // A start is not before its ask.
            Some(UniqueMode::Throttle) => last.map_or(ask_ms, |last| log[last].at_ms + THROTTLE_MS),
            _ => ask_ms,
        };
        if event.at_ms + CLOCK_MS < due_ms {
            violations.push(format!("`{}` was released {} ms before it was due", event.id, due_ms - event.at_ms));
        }
        before = ask;
    }
}

/// Number of the ask that a release names: the newest whose announcement it carries.
fn released_ask(event: &Event, log: &[&Event], number: i64) -> i64 {
    let hash = event.task.as_ref().and_then(|task| task.hash.clone());
    let before = (0..number).rev();
    let is_asked = |n: &i64| {
        let asked = log[*n as usize];
        matches!(asked.payload, Payload::Asked { .. }) && asked.task.as_ref().and_then(|task| task.hash.clone()) == hash
    };
    before.into_iter().find(is_asked).unwrap_or(0)
}
