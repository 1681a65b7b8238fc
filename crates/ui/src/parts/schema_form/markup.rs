//! Inputs of the fields.

use maud::{Markup, html};

use super::fields::plain;
use super::{
    ChoiceOption, FieldError, FieldKind, InputTexts, NumberRange, SchemaField, SchemaForm, TextKind, input_name,
    json_name,
};
use crate::parts::{encoded, first_line, prose};

/// Largest number of digits that the number fields of all browsers keep.
const MAX_DIGITS: usize = 15;
/// Lines of a field for JSON or for several lines.
const LINES: u16 = 4;

impl SchemaForm {
    /// Inputs with their texts and errors.
    pub(in super::super::super) fn inputs(&self, texts: &InputTexts<'_>, errors: &[FieldError]) -> Markup {
        let inputs = FieldInputs { texts, errors };
        let others = texts(&json_name(""));
        html! {
            @for field in &self.fields { (inputs.field(field)) }
            @if self.is_open || others.is_some() {
                details.more open[others.is_some()] {
                    summary { "Other params" }
                    (inputs.others(others))
                }
            }
        }
    }
}

/// Texts and errors of inputs.
struct FieldInputs<'a, 't> {
    texts: &'a InputTexts<'t>,
    errors: &'a [FieldError],
}

/// Attributes of an input.
struct Attributes<'a> {
    id: String,
    name: String,
    text: &'a str,
    required: bool,
    described_by: Option<String>,
    is_wrong: bool,
    placeholder: Option<String>,
}

impl<'t> FieldInputs<'_, 't> {
    fn error(&self, pointer: &str) -> Option<&str> {
        self.errors.iter().find(|error| error.pointer == pointer).map(|error| error.message.as_str())
    }

    fn field(&self, field: &SchemaField) -> Markup {
        let json = (self.texts)(&json_name(&field.pointer));
        match &field.kind {
            FieldKind::Object(fields) if json.is_none() => self.object(field, fields),
            FieldKind::Flag if json.is_none() && field.is_checkbox() => self.checkbox(field),
            _ => self.labelled(field, json),
        }
    }

    fn object(&self, field: &SchemaField, fields: &[SchemaField]) -> Markup {
        html! {
            fieldset {
                legend { (label(field)) }
                @if let Some(text) = &field.description { p.hint { (prose(text)) } }
                @if let Some(error) = self.error(&field.pointer) { p.wrong { (prose(error)) } }
                @for field in fields { (self.field(field)) }
            }
        }
    }

    fn checkbox(&self, field: &SchemaField) -> Markup {
        let at = self.attributes(field, None);
        html! {
            div.check {
                label {
                    input type="checkbox" name=(at.name) value="true" checked[!at.text.is_empty()] aria-describedby=[at.described_by];
                    " " (label(field))
                }
                (self.notes(field, &at.id))
            }
        }
    }

    fn labelled(&self, field: &SchemaField, json: Option<&str>) -> Markup {
        let at = self.attributes(field, json);
        html! {
            div.field {
                label for=(at.id) { (label(field)) }
                @if json.is_some() { (area(&at, LINES)) } @else { (input(&at, &field.kind)) }
                (self.notes(field, &at.id))
                @if json.is_some() && field.kind != FieldKind::Json {
                    p.hint { "As JSON: the value does not fit the field. To use the field, clear it and choose " em { "Edit as fields" } "." }
                }
            }
        }
    }

    fn attributes(&self, field: &SchemaField, json: Option<&str>) -> Attributes<'t> {
        let id = id_of(&field.pointer);
        let is_wrong = self.error(&field.pointer).is_some();
        let has_notes = is_wrong || !hint(field).is_empty();
        let name = if json.is_some() || field.kind == FieldKind::Json { json_name } else { input_name }(&field.pointer);
        let example = field.example.clone().or_else(|| field.default.as_ref().map(plain));
        Attributes {
            text: (self.texts)(&name).unwrap_or_default(),
            required: field.is_always_present() && !matches!(field.kind, FieldKind::List(_)),
            described_by: has_notes.then(|| format!("n-{id}")),
            placeholder: example.map(|example| first_line(&example, 80)),
            is_wrong,
            name,
            id,
        }
    }

    /// Description and error below an input.
    fn notes(&self, field: &SchemaField, id: &str) -> Markup {
        let (hint, error) = (hint(field), self.error(&field.pointer));
        html! {
            @if error.is_some() || !hint.is_empty() {
                div id={ "n-" (id) } {
                    @if let Some(error) = error { p.wrong { (prose(error)) } }
                    @if !hint.is_empty() { p.hint { (prose(&hint)) } }
                }
            }
        }
    }

    /// Input of the members without a field.
    fn others(&self, text: Option<&str>) -> Markup {
        html! {
            div.field {
                label for="f-others" { "Params without a field" }
                textarea #f-others name=(json_name("")) rows=(LINES) spellcheck="false" { "\n" (text.unwrap_or_default()) }
                @if let Some(error) = self.error("") { p.wrong { (prose(error)) } }
                p.hint { "a JSON object" }
            }
        }
    }
}

