//! Many tasks: read ahead, sent in batches, several requests under way, every line accounted for.

use std::io;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::ndjson::{Line, Shape, Source, read};
use crate::api::documents::{BatchItem, Problem};
use crate::cli::client::{Client, told};
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::output::{Output, tell};
use crate::cli::task_view::span_text;
use crate::runtime::Backoff;

/// The most of one request.
const BATCH_LINES: usize = 500;
const BATCH_BYTES: usize = 1 << 20;
/// How long a batch waits for more lines.
const LINGER: Duration = Duration::from_millis(50);
/// How long a batch is tried again while the api is away.
const PATIENCE: Duration = Duration::from_secs(30);
/// Refused lines that are told; the rest is counted.
const TOLD_LINES: u64 = 100;

pub async fn submit(source: Source, shape: Shape, parallel: usize, client: &Client, screen: &Output) -> Outcome {
    let (lines, size) = read(&source, shape)?;
    let mut tally = Tally { bar: progress_bar(size), screen: *screen, begun: Instant::now(), accepted: 0, refused: 0 };
    let batches = stream::unfold(Reader { lines, held: None }, Reader::batch);
    let mut answers = std::pin::pin!(batches.map(|batch| send(client, batch)).buffered(parallel));
    while let Some(answer) = answers.next().await {
        if let Err(why) = answer.and_then(|outcomes| tally.count(outcomes)) {
            tally.finish();
            return Err(why);
        }
    }
    tally.finish();
    Ok(if tally.refused > 0 { Code::Failed } else { Code::Ok })
}

/// Gathers lines into batches.
struct Reader {
    lines: mpsc::Receiver<io::Result<Line>>,
    /// Did not fit into the batch before.
    held: Option<io::Result<Line>>,
}

impl Reader {
    async fn batch(mut self) -> Option<(io::Result<Vec<Line>>, Self)> {
        let first = match self.held.take() {
            Some(line) => line,
            None => self.lines.recv().await?,
        };
        let mut batch = match first {
            Ok(line) => vec![line],
            Err(why) => return Some((Err(why), self)),
        };
        let mut bytes = size(&batch[0]);
        let end = tokio::time::Instant::now() + LINGER;
        while batch.len() < BATCH_LINES {
            match tokio::time::timeout_at(end, self.lines.recv()).await {
                Ok(Some(Ok(line))) if bytes + size(&line) <= BATCH_BYTES => {
                    bytes += size(&line);
                    batch.push(line);
                }
                Ok(Some(other)) => {
                    self.held = Some(other);
                    break;
                }
                Ok(None) | Err(_) => break,
            }
        }
        Some((Ok(batch), self))
    }
}

fn size(line: &Line) -> usize {
    line.task.as_ref().map_or(0, |task| task.get().len() + 1)
}

/// What became of a line.
#[derive(Debug, Serialize)]
struct LineOutcome {
    line: u64,
    #[serde(skip)]
    end: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

impl LineOutcome {
    fn refused(line: &Line, why: &str) -> Self {
        let problem = Problem {
            problem_type: "about:blank".into(),
            title: "not a task".into(),
            status: 400,
            detail: why.to_owned(),
            code: "bad_line".into(),
            hint: None,
            pointer: None,
            existing: None,
        };
        Self { line: line.number, end: line.end, id: None, position: None, problem: Some(problem) }
    }

    fn answered(line: &Line, item: &BatchItem) -> Self {
        let (id, position, problem) = (item.id.clone(), item.position.clone(), item.problem.clone());
        Self { line: line.number, end: line.end, id, position, problem }
    }
}

/// Sends a batch, and again what the api could not take for now. The ids are fixed, so nothing is created twice.
async fn send(client: &Client, batch: io::Result<Vec<Line>>) -> Result<Vec<LineOutcome>, Failure> {
    let mut left = batch.map_err(|why| Failure::failed(format_args!("cannot read on: {why}")))?;
    let first = left.first().map_or(0, |line| line.number);
    let mut outcomes: Vec<LineOutcome> = Vec::with_capacity(left.len());
    left.retain(|line| match &line.task {
        Ok(_) => true,
        Err(why) => {
            outcomes.push(LineOutcome::refused(line, why));
            false
        }
    });
    let deadline = Instant::now() + PATIENCE;
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3));
    while !left.is_empty() {
        let last_try = Instant::now() >= deadline;
        match attempt(client, &mut left, &mut outcomes, last_try).await {
            Err(why) if last_try || why.code != Code::Unavailable => return Err(at_line(why, first)),
            _ if left.is_empty() => break,
            _ => tokio::time::sleep(backoff.next_wait()).await,
        }
    }
    outcomes.sort_by_key(|outcome| outcome.line);
    Ok(outcomes)
}

