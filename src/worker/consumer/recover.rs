//! A consumer that cannot go on is replaced by a new one: what it held is lost, and comes again from the group.

use std::time::Duration;

use tokio::time::Instant;

use super::{NOT_JOINED, TypeConsumer, health_part};
use crate::broker::{BrokerError, Partition};
use crate::runtime::{self, Backoff};

/// Between two tries to open a consumer, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long a turn lasts meanwhile.
const TURN: Duration = Duration::from_millis(20);
/// For a new one before the old waits are forgotten.
const PROBATION: Duration = Duration::from_secs(60);
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// When the consumer is replaced.
pub(super) struct Broken {
    next_try: Instant,
}

/// The waits of a lane whose consumers keep failing.
pub(super) struct Renewals {
    backoff: Backoff,
    last: Option<Instant>,
}

impl Default for Renewals {
    fn default() -> Self {
        Self { backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT), last: None }
    }
}

impl Renewals {
    fn next_try(&mut self, now: Instant) -> Instant {
        if self.last.is_none_or(|last| now.duration_since(last) > PROBATION) {
            self.backoff.reset();
        }
        self.last = Some(now);
        now + self.backoff.next_wait()
    }
}

impl TypeConsumer {
    /// Nothing that it was given is its own any more, and nothing can be committed.
    pub(super) fn give_up_consumer(&mut self, error: &BrokerError) {
        let (task_type, told) = (&self.parts.task_type, "the consumer cannot go on and is replaced");
        tracing::error!(%task_type, %error, "{told}");
        self.parts.health.set(&health_part(task_type), format!("{told}: {error}"));
        let held: Vec<Partition> = self.shares.iter().flatten().map(|share| share.partition.clone()).collect();
        self.lose(&held);
        self.pending_start.clear();
        (self.commit, self.commit_errors) = (None, 0);
        self.broken = Some(Broken { next_try: self.renewals.next_try(Instant::now()) });
    }

    /// A turn without a consumer. False: the worker stops.
    pub(super) async fn renew(&mut self, now: Instant) -> bool {
        self.take_completions();
        if self.stopping {
            return false;
        }
        if self.broken.as_ref().is_some_and(|broken| now < broken.next_try) {
            runtime::rest(TURN).await;
            return true;
        }
        match self.parts.broker.consumer(&self.parts.spec) {
            Ok(consumer) => {
                std::mem::replace(&mut self.parts.consumer, consumer).close(CLOSE_DEADLINE);
                self.broken = None;
                self.parts.health.set(&health_part(&self.parts.task_type), NOT_JOINED);
            }
            Err(error) => {
                self.trouble(&error);
                self.broken = Some(Broken { next_try: self.renewals.next_try(now) });
            }
        }
        true
    }
}
