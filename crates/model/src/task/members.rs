//! Members of `ce_policy` that have headers of their own elsewhere. Producers that can set one JSON header but not many, such as
//! the event router of Debezium, write all fields of a task there. kafleet's own publishers do not.

use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{MAX_TEXT_CHARS, Policy, header, parse_time};
use crate::json::short_reason;
use crate::units::duration::Millis;
use crate::units::time::Expires;

/// Members besides the fields of the policy.
const OTHERS: [&str; 5] = ["delay", "at", "expires", "traceparent", "tracestate"];

/// Members of `ce_policy` besides the rules.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PolicyMembers {
    policy: Policy,
    delay: Option<Millis>,
    /// Earliest start, epoch milliseconds.
    at_ms: Option<i64>,
    pub(super) expires: Option<Expires>,
    pub(super) trace_parent: Option<String>,
    pub(super) trace_state: Option<String>,
}

impl PolicyMembers {
    /// Reads the JSON of the header. Other members are ignored.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let members: Self =
            serde_json::from_str(text).map_err(|error| format!("it is invalid: {}", short_reason(&error)))?;
        match members.policy.errors().into_iter().next() {
            Some((field, reason)) => Err(format!("`{field}`: {reason}")),
            None if members.delay.is_some() && members.at_ms.is_some() => {
                Err("`delay` and `at` are both given: write one of them".to_owned())
            }
            None => Ok(members),
        }
    }

    /// Names of the members in JSON.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        Policy::fields().filter(|field| field.header.is_some()).map(|field| field.name).chain(OTHERS)
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the fields to those of other headers. A delay counts from `created_ms`, in epoch milliseconds.
    ///
    /// # Errors
    /// A field is given twice.
    pub(super) fn merge(&self, policy: &mut Policy, created_ms: i64) -> Result<(), String> {
        for field in Policy::fields().filter(|field| self.policy.is_set(field)) {
            if let Some(header) = field.header.filter(|_| policy.is_set(field)) {
                return Err(is_also_a_header(field.name, header));
            }
            policy.copy(field, &self.policy);
        }
        let start_ms = self.delay.map(|delay| created_ms.saturating_add(delay.as_i64())).or(self.at_ms);
        if start_ms.is_some() && policy.not_before_ms.is_some() {
            return Err(is_also_a_header("at", header::NOT_BEFORE));
        }
        policy.not_before_ms = start_ms.or(policy.not_before_ms);
        if policy.unique.is_some() && policy.not_before_ms.is_some() {
            return Err("`unique`: a unique task has no start time of its own: omit `delay` and `at`".to_owned());
        }
        Ok(())
    }
}

/// Reason why a field that is given twice is refused.
pub(super) fn is_also_a_header(field: &str, header: &str) -> String {
    format!("`{field}` is also in the header `{header}`: write it into one of them")
}

impl<'de> Deserialize<'de> for PolicyMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = PolicyMembers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object of task fields")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<PolicyMembers, M::Error> {
        let mut members = PolicyMembers::default();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "delay" => members.delay = map.next_value()?,
                "at" => members.at_ms = map.next_value::<Option<String>>()?.map(|at| time(&at)).transpose()?,
                "expires" => members.expires = map.next_value()?,
                "traceparent" => members.trace_parent = text(&name, map.next_value()?)?,
                "tracestate" => members.trace_state = text(&name, map.next_value()?)?,
                name => match Policy::field(name).filter(|field| field.header.is_some()) {
                    Some(field) => members.policy.read_or_clear(field, &mut map)?,
                    None => drop(map.next_value::<IgnoredAny>()?),
                },
            }
        }
        Ok(members)
    }
}

fn time<E: Error>(text: &str) -> Result<i64, E> {
    parse_time(text).map_err(|reason| E::custom(format!("`at`: {reason}")))
}

