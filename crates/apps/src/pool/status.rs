//! Status of a pool: metrics, and the reason if no process serves.

use std::sync::Arc;
use std::time::Duration;

use kafleet_handlers::resident_memory::tree_bytes;
use kafleet_runtime::Health;
use kafleet_telemetry::AppMetrics;
use prometheus::{IntCounter, IntCounterVec, IntGauge};
use tokio::time::Instant;

use super::slots::ProcessId;
use super::{AppPool, PoolFields, ProcessHandle};

/// Time without a process after which the worker is not ready.
const DOWN_AFTER: Duration = Duration::from_secs(30);
/// Time without a process after which the worker ends, so that others take its partitions.
const GIVE_UP_AFTER: Duration = Duration::from_secs(300);
/// Age at which a process without attempts counts as serving: an app may die as soon as it is ready, again and again.
const STEADY_AFTER: Duration = Duration::from_secs(10);
/// Interval of the check.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Metrics of one app.
pub(super) struct PoolMetrics {
    pub attempts: IntCounter,
    process_ends: IntCounterVec,
    processes: IntGauge,
    slots: IntGauge,
    busy_slots: IntGauge,
    waiting: IntGauge,
    calls: IntGauge,
    unread_bytes: IntGauge,
    memory_bytes: IntGauge,
    blocked_seconds: IntGauge,
}

impl PoolMetrics {
    pub(super) fn new(app: &str, metrics: &AppMetrics) -> Self {
        let labels = [app];
        Self {
            attempts: metrics.attempts.with_label_values(&labels),
            process_ends: metrics.process_ends.clone(),
            processes: metrics.processes.with_label_values(&labels),
            slots: metrics.slots.with_label_values(&labels),
            busy_slots: metrics.busy_slots.with_label_values(&labels),
            waiting: metrics.waiting.with_label_values(&labels),
            calls: metrics.calls.with_label_values(&labels),
            unread_bytes: metrics.unread_bytes.with_label_values(&labels),
            memory_bytes: metrics.memory_bytes.with_label_values(&labels),
            blocked_seconds: metrics.blocked_seconds.with_label_values(&labels),
        }
    }
}

impl AppPool {
    /// Waits until the app has been down for [`GIVE_UP_AFTER`], and returns the reason.
    pub async fn given_up(&self) -> String {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if let Some(error) = self.state.lock().down_reason(GIVE_UP_AFTER) {
                return format!("the app `{}`: {error}", self.name());
            }
        }
    }

    /// Returns the reason why no process has served for long.
    pub(super) fn down_reason(&self) -> Option<String> {
        self.state.lock().down_reason(DOWN_AFTER)
    }
}

