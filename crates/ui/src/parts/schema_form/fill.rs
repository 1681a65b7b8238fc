//! Texts of the inputs that hold a value.

use kafleet_model::json::{JsonKind, JsonSlice, RawJson};

use super::read::read_field;
use super::{FieldKind, ItemKind, SchemaField, SchemaForm, TextKind, input_name, json_name};

/// Names and texts of inputs.
type Inputs = Vec<(String, String)>;

impl SchemaForm {
    /// Texts that are read as this value. `None`: it is no object.
    pub(in super::super::super) fn fill(&self, value: &RawJson) -> Option<Inputs> {
        let value = value.slice();
        if value.kind() != JsonKind::Object {
            return None;
        }
        let mut inputs = Vec::new();
        let mut others = Vec::new();
        for (name, value) in value.members() {
            match self.fields.iter().find(|field| field.name == name) {
                Some(field) => fill_field(field, value, &mut inputs),
                None => others.push((name.into_owned(), value)),
            }
        }
        if !others.is_empty() {
            inputs.push((json_name(""), object_text(&others)));
        }
        Some(inputs)
    }

    /// Texts of a new form: the defaults of required fields, which have to be submitted.
    pub(in super::super::super) fn defaults(&self) -> Inputs {
        let mut inputs = Vec::new();
        fill_defaults(&self.fields, &mut inputs);
        inputs
    }
}

fn fill_defaults(fields: &[SchemaField], inputs: &mut Inputs) {
    for field in fields.iter().filter(|field| field.is_always_present()) {
        match (&field.default, &field.kind) {
            (Some(default), _) => fill_field(field, RawJson::of_plain(default).slice(), inputs),
            (None, FieldKind::Object(fields)) => fill_defaults(fields, inputs),
            (None, _) => {}
        }
    }
}

fn object_text(members: &[(String, JsonSlice<'_>)]) -> String {
    let mut object = RawJson::from(serde_json::json!({}));
    for (name, value) in members {
        object.set(name, *value);
    }
    object.slice().pretty()
}

/// Adds the texts of a field, or its value as JSON if they would not be read as the same value.
fn fill_field(field: &SchemaField, value: JsonSlice<'_>, inputs: &mut Inputs) {
    let begin = inputs.len();
    if !fill_inputs(field, value, inputs) || !is_read_as(field, &inputs[begin..], value) {
        inputs.truncate(begin);
        inputs.push((json_name(&field.pointer), value.pretty()));
    }
}

fn is_read_as(field: &SchemaField, inputs: &[(String, String)], value: JsonSlice<'_>) -> bool {
    let text = |name: &str| {
        let text = inputs.iter().find(|(input, _)| input == name).map(|(_, text)| text.as_str());
        text.filter(|text| !text.trim().is_empty())
    };
    let mut errors = Vec::new();
    let read = read_field(field, &text, &mut errors);
    errors.is_empty() && read.is_some_and(|read| read.is_same_value(&value.into()))
}

/// Adds the texts of a field. Returns false if its inputs cannot hold the value.
fn fill_inputs(field: &SchemaField, value: JsonSlice<'_>, inputs: &mut Inputs) -> bool {
    let text = match &field.kind {
        FieldKind::Object(fields) => return fill_object(fields, value, inputs),
        FieldKind::Flag if field.is_checkbox() => {
            inputs.extend((value.text() == "true").then(|| (input_name(&field.pointer), "true".to_owned())));
            return value.kind() == JsonKind::Bool;
        }
        FieldKind::Text(kind) => value.string().filter(|text| is_typable(text)).map(|text| text_of(*kind, &text)),
        FieldKind::Number(_) | FieldKind::Flag => Some(value.text().to_owned()),
        FieldKind::Choice(options) => {
            let chosen =
                |json: &str| RawJson::parse(json.as_bytes()).is_ok_and(|json| json.is_same_value(&value.into()));
            options.iter().find(|option| chosen(&option.json)).map(|option| option.json.clone())
        }
        FieldKind::List(kind) => lines(*kind, value),
        FieldKind::Json => None,
    };
    let Some(text) = text else { return false };
    inputs.push((input_name(&field.pointer), text));
    true
}

fn fill_object(fields: &[SchemaField], value: JsonSlice<'_>, inputs: &mut Inputs) -> bool {
    for (name, value) in value.members() {
        let Some(field) = fields.iter().find(|field| field.name == name) else { return false };
        fill_field(field, value, inputs);
    }
    value.kind() == JsonKind::Object
}

/// Whether browsers keep all characters of a text.
fn is_typable(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t')
}

/// Text of an input. A time in whole seconds of UTC is shown without its zone, as browsers enter it.
fn text_of(kind: TextKind, text: &str) -> String {
    match (kind, text.strip_suffix('Z')) {
        (TextKind::DateTime, Some(time)) if time.len() == 19 => time.to_owned(),
        _ => text.to_owned(),
    }
}

/// Elements of an array, one a line.
fn lines(kind: ItemKind, array: JsonSlice<'_>) -> Option<String> {
    let line = |element: JsonSlice<'_>| match kind {
        ItemKind::Text => element.string().filter(|text| is_typable(text)).map(|text| text.into_owned()),
        ItemKind::Number | ItemKind::Flag => Some(element.text().to_owned()),
    };
    let lines = array.elements().map(line).collect::<Option<Vec<_>>>()?;
    (array.kind() == JsonKind::Array).then(|| lines.join("\n"))
}
