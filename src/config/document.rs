//! A file as JSON, with the place of every key, and its variables replaced.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The file's values and where each of them is written. Values are named by JSON pointers.
#[derive(Default)]
pub(super) struct Document {
    /// With variables replaced.
    pub value: Value,
    /// As written: what problems show, so that nothing from the environment gets into a message.
    pub written: Value,
    places: BTreeMap<String, Place>,
    /// Values with a variable that is not set, in sections that this process does not use.
    pub unset: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Line(usize),
    /// Not from the file: the option and variable it came from.
    Given(&'static str),
}

/// A line and what is wrong there.
pub(super) struct SyntaxError {
    pub line: Option<usize>,
    pub message: String,
}

/// What is wrong with a `${…}`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unexpanded {
    NotSet(String),
    Malformed,
}

impl Document {
    pub fn parse(text: &str) -> Result<Self, Vec<SyntaxError>> {
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let told = |error: &toml::de::Error| SyntaxError {
                line: error.span().map(|span| line_of(text, span.start)),
                message: error.message().to_owned(),
            };
            return Err(errors.iter().map(told).collect());
        }
        let mut document = Self::default();
        let value = document.table(text, "", table.get_ref());
        Ok(Self { written: value.clone(), value, ..document })
    }

    fn table(&mut self, text: &str, above: &str, table: &DeTable<'_>) -> Value {
        let mut map = Map::new();
        for (key, value) in table {
            let pointer = join(above, key.get_ref());
            self.places.insert(pointer.clone(), Place::Line(line_of(text, key.span().start)));
            let value = self.value(text, &pointer, value.get_ref());
            self.put(&mut map, above, key.get_ref(), value);
        }
        Value::Object(map)
    }

    /// In `[kafka]` a key such as `security.protocol` may be written without quotes, which is a table to TOML.
    fn put(&mut self, map: &mut Map<String, Value>, above: &str, key: &str, value: Value) {
        let place = self.places.get(&join(above, key)).cloned();
        match value {
            Value::Object(inner) if above == "/kafka" => {
                for (rest, value) in inner {
                    let dotted = format!("{key}.{rest}");
                    let nested = self.places.get(&join(&join(above, key), &rest)).cloned();
                    self.places.extend(nested.or(place.clone()).map(|place| (join(above, &dotted), place)));
                    self.put(map, above, &dotted, value);
                }
            }
            value => {
                map.insert(key.to_owned(), value);
            }
        }
    }

    fn value(&mut self, text: &str, pointer: &str, value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => text.as_ref().into(),
            DeValue::Boolean(flag) => (*flag).into(),
            // A number out of range stays text, and is refused as what it is.
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).map_or_else(|_| number.to_string().into(), Value::from)
            }
            DeValue::Float(number) => {
                let finite = number.as_str().parse().ok().and_then(serde_json::Number::from_f64);
                finite.map_or_else(|| number.as_str().into(), Value::Number)
            }
            DeValue::Datetime(time) => time.to_string().into(),
            DeValue::Array(items) => {
                let item = |(n, item): (usize, &Spanned<DeValue<'_>>)| {
                    let pointer = join(pointer, &n.to_string());
                    self.places.insert(pointer.clone(), Place::Line(line_of(text, item.span().start)));
                    self.value(text, &pointer, item.get_ref())
                };
                items.iter().enumerate().map(item).collect()
            }
            DeValue::Table(table) => self.table(text, pointer, table),
        }
    }

    /// Puts a value from outside the file over what the file says.
    pub fn give(&mut self, section: &str, key: &str, text: &str, from: &'static str) {
        for root in [&mut self.value, &mut self.written] {
            let section = match root {
                Value::Object(root) => root.entry(section).or_insert_with(|| Value::Object(Map::new())),
                other => other,
            };
            if let Value::Object(section) = section {
                section.insert(key.to_owned(), text.into());
            }
        }
        self.places.insert(join(&join("", section), key), Place::Given(from));
    }

    /// Where a key is written; for one that is not, the nearest table above it.
    pub fn place(&self, pointer: &str) -> Option<&Place> {
        let above = std::iter::successors(Some(pointer), |pointer| pointer.rsplit_once('/').map(|(above, _)| above));
        above.filter_map(|pointer| self.places.get(pointer)).next()
    }

    /// Replaces `${VARIABLE}` in every text. A variable may be missing in the sections of `unused`.
    pub fn expand(&mut self, env: &dyn Fn(&str) -> Option<String>, unused: &[&str]) -> Vec<(String, Unexpanded)> {
        let mut failed = Vec::new();
        expand_value(&mut self.value, "", env, &mut failed);
        let is_unused = |pointer: &str| keys(pointer).first().is_some_and(|section| unused.contains(&section.as_str()));
        let (unset, failed): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|(pointer, why)| matches!(why, Unexpanded::NotSet(_)) && is_unused(pointer));
        self.unset = unset.into_iter().map(|(pointer, _)| pointer).collect();
        failed
    }
}

