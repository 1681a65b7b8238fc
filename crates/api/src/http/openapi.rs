//! OpenAPI 3.1 description, generated from the route table and the document types.

use kafleet_config::Role;
use kafleet_documents::{CreateTask, FleetChange, Problem, Report, Status, StreamEnd};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use super::answer::ResponseBody;
use super::input::RequestBody;
use super::problem::Code;
use super::request::Parameter;
use super::routes::route::Route;
use super::routes::routes;

/// Problems that any authenticated request can return.
const COMMON_PROBLEMS: &[Code] =
    &[Code::UnknownParameter, Code::BadParameter, Code::Unauthorized, Code::Forbidden, Code::Internal];

/// Generates the whole description.
pub fn document() -> Value {
    // Two generators, because requests may omit fields that have a default, while responses always contain them.
    let mut requests = generator(false);
    let mut response_schemas = generator(true);
    requests.subschema_for::<CreateTask>();
    requests.subschema_for::<Report>();
    response_schemas.subschema_for::<Problem>();
    response_schemas.subschema_for::<Status>();
    response_schemas.subschema_for::<FleetChange>();
    response_schemas.subschema_for::<StreamEnd>();
    let mut paths = Map::new();
    for route in routes() {
        let operation = operation(route, &mut requests, &mut response_schemas);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method().to_ascii_lowercase()] = operation;
    }
    let mut schemas = requests.take_definitions(true);
    schemas.extend(response_schemas.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "kafleet",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Submit, follow, list and control tasks.",
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
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = "/components/schemas".into());
    let settings = if out { settings.for_serialize() } else { settings.for_deserialize() };
    settings.into_generator()
}

fn operation(route: &Route, requests: &mut SchemaGenerator, response_schemas: &mut SchemaGenerator) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": responses(route, response_schemas),
    });
    let body = match route.request {
        RequestBody::Nothing => None,
        RequestBody::Bytes => Some(json!({"*/*": {}})),
        RequestBody::Json(describe) | RequestBody::MaybeJson(describe) => {
            Some(json!({"application/json": {"schema": describe(requests)}}))
        }
        RequestBody::JsonOrLines(describe) => Some(json!({
            "application/json": {"schema": {"type": "array", "maxItems": crate::service::batch::MAX_ITEMS, "items": describe(requests)}},
            "application/x-ndjson": {"schema": {"type": "string", "description": "One item per line."}},
        })),
    };
    if let Some(content) = body {
        operation["requestBody"] =
            json!({"required": !matches!(route.request, RequestBody::MaybeJson(_)), "content": content});
    }
    if let Some(role) = route.role {
        operation["security"] = json!([{"bearer": []}, {}]);
        operation["x-role"] = json!(role);
    }
    operation
}

/// Derives the operation id: `GET /v1/tasks/{id}/log` becomes `get_tasks_id_log`.
fn operation_id(route: &Route) -> String {
    // `/v1/` is dropped; the path `/v1` itself keeps it.
    let words = route
        .path
        .strip_prefix("/v1/")
        .unwrap_or(route.path)
        .split(['/', '{', '}', '.'])
        .filter(|word| !word.is_empty());
    std::iter::once(route.method().to_ascii_lowercase()).chain(words.map(str::to_owned)).collect::<Vec<_>>().join("_")
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|word| word.strip_prefix('{')?.strip_suffix('}'));
    let in_path =
        in_path.map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    in_path.chain(route.query.iter().copied().map(parameter)).collect()
}

fn parameter(parameter: &Parameter) -> Value {
    // The table's schemas are constants, all parsed by a test.
    let schema: Value = serde_json::from_str(parameter.schema).unwrap_or_default();
    json!({"name": parameter.name, "in": "query", "description": parameter.description, "schema": schema})
}

