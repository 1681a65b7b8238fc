//! Messages of recorded sessions with apps.

use serde_json::Value;

use super::{read, schemas};

#[test]
fn recorded_sessions_of_apps_fit_the_schema_of_the_protocol() {
    let schema = read("app-protocol.json");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let sides = ["to_app", "to_worker"].map(|side| schema["$defs"][side]["oneOf"].as_array().unwrap());
    let kinds: Vec<&Value> = sides.iter().flat_map(|kinds| kinds.iter().map(|kind| &kind["required"][0])).collect();
    let mut messages = 0;
    for entry in std::fs::read_dir(schemas().join("examples/app")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.split_terminator('\n').skip(1) {
            let event: Value = serde_json::from_str(line).unwrap();
            let kind = |message: &&Value| message.as_object().unwrap().keys().next().unwrap().clone();
            // Some sessions have messages of unknown kinds, which are ignored.
            if let Some(message) = event.get("message").filter(|message| kinds.contains(&&Value::from(kind(message)))) {
                let fits = validator.validate(message);
                fits.unwrap_or_else(|error| panic!("{}: {error}: {message}", path.display()));
                messages += 1;
            }
        }
    }
    assert!(messages > 50, "{messages}");
}
