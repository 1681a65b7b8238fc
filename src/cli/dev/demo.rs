//! `dev --demo`: a small load of trees that goes on, so that every verb has something to show.
//!
//! [`scene`] says what happens, by number alone: a task, and what an operator does about it some beats later. [`Demo`] lets
//! one scene follow the other over the API, as long as few tasks are open.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::documents::{PauseType, SetKill, StateDocument};
use crate::cli::client::{Client, Method, Query};
use crate::cli::exit::{Code, Failure};
use crate::cli::output::tell;
use crate::config::{Config, Role, TokenConfig};
use crate::handlers::builtin::demo::{FETCH, IMPORT, ORDER, PACK, REPORT, SLOW};
use crate::model::units::duration::Millis;

/// Scenes before they come again, each with another number.
pub const SCENES: u64 = 12;
/// Roots open at once; at so many no scene begins.
const MAX_OPEN: usize = 24;
/// Between two beats: at first, so that there is soon something to see, and then.
const FIRST_BEAT: Duration = Duration::from_millis(300);
const BEAT: Duration = Duration::from_secs(4);
/// A tag whose tasks are not started.
const RECALLED: &str = "demo-recalled";
/// Finished trees, dead letters and records are kept for so long, which bounds the memory that the demo takes.
const KEPT: Millis = Millis::secs(15 * 60);
const MAX_TREE_AGE: Millis = Millis::secs(60 * 60);

/// Keeps little and for a short time.
pub fn configure(config: &mut Config) {
    let topics = &mut config.topics;
    (topics.record_retention, topics.dead_retention) = (KEPT, KEPT);
    (topics.max_tree_age, topics.task_retention) = (MAX_TREE_AGE, MAX_TREE_AGE);
}

/// Refuses tokens of which none lets the demo act as an operator.
pub fn check(tokens: &[TokenConfig]) -> Result<(), Failure> {
    match tokens.is_empty() || tokens.iter().any(|token| token.role >= Role::Operate) {
        true => Ok(()),
        false => {
            Err(Failure::usage("the demo needs one of `api.tokens` to have the role `operate`")
                .hint("add one, or leave them out"))
        }
    }
}

/// A line for the banner.
pub fn banner(url: &str) -> String {
    format!(
        "  demo   some trees at a time, kept for {KEPT}; such as\n         \
         KAFLEET_API={url} kafleet list --level any\n"
    )
}

/// A call of an operator, about a task.
#[derive(Clone, Debug, PartialEq)]
enum Order {
    Cancel(String),
    Retry(String),
    Report(String, Value),
}

/// A task, and what is done about it so many beats later.
#[derive(Debug)]
struct Scene {
    task: Value,
    later: Vec<(u64, Order)>,
}

impl Scene {
    fn of(task: Value) -> Self {
        Self { task, later: Vec::new() }
    }

    fn later(mut self, beats: u64, order: Order) -> Self {
        self.later.push((beats, order));
        self
    }
}

