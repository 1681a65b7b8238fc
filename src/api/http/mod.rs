//! HTTP surface: routing, request parsing, problems, authentication, OpenAPI, connections.

pub(crate) mod answer;
pub(crate) mod auth;
pub(crate) mod input;
pub(crate) mod openapi;
pub(crate) mod ops;
pub mod problem;
pub(crate) mod request;
pub(crate) mod router;
pub(crate) mod routes;
#[cfg(debug_assertions)]
mod self_check;
pub(crate) mod serve;
