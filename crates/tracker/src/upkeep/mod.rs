//! Background work per partition: ticks, lost tasks, withdrawal of stale cancels, consistency checks of the store.

pub(crate) mod integrity_check;
pub(crate) mod lost_tasks;
pub(crate) mod stale_cancels;
pub(crate) mod ticker;
