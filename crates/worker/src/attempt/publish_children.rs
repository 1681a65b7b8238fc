//! Publishing after a successful attempt and before its `succeeded` event: spawned children and continuations.

use futures::stream::{self, StreamExt};
use kafleet_config::Bytes;
use kafleet_fleet::publish::Publisher;
use kafleet_handlers::context::MAX_CHILDREN;
use kafleet_handlers::{Answer, Context, Failure};
use kafleet_model::event::{Announcement, Event, Payload};
use kafleet_model::json::RawJson;
use kafleet_model::task::continuation::Continuation;
use kafleet_runtime::now_ms;
use tokio_util::sync::CancellationToken;

use super::AttemptEnd;
use super::children::{child_task, publish_children};

/// Maximum number of attempts of a call whose children are published at the same time.
const MAX_PUBLISHING: usize = 64;

/// Attempt of a call, for the publication of its children.
pub(crate) struct AttemptOutput {
    pub cx: Context,
    pub announcement: Announcement,
    /// Stops the attempt.
    pub stop: CancellationToken,
}

/// Publishes the outputs of one type's attempts.
pub(crate) struct OutputPublisher {
    pub publisher: Publisher,
    /// Maximum size of a result.
    pub max_output: Bytes,
}

impl OutputPublisher {
    /// Fails the attempt for a result that is too large, before anything is published.
    pub(crate) fn check_size(&self, output: RawJson) -> Result<RawJson, Failure> {
        if self.fits(&output) {
            return Ok(output);
        }
        let size = output.text().len();
        let limit = self.max_output;
        let reason = format!("the result has {size} bytes: at most {limit} are allowed; return a link instead");
        Err(Failure::fail(reason).of_kind("result_too_large"))
    }

    /// Returns whether a result is within the size limit.
    pub(crate) fn fits(&self, output: &RawJson) -> bool {
        output.text().len() as u64 <= self.max_output.0
    }

    /// Returns whether a success of this attempt requires publishing first.
    pub(crate) fn has_outputs(&self, cx: &Context) -> bool {
        cx.has_spawned()
    }

    /// Publishes the children of a successful attempt. A parent never appears complete before its children are
    /// known, and a failed attempt publishes no children.
    pub(crate) async fn publish(
        &self,
        end: AttemptEnd,
        cx: &Context,
        announcement: Announcement,
        stop: &CancellationToken,
    ) -> AttemptEnd {
        let AttemptEnd::Answered(Ok(output)) = end else { return end };
        let output = match self.check_size(output) {
            Ok(output) if self.has_outputs(cx) => output,
            checked => return AttemptEnd::Answered(checked),
        };
        // Allocated, so that the attempts without outputs do not carry its state.
        let mut published = Box::pin(self.publish_outputs(output, cx, announcement));
        tokio::select! {
            biased;
            answer = &mut published => AttemptEnd::Answered(answer),
            // The partition is lost or the worker stops: the next owner runs the task again.
            () = stop.cancelled() => AttemptEnd::Interrupted,
        }
    }

    /// Publishes the children of the successful attempts of a call.
    pub(crate) async fn publish_call(
        &self,
        end: AttemptEnd<Vec<Answer>>,
        attempts: Vec<AttemptOutput>,
    ) -> AttemptEnd<Vec<AttemptEnd>> {
        let answers = match end {
            AttemptEnd::Answered(Ok(answers)) => answers,
            AttemptEnd::Answered(Err(failure)) => return AttemptEnd::Answered(Err(failure)),
            AttemptEnd::TimedOut => return AttemptEnd::TimedOut,
            AttemptEnd::Stalled(limit) => return AttemptEnd::Stalled(limit),
            AttemptEnd::Interrupted => return AttemptEnd::Interrupted,
        };
        let published = attempts.into_iter().zip(answers).map(|(attempt, answer)| async move {
            let AttemptOutput { cx, announcement, stop } = attempt;
            self.publish(AttemptEnd::Answered(answer), &cx, announcement, &stop).await
        });
        AttemptEnd::Answered(Ok(stream::iter(published).buffered(MAX_PUBLISHING).collect().await))
    }

    async fn publish_outputs(
        &self,
        output: RawJson,
        cx: &Context,
        announcement: Announcement,
    ) -> Result<RawJson, Failure> {
        let children = cx.take_spawned();
        if children.len() > MAX_CHILDREN {
            let reason = format!("the attempt spawned {} children: at most {MAX_CHILDREN} are allowed", children.len());
            return Err(Failure::fail(reason).of_kind("bad_child"));
        }
        let names = &self.publisher.topology.names;
        let tasks = children.into_iter().map(|child| child_task(cx, child, names)).collect::<Result<Vec<_>, _>>()?;
        let present = announcement.policy.as_ref().map_or(0, |policy| policy.rules.then.len());
        let continuations = cx.take_continuations(present)?;
        publish_children(&self.publisher, tasks, drop).await?;
        if !continuations.is_empty() {
            self.publish_continuations(continuations, cx, announcement).await?;
        }
        Ok(output)
    }

    /// Publishes the handler's continuations, which must precede the terminal event in the log.
    async fn publish_continuations(
        &self,
        continuations: Vec<Continuation>,
        cx: &Context,
        announcement: Announcement,
    ) -> Result<(), Failure> {
        let mut event = Event::new(Payload::Started { then: continuations }, cx.id.clone(), cx.run, now_ms());
        event.attempt = cx.number;
        event.worker = Some(cx.worker().clone());
        event.task = Some(Box::new(announcement));
        loop {
            match self.publisher.publish_event(&event).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(task = %cx.id, %error, "continuations are not acknowledged; retrying");
                }
                Err(error) => return Err(Failure::fail(format!("the continuations cannot be published: {error}"))),
            }
        }
    }
}
