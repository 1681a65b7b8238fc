//! `GET /v1/stats`, `/v1/stats/slowest`, `/v1/failures` and `/v1/audit`.

use std::time::{Duration, Instant};

use kafleet::documents::{
    Audit, AuditDocument, Failures, FlowVerdict, ListSource, OwnFailed, Slowest, Stats, TaskPage, TypeDocument, Types,
};
use kafleet::model::event::{AttemptFailure, Kind, Payload};
use kafleet::runtime::now_ms;
use kafleet_testkit::faults::{read_nodes, watermarks};
use reqwest::Method;
use serde_json::json;

use crate::api::dead_letters::{LETTER, NewLetter, with_letters};
use crate::api::fixture::{Fleet, PARTITIONS, fleet};
use crate::api::lists::next_millisecond;

fn failed(message: &str) -> Payload {
    Payload::Failed(AttemptFailure { started_at_ms: Some(now_ms() - 250), ..AttemptFailure::new("error", message, 1) })
}

fn succeeded() -> Payload {
    Payload::Succeeded { started_at_ms: Some(now_ms() - 40), output: None }
}

/// Sums of opened, succeeded and failed tasks, and the number of open ones.
async fn counts(fleet: &Fleet, query: &str) -> (u64, u64, u64, u64) {
    let stats: Stats = fleet.get(&format!("/v1/stats?{query}")).await;
    let points = stats.series.first().map(|series| series.points.clone()).unwrap_or_default();
    let open = points.last().map_or(0, |point| point.open);
    points.iter().fold((0, 0, 0, open), |sum, point| {
        (sum.0 + point.opened, sum.1 + point.succeeded, sum.2 + point.failed, sum.3)
    })
}

#[tokio::test]
async fn ended_and_open_tasks_are_counted_by_type() {
    let fleet = fleet().await;
    for n in 0..6 {
        fleet.echo(&format!("t{n}")).await;
    }
    for n in 0..4 {
        let payload = if n == 0 { failed("broken") } else { succeeded() };
        fleet.publish_event(&format!("t{n}"), payload, |_| {}).await;
    }
    fleet.folded().await;
    for query in ["", "type=echo", "by=type", "step=1h", "step=1d&type=echo"] {
        assert_eq!(counts(&fleet, query).await, (6, 3, 1, 2), "{query}");
    }
    let stats: Stats = fleet.get("/v1/stats?type=echo").await;
    assert_eq!((stats.exact_from, stats.left_out, stats.step.to_string()), (None, 0, "1m".into()));
    let runs: u64 = stats.series[0].points.iter().map(|point| point.run.count).sum();
    let busy: u64 = stats.series[0].points.iter().map(|point| point.busy_ms).sum();
    assert!(runs == 3 && busy >= 250 + 3 * 40, "{runs} runs, busy for {busy} ms");
    let slowest: Slowest = fleet.get("/v1/stats/slowest?limit=2").await;
    assert_eq!((slowest.attempts.len(), slowest.attempts[0].id.as_str()), (2, "t0"));
    assert!(slowest.attempts[0].took_ms >= 250, "{slowest:?}");
}

#[tokio::test]
async fn types_have_their_flow_and_the_tasks_that_failed_by_themselves() {
    let fleet = fleet().await;
    for id in ["order", "order:fetch", "waits"] {
        fleet.echo(id).await;
    }
    fleet.succeed("order", json!(1)).await;
    fleet.fail("order:fetch", "no answer").await;
    fleet.folded().await;
    let types: Types = fleet.get("/v1/types").await;
    let echo = types.types.into_iter().find(|document| document.name == "echo").unwrap();
    let alone: TypeDocument = fleet.get("/v1/types/echo").await;
    for document in [&echo, &alone] {
        assert_eq!(
            document.own_failed,
            Some(OwnFailed { tasks: 1, at_least: false }),
            "the parent failed through its child"
        );
        let flow = document.flow.clone().unwrap();
        assert_eq!((flow.backlog, flow.drained_in_ms), (1, None), "{flow:?}");
        assert_eq!((flow.verdict, flow.reason.as_deref()), (FlowVerdict::Stalled, Some("no worker takes it")));
    }
}

