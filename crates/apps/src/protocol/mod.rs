//! Messages of the app protocol: one JSON object per line, with the kind of the message as its only key.
//!
//! ```text
//!  worker ──welcome──▶ app     {"welcome": {"protocol": 1, …}}
//!  worker ◀──ready──── app     {"ready": {"protocol": 1, "types": […], …}}
//!  worker ──attempt──▶ app     {"attempt": {"n": 1, "type": "echo", …}}
//!  worker ◀──ok─────── app     {"ok": {"n": 1, "output": …}}
//! ```
//!
//! [`Start`] and [`ToApp`] are the messages of the worker, [`FromApp`] those of the app. This module only parses and
//! encodes; the session checks the order of messages. `docs/app-protocol.md` is the specification for authors of SDKs.
//!
//! Invariant: a line with an unknown kind or an unknown field is a [`Violation`], which ends the process. If it were
//! ignored, the answer of an attempt could be lost, and the attempt would keep its slot until its deadline.

mod to_app;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use kafleet_handlers::context::MAX_CHILDREN;
use kafleet_model::event::log_line::LogStream;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub use self::to_app::{Limits, Reply, ReplyError, Start, ToApp, TraceFields, Welcome, line};

/// Highest version of the protocol that this worker speaks.
pub const VERSION: u32 = 1;
/// Maximum length of a line, in bytes: params and results have at most 3 MiB.
pub const MAX_LINE_BYTES: usize = 8 << 20;
/// Maximum number of slots of one process, and of its threads.
pub const MAX_SLOTS: u32 = 1_000;
/// Maximum number of unanswered `spawn` calls of one process.
pub const MAX_CALLS: usize = 16;
/// Maximum size of the replies that wait for an app that does not read them, in bytes.
pub const MAX_UNREAD_REPLIES_BYTES: usize = 32 << 20;
/// Maximum size of the children of one attempt that are published with its result, in bytes.
pub const MAX_CHILDREN_BYTES: usize = 64 << 20;
/// Maximum length of a failure kind.
const MAX_KIND_CHARS: usize = 64;
/// Maximum length of the excerpt of an invalid line, in bytes.
const MAX_EXCERPT_BYTES: usize = 200;

/// Message of an app.
#[derive(Debug)]
pub enum FromApp {
    Ready(Ready),
    Unable(Unable),
    Ok(AttemptSuccess),
    Error(AttemptError),
    Progress(Progress),
    Log(Log),
    Warn(Warn),
    Attach(Attach),
    Heartbeat(AttemptMessage),
    Pong(Pong),
    Spawn(Spawn),
    Continue(Continue),
    Retire(Retire),
    Files(Files),
}

/// First message of an app that can serve.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    pub protocol: u32,
    #[serde(default)]
    pub sdk: Option<String>,
    #[serde(default)]
    pub runtime: Option<String>,
    #[serde(default = "one_slot")]
    pub slots: u32,
    /// Attempts of `sync` types at once, counted apart from `slots`. 0: all types share `slots`.
    #[serde(default)]
    pub threads: u32,
    #[serde(default)]
    pub responsive: bool,
    pub types: Vec<DeclaredType>,
    /// Recurring schedules by name: the keys of `[schedules.NAME]`.
    #[serde(default)]
    pub schedules: BTreeMap<String, Box<RawValue>>,
}

fn one_slot() -> u32 {
    1
}

/// Task type as an app declares it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredType {
    pub name: String,
    /// JSON Schema of the params.
    #[serde(default)]
    pub params: Option<Value>,
    /// JSON Schema of the result.
    #[serde(default)]
    pub output: Option<Value>,
    /// Description for people.
    #[serde(default)]
    pub doc: Option<String>,
    /// Keys of `[types.<name>]`.
    #[serde(default)]
    pub policy: Option<Map<String, Value>>,
    /// Attempts block their thread.
    #[serde(default)]
    pub sync: bool,
    /// File and line of the declaration, such as `shop/mail.py:12`, for messages.
    #[serde(default)]
    pub source: Option<String>,
}

/// Kinds of messages of an app.
const KINDS: [&str; 14] = [
    "attach",
    "error",
    "files",
    "heartbeat",
    "log",
    "ok",
    "pong",
    "progress",
    "ready",
    "retire",
    "spawn",
    "then",
    "unable",
    "warn",
];

/// Reason why the app cannot serve.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unable {
    pub message: String,
}

/// Success of an attempt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptSuccess {
    pub n: u64,
    #[serde(default = "null")]
    pub output: Box<RawValue>,
}

fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

