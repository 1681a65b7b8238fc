//! The lease on an id: one request publishes a task, and others that bring the same id wait for it.
//!
//! The reservation of the id is the lease. The request that holds it renews it while it publishes; one that died lets it
//! expire, and exactly one of those that wait takes over.

use std::convert::Infallible;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::idempotency::taken;
use super::validate::Draft;
use crate::api::Api;
use crate::api::backends::stored;
use crate::api::http::problem::{ApiError, Code};
use crate::model::task::Position;
use crate::model::task::id::TaskId;
use crate::runtime::Backoff;
use crate::store::{LEASE_TTL, Reservation, Stage};

/// Longest wait for another request that publishes the same task: longer than a dead one holds its lease, and shorter than
/// clients wait for an answer.
pub const WAIT_DEADLINE: Duration = Duration::from_secs(15);
/// Shortest and longest pause between two looks at a lease that another request holds.
const POLL: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// Interval of renewals: three may get lost.
pub const RENEW_EVERY: Duration = Duration::from_millis(LEASE_TTL.as_millis() as u64 / 4);
/// Leases renewed, or ended, at once.
const AT_ONCE: usize = 64;

/// An id that this request alone may publish.
#[derive(Clone, Debug)]
pub struct Lease {
    partition: u32,
    id: TaskId,
    run: u32,
    mark: Reservation,
    /// Another publish ended with an unknown outcome before.
    pub taken_over: bool,
}

/// Outcome of asking for the lease on an id.
#[derive(Debug)]
pub enum Claim {
    Ours(Lease),
    /// Another request publishes the task at this moment.
    Busy,
    Published(Position),
}

/// Outcome of a publish for its lease.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    Published(Position),
    /// It may be out: the next request publishes again.
    InDoubt,
    /// Nothing is out: the id is free.
    Released,
}

impl Api {
    /// Asks for the lease on the id of a draft; refuses where the id is reserved for another task.
    pub async fn claim(&self, draft: &Draft) -> Result<Claim, ApiError> {
        let (partition, id, run) = (self.publisher.partition_of(&draft.id), draft.id.clone(), draft.new.run);
        let stage = Stage::Publishing { owner: uuid::Uuid::now_v7().to_string() };
        let mark = Reservation { hash: draft.hash.clone(), stage };
        let held = stored(self.store.reserve(partition, &id, run, &mark)).await?;
        let mut lease = Lease { partition, id, run, mark, taken_over: false };
        let Some(held) = held.filter(|held| *held != lease.mark) else { return Ok(Claim::Ours(lease)) };
        if held.hash != draft.hash {
            return Err(taken(draft));
        }
        match held.stage {
            Stage::Published(position) => Ok(Claim::Published(position)),
            Stage::Publishing { .. } => Ok(Claim::Busy),
            Stage::InDoubt => {
                let replaced = self.store.replace_reservation(partition, &lease.id, run, &held, Some(&lease.mark));
                lease.taken_over = stored(replaced).await?;
                Ok(if lease.taken_over { Claim::Ours(lease) } else { Claim::Busy })
            }
        }
    }

    /// Does the work while the leases are kept alive.
    pub async fn renewing<T>(&self, leases: &[Lease], work: impl Future<Output = T>) -> T {
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

    pub async fn renew(&self, leases: impl Iterator<Item = &Lease>) {
        self.replace(leases.map(|lease| (lease, Some(lease.mark.clone()))).collect()).await;
    }

    /// Ends leases as their publishes ended.
    pub async fn end(&self, leases: impl Iterator<Item = (&Lease, Ending)>) {
        let replaced = leases.map(|(lease, ending)| {
            let stage = match ending {
                Ending::Published(position) => Stage::Published(position),
                Ending::InDoubt => Stage::InDoubt,
                // What an earlier request may have published stays in doubt.
                Ending::Released if lease.taken_over => Stage::InDoubt,
                Ending::Released => return (lease, None),
            };
            (lease, Some(Reservation { hash: lease.mark.hash.clone(), stage }))
        });
        self.replace(replaced.collect()).await;
    }

    /// Gives up leases whose tasks were not published.
    pub async fn release(&self, leases: impl Iterator<Item = &Lease>) {
        self.end(leases.map(|lease| (lease, Ending::Released))).await;
    }

    /// A lease that cannot be replaced expires: that may cost a second execution, and nothing else.
    async fn replace(&self, marks: Vec<(&Lease, Option<Reservation>)>) {
        let replace = |(lease, mark): (&Lease, Option<Reservation>)| {
            let lease = lease.clone();
            async move {
                let Lease { partition, id, run, mark: held, .. } = &lease;
                match stored(self.store.replace_reservation(*partition, id, *run, held, mark.as_ref())).await {
                    Ok(true) => {}
                    Ok(false) => tracing::warn!(%id, "the lease on a task's id expired while the task was published"),
                    Err(why) => tracing::warn!(%id, ?why, "the lease on a task's id could not be renewed or ended"),
                }
            }
        };
        let replaced: Vec<_> = marks.into_iter().map(replace).collect();
        stream::iter(replaced).buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

/// Pauses between looks at a lease that another request holds.
pub fn poll_pauses() -> Backoff {
    let [first, most] = POLL;
    Backoff::new(first, most)
}

/// Refuses a request that has waited long enough for the one that publishes the same task.
pub fn in_progress(id: &TaskId) -> ApiError {
    let why = format!("another request has been publishing `{id}` for more than {} s", WAIT_DEADLINE.as_secs());
    ApiError::new(Code::InProgress, why)
        .hint("repeat the request with the same id: once the task is published, the answer is the existing task")
        .existing(id)
}
