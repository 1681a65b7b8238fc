//! Request parsing and validation: path, query and body.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Uri, header};
use futures::StreamExt;
use kafleet_model::json::{JsonError, RawJson, short_reason};
use kafleet_model::query::Mistake;
use kafleet_model::task::id::{check_type, clip};
use kafleet_model::task::parse_time;
use kafleet_model::units::duration::Millis;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;

use super::problem::{ApiError, Code};
use crate::service::context::RequestContext;
use crate::state::{Api, BODY_BUDGET_KIB};

/// Deadline for receiving a body.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
/// Maximum wait for memory for a body.
const MEMORY_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of an oversized body to read and discard, so that the client receives the error response.
const MAX_DISCARDED: usize = 32 << 20;

/// Query parameter.
pub(crate) struct Parameter {
    pub name: &'static str,
    pub description: &'static str,
    /// JSON Schema, as text.
    pub schema: &'static str,
}

/// Authorized request, from which the arguments of a service are [read](super::input::Input).
pub(crate) struct ApiRequest {
    pub context: RequestContext,
    /// Parameters of the path that have not been read.
    pub segments: std::vec::IntoIter<String>,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Memory budget of the body.
    pub memory: Option<OwnedSemaphorePermit>,
}

/// Parses a JSON object; errors carry the pointer of the invalid field. Values that are kept as text have no white space.
pub fn read_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    // serde would accept an array as the field values in order.
    if text.trim_ascii_start().starts_with(b"[") {
        return Err(ApiError::new(Code::BadField, "expected an object, found an array").pointer(""));
    }
    let document = RawJson::parse(text).map_err(|error| unreadable(&error))?.into_compact();
    let mut reader = serde_json::Deserializer::from_str(document.text());
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let pointer = pointer(error.path());
        parse_error(error.inner(), pointer)
    })
}

/// Parses an optional document; `null` is none.
pub(crate) fn read_json_or_default<T: DeserializeOwned + Default>(text: &[u8]) -> Result<T, ApiError> {
    match text.trim_ascii() {
        b"" | b"null" => Ok(T::default()),
        text => read_json(text),
    }
}

/// Error for a text that is not JSON, or has more than one meaning.
pub(crate) fn unreadable(error: &JsonError) -> ApiError {
    match error.pointer() {
        Some(pointer) => ApiError::new(Code::AmbiguousJson, error.to_string()).pointer(pointer),
        None => ApiError::new(Code::BadJson, format!("invalid JSON: {error}")),
    }
}

pub(crate) fn parse_error(error: &serde_json::Error, pointer: String) -> ApiError {
    if !error.is_data() {
        return ApiError::new(Code::BadJson, format!("invalid JSON: {error}"));
    }
    let reason = short_reason(error);
    let code = if reason.starts_with("unknown field") { Code::UnknownField } else { Code::BadField };
    ApiError::new(code, reason).pointer(pointer)
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        let name = match segment {
            Segment::Seq { index } => index.to_string(),
            Segment::Map { key } => key.replace('~', "~0").replace('/', "~1"),
            Segment::Enum { variant } => variant.clone(),
            Segment::Unknown => continue,
        };
        pointer.push('/');
        pointer.push_str(&name);
    }
    pointer
}

