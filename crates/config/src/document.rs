//! Configuration file as JSON, with the line of every key and with variables expanded.

use std::collections::{BTreeMap, BTreeSet};

use kafleet_model::json::is_exact_float;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Values of the file and their locations, by JSON pointer.
#[derive(Default)]
pub(super) struct Document {
    /// Values with variables expanded.
    pub value: Value,
    /// Values as written, for messages, so that no message contains a value from the environment.
    pub written: Value,
    locations: BTreeMap<String, Location>,
    /// Pointers of values with unset variables, in sections that this process does not use.
    pub unset: BTreeSet<String>,
    /// Numbers that [`Self::value`] does not have with all their digits, by their pointers.
    pub inexact: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Location {
    Line(usize),
    /// Value from an option or environment variable, which is named.
    Given(&'static str),
}

/// Syntax error and its line.
pub(super) struct SyntaxError {
    pub line: Option<usize>,
    pub message: String,
}

/// Reason why a `${…}` cannot be expanded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExpansionError {
    NotSet(String),
    Malformed,
}

impl Document {
    /// Document of a value without locations.
    pub(super) fn of(value: Value) -> Self {
        Self { written: value.clone(), value, ..Self::default() }
    }

    pub(super) fn parse(text: &str) -> Result<Self, Vec<SyntaxError>> {
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let syntax_error = |error: &toml::de::Error| SyntaxError {
                line: error.span().map(|span| line_of(text, span.start)),
                message: error.message().to_owned(),
            };
            return Err(errors.iter().map(syntax_error).collect());
        }
        let mut document = Self::default();
        let value = document.table(text, "", table.get_ref());
        Ok(Self { written: value.clone(), value, ..document })
    }

    fn table(&mut self, text: &str, above: &str, table: &DeTable<'_>) -> Value {
        let mut map = Map::new();
        for (key, value) in table {
            let pointer = join(above, key.get_ref());
            self.locations.insert(pointer.clone(), Location::Line(line_of(text, key.span().start)));
            let value = self.value(text, &pointer, value.get_ref());
            self.insert_key(&mut map, above, key.get_ref(), value);
        }
        Value::Object(map)
    }

