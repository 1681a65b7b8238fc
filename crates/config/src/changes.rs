//! Differences between two configurations, by key.

use serde_json::{Map, Value};

use super::document::{dotted, join, keys};

/// Key whose value differs in a new configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedKey {
    /// JSON pointer.
    pointer: String,
    /// New value; `None` if the key is gone.
    new: Option<Value>,
}

impl ChangedKey {
    /// TOML key, such as `types.resize.timeout`.
    pub fn key(&self) -> String {
        dotted(&self.pointer)
    }

    /// Keys from the section down.
    pub fn path(&self) -> Vec<String> {
        keys(&self.pointer)
    }

    /// Applies this change to the document of the running configuration.
    pub fn apply(&self, old: &mut Value) {
        set_value(old, &self.path(), self.new.as_ref());
    }
}

/// Returns the keys that differ, without those of tables. A list is one value.
pub fn changes(old: &Value, new: &Value) -> Vec<ChangedKey> {
    let mut changed = Vec::new();
    compare("", Some(old), Some(new), &mut changed);
    changed
}

fn compare(pointer: &str, old: Option<&Value>, new: Option<&Value>, changed: &mut Vec<ChangedKey>) {
    if old == new {
        return;
    }
    let table = |value: Option<&Value>| match value {
        None => Some(Map::new()),
        Some(value) => value.as_object().cloned(),
    };
    let (Some(old), Some(mut new_keys)) = (table(old), table(new)) else {
        return changed.push(ChangedKey { pointer: pointer.to_owned(), new: new.cloned() });
    };
    for (key, old) in &old {
        compare(&join(pointer, key), Some(old), new_keys.remove(key).as_ref(), changed);
    }
    for (key, new) in &new_keys {
        compare(&join(pointer, key), None, Some(new), changed);
    }
}

fn set_value(value: &mut Value, path: &[String], new: Option<&Value>) {
    let [key, below @ ..] = path else { return };
    let Value::Object(table) = value else { return };
    match (below, new) {
        ([], None) => drop(table.remove(key)),
        ([], Some(new)) => drop(table.insert(key.clone(), new.clone())),
        _ => set_value(table.entry(key).or_insert_with(|| Value::Object(Map::new())), below, new),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_lead_from_the_old_to_the_new_configuration() {
        let mut old = json!({
            "api": {"tokens": [1, 2], "listen": "a"},
            "types": {"a": {"rate": {"count": 1, "per": "1s"}, "retries": 1}, "gone": {"handler": "echo"}},
        });
        let new = json!({
            "api": {"tokens": [1], "listen": "a"},
            "types": {"a": {"rate": {"count": 2, "per": "1s"}}, "b.c": {"rate": {"count": 1}}},
        });
        let changed = changes(&old, &new);
        let mut keys: Vec<String> = changed.iter().map(ChangedKey::key).collect();
        keys.sort();
        let expected =
            ["api.tokens", "types.\"b.c\".rate.count", "types.a.rate.count", "types.a.retries", "types.gone.handler"];
        assert_eq!(keys, expected);
        changed.iter().for_each(|change| change.apply(&mut old));
        // A table without keys is no change.
        old["types"].as_object_mut().unwrap().remove("gone");
        assert_eq!(old, new);
        assert_eq!(changes(&old, &new), []);
    }
}
