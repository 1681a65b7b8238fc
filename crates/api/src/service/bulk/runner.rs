//! Runner of bulk actions. The API server that received an action runs it. Each API server also looks for actions that
//! have no runner or whose progress has not changed for a while, and takes them over at their cursor.
//!
//! The requests of a step and the progress that counts them are one transaction, under a transactional id of the action:
//! after a crash both are in the log, or neither. A takeover opens a producer under the same id, which aborts an unfinished
//! transaction of the previous runner and excludes its further ones; it then continues from the progress in the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{BrokerError, TransactionalProducer, Transactions};
use kafleet_documents::{BulkAction, BulkProgress};
use kafleet_model::event::{ErrorInfo, Event, Payload};
use kafleet_model::json::RawJson;
use kafleet_model::query::TaskQuery;
use kafleet_model::record::state::State;
use kafleet_model::task::Position;
use kafleet_model::task::id::{BULK_TYPE, TaskId};
use kafleet_runtime::{Backoff, now_ms};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::spec::{BulkChange, BulkSpec, Decision, count_refusal, list_changed, progress_of};
use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::service::context::MAX_PAGE;
use crate::service::list::{self, MAX_SCAN_TIME};
use crate::service::retry::NewRuns;
use crate::state::Api;

/// Interval of the search for actions without a runner.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Time after which an action without progress is taken over. Runners write their progress at least every few seconds; the
/// takeover of one that is only slow does no harm.
const TAKEOVER_DEADLINE: Duration = Duration::from_secs(6);
/// Minimum and maximum pause of a runner after a failure.
const MIN_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// Deadline of a transaction.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Requests from which on a transaction is committed: each costs a commit, and a batch in each of the events partitions.
const MIN_REQUESTS: usize = 800;
/// Maximum number of bulk actions that a process runs at a time.
const MAX_RUNS: usize = 4;

/// Progress of each bulk action, and the time since which it has not changed. Measured with the local clock: clocks of
/// other hosts may be wrong.
type ProgressObservations = BTreeMap<TaskId, (BulkProgress, Instant)>;

/// Runs bulk actions until the guard is dropped.
pub(crate) fn start(api: Arc<Api>) -> DropGuard {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let Some(mut new_actions) = api.bulk.new_actions_receiver.lock().take() else { return stop.drop_guard() };
    kafleet_runtime::spawn(async move {
        let mut seen = ProgressObservations::new();
        let mut check_at = Instant::now() + CHECK_INTERVAL;
        loop {
            tokio::select! {
                biased;
                () = stopped.cancelled() => return,
                () = api.reads.shutdown.drain.cancelled() => return,
                Some(id) = new_actions.recv() => spawn(&api, id, &stopped),
                () = tokio::time::sleep_until(check_at) => {
                    match abandoned(&api, &mut seen).await {
                        Ok(actions) => actions.into_iter().for_each(|id| spawn(&api, id, &stopped)),
                        Err(error) => tracing::debug!(?error, "cannot look for bulk actions"),
                    }
                    check_at = Instant::now() + CHECK_INTERVAL;
                }
            }
        }
    });
    stop.drop_guard()
}

/// Returns the bulk actions without a runner.
async fn abandoned(api: &Api, seen: &mut ProgressObservations) -> Result<Vec<TaskId>, ApiError> {
    let query = TaskQuery::parse(&format!("type:{BULK_TYPE} state:running")).map_err(|_| ApiError::internal())?;
    let open = list::matches(&api.reads, query, None, MAX_PAGE, MAX_SCAN_TIME).await?.tasks;
    let now = Instant::now();
    let before = std::mem::take(seen);
    let mut actions = Vec::new();
    for task in open {
        let progress = progress_of(&task.record);
        let since = before.get(&task.id).filter(|(earlier, _)| *earlier == progress).map_or(now, |(_, since)| *since);
        if (progress.runner.is_empty() && before.contains_key(&task.id)) || now - since >= TAKEOVER_DEADLINE {
            actions.push(task.id.clone());
        }
        seen.insert(task.id, (progress, since));
    }
    Ok(actions)
}

/// Runs an action, unless this process already runs it, or runs [`MAX_RUNS`] actions.
fn spawn(api: &Arc<Api>, id: TaskId, stopped: &CancellationToken) {
    let mut running = api.bulk.running.lock();
    if running.len() >= MAX_RUNS || !running.insert(id.clone()) {
        return;
    }
    drop(running);
    let (api, stopped) = (api.clone(), stopped.clone());
    kafleet_runtime::spawn(async move {
        tokio::select! {
            biased;
            () = stopped.cancelled() => {}
            () = run_to_end(&api, &id) => {}
        }
        api.bulk.running.lock().remove(&id);
    });
}

