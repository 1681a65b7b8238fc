//! Recurring schedules: what people want of them goes to the control topic, and the tracker does it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use tokio::time::{Instant, timeout_at};

use super::cancel::check_reason;
use super::task::json_answer;
use crate::api::Api;
use crate::api::backends::detached;
use crate::api::documents::{
    LastFiring, NewSchedule, PauseType, Paused, ResumeType, ScheduleAsked, ScheduleDocument, ScheduleNote, ScheduleTimes,
    Schedules,
};
use crate::api::http::problem::{ApiError, Code};
use crate::api::http::request::{ApiRequest, bad_parameter};
use crate::control::schedules::{MAX_ASKS, MAX_SCHEDULES, ScheduleKey, ScheduleRequest, Span};
use crate::control::{self, CONTROL_VERSION};
use crate::model::json::RawJson;
use crate::model::schedule::step::State;
use crate::model::schedule::{self, Schedule, Spec, Times, check_name, run_of, task_of};
use crate::model::task::id::{TaskId, clip};
use crate::model::task::parse_time;
use crate::publish::time_text;
use crate::runtime::now_ms;

/// How long an answer waits until this api has read what it wrote, or what the tracker did about it.
const SEEN_DEADLINE: Duration = Duration::from_secs(5);
/// Times that a schedule shows.
const NEXT: usize = 5;
const TIMES: usize = 10;
const MAX_TIMES: usize = 1_000;
/// Times of one backfill.
const MAX_BACKFILL: usize = 1_000;

/// `GET /v1/schedules`.
pub async fn list(call: ApiRequest) -> Result<Response, ApiError> {
    let api = &call.api;
    api.known_orders().await?;
    let known: Vec<(String, Arc<Schedule>)> = {
        let orders = api.control.orders();
        orders.plan.schedules.iter().map(|(id, schedule)| (id.clone(), schedule.clone())).collect()
    };
    Ok(json_answer(200, &Schedules { schedules: api.schedule_documents(known).await? }))
}

/// `GET /v1/schedules/{id}`.
pub async fn show(call: ApiRequest) -> Result<Response, ApiError> {
    let known = call.api.schedule(&call.segment).await?;
    call.api.schedule_answer(200, call.segment.clone(), known).await
}

/// `GET /v1/schedules/{id}/times`.
pub async fn times(call: ApiRequest) -> Result<Response, ApiError> {
    let after = time(&call, "after")?.unwrap_or_else(now_ms);
    let count = call.query.number("count", TIMES, 1..=MAX_TIMES)?;
    let known = call.api.schedule(&call.segment).await?;
    let times = times_of(&known.spec)?.upcoming(after, count).into_iter().map(time_text).collect();
    Ok(json_answer(200, &ScheduleTimes { id: call.segment, times }))
}

/// `POST /v1/schedules`.
pub async fn create(call: ApiRequest) -> Result<Response, ApiError> {
    let NewSchedule { id, spec, paused } = call.json()?;
    check_name(&id).map_err(|why| ApiError::new(Code::BadField, why).pointer("/id"))?;
    let api = call.api.clone();
    api.check_spec(&spec, "/spec").await?;
    api.known_orders().await?;
    if api.control.orders().plan.schedules.contains_key(&id) {
        return Err(ApiError::new(Code::DuplicateSchedule, format!("there is a schedule `{id}`"))
            .pointer("/id")
            .hint("change it with PUT /v1/schedules/{id}, or delete it first"));
    }
    let now = now_ms();
    let paused = paused.then_some(schedule::Paused { at_ms: now, reason: None });
    let wanted = Schedule { v: CONTROL_VERSION, at_ms: now, from_ms: now, paused, applied: false, spec };
    api.set_schedule(&id, wanted, 201).await
}