/// Query parameters; only known ones are accepted.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn read(uri: &Uri, parameters: &[&Parameter]) -> Result<Self, ApiError> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| ApiError::new(Code::BadParameter, format!("malformed query: {error}")))?
            .0;
        for (n, (name, value)) in pairs.iter().enumerate() {
            if !parameters.iter().any(|parameter| parameter.name == name) {
                return Err(unknown_parameter(name, parameters));
            }
            if value.is_empty() || value.contains('\u{fffd}') {
                return Err(bad_parameter(name, "the value must be non-empty UTF-8"));
            }
            if pairs[..n].iter().any(|(earlier, _)| earlier == name) {
                return Err(bad_parameter(name, "the parameter is repeated"));
            }
        }
        Ok(Self(pairs))
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn parsed<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, ApiError> {
        self.text(name)
            .map(|text| text.parse().map_err(|error: T::Err| bad_parameter(name, &error.to_string())))
            .transpose()
    }

    /// Parses a duration, also one in whole milliseconds.
    pub(crate) fn duration(&self, name: &str) -> Result<Option<Millis>, ApiError> {
        self.text(name).map(|text| Millis::parse(text).map_err(|error| bad_parameter(name, &error))).transpose()
    }

    /// Parses a time to epoch milliseconds.
    pub(crate) fn time(&self, name: &str) -> Result<Option<i64>, ApiError> {
        self.text(name).map(|text| parse_time(text).map_err(|error| bad_parameter(name, &error))).transpose()
    }

    /// Parses the name of a type.
    pub(crate) fn type_name(&self, name: &str) -> Result<Option<String>, ApiError> {
        let parse =
            |text: &str| check_type(text).map(|()| text.to_owned()).map_err(|error| bad_parameter(name, &error));
        self.text(name).map(parse).transpose()
    }

    /// Parses `from` and `to` to epoch milliseconds.
    pub(crate) fn time_range(&self) -> Result<(Option<i64>, Option<i64>), ApiError> {
        let (from_ms, to_ms) = (self.time("from")?, self.time("to")?);
        if from_ms.zip(to_ms).is_some_and(|(from_ms, to_ms)| from_ms > to_ms) {
            return Err(bad_parameter("from", "it must not be later than `to`"));
        }
        Ok((from_ms, to_ms))
    }

    /// Parses an integer within bounds.
    pub(crate) fn number(
        &self,
        name: &str,
        default: usize,
        bounds: std::ops::RangeInclusive<usize>,
    ) -> Result<usize, ApiError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().ok().filter(|number| bounds.contains(number)).ok_or_else(|| {
            bad_parameter(
                name,
                &format!("`{}` is not an integer from {} to {}", clip(text), bounds.start(), bounds.end()),
            )
        })
    }
}

fn unknown_parameter(name: &str, parameters: &[&Parameter]) -> ApiError {
    let names: Vec<String> = parameters.iter().map(|parameter| format!("`{}`", parameter.name)).collect();
    let hint = if names.is_empty() {
        "this endpoint has no query parameters".to_owned()
    } else {
        format!("this endpoint accepts {}", names.join(", "))
    };
    ApiError::new(Code::UnknownParameter, format!("unknown query parameter `{}`", clip(name))).hint(hint)
}

pub fn bad_parameter(name: &str, reason: &str) -> ApiError {
    ApiError::new(Code::BadParameter, format!("query parameter `{name}`: {reason}"))
}

/// Converts a mistake in a search.
pub fn bad_query(text: &str, mistake: Mistake) -> ApiError {
    let error = bad_parameter("q", &mistake.message).span(mistake.chars(text));
    mistake.hint.into_iter().fold(error, ApiError::hint)
}

/// Checks the content type: JSON, and NDJSON if `lines`. Other types are rejected, which also blocks cross-site form
/// posts.
pub(crate) fn check_media(headers: &HeaderMap, lines: bool) -> Result<(), ApiError> {
    let media = media(headers);
    let is_accepted = media == "application/json" || media.ends_with("+json") || (lines && is_ndjson(headers));
    if is_accepted {
        return Ok(());
    }
    let message = if media.is_empty() {
        "the body has no content type".to_owned()
    } else {
        format!("the body is `{}`", clip(&media))
    };
    let hint = if lines {
        "send `content-type: application/json` for an array, or `application/x-ndjson` for one task per line"
    } else {
        "send `content-type: application/json`"
    };
    Err(ApiError::new(Code::UnsupportedMedia, message).hint(hint))
}

