//! Lease on a task id: one request publishes the task, and concurrent requests with the same id wait for it.
//!
//! The reservation of the id is the lease. The owner renews it while publishing. If the owner dies, the lease expires
//! and exactly one waiting request takes over.

use kafleet_config::Topology;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{Position, TaskSpec};
use kafleet_runtime::Backoff;
use kafleet_store::Store;
use kafleet_store::{LEASE_TTL, Reservation, Stage};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::idempotency::id_taken;
use crate::backends::stored;
use crate::http::problem::{ApiError, Code};
use crate::read::coverage::SETTLE_TIME;

/// Maximum wait for another request that publishes the same task. Longer than the lease of a dead owner, shorter than
/// usual client timeouts.
pub(crate) const WAIT_DEADLINE: Duration = Duration::from_secs(15);
/// Minimum and maximum poll interval of a lease held by another request.
const POLL_INTERVALS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// Renewal interval; three renewals may fail.
pub(super) const RENEW_EVERY: Duration = Duration::from_millis(LEASE_TTL.as_millis() as u64 / 4);
// After a loss of the store each lease is reserved again before ids count as free.
const _: () = assert!(RENEW_EVERY.as_millis() + 500 <= SETTLE_TIME.as_millis());
/// Maximum leases renewed or ended concurrently.
const MAX_CONCURRENT: usize = 64;

/// Exclusive right to publish a task id.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    partition: u32,
    id: TaskId,
    run: u32,
    reservation: Reservation,
    /// An earlier publish of this task ended with an unknown outcome.
    pub taken_over: bool,
}

/// Outcome of claiming a lease.
#[derive(Debug)]
pub(crate) enum Claim {
    Ours(Lease),
    /// Another request is publishing the task.
    Busy,
    Published(Position),
}

/// Outcome of a publish, recorded in its lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PublishOutcome {
    Published(Position),
    /// The task may have been written: the next request publishes again.
    InDoubt,
    /// Nothing was written; the id is free again.
    Released,
}

/// Access to the leases in the store.
#[derive(Clone)]
pub(crate) struct Leases {
    pub store: Arc<dyn Store>,
    pub topology: Arc<Topology>,
}

impl Leases {
    /// Claims the lease on the id of a task; fails if the id is reserved for a different task.
    pub(crate) async fn claim(&self, task: &TaskSpec) -> Result<Claim, ApiError> {
        let (partition, id, run) = (self.topology.partition_of(&task.id), task.id.clone(), task.run);
        let stage = Stage::Publishing { owner: uuid::Uuid::now_v7().to_string() };
        let reservation = Reservation { hash: task.hash.as_deref().unwrap_or_default().to_owned(), stage };
        let held = stored(self.store.reserve(partition, &id, run, &reservation)).await?;
        let mut lease = Lease { partition, id, run, reservation, taken_over: false };
        let Some(held) = held.filter(|held| *held != lease.reservation) else { return Ok(Claim::Ours(lease)) };
        if held.hash != lease.reservation.hash {
            return Err(id_taken(&lease.id));
        }
        match held.stage {
            Stage::Published(position) => Ok(Claim::Published(position)),
            Stage::Publishing { .. } => Ok(Claim::Busy),
            Stage::InDoubt => {
                let replaced =
                    self.store.replace_reservation(partition, &lease.id, run, &held, Some(&lease.reservation));
                lease.taken_over = stored(replaced).await?;
                Ok(if lease.taken_over { Claim::Ours(lease) } else { Claim::Busy })
            }
        }
    }

    /// Runs `work` while renewing the leases.
    pub(crate) async fn while_renewing<T>(&self, leases: &[Lease], work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            done = work => done,
            never = self.renew_forever(leases) => match never {},
        }
    }

    async fn renew_forever(&self, leases: &[Lease]) -> Infallible {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            self.renew(leases.iter()).await;
        }
    }

    pub(crate) async fn renew(&self, leases: impl Iterator<Item = &Lease>) {
        self.replace(leases.map(|lease| (lease, Some(lease.reservation.clone()))).collect()).await;
    }

    /// Records the outcomes of publishes in their leases.
    pub(crate) async fn finish(&self, leases: impl Iterator<Item = (&Lease, PublishOutcome)>) {
        let replaced = leases.map(|(lease, outcome)| {
            let stage = match outcome {
                PublishOutcome::Published(position) => Stage::Published(position),
                PublishOutcome::InDoubt => Stage::InDoubt,
                // The earlier publish may still have been written.
                PublishOutcome::Released if lease.taken_over => Stage::InDoubt,
                PublishOutcome::Released => return (lease, None),
            };
            (lease, Some(Reservation { hash: lease.reservation.hash.clone(), stage }))
        });
        self.replace(replaced.collect()).await;
    }

    /// Releases leases of tasks that were not published.
    pub(crate) async fn release(&self, leases: impl Iterator<Item = &Lease>) {
        self.finish(leases.map(|lease| (lease, PublishOutcome::Released))).await;
    }

    /// Replaces reservations, and reserves ids again whose reservations were lost with the store. A failure lets the lease
    /// expire, at worst causing a second execution.
    async fn replace(&self, reservations: Vec<(&Lease, Option<Reservation>)>) {
        let replace = |(lease, reservation): (&Lease, Option<Reservation>)| {
            let lease = lease.clone();
            async move {
                match self.replace_one(&lease, reservation.as_ref()).await {
                    Ok(true) => {}
                    Ok(false) => tracing::warn!(id = %lease.id, "lease on a task id expired during the publish"),
                    Err(error) => tracing::warn!(id = %lease.id, ?error, "cannot renew or end the lease on a task id"),
                }
            }
        };
        let replaced: Vec<_> = reservations.into_iter().map(replace).collect();
        stream::iter(replaced).buffer_unordered(MAX_CONCURRENT).collect::<()>().await;
    }
}

impl Leases {
    /// Returns false if another request holds the lease.
    async fn replace_one(&self, lease: &Lease, reservation: Option<&Reservation>) -> Result<bool, ApiError> {
        let Lease { partition, id, run, reservation: held, .. } = lease;
        let replaced = stored(self.store.replace_reservation(*partition, id, *run, held, reservation)).await?;
        match reservation {
            Some(lost) if !replaced => Ok(stored(self.store.reserve(*partition, id, *run, lost)).await?.is_none()),
            _ => Ok(replaced),
        }
    }
}

/// Poll intervals of a lease held by another request.
pub(crate) fn poll_pauses() -> Backoff {
    let [first, most] = POLL_INTERVALS;
    Backoff::new(first, most)
}

/// Returns the error of a request that timed out waiting for a concurrent submission of the same task.
pub(crate) fn in_progress(id: &TaskId) -> ApiError {
    let reason = format!("another request has been publishing `{id}` for more than {} s", WAIT_DEADLINE.as_secs());
    ApiError::new(Code::InProgress, reason)
        .hint("repeat the request with the same id: once the task is published, the response is the existing task")
        .existing(id)
}
