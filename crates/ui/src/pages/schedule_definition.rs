//! Definition of a schedule in a form: fields, or JSON. Its times are shown in words and one by one.

use std::collections::BTreeMap;

use kafleet_api::http::problem::ApiError;
use kafleet_api::service::context::Name;
use kafleet_api::service::{schedule_previews, types};
use kafleet_documents::{SchedulePreview, TypeDocument};
use kafleet_model::json::{JsonKind, RawJson};
use kafleet_model::schedule::{Overlap, Spec, zone_names};
use kafleet_model::task::field::comma_list;
use maud::{Markup, Render, html};
use serde_json::json;

use super::new::type_input;
use super::params_input::{ParamsInput, entered_params};
use super::schedules::time_in_zone;
use crate::parts::form::{Input, enter_button, select, step_button};
use crate::parts::problem::problem_list;
use crate::parts::times::{entered_moment, moment_hint};
use crate::parts::{View, visible};
use crate::visit::{Visit, document, from_kafka, members, stored};

/// Fields of the times that the form has as text, with their labels and hints.
const TIMES: [(&str, &str, &str); 7] = [
    ("cron", "Cron", "minute, hour, day of month, month, day of week, such as 0 3 * * MON-FRI; or @daily"),
    ("every", "Or every", "an interval such as 10m, instead of cron"),
    ("timezone", "Time zone", "of cron; default: UTC"),
    ("jitter", "Jitter", "each firing is up to this much later, such as 5m; default: none"),
    ("catch_up", "Catch up", "maximum age of firings missed in an outage that are made up for; default: 1d"),
    ("start_at", "Not before", ""),
    ("end_at", "Not after", ""),
];
/// Fields of [`TIMES`] with a moment, whose hint names the zone of the reader.
const MOMENTS: [&str; 2] = ["start_at", "end_at"];
/// Times that are rarely set.
const FIRST_RARE: usize = 3;
/// Fields of the task that the form has as text.
const TASK_TEXTS: [(&str, &str, &str); 4] = [
    ("name", "Name", ""),
    ("key", "Key", "tasks with the same key keep their order; default: the id"),
    ("expires", "Expires after", "time after a firing until which its task may start, such as 1h"),
    ("link", "Link", ""),
];
const OVERLAPS: [(&str, &str); 4] = [
    ("skip", "skip: the firing is left out"),
    ("allow", "allow: both tasks run"),
    ("buffer_one", "buffer one: one firing waits, further ones are left out"),
    ("replace", "replace: the previous task is cancelled"),
];
/// Button that shows the definition as JSON.
const AS_JSON: &str = "definition_json";
/// Button that shows the definition in fields.
const AS_FIELDS: &str = "definition_fields";

/// Definition in a form.
pub(super) struct DefinitionForm {
    texts: Texts,
    contents: DefinitionContents,
    /// Reason why the fields cannot show the definition.
    error: Option<String>,
}

type Texts = BTreeMap<String, String>;

enum DefinitionContents {
    Fields(Box<ParamsInput>),
    Json(String),
}

impl DefinitionForm {
    /// Definition entered in the form, or else this one.
    pub(super) async fn of(visit: &Visit, present: &RawJson) -> Result<Self, ApiError> {
        let (entered, step) = (&visit.entered, visit.step());
        if let Some(text) = entered.get("spec") {
            if step != Some(AS_FIELDS) {
                return Ok(Self::of_json(text.to_owned(), None));
            }
            return match RawJson::parse(text.trim().as_bytes()) {
                Ok(spec) => Self::of_value(visit, &spec).await,
                Err(error) => Ok(Self::of_json(text.to_owned(), Some(error.to_string()))),
            };
        }
        if entered.is_empty() {
            return Self::of_value(visit, present).await;
        }
        if step == Some(AS_JSON)
            && let Ok(spec) = entered_spec(visit).await
        {
            return Ok(Self::of_json(spec.slice().pretty(), None));
        }
        let texts: Texts = entered.iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let task_type = texts.get("type").map_or("", |text| text.trim());
        let params = ParamsInput::of(visit, task_type, None).await?;
        Ok(Self { texts, contents: DefinitionContents::Fields(Box::new(params)), error: None })
    }

