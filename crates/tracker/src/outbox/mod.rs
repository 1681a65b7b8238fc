//! Publishes the timers and effects that the fold has stored, exactly once each.

mod control_records;
mod deferrals;
mod deferred_records;
pub(crate) mod entry;
pub(crate) mod fan_in;
pub mod notification;
mod original_record;
pub(crate) mod planner;
pub(crate) mod relay;
pub(crate) mod subtree;
pub(crate) mod task_records;
mod unwritable;
pub(crate) mod withdrawals;
pub(crate) mod worker_progress;
