//! Decoding of records on task topics.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::IgnoredAny;

use super::id::{IdError, TaskId, clip};
use super::members::{PolicyMembers, is_also_a_header};
use super::structured::{Envelope, media_type};
use super::{
    MAX_ATTEMPTS, MAX_POLICY_BYTES, MAX_RUN, MAX_TEXT_CHARS, Policy, Position, ReceivedTask, Reject, Rules, STRUCTURED,
    TaskSpec, Trace, header, parse_time,
};
use crate::json::{JsonError, RawJson, short_reason};
use crate::retry::RunProgress;
use crate::units::time::Expires;

/// Beginning of the media types of CloudEvents as a whole.
const CLOUD_EVENTS: &str = "application/cloudevents";

/// Record of a task topic before decoding.
pub struct RecordSource<'a> {
    pub task_type: &'a Arc<str>,
    pub position: Position,
    pub timestamp_ms: i64,
    pub value: Option<&'a [u8]>,
}

impl RecordSource<'_> {
    /// Returns the time stated by a producer, but at most the timestamp of the record: a creation time after the append time
    /// means that the producer's clock is ahead.
    fn no_later(&self, stated_ms: i64) -> i64 {
        if self.timestamp_ms > 0 { stated_ms.min(self.timestamp_ms) } else { stated_ms }
    }
}

/// Decodes the task of a record; see [`read_record`].
pub fn read_task<'a>(
    source: &RecordSource<'_>,
    headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> Result<TaskSpec, Reject> {
    read_record(source, headers).map(|received| received.task)
}

/// Decodes a record. Unknown headers are ignored; a known header that is invalid is an error.
pub fn read_record<'a>(
    source: &RecordSource<'_>,
    headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> Result<ReceivedTask, Reject> {
    let mut reader = RecordReader::default();
    for (name, value) in headers {
        reader.decode_header(name, value.unwrap_or_default());
    }
    let Some(value) = source.value.filter(|value| !value.is_empty()) else {
        return Err(reader.reject(
            Reject::new("empty_value", "the record has no value: params must be JSON, at least `null`"),
            source,
        ));
    };
    if reader.structured {
        return reader.read_structured(source, value);
    }
    reader.finish(source, value)
}

/// Reader of one record, with the headers decoded so far.
#[derive(Default)]
struct RecordReader<'a> {
    id: Option<&'a str>,
    parent: Option<&'a str>,
    task_type: Option<&'a str>,
    run: Option<u32>,
    progress: RunProgress,
    time_ms: Option<i64>,
    asof: Option<i64>,
    announced: bool,
    asked: bool,
    hash: Option<Box<str>>,
    expires: Option<Expires>,
    policy: Option<Box<Policy>>,
    /// Fields in the JSON of `ce_policy` that have headers of their own.
    members: Option<PolicyMembers>,
    trace_parent: Option<String>,
    trace_state: Option<String>,
    structured: bool,
    has_foreign_headers: bool,
    /// Error of the first invalid header.
    refusal: Option<Reject>,
    /// Error of the first unknown setting. It is ignored if a process of the fleet has written the record: it may be of a
    /// newer build.
    unknown: Option<Reject>,
    /// The invalid header is part of the task's identity.
    nameless: bool,
}

impl<'a> RecordReader<'a> {
    /// Decodes a header. Continues after an invalid one, because the rejection includes the task's id, which may
    /// follow.
    fn decode_header(&mut self, name: &str, value: &'a [u8]) {
        if let Err(error) = self.header(name, value) {
            self.nameless |= matches!(name, header::ID | header::PARENT | header::RUN);
            self.refusal.get_or_insert(error);
        }
    }

    fn header(&mut self, name: &str, value: &'a [u8]) -> Result<(), Reject> {
        // Names of kafleet's own headers begin with `ce_`; all others are foreign.
        let is_known = name.starts_with("ce_")
            || matches!(name, header::CONTENT_TYPE | header::TRACE_PARENT | header::TRACE_STATE);
        if !is_known {
            self.has_foreign_headers = true;
            return Ok(());
        }
        let Ok(text) = std::str::from_utf8(value) else {
            return Err(bad_header(name, "it is not UTF-8"));
        };
        match name {
            header::SPEC_VERSION if text != "1.0" => {
                return Err(Reject::new(
                    "unsupported_version",
                    format!("header `{name}` is `{}`: only CloudEvents 1.0 is supported", clip(text)),
                ));
            }
            header::ID => self.id = Some(text),
            header::PARENT => self.parent = Some(text),
            header::TYPE => self.task_type = Some(text),
            header::RUN => self.run = Some(number(name, text, 1, u64::from(MAX_RUN))? as u32),
            header::ATTEMPT => self.progress.attempts = number(name, text, 0, u64::from(MAX_ATTEMPTS))? as u32,
            header::BACKOFF_FROM => self.progress.backoff_from = number(name, text, 0, u64::from(MAX_ATTEMPTS))? as u32,
            header::WAITS => self.progress.waits = text.parse().map_err(|reason: String| bad_header(name, &reason))?,
            header::AS_OF => self.asof = Some(number(name, text, 0, i64::MAX as u64)? as i64),
            header::TIME => self.time_ms = Some(time(name, text)?),
            header::ANNOUNCED => self.announced = matches!(text, "1" | "true"),
            header::ASKED => self.asked = matches!(text, "1" | "true"),
            header::HASH => self.hash = Some(short(name, text)?.into()),
            header::EXPIRES => self.expires = Some(expiry(name, text)?),
            header::CONTENT_TYPE => self.content_type(text)?,
            header::TRACE_PARENT => self.trace_parent = Some(short(name, text)?),
            header::TRACE_STATE => self.trace_state = Some(short(name, text)?),
            _ => self.policy_header(name, text)?,
        }
        Ok(())
    }

