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