/// Failure of an attempt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptError {
    pub n: u64,
    pub outcome: ErrorOutcome,
    pub kind: String,
    pub message: String,
    #[serde(default)]
    pub after_ms: Option<u64>,
    #[serde(default)]
    pub stack: Option<String>,
}

/// Consequence of a failure, as an app requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorOutcome {
    Retry,
    Wait,
    Fail,
    Dead,
    Cancelled,
}

/// Progress of an attempt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    pub n: u64,
    pub value: Box<RawValue>,
    #[serde(default)]
    pub silent: bool,
}

/// Lines of the task's log.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    pub n: u64,
    pub lines: Vec<String>,
    /// Stream to which the attempt has written the lines, if it has written them to one.
    #[serde(default)]
    pub stream: Option<LogStream>,
    #[serde(default)]
    pub silent: bool,
}

/// Warning, shown until the task ends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Warn {
    pub n: u64,
    pub message: String,
    #[serde(default)]
    pub silent: bool,
}

/// Small value stored with the task.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    pub n: u64,
    pub name: String,
    pub media: String,
    /// Value in base64.
    pub data: String,
}

/// Message about an attempt without other fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptMessage {
    pub n: u64,
}

/// Answer to a `ping`. An app may send back the fields of a newer worker's.
#[derive(Debug, Deserialize)]
pub struct Pong {
    pub at: i64,
}

/// Children of an attempt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spawn {
    pub n: u64,
    pub tasks: SpawnedTasks,
    /// Number for the reply: the children are published at once.
    #[serde(default)]
    pub call: Option<u64>,
}

/// Tasks of a `spawn`. Those beyond the maximum number of children are counted, but not kept.
#[derive(Debug, Default)]
pub struct SpawnedTasks {
    pub kept: Vec<Box<RawValue>>,
    /// Number of all tasks.
    pub count: usize,
    /// Size of the kept tasks, in bytes.
    pub bytes: usize,
}

impl<'de> Deserialize<'de> for SpawnedTasks {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(TasksVisitor)
    }
}

struct TasksVisitor;

impl<'de> Visitor<'de> for TasksVisitor {
    type Value = SpawnedTasks;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an array of tasks")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut tasks: S) -> Result<SpawnedTasks, S::Error> {
        let mut read = SpawnedTasks::default();
        while read.count < MAX_CHILDREN {
            let Some(task) = tasks.next_element::<Box<RawValue>>()? else { return Ok(read) };
            read.count += 1;
            read.bytes += task.get().len();
            read.kept.push(task);
        }
        while tasks.next_element::<IgnoredAny>()?.is_some() {
            read.count += 1;
        }
        Ok(read)
    }
}

/// Continuation of a task.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Continue {
    pub n: u64,
    pub task: Box<RawValue>,
}

/// Request for no more attempts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retire {
    pub reason: String,
}

/// Source files that the app has loaded, for the reload of `kafleet dev`. Each message adds to the earlier ones.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// Absolute paths without links.
    pub paths: Vec<PathBuf>,
}

/// Violation of the protocol, with a reason for people. The process is killed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub String);

/// Decodes a line, without its line break.
pub fn parse(line: &[u8]) -> Result<FromApp, Violation> {
    serde_json::from_slice(line).map_err(|error| {
        let excerpt = String::from_utf8_lossy(&line[..line.len().min(MAX_EXCERPT_BYTES)]);
        let more = if line.len() > MAX_EXCERPT_BYTES { "…" } else { "" };
        Violation(format!("an invalid message: {error}: `{}{more}`", excerpt.trim_end()))
    })
}

impl<'de> Deserialize<'de> for FromApp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(MessageVisitor)
    }
}

struct MessageVisitor;

impl<'de> Visitor<'de> for MessageVisitor {
    type Value = FromApp;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object with the kind of the message as its only key")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<FromApp, M::Error> {
        use serde::de::Error as _;
        let Some(kind) = map.next_key::<std::borrow::Cow<'de, str>>()? else {
            return Err(M::Error::custom("an empty object"));
        };
        let message = match &*kind {
            "ok" => FromApp::Ok(map.next_value()?),
            "error" => FromApp::Error(map.next_value()?),
            "progress" => FromApp::Progress(map.next_value()?),
            "log" => FromApp::Log(map.next_value()?),
            "warn" => FromApp::Warn(map.next_value()?),
            "attach" => FromApp::Attach(map.next_value()?),
            "heartbeat" => FromApp::Heartbeat(map.next_value()?),
            "pong" => FromApp::Pong(map.next_value()?),
            "spawn" => FromApp::Spawn(map.next_value()?),
            "then" => FromApp::Continue(map.next_value()?),
            "retire" => FromApp::Retire(map.next_value()?),
            "files" => FromApp::Files(map.next_value()?),
            "ready" => FromApp::Ready(map.next_value()?),
            "unable" => FromApp::Unable(map.next_value()?),
            kind => return Err(M::Error::unknown_variant(kind, &KINDS)),
        };
        match map.next_key::<IgnoredAny>()? {
            None => Ok(message),
            Some(_) => Err(M::Error::custom("more than one key")),
        }
    }
}

