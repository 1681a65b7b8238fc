//! Fields of a schema.

use kafleet_model::json::pointer_to;
use serde_json::Value;

use super::{ChoiceOption, FieldKind, ItemKind, NumberRange, SchemaField, SchemaForm, TextKind};

/// Levels of objects inside the params that have fields of their own.
const MAX_DEPTH: usize = 3;
/// Maximum number of fields; the params of a larger schema are entered as JSON.
const MAX_FIELDS: usize = 200;
/// Maximum number of references and wrappers around a schema.
const MAX_LAYERS: usize = 8;
/// Maximum number of values to choose from.
const MAX_OPTIONS: usize = 200;
/// Length from which a text has several lines, in characters.
const LONG_TEXT: u64 = 200;
/// Keywords that give an object members besides its properties.
const ALTERNATIVES: [&str; 5] = ["oneOf", "anyOf", "allOf", "if", "patternProperties"];

impl SchemaForm {
    /// Fields of the objects that `schema`, a part of `root`, describes. `None`: it describes no object with known members, or
    /// too large a one.
    pub(in super::super::super) fn new(root: &Value, schema: &Value) -> Option<Self> {
        let mut reader = SchemaReader { root, fields: 0 };
        let layers = reader.layers(schema);
        let core = *layers.last()?;
        if type_of(core) != Some("object") {
            return None;
        }
        let fields = reader.members(core, "", ObjectLevel { depth: 0, is_certain: true });
        let is_fit = !fields.is_empty() && reader.fields <= MAX_FIELDS;
        is_fit.then(|| Self { fields, is_open: core["additionalProperties"] != Value::Bool(false) })
    }
}

/// Level of an object among the fieldsets.
#[derive(Clone, Copy)]
struct ObjectLevel {
    depth: usize,
    is_certain: bool,
}

struct SchemaReader<'a> {
    root: &'a Value,
    /// Number of fields so far.
    fields: usize,
}

