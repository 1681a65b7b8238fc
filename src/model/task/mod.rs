//! The record on a task topic: params as the value, everything else as CloudEvents headers, all with defaults.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::json::RawJson;
use super::task::action::{Action, Check};
use super::task::continuation::{Continuation, check_thens};
use super::task::id::{TaskId, clip};
use super::units::duration::Millis;

/// Header names. All are optional: a bare JSON line is a task.
pub mod header {
    pub const SPEC_VERSION: &str = "ce_specversion";
    pub const ID: &str = "ce_id";
    pub const TYPE: &str = "ce_type";
    pub const SOURCE: &str = "ce_source";
    pub const TIME: &str = "ce_time";
    pub const CONTENT_TYPE: &str = "content-type";
    pub const PARENT: &str = "ce_parent";
    pub const RUN: &str = "ce_run";
    pub const ATTEMPT: &str = "ce_attempt";
    pub const AS_OF: &str = "ce_asof";
    pub const ANNOUNCED: &str = "ce_announced";
    pub const HASH: &str = "ce_hash";
    pub const NOT_BEFORE: &str = "ce_notbefore";
    pub const EXPIRES: &str = "ce_expires";
    pub const RETRIES: &str = "ce_retries";
    pub const MIN_BACKOFF: &str = "ce_minbackoff";
    pub const MAX_BACKOFF: &str = "ce_maxbackoff";
    pub const TIMEOUT: &str = "ce_timeout";
    pub const TOTAL_TIMEOUT: &str = "ce_totaltimeout";
    pub const ON_FAILURE: &str = "ce_onfailure";
    pub const NAME: &str = "ce_name";
    pub const CREATOR: &str = "ce_creator";
    pub const TAGS: &str = "ce_tags";
    pub const LINK: &str = "ce_link";
    pub const POLICY: &str = "ce_policy";
    pub const TRACE_PARENT: &str = "traceparent";
    pub const TRACE_STATE: &str = "tracestate";

    /// Those that say the policy.
    pub const OF_POLICY: [&str; 13] = [
        NOT_BEFORE,
        EXPIRES,
        RETRIES,
        MIN_BACKOFF,
        MAX_BACKOFF,
        TIMEOUT,
        TOTAL_TIMEOUT,
        ON_FAILURE,
        NAME,
        CREATOR,
        TAGS,
        LINK,
        POLICY,
    ];

    const OTHERS: [&str; 14] = [
        SPEC_VERSION,
        ID,
        TYPE,
        SOURCE,
        TIME,
        CONTENT_TYPE,
        PARENT,
        RUN,
        ATTEMPT,
        AS_OF,
        ANNOUNCED,
        HASH,
        TRACE_PARENT,
        TRACE_STATE,
    ];

    /// Its value is part of the task; others are only carried along.
    pub fn is_known(name: &str) -> bool {
        OTHERS.contains(&name) || OF_POLICY.contains(&name)
    }
}

/// The content type of structured-mode CloudEvents.
pub const STRUCTURED: &str = "application/cloudevents+json";

/// Limits on what a producer may attach to a task.
pub const MAX_TAGS: usize = 32;
pub const MAX_TEXT_CHARS: usize = 512;
pub const MAX_POLICY_BYTES: usize = 16 * 1024;
pub const MAX_RETRIES: u32 = 1_000;
/// The highest run of a task: a new one takes the number after the highest in its tree, so there must be room above.
pub const MAX_RUN: u32 = 1_000_000;

/// A task as the worker sees it.
#[derive(Clone, Debug)]
pub struct Task {
    pub id: TaskId,
    pub task_type: Arc<str>,
    pub run: u32,
    /// Attempts already used in this run when the record was written.
    pub attempts_used: u32,
    /// When the producer made it (`ce_time`), else the record's timestamp. Epoch milliseconds.
    pub created_at_ms: i64,
    pub position: Position,
    pub asof: Option<i64>,
    /// Whoever has published it tells of it in an event.
    pub announced: bool,
    pub hash: Option<Box<str>>,
    pub policy: Option<Box<Policy>>,
    pub trace: Option<Box<Trace>>,
    /// Its record has headers that say nothing to kafleet: whoever passes the task on takes them along.
    pub has_foreign_headers: bool,
    /// JSON, checked.
    pub params: RawJson,
}

