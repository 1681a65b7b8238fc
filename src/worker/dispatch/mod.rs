//! One type's dispatcher: gives work to slots, and says what became of it.

mod commands;
mod control;
mod dead_letters;
mod failure_policy;
mod limits;
mod outcome;
mod quarantine;
mod timers;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

pub use commands::Command;
use dead_letters::burial_of;
use failure_policy::Failures;
use limits::Limits;
use quarantine::{Quarantine, isolate};

use super::attempt::output::{FLUSH_INTERVAL, OutputBuffer};
use super::attempt::publish_children;
use super::attempt::publish_children::Deps;
use super::attempt::{self, Bounds, Ended};
use super::child::ChildPool;
use super::completions::{Completions, DeliveryTag};
use super::dead_letter::DeadLetterWriter;
use super::decode::{InFlight, Input};
use super::events::EventWriter;
use super::log_throttle::LogThrottle;
use super::result_batch::ResultBatch;
use super::type_metrics::TypeMetrics;
use crate::config::WorkerConfig;
use crate::control::{ControlWatch, Verdict};
use crate::handlers::blocking_pool::Threads;
use crate::handlers::context::{AttemptStart, TypeEnv};
use crate::handlers::{Answer, AnswerFuture, Context, Registered, SharedState};
use crate::model::event::{Announcement, Event, Kind, Success};
use crate::model::json::RawJson;
use crate::model::retry::RetryPolicy;
use crate::runtime::{self, Health, now_ms};

/// Work handed over at once.
pub const HAND_OUT: usize = 512;
/// Dead letters being written at once.
const BURIALS: usize = 64;
/// A first poll that takes longer than this was work for a task of its own. One may have been held up by others; where more
/// than one in so many are slow, a number of attempts are not tried on the spot.
const SLOW_POLL: Duration = Duration::from_micros(100);
const ONE_SLOW_IN: u32 = 8;
const NOT_ON_THE_SPOT: u32 = 256;
/// No clock counts further: whoever asks for more is asked again then.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 86_400);

/// What a dispatcher is made of.
pub struct DispatcherDeps {
    pub task_type: Arc<str>,
    pub registered: Registered,
    pub state: SharedState,
    pub config: WorkerConfig,
    pub events: EventWriter,
    pub dead_letters: DeadLetterWriter,
    pub inbox: Arc<Completions>,
    pub work: mpsc::Receiver<Vec<Input>>,
    pub commands: mpsc::UnboundedReceiver<Command>,
    pub meter: TypeMetrics,
    pub control: Arc<ControlWatch>,
    pub cells: Option<ChildPool>,
    pub health: Health,
}

pub struct Dispatcher {
    parts: DispatcherDeps,
    output: Arc<OutputBuffer>,
    scene: Arc<TypeEnv>,
    deps: Arc<Deps>,
    queue: VecDeque<Input>,
    /// Attempts under way, by number.
    running: FxHashMap<u64, Running>,
    next_attempt: u64,
    /// Tasks that wait for a time: a retry, or `not before`.
    sleeping: BinaryHeap<Reverse<Sleeping>>,
    /// Keys with a task under way, and the tasks behind it.
    keys: FxHashMap<u64, VecDeque<Box<InFlight>>>,
    closed_assignments: FxHashSet<u32>,
    cancelled_assignments: FxHashSet<u32>,
    ended: mpsc::UnboundedReceiver<(u64, Ended)>,
    ending: mpsc::UnboundedSender<(u64, Ended)>,
    /// Attempts that run long enough to deserve a `started`, in the order of their beginning.
    unstarted: VecDeque<(Instant, u64)>,
    next_flush: Option<Instant>,
    burials: Arc<Semaphore>,
    /// Fires with the dispatcher's end: what is not buried by then is its successor's.
    gone: CancellationToken,
    not_on_the_spot: u32,
    slowness: u32,
    /// Attempts that are over and still hold their slots.
    stuck: usize,
    quarantine: Quarantine,
    failures: Failures,
    failures_logged: LogThrottle,
    /// What is done on the spot, for a moment.
    outbox: ResultBatch,
    clock: Clock,
    limits: Limits,
    /// The state of the control topic that is obeyed.
    heeded: u64,
    scratch: Vec<u8>,
    open: bool,
    /// Some tasks that it has announced are given back.
    unfinished: bool,
}

/// The time, read once for each attempt that is done on the spot: the end of one is the beginning of the next.
struct Clock {
    read: Instant,
    read_ms: i64,
    now: Instant,
}

impl Clock {
    fn read() -> Self {
        let now = Instant::now();
        Self { read: now, read_ms: now_ms(), now }
    }

    /// Goes on to the present; returns by how much.
    fn advance(&mut self) -> Duration {
        let before = std::mem::replace(&mut self.now, Instant::now());
        self.now.duration_since(before)
    }

