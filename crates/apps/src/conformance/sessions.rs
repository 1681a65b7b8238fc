//! Recorded sessions as cases, and the comparison of messages with recorded ones.

use std::collections::BTreeSet;
use std::iter::once;

use kafleet_model::task::id::clip;
use serde::Deserialize;
use serde_json::Value;

use super::{Case, CaseStep, Needs};

/// Bytes of a line that are sent one by one; the rest follows at once.
const MAX_SINGLE_BYTES: usize = 1_000;

/// Embeds files of `schemas/examples/app`.
macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../../../schemas/examples/app/", $name, ".jsonl")))),*]
    };
}

/// Names and texts of the recorded sessions.
pub(super) const FILES: [(&str, &str); 16] = files![
    "startup",
    "ok",
    "error",
    "retry",
    "dead",
    "output",
    "spawn",
    "spawn-call",
    "then",
    "retire",
    "unreadable-params",
    "end-of-stream",
    "ping",
    "cancel",
    "sync-async",
    "unable"
];

/// First line of a recorded session.
#[derive(Deserialize)]
struct Head {
    about: String,
    app: String,
    types: Vec<String>,
    responsive: bool,
}

/// Further line of a recorded session.
#[derive(Deserialize)]
struct TranscriptEvent {
    from: Side,
    message: Option<Value>,
    text: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    Worker,
    App,
}

/// Returns all recorded sessions.
pub(super) fn recorded() -> Vec<Case> {
    // The files are valid, as a test checks.
    FILES.iter().filter_map(|(name, text)| read(name, text).ok()).collect()
}

fn read(name: &str, text: &str) -> serde_json::Result<Case> {
    let (head, events) = text.split_once('\n').unwrap_or_default();
    let head: Head = serde_json::from_str(head)?;
    let events = events
        .split_terminator('\n')
        .map(serde_json::from_str)
        .collect::<serde_json::Result<Vec<TranscriptEvent>>>()?;
    let needs = match (head.app.as_str(), head.responsive) {
        ("broken", _) => Needs::Broken,
        (_, true) => Needs::Responsive,
        (_, false) => Needs::Nothing,
    };
    let steps = events.into_iter().map(step).collect();
    Ok(Case { name: name.to_owned(), rule: head.about, types: head.types, needs, steps })
}

fn step(event: TranscriptEvent) -> CaseStep {
    let line = event.text.or_else(|| event.message.as_ref().map(line_of));
    match (event.from, line, event.message) {
        (Side::Worker, Some(line), _) => CaseStep::Send(format!("{line}\n").into_bytes()),
        (Side::Worker, None, _) => CaseStep::End,
        (Side::App, _, Some(message)) => receive(message),
        (Side::App, _, None) => CaseStep::Exit(Some(0)),
    }
}

fn receive(message: Value) -> CaseStep {
    match &message["error"] {
        error if error["kind"] == "bad_params" => CaseStep::ReceiveUnreadable(error["n"].as_u64().unwrap_or_default()),
        _ => CaseStep::Receive(message),
    }
}

/// Returns the line of a message. An attempt begins with its number and ends with its params.
fn line_of(message: &Value) -> String {
    let Some(fields) = message["attempt"].as_object() else { return message.to_string() };
    let field = |name: &str| fields.get(name).map(|value| format!("{}:{value}", Value::from(name)));
    let others = fields.keys().filter(|name| !["n", "params"].contains(&name.as_str())).map(|name| field(name));
    let fields: Vec<String> = once(field("n")).chain(others).chain(once(field("params"))).flatten().collect();
    format!("{{\"attempt\":{{{}}}}}", fields.join(","))
}

/// Returns a recorded session whose lines arrive byte by byte. `None`: the app cannot start, so nothing is sent.
pub(super) fn in_single_bytes(case: &Case) -> Option<Case> {
    if case.needs == Needs::Broken {
        return None;
    }
    let singly = |step: &CaseStep| match step {
        CaseStep::Send(bytes) => {
            let (single, rest) = bytes.split_at(bytes.len().min(MAX_SINGLE_BYTES));
            let rest = (!rest.is_empty()).then(|| CaseStep::Send(rest.to_vec()));
            [Some(CaseStep::SendSingly(single.to_vec())), rest]
        }
        other => [Some(other.clone()), None],
    };
    let steps = case.steps.iter().flat_map(singly).flatten().collect();
    let rule = format!("However the bytes arrive, a line ends at its line feed. {}", case.rule);
    Some(Case { name: format!("{}-in-single-bytes", case.name), rule, steps, ..case.clone() })
}

