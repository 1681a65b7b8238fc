//! The lines of one tree, in one request: all of them or none.

use serde_json::value::RawValue;

use super::ndjson::{Shape, Source, read};
use crate::cli::client::{Client, told};
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::output::{Output, tell};

/// What the api takes at once.
const MOST: usize = 1_000;

pub async fn submit(source: Source, shape: Shape, client: &Client, screen: &Output) -> Outcome {
    let tasks = gather(source, shape).await?;
    let tasks: Vec<&RawValue> = tasks.iter().map(AsRef::as_ref).collect();
    let outcome = client.create_together(&tasks).await?;
    if screen.is_json() {
        outcome.items.iter().try_for_each(|item| screen.json_line(item))?;
    }
    if let Some(problem) = outcome.items.iter().find_map(|item| item.problem.as_ref()) {
        return Err(told(problem));
    }
    if !screen.is_json() {
        outcome.items.iter().filter_map(|item| item.id.as_deref()).try_for_each(|id| screen.line(id))?;
    }
    tell(format_args!("{} submitted together", outcome.accepted));
    Ok(Code::Ok)
}

/// One line that is no task is enough to send nothing.
async fn gather(source: Source, shape: Shape) -> Result<Vec<Box<RawValue>>, Failure> {
    let (mut lines, _) = read(&source, shape)?;
    let mut tasks = Vec::new();
    while let Some(line) = lines.recv().await {
        let line = line.map_err(|why| Failure::failed(format_args!("cannot read on: {why}")))?;
        let wrong = |why| Failure::failed(format_args!("line {}: {why}; nothing was submitted", line.number));
        tasks.push(line.task.map_err(wrong)?);
        if tasks.len() > MOST {
            return Err(Failure::usage(format_args!("more than {MOST} lines cannot go together; nothing was submitted"))
                .hint("submit the rest as a second batch below the same root"));
        }
    }
    Ok(tasks)
}