    fn now_ms(&self) -> i64 {
        self.read_ms + self.now.duration_since(self.read).as_millis() as i64
    }
}

struct Running {
    held: Box<InFlight>,
    cx: Context,
    /// Fires when the attempt's outcome no longer counts. None while it is tried on the spot.
    stop: Option<CancellationToken>,
    began: Instant,
    began_ms: i64,
    /// `started` is written.
    started: bool,
    /// Its task is cancelled, and it has been told to stop.
    cancelled: Option<Box<Verdict>>,
}

impl Running {
    fn stoppable(&mut self) -> CancellationToken {
        self.stop.get_or_insert_default().clone()
    }

    fn stop(&self) {
        self.stop.iter().for_each(CancellationToken::cancel);
    }
}

struct Sleeping {
    until: Instant,
    held: Box<InFlight>,
}

impl Dispatcher {
    pub fn new(mut parts: DispatcherDeps) -> Self {
        let (ending, ended) = mpsc::unbounded_channel();
        let publisher = parts.events.publisher().clone();
        let output = Arc::new(OutputBuffer::new(publisher, parts.events.worker.clone()));
        let scene = Arc::new(TypeEnv {
            task_type: parts.task_type.clone(),
            worker: parts.events.worker.clone(),
            state: parts.state.clone(),
            outlet: output.clone(),
            threads: Threads::new(&parts.task_type),
        });
        let deps = Arc::new(Deps {
            publisher: parts.events.publisher().clone(),
            task_type: parts.task_type.clone(),
            publish_results: parts.registered.policy.publish_results,
            max_output: parts.config.max_output,
        });
        let quarantine = Quarantine::new(isolate(&mut parts), parts.registered.policy.slots());
        let limits = Limits::new(&parts.registered.policy);
        let mut dispatcher = Self {
            limits,
            heeded: 0,
            parts,
            output,
            scene,
            deps,
            queue: VecDeque::new(),
            running: FxHashMap::default(),
            next_attempt: 0,
            sleeping: BinaryHeap::new(),
            keys: FxHashMap::default(),
            closed_assignments: FxHashSet::default(),
            cancelled_assignments: FxHashSet::default(),
            ended,
            ending,
            unstarted: VecDeque::new(),
            next_flush: None,
            burials: Arc::new(Semaphore::new(BURIALS)),
            gone: CancellationToken::new(),
            not_on_the_spot: 0,
            slowness: 0,
            stuck: 0,
            quarantine,
            failures: Failures::default(),
            failures_logged: LogThrottle::new(),
            outbox: ResultBatch::default(),
            clock: Clock::read(),
            scratch: Vec::with_capacity(1024),
            open: true,
            unfinished: false,
        };
        dispatcher.set_limits();
        dispatcher
    }

    /// Runs until its lane is gone and nothing is under way. True: it has given tasks back of which it had said that this
    /// worker has them.
    pub async fn run(mut self) -> bool {
        while self.open || !self.running.is_empty() {
            let more = self.start_what_fits().await;
            let due = self.next_due();
            if due.is_some_and(|due| due <= Instant::now()) {
                // Also where there is always something else to do.
                self.do_due().await;
            }
            tokio::select! {
                biased;
                Some(command) = self.parts.commands.recv() => self.obey(command).await,
                Some((number, ended)) = self.ended.recv() => self.attempt_ended(number, ended).await,
                work = self.parts.work.recv(), if self.open && self.queue.len() < HAND_OUT => match work {
                    Some(work) => self.receive(work).await,
                    None => self.close(),
                },
                () = sleep_until(due) => self.do_due().await,
                // A turn is over, not the work: the others have been looked at, go on.
                () = std::future::ready(()), if more => {}
            }
        }
        self.gone.cancel();
        self.parts.meter.flush();
        self.unfinished
    }

    async fn receive(&mut self, work: Vec<Input>) {
        self.queue.extend(work);
        if self.limits.is_paused() || self.failures.stopped.is_some() {
            // Nothing is taken from the queue: who is cancelled is found there.
            self.cancel_queued().await;
        }
    }

    /// The lane has left: what runs ends now, its results belong to a successor.
    fn close(&mut self) {
        self.open = false;
        self.queue.clear();
        self.sleeping.clear();
        self.keys.clear();
        self.limits.clear();
        self.quarantine.waiting.clear();
        self.running.values().for_each(Running::stop);
    }

    // ---- starting

    /// Starts at most one turn's worth. True: there is more that could start now.
    async fn start_what_fits(&mut self) -> bool {
        self.clock = Clock::read();
        let more = self.start_some().await;
        self.outbox.send(&self.parts.events).await;
        if more {
            // Commands and ended attempts get their turn.
            self.parts.meter.flush();
            tokio::task::yield_now().await;
        }
        more
    }

