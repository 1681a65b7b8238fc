//! Attempts as their handlers and apps have seen them, on which parts of the verdict are based.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use kafleet::handlers::{Context, Task};
use kafleet::model::record::state::State;
use kafleet::runtime::now_ms;
use parking_lot::Mutex;
use serde_json::Value;

use crate::adaptive::MeteredService;
use crate::apps::deaths::Deaths;
use crate::outages::Service;
use crate::task_types::Script;

/// Attempt of a task.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    pub id: String,
    pub run: u32,
    pub number: u32,
}

/// Execution of an attempt in a worker.
#[derive(Clone)]
pub struct Execution {
    pub attempt: Attempt,
    task_type: &'static str,
    /// Slots of the type in the worker; 0: unknown.
    slots: u32,
    running: Arc<RunningAttempts>,
}

/// Attempts as seen by their handlers.
#[derive(Default)]
pub struct Journal {
    pub attempts: Mutex<BTreeMap<Attempt, u32>>,
    /// Executions that ended with a wait.
    pub waits: Mutex<BTreeMap<Attempt, u32>>,
    /// Attempts of scripts that have failed, so that the next attempt may follow.
    pub charges: Mutex<BTreeSet<Attempt>>,
    /// Attempts that do not end before they are cancelled.
    pub hung: Mutex<BTreeSet<Attempt>>,
    /// Starts of attempts with id and run, epoch milliseconds.
    pub start_times: Mutex<Vec<(String, u32, i64)>>,
    /// States received by continuations with results, by the continuation's id.
    pub joined: Mutex<BTreeMap<String, JoinedStates>>,
    /// Bodies of callbacks and emails per attempt, by the id of the delivery.
    pub received: Mutex<BTreeMap<String, Vec<Value>>>,
    /// Called at the start of each attempt.
    pub on_attempt: Mutex<Option<OnAttempt>>,
    /// Slots per worker of types that an operator has limited.
    pub limits: Mutex<BTreeMap<&'static str, u32>>,
    /// Attempts that started beyond the slots of their worker, or beside others although they had to run alone.
    pub excess: Mutex<Vec<String>>,
    /// Service that callers call.
    pub service: Service,
    /// Service behind the adaptive limit.
    pub metered: MeteredService,
    /// Deaths of the processes of apps.
    pub deaths: Deaths,
}

/// Attempts that a worker is running, by type.
#[derive(Default)]
pub struct RunningAttempts(Mutex<BTreeMap<&'static str, u32>>);

/// Ends a running attempt on drop.
pub struct RunningAttempt(Arc<RunningAttempts>, &'static str);

impl Drop for RunningAttempt {
    fn drop(&mut self) {
        *self.0.0.lock().entry(self.1).or_default() -= 1;
    }
}

/// State of the task before a continuation, and of its other children by id.
pub type JoinedStates = (State, BTreeMap<String, State>);

/// Callback with the id, run and number of an attempt, and whether it is the first execution of the run as far as waits
/// and deaths are concerned.
pub type OnAttempt = Box<dyn Fn(&str, u32, u32, bool) + Send>;

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {} of run {} of `{}`", self.number, self.run, self.id)
    }
}

impl Execution {
    pub fn of<T: Task>(cx: &Context) -> Self {
        let attempt = Attempt { id: cx.id.to_string(), run: cx.run, number: cx.number };
        Self::new::<T>(attempt, (*cx.state::<Arc<RunningAttempts>>()).clone())
    }

    pub fn new<T: Task>(attempt: Attempt, running: Arc<RunningAttempts>) -> Self {
        Self { attempt, task_type: T::TYPE, slots: T::CONCURRENCY, running }
    }
}

impl Journal {
    /// Records an attempt.
    pub fn record_attempt(&self, execution: &Execution) -> RunningAttempt {
        *self.attempts.lock().entry(execution.attempt.clone()).or_default() += 1;
        self.record_start(execution)
    }

    /// Records the start of an attempt. It runs until the returned value is dropped.
    pub fn record_start(&self, execution: &Execution) -> RunningAttempt {
        let Execution { attempt, task_type, slots, running } = execution;
        let Attempt { id, run, number } = attempt;
        self.start_times.lock().push((id.clone(), *run, now_ms()));
        if let Some(on_attempt) = &*self.on_attempt.lock() {
            let is_first = *number == 1 && self.waits_of(id, *run) == 0 && self.deaths.count(attempt) == 0;
            on_attempt(id, *run, *number, is_first);
        }
        let count = {
            let mut by_type = running.0.lock();
            let count = by_type.entry(task_type).or_default();
            *count += 1;
            *count
        };
        let limit = self.limits.lock().get(task_type).copied().unwrap_or(*slots);
        if *slots > 0 && count > limit {
            self.excess.lock().push(format!("{count} attempts of {task_type} run in one worker with {limit} slots"));
        }
        RunningAttempt(running.clone(), task_type)
    }

    /// Records that an attempt has failed.
    pub fn charge(&self, attempt: &Attempt) {
        self.charges.lock().insert(attempt.clone());
    }

    /// Number of waits of a run.
    fn waits_of(&self, id: &str, run: u32) -> usize {
        let at = |number| Attempt { id: id.to_owned(), run, number };
        self.waits.lock().range(at(0)..=at(u32::MAX)).map(|(_, waits)| *waits as usize).sum()
    }

    /// Attempts that ran more than once, with the number of further executions. A wait, and a death of the process that is
    /// not charged, counts as no attempt, so the next execution has the same number.
    pub fn repeated_attempts(&self) -> Vec<(Attempt, u32)> {
        let waits = self.waits.lock();
        let allowed =
            |attempt: &Attempt| 1 + waits.get(attempt).copied().unwrap_or_default() + self.deaths.uncharged(attempt);
        let attempts = self.attempts.lock();
        let repeated = attempts.iter().filter(|(attempt, times)| **times > allowed(attempt));
        let repeated = repeated.filter(|(attempt, _)| !self.deaths.is_below_spawner(&attempt.id));
        repeated.map(|(attempt, times)| (attempt.clone(), *times - allowed(attempt))).collect()
    }

    /// Takes the next wait of a script; the waits are spread over the attempts.
    pub fn next_wait(&self, attempt: &Attempt, script: &Script) -> Option<u64> {
        let used = self.waits_of(&attempt.id, attempt.run);
        let due_in = used as u32 % (script.fails + 1) + 1;
        let wait_ms = *script.waits.get(used).filter(|_| due_in <= attempt.number)?;
        *self.waits.lock().entry(attempt.clone()).or_default() += 1;
        Some(wait_ms)
    }
}
