//! Hooks of an application: functions that change or refuse tasks before they are published, and observers of the ends of
//! attempts.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::time::Duration;
//!
//! use kafleet::handlers::hooks::{Observe, Submission};
//! use kafleet::handlers::{Context, Failure};
//! use serde_json::json;
//!
//! /// Names the tenant of each task.
//! fn add_tenant(task: &mut Submission) -> Result<(), String> {
//!     let tenant = task.params.slice().member("tenant").and_then(|tenant| Some(tenant.string()?.into_owned()));
//!     match tenant.as_deref() {
//!         Some("closed") => Err("the tenant `closed` has no account".into()),
//!         Some(_) => Ok(()),
//!         None if task.params.set("tenant", json!("acme")) => Ok(()),
//!         None => Err("the params are no object".into()),
//!     }
//! }
//!
//! /// Counts the tasks that have failed.
//! #[derive(Default)]
//! struct Failures(AtomicU64);
//!
//! impl Observe for Failures {
//!     fn on_failure(&self, _cx: &Context, _failure: &Failure, _took: Duration) {
//!         self.0.fetch_add(1, Ordering::Relaxed);
//!     }
//! }
//!
//! let failures = Arc::new(Failures::default());
//! let app = kafleet::app().prepare(add_tenant).observe(failures.clone());
//! // app.task::<…>().main()
//! # let mut task = Submission::new("resize", json!({"url": "a.png"}));
//! # add_tenant(&mut task).unwrap();
//! # assert_eq!(task.params.text(), r#"{"url":"a.png","tenant":"acme"}"#);
//! # drop(app);
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kafleet_model::json::RawJson;
use kafleet_model::task::Policy;
use kafleet_runtime::error_text::panic_text;

use super::context::Attempt;
use super::{Child, Context, Failure};

/// Task that is about to be published, as hooks see it. Its id, run and type are fixed; everything else can be changed,
/// and is checked after the hooks.
#[derive(Debug)]
#[non_exhaustive]
pub struct Submission {
    task_type: Arc<str>,
    /// Params of the task, as text: a hook that decodes them rounds their numbers, [`RawJson::set`] does not. For the same
    /// params a hook must make the same ones each time: the id of a child without a segment of its own contains their
    /// hash, and an attempt that is repeated must not spawn it under another id.
    pub params: RawJson,
    /// Ordering key; `None`: the id.
    pub key: Option<String>,
    /// Options of the task.
    pub policy: Policy,
}

impl Submission {
    /// Creates a submission with default options, for tests of hooks.
    pub fn new(task_type: &str, params: impl Into<RawJson>) -> Self {
        Self { task_type: task_type.into(), params: params.into(), key: None, policy: Policy::default() }
    }

    /// Name of the type.
    pub fn task_type(&self) -> &str {
        &self.task_type
    }
}

/// Observer of attempts. A verdict is the decision about an ended attempt: success, retry, wait or failure. The worker
/// calls the methods in the order of the verdicts of a type. A method must not block: the tasks of the type wait for
/// it. An observer that panics is removed, with an error in the log and in `kafleet_observers_removed_total`.
///
/// Attempts that end without a verdict (cancelled ones, and those that a worker leaves to others) have no second call, and
/// tasks that end without an attempt (invalid params, expired or cancelled before their start) have none at all. A verdict
/// may be observed again: execution is at least once.
pub trait Observe: Send + Sync + 'static {
    /// An attempt starts. Called again if it starts again because its process has ended.
    fn on_start(&self, cx: &Context) {
        let _ = cx;
    }

    /// The running attempt has written a line to the task's log. Called on any thread, also for lines that the log drops
    /// because it is full.
    fn on_log(&self, attempt: &Attempt, line: &str) {
        let _ = (attempt, line);
    }

    /// The task has succeeded, also with `on_error = "skip"`.
    fn on_success(&self, cx: &Context, took: Duration) {
        let _ = (cx, took);
    }

    /// The attempt has failed, and another one follows after `wait`.
    fn on_retry(&self, cx: &Context, failure: &Failure, wait: Duration) {
        let _ = (cx, failure, wait);
    }

    /// The attempt has ended with a wait, which does not count as an attempt; the next one follows after `wait`.
    fn on_wait(&self, cx: &Context, failure: &Failure, wait: Duration) {
        let _ = (cx, failure, wait);
    }

    /// The task has failed, after `took` of its last attempt.
    fn on_failure(&self, cx: &Context, failure: &Failure, took: Duration) {
        let _ = (cx, failure, took);
    }
}

impl<O: Observe> Observe for Arc<O> {
    fn on_start(&self, cx: &Context) {
        (**self).on_start(cx);
    }

    fn on_log(&self, attempt: &Attempt, line: &str) {
        (**self).on_log(attempt, line);
    }

    fn on_success(&self, cx: &Context, took: Duration) {
        (**self).on_success(cx, took);
    }

    fn on_retry(&self, cx: &Context, failure: &Failure, wait: Duration) {
        (**self).on_retry(cx, failure, wait);
    }

