//! Background work per partition: ticks, lost tasks, withdrawal of stale commands, consistency checks of the store.

pub(crate) mod integrity_check;
pub(crate) mod lost_tasks;
pub(crate) mod stale_commands;
pub(crate) mod ticker;
