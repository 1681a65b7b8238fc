//! Callbacks and emails with in-memory receivers. The expected deliveries are derived by folding the log one event at
//! a time and observing the states.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use kafleet::handlers::builtin::callback::TYPE as CALLBACK;
use kafleet::handlers::builtin::email::TYPE as EMAIL;
use kafleet::handlers::{Context, Failure, Task, TaskResult};
use kafleet::model::event::{Event, Kind, Payload};
use kafleet::model::record::TaskRecord;
use kafleet::model::record::notifications::{NotificationDelivery, RuleRef};
use kafleet::model::record::state::State;
use kafleet::model::task::action::{Action, Callback, Check, Email, Notification, NotifyAction, ends};
use kafleet::model::task::id::TaskId;
use kafleet::model::units::duration::Millis;
use kafleet::store::memory;
use kafleet::tracker::project::projection::{LoggedEvent, Projection};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fleet::Fleet;
use crate::host::START_MS;
use crate::journal::{Execution, Journal};
use crate::task_types::Script;
use crate::verdict::{Records, logged};

const RETRIES: u32 = 2;
const MIN_BACKOFF: Duration = Duration::from_millis(300);
const MAX_BACKOFF: Duration = Duration::from_millis(1_000);

/// Params of a callback.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CallbackTask(Value);

/// Params of an email.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EmailTask(Value);

impl Task for CallbackTask {
    const TYPE: &'static str = CALLBACK;
    const RETRIES: u32 = RETRIES;
    const MIN_BACKOFF: Duration = MIN_BACKOFF;
    const MAX_BACKOFF: Duration = MAX_BACKOFF;
    type Output = ();

    async fn run(self, cx: Context) -> TaskResult<()> {
        receive::<Self>(&cx, self.0["url"].as_str(), &self.0["body"])
    }
}

impl Task for EmailTask {
    const TYPE: &'static str = EMAIL;
    const RETRIES: u32 = RETRIES;
    const MIN_BACKOFF: Duration = MIN_BACKOFF;
    const MAX_BACKOFF: Duration = MAX_BACKOFF;
    type Output = ();

    async fn run(self, cx: Context) -> TaskResult<()> {
        receive::<Self>(&cx, self.0["to"][0].as_str(), &self.0["about"])
    }
}

/// Records a delivery attempt. The last digit of the address is the number of failing attempts.
fn receive<T: Task>(cx: &Context, address: Option<&str>, body: &Value) -> TaskResult<()> {
    let fails = fails(address.unwrap_or_default());
    let journal = cx.state::<Arc<Journal>>();
    let _running = journal.record_attempt(&Execution::of::<T>(cx));
    journal.received.lock().entry(cx.id.to_string()).or_default().push(body.clone());
    if cx.number <= fails { Err(Failure::retry("not now")) } else { Ok(()) }
}

fn fails(address: &str) -> u32 {
    address.chars().last().and_then(|digit| digit.to_digit(10)).unwrap_or_default()
}

// ---- scenarios

pub fn has_notifications(script: &Script) -> bool {
    let below = || script.children.iter().any(|child| has_notifications(&child.script));
    !script.actions.is_empty() || !script.checks.is_empty() || below()
}

/// Adds actions, and optionally checks, to some tasks of a tree.
pub fn add_notifications(script: &mut Script, checks: bool, rng: &mut Rng) {
    for _ in 0..[0, 0, 1, 1, 2][rng.usize(..5)] {
        let (callback, email) = random_receiver(rng);
        script.actions.push(Action { on: random_states(rng), callback, email });
    }
    for _ in 0..[0, 0, 0, 1, 2][rng.usize(..5)] * usize::from(checks) {
        let add_notifications = |rng: &mut Rng| {
            let (callback, email) = random_receiver(rng);
            Some(NotifyAction { callback, email })
        };
        let (passed, failed) = [
            (add_notifications(rng), None),
            (None, add_notifications(rng)),
            (add_notifications(rng), add_notifications(rng)),
        ][rng.usize(..3)]
        .clone();
        let after = Some(Millis(rng.u64(1..20_000)));
        script.checks.push(Check { after, at: None, expect: random_states(rng), passed, failed });
    }
    script.children.iter_mut().for_each(|child| add_notifications(&mut child.script, checks, rng));
}

fn random_states(rng: &mut Rng) -> Vec<State> {
    if rng.bool() {
        return ends();
    }
    let mut states = State::ALL.to_vec();
    states.retain(|state| *state != State::Expected && rng.u8(..3) == 0);
    if states.is_empty() { vec![State::Succeeded] } else { states }
}

fn random_receiver(rng: &mut Rng) -> (Option<Callback>, Option<Email>) {
    let fails = [0, 0, 0, 1, 3][rng.usize(..5)];
    if rng.bool() {
        (Some(Callback::to(&format!("https://a.example/{fails}"))), None)
    } else {
        (None, Some(Email { to: vec![format!("a@example.com{fails}")], ..Email::default() }))
    }
}

