//! Shared copy of the control state in a process: one writer and any number of readers, whose cost is one atomic load
//! while nothing changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use kafleet_broker::{Broker, RecordRef};
use kafleet_config::Names;
use kafleet_runtime::{Health, watch};
use parking_lot::{RecursiveRwLock, RecursiveRwLockReadGuard};

use super::follow::{Sink, TopicFollower, follow};
use super::state::ControlState;

/// Maximum number of logged records that cannot be decoded; further ones are only counted.
const MAX_INVALID_LOGGED: u64 = 100;

/// The control topic was not read to its end in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{topic}` was not read within {} s", deadline.as_secs())]
pub struct ControlNotRead {
    pub topic: String,
    pub deadline: Duration,
}

/// Control state of a process, with notification of changes.
pub struct ControlWatch {
    /// A thread that holds the state reads it again in what it calls.
    state: RecursiveRwLock<ControlState>,
    /// Incremented by every change.
    generation: AtomicU64,
    concerns_tasks: AtomicBool,
    /// Offset after the last record applied.
    read_to: AtomicI64,
    changed: watch::Sender<u64>,
    /// Set once the whole topic has been read.
    fully_read: watch::Sender<bool>,
}

impl ControlWatch {
    pub fn new(state: ControlState) -> Arc<Self> {
        Arc::new(Self {
            state: RecursiveRwLock::new(state),
            generation: AtomicU64::new(0),
            concerns_tasks: AtomicBool::new(false),
            read_to: AtomicI64::new(0),
            changed: watch::Sender::new(0),
            fully_read: watch::Sender::new(false),
        })
    }

    /// Returns the state for a short reading. A thread that holds it may read it again: readers wait for no waiting writer.
    pub fn state(&self) -> RecursiveRwLockReadGuard<'_, ControlState> {
        self.state.read()
    }

    /// Number that differs after every change.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns true if tasks must be checked against the state: the only cost per task while there are no commands.
    pub fn concerns_tasks(&self) -> bool {
        self.concerns_tasks.load(Ordering::Acquire)
    }

    /// Subscription to changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Waits until the topic has been read to the end it had at the start.
    pub async fn wait_until_read(&self) {
        // The sender lives as long as `self`.
        let _ = self.fully_read.subscribe().wait_for(|fully_read| *fully_read).await;
    }

    /// Waits for [`Self::wait_until_read`] with a deadline; the error names the topic.
    pub async fn wait_until_read_within(&self, deadline: Duration, names: &Names) -> Result<(), ControlNotRead> {
        let late = |_| ControlNotRead { topic: names.control(), deadline };
        tokio::time::timeout(deadline, self.wait_until_read()).await.map_err(late)
    }

    /// Waits until the record at this offset has been applied.
    pub async fn wait_for_offset(&self, offset: i64) {
        // The sender lives as long as `self`.
        let _ = self.changes().wait_for(|_| self.read_to.load(Ordering::Acquire) > offset).await;
    }

    /// Offset of the last record applied; -1 before the first.
    pub fn last_applied(&self) -> i64 {
        self.read_to.load(Ordering::Acquire) - 1
    }

    pub fn is_fully_read(&self) -> bool {
        self.fully_read.get()
    }

    /// Makes all readers apply the state again, because settings beside it have changed.
    pub fn notify(&self) {
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        self.changed.send(generation);
    }

    fn change(&self, read_to: i64, change: impl FnOnce(&mut ControlState)) {
        let mut state = self.state.write();
        change(&mut state);
        self.concerns_tasks.store(state.concerns_tasks(), Ordering::Release);
        drop(state);
        // Published last, so that a caller waiting for an offset finds all its effects.
        self.read_to.store(read_to, Ordering::Release);
        self.notify();
    }
}

/// Follows the control topic into `shared` until the returned guard is dropped. Problems are reported to `health`, if
/// given: a worker starts no task before the topic has been read, and continues with the last known state while it is
/// unreadable.
pub fn follow_control(
    shared: Arc<ControlWatch>,
    broker: Arc<dyn Broker>,
    names: &Names,
    health: Option<Health>,
) -> TopicFollower {
    let empty = shared.state().clone();
    let follower = ControlFollower {
        empty: empty.clone(),
        fresh: Some(empty),
        next: 0,
        invalid_records: 0,
        shared,
        topic: names.control(),
        health,
    };
    follow(broker, names.control(), follower)
}

struct ControlFollower {
    shared: Arc<ControlWatch>,
    topic: String,
    empty: ControlState,
    /// State being read from the start, until it is complete.
    fresh: Option<ControlState>,
    /// Offset after the last record read.
    next: i64,
    invalid_records: u64,
    health: Option<Health>,
}

/// Name of this part in the health report.
pub const HEALTH_PART: &str = "control";

impl Sink for ControlFollower {
    fn restart(&mut self) {
        self.fresh = Some(self.empty.clone());
    }

    fn record(&mut self, record: &RecordRef<'_>) {
        let mut outcome = Ok(());
        self.next = record.offset + 1;
        match &mut self.fresh {
            Some(fresh) => outcome = fresh.apply_record(record),
            None => self.shared.change(self.next, |state| outcome = state.apply_record(record)),
        }
        if let Err(error) = outcome {
            self.log_invalid_record(record, &error.to_string());
        }
    }

    fn caught_up(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            self.shared.change(self.next, |state| *state = fresh);
            self.shared.fully_read.send(true);
        }
    }

    fn report_problem(&mut self, reason: Option<&str>) {
        let Some(health) = &self.health else { return };
        match reason {
            Some(reason) if self.fresh.is_some() && !self.shared.is_fully_read() => {
                health.set(HEALTH_PART, format!("`{}` cannot be read, no task starts before: {reason}", self.topic));
            }
            Some(reason) => {
                health
                    .set(HEALTH_PART, format!("`{}` cannot be read; using the last known state: {reason}", self.topic));
            }
            None => health.clear(HEALTH_PART),
        }
    }
}

impl ControlFollower {
    fn log_invalid_record(&mut self, record: &RecordRef<'_>, error: &str) {
        self.invalid_records += 1;
        if self.invalid_records <= MAX_INVALID_LOGGED {
            let key = String::from_utf8_lossy(record.key.unwrap_or_default());
            let key = kafleet_model::task::id::clip(&key);
            tracing::warn!(topic = %self.topic, offset = record.offset, %key, reason = error, "ignoring an invalid control record");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Deadline of the reader, which fails at once or never.
    const DEADLINE: Duration = Duration::from_secs(30);

    #[test]
    fn reader_that_holds_the_state_reads_it_again_while_a_change_waits() {
        let watch = ControlWatch::new(ControlState::default());
        let (done, ended) = mpsc::channel();
        let reader = watch.clone();
        std::thread::spawn(move || {
            let first = reader.state();
            let writer = reader.clone();
            let (begun, waits) = mpsc::channel();
            std::thread::spawn(move || {
                begun.send(()).unwrap();
                writer.change(1, |_| {});
            });
            waits.recv().unwrap();
            // Nothing shows that the writer waits for this thread, so it reads on for a while.
            let end = std::time::Instant::now() + Duration::from_millis(300);
            while std::time::Instant::now() < end {
                drop(reader.state());
                std::thread::yield_now();
            }
            drop(first);
            done.send(()).unwrap();
        });
        ended.recv_timeout(DEADLINE).expect("the reader waits for the writer, which waits for the reader");
    }
}
