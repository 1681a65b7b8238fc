//! Answers of programs and web services to a call with several tasks, which name the tasks by their ids.

use std::time::Duration;

use kafleet_model::json::RawJson;
use kafleet_model::units::duration::Millis;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Deserializer};

use crate::{Answer, Context, Failure};

/// Outcome of a task in words of a program: one of the members says which, with the result or the reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemAnswer {
    id: String,
    /// Result.
    #[serde(default, deserialize_with = "present")]
    ok: Option<RawJson>,
    retry: Option<String>,
    wait: Option<String>,
    fail: Option<String>,
    dead: Option<String>,
    /// Kind of the error.
    kind: Option<String>,
    /// Time until the next attempt, of `retry` and `wait`.
    after: Option<Millis>,
}

/// Reads a value that is there, also `null`.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RawJson>, D::Error> {
    RawJson::deserialize(from).map(Some)
}

impl ItemAnswer {
    /// Reads the answer: the id of its task, and the outcome.
    pub(super) fn read(self) -> (String, Answer) {
        let Self { id, ok, retry, wait, fail, dead, kind, after } = self;
        let after = after.map(Duration::from);
        let number = [ok.is_some(), retry.is_some(), wait.is_some(), fail.is_some(), dead.is_some()];
        if number.iter().filter(|is_set| **is_set).count() != 1 {
            let message = "an answer has exactly one of `ok`, `retry`, `wait`, `fail` and `dead`";
            return (id, Err(Failure::fail(message).of_kind("bad_output")));
        }
        let retried = retry.map(|message| match after {
            Some(after) => Failure::retry_after(message, after),
            None => Failure::retry(message),
        });
        let failure = retried
            .or(wait.map(|message| Failure::wait(after, message)))
            .or(fail.map(Failure::fail))
            .or(dead.map(Failure::dead));
        let answer = match (ok, failure) {
            (_, Some(failure)) => Err(with_kind(failure, kind)),
            (ok, None) => Ok(ok.unwrap_or_else(RawJson::null)),
        };
        (id, answer)
    }
}

/// Gives a failure the kind that the answer names, if any.
pub(super) fn with_kind(failure: Failure, kind: Option<String>) -> Failure {
    match kind {
        Some(kind) => failure.of_kind(kind),
        None => failure,
    }
}

/// Puts answers into the order of the tasks. Of several answers for a task the last one counts; answers for other tasks are
/// ignored. `missing`: the answer of a task that has none.
pub(super) fn in_order<'a>(
    items: impl Iterator<Item = &'a Context>,
    answers: Vec<(String, Answer)>,
    missing: impl Fn() -> Answer,
) -> Vec<Answer> {
    let by_id: FxHashMap<String, Answer> = answers.into_iter().collect();
    items.map(|cx| by_id.get(cx.id.as_str()).cloned().unwrap_or_else(&missing)).collect()
}
