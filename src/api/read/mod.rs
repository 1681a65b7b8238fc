//! Reads shared by several handlers: read consistency, tree traversal, merged indexes, change notices, searches.

pub(crate) mod consistency;
pub(crate) mod coverage;
pub(crate) mod cursor;
pub mod diagram;
pub(crate) mod failed_tasks;
pub(crate) mod failures;
pub(crate) mod fleet_feed;
pub(crate) mod merge;
pub(crate) mod notices;
pub(crate) mod query;
pub(crate) mod queue_samples;
pub(crate) mod reads;
pub(crate) mod recent;
pub(crate) mod statistics;
pub(crate) mod status;
pub(crate) mod suggest;
pub(crate) mod tree_walk;
