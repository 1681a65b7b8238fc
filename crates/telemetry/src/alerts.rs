//! Alerts for Prometheus. This table is their only source: `kafleet metrics alerts` prints it as a rule file, which the
//! helm chart ships. Each alert has a heading of its name in docs/runbook.md.

/// Urgency of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertSeverity {
    /// Tasks do not run, or are lost: an operator has to act now.
    Page,
    /// Must be checked during working hours.
    Warning,
}

impl AlertSeverity {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Warning => "warning",
        }
    }
}

/// Alerting rule.
#[derive(Debug)]
pub struct Alert {
    pub name: &'static str,
    pub severity: AlertSeverity,
    /// Time for which the expression must hold before the alert fires, as Prometheus writes it.
    pub hold: &'static str,
    /// PromQL.
    pub expr: &'static str,
    /// Sentence with labels of the expression as `{{ $labels.NAME }}`.
    pub summary: &'static str,
}

const fn page(name: &'static str, hold: &'static str, expr: &'static str, summary: &'static str) -> Alert {
    Alert { name, severity: AlertSeverity::Page, hold, expr, summary }
}

const fn warning(name: &'static str, hold: &'static str, expr: &'static str, summary: &'static str) -> Alert {
    Alert { name, severity: AlertSeverity::Warning, hold, expr, summary }
}

