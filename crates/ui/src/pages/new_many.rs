//! Form that submits many tasks, pasted or from a file.

use data_encoding::HEXLOWER;
use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::batch::{self, Items};
use kafleet_api::service::context::BodyMemory;
use kafleet_documents::{BatchItem, BatchOutcome, ItemOutcome};
use kafleet_model::json::RawJson;
use maud::{Markup, Render, html};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};

use super::{form, form_page};
use crate::parts::command::curl;
use crate::parts::form::{Form, Input};
use crate::parts::{count, first_line};
use crate::visit::{PageAnswer, Redirect, Visit, document, members};

/// Refused tasks that are named.
const MAX_NAMED: usize = 10;
const HINT: &str = "one JSON document per line, such as {\"type\": \"resize\", \"params\": {…}, \"tags\": [\"a\"]}, or \
                    a JSON array; at most 10,000 tasks";

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    Ok(form_page(&Form {
        effect: html! {
            p { "Each task is accepted or refused by itself. Accepted ones are not submitted again when the form is." }
        },
        inputs: vec![
            identity(visit),
            file_input(),
            Input::new("tasks", "Tasks", visit.entered.get("tasks")).required().lines(16).hint(HINT).render(),
        ],
        back: "/new".into(),
        commands: vec![
            "kafleet submit --file tasks.ndjson".into(),
            curl("POST", "/v1/batches", Some("[{\"type\": \"TYPE\", \"params\": {}}]")),
        ],
        ..form(visit, "/new", "many", "New tasks", "Submit")
    }))
}

/// Hidden field that identifies the form, also when it is submitted again.
pub(super) fn identity(visit: &Visit) -> Markup {
    let fresh = uuid::Uuid::now_v7().to_string();
    html! { input type="hidden" name="form" value=(visit.value("form").unwrap_or(&fresh)); }
}

/// Id of a task without one: the same whenever the form is submitted with it.
pub(super) fn id_of_form(form: &str, task: &BTreeMap<String, RawJson>) -> String {
    format!("{form}-{}", digest(task))
}

fn file_input() -> Markup {
    html! {
        div.field.app {
            label for="f-file" { "File" }
            input #f-file type="file" accept=".json,.ndjson,.jsonl,.txt" data-into="f-tasks";
        }
    }
}

pub(in super::super) async fn submit(visit: &Visit) -> Result<Redirect, ApiError> {
    let items = items(visit.entered.get("tasks").unwrap_or_default(), visit.entered.get("form").unwrap_or_default())?;
    let items = Items(items.iter().map(document).collect());
    // The memory of the form's body is counted by the caller.
    let outcome = batch::create(visit.context(), items, BodyMemory::default(), None, false).await?;
    if outcome.accepted < outcome.items.len() {
        return Err(refusal(&outcome));
    }
    Ok(Redirect { path: "/tasks".into(), after: None, done: "submitted_many" })
}

/// Reads the tasks. Those without an id get one of the form and their text, so that a form that is submitted again, also
/// after changes elsewhere in it, names the same tasks.
fn items(text: &str, form: &str) -> Result<Vec<BTreeMap<String, RawJson>>, ApiError> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut items = Vec::new();
    for (n, item) in documents(text)?.into_iter().enumerate() {
        let Some(mut task) = members(&item) else {
            return Err(bad_json(format!("task {}: it is not a JSON object", n + 1)));
        };
        if !task.contains_key("id") {
            let id = id_of_form(form, &task);
            let same = seen.entry(id.clone()).or_default();
            *same += 1;
            task.insert("id".to_owned(), json!(format!("{id}-{same}")).into());
        }
        items.push(task);
    }
    Ok(items)
}

/// Elements of a JSON array, or one document per line.
fn documents(text: &str) -> Result<Vec<RawJson>, ApiError> {
    if text.trim_start().starts_with('[') {
        let list = RawJson::parse(text.as_bytes()).map_err(|error| bad_json(format!("`tasks`: {error}")))?;
        return Ok(list.slice().elements().map(RawJson::from).collect());
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty()).enumerate();
    lines
        .map(|(n, line)| RawJson::parse(line.as_bytes()).map_err(|error| bad_json(format!("task {}: {error}", n + 1))))
        .collect()
}

fn bad_json(reason: String) -> ApiError {
    ApiError::new(Code::BadJson, reason).pointer("/tasks")
}

fn digest(task: &BTreeMap<String, RawJson>) -> String {
    let text = serde_json::to_vec(task).unwrap_or_default();
    HEXLOWER.encode(&Sha256::digest(text)[..8])
}

/// Error with the first tasks that were not accepted.
fn refusal(outcome: &BatchOutcome) -> ApiError {
    let bad: Vec<&BatchItem> = outcome.items.iter().filter(|item| item.outcome != ItemOutcome::Accepted).collect();
    let named = bad.iter().take(MAX_NAMED).map(|item| {
        let error = item.problem.as_ref().map(|problem| first_line(&problem.detail, 200)).unwrap_or_default();
        format!("task {}: {error}", item.index + 1)
    });
    let more = if bad.len() > MAX_NAMED { "; …" } else { "" };
    let detail = format!(
        "{} of {} tasks were not accepted: {}{more}",
        count(bad.len()),
        count(outcome.items.len()),
        named.collect::<Vec<_>>().join("; ")
    );
    ApiError::new(Code::BadField, detail)
        .pointer("/tasks")
        .hint("correct them and submit the form again: the accepted ones are not submitted twice")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<String> {
        items(text, "f").unwrap().iter().map(|item| item["id"].slice().string().unwrap().into_owned()).collect()
    }

    #[test]
    fn tasks_keep_their_ids_when_others_change() {
        let (a, b, own) = (r#"{"type":"a"}"#, r#"{"type":"b"}"#, r#"{"type":"b","id":"own"}"#);
        let first = ids(&format!("{a}\n\n{b}\n{a}\n{own}\n"));
        assert_eq!(first[3], "own");
        assert!(first[0] != first[2] && first[0] != first[1], "{first:?}");
        assert_eq!(ids(&format!("{a}\n{a}\n{own}")), [&first[0], &first[2], &first[3]].map(Clone::clone));
        assert_eq!(ids(&format!("[{b}, {a}]")), [&first[1], &first[0]].map(Clone::clone));
    }

    #[test]
    fn mistake_names_the_task() {
        for (text, part) in [("{}\n{odd", "task 2"), ("{}\n7", "task 2: it is not"), ("[{}", "`tasks`: ")] {
            let detail = items(text, "f").unwrap_err().document().detail;
            assert!(detail.contains(part), "{text}: {detail}");
        }
    }
}
