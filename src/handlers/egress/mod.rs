//! Outgoing connections of handlers: hosts and addresses they may reach, and secrets bound to them.

pub(crate) mod policy;
pub(crate) mod secrets;