fn id_of(pointer: &str) -> String {
    format!("f-p{}", encoded(pointer))
}

/// Title, or name, and whether the field is required.
fn label(field: &SchemaField) -> Markup {
    html! {
        (first_line(field.title.as_deref().unwrap_or(&field.name), 120))
        @if field.title.as_deref().is_some_and(|title| title != field.name) { " " code { (first_line(&field.name, 120)) } }
        @if field.required { " " span.required title="required" { "*" } }
    }
}

/// Description, range and default of a field.
fn hint(field: &SchemaField) -> String {
    let mut parts = Vec::new();
    parts.extend(field.description.as_deref().map(|text| text.trim_end_matches('.').to_owned()));
    match &field.kind {
        FieldKind::Number(range) => parts.extend(range_text(range)),
        FieldKind::List(_) => parts.push("one value a line".to_owned()),
        FieldKind::Text(TextKind::DateTime) => parts.push("in UTC".to_owned()),
        FieldKind::Json => parts.push("JSON".to_owned()),
        _ => {}
    }
    parts.extend(field.default.as_ref().map(|default| format!("default: `{}`", first_line(&plain(default), 80))));
    parts.join("; ")
}

/// Range of a number in words.
pub(super) fn range_text(range: &NumberRange) -> Option<String> {
    match (&range.min, &range.max) {
        (Some(min), Some(max)) => Some(format!("{min} to {max}")),
        (Some(min), None) => Some(format!("at least {min}")),
        (None, Some(max)) => Some(format!("at most {max}")),
        (None, None) => None,
    }
}

fn input(at: &Attributes<'_>, kind: &FieldKind) -> Markup {
    match kind {
        FieldKind::Choice(options) => choice(at, options),
        FieldKind::Flag => choice(at, &["true", "false"].map(flag_option)),
        FieldKind::List(_) | FieldKind::Json | FieldKind::Object(_) | FieldKind::Text(TextKind::Lines) => {
            area(at, LINES)
        }
        FieldKind::Text(_) if at.text.contains('\n') => area(at, LINES),
        FieldKind::Text(kind) => line(at, text_type(*kind, at.text), None),
        FieldKind::Number(range) if is_kept_by_browsers(at.text) => line(at, "number", Some(range)),
        FieldKind::Number(_) => line(at, "text", None),
    }
}

fn flag_option(json: &str) -> ChoiceOption {
    let label = if json == "true" { "yes" } else { "no" };
    ChoiceOption { json: json.to_owned(), label: label.to_owned() }
}

/// Type of a text's input. Browsers clear an input whose text does not fit its type.
fn text_type(kind: TextKind, text: &str) -> &'static str {
    let is_free = text.is_empty();
    match kind {
        TextKind::Date if is_free || text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10 => "date",
        TextKind::DateTime if is_free || text.len() == 19 && text.parse::<jiff::civil::DateTime>().is_ok() => {
            "datetime-local"
        }
        TextKind::Email if is_free || text.contains('@') && !text.contains(char::is_whitespace) => "email",
        TextKind::Uri if is_free || url::Url::parse(text).is_ok() && !text.contains(char::is_whitespace) => "url",
        _ => "text",
    }
}

/// Whether the number fields of browsers keep a number as it is.
fn is_kept_by_browsers(text: &str) -> bool {
    text.len() <= MAX_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
}

fn line(at: &Attributes<'_>, kind: &str, range: Option<&NumberRange>) -> Markup {
    let step = range.map(|range| match (&range.step, range.is_integer) {
        (Some(step), _) => step.clone(),
        (None, true) => "1".to_owned(),
        (None, false) => "any".to_owned(),
    });
    let step = if kind == "datetime-local" { Some("1".to_owned()) } else { step };
    html! {
        input id=(at.id) name=(at.name) type=(kind) value=(at.text) autocomplete="off" placeholder=[at.placeholder.as_deref()]
            min=[range.and_then(|range| range.min.as_deref())] max=[range.and_then(|range| range.max.as_deref())] step=[step]
            required[at.required] aria-describedby=[at.described_by.as_deref()] aria-invalid=[at.is_wrong.then_some("true")];
    }
}

fn area(at: &Attributes<'_>, lines: u16) -> Markup {
    html! {
        textarea id=(at.id) name=(at.name) rows=(lines) spellcheck="false" placeholder=[at.placeholder.as_deref()]
            required[at.required] aria-describedby=[at.described_by.as_deref()] aria-invalid=[at.is_wrong.then_some("true")]
            { "\n" (at.text) }
    }
}

fn choice(at: &Attributes<'_>, options: &[ChoiceOption]) -> Markup {
    let none = at.placeholder.as_ref().map_or_else(|| "–".to_owned(), |default| format!("– ({default})"));
    html! {
        select id=(at.id) name=(at.name) required[at.required] aria-describedby=[at.described_by.as_deref()]
            aria-invalid=[at.is_wrong.then_some("true")] {
            option value="" { (none) }
            @for option in options {
                option value=(option.json) selected[option.json == at.text] { (first_line(&option.label, 120)) }
            }
        }
    }
}
