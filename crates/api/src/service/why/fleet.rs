//! Explanations that depend on workers, operators and consumer lag.

use kafleet_broker::{BrokerError, Partition};
use kafleet_documents::{AdaptiveDocument, Finding, Reason, TypeLimits, WorkerTotals};
use kafleet_fleet::control::ForcedCircuit;
use kafleet_fleet::control::heartbeat::{Heartbeat, HeartbeatState};
use kafleet_handlers::builtin::callback::receiver_of;
use kafleet_model::json::RawJson;
use kafleet_model::offsets::CompletedOffsets;
use kafleet_model::task::action::CALLBACK_TYPE;
use kafleet_model::task::kill::KillSubject;
use kafleet_model::units::duration::Millis;
use kafleet_model::units::time::time_text;
use kafleet_model::worker_status::{BatchStatus, TypeStatus};
use kafleet_runtime::clock::skew_text;
use kafleet_runtime::now_ms;

use crate::http::problem::ApiError;
use crate::read::consistency::TaskView;
use crate::service::task::{has_no_params, open_params};
use crate::service::types::{adaptive_of, limits_of};
use crate::service::workers::{live_workers, type_statuses, worker_totals};
use crate::state::Api;

use super::count::{Count, Counter};
use super::queue_reads::QueueReads;
use super::signs::{SignOfLife, last_event};
use super::{age, explain_record};

/// Maximum partitions of a type whose lag is added up.
const MAX_PARTITIONS: u32 = 256;

/// Pauses, circuits opened by hand and kill switches that apply to the task.
pub(super) async fn blocking_commands(api: &Api, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
    api.fleet.wait_for_control_state().await?;
    let Some(task_type) = task.record.task_type.as_deref() else { return Ok(Vec::new()) };
    let params = params_to_compare(api, task, task_type).await?;
    let control = api.fleet.control.state();
    let because = |reason: &Option<String>| reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let paused = control.paused.get(task_type).map(|pause| {
        let since = time_text(pause.at_ms);
        let error = format!("the type `{task_type}` has been paused since {since}{}", because(&pause.reason));
        Finding::new(Reason::Paused, format!("{error}; resume it with `kafleet types resume {task_type}`"))
    });
    let circuit = control.circuits.get(task_type).filter(|circuit| circuit.state == ForcedCircuit::Open);
    let opened = circuit.map(|circuit| {
        let since = time_text(circuit.at_ms);
        let error = format!("an operator opened the circuit of `{task_type}` at {since}{}", because(&circuit.reason));
        let remedy = format!("nothing starts until `kafleet types circuit {task_type} auto`");
        Finding::new(Reason::CircuitOpen, format!("{error}; {remedy}"))
    });
    let tags = task.record.definition.policy.as_ref().map_or(&[][..], |policy| &policy.tags);
    let subject = KillSubject { id: &task.id, task_type, tags, params: params.as_ref() };
    let killed = control.kill_of(&subject).map(|(name, kill)| {
        let by = if kill.params.is_empty() {
            String::new()
        } else {
            format!(" by its params {}", kill.params.pointers_text())
        };
        let because = because(&kill.reason);
        let message = format!("the kill switch `{name}` matches the task{by}{because}; it will be cancelled");
        Finding::new(Reason::MatchesKillSwitch, message)
    });
    Ok(paused.into_iter().chain(opened).chain(killed).collect())
}