    fn policy_header(&mut self, name: &str, text: &str) -> Result<(), Reject> {
        match name {
            header::NOT_BEFORE => self.policy.get_or_insert_default().not_before_ms = Some(time(name, text)?),
            header::POLICY => {
                self.policy.get_or_insert_default().rules = rules(name, text)?;
                if !self.announced {
                    self.members = Some(PolicyMembers::parse(text).map_err(|error| bad_header(name, &error))?);
                }
                self.note_unknown(name, || unknown_rule(text));
            }
            header::SPEC_VERSION | header::SOURCE => {}
            _ => {
                let is_field =
                    Policy::read_header(&mut self.policy, name, text).map_err(|error| bad_header(name, &error))?;
                if !is_field {
                    self.has_foreign_headers = true;
                    self.note_unknown(name, || header::mistake(name));
                }
            }
        }
        Ok(())
    }

    /// Notes that a setting is unknown. Kafleet's own publishers write first that they have announced the task, so that their
    /// settings are not searched.
    fn note_unknown(&mut self, name: &str, reason: impl FnOnce() -> Option<String>) {
        if !self.announced && self.unknown.is_none() {
            self.unknown = reason().map(|reason| bad_header(name, &reason));
        }
    }

    fn content_type(&mut self, text: &str) -> Result<(), Reject> {
        match media_type(text).as_str() {
            STRUCTURED => self.structured = true,
            "application/json" | "text/json" | "" => {}
            media if media.starts_with(CLOUD_EVENTS) => {
                let reason = format!("`{media}` is not supported: write one event per record, as `{STRUCTURED}`");
                return Err(bad_header(header::CONTENT_TYPE, &reason));
            }
            media if media.ends_with("+json") => {}
            _ => {
                return Err(bad_header(
                    header::CONTENT_TYPE,
                    &format!("`{}` is not JSON: params are `application/json`", clip(text)),
                ));
            }
        }
        Ok(())
    }

    /// Decodes a structured-mode CloudEvent: its attributes are the headers, its `data` the params.
    fn read_structured(self, source: &RecordSource<'_>, value: &[u8]) -> Result<ReceivedTask, Reject> {
        let envelope = Envelope::parse(value).map_err(|reject| self.reject(reject, source))?;
        let attributes: Vec<(&str, &str)> = envelope.headers().collect();
        let mut reader: RecordReader<'_> = self;
        reader.structured = false;
        for (name, text) in &attributes {
            reader.decode_header(name, text.as_bytes());
        }
        reader.finish(source, envelope.data().text().as_bytes())
    }

    fn finish(mut self, source: &RecordSource<'_>, value: &[u8]) -> Result<ReceivedTask, Reject> {
        if let Err(error) = self.merge_members(source) {
            self.refusal.get_or_insert(error);
        }
        let unknown = self.unknown.take().filter(|_| !self.announced);
        if let Some(refusal) = self.refusal.take().or(unknown) {
            return Err(self.reject(refusal, source));
        }
        let id = self.resolve_id(source).map_err(|error| Reject::new("bad_id", error.to_string()))?;
        let run = self.run.unwrap_or(1);
        let with_task = |reject: Reject| Reject { task: Some((id.clone(), run)), ..reject };
        if let Some(named) = self.task_type.filter(|named| *named != &**source.task_type) {
            let error =
                format!("`{}` does not match the topic, which holds tasks of type `{}`", clip(named), source.task_type);
            return Err(with_task(bad_header(header::TYPE, &error)));
        }
        let params = RawJson::parse(value).map_err(|error| with_task(bad_json("the params are not JSON", &error)))?;
        let created_at_ms = self.time_ms.unwrap_or(source.timestamp_ms);
        if let Some(expires) = &self.expires {
            let at_ms = expires.time_ms(source.no_later(created_at_ms));
            self.policy.get_or_insert_default().expires_at_ms = Some(at_ms);
        }
        let state = self.trace_state;
        let task = TaskSpec {
            run,
            created_at_ms,
            asof: self.asof,
            announced: self.announced,
            asked: self.asked,
            hash: self.hash,
            policy: self.policy,
            trace: self.trace_parent.map(|parent| Box::new(Trace { parent, state })),
            ..TaskSpec::new(id, source.task_type.clone(), params)
        };
        let Self { progress, has_foreign_headers, .. } = self;
        Ok(ReceivedTask { task, position: source.position, progress, has_foreign_headers })
    }

