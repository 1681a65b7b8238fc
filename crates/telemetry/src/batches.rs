//! Metrics of types whose handler takes several tasks in one call.

use prometheus::{HistogramVec, IntCounterVec};

use crate::registrar::Registrar;

/// Sizes of batches, up to the largest one.
const SIZES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0];

/// Metrics of batches, by type.
#[derive(Clone)]
pub struct BatchMetrics {
    /// Number of tasks in each call.
    pub items: HistogramVec,
    /// Calls that failed as a whole and run again in halves.
    pub splits: IntCounterVec,
}

impl BatchMetrics {
    pub(crate) fn new(new: &Registrar) -> Result<Self, prometheus::Error> {
        Ok(Self {
            items: new.histogram(
                "kafleet_batch_items",
                "Tasks in a call of a handler that takes batches.",
                &["type"],
                SIZES,
            )?,
            splits: new.counter(
                "kafleet_batch_splits_total",
                "Batches that failed as a whole and run again in halves.",
                &["type"],
            )?,
        })
    }
}