/// `PUT /v1/schedules/{id}`.
pub async fn put(call: ApiRequest) -> Result<Response, ApiError> {
    let (id, api) = (call.segment.clone(), call.api.clone());
    let spec: Spec = call.json()?;
    let applied = call.query.parsed::<bool>("applied")?.unwrap_or_default();
    check_name(&id).map_err(|why| ApiError::new(Code::BadField, why))?;
    api.check_spec(&spec, "").await?;
    api.known_orders().await?;
    let (now, known) = (now_ms(), api.control.orders().plan.schedules.get(&id).cloned());
    let (from_ms, paused, status) = match &known {
        Some(known) if known.spec.same_times(&spec) => (known.from_ms, known.paused.clone(), 200),
        // Its new times have no past.
        Some(known) => (now, known.paused.clone(), 200),
        None => (now, None, 201),
    };
    api.set_schedule(&id, Schedule { v: CONTROL_VERSION, at_ms: now, from_ms, paused, applied, spec }, status).await
}

/// `DELETE /v1/schedules/{id}`.
pub async fn delete(call: ApiRequest) -> Result<Response, ApiError> {
    let known = call.api.schedule(&call.segment).await?;
    let documents = call.api.schedule_documents(vec![(call.segment.clone(), known)]).await?;
    let (api, id) = (call.api.clone(), call.segment);
    detached(async move { api.arrange(&ScheduleKey::Schedule(id), None::<&Schedule>).await }).await?;
    Ok(json_answer(200, &documents.first()))
}

/// `POST /v1/schedules/{id}/pause`.
pub async fn pause(call: ApiRequest) -> Result<Response, ApiError> {
    let PauseType { reason } = call.json_or_default()?;
    check_reason(reason.as_deref())?;
    let known = call.api.schedule(&call.segment).await?;
    let now = now_ms();
    let paused = Some(schedule::Paused { at_ms: now, reason });
    call.api.set_schedule(&call.segment, Schedule { paused, at_ms: now, ..(*known).clone() }, 200).await
}

/// `POST /v1/schedules/{id}/resume`.
pub async fn resume(call: ApiRequest) -> Result<Response, ApiError> {
    let ResumeType {} = call.json_or_default()?;
    let known = call.api.schedule(&call.segment).await?;
    if known.paused.is_none() {
        return call.api.schedule_answer(200, call.segment.clone(), known).await;
    }
    let now = now_ms();
    let wanted = Schedule { paused: None, at_ms: now, from_ms: now, ..(*known).clone() };
    call.api.set_schedule(&call.segment, wanted, 200).await
}

/// Advice after a run was asked for with an unknown outcome.
const REPEAT_RUN: &str = "if `last` of the schedule names no new task, repeat the request; otherwise a repeat makes a second one";

/// `POST /v1/schedules/{id}/run`.
pub async fn run(call: ApiRequest) -> Result<Response, ApiError> {
    let known = call.api.schedule(&call.segment).await?;
    call.api.check_known_type(&known.spec.task.task_type).await?;
    let ask = ask_name();
    let tasks = vec![run_of(&call.segment, &ask)];
    let done = call.api.ask(call.segment.clone(), ask, None, tasks).await;
    done.map_err(|refusal| refusal.hint_if_unknown(REPEAT_RUN))
}

/// `POST /v1/schedules/{id}/backfill`.
pub async fn backfill(call: ApiRequest) -> Result<Response, ApiError> {
    let now = now_ms();
    let from_ms = time(&call, "from")?.ok_or_else(|| bad_parameter("from", "it says where to begin, and is missing"))?;
    let to_ms = time(&call, "to")?.unwrap_or(now);
    if to_ms > now {
        return Err(bad_parameter("to", "it is in the future: a backfill makes up for what is past"));
    }
    if to_ms < from_ms {
        return Err(bad_parameter("to", "it is before `from`"));
    }
    let known = call.api.schedule(&call.segment).await?;
    call.api.check_known_type(&known.spec.task.task_type).await?;
    let mut times = times_of(&known.spec)?.upcoming(from_ms - 1, MAX_BACKFILL + 1);
    times.retain(|time| *time <= to_ms);
    if times.len() > MAX_BACKFILL {
        let why = format!("there are more than {MAX_BACKFILL} times between `from` and `to`");
        return Err(ApiError::new(Code::TooManyTimes, why).hint("ask for a shorter span, then for the next one"));
    }
    let tasks = times.iter().map(|time| task_of(&call.segment, *time)).collect();
    call.api.ask(call.segment.clone(), ask_name(), Some(Span { from_ms, to_ms }), tasks).await
}

/// Requests of the same millisecond are still two.
fn ask_name() -> String {
    format!("{}-{:04x}", schedule::stamp(now_ms()), fastrand::u16(..))
}