fn scene(number: u64) -> Scene {
    let n = number / SCENES + 1;
    let root = |id: &str, task_type: &str, name: &str, params: Value| json!({"id": format!("{id}-{n}"), "type": task_type, "name": name, "creator": "demo", "params": params});
    let with = |mut task: Value, more: Value| {
        if let (Some(task), Value::Object(more)) = (task.as_object_mut(), more) {
            task.extend(more);
        }
        Scene::of(task)
    };
    let named = |id: &str| format!("{id}-{n}");
    let child = |id: &str, task_type: &str, params: Value| json!({"id": id, "type": task_type, "params": params});
    match number % SCENES {
        0 => with(
            root(
                "order",
                ORDER,
                "an order",
                json!({"log": ["the order is complete"], "children": [
                    child("fetch", FETCH, json!({"failing_attempts": 1, "log": ["looking on the shelf"]})),
                    child("pack", PACK, json!({"steps": 4, "pause": "1s", "attach": "slip"})),
                ]}),
            ),
            json!({"tags": ["shop"]}),
        ),
        1 => with(root("later", REPORT, "a report for later", json!({"steps": 1, "pause": "1s"})), json!({"delay": "45s"})),
        2 => with(
            json!({"id": named("ticket"), "type": "demo-ticket", "name": "a ticket of another system"}),
            json!({
            "external": true, "creator": "demo", "options": {"queue": "support"}}),
        )
        .later(1, Order::Report(named("ticket"), json!({"state": "running", "message": "somebody looks at it"})))
        .later(6, Order::Report(named("ticket"), json!({"state": "succeeded", "result": {"answered": true}}))),
        3 => Scene::of(root("import", IMPORT, "an import of a paused type", json!({"steps": 1, "pause": "1s"})))
            .later(3 * SCENES, Order::Cancel(named("import"))),
        4 => Scene::of(root(
            "broken",
            ORDER,
            "an order that cannot be fetched",
            json!({"children": [
                child("fetch", FETCH, json!({"failing_attempts": 1000, "log": ["no answer"]})),
                child("pack", PACK, json!({"steps": 2, "pause": "1s"})),
            ]}),
        )),
        5 => Scene::of(root("long", SLOW, "too long", json!({"steps": 200, "pause": "3s", "log": ["this takes a while"]})))
            .later(5, Order::Cancel(named("long"))),
        6 => Scene::of(root("slow", SLOW, "one at a time", json!({"steps": 3, "pause": "1s"}))),
        7 => Scene::of(root("flaky", FETCH, "fails until it is retried", json!({"steps": 1, "pause": "1s", "failing_runs": 1})))
            .later(4, Order::Retry(named("flaky"))),
        8 => Scene::of(root(
            "warned",
            REPORT,
            "with a warning",
            json!({
            "steps": 8, "pause": "1s", "warn": "the disk is nearly full", "log": ["reading", "writing"]}),
        )),
        9 => {
            let parts: Vec<Value> = (1..=12)
                .map(|part| child(&format!("part-{part}"), PACK, json!({"steps": 2, "pause": format!("{}ms", part * 200)})))
                .collect();
            let then = json!({"on": "ended", "type": REPORT, "params": {"log": ["all parts have ended"]}, "name": "the bill"});
            with(root("parts", ORDER, "many parts, then a bill", json!({"children": parts})), json!({"then": [then]}))
        }
        10 => Scene::of(root("lost", REPORT, "a dead letter", json!({"steps": 1, "pause": "1s", "dead": true}))),
        _ => with(root("recalled", FETCH, "not started any more", json!({})), json!({"tags": [RECALLED]})),
    }
}

/// Plays one scene after the other.
pub struct Demo<'a> {
    client: &'a Client,
    prepared: bool,
    beat: u64,
    scene: u64,
    /// Roots that had not ended when they were looked at last; at most [`MAX_OPEN`].
    open: Vec<String>,
    /// What is to be done, and at which beat; a few for each open root.
    due: Vec<(u64, Order)>,
    /// The last failure that was told.
    told: String,
}

impl<'a> Demo<'a> {
    pub fn new(client: &'a Client) -> Self {
        Self { client, prepared: false, beat: 0, scene: 0, open: Vec::new(), due: Vec::new(), told: String::new() }
    }

    /// Goes on until it is dropped.
    pub async fn play(mut self) {
        loop {
            let beaten = self.beat().await;
            self.tell_failure(beaten);
            tokio::time::sleep(if self.scene < SCENES { FIRST_BEAT } else { BEAT }).await;
        }
    }

    /// What stands from the beginning: a pause, a kill switch, schedules.
    async fn prepare(&self) -> Result<(), Failure> {
        let pause = PauseType { reason: Some("the demo shows a pause".into()) };
        let _: Value = self.client.post(&["v1", "types", IMPORT, "pause"], Some(&pause)).await?;
        let kill = SetKill { task_type: Some(FETCH.into()), reason: Some("the demo shows a kill switch".into()) };
        let _: Value = self.client.call(Method::PUT, &["v1", "kill", RECALLED], Some(&kill)).await?;
        let task = json!({"type": REPORT, "params": {"steps": 2, "pause": "1s"}});
        for schedule in [
            json!({"id": "demo-regular", "spec": {"every": "20s", "task": task}}),
            json!({"id": "demo-nightly", "spec": {"cron": "0 3 * * MON-FRI", "timezone": "Europe/Berlin", "task": task}}),
        ] {
            // An earlier try may have come so far.
            let made = self.client.post::<Value>(&["v1", "schedules"], Some(&schedule)).await;
            if !is_over(&made) {
                made?;
            }
        }
        Ok(())
    }

