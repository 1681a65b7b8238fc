//! Observers of an application, called with the verdicts about attempts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use crate::handlers::hooks::{NamedObserver, Observe};
use crate::telemetry::Metrics;

pub(super) struct Observers {
    observers: Vec<NamedObserver>,
    metrics: Metrics,
}

impl Observers {
    pub(super) fn new(observers: &[NamedObserver], metrics: &Metrics) -> Self {
        for observer in observers {
            // The counter begins at 0: `increase()` does not see the first value of a series.
            metrics.worker.observers_removed.with_label_values(&[observer.name]);
        }
        Self { observers: observers.to_vec(), metrics: metrics.clone() }
    }

    /// Calls all observers. One that panics is removed, for all types of the process.
    pub(super) fn notify(&self, call: impl Fn(&dyn Observe)) {
        for NamedObserver { name, observer, is_removed } in &self.observers {
            if is_removed.load(Ordering::Relaxed) || catch_unwind(AssertUnwindSafe(|| call(&**observer))).is_ok() {
                continue;
            }
            if !is_removed.swap(true, Ordering::Relaxed) {
                tracing::error!(observer = name, "an observer panicked and is removed until the worker restarts");
                self.metrics.worker.observers_removed.with_label_values(&[name]).inc();
            }
        }
    }
}
