//! Atomic submission: all lines of one tree in one request, all or none.

use serde_json::value::RawValue;

use super::ndjson::{InputFormat, Source, read};
use crate::cli::client::{Client, from_problem};
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::output::{Output, eprint_line};

/// Maximum number of tasks in an atomic request.
const MAX_LINES: usize = 1_000;

pub(super) async fn submit(source: Source, format: InputFormat, client: &Client, output: &Output) -> Outcome {
    let tasks = read_tasks(source, format).await?;
    let tasks: Vec<&RawValue> = tasks.iter().map(AsRef::as_ref).collect();
    let outcome = client.create_atomic(&tasks).await?;
    if output.is_json() {
        outcome.items.iter().try_for_each(|item| output.json_line(item))?;
    }
    if let Some(problem) = outcome.items.iter().find_map(|item| item.problem.as_ref()) {
        return Err(from_problem(problem));
    }
    if !output.is_json() {
        outcome.items.iter().filter_map(|item| item.id.as_deref()).try_for_each(|id| output.line(id))?;
    }
    eprint_line(format_args!("{} submitted atomically", outcome.accepted));
    Ok(Code::Ok)
}

/// Reads all tasks; a single invalid line is an error, and nothing is sent.
async fn read_tasks(source: Source, format: InputFormat) -> Result<Vec<Box<RawValue>>, Failure> {
    let (mut lines, _) = read(&source, format)?;
    let mut tasks = Vec::new();
    while let Some(line) = lines.recv().await {
        let line = line.map_err(|error| Failure::failed(format_args!("cannot read the input: {error}")))?;
        let wrong = |error| Failure::failed(format_args!("line {}: {error}; nothing was submitted", line.number));
        tasks.push(line.task.map_err(wrong)?);
        if tasks.len() > MAX_LINES {
            return Err(Failure::usage(format_args!(
                "an atomic submission has at most {MAX_LINES} lines; nothing was submitted"
            ))
            .hint("submit the rest as a second batch below the same root"));
        }
    }
    Ok(tasks)
}
