//! What others are told: callbacks and mails, whose other side is in memory here. What is to be told is found by folding the
//! log one event at a time, with an eye on the states alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use kafleet::handlers::builtin::callback::TYPE as CALLBACK;
use kafleet::handlers::builtin::email::TYPE as EMAIL;
use kafleet::handlers::{Context, Failure, Task, TaskResult};
use kafleet::model::event::{Event, Kind};
use kafleet::model::record::TaskRecord;
use kafleet::model::record::notifications::{Delivery, RuleRef};
use kafleet::model::record::state::State;
use kafleet::model::task::action::{Action, Callback, Check, Email, Notification, NotifyAction, ends};
use kafleet::model::task::id::TaskId;
use kafleet::model::units::duration::Millis;
use kafleet::store::memory;
use kafleet::tracker::project::projection::{Logged, Projection};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fleet::Fleet;
use crate::host::BEGINNING_MS;
use crate::trees::{Journal, Script};
use crate::verdict::{Records, logged};

const RETRIES: u32 = 2;
const MIN_BACKOFF: Duration = Duration::from_millis(300);
const MAX_BACKOFF: Duration = Duration::from_millis(1_000);

/// Who is called.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Call(Value);

/// Who gets mail.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Mail(Value);

impl Task for Call {
    const TYPE: &'static str = CALLBACK;
    const RETRIES: u32 = RETRIES;
    const MIN_BACKOFF: Duration = MIN_BACKOFF;
    const MAX_BACKOFF: Duration = MAX_BACKOFF;
    type Output = ();

    async fn run(self, cx: Context) -> TaskResult<()> {
        hear(&cx, self.0["url"].as_str(), &self.0["body"])
    }
}

impl Task for Mail {
    const TYPE: &'static str = EMAIL;
    const RETRIES: u32 = RETRIES;
    const MIN_BACKOFF: Duration = MIN_BACKOFF;
    const MAX_BACKOFF: Duration = MAX_BACKOFF;
    type Output = ();

    async fn run(self, cx: Context) -> TaskResult<()> {
        hear(&cx, self.0["to"][0].as_str(), &self.0["about"])
    }
}

/// The last digit of the address says how many attempts fail.
fn hear(cx: &Context, address: Option<&str>, said: &Value) -> TaskResult<()> {
    let fails = fails(address.unwrap_or_default());
    let journal = cx.state::<Arc<Journal>>();
    journal.begins(cx, fails == 0);
    journal.heard.lock().entry(cx.id.to_string()).or_default().push(said.clone());
    if cx.number <= fails { Err(Failure::retry("not now")) } else { Ok(()) }
}

fn fails(address: &str) -> u32 {
    address.chars().last().and_then(|digit| digit.to_digit(10)).unwrap_or_default()
}

// ---- who is to be told

pub fn tells(script: &Script) -> bool {
    let below = || script.children.iter().any(|kid| tells(&kid.script));
    !script.actions.is_empty() || !script.checks.is_empty() || below()
}

/// Adds actions, and checks if they may be, to some of the tasks of a tree.
pub fn tell(script: &mut Script, checks: bool, dice: &mut Rng) {
    for _ in 0..[0, 0, 1, 1, 2][dice.usize(..5)] {
        let (callback, email) = one_of(dice);
        script.actions.push(Action { on: states(dice), callback, email });
    }
    for _ in 0..[0, 0, 0, 1, 2][dice.usize(..5)] * usize::from(checks) {
        let tell = |dice: &mut Rng| {
            let (callback, email) = one_of(dice);
            Some(NotifyAction { callback, email })
        };
        let (passed, failed) = [(tell(dice), None), (None, tell(dice)), (tell(dice), tell(dice))][dice.usize(..3)].clone();
        let after = Some(Millis(dice.u64(1..20_000)));
        script.checks.push(Check { after, at: None, expect: states(dice), passed, failed });
    }
    script.children.iter_mut().for_each(|kid| tell(&mut kid.script, checks, dice));
}

fn states(dice: &mut Rng) -> Vec<State> {
    if dice.bool() {
        return ends();
    }
    let mut states = State::ALL.to_vec();
    states.retain(|state| *state != State::Expected && dice.u8(..3) == 0);
    if states.is_empty() { vec![State::Succeeded] } else { states }
}

fn one_of(dice: &mut Rng) -> (Option<Callback>, Option<Email>) {
    let fails = [0, 0, 0, 1, 3][dice.usize(..5)];
    match dice.bool() {
        true => (Some(Callback::to(&format!("https://a.example/{fails}"))), None),
        false => (None, Some(Email { to: vec![format!("a@example.com{fails}")], ..Email::default() })),
    }
}

