//! Children and continuations as an app sends them.

use std::sync::Arc;

use kafleet_handlers::{BAD_THEN, Child, Context, Continuation, Failure};
use kafleet_model::json::{RawJson, check_document, short_reason};
use kafleet_model::task::document::document;
use kafleet_model::task::field::Scope;
use kafleet_model::task::{Policy, parse_time};
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::Expires;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Child task: the fields of `POST /v1/tasks` that apply to a child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
struct ChildDocument {
    #[serde(rename = "type")]
    task_type: Arc<str>,
    #[serde(default)]
    params: RawJson,
    /// Last segment of the id, or the whole id.
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    delay: Option<Millis>,
    #[serde(default)]
    at: Option<String>,
    #[serde(default)]
    expires: Option<Expires>,
    #[serde(flatten, skip_deserializing)]
    policy: Policy,
}

document!(ChildDocument, Scope::Create, policy);

/// Reads the children of a `spawn`. `now_ms` is the base of delays, `max_params` the maximum size of params in bytes.
pub(super) fn read_children(
    tasks: &[Box<RawValue>],
    cx: &Context,
    now_ms: i64,
    max_params: u64,
) -> Result<Vec<Child>, Failure> {
    let mut children = Vec::with_capacity(tasks.len());
    for (index, task) in tasks.iter().enumerate() {
        children.push(
            read_child(task, cx, now_ms, max_params)
                .map_err(|error| bad_child(&format!("`tasks[{index}]`: {error}")))?,
        );
    }
    Ok(children)
}

fn read_child(task: &RawValue, cx: &Context, now_ms: i64, max_params: u64) -> Result<Child, String> {
    check_document(task.get().as_bytes()).map_err(|error| error.to_string())?;
    let document: ChildDocument = serde_json::from_str(task.get()).map_err(|error| short_reason(&error))?;
    let start_ms = match (document.delay, &document.at) {
        (Some(_), Some(_)) => return Err("`delay` and `at` are mutually exclusive".to_owned()),
        (Some(delay), None) => Some(now_ms.saturating_add(delay.as_i64())),
        (None, Some(at)) => Some(parse_time(at)?),
        (None, None) => None,
    };
    let mut policy = document.policy;
    if policy.rules.external {
        return Err("`external`: an app spawns no external tasks; hint: create it with the API".to_owned());
    }
    policy.not_before_ms = start_ms.filter(|start_ms| *start_ms > now_ms);
    policy.expires_at_ms = document.expires.map(|expires| expires.time_ms(now_ms));
    let checked = cx.limits().check_policy(&policy, now_ms);
    checked.map_err(|(at, error)| format!("`{}`: {error}", at.trim_start_matches('/')))?;
    let bytes = document.params.text().len() as u64;
    if bytes > max_params {
        return Err(format!("`params` have {bytes} bytes: at most {max_params} are allowed"));
    }
    let mut child = Child::new(&document.task_type, document.params);
    child.segment = document.id.map(|id| last_segment(&id, cx));
    child.key = document.key;
    child.policy = policy;
    Ok(child)
}

/// Returns the part of a child's whole id below its parent; another id is returned unchanged.
fn last_segment(id: &str, cx: &Context) -> String {
    let below = id.strip_prefix(cx.id.as_str()).and_then(|rest| rest.strip_prefix(':'));
    below.unwrap_or(id).to_owned()
}

/// Reads the continuation of a `then`.
pub(super) fn read_continuation(task: &RawValue) -> Result<Continuation, Failure> {
    let refused = |error: &dyn std::fmt::Display| Failure::fail(format!("a continuation: {error}")).of_kind(BAD_THEN);
    check_document(task.get().as_bytes()).map_err(|error| refused(&error))?;
    serde_json::from_str(task.get()).map_err(|error| refused(&short_reason(&error)))
}

/// Failure of an attempt whose children cannot be published.
pub(super) fn bad_child(reason: &str) -> Failure {
    Failure::fail(format!("a child cannot be spawned: {reason}")).of_kind("bad_child")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_handlers::testing::TestRun;

    fn read(text: &str) -> Result<Child, Failure> {
        let (cx, _) = TestRun::new().id("order").begin("t");
        let task = RawValue::from_string(text.to_owned()).unwrap();
        read_children(&[task], &cx, 1_000, 100).map(|children| children.into_iter().next().unwrap())
    }

    #[test]
    fn child_has_the_fields_of_its_document() {
        let child =
            read(r#"{"type":"a","params":[1],"id":"order:x","key":"k","delay":"2s","expires":"5s","retries":2}"#);
        let child = child.unwrap();
        assert_eq!((&*child.task_type, child.segment.as_deref(), child.key.as_deref()), ("a", Some("x"), Some("k")));
        assert_eq!((child.policy.not_before_ms, child.policy.expires_at_ms), (Some(3_000), Some(6_000)));
        assert_eq!(child.policy.retries, Some(2));
        assert_eq!(read(r#"{"type":"a","id":"y"}"#).unwrap().segment.as_deref(), Some("y"));
    }

    #[test]
    fn invalid_child_is_refused_with_its_field() {
        for (text, error) in [
            ("3", "expected an object, found integer `3`"),
            ("{}", "missing field `type`"),
            (r#"{"type":"a","retrys":1}"#, "unknown field `retrys`"),
            (r#"{"type":"a","parent":"b"}"#, "unknown field `parent`"),
            (r#"{"type":"a","external":true}"#, "`external`"),
            (r#"{"type":"a","params":{"n":1,"n":1}}"#, "the name `n` occurs twice in an object (at `/params/n`)"),
            (r#"{"type":"a","tags":[],"tags":[]}"#, "the name `tags` occurs twice"),
            (&format!(r#"{{"type":"a","params":"{}"}}"#, "x".repeat(99)), "`params` have 101 bytes: at most 100"),
            (r#"{"type":"a","delay":"1s","at":"2026-01-01T00:00:00Z"}"#, "mutually exclusive"),
            (r#"{"type":"a","delay":"31d"}"#, "`delay`: the task would start more than 30d from now"),
            (r#"{"type":"a","expires":1795853855}"#, "may be epoch seconds"),
            (r#"{"type":"a","timeout":"31d"}"#, "`timeout`: `31d` is longer than a tree may stay open"),
            (r#"{"type":"a","timeout":1795853855000}"#, "may be a time"),
            (r#"{"type":"a","timeout":"2s","total_timeout":"1s"}"#, "`timeout`: `2s` is longer than `total_timeout`"),
            (r#"{"type":"a","then":[{"type":"b","max_wait":"31d"}]}"#, "`then/0/max_wait`"),
        ] {
            let failure = read(text).unwrap_err();
            assert_eq!(&*failure.kind, "bad_child");
            assert!(failure.message.contains("`tasks[0]`") && failure.message.contains(error), "{failure}");
        }
    }
}
