//! Children of a task, as handlers spawn them.

use std::sync::Arc;
use std::time::Duration;

use kafleet_model::json::RawJson;
use kafleet_model::task::id::check_type;
use kafleet_model::task::{OnFailure, Policy};
use kafleet_model::units::duration::Millis;
use serde::{Deserialize, Serialize};

use super::Task;

/// A child task to spawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Child {
    /// Name of the child's type.
    pub task_type: Arc<str>,
    /// Params, any JSON. They are validated by the worker that runs the child.
    pub params: RawJson,
    /// Last segment of the id. Default: derived from type and params, so that the same work gets the same id.
    pub segment: Option<String>,
    /// Ordering key. Default: the child's id.
    pub key: Option<String>,
    /// Options of the task; unset ones have the defaults of its type.
    pub policy: Policy,
    /// Reason why the child cannot be published, which fails the parent's attempt.
    #[serde(skip)]
    pub(super) error: Option<String>,
    /// The hooks of the application have been run on the child.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) prepared: bool,
}

impl Child {
    /// Creates a child of any type. An invalid name of a type fails the attempt when its children are published.
    pub fn new(task_type: &str, params: impl Into<RawJson>) -> Self {
        let (params, segment, key, error) = (params.into(), None, None, check_type(task_type).err());
        Self { task_type: task_type.into(), params, segment, key, policy: Policy::default(), error, prepared: false }
    }

    /// Creates a child from a value of its Rust type, which becomes the params.
    pub fn of<T: Task>(task: &T) -> Self {
        match RawJson::of(task) {
            Ok(params) => Self::new(T::TYPE, params),
            Err(reason) => Self {
                error: Some(format!("the params are not JSON: {reason}")),
                ..Self::new(T::TYPE, RawJson::null())
            },
        }
    }

    /// Sets the last segment of the id: 1 to 128 characters of `A-Z a-z 0-9 . _ ~ @ -`.
    pub fn id(mut self, segment: impl Into<String>) -> Self {
        self.segment = Some(segment.into());
        self
    }

    /// Sets the ordering key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the display name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.policy.name = Some(name.into());
        self
    }

    /// Sets the timeout of one attempt. Default: the type's.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = Some(Millis::from(timeout));
        self
    }

    /// Sets the timeout of all attempts and waits together. Default: the type's.
    pub fn total_timeout(mut self, timeout: Duration) -> Self {
        self.policy.total_timeout = Some(Millis::from(timeout));
        self
    }

    /// Keeps a failure of the child from failing its parent.
    pub fn ignore_failure(mut self) -> Self {
        self.policy.on_failure = OnFailure::Ignore;
        self
    }

    /// Fails the child, and cancels its pending descendants, as soon as more of its own children have failed than
    /// [`Child::max_failed`] allows.
    pub fn fail_fast(mut self) -> Self {
        self.policy.rules.fail_fast = true;
        self
    }

    /// Sets the number of the child's own children that may fail without failing the child. Default 0.
    pub fn max_failed(mut self, number: u32) -> Self {
        self.policy.rules.max_failed = Some(number);
        self
    }
}
