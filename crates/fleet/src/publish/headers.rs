//! Headers of a task's record.

use std::borrow::Cow;

use kafleet_broker::ProducerRecord;
use kafleet_model::retry::RunProgress;
use kafleet_model::task::{Policy, TaskSpec, header};
use kafleet_model::units::time::time_text;

/// Name and value of a header.
pub type TextHeader<'a> = (&'static str, Cow<'a, str>);

pub(super) fn task_record<'a>(
    task: &'a TaskSpec,
    topic: &'a str,
    headers: &'a [(&'a str, &'a [u8])],
) -> ProducerRecord<'a> {
    let key = task.key.as_deref().unwrap_or(task.id.as_str()).as_bytes();
    let value = task.params.text().as_bytes();
    ProducerRecord { topic, partition: None, key: Some(key), value: Some(value), headers }
}

pub(super) fn bytes_of<'a>(headers: &'a [TextHeader<'_>]) -> Vec<(&'a str, &'a [u8])> {
    headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect()
}

/// Headers of a task of which nothing has run; fields with default values are omitted.
pub fn task_headers<'a>(task: &'a TaskSpec, source: &'a str) -> Vec<TextHeader<'a>> {
    record_headers(task, &RunProgress::default(), source)
}

/// Headers of a task that has used attempts or waits.
pub fn record_headers<'a>(task: &'a TaskSpec, progress: &RunProgress, source: &'a str) -> Vec<TextHeader<'a>> {
    headers_at(task, progress, source, Cow::Owned(time_text(task.created_at_ms)))
}

/// Headers of a task whose creation time is already formatted.
pub(super) fn headers_at<'a>(
    task: &'a TaskSpec,
    progress: &RunProgress,
    source: &'a str,
    time: Cow<'a, str>,
) -> Vec<TextHeader<'a>> {
    let mut headers = Vec::with_capacity(8);
    headers.extend([
        (header::SPEC_VERSION, Cow::Borrowed("1.0")),
        (header::ID, task.id.as_str().into()),
        (header::TYPE, (&*task.task_type).into()),
        (header::SOURCE, source.into()),
        (header::TIME, time),
    ]);
    let mut set = |name, value: Option<Cow<'a, str>>| headers.extend(value.map(|value| (name, value)));
    set(header::PARENT, task.id.parent().map(Cow::Borrowed));
    set(header::RUN, (task.run > 1).then(|| task.run.to_string().into()));
    set(header::ATTEMPT, (progress.attempts > 0).then(|| progress.attempts.to_string().into()));
    set(header::WAITS, (progress.waits.number > 0).then(|| progress.waits.to_string().into()));
    set(header::BACKOFF_FROM, (progress.backoff_from > 0).then(|| progress.backoff_from.to_string().into()));
    set(header::AS_OF, task.asof.map(|asof| asof.to_string().into()));
    set(header::ANNOUNCED, task.announced.then_some("1".into()));
    set(header::ASKED, task.asked.then_some("1".into()));
    set(header::HASH, task.hash.as_deref().map(Cow::Borrowed));
    if let Some(trace) = &task.trace {
        set(header::TRACE_PARENT, Some((&*trace.parent).into()));
        set(header::TRACE_STATE, trace.state.as_deref().map(Cow::Borrowed));
    }
    if let Some(policy) = &task.policy {
        policy_headers(policy, &mut set);
    }
    headers
}

fn policy_headers<'a>(policy: &'a Policy, set: &mut impl FnMut(&'static str, Option<Cow<'a, str>>)) {
    set(header::NOT_BEFORE, policy.not_before_ms.map(|at| time_text(at).into()));
    set(header::EXPIRES, policy.expires_at_ms.map(|at| time_text(at).into()));
    policy.headers(set);
}

/// Replaces the policy in the headers of a record.
pub fn set_policy(headers: &mut Vec<(String, Vec<u8>)>, policy: &Policy) {
    headers.retain(|(name, _)| !header::is_policy(name));
    policy_headers(policy, &mut |name, value: Option<Cow<'_, str>>| {
        headers.extend(value.map(|value| (name.to_owned(), value.into_owned().into_bytes())));
    });
}
