//! `workers`: lists workers and the tasks they run.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use kafleet_documents::{WorkerDocument, WorkerState, Workers};
use kafleet_fleet::control::heartbeat::TypeStatus;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::clock::skew_text;

use super::exit::{Code, Outcome};
use super::globals::Globals;
use super::output::{Field, Rows};

#[derive(Debug, Args)]
pub(super) struct WorkersArgs {
    /// List the running tasks instead of the workers
    #[arg(long)]
    pub running: bool,
    /// Include stopped workers
    #[arg(long)]
    pub all: bool,
}

pub(super) async fn workers(args: WorkersArgs, globals: &Globals) -> Outcome {
    let output = globals.output();
    let mut answer: Workers = globals.client()?.get(&["v1", "workers"], &Vec::new()).await?;
    if !args.all {
        answer.workers.retain(|worker| worker.state != WorkerState::Stopped);
    }
    if args.running {
        output.json_or_list(
            &answer,
            |answer| running(&answer.workers),
            "no task is running; `kafleet list --level any --state queued` lists queued tasks",
        )?;
    } else {
        output.json_or_list(&answer, |answer| rows(&answer.workers), empty_message(args.all))?;
    }
    Ok(Code::Ok)
}

fn empty_message(all: bool) -> &'static str {
    if all {
        "no worker has sent a heartbeat; `kafleet worker` starts one"
    } else {
        "no worker is alive; `kafleet worker` starts one, `kafleet workers --all` includes stopped ones"
    }
}

fn rows(workers: &[WorkerDocument]) -> Rows {
    let mut rows = Rows::new(["WORKER", "STATE", "HEARTBEAT", "VERSION", "IN FLIGHT", "GROUPS", "APPS", "TYPES"]);
    for worker in workers {
        let types: Vec<String> = worker.types.iter().map(type_summary).collect();
        rows.add([
            Field::Text(worker.id.clone()),
            Field::from(worker.state.name()),
            Field::Text(heartbeat(worker)),
            Field::Text(worker.version.clone()),
            Field::Number(worker.in_flight),
            groups(&worker.types),
            apps(&worker.types),
            Field::Text(types.join(", ")),
        ]);
    }
    rows
}

/// Age of the last heartbeat, and the difference of the machine's clock to the brokers' if it is notable.
fn heartbeat(worker: &WorkerDocument) -> String {
    let clock = skew_text(worker.clock_ahead_ms).map_or_else(String::new, |skew| format!(", clock {skew}"));
    format!("{} ago{clock}", seconds(worker.age_ms))
}

/// Formats the groups that types share, with the number of the worker's types in each: `small (12)`.
fn groups(types: &[TypeStatus]) -> Field {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    types.iter().filter_map(|status| status.group.as_deref()).for_each(|group| *counts.entry(group).or_default() += 1);
    if counts.is_empty() {
        return Field::Empty;
    }
    let groups: Vec<String> = counts.iter().map(|(group, count)| format!("{group} ({count})")).collect();
    Field::Text(groups.join(", "))
}

/// Formats the capacity of the apps, such as `shop: 2 processes × 10 slots = 20 at once`.
fn apps(types: &[TypeStatus]) -> Field {
    let capacity = types.iter().filter_map(|status| status.capacity.as_ref());
    let apps: BTreeSet<String> = capacity.map(|capacity| format!("{}: {capacity}", capacity.app)).collect();
    if apps.is_empty() { Field::Empty } else { Field::Text(Vec::from_iter(apps).join(", ")) }
}