// ---- what has to be told

/// A delivery that has to be there.
struct Due {
    task: TaskId,
    delivery: Delivery,
    telling: &'static str,
    /// Attempts of it that fail.
    fails: u32,
}

/// What one task has come to, as far as the log is read.
#[derive(Default)]
struct Seen {
    run: u32,
    changes: u32,
    state: Option<State>,
    own: Option<State>,
    /// When it was first made.
    created_ms: Option<i64>,
    checked: Vec<u32>,
}

/// By their ids.
async fn due(fleet: &Fleet, wrong: &mut Vec<String>) -> BTreeMap<String, Due> {
    let telling: Vec<_> = fleet.parts.iter().filter(|(_, part)| part.script.rules().tells()).collect();
    let mut due = BTreeMap::new();
    for number in 0..fleet.story.events_partitions {
        let mut seen: BTreeMap<&str, Seen> = BTreeMap::new();
        let mut folding = Projection::open(Arc::new(memory::Memory::default()), number).await.unwrap();
        for logged in logged(fleet, number) {
            folding.fold(std::slice::from_ref(&logged), logged.offset + 1).await.unwrap();
            for (id, part) in &telling {
                let Some(node) = folding.working_set().node(id).filter(|node| !node.is_external()) else { continue };
                if !node.announced {
                    seen.entry(id).or_default().wait(node);
                    continue;
                }
                for delivery in seen.entry(id).or_default().step(&part.script, id, node, &logged, wrong) {
                    add(&mut due, id, &part.script, delivery);
                }
            }
        }
        let announced = seen.iter().filter(|(_, seen)| seen.created_ms.is_some());
        for (id, seen) in announced.filter(|(id, seen)| seen.checked.len() < fleet.parts[**id].script.checks.len()) {
            wrong.push(format!("`{id}` has more checks than {:?}", seen.checked));
        }
    }
    due
}

fn add(due: &mut BTreeMap<String, Due>, id: &str, script: &Script, delivery: Delivery) {
    let rules = script.rules();
    let Some(telling) = delivery.rule.telling(&rules) else { return };
    let task = TaskId::parse(id).unwrap();
    let (name, fails) = match telling {
        Notification::Callback(callback) => (CALLBACK, fails(&callback.url)),
        Notification::Email(email) => (EMAIL, fails(&email.to[0])),
    };
    due.insert(delivery.id(&task, telling), Due { task, delivery, telling: name, fails });
}

impl Seen {
    fn enter(&mut self, run: u32) {
        if run != self.run {
            (self.run, self.changes, self.state, self.own) = (run, 0, None, None);
        }
    }

    /// Nothing is known yet of whom it is to tell.
    fn wait(&mut self, node: &TaskRecord) {
        self.enter(node.run);
        self.own = Some(node.own);
    }

    /// What the task has to tell of this event.
    fn step(&mut self, script: &Script, id: &str, node: &TaskRecord, logged: &Logged, wrong: &mut Vec<String>) -> Vec<Delivery> {
        let created_ms = *self.created_ms.get_or_insert(node.created_at_ms.unwrap_or(BEGINNING_MS));
        self.enter(node.run);
        let mut deliveries = Vec::new();
        for (state, at_ms) in self.implied(id, node, logged) {
            deliveries.extend(self.comes_into(script, state, logged.offset, at_ms));
        }
        self.own = Some(node.own);
        let mut rules = Vec::new();
        let check = logged.event.check.filter(|_| logged.event.kind == Kind::Checked && logged.event.id.as_str() == id);
        if let Some(number) = check.filter(|number| !self.checked.contains(number)) {
            self.checked.push(number);
            let check = &script.checks[number as usize];
            if check.due_ms(created_ms) > Some(logged.event.at_ms) {
                wrong.push(format!("check {number} of `{id}` came at {}, before its time", logged.event.at_ms));
            }
            let passed = check.expect.contains(&node.state);
            rules.push(if passed { RuleRef::Passed(number as u8) } else { RuleRef::Failed(number as u8) });
        }
        let (run, change, state, cause, at_ms) = (self.run, self.changes, node.state, logged.offset, logged.event.at_ms);
        deliveries.extend(rules.into_iter().map(|rule| Delivery { rule, run, change, state, cause, at_ms }));
        deliveries.extend(self.comes_into(script, node.state, cause, at_ms));
        deliveries
    }

