//! Telemetry of a process: logs, metrics, traces, and the alerts and the dashboard over the metrics.
//!
//! In: counts and times from the roles, log records of `tracing`, spans of tasks and requests. Out: the Prometheus text
//! of `/metrics` ([`Metrics::render`]), log lines on standard error, spans to an OpenTelemetry collector ([`otel`]),
//! the rule file of [`alerts`] and the [`dashboard`] of Grafana.
//!
//! Invariant: values of labels are names and numbers of which a fleet has few (types, partitions, reasons), never ids
//! of tasks: each value is a series that Prometheus keeps, and one per task would end it. Whatever an alert increases
//! over begins at 0 when its partition or process does, because `increase()` does not see the first value of a series.
//! Telemetry never delays a task: spans that the collector does not take are counted and dropped.
//!
//! Read next: [`Metrics`] in this file, `alerts.rs` (each alert has a heading in docs/runbook.md), `otel/mod.rs`.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod alerts;
mod batches;
pub mod dashboard;
mod logs;
pub mod otel;
mod registrar;

use prometheus::{
    CounterVec, Encoder, GaugeVec, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

pub use batches::BatchMetrics;
pub use logs::{LOG_FILTER, LOG_FORMAT, environment_sets_log_filter, init_logs, logs_are_text, set_log_filter};
pub use otel::{TraceMetrics, Tracer};
use registrar::Registrar;

/// Histogram buckets in seconds, from half a millisecond to ten minutes.
const DURATION_BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0];
/// Reasons for reading a partition again, values of the label `reason`.
const REWIND_REASONS: [&str; 3] = ["fence", "store", "broker"];
/// Outcomes of reloads of the configuration: all changed keys are in effect, some need a restart, none has changed, the file
/// is invalid. Values of the label `outcome`.
pub const RELOAD_OUTCOMES: [&str; 4] = ["applied", "restart_needed", "unchanged", "invalid"];
const BATCH_SIZE_BUCKETS: &[f64] = &[1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];

/// Metrics of a process. Names have the prefix `kafleet_`; units are base units.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// 1 for each role of this process.
    pub process_info: IntGaugeVec,
    /// Reloads of the configuration, by outcome.
    pub config_reloads: IntCounterVec,
    /// Time by which the clock of this machine is ahead of the brokers'.
    clock_ahead: IntGaugeVec,
    /// Consumer lag of workers and trackers.
    pub lag: IntGaugeVec,
    pub tasks: TaskMetrics,
    pub worker: WorkerMetrics,
    pub tracker: TrackerMetrics,
    pub schedules: ScheduleMetrics,
    pub outbox: OutboxMetrics,
    pub apps: AppMetrics,
    pub http: HttpMetrics,
    pub traces: TraceMetrics,
    pub batches: BatchMetrics,
}

/// Metrics of attempts, by type.
#[derive(Clone)]
pub struct TaskMetrics {
    /// Accepted tasks.
    pub submitted: IntCounterVec,
    pub started: IntCounterVec,
    pub finished: IntCounterVec,
    pub in_flight: IntGaugeVec,
    pub slots: IntGaugeVec,
    /// Slots held by blocking attempts that have ended but do not stop.
    pub slots_stuck: IntGaugeVec,
    pub paused: IntGaugeVec,
    /// 1 for a type that is stopped because of too many failures.
    pub type_stopped: IntGaugeVec,
    /// 1 for a type whose circuit is open.
    pub circuit_open: IntGaugeVec,
    pub circuit_opened: IntCounterVec,
    pub adaptive_limit: GaugeVec,
    pub refused: IntCounterVec,
    pub open_hosts: IntGaugeVec,
    pub hosts_opened: IntCounterVec,
    pub queue_wait: HistogramVec,
    pub run_time: HistogramVec,
    pub retries: IntCounterVec,
    /// Waits, which do not count as attempts.
    pub waits: IntCounterVec,
    pub dead_letters: IntCounterVec,
    /// Asks for unique tasks, by verdict.
    pub unique: IntCounterVec,
}

