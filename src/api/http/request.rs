//! One call: its path, query and body, read and checked.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Uri, header};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;

use super::problem::{ApiError, Code};
use super::routes::Parameter;
use crate::api::Api;
use crate::model::task::id::{TaskId, clip};
use crate::model::task::{Position, parse_time};

/// How long a body may take to arrive.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
/// How long a request waits for room for its body.
const ROOM_DEADLINE: Duration = Duration::from_secs(5);
/// Of a body that is too large so much is read and thrown away, in bytes, so that the client hears why it was refused.
const THROWN_AWAY: usize = 32 << 20;

/// A request that is allowed and can be read.
pub struct ApiRequest {
    pub api: Arc<Api>,
    /// The name of its token.
    pub by: Option<Arc<str>>,
    /// The `{…}` of the path.
    pub segment: String,
    /// The second one, where there is one.
    pub name: String,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Room for the body, for as long as the call lasts.
    pub room: Option<OwnedSemaphorePermit>,
}

impl ApiRequest {
    /// The task that the path names.
    pub fn id(&self) -> Result<TaskId, ApiError> {
        TaskId::parse(&self.segment).map_err(|why| ApiError::new(Code::BadId, why.to_string()))
    }

    /// The place that the answer must include.
    pub fn after(&self) -> Result<Option<Position>, ApiError> {
        let Some(after) = self.query.parsed::<Position>("after")? else { return Ok(None) };
        let partitions = self.api.publisher.events_partitions();
        if u32::try_from(after.partition).is_ok_and(|partition| partition < partitions) {
            return Ok(Some(after));
        }
        Err(bad_parameter("after", &format!("the events topic has partitions 0 to {}", partitions.saturating_sub(1))))
    }

    /// What a stream that was cut had told last.
    pub fn last_event_id(&self) -> Option<&str> {
        self.headers.get("last-event-id")?.to_str().ok()
    }

    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        read_json(&self.body)
    }

    /// For a body that may be left out.
    pub fn json_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, ApiError> {
        if self.body.is_empty() { Ok(T::default()) } else { self.json() }
    }
}

/// Reads an object and says what is wrong with it, and where.
pub fn read_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    // Its values would be taken for those of the fields, in their order.
    if text.trim_ascii_start().starts_with(b"[") {
        return Err(ApiError::new(Code::BadField, "an array, where an object is expected").pointer(""));
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let pointer = pointer(error.path());
        misread(error.inner(), pointer)
    })?;
    reader.end().map_err(|why| misread(&why, String::new()))?;
    Ok(value)
}

pub fn misread(why: &serde_json::Error, pointer: String) -> ApiError {
    if !why.is_data() {
        return ApiError::new(Code::BadJson, format!("the body is not JSON: {why}"));
    }
    let code = if why.to_string().starts_with("unknown field") { Code::UnknownField } else { Code::BadField };
    ApiError::new(code, why.to_string()).pointer(pointer)
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path.iter() {
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

/// The query's parameters, all of them known to the call.
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn read(uri: &Uri, known: &[Parameter]) -> Result<Self, ApiError> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|why| ApiError::new(Code::BadParameter, format!("the query cannot be read: {why}")))?
            .0;
        for (n, (name, value)) in pairs.iter().enumerate() {
            if !known.iter().any(|parameter| parameter.name == name) {
                return Err(unknown_parameter(name, known));
            }
            if value.is_empty() || value.contains('\u{fffd}') {
                return Err(bad_parameter(name, "it needs a value in UTF-8"));
            }
            if pairs[..n].iter().any(|(earlier, _)| earlier == name) {
                return Err(bad_parameter(name, "it is given twice"));
            }
        }
        Ok(Self(pairs))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn parsed<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, ApiError> {
        self.text(name).map(|text| text.parse().map_err(|why: T::Err| bad_parameter(name, &why.to_string()))).transpose()
    }

    /// The times `from` and `to`, epoch milliseconds.
    pub fn time_range(&self) -> Result<(Option<i64>, Option<i64>), ApiError> {
        let time = |name| {
            let read = |text| parse_time(text).map_err(|why| bad_parameter(name, &why));
            self.text(name).map(read).transpose()
        };
        let (from_ms, to_ms) = (time("from")?, time("to")?);
        if from_ms.zip(to_ms).is_some_and(|(from_ms, to_ms)| from_ms > to_ms) {
            return Err(bad_parameter("from", "it is after `to`, so that nothing can lie between them"));
        }
        Ok((from_ms, to_ms))
    }

    /// A whole number within bounds.
    pub fn number(&self, name: &str, default: usize, bounds: std::ops::RangeInclusive<usize>) -> Result<usize, ApiError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().ok().filter(|number| bounds.contains(number)).ok_or_else(|| {
            bad_parameter(name, &format!("`{}` is not a whole number from {} to {}", clip(text), bounds.start(), bounds.end()))
        })
    }
}

