//! Replacement of processes that serve: because of their memory or that of the container, and one after the other for a
//! reload.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kafleet_handlers::resident_memory::tree_bytes;
use kafleet_model::units::bytes::Bytes;
use tokio::time::MissedTickBehavior;

use super::{AppPool, ProcessHandle};
use crate::container::Container;
use crate::memory::{MEMORY_CHECK_INTERVAL, MemoryLimit, MemoryVerdict};
use crate::process::ProcessRequest;

/// Interval of the check whether a process has been replaced.
const RELOAD_INTERVAL: Duration = Duration::from_millis(100);

/// Time for the memory of a killed process to be freed.
const FREED_AFTER: Duration = Duration::from_secs(1);

impl AppPool {
    /// Replaces all processes one by one; each new one is ready before an old one ends, unless they must not overlap.
    pub async fn reload(&self) {
        let processes = self.state.lock().processes.clone();
        for process in processes {
            if !use_up(self, &process) {
                continue;
            }
            tracing::info!(app = self.name(), pid = process.pid, "a process of an app is replaced: the worker reloads");
            let replaced = async {
                while !self.state.lock().table.is_closed(process.id) {
                    tokio::time::sleep(RELOAD_INTERVAL).await;
                }
            };
            // A process that cannot be replaced serves on; the failed starts of its successor are logged.
            self.stop.run_until_cancelled(replaced).await;
        }
    }
}

/// Replaces a process that uses too much memory, or kills it.
pub(super) async fn watch_memory(pool: &AppPool, process: &ProcessHandle) -> Infallible {
    let Some(limit) = pool.settings.memory else { return std::future::pending().await };
    let limit = MemoryLimit::new(limit, tree_bytes(process.pid));
    let mut ticks = tokio::time::interval(MEMORY_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match limit.judge(tree_bytes(process.pid)) {
            MemoryVerdict::Within => {}
            MemoryVerdict::Replace(error) => {
                if use_up(pool, process) {
                    let app = pool.name();
                    tracing::info!(app, pid = process.pid, reason = %error, "a process of an app is replaced");
                }
            }
            MemoryVerdict::Kill(error) => {
                // Fails if the process has ended.
                let _ = process
                    .requests
                    .send(ProcessRequest::OutOfMemory(format!("the process of the app was killed: {error}")));
                return std::future::pending().await;
            }
        }
    }
}

/// Kills the largest process of these apps whenever the memory of the container is nearly full: the kernel would kill the
/// worker too, again and again.
pub async fn guard_container(pools: Vec<Arc<AppPool>>, container: Container) -> Infallible {
    if pools.is_empty() {
        return std::future::pending().await;
    }
    let mut ticks = tokio::time::interval(MEMORY_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(shortage) = container.shortage() else { continue };
        let processes = pools.iter().flat_map(|pool| pool.state.lock().processes.clone());
        let sizes = processes.map(|process| (tree_bytes(process.pid), process));
        let Some((bytes, largest)) = sizes.max_by_key(|(bytes, _)| *bytes).filter(|(bytes, _)| *bytes > 0) else {
            continue;
        };
        let used = Bytes::whole_mib(bytes);
        let reason = format!("the process of the app was killed: {shortage}, and it was the largest with {used}");
        tracing::warn!(pid = largest.pid, %shortage, "the largest process of an app is killed to save the worker");
        // Fails if the process has ended.
        let _ = largest.requests.send(ProcessRequest::OutOfMemory(reason));
        tokio::time::sleep(FREED_AFTER).await;
    }
}

/// Makes a process due for replacement. Returns false if it already is.
fn use_up(pool: &AppPool, process: &ProcessHandle) -> bool {
    let mut state = pool.state.lock();
    if state.table.is_used_up(process.id) || state.table.is_closed(process.id) {
        return false;
    }
    state.table.use_up(process.id);
    process.replace.notify_one();
    true
}
