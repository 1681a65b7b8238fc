//! HTTP surface: routing, authentication, request parsing, problems, OpenAPI, connections.
//!
//! In: a request. The [`router`] finds its line in the table ([`routes`]), checks host, token and query, and reads the
//! body; [`input`] reads the arguments of the service from it. Out: the result as JSON, text, bytes or a stream of
//! events ([`answer`]), or a [`problem`] with a stable code. [`openapi`] describes the same table.
//!
//! Invariant: the body of an endpoint is read only after host, token and query have been accepted, and within a memory
//! budget that all requests share. Otherwise clients without a token could fill the memory of the process.
//!
//! Read next: `router.rs`, `input.rs`, then `routes/route.rs`.

pub mod answer;
pub mod auth;
pub(crate) mod input;
pub(crate) mod openapi;
pub(crate) mod ops;
pub mod problem;
pub mod request;
pub(crate) mod router;
pub mod routes;
#[cfg(debug_assertions)]
mod self_check;
pub(crate) mod serve;
