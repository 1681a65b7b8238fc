//! Deaths of the processes of apps, and the attempts that they may cost: the rules of "Crash" and "Overrun" in
//! docs/app-protocol.md.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use kafleet::model::event::{Event, Kind};
use parking_lot::Mutex;

use crate::deliveries;
use crate::fleet::Fleet;
use crate::journal::Attempt;
use crate::scenario::FaultMode;

/// Number of times that an attempt is repeated after deaths.
const MAX_RESTARTS: usize = 3;
/// Lowest id of a process: above those of the kernel, so that no real process is measured.
const FIRST_PID: u32 = 1 << 23;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The process ended by itself.
    Crashed,
    /// The process violated the protocol.
    Garbled,
    /// The worker killed the process.
    Killed,
}

#[derive(Clone, Debug)]
pub struct Death {
    pub pid: u32,
    pub how: How,
    /// Attempts that the process executed.
    pub attempts: Vec<Attempt>,
    /// Attempts that the process had not read.
    pub unread: Vec<Attempt>,
    /// The worker knows that the process had not read its only attempt.
    pub is_unread: bool,
    /// The worker has killed the process, at the latest while it was dying.
    pub was_killed: bool,
    /// The process may have been so young that its app was to blame.
    pub is_early: bool,
}

#[derive(Default)]
pub struct Deaths {
    all: Mutex<Vec<Death>>,
    /// Attempts that have published children and died: their children may run again.
    spawners: Mutex<BTreeSet<String>>,
    /// Number of started processes.
    started: AtomicU32,
}

impl Death {
    fn involves(&self, attempt: &Attempt) -> bool {
        self.attempts.contains(attempt) || self.unread.contains(attempt)
    }

    /// Whether the death must be charged to the only attempt of the process.
    fn is_charged(&self) -> bool {
        match self.how {
            How::Crashed => self.attempts.len() + self.unread.len() == 1 && !self.is_unread && !self.was_killed,
            How::Garbled => true,
            How::Killed => false,
        }
    }

    /// Returns whether the attempts of the death have to run alone from now on.
    pub fn is_shared(&self) -> bool {
        self.how == How::Crashed && self.attempts.len() + self.unread.len() > 1 && !self.was_killed
    }
}

impl Deaths {
    /// Returns the id of the next process.
    pub fn next_pid(&self) -> u32 {
        FIRST_PID + self.started.fetch_add(1, Ordering::Relaxed)
    }

    pub fn add(&self, death: Death) {
        tracing::debug!(?death, "a simulated process has died");
        self.all.lock().push(death);
    }

    /// Records that an attempt has published children before it died.
    pub fn add_spawner(&self, id: &str) {
        self.spawners.lock().insert(id.to_owned());
    }

    /// Records that the worker kills a process.
    pub fn kill(&self, pid: u32) {
        self.all.lock().iter_mut().filter(|death| death.pid == pid).for_each(|death| death.was_killed = true);
    }

    /// Number of deaths that involved an attempt.
    pub fn count(&self, attempt: &Attempt) -> usize {
        self.all.lock().iter().filter(|death| death.involves(attempt)).count()
    }

    /// Number of deaths that cut off an execution of the attempt and do not count.
    pub fn uncharged(&self, attempt: &Attempt) -> u32 {
        let all = self.all.lock();
        let is_uncharged = |death: &&Death| death.is_early || !death.is_charged();
        all.iter().filter(is_uncharged).filter(|death| death.attempts.contains(attempt)).count() as u32
    }

    /// Whether a further death is not charged to the attempt if others have been running.
    pub fn is_fresh(&self, attempt: &Attempt) -> bool {
        self.count(attempt) < MAX_RESTARTS
    }

    /// Whether any attempt of the task has died so often that a death was charged to it.
    pub fn has_exhausted(&self, id: &str) -> bool {
        let all = self.all.lock();
        let mut attempts = all.iter().flat_map(|death| death.attempts.iter().chain(&death.unread));
        attempts.any(|attempt| attempt.id == id && is_exhausted(&all, attempt))
    }

    /// Whether a task is below one that has published children and died.
    pub fn is_below_spawner(&self, id: &str) -> bool {
        self.spawners.lock().iter().any(|spawner| id.strip_prefix(spawner).is_some_and(|rest| rest.starts_with(':')))
    }

    /// Whether a death explains that an attempt has failed as `crashed` or `garbled`.
    fn explains(&self, attempt: &Attempt, kind: &str) -> bool {
        let how = if kind == "garbled" { How::Garbled } else { How::Crashed };
        let all = self.all.lock();
        let mut own = all.iter().filter(|death| death.involves(attempt));
        own.any(|death| death.how == how && death.is_charged()) || (how == How::Crashed && is_exhausted(&all, attempt))
    }
}

/// Whether an attempt has died so often that any death is charged to it.
fn is_exhausted(all: &[Death], attempt: &Attempt) -> bool {
    all.iter().filter(|death| death.involves(attempt)).count() > MAX_RESTARTS
}

/// Checks that an attempt is charged for a death only if it is responsible, and that no attempt is skipped.
pub fn judge(fleet: &Fleet, log: &[Event], violations: &mut Vec<String>) {
    let journal = &fleet.journal;
    for event in log.iter().filter(|event| matches!(event.kind(), Kind::Retrying | Kind::Failed)) {
        let Some(kind) = event.payload.error().map(|error| &*error.kind) else { continue };
        let attempt = Attempt { id: event.id.to_string(), run: event.run, number: event.attempt };
        if matches!(kind, "crashed" | "garbled") && !journal.deaths.explains(&attempt, kind) {
            violations.push(format!("{attempt:?} was charged as {kind}, and no death of a process explains it"));
        }
    }
    // A worker that was frozen, or has lost its partition, also counts timeouts.
    if fleet.scenario.fault_mode == FaultMode::All {
        return;
    }
    let charges = journal.charges.lock();
    for attempt in journal.attempts.lock().keys().filter(|attempt| attempt.number > 1) {
        let before = Attempt { number: attempt.number - 1, ..attempt.clone() };
        let died = || journal.deaths.explains(&before, "crashed") || journal.deaths.explains(&before, "garbled");
        if !deliveries::is_delivery(&attempt.id) && !charges.contains(&before) && !died() {
            violations.push(format!("{attempt:?} ran, although {before:?} has not failed"));
        }
    }
}
