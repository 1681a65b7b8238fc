//! Permits for attempts: slots in the processes of a pool.

use std::sync::Arc;

use kafleet_handlers::context::Restart;
use kafleet_handlers::permit::{Permit, PermitGrant, PermitSource, Sharing};
use kafleet_handlers::{AnswerFuture, Capabilities, Context, Failure, Handler, InChild, ParamsError};
use kafleet_model::json::RawJson;
use kafleet_model::worker_status::AppCapacity;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::blame::is_to_blame;
use super::slots::{Claim, ProcessId};
use super::{AppPool, ProcessHandle};
use crate::capacity::SlotKind;
use crate::session::{AttemptAnswer, StuckCounter};

/// Runs the attempts of one type in the processes of an app.
pub struct AppHandler(Arc<TypePermits>);

/// Source of the permits of one type.
struct TypePermits {
    pool: Arc<AppPool>,
    slot_kind: SlotKind,
    stuck: StuckCounter,
}

/// Attempt that waits for a slot.
pub(super) struct WaitingAttempt {
    permit: oneshot::Sender<Permit>,
    pool: Arc<AppPool>,
    slot_kind: SlotKind,
    stuck: StuckCounter,
}

/// Free slot of a process that is reserved for an attempt, or in which the attempt runs.
struct Lease {
    pool: Arc<AppPool>,
    id: ProcessId,
    slot_kind: SlotKind,
    process: Option<Arc<ProcessHandle>>,
    /// An attempt has been sent and not been answered.
    is_running: bool,
}

/// Permit for one attempt.
struct LeasePermit {
    lease: Mutex<Option<Lease>>,
    stuck: StuckCounter,
}

impl AppHandler {
    /// Creates the handler of one type of the app, whose attempts take capacity of this kind.
    pub fn new(pool: Arc<AppPool>, slot_kind: SlotKind) -> Self {
        Self(Arc::new(TypePermits { pool, slot_kind, stuck: StuckCounter::default() }))
    }
}

impl Handler for AppHandler {
    /// Waits for a slot within the attempt. A worker takes a permit before.
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let permits = self.0.clone();
        let params = params.clone();
        Ok(Box::pin(async move {
            let permit = match permits.acquire(Sharing::Shared) {
                PermitGrant::Now(permit) => Some(permit),
                PermitGrant::Later(permit) => permit.await.ok(),
            };
            let permit = permit.ok_or_else(|| Failure::retry("the app has been stopped"))?;
            let attempt = permit.run(&params, cx).map_err(|error| Failure::dead(error.to_string()))?;
            attempt.await
        }))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            is_silent: true,
            in_child: InChild::Never,
            stuck: Some(self.0.stuck.0.clone()),
            permits: Some(self.0.clone()),
            ..Capabilities::default()
        }
    }
}

impl PermitSource for TypePermits {
    fn acquire(&self, sharing: Sharing) -> PermitGrant {
        let claim = Claim { sharing, slot_kind: self.slot_kind };
        let mut state = self.pool.state.lock();
        if let Some(id) = state.table.take_slot(claim) {
            drop(state);
            return PermitGrant::Now(self.pool.permit(id, self.slot_kind, self.stuck.clone()));
        }
        let (permit, receiver) = oneshot::channel();
        state.table.retain_waiting(|waiting| !waiting.permit.is_closed());
        let waiting =
            WaitingAttempt { permit, pool: self.pool.clone(), slot_kind: self.slot_kind, stuck: self.stuck.clone() };
        let granted = state.table.wait(claim, waiting);
        drop(state);
        if sharing == Sharing::Quarantined {
            self.pool.suspects.notify_one();
        }
        self.pool.hand_out(granted);
        PermitGrant::Later(receiver)
    }

    fn runtime(&self) -> Option<Handle> {
        Some(self.pool.runtime().clone())
    }

    fn capacity(&self) -> Option<AppCapacity> {
        Some(self.pool.app_capacity(self.slot_kind))
    }

    fn down_reason(&self) -> Option<String> {
        let error = self.pool.down_reason()?;
        Some(format!("the app `{}`: {error}", self.pool.name()))
    }
}

impl AppPool {
    /// Creates the permit for a slot that has been taken.
    fn permit(self: &Arc<Self>, id: ProcessId, slot_kind: SlotKind, stuck: StuckCounter) -> Permit {
        let process = self.state.lock().process(id);
        let lease = Lease { pool: self.clone(), id, slot_kind, process, is_running: false };
        Arc::new(LeasePermit { lease: Mutex::new(Some(lease)), stuck })
    }

    /// Passes slots on to waiting attempts. The pool must not be locked: a lease whose receiver was dropped is returned to it.
    pub(super) fn hand_out(&self, granted: Vec<(ProcessId, WaitingAttempt)>) {
        for (id, waiting) in granted {
            let permit = waiting.pool.permit(id, waiting.slot_kind, waiting.stuck);
            let _ = waiting.permit.send(permit);
        }
    }

    fn free(&self, lease: &Lease) {
        let freed = {
            let mut state = self.state.lock();
            if lease.is_running {
                state.close(lease.id);
                // It gets no more attempts, so it needs a successor.
                lease.process.iter().for_each(|process| process.replace.notify_one());
            }
            state.table.retain_waiting(|waiting| !waiting.permit.is_closed());
            state.table.free(lease.id, lease.slot_kind)
        };
        if let Some(process) = lease.process.as_ref().filter(|_| freed.is_finished) {
            process.finish();
        }
        self.hand_out(freed.granted);
    }
}

impl Handler for LeasePermit {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        Ok(match self.lease.lock().take() {
            Some(lease) => lease.start(params, cx, &self.stuck),
            None => Box::pin(std::future::ready(Err(Failure::retry("the permit has been used")))),
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { is_silent: true, ..Capabilities::default() }
    }
}

impl Lease {
    /// Sends the attempt at once, and returns the future of its answer.
    fn start(mut self, params: &RawJson, cx: Context, stuck: &StuckCounter) -> AnswerFuture {
        let unsent = || Err(Box::new(AttemptAnswer::unsent()));
        let started = self.process.as_ref().map_or_else(unsent, |process| process.session.start(params, &cx, stuck));
        let attempt = match started {
            Ok(attempt) => attempt,
            Err(ended) => {
                // The event that closes the process is on its way: until then its slots would be handed out again and again.
                if ended.restart == Some(Restart::Unsent) {
                    self.pool.state.lock().close(self.id);
                }
                return Box::pin(std::future::ready(ended.into_answer(&cx)));
            }
        };
        self.is_running = true;
        self.count();
        if let Some(metrics) = self.pool.metrics.get() {
            metrics.attempts.inc();
        }
        Box::pin(async move {
            let mut ended = attempt.end().await;
            self.is_running = false;
            let pool = self.pool.clone();
            drop(self);
            if ended.is_early && is_to_blame(&pool).await {
                ended.restart = Some(Restart::Blameless);
            }
            ended.into_answer(&cx)
        })
    }
}

impl Lease {
    /// Counts the attempt among those after which the process is replaced. Permits that no attempt uses do not count.
    fn count(&self) {
        if self.pool.settings.max_tasks.is_some() && self.pool.state.lock().table.count_attempt(self.id) {
            self.process.iter().for_each(|process| process.replace.notify_one());
        }
    }
}

impl Drop for Lease {
    /// Gives the slot back. After an attempt without an answer the process gets no more attempts.
    fn drop(&mut self) {
        let pool = self.pool.clone();
        pool.free(self);
    }
}
