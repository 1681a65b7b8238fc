//! Permits of a type whose attempts share capacity with those of other types: one is taken before a task.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use kafleet_config::Isolation;
use kafleet_handlers::TypeRegistration;
use kafleet_handlers::permit::{Permit, PermitGrant, PermitSource, Sharing};
use kafleet_model::worker_status::AppCapacity;
use tokio::sync::oneshot;

pub(super) struct Permits {
    /// `None`: attempts need no permits.
    source: Option<Arc<dyn PermitSource>>,
    /// Sharing of ordinary attempts.
    sharing: Sharing,
    ordinary: Acquisition,
    quarantined: Acquisition,
    /// Permit for the task that was taken last.
    next: Option<Permit>,
}

/// Permit that is held or requested.
#[derive(Default)]
enum Acquisition {
    #[default]
    None,
    Waiting(oneshot::Receiver<Permit>),
    Granted(Permit),
}

impl Permits {
    pub(super) fn new(registered: &TypeRegistration) -> Self {
        Self {
            source: registered.handler.capabilities().permits,
            sharing: match registered.policy.isolation {
                Isolation::None => Sharing::Shared,
                Isolation::Process => Sharing::Alone,
            },
            ordinary: Acquisition::None,
            quarantined: Acquisition::None,
            next: None,
        }
    }

    /// Acquires a permit for the next ordinary attempt. Returns false if the attempt has to wait.
    pub(super) fn acquire(&mut self) -> bool {
        Self::acquire_at(self.source.as_deref(), &mut self.ordinary, self.sharing, &mut self.next)
    }

    /// Acquires a permit for the next quarantined attempt. Returns false if the attempt has to wait.
    pub(super) fn acquire_quarantined(&mut self) -> bool {
        Self::acquire_at(self.source.as_deref(), &mut self.quarantined, Sharing::Quarantined, &mut self.next)
    }

    fn acquire_at(
        source: Option<&dyn PermitSource>,
        acquisition: &mut Acquisition,
        sharing: Sharing,
        next: &mut Option<Permit>,
    ) -> bool {
        let Some(source) = source else { return true };
        if matches!(acquisition, Acquisition::None) {
            *acquisition = match source.acquire(sharing) {
                PermitGrant::Now(permit) => Acquisition::Granted(permit),
                PermitGrant::Later(receiver) => Acquisition::Waiting(receiver),
            };
        }
        // The permit may have come at once.
        acquisition.poll(&mut Context::from_waker(futures::task::noop_waker_ref()));
        match std::mem::take(acquisition) {
            Acquisition::Granted(permit) => {
                *next = Some(permit);
                true
            }
            waiting => {
                *acquisition = waiting;
                false
            }
        }
    }

    /// Returns the capacity in the processes of the type's app.
    pub(super) fn capacity(&self) -> Option<AppCapacity> {
        self.source.as_ref()?.capacity()
    }

    /// Returns the reason why there are no permits.
    pub(super) fn down_reason(&self) -> Option<String> {
        self.source.as_ref()?.down_reason()
    }

    /// Takes the permit of the task that was taken last.
    pub(super) fn take(&mut self) -> Option<Permit> {
        self.next.take()
    }

    /// Gives back the permits that no attempt uses.
    pub(super) fn release_unused(&mut self) {
        self.next = None;
        for acquisition in [&mut self.ordinary, &mut self.quarantined] {
            if matches!(acquisition, Acquisition::Granted(_)) {
                *acquisition = Acquisition::None;
            }
        }
    }

    /// Gives back all permits, and withdraws requests.
    pub(super) fn clear(&mut self) {
        self.next = None;
        self.ordinary = Acquisition::None;
        self.quarantined = Acquisition::None;
    }

    pub(super) fn is_waiting(&self) -> bool {
        [&self.ordinary, &self.quarantined].iter().any(|acquisition| matches!(acquisition, Acquisition::Waiting(_)))
    }

    /// Completes when a permit for which the type waits has come.
    pub(super) async fn granted(&mut self) {
        poll_fn(|context| {
            let ordinary = self.ordinary.poll(context);
            if self.quarantined.poll(context) || ordinary { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Acquisition {
    /// Receives the permit. Returns whether the wait is over.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let Self::Waiting(receiver) = self else { return false };
        let Poll::Ready(permit) = receiver.poll_unpin(context) else { return false };
        *self = permit.map_or(Self::None, Self::Granted);
        true
    }
}