#[tokio::test]
async fn silent_kafka_delays_statistics_once_for_all_partitions() {
    let fleet = fleet().await;
    fleet.echo("t").await;
    fleet.folded().await;
    let silent = fleet.faults.on(watermarks(fleet.names.events())).block();
    let asked_at = Instant::now();
    let stats: Stats = fleet.get("/v1/stats?type=echo").await;
    let took = asked_at.elapsed();
    silent.lift();
    assert_eq!((stats.series[0].points.last().unwrap().open, silent.hits()), (1, PARTITIONS as usize));
    // One partition is waited for during a second.
    assert!(took < Duration::from_secs(PARTITIONS.into()), "took {took:?}, as if one waited after the other");
}

#[tokio::test]
async fn failed_tasks_are_grouped_by_error() {
    let fleet = fleet().await;
    for (n, message) in ["no answer from shard-1", "no answer from shard-22", "disk full"].into_iter().enumerate() {
        fleet.echo(&format!("t{n}")).await;
        fleet.publish_event(&format!("t{n}"), failed(message), |_| {}).await;
    }
    fleet.folded().await;
    let failures: Failures = fleet.get("/v1/failures?type=echo").await;
    let groups: Vec<(u64, &str)> = failures.groups.iter().map(|group| (group.count, group.text.as_str())).collect();
    assert_eq!(groups[0].0, 2);
    assert!(groups[0].1.starts_with("no answer from shard-") && groups[1] == (1, "disk full"), "{groups:?}");
    assert_eq!((failures.errors, failures.at_least), (2, false));
    assert_eq!(failures.groups[0].attempts_by_hour.iter().sum::<u64>(), 2);
    // A retried task has not failed.
    fleet.publish_event("t2", Kind::RetryRequested, |_| {}).await;
    fleet.folded().await;
    let failures: Failures = fleet.get("/v1/failures").await;
    assert_eq!(failures.groups.len(), 1);
    let audit: Audit = fleet.get("/v1/audit").await;
    assert_eq!(audit.requests.len(), 1);
    assert_eq!((audit.requests[0].action.as_str(), audit.requests[0].target.as_str()), ("retry", "t2"));
}

/// Requests in the audit, sorted by action: those of different partitions may have the same time.
async fn requests(fleet: &Fleet) -> Vec<AuditDocument> {
    fleet.folded().await;
    let mut requests = fleet.get::<Audit>("/v1/audit").await.requests;
    requests.sort_by(|one, other| one.action.cmp(&other.action));
    requests
}

fn targets(requests: &[AuditDocument]) -> Vec<(&str, &str)> {
    requests.iter().map(|request| (request.action.as_str(), request.target.as_str())).collect()
}

#[tokio::test]
async fn requests_about_types_kill_switches_and_schedules_are_audited() {
    let fleet = fleet().await;
    let spec = json!({"cron": "0 3 * * *", "task": {"type": "echo"}});
    let reason = || json!({"reason": "disk full"});
    for (method, path, body) in [
        (Method::POST, "/v1/types/echo/pause", reason()),
        (Method::POST, "/v1/types/echo/resume", json!({})),
        (Method::PUT, "/v1/types/echo/limits", json!({"slots": 2})),
        (Method::PUT, "/v1/kill-switches/batch", reason()),
        (Method::DELETE, "/v1/kill-switches/batch", json!({})),
        (Method::PUT, "/v1/views/failed", json!({"q": "state:failed"})),
        (Method::DELETE, "/v1/views/failed", json!({})),
        (Method::PUT, "/v1/types/echo/circuit", json!({"state": "open"})),
        (Method::PUT, "/v1/types/echo/circuit", json!({"state": "closed"})),
        (Method::PUT, "/v1/types/echo/circuit", json!({"state": "auto"})),
        (Method::POST, "/v1/schedules", json!({"id": "s", "spec": spec})),
        (Method::PUT, "/v1/schedules/s", spec),
        (Method::POST, "/v1/schedules/s/pause", reason()),
        (Method::POST, "/v1/schedules/s/resume", json!({})),
        (Method::POST, "/v1/schedules/s/trigger", json!({})),
        (Method::POST, "/v1/schedules/s/backfill?from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z", json!({})),
        (Method::DELETE, "/v1/schedules/s", json!({})),
    ] {
        let status = fleet.request(method, path).json(&body).send().await.unwrap().status();
        assert!(status.is_success(), "{path}: {status}");
    }
    let entries = requests(&fleet).await;
    let expected = [
        ("backfill_schedule", "s"),
        ("close_circuit", "echo"),
        ("create_schedule", "s"),
        ("delete_kill_switch", "batch"),
        ("delete_schedule", "s"),
        ("delete_view", "failed"),
        ("open_circuit", "echo"),
        ("pause_schedule", "s"),
        ("pause_type", "echo"),
        ("release_circuit", "echo"),
        ("resume_schedule", "s"),
        ("resume_type", "echo"),
        ("run_schedule", "s"),
        ("set_kill_switch", "batch"),
        ("set_limits", "echo"),
        ("set_view", "failed"),
        ("update_schedule", "s"),
    ];
    assert_eq!(targets(&entries), expected);
    for request in entries {
        if request.action == "set_limits" {
            let change = request.reason.unwrap_or_default();
            assert!(change.starts_with("slots ") && change.ends_with(" → 2"), "{change}");
            continue;
        }
        let has_reason = matches!(&*request.action, "pause_schedule" | "pause_type" | "set_kill_switch");
        assert_eq!(request.reason.as_deref(), has_reason.then_some("disk full"), "{}", request.action);
    }
    assert_audit_is_filtered(&fleet).await;
    assert_eq!(fleet.request(Method::POST, "/v1/types/none/pause").send().await.unwrap().status(), 404);
    assert_eq!(requests(&fleet).await.len(), expected.len(), "a refused request is not audited");
}

