//! Form that submits a task, empty or filled in from another task.

use kafleet_api::http::problem::ApiError;
use kafleet_api::read::status::position;
use kafleet_api::service::context::{After, BodyMemory};
use kafleet_api::service::{create, task, types};
use kafleet_documents::{Status, TypeDocument, given_params};
use kafleet_model::json::RawJson;
use kafleet_model::task::field::comma_list;
use maud::{Markup, Render, html};
use serde_json::{Map, Value, json};

use super::form;
use super::new_many::{id_of_form, identity};
use crate::parts::command::{curl, quoted};
use crate::parts::form::{Form, Input};
use crate::parts::json::json_block;
use crate::parts::{View, task_path};
use crate::visit::{Body, PageAnswer, Redirect, Visit, after_position, document, from_kafka, stored, task_id};

/// Fields of the form that are passed on as text.
const TEXTS: [&str; 8] = ["type", "id", "parent", "key", "name", "creator", "link", "delay"];

pub(in super::super) async fn show(visit: &Visit) -> Result<PageAnswer, ApiError> {
    let listed = stored(types::type_list(&visit.api)).await.map(|listed| listed.types).unwrap_or_default();
    let model = match visit.query.get("like") {
        Some(id) => model(visit, id).await?,
        None => Vec::new(),
    };
    let preset = |name: &str| model.iter().find(|(listed, _)| *listed == name).map(|(_, value)| value.as_str());
    let value = |name: &str| visit.value(name).or_else(|| preset(name));
    let task_type = value("type").unwrap_or_default();
    let chosen = listed.iter().find(|listed| listed.name == task_type);
    let names: Vec<String> = listed.iter().filter(|listed| listed.topic).map(|listed| listed.name.clone()).collect();
    let main = html! {
        (submit_form(visit, task_type, inputs(visit, &value, &names, chosen)))
        p { "Many tasks: " a href=(visit.view.url("/new/many")) { "paste them or choose a file" } "." }
        (schema(&visit.view, chosen))
    };
    Ok(Body::new("New task", main).into())
}

fn submit_form(visit: &Visit, task_type: &str, inputs: Vec<Markup>) -> Markup {
    let name = if task_type.is_empty() { "TYPE".to_owned() } else { quoted(task_type) };
    Form {
        effect: html! {
            @if let Some(id) = visit.value("like") {
                p { "Filled in from " a href=(visit.view.task(id)) { (id) } "." }
            }
        },
        action: "/new".into(),
        inputs,
        back: "/tasks".into(),
        commands: vec![
            format!("kafleet submit {name} '{{…}}'"),
            curl("POST", "/v1/tasks", Some("{\"type\": \"TYPE\", \"params\": {}}")),
        ],
        ..form(visit, "/new", "", "New task", "Submit")
    }
    .render()
}

fn inputs<'a>(
    visit: &Visit,
    value: &impl Fn(&str) -> Option<&'a str>,
    names: &[String],
    chosen: Option<&TypeDocument>,
) -> Vec<Markup> {
    let text = |name, label, hint| Input::new(name, label, value(name)).hint(hint).render();
    let template = chosen.and_then(|chosen| chosen.schema.as_ref()).map(params_template);
    let params = value("params").map(str::to_owned).or(template).unwrap_or_else(|| "{}".to_owned());
    vec![
        identity(visit),
        like(visit),
        Input::new("type", "Type", value("type")).suggestions(names).required().render(),
        Input::new("params", "Params", Some(&params)).lines(10).hint("JSON").render(),
        text("id", "Id", "default: a unique one"),
        text("name", "Name", ""),
        text("tags", "Tags", "separated by commas"),
        more_inputs(value),
    ]
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
            (text("creator", "Creator", ""))
            (text("link", "Link", ""))
            (text("delay", "Start in", "a duration such as 10m"))
            (text("fields", "Other fields", fields_hint).lines(4))
        }
    }
}

/// Params with the required properties of a schema and empty values.
fn params_template(schema: &Value) -> String {
    let schema = given_params(schema);
    let empty = |property: &Value| match property["type"].as_str() {
        Some("integer" | "number") => Value::from(0),
        Some("boolean") => Value::from(false),
        Some("array") => Value::Array(Vec::new()),
        Some("object") => Value::Object(Map::new()),
        Some("string") => Value::from(""),
        _ => Value::Null,
    };
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let params: Map<String, Value> =
        required.map(|name| (name.to_owned(), empty(&schema["properties"][name]))).collect();
    RawJson::of_plain(&params).slice().pretty()
}

fn schema(view: &View, chosen: Option<&TypeDocument>) -> Markup {
    html! {
        @if let Some((chosen, schema)) = chosen.and_then(|chosen| Some((chosen, chosen.schema.as_ref()?))) {
            details.panel open {
                summary { h2 { "Schema of " a href=(view.url(&format!("/types/{}", chosen.name))) { (chosen.name) } } }
                (json_block(&RawJson::of_plain(schema), None))
            }
        }
    }
}

/// Fields of the form as of another task.
async fn model(visit: &Visit, id: &str) -> Result<Vec<(&'static str, String)>, ApiError> {
    let id = task_id(id)?;
    let status: Status = stored(task::status(visit.context(), id.clone(), After::default())).await?;
    let mut fields = Vec::new();
    if let Ok(params) = from_kafka(task::params(visit.context(), id, After::default())).await {
        fields.push(("params", params.params.slice().pretty()));
    }
    fields.extend(status.task_type.clone().map(|name| ("type", name)));
    fields.extend(status.fields.name.clone().map(|name| ("name", name)));
    fields.extend(status.fields.link.clone().map(|link| ("link", link)));
    fields.push(("tags", status.own_tags().join(", ")));
    Ok(fields)
}

pub(in super::super) async fn submit(visit: &Visit) -> Result<Redirect, ApiError> {
    let mut body = visit.entered.object("fields")?;
    for name in TEXTS {
        body.extend(visit.entered.get(name).map(|text| (name.to_owned(), json!(text.trim()).into())));
    }
    if let Some(params) = visit.entered.json("params")? {
        body.insert("params".to_owned(), with_hidden_values(visit, params).await?);
    }
    let tags = comma_list(visit.entered.get("tags").unwrap_or_default());
    if !tags.is_empty() {
        body.insert("tags".to_owned(), json!(tags).into());
    }
    // A form that is submitted again, such as after an unknown outcome, names the same task.
    if let Some(form) = visit.entered.get("form").filter(|_| !body.contains_key("id")) {
        body.insert("id".to_owned(), json!(id_of_form(form, &body)).into());
    }
    // The memory of the form's body is counted by the caller.
    let created = create::create(visit.context(), document(&body)?, BodyMemory::default(), None, None).await?;
    let done = if created.is_new { "submitted" } else { "exists" };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_has_the_required_params() {
        let schema = serde_json::json!({
            "required": ["url", "width", "tags"],
            "properties": {"url": {"type": "string"}, "width": {"type": "integer"}, "tags": {"type": "array"}, "x": {}}
        });
        let template: Value = serde_json::from_str(&params_template(&schema)).unwrap();
        assert_eq!(template, serde_json::json!({"url": "", "width": 0, "tags": []}));
    }
}
