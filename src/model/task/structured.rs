//! CloudEvents in structured mode: one JSON document with the attributes and the params of a task.

use std::borrow::Cow;

use super::{STRUCTURED, header};
use crate::model::json::{JsonError, JsonKind, JsonSlice, RawJson};

/// Headers of a record.
pub type RecordHeaders = Vec<(String, Option<Vec<u8>>)>;

/// Name of the member with the params.
const DATA: &str = "data";

/// Document of a structured-mode CloudEvent.
pub(super) struct Envelope(RawJson);

impl Envelope {
    pub(super) fn parse(text: &[u8]) -> Result<Self, JsonError> {
        RawJson::parse(text).map(Self)
    }

    pub(super) fn is_object(&self) -> bool {
        self.0.slice().kind() == JsonKind::Object
    }

    /// Params; `null` if there are none.
    pub(super) fn data(&self) -> RawJson {
        self.0.slice().member(DATA).map(RawJson::from).unwrap_or_default()
    }

    /// Attributes as headers of a record.
    pub(super) fn headers(&self) -> impl Iterator<Item = (String, String)> {
        let text = |value: JsonSlice<'_>| value.string().map_or_else(|| value.compact(), Cow::into_owned);
        let attributes = self.0.slice().members().filter(|(name, _)| name != DATA);
        attributes.map(move |(name, value)| (header_of(&name), text(value)))
    }
}

/// Header with the meaning of an attribute.
fn header_of(attribute: &str) -> String {
    match attribute {
        "datacontenttype" => header::CONTENT_TYPE.to_owned(),
        "traceparent" | "tracestate" => attribute.to_owned(),
        _ => format!("ce_{attribute}"),
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
    let envelope = Envelope::parse(value).ok().filter(Envelope::is_object)?;
    let attributes = envelope.headers().map(|(name, text)| (name, Some(text.into_bytes())));
    let attributes: RecordHeaders = attributes.collect();
    let is_kept = |name: &str| name != header::CONTENT_TYPE && attributes.iter().all(|(other, _)| other != name);
    let mut all: RecordHeaders = headers.iter().filter(|(name, _)| is_kept(name)).cloned().collect();
    all.extend(attributes);
    Some((all, envelope.data()))
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
