//! Writes shared by several handlers: validation, idempotency, leases, transactions.

pub(crate) mod idempotency;
pub(crate) mod lease;
pub(crate) mod transaction;
pub(crate) mod validate;
