//! `isolation = "process"`: abilities of attempts in child processes, and crashes that do not reach the worker.

use kafleet::broker::memory::MemoryBroker;
use kafleet::config::{Bytes, Isolation};
use kafleet::control::{self, Cancel, ControlKey, ControlRecord};
use kafleet::handlers::program_env::WithheldVariables;
use kafleet::model::event::Kind as EventKind;
use kafleet::model::task::hash::spawn_hash;
use kafleet::model::units::duration::Millis;
use kafleet::worker::child::OwnExecutable;
use serde_json::{Value, json};

use crate::crashing_handlers::{Act, Crashing, SECRET, count_runs, crashing, params, waiting};
use crate::fleet::{Fleet, eventually, memory};
use crate::types::Kind;
use crate::{Case, block_on};

pub const CASES: &[Case] = &[
    ("attempt_in_a_child_process_has_all_abilities", attempt_in_a_child_process_has_all_abilities),
    ("child_process_and_its_programs_inherit_no_secrets", child_process_and_its_programs_inherit_no_secrets),
    ("layers_and_hooks_run_in_the_child_process", layers_and_hooks_run_in_the_child_process),
    ("crash_of_the_process_is_a_failed_attempt", crash_of_the_process_is_a_failed_attempt),
    ("child_process_is_reused_up_to_its_limit", child_process_is_reused_up_to_its_limit),
    ("attempt_that_does_not_stop_is_killed", attempt_that_does_not_stop_is_killed),
    ("cancelled_attempt_ends_with_its_process", cancelled_attempt_ends_with_its_process),
    ("child_processes_end_with_their_worker", child_processes_end_with_their_worker),
    ("signs_of_life_cross_the_process", signs_of_life_cross_the_process),
    ("process_that_crashes_while_idle_fails_no_attempt", process_that_crashes_while_idle_fails_no_attempt),
    ("worker_that_cannot_isolate_refuses_to_start", worker_that_cannot_isolate_refuses_to_start),
];

/// Variable that a configuration expands.
const EXPANDED: &str = "CRASH_TEST_PASSWORD";
/// Variables of the worker that programs must not see.
pub const SECRET_VARIABLES: [&str; 3] = [EXPANDED, "KAFLEET_TOKEN", "KAFLEET_REDIS"];

async fn fleet(change: impl FnOnce(&mut Kind)) -> (Fleet, std::sync::Arc<MemoryBroker>) {
    let mut kind = crashing(Isolation::Process);
    change(&mut kind);
    let (mut fleet, broker) = memory(1, &[kind, Kind::echo("leaf")]).await;
    fleet.own_executable = OwnExecutable::of_this_process(WithheldVariables::new([EXPANDED.to_owned()].into()));
    (fleet, broker)
}

async fn send(fleet: &Fleet, id: &str, act: Act) {
    fleet.send(<Crashing as kafleet::handlers::Task>::TYPE, id, &params(act)).await;
}

/// Sends a task with a short timeout.
async fn send_short(fleet: &Fleet, id: &str, act: Act) {
    let headers = [("ce_id", id), ("ce_timeout", "1500ms")];
    fleet.send_record("crashing", None, None, Some(params(act).as_bytes()), &headers).await;
}

async fn output(fleet: &Fleet, id: &str) -> Value {
    let event = fleet.result_of(id).await;
    event.payload.output().unwrap_or_else(|| panic!("`{id}`: {:?}", event.payload.error())).value().unwrap()
}

fn attempt_in_a_child_process_has_all_abilities() {
    block_on(async {
        let (fleet, _) = fleet(|_| ()).await;
        let worker = fleet.worker();
        send(&fleet, "reports", Act::Report).await;
        send(&fleet, "fails", Act::SpawnAndFail).await;
        let result = output(&fleet, "reports").await;
        assert_ne!(result["pid"], json!(std::process::id()), "the attempt runs in a child process");
        let expected = json!({"pid": result["pid"], "key": "reports/1", "attempt": 1, "greeting": "hello from the app", "tenant": null});
        assert_eq!(result, expected);
        // The parent, three children, and the one that fails.
        fleet.wait_for_results(5).await;
        let events = fleet.events.all();
        let of_parent =
            |kind| events.iter().filter(move |event| event.id.as_str() == "reports" && event.kind() == kind);
        let lines: Vec<String> = of_parent(EventKind::Log).flat_map(|event| event.payload.lines().to_vec()).collect();
        let mut children: Vec<&str> =
            events.iter().map(|event| event.id.as_str()).filter(|id| id.contains(':')).collect();
        children.sort_unstable();
        children.dedup();
        assert_eq!(children.len(), 3, "{children:?}");
        assert!(children.iter().all(|id| id.starts_with("reports:leaf-")), "{children:?}");
        assert!(lines[0] == "a line" && lines[1].starts_with("reports:leaf-"), "{lines:?}");
        assert_eq!(of_parent(EventKind::Progress).count(), 1);
        let end = fleet.result_of("fails").await;
        let failed = end.payload.error().unwrap();
        assert_eq!((&*failed.kind, &*failed.message), ("own_kind", "after spawning"));
        worker.stop().await;
        fleet.assert_clean("crashing").await;
    });
}