    async fn start_some(&mut self) -> bool {
        let stuck = self.look_at_stuck();
        let mut turns = 0;
        while self.running.len() + stuck < self.limits.open_slots()
            && self.failures.stopped.is_none()
            && let Some(work) = self.next_work()
        {
            match work {
                Input::Task(held) => self.take(held).await,
                Input::Invalid(rejected) => self.reject(rejected),
            }
            if self.outbox.is_due(self.clock.now) {
                self.outbox.send(&self.parts.events).await;
                self.clock = Clock::read();
            }
            turns += 1;
            if turns >= HAND_OUT {
                return true;
            }
        }
        false
    }

    /// How many slots are held by attempts which are over and cannot be stopped.
    fn look_at_stuck(&mut self) -> usize {
        let stuck = self.parts.registered.handler.stuck() + self.scene.threads.stuck();
        if stuck != self.stuck {
            self.stuck = stuck;
            self.parts.meter.stuck(stuck);
            if stuck > 0 {
                let task_type = &self.parts.task_type;
                tracing::warn!(%task_type, stuck, "slots are held by attempts that are over and do not stop");
            }
        }
        stuck
    }

    fn next_work(&mut self) -> Option<Input> {
        self.quarantine.next().map(Input::Task).or_else(|| self.queue.pop_front())
    }

    async fn take(&mut self, mut held: Box<InFlight>) {
        if self.closed_assignments.contains(&held.tag.slot()) {
            self.release(held);
            return;
        }
        if let Some(verdict) = self.blocked_by(&held) {
            return self.cancel_unstarted(held, verdict).await;
        }
        if held.key != 0 && !held.holds_key {
            if let Some(followers) = self.keys.get_mut(&held.key) {
                followers.push_back(held);
                return;
            }
            self.keys.insert(held.key, VecDeque::new());
            held.holds_key = true;
        }
        let now = self.clock.now_ms();
        let policy = held.task.policy.as_deref();
        if policy.and_then(|policy| policy.expires_at_ms).is_some_and(|at| at <= now) && held.attempts == held.task.attempts_used
        {
            return self.expire(held, now).await;
        }
        if let Some(wait) = policy.and_then(|policy| policy.not_before_ms).filter(|at| *at > now) {
            return self.put_off(held, wait, now).await;
        }
        if let Some(misfit) = self.parts.registered.schema.validate(&held.task.params) {
            return self.refuse(held, burial_of(misfit));
        }
        if self.left(&held, now).is_some_and(|left| left.is_zero()) {
            return self.out_of_time(held);
        }
        if held.suspect && self.quarantine.is_full() {
            return self.quarantine.waiting.push_back(held);
        }
        if let Some(held) = self.paced(held) {
            self.start(held, now).await;
        }
    }

    async fn start(&mut self, held: Box<InFlight>, now: i64) {
        let began = self.clock.now;
        let policy = &self.parts.registered.policy;
        let timeout = held.task.policy.as_ref().and_then(|policy| policy.timeout).unwrap_or(policy.timeout);
        let deadline = began + Duration::from(timeout).min(self.left(&held, now).unwrap_or(Duration::MAX));
        let cx = Context::begin(AttemptStart {
            id: held.task.id.clone(),
            run: held.task.run,
            number: held.attempts + 1,
            deadline: Some(deadline.into_std()),
            trace: held.task.trace.clone(),
            asof: held.task.asof,
            scene: self.scene.clone(),
        });
        self.next_flush.get_or_insert(began + FLUSH_INTERVAL);
        self.parts.meter.started(now.saturating_sub(held.task.created_at_ms));
        let running = Running { held, cx, stop: None, began, began_ms: now, started: false, cancelled: None };
        let handler = self.handler_for(&running.held);
        let span = attempt::span(&*handler, &running.cx);
        match span.in_scope(|| attempt::begin(&*handler, &running.held.task.params, &running.cx)) {
            Err(failure) => self.finish(running, Err(failure)).await,
            Ok(Err(misfit)) => {
                self.output.close(&running.cx);
                self.refuse(running.held, burial_of(misfit));
            }
            Ok(Ok(future)) => self.drive(running, future, span, deadline).await,
        }
    }