fn responses(route: &Route, response_schemas: &mut SchemaGenerator) -> Value {
    let content = match route.response {
        ResponseBody::Json(describe) => json!({"application/json": {"schema": describe(response_schemas)}}),
        ResponseBody::AnyJson => json!({"application/json": {"schema": {"type": "object"}}}),
        ResponseBody::Bytes => json!({"*/*": {}}),
        ResponseBody::Text => json!({"text/plain": {"schema": {"type": "string"}}}),
        ResponseBody::Events => json!({"text/event-stream": {"schema": {"type": "string"}}}),
    };
    let mut responses = Map::new();
    for (status, description) in &route.successes {
        responses.insert(status.to_string(), json!({"description": description, "content": content.clone()}));
    }
    for (status, codes) in problems(route) {
        let description =
            codes.iter().map(|code| format!("`{}`: {}", code.name(), code.title())).collect::<Vec<_>>().join("; ");
        let problem = json!({"application/problem+json": {"schema": response_schemas.subschema_for::<Problem>()}});
        responses.insert(status.to_string(), json!({"description": description, "content": problem}));
    }
    Value::Object(responses)
}

fn problems(route: &Route) -> std::collections::BTreeMap<u16, Vec<Code>> {
    let common = if route.role >= Some(Role::Read) { COMMON_PROBLEMS } else { &[] };
    let mut by_status = std::collections::BTreeMap::<u16, Vec<Code>>::new();
    for &code in route.problems.iter().chain(common) {
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

    fn references<'a>(value: &'a Value, collected: &mut Vec<&'a str>) {
        match value {
            Value::Object(map) => {
                collected.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|value| references(value, collected));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, collected)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_resolves_to_a_schema() {
        let document = document();
        let mut collected = Vec::new();
        references(&document, &mut collected);
        assert!(collected.len() > 20, "{collected:?}");
        for reference in collected {
            let target = document.pointer(reference.trim_start_matches('#'));
            assert!(target.is_some(), "{reference} does not resolve");
        }
    }

    #[test]
    fn every_route_is_described_with_its_parameters() {
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

    /// Adds the components that a schema refers to, directly and indirectly.
    fn reachable<'a>(document: &'a Value, schema: &'a Value, names: &mut std::collections::BTreeSet<&'a str>) {
        let mut collected = Vec::new();
        references(schema, &mut collected);
        for name in collected.into_iter().filter_map(|reference| reference.rsplit('/').next()) {
            if names.insert(name) {
                reachable(document, &document["components"]["schemas"][name], names);
            }
        }
    }

    #[test]
    fn responses_contain_every_field() {
        let document = document();
        let (mut returned, mut given) =
            (std::collections::BTreeSet::new(), std::collections::BTreeSet::from(["Problem"]));
        for route in routes() {
            let operation = &document["paths"][route.path][route.method().to_ascii_lowercase()];
            // Parts of requests are returned as they were given.
            reachable(&document, &operation["requestBody"], &mut given);
            for (status, _) in &route.successes {
                reachable(&document, &operation["responses"][status.to_string()], &mut returned);
            }
        }
        assert!(returned.contains("Status") && returned.contains("TypeDocument"), "{returned:?}");
        for name in returned.difference(&given) {
            let schema = &document["components"]["schemas"][*name];
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let optional: Vec<&String> = schema["properties"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(field, _)| field)
                .filter(|field| !required.contains(&json!(field)))
                .collect();
            assert!(optional.is_empty(), "{name} may lack {optional:?}");
        }
    }

    #[test]
    fn schemas_compile_and_reject_invalid_documents() {
        let document = document();
        let validator = |name: &str| {
            let mut schema = json!({"$ref": format!("#/components/schemas/{name}")});
            schema["components"] = document["components"].clone();
            jsonschema::validator_for(&schema).unwrap()
        };
        let create = validator("CreateTask");
        assert!(create.is_valid(&json!({"type": "echo", "params": 1, "delay": "30s"})));
        assert!(!create.is_valid(&json!({"type": "echo", "prio": 1})));
        assert!(!create.is_valid(&json!({"params": 1})));
        let problem = serde_json::to_value(crate::http::problem::ApiError::internal().document()).unwrap();
        assert!(validator("Problem").is_valid(&problem));
    }
}
