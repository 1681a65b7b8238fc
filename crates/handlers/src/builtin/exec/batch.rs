//! A program that takes several tasks in one run: a line of JSON for each on its stdin, and for each a line with its outcome on
//! its stdout.

use kafleet_model::json::RawJson;
use serde::Serialize;

use super::stderr_protocol::Contexts;
use super::{Program, ProgramEnd, ProgramInput};
use crate::builtin::batch_answers::{ItemAnswer, in_order};
use crate::failure::excerpt;
use crate::{Answer, BatchAnswer, BatchContext, Failure, Item};

/// Line on stdin: a task.
#[derive(Serialize)]
struct ItemLine<'a> {
    id: &'a str,
    run: u32,
    attempt: u32,
    /// Idempotency key.
    key: String,
    params: &'a RawJson,
}

impl Program {
    /// Runs the program for several tasks. What it has answered counts, whatever its exit code is; the exit code is the answer of
    /// the other tasks. Without any answer, a failure is that of the call.
    pub(super) async fn run_batch(&self, items: Vec<Item<RawJson>>, cx: BatchContext) -> BatchAnswer {
        let mut command = self.command(cx.task_type());
        command.env("KAFLEET_BATCH", items.len().to_string());
        let input = ProgramInput {
            text: lines_of(&items)?,
            max_output: self.max_output.saturating_mul(items.len()),
            stop: cx.cancelled(),
        };
        let contexts = Contexts::of_batch(items.iter().map(|item| &item.cx));
        let ProgramEnd { status, output, errors } = self.execute(command, input, &contexts).await?;
        if output.too_large {
            return Err(self.too_large());
        }
        let rest = self.outcome(status, &errors, cx.is_cancelled());
        let answers = match answers_of(&output.bytes) {
            Ok(answers) => answers,
            // A program that fails may leave half a line.
            Err(failure) => return Err(rest.err().unwrap_or(failure)),
        };
        match rest {
            Err(failure) if answers.is_empty() => Err(failure),
            rest => Ok(in_order(items.iter().map(|item| &item.cx), answers, || match &rest {
                Ok(()) => Ok(RawJson::null()),
                Err(failure) => Err(failure.clone()),
            })),
        }
    }
}

fn lines_of(items: &[Item<RawJson>]) -> Result<String, Failure> {
    let mut text = String::new();
    for Item { params, cx } in items {
        let key = cx.idempotency_key();
        let line = ItemLine { id: cx.id.as_str(), run: cx.run, attempt: cx.number, key, params };
        text += &serde_json::to_string(&line)
            .map_err(|error| Failure::fail(format!("the params are not JSON: {error}")).of_kind("bad_params"))?;
        text.push('\n');
    }
    Ok(text)
}

/// Reads the answers, one a line; empty lines are ignored.
fn answers_of(stdout: &[u8]) -> Result<Vec<(String, Answer)>, Failure> {
    let lines = stdout.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    let read = |line: &[u8]| match serde_json::from_slice::<ItemAnswer>(line) {
        Ok(answer) => Ok(answer.read()),
        Err(error) => {
            let begins = excerpt(line, 100);
            let hint = "write a line such as {\"id\": \"t-1\", \"ok\": 7} for each task";
            let message = format!("a line of the program's output is no answer ({error}): `{begins}`; hint: {hint}");
            Err(Failure::fail(message).of_kind("bad_output"))
        }
    };
    lines.map(read).collect()
}
