//! Arguments of services, read from a request.
//!
//! An [`EndpointService`] is an async function of a [`RequestContext`] and of arguments that implement [`Input`]. The signature decides
//! what the endpoint accepts: the router reads the arguments, and `/openapi.json` describes them, with the problems that
//! each kind of argument can have.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{Position, Trace};

use super::answer::{Answer, Describe, ResponseBody};
use super::problem::{ApiError, Code};
use super::request::{ApiRequest, Parameter, bad_parameter};
use crate::service::context::{After, BodyMemory, LastEventId, MAX_PAGE, Name, PAGE, Paging, RequestContext};
use crate::write::validate::trace_of;

/// Request body of an endpoint.
#[derive(Clone, Copy)]
pub(crate) enum RequestBody {
    Nothing,
    Json(Describe),
    /// Arbitrary bytes.
    Bytes,
    /// Optional JSON.
    MaybeJson(Describe),
    /// JSON array or NDJSON of items.
    JsonOrLines(Describe),
}

/// Problems of endpoints with a body.
const BODY_PROBLEMS: &[Code] = &[Code::UnsupportedMedia, Code::TooLarge, Code::BodyTimeout, Code::Overloaded];
/// Problems of endpoints with a JSON body.
pub(super) const JSON_PROBLEMS: &[Code] = &[Code::BadJson, Code::AmbiguousJson, Code::UnknownField, Code::BadField];

/// Argument of a service.
pub(crate) trait Input: Sized + Send + 'static {
    /// Query parameters that it is read from.
    const QUERY: &'static [Parameter] = &[];
    /// Problems of requests without a valid value.
    const PROBLEMS: &'static [Code] = &[];
    /// Body that it is read from.
    const BODY: RequestBody = RequestBody::Nothing;

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError>;
}

/// Implements [`Input`] for documents that are the body of a request; for those after `optional`, an empty body is the
/// default.
macro_rules! json_bodies {
    (@body $document:ty, $kind:ident, $read:expr) => {
        impl $crate::http::input::Input for $document {
            const PROBLEMS: &'static [$crate::http::problem::Code] = $crate::http::input::JSON_PROBLEMS;
            const BODY: $crate::http::input::RequestBody =
                $crate::http::input::RequestBody::$kind(|generator| generator.subschema_for::<$document>());

            fn read(
                request: &mut $crate::http::request::ApiRequest,
            ) -> Result<Self, $crate::http::problem::ApiError> {
                $read(&request.body)
            }
        }
    };
    (required $($required:ty),*; optional $($optional:ty),*;) => {
        $(json_bodies!(@body $required, Json, $crate::http::request::read_json);)*
        $(json_bodies!(@body $optional, MaybeJson, $crate::http::request::read_json_or_default);)*
    };
}
pub(super) use json_bodies;

/// Defines an argument that is one query parameter. Its value is read by a method of `Query` from the parameter's name.
macro_rules! parameter {
    ($(#[$doc:meta])* $name:ident($value:ty) = $parameter:expr, |$query:ident, $text:ident| $read:expr) => {
        $(#[$doc])*
        struct $name($value);

        impl $crate::http::input::Input for $name {
            const QUERY: &'static [$crate::http::request::Parameter] = &[$parameter];

            fn read(
                request: &mut $crate::http::request::ApiRequest,
            ) -> Result<Self, $crate::http::problem::ApiError> {
                let ($query, $text) = (&request.query, $parameter.name);
                Ok(Self($read))
            }
        }
    };
}
pub(super) use parameter;

impl Input for Name {
    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        Ok(Self(request.segments.next().unwrap_or_default()))
    }
}

impl Input for TaskId {
    const PROBLEMS: &'static [Code] = &[Code::BadId, Code::NotFound, Code::NotVisibleYet];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let text = request.segments.next().unwrap_or_default();
        TaskId::parse(&text).map_err(|error| ApiError::new(Code::BadId, error.to_string()))
    }
}

impl Input for After {
    const QUERY: &'static [Parameter] = &[Parameter {
        name: "after",
        description: "Return only data that includes the events up to this position, for read-your-writes consistency. \
                      Waits up to 5 s.",
        schema: r#"{"type": "string", "pattern": "^[0-9]+:[0-9]+$"}"#,
    }];
    const PROBLEMS: &'static [Code] = &[Code::NotVisibleYet];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let Some(after) = request.query.parsed::<Position>("after")? else { return Ok(Self(None)) };
        let partitions = request.context.api.topology.events_partitions;
        if u32::try_from(after.partition).is_ok_and(|partition| partition < partitions) {
            return Ok(Self(Some(after)));
        }
        let last = partitions.saturating_sub(1);
        Err(bad_parameter("after", &format!("the events topic has partitions 0 to {last}")))
    }
}

