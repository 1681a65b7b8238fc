//! Logs and metrics.

use std::io::IsTerminal;

use prometheus::{Encoder, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};
use tracing_subscriber::EnvFilter;

/// Environment variable with the format of logs: `text` or `json`.
pub const LOG_FORMAT: &str = "KAFLEET_LOG_FORMAT";

/// Returns whether logs are text: if requested, or by default on a terminal.
pub fn logs_are_text() -> bool {
    match std::env::var(LOG_FORMAT).as_deref() {
        Ok("text") => true,
        Ok("json") => false,
        _ => std::io::stderr().is_terminal(),
    }
}

/// Sends logs to stderr, as text on a terminal and as JSON otherwise, unless `KAFLEET_LOG_FORMAT` is set. The filter is
/// `KAFLEET_LOG`, or `default` (`info`, `warn`, …).
pub fn init_logs(default: &str) {
    let filter = EnvFilter::try_from_env("KAFLEET_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second call in a process (as in tests) keeps the first subscriber.
    let _ =
        if logs_are_text() { logs.with_target(false).compact().try_init() } else { logs.json().flatten_event(true).try_init() };
}

/// Histogram buckets in seconds, from half a millisecond to ten minutes.
const SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0];
const EVENTS: &[f64] = &[1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];

/// Metrics of a process. Names have the prefix `kafleet_`; units are base units.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    pub started: IntCounterVec,
    pub finished: IntCounterVec,
    pub in_flight: IntGaugeVec,
    pub slots: IntGaugeVec,
    pub paused: IntGaugeVec,
    pub queue_wait: HistogramVec,
    pub run_time: HistogramVec,
    pub retries: IntCounterVec,
    pub dead_letters: IntCounterVec,
    pub child_processes: IntGaugeVec,
    /// By reason: `tasks`, `memory`, `idle`, `crashed`, `killed`.
    pub child_process_ends: IntCounterVec,
    /// Slots held by blocking attempts that have ended but do not stop.
    pub slots_stuck: IntGaugeVec,
    /// 1 for a type that is stopped because of too many failures.
    pub type_stopped: IntGaugeVec,
    /// Time of the poll loop by part: `poll`, `dispatch`, `commit`, `idle`.
    pub poll_loop: prometheus::CounterVec,
    pub held_bytes: IntGaugeVec,
    pub control_cancels: IntGaugeVec,
    pub lag: IntGaugeVec,
    /// Offset of the open task that blocks its partition's window; absent if there is none.
    pub window_held: IntGaugeVec,
    /// Partitions taken over from a worker that did not release them.
    pub unclean_takeovers: IntCounterVec,
    pub fold_batch: HistogramVec,
    pub fold_time: HistogramVec,
    pub events_skipped: IntCounterVec,
    pub rewinds: IntCounterVec,
    /// Partitions rebuilt because the store had lost keys.
    pub store_losses: IntCounterVec,
    pub audited: IntCounterVec,
    pub fired: IntCounterVec,
    pub removed: IntCounterVec,
    pub aged: IntCounterVec,
    pub lost: IntCounterVec,
    /// By outcome: `fired`, `skipped`, `missed`.
    pub schedule_times: IntCounterVec,
    pub schedule_lateness: HistogramVec,
    pub schedules: IntGaugeVec,
    pub http_requests: IntCounterVec,
    pub http_time: HistogramVec,
}

