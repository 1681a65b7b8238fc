//! `GET /v1/workers`: workers and their heartbeats.

use kafleet_documents::{RunningDocument, WorkerDocument, WorkerState, WorkerTotals, Workers};
use kafleet_fleet::control::heartbeat::{Heartbeat, HeartbeatState, RunningTask, TypeStatus};
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;

use super::context::RequestContext;
use crate::http::problem::ApiError;
use crate::state::Api;

/// Maximum workers in a response; the most recently active ones are kept.
const MAX_WORKERS: usize = 1_000;

pub(crate) async fn workers(RequestContext { api, .. }: RequestContext) -> Result<Workers, ApiError> {
    Ok(worker_list(&api))
}

pub fn worker_list(api: &Api) -> Workers {
    let (now, mut heartbeats) = (now_ms(), api.fleet.workers.heartbeats());
    heartbeats.sort_by_key(|(received_ms, _)| std::cmp::Reverse(*received_ms));
    heartbeats.truncate(MAX_WORKERS);
    let mut workers: Vec<WorkerDocument> =
        heartbeats.into_iter().map(|(received_ms, heartbeat)| document(heartbeat, received_ms, now)).collect();
    workers.sort_by(|a, b| (a.state, &a.id).cmp(&(b.state, &b.id)));
    Workers { workers }
}

/// Status of a type in each live worker.
pub(crate) fn type_statuses<'a>(
    heartbeats: &'a [(i64, Heartbeat)],
    task_type: &'a str,
) -> impl Iterator<Item = &'a TypeStatus> {
    live_workers(heartbeats).flatten().filter(move |status| status.task_type == task_type)
}

/// Statuses of all types of each live worker.
pub(crate) fn live_workers(heartbeats: &[(i64, Heartbeat)]) -> impl Iterator<Item = &[TypeStatus]> {
    let now = now_ms();
    let alive = heartbeats.iter().filter(move |(received_ms, heartbeat)| {
        heartbeat.state == HeartbeatState::Running && !heartbeat.is_silent(*received_ms, now)
    });
    alive.map(|(_, heartbeat)| &heartbeat.types[..])
}

/// Totals of a type over the live workers; `None` if no live worker takes it.
pub(crate) fn worker_totals(heartbeats: &[(i64, Heartbeat)], task_type: &str) -> Option<WorkerTotals> {
    type_statuses(heartbeats, task_type).fold(None, |sum, status| {
        let mut sum = sum.unwrap_or_else(WorkerTotals::default);
        sum.workers += 1;
        sum.slots += status.usable_slots();
        sum.in_flight += u64::from(status.in_flight);
        sum.stopped += u64::from(status.stopped.is_some());
        sum.circuit_open += u64::from(status.circuit.is_some());
        sum.open_hosts = sum.open_hosts.max(u64::from(status.open_hosts));
        sum.refused.extend(&status.refused);
        sum.refused.sort_unstable();
        sum.refused.dedup();
        Some(sum)
    })
}

fn document(heartbeat: Heartbeat, received_ms: i64, now: i64) -> WorkerDocument {
    let state = match heartbeat.state {
        HeartbeatState::Stopped => WorkerState::Stopped,
        _ if heartbeat.is_silent(received_ms, now) => WorkerState::Silent,
        HeartbeatState::Draining => WorkerState::Draining,
        HeartbeatState::Running => WorkerState::Alive,
    };
    let running = |task: RunningTask| RunningDocument {
        id: task.id,
        task_type: task.task_type,
        attempt: task.attempt,
        started_at: time_text(task.started_ms),
    };
    WorkerDocument {
        state,
        clock_ahead_ms: heartbeat.clock_ahead_ms(received_ms),
        age_ms: now.saturating_sub(received_ms).max(0),
        started_at: time_text(heartbeat.started_ms),
        last_heartbeat_at: time_text(received_ms),
        id: heartbeat.id,
        host: heartbeat.host,
        pid: heartbeat.pid,
        version: heartbeat.version,
        held_bytes: heartbeat.held_bytes,
        in_flight: heartbeat.types.iter().map(|status: &TypeStatus| u64::from(status.in_flight)).sum(),
        types: heartbeat.types,
        running: heartbeat.running.into_iter().map(running).collect(),
    }
}
