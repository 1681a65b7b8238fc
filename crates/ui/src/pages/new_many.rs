//! Form that submits many tasks, pasted or from a file.

use data_encoding::HEXLOWER;
use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::batch::{self, Items};
use kafleet_api::service::context::BodyMemory;
use kafleet_documents::{BatchItem, BatchOutcome, ItemOutcome};
use kafleet_model::json::RawJson;
use kafleet_model::query::quoted;
use maud::{Markup, Render, html};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{form, form_page};
use crate::parts::command::curl;
use crate::parts::form::{Form, Input};
use crate::parts::notice::Verdicts;
use crate::parts::{count, first_line, search_path};
use crate::visit::{PageAnswer, Redirect, Visit, document, members};

/// Submitted tasks that are searched by their ids.
const MAX_LISTED: usize = 20;
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
    Ok(submitted(visit, &outcome))
}

/// Redirect after a submission of all tasks, with the verdicts about the unique ones, to the newest tasks.
fn submitted(visit: &Visit, outcome: &BatchOutcome) -> Redirect {
    let mut verdicts = Verdicts::default();
    for item in &outcome.items {
        if let Some(verdict) = item.verdict {
            verdicts.add(verdict, item.id.as_deref().unwrap_or_default());
        }
    }
    let ids: BTreeSet<&str> = outcome.items.iter().filter_map(|item| item.id.as_deref()).collect();
    let redirect = Redirect { verdicts: Some(verdicts), ..Redirect::new("/tasks", "submitted_many") };
    match search_of(visit.entered.get("form").unwrap_or_default(), &ids) {
        Some(q) => redirect.leading_to(search_path(&q)),
        None => redirect,
    }
}

/// Search for the submitted tasks: by their ids if these are few, else by the beginning of the ids that the form has given.
fn search_of(form: &str, ids: &BTreeSet<&str>) -> Option<String> {
    if ids.len() <= MAX_LISTED {
        let ids: Vec<String> = ids.iter().map(|id| quoted(id)).collect();
        return (!ids.is_empty()).then(|| format!("id:{}", ids.join(",")));
    }
    let is_of_form = !form.is_empty() && ids.iter().all(|id| id.starts_with(form));
    is_of_form.then(|| quoted(&format!("{form}-")))
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
    fn submitted_tasks_are_searched_by_their_ids_or_the_beginning_of_them() {
        let few = BTreeSet::from(["a", "b c"]);
        assert_eq!(search_of("f", &few).as_deref(), Some("id:a,\"b c\""));
        let ids: Vec<String> = (0..30).map(|n| format!("f-{n}")).collect();
        let mut many: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        assert_eq!(search_of("f", &many).as_deref(), Some("f-"));
        many.insert("own");
        assert_eq!(search_of("f", &many), None);
        assert_eq!(search_of("f", &BTreeSet::new()), None);
    }

    #[test]
    fn mistake_names_the_task() {
        for (text, part) in [("{}\n{odd", "task 2"), ("{}\n7", "task 2: it is not"), ("[{}", "`tasks`: ")] {
            let detail = items(text, "f").unwrap_err().document().detail;
            assert!(detail.contains(part), "{text}: {detail}");
        }
    }
}
