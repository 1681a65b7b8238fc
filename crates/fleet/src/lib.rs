//! Topics of a fleet: what all roles write to Kafka and read from it beside the events that they own.
//!
//! In: tasks to publish ([`publish`]), commands of operators and reports of processes ([`control`]), questions about
//! dead letters ([`dead_letters`]), and the types whose topics must exist ([`topics`]). Out: acknowledged records with
//! their positions, the state of the control topic, pages of dead letters, and created or corrected topics.
//!
//! Invariant: the worker, the tracker and the API write and read a record by the same code, which is here. A header or
//! a key of the control topic with a second encoder would be written by one role and misread by another, without an
//! error. This crate therefore knows no role and no store: it has the forms of records, not the decisions about tasks.
//!
//! Read next: `publish/mod.rs` (a task as record and event), `control/mod.rs` (a compacted topic as shared state), then
//! `topics/settings.rs` (each kind of topic, with the reasons for its settings).

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod control;
pub mod dead_letters;
pub mod publish;
pub mod topics;
