//! Simulated process of an app: reads messages, runs attempts at once, and ends, dies or misbehaves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kafleet::runtime::now_ms;
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::SimulatedApp;
use super::attempt::{self, AttemptEnd};
use super::deaths::{Death, How};
use super::program::KILLED;
use super::stream::{Receiver, Sender};
use crate::journal::{Attempt, Execution};
use crate::task_types::{KeyedTask, UnorderedTask, retries, task_type};

/// Status of a process that exits with code 1, as `wait` returns it.
const FAILED: i32 = 1 << 8;
/// Age up to which the app may be to blame for the death of a process: the time until it is ready, and a second.
const EARLY: Duration = Duration::from_secs(5);
/// Time after which a process that ends is due to die.
const MAX_LIFE_MS: u64 = 6_000;

/// Simulated process.
pub struct Process {
    pub shared: Arc<ProcessHandle>,
    pub input: Receiver,
    pub signals: mpsc::UnboundedReceiver<Signal>,
    /// The first process of a worker, without which the worker does not start.
    pub is_first: bool,
}

/// Part of a process that its attempts use.
pub struct ProcessHandle {
    pub app: Arc<SimulatedApp>,
    pub pid: u32,
    pub started_at: Instant,
    pub output: Sender,
    pub state: Mutex<ProcessState>,
    /// An attempt blocks the process: pings are not answered.
    pub is_blocked: AtomicBool,
}

#[derive(Default)]
pub struct ProcessState {
    /// Attempts that have not been answered, by number.
    running: BTreeMap<u64, Running>,
    /// Attempts that were answered last, with the time.
    answered: Vec<(Running, i64)>,
}

pub struct Running {
    attempt: Attempt,
    /// The task does not fail if the attempt is charged.
    is_chargeable: bool,
    is_alone: bool,
    /// The attempt has published children.
    pub has_spawned: bool,
    cancel: CancellationToken,
    pub reply: Option<oneshot::Sender<bool>>,
}

/// Fault of a process for no reason.
enum Plan {
    None,
    /// Dies at this time.
    Die(Instant),
    /// Dies instead of reading another attempt after this number of them.
    StopReading(u32),
}

type Attempts = FuturesUnordered<BoxFuture<'static, (u64, AttemptEnd)>>;

impl Process {
    /// Runs the process and returns its status.
    pub async fn run(mut self, exit: oneshot::Sender<i32>) {
        let status = self.serve().await;
        // The stream ends before the exit.
        drop(self);
        let _ = exit.send(status);
    }

    async fn serve(&mut self) -> i32 {
        if let Some(status) = self.start().await {
            return status;
        }
        let mut plan = Plan::random(self.shared.app.spec.trouble);
        let mut attempts = Attempts::new();
        let mut is_ending = false;
        loop {
            let dies_at = if let Plan::Die(at) = plan { at } else { Instant::now() };
            tokio::select! {
                biased;
                Some(signal) = self.signals.recv() => {
                    self.die(How::Killed);
                    return signal as i32;
                }
                Some((n, end)) = attempts.next(), if !attempts.is_empty() => {
                    if let Some(status) = self.attempt_ended(n, end, &mut attempts).await {
                        return status;
                    }
                }
                () = tokio::time::sleep_until(dies_at), if matches!(plan, Plan::Die(_)) => {
                    if self.may_die(How::Crashed) {
                        self.die(How::Crashed);
                        return FAILED;
                    }
                    plan = Plan::None;
                }
                message = self.input.peek(), if !is_ending => match message {
                    None => is_ending = true,
                    Some(message) if plan.stops_reading(&message) && self.may_die(How::Crashed) => {
                        self.die(How::Crashed);
                        return FAILED;
                    }
                    Some(message) => {
                        self.input.skip();
                        self.receive(&message, &attempts);
                    }
                },
            }
            if is_ending && attempts.is_empty() {
                return 0;
            }
        }
    }

