use super::*;
use crate::http::input::RequestBody;
use crate::http::problem::Code;

#[test]
fn routes_are_unique() {
    let mut labels: Vec<String> = routes().map(Route::label).collect();
    labels.sort();
    assert!(labels.windows(2).all(|pair| pair[0] != pair[1]), "{labels:?}");
}

/// Changes of the route table require changes of the manual.
#[test]
fn manual_lists_every_route_and_every_problem_code() {
    let manual =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md")).expect("the manual");
    for route in routes() {
        assert!(manual.contains(&format!("`{}`", route.label())), "docs/api.md lacks `{}`", route.label());
        for parameter in &route.query {
            assert!(manual.contains(&format!("`{}`", parameter.name)), "docs/api.md lacks `{}`", parameter.name);
        }
    }
    for code in Code::ALL {
        let row = format!("| `{}` | {} |", code.name(), code.status());
        assert!(manual.contains(&row), "docs/api.md lacks the row `{row}`");
    }
}

/// A body without required fields must be optional, except for endpoints where the given fields select the change.
#[test]
fn body_without_required_fields_is_optional() {
    let changes = ["PATCH /v1/tasks/{id}", "PUT /v1/types/{type}/limits"];
    let settings = schemars::generate::SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    for route in routes().filter(|route| !changes.contains(&route.label().as_str())) {
        let RequestBody::Json(describe) = route.request else { continue };
        let schema = describe(&mut settings.clone().into_generator());
        let required = schema.as_value()["required"].as_array().map_or(0, Vec::len);
        assert!(required > 0, "{} requires a body without required fields", route.label());
    }
}

/// Whether a segment is a valid value of the path parameter after `before`.
fn fits(before: &str, parameter: &str, segment: &str) -> bool {
    use kafleet_model::record::attachment;
    use kafleet_model::schedule;
    use kafleet_model::task::id;
    match (before, parameter) {
        ("/v1/tasks", "{id}") => id::TaskId::parse(segment).is_ok(),
        ("/v1/tasks/{id}/attachments", "{name}") => attachment::check_name(segment).is_ok(),
        ("/v1/schedules", "{id}") => schedule::check_name(segment).is_ok(),
        ("/v1/types", "{type}") => id::check_type(segment).is_ok(),
        ("/v1/kill-switches", "{name}") => kafleet_fleet::control::check_kill(segment).is_ok(),
        ("/v1/dead-letters", "{letter}") => segment.parse::<kafleet_fleet::dead_letters::DeadLetterId>().is_ok(),
        ("/v1/unique", "{type}") => id::check_type(segment).is_ok(),
        other => panic!("add the value check for {other:?}"),
    }
}

#[test]
fn no_literal_path_segment_is_a_valid_parameter_value() {
    // Segments that can follow each path prefix.
    let mut next = std::collections::BTreeMap::<String, std::collections::BTreeSet<&str>>::new();
    for route in routes() {
        let mut before = String::new();
        for segment in route.path.split('/').skip(1) {
            next.entry(before.clone()).or_default().insert(segment);
            before = format!("{before}/{segment}");
        }
    }
    for (before, segments) in next {
        let (parameters, literals): (Vec<&str>, Vec<&str>) =
            segments.into_iter().partition(|segment| segment.starts_with('{'));
        for parameter in parameters {
            for literal in &literals {
                let collides = fits(&before, parameter, literal);
                assert!(!collides, "`{literal}` is an endpoint and also a valid value of `{before}/{parameter}`");
            }
        }
    }
}
