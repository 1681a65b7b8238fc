//! Permits: capacity that several types share is reserved before a task is taken from its queue, so that no timeout runs
//! while the task waits.

use std::sync::Arc;

use kafleet_model::worker_status::AppCapacity;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Handler;

/// Reserved capacity for one attempt, as the handler that runs it. Dropped without an attempt, it becomes free.
pub type Permit = Arc<dyn Handler>;

/// Attempts with which an attempt may share a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Any other attempts.
    Shared,
    /// No other attempt.
    Alone,
    /// No other attempt, because this one may have killed a process. Few processes run such attempts at the same time.
    Quarantined,
}

/// Permit, or the request that waits for one.
pub enum PermitGrant {
    /// A permit was free.
    Now(Permit),
    /// Receives the permit in turn. Dropping it withdraws the request.
    Later(oneshot::Receiver<Permit>),
}

/// Source of permits.
pub trait PermitSource: Send + Sync {
    /// Takes a permit, or waits for one in turn.
    fn acquire(&self, sharing: Sharing) -> PermitGrant;

    /// Returns the runtime on which attempts are best dispatched, if it is another than the worker's.
    fn runtime(&self) -> Option<Handle> {
        None
    }

    /// Returns the capacity, if processes of an app have it.
    fn capacity(&self) -> Option<AppCapacity> {
        None
    }

    /// Returns the reason why no capacity has existed for some time (apps: 30 s); `None` while it exists, even if all of it is in use.
    fn down_reason(&self) -> Option<String>;
}