    /// Declares the types. Returns the status of a process that does not become ready.
    async fn start(&mut self) -> Option<i32> {
        let spec = &self.shared.app.spec;
        let is_faulty = !self.is_first && fastrand::u32(..200) < spec.trouble;
        let start_ms = [0, 0, 100, 1_500][fastrand::usize(..4)];
        let fault = fastrand::u8(..3);
        tokio::select! {
            biased;
            Some(signal) = self.signals.recv() => return Some(signal as i32),
            () = tokio::time::sleep(Duration::from_millis(start_ms)) => {}
        }
        match fault {
            0 if is_faulty => return Some(FAILED),
            1 if is_faulty => self.shared.output.send(&json!({"unable": {"message": "there is no model"}})),
            // Never ready.
            _ if is_faulty => {}
            _ => {
                let types = [true, false].into_iter().filter(|unordered| spec.runs(*unordered));
                let types: Vec<Value> = types.map(|unordered| json!({"name": task_type(unordered)})).collect();
                let ready = json!({"protocol": 1, "slots": spec.slots, "responsive": spec.responsive, "types": types});
                self.shared.output.send(&json!({"ready": ready}));
                return None;
            }
        }
        Some(self.signals.recv().await.map_or(KILLED, |signal| signal as i32))
    }

    fn receive(&self, message: &Value, attempts: &Attempts) {
        let (shared, state) = (&self.shared, &self.shared.state);
        if let Some(at) = message.pointer("/ping/at") {
            if !shared.is_blocked.load(Ordering::Relaxed) {
                shared.output.send(&json!({"pong": {"at": at}}));
            }
        } else if let Some(n) = message.pointer("/cancel/n").and_then(Value::as_u64) {
            state.lock().running.get(&n).iter().for_each(|running| running.cancel.cancel());
        } else if let Some(n) = message.pointer("/reply/call").and_then(Value::as_u64) {
            let reply = state.lock().running.get_mut(&n).and_then(|running| running.reply.take());
            if let Some(reply) = reply {
                // Fails if the attempt has ended.
                let _ = reply.send(message.pointer("/reply/ids").is_some());
            }
        } else if let Some(start) = message.get("attempt") {
            self.start_attempt(start, attempts);
        }
    }

    fn start_attempt(&self, start: &Value, attempts: &Attempts) {
        let (shared, app) = (self.shared.clone(), &self.shared.app);
        let Some((attempt, is_chargeable)) = attempt_of(start) else { return };
        let is_alone = app.alone.as_ref().is_some_and(|alone| alone.lock().remove(&attempt));
        let n = start["n"].as_u64().unwrap_or_default();
        let (cancel, (reply, replied)) = (CancellationToken::new(), oneshot::channel());
        {
            let mut state = shared.state.lock();
            let is_disturbed = is_alone || state.running.values().any(|running| running.is_alone);
            if is_disturbed && !state.running.is_empty() {
                app.journal
                    .excess
                    .lock()
                    .push(format!("{attempt:?} runs beside others, and one of them must be alone"));
            }
            let (attempt, cancel, reply) = (attempt.clone(), cancel.clone(), Some(reply));
            let running = Running { attempt, is_chargeable, is_alone, has_spawned: false, cancel, reply };
            state.running.insert(n, running);
        }
        let execution = if start["type"] == task_type(true) {
            Execution::new::<UnorderedTask>(attempt, app.running.clone())
        } else {
            Execution::new::<KeyedTask>(attempt, app.running.clone())
        };
        let started = attempt::AppAttempt::new(shared, n, execution, start["params"].clone(), cancel, replied);
        attempts.push(Box::pin(async move { (n, started.run().await) }));
    }

    /// Handles the end of an attempt. Returns the status of a process that ends with it.
    async fn attempt_ended(&mut self, n: u64, end: AttemptEnd, attempts: &mut Attempts) -> Option<i32> {
        match end {
            AttemptEnd::Answered => None,
            AttemptEnd::Dies { how, error } if !self.may_die(how) => {
                let attempt = self.shared.attempt(n);
                attempt.iter().for_each(|attempt| self.shared.app.journal.charge(attempt));
                self.shared.answer(n, &error);
                None
            }
            AttemptEnd::Dies { how: How::Garbled, .. } => {
                self.shared.output.send_line("not a message");
                self.die(How::Garbled);
                attempts.clear();
                Some(self.signals.recv().await.map_or(KILLED, |signal| signal as i32))
            }
            AttemptEnd::Dies { .. } => {
                self.die(How::Crashed);
                Some(FAILED)
            }
        }
    }