/// Metrics of a worker.
#[derive(Clone)]
pub struct WorkerMetrics {
    pub child_processes: IntGaugeVec,
    /// By reason: `tasks`, `memory`, `idle`, `crashed`, `killed`.
    pub child_process_ends: IntCounterVec,
    /// Time of the poll loop by part: `poll`, `dispatch`, `commit`, `idle`.
    pub poll_loop: CounterVec,
    pub held_bytes: IntGaugeVec,
    pub control_cancels: IntGaugeVec,
    /// Offset of the open task that blocks its partition's window; absent if there is none.
    pub window_held: IntGaugeVec,
    /// Partitions taken over from a worker that did not release them.
    pub unclean_takeovers: IntCounterVec,
    /// Observers of the application that were removed because they panicked.
    pub observers_removed: IntCounterVec,
    /// Records whose keys belong into other partitions.
    pub misplaced_keys: IntCounterVec,
}

/// Metrics of a tracker, by events partition.
#[derive(Clone)]
pub struct TrackerMetrics {
    pub fold_batch: HistogramVec,
    pub fold_time: HistogramVec,
    pub events_skipped: IntCounterVec,
    pub rewinds: IntCounterVec,
    /// Partitions rebuilt because the store had lost keys.
    pub store_losses: IntCounterVec,
    pub integrity_checked: IntCounterVec,
    pub fired: IntCounterVec,
    pub removed: IntCounterVec,
    pub aged: IntCounterVec,
    pub id_conflicts: IntCounterVec,
    pub lost: IntCounterVec,
}

/// Metrics of the processes of apps, by app.
#[derive(Clone)]
pub struct AppMetrics {
    pub processes: IntGaugeVec,
    /// By reason: `replaced`, `crashed`, `garbled`, `killed`, `memory`, `not_ready`.
    pub process_ends: IntCounterVec,
    pub attempts: IntCounterVec,
    pub slots: IntGaugeVec,
    pub busy_slots: IntGaugeVec,
    /// Types that wait for a free slot.
    pub waiting: IntGaugeVec,
    /// `spawn` calls without a reply.
    pub calls: IntGaugeVec,
    /// Messages that the apps have not read.
    pub unread_bytes: IntGaugeVec,
    pub memory_bytes: IntGaugeVec,
    pub blocked_seconds: IntGaugeVec,
}

/// Metrics of recurring schedules, in the tracker that fires them.
#[derive(Clone)]
pub struct ScheduleMetrics {
    /// By outcome: `fired`, `skipped`, `missed`.
    pub times: IntCounterVec,
    pub lateness: HistogramVec,
    pub count: IntGaugeVec,
}

/// Metrics of the relay of an outbox. They have no labels, and no value in other roles.
#[derive(Clone)]
pub struct OutboxMetrics {
    pub rows: IntGaugeVec,
    pub oldest_seconds: GaugeVec,
    pub published: IntCounterVec,
    pub dead: IntCounterVec,
    pub fenced: IntCounterVec,
}

/// Metrics of the API.
#[derive(Clone)]
pub struct HttpMetrics {
    pub requests: IntCounterVec,
    pub time: HistogramVec,
    /// Tasks to start or finish, by type; every API has the value of the whole fleet.
    pub backlog: IntGaugeVec,
    /// Events partitions that the store does not cover.
    pub incomplete: IntGauge,
}

impl Metrics {
    pub fn new() -> Result<Self, prometheus::Error> {
        let new = Registrar(Registry::new());
        let lag = new.gauge(
            "kafleet_partition_lag_records",
            "Records between the consumer's position and the partition's end.",
            &["topic", "partition"],
        )?;
        let process_info =
            new.gauge("kafleet_process_info", "1 for each role of the process.", &["role", "version"])?;
        let clock_ahead = new.gauge(
            "kafleet_clock_ahead_seconds",
            "Time by which the clock of this machine is ahead of the brokers'; negative if it is behind.",
            &[],
        )?;
        let config_reloads =
            new.counter("kafleet_config_reloads_total", "Reloads of the configuration, by outcome.", &["outcome"])?;
        for outcome in RELOAD_OUTCOMES {
            config_reloads.with_label_values(&[outcome]);
        }
        Ok(Self {
            process_info,
            config_reloads,
            clock_ahead,
            lag,
            tasks: TaskMetrics::new(&new)?,
            worker: WorkerMetrics::new(&new)?,
            tracker: TrackerMetrics::new(&new)?,
            schedules: ScheduleMetrics::new(&new)?,
            outbox: OutboxMetrics::new(&new)?,
            apps: AppMetrics::new(&new)?,
            http: HttpMetrics::new(&new)?,
            traces: TraceMetrics::new(&new)?,
            batches: BatchMetrics::new(&new)?,
            registry: new.0,
        })
    }