// ---- expected deliveries

/// Expected delivery.
struct ExpectedDelivery {
    task: TaskId,
    delivery: NotificationDelivery,
    task_type: &'static str,
    /// Number of its failing attempts.
    fails: u32,
}

/// State of a task up to the current event of the log.
#[derive(Default)]
struct TaskHistory {
    run: u32,
    changes: u32,
    state: Option<State>,
    own: Option<State>,
    /// Creation time of the first run.
    created_ms: Option<i64>,
    checked: Vec<u32>,
}

/// Expected deliveries by id.
async fn expected_deliveries(fleet: &Fleet, violations: &mut Vec<String>) -> BTreeMap<String, ExpectedDelivery> {
    let notification: Vec<_> =
        fleet.scripted_tasks.iter().filter(|(_, spec)| spec.script.rules().has_rules()).collect();
    let mut due = BTreeMap::new();
    for number in 0..fleet.scenario.events_partitions {
        let mut history: BTreeMap<&str, TaskHistory> = BTreeMap::new();
        let mut projection = Projection::open(Arc::new(memory::MemoryStore::default()), number).await.unwrap();
        for logged in logged(fleet, number) {
            projection.fold(std::slice::from_ref(&logged), logged.offset + 1).await.unwrap();
            for (id, spec) in &notification {
                let Some(task_record) =
                    projection.working_set().task(id).filter(|task_record| !task_record.is_external())
                else {
                    continue;
                };
                if !task_record.definition.announced {
                    history.entry(id).or_default().apply_unannounced(task_record);
                    continue;
                }
                for delivery in history.entry(id).or_default().apply(&spec.script, id, task_record, &logged, violations)
                {
                    add(&mut due, id, &spec.script, delivery);
                }
            }
        }
        let announced = history.iter().filter(|(_, history)| history.created_ms.is_some());
        for (id, history) in
            announced.filter(|(id, history)| history.checked.len() < fleet.scripted_tasks[**id].script.checks.len())
        {
            violations.push(format!("`{id}` has unevaluated checks; evaluated: {:?}", history.checked));
        }
    }
    due
}

fn add(due: &mut BTreeMap<String, ExpectedDelivery>, id: &str, script: &Script, delivery: NotificationDelivery) {
    let rules = script.rules();
    let Some(notification) = delivery.rule.notification(&rules) else { return };
    let task = TaskId::parse(id).unwrap();
    let (name, fails) = match notification {
        Notification::Callback(callback) => (CALLBACK, fails(&callback.url)),
        Notification::Email(email) => (EMAIL, fails(&email.to[0])),
    };
    due.insert(delivery.id(&task, notification), ExpectedDelivery { task, delivery, task_type: name, fails });
}

impl TaskHistory {
    fn enter(&mut self, run: u32) {
        if run != self.run {
            (self.run, self.changes, self.state, self.own) = (run, 0, None, None);
        }
    }

    /// Applies an event while the rules of the task are unknown.
    fn apply_unannounced(&mut self, task_record: &TaskRecord) {
        self.enter(task_record.run);
        self.own = Some(task_record.own);
    }

    /// Deliveries caused by an event.
    fn apply(
        &mut self,
        script: &Script,
        id: &str,
        task_record: &TaskRecord,
        logged: &LoggedEvent,
        violations: &mut Vec<String>,
    ) -> Vec<NotificationDelivery> {
        let created_ms = *self.created_ms.get_or_insert(task_record.times.created_at_ms.unwrap_or(START_MS));
        self.enter(task_record.run);
        let mut deliveries = Vec::new();
        for (state, at_ms) in self.implied_states(id, task_record, logged) {
            deliveries.extend(self.enter_state(script, state, logged.offset, at_ms));
        }
        self.own = Some(task_record.own);
        let mut rules = Vec::new();
        let check = match logged.event.payload {
            Payload::Checked { check } if logged.event.id.as_str() == id => check,
            _ => None,
        };
        if let Some(number) = check.filter(|number| !self.checked.contains(number)) {
            self.checked.push(number);
            let check = &script.checks[number as usize];
            if check.due_ms(created_ms) > Some(logged.event.at_ms) {
                violations
                    .push(format!("check {number} of `{id}` was evaluated at {}, before its time", logged.event.at_ms));
            }
            let passed = check.expect.contains(&task_record.state);
            rules.push(if passed { RuleRef::Passed(number as u8) } else { RuleRef::Failed(number as u8) });
        }
        let (run, change, state, cause, at_ms) =
            (self.run, self.changes, task_record.state, logged.offset, logged.event.at_ms);
        deliveries.extend(rules.into_iter().map(|rule| NotificationDelivery {
            rule,
            run,
            change,
            state,
            cause,
            at_ms,
        }));
        deliveries.extend(self.enter_state(script, task_record.state, cause, at_ms));
        deliveries
    }

