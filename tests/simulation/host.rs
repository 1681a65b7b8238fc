//! Host of a simulated fleet: a clock, processes that can crash at any step or freeze, and a random generator.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::FutureExt;
use kafleet::runtime::clock::BrokerClock;
use kafleet::runtime::simulated::{Host, Process};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Epoch milliseconds at the start of a simulation.
pub const START_MS: i64 = 1_800_000_000_000;
/// Process of the test itself, which never crashes.
const DRIVER: Process = 0;

#[derive(Default)]
struct State {
    tasks: Vec<AbortHandle>,
    dead: bool,
    frozen: bool,
    /// Wakers of its tasks, to be woken when it resumes.
    wakers: Vec<Waker>,
    /// Remaining steps until it crashes.
    steps_left: Option<u32>,
    /// Times from which on its machine's clock is ahead by so much, in milliseconds, in order.
    clock_changes: Vec<(u64, i64)>,
    /// The brokers' clock as the process knows it.
    broker_clock: Rc<BrokerClock>,
}

pub struct System {
    start: Instant,
    rng: RefCell<fastrand::Rng>,
    processes: RefCell<BTreeMap<Process, State>>,
    /// Processes of the nested steps in progress, innermost last.
    running: RefCell<Vec<Process>>,
    last_process: Cell<Process>,
    /// Probability that a step is postponed, which changes the order of simultaneous steps.
    yield_probability: f64,
    /// Minimum duration of a poll: slow machines poll less often.
    min_poll_ms: u64,
    /// Hash of all steps, equal for equal seeds.
    trace: Cell<u64>,
    pub steps: Cell<u64>,
    /// Without observations: the test's own clock is right.
    driver_clock: Rc<BrokerClock>,
}

thread_local! {
    static SYSTEM: RefCell<Weak<System>> = const { RefCell::new(Weak::new()) };
}

/// Returns the process that is running on this thread.
pub fn running_process() -> Process {
    SYSTEM.with_borrow(Weak::upgrade).map_or(DRIVER, |system| system.begun())
}

/// Returns the time since the start of the simulation of this thread, in milliseconds.
pub fn elapsed_ms() -> u64 {
    SYSTEM.with_borrow(Weak::upgrade).map_or(0, |system| system.elapsed_ms())
}

/// Makes a call on behalf of a process of the system of this thread.
pub fn run_as<T>(process: Process, call: impl FnOnce() -> T) -> T {
    match SYSTEM.with_borrow(Weak::upgrade) {
        Some(system) => system.run_as(process, call),
        None => call(),
    }
}

