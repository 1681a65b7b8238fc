//! CloudEvents in structured mode: one JSON document with the attributes and the params of a task.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use data_encoding::BASE64;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::id::clip;
use super::{STRUCTURED, header};
use crate::model::json::RawJson;

/// Headers of a record.
pub type RecordHeaders = Vec<(String, Option<Vec<u8>>)>;

/// Event in JSON, whose members are all understood.
pub(super) struct Envelope {
    pub data: Option<RawJson>,
    /// Attributes as the texts of headers, digit by digit.
    attributes: Vec<(String, String)>,
}

impl Envelope {
    /// Attributes as headers of a record.
    pub(super) fn headers(&self) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
        self.attributes.iter().map(|(name, text)| (header_of(name), text.as_str()))
    }
}

impl<'de> Deserialize<'de> for Envelope {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(EnvelopeVisitor)
    }
}

struct EnvelopeVisitor;

impl<'de> Visitor<'de> for EnvelopeVisitor {
    type Value = Envelope;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object with the attributes and the data of an event")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Envelope, M::Error> {
        let mut envelope = Envelope { data: None, attributes: Vec::new() };
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let value: RawJson = map.next_value()?;
            let is_data = matches!(name.as_str(), "data" | DATA_BASE64);
            if is_data && envelope.data.is_some() {
                return Err(M::Error::custom("it has both `data` and `data_base64`, or one of them twice"));
            }
            match name.as_str() {
                "data" => envelope.data = Some(value),
                DATA_BASE64 => envelope.data = Some(decoded(&value).map_err(M::Error::custom)?),
                _ if !seen.insert(name.clone()) => {
                    return Err(M::Error::custom(format_args!("the attribute `{}` occurs twice", clip(&name))));
                }
                _ => {
                    let text = attribute(&name, &value).map_err(M::Error::custom)?;
                    envelope.attributes.extend(text.map(|text| (name, text)));
                }
            }
        }
        Ok(envelope)
    }
}

const DATA_BASE64: &str = "data_base64";

/// Params from the binary form of an event's data.
fn decoded(value: &RawJson) -> Result<RawJson, String> {
    let text: String = serde_json::from_str(value.text()).map_err(|_| format!("`{DATA_BASE64}` is not a text"))?;
    let bytes = BASE64.decode(text.as_bytes()).map_err(|why| format!("`{DATA_BASE64}` is not base64: {why}"))?;
    RawJson::parse(&bytes).map_err(|why| format!("`{DATA_BASE64}` is not JSON: {why}; params are JSON"))
}

/// Text of an attribute: a string, a number or a boolean, and the rules as an object. `None` for `null`, which is the
/// same as no attribute.
fn attribute(name: &str, value: &RawJson) -> Result<Option<String>, String> {
    let text = value.text();
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text).map(Some).map_err(|why| why.to_string()),
        Some(b'n') => Ok(None),
        Some(b'{') if name == "policy" => Ok(Some(text.to_owned())),
        Some(b'{' | b'[') => Err(format!(
            "the attribute `{}` is a list or an object: attributes are texts, numbers or booleans",
            clip(name)
        )),
        _ => Ok(Some(text.to_owned())),
    }
}

/// Header with the meaning of an attribute.
fn header_of(attribute: &str) -> Cow<'_, str> {
    match attribute {
        "datacontenttype" => header::CONTENT_TYPE.into(),
        "traceparent" | "tracestate" => attribute.into(),
        _ => format!("ce_{attribute}").into(),
    }
}

/// Media type of a content type, without its parameters.
pub(super) fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Turns a record in structured mode into one with headers, so that its fields and its params can be replaced separately.
/// Returns `None` for other records, and for one that cannot be read.
pub fn unwrap_structured(headers: &RecordHeaders, value: &[u8]) -> Option<(RecordHeaders, RawJson)> {
    let is_content_type = |(name, _): &&(String, Option<Vec<u8>>)| name == header::CONTENT_TYPE;
    let (_, content_type) = headers.iter().rfind(is_content_type)?;
    if media_type(std::str::from_utf8(content_type.as_deref()?).ok()?) != STRUCTURED {
        return None;
    }
    let envelope: Envelope = serde_json::from_slice(value).ok()?;
    let attributes = envelope.headers().map(|(name, text)| (name.into_owned(), Some(text.as_bytes().to_vec())));
    let attributes: RecordHeaders = attributes.collect();
    let is_kept = |name: &str| name != header::CONTENT_TYPE && attributes.iter().all(|(other, _)| other != name);
    let mut all: RecordHeaders = headers.iter().filter(|(name, _)| is_kept(name)).cloned().collect();
    all.extend(attributes);
    Some((all, envelope.data.unwrap_or_else(RawJson::null)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structured_record_becomes_one_with_headers() {
        let headers = |content_type: &str| {
            let headers = [("content-type", content_type), ("x-tenant", "acme"), ("ce_expires", "1h")];
            headers.map(|(name, value)| (name.to_owned(), Some(value.as_bytes().to_vec()))).to_vec()
        };
        let text =
            r#"{"id":"c","parent":"r","expires":"10m","retries":2,"data":{"n":1},"datacontenttype":"text/json"}"#;
        let structured = headers("application/CloudEvents+json; charset=utf-8");
        let (found, params) = unwrap_structured(&structured, text.as_bytes()).unwrap();
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|(name, value)| (name.as_str(), std::str::from_utf8(value.as_deref().unwrap()).unwrap()))
            .collect();
        let mut expected = vec![
            ("x-tenant", "acme"),
            ("ce_id", "c"),
            ("ce_parent", "r"),
            ("ce_expires", "10m"),
            ("ce_retries", "2"),
            ("content-type", "text/json"),
        ];
        let (mut sorted, _) = (found, expected.sort_unstable());
        sorted.sort_unstable();
        assert_eq!((sorted, params.text()), (expected, "{\"n\":1}"));
        assert!(unwrap_structured(&headers("application/json"), text.as_bytes()).is_none());
        assert!(unwrap_structured(&structured, b"{").is_none());
        assert!(unwrap_structured(&Vec::new(), text.as_bytes()).is_none());
    }
}
