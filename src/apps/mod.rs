//! Apps: programs in any language that declare task types and run their attempts.
//!
//! A worker keeps long-lived processes of an app and sends them attempts over a socket. [`protocol`] has the messages,
//! [`session`] the exchange with one process over any stream, [`declaration`] the types that an app declares, [`launch`]
//! the start of a program, [`process`] one running process, [`pool`] all processes of an app, [`register`] the
//! registration of its types, and [`conformance`] the check of a program against the protocol.

mod children;
pub mod conformance;
pub mod container;
pub mod declaration;
pub mod launch;
mod memory;
pub mod pool;
pub mod process;
pub mod protocol;
pub mod register;
mod send_buffer;
pub mod session;
