//! `GET /v1/workers`: who works, as told by heartbeats.

use axum::response::Response;

use super::task::json_answer;
use crate::api::documents::{RunningDocument, WorkerDocument, WorkerState, WorkerType, Workers};
use crate::api::http::problem::ApiError;
use crate::api::http::request::ApiRequest;
use crate::control::heartbeat::{Heartbeat, HeartbeatState, RunningTask, TypeStatus};
use crate::publish::time_text;
use crate::runtime::now_ms;

/// Workers of one answer: those heard of last.
const MAX_WORKERS: usize = 1_000;

pub async fn workers(call: ApiRequest) -> Result<Response, ApiError> {
    let (now, mut beats) = (now_ms(), call.api.roll.beats());
    beats.sort_by_key(|(heard, _)| std::cmp::Reverse(*heard));
    beats.truncate(MAX_WORKERS);
    let mut workers: Vec<WorkerDocument> = beats.into_iter().map(|(heard, beat)| document(beat, heard, now)).collect();
    workers.sort_by(|a, b| (a.state, &a.id).cmp(&(b.state, &b.id)));
    Ok(json_answer(200, &Workers { workers }))
}

/// What the workers that live say of a type.
pub fn parts<'a>(beats: &'a [(i64, Heartbeat)], task_type: &'a str) -> impl Iterator<Item = &'a TypeStatus> {
    let now = now_ms();
    let alive = beats.iter().filter(move |(heard, beat)| beat.state == HeartbeatState::Running && !beat.is_silent(*heard, now));
    alive.flat_map(|(_, beat)| &beat.types).filter(move |part| part.task_type == task_type)
}

/// The same, summed up. None: no worker lives that takes it.
pub fn at_work(beats: &[(i64, Heartbeat)], task_type: &str) -> Option<WorkerType> {
    parts(beats, task_type).fold(None, |sum, part| {
        let mut sum = sum.unwrap_or_else(WorkerType::default);
        sum.workers += 1;
        sum.slots += u64::from(part.slots);
        sum.in_flight += u64::from(part.in_flight);
        sum.stopped += u64::from(part.stopped.is_some());
        sum.refused.extend(&part.refused);
        sum.refused.sort_unstable();
        sum.refused.dedup();
        Some(sum)
    })
}

fn document(beat: Heartbeat, heard_ms: i64, now: i64) -> WorkerDocument {
    let state = match beat.state {
        HeartbeatState::Stopped => WorkerState::Stopped,
        _ if beat.is_silent(heard_ms, now) => WorkerState::Silent,
        HeartbeatState::Draining => WorkerState::Draining,
        HeartbeatState::Running => WorkerState::Alive,
    };
    let running = |task: RunningTask| RunningDocument {
        id: task.id,
        task_type: task.task_type,
        attempt: task.attempt,
        began_at: time_text(task.began_ms),
    };
    WorkerDocument {
        state,
        age_ms: now.saturating_sub(heard_ms).max(0),
        started_at: time_text(beat.started_ms),
        heard_at: time_text(heard_ms),
        id: beat.id,
        host: beat.host,
        pid: beat.pid,
        version: beat.version,
        held_bytes: beat.held_bytes,
        in_flight: beat.types.iter().map(|part: &TypeStatus| u64::from(part.in_flight)).sum(),
        types: beat.types,
        running: beat.running.into_iter().map(running).collect(),
    }
}