    /// On the spot if the type's attempts are quick, else in a task of its own.
    async fn drive(&mut self, mut running: Running, mut future: AnswerFuture, span: Span, deadline: Instant) {
        if self.not_on_the_spot == 0 {
            let polled = span.in_scope(|| attempt::poll_once(future));
            let took = self.clock.advance();
            self.judge_speed(took);
            match polled {
                Ok(Ok(output)) if self.is_plain(&running, &output) => return self.succeed_at_once(running, &output, took),
                Ok(answer) => return self.answered(running, answer).await,
                Err(pending) => future = pending,
            }
        } else {
            self.not_on_the_spot -= 1;
        }
        let (cx, stop, deps) = (running.cx.clone(), running.stoppable(), self.deps.clone());
        let told = Announcement::of(&running.held.task);
        let stall = self.parts.registered.policy.stall_timeout.map(Duration::from);
        let (bounds, ending) = (Bounds { deadline, stall, grace: self.parts.config.grace.into() }, self.ending.clone());
        let number = self.enlist(running);
        runtime::spawn(async move {
            let ended = attempt::run(future, cx.clone(), stop.clone(), bounds).instrument(span).await;
            let ended = publish_children::settle(ended, &cx, told, &deps, &stop).await;
            // The dispatcher waits for every attempt it has begun.
            let _ = ending.send((number, ended));
        });
    }

    fn judge_speed(&mut self, took: Duration) {
        self.slowness = if took > SLOW_POLL { self.slowness + ONE_SLOW_IN } else { self.slowness.saturating_sub(1) };
        if self.slowness > 2 * ONE_SLOW_IN {
            self.slowness = 0;
            self.not_on_the_spot = NOT_ON_THE_SPOT;
        }
    }

    /// An attempt that goes on in a task of its own.
    fn enlist(&mut self, running: Running) -> u64 {
        let number = self.next_attempt;
        self.next_attempt += 1;
        self.quarantine.begun(&running.held);
        self.unstarted.push_back((running.began + Duration::from(self.parts.config.started_delay), number));
        self.running.insert(number, running);
        self.parts.meter.in_flight(self.running.len());
        number
    }

    /// The common case: done on the spot, and nothing else to say or to publish.
    fn is_plain(&self, running: &Running, output: &RawJson) -> bool {
        running.cx.end();
        let fits = output.text().len() as u64 <= self.parts.config.max_output.0;
        fits && self.output.is_idle() && !self.deps.has_work_after(&running.cx)
    }

    fn succeed_at_once(&mut self, running: Running, output: &RawJson, took: Duration) {
        let Running { held, began_ms, .. } = running;
        self.parts.meter.succeeded(took);
        self.output.forget(&held.task.id, held.task.run);
        self.pass_turn(&held);
        let events = &self.parts.events;
        let (partition, at_ms) = (events.publisher().partition_of(&held.task.id), self.clock.now_ms());
        self.outbox.add(held, partition, self.clock.now, |held, bytes| {
            let (task, attempt, worker) = (&held.task, held.attempts + 1, &*events.worker);
            Success { task, attempt, worker, at_ms, started_at_ms: began_ms, output }.encode(bytes);
        });
    }

    /// An attempt that was done on the spot; what it spawned is published from a task of its own.
    async fn answered(&mut self, mut running: Running, answer: Answer) {
        if answer.is_err() || !self.deps.has_work_after(&running.cx) {
            self.finish(running, answer).await;
            // It may have waited for the producer.
            self.clock = Clock::read();
            return;
        }
        let (cx, stop, deps) = (running.cx.clone(), running.stoppable(), self.deps.clone());
        let (ending, told) = (self.ending.clone(), Announcement::of(&running.held.task));
        let number = self.enlist(running);
        runtime::spawn(async move {
            let ended = publish_children::settle(Ended::Answered(answer), &cx, told, &deps, &stop).await;
            let _ = ending.send((number, ended));
        });
    }

    // ---- small things

    /// An event about a held task that says everything: a producer that died has lost nothing, and neither has a last word that
    /// arrives where an earlier one has not.
    fn event(&self, kind: Kind, held: &InFlight) -> Event {
        let mut event = Event::new(kind, held.task.id.clone(), held.task.run, now_ms());
        event.worker = Some(self.parts.events.worker.clone());
        event.task = Some(Box::new(Announcement::of(&held.task)));
        event
    }

    /// What is said on the way to the last word. Nobody waits until Kafka has it.
    async fn say(&mut self, held: &mut InFlight, mut event: Event) {
        if held.announced {
            event.task = None;
        }
        self.parts.events.report(&event, DeliveryTag::UNTRACKED, &mut self.scratch).await;
        held.announced = true;
    }

    fn retry_policy(&self, held: &InFlight) -> RetryPolicy {
        let of_type = self.parts.registered.policy.retry;
        let Some(own) = held.task.policy.as_deref() else { return of_type };
        RetryPolicy {
            retries: own.retries.unwrap_or(of_type.retries),
            min_backoff: own.min_backoff.unwrap_or(of_type.min_backoff),
            max_backoff: own.max_backoff.unwrap_or(of_type.max_backoff),
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl PartialEq for Sleeping {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}
impl Eq for Sleeping {}
impl PartialOrd for Sleeping {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Sleeping {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.until.cmp(&other.until)
    }
}
