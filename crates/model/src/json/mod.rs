//! Opaque JSON: validated once and kept as text.
//!
//! No value is decoded on its way from a user's input to a user's output, because decoding changes it: numbers are
//! rounded, and the order of names is lost. Values are shown, split into parts and compared as text.

mod canonical;
mod defect;
mod layout;
mod mask;
mod merge;
mod number;
mod reason;
mod scan;
mod slice;

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use defect::JsonDefect;
pub use mask::{HiddenTexts, MASKED, WHOLE_VALUE, check_pointer, mask_below};
pub use number::is_exact_float;
pub use reason::short_reason;
pub use slice::{JsonKind, JsonSlice, pointer_to};

/// Valid JSON text that all readers understand in the same way: without a name that occurs twice in an object, without halves of
/// surrogate pairs, without an exponent of more than 9 digits, and nested at most 10,000 levels deep.
#[derive(Clone)]
pub struct RawJson(Box<RawValue>);

/// Reason why a text is refused.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text begins with a byte order mark.
    #[error("it begins with a byte order mark; hint: send UTF-8 without one")]
    ByteOrderMark,
    /// The text is not JSON in UTF-8.
    #[error("{0}")]
    Syntax(serde_json::Error),
    /// The text is JSON, but readers differ in its meaning.
    #[error("{0}")]
    Defect(#[from] JsonDefect),
}

impl JsonError {
    /// Error of a parser about this text.
    pub fn of_parser(text: &[u8], error: serde_json::Error) -> Self {
        if text.starts_with(b"\xef\xbb\xbf") { Self::ByteOrderMark } else { Self::Syntax(error) }
    }

    /// JSON pointer to the value that is refused, if it is known.
    pub fn pointer(&self) -> Option<&str> {
        match self {
            Self::Defect(defect) => Some(&defect.pointer),
            Self::ByteOrderMark | Self::Syntax(_) => None,
        }
    }
}

impl RawJson {
    /// Validates JSON text.
    ///
    /// # Errors
    /// The text is not JSON in UTF-8, or has a defect.
    pub fn parse(text: &[u8]) -> Result<Self, JsonError> {
        match serde_json::from_slice::<Box<RawValue>>(text) {
            Ok(raw) => Ok(raw.try_into()?),
            Err(error) => Err(JsonError::of_parser(text, error)),
        }
    }

    /// Serialises a value.
    ///
    /// # Errors
    /// The value has no form in JSON, or two of its fields have the same name.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value)?.try_into().map_err(serde::ser::Error::custom)
    }

    /// Encodes plain data, as [`plain_text`] does.
    pub fn of_plain(value: &(impl Serialize + ?Sized)) -> Self {
        Self::of_valid(&plain_text(value))
    }

    /// Copies text that is part of a valid text.
    fn of_valid(text: &str) -> Self {
        match RawValue::from_string(text.to_owned()) {
            Ok(raw) => Self(raw),
            Err(error) => unreachable!("a part of JSON text is JSON text: {error}"),
        }
    }

    /// JSON `null`.
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// Returns whether the value is `null`.
    pub fn is_null(&self) -> bool {
        self.text() == "null"
    }

    /// Returns the text as it was given.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// View of the text that gives access to its parts and its layouts.
    pub fn slice(&self) -> JsonSlice<'_> {
        JsonSlice::of(self.text())
    }

    /// Sets a member of an object, in the place of the old one or at the end. The text of the others stays. Returns
    /// false for a value that is no object.
    pub fn set(&mut self, name: &str, value: impl Into<Self>) -> bool {
        if self.slice().kind() != JsonKind::Object {
            return false;
        }
        let value = value.into();
        let others = self.slice().members().map(|(other, old)| (other, old.text()));
        let mut members: Vec<(Cow<'_, str>, &str)> = others.collect();
        match members.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value.text(),
            None => members.push((name.into(), value.text())),
        }
        let members = members.iter().map(|(name, value)| format!("{}:{value}", plain_text(name)));
        let text = format!("{{{}}}", members.collect::<Vec<_>>().join(","));
        *self = Self::of_valid(&text);
        true
    }

    /// Text without white space between its tokens.
    pub fn into_compact(self) -> Self {
        let compact = self.slice().compact();
        if compact.len() == self.text().len() { self } else { Self::of_valid(&compact) }
    }

    /// Compares values by their canonical text.
    pub fn is_same_value(&self, other: &Self) -> bool {
        self == other || self.slice().canonical().is_ok_and(|form| other.slice().canonical().is_ok_and(|of| of == form))
    }

    /// Parses the text for readers that need no exact numbers: numbers beyond 64 bits and fractions are rounded to
    /// floating-point numbers, and names are sorted. Fails if the text is nested more than 128 levels deep or contains a
    /// number outside the range of floating-point numbers.
    pub fn value(&self) -> Result<serde_json::Value, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }

    /// Returns the text in the form of `serde_json`.
    pub fn into_raw(self) -> Box<RawValue> {
        self.0
    }
}