    /// Whether the state of no task depends on the death of the process: an attempt that is charged has a next one.
    fn may_die(&self, how: How) -> bool {
        let unread = self.unread();
        let state = self.shared.state.lock();
        let running = state.running.values().map(|running| (&running.attempt, running.is_chargeable));
        let mut all = running.chain(unread.iter().map(|(attempt, is_chargeable)| (attempt, *is_chargeable)));
        let is_shared = how == How::Crashed && state.running.len() + unread.len() > 1;
        let deaths = &self.shared.app.journal.deaths;
        all.all(|(attempt, is_chargeable)| is_chargeable || (is_shared && deaths.is_fresh(attempt)))
    }

    fn unread(&self) -> Vec<(Attempt, bool)> {
        self.input.unread().iter().filter_map(|message| attempt_of(message.get("attempt")?)).collect()
    }

    fn die(&self, how: How) {
        let (app, state) = (&self.shared.app, self.shared.state.lock());
        // A worker that kills the process does not read the last answers.
        let answered = state.answered.iter().filter(|(_, at)| how == How::Killed && *at == now_ms());
        let executed: Vec<&Running> = state.running.values().chain(answered.map(|(running, _)| running)).collect();
        let is_last = self.input.unread().last().is_some_and(|message| message.get("attempt").is_some());
        let death = Death {
            pid: self.shared.pid,
            how,
            attempts: executed.iter().map(|running| running.attempt.clone()).collect(),
            unread: self.unread().into_iter().map(|(attempt, _)| attempt).collect(),
            is_unread: app.spec.slots == 1 && executed.is_empty() && is_last,
            was_killed: how == How::Killed,
            is_early: self.shared.started_at.elapsed() < EARLY,
        };
        if let Some(alone) = app.alone.as_ref().filter(|_| death.is_shared()) {
            alone.lock().extend(death.attempts.iter().chain(&death.unread).cloned());
        }
        let spawners = executed.iter().filter(|running| running.has_spawned);
        spawners.for_each(|running| app.journal.deaths.add_spawner(&running.attempt.id));
        app.journal.deaths.add(death);
    }
}

impl ProcessHandle {
    /// Answers an attempt.
    pub fn answer(&self, n: u64, message: &Value) {
        let mut state = self.state.lock();
        if let Some(running) = state.running.remove(&n) {
            state.answered.retain(|(_, at)| *at == now_ms());
            state.answered.push((running, now_ms()));
        }
        self.output.send(message);
    }

    /// Changes what is known of an attempt.
    pub fn change(&self, n: u64, change: impl FnOnce(&mut Running)) {
        self.state.lock().running.get_mut(&n).map(change);
    }

    fn attempt(&self, n: u64) -> Option<Attempt> {
        Some(self.state.lock().running.get(&n)?.attempt.clone())
    }
}

impl Plan {
    fn random(trouble: u32) -> Self {
        if fastrand::u32(..100) >= trouble {
            return Self::None;
        }
        if fastrand::bool() {
            Self::Die(Instant::now() + Duration::from_millis(fastrand::u64(..MAX_LIFE_MS)))
        } else {
            Self::StopReading(fastrand::u32(..4))
        }
    }

    /// Counts a message. Returns whether the process dies instead of reading it.
    fn stops_reading(&mut self, message: &Value) -> bool {
        let Self::StopReading(left) = self else { return false };
        if message.get("attempt").is_none() {
            return false;
        }
        if *left == 0 {
            return true;
        }
        *left -= 1;
        false
    }
}

/// Returns the attempt of a message, and whether its task has another attempt if it fails.
fn attempt_of(start: &Value) -> Option<(Attempt, bool)> {
    let number = |name: &str| start[name].as_u64().and_then(|number| u32::try_from(number).ok());
    let attempt = Attempt { id: start["id"].as_str()?.to_owned(), run: number("run")?, number: number("number")? };
    let is_chargeable = attempt.number <= retries(start["type"] == task_type(true));
    Some((attempt, is_chargeable))
}
