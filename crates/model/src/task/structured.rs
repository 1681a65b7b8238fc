//! CloudEvents in structured mode: one JSON document with the attributes and the params of a task.

use data_encoding::BASE64;

use super::id::clip;
use super::{Reject, STRUCTURED, header};
use crate::json::{JsonError, JsonKind, JsonSlice, RawJson};

/// Headers of a record.
pub type RecordHeaders = Vec<(String, Option<Vec<u8>>)>;

/// Member with the params.
const DATA: &str = "data";
/// Member with the params in base64.
const DATA_BASE64: &str = "data_base64";

/// Event in JSON, whose members are all understood.
pub(super) struct Envelope {
    data: Option<RawJson>,
    /// Attributes as headers of a record, digit by digit.
    headers: Vec<(String, String)>,
}

impl Envelope {
    pub(super) fn parse(text: &[u8]) -> Result<Self, Reject> {
        let document = RawJson::parse(text).map_err(|error| bad_event(&error, error.pointer()))?;
        if document.slice().kind() != JsonKind::Object {
            return Err(bad_event(&"it is not an object with the attributes and the data of an event", None));
        }
        let mut envelope = Self { data: None, headers: Vec::new() };
        for (name, value) in document.slice().members() {
            envelope.add(&name, value).map_err(|error| bad_event(&error, None))?;
        }
        Ok(envelope)
    }

    fn add(&mut self, name: &str, value: JsonSlice<'_>) -> Result<(), String> {
        match name {
            DATA | DATA_BASE64 if self.data.is_some() => {
                return Err(format!("it has both `{DATA}` and `{DATA_BASE64}`"));
            }
            DATA => self.data = Some(value.into()),
            DATA_BASE64 => self.data = Some(decoded(value)?),
            _ => self.headers.extend(attribute(name, value)?.map(|text| (header_of(name), text))),
        }
        Ok(())
    }

    /// Params; `null` if there are none.
    pub(super) fn data(&self) -> RawJson {
        self.data.clone().unwrap_or_default()
    }

    /// Attributes as headers of a record.
    pub(super) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }
}

fn bad_event(error: &dyn std::fmt::Display, pointer: Option<&str>) -> Reject {
    let reject = Reject::new("bad_json", format!("the value is not a CloudEvent in JSON: {error}"));
    Reject { pointer: pointer.map(str::to_owned), ..reject }
}

/// Params from the binary form of an event's data.
fn decoded(value: JsonSlice<'_>) -> Result<RawJson, String> {
    let text = value.string().ok_or_else(|| format!("`{DATA_BASE64}` is not a text"))?;
    let bytes = BASE64.decode(text.as_bytes()).map_err(|error| format!("`{DATA_BASE64}` is not base64: {error}"))?;
    RawJson::parse(&bytes).map_err(|error: JsonError| format!("`{DATA_BASE64}` is not JSON: {error}; params are JSON"))
}

/// Text of an attribute: a string, a number or a boolean, and the rules as an object. `None` for `null`, which is the
/// same as no attribute.
fn attribute(name: &str, value: JsonSlice<'_>) -> Result<Option<String>, String> {
    match value.kind() {
        JsonKind::String => Ok(value.string().map(|text| text.into_owned())),
        JsonKind::Null => Ok(None),
        JsonKind::Object if name == "policy" => Ok(Some(value.text().to_owned())),
        JsonKind::Object | JsonKind::Array => Err(format!(
            "the attribute `{}` is a list or an object: attributes are texts, numbers or booleans",
            clip(name)
        )),
        JsonKind::Bool | JsonKind::Number => Ok(Some(value.text().to_owned())),
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
    let envelope = Envelope::parse(value).ok()?;
    let attributes = envelope.headers().map(|(name, text)| (name.to_owned(), Some(text.as_bytes().to_vec())));
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
        let (read_headers, params) = unwrap_structured(&structured, text.as_bytes()).unwrap();
        let read_headers: Vec<(&str, &str)> = read_headers
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
        let (mut sorted, _) = (read_headers, expected.sort_unstable());
        sorted.sort_unstable();
        assert_eq!((sorted, params.text()), (expected, "{\"n\":1}"));
        assert!(unwrap_structured(&headers("application/json"), text.as_bytes()).is_none());
        assert!(unwrap_structured(&structured, b"{").is_none());
        assert!(unwrap_structured(&Vec::new(), text.as_bytes()).is_none());
    }
}