/// Params of a task, if a kill switch compares those of its type. `None` too if its record is gone or invalid: then no worker
/// starts it.
async fn params_to_compare(api: &Api, task: &TaskView, task_type: &str) -> Result<Option<RawJson>, ApiError> {
    if !api.fleet.control.state().compares_params(task_type) {
        return Ok(None);
    }
    match open_params(api, task).await {
        Ok(found) => Ok(Some(found.params)),
        Err(error) if has_no_params(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Explains for a queued task which workers could take it, and which limits they have reached.
pub(super) async fn explain_workers(reads: &QueueReads<'_>, task: &TaskView) -> Result<Vec<Finding>, ApiError> {
    let api = reads.api;
    let Some(task_type) = task.record.task_type.as_deref() else { return Ok(Vec::new()) };
    let policy = api.types.policy(task_type);
    let (limits, is_opened) = {
        let control = api.fleet.control.state();
        let forced = control.circuits.get(task_type).map(|circuit| circuit.state);
        (limits_of(task_type, &control, policy.as_ref()), forced == Some(ForcedCircuit::Open))
    };
    let heartbeats = api.fleet.workers.heartbeats();
    let Some(work) = worker_totals(&heartbeats, task_type) else {
        let message =
            format!("no live worker takes `{task_type}`; start one with `kafleet worker --types {task_type}`");
        let has_heartbeats = has_read_heartbeats(reads).await;
        return Ok(has_heartbeats.then(|| Finding::new(Reason::NoWorker, message)).into_iter().collect());
    };
    let position = task.record.definition.position;
    let mut findings = position
        .map_or_else(Vec::new, |position| explain_stalled(&heartbeats, task_type, position.partition, is_opened));
    findings.extend(explain_open_host(api, task, &heartbeats).await);
    let adaptive = adaptive_of(task_type, &api.fleet.control.state(), &heartbeats);
    let reached = adaptive.as_ref().and_then(|adaptive| reached_adaptive(task_type, adaptive, &work));
    match reached {
        Some(finding) => findings.push(finding),
        None => findings.extend(reached_limits(task_type, &limits, &work)),
    }
    if let Some(position) = position {
        findings.extend(explain_forming_batch(&heartbeats, task_type, position.partition));
        let of_workers = live_workers(&heartbeats);
        findings.extend(of_workers.filter_map(|types| explain_full_app(types, task_type, position.partition)));
    }
    Ok(findings)
}

/// Explains a callback whose receiver does not answer, or whose circuit an operator has opened.
async fn explain_open_host(api: &Api, task: &TaskView, heartbeats: &[(i64, Heartbeat)]) -> Option<Finding> {
    let task_type = task.record.task_type.as_deref().filter(|task_type| *task_type == CALLBACK_TYPE)?;
    let control_is_empty = api.fleet.control.state().host_circuits.is_empty();
    if control_is_empty && type_statuses(heartbeats, task_type).all(|status| status.hosts.is_empty()) {
        return None;
    }
    let host = receiver_of(&open_params(api, task).await.ok()?.params)?;
    let control = api.fleet.control.state();
    let forced = control.host_settings(task_type).find(|(set, _)| *set == host).map(|(_, setting)| setting);
    let reason = match forced {
        Some(setting) if setting.state == ForcedCircuit::Closed => return None,
        Some(setting) => {
            let because = setting.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("an operator opened it at {}{because}", time_text(setting.at_ms))
        }
        None => {
            let partition = task.record.definition.position?.partition;
            let mut statuses = type_statuses(heartbeats, task_type);
            let status = statuses.find(|status| status.partitions.contains(&partition))?;
            status.hosts.iter().find(|open| open.host == host)?.reason.clone()
        }
    };
    let remedy = match forced {
        Some(_) => format!("release it with `kafleet types circuit {task_type} auto --host {host}`"),
        None => format!("it closes by itself; by hand: `kafleet types circuit {task_type} close --host {host}`"),
    };
    let message = format!("the circuit of the receiver `{host}` is open ({reason}); {remedy}");
    Some(Finding::new(Reason::HostOpen, message))
}

/// Explains a task that may wait in its worker for others to start with.
fn explain_forming_batch(heartbeats: &[(i64, Heartbeat)], task_type: &str, partition: i32) -> Option<Finding> {
    let mut statuses = type_statuses(heartbeats, task_type);
    let status = statuses.find(|status| status.partitions.contains(&partition))?;
    let batches = status.batches.filter(|batches| batches.forming > 0)?;
    let BatchStatus { forming, max, wait_ms } = batches;
    let wait = Millis(wait_ms);
    let message = format!(
        "tasks of `{task_type}` start in batches of up to {max}: in the task's worker {forming} wait for others, each batch \
         for at most {wait} after its first task"
    );
    Some(Finding::new(Reason::BatchForms, message))
}

/// Explains a task that waits for a slot or thread of its app, all of which attempts of other types hold. `types`: those of
/// a worker.
fn explain_full_app(types: &[TypeStatus], task_type: &str, partition: i32) -> Option<Finding> {
    let own = types.iter().find(|status| status.task_type == task_type && status.partitions.contains(&partition))?;
    let capacity = own.capacity.as_ref().filter(|_| own.in_flight < own.slots)?;
    let running = types.iter().filter(|status| status.capacity.as_ref() == Some(capacity) && status.in_flight > 0);
    let in_flight: u32 = running.clone().map(|status| status.in_flight).sum();
    let holders: Vec<String> = running.map(|status| format!("{} {}", status.task_type, status.in_flight)).collect();
    let message = format!(
        "the app `{}` of its worker runs as many attempts as it can, {capacity}: {}; give long tasks an app of their own, or \
         raise `processes`",
        capacity.app,
        holders.join(", ")
    );
    (in_flight >= capacity.total()).then(|| Finding::new(Reason::LimitReached, message))
}

/// Explains a task that waits because the service behind its type takes no more attempts at once.
fn reached_adaptive(task_type: &str, adaptive: &AdaptiveDocument, work: &WorkerTotals) -> Option<Finding> {
    let AdaptiveDocument { limit, fixed, cut_at, cut_reason } = adaptive;
    // A limit below the number of workers is kept by pauses, between which nothing runs.
    let is_reached = work.in_flight as f64 + 1.0 > *limit || *limit < work.workers as f64;
    let cut = cut_at.as_ref().zip(cut_reason.as_ref()).map(|(at, reason)| format!("; last cut at {at}: {reason}"));
    let origin = if *fixed { " an operator has set" } else { " was learned" };
    let message = format!(
        "the adaptive limit of `{task_type}` is {limit:.1} concurrent attempts over all workers, which{origin}{}",
        cut.unwrap_or_default()
    );
    is_reached.then(|| Finding::new(Reason::AdaptiveLimit, message))
}

fn reached_limits(task_type: &str, limits: &TypeLimits, work: &WorkerTotals) -> Vec<Finding> {
    let mut reached = Vec::new();
    if let Some(most) = limits.max_concurrency.filter(|most| work.in_flight >= u64::from(*most)) {
        reached.push(format!("`{task_type}` has reached its limit of {most} concurrent attempts over all workers"));
    } else if work.in_flight >= work.slots {
        let (slots, workers) = (work.slots, work.workers);
        reached.push(format!("all {slots} slots for `{task_type}` of {workers} live worker(s) are in use"));
    }
    reached.extend(limits.rate.map(|rate| format!("`{task_type}` has the rate limit {rate}")));
    reached.into_iter().map(|message| Finding::new(Reason::LimitReached, message)).collect()
}

/// Whether all heartbeats written before this call have been read. Before that a missing worker proves nothing.
async fn has_read_heartbeats(reads: &QueueReads<'_>) -> bool {
    let partition = Partition::new(reads.api.topology.names.workers(), 0);
    reads.ends(&partition).await.is_ok_and(|ends| reads.api.fleet.workers.has_read(ends))
}

/// Returns the consumer group that contains a type's commits, as recorded on the control topic.
pub(crate) fn consumer_group(api: &Api, task_type: &str) -> String {
    api.topology.names.group_id(task_type, api.fleet.control.state().group_of(task_type))
}

/// Counts the unfinished tasks of a type over all partitions. `None` if it has too many partitions.
pub(super) async fn consumer_lag(api: &Api, task_type: &str) -> Result<Option<Count>, ApiError> {
    let partitions = api.types.partitions_of(task_type).await?;
    if partitions > MAX_PARTITIONS {
        return Ok(None);
    }
    let (topic, group) = (api.topology.names.tasks(task_type), consumer_group(api, task_type));
    let offsets: Vec<Partition> = (0..partitions as i32).map(|index| Partition::new(topic.as_str(), index)).collect();
    let lag = api.reads.broker.call(move |broker, deadline| {
        let committed = broker.group_offsets(&group, &offsets, deadline)?;
        let mut counter = Counter::new(broker, deadline);
        let open = offsets.iter().zip(committed).map(|(partition, committed)| {
            let ends = broker.watermarks(partition, deadline)?;
            let completed = match committed {
                Some(at) => CompletedOffsets::of_commit(at.offset, &at.metadata),
                None => CompletedOffsets::starting_at(ends.low),
            };
            counter.open_below(partition, &completed, ends.high)
        });
        open.sum::<Result<Count, BrokerError>>()
    });
    Ok(Some(lag.await?))
}

/// Explains a task that a worker has taken, including the worker's last heartbeat.
pub(super) async fn explain_taken(api: &Api, task: &TaskView) -> Finding {
    let finding = explain_record(task);
    if task.record.worker.is_none() || !matches!(finding.code, Reason::Running | Reason::WorkerSilent) {
        return finding;
    }
    let heartbeat = heartbeat_of(api, task);
    let last_event = last_event(api, task).await;
    let now = now_ms();
    let sign = SignOfLife::newest(task, last_event.as_ref(), heartbeat.as_ref());
    let quiet_ms = sign.as_ref().map(|sign| now.saturating_sub(sign.at_ms).max(0) as u64);
    let sign = sign.map_or_else(String::new, |sign| format!("; {}", sign.text(now)));
    let received = heartbeat.map_or_else(
        || "; its worker has sent no heartbeat".to_owned(),
        |(received, heartbeat)| describe_heartbeat(&heartbeat, received, now),
    );
    Finding { quiet_ms, message: finding.message + &sign + &received, ..finding }
}

/// Last heartbeat of the worker of a task, and when it was received.
pub(super) fn heartbeat_of(api: &Api, task: &TaskView) -> Option<(i64, Heartbeat)> {
    let worker = task.record.worker.as_deref()?;
    api.fleet.workers.heartbeats().into_iter().find(|(_, heartbeat)| heartbeat.id == worker)
}

/// Explains why the worker that owns a partition starts no task of it: no start offset, too many failures, an open
/// circuit, or an app that is down. `is_opened`: an operator has opened the circuit, which [`blocking_commands`] reports.
fn explain_stalled(heartbeats: &[(i64, Heartbeat)], task_type: &str, partition: i32, is_opened: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for status in type_statuses(heartbeats, task_type).filter(|status| status.partitions.contains(&partition)) {
        findings.extend(status.refused.contains(&partition).then(|| {
            let reason = format!("its worker has no start offset for partition {partition} and does not consume it");
            let remedy =
                format!("set one with `kafleet offsets init {task_type}/{partition} --at earliest|OFFSET|TIME`");
            Finding::new(Reason::NoStartOffset, format!("{reason}; {remedy}"))
        }));
        findings.extend(status.stopped.as_ref().map(|reason| {
            let remedy =
                format!("resume with `kafleet types pause {task_type}` and `kafleet types resume {task_type}`");
            Finding::new(
                Reason::Stopped,
                format!("its worker has stopped starting `{task_type}` tasks: {reason}; fix the cause, then {remedy}"),
            )
        }));
        findings.extend(status.circuit.as_ref().filter(|_| !is_opened).map(|reason| {
            let remedy = format!("it closes by itself; by hand: `kafleet types circuit {task_type} close`");
            let message = format!(
                "its worker starts only single probes: the circuit of `{task_type}` is not closed ({reason}); {remedy}"
            );
            Finding::new(Reason::CircuitOpen, message)
        }));
        findings.extend(status.misplaced_keys.as_ref().map(|example| {
            let remedy = "set the partitioner of all producers to murmur2 (`partitioner=murmur2_random` in librdkafka)";
            let reason =
                format!("keys of `{task_type}` are in other partitions than they belong into, such as {example}");
            Finding::new(Reason::MisplacedKeys, format!("{reason}: attempts of one key may overlap; {remedy}"))
        }));
        findings.extend(status.app_down.as_ref().map(|reason| {
            let remedy = "fix the app; the worker keeps trying to start it";
            Finding::new(Reason::AppDown, format!("its worker cannot run `{task_type}` tasks: {reason}; {remedy}"))
        }));
    }
    findings
}

/// Describes the last heartbeat of a worker.
fn describe_heartbeat(heartbeat: &Heartbeat, received_ms: i64, now_ms: i64) -> String {
    let liveness = match heartbeat.state {
        HeartbeatState::Running => "",
        HeartbeatState::Draining => ", shutting down",
        HeartbeatState::Stopped => ", stopped",
    };
    let skew = skew_text(heartbeat.clock_ahead_ms(received_ms));
    let clock = skew.map_or_else(String::new, |skew| format!("; the clock of that machine is {skew}"));
    format!(
        "; the last heartbeat of its worker, process {} on `{}`, was {} ago{liveness}{clock}",
        heartbeat.pid,
        heartbeat.host,
        age(now_ms - received_ms)
    )
}

#[cfg(test)]
mod tests {
    use kafleet_model::worker_status::AppCapacity;

    use super::*;

    fn status(task_type: &str, in_flight: u32, threads: bool) -> TypeStatus {
        let capacity = AppCapacity { app: "shop".into(), processes: 2, per_process: 1, threads };
        let (task_type, capacity) = (task_type.to_owned(), Some(capacity));
        TypeStatus { task_type, slots: 2, in_flight, partitions: vec![0, 1], capacity, ..TypeStatus::default() }
    }

    #[test]
    fn workers_that_have_ended_or_are_silent_explain_nothing() {
        let now = now_ms();
        let heartbeat = |state: &str| -> Heartbeat {
            let value = serde_json::json!({
                "v": 1, "id": "w", "host": "h", "pid": 1, "version": "0", "state": state, "started_ms": now,
                "at_ms": now, "every_ms": 1_000, "held_bytes": 0, "types": [], "running": [],
            });
            serde_json::from_value(value).unwrap()
        };
        let live = |received_ms, state| live_workers(&[(received_ms, heartbeat(state))]).count();
        assert_eq!((live(now, "running"), live(now, "stopped"), live(now - 60_000, "running")), (1, 0, 0));
    }

    #[test]
    fn types_that_hold_the_threads_of_an_app_are_named() {
        let types = |crunch| [status("order", 0, true), status("crunch", crunch, true), status("fetch", 2, false)];
        let finding = explain_full_app(&types(2), "order", 1).unwrap();
        let expected = "the app `shop` of its worker runs as many attempts as it can, 2 processes × 1 thread = 2 at once: crunch 2; ";
        assert!(finding.message.starts_with(expected), "{}", finding.message);
        assert_eq!(explain_full_app(&types(1), "order", 1), None, "there is a free thread");
        assert_eq!(explain_full_app(&types(2), "order", 7), None, "another worker has its partition");
    }
}