    /// What its actions tell of a state.
    fn comes_into(&mut self, script: &Script, state: State, cause: i64, at_ms: i64) -> Vec<Delivery> {
        if self.state == Some(state) || state == State::Expected {
            return Vec::new();
        }
        (self.state, self.changes) = (Some(state), self.changes + 1);
        let (run, change) = (self.run, self.changes);
        let actions = script.actions.iter().zip(0..).filter(|(action, _)| action.on.contains(&state));
        actions.map(|(_, n)| Delivery { rule: RuleRef::Action(n), run, change, state, cause, at_ms }).collect()
    }

    /// The states that the task was in before this word of its worker and that none has told: whoever works on a task has
    /// taken it from its queue, and whoever has ended an attempt, or warns in one, has begun it.
    fn implied(&self, id: &str, node: &TaskRecord, logged: &Logged) -> Vec<(State, i64)> {
        let event = &logged.event;
        let is_ignored = node.history.iter().rev().find(|entry| entry.offset == logged.offset).is_none_or(|entry| entry.ignored);
        let of_attempt = event.id.as_str() == id && event.run == node.run && event.worker.is_some();
        if !of_attempt || is_ignored || self.state == Some(State::Cancelling) || node.state == State::Cancelling {
            return Vec::new();
        }
        let began = match event.kind {
            Kind::Started | Kind::Warned => event.started_at_ms.or(Some(event.at_ms)),
            Kind::Retrying | Kind::Succeeded | Kind::Failed | Kind::Cancelled | Kind::Expired => event.started_at_ms,
            _ => return Vec::new(),
        };
        let mut implied = Vec::new();
        if self.changes == 0 && !matches!(node.own, State::Queued | State::Scheduled) {
            implied.push((State::Queued, node.created_at_ms.unwrap_or_default()));
        } else if self.own == Some(State::Scheduled) {
            implied.extend(began.map(|at_ms| (State::Queued, at_ms)));
        }
        if event.kind != Kind::Started && !matches!(self.own, Some(State::Running | State::Warning)) {
            implied.extend(began.map(|at_ms| (State::Running, at_ms)));
        }
        implied
    }
}

// ---- what was told

fn is_delivery(id: &str) -> bool {
    id.starts_with("callback-") || id.starts_with("email-")
}

/// Each is one task, made once, and has been heard of; nothing else is told. Returns how many there are.
pub async fn judge(fleet: &Fleet, records: &Records, log: &[Event], wrong: &mut Vec<String>) -> usize {
    let due = match fleet.story.tells() {
        true => due(fleet, wrong).await,
        false => BTreeMap::new(),
    };
    let mut made: BTreeMap<&str, usize> = BTreeMap::new();
    for event in log.iter().filter(|event| event.kind == Kind::Scheduled && event.worker.is_none()) {
        *made.entry(event.id.as_str()).or_default() += usize::from(is_delivery(event.id.as_str()));
    }
    made.retain(|_, times| *times > 0);
    for (id, times) in &made {
        if *times > 1 || !due.contains_key(*id) {
            wrong.push(format!("the delivery `{id}` was made {times} times, and is due: {}", due.contains_key(*id)));
        }
    }
    let heard = fleet.journal.heard.lock();
    for id in heard.keys().filter(|id| !due.contains_key(*id)) {
        wrong.push(format!("`{id}` was told, and nothing was to be"));
    }
    for (id, one) in &due {
        let told = format!("{:?} of `{}`, `{id}`,", one.delivery, one.task);
        let wanted = if one.fails > RETRIES { State::Failed } else { State::Succeeded };
        let is = records.get(id).map(|node| (node.own, node.run, node.task_type.as_deref()));
        if is != Some((wanted, 1, Some(one.telling))) {
            wrong.push(format!("{told} has to be {wanted} and is {is:?}"));
        }
        let heard = heard.get(id).map(Vec::as_slice).unwrap_or_default();
        if heard.len() <= one.fails.min(RETRIES) as usize || heard.iter().any(|said| !fits(one, said)) {
            wrong.push(format!("{told} was told as {heard:?}"));
        }
    }
    due.len()
}

/// What is said is what has happened.
fn fits(due: &Due, said: &Value) -> bool {
    let (data, delivery) = (&said["data"], due.delivery);
    let check = match delivery.rule.check() {
        Some((number, passed)) => {
            said["type"] == "task.check" && data["check"]["number"] == number && data["check"]["passed"] == passed
        }
        None => said["type"] == "task.state",
    };
    check
        && data["change"] == delivery.change
        && data["id"] == due.task.as_str()
        && data["state"] == delivery.state.name()
        && data["run"] == delivery.run
}