fn expand_value(value: &mut Value, pointer: &str, env: &dyn Fn(&str) -> Option<String>, failed: &mut Vec<(String, Unexpanded)>) {
    match value {
        Value::String(text) => match expand(text, env) {
            Ok(expanded) => *text = expanded,
            Err(why) => failed.extend(why.into_iter().map(|why| (pointer.to_owned(), why))),
        },
        Value::Array(items) => {
            for (n, item) in items.iter_mut().enumerate() {
                expand_value(item, &join(pointer, &n.to_string()), env, failed);
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                expand_value(value, &join(pointer, key), env, failed);
            }
        }
        _ => {}
    }
}

/// `${NAME}` becomes the variable's value, `$${` a plain `${`; any other `$` stays.
fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, Vec<Unexpanded>> {
    let (mut out, mut rest, mut failed) = (String::new(), text, Vec::new());
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            out.push_str(&rest[..at - 1]);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let name = rest[at + 2..].split_once('}').map(|(name, _)| name).filter(|name| is_name(name));
        let Some(name) = name else {
            failed.push(Unexpanded::Malformed);
            break;
        };
        match env(name) {
            Some(value) => out.push_str(&value),
            None => failed.push(Unexpanded::NotSet(name.to_owned())),
        }
        rest = &rest[at + 2 + name.len() + 1..];
    }
    out.push_str(rest);
    if failed.is_empty() { Ok(out) } else { Err(failed) }
}

fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count() + 1
}

/// The pointer of a key below another pointer.
pub(super) fn join(above: &str, key: &str) -> String {
    format!("{above}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// The keys of a pointer.
pub(super) fn keys(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|key| key.replace("~1", "/").replace("~0", "~")).collect()
}

/// A pointer as people write keys: `kafka."bootstrap.servers"`, `api.tokens[0].token`.
pub(super) fn dotted(pointer: &str) -> String {
    let mut out = String::new();
    for key in keys(pointer) {
        let plain = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
        let number = !key.is_empty() && key.bytes().all(|b| b.is_ascii_digit());
        match (number && !out.is_empty(), plain && !key.is_empty()) {
            (true, _) => out.push_str(&format!("[{key}]")),
            (_, true) => out.push_str(&format!(".{key}")),
            _ => out.push_str(&format!(".\"{key}\"")),
        }
    }
    out.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced() {
        let env = |name: &str| (name == "HOST").then(|| "h${X}".to_owned());
        for (text, meant) in [
            ("plain $5 $ {x}", "plain $5 $ {x}"),
            ("${HOST}", "h${X}"),
            ("a-${HOST}:${HOST}", "a-h${X}:h${X}"),
            ("$${HOST}", "${HOST}"),
            ("$$${HOST}", "$${HOST}"),
        ] {
            assert_eq!(expand(text, &env), Ok(meant.to_owned()), "{text}");
        }
        assert_eq!(expand("${A}${HOST}${B}", &env), Err(["A", "B"].map(|name| Unexpanded::NotSet(name.into())).into()));
        for bad in ["${", "${HOST", "${}", "${1A}", "${A-B}"] {
            assert_eq!(expand(bad, &env), Err(vec![Unexpanded::Malformed]), "{bad}");
        }
    }

    #[test]
    fn dotted_kafka_keys_need_no_quotes() {
        let document =
            Document::parse("[kafka]\nsecurity.protocol = \"ssl\"\n\"a.b\" = 1\n\n[kafka.ssl]\nca.location = \"x\"").ok();
        let document = document.unwrap();
        assert_eq!(document.value["kafka"], serde_json::json!({"security.protocol": "ssl", "a.b": 1, "ssl.ca.location": "x"}));
        assert_eq!(document.place("/kafka/ssl.ca.location"), Some(&Place::Line(6)));
        assert_eq!(document.place("/kafka/security.protocol"), Some(&Place::Line(2)));
    }

    #[test]
    fn keys_are_shown_as_they_are_written() {
        assert_eq!(dotted("/kafka/bootstrap.servers"), "kafka.\"bootstrap.servers\"");
        assert_eq!(dotted("/api/tokens/0/token"), "api.tokens[0].token");
    }
}