    /// Deliveries of the actions for a state.
    fn enter_state(&mut self, script: &Script, state: State, cause: i64, at_ms: i64) -> Vec<NotificationDelivery> {
        if self.state == Some(state) || state == State::Expected {
            return Vec::new();
        }
        (self.state, self.changes) = (Some(state), self.changes + 1);
        let (run, change) = (self.run, self.changes);
        let actions = script.actions.iter().zip(0..).filter(|(action, _)| action.on.contains(&state));
        actions
            .map(|(_, n)| NotificationDelivery { rule: RuleRef::Action(n), run, change, state, cause, at_ms })
            .collect()
    }

    /// States that a worker's event implies without events of their own: an attempt was queued before it ran, and
    /// running before it warned or ended.
    fn implied_states(&self, id: &str, task_record: &TaskRecord, logged: &LoggedEvent) -> Vec<(State, i64)> {
        let event = &logged.event;
        let is_ignored = task_record
            .history
            .entries
            .iter()
            .rev()
            .find(|entry| entry.offset == logged.offset)
            .is_none_or(|entry| entry.ignored);
        let of_attempt = event.id.as_str() == id && event.run == task_record.run && event.worker.is_some();
        if !of_attempt || is_ignored || self.state == Some(State::Cancelling) || task_record.state == State::Cancelling
        {
            return Vec::new();
        }
        let began = match event.kind() {
            Kind::Started | Kind::Warned => event.payload.started_at_ms().or(Some(event.at_ms)),
            Kind::Retrying | Kind::Succeeded | Kind::Failed | Kind::Cancelled | Kind::Expired => {
                event.payload.started_at_ms()
            }
            _ => return Vec::new(),
        };
        let mut implied_states = Vec::new();
        if self.changes == 0 && !matches!(task_record.own, State::Queued | State::Scheduled) {
            implied_states.push((State::Queued, task_record.times.created_at_ms.unwrap_or_default()));
        } else if self.own == Some(State::Scheduled) {
            implied_states.extend(began.map(|at_ms| (State::Queued, at_ms)));
        }
        if event.kind() != Kind::Started && !matches!(self.own, Some(State::Running | State::Warning)) {
            implied_states.extend(began.map(|at_ms| (State::Running, at_ms)));
        }
        implied_states
    }
}

// ---- verdict

pub fn is_delivery(id: &str) -> bool {
    id.starts_with("callback-") || id.starts_with("email-")
}

/// Checks that each expected delivery is one task that was received, and that there are no others. Returns their
/// number.
pub async fn judge(fleet: &Fleet, records: &Records, log: &[Event], violations: &mut Vec<String>) -> usize {
    let due =
        if fleet.scenario.has_notifications() { expected_deliveries(fleet, violations).await } else { BTreeMap::new() };
    let mut created: BTreeMap<&str, usize> = BTreeMap::new();
    for event in log.iter().filter(|event| event.kind() == Kind::Scheduled && event.worker.is_none()) {
        *created.entry(event.id.as_str()).or_default() += usize::from(is_delivery(event.id.as_str()));
    }
    created.retain(|_, times| *times > 0);
    for (id, times) in &created {
        if *times > 1 || !due.contains_key(*id) {
            violations
                .push(format!("the delivery `{id}` was created {times} times, expected: {}", due.contains_key(*id)));
        }
    }
    let received = fleet.journal.received.lock();
    for id in received.keys().filter(|id| !due.contains_key(*id)) {
        violations.push(format!("`{id}` was delivered unexpectedly"));
    }
    for (id, one) in &due {
        let subject = format!("{:?} of `{}`, `{id}`,", one.delivery, one.task);
        let expected_state = if one.fails > RETRIES { State::Failed } else { State::Succeeded };
        let is =
            records.get(id).map(|task_record| (task_record.own, task_record.run, task_record.task_type.as_deref()));
        if is != Some((expected_state, 1, Some(one.task_type))) {
            violations.push(format!("{subject} must be {expected_state} and is {is:?}"));
        }
        let received = received.get(id).map(Vec::as_slice).unwrap_or_default();
        if received.len() <= one.fails.min(RETRIES) as usize || received.iter().any(|body| !matches(one, body)) {
            violations.push(format!("{subject} was delivered as {received:?}"));
        }
    }
    due.len()
}

/// Whether the body of a delivery matches its cause.
fn matches(due: &ExpectedDelivery, body: &Value) -> bool {
    let (data, delivery) = (&body["data"], due.delivery);
    let check = match delivery.rule.check() {
        Some((number, passed)) => {
            body["type"] == "task.check" && data["check"]["number"] == number && data["check"]["passed"] == passed
        }
        None => body["type"] == "task.state",
    };
    check
        && data["change"] == delivery.change
        && data["id"] == due.task.as_str()
        && data["state"] == delivery.state.name()
        && data["run"] == delivery.run
}