async fn assert_audit_is_filtered(fleet: &Fleet) {
    for (query, actions) in [
        ("target=ECHO&action=pause_type", vec!["pause_type"]),
        ("target=batch", vec!["delete_kill_switch", "set_kill_switch"]),
        ("by=ada", vec![]),
        ("to=2026-01-01T00:00:00Z", vec![]),
        ("from=2026-01-01T00:00:00Z&action=set_limits", vec!["set_limits"]),
    ] {
        let found: Audit = fleet.get(&format!("/v1/audit?{query}")).await;
        let mut found: Vec<String> = found.requests.into_iter().map(|request| request.action).collect();
        found.sort();
        assert_eq!(found, actions, "{query}");
    }
}

#[tokio::test]
async fn resolved_dead_letters_without_a_task_are_audited() {
    let fleet = with_letters().await;
    let letter = |key| NewLetter { code: "bad_json", value: b"{oops", task: None, key, ..LETTER };
    let (dropped, redriven) = (fleet.letter(letter("a"), 0).await, fleet.letter(letter("b"), 1).await);
    fleet.settle(&format!("/v1/dead-letters/{dropped}/drop")).await;
    fleet.settle(&format!("/v1/dead-letters/{redriven}/redrive")).await;
    let entries = requests(&fleet).await;
    assert_eq!(targets(&entries), [("drop", dropped.as_str()), ("redrive", redriven.as_str())]);
}

#[tokio::test]
async fn failures_name_workers_and_mark_superseded_tasks() {
    let fleet = fleet().await;
    fleet.echo("r").await;
    fleet.succeed("r", json!(1)).await;
    for (id, worker) in [("r:a", "w-2"), ("r:b", "w-1"), ("r:c", "w-2")] {
        fleet.echo(id).await;
        fleet.publish_event(id, failed("disk full"), |event| event.worker = Some(worker.into())).await;
    }
    fleet.folded().await;
    let group = |failures: Failures| failures.groups.into_iter().next().unwrap();
    let failures = group(fleet.get("/v1/failures").await);
    assert_eq!((failures.count, failures.workers.join(" ")), (3, "w-1 w-2".to_owned()));
    assert!(!failures.newest_superseded, "{failures:?}");
    fleet.publish_event("r", Kind::RetryRequested, |_| {}).await;
    fleet.folded().await;
    let failures = group(fleet.get("/v1/failures").await);
    assert_eq!((failures.count, failures.newest_superseded), (3, true), "{failures:?}");
}

#[tokio::test]
async fn redrive_of_a_task_is_audited_with_its_dead_letter() {
    let fleet = with_letters().await;
    fleet.echo("order").await;
    fleet.fail("order", "no answer").await;
    fleet.folded().await;
    let letter = fleet.letter(NewLetter { task: Some(("order", 1)), key: "order", ..LETTER }, 0).await;
    fleet.settle(&format!("/v1/dead-letters/{letter}/redrive")).await;
    assert_eq!(targets(&requests(&fleet).await), [("redrive", letter.as_str())]);
}

