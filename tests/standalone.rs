//! Tests that need no services: task types and their handlers, published schemas, decoders of external input.

mod apps;
mod fuzz;
mod handlers;
mod schemas;