/// The place of a record in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Position {
    pub partition: i32,
    pub offset: i64,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.partition, self.offset)
    }
}

impl std::str::FromStr for Position {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(p, o)| Some((p.parse().ok()?, o.parse().ok()?)));
        match parts {
            Some((partition, offset)) if partition >= 0 && offset >= 0 => Ok(Self { partition, offset }),
            _ => Err(format!("`{}` is not a position: write partition:offset, such as 3:1042", clip(text))),
        }
    }
}

/// The W3C trace context of the producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub parent: String,
    pub state: Option<String>,
}

/// What a failed child does to its parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The parent fails too.
    #[default]
    Fail,
    /// The parent does not mind.
    Ignore,
}

/// What the producer asks for beyond type and params. Everything has a default; the type's settings fill the gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Policy {
    /// Not to be started before this time (epoch ms).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before_ms: Option<i64>,
    /// Not to be started after this time (epoch ms).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_backoff: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Millis>,
    /// Of one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// Of all attempts and waits together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_timeout: Option<Millis>,
    #[serde(skip_serializing_if = "is_default")]
    pub on_failure: OnFailure,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    #[serde(flatten)]
    pub rules: Rules,
}

/// The part of the policy that travels as JSON in `ce_policy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Rules {
    /// Free-form options of the task; a JSON object that people may change later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<serde_json::Value>,
    /// Run by someone else, who reports its state.
    #[serde(skip_serializing_if = "is_default")]
    pub external: bool,
    /// Reports after the end are ignored (external tasks).
    #[serde(skip_serializing_if = "is_true")]
    pub block_when_done: bool,
    /// With the first failed child that `max_failed` does not allow, everything still open below is cancelled, the task
    /// itself too.
    #[serde(skip_serializing_if = "is_default")]
    pub fail_fast: bool,
    /// So many direct children may fail, be cancelled or expire without failing the task. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failed: Option<u32>,
    /// What follows when it and everything below it have ended; at most 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Continuation>,
    /// What is done when it comes into a state; at most 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// Looks at its state at a time; at most 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            options: None,
            external: false,
            block_when_done: true,
            fail_fast: false,
            max_failed: None,
            then: Vec::new(),
            actions: Vec::new(),
            checks: Vec::new(),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_true(value: &bool) -> bool {
    *value
}

/// Why a record is not a task. It goes to the dead-letter topic with this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Stable: `empty_value`, `bad_json`, `bad_id`, `bad_header`, `unsupported_version`, `schema`, `too_large`, …
    pub code: &'static str,
    pub message: String,
    /// Where in the params (JSON pointer).
    pub pointer: Option<String>,
    /// The task's id and run, when they could be read.
    pub task: Option<(TaskId, u32)>,
}

impl Reject {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), pointer: None, task: None }
    }
}

/// One record of a task topic, before it is understood.
pub struct Source<'a> {
    pub task_type: &'a Arc<str>,
    pub position: Position,
    pub timestamp_ms: i64,
    pub value: Option<&'a [u8]>,
}

/// Reads a record. Unknown headers are ignored; a header that is known and cannot be read is an error.
pub fn read_task<'a>(source: &Source<'_>, headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>) -> Result<Task, Reject> {
    let mut draft = Draft::default();
    for (name, value) in headers {
        draft.take(name, value.unwrap_or_default());
    }
    let Some(value) = source.value.filter(|value| !value.is_empty()) else {
        return Err(
            draft.reject(Reject::new("empty_value", "the record has no value: params are any JSON, `null` at least"), source)
        );
    };
    if draft.structured {
        return draft.read_structured(source, value);
    }
    draft.finish(source, value)
}