fn time(call: &ApiRequest, name: &str) -> Result<Option<i64>, ApiError> {
    call.query.text(name).map(|text| parse_time(text).map_err(|why| bad_parameter(name, &why))).transpose()
}

fn times_of(spec: &Spec) -> Result<Times, ApiError> {
    Times::of(spec).map_err(|flaws| {
        let why = flaws.first().map(|flaw| flaw.what.clone()).unwrap_or_default();
        ApiError::new(Code::BadField, format!("its times cannot be read: {why}"))
    })
}

fn paused(paused: &schedule::Paused) -> Paused {
    Paused { since: time_text(paused.at_ms), reason: paused.reason.clone() }
}

fn note(note: &schedule::step::Note) -> ScheduleNote {
    let (time, at) = (time_text(note.time_ms), time_text(note.at_ms));
    ScheduleNote { outcome: note.outcome, time, at, task: note.task.clone(), count: note.count }
}

impl Api {
    /// A schedule that must be there.
    async fn schedule(&self, id: &str) -> Result<Arc<Schedule>, ApiError> {
        self.known_orders().await?;
        let known = self.control.orders().plan.schedules.get(id).cloned();
        known.ok_or_else(|| {
            ApiError::new(Code::UnknownSchedule, format!("there is no schedule `{}`", clip(id)))
                .hint("GET /v1/schedules lists them")
        })
    }

    async fn check_spec(&self, spec: &Spec, at: &str) -> Result<(), ApiError> {
        if let Some(flaw) = spec.flaws().into_iter().next() {
            let refusal = ApiError::new(Code::BadField, flaw.what).pointer(format!("{at}/{}", flaw.at));
            return Err(flaw.hint.map_or(refusal.clone(), |hint| refusal.hint(hint)));
        }
        let task = &spec.task;
        let place = |refusal: ApiError, below: &str| refusal.pointer(format!("{at}/task/{below}"));
        self.check_known_type(&task.task_type).await.map_err(|refusal| place(refusal, "type"))?;
        let params = RawJson::of(&task.params).map_err(|why| place(ApiError::new(Code::BadField, why.to_string()), "params"))?;
        self.check_fit(&task.task_type, &params, &format!("{at}/task/params"))?;
        self.check_thens_fit(&task.then, &format!("{at}/task/then"))?;
        self.check_known_thens(&task.then).await.map_err(|refusal| refusal.below(&format!("{at}/task")))?;
        let (rules, at) = (task.rules(), format!("{at}/task"));
        self.check_tells(&rules, now_ms()).map_err(|refusal| refusal.below(&at))?;
        self.check_deliverable(&rules).await.map_err(|refusal| refusal.below(&at))
    }

    async fn set_schedule(self: &Arc<Self>, id: &str, wanted: Schedule, status: u16) -> Result<Response, ApiError> {
        let full = {
            let schedules = &self.control.orders().plan.schedules;
            schedules.len() >= MAX_SCHEDULES && !schedules.contains_key(id)
        };
        if full {
            return Err(ApiError::new(Code::TooManySchedules, format!("there are {MAX_SCHEDULES} schedules"))
                .hint("delete one: DELETE /v1/schedules/{id}"));
        }
        let (api, key, wanted) = (self.clone(), ScheduleKey::Schedule(id.to_owned()), Arc::new(wanted));
        let said = wanted.clone();
        detached(async move { api.arrange(&key, Some(&*said)).await }).await?;
        self.schedule_answer(status, id.to_owned(), wanted).await
    }

    /// Writes it, and waits a little until this api sees it too.
    async fn arrange<T: serde::Serialize>(&self, key: &ScheduleKey, said: Option<&T>) -> Result<(), ApiError> {
        let written = control::arrange(self.publisher.link(), self.publisher.names(), key, said).await;
        let place = written.map_err(ApiError::of_write)?;
        tracing::info!(%key, "told to the tracker");
        // It is written; this api is only late to see it.
        let _ = tokio::time::timeout(SEEN_DEADLINE, self.control.reached(place.offset)).await;
        Ok(())
    }