#[tokio::test]
async fn times_beyond_all_calendars_are_refused() {
    let fleet = fleet().await;
    for query in ["to=-9223372036854775808", "from=9223372036854775807&to=9223372036854775807"] {
        let refused = fleet.problem(&format!("/v1/stats?{query}")).await;
        assert_eq!((refused.status, refused.code.as_str()), (400, "bad_parameter"), "{query}: {refused:?}");
    }
    for time in ["-253402207200999", "253402207200999"] {
        let answer = fleet.request(Method::GET, &format!("/v1/stats?from={time}&to={time}")).send().await.unwrap();
        assert!(!answer.status().is_server_error(), "{time}: {}", answer.status());
    }
}

/// Task of this type that has failed.
async fn announce_failed(fleet: &Fleet, id: &str, task_type: &str, kind: &str, message: &str) {
    fleet.announce(id, task_type, None).await;
    fleet.publish_event(id, Payload::Failed(AttemptFailure::new(kind, message, 1)), |_| {}).await;
}

/// Charges that were declined for one customer each, and one that timed out.
async fn fleet_with_charges() -> Fleet {
    let fleet = fleet().await;
    for customer in ["Ada", "Ken", "Alan", "Grace"] {
        let (order, message) = (customer.to_lowercase(), format!("card of {customer}"));
        fleet.announce(&order, "order", None).await;
        announce_failed(&fleet, &format!("{order}:charge"), "charge", "PaymentDeclined", &message).await;
    }
    announce_failed(&fleet, "ada:again", "charge", "PaymentDeclined", "card of Ada").await;
    announce_failed(&fleet, "late", "charge", "timeout", "no answer from 10.0.0.7").await;
    fleet.folded().await;
    fleet
}

#[tokio::test]
async fn failures_by_kind_count_the_tasks_of_all_messages() {
    let fleet = fleet_with_charges().await;
    let failures: Failures = fleet.get("/v1/failures?by=kind").await;
    let kinds: Vec<_> =
        failures.groups.iter().map(|group| (group.kind.as_deref().unwrap(), group.count, group.messages)).collect();
    assert_eq!(kinds, [("PaymentDeclined", 5, Some(4)), ("timeout", 1, Some(1))]);
    assert_eq!((failures.errors, failures.at_least, failures.since), (2, false, None));
    assert_eq!(failures.groups[0].attempts_by_hour.iter().sum::<u64>(), 5);
    let messages: Failures = fleet.get("/v1/failures?kind=PaymentDeclined").await;
    let counts: Vec<_> = messages.groups.iter().map(|group| (group.count, group.kind.as_deref().unwrap())).collect();
    assert_eq!(
        counts,
        [(2, "PaymentDeclined"), (1, "PaymentDeclined"), (1, "PaymentDeclined"), (1, "PaymentDeclined")]
    );
    let found: Failures = fleet.get("/v1/failures?text=ALAN").await;
    assert_eq!((found.errors, found.groups[0].text.as_str()), (1, "PaymentDeclined: card of Alan"));
    let newest: Failures = fleet.get("/v1/failures?by=kind&sort=last&limit=1").await;
    assert_eq!((newest.groups.len(), newest.errors), (1, 2));
    for query in ["by=worker", "sort=name", "since=soon"] {
        let problem = fleet.problem(&format!("/v1/failures?{query}")).await;
        assert_eq!((problem.status, problem.code.as_str()), (400, "bad_parameter"), "{query}");
    }
}

#[tokio::test]
async fn kind_of_errors_is_searched_in_its_index() {
    let fleet = fleet_with_charges().await;
    let kind: Failures = fleet.get("/v1/failures?by=kind&limit=1").await;
    // The message of another kind is the same word.
    announce_failed(&fleet, "odd", "charge", "error", "PaymentDeclined").await;
    announce_failed(&fleet, "other", "order", "PaymentDeclined", "card of Ada").await;
    fleet.folded().await;
    let name = kind.groups[0].error.clone();
    for (error, expected) in [("PaymentDeclined", 6), (name.as_str(), 5), ("timeout", 1), ("none", 0)] {
        let query = format!("type:charge%20own:failed,expired%20error:{error}%20level:any");
        let page: TaskPage = fleet.get(&format!("/v1/tasks?q={query}")).await;
        assert_eq!((page.source, page.tasks.len()), (Some(ListSource::Errors), expected), "{error}");
        assert_eq!(page.scanned, Some(expected as u64), "{error}: other tasks are not read");
    }
}

