//! Documents that describe a task: their own fields, and in the same JSON object the fields of a policy that belong to
//! the document's scope.
//!
//! The policy is read field by field and not with `#[serde(flatten)]`, which buffers the values and therefore loses the
//! JSON pointers of errors.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};
use serde_json::{Value, json};

use super::Policy;
use super::field::{Field, Scope};

/// Receiver of the policy fields of a document.
pub(crate) trait FieldReader {
    fn read_field<'de, M: MapAccess<'de>>(&mut self, field: &'static Field, map: &mut M) -> Result<(), M::Error>;
}

impl FieldReader for Policy {
    fn read_field<'de, M: MapAccess<'de>>(&mut self, field: &'static Field, map: &mut M) -> Result<(), M::Error> {
        self.read(field, map)
    }
}

/// Reads a policy field by field: `#[serde(flatten)]` would decode the values of options. Unknown fields are ignored.
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(PolicyVisitor)
    }
}

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = Policy;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("options of a task")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Policy, M::Error> {
        let mut policy = Policy::default();
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            match &*name {
                "not_before_ms" => policy.not_before_ms = map.next_value()?,
                "expires_at_ms" => policy.expires_at_ms = map.next_value()?,
                "block_when_done" => policy.rules.block_when_done = map.next_value()?,
                name => match Policy::field(name) {
                    Some(field) => policy.read(field, &mut map)?,
                    None => drop(map.next_value::<IgnoredAny>()?),
                },
            }
        }
        Ok(policy)
    }
}

/// Implements serialization of a document with a scope and a flattened field for the policy. The document itself
/// derives both with `#[serde(remote = "Self")]`.
#[doc(hidden)]
#[macro_export]
macro_rules! document {
    ($document:ty, $scope:expr, $policy:ident) => {
        impl serde::Serialize for $document {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                <$document>::serialize(self, to)
            }
        }

        impl<'de> serde::Deserialize<'de> for $document {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let mut fields = Default::default();
                let reader = $crate::task::document::DocumentReader::new(from, $scope, &mut fields);
                let document = <$document>::deserialize(reader)?;
                Ok(Self { $policy: fields, ..document })
            }
        }
    };
}
pub use document;

/// Deserializer of a document that gives the fields of the policy to their reader, and its own fields to the document.
pub struct DocumentReader<'a, D, R> {
    from: D,
    scope: Scope,
    reader: &'a mut R,
}

impl<'a, D, R> DocumentReader<'a, D, R> {
    /// Reads the fields of `scope` with `reader`, and all others from `from`.
    pub fn new(from: D, scope: Scope, reader: &'a mut R) -> Self {
        Self { from, scope, reader }
    }
}

impl<'de, D: Deserializer<'de>, R: FieldReader> Deserializer<'de> for DocumentReader<'_, D, R> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        own: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { from, scope, reader } = self;
        from.deserialize_struct(name, own, DocumentVisitor { own, scope, reader, visitor })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.from.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct DocumentVisitor<'a, R, V> {
    own: &'static [&'static str],
    scope: Scope,
    reader: &'a mut R,
    visitor: V,
}

impl<'de, R: FieldReader, V: Visitor<'de>> Visitor<'de> for DocumentVisitor<'_, R, V> {
    type Value = V::Value;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(to)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<V::Value, M::Error> {
        let Self { own, scope, reader, visitor } = self;
        visitor.visit_map(OwnFields { map, names: Names { own, scope }, reader, seen: Vec::new() })
    }
}

/// Own fields of a document. Fields of the policy are read on the way.
struct OwnFields<'a, M, R> {
    map: M,
    names: Names,
    reader: &'a mut R,
    seen: Vec<&'static str>,
}

impl<'de, M: MapAccess<'de>, R: FieldReader> MapAccess<'de> for OwnFields<'_, M, R> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, M::Error> {
        loop {
            match self.map.next_key_seed(self.names)? {
                None => return Ok(None),
                Some(Name::Own(name)) => {
                    let name: StrDeserializer<'_, M::Error> = name.into_deserializer();
                    return seed.deserialize(name).map(Some);
                }
                Some(Name::Ignored) => drop(self.map.next_value::<IgnoredAny>()?),
                Some(Name::Policy(field)) if self.seen.contains(&field.name) => {
                    return Err(de::Error::duplicate_field(field.name));
                }
                Some(Name::Policy(field)) => {
                    self.seen.push(field.name);
                    self.reader.read_field(field, &mut self.map)?;
                }
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, M::Error> {
        self.map.next_value_seed(seed)
    }
}

enum Name {
    Own(&'static str),
    Policy(&'static Field),
    /// Field of a response of a newer API.
    Ignored,
}

/// Names of a document's fields.
#[derive(Clone, Copy)]
struct Names {
    own: &'static [&'static str],
    scope: Scope,
}

impl<'de> DeserializeSeed<'de> for Names {
    type Value = Name;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Name, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Names {
    type Value = Name;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a field")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Name, E> {
        if let Some(own) = self.own.iter().find(|own| **own == name) {
            return Ok(Name::Own(own));
        }
        if let Some(field) = Policy::field(name).filter(|field| field.is_in(self.scope)) {
            return Ok(Name::Policy(field));
        }
        if self.scope == Scope::Status {
            return Ok(Name::Ignored);
        }
        let accepted = Policy::fields().filter(|field| field.is_in(self.scope)).map(|field| field.name);
        let names: Vec<String> = self.own.iter().copied().chain(accepted).map(|name| format!("`{name}`")).collect();
        Err(E::custom(format_args!("unknown field `{name}`, expected one of {}", names.join(", "))))
    }
}

/// Schema of the fields of a policy that belong to a scope.
pub struct FieldsOf<const SCOPE: u8>;

/// Schema of the fields of a creation.
pub type CreateFields = FieldsOf<{ Scope::Create as u8 }>;
pub(crate) type ContinueFields = FieldsOf<{ Scope::Continue as u8 }>;
pub(crate) type ScheduleFields = FieldsOf<{ Scope::Schedule as u8 }>;
/// Schema of the fields of a change.
pub type ChangeFields = FieldsOf<{ Scope::Change as u8 }>;
type StatusFields = FieldsOf<{ Scope::Status as u8 }>;

impl<const SCOPE: u8> JsonSchema for FieldsOf<SCOPE> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("{:?}Fields", Scope::of(SCOPE)).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let scope = Scope::of(SCOPE);
        let mut schema = Policy::json_schema(generator);
        schema.remove("description");
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.retain(|name, _| Policy::field(name).is_some_and(|field| field.is_in(scope)));
            if scope == Scope::Change {
                properties.values_mut().for_each(allow_null);
            }
            for field in Policy::fields() {
                let default = Policy::default().value(field).value().unwrap_or_default();
                if let Some(property) = properties.get_mut(field.name).filter(|_| default.is_string()) {
                    property["default"] = default;
                }
            }
        }
        schema
    }
}

