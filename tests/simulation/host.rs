//! The system of a simulated fleet: one clock, processes that can die at any step of theirs or stand still, and dice.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::FutureExt;
use kafleet::runtime::simulated::{Host, Process};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// What all epoch milliseconds count from.
pub const BEGINNING_MS: i64 = 1_800_000_000_000;
/// The process of whoever watches and asks: it never dies.
const DRIVER: Process = 0;

#[derive(Default)]
struct State {
    tasks: Vec<AbortHandle>,
    dead: bool,
    frozen: bool,
    /// Tasks that would go on if it were not frozen.
    held: Vec<Waker>,
    /// It dies after so many steps.
    fuse: Option<u32>,
}

pub struct System {
    begun: Instant,
    dice: RefCell<fastrand::Rng>,
    processes: RefCell<BTreeMap<Process, State>>,
    /// Whose step runs, and inside whose.
    running: RefCell<Vec<Process>>,
    last: Cell<Process>,
    /// The probability that a step is put off: another order of what happens at one time.
    reluctance: f64,
    /// How long whoever polls is away at least: slow machines have fewer turns.
    pace_ms: u64,
    /// A hash of every step: the same for the same seed.
    trace: Cell<u64>,
    pub steps: Cell<u64>,
}

impl System {
    /// Inside a runtime whose clock is stopped.
    pub fn new(seed: u64) -> Rc<Self> {
        let mut dice = fastrand::Rng::with_seed(seed);
        let reluctance = [0.0, 0.05, 0.3][dice.usize(..3)];
        let pace_ms = [5, 20, 60][dice.usize(..3)];
        Rc::new(Self {
            begun: Instant::now(),
            dice: RefCell::new(dice),
            processes: RefCell::default(),
            running: RefCell::default(),
            last: Cell::new(DRIVER),
            reluctance,
            pace_ms,
            trace: Cell::new(seed),
            steps: Cell::new(0),
        })
    }

    pub fn elapsed_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    pub fn chance(&self, probability: f64) -> bool {
        self.dice.borrow_mut().f64() < probability
    }

    pub fn trace(&self) -> u64 {
        self.trace.get()
    }

    /// Notes something in the trace.
    pub fn note(&self, what: u64) {
        self.trace.set((self.trace.get().rotate_left(5) ^ what).wrapping_mul(0x517c_c1b7_2722_0a95));
    }

    /// A new process.
    pub fn process(&self) -> Process {
        self.last.set(self.last.get() + 1);
        self.processes.borrow_mut().insert(self.last.get(), State::default());
        self.last.get()
    }

    /// What is called here is done by a process.
    pub fn by<T>(&self, process: Process, call: impl FnOnce() -> T) -> T {
        self.running.borrow_mut().push(process);
        let done = call();
        self.running.borrow_mut().pop();
        done
    }

    /// It dies now: not one step more, and nobody is told.
    pub fn kill(&self, process: Process) {
        let mut processes = self.processes.borrow_mut();
        let Some(state) = processes.get_mut(&process) else { return };
        state.dead = true;
        let tasks = std::mem::take(&mut state.tasks);
        state.held.clear();
        drop(processes);
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// Nobody dies of what was lit before.
    pub fn put_out_fuses(&self) {
        self.processes.borrow_mut().values_mut().for_each(|state| state.fuse = None);
    }

    /// It dies in the middle of what it is about to do.
    pub fn light_fuse(&self, process: Process, steps: u32) {
        if let Some(state) = self.processes.borrow_mut().get_mut(&process) {
            state.fuse = Some(steps);
        }
    }

    pub fn is_dead(&self, process: Process) -> bool {
        self.processes.borrow().get(&process).is_some_and(|state| state.dead)
    }

    /// It stands still, as after SIGSTOP, or goes on.
    pub fn freeze(&self, process: Process, frozen: bool) {
        let mut processes = self.processes.borrow_mut();
        let Some(state) = processes.get_mut(&process) else { return };
        state.frozen = frozen;
        if !frozen {
            let held = std::mem::take(&mut state.held);
            drop(processes);
            held.into_iter().for_each(Waker::wake);
        }
    }
}

impl Host for System {
    fn now_ms(&self) -> i64 {
        BEGINNING_MS + self.elapsed_ms() as i64
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
                state.held.push(waker.clone());
                return Poll::Pending;
            }
            let burnt = state.fuse.as_mut().is_some_and(|left| {
                *left = left.saturating_sub(1);
                *left == 0
            });
            if burnt {
                drop(processes);
                self.kill(process);
                return Poll::Pending;
            }
        }
        drop(processes);
        if self.reluctance > 0.0 && self.chance(self.reluctance) {
            waker.wake_by_ref();
            return Poll::Pending;
        }
        self.steps.set(self.steps.get() + 1);
        self.note(process ^ (self.elapsed_ms() << 8));
        self.running.borrow_mut().push(process);
        Poll::Ready(())
    }

    fn leave(&self) {
        self.running.borrow_mut().pop();
    }

    fn takes(&self, longest: Duration) -> Duration {
        let longest = (longest.as_millis() as u64).max(self.pace_ms);
        let mut dice = self.dice.borrow_mut();
        // Mostly as long as it may: idle loops are most of the work.
        let took = if dice.u8(..4) == 0 { dice.u64(..=longest) } else { longest };
        Duration::from_millis(took)
    }

    fn pass(&self, wait: Duration) {
        // Time is put forward in its first poll.
        let _ = tokio::time::advance(wait.max(Duration::from_millis(1))).now_or_never();
    }
}
