//! `POST /v1/tasks/{id}/retry`: a request in the log, decided by the fold.

use axum::response::Response;
use tokio::time::{Instant, timeout_at};

use super::task::json_answer;
use crate::api::Api;
use crate::api::backends::publish_event;
use crate::api::documents::{RetryOutcome, RetryTask};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::ApiRequest;
use crate::api::read::consistency::{AFTER_DEADLINE, TaskView};
use crate::api::read::status::status;
use crate::model::event::{Event, Kind};
use crate::model::outbox::EffectKind;
use crate::model::record::MAX_MESSAGE_CHARS;
use crate::model::task::id::TaskId;
use crate::model::task::{MAX_RUN, Position};
use crate::runtime::now_ms;

/// Advice after a retry with an unknown outcome.
const REPEAT: &str = "it is safe to repeat the request while `run` of the task is as before: if it was written, the repeat is \
                      refused with `not_finished` until the new run has ended";

pub async fn retry(call: ApiRequest) -> Result<Response, ApiError> {
    let asked: RetryTask = call.json_or_default()?;
    if asked.reason.as_ref().is_some_and(|reason| reason.chars().count() > MAX_MESSAGE_CHARS) {
        return Err(ApiError::new(Code::BadField, format!("it has more than {MAX_MESSAGE_CHARS} characters")).pointer("/reason"));
    }
    let task = call.api.find(&call.id()?, None).await?;
    check(&task, asked.only_failed)?;
    call.api.check_runs(&task).await?;
    let of_many = asked.only_failed;
    let event = Event { by: call.by.clone(), ..event_of(&task, asked) };
    let position = publish_event(&call.api, event).await.map_err(|refusal| refusal.hint_if_unknown(REPEAT))?;
    Ok(json_answer(202, &call.api.decided(&task, of_many, position).await?))
}

/// Refuses a new run of a task that cannot have one.
pub fn check(task: &TaskView, only_failed: bool) -> Result<(), ApiError> {
    let node = &task.node;
    if !node.state.is_terminal() {
        return Err(not_finished(task));
    }
    if only_failed {
        return if has_restartable(task) { Ok(()) } else { Err(nothing_failed(task)) };
    }
    if node.is_external() {
        return Err(ApiError::new(
            Code::External,
            format!("`{}` is run by somebody else, who alone can start it again", task.id),
        )
        .hint("retry what failed below it with `only_failed`"));
    }
    if !node.announced {
        return Err(ApiError::new(Code::NoParams, format!("`{}` was never published: there is nothing to start again", task.id)));
    }
    Ok(())
}

fn not_finished(task: &TaskView) -> ApiError {
    ApiError::new(Code::NotFinished, format!("`{}` is {}: only what has ended can be retried", task.id, task.node.state))
        .hint("wait for its end, or cancel it first")
}

/// Whether a retry of what failed starts anything.
fn has_restartable(task: &TaskView) -> bool {
    task.node.is_restartable() || task.node.restartable_below() > 0
}

fn nothing_failed(task: &TaskView) -> ApiError {
    let why = format!("neither `{}` nor anything below it is a failed task that workers can start again", task.id);
    ApiError::new(Code::NothingFailed, why).hint(match task.node.is_external() {
        true => "an external task is started again by the program that runs it",
        false => "a retry that is not limited to failed tasks starts the task itself anew",
    })
}

fn event_of(task: &TaskView, asked: RetryTask) -> Event {
    let mut event = Event::new(Kind::RetryRequested, task.id.clone(), task.node.run, now_ms());
    event.only_failed = asked.only_failed;
    event.message = asked.reason;
    event
}

fn run_of_walk(task: &TaskView, position: Position) -> Option<u32> {
    task.node.effects.iter().find_map(|effect| match effect.what {
        EffectKind::RetryFailed { run } if effect.cause == position.offset => Some(run),
        _ => None,
    })
}

impl Api {
    /// What the fold has made of a request.
    async fn decided(&self, task: &TaskView, of_many: bool, position: Position) -> Result<RetryOutcome, ApiError> {
        let (found, ignored) = self.verdict(task, position, "the request").await?;
        if ignored {
            // Another request, or a report, came before it.
            let nothing = of_many && found.node.state.is_terminal() && !has_restartable(&found);
            return Err(if nothing { nothing_failed(&found) } else { not_finished(&found) });
        }
        if !of_many {
            return Ok(RetryOutcome { status: status(&found), run: found.node.run });
        }
        let run = match run_of_walk(&found, position) {
            Some(run) => run,
            // It is at its end already.
            None => self.highest_run(&found).await?,
        };
        let found = self.walked(found, position).await?;
        Ok(RetryOutcome { status: status(&found), run })
    }

    /// Refuses a new run where the tree has used all of them.
    pub async fn check_runs(&self, task: &TaskView) -> Result<(), ApiError> {
        let highest = self.highest_run(task).await?;
        if highest < MAX_RUN {
            return Ok(());
        }
        let why = format!("a task of the tree of `{}` is in run {highest}: there is none after run {MAX_RUN}", task.id);
        Err(ApiError::new(Code::TooManyRuns, why).hint("submit it as a new task"))
    }

    /// The run that the newest retry of several in this tree has.
    async fn highest_run(&self, task: &TaskView) -> Result<u32, ApiError> {
        let root = TaskId::parse(task.id.root()).map_err(|why| ApiError::new(Code::BadId, why.to_string()))?;
        Ok(self.look(&root).await?.map_or(task.node.run, |root| root.node.highest_run))
    }

    /// The task once all that it starts again is started, or as it is after a while: before that it still looks done.
    async fn walked(&self, found: TaskView, position: Position) -> Result<TaskView, ApiError> {
        let interest = self.hub.interest(found.partition, &found.id)?;
        let end = Instant::now() + AFTER_DEADLINE;
        let mut newest = found;
        loop {
            newest = self.look(&newest.id).await?.unwrap_or(newest);
            let walks = newest.node.effects.iter().any(|effect| effect.cause == position.offset);
            if !walks || self.shutdown.is_draining() || timeout_at(end, interest.changed()).await.is_err() {
                return Ok(newest);
            }
        }
    }
}