impl System {
    /// Creates the host of this thread. Call it inside a runtime with a paused clock.
    pub fn new(seed: u64) -> Rc<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let yield_probability = [0.0, 0.05, 0.3][rng.usize(..3)];
        let min_poll_ms = [5, 20, 60][rng.usize(..3)];
        let system = Rc::new(Self {
            start: Instant::now(),
            rng: RefCell::new(rng),
            processes: RefCell::default(),
            running: RefCell::default(),
            last_process: Cell::new(DRIVER),
            yield_probability,
            min_poll_ms,
            trace: Cell::new(seed),
            steps: Cell::new(0),
            driver_clock: Rc::default(),
        });
        SYSTEM.set(Rc::downgrade(&system));
        system
    }

    pub fn elapsed_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    pub fn chance(&self, probability: f64) -> bool {
        self.rng.borrow_mut().f64() < probability
    }

    pub fn trace(&self) -> u64 {
        self.trace.get()
    }

    /// Adds a value to the trace.
    pub fn mix_trace(&self, value: u64) {
        self.trace.set((self.trace.get().rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95));
    }

    /// Starts a process. `clock_changes`: times from which on its machine's clock is ahead by so much, in milliseconds.
    pub fn process(&self, clock_changes: Vec<(u64, i64)>) -> Process {
        self.last_process.set(self.last_process.get() + 1);
        let state = State { clock_changes, ..State::default() };
        self.processes.borrow_mut().insert(self.last_process.get(), state);
        self.last_process.get()
    }

    /// Makes a call on behalf of a process.
    pub fn run_as<T>(&self, process: Process, call: impl FnOnce() -> T) -> T {
        self.running.borrow_mut().push(process);
        let done = call();
        self.running.borrow_mut().pop();
        done
    }

    /// Crashes a process at once.
    pub fn kill(&self, process: Process) {
        let mut processes = self.processes.borrow_mut();
        let Some(state) = processes.get_mut(&process) else { return };
        state.dead = true;
        let tasks = std::mem::take(&mut state.tasks);
        state.wakers.clear();
        drop(processes);
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// Cancels all pending crashes.
    pub fn cancel_crashes(&self) {
        self.processes.borrow_mut().values_mut().for_each(|state| state.steps_left = None);
    }

    /// Crashes the process after a number of steps.
    pub fn crash_after(&self, process: Process, steps: u32) {
        if let Some(state) = self.processes.borrow_mut().get_mut(&process) {
            state.steps_left = Some(steps);
        }
    }

    pub fn is_dead(&self, process: Process) -> bool {
        self.processes.borrow().get(&process).is_some_and(|state| state.dead)
    }

    /// Freezes a process, as SIGSTOP does, or resumes it.
    pub fn freeze(&self, process: Process, frozen: bool) {
        let mut processes = self.processes.borrow_mut();
        let Some(state) = processes.get_mut(&process) else { return };
        state.frozen = frozen;
        if !frozen {
            let wakers = std::mem::take(&mut state.wakers);
            drop(processes);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl Host for System {
    fn now_ms(&self) -> i64 {
        let (elapsed_ms, processes) = (self.elapsed_ms(), self.processes.borrow());
        let changes = processes.get(&self.begun()).map_or(&[][..], |state| &state.clock_changes);
        let ahead_ms =
            changes.iter().rev().find(|(from_ms, _)| *from_ms <= elapsed_ms).map_or(0, |(_, ahead_ms)| *ahead_ms);
        START_MS + elapsed_ms as i64 + ahead_ms
    }

    fn broker_clock(&self) -> Rc<BrokerClock> {
        let processes = self.processes.borrow();
        processes.get(&self.begun()).map_or_else(|| self.driver_clock.clone(), |state| state.broker_clock.clone())
    }

    fn begun(&self) -> Process {
        self.running.borrow().last().copied().unwrap_or(DRIVER)
    }

    fn ends(&self, process: Process, task: AbortHandle) {
        if let Some(state) = self.processes.borrow_mut().get_mut(&process) {
            if state.tasks.len() % 64 == 63 {
                state.tasks.retain(|task| !task.is_finished());
            }
            state.tasks.push(task);
        }
    }

    fn enter(&self, process: Process, waker: &Waker) -> Poll<()> {
        let mut processes = self.processes.borrow_mut();
        if let Some(state) = processes.get_mut(&process) {
            if state.dead {
                return Poll::Pending;
            }
            if state.frozen {
                state.wakers.push(waker.clone());
                return Poll::Pending;
            }
            let crashes = state.steps_left.as_mut().is_some_and(|left| {
                *left = left.saturating_sub(1);
                *left == 0
            });
            if crashes {
                drop(processes);
                self.kill(process);
                return Poll::Pending;
            }
        }
        drop(processes);
        if self.yield_probability > 0.0 && self.chance(self.yield_probability) {
            waker.wake_by_ref();
            return Poll::Pending;
        }
        self.steps.set(self.steps.get() + 1);
        self.mix_trace(process ^ (self.elapsed_ms() << 8));
        self.running.borrow_mut().push(process);
        Poll::Ready(())
    }

    fn leave(&self) {
        self.running.borrow_mut().pop();
    }

    fn takes(&self, longest: Duration) -> Duration {
        let longest = (longest.as_millis() as u64).max(self.min_poll_ms);
        let mut rng = self.rng.borrow_mut();
        // Mostly the longest wait: idle loops are most of the work.
        let took = if rng.u8(..4) == 0 { rng.u64(..=longest) } else { longest };
        Duration::from_millis(took)
    }

    fn pass(&self, wait: Duration) {
        // The first poll advances the clock.
        let _ = tokio::time::advance(wait.max(Duration::from_millis(1))).now_or_never();
    }
}
