//! Attempts of one type, from the call of the handler to the end of the attempt.
//!
//! Most attempts are short: an attempt is polled once in place, and becomes a task of its own only if it is then pending.
//! A first poll that ends an attempt costs no task, no timer and no wake-up; many slow ones delay other attempts, so that the
//! next attempts are not polled in place ([`InlinePolling`]).
//!
//! Invariant: an attempt that has started ends once, here ([`AttemptBegin`]) or through the channel of
//! [`RunningAttempts`], and until then it occupies a slot ([`SlotLoad`]). A lost end would occupy the slot forever and
//! hold back its partition. An attempt is therefore stopped by its token alone, and its end arrives as that of any other.
//!
//! The consequence of an end for the task is decided in `failure_policy.rs`; this module publishes no events.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kafleet_config::TypePolicy;
use kafleet_fleet::control::ControlState;
use kafleet_handlers::batch::check_number;
use kafleet_handlers::blocking_pool::BlockingPool;
use kafleet_handlers::context::{AttemptStart, CancelReason, TypeEnv};
use kafleet_handlers::permit::Permit;
use kafleet_handlers::task_labels::TaskLabels;
use kafleet_handlers::{Answer, BatchAnswer, BatchContext, Capabilities, Context, Failure, Handler, Item, ParamsError};
use kafleet_model::json::RawJson;
use kafleet_telemetry::otel::AttemptSpan;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::admission::SlotLoad;
use super::failure_policy::time_left;
use super::inline::{Clock, InlinePolling};
use super::running::{EndMessage, RunningAttempt, RunningAttempts, RunningCall};
use super::{DispatcherDeps, LONGEST_WAIT};
use crate::attempt::output::OutputBuffer;
use crate::attempt::publish_children::{AttemptOutput, OutputPublisher};
use crate::attempt::{self, AttemptEnd, TimeLimits};
use crate::child::ChildPool;
use crate::decode::InFlight;
use crate::heartbeat::{MAX_RUNNING, RunningTask};
use crate::type_metrics::TypeGauges;

/// Starts attempts and keeps those that run.
pub(super) struct Attempts {
    handler: Arc<dyn Handler>,
    capabilities: Capabilities,
    /// Child processes for suspects. `None` if the handler cannot crash the worker.
    quarantine: Option<ChildPool>,
    env: Arc<TypeEnv>,
    policy: Arc<TypePolicy>,
    publisher: Arc<OutputPublisher>,
    /// Time to stop after a cancellation.
    grace: Duration,
    /// Attempts have time limits.
    has_limits: bool,
    /// Time after which an attempt publishes its `started` event.
    started_delay: Duration,
    inline: InlinePolling,
    gauges: TypeGauges,
    /// Slots held by attempts that have ended but do not return.
    stuck: usize,
    pub running: RunningAttempts,
}

/// Attempt that is about to start.
pub(super) struct PreparedAttempt {
    pub running: RunningAttempt,
    handler: Arc<dyn Handler>,
    is_silent: bool,
    deadline: Instant,
}

/// Start of an attempt.
pub(super) enum AttemptBegin {
    /// The attempt runs in a task of its own.
    Pending,
    /// The attempt has ended in its first poll, after this time.
    Ended(RunningAttempt, Answer, Duration),
    /// The handler panicked before the first poll.
    Panicked(RunningAttempt, Failure),
    /// The handler has refused the params.
    Refused(RunningAttempt, ParamsError),
}

