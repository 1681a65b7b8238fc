//! Form that submits a task, empty or filled in from another task.

use kafleet_api::http::problem::ApiError;
use kafleet_api::read::status::position;
use kafleet_api::service::context::{After, BodyMemory};
use kafleet_api::service::{create, preview, task, types};
use kafleet_documents::{Problem, Status, TaskPreview, TypeDocument};
use kafleet_model::json::RawJson;
use kafleet_model::task::field::comma_list;
use maud::{Markup, Render, html};
use serde_json::json;
use std::collections::BTreeMap;

use super::form;
use super::new_many::{id_of_form, identity};
use super::params_input::{ParamsInput, entered_params};
use super::unique::verdict_code;
use crate::parts::command::{curl, quoted};
use crate::parts::form::{Form, Input, described_list, step_button};
use crate::parts::notice::missing;
use crate::parts::problem::problem_list;
use crate::parts::times::time;
use crate::parts::{View, task_path, visible};
use crate::visit::{Body, PageAnswer, Redirect, Visit, after_position, document, from_kafka, stored, task_id};

/// Hint of the field for the key of a unique task.
const UNIQUE_HINT: &str = "at most one task of a type and key is open; for another mode JSON such as {\"key\": \"customer-42\", \"mode\": \"latest\"}";
/// Fields of the form that are passed on as text.
const TEXTS: [&str; 8] = ["type", "id", "parent", "key", "name", "creator", "link", "delay"];

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let listed = stored(types::type_list(&visit.api)).await.map(|listed| listed.types).unwrap_or_default();
    let model = match visit.query.get("like") {
        Some(id) => model(visit, id).await?,
        None => Model::default(),
    };
    let preset = |name: &str| model.fields.iter().find(|(listed, _)| *listed == name).map(|(_, value)| value.as_str());
    let value = |name: &str| visit.value(name).or_else(|| preset(name));
    let task_type = value("type").unwrap_or_default().trim();
    let mut params = ParamsInput::of(visit, task_type, visit.query.get("params").or_else(|| preset("params"))).await?;
    let checked = if visit.step() == Some("check") { Some(check(visit).await?) } else { None };
    if let Some(checked) = &checked {
        params.add_problems(&checked.problems);
    }
    let chosen = listed.iter().find(|listed| listed.name == task_type);
    let form = Form {
        effect: effect(visit, model.without_params.as_ref(), checked.as_ref()),
        beside: beside(&visit.view, task_type, chosen, &params),
        ..submit_form(visit, task_type, inputs(visit, &value, &listed, &params))
    };
    let main = html! {
        (form.render())
        p { "Many tasks: " a href=(visit.view.url("/new/many")) { "paste them or choose a file" } "." }
    };
    Ok(Body::new("New task", main).into())
}

fn submit_form<'a>(visit: &'a Visit, task_type: &str, inputs: Vec<Markup>) -> Form<'a> {
    let name = if task_type.is_empty() { "TYPE".to_owned() } else { quoted(task_type) };
    Form {
        action: "/new".into(),
        inputs,
        more_buttons: step_button("check", "Check"),
        back: "/tasks".into(),
        commands: vec![
            format!("kafleet submit {name} '{{…}}'"),
            format!("kafleet submit {name} '{{…}}' --dry-run"),
            curl("POST", "/v1/tasks", Some("{\"type\": \"TYPE\", \"params\": {}}")),
        ],
        ..form(visit, "/new", "", "New task", "Submit")
    }
}

/// Origin of the values, and the outcome of a check.
fn effect(visit: &Visit, without_params: Option<&Problem>, checked: Option<&TaskPreview>) -> Markup {
    html! {
        @if let Some(id) = visit.value("like") {
            p { "Filled in from " a href=(visit.view.task(id)) { (id) } "." }
        }
        @if let Some(problem) = without_params { (missing("The params of that task", problem)) }
        @if let Some(checked) = checked { (outcome(&visit.view, checked)) }
    }
}

fn outcome(view: &View, checked: &TaskPreview) -> Markup {
    html! {
        @if checked.valid {
            div.notice.good role="status" {
                p { strong { "Valid" } ": nothing was submitted." }
                @if let (true, Some(id)) = (checked.exists, &checked.id) {
                    p { "The same task already exists: " a href=(view.task(id)) { (id) } "." }
                }
                @if let Some(at) = &checked.starts_at { p { "It would start at " (time(at)) "." } }
            }
        } @else {
            div.notice.bad role="status" { p { strong { "Not valid" } ":" } (problem_list(view, &checked.problems)) }
        }
    }
}

/// Description and schema of the chosen type.
fn beside(view: &View, task_type: &str, chosen: Option<&TypeDocument>, params: &ParamsInput) -> Option<Markup> {
    let schema = params.schema();
    let doc = chosen.and_then(|chosen| chosen.doc.as_deref());
    (schema.is_some() || doc.is_some()).then(|| {
        html! {
            section.panel {
                h2 { "Schema of " a href=(view.url(&format!("/types/{task_type}"))) { (task_type) } }
                @if let Some(doc) = doc { p { (visible(doc)) } }
                @if let Some(schema) = schema { (schema) }
            }
        }
    })
}

fn inputs<'a>(
    visit: &Visit,
    value: &impl Fn(&str) -> Option<&'a str>,
    listed: &[TypeDocument],
    params: &ParamsInput,
) -> Vec<Markup> {
    let text = |name, label, hint| Input::new(name, label, value(name)).hint(hint).render();
    vec![
        identity(visit),
        like(visit),
        type_input(value("type"), listed),
        params.inputs(),
        text("id", "Id", "default: a unique one"),
        text("name", "Name", ""),
        text("tags", "Tags", "separated by commas"),
        more_inputs(value),
    ]
}