    /// Registers a role of this process: `worker`, `tracker`, `api` or `outbox`.
    pub fn set_role(&self, role: &str) {
        self.process_info.with_label_values(&[role, env!("CARGO_PKG_VERSION")]).set(1);
    }

    /// Renders all metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        self.clock_ahead.with_label_values::<&str>(&[]).set(kafleet_runtime::clock_ahead_ms() / 1_000);
        let mut text = Vec::new();
        if TextEncoder::new().encode(&self.registry.gather(), &mut text).is_err() {
            text.clear();
        }
        String::from_utf8(text).unwrap_or_default()
    }
}

impl TaskMetrics {
    fn new(new: &Registrar) -> Result<Self, prometheus::Error> {
        let counter = |name, help, labels: &[&str]| new.counter(name, help, labels);
        let gauge = |name, help| new.gauge(name, help, &["type"]);
        let float_gauge = |name, help| new.float_gauge(name, help, &["type"]);
        let seconds = |name, help| new.histogram(name, help, &["type"], DURATION_BUCKETS);
        Ok(Self {
            submitted: counter("kafleet_tasks_submitted_total", "Tasks accepted.", &["type"])?,
            started: counter("kafleet_tasks_started_total", "Attempts started.", &["type"])?,
            finished: counter("kafleet_tasks_finished_total", "Attempts ended, by outcome.", &["type", "outcome"])?,
            in_flight: gauge("kafleet_tasks_in_flight", "Attempts running now.")?,
            slots: gauge("kafleet_type_slots", "Concurrent attempts allowed in this worker.")?,
            slots_stuck: gauge(
                "kafleet_slots_stuck",
                "Slots held by blocking attempts that have ended but do not stop.",
            )?,
            paused: gauge("kafleet_type_paused", "1 while the type is paused.")?,
            type_stopped: gauge(
                "kafleet_type_stopped",
                "1 while this worker starts no tasks of the type because of too many failures.",
            )?,
            circuit_open: gauge(
                "kafleet_circuit_open",
                "1 while this worker starts only probes of the type because its circuit is open.",
            )?,
            circuit_opened: counter("kafleet_circuit_opened_total", "Times that the circuit has opened.", &["type"])?,
            adaptive_limit: float_gauge(
                "kafleet_adaptive_limit",
                "Concurrent attempts in the whole fleet that the service behind the type takes, as learned or set.",
            )?,
            refused: counter("kafleet_refused_total", "Attempts refused by the service behind the type.", &["type"])?,
            open_hosts: gauge("kafleet_open_hosts", "Hosts of which this worker starts only probes.")?,
            hosts_opened: counter(
                "kafleet_hosts_opened_total",
                "Times that the circuit of a host has opened.",
                &["type"],
            )?,
            queue_wait: seconds("kafleet_task_queue_wait_seconds", "Time from creation to start.")?,
            run_time: seconds("kafleet_task_run_seconds", "Duration of an attempt.")?,
            retries: counter("kafleet_task_retries_total", "Failed attempts that will be retried.", &["type"])?,
            waits: counter("kafleet_waits_total", "Waits of tasks, which do not count as attempts.", &["type"])?,
            dead_letters: counter(
                "kafleet_dead_letters_total",
                "Records sent to the dead-letter topic.",
                &["type", "code"],
            )?,
            unique: counter("kafleet_unique_total", "Asks for unique tasks, by verdict.", &["type", "verdict"])?,
        })
    }
}