    fn of_json(text: String, error: Option<String>) -> Self {
        Self { texts: Texts::new(), contents: DefinitionContents::Json(text), error }
    }

    async fn of_value(visit: &Visit, spec: &RawJson) -> Result<Self, ApiError> {
        match texts_of(spec) {
            Ok(texts) => {
                let task_type = texts.get("type").map_or("", String::as_str);
                let params = texts.get("params").map(String::as_str);
                let params = ParamsInput::of_value(visit, task_type, params).await?;
                Ok(Self { texts, contents: DefinitionContents::Fields(Box::new(params)), error: None })
            }
            Err(error) => Ok(Self::of_json(spec.slice().pretty(), Some(error))),
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    /// Inputs of the definition.
    pub(super) async fn inputs(&self, visit: &Visit) -> Vec<Markup> {
        let params = match &self.contents {
            DefinitionContents::Fields(params) => params,
            DefinitionContents::Json(text) => return self.json_inputs(text),
        };
        let listed = stored(types::type_list(&visit.api)).await.map(|listed| listed.types).unwrap_or_default();
        vec![enter_button(), self.time_inputs(&visit.view), self.task_inputs(params, &listed)]
    }

    fn json_inputs(&self, text: &str) -> Vec<Markup> {
        let hint = "cron or every, timezone, overlap (skip, allow, buffer_one, replace), and the task to submit";
        vec![
            enter_button(),
            Input::new("spec", "Definition (JSON)", Some(text)).required().lines(16).hint(hint).render(),
            html! {
                @if let Some(error) = &self.error { p.wrong { "The fields cannot show it: " (visible(error)) } }
                div.buttons { (step_button(AS_FIELDS, "Edit as fields")) }
            },
        ]
    }

    fn time_inputs(&self, view: &View) -> Markup {
        let zones: Vec<String> = zone_names().collect();
        let of_moment = moment_hint(view);
        let input = |(name, label, hint): &(&str, &str, &str)| {
            let hint = if MOMENTS.contains(name) { of_moment.as_str() } else { *hint };
            let input = Input::new(name, label, self.text(name)).hint(hint);
            if *name == "timezone" { input.suggestions(&zones).render() } else { input.render() }
        };
        let is_rare_set = TIMES[FIRST_RARE..].iter().any(|(name, ..)| self.text(name).is_some());
        let overlap = self.text("overlap").unwrap_or(Overlap::default().name());
        html! {
            fieldset {
                legend { "Times" }
                @for time in &TIMES[..FIRST_RARE] { (input(time)) }
                (select("overlap", "While the previous task runs", &OVERLAPS, overlap))
                details.more open[is_rare_set] {
                    summary { "Jitter, catch-up, start and end" }
                    @for time in &TIMES[FIRST_RARE..] { (input(time)) }
                }
            }
        }
    }

    fn task_inputs(&self, params: &ParamsInput, listed: &[TypeDocument]) -> Markup {
        let text = |name, label, hint| Input::new(name, label, self.text(name)).hint(hint);
        let is_set = |name: &&str| self.text(name).is_some();
        html! {
            (type_input(self.text("type"), listed))
            (params.inputs())
            details.more open[["name", "key", "expires", "link", "tags", "task_fields"].iter().any(is_set)] {
                summary { "More fields of its tasks" }
                @for (name, label, hint) in TASK_TEXTS { (text(name, label, hint)) }
                (text("tags", "Tags", "separated by commas"))
                (text("task_fields", "Other fields", "a JSON object, such as {\"retries\": 5, \"timeout\": \"30s\"}").lines(4))
            }
        }
    }

    /// Buttons without effect.
    pub(super) fn buttons(&self) -> Markup {
        html! {
            (step_button("preview", "Preview"))
            @if matches!(self.contents, DefinitionContents::Fields(_)) { (step_button(AS_JSON, "Edit as JSON")) }
        }
    }

    /// Adds the problems of a preview to the fields of the params.
    pub(super) fn add_problems(&mut self, preview: &SchedulePreview) {
        if let DefinitionContents::Fields(params) = &mut self.contents {
            params.add_problems(&preview.problems);
        }
    }

    /// Schema of the params of its tasks.
    pub(super) fn schema(&self) -> Option<Markup> {
        let DefinitionContents::Fields(params) = &self.contents else { return None };
        let schema = params.schema()?;
        Some(html! { section.panel { h2 { "Params of " (self.text("type").unwrap_or_default()) } (schema) } })
    }
}

/// Texts of the inputs for a definition, or the reason why the fields cannot hold it.
fn texts_of(spec: &RawJson) -> Result<Texts, String> {
    let mut texts = Texts::new();
    let mut members = members(spec).ok_or("it is not a JSON object")?;
    let task = members.remove("task").unwrap_or_else(|| json!({}).into());
    for (name, value) in members {
        let is_known = name == "overlap" || TIMES.iter().any(|(known, ..)| *known == name);
        let text = value.slice().string().filter(|_| is_known);
        texts.insert(name.clone(), text.ok_or_else(|| format!("there is no field for `{name}`"))?.into_owned());
    }
    add_task(&task, &mut texts)?;
    Ok(texts)
}

fn add_task(task: &RawJson, texts: &mut Texts) -> Result<(), String> {
    let mut others = RawJson::from(json!({}));
    for (name, value) in members(task).ok_or("`task` is not a JSON object")? {
        let is_text = name == "type" || TASK_TEXTS.iter().any(|(known, ..)| *known == name);
        match value.slice().string().filter(|_| is_text) {
            Some(text) => drop(texts.insert(name, text.into_owned())),
            None if name == "params" => drop(texts.insert(name, value.slice().pretty())),
            None if name == "tags" => {
                drop(texts.insert(name, tags_text(&value).ok_or("`tags` is not a list of texts")?));
            }
            None => drop(others.set(&name, value)),
        }
    }
    if others.slice().members().next().is_some() {
        texts.insert("task_fields".to_owned(), others.slice().pretty());
    }
    Ok(())
}

/// Tags separated by commas, which they do not contain.
fn tags_text(tags: &RawJson) -> Option<String> {
    let texts = tags.slice().elements().map(|tag| tag.string().map(|tag| tag.into_owned()));
    let texts = texts.collect::<Option<Vec<_>>>().filter(|_| tags.slice().kind() == JsonKind::Array)?;
    Some(texts.join(", "))
}

/// Definition entered in the form.
pub(super) async fn entered_spec(visit: &Visit) -> Result<RawJson, ApiError> {
    let entered = &visit.entered;
    if let Some(spec) = entered.json("spec")? {
        return Ok(spec);
    }
    let text = |name: &str| Some((name.to_owned(), RawJson::from(json!(entered.get(name)?.trim()))));
    let mut task = entered.object("task_fields")?;
    task.extend(TASK_TEXTS.iter().filter_map(|(name, ..)| text(name)));
    task.extend(text("type"));
    task.entry("type".to_owned()).or_insert_with(|| json!("").into());
    let tags = comma_list(entered.get("tags").unwrap_or_default());
    if !tags.is_empty() {
        task.insert("tags".to_owned(), json!(tags).into());
    }
    let params = entered_params(visit).await.map_err(|error| error.below("/task"))?;
    task.extend(params.map(|params| ("params".to_owned(), params)));
    let times = TIMES.iter().map(|(name, ..)| *name).chain(["overlap"]);
    let mut spec: BTreeMap<String, RawJson> = times.filter_map(text).collect();
    spec.extend(MOMENTS.iter().filter_map(|name| Some(((*name).to_owned(), moment(entered.get(name)?)))));
    spec.insert("task".to_owned(), RawJson::of_plain(&task));
    Ok(RawJson::of_plain(&spec))
}

/// Entered start or end of a schedule.
fn moment(entered: &str) -> RawJson {
    json!(entered_moment(entered.trim())).into()
}

/// Preview of the definition in the form: the entered one, or else the present one. `None`: it is not complete yet.
pub(super) async fn preview(visit: &Visit, id: &str, present: &RawJson) -> Result<Option<SchedulePreview>, ApiError> {
    let is_asked = visit.step() == Some("preview");
    let spec = if visit.entered.is_empty() { Ok(present.clone()) } else { entered_spec(visit).await };
    let spec: Result<Spec, ApiError> = spec.and_then(|spec| document(&spec));
    match spec {
        Ok(spec) => {
            let preview = from_kafka(schedule_previews::preview(visit.context(), Name(id.to_owned()), spec)).await?;
            Ok(Some(preview).filter(|preview| is_asked || !preview.times.is_empty()))
        }
        Err(error) => Ok(is_asked.then(|| refused(&error))),
    }
}

fn refused(error: &ApiError) -> SchedulePreview {
    let problems = vec![error.clone().document()];
    SchedulePreview { valid: false, problems, exists: false, description: None, times: Vec::new() }
}

/// Times of a definition in words and one by one, and after a preview what is wrong with it.
pub(super) fn preview_block(visit: &Visit, preview: &SchedulePreview, zone: Option<&str>) -> Markup {
    html! {
        @if visit.step() == Some("preview") {
            @if preview.valid { p.notice.good role="status" { strong { "Valid" } ": nothing was changed." } }
            @else { div.notice.bad role="status" { p { strong { "Not valid" } ":" } (problem_list(&visit.view, &preview.problems)) } }
        }
        @if let Some(words) = &preview.description { p { "Fires " strong { (visible(words)) } ", next:" } }
        @if !preview.times.is_empty() {
            ol.plain { @for time in &preview.times { li { (time_in_zone(time, zone)) } } }
        }
    }
}

/// Time zone of the definition in the form.
pub(super) async fn zone_of(visit: &Visit, present: &RawJson) -> Option<String> {
    let spec = if visit.entered.is_empty() { Some(present.clone()) } else { entered_spec(visit).await.ok() };
    spec?.slice().member("timezone")?.string().map(|zone| zone.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_shown_in_fields() {
        let spec = r#"{"cron": "0 3 * * *", "timezone": "Europe/Berlin", "overlap": "skip", "jitter": "5m",
            "task": {"type": "report", "params": {"n": 12345678901234567890}, "tags": ["a", "b"], "retries": 2, "name": "x"}}"#;
        let texts = texts_of(&RawJson::parse(spec.as_bytes()).unwrap()).unwrap();
        let text = |name: &str| texts.get(name).map(String::as_str);
        assert_eq!(
            (text("cron"), text("timezone"), text("jitter")),
            (Some("0 3 * * *"), Some("Europe/Berlin"), Some("5m"))
        );
        assert_eq!((text("type"), text("tags"), text("name")), (Some("report"), Some("a, b"), Some("x")));
        assert!(text("params").unwrap().contains("12345678901234567890"));
        assert!(text("task_fields").unwrap().contains("\"retries\": 2"));
    }

    #[test]
    fn definition_without_fields_for_it_names_the_reason() {
        for (spec, reason) in [
            ("[]", "not a JSON object"),
            (r#"{"evry": "1h", "task": {}}"#, "`evry`"),
            (r#"{"every": 60000, "task": {}}"#, "`every`"),
            (r#"{"task": 7}"#, "`task`"),
            (r#"{"task": {"tags": "a"}}"#, "`tags`"),
        ] {
            let error = texts_of(&RawJson::parse(spec.as_bytes()).unwrap()).unwrap_err();
            assert!(error.contains(reason), "{spec}: {error}");
        }
    }

    #[test]
    fn overlaps_of_the_form_are_those_of_schedules() {
        for (name, _) in OVERLAPS {
            let overlap: Overlap = serde_json::from_value(json!(name)).unwrap();
            assert_eq!(overlap.name(), name);
        }
    }
}
