//! Metrics of the export of spans.

use prometheus::{IntCounter, IntCounterVec};

use crate::registrar::Registrar;

/// Reasons for dropping spans, values of the label `reason`: the queue was full, the collector did not take them, it reported
/// them as rejected, the process stopped.
const REASONS: [&str; 4] = ["queue_full", "export_failed", "rejected", "shutdown"];

/// Metrics of the export of spans.
#[derive(Clone)]
pub struct TraceMetrics {
    pub exported: IntCounter,
    pub dropped: IntCounterVec,
}

impl TraceMetrics {
    pub(crate) fn new(new: &Registrar) -> Result<Self, prometheus::Error> {
        let exported = new.counter("kafleet_spans_exported_total", "Spans that the collector has taken.", &[])?;
        let dropped =
            new.counter("kafleet_spans_dropped_total", "Spans that were not exported, by reason.", &["reason"])?;
        for reason in REASONS {
            dropped.with_label_values(&[reason]);
        }
        Ok(Self { exported: exported.with_label_values::<&str>(&[]), dropped })
    }

    pub(super) fn drop_spans(&self, reason: &str, spans: u64) {
        if spans > 0 {
            self.dropped.with_label_values(&[reason]).inc_by(spans);
        }
    }
}
