//! Validation of a document against the published schema of [`Config`]: keys and types of values.

use std::sync::LazyLock;

use jsonschema::error::ValidationErrorKind as Kind;
use kafleet_model::similar::similar;
use serde_json::{Value, json};

use super::Config;
use super::document::{Document, dotted, join, keys};
use super::secrets::{is_secret, redacted};

/// Returns the JSON Schema of kafleet.toml (`schemas/config.json`). In it durations have units: a bare number is milliseconds
/// in records and requests, and seconds in most configuration files.
pub fn schema() -> Value {
    let mut schema = policy_schema();
    schema["$defs"]["Duration"] = json!({
        "description": "A duration with its unit: `1500ms`, `30s`, `10m`, `2h`, `7d`.",
        "anyOf": [{"type": "integer", "const": 0}, {"type": "string", "pattern": "^ *(0|[0-9]+ *(ms|s|m|h|d)) *$"}],
    });
    schema
}

/// Schema of values that programs write, such as the policy of an app.
fn policy_schema() -> Value {
    schemars::schema_for!(Config).to_value()
}

/// Writer of a document.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A person, in kafleet.toml.
    File,
    /// A program.
    App,
}

/// Problem at a JSON pointer, not yet located in the file.
#[derive(Clone)]
pub(super) struct UnlocatedProblem {
    pub pointer: String,
    pub message: String,
    pub hint: Option<String>,
}

impl UnlocatedProblem {
    pub(super) fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into(), hint: None }
    }
    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Returns all violations of the schema.
pub(super) fn schema_violations(document: &Document, origin: Origin) -> Vec<UnlocatedProblem> {
    type CompiledSchema = (Value, Option<jsonschema::Validator>);
    fn compiled(schema: Value) -> CompiledSchema {
        let validator = jsonschema::validator_for(&schema).ok();
        (schema, validator)
    }
    static OF_FILE: LazyLock<CompiledSchema> = LazyLock::new(|| compiled(schema()));
    static OF_APP: LazyLock<CompiledSchema> = LazyLock::new(|| compiled(policy_schema()));
    let compiled = match origin {
        Origin::File => &OF_FILE,
        Origin::App => &OF_APP,
    };
    let (schema, Some(validator)) = &**compiled else { return Vec::new() };
    validator.iter_errors(&document.value).flat_map(|error| problems_of(document, schema, &error)).collect()
}

fn problems_of(document: &Document, schema: &Value, error: &jsonschema::ValidationError<'_>) -> Vec<UnlocatedProblem> {
    let pointer = error.instance_path().as_str();
    let node = schema_at(schema, &keys(pointer));
    match error.kind() {
        Kind::AdditionalProperties { unexpected } => {
            unexpected.iter().map(|key| unknown_key(pointer, key, properties(node))).collect()
        }
        Kind::Required { property } => {
            let missing = property.as_str().unwrap_or_default();
            vec![UnlocatedProblem::new(pointer, format!("{} needs `{missing}`", table(pointer)))]
        }
        // Of "a table or nothing", the flaws of the table say which of its members is wrong.
        Kind::AnyOf { context } if error.instance().is_object() && !properties(node).is_empty() => {
            let is_of_table = |flaws: &&Vec<_>| flaws.iter().all(|flaw| !is_of_nothing(flaw, pointer));
            let flaws = context.iter().find(is_of_table).into_iter().flatten();
            flaws.flat_map(|flaw| problems_of(document, schema, flaw)).collect()
        }
        _ => vec![bad_value(document, pointer, &allowed(schema, node))],
    }
}

/// Returns true if the flaw says that a value is not `null`.
fn is_of_nothing(flaw: &jsonschema::ValidationError<'_>, pointer: &str) -> bool {
    matches!(flaw.kind(), Kind::Type { .. }) && flaw.instance_path().as_str() == pointer
}

fn unknown_key(pointer: &str, key: &str, allowed_keys: Vec<&str>) -> UnlocatedProblem {
    let message = format!("unknown key `{key}` in {}", table(pointer));
    let near = similar(key, allowed_keys.iter().copied());
    let hint = near.map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
    let names: Vec<_> = allowed_keys.iter().map(|name| format!("`{name}`")).collect();
    UnlocatedProblem::new(join(pointer, key), message).hint(format!("{hint}allowed: {}", names.join(", ")))
}