fn text<E: Error>(name: &str, text: Option<String>) -> Result<Option<String>, E> {
    if text.as_ref().is_some_and(|text| text.chars().count() > MAX_TEXT_CHARS) {
        return Err(E::custom(format!("`{name}` has more than {MAX_TEXT_CHARS} characters")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::decode::{RecordSource, read_task};
    use super::super::{Position, Reject, TaskSpec};
    use super::*;

    const NOW: i64 = 1_769_860_800_000;

    /// Value of each field in JSON, and in its header if it has one.
    const FIELDS: [(&str, &str, Option<&str>); 24] = [
        ("name", r#""Großer Auftrag""#, Some("Großer Auftrag")),
        ("creator", r#""me""#, Some("me")),
        ("tags", r#"["a","b"]"#, Some("a,b")),
        ("link", r#""https://example.org""#, Some("https://example.org")),
        ("retries", "3", Some("3")),
        ("min_backoff", r#""100ms""#, Some("100ms")),
        ("max_backoff", r#""2s""#, Some("2s")),
        ("backoff_reset", r#""1m""#, Some("1m")),
        ("max_wait", r#""6h""#, Some("6h")),
        ("timeout", r#""30s""#, Some("30s")),
        ("stall_timeout", r#""10s""#, Some("10s")),
        ("total_timeout", r#""1d""#, Some("1d")),
        ("reply_to", r#""shop.replies""#, Some("shop.replies")),
        ("on_failure", r#""ignore""#, Some("ignore")),
        ("unique", r#"{"key":"k","mode":"latest"}"#, Some(r#"{"key":"k","mode":"latest"}"#)),
        ("options", r#"{"a":1}"#, None),
        ("headers", r#"{"x-tenant":"acme"}"#, None),
        ("external", "true", None),
        ("fail_fast", "true", None),
        ("max_failed", "2", None),
        ("index", "1", None),
        ("then", r#"[{"type":"archive"}]"#, None),
        ("actions", r#"[{"callback":{"url":"https://example.org/hook"}}]"#, None),
        (
            "checks",
            r#"[{"expect":["succeeded"],"after":"1h","failed":{"callback":{"url":"https://example.org/hook"}}}]"#,
            None,
        ),
    ];

    fn read(headers: &[(&str, &str)]) -> Result<TaskSpec, Reject> {
        let source = RecordSource {
            task_type: &Arc::from("echo"),
            position: Position { partition: 3, offset: 41 },
            timestamp_ms: NOW,
            value: Some(b"{}"),
        };
        let id = [("ce_id", "a")];
        read_task(&source, id.iter().chain(headers).map(|(name, text)| (*name, Some(text.as_bytes()))))
    }

    fn policy(headers: &[(&str, &str)]) -> Policy {
        read(headers).map(|task| task.policy.map(|policy| *policy).unwrap_or_default()).unwrap()
    }

    #[test]
    fn ce_policy_takes_each_field_of_a_task() {
        assert!(Policy::fields().map(|field| field.name).eq(FIELDS.iter().map(|(name, ..)| *name)), "a row per field");
        for (name, json, text) in FIELDS {
            let field = Policy::field(name).unwrap();
            let of_json = policy(&[("ce_policy", &format!(r#"{{"{name}":{json}}}"#))]);
            assert!(of_json.is_set(field), "{name}");
            assert_eq!(field.header.is_some(), text.is_some(), "{name}");
            if let (Some(header), Some(text)) = (field.header, text) {
                assert_eq!(of_json, policy(&[(header, text)]), "{name}");
                let doubled = read(&[(header, text), ("ce_policy", &format!(r#"{{"{name}":{json}}}"#))]);
                let message = doubled.unwrap_err().message;
                assert!(message.contains(&format!("`{name}` is also in the header `{header}`")), "{message}");
            }
        }
    }

    #[test]
    fn all_fields_fit_beside_each_other() {
        let fields = FIELDS.iter().filter(|(name, ..)| *name != "backoff_reset");
        let members: Vec<String> = fields.clone().map(|(name, json, _)| format!(r#""{name}":{json}"#)).collect();
        let read = policy(&[("ce_policy", &format!("{{{}}}", members.join(",")))]);
        assert!(fields.clone().all(|(name, ..)| read.is_set(Policy::field(name).unwrap())), "{read:?}");
    }

    #[test]
    fn ce_policy_takes_times_and_the_trace() {
        let text = r#"{"delay":"10s","expires":"1m","traceparent":"00-1-2-01","tracestate":"v=1","retries":null}"#;
        let task = read(&[("ce_policy", text)]).unwrap();
        let policy = task.policy.unwrap();
        assert_eq!((policy.not_before_ms, policy.expires_at_ms), (Some(NOW + 10_000), Some(NOW + 60_000)));
        let trace = task.trace.unwrap();
        assert_eq!((trace.parent.as_str(), trace.state.as_deref()), ("00-1-2-01", Some("v=1")));
        let at = self::policy(&[("ce_policy", r#"{"at":"2026-02-01T00:00:00Z"}"#)]);
        assert_eq!(at.not_before_ms, Some(1_769_904_000_000));
    }

    #[test]
    fn invalid_members_are_refused_with_their_name() {
        let time = ("ce_notbefore", "2026-02-01T00:00:00Z");
        let expires = ("ce_expires", "1m");
        for (text, other, part) in [
            (r#"{"retries":1001}"#, None, "`retries`: `1001` is not a number of retries"),
            (r#"{"retries":"x"}"#, None, "it is invalid"),
            (r#"{"timeout":"0s"}"#, None, "`timeout`: it must be greater than zero"),
            (r#"{"retires":1}"#, None, "`retires` is unknown; did you mean `retries`?"),
            (r#"{"delay":"1s","at":"2026-02-01T00:00:00Z"}"#, None, "`delay` and `at` are both given"),
            (r#"{"delay":"1s"}"#, Some(time), "`at` is also in the header `ce_notbefore`"),
            (r#"{"expires":"1s"}"#, Some(expires), "`expires` is also in the header `ce_expires`"),
            (r#"{"unique":"k","delay":"1s"}"#, None, "a unique task has no start time"),
        ] {
            let headers: Vec<(&str, &str)> = [("ce_policy", text)].into_iter().chain(other).collect();
            let refusal = read(&headers).unwrap_err();
            assert_eq!((refusal.code, refusal.task.is_some()), ("bad_header", true), "{text}");
            assert!(refusal.message.contains(part), "{text}: {}", refusal.message);
        }
    }

    /// A record of kafleet's own publishers has each field in its header.
    #[test]
    fn announced_record_has_no_members() {
        let announced = [("ce_announced", "1"), ("ce_policy", r#"{"retries":1,"fail_fast":true}"#)];
        let policy = policy(&announced);
        assert_eq!((policy.retries, policy.rules.fail_fast), (None, true));
    }
}
