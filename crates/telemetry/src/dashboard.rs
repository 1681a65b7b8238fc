//! Dashboard for Grafana, from one table of panels; `kafleet metrics dashboard` prints it.

use serde_json::{Value, json};

/// Panel with a graph.
struct Panel {
    title: &'static str,
    /// Unit in Grafana's names.
    unit: &'static str,
    /// PromQL with the legend of its series.
    queries: &'static [(&'static str, &'static str)],
}

const fn panel(title: &'static str, unit: &'static str, queries: &'static [(&'static str, &'static str)]) -> Panel {
    Panel { title, unit, queries }
}

/// Rows of panels, from what users notice to its causes.
const ROWS: &[(&str, &[Panel])] = &[
    (
        "Tasks",
        &[
            panel(
                "Tasks submitted",
                "ops",
                &[(
                    r#"sum by (type) (rate(kafleet_tasks_submitted_total{type=~"$type"}[$__rate_interval]))"#,
                    "{{type}}",
                )],
            ),
            panel(
                "Attempts ended",
                "ops",
                &[(
                    r#"sum by (outcome) (rate(kafleet_tasks_finished_total{type=~"$type"}[$__rate_interval]))"#,
                    "{{outcome}}",
                )],
            ),
            panel("Backlog", "short", &[(r#"max by (type) (kafleet_type_backlog{type=~"$type"})"#, "{{type}}")]),
            panel(
                "Wait for the start, 99 %",
                "s",
                &[(
                    r#"histogram_quantile(0.99, sum by (type, le) (rate(kafleet_task_queue_wait_seconds_bucket{type=~"$type"}[$__rate_interval])))"#,
                    "{{type}}",
                )],
            ),
            panel(
                "Duration of attempts, median and 99 %",
                "s",
                &[
                    (
                        r#"histogram_quantile(0.5, sum by (type, le) (rate(kafleet_task_run_seconds_bucket{type=~"$type"}[$__rate_interval])))"#,
                        "{{type}} median",
                    ),
                    (
                        r#"histogram_quantile(0.99, sum by (type, le) (rate(kafleet_task_run_seconds_bucket{type=~"$type"}[$__rate_interval])))"#,
                        "{{type}} 99 %",
                    ),
                ],
            ),
            panel(
                "Retries, waits and dead letters",
                "ops",
                &[
                    (
                        r#"sum by (type) (rate(kafleet_task_retries_total{type=~"$type"}[$__rate_interval]))"#,
                        "{{type}} retried",
                    ),
                    (
                        r#"sum by (type) (rate(kafleet_waits_total{type=~"$type"}[$__rate_interval]))"#,
                        "{{type}} waited",
                    ),
                    (
                        r#"sum by (type, verdict) (rate(kafleet_unique_total{type=~"$type"}[$__rate_interval]))"#,
                        "{{type}} unique: {{verdict}}",
                    ),
                    (
                        r#"sum by (type, code) (rate(kafleet_dead_letters_total{type=~"$type"}[$__rate_interval]))"#,
                        "{{type}} dead letter: {{code}}",
                    ),
                ],
            ),
            panel(
                "Removed by Kafka before a worker took them",
                "short",
                &[(
                    r#"sum by (type) (increase(kafleet_tasks_removed_by_retention_total{type=~"$type"}[$__rate_interval]))"#,
                    "{{type}}",
                )],
            ),
        ],
    ),
    (
        "Workers",
        &[
            panel(
                "Slots in use",
                "percentunit",
                &[(
                    r#"sum by (type) (kafleet_tasks_in_flight{type=~"$type"}) / sum by (type) (kafleet_type_slots{type=~"$type"})"#,
                    "{{type}}",
                )],
            ),
            panel(
                "Attempts started",
                "ops",
                &[(
                    r#"sum by (type) (rate(kafleet_tasks_started_total{type=~"$type"}[$__rate_interval]))"#,
                    "{{type}}",
                )],
            ),
            panel(
                "Paused, stopped, open circuits, stuck slots",
                "short",
                &[
                    (r#"max by (type) (kafleet_type_paused{type=~"$type"})"#, "{{type}} paused"),
                    (r#"max by (type) (kafleet_type_stopped{type=~"$type"})"#, "{{type}} stopped"),
                    (r#"max by (type) (kafleet_circuit_open{type=~"$type"})"#, "{{type}} circuit open"),
                    (
                        r#"sum by (type) (increase(kafleet_circuit_opened_total{type=~"$type"}[$__rate_interval]))"#,
                        "{{type}} circuit opened",
                    ),
                    (
                        r#"sum by (type) (increase(kafleet_hosts_opened_total{type=~"$type"}[$__rate_interval]))"#,
                        "{{type}} hosts opened",
                    ),
                    (r#"sum by (type) (kafleet_slots_stuck{type=~"$type"})"#, "{{type}} stuck slots"),
                ],
            ),
            panel(
                "Adaptive limit, refused attempts",
                "short",
                &[
                    (r#"max by (type) (kafleet_adaptive_limit{type=~"$type"})"#, "{{type}} limit"),
                    (
                        r#"sum by (type) (rate(kafleet_refused_total{type=~"$type"}[$__rate_interval]))"#,
                        "{{type}} refused per second",
                    ),
                    (r#"max by (type) (kafleet_open_hosts{type=~"$type"})"#, "{{type}} open hosts"),
                ],
            ),
            panel(
                "Tasks per batch, split batches",
                "short",
                &[
                    (
                        r#"sum by (type) (rate(kafleet_batch_items_sum{type=~"$type"}[$__rate_interval])) / sum by (type) (rate(kafleet_batch_items_count{type=~"$type"}[$__rate_interval]))"#,
                        "{{type}} tasks",
                    ),
                    (
                        r#"sum by (type) (increase(kafleet_batch_splits_total{type=~"$type"}[$__rate_interval]))"#,
                        "{{type}} splits",
                    ),
                ],
            ),
            panel(
                "Partitions held back by one task",
                "short",
                &[(r#"count by (type) (kafleet_window_held_offset{type=~"$type"})"#, "{{type}}")],
            ),
            panel(
                "Poll loop: share of time",
                "percentunit",
                &[(
                    "sum by (group, part) (rate(kafleet_worker_loop_seconds_total[$__rate_interval]))",
                    "{{group}} {{part}}",
                )],
            ),
            panel(
                "Memory held by tasks",
                "bytes",
                &[("sum by (instance) (kafleet_worker_held_bytes)", "{{instance}}")],
            ),
            panel(
                "Child processes",
                "short",
                &[
                    (r#"sum by (type) (kafleet_child_processes{type=~"$type"})"#, "{{type}}"),
                    (
                        r#"sum by (type, reason) (increase(kafleet_child_process_ends_total{type=~"$type"}[$__rate_interval]))"#,
                        "{{type}} ended: {{reason}}",
                    ),
                ],
            ),
            panel(
                "Takeovers without a release",
                "short",
                &[(
                    r#"sum by (type) (increase(kafleet_unclean_takeovers_total{type=~"$type"}[$__rate_interval]))"#,
                    "{{type}}",
                )],
            ),
            panel(
                "Observers removed after a panic",
                "short",
                &[("sum by (observer) (increase(kafleet_observers_removed_total[$__rate_interval]))", "{{observer}}")],
            ),
            panel("Cancels under way", "short", &[("max(kafleet_control_cancels)", "cancels")]),
            panel(
                "Spans exported and dropped",
                "ops",
                &[
                    ("sum(rate(kafleet_spans_exported_total[$__rate_interval]))", "exported"),
                    ("sum by (reason) (rate(kafleet_spans_dropped_total[$__rate_interval]))", "dropped: {{reason}}"),
                ],
            ),
        ],
    ),
    (
        "Apps",
        &[
            panel(
                "Processes",
                "short",
                &[
                    ("sum by (app) (kafleet_app_processes)", "{{app}}"),
                    (
                        "sum by (app, reason) (increase(kafleet_app_process_ends_total[$__rate_interval]))",
                        "{{app}} ended: {{reason}}",
                    ),
                ],
            ),
            panel(
                "Attempts",
                "ops",
                &[("sum by (app) (rate(kafleet_app_attempts_total[$__rate_interval]))", "{{app}}")],
            ),
            panel(
                "Slots in use",
                "percentunit",
                &[("sum by (app) (kafleet_app_busy_slots) / sum by (app) (kafleet_app_slots)", "{{app}}")],
            ),
            panel(
                "Waiting for a slot, calls without a reply",
                "short",
                &[
                    ("sum by (app) (kafleet_app_waiting)", "{{app}} types waiting"),
                    ("sum by (app) (kafleet_app_calls)", "{{app}} calls"),
                ],
            ),
            panel("Memory", "bytes", &[("sum by (app) (kafleet_app_memory_bytes)", "{{app}}")]),
            panel("Blocked event loops", "s", &[("max by (app) (kafleet_app_blocked_seconds)", "{{app}}")]),
            panel("Unread messages", "bytes", &[("sum by (app) (kafleet_app_unread_bytes)", "{{app}}")]),
        ],
    ),
    (
        "Trackers",
        &[
            panel(
                "Events projected",
                "ops",
                &[(
                    "sum by (partition) (rate(kafleet_fold_batch_events_sum[$__rate_interval]))",
                    "partition {{partition}}",
                )],
            ),
            panel("Lag", "short", &[("max by (topic) (kafleet_partition_lag_records)", "{{topic}}")]),
            panel(
                "Partitions without complete data",
                "short",
                &[("max by (instance) (kafleet_api_incomplete_partitions)", "{{instance}}")],
            ),
            panel(
                "Time of a batch, 99 %",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (le) (rate(kafleet_fold_batch_seconds_bucket[$__rate_interval])))",
                    "99 %",
                )],
            ),
            panel(
                "Rewinds, lost stores, skipped records",
                "short",
                &[
                    (
                        "sum by (reason) (increase(kafleet_tracker_rewinds_total[$__rate_interval]))",
                        "rewinds: {{reason}}",
                    ),
                    ("sum(increase(kafleet_tracker_store_losses_total[$__rate_interval]))", "lost stores"),
                    ("sum(increase(kafleet_events_skipped_total[$__rate_interval]))", "skipped records"),
                ],
            ),
            panel(
                "Timers and effects published",
                "ops",
                &[("sum by (kind) (rate(kafleet_tracker_fired_total[$__rate_interval]))", "{{kind}}")],
            ),
            panel(
                "Removed and expired by age",
                "ops",
                &[
                    ("sum(rate(kafleet_tracker_removed_total[$__rate_interval]))", "records removed"),
                    ("sum(rate(kafleet_tracker_aged_total[$__rate_interval]))", "tasks expired"),
                ],
            ),
            panel(
                "Schedules",
                "short",
                &[
                    ("sum(kafleet_schedules)", "schedules"),
                    ("sum by (outcome) (increase(kafleet_schedule_times_total[$__rate_interval]))", "{{outcome}}"),
                ],
            ),
            panel(
                "Lateness of schedules, 99 %",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (le) (rate(kafleet_schedule_lateness_seconds_bucket[$__rate_interval])))",
                    "99 %",
                )],
            ),
        ],
    ),
    (
        "Outbox",
        &[
            panel(
                "Rows",
                "short",
                &[
                    ("max(kafleet_outbox_rows)", "not published"),
                    ("sum(increase(kafleet_outbox_dead_total[$__rate_interval]))", "no valid tasks"),
                    ("sum(increase(kafleet_outbox_fenced_total[$__rate_interval]))", "losses to another relay"),
                ],
            ),
            panel(
                "Published rows",
                "reqps",
                &[("sum(rate(kafleet_outbox_published_total[$__rate_interval]))", "published")],
            ),
            panel("Age of the oldest row", "s", &[("max(kafleet_outbox_oldest_seconds)", "oldest")]),
        ],
    ),
    (
        "API",
        &[
            panel(
                "Requests",
                "reqps",
                &[("sum by (status) (rate(kafleet_http_requests_total[$__rate_interval]))", "{{status}}")],
            ),
            panel(
                "Duration, 99 %",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (route, le) (rate(kafleet_http_request_seconds_bucket[$__rate_interval])))",
                    "{{route}}",
                )],
            ),
            panel(
                "Reloads of the configuration",
                "short",
                &[("sum by (outcome) (increase(kafleet_config_reloads_total[$__rate_interval]))", "{{outcome}}")],
            ),
            panel("Processes", "short", &[("count by (role, version) (kafleet_process_info)", "{{role}} {{version}}")]),
        ],
    ),
];

/// Columns of panels.
const COLUMNS: usize = 3;
/// Grafana's grid is 24 units wide.
const WIDTH: usize = 24 / COLUMNS;
const HEIGHT: usize = 8;

/// Renders the dashboard as Grafana imports it.
pub fn dashboard() -> Value {
    let (mut panels, mut top) = (Vec::new(), 0);
    for (title, row) in ROWS {
        panels.push(json!({
            "id": panels.len() + 1, "type": "row", "title": title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
        }));
        top += 1;
        for (n, panel) in row.iter().enumerate() {
            let position = json!({"x": n % COLUMNS * WIDTH, "y": top + n / COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT});
            panels.push(graph(panels.len() + 1, panel, position));
        }
        top += row.len().div_ceil(COLUMNS) * HEIGHT;
    }
    json!({
        "uid": "kafleet", "title": "kafleet", "tags": ["kafleet"], "schemaVersion": 39, "version": 1, "editable": true,
        "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "templating": {"list": [
            {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
            {
                "name": "type", "label": "Type", "type": "query", "datasource": {"type": "prometheus", "uid": "${source}"},
                "query": {"query": "label_values(kafleet_type_backlog, type)", "refId": "type"},
                "definition": "label_values(kafleet_type_backlog, type)",
                "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            },
        ]},
        "panels": panels,
    })
}

fn graph(id: usize, panel: &Panel, position: Value) -> Value {
    let source = json!({"type": "prometheus", "uid": "${source}"});
    let targets: Vec<Value> = (panel.queries.iter().zip('A'..))
        .map(|((expr, legend), name)| {
            json!({"refId": name.to_string(), "expr": expr, "legendFormat": legend, "datasource": source})
        })
        .collect();
    json!({
        "id": id, "type": "timeseries", "title": panel.title, "datasource": source, "gridPos": position,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
    })
}

/// PromQL of all panels.
#[cfg(test)]
pub(super) fn queries() -> impl Iterator<Item = &'static str> {
    ROWS.iter().flat_map(|(_, row)| row.iter()).flat_map(|panel| panel.queries).map(|(expr, _)| *expr)
}
