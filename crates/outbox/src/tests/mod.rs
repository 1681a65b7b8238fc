//! Tests of the crate: one suite for all tables, and the relay under faults.

mod conformance;
mod relay;
mod services;
mod tables;