/// Replaces characters that are not allowed in a failure kind; an empty kind becomes `error`.
pub fn valid_kind(kind: String) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if kind.is_empty() {
        return "error".to_owned();
    }
    if kind.len() <= MAX_KIND_CHARS && kind.chars().all(is_allowed) {
        return kind;
    }
    kind.chars().map(|c| if is_allowed(c) { c } else { '_' }).take(MAX_KIND_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kinds_and_fields_are_violations_that_name_them() {
        for (line, part) in [
            (r#"{"dance":[1,{"a":2}]}"#, "unknown variant `dance`, expected one of `attach`"),
            (r#"{"ok":{"n":3,"later":[1],"output":false}}"#, "unknown field `later`"),
            (r#"{"error":{"n":1,"outcome":"retry","kind":"a","message":"b","after":5}}"#, "unknown field `after`"),
            (r#"{"ready":{"protocol":1,"slot":2,"types":[]}}"#, "unknown field `slot`"),
            (r#"{"ready":{"protocol":1,"types":[{"name":"a","parmas":{}}]}}"#, "unknown field `parmas`"),
        ] {
            let error = parse(line.as_bytes()).unwrap_err().0;
            assert!(error.contains(part), "{line}: {error}");
        }
        for kind in KINDS.into_iter().filter(|kind| *kind != "pong") {
            let error = parse(format!(r#"{{"{kind}":{{"no such field":1}}}}"#).as_bytes()).unwrap_err().0;
            assert!(error.contains("unknown field `no such field`"), "{kind}: {error}");
        }
        let read = parse(br#" {"ready":{"protocol":1,"types":[{"name":"a"}]}} "#).unwrap();
        assert!(matches!(read, FromApp::Ready(Ready { slots: 1, responsive: false, .. })));
    }

    #[test]
    fn invalid_messages_are_violations() {
        for text in [
            &b""[..],
            b"{",
            b"[]",
            b"3",
            b"{}",
            b"{\"ok\":{\"n\":1}} x",
            br#"{"ok":{"n":1},"ok":{"n":1}}"#,
            br#"{"ok":{"n":1},"later":1}"#,
            br#"{"ok":{"n":-1}}"#,
            br#"{"ok":{"n":1.5}}"#,
            br#"{"ok":{"n":"1"}}"#,
            br#"{"ok":{}}"#,
            br#"{"ok":null}"#,
            br#"{"log":{"n":1,"lines":"a"}}"#,
            br#"{"log":{"n":1,"lines":["a"],"stream":"stdin"}}"#,
            br#"{"error":{"n":1,"outcome":2,"kind":"a","message":"b"}}"#,
            br#"{"ok":{"n":1,"output":NaN}}"#,
            b"{\"ok\":{\"n\":1,\"output\":\"\xff\"}}",
        ] {
            let text_of_line = String::from_utf8_lossy(text);
            let error = parse(text).err().unwrap_or_else(|| panic!("{text_of_line}")).0;
            assert!(error.starts_with("an invalid message: ") && error.len() < 500, "{error}");
        }
        assert!(parse(&[b'['; 100_000]).is_err());
    }

    #[test]
    fn tasks_beyond_the_limit_are_counted_and_not_kept() {
        let line = format!(r#"{{"spawn":{{"n":1,"tasks":[{}1]}}}}"#, "{},".repeat(600_000));
        let Ok(FromApp::Spawn(spawn)) = parse(line.as_bytes()) else { panic!("a valid message") };
        assert_eq!((spawn.tasks.count, spawn.tasks.kept.len()), (600_001, MAX_CHILDREN));
    }

    #[test]
    fn kinds_have_allowed_characters_only() {
        for (kind, valid) in [("bad_width", "bad_width"), ("", "error"), ("a b/é", "a_b__"), ("A.B-c", "A.B-c")] {
            assert_eq!(valid_kind(kind.to_owned()), valid);
        }
        assert_eq!(valid_kind("x".repeat(100)).len(), MAX_KIND_CHARS);
    }
}
