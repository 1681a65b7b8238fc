//! Routes of health, metrics and the API description.

use super::route::{ResponseBody, Route, open, probe};
use crate::api::handlers::ops;
use crate::api::http::problem::Code;

pub(super) static ROUTES: &[Route] = &[
    probe("/healthz", "Liveness probe", ResponseBody::AnyJson, |request| Box::pin(ops::healthz(request))),
    Route {
        problems: &[Code::NotReady],
        ..probe("/readyz", "Readiness probe", ResponseBody::AnyJson, |request| Box::pin(ops::readyz(request)))
    },
    probe("/metrics", "Metrics in the Prometheus text format", ResponseBody::Text, |request| {
        Box::pin(ops::metrics(request))
    }),
    open("/openapi.json", "OpenAPI description", ResponseBody::AnyJson, |request| Box::pin(ops::openapi(request))),
    open("/", "Web UI for `accept: text/html`, else a list of the endpoints", ResponseBody::Text, |request| {
        Box::pin(ops::index(request))
    }),
    open("/v1", "List of endpoints", ResponseBody::Text, |request| Box::pin(ops::index(request))),
];