impl Attempts {
    pub(super) fn new(
        deps: &mut DispatcherDeps,
        policy: &Arc<TypePolicy>,
        output: &Arc<OutputBuffer>,
        gauges: &TypeGauges,
    ) -> Self {
        let publisher = deps.events.publisher().clone();
        Self {
            handler: deps.registered.handler.clone(),
            capabilities: deps.registered.handler.capabilities(),
            quarantine: deps.children.take(),
            env: Arc::new(TypeEnv {
                task_type: deps.task_type.clone(),
                worker: deps.events.worker.clone(),
                state: deps.state.clone(),
                sink: output.clone(),
                limits: deps.limits,
                blocking_pool: BlockingPool::new(&deps.task_type),
            }),
            policy: policy.clone(),
            publisher: Arc::new(OutputPublisher { publisher, max_output: deps.config.max_output }),
            grace: deps.config.grace.into(),
            has_limits: !deps.config.no_timeouts,
            started_delay: deps.config.started_delay.into(),
            inline: InlinePolling::default(),
            gauges: gauges.clone(),
            stuck: 0,
            running: RunningAttempts::new(),
        }
    }

    pub(super) fn set_policy(&mut self, policy: &Arc<TypePolicy>) {
        self.policy = policy.clone();
    }

    pub(super) fn has_quarantine(&self) -> bool {
        self.quarantine.is_some()
    }

    /// Attempts that occupy slots, with those that have ended but do not return.
    pub(super) fn load(&self) -> SlotLoad {
        SlotLoad { attempts: self.running.slots() + self.stuck, suspects: self.running.suspects() }
    }

    /// Counts the attempts that have ended but do not return.
    pub(super) fn count_stuck(&mut self) {
        let of_handler = self.capabilities.stuck.as_ref().map_or(0, |stuck| stuck.load(Ordering::SeqCst));
        let stuck = of_handler + self.env.blocking_pool.stuck();
        if stuck == self.stuck {
            return;
        }
        self.stuck = stuck;
        self.gauges.set_stuck_slots(stuck);
        if stuck > 0 {
            let task_type = &self.env.task_type;
            tracing::warn!(%task_type, stuck, "slots are held by ended attempts whose blocking calls do not return");
        }
    }

    /// Returns whether attempts have ended that do not return. They report no end.
    pub(super) fn has_stuck(&self) -> bool {
        self.stuck > 0
    }

    /// Creates the context of an attempt. Its handler is its permit, a process of the quarantine, or that of the type.
    pub(super) fn prepare(
        &self,
        in_flight: Box<InFlight>,
        permit: Option<Permit>,
        span: Option<Box<AttemptSpan>>,
        clock: &Clock,
    ) -> PreparedAttempt {
        let (started_at, now) = (clock.now, clock.now_ms());
        let policy = in_flight.task.policy.as_deref();
        let deadline = started_at + self.timeout(&in_flight, now);
        let cx = Context::begin(AttemptStart {
            id: in_flight.task.id.clone(),
            run: in_flight.task.run,
            number: in_flight.progress.attempts + 1,
            deadline: Some(deadline.into_std()),
            trace: in_flight.attempt_trace(span.as_deref()),
            asof: in_flight.task.asof,
            labels: policy.and_then(TaskLabels::of),
            headers: in_flight.record.kept_headers.clone(),
            env: self.env.clone(),
        });
        cx.hidden.set(&in_flight.task.params, &self.policy.mask);
        // Permits and child processes are silent.
        let other = permit.or_else(|| self.in_quarantine(&in_flight));
        let is_silent = other.is_some() || self.capabilities.is_silent;
        let handler = other.unwrap_or_else(|| self.handler.clone());
        let running = RunningAttempt {
            in_flight,
            cx,
            host: None,
            batch_size: None,
            stop: None,
            started_at,
            started_at_ms: now,
            announced_start: false,
            cancelled: None,
            span,
        };
        PreparedAttempt { running, handler, is_silent, deadline }
    }

    /// Time after which an attempt is stopped: its timeout, or the rest of the task's total timeout.
    fn timeout(&self, in_flight: &InFlight, now: i64) -> Duration {
        if !self.has_limits {
            return LONGEST_WAIT;
        }
        let of_task = in_flight.task.policy.as_deref().and_then(|policy| policy.timeout);
        let left = time_left(&self.policy, in_flight, now).unwrap_or(Duration::MAX);
        Duration::from(of_task.unwrap_or(self.policy.timeout)).min(left)
    }