/// What the headers have said so far.
#[derive(Default)]
struct Draft<'a> {
    id: Option<&'a str>,
    parent: Option<&'a str>,
    task_type: Option<&'a str>,
    run: Option<u32>,
    attempts_used: u32,
    time_ms: Option<i64>,
    asof: Option<i64>,
    announced: bool,
    hash: Option<Box<str>>,
    expires: Option<Expiry>,
    policy: Option<Box<Policy>>,
    trace_parent: Option<String>,
    trace_state: Option<String>,
    structured: bool,
    has_foreign_headers: bool,
    /// The first header that cannot be read.
    refusal: Option<Reject>,
    /// It is one that the task's name depends on.
    nameless: bool,
}

enum Expiry {
    At(i64),
    After(Millis),
}

impl<'a> Draft<'a> {
    /// Goes on after a header that cannot be read: the refusal names the task, and its id may come later.
    fn take(&mut self, name: &str, value: &'a [u8]) {
        if let Err(why) = self.header(name, value) {
            self.nameless |= matches!(name, header::ID | header::PARENT | header::RUN);
            self.refusal.get_or_insert(why);
        }
    }

    fn header(&mut self, name: &str, value: &'a [u8]) -> Result<(), Reject> {
        // Only kafleet's own names begin so; everything else belongs to somebody else.
        let known = name.starts_with("ce_") || matches!(name, header::CONTENT_TYPE | header::TRACE_PARENT | header::TRACE_STATE);
        if !known {
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
                    format!("header `{name}` is `{}`: CloudEvents 1.0 is what this version reads", clip(text)),
                ));
            }
            header::ID => self.id = Some(text),
            header::PARENT => self.parent = Some(text),
            header::TYPE => self.task_type = Some(text),
            header::RUN => self.run = Some(number(name, text, 1, u64::from(MAX_RUN))? as u32),
            header::ATTEMPT => self.attempts_used = number(name, text, 0, u64::from(u32::MAX))? as u32,
            header::AS_OF => self.asof = Some(number(name, text, 0, i64::MAX as u64)? as i64),
            header::TIME => self.time_ms = Some(time(name, text)?),
            header::ANNOUNCED => self.announced = matches!(text, "1" | "true"),
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
        let duration = || Millis::parse(text).map_err(|why| bad_header(name, &why));
        // The box is made only for a header that is part of the policy: most tasks have none.
        macro_rules! set {
            ($field:ident, $value:expr) => {{
                let value = $value;
                self.policy.get_or_insert_default().$field = value;
            }};
        }
        match name {
            header::NOT_BEFORE => set!(not_before_ms, Some(time(name, text)?)),
            header::RETRIES => set!(retries, Some(number(name, text, 0, u64::from(MAX_RETRIES))? as u32)),
            header::MIN_BACKOFF => set!(min_backoff, Some(duration()?)),
            header::MAX_BACKOFF => set!(max_backoff, Some(duration()?)),
            header::TIMEOUT => set!(timeout, Some(duration()?)),
            header::TOTAL_TIMEOUT => set!(total_timeout, Some(duration()?)),
            header::ON_FAILURE => set!(on_failure, on_failure(name, text)?),
            header::NAME => set!(name, Some(short(name, text)?)),
            header::CREATOR => set!(creator, Some(short(name, text)?)),
            header::TAGS => set!(tags, tags(name, text)?),
            header::LINK => set!(link, Some(short(name, text)?)),
            header::POLICY => set!(rules, rules(name, text)?),
            header::SPEC_VERSION | header::SOURCE => {}
            _ => self.has_foreign_headers = true,
        }
        Ok(())
    }

    fn content_type(&mut self, text: &str) -> Result<(), Reject> {
        let media = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match media.as_str() {
            STRUCTURED => self.structured = true,
            "application/json" | "text/json" | "" => {}
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

    /// A structured-mode CloudEvent: its attributes are the headers, its `data` the params.
    fn read_structured(self, source: &Source<'_>, value: &[u8]) -> Result<Task, Reject> {
        #[derive(Deserialize)]
        struct Envelope {
            data: Option<RawJson>,
            #[serde(flatten)]
            attributes: serde_json::Map<String, serde_json::Value>,
        }
        let envelope: Envelope = serde_json::from_slice(value).map_err(|why| {
            self.reject(Reject::new("bad_json", format!("the value is not a CloudEvent in JSON: {why}")), source)
        })?;
        let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let attributes: Vec<(&String, String)> = envelope.attributes.iter().map(|(name, value)| (name, text(value))).collect();
        let mut draft: Draft<'_> = self;
        draft.structured = false;
        for (name, text) in &attributes {
            match name.as_str() {
                "datacontenttype" => draft.take(header::CONTENT_TYPE, text.as_bytes()),
                "traceparent" | "tracestate" => draft.take(name, text.as_bytes()),
                name => draft.take(&format!("ce_{name}"), text.as_bytes()),
            }
        }
        let data = envelope.data.unwrap_or_else(RawJson::null);
        draft.finish(source, data.text().as_bytes())
    }

    fn finish(mut self, source: &Source<'_>, value: &[u8]) -> Result<Task, Reject> {
        if let Some(refusal) = self.refusal.take() {
            return Err(self.reject(refusal, source));
        }
        let id = self.resolve_id(source).map_err(|why| Reject::new("bad_id", why.to_string()))?;
        let run = self.run.unwrap_or(1);
        let known = |reject: Reject| Reject { task: Some((id.clone(), run)), ..reject };
        if let Some(named) = self.task_type.filter(|named| *named != &**source.task_type) {
            let why = format!("`{}` does not match the topic, which holds tasks of type `{}`", clip(named), source.task_type);
            return Err(known(bad_header(header::TYPE, &why)));
        }
        let params =
            RawJson::parse(value).map_err(|why| known(Reject::new("bad_json", format!("the params are not JSON: {why}"))))?;
        let created_at_ms = self.time_ms.unwrap_or(source.timestamp_ms);
        if let Some(expires) = &self.expires {
            let at = match expires {
                Expiry::At(at) => *at,
                Expiry::After(span) => created_at_ms.saturating_add(span.as_i64()),
            };
            self.policy.get_or_insert_default().expires_at_ms = Some(at);
        }
        let state = self.trace_state;
        Ok(Task {
            task_type: source.task_type.clone(),
            run,
            attempts_used: self.attempts_used,
            created_at_ms,
            position: source.position,
            asof: self.asof,
            announced: self.announced,
            hash: self.hash,
            policy: self.policy,
            has_foreign_headers: self.has_foreign_headers,
            trace: self.trace_parent.map(|parent| Box::new(Trace { parent, state })),
            params,
            id,
        })
    }

    fn resolve_id(&self, source: &Source<'_>) -> Result<TaskId, super::task::id::IdError> {
        match &self.id {
            Some(id) => TaskId::resolve(id, self.parent),
            None => {
                let Position { partition, offset } = source.position;
                let made = TaskId::from_position(source.task_type, partition, offset, source.timestamp_ms);
                TaskId::resolve(&made, self.parent)
            }
        }
    }

    /// Adds the id to a refusal, where it can be read.
    fn reject(&self, reject: Reject, source: &Source<'_>) -> Reject {
        let id = if self.nameless { None } else { self.resolve_id(source).ok() };
        let task = id.map(|id| (id, self.run.unwrap_or(1)));
        Reject { task, ..reject }
    }
}

fn bad_header(name: &str, why: &str) -> Reject {
    Reject::new("bad_header", format!("header `{name}`: {why}"))
}

fn number(name: &str, text: &str, min: u64, max: u64) -> Result<u64, Reject> {
    text.trim()
        .parse()
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| bad_header(name, &format!("`{}` is not a whole number from {min} to {max}", clip(text))))
}

