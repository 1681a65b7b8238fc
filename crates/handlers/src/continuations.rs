//! Continuations created by handlers.

use kafleet_model::json::RawJson;
use kafleet_model::task::continuation::{Continuation, MAX_CONTINUATIONS, check_continuations};
use kafleet_runtime::now_ms;
use serde::Serialize;

use super::{Child, Context, Failure, TaskResult};

/// Kind of the failure of an attempt with a continuation that cannot be created.
pub const BAD_THEN: &str = "bad_then";

pub(super) fn encode(params: impl Serialize) -> TaskResult<RawJson> {
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
    use crate::Task;

    #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    struct KeyedTask(BTreeMap<Option<u8>, u8>);

    impl Task for KeyedTask {
        const TYPE: &'static str = "keyed";
        type Output = ();

        async fn run(self, _: Context) -> TaskResult<()> {
            Ok(())
        }
    }

    #[test]
    fn continuation_that_is_not_json_is_a_final_failure() {
        let params = BTreeMap::from([(None, 2)]);
        let failures = [KeyedTask(params.clone()).to_continuation(), KeyedTask::join(params)];
        for failure in failures.map(|created| created.expect_err("the keys are not strings")) {
            assert_eq!(&*failure.kind, "bad_then");
            assert!(failure.message.contains("not JSON: key must be a string"), "{failure}");
        }
        assert!(KeyedTask(BTreeMap::new()).to_continuation().is_ok());
    }
}
