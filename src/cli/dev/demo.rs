//! `dev --demo`: a small continuous load of trees, so that every verb has something to show.
//!
//! [`scenario`] is a pure function of a number: a task, and an operator's requests about it some ticks later.
//! [`Demo`] runs one scenario after the other over the API, as long as few trees are open.

use std::time::Duration;

use kafleet_config::{Config, Role, TokenConfig};
use kafleet_documents::{PauseType, SetKillSwitch, StateDocument};
use kafleet_handlers::builtin::demo::{FETCH, IMPORT, ORDER, PACK, REPORT, SLOW};
use kafleet_model::units::duration::Millis;
use serde_json::{Value, json};

use crate::cli::client::{Client, Method, Query};
use crate::cli::exit::{Code, Failure};
use crate::cli::output::eprint_line;
use crate::cli::setup::Setup;

/// Number of different scenarios, which repeat with new ids.
pub(super) const SCENARIOS: u64 = 13;
/// Maximum number of open roots; no scenario starts above it.
const MAX_OPEN: usize = 24;
/// Tick interval of the first round of scenarios, so that there is soon something to see.
const FIRST_TICK: Duration = Duration::from_millis(300);
const TICK: Duration = Duration::from_secs(4);
/// Tag of the demo's kill switch.
const RECALLED: &str = "demo-recalled";
/// Retention of finished trees, dead letters and records, which bounds the memory of the demo.
const RETENTION: Millis = Millis::secs(15 * 60);
const MAX_TREE_AGE: Millis = Millis::secs(60 * 60);

/// Configures a fleet for the demo, and registers its types.
pub(super) fn prepare(setup: &mut Setup) -> Result<(), Failure> {
    check(&setup.config.api.tokens)?;
    configure(&mut setup.config);
    kafleet_handlers::builtin::demo::register(&mut setup.registry);
    Ok(())
}

/// Sets short retention times.
fn configure(config: &mut Config) {
    let topics = &mut config.topics;
    topics.record_retention = RETENTION;
    topics.dead_retention = RETENTION;
    topics.max_tree_age = MAX_TREE_AGE;
    topics.task_retention = MAX_TREE_AGE;
}

/// Refuses tokens of which none has the role `operate`.
fn check(tokens: &[TokenConfig]) -> Result<(), Failure> {
    if tokens.is_empty() || tokens.iter().any(|token| token.role >= Role::Operate) {
        Ok(())
    } else {
        Err(Failure::usage("the demo needs one of `api.tokens` to have the role `operate`")
            .hint("add one, or remove the tokens"))
    }
}

/// Text about the demo for the banner.
pub(super) fn banner(url: &str) -> String {
    format!(
        "  demo   a few trees at a time, kept for {RETENTION}; try\n         \
         KAFLEET_API={url} kafleet list --level any\n"
    )
}

/// Request of an operator.
#[derive(Clone, Debug, PartialEq)]
enum OperatorCall {
    Cancel(String),
    Retry(String),
    Report(String, Value),
}

/// A task, and requests about it after a number of ticks.
#[derive(Debug)]
struct Scenario {
    task: Value,
    later: Vec<(u64, OperatorCall)>,
}

impl Scenario {
    fn of(task: Value) -> Self {
        Self { task, later: Vec::new() }
    }

    /// Adds fields to the task.
    fn with(mut self, fields: Value) -> Self {
        if let (Some(task), Value::Object(fields)) = (self.task.as_object_mut(), fields) {
            task.extend(fields);
        }
        self
    }

    fn with_later_call(mut self, ticks: u64, call: OperatorCall) -> Self {
        self.later.push((ticks, call));
        self
    }
}

fn child(id: &str, task_type: &str, params: Value) -> Value {
    json!({"id": id, "type": task_type, "params": params})
}

/// Creates the scenarios of one repetition, whose ids end with its number.
struct Round(u64);

impl Round {
    fn id(&self, name: &str) -> String {
        format!("{name}-{}", self.0)
    }

    fn root(&self, id: &str, task_type: &str, name: &str, params: Value) -> Scenario {
        let task = json!({"id": self.id(id), "type": task_type, "name": name, "creator": "demo", "params": params});
        Scenario::of(task)
    }

    fn order_scenario(&self) -> Scenario {
        let fetch = child("fetch", FETCH, json!({"failing_attempts": 1, "log": ["looking on the shelf"]}));
        let pack = child("pack", PACK, json!({"steps": 4, "pause": "1s", "attach": "slip"}));
        let params = json!({"log": ["the order is complete"], "children": [fetch, pack]});
        self.root("order", ORDER, "an order", params).with(json!({"tags": ["shop"]}))
    }

