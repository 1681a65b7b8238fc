//! Replacement of processes that serve: because of their memory, and one after the other for a reload.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::{AppPool, ProcessHandle};
use crate::apps::memory::{INTERVAL, MemoryLimit, Verdict};
use crate::apps::process::Request;
use crate::handlers::resident_memory::tree_bytes;

/// Interval of the check whether a process has been replaced.
const RELOAD_INTERVAL: Duration = Duration::from_millis(100);

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
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match limit.judge(tree_bytes(process.pid)) {
            Verdict::Within => {}
            Verdict::Replace(why) => {
                if use_up(pool, process) {
                    let app = pool.name();
                    tracing::info!(app, pid = process.pid, reason = %why, "a process of an app is replaced");
                }
            }
            Verdict::Kill(why) => {
                // Fails if the process has ended.
                let _ =
                    process.requests.send(Request::OutOfMemory(format!("the process of the app was killed: {why}")));
                return std::future::pending().await;
            }
        }
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
