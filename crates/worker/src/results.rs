//! Result records for other systems, one per ended task: on the results topic of a type, and on the topic that a task
//! names in `reply_to`. They are acknowledged before the terminal event is sent, so a crash may repeat them, but loses
//! none.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{BrokerError, ProducerRecord};
use kafleet_config::Names;
use kafleet_fleet::publish::PUBLISH_DEADLINE;
use kafleet_handlers::context::KeptHeaders;
use kafleet_model::encode_error::EncodeError;
use kafleet_model::event::{Event, Payload};
use kafleet_model::task::{Trace, header};
use kafleet_model::units::time::time_text;
use kafleet_runtime::{Backoff, Health};

use super::completions::DeliveryTag;
use super::decode::{InFlight, Invalid};
use super::events::{EventWriter, fallback_event, is_permanent};

/// State of the task: `succeeded`, `failed`, `cancelled` or `expired`.
pub(super) const STATE: &str = "kafleet_state";
/// Kind of the error.
const CODE: &str = "kafleet_code";
/// Code of the task's dead letter, if there is one.
const DEAD_LETTER: &str = "kafleet_dead_letter";

/// Limits of copied headers, which are enough for correlation ids.
const MAX_COPIED: usize = 16;
const MAX_COPIED_BYTES: usize = 1_024;

/// Headers of a task record, with their values.
pub(super) type Headers = Box<[(Box<str>, Box<[u8]>)]>;

/// Copies the headers of a task by which its producer recognises the result: those that are configured, and `ce_*`
/// headers that kafleet does not know. `None` without such headers.
pub(super) fn correlation<'a>(
    names: &[String],
    headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> Option<Headers> {
    let is_copied = |name: &str| {
        if name.starts_with("ce_") {
            !header::is_known(name)
        } else {
            names.iter().any(|selected| selected.eq_ignore_ascii_case(name))
        }
    };
    let copied: Headers = headers
        .filter_map(|(name, value)| Some((name, value?)))
        .filter(|(name, value)| name.len() + value.len() <= MAX_COPIED_BYTES && is_copied(name))
        .take(MAX_COPIED)
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    (!copied.is_empty()).then_some(copied)
}

/// Copies the headers with these names, as far as they are UTF-8. `None` without such headers.
pub(super) fn kept_headers<'a>(
    names: &[String],
    headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> Option<KeptHeaders> {
    let kept: KeptHeaders = headers
        .filter_map(|(name, value)| Some((name, str::from_utf8(value?).ok()?)))
        .filter(|(name, value)| name.len() + value.len() <= MAX_COPIED_BYTES)
        .filter(|(name, _)| names.iter().any(|selected| selected.eq_ignore_ascii_case(name)))
        .take(MAX_COPIED)
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    (!kept.is_empty()).then_some(kept)
}

/// Destinations of a task's result, and its contents beyond those of the terminal event.
pub(super) struct ResultTarget {
    pub task_type: Arc<str>,
    /// The type has a results topic.
    pub publish: bool,
    /// Topic named by the task.
    pub reply_to: Option<Box<str>>,
    pub correlation: Option<Headers>,
    pub trace: Option<Box<Trace>>,
    /// Code of the task's dead letter.
    pub dead_letter: Option<Box<str>>,
}

/// Destinations of the results of one type.
pub(super) struct ResultTargets {
    pub task_type: Arc<str>,
    /// The type has a results topic.
    pub publish: bool,
}

impl ResultTargets {
    /// Returns whether a result record is published for a task.
    pub(super) fn has_any(&self, in_flight: &InFlight) -> bool {
        self.publish || reply_to(in_flight).is_some()
    }

    /// Destinations of a task's result, if there are any.
    pub(super) fn of_task(&self, in_flight: &InFlight, dead_letter: Option<&str>) -> Option<ResultTarget> {
        self.has_any(in_flight).then(|| ResultTarget {
            task_type: self.task_type.clone(),
            publish: self.publish,
            reply_to: reply_to(in_flight).map(Into::into),
            correlation: in_flight.record.correlation.clone(),
            trace: in_flight.task.trace.clone(),
            dead_letter: dead_letter.map(Into::into),
        })
    }