/// Checks text that a parser has accepted.
impl TryFrom<Box<RawValue>> for RawJson {
    type Error = JsonDefect;

    fn try_from(raw: Box<RawValue>) -> Result<Self, JsonDefect> {
        defect::check(raw.get())?;
        Ok(Self(raw))
    }
}

/// Checks a whole document that is decoded afterwards: a decoder does not find every defect.
pub fn check_document(text: &[u8]) -> Result<(), JsonError> {
    match serde_json::from_slice::<&RawValue>(text) {
        Ok(raw) => Ok(defect::check(raw.get())?),
        Err(error) => Err(JsonError::of_parser(text, error)),
    }
}

impl Default for RawJson {
    fn default() -> Self {
        Self::null()
    }
}

/// Compares texts. [`RawJson::is_same_value`] compares values.
impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}
impl Eq for RawJson {}

/// Compares decoded values, not their formatting.
impl PartialEq<serde_json::Value> for RawJson {
    fn eq(&self, other: &serde_json::Value) -> bool {
        self.value().is_ok_and(|value| value == *other)
    }
}

/// Writes a decoded value, such as one of `serde_json::json!`.
impl From<serde_json::Value> for RawJson {
    fn from(value: serde_json::Value) -> Self {
        Self::of_valid(&value.to_string())
    }
}

/// Encodes plain data: structs, lists, strings, numbers, booleans, `Value`s, and maps with string keys. Encoding them
/// into memory has no error case.
pub fn plain_text(value: &(impl Serialize + ?Sized)) -> String {
    match serde_json::to_string(value) {
        Ok(text) => text,
        Err(error) => unreachable!("plain data cannot fail to encode: {error}"),
    }
}

/// Appends a number.
pub fn push_number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a string in quotes.
pub fn push_text(out: &mut Vec<u8>, text: &str) {
    if is_plain(text) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        out.extend_from_slice(plain_text(text).as_bytes());
    }
}

/// Returns whether a string needs no escapes.
fn is_plain(text: &str) -> bool {
    // The fold has no early exit, so that the compiler can vectorise it.
    !text.bytes().fold(false, |is_escaped, byte| is_escaped | (byte < b' ') | (byte == b'"') | (byte == b'\\'))
}

/// Maximum nesting of a value that becomes part of events, records and notifications. Parsers refuse 128 levels.
pub(crate) const MAX_DEPTH: usize = 64;

/// Checks the nesting of a value.
pub(crate) fn check_depth(value: &RawJson) -> Result<(), String> {
    if value.slice().depth() > MAX_DEPTH {
        return Err(format!("it is nested more than {MAX_DEPTH} levels deep"));
    }
    Ok(())
}

/// Compact text, or with `{:#}` indented text.
impl std::fmt::Display for RawJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slice = self.slice();
        f.write_str(&if f.alternate() { slice.pretty() } else { slice.compact() })
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
            return Box::<RawValue>::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom);
        }
        let text = String::deserialize(deserializer)?;
        RawValue::from_string(text).map(Self).map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for RawJson {
    fn schema_name() -> Cow<'static, str> {
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

#[cfg(test)]
mod tests;