/// Variant of [`check_media`] for optional bodies. A cross-site request cannot pass as empty, because browsers send
/// `Origin` with it.
pub(crate) fn check_optional_media(headers: &HeaderMap) -> Result<(), ApiError> {
    let nothing = headers.get(header::CONTENT_TYPE).is_none() && headers.get(header::ORIGIN).is_none();
    let length = headers.get(header::CONTENT_LENGTH).is_none_or(|length| length.as_bytes() == b"0");
    if nothing && length && headers.get(header::TRANSFER_ENCODING).is_none() {
        Ok(())
    } else {
        check_media(headers, false)
    }
}

/// Whether the body is NDJSON.
pub(crate) fn is_ndjson(headers: &HeaderMap) -> bool {
    matches!(media(headers).as_str(), "application/x-ndjson" | "application/ndjson" | "application/jsonl")
}

fn media(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Reads a body within the limits on size, time and total memory.
pub async fn read_body(api: &Api, headers: &HeaderMap, body: Body) -> Result<(Bytes, OwnedSemaphorePermit), ApiError> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let size = announced.unwrap_or(api.max_body).min(api.max_body);
    let memory = tokio::time::timeout(MEMORY_DEADLINE, api.body_memory.clone().acquire_many_owned(kib(size))).await;
    let Ok(Ok(mut memory)) = memory else {
        return Err(ApiError::new(Code::Overloaded, "the memory for request bodies is in use by other requests")
            .hint("send the request again later"));
    };
    let body = read_body_up_to(body, api.max_body).await.map_err(|error| {
        if error.is(Code::TooLarge) { error.hint("send less per request, or raise `api.max_body`") } else { error }
    })?;
    // A body of unknown length had reserved memory for the maximum.
    let surplus = memory.num_permits().saturating_sub(kib(body.len()) as usize);
    drop(memory.split(surplus));
    Ok((body, memory))
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024).min(BODY_BUDGET_KIB)).unwrap_or(u32::MAX)
}

/// Reads a body within the limits on size and time.
pub async fn read_body_up_to(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let late =
        |_| ApiError::new(Code::BodyTimeout, format!("the body was not received within {} s", BODY_DEADLINE.as_secs()));
    tokio::time::timeout(BODY_DEADLINE, collect(body, limit)).await.map_err(late)?
}

async fn collect(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut chunks = body.into_data_stream();
    let mut bytes = Vec::new();
    let mut received = 0;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| ApiError::new(Code::BadRequest, format!("the body ended early: {error}")))?;
        received += chunk.len();
        if received <= limit {
            bytes.extend_from_slice(&chunk);
        } else if received > limit + MAX_DISCARDED {
            break;
        } else {
            bytes = Vec::new();
        }
    }
    if received > limit {
        return Err(ApiError::new(Code::TooLarge, format!("the body is larger than {limit} bytes")));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read errors matter")]
    struct Fields {
        #[serde(default)]
        count: u32,
        #[serde(default)]
        size: u64,
        #[serde(default)]
        name: String,
        #[serde(default)]
        tags: Vec<String>,
    }

    #[test]
    fn flaws_of_values_name_the_value_and_what_is_permitted() {
        for (text, pointer, expected) in [
            (r#"{"count": -1}"#, "/count", "expected a whole number from 0 to 4294967295, found integer `-1`"),
            (
                r#"{"count": 4294967296}"#,
                "/count",
                "expected a whole number from 0 to 4294967295, found integer `4294967296`",
            ),
            (r#"{"size": 1.5}"#, "/size", "expected a whole number of at least 0, found floating point `1.5`"),
            (r#"{"name": 1}"#, "/name", "expected a string, found integer `1`"),
            (r#"{"tags": "a at line 1"}"#, "/tags", "expected an array, found string \"a at line 1\""),
            (r#"{"nam": 1}"#, "/nam", "unknown field `nam`, expected one of `count`, `size`, `name`, `tags`"),
        ] {
            let problem = read_json::<Fields>(text.as_bytes()).unwrap_err().document();
            assert!(problem.detail.contains(expected), "{text}: {}", problem.detail);
            assert!(!problem.detail.contains("column"), "{text}: {}", problem.detail);
            assert_eq!(problem.pointer.as_deref(), Some(pointer), "{text}");
        }
    }
}
