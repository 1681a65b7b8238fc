//! Runner of bulk actions. The API server that received an action runs it. Each API server also looks for actions that
//! have no runner or whose progress has not changed for a while, and takes them over at their cursor: it writes its
//! name into the progress, waits until that event is projected, and continues if the record still contains its name. No
//! lease is needed: each request names the run of its task, and the projection ignores a second request for the same
//! run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::spec::{BulkSpec, Decision, mark, progress_of};
use crate::api::documents::{BulkAction, BulkProgress};
use crate::api::handlers::list::{self, MAX_SCAN_TIME};
use crate::api::handlers::retry::NewRuns;
use crate::api::http::problem::ApiError;
use crate::api::http::response::MAX_PAGE;
use crate::api::read::consistency::{AFTER_DEADLINE, ReachedOffset, TaskView};
use crate::api::read::query::TaskQuery;
use crate::api::state::Api;
use crate::model::event::{ErrorInfo, Event, Payload};
use crate::model::json::RawJson;
use crate::model::record::TaskRecord;
use crate::model::record::state::State;
use crate::model::task::Position;
use crate::model::task::id::{BULK_TYPE, TaskId};
use crate::runtime::{self, now_ms};

/// Interval of the search for actions without a runner.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which an action without progress is taken over. Runners write their progress at least every few seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of bulk actions that a process runs at a time.
const MAX_RUNS: usize = 4;
/// Maximum number of concurrent writes of an action.
const MAX_WRITES: usize = 100;

/// Progress of each bulk action, and the time since which it has not changed. Measured with the local clock: clocks of
/// other hosts may be wrong.
type Seen = BTreeMap<TaskId, (BulkProgress, Instant)>;

