use super::*;

#[test]
fn no_call_is_there_twice() {
    let mut labels: Vec<String> = routes().map(Route::label).collect();
    labels.sort();
    assert!(labels.windows(2).all(|pair| pair[0] != pair[1]), "{labels:?}");
}

/// Who changes the table changes the manual.
#[test]
fn the_manual_has_every_call_and_every_code() {
    let manual = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/api.md")).expect("the manual");
    for route in routes() {
        assert!(manual.contains(&format!("`{}`", route.label())), "docs/api.md lacks `{}`", route.label());
        for parameter in route.query {
            assert!(manual.contains(&format!("`{}`", parameter.name)), "docs/api.md lacks `{}`", parameter.name);
        }
    }
    for code in Code::ALL {
        let row = format!("| `{}` | {} |", code.name(), code.status());
        assert!(manual.contains(&row), "docs/api.md lacks the row `{row}`");
    }
}

/// A body whose every field may be left out may be left out as a whole, unless it is there to say which of them change.
#[test]
fn body_without_required_fields_is_optional() {
    let changes = ["PATCH /v1/tasks/{id}", "PUT /v1/types/{type}/limits"];
    let settings = schemars::generate::SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    for route in routes().filter(|route| !changes.contains(&route.label().as_str())) {
        let Takes::Json(describe) = route.takes else { continue };
        let schema = describe(&mut settings.clone().into_generator());
        let required = schema.as_value()["required"].as_array().map_or(0, Vec::len);
        assert!(required > 0, "{} takes a body without required fields: it may be left out", route.label());
    }
}

/// Whether a path segment can be the value of a parameter, which the part of the path before it tells.
fn fits(before: &str, parameter: &str, segment: &str) -> bool {
    use crate::model::record::attachment;
    use crate::model::schedule;
    use crate::model::task::id;
    match (before, parameter) {
        ("/v1/tasks", "{id}") => id::TaskId::parse(segment).is_ok(),
        ("/v1/tasks/{id}/attachments", "{name}") => attachment::check_name(segment).is_ok(),
        ("/v1/schedules", "{id}") => schedule::check_name(segment).is_ok(),
        ("/v1/types", "{type}") => id::check_type(segment).is_ok(),
        ("/v1/kill", "{name}") => crate::control::check_kill(segment).is_ok(),
        ("/v1/dead", "{letter}") => segment.parse::<crate::dead_letters::LetterId>().is_ok(),
        other => panic!("what may be a value of {other:?}?"),
    }
}

#[test]
fn no_path_segment_of_a_call_is_a_value_of_a_parameter() {
    // Where a path goes on, by what comes before.
    let mut next = std::collections::BTreeMap::<String, std::collections::BTreeSet<&str>>::new();
    for route in routes() {
        let mut before = String::new();
        for segment in route.path.split('/').skip(1) {
            next.entry(before.clone()).or_default().insert(segment);
            before = format!("{before}/{segment}");
        }
    }
    for (before, segments) in next {
        let (parameters, literals): (Vec<&str>, Vec<&str>) = segments.into_iter().partition(|segment| segment.starts_with('{'));
        for parameter in parameters {
            for literal in &literals {
                let collides = fits(&before, parameter, literal);
                assert!(!collides, "`{literal}` is a call and can be a value of `{before}/{parameter}`");
            }
        }
    }
}
