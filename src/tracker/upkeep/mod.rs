//! Background work beside each partition's fold: ticks, lost tasks, cancels that are no longer needed, comparison of the store.

pub(crate) mod lost_tasks;
pub(crate) mod stale_cancels;
pub(crate) mod store_audit;
pub(crate) mod ticker;
pub(crate) mod withdrawals;
