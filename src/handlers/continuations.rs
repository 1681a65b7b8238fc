//! Continuations created by handlers.

use serde::de::DeserializeOwned;

use super::{Child, Context, Failure, Task, TaskResult};
use crate::model::task::continuation::{Continuation, Ended, MAX_CONTINUATIONS, check_continuations};

impl Continuation {
    /// Creates a continuation of a Rust type. For [`Continuation::with_results`] use [`Continuation::join`].
    pub fn of<T: Task>(task: &T) -> Self {
        Self::new(T::TYPE, serde_json::to_value(task).unwrap_or_default())
    }

    /// Creates a continuation whose params are a [`Joined`](crate::model::task::continuation::Joined): the given
    /// params and the results of the tasks it follows.
    pub fn join<T: Task>(params: impl serde::Serialize) -> Self {
        Self::new(T::TYPE, serde_json::to_value(params).unwrap_or_default()).with_results()
    }
}

impl Child {
    /// Adds a continuation of the child.
    pub fn then(mut self, then: Continuation) -> Self {
        self.policy.rules.then.push(then);
        self
    }
}

impl Ended {
    /// Deserialises the output.
    ///
    /// # Errors
    /// The task has no output because it failed, or the output has another type.
    pub fn output<T: DeserializeOwned>(&self) -> Result<T, String> {
        let text = self
            .output
            .as_ref()
            .map(|output| output.text())
            .ok_or_else(|| format!("`{}` has no output: it is {}", self.id, self.state))?;
        serde_json::from_str(text).map_err(|why| format!("the output of `{}` cannot be read: {why}", self.id))
    }
}

impl Context {
    /// Adds a continuation of this task, to run after it and its children have ended: its child `then`, `then-2`, …
    /// in the order of the calls, after those requested by the producer. Takes effect if this attempt succeeds.
    pub fn then(&self, then: Continuation) {
        let continuations = &mut self.spawned().continuations;
        // One continuation more than the limit is enough to fail the attempt.
        if continuations.len() <= MAX_CONTINUATIONS {
            continuations.push(then);
        }
    }

    /// Takes the continuations.
    ///
    /// # Errors
    /// A continuation is invalid.
    pub fn take_continuations(&self) -> TaskResult<Vec<Continuation>> {
        let continuations = std::mem::take(&mut self.spawned().continuations);
        match check_continuations(&continuations) {
            Ok(()) => Ok(continuations),
            Err((at, why)) => Err(Failure::fail(format!("a continuation (`{at}`): {why}")).of_kind("bad_child")),
        }
    }
}