    fn on_wait(&self, cx: &Context, failure: &Failure, wait: Duration) {
        (**self).on_wait(cx, failure, wait);
    }

    fn on_failure(&self, cx: &Context, failure: &Failure, took: Duration) {
        (**self).on_failure(cx, failure, took);
    }
}

/// Function that changes or refuses a task before it is published.
type Prepare = dyn Fn(&mut Submission) -> Result<(), String> + Send + Sync;

/// Observer with the name of its Rust type.
#[doc(hidden)]
#[derive(Clone)]
pub struct NamedObserver {
    /// Name of the Rust type.
    pub name: &'static str,
    /// The observer.
    pub observer: Arc<dyn Observe>,
    /// Set after a panic; shared by all types.
    pub is_removed: Arc<AtomicBool>,
}

/// Hooks of an application, in the order in which they were added.
#[doc(hidden)]
#[derive(Clone, Default)]
pub struct Hooks {
    /// `None` without hooks, so that publishing costs nothing.
    prepare: Option<Arc<Vec<Arc<Prepare>>>>,
    /// Observers of attempts.
    pub observers: Vec<NamedObserver>,
}

impl Hooks {
    pub(super) fn add_prepare(&mut self, hook: Arc<Prepare>) {
        Arc::make_mut(self.prepare.get_or_insert_default()).push(hook);
    }

    pub(super) fn add_observer<O: Observe>(&mut self, observer: O) {
        let name = std::any::type_name::<O>();
        self.observers.push(NamedObserver { name, observer: Arc::new(observer), is_removed: Arc::default() });
    }

    /// Runs the hooks on a task. Fails with the error of the first hook that refuses the task.
    pub fn prepare(
        &self,
        task_type: &str,
        params: &mut RawJson,
        key: &mut Option<String>,
        policy: &mut Policy,
    ) -> Result<(), String> {
        let Some(hooks) = &self.prepare else { return Ok(()) };
        let mut task = Submission {
            task_type: task_type.into(),
            params: std::mem::take(params),
            key: key.take(),
            policy: std::mem::take(policy),
        };
        let outcome = hooks.iter().try_for_each(|hook| hook(&mut task));
        Submission { params: *params, key: *key, policy: *policy, .. } = task;
        outcome
    }

    /// Runs the hooks on a child, unless they have been run in another process. A panic refuses the child: it may be that
    /// of an app, whose messages a common task handles.
    pub(super) fn prepare_child(&self, child: &mut Child) {
        if self.prepare.is_none() || child.prepared {
            return;
        }
        child.prepared = true;
        let prepare = || self.prepare(&child.task_type, &mut child.params, &mut child.key, &mut child.policy);
        let outcome = catch_unwind(AssertUnwindSafe(prepare));
        let outcome = outcome.unwrap_or_else(|panic| Err(format!("a hook panicked: {}", panic_text(&*panic))));
        if let Err(error) = outcome {
            child.error.get_or_insert(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hooks_run_in_order_until_one_refuses_the_task() {
        let mut hooks = Hooks::default();
        hooks.add_prepare(Arc::new(|task: &mut Submission| {
            let steps = json!([task.task_type()]);
            if task.params.set("steps", steps) { Ok(()) } else { Err("no object".into()) }
        }));
        hooks.add_prepare(Arc::new(|task: &mut Submission| {
            task.key = task.params.slice().at("/steps/0").map(|step| step.text().to_owned());
            task.policy.tags.push("second".into());
            if task.params.slice().member("fails").is_some() { Err("no".into()) } else { Ok(()) }
        }));
        hooks.add_prepare(Arc::new(|task: &mut Submission| {
            task.policy.tags.push("third".into());
            Ok(())
        }));
        let prepare = |params: serde_json::Value| {
            let (mut params, mut key, mut policy) = (RawJson::from(params), None, Policy::default());
            let outcome = hooks.prepare("resize", &mut params, &mut key, &mut policy);
            let steps = params.slice().member("steps").map(|steps| steps.text().to_owned());
            (outcome, steps, key, policy.tags.join(","))
        };
        let (list, key) = (Some("[\"resize\"]".to_owned()), Some("\"resize\"".to_owned()));
        assert_eq!(prepare(json!({})), (Ok(()), list.clone(), key.clone(), "second,third".to_owned()));
        assert_eq!(prepare(json!({"fails": true})), (Err("no".to_owned()), list, key, "second".to_owned()));
    }

    /// The panic must not reach the task that spawns the child, which handles the messages of a whole app.
    #[test]
    fn hook_that_panics_refuses_the_child() {
        let mut hooks = Hooks::default();
        hooks.add_prepare(Arc::new(|task: &mut Submission| panic!("no tenant in {}", task.params)));
        let mut child = Child::new("resize", json!(1));
        hooks.prepare_child(&mut child);
        assert_eq!(child.error.as_deref(), Some("a hook panicked: no tenant in 1"));
    }
}