/// Fields of a task's policy that its status has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShownFields(pub Policy);

impl FieldReader for ShownFields {
    fn read_field<'de, M: MapAccess<'de>>(&mut self, field: &'static Field, map: &mut M) -> Result<(), M::Error> {
        self.0.read_field(field, map)
    }
}

impl Deref for ShownFields {
    type Target = Policy;
    fn deref(&self) -> &Policy {
        &self.0
    }
}

impl Serialize for ShownFields {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        for field in Policy::fields().filter(|field| field.is_in(Scope::Status)) {
            self.0.write(field, &mut map)?;
        }
        map.end()
    }
}

impl JsonSchema for ShownFields {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        StatusFields::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = StatusFields::json_schema(generator);
        let properties = schema.get("properties").cloned().unwrap_or_default();
        let may_be_null = |field: &Field| !properties[field.name]["type"].is_string();
        let is_written = generator.contract().is_serialize();
        let required: Vec<&str> = Policy::fields()
            .filter(|field| field.is_in(Scope::Status))
            .filter(|field| is_written || !may_be_null(field))
            .map(|field| field.name)
            .collect();
        schema.insert("required".to_owned(), json!(required));
        schema
    }
}

/// Allows `null`, which clears a field.
fn allow_null(schema: &mut Value) {
    if let Some(name) = schema.get("type").and_then(Value::as_str) {
        schema["type"] = json!([name, "null"]);
    }
}

#[cfg(test)]
mod tests {
    use crate::schedule::Template;
    use crate::task::continuation::Continuation;

    /// Returns the path of the invalid field and the reason.
    fn error(text: &str) -> (String, String) {
        let mut reader = serde_json::Deserializer::from_str(text);
        let error = serde_path_to_error::deserialize::<_, Template>(&mut reader).unwrap_err();
        (error.path().to_string(), error.inner().to_string())
    }

    #[test]
    fn errors_have_the_path_of_the_invalid_field() {
        for (text, path, cause) in [
            (r#"{"type": "a", "retries": "x"}"#, "retries", "invalid type: string"),
            (
                r#"{"type": "a", "then": [{"type": "b"}, {"type": "c", "timeout": -1}]}"#,
                "then[1].timeout",
                "a duration such as",
            ),
            (r#"{"type": "a", "then": [{"type": "b", "creator": "c"}]}"#, "then[0].creator", "unknown field `creator`"),
            (r#"{"type": "a", "total_timeout": "1s"}"#, "total_timeout", "unknown field `total_timeout`"),
            (r#"{"type": "a", "rules": {}}"#, "rules", "unknown field `rules`, expected one of `type`, `params`"),
            (r#"{"type": "a", "policy": {}}"#, "policy", "unknown field `policy`"),
            (r#"{"type": "a", "name": "n", "name": "m"}"#, "", "duplicate field `name`"),
            (r#"{"type": "a", "tags": null}"#, "tags", "invalid type: null"),
            ("{}", "", "missing field `type`"),
            ("3", "", "invalid type: integer `3`, expected struct Template"),
        ] {
            let (pointer, reason) = error(text);
            assert!(pointer.trim_start_matches('.') == path && reason.contains(cause), "{text}: {pointer}: {reason}");
        }
    }

    #[test]
    fn documents_are_flat() {
        let text = r#"{"on":"ended","type":"a","name":"n","retries":2,"then":[{"on":"succeeded","type":"b"}]}"#;
        let then: Continuation = serde_json::from_str(text).unwrap();
        assert_eq!(
            (then.policy.name.as_deref(), then.policy.retries, then.policy.rules.then.len()),
            (Some("n"), Some(2), 1)
        );
        let again = serde_json::to_value(&then).unwrap();
        assert_eq!(again, serde_json::from_str::<serde_json::Value>(text).unwrap());
    }
}
