//! What is to follow a task, said by its handler.

use serde::de::DeserializeOwned;

use super::{Child, Context, Failure, Task, TaskResult};
use crate::model::task::continuation::{Continuation, Ended, MAX_THENS, check_thens};

impl Continuation {
    /// A continuation of a Rust type. With [`Continuation::with_results`] use [`Continuation::join`].
    pub fn of<T: Task>(task: &T) -> Self {
        Self::new(T::TYPE, serde_json::to_value(task).unwrap_or_default())
    }

    /// One whose params are a [`Joined`](crate::model::task::continuation::Joined): these, and the results of what it follows.
    pub fn join<T: Task>(params: impl serde::Serialize) -> Self {
        Self::new(T::TYPE, serde_json::to_value(params).unwrap_or_default()).with_results()
    }
}

impl Child {
    /// What follows it; may be said several times.
    pub fn then(mut self, then: Continuation) -> Self {
        self.policy.rules.then.push(then);
        self
    }
}

impl Ended {
    /// Its output as what it is. An error: it has none, because it failed, or one of another kind.
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
    /// What follows this task when it and its children have ended: its child `then`, `then-2`, … in the order of the
    /// calls, behind those that its producer asked for. It counts when this attempt answers ok.
    pub fn then(&self, then: Continuation) {
        let thens = &mut self.gathered().thens;
        // One more than the limit is enough to fail the attempt.
        if thens.len() <= MAX_THENS {
            thens.push(then);
        }
    }

    /// Takes out what is to follow. An error where it cannot.
    pub fn take_thens(&self) -> TaskResult<Vec<Continuation>> {
        let thens = std::mem::take(&mut self.gathered().thens);
        match check_thens(&thens) {
            Ok(()) => Ok(thens),
            Err((at, why)) => Err(Failure::fail(format!("a continuation (`{at}`): {why}")).of_kind("bad_child")),
        }
    }
}
