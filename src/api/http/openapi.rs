//! The OpenAPI 3.1 description, made from the table of calls and the documents' types.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use super::problem::Code;
use super::routes::{Gives, Parameter, Route, Takes, routes};
use crate::api::documents::{CreateTask, FleetChange, Problem, Report, Status, StreamEnd};
use crate::config::Role;

/// What every call that needs a token may be refused with.
const ALWAYS: &[Code] = &[Code::UnknownParameter, Code::BadParameter, Code::Unauthorized, Code::Forbidden, Code::Internal];

/// The whole description.
pub fn document() -> Value {
    // What goes in may leave out what has a default; what comes out has it all: two generators.
    let mut taken = generator(false);
    let mut given = generator(true);
    taken.subschema_for::<CreateTask>();
    taken.subschema_for::<Report>();
    given.subschema_for::<Problem>();
    given.subschema_for::<Status>();
    given.subschema_for::<FleetChange>();
    given.subschema_for::<StreamEnd>();
    let mut paths = Map::new();
    for route in routes() {
        let operation = operation(route, &mut taken, &mut given);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method().to_ascii_lowercase()] = operation;
    }
    let mut schemas = taken.take_definitions(true);
    schemas.extend(given.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "kafleet",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Submit tasks, follow them, list them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn generator(out: bool) -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = "/components/schemas".into());
    let settings = if out { settings.for_serialize() } else { settings.for_deserialize() };
    settings.into_generator()
}

fn operation(route: &Route, taken: &mut SchemaGenerator, given: &mut SchemaGenerator) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.about,
        "parameters": parameters(route),
        "responses": responses(route, given),
    });
    let body = match route.takes {
        Takes::Nothing => None,
        Takes::Bytes => Some(json!({"*/*": {}})),
        Takes::Json(describe) | Takes::MaybeJson(describe) => Some(json!({"application/json": {"schema": describe(taken)}})),
        Takes::JsonOrLines(describe) => Some(json!({
            "application/json": {"schema": {"type": "array", "maxItems": crate::api::handlers::batch::MAX_ITEMS, "items": describe(taken)}},
            "application/x-ndjson": {"schema": {"type": "string", "description": "One item a line."}},
        })),
    };
    if let Some(content) = body {
        operation["requestBody"] = json!({"required": !matches!(route.takes, Takes::MaybeJson(_)), "content": content});
    }
    if let Some(role) = route.role {
        operation["security"] = json!([{"bearer": []}, {}]);
        operation["x-role"] = json!(role);
    }
    operation
}

/// `GET /v1/tasks/{id}/log` is `get_tasks_id_log`.
fn operation_id(route: &Route) -> String {
    let words = route.path.trim_start_matches("/v1").split(['/', '{', '}', '.']).filter(|word| !word.is_empty());
    std::iter::once(route.method().to_ascii_lowercase()).chain(words.map(str::to_owned)).collect::<Vec<_>>().join("_")
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|word| word.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    in_path.chain(route.query.iter().map(parameter)).collect()
}

fn parameter(parameter: &Parameter) -> Value {
    // The table's schemas are constants; a test reads them all.
    let schema: Value = serde_json::from_str(parameter.schema).unwrap_or_default();
    json!({"name": parameter.name, "in": "query", "description": parameter.about, "schema": schema})
}

fn responses(route: &Route, given: &mut SchemaGenerator) -> Value {
    let content = match route.gives {
        Gives::Json(describe) => json!({"application/json": {"schema": describe(given)}}),
        Gives::AnyJson => json!({"application/json": {"schema": {"type": "object"}}}),
        Gives::Bytes => json!({"*/*": {}}),
        Gives::Text => json!({"text/plain": {"schema": {"type": "string"}}}),
        Gives::Events => json!({"text/event-stream": {"schema": {"type": "string"}}}),
    };
    let mut responses = Map::new();
    for (status, about) in route.answers {
        responses.insert(status.to_string(), json!({"description": about, "content": content.clone()}));
    }
    for (status, codes) in refusals(route) {
        let about = codes.iter().map(|code| format!("`{}`: {}", code.name(), code.title())).collect::<Vec<_>>().join("; ");
        let problem = json!({"application/problem+json": {"schema": given.subschema_for::<Problem>()}});
        responses.insert(status.to_string(), json!({"description": about, "content": problem}));
    }
    Value::Object(responses)
}

fn refusals(route: &Route) -> std::collections::BTreeMap<u16, Vec<Code>> {
    let always = if route.role >= Some(Role::Read) { ALWAYS } else { &[] };
    let mut by_status = std::collections::BTreeMap::<u16, Vec<Code>>::new();
    for &code in route.refusals.iter().chain(always) {
        let codes = by_status.entry(code.status()).or_default();
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    by_status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for reference in found {
            let target = document.pointer(reference.trim_start_matches('#'));
            assert!(target.is_some(), "{reference} leads nowhere");
        }
    }

    #[test]
    fn every_call_is_described_with_its_parameters() {
        let document = document();
        let mut ids = Vec::new();
        for route in routes() {
            let operation = &document["paths"][route.path][route.method().to_ascii_lowercase()];
            ids.push(operation["operationId"].as_str().unwrap().to_owned());
            for parameter in operation["parameters"].as_array().unwrap() {
                assert!(parameter["schema"].is_object(), "{} {parameter}", route.label());
            }
        }
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count, "operation ids are not unique");
    }

    #[test]
    fn the_schemas_compile_and_tell_good_from_bad() {
        let document = document();
        let of = |name: &str| {
            let mut schema = json!({"$ref": format!("#/components/schemas/{name}")});
            schema["components"] = document["components"].clone();
            jsonschema::validator_for(&schema).unwrap()
        };
        let create = of("CreateTask");
        assert!(create.is_valid(&json!({"type": "echo", "params": 1, "delay": "30s"})));
        assert!(!create.is_valid(&json!({"type": "echo", "prio": 1})));
        assert!(!create.is_valid(&json!({"params": 1})));
        let problem = serde_json::to_value(crate::api::http::problem::ApiError::internal().document()).unwrap();
        assert!(of("Problem").is_valid(&problem));
    }
}