/// Formats a type's slots in use, as `echo 3/8`, and its problems.
fn type_summary(type_summary: &TypeStatus) -> String {
    let paused = if type_summary.paused { " paused" } else { "" };
    let stopped = if type_summary.stopped.is_some() { " stopped" } else { "" };
    let app_down = if type_summary.app_down.is_some() { " app down" } else { "" };
    let circuit = if type_summary.circuit.is_some() { " circuit open" } else { "" };
    let misplaced = if type_summary.misplaced_keys.is_some() { " misplaced keys" } else { "" };
    let refused: Vec<String> = type_summary.refused.iter().map(ToString::to_string).collect();
    let refused = if refused.is_empty() { String::new() } else { format!(" refuses {}", refused.join(",")) };
    let excess = type_summary.capacity.as_ref().and_then(|capacity| capacity.excess(type_summary.slots));
    let above = if excess.is_some() { " above its capacity" } else { "" };
    let slots = format!("{}/{}{above}", type_summary.in_flight, type_summary.slots);
    format!("{} {slots}{paused}{stopped}{circuit}{app_down}{misplaced}{refused}", type_summary.task_type)
}

fn running(workers: &[WorkerDocument]) -> Rows {
    let mut rows = Rows::new(["TASK", "TYPE", "ATTEMPT", "SINCE", "WORKER"]);
    for worker in workers {
        for task in &worker.running {
            rows.add([
                Field::Text(task.id.clone()),
                Field::Text(task.task_type.clone()),
                Field::Number(task.attempt.into()),
                Field::Text(task.started_at.clone()),
                Field::Text(worker.id.clone()),
            ]);
        }
    }
    rows
}

fn seconds(ms: i64) -> String {
    match u64::try_from(ms / 1000).unwrap_or_default() {
        0 => "0s".to_owned(),
        seconds => Millis::secs(seconds).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use kafleet_model::worker_status::AppCapacity;

    use super::*;
    use crate::cli::output::Paint;

    fn worker(types: Vec<TypeStatus>) -> WorkerDocument {
        WorkerDocument {
            id: "host-abc".into(),
            state: WorkerState::Alive,
            age_ms: 2_100,
            last_heartbeat_at: String::new(),
            clock_ahead_ms: 4_900,
            started_at: String::new(),
            host: "host".into(),
            pid: 7,
            version: "0.1.0".into(),
            held_bytes: 0,
            in_flight: 3,
            types,
            running: Vec::new(),
        }
    }

    fn type_status(name: &str, in_flight: u32, slots: u32, paused: bool) -> TypeStatus {
        TypeStatus { task_type: name.into(), in_flight, slots, paused, ..TypeStatus::default() }
    }

    fn capacity(threads: bool, per_process: u32) -> Option<AppCapacity> {
        Some(AppCapacity { app: "shop".into(), processes: 2, per_process, threads })
    }

    #[test]
    fn types_show_slots_in_use() {
        let types = vec![
            type_status("echo", 3, 8, false),
            TypeStatus { group: Some("small".into()), ..type_status("resize", 0, 4, true) },
            TypeStatus {
                stopped: Some("why".into()),
                circuit: Some("open".into()),
                refused: vec![1, 3],
                ..type_status("shaky", 1, 2, false)
            },
            TypeStatus { app_down: Some("why".into()), ..type_status("thumbnail", 0, 2, false) },
            TypeStatus { capacity: capacity(false, 1), ..type_status("crop", 1, 4, false) },
            TypeStatus { capacity: capacity(true, 2), ..type_status("report", 0, 4, false) },
        ];
        let expected = "\
WORKER    STATE  HEARTBEAT  VERSION  IN FLIGHT  GROUPS     APPS                                                                               TYPES
host-abc  alive  2s ago     0.1.0            3  small (1)  shop: 2 processes × 1 slot = 2 at once, shop: 2 processes × 2 threads = 4 at once  echo 3/8, resize 0/4 paused, shaky 1/2 stopped circuit open refuses 1,3, thumbnail 0/2 app down, crop 1/4 above its capacity, report 0/4";
        assert_eq!(rows(&[worker(types)]).draw(Paint(false), false), expected);
        let behind = WorkerDocument { clock_ahead_ms: -90_000, ..worker(Vec::new()) };
        assert_eq!(heartbeat(&behind), "2s ago, clock 90 s behind the brokers'");
        assert_eq!((seconds(7).as_str(), seconds(61_000).as_str()), ("0s", "61s"));
    }
}
