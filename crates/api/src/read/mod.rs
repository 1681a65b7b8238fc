//! Reads shared by several services: read consistency, tree traversal, merged indexes, change notices, searches.
//!
//! In: ids, index pages, or a position that the answer must include. Out: records as views with the offset up to which
//! their partition is projected, or an error with a code: not found, not visible yet, store unavailable.
//!
//! Invariant: the projection is read through [`reads::Reads`] alone, whose field `store` is private to this folder.
//! Each record comes with the checkpoint of its partition, and [`coverage`] compares that with the log. Without it an
//! emptied store would pass for an empty fleet: lists would be short without a word, and an existing id would count as
//! free.
//!
//! Read next: `reads.rs`, `consistency.rs`, then `coverage.rs`.

pub mod causes;
pub mod consistency;
pub(crate) mod continuations;
pub(crate) mod coverage;
pub(crate) mod cursor;
pub(crate) mod descendants;
pub mod failed_tasks;
pub(crate) mod failure_groups;
pub(crate) mod failure_roots;
pub mod failures;
pub mod fleet_feed;
pub mod letter_counts;
pub mod mask;
pub(crate) mod merge;
pub mod notices;
pub(crate) mod own_failed;
pub(crate) mod queue_samples;
pub(crate) mod reads;
pub mod recent;
pub(crate) mod statistics;
pub mod status;
pub mod suggest;
pub(crate) mod tree_walk;
