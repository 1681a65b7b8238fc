//! Params of a task in a form: fields by the schema of the type, or JSON. A button shows the form again with the other of the
//! two, and with the values entered.

use kafleet_api::http::problem::{ApiError, Code};
use kafleet_api::service::types;
use kafleet_documents::Problem;
use kafleet_model::json::RawJson;
use maud::{Markup, Render, html};
use serde_json::Value;

use crate::parts::form::{Input, enter_button, step_button};
use crate::parts::schema_form::{FieldError, SchemaForm, is_input, schema_outline};
use crate::visit::{Visit, from_kafka};

/// Hidden field with the type of which the form has fields. Without it, the params are JSON.
const FIELDS_OF: &str = "fields_of";
/// Params that a new form begins with.
const EMPTY: &str = "{}";

/// Params of a form.
pub(super) struct ParamsInput {
    task_type: String,
    schema: Option<Value>,
    /// Fields of the schema; `None`: it has none.
    form: Option<SchemaForm>,
    contents: ParamsContents,
    errors: Vec<FieldError>,
}

/// Contents of the inputs.
enum ParamsContents {
    Fields(Vec<(String, String)>),
    Json(String),
}

impl ParamsInput {
    /// Params of a type: those entered, or the preset ones.
    pub(super) async fn of(visit: &Visit, task_type: &str, preset: Option<&str>) -> Result<Self, ApiError> {
        let mut params = Self::empty(visit, task_type).await?;
        match visit.entered.get(FIELDS_OF) {
            Some(shown) => params.take_fields(visit, shown).await?,
            None if visit.entered.is_empty() => params.set(preset, false),
            None => params.set(visit.entered.get("params"), !matches!(visit.step(), Some("fields" | "type"))),
        }
        params.add_problems(visit.problem.as_slice());
        Ok(params)
    }

    /// These params, whatever is entered in the form.
    pub(super) async fn of_value(visit: &Visit, task_type: &str, value: Option<&str>) -> Result<Self, ApiError> {
        let mut params = Self::empty(visit, task_type).await?;
        params.set(value, false);
        Ok(params)
    }

    async fn empty(visit: &Visit, task_type: &str) -> Result<Self, ApiError> {
        let schema = schema_of(visit, task_type).await?;
        let form = schema.as_ref().and_then(SchemaForm::of_params);
        let (contents, errors) = (ParamsContents::Json(String::new()), Vec::new());
        Ok(Self { task_type: task_type.to_owned(), schema, form, contents, errors })
    }

    /// Takes the texts of the fields of a type, which is another one if it was changed meanwhile.
    async fn take_fields(&mut self, visit: &Visit, shown: &str) -> Result<(), ApiError> {
        let texts = || visit.entered.iter().filter(|(name, _)| is_input(name));
        let texts: Vec<(String, String)> = texts().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let is_same = shown == self.task_type;
        match (entered_fields(visit, shown).await?, &self.form) {
            (Ok(value), _) if visit.step() == Some("json") => {
                self.contents = ParamsContents::Json(value.slice().pretty());
            }
            (Ok(_), Some(_)) if is_same => self.contents = ParamsContents::Fields(texts),
            (Ok(value), _) => self.set(Some(value.text()), false),
            (Err(errors), Some(_)) => {
                self.contents = ParamsContents::Fields(texts);
                self.errors = if is_same { errors } else { Vec::new() };
            }
            (Err(_), None) => self.set(None, true),
        }
        Ok(())
    }

    /// Sets the params from JSON, in fields if there are some and they can hold it.
    fn set(&mut self, text: Option<&str>, is_json: bool) {
        let form = self.form.as_ref().filter(|_| !is_json);
        let value = text.map(|text| RawJson::parse(text.trim().as_bytes()));
        self.contents = match (form, value) {
            (Some(form), None) => ParamsContents::Fields(form.defaults()),
            (Some(form), Some(Ok(value))) => match form.fill(&value) {
                Some(texts) => ParamsContents::Fields(texts),
                None => ParamsContents::Json(value.slice().pretty()),
            },
            (Some(_), Some(Err(error))) => {
                let message = format!("the params are not JSON: {error}");
                self.errors.push(FieldError { pointer: String::new(), message, is_missing: false });
                ParamsContents::Json(text.unwrap_or_default().to_owned())
            }
            (None, _) => ParamsContents::Json(text.unwrap_or(EMPTY).to_owned()),
        };
    }