/// RFC 3339, or epoch milliseconds.
pub fn parse_time(text: &str) -> Result<i64, String> {
    if let Ok(millis) = text.trim().parse::<i64>() {
        return Ok(millis);
    }
    let told = |_| format!("`{}` is not a time: write RFC 3339, such as 2026-01-31T12:00:00Z, or epoch milliseconds", clip(text));
    text.trim().parse::<jiff::Timestamp>().map(jiff::Timestamp::as_millisecond).map_err(told)
}

fn time(name: &str, text: &str) -> Result<i64, Reject> {
    parse_time(text).map_err(|why| bad_header(name, &why))
}

/// A duration counts from the task's creation. A bare number is a duration, as everywhere.
fn expiry(name: &str, text: &str) -> Result<Expiry, Reject> {
    Millis::parse(text)
        .map(Expiry::After)
        .or_else(|_| time(name, text).map(Expiry::At))
        .map_err(|_| bad_header(name, &format!("`{}` is neither a duration, such as 10m, nor an RFC 3339 time", clip(text))))
}

fn short(name: &str, text: &str) -> Result<String, Reject> {
    if text.chars().count() > MAX_TEXT_CHARS {
        return Err(bad_header(name, &format!("it has more than {MAX_TEXT_CHARS} characters")));
    }
    Ok(text.to_owned())
}