impl WorkerMetrics {
    fn new(new: &Registrar) -> Result<Self, prometheus::Error> {
        let poll_loop = CounterVec::new(
            Opts::new("kafleet_worker_loop_seconds_total", "Time of the poll loop, by part."),
            &["group", "part"],
        )?;
        Ok(Self {
            child_processes: new.gauge("kafleet_child_processes", "Child processes that run attempts.", &["type"])?,
            child_process_ends: new.counter(
                "kafleet_child_process_ends_total",
                "Child processes that ended, by reason.",
                &["type", "reason"],
            )?,
            poll_loop: new.register(poll_loop)?,
            held_bytes: new.gauge(
                "kafleet_worker_held_bytes",
                "Bytes of tasks held by the worker, for all types together.",
                &[],
            )?,
            control_cancels: new.gauge(
                "kafleet_control_cancels",
                "Cancels on the control topic, which every worker keeps in memory.",
                &[],
            )?,
            window_held: new.gauge(
                "kafleet_window_held_offset",
                "Offset of the open task that blocks its partition's window; absent if there is none.",
                &["type", "partition"],
            )?,
            unclean_takeovers: new.counter(
                "kafleet_unclean_takeovers_total",
                "Partitions taken over from a worker that did not release them, because it died or lost its connection.",
                &["type"],
            )?,
            observers_removed: new.counter(
                "kafleet_observers_removed_total",
                "Observers of the application that were removed because they panicked.",
                &["observer"],
            )?,
            misplaced_keys: new.counter(
                "kafleet_misplaced_keys_total",
                "Records whose keys belong into other partitions, of types with order or a rate by key.",
                &["type"],
            )?,
        })
    }
}

impl OutboxMetrics {
    fn new(new: &Registrar) -> Result<Self, prometheus::Error> {
        let oldest = Opts::new("kafleet_outbox_oldest_seconds", "Age of the oldest row of the outbox.");
        Ok(Self {
            rows: new.gauge("kafleet_outbox_rows", "Rows of the outbox that are not published.", &[])?,
            oldest_seconds: new.register(GaugeVec::new(oldest, &[])?)?,
            published: new.counter("kafleet_outbox_published_total", "Rows of the outbox that became tasks.", &[])?,
            dead: new.counter("kafleet_outbox_dead_total", "Rows of the outbox that are no valid tasks.", &[])?,
            fenced: new.counter("kafleet_outbox_fenced_total", "Losses of the outbox to another relay.", &[])?,
        })
    }
}

impl AppMetrics {
    fn new(new: &Registrar) -> Result<Self, prometheus::Error> {
        let gauge = |name, help| new.gauge(name, help, &["app"]);
        let counter = |name, help, labels: &[&str]| new.counter(name, help, labels);
        Ok(Self {
            processes: gauge("kafleet_app_processes", "Processes of the app that get attempts.")?,
            process_ends: counter(
                "kafleet_app_process_ends_total",
                "Processes of the app that ended or did not become ready, by reason.",
                &["app", "reason"],
            )?,
            attempts: counter("kafleet_app_attempts_total", "Attempts sent to the app.", &["app"])?,
            slots: gauge("kafleet_app_slots", "Attempts that the processes of the app run at once.")?,
            busy_slots: gauge("kafleet_app_busy_slots", "Slots that are reserved or run an attempt.")?,
            waiting: gauge("kafleet_app_waiting", "Requests of types for a free slot.")?,
            calls: gauge("kafleet_app_calls", "Requests of attempts for children that have no reply yet.")?,
            unread_bytes: gauge("kafleet_app_unread_bytes", "Bytes of messages that the app has not read.")?,
            memory_bytes: gauge("kafleet_app_memory_bytes", "Resident memory of the app with its child processes.")?,
            blocked_seconds: gauge("kafleet_app_blocked_seconds", "Longest time of a blocked event loop.")?,
        })
    }
}