    /// Time without a sign of life after which an attempt is stopped.
    fn stall_timeout(&self, in_flight: &InFlight) -> Option<Duration> {
        let of_task = in_flight.task.policy.as_deref().and_then(|policy| policy.stall_timeout);
        of_task.or(self.policy.stall_timeout).filter(|_| self.has_limits).map(Duration::from)
    }

    /// A suspect that has crashed a process gets one that has run no other task.
    fn in_quarantine(&self, in_flight: &InFlight) -> Option<Arc<dyn Handler>> {
        let (children, suspect) = (self.quarantine.as_ref()?, in_flight.suspect?);
        Some(Arc::new(if suspect.crashes > 0 { children.fresh() } else { children.clone() }))
    }

    /// Calls the handler, and polls the attempt inline if the type's attempts are short.
    pub(super) fn start(&mut self, prepared: PreparedAttempt, clock: &mut Clock) -> AttemptBegin {
        let PreparedAttempt { mut running, handler, is_silent, deadline } = prepared;
        let span = attempt::span(is_silent, &running.cx);
        let mut future = match span.in_scope(|| attempt::start(&*handler, &running.in_flight.task.params, &running.cx))
        {
            Err(failure) => return AttemptBegin::Panicked(running, failure),
            Ok(Err(error)) => return AttemptBegin::Refused(running, error),
            Ok(Ok(future)) => future,
        };
        if self.inline.admit() {
            let polled = span.in_scope(|| attempt::poll_once(future));
            let took = clock.advance();
            self.inline.record(took);
            match polled {
                Ok(answer) => return self.end_inline(running, answer, took),
                Err(pending) => future = pending,
            }
        }
        let stall = self.stall_timeout(&running.in_flight);
        let limits = TimeLimits { deadline, stall, grace: self.grace };
        let (cx, stop) = (running.cx.clone(), running.stop_token());
        self.spawn(running, attempt::run(future, cx, stop, limits).instrument(span));
        AttemptBegin::Pending
    }

    /// Calls the handler with several tasks, in a task of its own.
    pub(super) fn start_call(&mut self, prepared: Vec<PreparedAttempt>, permit: Option<Permit>, started_at: Instant) {
        let limit = self.policy.timeout.into();
        let longest = started_at + if self.has_limits { limit } else { LONGEST_WAIT };
        let deadline = prepared.iter().map(|prepared| prepared.deadline).min().unwrap_or(longest);
        let is_silent = permit.is_some() || self.capabilities.is_silent;
        let handler = permit.unwrap_or_else(|| self.handler.clone());
        let mut attempts: Vec<RunningAttempt> = prepared.into_iter().map(|prepared| prepared.running).collect();
        let item_of =
            |running: &RunningAttempt| Item { params: running.in_flight.task.params.clone(), cx: running.cx.clone() };
        let items: Vec<_> = attempts.iter().map(item_of).collect();
        let contexts = items.iter().map(|item| item.cx.clone()).collect();
        let output_of = |running: &mut RunningAttempt| AttemptOutput {
            cx: running.cx.clone(),
            announcement: running.announcement(),
            stop: running.stop_token(),
        };
        let outputs: Vec<_> = attempts.iter_mut().map(output_of).collect();
        let cx = BatchContext::begin(contexts, Some(deadline.into_std()), self.env.clone());
        let stall = self.policy.stall_timeout.filter(|_| self.has_limits).map(Duration::from);
        let limits = TimeLimits { deadline, stall, grace: self.grace };
        let stop = CancellationToken::new();
        let announce_at = started_at + self.started_delay;
        let id = self.running.insert_call(attempts, stop.clone(), started_at, announce_at);
        self.gauges.set_in_flight(self.running.slots());
        let span = attempt::span_of_call(is_silent, &cx);
        let call = call_handler(handler, items, cx.clone());
        let rest = attempt::run(Box::pin(call), cx, stop, limits).instrument(span);
        let (publisher, ends) = (self.publisher.clone(), self.running.end_sender());
        kafleet_runtime::spawn(async move {
            let end = publisher.publish_call(rest.await, outputs).await;
            // Fails only after an abort: otherwise the dispatcher waits for every call.
            let _ = ends.send(EndMessage::Call(id, end));
        });
    }