    /// Destinations of the result of an invalid record, if there are any. It is published only if the task's id is
    /// readable, and never to a topic that is not allowed.
    pub(super) fn of_invalid(&self, invalid: &Invalid, names: &Names, copied: &[String]) -> Option<ResultTarget> {
        let Invalid { record, reject, .. } = invalid;
        let headers = || record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
        let named = headers().find(|(name, _)| *name == header::REPLY_TO);
        let named = named.and_then(|(_, value)| str::from_utf8(value?).ok());
        let reply_to = named.filter(|topic| names.check_reply_topic(topic).is_ok());
        (self.publish || reply_to.is_some()).then(|| ResultTarget {
            task_type: self.task_type.clone(),
            publish: self.publish,
            reply_to: reply_to.map(Into::into),
            correlation: correlation(copied, headers()),
            trace: None,
            dead_letter: Some(reject.code.into()),
        })
    }
}

/// Topic that a task names for its result.
fn reply_to(in_flight: &InFlight) -> Option<&str> {
    in_flight.task.policy.as_deref()?.reply_to.as_deref()
}

/// Publishes results, then the terminal event.
#[derive(Clone)]
pub(super) struct ResultWriter {
    pub events: EventWriter,
    pub health: Health,
}

impl ResultWriter {
    /// Publishes the result of a task, and then its terminal event, whose acknowledgement completes `tag`.
    pub(super) async fn end(&self, target: &ResultTarget, mut event: Event, tag: DeliveryTag) {
        if target.publish
            && let Err(error) = self.publish(target, &event).await
        {
            // The record itself is refused, such as one that is too large for the topic.
            let small = fallback_event(&event, &error);
            event = if matches!(event.payload, Payload::Succeeded { .. }) { small } else { event };
            if let Err(error) = self.publish(target, &event).await {
                tracing::error!(task = %event.id, %error, "a result cannot be published");
            }
        }
        if let Some(topic) = &target.reply_to
            && let Err(error) = self.reply(target, topic, &event).await
        {
            tracing::warn!(task = %event.id, %topic, %error, "a reply cannot be published");
            self.warn(&event, format!("the reply to `{topic}` could not be published: {error}")).await;
        }
        self.events.write(&event, tag, &mut Vec::new()).await;
    }

    /// Publishes to the results topic. Waits while the broker is unavailable or refuses the topic; an error concerns the
    /// record itself.
    async fn publish(&self, target: &ResultTarget, event: &Event) -> Result<(), BrokerError> {
        let task_type = &target.task_type;
        let topic = self.events.publisher().topology.names.results(task_type);
        let part = format!("results of {task_type}");
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut reported = false;
        let outcome = loop {
            match self.deliver(&topic, target, event).await {
                Err(error) if !is_permanent(&error) => {
                    tracing::warn!(%task_type, %error, "a result is not acknowledged; retrying");
                    self.health.set(&part, format!("a result cannot be written to `{topic}`: {error}"));
                    reported = true;
                    tokio::time::sleep(backoff.next_wait()).await;
                }
                outcome => break outcome,
            }
        };
        if reported {
            self.health.clear(&part);
        }
        outcome
    }

    /// Publishes to the topic that the task names. Waits while the broker is unavailable; a topic that does not exist or
    /// refuses the record is the producer's mistake and must not hold back the partition.
    async fn reply(&self, target: &ResultTarget, topic: &str, event: &Event) -> Result<(), BrokerError> {
        loop {
            match self.deliver(topic, target, event).await {
                Err(error) if error.is_retryable() => {
                    tracing::warn!(task = %event.id, %topic, %error, "a reply is not acknowledged; retrying");
                }
                outcome => return outcome,
            }
        }
    }

    async fn deliver(&self, topic: &str, target: &ResultTarget, event: &Event) -> Result<(), BrokerError> {
        let source = format!("kafleet/{}", self.events.worker);
        let headers = headers(target, event, &source);
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let value = value(event)?;
        let record = ProducerRecord {
            topic,
            partition: None,
            key: Some(event.id.as_str().as_bytes()),
            value: Some(value.as_bytes()),
            headers: &headers,
        };
        self.events.producer().deliver(record, PUBLISH_DEADLINE).await.map(drop)
    }