impl TrackerMetrics {
    fn new(new: &Registrar) -> Result<Self, prometheus::Error> {
        Ok(Self {
            fold_batch: new.histogram("kafleet_fold_batch_events", "Events in a batch.", &["partition"], BATCH_SIZE_BUCKETS)?,
            fold_time: new.histogram(
                "kafleet_fold_batch_seconds",
                "Time from a batch's first event to its acknowledgement by the store.",
                &["partition"],
                DURATION_BUCKETS,
            )?,
            events_skipped: new.counter(
                "kafleet_events_skipped_total",
                "Records on the events topic that are not valid events, or belong to another partition.",
                &["partition"],
            )?,
            rewinds: new.counter(
                "kafleet_tracker_rewinds_total",
                "Times a partition was read again from the store's checkpoint.",
                &["partition", "reason"],
            )?,
            store_losses: new.counter(
                "kafleet_tracker_store_losses_total",
                "Times a partition was cleared and rebuilt because the store had lost writes.",
                &["partition"],
            )?,
            integrity_checked: new.counter(
                "kafleet_tracker_checked_records_total",
                "Records that the integrity check of the store has compared with their indexes.",
                &["partition"],
            )?,
            fired: new.counter(
                "kafleet_tracker_fired_total",
                "Timers and effects published, by kind: cancel, check, continuation, expire, fail, notification, release, retry, subtree_command, uncancel.",
                &["partition", "kind"],
            )?,
            removed: new.counter(
                "kafleet_tracker_removed_total",
                "Records of finished trees removed by retention.",
                &["partition"],
            )?,
            id_conflicts: new.counter(
                "kafleet_tracker_id_conflicts_total",
                "Tasks that were ignored because their id belongs to a task with another type or params.",
                &["partition"],
            )?,
            aged: new.counter(
                "kafleet_tracker_aged_total",
                "Tasks that expired because they were never announced, and trees ended by their maximum age.",
                &["partition"],
            )?,
            lost: new.counter(
                "kafleet_tasks_removed_by_retention_total",
                "Tasks whose records Kafka removed, and that no worker holds.",
                &["type"],
            )?,
        })
    }
}

impl TrackerMetrics {
    /// Begins the counters of a partition at 0: `increase()` in an alert does not see the first value of a series.
    pub fn begin_partition(&self, partition: &str) {
        for reason in REWIND_REASONS {
            self.rewinds.with_label_values(&[partition, reason]);
        }
        self.store_losses.with_label_values(&[partition]);
        self.id_conflicts.with_label_values(&[partition]);
        self.fold_batch.with_label_values(&[partition]);
        self.events_skipped.with_label_values(&[partition]);
    }
}

impl ScheduleMetrics {
    fn new(new: &Registrar) -> Result<Self, prometheus::Error> {
        let times = new.counter(
            "kafleet_schedule_times_total",
            "Times of recurring schedules, by outcome: fired, skipped (the previous task had not ended), missed.",
            &["outcome"],
        )?;
        for outcome in ["fired", "skipped", "missed"] {
            times.with_label_values(&[outcome]);
        }
        Ok(Self {
            times,
            lateness: new.histogram(
                "kafleet_schedule_lateness_seconds",
                "Delay of a schedule's firing.",
                &[],
                DURATION_BUCKETS,
            )?,
            count: new.gauge("kafleet_schedules", "Recurring schedules, in the process that fires them.", &[])?,
        })
    }
}

impl HttpMetrics {
    fn new(new: &Registrar) -> Result<Self, prometheus::Error> {
        Ok(Self {
            requests: new.counter(
                "kafleet_http_requests_total",
                "Requests to the API, by route and status.",
                &["route", "status"],
            )?,
            time: new.histogram(
                "kafleet_http_request_seconds",
                "Duration of API requests.",
                &["route"],
                DURATION_BUCKETS,
            )?,
            backlog: new.gauge(
                "kafleet_type_backlog",
                "Tasks that workers have to start or finish, in the whole fleet.",
                &["type"],
            )?,
            incomplete: new.single_gauge(
                "kafleet_api_incomplete_partitions",
                "Events partitions of which the store has lost data, or which no tracker projects.",
            )?,
        })
    }
}

#[cfg(test)]
mod tests;
