//! Blame for processes that die soon after their start: that of the app, which may die by itself, or of the attempt that was
//! running. The next process gets no attempts until it has lasted or died, and so decides.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{AppPool, PoolFields, ProcessHandle};
use crate::process::{LASTING_AFTER, ProcessEnd};
use crate::session::Cause;

/// Maximum time of a judgement, after which the app is to blame: it has no process that lasts.
const DEADLINE: Duration = Duration::from_secs(10);

/// State of the judgements of an app.
#[derive(Default)]
pub(super) struct Blame {
    /// Attempts whose process died early, and which wait for a judgement.
    pending: usize,
    /// The last process that started without attempts has died early.
    is_unstable: bool,
}

/// Number of processes that have lasted, and of those that died early without an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    lasted: u64,
    died_idle: u64,
}

/// Judgement that is pending, until it is dropped.
struct Judgement(Arc<AppPool>);

impl Judgement {
    fn begin(pool: &Arc<AppPool>) -> Self {
        change_blame(pool, |blame| blame.pending += 1);
        Self(pool.clone())
    }
}

impl Drop for Judgement {
    fn drop(&mut self) {
        change_blame(&self.0, |blame| blame.pending -= 1);
    }
}

/// Changes the state of the judgements, and whether processes that have just started get attempts.
fn change_blame(pool: &AppPool, change: impl FnOnce(&mut Blame)) {
    let granted = {
        let PoolFields { table, blame, .. } = &mut *pool.state.lock();
        change(blame);
        table.withhold_young(blame.pending > 0 || blame.is_unstable)
    };
    pool.hand_out(granted);
}

/// Returns whether all processes of an app run and have lasted: the app is not to blame for their deaths.
pub fn all_last(pool: &AppPool) -> bool {
    let processes = &pool.state.lock().processes;
    processes.len() >= pool.settings.processes as usize
        && processes.iter().all(|process| process.since.elapsed() > LASTING_AFTER)
}

/// Waits for evidence after the early death of a process with one attempt. Returns whether the app is to blame: not while
/// another of its processes lasts.
pub(super) async fn is_to_blame(pool: &Arc<AppPool>) -> bool {
    if pool.state.lock().table.has_lasting() {
        return false;
    }
    let mut evidence = pool.evidence.subscribe();
    let before = evidence.get_and_mark();
    let _judgement = Judgement::begin(pool);
    match timeout(DEADLINE, evidence.wait_for(|now| *now != before)).await {
        Ok(Ok(now)) => now.lasted == before.lasted,
        Ok(Err(_)) | Err(_) => true,
    }
}

/// Notes that a process has lasted for some time.
pub(super) async fn note_lasting(pool: &AppPool, process: &ProcessHandle) -> Infallible {
    tokio::time::sleep(LASTING_AFTER).await;
    let granted = pool.state.lock().table.has_lasted(process.id);
    pool.hand_out(granted);
    change_blame(pool, |blame| blame.is_unstable = false);
    pool.evidence.send_modify(|evidence| evidence.lasted += 1);
    std::future::pending().await
}

/// Notes the death of a process that had no attempt.
pub(super) fn note_death(pool: &AppPool, process: &ProcessHandle, end: &ProcessEnd) {
    if !end.is_expected && matches!(end.cause, Cause::CrashedEarly) && !process.session.has_run() {
        change_blame(pool, |blame| blame.is_unstable = true);
        pool.evidence.send_modify(|evidence| evidence.died_idle += 1);
    }
}
