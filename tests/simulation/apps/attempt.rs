//! Attempt in a simulated process: follows the script of its task, and misbehaves where the script fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kafleet::documents::CreateTask;
use kafleet::model::units::duration::Millis;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::deaths::How;
use super::process::ProcessHandle;
use crate::journal::{Execution, RunningAttempt};
use crate::task_types::{ChildSpec, Outcome, Script, TaskParams};

/// End of an attempt for its process.
pub enum AttemptEnd {
    Answered,
    /// The attempt ends its process. `error`: its answer if the process goes on.
    Dies {
        how: How,
        error: Value,
    },
}

/// Attempt that a process has read.
pub struct AppAttempt {
    shared: Arc<ProcessHandle>,
    n: u64,
    execution: Execution,
    script: Script,
    cancel: CancellationToken,
    replied: oneshot::Receiver<bool>,
    /// `None` once it has been answered.
    running: Option<RunningAttempt>,
}

impl AppAttempt {
    /// Records the start of an attempt.
    pub fn new(
        shared: Arc<ProcessHandle>,
        n: u64,
        execution: Execution,
        params: Value,
        cancel: CancellationToken,
        replied: oneshot::Receiver<bool>,
    ) -> Self {
        let journal = &shared.app.journal;
        let params: TaskParams = serde_json::from_value(params).unwrap();
        let script = params.script(&execution.attempt.id, journal);
        let running = Some(journal.record_attempt(&execution));
        Self { shared, n, execution, script, cancel, replied, running }
    }

    /// Runs the attempt to its end.
    pub async fn run(mut self) -> AttemptEnd {
        let obeys = fastrand::bool();
        tokio::select! {
            biased;
            () = tokio::time::sleep(Duration::from_millis(self.script.ms)) => {}
            () = self.cancel.cancelled(), if obeys => return self.fail("cancelled", None),
        }
        let n = self.n;
        if self.script.reports_progress {
            self.send(json!({"progress": {"n": n, "value": self.execution.attempt.number}}));
            self.send(json!({"log": {"n": n, "lines": ["attempt"]}}));
            self.send(json!({"heartbeat": {"n": n}}));
        }
        match self.script.outcome(&self.shared.app.journal, &self.execution.attempt) {
            Outcome::Wait { after_ms } => self.fail("wait", after_ms),
            Outcome::Retry { after_ms } => self.misbehave(after_ms).await,
            Outcome::Fail => self.fail(if fastrand::bool() { "fail" } else { "dead" }, None),
            Outcome::Succeed => self.succeed().await,
        }
    }

    fn send(&self, message: Value) {
        self.shared.output.send(&message);
    }

    fn answer(&mut self, message: &Value) -> AttemptEnd {
        self.running = None;
        self.shared.answer(self.n, message);
        if fastrand::u8(..8) == 0 {
            // A second answer is ignored.
            self.shared.output.send(message);
        }
        AttemptEnd::Answered
    }

    fn error(&self, outcome: &str, after_ms: Option<u64>) -> Value {
        json!({"error": {"n": self.n, "outcome": outcome, "kind": "scripted", "message": "not yet", "after_ms": after_ms}})
    }

    fn fail(&mut self, outcome: &str, after_ms: Option<u64>) -> AttemptEnd {
        let message = self.error(outcome, after_ms);
        self.answer(&message)
    }

    /// Fails, ends the process or hangs.
    async fn misbehave(&mut self, after_ms: Option<u64>) -> AttemptEnd {
        let error = self.error("retry", after_ms);
        let is_troubled = fastrand::u32(..100) < self.shared.app.spec.trouble;
        let manner = if is_troubled { fastrand::u8(..6) } else { u8::MAX };
        let how = match manner {
            0..=2 => How::Crashed,
            3 => How::Garbled,
            _ => {
                self.shared.app.journal.charge(&self.execution.attempt);
                return if is_troubled { self.hang(&error).await } else { self.answer(&error) };
            }
        };
        AttemptEnd::Dies { how, error }
    }

    /// Does not answer before it is cancelled, and then in time, late or never.
    async fn hang(&mut self, error: &Value) -> AttemptEnd {
        let blocks = fastrand::bool();
        self.shared.app.journal.hung.lock().insert(self.execution.attempt.clone());
        if blocks {
            self.shared.is_blocked.store(true, Ordering::Relaxed);
        }
        let after_ms = [0, 100, 900, 3_000, u64::MAX][fastrand::usize(..5)];
        self.cancel.cancelled().await;
        if after_ms == u64::MAX {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        if blocks {
            self.shared.is_blocked.store(false, Ordering::Relaxed);
        }
        self.answer(error)
    }

    async fn succeed(&mut self) -> AttemptEnd {
        let n = self.n;
        for then in self.script.added_continuations() {
            self.send(json!({"then": {"n": n, "task": then}}));
        }
        let tasks: Vec<Value> = self.script.children.iter().enumerate().map(document).collect();
        if !tasks.is_empty() {
            let is_call = self.shared.app.spec.responsive && fastrand::bool();
            if !is_call {
                self.send(json!({"spawn": {"n": n, "tasks": tasks}}));
            } else if !self.publish(&tasks).await {
                return self.fail("wait", Some(500));
            }
        }
        if fastrand::u32(..200) < self.shared.app.spec.trouble {
            self.send(json!({"retire": {"reason": "it has grown"}}));
        }
        self.answer(&json!({"ok": {"n": n, "output": self.execution.attempt.run}}))
    }

    /// Publishes children at once. Returns whether they were published.
    async fn publish(&mut self, tasks: &[Value]) -> bool {
        self.shared.change(self.n, |running| running.has_spawned = true);
        self.send(json!({"spawn": {"n": self.n, "tasks": tasks, "call": self.n}}));
        (&mut self.replied).await.unwrap_or_default()
    }
}

/// Child of an attempt, as a document.
fn document((n, spec): (usize, &ChildSpec)) -> Value {
    let mut child = spec.child(n);
    child.policy.not_before_ms = None;
    let delay = (spec.delay_ms > 0).then_some(Millis(spec.delay_ms));
    let (id, task_type) = (child.segment, child.task_type.to_string());
    json!(CreateTask { task_type, params: child.params, id, delay, policy: child.policy, ..CreateTask::default() })
}
