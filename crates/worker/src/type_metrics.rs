//! Metrics of one task type, counted locally and flushed in bulk.

use std::sync::Arc;
use std::time::Duration;

use kafleet_handlers::TIMEOUT;
use kafleet_telemetry::Metrics;
use prometheus::IntGauge;
use prometheus::local::{LocalHistogram, LocalIntCounter, LocalIntCounterVec};

use super::dead_letter::POISON;
use super::events::RESULT_REFUSED;

/// Outcomes of attempts, values of the label `outcome`.
const OUTCOMES: [&str; 9] =
    ["succeeded", "retried", "waited", "failed", "cancelled", "expired", "rejected", "interrupted", "restarted"];

/// Known codes of dead letters. Their counters begin at 0, since `increase` in queries does not see the first value of a
/// series.
const DEAD_LETTER_CODES: [&str; 12] = [
    "empty_value",
    "bad_json",
    "bad_id",
    "bad_header",
    "unsupported_version",
    "schema",
    "too_large",
    "exhausted",
    TIMEOUT,
    "dead",
    POISON,
    RESULT_REFUSED,
];

/// Gauges of one task type, and the counter of changes that are rare.
#[derive(Clone)]
pub(super) struct TypeGauges {
    task_type: Arc<str>,
    metrics: Metrics,
    in_flight: IntGauge,
}

/// Counters and histograms of one task type.
pub(super) struct TypeMetrics {
    task_type: String,
    metrics: Metrics,
    started: LocalIntCounter,
    finished: LocalIntCounterVec,
    /// Counter of the most frequent outcome, resolved once.
    succeeded: LocalIntCounter,
    queue_wait: LocalHistogram,
    run_time: LocalHistogram,
}

impl TypeGauges {
    pub(super) fn new(metrics: &Metrics, task_type: &Arc<str>) -> Self {
        let in_flight = metrics.tasks.in_flight.with_label_values(&[&**task_type]);
        Self { task_type: task_type.clone(), metrics: metrics.clone(), in_flight }
    }

    pub(super) fn set_in_flight(&self, number: usize) {
        self.in_flight.set(number as i64);
    }

    pub(super) fn set_limits(&self, slots: usize, paused: bool) {
        self.metrics.tasks.slots.with_label_values(&[&*self.task_type]).set(slots as i64);
        self.metrics.tasks.paused.with_label_values(&[&*self.task_type]).set(i64::from(paused));
    }

    /// Sets the number of slots held by attempts that have ended but do not return.
    pub(super) fn set_stuck_slots(&self, number: usize) {
        self.metrics.tasks.slots_stuck.with_label_values(&[&*self.task_type]).set(number as i64);
    }

    /// Sets whether the type is stopped because of too many failures.
    pub(super) fn set_stopped(&self, stopped: bool) {
        self.metrics.tasks.type_stopped.with_label_values(&[&*self.task_type]).set(i64::from(stopped));
    }

    /// Sets the adaptive limit of the fleet. `None`: the type has none.
    pub(super) fn set_adaptive_limit(&self, limit: Option<f64>) {
        let label = &[&*self.task_type];
        match limit {
            Some(limit) => {
                self.metrics.tasks.adaptive_limit.with_label_values(label).set(limit);
                // Begins at 0: `increase()` in an alert does not see the first value of a series.
                self.metrics.tasks.refused.with_label_values(label);
            }
            // Fails only if there is no such series.
            None => drop(self.metrics.tasks.adaptive_limit.remove_label_values(label)),
        }
    }

    pub(super) fn record_refused(&self) {
        self.metrics.tasks.refused.with_label_values(&[&*self.task_type]).inc();
    }

    pub(super) fn set_open_hosts(&self, number: usize) {
        self.metrics.tasks.open_hosts.with_label_values(&[&*self.task_type]).set(number as i64);
    }

    pub(super) fn record_host_opened(&self) {
        self.metrics.tasks.hosts_opened.with_label_values(&[&*self.task_type]).inc();
    }

    pub(super) fn record_circuit_opened(&self) {
        self.metrics.tasks.circuit_opened.with_label_values(&[&*self.task_type]).inc();
    }

    pub(super) fn set_circuit_open(&self, is_open: bool) {
        self.metrics.tasks.circuit_open.with_label_values(&[&*self.task_type]).set(i64::from(is_open));
    }
}

impl TypeMetrics {
    pub(super) fn new(metrics: &Metrics, task_type: &str) -> Self {
        let label = &[task_type];
        // Counters begin at 0: `increase()` in an alert does not see the first value of a series.
        for outcome in OUTCOMES {
            metrics.tasks.finished.with_label_values(&[task_type, outcome]);
        }
        for code in DEAD_LETTER_CODES {
            metrics.tasks.dead_letters.with_label_values(&[task_type, code]);
        }
        metrics.tasks.retries.with_label_values(label);
        metrics.tasks.waits.with_label_values(label);
        metrics.tasks.circuit_opened.with_label_values(label);
        metrics.worker.unclean_takeovers.with_label_values(label);
        metrics.worker.misplaced_keys.with_label_values(label);
        Self {
            started: metrics.tasks.started.with_label_values(label).local(),
            finished: metrics.tasks.finished.local(),
            succeeded: metrics.tasks.finished.with_label_values(&[task_type, "succeeded"]).local(),
            queue_wait: metrics.tasks.queue_wait.with_label_values(label).local(),
            run_time: metrics.tasks.run_time.with_label_values(label).local(),
            task_type: task_type.to_owned(),
            metrics: metrics.clone(),
        }
    }

    /// Counts the start of an attempt. `queued_ms`: time in the queue, for the first start of a record.
    pub(super) fn record_start(&mut self, queued_ms: Option<i64>) {
        self.started.inc();
        if let Some(queued_ms) = queued_ms {
            self.queue_wait.observe(queued_ms.max(0) as f64 / 1000.0);
        }
    }

    /// Counts a call of a handler that takes batches.
    pub(super) fn record_batch(&self, tasks: usize) {
        self.metrics.batches.items.with_label_values(&[&self.task_type]).observe(tasks as f64);
    }

    /// Counts a batch that failed as a whole and runs again in halves.
    pub(super) fn record_split(&self) {
        self.metrics.batches.splits.with_label_values(&[&self.task_type]).inc();
    }

    pub(super) fn record_success(&mut self, run_time: Duration) {
        self.succeeded.inc();
        self.run_time.observe(run_time.as_secs_f64());
    }

    pub(super) fn record_outcome(&mut self, outcome: &str, run_time: Duration) {
        self.finished.with_label_values(&[&self.task_type, outcome]).inc();
        self.run_time.observe(run_time.as_secs_f64());
        match outcome {
            "retried" => self.metrics.tasks.retries.with_label_values(&[&self.task_type]).inc(),
            "waited" => self.metrics.tasks.waits.with_label_values(&[&self.task_type]).inc(),
            _ => {}
        }
    }

    pub(super) fn record_dead_letter(&self, code: &str) {
        self.metrics.tasks.dead_letters.with_label_values(&[self.task_type.as_str(), code]).inc();
    }

    /// Adds the local counts to the shared metrics.
    pub(super) fn flush(&mut self) {
        self.started.flush();
        self.finished.flush();
        self.succeeded.flush();
        self.queue_wait.flush();
        self.run_time.flush();
    }
}
