//! Definition of a route, and constructors for common kinds of routes.

use std::pin::Pin;

use axum::response::Response;
use schemars::{Schema, SchemaGenerator};

use super::errors::{FIND, OPERATE};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::{ApiRequest, Parameter};
use crate::config::Role;

pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

/// Generates the schema of a document.
pub(crate) type Describe = fn(&mut SchemaGenerator) -> Schema;

/// Request body.
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

/// Response body.
#[derive(Clone, Copy)]
pub(crate) enum ResponseBody {
    Json(Describe),
    Text,
    Bytes,
    Events,
    AnyJson,
}

/// Request handler.
pub(crate) type Handler = fn(ApiRequest) -> HandlerFuture;
pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

pub(crate) struct Route {
    pub verb: Verb,
    pub path: &'static str,
    /// Required role; `None` for public endpoints.
    pub role: Option<Role>,
    /// Accepts any `Host` even without tokens, for probes that address the pod by IP.
    pub any_host: bool,
    pub summary: &'static str,
    pub query: &'static [Parameter],
    pub request: RequestBody,
    /// Success status codes with descriptions.
    pub successes: &'static [(u16, &'static str)],
    pub response: ResponseBody,
    /// Problem codes specific to this endpoint.
    pub problems: &'static [Code],
    pub handler: Handler,
}

impl Route {
    pub(crate) fn method(&self) -> &'static str {
        match self.verb {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete => "DELETE",
        }
    }

    pub(crate) fn label(&self) -> String {
        format!("{} {}", self.method(), self.path)
    }
}

pub(crate) fn of<T: schemars::JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

pub(crate) const POSITION: &str = r#"{"type": "string", "pattern": "^[0-9]+:[0-9]+$"}"#;
pub(crate) const DURATION: &str = r#"{"type": "string", "pattern": "^[0-9]+ *(ms|s|m|h|d)?$"}"#;
pub(crate) const TYPE_NAME: &str = r#"{"type": "string", "pattern": "^[a-z0-9-]{1,64}$"}"#;
pub(crate) const TEXT: &str = r#"{"type": "string", "minLength": 1}"#;
pub(crate) const TIME: &str = r#"{"type": "string", "format": "date-time"}"#;
pub(crate) const PAGE_LIMIT: &str = r#"{"type": "integer", "minimum": 1, "maximum": 200, "default": 50}"#;

pub(crate) const AFTER: Parameter = Parameter {
    name: "after",
    description: "Return only data that includes the events up to this position, for read-your-writes consistency. \
                  Waits up to 5 s.",
    schema: POSITION,
};
pub(crate) const CURSOR: Parameter =
    Parameter { name: "cursor", description: "`next` of the previous page.", schema: TEXT };
pub(crate) const LIMIT: Parameter = Parameter { name: "limit", description: "Page size.", schema: PAGE_LIMIT };
pub(crate) const FROM_LINE: Parameter = Parameter {
    name: "from",
    description: "Number of the first line; the oldest line ever logged is 0.",
    schema: r#"{"type": "integer", "minimum": 0, "default": 0}"#,
};
pub(crate) const WAIT: Parameter = Parameter {
    name: "wait",
    description: "Wait up to this long, at most 5m, for the task to end: 200 if it has ended, 202 if not.",
    schema: DURATION,
};

/// Route that reads one task or a part of it.
pub(crate) const fn read(path: &'static str, summary: &'static str, response: ResponseBody, handler: Handler) -> Route {
    Route {
        verb: Verb::Get,
        path,
        role: Some(Role::Read),
        any_host: false,
        summary,
        query: &[AFTER],
        request: RequestBody::Nothing,
        successes: &[(200, "Found.")],
        response,
        problems: FIND,
        handler,
    }
}

/// Route of an operator command that responds with the resulting state.
pub(crate) const fn operate(
    verb: Verb,
    path: &'static str,
    summary: &'static str,
    response: ResponseBody,
    handler: Handler,
) -> Route {
    Route {
        verb,
        role: Some(Role::Operate),
        query: &[],
        successes: &[(200, "Accepted and sent to the workers.")],
        problems: OPERATE,
        ..read(path, summary, response, handler)
    }
}

/// Public route.
pub(crate) const fn open(path: &'static str, summary: &'static str, response: ResponseBody, handler: Handler) -> Route {
    let problems = &[Code::ForbiddenHost];
    Route { role: None, query: &[], successes: &[(200, "OK.")], problems, ..read(path, summary, response, handler) }
}

/// Route for probes and scrapers.
pub(crate) const fn probe(
    path: &'static str,
    summary: &'static str,
    response: ResponseBody,
    handler: Handler,
) -> Route {
    Route { any_host: true, problems: &[], ..open(path, summary, response, handler) }
}
