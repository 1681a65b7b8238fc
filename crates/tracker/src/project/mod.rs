//! Projects one events partition into its store.

pub(crate) mod partition_task;
pub mod projection;
pub(crate) mod tree_gc;