/// Type, with the known ones and their descriptions.
pub(super) fn type_input(value: Option<&str>, listed: &[TypeDocument]) -> Markup {
    let known: Vec<(&str, &str)> = listed
        .iter()
        .filter(|listed| listed.topic)
        .map(|listed| (listed.name.as_str(), listed.doc.as_deref().unwrap_or_default()))
        .collect();
    html! {
        div.field {
            label for="f-type" { "Type" }
            div.joined {
                input #f-type name="type" value=(value.unwrap_or_default()) autocomplete="off" required list="l-type";
                (step_button("type", "Choose"))
            }
            p.hint { "Choose shows the fields of its params." }
            (described_list("l-type", &known))
        }
    }
}

/// Hidden field with the task that the form was filled in from, whose masked values the new task gets.
fn like(visit: &Visit) -> Markup {
    html! { @if let Some(id) = visit.value("like") { input type="hidden" name="like" value=(id); } }
}

fn more_inputs<'a>(value: &impl Fn(&str) -> Option<&'a str>) -> Markup {
    let text = |name, label, hint| Input::new(name, label, value(name)).hint(hint);
    let fields_hint = "a JSON object, such as {\"retries\": 5, \"timeout\": \"30s\"}";
    html! {
        details.more {
            summary { "More fields" }
            (text("parent", "Parent", "id of an existing task"))
            (text("key", "Key", "tasks with the same key keep their order; default: the id"))
            (text("unique", "Unique key", UNIQUE_HINT))
            (text("creator", "Creator", ""))
            (text("link", "Link", ""))
            (text("delay", "Start in", "a duration such as 10m"))
            (text("fields", "Other fields", fields_hint).lines(4))
        }
    }
}

/// Task that the form is filled in from.
#[derive(Default)]
struct Model {
    fields: Vec<(&'static str, String)>,
    /// Reason why its params are missing.
    without_params: Option<Problem>,
}

/// Fields of the form as of another task.
async fn model(visit: &Visit, id: &str) -> Result<Model, ApiError> {
    let id = task_id(id)?;
    let status: Status = stored(task::status(visit.context(), id.clone(), After::default())).await?;
    let (mut fields, mut without_params) = (Vec::new(), None);
    match from_kafka(task::params(visit.context(), id, After::default())).await {
        Ok(params) => fields.push(("params", params.params.slice().pretty())),
        Err(error) => without_params = Some(error.document()),
    }
    fields.extend(status.task_type.clone().map(|name| ("type", name)));
    fields.extend(status.fields.name.clone().map(|name| ("name", name)));
    fields.extend(status.fields.link.clone().map(|link| ("link", link)));
    fields.push(("tags", status.own_tags().join(", ")));
    Ok(Model { fields, without_params })
}

/// Body of the request that the form describes.
async fn body(visit: &Visit) -> Result<BTreeMap<String, RawJson>, ApiError> {
    let mut body = visit.entered.object("fields")?;
    for name in TEXTS {
        body.extend(visit.entered.get(name).map(|text| (name.to_owned(), json!(text.trim()).into())));
    }
    if let Some(unique) = visit.entered.get("unique") {
        let is_object = unique.trim_start().starts_with('{');
        let value = if is_object { visit.entered.json("unique")? } else { Some(json!(unique.trim()).into()) };
        body.extend(value.map(|value| ("unique".to_owned(), value)));
    }
    if let Some(params) = entered_params(visit).await? {
        body.insert("params".to_owned(), with_hidden_values(visit, params).await?);
    }
    let tags = comma_list(visit.entered.get("tags").unwrap_or_default());
    if !tags.is_empty() {
        body.insert("tags".to_owned(), json!(tags).into());
    }
    Ok(body)
}

/// Outcome that the submission of the form would have.
async fn check(visit: &Visit) -> Result<TaskPreview, ApiError> {
    let task = match body(visit).await {
        Ok(body) => document(&body),
        Err(error) => Err(error),
    };
    match task {
        Ok(task) => stored(preview::preview(visit.context(), task)).await,
        Err(error) => Ok(refused(error.document())),
    }
}

fn refused(problem: Problem) -> TaskPreview {
    TaskPreview { valid: false, problems: vec![problem], id: None, exists: false, starts_at: None }
}

pub(in super::super) async fn submit(visit: &Visit) -> Result<Redirect, ApiError> {
    let mut body = body(visit).await?;
    // A form that is submitted again, such as after an unknown outcome, names the same task.
    if let Some(form) = visit.entered.get("form").filter(|_| !body.contains_key("id")) {
        body.insert("id".to_owned(), json!(id_of_form(form, &body)).into());
    }
    // The memory of the form's body is counted by the caller.
    let created = create::create(visit.context(), document(&body)?, BodyMemory::default(), None, None).await?;
    let done = match created.verdict {
        Some(verdict) => verdict_code(verdict),
        None if created.is_new => "submitted",
        None => "exists",
    };
    Ok(after_position(task_path(created.task.id.as_str()), position(&created.task), done))
}

/// Params with the values that the form shows masked, of the task that it was filled in from.
async fn with_hidden_values(visit: &Visit, params: RawJson) -> Result<RawJson, ApiError> {
    let task_type = visit.entered.get("type").unwrap_or_default().trim();
    match visit.entered.get("like") {
        Some(like) => task::with_hidden_values(visit.context(), task_id(like)?, task_type, params).await,
        None => Ok(params),
    }
}
