//! Notifications about a task. Each delivery is a task with a built-in type, so that attempts, backoff, dead letters,
//! redrive and status work as for any task. The projection creates each delivery once, and it is published once.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::config::Names;
use crate::model::json::RawJson;
use crate::model::record::TaskRecord;
use crate::model::record::notifications::NotificationDelivery;
use crate::model::task::action::{CALLBACK_TYPE, EMAIL_TYPE, Notification};
use crate::model::task::delivery::{CallbackParams, EmailParams};
use crate::model::task::id::TaskId;
use crate::model::task::{MAX_TEXT_CHARS, Policy, Rules};
use crate::model::trace::SpanContext;
use crate::model::units::duration::Millis;
use crate::publish::{OutgoingTask, TracedEvent, time_text, traced_event};
use crate::telemetry::Tracer;
use crate::telemetry::otel::headers_of;
use crate::tracker::error::TrackerError;

const SOURCE: &str = "kafleet/tracker";
/// Creator of delivery tasks.
const CREATOR: &str = "kafleet";

/// Whether to omit fields that may be large, the span that the delivery follows, and the tracer with the names of topics.
pub(crate) type DeliveryOptions<'a> = (bool, Option<SpanContext>, Option<(&'a Tracer, &'a Names)>);

/// Builds the event that schedules a delivery; `None` if the task's policy no longer contains its rule.
pub(crate) fn delivery_event(
    id: &TaskId,
    node: &TaskRecord,
    delivery: NotificationDelivery,
    (lean, origin, traced): DeliveryOptions<'_>,
    now_ms: i64,
) -> Result<Option<TracedEvent>, TrackerError> {
    let rules = node.definition.policy.as_deref().map(|policy| &policy.rules);
    let Some(notification) = rules.and_then(|rules| delivery.rule.notification(rules)) else { return Ok(None) };
    let body = RawJson::of(&body(id, node, delivery, lean))?;
    let (kind, params, attempts) = match notification {
        Notification::Callback(callback) => {
            (CALLBACK_TYPE, RawJson::of(&CallbackParams::new(callback, body)), (callback.retries, callback.timeout))
        }
        Notification::Email(email) => {
            (EMAIL_TYPE, RawJson::of(&EmailParams::new(email, body)), (email.retries, email.timeout))
        }
    };
    let mut new = OutgoingTask::new(kind, params?);
    new.id = Some(TaskId::parse(&delivery.id(id, notification))?);
    new.policy = policy(id, delivery, attempts);
    new.trace = origin.map(|context| headers_of(context, None));
    Ok(Some(traced_event(new, SOURCE, now_ms, now_ms, traced)?))
}

fn policy(id: &TaskId, delivery: NotificationDelivery, (retries, timeout): (Option<u32>, Option<Millis>)) -> Policy {
    let options = json!({"task": id, "rule": delivery.rule.to_string(), "state": delivery.state, "run": delivery.run});
    let name: String = format!("{} of {id}", delivery.state).chars().take(MAX_TEXT_CHARS).collect();
    Policy {
        retries,
        timeout,
        name: Some(name),
        creator: Some(CREATOR.to_owned()),
        rules: Rules { options: Some(options), ..Rules::default() },
        ..Policy::default()
    }
}

/// Builds the body of a callback: kind of event, time and task.
fn body(id: &TaskId, node: &TaskRecord, delivery: NotificationDelivery, lean: bool) -> Value {
    let mut data = task_data(id, node, delivery, lean);
    let mut kind = "task.state";
    if let Some((number, passed)) = delivery.rule.check() {
        kind = "task.check";
        let check = node.definition.policy.as_ref().and_then(|policy| policy.rules.checks.get(number));
        let expected = check.map(|check| check.expect.clone()).unwrap_or_default();
        data.insert("check".to_owned(), json!({"number": number, "expected": expected, "passed": passed}));
    }
    json!({"type": kind, "timestamp": time_text(delivery.at_ms), "data": data})
}

fn task_data(id: &TaskId, node: &TaskRecord, delivery: NotificationDelivery, lean: bool) -> Map<String, Value> {
    let policy = node.definition.policy.as_deref().cloned().unwrap_or_default();
    // Omit fields of a later state if the task has changed since then.
    let is_current = node.run == delivery.run && node.state == delivery.state;
    let time = |at: Option<i64>| at.filter(|_| is_current).map(time_text);
    let result = node.outcome.output.as_ref().filter(|_| is_current && !lean).and_then(|output| output.value().ok());
    let fields: BTreeMap<&str, Value> = [
        ("id", json!(id)),
        ("parent", json!(id.parent())),
        ("root", json!(id.root())),
        ("type", json!(node.task_type.as_deref())),
        ("state", json!(delivery.state)),
        ("run", json!(delivery.run)),
        ("change", json!(delivery.change)),
        ("attempt", json!(node.attempt)),
        ("created_at", json!(node.times.created_at_ms.map(time_text))),
        ("started_at", json!(time(node.times.started_at_ms))),
        ("ended_at", json!(time(node.times.ended_at_ms))),
        ("result", result.unwrap_or_default()),
        ("error", json!(node.outcome.error.as_deref().filter(|_| is_current))),
    ]
    .into();
    let labels = policy.labels().map(|(name, value)| match (name, lean) {
        ("options", true) => (name, Value::Null),
        _ => (name, value),
    });
    fields.into_iter().chain(labels).map(|(name, value)| (name.to_owned(), value)).collect()
}
