//! Notifications about a task. Each delivery is a task with a built-in type, so that attempts, backoff, dead letters,
//! redrive and status work as for any task. The projection creates each delivery once, and it is published once.

use std::collections::BTreeMap;

use kafleet_config::Names;
use kafleet_fleet::publish::{TracedEvent, traced_event};
use kafleet_model::json::RawJson;
use kafleet_model::record::TaskRecord;
use kafleet_model::record::notifications::NotificationDelivery;
use kafleet_model::task::action::{CALLBACK_TYPE, Callback, EMAIL_TYPE, Notification};
use kafleet_model::task::delivery::{CallbackParams, EmailParams};
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{MAX_TEXT_CHARS, Policy, Rules, TaskSpec};
use kafleet_model::trace::SpanContext;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text;
use kafleet_telemetry::Tracer;
use kafleet_telemetry::otel::headers_of;
use serde_json::json;

use crate::error::TrackerError;

const SOURCE: &str = "kafleet/tracker";
/// Creator of delivery tasks.
const CREATOR: &str = "kafleet";

/// Whether to omit fields that may be large, the span that the delivery follows, and the tracer with the names of topics.
pub(crate) type DeliveryOptions<'a> = (bool, Option<SpanContext>, Option<(&'a Tracer, &'a Names)>);

/// Builds the event that schedules a delivery; `None` if the task's policy no longer contains its rule.
pub fn delivery_event(
    id: &TaskId,
    task_record: &TaskRecord,
    delivery: NotificationDelivery,
    (lean, origin, traced): DeliveryOptions<'_>,
    now_ms: i64,
) -> Result<Option<TracedEvent>, TrackerError> {
    let rules = task_record.definition.policy.as_deref().map(|policy| &policy.rules);
    let Some(notification) = rules.and_then(|rules| delivery.rule.notification(rules)) else { return Ok(None) };
    let mut body = body(id, task_record, delivery, lean);
    if let Notification::Callback(Callback { payload: Some(payload), .. }) = notification {
        body.insert("payload", payload.clone());
    }
    let body = RawJson::of_plain(&body);
    let (kind, params, attempts) = match notification {
        Notification::Callback(callback) => {
            (CALLBACK_TYPE, RawJson::of(&CallbackParams::new(callback, body)), (callback.retries, callback.timeout))
        }
        Notification::Email(email) => {
            (EMAIL_TYPE, RawJson::of(&EmailParams::new(email, body)), (email.retries, email.timeout))
        }
    };
    let mut task = TaskSpec::new(TaskId::parse(&delivery.id(id, notification))?, kind, params?);
    task.set_policy(policy(id, delivery, attempts));
    task.trace = origin.map(|context| headers_of(context, None));
    Ok(Some(traced_event(task, SOURCE, now_ms, traced)?))
}

fn policy(id: &TaskId, delivery: NotificationDelivery, (retries, timeout): (Option<u32>, Option<Millis>)) -> Policy {
    let options = json!({"task": id, "rule": delivery.rule.to_string(), "state": delivery.state, "run": delivery.run});
    let name: String = format!("{} of {id}", delivery.state).chars().take(MAX_TEXT_CHARS).collect();
    Policy {
        retries,
        timeout,
        name: Some(name),
        creator: Some(CREATOR.to_owned()),
        rules: Rules { options: Some(options.into()), ..Rules::default() },
        ..Policy::default()
    }
}

/// Builds the body of a callback: kind of event, time and task.
fn body(id: &TaskId, task: &TaskRecord, delivery: NotificationDelivery, lean: bool) -> BTreeMap<&'static str, RawJson> {
    let mut data = task_data(id, task, delivery, lean);
    let mut kind = "task.state";
    if let Some((number, passed)) = delivery.rule.check() {
        kind = "task.check";
        let check = task.definition.policy.as_ref().and_then(|policy| policy.rules.checks.get(number));
        let expected = check.map(|check| check.expect.clone()).unwrap_or_default();
        data.insert("check", json!({"number": number, "expected": expected, "passed": passed}).into());
    }
    let timestamp = json!(time_text(delivery.at_ms)).into();
    BTreeMap::from([("type", json!(kind).into()), ("timestamp", timestamp), ("data", RawJson::of_plain(&data))])
}

/// Fields of the task. The result and the options are the text that the task has, with all digits.
fn task_data(
    id: &TaskId,
    task: &TaskRecord,
    delivery: NotificationDelivery,
    lean: bool,
) -> BTreeMap<&'static str, RawJson> {
    let policy = task.definition.policy.as_deref().cloned().unwrap_or_default();
    // Omit fields of a later state if the task has changed since then.
    let is_current = task.run == delivery.run && task.state == delivery.state;
    let time = |at: Option<i64>| at.filter(|_| is_current).map(time_text);
    let result = task.outcome.output.as_ref().filter(|_| is_current && !lean).cloned();
    let fields = [
        ("id", json!(id)),
        ("parent", json!(id.parent())),
        ("root", json!(id.root())),
        ("type", json!(task.task_type.as_deref())),
        ("state", json!(delivery.state)),
        ("run", json!(delivery.run)),
        ("change", json!(delivery.change)),
        ("attempt", json!(task.attempt)),
        ("created_at", json!(task.times.created_at_ms.map(time_text))),
        ("started_at", json!(time(task.times.started_at_ms))),
        ("ended_at", json!(time(task.times.ended_at_ms))),
        ("error", json!(task.outcome.error.as_deref().filter(|_| is_current))),
    ];
    let fields = fields.map(|(name, value)| (name, RawJson::from(value)));
    let labels = policy.labels().map(|(name, value)| match (name, lean) {
        ("options", true) => (name, RawJson::null()),
        _ => (name, value),
    });
    let omitted: &[&str] = if lean { &["result", "options"] } else { &[] };
    let values = [("result", result.unwrap_or_default()), ("omitted", json!(omitted).into())];
    fields.into_iter().chain(values).chain(labels).collect()
}