impl Metrics {
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| -> Result<IntGaugeVec, prometheus::Error> {
            let metric = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let histogram = |name: &str, help: &str, labels: &[&str], buckets: &[f64]| -> Result<HistogramVec, prometheus::Error> {
            let metric = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let poll_loop = prometheus::CounterVec::new(
            Opts::new("kafleet_worker_loop_seconds_total", "Time of the poll loop, by part."),
            &["type", "part"],
        )?;
        registry.register(Box::new(poll_loop.clone()))?;
        Ok(Self {
            started: counter("kafleet_tasks_started_total", "Attempts started.", &["type"])?,
            finished: counter("kafleet_tasks_finished_total", "Attempts ended, by outcome.", &["type", "outcome"])?,
            in_flight: gauge("kafleet_tasks_in_flight", "Attempts running now.", &["type"])?,
            slots: gauge("kafleet_type_slots", "Concurrent attempts allowed in this worker.", &["type"])?,
            paused: gauge("kafleet_type_paused", "1 while the type is paused.", &["type"])?,
            queue_wait: histogram("kafleet_task_queue_wait_seconds", "Time from creation to start.", &["type"], SECONDS)?,
            run_time: histogram("kafleet_task_run_seconds", "Duration of an attempt.", &["type"], SECONDS)?,
            retries: counter("kafleet_task_retries_total", "Failed attempts that will be retried.", &["type"])?,
            dead_letters: counter("kafleet_dead_letters_total", "Records sent to the dead-letter topic.", &["type", "code"])?,
            child_processes: gauge("kafleet_child_processes", "Child processes that run attempts.", &["type"])?,
            child_process_ends: counter(
                "kafleet_child_process_ends_total",
                "Child processes that ended, by reason.",
                &["type", "reason"],
            )?,
            slots_stuck: gauge(
                "kafleet_slots_stuck",
                "Slots held by blocking attempts that have ended but do not stop.",
                &["type"],
            )?,
            type_stopped: gauge(
                "kafleet_type_stopped",
                "1 while this worker starts no tasks of the type because of too many failures.",
                &["type"],
            )?,
            poll_loop,
            held_bytes: gauge("kafleet_worker_held_bytes", "Bytes of tasks held by the worker, for all types together.", &[])?,
            control_cancels: gauge(
                "kafleet_control_cancels",
                "Cancels on the control topic, which every worker keeps in memory.",
                &[],
            )?,
            lag: gauge(
                "kafleet_partition_lag_records",
                "Records between the consumer's position and the partition's end.",
                &["topic", "partition"],
            )?,
            window_held: gauge(
                "kafleet_window_held_offset",
                "Offset of the open task that blocks its partition's window; absent if there is none.",
                &["type", "partition"],
            )?,
            unclean_takeovers: counter(
                "kafleet_unclean_takeovers_total",
                "Partitions taken over from a worker that did not release them, because it died or lost its connection.",
                &["type"],
            )?,
            fold_batch: histogram("kafleet_fold_batch_events", "Events in a batch.", &["partition"], EVENTS)?,
            fold_time: histogram(
                "kafleet_fold_batch_seconds",
                "Time from a batch's first event to its acknowledgement by the store.",
                &["partition"],
                SECONDS,
            )?,
            events_skipped: counter(
                "kafleet_events_skipped_total",
                "Records on the events topic that are not valid events, or belong to another partition.",
                &["partition"],
            )?,
            rewinds: counter(
                "kafleet_tracker_rewinds_total",
                "Times a partition was read again from the store's checkpoint.",
                &["partition", "reason"],
            )?,
            store_losses: counter(
                "kafleet_tracker_store_losses_total",
                "Times a partition was cleared and rebuilt because the store had lost writes.",
                &["partition"],
            )?,
            audited: counter(
                "kafleet_tracker_audited_records_total",
                "Records compared with indexes and counters.",
                &["partition"],
            )?,
            fired: counter(
                "kafleet_tracker_fired_total",
                "Timers and effects fired, by kind: release, expire, cancel, fail, retry, uncancel, walk.",
                &["partition", "kind"],
            )?,
            removed: counter("kafleet_tracker_removed_total", "Records of finished trees removed by retention.", &["partition"])?,
            aged: counter(
                "kafleet_tracker_aged_total",
                "Unannounced tasks that were given up, and trees ended by their maximum age.",
                &["partition"],
            )?,
            lost: counter(
                "kafleet_tasks_removed_by_retention_total",
                "Queued tasks whose records Kafka removed before a worker received them.",
                &["type"],
            )?,
            schedule_times: counter(
                "kafleet_schedule_times_total",
                "Times of recurring schedules, by outcome: fired, skipped (the previous task had not ended), missed.",
                &["outcome"],
            )?,
            schedule_lateness: histogram("kafleet_schedule_lateness_seconds", "Delay of a schedule's firing.", &[], SECONDS)?,
            schedules: gauge("kafleet_schedules", "Recurring schedules, in the process that fires them.", &[])?,
            http_requests: counter(
                "kafleet_http_requests_total",
                "Requests to the api, by route and status.",
                &["route", "status"],
            )?,
            http_time: histogram("kafleet_http_request_seconds", "Duration of api requests.", &["route"], SECONDS)?,
            registry,
        })
    }

    /// Renders all metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        if TextEncoder::new().encode(&self.registry.gather(), &mut text).is_err() {
            text.clear();
        }
        String::from_utf8(text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_metric_is_documented() {
        let root = env!("CARGO_MANIFEST_DIR");
        let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).unwrap();
        let source = read("src/telemetry.rs");
        let manual = read("docs/metrics.md");
        let names: Vec<&str> = source.split('"').filter(|text| text.starts_with("kafleet_") && !text.contains(' ')).collect();
        assert!(names.len() > 20, "{names:?}");
        let missing: Vec<_> =
            names.into_iter().filter(|name| *name != "kafleet_" && !manual.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/metrics.md does not name {missing:?}");
    }
}