/// Runs bulk actions until the guard is dropped.
pub(crate) fn start(api: Arc<Api>) -> DropGuard {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let Some(mut taken) = api.bulk.received.lock().take() else { return stop.drop_guard() };
    runtime::spawn(async move {
        let mut seen = Seen::new();
        let mut check_at = Instant::now() + CHECK_INTERVAL;
        loop {
            tokio::select! {
                biased;
                () = stopped.cancelled() => return,
                () = api.reads.shutdown.drain.cancelled() => return,
                Some(id) = taken.recv() => spawn(&api, id, &stopped),
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
async fn abandoned(api: &Api, seen: &mut Seen) -> Result<Vec<TaskId>, ApiError> {
    let query = TaskQuery::parse(&format!("type:{BULK_TYPE} state:running")).map_err(|_| ApiError::internal())?;
    let open = list::matches(&api.reads, query, None, MAX_PAGE, MAX_SCAN_TIME).await?.tasks;
    let now = Instant::now();
    let before = std::mem::take(seen);
    let mut actions = Vec::new();
    for task in open {
        let progress = progress_of(&task.record);
        let since = before.get(&task.id).filter(|(known, _)| *known == progress).map_or(now, |(_, since)| *since);
        if (progress.runner.is_empty() && before.contains_key(&task.id)) || now - since >= PATIENCE {
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
    runtime::spawn(async move {
        tokio::select! {
            biased;
            () = stopped.cancelled() => {}
            outcome = run(&api, &id) => {
                if let Err(error) = outcome {
                    tracing::warn!(task = %id, ?error, "a bulk action was interrupted; it will be resumed");
                }
            }
        }
        api.bulk.running.lock().remove(&id);
    });
}

/// Bulk action that this process runs.
struct Run<'a> {
    api: &'a Api,
    id: TaskId,
    partition: u32,
    spec: BulkSpec,
    query: TaskQuery,
    progress: BulkProgress,
    runs: NewRuns,
}

/// Runs an action until it ends, another process takes it over, or this process stops.
async fn run(api: &Api, id: &TaskId) -> Result<(), ApiError> {
    let task = api.reads.find(id, None).await?;
    let Some(spec) = BulkSpec::of(&task.record).filter(|_| !task.record.own.is_terminal()) else { return Ok(()) };
    let Ok(query) = TaskQuery::parse(&spec.q) else { return Ok(()) };
    let progress = progress_of(&task.record);
    let mut run =
        Run { api, id: id.clone(), partition: task.partition, spec, query, progress, runs: NewRuns::default() };
    if !run.claim(&task).await? {
        return Ok(());
    }
    while !api.reads.shutdown.is_draining() {
        if !run.is_claimed().await? || run.step().await? {
            return Ok(());
        }
    }
    run.progress.runner.clear();
    run.report_progress().await.map(drop)
}

impl Run<'_> {
    fn name(&self) -> &str {
        &self.api.writes.transactional_id
    }

    /// Writes the name of this process into the progress. Returns whether the projected record contains it.
    async fn claim(&mut self, task: &TaskView) -> Result<bool, ApiError> {
        let is_new = self.progress == BulkProgress::default();
        self.progress.runner = self.name().to_owned();
        let position = self.report_progress().await?;
        let (found, _) = self.api.reads.await_outcome(task, position, "the claim").await?;
        if !is_new {
            // The requests of the previous runner must be visible before the same tasks are read again.
            for partition in self.api.reads.partitions() {
                if let Some(lag) = self.api.reads.lag_at_end(partition).await? {
                    return Err(lag);
                }
            }
        }
        Ok(self.is_own(&found.record))
    }

    fn is_own(&self, record: &TaskRecord) -> bool {
        !record.own.is_terminal() && progress_of(record).runner == self.name()
    }

    /// Returns whether the action is still open and run by this process.
    async fn is_claimed(&self) -> Result<bool, ApiError> {
        Ok(self.api.reads.read(&self.id).await?.is_some_and(|found| self.is_own(&found.record)))
    }

    /// Requests the action for the next tasks. Returns true if the action has ended.
    async fn step(&mut self) -> Result<bool, ApiError> {
        let (query, cursor) = (self.query.clone(), self.progress.cursor.as_deref());
        let found = list::matches(&self.api.reads, query, cursor, MAX_PAGE, MAX_SCAN_TIME).await?;
        let mut progress = self.progress.clone();
        let mut events = self.requests(&found.tasks, &mut progress).await?;
        let allowed = usize::try_from(self.spec.limit.saturating_sub(progress.done)).unwrap_or(usize::MAX);
        let is_over = events.len() > allowed;
        events.truncate(allowed);
        progress.done += events.len() as u64;
        self.publish(events).await?;
        progress.cursor.clone_from(&found.next);
        self.progress = progress;
        if is_over {
            let what = format!("more than {} tasks would change", self.spec.limit);
            let why = format!("{what}: the action stopped there; request it again with a higher limit");
            self.end(State::Failed, Some(why)).await?;
            return Ok(true);
        }
        if found.next.is_none() {
            self.end(State::Succeeded, None).await?;
            return Ok(true);
        }
        let position = self.report_progress().await?;
        // Otherwise the next step could read outdated progress and mistake it for that of another runner.
        self.wait_for_progress(position).await?;
        Ok(false)
    }

    /// Returns the requests for the tasks to change, and counts the others.
    async fn requests(&mut self, tasks: &[TaskView], progress: &mut BulkProgress) -> Result<Vec<Event>, ApiError> {
        let mut events = Vec::new();
        for task in tasks {
            let new_run = match self.spec.action {
                BulkAction::Retry => Some(self.runs.of(self.api, task).await?),
                _ => None,
            };
            match self.spec.decide(task, new_run, now_ms()) {
                Decision::Publish(mut event) => {
                    mark(&mut event, self.id.as_str());
                    events.push(*event);
                }
                Decision::Skip => progress.skipped += 1,
                Decision::Refuse => progress.refused += 1,
            }
        }
        Ok(events)
    }

    async fn wait_for_progress(&self, position: Position) -> Result<(), ApiError> {
        let target = position.offset + 1;
        let reached = self.api.reads.wait_until_projected(self.partition, target, AFTER_DEADLINE).await?;
        if let ReachedOffset::Not(projected) = reached {
            tracing::debug!(?projected, target, "the progress of a bulk action is not visible yet");
        }
        Ok(())
    }

    async fn publish(&self, events: Vec<Event>) -> Result<(), ApiError> {
        self.api.bulk.pace(events.len()).await;
        let publish = |event: Event| async move { self.api.writes.publish_event(event).await };
        stream::iter(events).map(publish).buffer_unordered(MAX_WRITES).try_for_each(|_| async { Ok(()) }).await
    }

    async fn report_progress(&self) -> Result<Position, ApiError> {
        let value = RawJson::of(&self.progress).map_err(|_| ApiError::internal())?;
        self.write(Payload::Progress { value: Some(value) }, None).await
    }

    /// Ends the action with its counts as the result.
    async fn end(&mut self, state: State, message: Option<String>) -> Result<(), ApiError> {
        self.progress.runner.clear();
        self.progress.cursor = None;
        self.report_progress().await?;
        let output = RawJson::of(&self.progress).map_err(|_| ApiError::internal())?;
        let error = message.as_ref().map(|message| Box::new(ErrorInfo::new("limit", message.clone(), 0)));
        self.write(Payload::Reported { state: Some(state), output: Some(output), error }, message).await.map(drop)
    }

    /// Writes an event of the action's own task.
    async fn write(&self, payload: Payload, message: Option<String>) -> Result<Position, ApiError> {
        let event = Event { message, ..Event::new(payload, self.id.clone(), 1, now_ms()) };
        self.api.writes.publish_event(event).await
    }
}