pub(super) const LIMIT: Parameter = Parameter {
    name: "limit",
    description: "Page size.",
    schema: r#"{"type": "integer", "minimum": 1, "maximum": 200, "default": 50}"#,
};

impl Input for Paging {
    const QUERY: &'static [Parameter] = &[
        Parameter {
            name: "cursor",
            description: "`next` of the previous page.",
            schema: r#"{"type": "string", "minLength": 1}"#,
        },
        LIMIT,
    ];
    const PROBLEMS: &'static [Code] = &[Code::BadCursor];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let limit = request.query.number("limit", PAGE, 1..=MAX_PAGE)?;
        Ok(Self { cursor: request.query.text("cursor").map(str::to_owned), limit })
    }
}

/// Trace of the request's caller.
pub(crate) struct CallerTrace(pub Option<Arc<Trace>>);

impl Input for CallerTrace {
    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        Ok(Self(trace_of(&request.headers)))
    }
}

impl Input for LastEventId {
    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let id = request.headers.get("last-event-id").and_then(|id| id.to_str().ok());
        Ok(Self(id.map(str::to_owned)))
    }
}

/// Whether the client asks for plain text rather than JSON: the first media type of `accept`.
pub(crate) struct PrefersText(pub bool);

impl Input for PrefersText {
    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let accept = request.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let first = accept.split([',', ';']).next().unwrap_or_default();
        Ok(Self(first.trim().eq_ignore_ascii_case("text/plain")))
    }
}

/// Body of arbitrary bytes with its media type. `None`: the request names none; empty: the header is no text.
pub(crate) struct Content {
    pub media: Option<String>,
    pub bytes: Bytes,
}

impl Input for Content {
    const BODY: RequestBody = RequestBody::Bytes;

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let text = |media: &HeaderValue| media.to_str().unwrap_or_default().to_owned();
        let media = request.headers.get(header::CONTENT_TYPE).map(text);
        Ok(Self { media, bytes: std::mem::take(&mut request.body) })
    }
}

impl Input for BodyMemory {
    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        Ok(Self(request.memory.take()))
    }
}

/// Inputs of a service, for the router and the description.
pub(crate) struct Inputs {
    pub query: Vec<&'static Parameter>,
    pub body: RequestBody,
    pub problems: Vec<Code>,
}

impl Inputs {
    fn new() -> Self {
        Self { query: Vec::new(), body: RequestBody::Nothing, problems: Vec::new() }
    }

    fn with<I: Input>(mut self) -> Self {
        self.query.extend(I::QUERY);
        self.problems.extend(I::PROBLEMS);
        if !matches!(I::BODY, RequestBody::Nothing) {
            self.body = I::BODY;
            self.problems.extend(BODY_PROBLEMS);
        }
        self
    }
}

pub(crate) type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// Async function that an endpoint calls. `Signature` is the tuple of its result and its arguments.
pub(crate) trait EndpointService<Signature>: Send + Sync + 'static {
    fn inputs() -> Inputs;

    fn answer() -> ResponseBody;

    /// Reads the arguments and calls the function. `status`: status code of the endpoint's success.
    fn call(&self, request: ApiRequest, status: u16) -> ResponseFuture;
}

macro_rules! services {
    ($($input:ident)*) => {
        impl<F, Called, Found, $($input),*> EndpointService<(Found, $($input,)*)> for F
        where
            F: Fn(RequestContext, $($input),*) -> Called + Send + Sync + 'static,
            Called: Future<Output = Result<Found, ApiError>> + Send + 'static,
            Found: Answer,
            $($input: Input,)*
        {
            fn inputs() -> Inputs {
                Inputs::new()$(.with::<$input>())*
            }

            fn answer() -> ResponseBody {
                Found::body()
            }

            #[allow(non_snake_case, unused_mut, reason = "arguments are named as their types")]
            fn call(&self, mut request: ApiRequest, status: u16) -> ResponseFuture {
                $(
                    let $input = match $input::read(&mut request) {
                        Ok(input) => input,
                        Err(error) => return Box::pin(ready(Err(error))),
                    };
                )*
                let called = self(request.context, $($input),*);
                // The body has been read; its memory stays counted until the answer.
                let memory = request.memory;
                Box::pin(async move {
                    let result = called.await;
                    drop(memory);
                    Ok(result?.respond(status))
                })
            }
        }
    };
}

services!();
services!(A);
services!(A B);
services!(A B C);
services!(A B C D);
services!(A B C D E);