    /// Adds problems of the API to their fields.
    pub(super) fn add_problems(&mut self, problems: &[Problem]) {
        let error = |problem: &Problem| {
            let pointer = problem.pointer.as_deref()?;
            let pointer = pointer.strip_prefix("/spec").unwrap_or(pointer);
            let below = pointer.strip_prefix("/task").unwrap_or(pointer).strip_prefix("/params")?;
            Some(FieldError { pointer: below.to_owned(), message: problem.detail.clone(), is_missing: false })
        };
        for error in problems.iter().filter_map(error).filter(|error| !error.pointer.is_empty()) {
            if !self.errors.iter().any(|known| known.pointer == error.pointer) {
                self.errors.push(error);
            }
        }
    }

    /// Inputs of the params.
    pub(super) fn inputs(&self) -> Markup {
        html! {
            @match (&self.contents, &self.form) {
                (ParamsContents::Fields(texts), Some(form)) => {
                    (enter_button())
                    input type="hidden" name=(FIELDS_OF) value=(self.task_type);
                    fieldset.params {
                        legend { "Params" }
                        (form.inputs(&|name| text_of(texts, name), &self.errors))
                        div.buttons { (step_button("json", "Edit as JSON")) }
                    }
                }
                (ParamsContents::Fields(_), None) => { (json_input(EMPTY, &self.errors)) }
                // The fields of a type replace the box, which is for those who know its params.
                (ParamsContents::Json(text), None) if self.task_type.is_empty() && text.trim() == EMPTY && self.errors.is_empty() => {
                    (enter_button())
                    details.more #params-json {
                        summary { "Params as JSON, without choosing a type first" }
                        (json_input(EMPTY, &self.errors))
                    }
                }
                (ParamsContents::Json(text), form) => {
                    (enter_button())
                    (json_input(text, &self.errors))
                    @if form.is_some() { div.buttons { (step_button("fields", "Edit as fields")) } }
                }
            }
        }
    }

    /// Schema of the params for readers: its fields, and as JSON.
    pub(super) fn schema(&self) -> Option<Markup> {
        self.schema.as_ref().map(schema_outline)
    }
}

fn text_of<'a>(texts: &'a [(String, String)], name: &str) -> Option<&'a str> {
    texts.iter().find(|(input, _)| input == name).map(|(_, text)| text.as_str())
}

fn json_input(text: &str, errors: &[FieldError]) -> Markup {
    html! {
        (Input::new("params", "Params", Some(text)).lines(10).hint("JSON").render())
        @for error in errors {
            p.wrong { @if !error.pointer.is_empty() { code { (error.pointer) } ": " } (crate::parts::prose(&error.message)) }
        }
    }
}

async fn schema_of(visit: &Visit, task_type: &str) -> Result<Option<Value>, ApiError> {
    if task_type.is_empty() {
        return Ok(None);
    }
    match from_kafka(types::params_schema(&visit.api, task_type)).await {
        // A form can be opened without the schema, but not read.
        Err(_) if visit.entered.is_empty() => Ok(None),
        schema => schema,
    }
}

/// Value of the fields of a type.
async fn entered_fields(visit: &Visit, shown: &str) -> Result<Result<RawJson, Vec<FieldError>>, ApiError> {
    let schema = schema_of(visit, shown).await?;
    let Some(form) = schema.as_ref().and_then(SchemaForm::of_params) else {
        let message = format!("the params of `{shown}` have no fields any more");
        return Ok(Err(vec![FieldError { pointer: String::new(), message, is_missing: false }]));
    };
    Ok(form.parse(&|name| visit.entered.get(name)))
}

/// Params entered in a form, as fields or as JSON.
pub(super) async fn entered_params(visit: &Visit) -> Result<Option<RawJson>, ApiError> {
    let Some(shown) = visit.entered.get(FIELDS_OF) else { return visit.entered.json("params") };
    match entered_fields(visit, shown).await? {
        Ok(value) => Ok(Some(value)),
        Err(errors) => Err(refusal(&errors)),
    }
}

/// Error with the first wrong field.
fn refusal(errors: &[FieldError]) -> ApiError {
    let first = errors.first();
    let detail = match (first, errors.len()) {
        (Some(error), 1) => error.message.clone(),
        (Some(error), count) => format!("{}; {} more fields are wrong", error.message, count - 1),
        (None, _) => "the params are invalid".to_owned(),
    };
    let pointer = first.map_or("", |error| error.pointer.as_str());
    ApiError::new(Code::BadField, detail).pointer(format!("/params{pointer}"))
}