impl<'a> SchemaReader<'a> {
    /// Schema with those that it refers to or wraps, outermost first. Annotations of the outer ones take precedence.
    fn layers(&self, schema: &'a Value) -> Vec<&'a Value> {
        let mut layers = vec![schema];
        while let Some(next) = layers.last().and_then(|last| self.inner(last)).filter(|_| layers.len() < MAX_LAYERS) {
            layers.push(next);
        }
        layers
    }

    fn inner(&self, schema: &'a Value) -> Option<&'a Value> {
        if let Some(reference) = schema["$ref"].as_str() {
            return self.root.pointer(reference.strip_prefix('#')?);
        }
        if let Some([only]) = schema["allOf"].as_array().map(Vec::as_slice) {
            return (schema["properties"].is_null()).then_some(only);
        }
        let variants = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array())?;
        let mut others = variants.iter().filter(|variant| variant["type"] != "null");
        let only = others.next().filter(|_| variants.len() == 2)?;
        others.next().is_none().then_some(only)
    }

    /// Fields of an object's properties, the required ones first.
    fn members(&mut self, object: &'a Value, pointer: &str, level: ObjectLevel) -> Vec<SchemaField> {
        let Some(properties) = object["properties"].as_object() else { return Vec::new() };
        let required: Vec<&str> =
            object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let is_required = |name: &str| required.contains(&name);
        let (first, rest): (Vec<_>, Vec<_>) = properties.iter().partition(|(name, _)| is_required(name));
        self.fields += properties.len();
        if self.fields > MAX_FIELDS {
            return Vec::new();
        }
        let all = first.into_iter().chain(rest);
        all.map(|(name, schema)| self.field(name, schema, pointer, is_required(name), level)).collect()
    }

    fn field(&mut self, name: &str, schema: &'a Value, above: &str, required: bool, level: ObjectLevel) -> SchemaField {
        let layers = self.layers(schema);
        let find = |keyword: &str| layers.iter().map(|layer| &layer[keyword]).find(|value| !value.is_null());
        let text = |keyword: &str| find(keyword).and_then(Value::as_str).map(str::to_owned);
        let example = find("examples").and_then(|examples| examples.get(0)).or_else(|| find("example"));
        let pointer = pointer_to(above, name);
        let inside = ObjectLevel { depth: level.depth + 1, is_certain: level.is_certain && required };
        let kind = layers.last().map_or(FieldKind::Json, |core| self.kind(core, &pointer, inside));
        SchemaField {
            name: name.to_owned(),
            title: text("title"),
            description: text("description"),
            example: example.map(plain),
            default: find("default").cloned(),
            required,
            is_certain: level.is_certain,
            kind,
            pointer,
        }
    }

    fn kind(&mut self, core: &'a Value, pointer: &str, level: ObjectLevel) -> FieldKind {
        if let Some(options) = options(core) {
            return FieldKind::Choice(options);
        }
        match type_of(core) {
            Some("string") => FieldKind::Text(text_kind(core)),
            Some(name @ ("integer" | "number")) => FieldKind::Number(range(core, name == "integer")),
            Some("boolean") => FieldKind::Flag,
            Some("array") => self.item_kind(core).map_or(FieldKind::Json, FieldKind::List),
            Some("object") if level.depth <= MAX_DEPTH && !has_alternatives(core) => {
                let fields = self.members(core, pointer, level);
                if fields.is_empty() { FieldKind::Json } else { FieldKind::Object(fields) }
            }
            _ => FieldKind::Json,
        }
    }

    /// Kind of the elements of an array, if all are scalars of one type.
    fn item_kind(&self, array: &'a Value) -> Option<ItemKind> {
        if !array["prefixItems"].is_null() || !array["items"].is_object() {
            return None;
        }
        let layers = self.layers(&array["items"]);
        let core = *layers.last()?;
        match type_of(core) {
            Some("string") => Some(ItemKind::Text),
            Some("integer" | "number") => Some(ItemKind::Number),
            Some("boolean") => Some(ItemKind::Flag),
            _ => options(core)?.iter().all(|option| option.json.starts_with('"')).then_some(ItemKind::Text),
        }
    }
}

/// Only type of the values besides `null`.
fn type_of(schema: &Value) -> Option<&str> {
    let only = match &schema["type"] {
        Value::String(name) => Some(name.as_str()),
        Value::Array(names) => {
            let mut names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
            names.next().filter(|_| names.next().is_none())
        }
        _ => None,
    };
    only.or_else(|| (schema["type"].is_null() && schema["properties"].is_object()).then_some("object"))
}

fn has_alternatives(schema: &Value) -> bool {
    ALTERNATIVES.iter().any(|keyword| !schema[*keyword].is_null())
}

fn text_kind(schema: &Value) -> TextKind {
    match schema["format"].as_str() {
        Some("date") => TextKind::Date,
        Some("date-time") => TextKind::DateTime,
        Some("email") => TextKind::Email,
        Some("uri") => TextKind::Uri,
        _ if schema["maxLength"].as_u64().is_some_and(|most| most >= LONG_TEXT) => TextKind::Lines,
        _ if schema["contentMediaType"].is_string() => TextKind::Lines,
        _ => TextKind::Line,
    }
}

fn range(schema: &Value, is_integer: bool) -> NumberRange {
    let number = |keyword: &str| schema[keyword].as_number().map(ToString::to_string);
    NumberRange { is_integer, min: number("minimum"), max: number("maximum"), step: number("multipleOf") }
}

/// Values of a schema that lists them.
fn options(schema: &Value) -> Option<Vec<ChoiceOption>> {
    let option = |schema: &Value| {
        let value = single(schema)?;
        let text = schema["title"].as_str().or_else(|| schema["description"].as_str());
        let label = plain(value);
        Some(ChoiceOption {
            json: value.to_string(),
            label: text
                .map_or_else(|| label.clone(), |text| format!("{label} – {}", crate::parts::first_line(text, 80))),
        })
    };
    let listed: Vec<ChoiceOption> = if let Some(values) = schema["enum"].as_array() {
        let values = values.iter().filter(|value| !value.is_null());
        values.map(|value| is_scalar(value).then(|| choice_of(value))).collect::<Option<_>>()?
    } else if single(schema).is_some() {
        vec![option(schema)?]
    } else {
        let variants = schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array())?;
        variants.iter().filter(|variant| variant["type"] != "null").map(option).collect::<Option<_>>()?
    };
    (1..=MAX_OPTIONS).contains(&listed.len()).then_some(listed)
}

fn choice_of(value: &Value) -> ChoiceOption {
    ChoiceOption { json: value.to_string(), label: plain(value) }
}

/// Only value of a schema.
fn single(schema: &Value) -> Option<&Value> {
    let only = match schema["enum"].as_array().map(Vec::as_slice) {
        Some([only]) => only,
        _ => &schema["const"],
    };
    is_scalar(only).then_some(only)
}

fn is_scalar(value: &Value) -> bool {
    matches!(value, Value::Bool(_) | Value::Number(_) | Value::String(_))
}

/// Text of a string without quotes; JSON of other values.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