    /// Adds the fields of `ce_policy`. Kafleet's own publishers write them as headers alone.
    fn merge_members(&mut self, source: &RecordSource<'_>) -> Result<(), Reject> {
        let Some(members) = self.members.take().filter(|members| !self.announced && !members.is_empty()) else {
            return Ok(());
        };
        let created_ms = source.no_later(self.time_ms.unwrap_or(source.timestamp_ms));
        let policy = self.policy.get_or_insert_default();
        members.merge(policy, created_ms).map_err(|error| bad_header(header::POLICY, &error))?;
        let PolicyMembers { expires, trace_parent, trace_state, .. } = members;
        let doubled = [
            ("expires", header::EXPIRES, expires.is_some() && self.expires.is_some()),
            ("traceparent", header::TRACE_PARENT, trace_parent.is_some() && self.trace_parent.is_some()),
        ];
        if let Some((name, header, _)) = doubled.iter().find(|(_, _, is_doubled)| *is_doubled) {
            return Err(bad_header(header::POLICY, &is_also_a_header(name, header)));
        }
        self.expires = expires.or(self.expires.take());
        self.trace_state = trace_state.or(self.trace_state.take());
        self.trace_parent = trace_parent.or(self.trace_parent.take());
        Ok(())
    }

    fn resolve_id(&self, source: &RecordSource<'_>) -> Result<TaskId, IdError> {
        match &self.id {
            Some(id) => TaskId::resolve(id, self.parent),
            None => {
                let Position { partition, offset } = source.position;
                let derived = TaskId::from_position(source.task_type, partition, offset, source.timestamp_ms);
                TaskId::resolve(&derived, self.parent)
            }
        }
    }

    /// Adds the task's identity to a rejection, if it can be parsed.
    fn reject(&self, reject: Reject, source: &RecordSource<'_>) -> Reject {
        let id = if self.nameless { None } else { self.resolve_id(source).ok() };
        let task = id.map(|id| (id, self.run.unwrap_or(1)));
        Reject { task, ..reject }
    }
}

fn bad_json(problem: &str, error: &JsonError) -> Reject {
    let pointer = error.pointer().map(str::to_owned);
    Reject { pointer, ..Reject::new("bad_json", format!("{problem}: {error}")) }
}

fn bad_header(name: &str, reason: &str) -> Reject {
    Reject::new("bad_header", format!("header `{name}`: {reason}"))
}

fn number(name: &str, text: &str, min: u64, max: u64) -> Result<u64, Reject> {
    text.trim()
        .parse()
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| bad_header(name, &format!("`{}` is not a whole number from {min} to {max}", clip(text))))
}

fn time(name: &str, text: &str) -> Result<i64, Reject> {
    parse_time(text).map_err(|error| bad_header(name, &error))
}

/// Parses an expiry. A duration counts from the task's creation time, or from the record's timestamp if that is earlier.
fn expiry(name: &str, text: &str) -> Result<Expires, Reject> {
    Expires::parse(text).map_err(|error| bad_header(name, &error))
}

fn short(name: &str, text: &str) -> Result<String, Reject> {
    if text.chars().count() > MAX_TEXT_CHARS {
        return Err(bad_header(name, &format!("it has more than {MAX_TEXT_CHARS} characters")));
    }
    Ok(text.to_owned())
}

fn rules(name: &str, text: &str) -> Result<Rules, Reject> {
    if text.len() > MAX_POLICY_BYTES {
        return Err(bad_header(name, &format!("it has {} bytes: at most {MAX_POLICY_BYTES} are allowed", text.len())));
    }
    // serde would also accept a list as a struct, field by field.
    if !text.trim_start().starts_with('{') {
        return Err(bad_header(name, "it must be a JSON object"));
    }
    let rules: Rules = serde_json::from_str(text)
        .map_err(|error| bad_header(name, &format!("it is invalid: {}", short_reason(&error))))?;
    rules.check_all().map_err(|(at, error)| bad_header(name, &format!("`{}`: {error}", at.trim_start_matches('/'))))?;
    Ok(rules)
}

/// Returns the reason why a member of the rules is unknown.
fn unknown_rule(text: &str) -> Option<String> {
    let members: BTreeMap<Cow<'_, str>, IgnoredAny> = serde_json::from_str(text).ok()?;
    let names = || Rules::names().chain(PolicyMembers::names());
    let unknown = members.keys().find(|member| names().all(|name| name != member.as_ref()))?;
    let near = names().find(|name| header::is_typo(name.as_bytes(), unknown.as_bytes()));
    let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    Some(format!("`{}` is unknown{hint}", clip(unknown)))
}
