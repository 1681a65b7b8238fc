//! Metrics of the relay, ready to be written.

use kafleet_telemetry::Metrics;
use prometheus::{Gauge, IntCounter, IntGauge};

/// Metrics of the relay. Cheap to clone.
#[derive(Clone)]
pub struct RelayMetrics {
    /// Rows that are not published.
    pub rows: IntGauge,
    /// Age of the oldest row, in seconds.
    pub oldest_seconds: Gauge,
    pub published: IntCounter,
    pub dead: IntCounter,
    pub fenced: IntCounter,
}

impl RelayMetrics {
    /// Begins the metrics of this process at 0.
    pub fn of(metrics: &Metrics) -> Self {
        let none: &[&str] = &[];
        let outbox = &metrics.outbox;
        Self {
            rows: outbox.rows.with_label_values(none),
            oldest_seconds: outbox.oldest_seconds.with_label_values(none),
            published: outbox.published.with_label_values(none),
            dead: outbox.dead.with_label_values(none),
            fenced: outbox.fenced.with_label_values(none),
        }
    }
}
