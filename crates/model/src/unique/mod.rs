//! Unique tasks: at most one task of a type and key is open at a time, decided in the order of the log.
//!
//! A producer writes only an ask, the event `asked` with the whole task. The projection compares it with the key's state
//! and decides: the task starts, it is kept until the open one has ended, or it joins the open one. All asks of a key
//! have ids with one tag ([`id`]), and the tag alone chooses the events partition, so that one owner decides about them
//! in one order. No lock and no second store take part: the same log gives the same verdicts.
//!
//! Invariant: while a task of a key is open, the projection starts no other one of it.
//!
//! Read next: [`state`] (what a key remembers, and its decisions), then `crates/model/src/projection/unique.rs`.

pub mod field;
pub mod id;
pub mod state;

pub use field::{UniqueMode, UniqueRule, UniqueSetting};
pub use state::{AskVerdict, KeyState};
