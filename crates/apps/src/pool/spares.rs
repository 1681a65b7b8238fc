//! Spare processes of an app, started while attempts wait to run in quarantine: each of them runs alone in a process, and the
//! attempts that are not suspected keep theirs.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kafleet_handlers::resident_memory::tree_bytes;
use tokio::time::Instant;

use super::supervision::SupervisedProcess;
use super::{AppPool, fitting_processes};
use crate::container::Container;

/// Maximum number of spare processes: as many attempts as one process usually has beside one that kills it.
const MAX_SPARES: usize = 8;
/// Maximum number of spare processes that start at the same time. The first one starts alone.
const MAX_STARTING: usize = 2;
/// Time without an attempt after which a spare process ends.
const SPARE_IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the check whether a spare process is still used.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time without spare processes after a failed start.
const FAILED_START_INTERVAL: Duration = Duration::from_secs(30);

/// Spare processes of a pool.
pub(super) struct Spares(pub Arc<AppPool>);

impl Spares {
    /// Starts spare processes while attempts wait to run in quarantine, until the pool is stopped.
    pub(super) async fn keep_spares(self) {
        let pool = &self.0;
        self.allow(self.maximum() > 0);
        let mut running = FuturesUnordered::new();
        let mut starting = FuturesUnordered::new();
        let mut failed_at: Option<Instant> = None;
        loop {
            let is_pausing = failed_at.is_some_and(|at| at.elapsed() < FAILED_START_INTERVAL);
            while !is_pausing && self.reserve(starting.len()) {
                starting.push(self.start());
            }
            tokio::select! {
                biased;
                () = pool.stop.cancelled() => break,
                () = pool.suspects.notified() => {}
                Some(started) = starting.next(), if !starting.is_empty() => match started {
                    Some(process) => running.push(self.run(process)),
                    None => failed_at = Some(Instant::now()),
                },
                Some(()) = running.next(), if !running.is_empty() => {}
                () = tokio::time::sleep(FAILED_START_INTERVAL), if is_pausing => {}
            }
            let is_failing = failed_at.is_some_and(|at| at.elapsed() < FAILED_START_INTERVAL);
            self.allow(!is_failing && self.maximum() > 0);
        }
        // Those that are starting are killed.
        drop(starting);
        while running.next().await.is_some() {}
    }

    fn allow(&self, is_allowed: bool) {
        let granted = self.0.state.lock().table.set_spares(is_allowed);
        self.0.hand_out(granted);
    }

    /// Maximum number of spare processes: none if processes must not overlap, and no more than fit into the container.
    fn maximum(&self) -> usize {
        let settings = &self.0.settings;
        if !settings.overlap {
            return 0;
        }
        let Some(limit) = Container::of_this_process().limit() else { return MAX_SPARES };
        let largest = self.0.pids().into_iter().map(tree_bytes).max().unwrap_or_default();
        let fitting = fitting_processes(largest, limit).saturating_sub(settings.processes);
        MAX_SPARES.min(fitting as usize)
    }

    /// Counts a spare process that is to be started, if one is needed.
    fn reserve(&self, starting: usize) -> bool {
        let maximum = self.maximum();
        let mut state = self.0.state.lock();
        let most_starting = if state.spares == starting { 1 } else { MAX_STARTING };
        let is_needed = state.table.needs_spare() && starting < most_starting && state.spares < maximum;
        state.spares += usize::from(is_needed);
        is_needed
    }

    /// Starts a spare process. Returns `None` if it cannot be started.
    async fn start(&self) -> Option<SupervisedProcess> {
        match self.0.start_process(self.0.settings.processes).await {
            Ok(process) => Some(self.0.supervise(process, true)),
            Err(error) => {
                self.0.state.lock().spares -= 1;
                tracing::warn!(app = self.0.name(), reason = %error, "a spare process of an app cannot be started");
                None
            }
        }
    }

    /// Keeps a spare process until it ends, has to be replaced, or has run no attempt for some time.
    async fn run(&self, mut spare: SupervisedProcess) {
        let pool = &self.0;
        let handle = spare.handle.clone();
        let mut used_at = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = pool.stop.cancelled() => break,
                () = spare.ended() => break,
                () = handle.replace.notified() => handle.close(&pool.state),
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
            if !pool.state.lock().table.is_idle(handle.id) {
                used_at = Instant::now();
            } else if used_at.elapsed() >= SPARE_IDLE_TIMEOUT {
                handle.close(&pool.state);
            }
        }
        pool.end(spare).await;
        pool.state.lock().spares -= 1;
    }
}
