//! Publishes the timers and effects that the fold has stored, exactly once each.

pub(crate) mod entry;
pub(crate) mod fan_in;
pub(crate) mod notification;
pub(crate) mod planner;
pub(crate) mod relay;
pub(crate) mod subtree;
pub(crate) mod task_records;
pub(crate) mod worker_progress;