    fn external_ticket(&self) -> Scenario {
        let task = json!({"id": self.id("ticket"), "type": "demo-ticket", "name": "a ticket of another system",
            "external": true, "creator": "demo", "options": {"queue": "support"}});
        let running = json!({"state": "running", "message": "in progress"});
        let succeeded = json!({"state": "succeeded", "result": {"answered": true}});
        Scenario::of(task)
            .with_later_call(1, OperatorCall::Report(self.id("ticket"), running))
            .with_later_call(6, OperatorCall::Report(self.id("ticket"), succeeded))
    }

    fn failing_order(&self) -> Scenario {
        let fetch = child("fetch", FETCH, json!({"failing_attempts": 1000, "log": ["no answer"]}));
        let pack = child("pack", PACK, json!({"steps": 2, "pause": "1s"}));
        self.root("broken", ORDER, "an order that cannot be fetched", json!({"children": [fetch, pack]}))
    }

    fn many_parts(&self) -> Scenario {
        let part = |n: u64| child(&format!("part-{n}"), PACK, json!({"steps": 2, "pause": format!("{}ms", n * 200)}));
        let parts: Vec<Value> = (1..=12).map(part).collect();
        let then =
            json!({"on": "ended", "type": REPORT, "params": {"log": ["all parts have ended"]}, "name": "the bill"});
        self.root("parts", ORDER, "many parts, then a bill", json!({"children": parts})).with(json!({"then": [then]}))
    }
}

fn scenario(number: u64) -> Scenario {
    let round = Round(number / SCENARIOS + 1);
    let step = json!({"steps": 1, "pause": "1s"});
    match number % SCENARIOS {
        0 => round.order_scenario(),
        1 => round.root("later", REPORT, "a delayed report", step).with(json!({"delay": "45s"})),
        2 => round.external_ticket(),
        3 => round
            .root("import", IMPORT, "an import of a paused type", step)
            .with_later_call(3 * SCENARIOS, OperatorCall::Cancel(round.id("import"))),
        4 => round.failing_order(),
        5 => round
            .root("long", SLOW, "too long", json!({"steps": 200, "pause": "3s", "log": ["this takes a while"]}))
            .with_later_call(5, OperatorCall::Cancel(round.id("long"))),
        6 => round.root("late", SLOW, "starts too late behind a long one", step).with(json!({"expires": "500ms"})),
        7 => round.root("slow", SLOW, "one at a time", json!({"steps": 3, "pause": "1s"})),
        8 => round
            .root("flaky", FETCH, "fails until it is retried", json!({"steps": 1, "pause": "1s", "failing_runs": 1}))
            .with_later_call(4, OperatorCall::Retry(round.id("flaky"))),
        9 => {
            let params =
                json!({"steps": 40, "pause": "1s", "warn": "the disk is nearly full", "log": ["reading", "writing"]});
            round.root("warned", REPORT, "with a warning", params)
        }
        10 => round.many_parts(),
        11 => round.root("lost", REPORT, "a dead letter", json!({"steps": 1, "pause": "1s", "dead": true})),
        _ => round.root("recalled", FETCH, "cancelled by a kill switch", json!({})).with(json!({"tags": [RECALLED]})),
    }
}

/// Runs the scenarios.
pub(super) struct Demo<'a> {
    client: &'a Client,
    prepared: bool,
    ticks: u64,
    /// Number of the next scenario.
    next: u64,
    /// Roots that were open at the last check; at most [`MAX_OPEN`].
    open: Vec<String>,
    /// Requests and the ticks at which they are due; a few per open root.
    due: Vec<(u64, OperatorCall)>,
    /// Last failure that was reported.
    last_failure: String,
}