/// Reason why a run ended before its action did.
pub(super) enum RunInterruption {
    /// Another process runs the action.
    TakenOver,
    /// The store or Kafka has failed, or the store is incomplete.
    Failed(ApiError),
}

impl From<ApiError> for RunInterruption {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

impl From<BrokerError> for RunInterruption {
    fn from(error: BrokerError) -> Self {
        match error {
            BrokerError::Fenced(_) => Self::TakenOver,
            error => Self::Failed(ApiError::from_write(error)),
        }
    }
}

/// Runs an action until it ends, another process takes it over, or this process stops. Continues after failures.
async fn run_to_end(api: &Api, id: &TaskId) {
    let mut backoff = Backoff::new(MIN_BACKOFF, MAX_BACKOFF);
    loop {
        match run(api, id).await {
            Ok(()) | Err(RunInterruption::TakenOver) => return,
            Err(RunInterruption::Failed(error)) => {
                tracing::warn!(task = %id, ?error, "a bulk action was interrupted; it will be resumed");
            }
        }
        let pause = tokio::time::sleep(backoff.next_wait());
        if api.reads.shutdown.drain.run_until_cancelled(pause).await.is_none() || is_taken_over(api, id).await {
            return;
        }
    }
}

/// Whether the action is over, or another process runs it. False while that cannot be read.
async fn is_taken_over(api: &Api, id: &TaskId) -> bool {
    let Ok(task) = api.reads.read(id).await else { return false };
    let runner = task.filter(|task| !task.record.own.is_terminal()).map(|task| progress_of(&task.record).runner);
    runner.is_none_or(|runner| !runner.is_empty() && runner != api.writes.transactional_id)
}

/// Bulk action that this process runs.
pub(super) struct Run<'a> {
    pub(super) api: &'a Api,
    pub(super) id: TaskId,
    pub(super) spec: BulkSpec,
    query: TaskQuery,
    pub(super) progress: BulkProgress,
    pub(super) runs: NewRuns,
    /// Producer of the action; `None` after an error.
    producer: Option<Transactions>,
}

/// Runs an action until it ends, another process takes it over, or this process stops.
async fn run(api: &Api, id: &TaskId) -> Result<(), RunInterruption> {
    // Excludes the previous runner, before its progress is read.
    let name = api.topology.names.api_sender(&format!("bulk.{id}"));
    let producer = Some(api.reads.broker.transactional_producer(&name).await?);
    if let Some(lag) = api.reads.lag_at_end(api.topology.partition_of(id)).await? {
        return Err(lag.into());
    }
    let task = api.reads.find(id, None).await?;
    let Some(spec) = BulkSpec::of(&task.record).filter(|_| !task.record.own.is_terminal()) else { return Ok(()) };
    let Ok(query) = TaskQuery::parse(&spec.q) else { return Ok(()) };
    let progress = progress_of(&task.record);
    let mut run = Run { api, id: id.clone(), spec, query, progress, runs: NewRuns::default(), producer };
    run.claim(&task).await?;
    while !api.reads.shutdown.is_draining() {
        if !run.is_claimed().await? || run.next_step().await? {
            return Ok(());
        }
    }
    run.progress.runner.clear();
    run.commit(Vec::new(), None).await.map(drop)
}