fn on_failure(name: &str, text: &str) -> Result<OnFailure, Reject> {
    match text {
        "fail" => Ok(OnFailure::Fail),
        "ignore" => Ok(OnFailure::Ignore),
        _ => Err(bad_header(name, &format!("`{}` is unknown: use `fail` or `ignore`", clip(text)))),
    }
}

/// Tags are separated by commas.
fn tags(name: &str, text: &str) -> Result<Vec<String>, Reject> {
    let tags: Vec<String> = text.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
    check_tags(&tags).map_err(|why| bad_header(name, &why))?;
    Ok(tags)
}

/// At most 32 tags of 1 to 128 characters, none with a comma.
pub fn check_tags(tags: &[String]) -> Result<(), String> {
    if tags.len() > MAX_TAGS {
        return Err(format!("{} tags: at most {MAX_TAGS} are allowed", tags.len()));
    }
    match tags.iter().find(|tag| tag.is_empty() || tag.chars().count() > 128 || tag.contains(',')) {
        Some(tag) => Err(format!("the tag `{}` must have 1 to 128 characters and no comma", clip(tag))),
        None => Ok(()),
    }
}

fn rules(name: &str, text: &str) -> Result<Rules, Reject> {
    if text.len() > MAX_POLICY_BYTES {
        return Err(bad_header(name, &format!("it has {} bytes: at most {MAX_POLICY_BYTES} are allowed", text.len())));
    }
    // serde takes a list for a struct, field by field.
    if !text.trim_start().starts_with('{') {
        return Err(bad_header(name, "it must be a JSON object"));
    }
    let rules: Rules =
        serde_json::from_str(text).map_err(|why| bad_header(name, &format!("it is not the JSON expected: {why}")))?;
    if rules.options.as_ref().is_some_and(|options| !options.is_object()) {
        return Err(bad_header(name, "`options` must be a JSON object"));
    }
    check_thens(&rules.then).map_err(|(at, why)| bad_header(name, &format!("`then{at}`: {why}")))?;
    rules.own_tells().check().map_err(|(at, why)| bad_header(name, &format!("`{}`: {why}", at.trim_start_matches('/'))))?;
    Ok(rules)
}

pub mod action;
pub mod continuation;
pub mod delivery;
pub mod hash;
pub mod id;
pub mod partition;
pub mod patch;
#[cfg(test)]
mod tests;
