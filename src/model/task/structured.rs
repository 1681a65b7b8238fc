//! CloudEvents in structured mode: one JSON document with the attributes and the params of a task.

use std::borrow::Cow;

use serde::Deserialize;

use super::{STRUCTURED, header};
use crate::model::json::RawJson;

/// Headers of a record.
pub type RecordHeaders = Vec<(String, Option<Vec<u8>>)>;

#[derive(Deserialize)]
pub(super) struct Envelope {
    pub data: Option<RawJson>,
    #[serde(flatten)]
    attributes: serde_json::Map<String, serde_json::Value>,
}

impl Envelope {
    /// Attributes as headers of a record.
    pub(super) fn headers(&self) -> impl Iterator<Item = (Cow<'_, str>, String)> {
        let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.attributes.iter().map(move |(name, value)| (header_of(name), text(value)))
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
    let attributes = envelope.headers().map(|(name, text)| (name.into_owned(), Some(text.into_bytes())));
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
