//! The configuration's sample and its documentation.

use std::path::Path;

use kafleet::config::{Overrides, load_with};

/// Loads the sample at the root with an empty environment.
#[test]
fn sample_configuration_is_valid() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("kafleet.toml");
    let loaded =
        load_with(Some(&sample), &Overrides::default(), &|_| None).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(["echo", "foreach"].iter().all(|name| loaded.config.types.contains_key(*name)));
    let program = &loaded.config.types["word-count"].command[0];
    assert!(Path::new(program).is_file(), "`{program}` of the sample does not exist");
}

/// Checks that all configuration keys are documented, and no others.
#[test]
fn configuration_keys_are_documented() {
    let text = include_str!("../../docs/configuration.md");
    let schema = kafleet::config::schema();
    for (section, part) in schema["properties"].as_object().unwrap() {
        assert!(text.contains(&format!("`[{section}")), "docs/configuration.md does not describe `[{section}]`");
        let name = part["$ref"].as_str().or(part["additionalProperties"]["$ref"].as_str()).unwrap_or_default();
        let keys = schema.pointer(name.trim_start_matches('#')).and_then(|part| part["properties"].as_object());
        for key in keys.into_iter().flatten().map(|(key, _)| key) {
            assert!(text.contains(&format!("`{key}`")), "docs/configuration.md does not explain `{section}.{key}`");
        }
    }
}
