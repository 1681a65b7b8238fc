//! Test kit: fixtures that unit tests of the crates and the tests of whole fleets share.
//!
//! In: a broker, a store or a configuration of a test. Out: the same broker and store under rules of [`faults`], the
//! addresses of Kafka and Redis or a counted skip ([`services`]), a Redis, a cluster or a fleet of processes of a test
//! ([`redis`], [`processes`]), waits on conditions ([`wait`]), events and random ones ([`events`]), and an [`oracle`]
//! that computes from the log what the store must contain.
//!
//! Invariant: the product never depends on this crate; other crates name it under `[dev-dependencies]` only. Faults and
//! `unwrap` would otherwise be in a release. A test waits with [`wait::eventually`] on a condition and never for a
//! time: a wait for a time fails on a busy machine and is too long on all others.
//!
//! Read next: `wait.rs`, `services.rs`, then `faults/mod.rs` (rules, with an example).

#![allow(missing_docs, reason = "the names of fixtures say what they are")]

pub mod events;
pub mod faults;
pub mod http;
pub mod names;
pub mod oracle;
pub mod processes;
pub mod properties;
pub mod records;
pub mod redis;
pub mod services;
pub mod topics;
pub mod wait;