impl Run<'_> {
    fn name(&self) -> &str {
        &self.api.writes.transactional_id
    }

    /// Writes the name of this process into the progress, and waits until it is visible.
    async fn claim(&mut self, task: &TaskView) -> Result<(), RunInterruption> {
        let is_new = self.progress == BulkProgress::default();
        self.progress.runner = self.name().to_owned();
        let position = self.commit(Vec::new(), None).await?;
        self.api.reads.await_outcome(task, position, "the claim").await?;
        if !is_new {
            // The requests of the previous runner must be visible before the same tasks are read again.
            for partition in self.api.reads.partitions() {
                if let Some(lag) = self.api.reads.lag_at_end(partition).await? {
                    return Err(lag.into());
                }
            }
        }
        Ok(())
    }

    /// Returns whether the action is still open and run by this process.
    async fn is_claimed(&mut self) -> Result<bool, ApiError> {
        let Some(task) = self.api.reads.read(&self.id).await? else { return Ok(false) };
        Ok(!task.record.own.is_terminal() && progress_of(&task.record).runner == self.name())
    }

    /// Carries the action out for the next tasks or dead letters. Returns true if the action has ended.
    async fn next_step(&mut self) -> Result<bool, RunInterruption> {
        if self.spec.action == BulkAction::Redrive { self.redrive_step().await } else { self.step().await }
    }

    /// Requests the action for the next tasks. Returns true if the action has ended.
    async fn step(&mut self) -> Result<bool, RunInterruption> {
        let (began, mut progress, mut changes) = (Instant::now(), self.progress.clone(), Vec::new());
        loop {
            let (query, cursor) = (self.query.clone(), progress.cursor.as_deref());
            let matches = list::matches(&self.api.reads, query, cursor, MAX_PAGE, MAX_SCAN_TIME).await?;
            changes.extend(self.requests(&matches.tasks, &mut progress).await?);
            progress.cursor = matches.next;
            if progress.cursor.is_none() || changes.len() >= MIN_REQUESTS || began.elapsed() >= MAX_SCAN_TIME {
                break;
            }
        }
        self.api.reads.check_covered(None).await?;
        let allowed = usize::try_from(self.spec.limit.saturating_sub(progress.done)).unwrap_or(usize::MAX);
        let is_over = changes.len() > allowed;
        changes.truncate(allowed);
        progress.done += changes.len() as u64;
        list_changed(&mut progress, changes.iter().map(|change| &change.event.id));
        self.end_step(progress, changes, is_over).await
    }

    /// Writes the progress of a step with its requests. `is_over`: more would change than the limit. Returns true if the
    /// action has ended.
    pub(super) async fn end_step(
        &mut self,
        progress: BulkProgress,
        changes: Vec<BulkChange>,
        is_over: bool,
    ) -> Result<bool, RunInterruption> {
        self.progress = progress;
        let end = if is_over {
            let cause = format!("more than {} tasks would change", self.spec.limit);
            let reason = format!("{cause}: the action stopped there; request it again with a higher limit");
            Some((State::Failed, Some(reason)))
        } else {
            self.progress.cursor.is_none().then_some((State::Succeeded, None))
        };
        let has_ended = end.is_some();
        self.commit(changes, end).await?;
        Ok(has_ended)
    }

    /// Returns the requests for the tasks to change, and counts the others.
    async fn requests(&mut self, tasks: &[TaskView], progress: &mut BulkProgress) -> Result<Vec<BulkChange>, ApiError> {
        let mut changes = Vec::new();
        for task in tasks {
            let new_run = match self.spec.action {
                BulkAction::Retry => Some(self.runs.of(self.api, task).await?),
                _ => None,
            };
            match self.spec.decide(task, new_run, now_ms()) {
                Decision::Publish(mut change) => {
                    change.event.mark_bulk(self.id.as_str());
                    changes.push(*change);
                }
                Decision::Skip(_) => progress.skipped += 1,
                Decision::Refuse(error) => count_refusal(progress, &task.id, error),
            }
        }
        Ok(changes)
    }

    /// Writes requests, and the progress that counts them, in one transaction. `end`: end of the action, with a message;
    /// its counts are the result.
    async fn commit(
        &mut self,
        changes: Vec<BulkChange>,
        end: Option<(State, Option<String>)>,
    ) -> Result<Position, RunInterruption> {
        self.api.bulk.pace(changes.len()).await;
        let (mut events, mut commands) = (Vec::with_capacity(changes.len()), Vec::new());
        for BulkChange { event, command } in changes {
            events.push(event);
            commands.extend(command);
        }
        if end.is_some() {
            (self.progress.runner, self.progress.cursor) = (String::new(), None);
        }
        events.extend(self.own_events(end)?);
        let producer = self.producer.take().ok_or_else(ApiError::internal)?;
        let publisher = self.api.publisher.clone();
        let send = move |producer: &mut dyn TransactionalProducer| {
            publisher.publish_events_atomically(producer, &commands, &events, WRITE_DEADLINE)
        };
        let (producer, written) = producer.run(send).await?;
        let position = written?;
        self.producer = Some(producer);
        Ok(position)
    }

    /// Events of the action's own task: its progress, and its end.
    fn own_events(&self, end: Option<(State, Option<String>)>) -> Result<Vec<Event>, ApiError> {
        let value = RawJson::of(&self.progress).map_err(|_| ApiError::internal())?;
        let event_of_action = |payload| Event::new(payload, self.id.clone(), 1, now_ms());
        let mut events = vec![event_of_action(Payload::Progress { output: Some(value.clone()) })];
        if let Some((state, message)) = end {
            let error = message.as_ref().map(|message| Box::new(ErrorInfo::new("limit", message.clone(), 0)));
            let ended = event_of_action(Payload::Reported { state: Some(state), output: Some(value), error });
            events.push(Event { message, ..ended });
        }
        Ok(events)
    }
}