    /// Adds a warning to a task.
    async fn warn(&self, ended: &Event, message: String) {
        let mut event = Event::new(Payload::Warned, ended.id.clone(), ended.run, ended.at_ms);
        event.attempt = ended.attempt;
        event.worker = ended.worker.clone();
        event.task = ended.task.clone();
        event.message = Some(message);
        self.events.write(&event, DeliveryTag::UNTRACKED, &mut Vec::new()).await;
    }
}

/// Headers of a result.
fn headers<'a>(target: &'a ResultTarget, event: &'a Event, source: &'a str) -> Vec<(&'a str, Cow<'a, [u8]>)> {
    let text = |text: String| Cow::Owned(text.into_bytes());
    let mut headers: Vec<(&str, Cow<'_, [u8]>)> = vec![
        (header::SPEC_VERSION, Cow::Borrowed(b"1.0")),
        (header::ID, Cow::Borrowed(event.id.as_str().as_bytes())),
        (header::TYPE, Cow::Borrowed(target.task_type.as_bytes())),
        (header::SOURCE, Cow::Borrowed(source.as_bytes())),
        (header::TIME, text(time_text(event.at_ms))),
        (header::CONTENT_TYPE, Cow::Borrowed(b"application/json")),
        (header::RUN, text(event.run.to_string())),
        (header::ATTEMPT, text(event.attempt.to_string())),
        (STATE, Cow::Borrowed(event.kind().name().as_bytes())),
    ];
    let error = event.payload.error().map(|error| (CODE, Cow::Borrowed(error.kind.as_bytes())));
    headers.extend(error);
    headers.extend(target.dead_letter.as_deref().map(|code| (DEAD_LETTER, Cow::Borrowed(code.as_bytes()))));
    if let Some(trace) = &target.trace {
        headers.push((header::TRACE_PARENT, Cow::Borrowed(trace.parent.as_bytes())));
        headers.extend(trace.state.as_deref().map(|state| (header::TRACE_STATE, Cow::Borrowed(state.as_bytes()))));
    }
    let copied = target.correlation.iter().flatten();
    headers.extend(copied.map(|(name, value)| (&**name, Cow::Borrowed(&**value))));
    headers
}

/// The result of a task that succeeded, else its error; as JSON.
fn value(event: &Event) -> Result<Cow<'_, str>, BrokerError> {
    match event.payload.output() {
        Some(output) => Ok(Cow::Borrowed(output.text())),
        None => serde_json::to_string(&event.payload.error())
            .map(Cow::Owned)
            .map_err(|error| BrokerError::from(EncodeError::from(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(headers: &[(&str, Option<&[u8]>)]) -> Vec<String> {
        let names = ["correlation-id".to_owned()];
        let copied = correlation(&names, headers.iter().copied());
        copied.iter().flatten().map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn configured_and_unknown_ce_headers_are_copied() {
        let all: &[(&str, Option<&[u8]>)] = &[
            ("Correlation-Id", Some(b"7")),
            ("ce_subject", Some(b"order")),
            ("ce_id", Some(b"a")),
            ("ce_name", Some(b"mine")),
            ("x-tenant", Some(b"acme")),
            ("ce_null", None),
        ];
        assert_eq!(copied(all), ["Correlation-Id", "ce_subject"]);
        assert!(correlation(&[], [("x-tenant", Some(&b"acme"[..]))].into_iter()).is_none());
    }

    #[test]
    fn number_and_size_of_copied_headers_are_limited() {
        let long = vec![b'x'; MAX_COPIED_BYTES];
        assert_eq!(copied(&[("correlation-id", Some(&long)), ("ce_subject", Some(b"s"))]), ["ce_subject"]);
        let many = vec![("correlation-id", Some(&b"7"[..])); MAX_COPIED + 1];
        assert_eq!(copied(&many).len(), MAX_COPIED);
    }
}
