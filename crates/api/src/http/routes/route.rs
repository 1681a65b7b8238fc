//! Definition of a route: a path, a service, and what its signature does not say.

use axum::response::Response;
use kafleet_config::Role;

use crate::http::answer::ResponseBody;
use crate::http::input::{EndpointService, Inputs, RequestBody, ResponseFuture};
use crate::http::problem::{ApiError, Code};
use crate::http::request::{ApiRequest, Parameter};

#[derive(Clone, Copy)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

/// Success status code with its description.
pub(crate) type Success = (u16, &'static str);

/// Problems of endpoints that read.
const READ_PROBLEMS: &[Code] = &[Code::StoreUnavailable, Code::KafkaUnavailable];
/// Problems of endpoints that write.
const WRITE_PROBLEMS: &[Code] = &[
    Code::StoreUnavailable,
    Code::KafkaUnavailable,
    Code::OutcomeUnknown,
    Code::Overloaded,
    // Also without a body: a page of another site can send one.
    Code::UnsupportedMedia,
];

pub(crate) struct Route {
    pub verb: Verb,
    pub path: &'static str,
    /// Required role; `None` for public endpoints.
    pub role: Option<Role>,
    /// Accepts any `Host` even without tokens, for probes that address the pod by IP.
    pub any_host: bool,
    pub summary: &'static str,
    pub query: Vec<&'static Parameter>,
    pub request: RequestBody,
    /// The first one is that of documents without a status code of their own.
    pub successes: Vec<Success>,
    pub response: ResponseBody,
    /// Problem codes: those of the arguments, of the services behind, and of this endpoint alone.
    pub problems: Vec<Code>,
    handler: Box<dyn Fn(ApiRequest, u16) -> ResponseFuture + Send + Sync>,
}

impl Route {
    fn new<Signature, S: EndpointService<Signature>>(
        (verb, path): (Verb, &'static str),
        summary: &'static str,
        (role, success): (Option<Role>, Success),
        service: S,
    ) -> Self {
        let Inputs { query, body, problems } = S::inputs();
        Self {
            verb,
            path,
            role,
            any_host: false,
            summary,
            query,
            request: body,
            successes: vec![success],
            response: S::answer(),
            problems,
            handler: Box::new(move |request, status| service.call(request, status)),
        }
    }

    /// Requires this role.
    pub(super) fn role(self, role: Role) -> Self {
        Self { role: Some(role), ..self }
    }

    /// Sets the kinds of success.
    pub(super) fn success<const N: usize>(self, successes: [Success; N]) -> Self {
        Self { successes: successes.into(), ..self }
    }

    /// Adds problems that neither the arguments nor the services behind explain.
    pub(super) fn problems<const N: usize>(mut self, codes: [Code; N]) -> Self {
        self.problems.extend(codes);
        self
    }

    /// Removes problems of services that the endpoint does not use.
    pub(super) fn without<const N: usize>(mut self, codes: [Code; N]) -> Self {
        self.problems.retain(|code| !codes.contains(code));
        self
    }

    /// Answers a request.
    pub(crate) async fn respond(&self, request: ApiRequest) -> Result<Response, ApiError> {
        let status = self.successes.first().map_or(200, |(status, _)| *status);
        (self.handler)(request, status).await
    }

    pub(crate) const fn method(&self) -> &'static str {
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

pub(crate) const DURATION: &str = r#"{"type": "string", "pattern": "^[0-9]+ *(ms|s|m|h|d)?$"}"#;
pub(crate) const TYPE_NAME: &str = r#"{"type": "string", "pattern": "^[a-z0-9-]{1,64}$"}"#;
pub(crate) const TEXT: &str = r#"{"type": "string", "minLength": 1}"#;
pub(crate) const TIME: &str = r#"{"type": "string", "format": "date-time"}"#;

/// Route that reads.
pub(super) fn get<Signature>(
    path: &'static str,
    summary: &'static str,
    service: impl EndpointService<Signature>,
) -> Route {
    let mut route = Route::new((Verb::Get, path), summary, (Some(Role::Read), (200, "Found.")), service);
    route.problems.extend(READ_PROBLEMS);
    route
}

/// Route that writes; by default a command of operators.
fn write<Signature>(
    verb: Verb,
    path: &'static str,
    summary: &'static str,
    service: impl EndpointService<Signature>,
) -> Route {
    let success = (200, "Accepted and sent to the workers.");
    let mut route = Route::new((verb, path), summary, (Some(Role::Operate), success), service);
    route.problems.extend(WRITE_PROBLEMS);
    route
}

pub(super) fn post<Signature>(
    path: &'static str,
    summary: &'static str,
    service: impl EndpointService<Signature>,
) -> Route {
    write(Verb::Post, path, summary, service)
}

pub(super) fn put<Signature>(
    path: &'static str,
    summary: &'static str,
    service: impl EndpointService<Signature>,
) -> Route {
    write(Verb::Put, path, summary, service)
}

pub(super) fn patch<Signature>(
    path: &'static str,
    summary: &'static str,
    service: impl EndpointService<Signature>,
) -> Route {
    write(Verb::Patch, path, summary, service)
}

pub(super) fn delete<Signature>(
    path: &'static str,
    summary: &'static str,
    service: impl EndpointService<Signature>,
) -> Route {
    write(Verb::Delete, path, summary, service)
}

/// Public route.
pub(super) fn open<Signature>(
    path: &'static str,
    summary: &'static str,
    service: impl EndpointService<Signature>,
) -> Route {
    Route::new((Verb::Get, path), summary, (None, (200, "OK.")), service).problems([Code::ForbiddenHost])
}

/// Public route for probes and scrapers.
pub(super) fn probe<Signature>(
    path: &'static str,
    summary: &'static str,
    service: impl EndpointService<Signature>,
) -> Route {
    Route { any_host: true, ..Route::new((Verb::Get, path), summary, (None, (200, "OK.")), service) }
}
