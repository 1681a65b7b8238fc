//! Outgoing connections of handlers: permitted hosts and addresses, and secrets bound to hosts.

pub mod kept_connections;
pub(crate) mod policy;
pub(crate) mod secrets;