    /// Ends an attempt that was answered inline. Children are published from a task of its own.
    fn end_inline(&mut self, running: RunningAttempt, answer: Answer, took: Duration) -> AttemptBegin {
        if answer.is_ok() {
            // Ended before the checks that follow, so that no output is added after them.
            running.cx.end();
            if self.publisher.has_outputs(&running.cx) {
                self.spawn(running, std::future::ready(AttemptEnd::Answered(answer)));
                return AttemptBegin::Pending;
            }
        }
        AttemptBegin::Ended(running, answer.and_then(|output| self.publisher.check_size(output)), took)
    }

    /// Runs the rest of an attempt in a task of its own, and publishes its children.
    fn spawn(&mut self, mut running: RunningAttempt, rest: impl Future<Output = AttemptEnd> + Send + 'static) {
        let (cx, stop) = (running.cx.clone(), running.stop_token());
        let publisher = self.publisher.clone();
        let announcement = running.announcement();
        let announce_at = running.started_at + self.started_delay;
        let ends = self.running.end_sender();
        let id = self.running.insert(running, announce_at);
        self.gauges.set_in_flight(self.running.slots());
        kafleet_runtime::spawn(async move {
            let end = publisher.publish(rest.await, &cx, announcement, &stop).await;
            // Fails only after an abort: otherwise the dispatcher waits for every attempt.
            let _ = ends.send(EndMessage::Attempt(id, end));
        });
    }

    /// Removes an attempt that has ended.
    pub(super) fn remove(&mut self, id: u64) -> Option<RunningAttempt> {
        let running = self.running.remove(id)?;
        self.gauges.set_in_flight(self.running.slots());
        Some(running)
    }

    /// Removes a call that has ended, with its attempts.
    pub(super) fn remove_call(&mut self, id: u64) -> Option<(RunningCall, Vec<RunningAttempt>)> {
        let removed = self.running.remove_call(id)?;
        self.gauges.set_in_flight(self.running.slots());
        Some(removed)
    }

    /// Stops the selected attempts. Their outcomes no longer count.
    pub(super) fn stop(&self, is_selected: impl Fn(&InFlight) -> bool) {
        self.running.iter().filter(|running| is_selected(&running.in_flight)).for_each(RunningAttempt::stop);
        self.running.stop_unneeded_calls();
    }

    /// Stops attempts whose tasks are cancelled; they end within the grace period.
    pub(super) fn stop_cancelled(&mut self, state: &ControlState) {
        if state.cancels().len() == 0 {
            return;
        }
        for running in self.running.iter_mut().filter(|running| running.cancelled.is_none()) {
            running.cancelled = state.cancels_task(&running.in_flight.task).map(Box::new);
            if running.cancelled.is_some() {
                running.cx.interruption.set_cancel_reason(CancelReason::Cancelled);
                running.stop_token();
                running.stop();
            }
        }
        self.running.stop_unneeded_calls();
    }

    /// Attempts for the status of the worker.
    pub(super) fn describe(&self) -> Vec<RunningTask> {
        let describe = |running: &RunningAttempt| RunningTask {
            id: running.in_flight.task.id.to_string(),
            task_type: self.env.task_type.to_string(),
            attempt: running.attempt(),
            started_ms: running.started_at_ms,
        };
        self.running.iter().take(MAX_RUNNING).map(describe).collect()
    }
}

/// Calls a handler with several tasks. A panic in the call is one of the future.
async fn call_handler(handler: Arc<dyn Handler>, items: Vec<Item<RawJson>>, cx: BatchContext) -> BatchAnswer {
    let number = items.len();
    check_number(handler.run_batch(items, cx).await?, number)
}
