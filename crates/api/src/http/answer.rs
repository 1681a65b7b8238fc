//! Answers of services as HTTP responses.

use std::marker::PhantomData;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use super::problem::ApiError;

/// Generates the schema of a document.
pub(crate) type Describe = fn(&mut SchemaGenerator) -> Schema;

/// Response body of an endpoint.
#[derive(Clone, Copy)]
pub(crate) enum ResponseBody {
    Json(Describe),
    Text,
    Bytes,
    Events,
    AnyJson,
}

/// Result of a service that can be sent to a client.
pub(crate) trait Answer: Send {
    fn body() -> ResponseBody;

    /// Converts to a response. `status`: status code of the endpoint's success.
    fn respond(self, status: u16) -> Response;
}

impl<T: Serialize + JsonSchema + Send> Answer for T {
    fn body() -> ResponseBody {
        ResponseBody::Json(|generator| generator.subschema_for::<T>())
    }

    fn respond(self, status: u16) -> Response {
        json_answer(status, &self)
    }
}

/// Document with the status code of one of several kinds of success.
pub(crate) struct WithStatus<T>(pub u16, pub T);

impl<T: Answer> Answer for WithStatus<T> {
    fn body() -> ResponseBody {
        T::body()
    }

    fn respond(self, _status: u16) -> Response {
        self.1.respond(self.0)
    }
}

/// Response that an endpoint has built itself, described as a document of type `T`.
pub(crate) struct DescribedResponse<T>(Response, PhantomData<fn() -> T>);

impl<T> DescribedResponse<T> {
    pub(crate) fn new(response: impl IntoResponse) -> Self {
        Self(response.into_response(), PhantomData)
    }
}

impl<T: Answer> Answer for DescribedResponse<T> {
    fn body() -> ResponseBody {
        T::body()
    }

    fn respond(self, _status: u16) -> Response {
        self.0
    }
}

/// Response whose body is not a JSON document of one type.
macro_rules! other_bodies {
    ($($(#[$doc:meta])* $name:ident: $body:ident,)*) => {$(
        $(#[$doc])*
        pub struct $name(pub Response);

        impl Answer for $name {
            fn body() -> ResponseBody {
                ResponseBody::$body
            }

            fn respond(self, _status: u16) -> Response {
                self.0
            }
        }
    )*};
}

other_bodies! {
    /// Plain text.
    TextAnswer: Text,
    /// Bytes of any media type.
    BytesAnswer: Bytes,
    /// Stream of server-sent events.
    EventStream: Events,
    /// JSON object without a schema.
    AnyJsonAnswer: AnyJson,
}

pub fn json_answer<T: Serialize>(status: u16, document: &T) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match serde_json::to_vec(document) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot encode a response as JSON");
            ApiError::internal().into_response()
        }
    }
}
