//! Bulk submission: lines are read ahead and sent in batches over concurrent requests; every line gets a result.

use std::io;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use kafleet_client::{BATCH_BYTES, BATCH_ITEMS};
use kafleet_documents::{BatchItem, Problem};
use kafleet_model::unique::AskVerdict;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::ndjson::{InputFormat, Line, Source, read};
use crate::cli::client::{Client, from_problem};
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::output::{Output, eprint_line};
use crate::cli::task_view::span_text;

/// Time a batch waits for more lines.
const LINGER: Duration = Duration::from_millis(50);
/// Maximum number of refused lines to report; further ones are only counted.
const MAX_REPORTED_LINES: u64 = 100;

pub(super) async fn submit(
    source: Source,
    format: InputFormat,
    parallel: usize,
    client: &Client,
    output: &Output,
) -> Outcome {
    let (lines, size) = read(&source, format)?;
    let mut summary = Summary {
        bar: progress_bar(size),
        output: *output,
        started: Instant::now(),
        accepted: 0,
        kept: 0,
        joined: 0,
        refused: 0,
    };
    let batches = stream::unfold(Batcher { lines, carried_over: None }, Batcher::batch);
    let mut answers = std::pin::pin!(batches.map(|batch| send(client, batch)).buffered(parallel));
    while let Some(answer) = answers.next().await {
        if let Err(error) = answer.and_then(|outcomes| summary.count(outcomes)) {
            summary.finish();
            return Err(error);
        }
    }
    summary.finish();
    Ok(if summary.refused > 0 { Code::Failed } else { Code::Ok })
}

/// Groups lines into batches.
struct Batcher {
    lines: mpsc::Receiver<io::Result<Line>>,
    /// Line that did not fit into the previous batch.
    carried_over: Option<io::Result<Line>>,
}

impl Batcher {
    async fn batch(mut self) -> Option<(io::Result<Vec<Line>>, Self)> {
        let first = match self.carried_over.take() {
            Some(line) => line,
            None => self.lines.recv().await?,
        };
        match first {
            Ok(line) => Some((Ok(self.batch_of(line).await), self)),
            Err(error) => Some((Err(error), self)),
        }
    }

    /// Adds lines to the first one until the batch is full or [`LINGER`] is over.
    async fn batch_of(&mut self, first: Line) -> Vec<Line> {
        let mut bytes = size(&first);
        let mut batch = vec![first];
        let end = tokio::time::Instant::now() + LINGER;
        while batch.len() < BATCH_ITEMS {
            match tokio::time::timeout_at(end, self.lines.recv()).await {
                Ok(Some(Ok(line))) if bytes + size(&line) <= BATCH_BYTES => {
                    bytes += size(&line);
                    batch.push(line);
                }
                Ok(Some(other)) => {
                    self.carried_over = Some(other);
                    break;
                }
                Ok(None) | Err(_) => break,
            }
        }
        batch
    }
}

fn size(line: &Line) -> usize {
    line.task.as_ref().map_or(0, |task| task.get().len() + 1)
}

/// Result of a line.
#[derive(Debug, Serialize)]
struct LineOutcome {
    line: u64,
    #[serde(skip)]
    end: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<String>,
    /// Verdict about a unique task.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<AskVerdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

impl LineOutcome {
    fn refused(line: &Line, reason: &str) -> Self {
        let problem = Problem {
            problem_type: "about:blank".into(),
            title: "not a task".into(),
            status: 400,
            detail: reason.to_owned(),
            code: "bad_line".into(),
            hint: None,
            pointer: None,
            span: None,
            existing: None,
        };
        Self { line: line.number, end: line.end, id: None, position: None, verdict: None, problem: Some(problem) }
    }