fn child_process_and_its_programs_inherit_no_secrets() {
    block_on(async {
        let (fleet, _) = fleet(|_| ()).await;
        let worker = fleet.worker();
        send(&fleet, "withheld", Act::Environment).await;
        assert_eq!(output(&fleet, "withheld").await, json!([]));
        worker.stop().await;
    });
    block_on(async {
        let named = (EXPANDED.to_owned(), SECRET.to_owned());
        let (fleet, _) = fleet(|kind| kind.registered.policy.variables.own = [named].into()).await;
        let worker = fleet.worker();
        send(&fleet, "named", Act::Environment).await;
        let line = format!("{EXPANDED}={SECRET}");
        assert_eq!(output(&fleet, "named").await, json!([line, line]), "in the child process and in its program");
        worker.stop().await;
    });
}

fn layers_and_hooks_run_in_the_child_process() {
    block_on(async {
        let keep_tenant = |kind: &mut Kind| kind.registered.policy.keep_headers = vec!["x-tenant".into()];
        let (mut fleet, _) = fleet(keep_tenant).await;
        // The worker has the same hooks, and does not run them again.
        fleet.app = std::sync::Arc::new(|registry| {
            registry.prepare(count_runs);
        });
        let worker = fleet.worker();
        let headers = [("ce_id", "old-name"), ("x-tenant", "acme")];
        fleet.send_record("crashing", None, None, Some(br#"{"act": "reply"}"#), &headers).await;
        let result = output(&fleet, "old-name").await;
        assert_ne!(result["pid"], json!(std::process::id()), "the attempt runs in a child process");
        assert_eq!(result["tenant"], "acme");
        fleet.send("crashing", "unknown-name", r#"{"act": "respond"}"#).await;
        assert_eq!(fleet.result_of("unknown-name").await.payload.error().unwrap().kind, "schema");
        send(&fleet, "prepares", Act::Prepare).await;
        for runs in [1, 11] {
            let params = json!({"runs": runs});
            let id = format!("prepares:leaf-{}", spawn_hash("leaf", &params.clone().into()).unwrap());
            assert_eq!(output(&fleet, &id).await, params);
        }
        worker.stop().await;
    });
}

fn crash_of_the_process_is_a_failed_attempt() {
    block_on(async {
        let (fleet, _) = fleet(|kind| kind.registered.policy.isolation_memory = Bytes(256 << 20)).await;
        let worker = fleet.worker();
        let crashes = [
            ("abort", Act::Abort, "SIGABRT", "enough of this"),
            ("segfault", Act::Segfault, "SIGSEGV", ""),
            ("exit", Act::Exit, "exited with code 0", "nothing on stderr"),
            ("overflow", Act::Overflow, "SIGABRT", "overflowed its stack"),
            ("devour", Act::Devour, "SIGABRT", "memory allocation of"),
        ];
        for (id, act, ..) in crashes {
            send(&fleet, id, act).await;
        }
        for n in 0..50 {
            send(&fleet, &format!("good-{n}"), Act::Answer).await;
        }
        fleet.wait_for_results(55).await;
        // The process survives and may serve another attempt, to which late output of this one must not be
        // attributed.
        send(&fleet, "panic", Act::Panic).await;
        fleet.wait_for_results(56).await;
        for (id, _, how, stderr) in crashes {
            let event = fleet.result_of(id).await;
            let error = event.payload.error().unwrap();
            assert_eq!(
                (event.kind(), event.attempt, &*error.kind),
                (EventKind::Failed, 2, "crashed"),
                "{id}: {error:?}"
            );
            assert!(error.message.contains(how) && error.message.contains(stderr), "{id}: {}", error.message);
        }
        assert_eq!(fleet.result_of("panic").await.payload.error().unwrap().kind, "panic");
        for n in 0..50 {
            assert_eq!(fleet.result_of(&format!("good-{n}")).await.kind(), EventKind::Succeeded);
        }
        assert_eq!(worker.metric("kafleet_child_process_ends_total", "crashed"), 10.0);
        worker.stop().await;
    });
}

fn child_process_is_reused_up_to_its_limit() {
    block_on(async {
        let limits = |kind: &mut Kind| {
            kind.registered.policy.isolation_tasks = 4;
            kind.registered.policy.concurrency = Some(1);
        };
        let (fleet, _) = fleet(limits).await;
        let worker = fleet.worker();
        let mut pids = Vec::new();
        for n in 0..12 {
            let id = format!("t{n}");
            send(&fleet, &id, Act::Answer).await;
            pids.push(output(&fleet, &id).await["pid"].as_u64().unwrap());
        }
        pids.dedup();
        assert_eq!(pids.len(), 3, "twelve attempts, four in each process");
        worker.stop().await;
    });
}

fn attempt_that_does_not_stop_is_killed() {
    block_on(async {
        let limits = |kind: &mut Kind| {
            kind.registered.policy.retries = 0;
            kind.registered.policy.concurrency = Some(1);
        };
        let (mut fleet, _) = fleet(limits).await;
        fleet.config.grace = Millis::secs(60);
        let patient = fleet.worker();
        send_short(&fleet, "stops", Act::Stop).await;
        assert_eq!(
            output(&fleet, "stops").await["key"],
            "stops/1",
            "its token was cancelled, and it answered within the grace period"
        );
        patient.stop().await;
        fleet.config.grace = Millis(200);
        let worker = fleet.worker();
        send_short(&fleet, "ignores", Act::Ignore).await;
        assert_eq!(fleet.result_of("ignores").await.payload.error().unwrap().kind, "timeout");
        // The slot is free.
        send(&fleet, "next", Act::Answer).await;
        output(&fleet, "next").await;
        assert_eq!(worker.metric("kafleet_child_process_ends_total", "killed"), 1.0);
        worker.stop().await;
    });
}

fn cancelled_attempt_ends_with_its_process() {
    block_on(async {
        let (fleet, _) = fleet(|kind| kind.registered.policy.concurrency = Some(1)).await;
        let worker = fleet.worker();
        // Both attempts use one process, one after the other.
        send(&fleet, "first", Act::Answer).await;
        let pid = output(&fleet, "first").await["pid"].as_u64().unwrap();
        send(&fleet, "ignores", Act::Ignore).await;
        fleet.events.wait("the attempt runs", |events| events.iter().any(|event| event.id.as_str() == "ignores")).await;
        let cancel = Cancel { v: 1, asof: 5, at_ms: 0, subtree: true, reason: None, by: None };
        control::put_record(
            &fleet.producer,
            &fleet.names,
            &ControlKey::Cancel("ignores".into()),
            &ControlRecord::Cancel(cancel),
        )
        .await
        .unwrap();
        let end = fleet.result_of("ignores").await;
        assert_eq!((end.kind(), end.attempt), (EventKind::Cancelled, 1), "{end:?}");
        eventually("its process has ended", async || !exists(pid)).await;
        send(&fleet, "next", Act::Answer).await;
        assert_ne!(output(&fleet, "next").await["pid"].as_u64(), Some(pid));
        worker.stop().await;
    });
}

pub fn exists(pid: u64) -> bool {
    // A zombie does not count.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

fn child_processes_end_with_their_worker() {
    block_on(async {
        let (fleet, _) = fleet(|_| ()).await;
        let worker = fleet.worker();
        send(&fleet, "idle", Act::Answer).await;
        let pid = output(&fleet, "idle").await["pid"].as_u64().unwrap();
        assert!(exists(pid), "the child process is idle");
        worker.stop().await;
        eventually("the child process has ended", async || !exists(pid)).await;
    });
}

fn signs_of_life_cross_the_process() {
    block_on(async {
        let limits = |kind: &mut Kind| {
            // Longer than a pause of a busy machine, shorter than the duration of `heartbeats`.
            kind.registered.policy.stall_timeout = Some(Millis::secs(5));
            kind.registered.policy.retries = 0;
        };
        let (fleet, _) = fleet(limits).await;
        let worker = fleet.worker();
        send(&fleet, "beats", Act::Heartbeats).await;
        send(&fleet, "chatters", Act::Chatter).await;
        send(&fleet, "silent", Act::Ignore).await;
        assert_eq!(fleet.result_of("beats").await.kind(), EventKind::Succeeded);
        for id in ["chatters", "silent"] {
            assert_eq!(fleet.result_of(id).await.payload.error().map(|error| &*error.kind), Some("stalled"), "{id}");
        }
        worker.stop().await;
    });
}

/// A process that crashes between two attempts fails none of them: the next attempt starts in another process.
fn process_that_crashes_while_idle_fails_no_attempt() {
    block_on(async {
        let (fleet, _) = fleet(|kind| kind.registered.policy.concurrency = Some(1)).await;
        let worker = fleet.worker();
        let folder = tempfile::tempdir().unwrap();
        let step = folder.path().join("step");
        fleet.send("crashing", "mine", &waiting(Act::DelayedAbort, &step)).await;
        let pid = output(&fleet, "mine").await["pid"].as_u64().unwrap();
        std::fs::write(&step, "").unwrap();
        eventually("the process has crashed", async || !exists(pid)).await;
        send(&fleet, "next", Act::Answer).await;
        let next = output(&fleet, "next").await;
        assert_eq!((next["attempt"].as_u64(), next["pid"].as_u64() == Some(pid)), (Some(1), false));
        worker.stop().await;
    });
}

fn worker_that_cannot_isolate_refuses_to_start() {
    block_on(async {
        let (mut fleet, _) = fleet(|_| ()).await;
        fleet.own_executable = None;
        let worker = fleet.worker();
        eventually("the worker ends", async || worker.has_ended()).await;
        let error = worker.failure().await;
        assert!(error.contains("isolation") && error.contains("kafleet::app()"), "{error}");
    });
}
