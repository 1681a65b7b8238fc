//! Apps: programs in any language that declare task types and run their attempts.
//!
//! In: an app of the configuration, and attempts of its types. Out: registered types whose attempts run in long-lived
//! processes of the app, with their results, children and output. A worker sends attempts over a socket: [`protocol`]
//! has the messages, [`session`] the exchange with one process over any stream, [`declaration`] the types that an app
//! declares, [`launch`] the start of a program, [`process`] one running process, [`pool`] all processes of an app,
//! [`register`] the registration of its types, and [`conformance`] the check of a program against the protocol.
//!
//! Invariant: an attempt that was sent to a process ends exactly once: with the answer of the app, or with the end of
//! its process. An attempt without an end would hold its slot and its partition's offset until the worker restarts.
//!
//! Read next: `protocol/mod.rs` (messages), `session/mod.rs`, `pool/mod.rs`, then `docs/app-protocol.md`.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod capacity;
mod children;
pub mod conformance;
pub mod container;
mod crash_output;
pub mod declaration;
pub mod launch;
pub mod loaded_files;
mod memory;
pub mod pool;
pub mod process;
pub mod protocol;
pub mod register;
mod send_buffer;
pub mod session;