    fn answered(line: &Line, item: &BatchItem) -> Self {
        let id = item.id.clone();
        let position = item.position.clone();
        let problem = item.problem.clone();
        Self { line: line.number, end: line.end, id, position, verdict: item.verdict, problem }
    }
}

/// Sends a batch. Ids are assigned beforehand, so no task is created twice.
async fn send(client: &Client, batch: io::Result<Vec<Line>>) -> Result<Vec<LineOutcome>, Failure> {
    let mut lines = batch.map_err(|error| Failure::failed(format_args!("cannot read the input: {error}")))?;
    let first = lines.first().map_or(0, |line| line.number);
    let mut outcomes = refuse_invalid(&mut lines);
    let tasks: Vec<&RawValue> = lines.iter().filter_map(|line| line.task.as_deref().ok()).collect();
    let items = client.create_all(&tasks).await.map_err(|error| at_line(error, first))?;
    outcomes.extend(lines.iter().zip(&items).map(|(line, item)| LineOutcome::answered(line, item)));
    outcomes.sort_by_key(|outcome| outcome.line);
    Ok(outcomes)
}

/// Removes the lines without a task; returns their results.
fn refuse_invalid(lines: &mut Vec<Line>) -> Vec<LineOutcome> {
    let mut outcomes = Vec::with_capacity(lines.len());
    lines.retain(|line| match &line.task {
        Ok(_) => true,
        Err(error) => {
            outcomes.push(LineOutcome::refused(line, error));
            false
        }
    });
    outcomes
}

fn at_line(error: Failure, line: u64) -> Failure {
    let hint = error.hint.unwrap_or_else(|| {
        "submit the rest again: resubmitting a task with the same id, type and params has no effect".into()
    });
    Failure { message: format!("stopped at line {line}: {}", error.message), code: error.code, hint: Some(hint) }
}

struct Summary {
    bar: ProgressBar,
    output: Output,
    started: Instant,
    accepted: u64,
    /// Unique tasks that are kept, and those that have joined another one.
    kept: u64,
    joined: u64,
    refused: u64,
}

impl Summary {
    fn count(&mut self, outcomes: Vec<LineOutcome>) -> Result<(), Failure> {
        for outcome in &outcomes {
            match &outcome.problem {
                None => {
                    self.accepted += 1;
                    self.kept += u64::from(outcome.verdict == Some(AskVerdict::Kept));
                    self.joined += u64::from(outcome.verdict == Some(AskVerdict::Joined));
                }
                Some(problem) => {
                    self.refused += 1;
                    self.report_line(outcome.line, problem);
                }
            }
            if self.output.is_json() {
                self.bar.suspend(|| self.output.json_line(outcome))?;
            }
        }
        self.print_accepted(&outcomes)?;
        if let Some(last) = outcomes.last() {
            self.bar.set_position(last.end);
        }
        self.bar.set_message(self.text());
        Ok(())
    }

    /// Prints the ids of accepted tasks for people.
    fn print_accepted(&self, outcomes: &[LineOutcome]) -> Result<(), Failure> {
        let ids: Vec<&str> = outcomes
            .iter()
            .filter(|outcome| outcome.problem.is_none())
            .filter_map(|outcome| outcome.id.as_deref())
            .collect();
        if self.output.is_json() || ids.is_empty() {
            return Ok(());
        }
        self.bar.suspend(|| self.output.line(&ids.join("\n")))
    }

    fn report_line(&self, line: u64, problem: &Problem) {
        if self.refused <= MAX_REPORTED_LINES {
            let failure = from_problem(problem);
            let hint = failure.hint.map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
            self.bar.suspend(|| eprint_line(format_args!("line {line}: {}{hint}", failure.message)));
        }
    }

    fn text(&self) -> String {
        let counts = [(self.kept, "kept"), (self.joined, "joined"), (self.refused, "refused")];
        let others: String = counts
            .iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, word)| format!(", {number} {word}"))
            .collect();
        format!("{} submitted{others}", self.accepted)
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
        let hidden = self.refused.saturating_sub(MAX_REPORTED_LINES);
        if hidden > 0 {
            eprint_line(format_args!("… and {hidden} more refused lines: `-o json` lists them all"));
        }
        let took = self.started.elapsed();
        let rate = self.accepted as f64 / took.as_secs_f64().max(0.001);
        eprint_line(format_args!("{} in {} ({rate:.0}/s)", self.text(), span_text(took.as_millis() as i64)));
    }
}

/// Returns a progress bar on stderr, hidden unless that is a terminal.
fn progress_bar(size: Option<u64>) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => (ProgressBar::new(size), "{bar:30} {percent:>3} %  {msg}  {elapsed}, {eta} left"),
        None => (ProgressBar::no_length(), "{spinner} {msg}  {elapsed}"),
    };
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn batches(lines: Vec<Line>) -> Vec<usize> {
        let (sender, receiver) = mpsc::channel(lines.len().max(1));
        for line in lines {
            sender.send(Ok(line)).await.unwrap();
        }
        drop(sender);
        let reader = Batcher { lines: receiver, carried_over: None };
        stream::unfold(reader, Batcher::batch).map(|batch| batch.unwrap().len()).collect().await
    }

    fn line(number: u64, bytes: usize) -> Line {
        let text = format!("\"{}\"", "x".repeat(bytes));
        Line { number, end: number, task: Ok(RawValue::from_string(text).unwrap()) }
    }

    #[tokio::test]
    async fn batches_are_bounded_in_lines_and_bytes() {
        let many = (0..1_100).map(|n| line(n, 1)).collect();
        assert_eq!(batches(many).await, [500, 500, 100]);
        let large = (0..4).map(|n| line(n, 400 << 10)).collect();
        assert_eq!(batches(large).await, [2, 2]);
        assert_eq!(batches(vec![line(1, 3 << 20), line(2, 1)]).await, [1, 1], "a line larger than a batch goes alone");
        assert_eq!(batches(vec![]).await, [0usize; 0]);
    }

    #[tokio::test]
    async fn invalid_lines_are_not_sent() {
        // Nothing listens on this port: a request would fail.
        let client = Client::new("http://127.0.0.1:9", None).unwrap();
        let bad = Line { number: 7, end: 70, task: Err("not JSON".into()) };
        let outcomes = send(&client, Ok(vec![bad])).await.unwrap();
        assert_eq!(outcomes[0].line, 7);
        assert_eq!(from_problem(outcomes[0].problem.as_ref().unwrap()).message, "not JSON");
    }
}
