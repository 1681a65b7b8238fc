//! What follows a good answer before it may be told: the children it spawned, then the result for other systems.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Ended;
use super::children::{child_task, publish_children};
use crate::broker::ProducerRecord;
use crate::config::Bytes;
use crate::handlers::context::MAX_CHILDREN;
use crate::handlers::{Context, Failure};
use crate::model::event::{Announcement, Event, Kind};
use crate::model::json::RawJson;
use crate::model::task::continuation::Continuation;
use crate::model::task::header;
use crate::publish::{PUBLISH_DEADLINE, Publisher};
use crate::runtime::now_ms;

/// What settling needs of its type.
pub struct Deps {
    pub publisher: Publisher,
    pub task_type: Arc<str>,
    pub publish_results: bool,
    /// Bytes of a result at most.
    pub max_output: Bytes,
}

impl Deps {
    /// A result that is too large fails the attempt, before anything of it is published.
    pub fn check(&self, output: RawJson) -> Result<RawJson, Failure> {
        let (size, limit) = (output.text().len(), self.max_output);
        if size as u64 <= limit.0 {
            return Ok(output);
        }
        let why = format!("the result has {size} bytes: at most {limit} are allowed; return a link instead");
        Err(Failure::fail(why).of_kind("result_too_large"))
    }

    /// A good answer of this attempt has something to publish first.
    pub fn has_work_after(&self, cx: &Context) -> bool {
        self.publish_results || cx.has_spawned()
    }
}

/// Publishes children and result of an attempt that answered well. A parent never looks finished before its children are
/// known, and a failed attempt has spawned nothing.
pub async fn settle(ended: Ended, cx: &Context, told: Announcement, deps: &Deps, stop: &CancellationToken) -> Ended {
    let Ended::Answered(Ok(output)) = ended else { return ended };
    let output = match deps.check(output) {
        Ok(output) if deps.has_work_after(cx) => output,
        checked => return Ended::Answered(checked),
    };
    tokio::select! {
        biased;
        settled = publish(output, cx, told, deps) => Ended::Answered(settled),
        // The partition is gone or the worker stops: a successor runs the task again.
        () = stop.cancelled() => Ended::Interrupted,
    }
}

async fn publish(output: RawJson, cx: &Context, told: Announcement, deps: &Deps) -> Result<RawJson, Failure> {
    let children = cx.take_spawned();
    if children.len() > MAX_CHILDREN {
        let why = format!("the attempt spawned {} children: at most {MAX_CHILDREN} are allowed", children.len());
        return Err(Failure::fail(why).of_kind("bad_child"));
    }
    let tasks = children.into_iter().map(|child| child_task(cx, child)).collect::<Result<Vec<_>, _>>()?;
    let thens = cx.take_thens()?;
    publish_children(&deps.publisher, tasks, drop).await?;
    if !thens.is_empty() {
        say_thens(thens, cx, told, deps).await?;
    }
    if deps.publish_results {
        publish_result(&output, cx, deps).await?;
    }
    Ok(output)
}

/// What is to follow has to be known before the task's end is.
async fn say_thens(thens: Vec<Continuation>, cx: &Context, told: Announcement, deps: &Deps) -> Result<(), Failure> {
    let mut event = Event::new(Kind::Started, cx.id.clone(), cx.run, now_ms());
    (event.attempt, event.worker, event.then) = (cx.number, Some(cx.worker().clone()), thens);
    event.task = Some(Box::new(told));
    loop {
        match deps.publisher.publish_event(&event).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_passing() => {
                tracing::warn!(task = %cx.id, %error, "what is to follow is not acknowledged yet");
            }
            Err(error) => return Err(Failure::fail(format!("what is to follow cannot be told: {error}"))),
        }
    }
}

async fn publish_result(output: &RawJson, cx: &Context, deps: &Deps) -> Result<(), Failure> {
    let topic = deps.publisher.names().results(&deps.task_type);
    let run = cx.run.to_string();
    let id = cx.id.as_str().as_bytes();
    let headers: [(&str, &[u8]); 4] = [
        (header::SPEC_VERSION, b"1.0"),
        (header::ID, id),
        (header::TYPE, deps.task_type.as_bytes()),
        (header::RUN, run.as_bytes()),
    ];
    let record = ProducerRecord {
        topic: &topic,
        partition: None,
        key: Some(id),
        value: Some(output.text().as_bytes()),
        headers: &headers,
    };
    loop {
        match deps.publisher.link().deliver(record, PUBLISH_DEADLINE).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_passing() => {
                tracing::warn!(task = %cx.id, %error, "a result is not acknowledged yet");
            }
            Err(error) => return Err(Failure::fail(format!("the result cannot be published to `{topic}`: {error}"))),
        }
    }
}
