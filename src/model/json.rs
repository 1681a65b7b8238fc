//! Opaque JSON: validated once and kept as text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::task::id::clip_to;

/// Maximum characters of an error about JSON of another program.
const MAX_REASON_CHARS: usize = 300;

/// Text of an error, cut to 300 characters: serde quotes a string of the wrong type whole, up to the size of a record.
pub(crate) fn short_reason(error: &serde_json::Error) -> String {
    clip_to(&error.to_string(), MAX_REASON_CHARS)
}

/// Valid JSON text.
#[derive(Clone)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Validates JSON text.
    ///
    /// # Errors
    /// The text is not JSON in UTF-8.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text).map(Self)
    }

    /// Serialises a value.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self)
    }

    /// JSON `null`.
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// Returns the text as it was given.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Parses the text. Fails if it is nested more than 128 levels deep or contains a number outside the range of
    /// floating-point numbers.
    pub fn value(&self) -> Result<serde_json::Value, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }

    /// Returns the text in the form of `serde_json`.
    pub fn into_raw(self) -> Box<RawValue> {
        self.0
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}
impl Eq for RawJson {}

/// Compares values, not their formatting.
impl PartialEq<serde_json::Value> for RawJson {
    fn eq(&self, other: &serde_json::Value) -> bool {
        self.value().is_ok_and(|value| value == *other)
    }
}

/// Encodes plain data: structs, lists, strings, numbers, booleans, `Value`s, and maps with string keys. Encoding them
/// into memory has no error case.
pub(crate) fn plain_text(value: &(impl Serialize + ?Sized)) -> String {
    match serde_json::to_string(value) {
        Ok(text) => text,
        Err(why) => unreachable!("plain data cannot fail to encode: {why}"),
    }
}

/// Appends a number.
pub(crate) fn push_number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a string in quotes.
pub(crate) fn push_text(out: &mut Vec<u8>, text: &str) {
    // The fold has no early exit, so that the compiler can vectorise it.
    let special = text.bytes().fold(false, |found, byte| found | (byte < b' ') | (byte == b'"') | (byte == b'\\'));
    if special {
        out.extend_from_slice(plain_text(text).as_bytes());
    } else {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    }
}

/// Maximum nesting of a value that becomes part of events, records and notifications. Parsers refuse 128 levels.
pub(crate) const MAX_DEPTH: usize = 64;

/// Checks the nesting of a value.
pub(crate) fn check_depth(value: &serde_json::Value) -> Result<(), String> {
    if is_within(value, MAX_DEPTH) { Ok(()) } else { Err(format!("it is nested more than {MAX_DEPTH} levels deep")) }
}

fn is_within(value: &serde_json::Value, levels: usize) -> bool {
    match value {
        serde_json::Value::Array(items) => levels > 0 && items.iter().all(|item| is_within(item, levels - 1)),
        serde_json::Value::Object(fields) => levels > 0 && fields.values().all(|field| is_within(field, levels - 1)),
        _ => true,
    }
}

/// Compact form without insignificant white space.
impl std::fmt::Display for RawJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.value() {
            Ok(value) => value.fmt(f),
            Err(_) => f.write_str(self.text()),
        }
    }
}

impl std::fmt::Debug for RawJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// JSON formats carry the text itself; binary formats carry it as a string.
impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            self.0.serialize(serializer)
        } else {
            serializer.serialize_str(self.text())
        }
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Box::<RawValue>::deserialize(deserializer).map(Self);
        }
        let text = String::deserialize(deserializer)?;
        RawValue::from_string(text).map(Self).map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for RawJson {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AnyJson".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"description": "Any JSON value."})
    }
}

/// Optional values as JSON text, for binary formats.
#[doc(hidden)]
pub mod as_text {
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        let text = value.as_ref().map(serde_json::to_string).transpose().map_err(serde::ser::Error::custom)?;
        text.serialize(serializer)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
        let text = Option::<&str>::deserialize(deserializer)?;
        text.map(serde_json::from_str).transpose().map_err(serde::de::Error::custom)
    }
}