/// Returns the problem of an invalid value, shown as written, so that values from the environment stay hidden.
pub(super) fn bad_value(document: &Document, pointer: &str, allowed: &str) -> UnlocatedProblem {
    let written = document.written.pointer(pointer).unwrap_or(&Value::Null);
    let text = match redacted(&keys(pointer), written) {
        _ if is_secret(&keys(pointer)) => "the value (not shown)".to_owned(),
        Value::Object(_) => "a table".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        text @ Value::String(_) if !allowed.contains("number") && !allowed.contains("true") => {
            format!("`{}`", text.as_str().unwrap_or_default())
        }
        other => format!("`{other}`"),
    };
    UnlocatedProblem::new(pointer, format!("`{}`: {text} is not {allowed}", dotted(pointer)))
}

pub(super) fn table(pointer: &str) -> String {
    if pointer.is_empty() { "the file".to_owned() } else { format!("`[{}]`", dotted(pointer)) }
}

/// Returns the part of the schema for a key.
fn schema_at<'a>(root: &'a Value, keys: &[String]) -> &'a Value {
    keys.iter().fold(resolve(root, root), |node, key| {
        let part = match node["properties"].get(key) {
            Some(part) => part,
            None if node["items"].is_object() => &node["items"],
            None => &node["additionalProperties"],
        };
        resolve(root, part)
    })
}

/// Resolves references and "this or null".
fn resolve<'a>(root: &'a Value, node: &'a Value) -> &'a Value {
    if let Some(name) = node["$ref"].as_str() {
        return root.pointer(name.trim_start_matches('#')).map_or(node, |node| resolve(root, node));
    }
    let choices = node["anyOf"].as_array().into_iter().flatten();
    let mut some = choices.filter(|choice| choice["type"] != "null");
    match (some.next(), some.next()) {
        (Some(only), None) => resolve(root, only),
        _ => node,
    }
}

fn properties(node: &Value) -> Vec<&str> {
    node["properties"].as_object().map(|map| map.keys().map(String::as_str).collect()).unwrap_or_default()
}

/// Describes the values allowed by a part of the schema: `a whole number from 1 to 1024`.
fn allowed(root: &Value, node: &Value) -> String {
    let node = resolve(root, node);
    let options = node["enum"].as_array().cloned().or_else(|| {
        let consts = node["oneOf"].as_array()?.iter().map(|choice| choice["const"].clone());
        Some(consts.collect())
    });
    if let Some(options) = options {
        let names: Vec<_> = options.iter().filter_map(Value::as_str).map(|name| format!("`{name}`")).collect();
        return format!("one of {}", names.join(", "));
    }
    // The descriptions of sizes and durations explain their syntax.
    if node["anyOf"].is_array() {
        let text = node["description"].as_str().unwrap_or("a string, a number or `true`/`false`").trim_end_matches('.');
        return text.replacen("A ", "a ", 1);
    }
    match scalar_type(node) {
        "integer" => format!("a whole number{}", range(node)),
        "number" => format!("a number{}", range(node)),
        "boolean" => "`true` or `false`".to_owned(),
        "array" => match node.get("maxItems") {
            Some(most) => format!("a list (`[…]`) of at most {most} values"),
            None => "a list (`[…]`)".to_owned(),
        },
        "object" => "a table".to_owned(),
        _ => "a string (`\"…\"`)".to_owned(),
    }
}

fn scalar_type(node: &Value) -> &str {
    let types = node["type"].as_array().into_iter().flatten().chain([&node["type"]]);
    types.filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default()
}

fn range(node: &Value) -> String {
    match (node.get("minimum"), node.get("maximum")) {
        (Some(min), Some(max)) => format!(" from {min} to {max}"),
        (Some(min), None) => format!(" of at least {min}"),
        (None, Some(max)) => format!(" of at most {max}"),
        (None, None) => String::new(),
    }
}
