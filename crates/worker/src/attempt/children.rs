//! Children of an attempt: named, published and acknowledged before the event that announces the parent's success.

use std::collections::BTreeSet;
use std::time::Duration;

use kafleet_config::Names;
use kafleet_fleet::publish::{PublishError, Publisher};
use kafleet_handlers::{Child, Context, Failure};
use kafleet_model::task::TaskSpec;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;

/// Deadline for looking up a topic.
const TOPIC_DEADLINE: Duration = Duration::from_secs(10);

/// Converts a child into a task to publish, in its parent's run.
pub(crate) fn child_task(cx: &Context, mut child: Child, names: &Names) -> Result<TaskSpec, Failure> {
    let invalid = |reason: String| Failure::fail(format!("a child cannot be spawned: {reason}")).of_kind("bad_child");
    let id = cx.child_id(&child)?;
    cx.limits().check_params(child.params.text().len()).map_err(invalid)?;
    if let Some(topic) = &child.policy.reply_to {
        names.check_reply_topic(topic).map_err(|error| invalid(format!("`reply_to`: {error}")))?;
    }
    let mut task = TaskSpec::new(id, child.task_type, child.params);
    task.key = child.key.map(Into::into);
    task.run = cx.run;
    child.policy.rules.index.get_or_insert(cx.count_child());
    task.set_policy(child.policy);
    task.trace = cx.trace.clone();
    task.has_own_trace = task.trace.is_some() && !cx.admit_to_trace();
    task.asof = cx.asof;
    Ok(task)
}

/// Publishes children, pipelined. Transient errors are retried here, because ids are deterministic and the handler
/// need not run again; only a child that can never be published fails the attempt.
pub(crate) async fn publish_children(
    publisher: &Publisher,
    tasks: Vec<TaskSpec>,
    mut published: impl FnMut(TaskId),
) -> Result<(), Failure> {
    check_topics(publisher, &tasks).await?;
    let mut left = tasks;
    while !left.is_empty() {
        let outcomes = publisher.publish_all(left.clone(), now_ms()).await;
        let mut again = Vec::new();
        for (task, outcome) in left.into_iter().zip(outcomes) {
            match outcome {
                Ok(done) => published(done.id),
                Err(PublishError::NotAnnounced { task, error }) => {
                    tracing::warn!(task = %task.task.id, %error, "the announcement of a published child is not acknowledged; retrying");
                    let id = task.task.id.clone();
                    if let Err(error) = publisher.announce(*task, now_ms()).await {
                        // The record is complete: the worker that starts the child announces it.
                        tracing::warn!(task = %id, %error, "a child cannot be announced; the worker that starts it announces it");
                    }
                    published(id);
                }
                Err(PublishError::NotPublished(error)) if error.is_retryable() => again.push(task),
                Err(error) => {
                    return Err(Failure::fail(format!("a child cannot be published: {error}")).of_kind("bad_child"));
                }
            }
        }
        left = again;
    }
    Ok(())
}

/// Checks that every child's type has a topic, so that a missing one fails the attempt before any sibling is
/// published. A broker that does not answer is ignored here: publishing reports it.
async fn check_topics(publisher: &Publisher, tasks: &[TaskSpec]) -> Result<(), Failure> {
    let types: BTreeSet<&str> = tasks.iter().map(|task| &*task.task_type).collect();
    for task_type in types {
        let topic = publisher.topology.names.tasks(task_type);
        if let Ok(false) = publisher.producer().has_topic(&topic, TOPIC_DEADLINE).await {
            let message = format!(
                "a child cannot be published: there is no topic `{topic}` for the type `{task_type}`; \
                 hint: add the type and run `kafleet topics apply`"
            );
            return Err(Failure::fail(message).of_kind("bad_child"));
        }
    }
    Ok(())
}
