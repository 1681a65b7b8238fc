//! Spawn hash: the same work gets the same id, whatever the order of spawning.

use std::borrow::Cow;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

use crate::model::json::RawJson;

/// Length of the hash in an id, in characters.
pub const HASH_CHARS: usize = 12;

/// First 12 characters of the lower-case base32 of SHA-256 over the type, a zero byte, and the params as compact JSON
/// with object keys sorted by bytes at every level. Test vectors: `schemas/spawn-hash.json`. Must never change.
pub fn spawn_hash(task_type: &str, params: &Value) -> String {
    hash(task_type, &Canonical::of(params))
}

/// Spawn hash from JSON text. Fails like [`RawJson::value`].
pub fn spawn_hash_of(task_type: &str, params: &RawJson) -> Result<String, serde_json::Error> {
    Ok(hash(task_type, &serde_json::from_str(params.text())?))
}

fn hash(task_type: &str, params: &Canonical<'_>) -> String {
    let mut text = Vec::with_capacity(256);
    params.write(&mut text);
    let mut sha = Sha256::new();
    sha.update(task_type.as_bytes());
    sha.update([0]);
    sha.update(&text);
    let digest = sha.finalize();
    let mut hash = data_encoding::BASE32_NOPAD.encode(&digest[..8]).to_ascii_lowercase();
    hash.truncate(HASH_CHARS);
    hash
}

/// JSON value with sorted keys, which borrows from the input where possible.
enum Canonical<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Canonical<'a>>),
    Object(Vec<(Cow<'a, str>, Canonical<'a>)>),
}

impl<'a> Canonical<'a> {
    fn of(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Number(number.clone()),
            Value::String(text) => Self::Text(text.into()),
            Value::Array(items) => Self::List(items.iter().map(Self::of).collect()),
            Value::Object(map) => Self::object(map.iter().map(|(key, value)| (key.into(), Self::of(value))).collect()),
        }
    }

    /// Creates an object; of several entries with one key the last wins.
    fn object(mut entries: Vec<(Cow<'a, str>, Self)>) -> Self {
        if !entries.is_sorted_by(|a, b| a.0 < b.0) {
            entries.reverse();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            entries.dedup_by(|later, first| later.0 == first.0);
        }
        Self::Object(entries)
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.extend_from_slice(b"null"),
            Self::Bool(true) => out.extend_from_slice(b"true"),
            Self::Bool(false) => out.extend_from_slice(b"false"),
            Self::Number(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Self::Text(text) => write_text(text, out),
            Self::List(items) => write_list(out, b'[', b']', items, Self::write),
            Self::Object(entries) => write_list(out, b'{', b'}', entries, |(key, value), out| {
                write_text(key, out);
                out.push(b':');
                value.write(out);
            }),
        }
    }
}

fn write_list<T>(
    out: &mut Vec<u8>,
    open: u8,
    close: u8,
    items: impl IntoIterator<Item = T>,
    each: impl Fn(T, &mut Vec<u8>),
) {
    out.push(open);
    for (n, item) in items.into_iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        each(item, out);
    }
    out.push(close);
}

/// Writes a JSON string. `Value` formats itself without an error case.
fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(Value::from(text).to_string().as_bytes());
}

impl<'de> Deserialize<'de> for Canonical<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

/// JSON string, borrowed unless it contains escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Canonical<'de>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Canonical::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Canonical::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Canonical::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Canonical::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(number).map_or(Canonical::Null, Canonical::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Canonical::Text(text.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Canonical::Text(text.to_owned().into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Canonical::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::with_capacity(8);
        while let Some((Key(key), value)) = map.next_entry()? {
            entries.push((key, value));
        }
        Ok(Canonical::object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the published vectors, which implementations in other languages are tested against too.
    #[test]
    fn published_vectors_hold() {
        let vectors: Value = serde_json::from_str(include_str!("../../../schemas/spawn-hash.json")).unwrap();
        for vector in vectors["vectors"].as_array().unwrap() {
            let params: Value = serde_json::from_str(vector["params"].as_str().unwrap()).unwrap();
            let hash = spawn_hash(vector["type"].as_str().unwrap(), &params);
            assert_eq!(hash, vector["hash"].as_str().unwrap(), "params {params}");
        }
    }

    /// Compares the hash of a text with that of its parsed value, for various spellings.
    #[test]
    fn text_has_the_hash_of_its_value() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in [
            "null",
            "true",
            " [ 1 , -2, 18446744073709551615, 1.0, 1e3, 1.5E-7, -0.0, 0.1 ] ",
            "\"a\\u0041\\n\\\"\\u2028/\\/\"",
            r#"{"b":1,"a":{"z":[],"y":{}},"aa":"\u00e9","é":"x"}"#,
            r#"{"a":1,"b":2,"a":3}"#,
            r#"{"a":1,"\u0061":2}"#,
            "1e400",
            "123456789012345678901234567890",
            &deep,
        ] {
            let Ok(params) = RawJson::parse(text.as_bytes()) else { continue };
            let hash = params.value().map(|value| spawn_hash("echo", &value)).ok();
            assert_eq!(spawn_hash_of("echo", &params).ok(), hash, "{text}");
        }
    }
}