/// One request. What has its final answer moves from `left` to `outcomes`.
async fn attempt(client: &Client, left: &mut Vec<Line>, outcomes: &mut Vec<LineOutcome>, last_try: bool) -> Result<(), Failure> {
    let tasks: Vec<&RawValue> = left.iter().filter_map(|line| line.task.as_deref().ok()).collect();
    let answer = client.create_all(&tasks).await?;
    let mut items: Vec<Option<BatchItem>> = left.iter().map(|_| None).collect();
    for item in answer.items {
        if let Some(place) = items.get_mut(item.index) {
            *place = Some(item);
        }
    }
    let mut items = items.into_iter();
    left.retain(|line| match items.next().flatten() {
        Some(item) if last_try || !is_passing(item.problem.as_ref()) => {
            outcomes.push(LineOutcome::answered(line, &item));
            false
        }
        None if last_try => {
            outcomes.push(LineOutcome::refused(line, "the api gave no answer for this line"));
            false
        }
        _ => true,
    });
    Ok(())
}

fn is_passing(problem: Option<&Problem>) -> bool {
    problem.is_some_and(|problem| told(problem).code == Code::Unavailable)
}

fn at_line(why: Failure, line: u64) -> Failure {
    let hint =
        why.hint.unwrap_or_else(|| "submit the rest again: a task with the same id, type and params is the same task".into());
    Failure { message: format!("stopped at line {line}: {}", why.message), code: why.code, hint: Some(hint) }
}

struct Tally {
    bar: ProgressBar,
    screen: Output,
    begun: Instant,
    accepted: u64,
    refused: u64,
}

impl Tally {
    fn count(&mut self, outcomes: Vec<LineOutcome>) -> Result<(), Failure> {
        for outcome in &outcomes {
            match &outcome.problem {
                None => self.accepted += 1,
                Some(problem) => {
                    self.refused += 1;
                    self.tell(outcome.line, problem);
                }
            }
            if self.screen.is_json() {
                self.bar.suspend(|| self.screen.json_line(outcome))?;
            }
        }
        let ids: Vec<&str> = outcomes.iter().filter(|one| one.problem.is_none()).filter_map(|one| one.id.as_deref()).collect();
        if !self.screen.is_json() && !ids.is_empty() {
            self.bar.suspend(|| self.screen.line(&ids.join("\n")))?;
        }
        if let Some(last) = outcomes.last() {
            self.bar.set_position(last.end);
        }
        self.bar.set_message(self.text());
        Ok(())
    }

    fn tell(&self, line: u64, problem: &Problem) {
        if self.refused <= TOLD_LINES {
            let failure = told(problem);
            let hint = failure.hint.map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
            self.bar.suspend(|| tell(format_args!("line {line}: {}{hint}", failure.message)));
        }
    }

    fn text(&self) -> String {
        let refused = if self.refused > 0 { format!(", {} refused", self.refused) } else { String::new() };
        format!("{} submitted{refused}", self.accepted)
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
        let hidden = self.refused.saturating_sub(TOLD_LINES);
        if hidden > 0 {
            tell(format_args!("… and {hidden} more refused lines: `-o json` tells them all"));
        }
        let took = self.begun.elapsed();
        let rate = self.accepted as f64 / took.as_secs_f64().max(0.001);
        tell(format_args!("{} in {} ({rate:.0}/s)", self.text(), span_text(took.as_millis() as i64)));
    }
}

/// On stderr, and only where that is a terminal.
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
        let reader = Reader { lines: receiver, held: None };
        stream::unfold(reader, Reader::batch).map(|batch| batch.unwrap().len()).collect().await
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
    async fn lines_that_are_no_tasks_are_not_sent() {
        // Nothing listens there: a request would fail.
        let client = Client::new("http://127.0.0.1:9", None).unwrap();
        let bad = Line { number: 7, end: 70, task: Err("not JSON".into()) };
        let outcomes = send(&client, Ok(vec![bad])).await.unwrap();
        assert_eq!(outcomes[0].line, 7);
        assert_eq!(told(outcomes[0].problem.as_ref().unwrap()).message, "not JSON");
    }
}
