//! `foreach`: counts steps with a pause in between and reports progress. For trying out progress, cancellation and
//! failure.

use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Context, Failure, Task, TaskResult};

/// Counts steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Foreach {
    /// Number of steps.
    pub count: u32,
    /// Pause between two steps.
    #[serde(default = "one_second")]
    pub pause: Millis,
    /// Step that fails (the first is 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_at: Option<u32>,
}

/// Result of a `foreach` task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Counted")]
pub struct ForeachResult {
    pub steps: u32,
}

fn one_second() -> Millis {
    Millis::secs(1)
}

impl Task for Foreach {
    const TYPE: &'static str = "foreach";
    type Output = ForeachResult;

    async fn run(self, cx: Context) -> TaskResult<ForeachResult> {
        for step in 1..=self.count {
            if step > 1 {
                self.rest(&cx).await;
            }
            cx.check()?;
            if self.fail_at == Some(step) {
                return Err(Failure::fail(format!("step {step} of {} failed as requested by `fail_at`", self.count)));
            }
            cx.progress(json!({"step": step, "of": self.count}));
        }
        Ok(ForeachResult { steps: self.count })
    }
}

impl Foreach {
    async fn rest(&self, cx: &Context) {
        tokio::select! {
            () = tokio::time::sleep(self.pause.into()) => {}
            () = cx.cancelled().cancelled() => {}
        }
    }
}