    /// Inserts a value. In `[kafka]`, nested tables become dotted keys: to TOML, an unquoted `a.b` is a table.
    fn insert_key(&mut self, map: &mut Map<String, Value>, above: &str, key: &str, value: Value) {
        let location = self.locations.get(&join(above, key)).cloned();
        match value {
            Value::Object(inner) if above == "/kafka" => {
                for (rest, value) in inner {
                    let dotted = format!("{key}.{rest}");
                    let nested = self.locations.get(&join(&join(above, key), &rest)).cloned();
                    self.locations.extend(nested.or(location.clone()).map(|location| (join(above, &dotted), location)));
                    self.insert_key(map, above, &dotted, value);
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
            // A number out of range is kept as text and refused by the schema, or as inexact.
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => number.into(),
                Err(_) => {
                    self.inexact.insert(pointer.to_owned(), number.to_string());
                    number.to_string().into()
                }
            },
            DeValue::Float(number) => {
                let text = number.as_str();
                if !is_exact_float(text) {
                    self.inexact.insert(pointer.to_owned(), text.to_owned());
                }
                let finite = text.parse().ok().and_then(serde_json::Number::from_f64);
                finite.map_or_else(|| text.into(), Value::Number)
            }
            DeValue::Datetime(time) => time.to_string().into(),
            DeValue::Array(items) => {
                let item = |(n, item): (usize, &Spanned<DeValue<'_>>)| {
                    let pointer = join(pointer, &n.to_string());
                    self.locations.insert(pointer.clone(), Location::Line(line_of(text, item.span().start)));
                    self.value(text, &pointer, item.get_ref())
                };
                items.iter().enumerate().map(item).collect()
            }
            DeValue::Table(table) => self.table(text, pointer, table),
        }
    }

    /// Overrides a value of the file.
    pub(super) fn override_value(&mut self, section: &str, key: &str, text: &str, from: &'static str) {
        for root in [&mut self.value, &mut self.written] {
            let section = match root {
                Value::Object(root) => root.entry(section).or_insert_with(|| Value::Object(Map::new())),
                other => other,
            };
            if let Value::Object(section) = section {
                section.insert(key.to_owned(), text.into());
            }
        }
        self.locations.insert(join(&join("", section), key), Location::Given(from));
    }

    /// Returns the location of a key, or of the nearest table above it.
    pub(super) fn location(&self, pointer: &str) -> Option<&Location> {
        let above = std::iter::successors(Some(pointer), |pointer| pointer.rsplit_once('/').map(|(above, _)| above));
        above.filter_map(|pointer| self.locations.get(pointer)).next()
    }

    /// Names of the variables that [`Document::expand`] expands.
    pub(super) fn variables(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        collect_variables(&self.value, &mut names);
        names
    }

    /// Expands `${VARIABLE}` in every string. Variables may be unset in the tables at the pointers of `unused`.
    pub(super) fn expand(
        &mut self,
        env: &dyn Fn(&str) -> Option<String>,
        unused: &[String],
    ) -> Vec<(String, ExpansionError)> {
        let mut failed = Vec::new();
        expand_value(&mut self.value, "", env, &mut failed);
        let is_below = |table: &String, pointer: &str| {
            pointer.strip_prefix(table.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_unused = |pointer: &str| unused.iter().any(|table| is_below(table, pointer));
        let (unset, failed): (Vec<_>, Vec<_>) = failed
            .into_iter()
            .partition(|(pointer, error)| matches!(error, ExpansionError::NotSet(_)) && is_unused(pointer));
        self.unset = unset.into_iter().map(|(pointer, _)| pointer).collect();
        failed
    }
}

fn collect_variables(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            let unset = expand(text, &|_| None).err().unwrap_or_default().into_iter();
            names.extend(unset.filter_map(|error| match error {
                ExpansionError::NotSet(name) => Some(name),
                ExpansionError::Malformed => None,
            }));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_variables(item, names)),
        Value::Object(map) => map.values().for_each(|value| collect_variables(value, names)),
        _ => {}
    }
}

fn expand_value(
    value: &mut Value,
    pointer: &str,
    env: &dyn Fn(&str) -> Option<String>,
    failed: &mut Vec<(String, ExpansionError)>,
) {
    match value {
        Value::String(text) => match expand(text, env) {
            Ok(expanded) => *text = expanded,
            Err(error) => failed.extend(error.into_iter().map(|error| (pointer.to_owned(), error))),
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

/// Expands `${NAME}` to the variable's value and `$${` to a literal `${`; any other `$` stays.
fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, Vec<ExpansionError>> {
    let mut out = String::new();
    let mut rest = text;
    let mut failed = Vec::new();
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
            failed.push(ExpansionError::Malformed);
            break;
        };
        match env(name) {
            Some(value) => out.push_str(&value),
            None => failed.push(ExpansionError::NotSet(name.to_owned())),
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

/// Returns the pointer of a key below another pointer.
pub(super) fn join(above: &str, key: &str) -> String {
    format!("{above}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Returns the keys of a pointer.
pub(super) fn keys(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|key| key.replace("~1", "/").replace("~0", "~")).collect()
}

/// Formats a pointer as a TOML key: `kafka."bootstrap.servers"`, `api.tokens[0].token`.
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
    fn variables_are_expanded() {
        let env = |name: &str| (name == "HOST").then(|| "h${X}".to_owned());
        for (text, expanded) in [
            ("plain $5 $ {x}", "plain $5 $ {x}"),
            ("${HOST}", "h${X}"),
            ("a-${HOST}:${HOST}", "a-h${X}:h${X}"),
            ("$${HOST}", "${HOST}"),
            ("$$${HOST}", "$${HOST}"),
        ] {
            assert_eq!(expand(text, &env), Ok(expanded.to_owned()), "{text}");
        }
        assert_eq!(
            expand("${A}${HOST}${B}", &env),
            Err(["A", "B"].map(|name| ExpansionError::NotSet(name.into())).into())
        );
        for bad in ["${", "${HOST", "${}", "${1A}", "${A-B}"] {
            assert_eq!(expand(bad, &env), Err(vec![ExpansionError::Malformed]), "{bad}");
        }
    }

    #[test]
    fn dotted_kafka_keys_need_no_quotes() {
        let document =
            Document::parse("[kafka]\nsecurity.protocol = \"ssl\"\n\"a.b\" = 1\n\n[kafka.ssl]\nca.location = \"x\"")
                .ok();
        let document = document.unwrap();
        assert_eq!(
            document.value["kafka"],
            serde_json::json!({"security.protocol": "ssl", "a.b": 1, "ssl.ca.location": "x"})
        );
        assert_eq!(document.location("/kafka/ssl.ca.location"), Some(&Location::Line(6)));
        assert_eq!(document.location("/kafka/security.protocol"), Some(&Location::Line(2)));
    }

    #[test]
    fn keys_are_formatted_as_in_toml() {
        assert_eq!(dotted("/kafka/bootstrap.servers"), "kafka.\"bootstrap.servers\"");
        assert_eq!(dotted("/api/tokens/0/token"), "api.tokens[0].token");
    }
}