/// Returns the first difference of a message from a recorded one, for people. Fields that the recorded one does not have
/// are not compared; neither are texts for people and the numbers of slots and threads.
pub(super) fn difference(recorded: &Value, actual: &Value) -> Option<String> {
    difference_at("", recorded, actual)
}

fn difference_at(at: &str, recorded: &Value, actual: &Value) -> Option<String> {
    let is_text = ["/message", "/stack", "/sdk", "/runtime"].iter().any(|end| at.ends_with(end));
    if (is_text && actual.is_string()) || (["/ready/slots", "/ready/threads"].contains(&at) && actual.is_u64()) {
        return None;
    }
    if at == "/ready/types" {
        return missing_type(recorded, actual);
    }
    match (recorded, actual) {
        (Value::Object(recorded), Value::Object(fields)) => recorded.iter().find_map(|(key, value)| {
            let at = format!("{at}/{key}");
            match fields.get(key) {
                Some(actual) => difference_at(&at, value, actual),
                // One slot is the default.
                None if at == "/ready/slots" => None,
                None => Some(format!("`{at}` is missing")),
            }
        }),
        (Value::Array(recorded), Value::Array(items)) if recorded.len() == items.len() => {
            let mut pairs = recorded.iter().zip(items).enumerate();
            pairs.find_map(|(index, (recorded, actual))| difference_at(&format!("{at}/{index}"), recorded, actual))
        }
        _ if recorded == actual => None,
        _ => {
            let (recorded, actual) = (recorded.to_string(), actual.to_string());
            Some(format!("`{at}` is `{}` instead of `{}`", clip(&actual), clip(&recorded)))
        }
    }
}

/// An app may declare more types than it was asked for: they are not run.
fn missing_type(recorded: &Value, actual: &Value) -> Option<String> {
    let names = |types: &Value| -> BTreeSet<String> {
        types
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|declared| Some(declared["name"].as_str()?.to_owned()))
            .collect()
    };
    let declared = names(actual);
    let missing = names(recorded).into_iter().find(|name| !declared.contains(name))?;
    Some(format!("`ready` does not declare the type `{missing}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_recorded_sessions_are_cases() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/examples/app");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<String> =
            files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
        names.sort();
        let mut cases: Vec<String> = recorded().into_iter().map(|case| case.name).collect();
        cases.sort();
        assert_eq!(cases, names);
    }

    #[test]
    fn attempt_begins_with_its_number_and_ends_with_its_params() {
        let attempt = json!({"attempt": {"id": "a", "n": 1, "params": ["\u{2028}"], "type": "t"}});
        assert_eq!(line_of(&attempt), "{\"attempt\":{\"n\":1,\"id\":\"a\",\"type\":\"t\",\"params\":[\"\u{2028}\"]}}");
        assert_eq!(line_of(&json!({"ping": {"at": 1}})), r#"{"ping":{"at":1}}"#);
    }

    #[test]
    fn messages_differ_in_recorded_fields_only() {
        let recorded = json!({"error": {"n": 1, "outcome": "fail", "message": "recorded"}});
        let same = json!({"error": {"n": 1, "outcome": "fail", "message": "other", "stack": "s", "new": 1}});
        assert_eq!(difference(&recorded, &same), None);
        let other = json!({"error": {"n": 1, "outcome": "retry", "message": "m"}});
        let message = difference(&recorded, &other).unwrap();
        assert_eq!(message, "`/error/outcome` is `\"retry\"` instead of `\"fail\"`");
        let missing = difference(&recorded, &json!({"error": {"n": 1, "message": "m"}})).unwrap();
        assert_eq!(missing, "`/error/outcome` is missing");
        assert!(difference(&recorded, &json!({"ok": {"n": 1}})).unwrap().contains("`/error` is missing"));
        let ready = |types: Value| json!({"ready": {"protocol": 1, "slots": 3, "types": types}});
        assert_eq!(difference(&ready(json!([{"name": "a"}])), &ready(json!([{"name": "b"}, {"name": "a"}]))), None);
        assert!(difference(&ready(json!([{"name": "a"}])), &ready(json!([]))).unwrap().contains("the type `a`"));
    }
}