    /// Does what is due, and begins a scene where there is room.
    async fn beat(&mut self) -> Result<(), Failure> {
        if !self.prepared {
            self.prepare().await?;
            self.prepared = true;
        }
        self.beat += 1;
        let now = self.beat;
        for order in self.due.extract_if(.., |(at, _)| *at <= now).map(|(_, order)| order).collect::<Vec<_>>() {
            self.give(order).await?;
        }
        self.look().await?;
        if self.open.len() >= MAX_OPEN {
            return Ok(());
        }
        let Scene { task, later } = scene(self.scene);
        self.scene += 1;
        let created: Value = self.client.post(&["v1", "tasks"], Some(&task)).await?;
        self.open.extend(created["id"].as_str().map(str::to_owned));
        self.due.extend(later.into_iter().map(|(beats, order)| (now + beats, order)));
        Ok(())
    }

    /// Forgets the roots that have ended.
    async fn look(&mut self) -> Result<(), Failure> {
        let mut open = Vec::with_capacity(self.open.len());
        for id in std::mem::take(&mut self.open) {
            let looked = self.client.get::<StateDocument>(&["v1", "tasks", &id, "state"], &Query::new()).await;
            if !matches!(&looked, Ok(found) if found.state.is_terminal()) && !is_over(&looked) {
                open.push(id);
            }
        }
        self.open = open;
        Ok(())
    }

    /// The user of the demo may have been quicker: what cannot be done any more is left.
    async fn give(&self, order: Order) -> Result<(), Failure> {
        let done = match &order {
            Order::Cancel(id) => {
                let body = json!({"reason": "the demo shows a cancel"});
                self.client.post::<Value>(&["v1", "tasks", id, "cancel"], Some(&body)).await
            }
            Order::Retry(id) => {
                let body = json!({"reason": "the demo shows a retry"});
                self.client.post::<Value>(&["v1", "tasks", id, "retry"], Some(&body)).await
            }
            Order::Report(id, body) => self.client.call::<Value>(Method::PUT, &["v1", "tasks", id, "state"], Some(body)).await,
        };
        if is_over(&done) { Ok(()) } else { done.map(drop) }
    }

    /// Says once what goes wrong again and again.
    fn tell_failure(&mut self, done: Result<(), Failure>) {
        let text = done.err().map(|why| why.message).unwrap_or_default();
        if !text.is_empty() && text != self.told {
            tell(format_args!("the demo goes on, but: {text}"));
        }
        self.told = text;
    }
}

/// There is no such task any more, or it is not in a state for this.
fn is_over<T>(answer: &Result<T, Failure>) -> bool {
    matches!(answer, Err(why) if matches!(why.code, Code::NotFound | Code::Failed))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::documents::{CreateTask, Report};
    use crate::handlers::builtin::demo::Play;

    #[test]
    fn every_scene_is_a_task_that_its_type_takes() {
        let mut ids = BTreeSet::new();
        for number in 0..3 * SCENES {
            let Scene { task, later } = scene(number);
            let task: CreateTask = serde_json::from_value(task).unwrap();
            let id = task.id.clone().unwrap();
            assert!(ids.insert(id.clone()), "`{id}` comes twice");
            if !task.external {
                serde_json::from_value::<Play>(task.params.clone()).unwrap_or_else(|why| panic!("`{id}`: {why}"));
            }
            for (beats, order) in later {
                assert!(beats > 0);
                let about = match order {
                    Order::Report(about, body) => serde_json::from_value::<Report>(body).map(|_| about).unwrap(),
                    Order::Cancel(about) | Order::Retry(about) => about,
                };
                assert_eq!(about, id);
            }
        }
    }
}
