//! Continuations created by handlers.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Child, Context, Failure, Task, TaskResult};
use crate::model::json::RawJson;
use crate::model::task::continuation::{Continuation, Ended, MAX_CONTINUATIONS, check_continuations};
use crate::runtime::now_ms;

/// Kind of the failure of an attempt with a continuation that cannot be created.
pub(crate) const BAD_THEN: &str = "bad_then";

impl Continuation {
    /// Creates a continuation of a Rust type. For [`Continuation::with_results`] use [`Continuation::join`].
    ///
    /// # Errors
    /// The task cannot be encoded as JSON, for example because a map has keys that are not strings. The failure is final.
    pub fn of<T: Task>(task: &T) -> TaskResult<Self> {
        Ok(Self::new(T::TYPE, encode(task)?))
    }

    /// Creates a continuation whose params are a [`Joined`](crate::model::task::continuation::Joined): the given
    /// params and the results of the tasks it follows.
    ///
    /// # Errors
    /// The params cannot be encoded as JSON. The failure is final.
    pub fn join<T: Task>(params: impl Serialize) -> TaskResult<Self> {
        Ok(Self::new(T::TYPE, encode(params)?).with_results())
    }
}

fn encode(params: impl Serialize) -> TaskResult<RawJson> {
    let failure =
        |error| Failure::fail(format!("the params of a continuation are not JSON: {error}")).of_kind(BAD_THEN);
    RawJson::of(&params).map_err(failure)
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
        serde_json::from_str(text).map_err(|error| format!("the output of `{}` cannot be read: {error}", self.id))
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

    /// Takes the continuations. `first`: number of those that the task has already, from its producer.
    ///
    /// # Errors
    /// A continuation is invalid, or could not have an id.
    pub fn take_continuations(&self, first: usize) -> TaskResult<Vec<Continuation>> {
        let continuations = std::mem::take(&mut self.spawned().continuations);
        let checked = check_continuations(&continuations)
            .and_then(|()| self.limits().check_added(&self.id, first, &continuations, now_ms()));
        match checked {
            Ok(()) => Ok(continuations),
            Err((at, error)) => Err(Failure::fail(format!("a continuation (`{at}`): {error}")).of_kind(BAD_THEN)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    struct Keyed(BTreeMap<Option<u8>, u8>);

    impl Task for Keyed {
        const TYPE: &'static str = "keyed";
        type Output = ();

        async fn run(self, _: Context) -> TaskResult<()> {
            Ok(())
        }
    }

    #[test]
    fn continuation_that_is_not_json_is_a_final_failure() {
        let params = BTreeMap::from([(None, 2)]);
        let failures = [Continuation::of(&Keyed(params.clone())), Continuation::join::<Keyed>(params)];
        for failure in failures.map(|created| created.expect_err("the keys are not strings")) {
            assert_eq!(&*failure.kind, "bad_then");
            assert!(failure.message.contains("not JSON: key must be a string"), "{failure}");
        }
        assert!(Continuation::of(&Keyed(BTreeMap::new())).is_ok());
    }
}
