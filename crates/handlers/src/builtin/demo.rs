//! Task types of `kafleet dev --demo`: they work in steps and end as their params request.

use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Child, Context, Failure, Registry, Task, TaskResult, TypeRegistration};

pub const ORDER: &str = "demo-order";
pub const FETCH: &str = "demo-fetch";
pub const PACK: &str = "demo-pack";
pub const REPORT: &str = "demo-report";
/// Type paused by the demo.
pub const IMPORT: &str = "demo-import";
/// Type with one attempt at a time, so that others queue.
pub const SLOW: &str = "demo-slow";

/// Params of a demo task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Play {
    /// Number of steps, with progress after each.
    pub steps: u32,
    /// Duration of a step.
    pub pause: Millis,
    /// Log lines.
    pub log: Vec<String>,
    /// Warning shown until the task ends.
    pub warn: Option<String>,
    /// Name of a text attachment.
    pub attach: Option<String>,
    /// Number of attempts that fail before one succeeds.
    pub failing_attempts: u32,
    /// Number of runs that fail.
    pub failing_runs: u32,
    /// End as a dead letter.
    pub dead: bool,
    /// Children spawned on success.
    pub children: Vec<DemoChild>,
}

/// A child of a demo task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DemoChild {
    pub id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    #[serde(default)]
    pub params: Play,
}

/// Result of a demo task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Played")]
pub struct DemoResult {
    pub steps: u32,
}

impl Task for Play {
    const TYPE: &'static str = ORDER;
    type Output = DemoResult;

    async fn run(self, cx: Context) -> TaskResult<DemoResult> {
        self.log.iter().for_each(|line| cx.log(line));
        self.warn.iter().for_each(|message| cx.warn(message));
        for step in 1..=self.steps {
            tokio::select! {
                () = tokio::time::sleep(self.pause.into()) => {}
                () = cx.cancelled().cancelled() => {}
            }
            cx.check()?;
            cx.progress(json!({"step": step, "of": self.steps}));
        }
        if self.dead {
            return Err(Failure::dead("the address `nowhere` does not exist").of_kind("bad_address"));
        }
        if cx.run <= self.failing_runs {
            return Err(Failure::fail("the shelf is empty").of_kind("out_of_stock"));
        }
        if cx.number <= self.failing_attempts {
            return Err(Failure::retry("no answer from 10.0.0.7 in 2 s").of_kind("unreachable"));
        }
        if let Some(name) = &self.attach {
            cx.attach(name, "text/plain", format!("{} is done\n", cx.id))?;
        }
        for DemoChild { id, task_type, params } in self.children {
            cx.spawn_child(Child::new(&task_type, json!(params)).id(id));
        }
        Ok(DemoResult { steps: self.steps })
    }
}

/// Registers the demo's types whose names are free.
pub fn register(registry: &mut Registry) {
    for name in [ORDER, FETCH, PACK, REPORT, IMPORT, SLOW] {
        let mut registered = TypeRegistration::of::<Play>();
        // All attempts happen within the demo.
        let policy = &mut registered.policy;
        (policy.retries, policy.min_backoff, policy.max_backoff) = (2, Millis::secs(2), Millis::secs(4));
        registered.policy.concurrency = Some(if name == SLOW { 1 } else { 16 });
        if registry.get(name).is_none() {
            registry.add(name, registered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestRun;

    #[tokio::test(start_paused = true)]
    async fn demo_task_ends_as_its_params_request() {
        let child = DemoChild { id: "pack".into(), task_type: PACK.into(), params: Play::default() };
        let play = Play {
            steps: 2,
            pause: Millis::secs(1),
            log: vec!["begun".into()],
            warn: Some("the disk is nearly full".into()),
            attach: Some("slip".into()),
            children: vec![child],
            ..Play::default()
        };
        let outcome = TestRun::new().run(play).await;
        assert_eq!(outcome.output()["steps"], 2);
        assert_eq!((outcome.log(), outcome.children.len()), (vec!["begun"], 1));
        for (play, kind) in [
            (Play { dead: true, ..Play::default() }, "bad_address"),
            (Play { failing_runs: 1, ..Play::default() }, "out_of_stock"),
            (Play { failing_attempts: 1, ..Play::default() }, "unreachable"),
        ] {
            assert_eq!(TestRun::new().run(play).await.failure().kind, kind);
        }
    }
}