/// Updates metrics and health until the pool is stopped.
pub(super) async fn report(pool: Arc<AppPool>, health: Health) {
    let part = format!("app `{}`", pool.name());
    let check = async {
        loop {
            measure(&pool);
            match pool.down_reason() {
                Some(error) => health.set(&part, error),
                None => health.clear(&part),
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    pool.stop.run_until_cancelled(check).await;
    health.clear(&part);
}

fn measure(pool: &AppPool) {
    let Some(metrics) = pool.metrics.get() else { return };
    let (processes, serving, waiting, (slots, busy)) = {
        let state = pool.state.lock();
        (state.processes.clone(), state.table.serving(), state.table.waiting(), state.table.slots())
    };
    let sum = |of: &dyn Fn(&ProcessHandle) -> u64| processes.iter().map(|process| of(process)).sum::<u64>() as i64;
    metrics.processes.set(serving as i64);
    metrics.waiting.set(waiting as i64);
    metrics.slots.set(slots as i64);
    metrics.busy_slots.set(busy as i64);
    metrics.calls.set(sum(&|process| process.session.calls() as u64));
    metrics.unread_bytes.set(sum(&|process| process.session.unread_bytes() as u64));
    metrics.memory_bytes.set(sum(&|process| tree_bytes(process.pid)));
    let longest = processes.iter().filter_map(|process| process.session.blocked_for()).max();
    metrics.blocked_seconds.set(longest.unwrap_or_default().as_secs() as i64);
}

/// Counts the end of a process, or a start that has failed.
pub(super) fn count_end(pool: &AppPool, reason: &str) {
    if let Some(metrics) = pool.metrics.get() {
        metrics.process_ends.with_label_values(&[pool.name(), reason]).inc();
    }
}

impl PoolFields {
    /// Returns the reason why no process has served for this time.
    fn down_reason(&mut self, time: Duration) -> Option<String> {
        self.note_serving();
        let since = self.down_since.filter(|since| since.elapsed() >= time)?;
        let seconds = since.elapsed().as_secs();
        let error = self.last_failure.as_deref().unwrap_or("its processes are not ready yet");
        Some(format!("no process has served for {seconds} s: {error}"))
    }

    /// Notes that a process serves, if one has run attempts or is ready for some time.
    fn note_serving(&mut self) {
        let serves = |process: &Arc<ProcessHandle>| !self.table.is_closed(process.id) && process.is_steady();
        if self.down_since.is_some() && self.processes.iter().any(serves) {
            self.down_since = None;
            self.last_failure = None;
        }
    }

    fn note_down(&mut self) {
        if self.table.serving() == 0 {
            self.down_since.get_or_insert_with(Instant::now);
        }
    }

    /// Starts no more attempts in a process. Returns whether it runs none.
    pub(super) fn close(&mut self, id: ProcessId) -> bool {
        self.note_serving();
        let is_finished = self.table.close(id);
        self.note_down();
        is_finished
    }

    pub(super) fn remove(&mut self, id: ProcessId) {
        self.note_serving();
        self.table.remove(id);
        self.processes.retain(|process| process.id != id);
        self.note_down();
    }
}

impl ProcessHandle {
    pub(super) fn is_steady(&self) -> bool {
        self.session.has_run() || self.since.elapsed() >= STEADY_AFTER
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Notify, mpsc};

    use super::*;
    use crate::capacity::Capacity;
    use crate::loaded_files::LoadedFiles;
    use crate::pool::blame::Blame;
    use crate::pool::slots::SlotTable;
    use crate::protocol::{Limits, VERSION, Welcome};
    use crate::session::Session;

    fn state() -> PoolFields {
        let down_since = Some(Instant::now());
        PoolFields {
            table: SlotTable::new(),
            processes: Vec::new(),
            down_since,
            last_failure: None,
            spares: 0,
            blame: Blame::default(),
        }
    }

    /// Adds a process that has just become ready.
    fn add(state: &mut PoolFields, id: ProcessId) {
        let welcome = Welcome {
            protocol: VERSION,
            app: "shop".into(),
            worker: "w".into(),
            version: "0",
            types: None,
            slots: None,
            grace_ms: 0,
            limits: Limits::new(0, 0),
            dev: false,
        };
        let (session, ..) = Session::open(
            tokio::io::empty(),
            tokio::io::sink(),
            &welcome,
            mpsc::unbounded_channel().0,
            LoadedFiles::default(),
        );
        let (requests, since) = (mpsc::unbounded_channel().0, Instant::now());
        state.processes.push(Arc::new(ProcessHandle { id, pid: 0, session, since, requests, replace: Notify::new() }));
        state.table.add(id, Capacity::shared(1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn app_that_dies_as_soon_as_it_is_ready_is_down() {
        let mut state = state();
        for id in 1..=6 {
            add(&mut state, id);
            tokio::time::advance(Duration::from_secs(1)).await;
            state.remove(id);
            state.last_failure = Some("it exited with code 1".into());
            tokio::time::advance(Duration::from_secs(5)).await;
        }
        let reason = "no process has served for 36 s: it exited with code 1";
        assert_eq!(state.down_reason(DOWN_AFTER).as_deref(), Some(reason));
        assert_eq!(state.down_reason(GIVE_UP_AFTER), None);
        tokio::time::advance(GIVE_UP_AFTER).await;
        assert!(state.down_reason(GIVE_UP_AFTER).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_lives_serves() {
        let mut state = state();
        tokio::time::advance(DOWN_AFTER).await;
        add(&mut state, 1);
        assert!(state.down_reason(DOWN_AFTER).unwrap().contains("its processes are not ready yet"));
        tokio::time::advance(STEADY_AFTER).await;
        assert_eq!(state.down_reason(DOWN_AFTER), None);
        state.remove(1);
        assert_eq!(state.down_reason(DOWN_AFTER), None, "it has served until now");
        tokio::time::advance(DOWN_AFTER).await;
        assert!(state.down_reason(DOWN_AFTER).is_some());
    }
}