#[tokio::test]
async fn failures_of_a_range_ended_in_it() {
    let fleet = fleet_with_charges().await;
    let hour: Failures = fleet.get("/v1/failures?by=kind&since=1h").await;
    assert_eq!((hour.groups[0].count, hour.groups[0].retained, hour.since.is_some()), (5, 5, true));
    for _ in 0..3 {
        next_millisecond().await;
    }
    let none: Failures = fleet.get("/v1/failures?by=kind&since=1ms").await;
    assert_eq!((none.groups.len(), none.errors), (0, 0), "{none:?}");
}

#[tokio::test]
async fn error_that_was_retried_was_seen_before() {
    let fleet = fleet().await;
    // A retry publishes the record again, so there must be one.
    fleet.echo("t").await;
    fleet.publish_event("t", Payload::Failed(AttemptFailure::new("timeout", "no answer", 1)), |_| {}).await;
    fleet.folded().await;
    let group = async || fleet.get::<Failures>("/v1/failures?by=kind").await.groups.into_iter().next();
    let new = group().await.unwrap();
    assert_eq!(new.first_seen, new.first, "it is new");
    next_millisecond().await;
    fleet.publish_event("t", Kind::RetryRequested, |_| {}).await;
    fleet.folded().await;
    assert_eq!(group().await, None);
    fleet
        .publish_event("t", Payload::Failed(AttemptFailure::new("timeout", "no answer", 1)), |event| event.run = 2)
        .await;
    fleet.folded().await;
    let back = group().await.unwrap();
    assert!(back.first > new.first && back.first_seen == new.first, "{back:?}");
}

#[tokio::test]
async fn failures_by_root_count_the_roots_that_hold_them() {
    let fleet = fleet_with_charges().await;
    let failures: Failures = fleet.get("/v1/failures?by=root").await;
    let groups: Vec<_> = failures
        .groups
        .iter()
        .map(|group| (group.root_type.as_deref().unwrap(), group.kind.as_deref().unwrap(), group.roots, group.count))
        .collect();
    assert_eq!(
        groups,
        [("order", "PaymentDeclined", Some(4), 5), ("charge", "timeout", Some(1), 1)],
        "two charges of one order"
    );
    assert!(!failures.at_least);
    // One kind below roots of two types: each row has the times and the newest task of its own roots.
    next_millisecond().await;
    fleet.announce("back", "refund", None).await;
    announce_failed(&fleet, "back:charge", "charge", "PaymentDeclined", "card of Mary").await;
    fleet.folded().await;
    let failures: Failures = fleet.get("/v1/failures?by=root").await;
    let of = |root_type: &str| {
        failures.groups.iter().find(|group| group.root_type.as_deref() == Some(root_type)).unwrap().clone()
    };
    let (order, refund) = (of("order"), of("refund"));
    assert_eq!((refund.newest.as_str(), refund.text.as_str()), ("back:charge", "PaymentDeclined: card of Mary"));
    assert!(order.last < refund.first && refund.first == refund.last, "{order:?} {refund:?}");
    assert_eq!((order.count, order.retained), (5, 6));
    assert_ne!(order.newest, refund.newest);
    let of_text: Failures = fleet.get("/v1/failures?by=root&text=declined&since=1h").await;
    assert_eq!(of_text.groups.len(), 2);
}

#[tokio::test]
async fn newest_tasks_of_failures_by_root_are_read_with_one_call_per_partition() {
    const ROOTS: usize = 24;
    let fleet = fleet().await;
    let mut calls = Vec::new();
    for n in 0..ROOTS {
        next_millisecond().await;
        fleet.announce(&format!("root-{n}"), &format!("order-{n}"), None).await;
        announce_failed(&fleet, &format!("root-{n}:charge"), "charge", "PaymentDeclined", &format!("card of {n}"))
            .await;
        if [1, ROOTS - 1].contains(&n) {
            fleet.folded().await;
            let reads = fleet.faults.count(read_nodes);
            let failures: Failures = fleet.get("/v1/failures?by=root").await;
            calls.push(reads.hits());
            reads.lift();
            assert_eq!(failures.groups.len(), n + 1);
            for group in &failures.groups {
                let number = group.root_type.as_deref().unwrap().replace("order-", "");
                assert_eq!(group.newest, format!("root-{number}:charge"));
                let own = group.text == format!("PaymentDeclined: card of {number}");
                assert!(own, "the text is that of the row: {group:?}");
            }
        }
    }
    // One for the kind, and one per partition for the roots and for the rows.
    assert!(calls[1] <= 1 + 2 * PARTITIONS as usize, "{calls:?} calls for 2 and for {ROOTS} rows");
}