fn unknown_parameter(name: &str, known: &[Parameter]) -> ApiError {
    let names: Vec<String> = known.iter().map(|parameter| format!("`{}`", parameter.name)).collect();
    let hint = if names.is_empty() { "this call has none".to_owned() } else { format!("this call has {}", names.join(", ")) };
    ApiError::new(Code::UnknownParameter, format!("the query parameter `{}` is not known", clip(name))).hint(hint)
}

pub fn bad_parameter(name: &str, why: &str) -> ApiError {
    ApiError::new(Code::BadParameter, format!("query parameter `{name}`: {why}"))
}

/// Whether a body of this content type is read: JSON, and where `lines` NDJSON too. Anything else is refused, also so
/// that no form of a web page can send tasks.
pub fn check_media(headers: &HeaderMap, lines: bool) -> Result<(), ApiError> {
    let media = media(headers);
    let known = media == "application/json" || media.ends_with("+json") || (lines && is_lines(headers));
    if known {
        return Ok(());
    }
    let what =
        if media.is_empty() { "the body has no content type".to_owned() } else { format!("the body is `{}`", clip(&media)) };
    let hint = match lines {
        true => "send `content-type: application/json` for an array, `application/x-ndjson` for one task a line",
        false => "send `content-type: application/json`",
    };
    Err(ApiError::new(Code::UnsupportedMedia, what).hint(hint))
}

/// As [`check_media`], for a body that may be left out. No page of another site can leave it out: browsers say where such
/// a request comes from.
pub fn check_optional_media(headers: &HeaderMap) -> Result<(), ApiError> {
    let nothing = headers.get(header::CONTENT_TYPE).is_none() && headers.get(header::ORIGIN).is_none();
    let length = headers.get(header::CONTENT_LENGTH).is_none_or(|length| length.as_bytes() == b"0");
    if nothing && length && headers.get(header::TRANSFER_ENCODING).is_none() { Ok(()) } else { check_media(headers, false) }
}

/// The body is NDJSON.
pub fn is_lines(headers: &HeaderMap) -> bool {
    matches!(media(headers).as_str(), "application/x-ndjson" | "application/ndjson" | "application/jsonl")
}

fn media(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

impl Api {
    /// Reads a body, within its size, its time and the room for all bodies.
    pub async fn read_body(&self, headers: &HeaderMap, body: Body) -> Result<(Bytes, OwnedSemaphorePermit), ApiError> {
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        let size = announced.unwrap_or(self.max_body).min(self.max_body);
        let room = tokio::time::timeout(ROOM_DEADLINE, self.bodies.clone().acquire_many_owned(kib(size))).await;
        let Ok(Ok(mut room)) = room else {
            return Err(ApiError::new(Code::Overloaded, "the bodies of other requests take all the room").hint("try again"));
        };
        let read = tokio::time::timeout(BODY_DEADLINE, collect(body, self.max_body));
        let late = |_| ApiError::new(Code::BodyTimeout, format!("the body took longer than {} s", BODY_DEADLINE.as_secs()));
        let body = read.await.map_err(late)??;
        // A body of unknown size has taken room for the largest.
        let surplus = room.num_permits().saturating_sub(kib(body.len()) as usize);
        drop(room.split(surplus));
        Ok((body, room))
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024).min(crate::api::BODY_BUDGET_KIB)).unwrap_or(u32::MAX)
}

async fn collect(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut chunks = body.into_data_stream();
    let mut all = Vec::new();
    let mut seen = 0;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|why| ApiError::new(Code::BadRequest, format!("the body broke off: {why}")))?;
        seen += chunk.len();
        if seen <= limit {
            all.extend_from_slice(&chunk);
        } else if seen > limit + THROWN_AWAY {
            break;
        } else {
            all = Vec::new();
        }
    }
    if seen > limit {
        return Err(ApiError::new(Code::TooLarge, format!("the body is larger than {limit} bytes"))
            .hint("send less at once, or raise `api.max_body`"));
    }
    Ok(all.into())
}