    /// Asks the tracker, and waits a little until it has done it.
    async fn ask(
        self: &Arc<Self>,
        id: String,
        ask: String,
        backfill: Option<Span>,
        tasks: Vec<String>,
    ) -> Result<Response, ApiError> {
        if self.control.orders().plan.asks.len() >= MAX_ASKS {
            let why = format!("{MAX_ASKS} requests wait for the tracker already");
            return Err(ApiError::new(Code::Overloaded, why).hint("see that a tracker is running"));
        }
        let (api, said) = (self.clone(), ScheduleRequest { v: CONTROL_VERSION, at_ms: now_ms(), backfill });
        let (key, name) = (ScheduleKey::ScheduleRequest(id.clone(), ask.clone()), (id.clone(), ask));
        detached(async move { api.arrange(&key, Some(&said)).await }).await?;
        let (end, mut changes) = (Instant::now() + SEEN_DEADLINE, self.control.changes());
        let done = loop {
            changes.borrow_and_update();
            if !self.control.orders().plan.asks.contains_key(&name) {
                break true;
            }
            if self.shutdown.is_draining() || !matches!(timeout_at(end, changes.changed()).await, Ok(Ok(()))) {
                break false;
            }
        };
        Ok(json_answer(202, &ScheduleAsked { id, tasks, done }))
    }

    async fn schedule_answer(&self, status: u16, id: String, schedule: Arc<Schedule>) -> Result<Response, ApiError> {
        let documents = self.schedule_documents(vec![(id, schedule)]).await?;
        Ok(json_answer(status, &documents.first()))
    }

    async fn schedule_documents(&self, schedules: Vec<(String, Arc<Schedule>)>) -> Result<Vec<ScheduleDocument>, ApiError> {
        let states: Vec<Arc<State>> = {
            let orders = self.control.orders();
            schedules.iter().map(|(id, _)| orders.plan.states.get(id).cloned().unwrap_or_default()).collect()
        };
        let last = states.iter().filter_map(|state| TaskId::parse(&state.last.as_ref()?.task).ok()).collect();
        let ended = self.task_states(last).await?;
        let mut documents = Vec::with_capacity(schedules.len());
        for ((id, schedule), state) in schedules.into_iter().zip(states) {
            let known = self.check_known_type(&schedule.spec.task.task_type).await;
            let trouble = match known {
                Err(refusal) if refusal.is(Code::UnknownType) => Some(refusal.document().detail),
                _ => None,
            };
            documents.push(document(id, &schedule, &state, &ended, trouble));
        }
        Ok(documents)
    }

    /// The states of these tasks, as far as they are known.
    async fn task_states(&self, ids: Vec<TaskId>) -> Result<BTreeMap<String, crate::model::record::state::State>, ApiError> {
        let mut by_partition = BTreeMap::<u32, Vec<TaskId>>::new();
        ids.into_iter().for_each(|id| by_partition.entry(self.publisher.partition_of(&id)).or_default().push(id));
        let mut states = BTreeMap::new();
        for (partition, ids) in by_partition {
            let nodes = self.nodes(partition, &ids).await?;
            states.extend(ids.iter().zip(nodes).filter_map(|(id, node)| Some((id.to_string(), node?.state))));
        }
        Ok(states)
    }
}

fn document(
    id: String,
    schedule: &Schedule,
    state: &State,
    states: &BTreeMap<String, crate::model::record::state::State>,
    trouble: Option<String>,
) -> ScheduleDocument {
    let times = Times::of(&schedule.spec).ok();
    let next = times.map(|times| times.upcoming(now_ms(), NEXT)).unwrap_or_default();
    ScheduleDocument {
        id,
        spec: schedule.spec.clone(),
        paused: schedule.paused.as_ref().map(paused),
        applied: schedule.applied,
        changed_at: time_text(schedule.at_ms),
        next: next.into_iter().map(time_text).collect(),
        fired: state.fired,
        skipped: state.skipped,
        missed: state.missed,
        waiting: state.waiting_ms.map(time_text),
        last: state.last.as_ref().map(|last| LastFiring {
            time: time_text(last.time_ms),
            at: time_text(last.at_ms),
            task: last.task.clone(),
            state: states.get(&last.task).copied(),
        }),
        recent: state.recent.iter().map(note).collect(),
        trouble,
    }
}