impl<'a> Demo<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        let last_failure = String::new();
        Self { client, prepared: false, ticks: 0, next: 0, open: Vec::new(), due: Vec::new(), last_failure }
    }

    /// Runs until dropped.
    pub(super) async fn play(mut self) {
        loop {
            let outcome = self.tick().await;
            self.report_failure(outcome);
            tokio::time::sleep(if self.next < SCENARIOS { FIRST_TICK } else { TICK }).await;
        }
    }

    /// Creates the lasting parts: a paused type, a kill switch, schedules.
    async fn prepare(&self) -> Result<(), Failure> {
        let pause = PauseType { reason: Some("the demo shows a pause".into()) };
        let _: Value = self.client.post(&["v1", "types", IMPORT, "pause"], Some(&pause)).await?;
        let kill = SetKillSwitch {
            task_type: Some(FETCH.into()),
            reason: Some("the demo shows a kill switch".into()),
            ..SetKillSwitch::default()
        };
        let _: Value = self.client.call(Method::PUT, &["v1", "kill-switches", RECALLED], Some(&kill)).await?;
        let task = json!({"type": REPORT, "params": {"steps": 2, "pause": "1s"}});
        for schedule in [
            json!({"id": "demo-regular", "spec": {"every": "20s", "task": task}}),
            json!({"id": "demo-nightly", "spec": {"cron": "0 3 * * MON-FRI", "timezone": "Europe/Berlin", "task": task}}),
        ] {
            // A previous attempt may have created it.
            let created = self.client.post::<Value>(&["v1", "schedules"], Some(&schedule)).await;
            if !is_settled(&created) {
                created?;
            }
        }
        Ok(())
    }

    /// Sends due requests, and starts a scenario unless too many roots are open.
    async fn tick(&mut self) -> Result<(), Failure> {
        if !self.prepared {
            self.prepare().await?;
            self.prepared = true;
        }
        self.ticks += 1;
        let now = self.ticks;
        for call in self.due.extract_if(.., |(at, _)| *at <= now).map(|(_, call)| call).collect::<Vec<_>>() {
            self.send_request(call).await?;
        }
        self.drop_ended().await?;
        if self.open.len() >= MAX_OPEN {
            return Ok(());
        }
        self.start_scenario().await
    }

    async fn start_scenario(&mut self) -> Result<(), Failure> {
        let Scenario { task, later } = scenario(self.next);
        self.next += 1;
        let created: Value = self.client.post(&["v1", "tasks"], Some(&task)).await?;
        self.open.extend(created["id"].as_str().map(str::to_owned));
        self.due.extend(later.into_iter().map(|(ticks, call)| (self.ticks + ticks, call)));
        Ok(())
    }

    /// Removes ended roots from the open ones.
    async fn drop_ended(&mut self) -> Result<(), Failure> {
        let mut open = Vec::with_capacity(self.open.len());
        for id in std::mem::take(&mut self.open) {
            let answer = self.client.get::<StateDocument>(&["v1", "tasks", &id, "state"], &Query::new()).await;
            if !matches!(&answer, Ok(status) if status.state.is_terminal()) && !is_settled(&answer) {
                open.push(id);
            }
        }
        self.open = open;
        Ok(())
    }

    /// Sends a request. It is ignored if a user has changed the task so that it no longer applies.
    async fn send_request(&self, call: OperatorCall) -> Result<(), Failure> {
        let done = match &call {
            OperatorCall::Cancel(id) => {
                let body = json!({"reason": "the demo shows a cancel"});
                self.client.post::<Value>(&["v1", "tasks", id, "cancel"], Some(&body)).await
            }
            OperatorCall::Retry(id) => {
                let body = json!({"reason": "the demo shows a retry"});
                self.client.post::<Value>(&["v1", "tasks", id, "retry"], Some(&body)).await
            }
            OperatorCall::Report(id, body) => {
                self.client.call::<Value>(Method::PUT, &["v1", "tasks", id, "state"], Some(body)).await
            }
        };
        if is_settled(&done) { Ok(()) } else { done.map(drop) }
    }

    /// Reports a failure, unless it repeats the last one.
    fn report_failure(&mut self, outcome: Result<(), Failure>) {
        let text = outcome.err().map(|error| error.message).unwrap_or_default();
        if !text.is_empty() && text != self.last_failure {
            eprint_line(format_args!("the demo continues after an error: {text}"));
        }
        self.last_failure = text;
    }
}

/// Returns whether a request no longer applies: the task does not exist or is in another state.
fn is_settled<T>(answer: &Result<T, Failure>) -> bool {
    matches!(answer, Err(error) if matches!(error.code, Code::NotFound | Code::Failed))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use kafleet_documents::{CreateTask, Report};
    use kafleet_handlers::builtin::demo::Play;

    #[test]
    fn every_scenario_is_a_valid_task() {
        let mut ids = BTreeSet::new();
        for number in 0..3 * SCENARIOS {
            let Scenario { task, later } = scenario(number);
            let task: CreateTask = serde_json::from_value(task).unwrap();
            let id = task.id.clone().unwrap();
            assert!(ids.insert(id.clone()), "`{id}` is used twice");
            if !task.policy.rules.external {
                serde_json::from_str::<Play>(task.params.text()).unwrap_or_else(|error| panic!("`{id}`: {error}"));
            }
            for (ticks, call) in later {
                assert!(ticks > 0);
                let about = match call {
                    OperatorCall::Report(about, body) => serde_json::from_value::<Report>(body).map(|_| about).unwrap(),
                    OperatorCall::Cancel(about) | OperatorCall::Retry(about) => about,
                };
                assert_eq!(about, id);
            }
        }
    }
}