/// All alerts, in the order of the runbook.
pub const ALERTS: &[Alert] = &[
    page(
        "KafleetTypeStopped",
        "1m",
        "max by (type) (kafleet_type_stopped) > 0",
        "A worker starts no tasks of the type {{ $labels.type }}, because too many attempts have failed.",
    ),
    warning(
        "KafleetCircuitOpen",
        "5m",
        "max by (type) (kafleet_circuit_open) > 0",
        "The circuit of the type {{ $labels.type }} is open: the service behind it does not answer, and only probes start.",
    ),
    warning(
        "KafleetServiceRefuses",
        "10m",
        "sum by (type) (rate(kafleet_refused_total[5m])) > 0.05 * sum by (type) (rate(kafleet_tasks_started_total[5m]))",
        "The service behind the type {{ $labels.type }} refuses more than 5 % of its attempts, although their number adapts.",
    ),
    page(
        "KafleetPartitionHeldBack",
        "1m",
        "kafleet_window_held_offset == (kafleet_window_held_offset offset 10m)",
        "One incomplete task has kept partition {{ $labels.partition }} of the type {{ $labels.type }} from starting others for 10 minutes.",
    ),
    warning(
        "KafleetSlotsStuck",
        "10m",
        "sum by (type) (kafleet_slots_stuck) > 0",
        "{{ $value }} slots of the type {{ $labels.type }} are held by attempts that have ended but do not return.",
    ),
    page(
        "KafleetNoWorker",
        "5m",
        "(max by (type) (kafleet_type_backlog) > 0) unless on (type) (sum by (type) (kafleet_type_slots) > 0)",
        "{{ $value }} tasks of the type {{ $labels.type }} wait, and no worker serves the type.",
    ),
    page(
        "KafleetAppDown",
        "2m",
        "sum by (app) (kafleet_app_processes) == 0",
        "No process of the app {{ $labels.app }} serves: tasks of its types wait.",
    ),
    page(
        "KafleetNoTracker",
        "5m",
        r#"absent(kafleet_process_info{role="tracker"})"#,
        "No tracker is running: states are out of date, and retries, continuations and schedules are not published.",
    ),
    page("KafleetNoApi", "5m", r#"absent(kafleet_process_info{role="api"})"#, "No API is running."),
    warning(
        "KafleetTargetDown",
        "5m",
        r#"up{job=~".*kafleet.*"} == 0"#,
        "The metrics of {{ $labels.instance }} cannot be read.",
    ),
    warning(
        "KafleetClockWrong",
        "5m",
        "max by (instance) (abs(kafleet_clock_ahead_seconds)) >= 5",
        "The clock of the machine of {{ $labels.instance }} differs by {{ $value }} s from the brokers'.",
    ),
    warning(
        "KafleetMisplacedKeys",
        "0m",
        "sum by (type) (increase(kafleet_misplaced_keys_total[15m])) > 0",
        "A producer chooses other partitions for the keys of the type {{ $labels.type }}: attempts of one key may overlap.",
    ),
    warning(
        "KafleetIdsConflict",
        "0m",
        "sum(increase(kafleet_tracker_id_conflicts_total[15m])) > 0",
        "A producer uses ids of other tasks for {{ $value }} tasks.",
    ),
    warning(
        "KafleetQueueWaitHigh",
        "10m",
        "histogram_quantile(0.99, sum by (type, le) (rate(kafleet_task_queue_wait_seconds_bucket[5m]))) > 60",
        "1 % of the tasks of the type {{ $labels.type }} wait longer than {{ $value | humanizeDuration }} for their start.",
    ),
    warning(
        "KafleetBacklogGrows",
        "15m",
        "(max by (type) (kafleet_type_backlog) > 600 * sum by (type) (rate(kafleet_tasks_finished_total[10m]))) and delta((max by (type) (kafleet_type_backlog))[10m:1m]) > 0",
        "{{ $value }} tasks of the type {{ $labels.type }} wait: more than ten minutes of work, and growing.",
    ),
    warning(
        "KafleetFailureRatio",
        "0m",
        // Of tasks, not of attempts: a type with ten retries has ten failed attempts for each failed task.
        r#"(sum by (type) (increase(kafleet_tasks_finished_total{outcome=~"failed|rejected"}[10m])) / sum by (type) (increase(kafleet_tasks_finished_total{outcome=~"succeeded|failed|rejected|cancelled|expired"}[10m])) > 0.1) and (sum by (type) (increase(kafleet_tasks_finished_total{outcome=~"succeeded|failed|rejected|cancelled|expired"}[10m])) >= 20)"#,
        "{{ $value | humanizePercentage }} of the tasks of the type {{ $labels.type }} failed for good in the last 10 minutes.",
    ),
    warning(
        "KafleetDeadLetters",
        "0m",
        "sum by (type) (increase(kafleet_dead_letters_total[15m])) > 10",
        "{{ $value }} tasks of the type {{ $labels.type }} became dead letters in the last 15 minutes.",
    ),
    page(
        "KafleetTasksRemovedByRetention",
        "0m",
        // The series begins with the first task, which `increase` does not see.
        "sum by (type) (increase(kafleet_tasks_removed_by_retention_total[15m])) > 0 or (sum by (type) (kafleet_tasks_removed_by_retention_total) unless sum by (type) (kafleet_tasks_removed_by_retention_total offset 15m))",
        "Kafka removed tasks of the type {{ $labels.type }} before a worker took them.",
    ),
    page(
        "KafleetTrackerLag",
        "5m",
        r#"(max by (partition) (kafleet_partition_lag_records{topic=~".*[.]events"}) > 30 * sum by (partition) (rate(kafleet_fold_batch_events_sum[5m]))) > 100"#,
        "States of events partition {{ $labels.partition }} are out of date: {{ $value }} events are not projected.",
    ),
    warning(
        "KafleetTrackerRewinds",
        "0m",
        "sum by (partition) (increase(kafleet_tracker_rewinds_total[15m])) > 3",
        "Events partition {{ $labels.partition }} was read again from its checkpoint {{ $value }} times in the last 15 minutes.",
    ),
    page(
        "KafleetStoreLost",
        "0m",
        "sum by (partition) (increase(kafleet_tracker_store_losses_total[15m])) > 0",
        "Redis has lost keys of events partition {{ $labels.partition }}, which is projected again.",
    ),
    warning(
        "KafleetUncleanTakeovers",
        "0m",
        "sum by (type) (increase(kafleet_unclean_takeovers_total[15m])) > 3",
        "{{ $value }} partitions of the type {{ $labels.type }} were taken over from workers that did not release them.",
    ),
    warning(
        "KafleetCancelsRemain",
        "10m",
        "max(kafleet_control_cancels) > 10000",
        "{{ $value }} cancels are on the control topic: they are not withdrawn as fast as they arrive.",
    ),
    warning(
        "KafleetScheduleLate",
        "0m",
        "histogram_quantile(0.99, sum by (le) (rate(kafleet_schedule_lateness_seconds_bucket[10m]))) > 60",
        "Recurring schedules fire more than a minute late.",
    ),
    warning(
        "KafleetScheduleMissed",
        "0m",
        r#"sum(increase(kafleet_schedule_times_total{outcome="missed"}[15m])) > 0"#,
        "Recurring schedules missed {{ $value }} times in the last 15 minutes.",
    ),
    page(
        "KafleetOutboxStuck",
        "1m",
        "max(kafleet_outbox_oldest_seconds) > 60",
        "The oldest row of the outbox is {{ $value | humanizeDuration }} old: submitted tasks are not published.",
    ),
    warning(
        "KafleetOutboxFenced",
        "0m",
        "sum(increase(kafleet_outbox_fenced_total[15m])) > 2",
        "Relays have taken the outbox from each other {{ $value }} times in the last 15 minutes.",
    ),
    page(
        "KafleetApiErrors",
        "5m",
        r#"(sum(increase(kafleet_http_requests_total{status=~"5.."}[5m])) / sum(increase(kafleet_http_requests_total[5m])) > 0.02) and (sum(increase(kafleet_http_requests_total[5m])) >= 20)"#,
        "{{ $value | humanizePercentage }} of the requests to the API fail.",
    ),
];

/// Renders a rule file. `runbook` is the address of docs/runbook.md.
pub fn rules(runbook: &str) -> String {
    let mut text = String::from("groups:\n  - name: kafleet\n    rules:\n");
    for alert in ALERTS {
        let Alert { name, hold, expr, summary, severity } = alert;
        let url = format!("{runbook}#{}", name.to_lowercase());
        // JSON strings are YAML strings.
        let [expr, summary, url] =
            [*expr, *summary, url.as_str()].map(|text| serde_json::Value::from(text).to_string());
        let severity = severity.name();
        text += &format!(
            "      - alert: {name}\n        expr: {expr}\n        for: {hold}\n        labels: {{severity: {severity}}}\n        \
             annotations:\n          summary: {summary}\n          runbook_url: {url}\n"
        );
    }
    text
}
