//! Submission of many tasks, with an outcome each.

use std::time::Duration;

use backon::BackoffBuilder;
use kafleet_documents::{BatchItem, BatchOutcome, ItemOutcome, Problem};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::error::is_temporary;
use super::request::{ANSWER_TIMEOUT, waits};
use super::{Client, Error, Handle, IntoTask, Method, NewTask};

/// Maximum number of tasks in a request.
pub const BATCH_ITEMS: usize = 500;
/// Maximum bytes of the tasks in a request.
pub const BATCH_BYTES: usize = 1 << 20;

/// Outcome of one task of a batch.
type Outcome<O> = Result<Handle<O>, Error>;

impl Client {
    /// Submits any number of tasks, independently of each other; returns the outcome of each, in order. Tasks whose
    /// outcome is temporary are repeated, like requests. After an error, submitting the same [`NewTask`] again is safe.
    ///
    /// ```no_run
    /// # async fn example(client: kafleet_client::Client) {
    /// use kafleet_client::NewTask;
    /// let tasks: Vec<NewTask> = (0..1000).map(|n| NewTask::new("echo", serde_json::json!(n)).id(format!("n-{n}"))).collect();
    /// for (task, outcome) in tasks.iter().zip(client.submit_many(tasks.clone()).await) {
    ///     if let Err(why) = outcome {
    ///         eprintln!("{}: {why}", task.task_id());
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn submit_many<T: IntoTask>(&self, tasks: impl IntoIterator<Item = T>) -> Vec<Outcome<T::Output>> {
        let tasks: Vec<NewTask<T::Output>> = tasks.into_iter().map(IntoTask::into_task).collect();
        let encoded: Vec<Result<Box<RawValue>, Error>> = tasks.iter().map(encode).collect();
        let mut outcomes = Vec::with_capacity(tasks.len());
        let mut rest = encoded.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(batch_size(rest));
            outcomes.extend(self.submit_batch(batch).await);
            rest = later;
        }
        outcomes
    }

    /// Submits the tasks of one request. Those that are not JSON are not sent.
    async fn submit_batch<O>(&self, batch: &[Result<Box<RawValue>, Error>]) -> Vec<Outcome<O>> {
        let sent: Vec<&RawValue> = batch.iter().filter_map(|task| task.as_deref().ok()).collect();
        let mut answers = match self.create_all(&sent, self.repeat_deadline()).await {
            Ok(items) => items.into_iter().map(Ok).collect::<Vec<_>>(),
            Err(error) => vec![Err(error); sent.len()],
        }
        .into_iter();
        let missing = || Err(Error::Problem(Box::new(no_outcome())));
        let outcome = |task: &Result<Box<RawValue>, Error>| match task {
            Ok(_) => answers.next().unwrap_or_else(missing).and_then(|item| handle_of(self, item)),
            Err(error) => Err(error.clone()),
        };
        batch.iter().map(outcome).collect()
    }

    /// Creates tasks that have ids, and repeats those with a temporary outcome until the deadline. Returns one item for
    /// each, in order.
    #[doc(hidden)]
    pub async fn create_all(&self, tasks: &[&RawValue], deadline: Instant) -> Result<Vec<BatchItem>, Error> {
        let mut items: Vec<Option<BatchItem>> = vec![None; tasks.len()];
        let mut waits = waits().build();
        loop {
            let last = Instant::now() >= deadline;
            let open: Vec<usize> = (0..tasks.len()).filter(|&index| is_open(items[index].as_ref())).collect();
            if open.is_empty() {
                break;
            }
            match self.create_some(tasks, &open).await {
                Ok(answers) => answers.into_iter().for_each(|(index, item)| items[index] = Some(item)),
                Err(error) if !last && error.is_temporary() => {}
                Err(error) if items.iter().all(Option::is_none) => return Err(error),
                // Tasks that are created already keep their items.
                Err(_) => break,
            }
            if last || !items.iter().any(|item| is_open(item.as_ref())) {
                break;
            }
            tokio::time::sleep(waits.next().unwrap_or(Duration::from_secs(1))).await;
        }
        let placed = items.into_iter().enumerate();
        Ok(placed.map(|(index, item)| item.unwrap_or_else(|| unanswered(index))).collect())
    }

    /// Sends the tasks at these indexes once; returns the items with these indexes.
    async fn create_some(&self, tasks: &[&RawValue], open: &[usize]) -> Result<Vec<(usize, BatchItem)>, Error> {
        let some: Vec<&RawValue> = open.iter().map(|&index| tasks[index]).collect();
        let request = self.request(Method::POST, &["v1", "batches"]).json(&some).timeout(ANSWER_TIMEOUT * 2);
        let answer: BatchOutcome = request.receive().await?;
        let placed = answer.items.into_iter().filter_map(|item| {
            let index = *open.get(item.index)?;
            Some((index, BatchItem { index, ..item }))
        });
        Ok(placed.collect())
    }

    /// End of repetitions that begin now.
    pub(crate) fn repeat_deadline(&self) -> Instant {
        Instant::now() + self.0.repeat_for
    }
}

fn handle_of<O>(client: &Client, item: BatchItem) -> Outcome<O> {
    match item {
        BatchItem { outcome: ItemOutcome::Accepted, id: Some(id), position, verdict, .. } => {
            Ok(Handle::new(client.clone(), id, position).with_verdict(verdict))
        }
        item => Err(Error::Problem(Box::new(item.problem.unwrap_or_else(no_outcome)))),
    }
}

fn encode<O>(task: &NewTask<O>) -> Result<Box<RawValue>, Error> {
    serde_json::value::to_raw_value(task.valid()?).map_err(|error| Error::Params(std::sync::Arc::new(error)))
}

/// Returns the number of tasks that fit into one request, at least one.
fn batch_size(tasks: &[Result<Box<RawValue>, Error>]) -> usize {
    let mut bytes = 0;
    let fits = |task: &&Result<Box<RawValue>, Error>| {
        bytes += task.as_ref().map_or(0, |task| task.get().len() + 1);
        bytes <= BATCH_BYTES
    };
    tasks.iter().take(BATCH_ITEMS).take_while(fits).count().max(1)
}

/// Returns whether a task has no final outcome yet.
fn is_open(item: Option<&BatchItem>) -> bool {
    item.is_none_or(|item| item.problem.as_ref().is_some_and(is_temporary))
}

fn unanswered(index: usize) -> BatchItem {
    BatchItem {
        index,
        id: None,
        outcome: ItemOutcome::Unknown,
        position: None,
        verdict: None,
        problem: Some(no_outcome()),
    }
}

fn no_outcome() -> Problem {
    Problem {
        problem_type: "about:blank".into(),
        title: "No outcome".into(),
        status: 502,
        detail: "the API returned no result for this task".into(),
        code: "no_outcome".into(),
        hint: None,
        pointer: None,
        span: None,
        existing: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_limited_by_count_and_size() {
        let of = |bytes: usize| {
            RawValue::from_string(format!("\"{}\"", "x".repeat(bytes))).map_err(|error| panic!("{error}"))
        };
        let small: Vec<_> = (0..600).map(|_| of(1)).collect();
        assert_eq!(batch_size(&small), BATCH_ITEMS);
        let large: Vec<_> = (0..4).map(|_| of(400 << 10)).collect();
        assert_eq!(batch_size(&large), 2);
        assert_eq!(batch_size(&[of(2 << 20)]), 1, "the API decides on a task that fits into no batch");
    }
}
