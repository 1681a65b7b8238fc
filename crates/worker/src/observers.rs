//! Observers of the application, called by the dispatchers of all types.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use kafleet_handlers::hooks::{NamedObserver, Observe};
use kafleet_telemetry::Metrics;
use prometheus::IntCounterVec;

#[derive(Clone)]
pub(crate) struct Observers {
    observers: Vec<NamedObserver>,
    removed: IntCounterVec,
}

impl Observers {
    pub(crate) fn new(observers: &[NamedObserver], metrics: &Metrics) -> Self {
        let removed = metrics.worker.observers_removed.clone();
        for observer in observers {
            // The counter begins at 0: `increase()` does not see the first value of a series.
            removed.with_label_values(&[observer.name]);
        }
        Self { observers: observers.to_vec(), removed }
    }

    /// Calls all observers. One that panics is removed, for all types of the process.
    pub(crate) fn notify(&self, call: impl Fn(&dyn Observe)) {
        for NamedObserver { name, observer, is_removed } in &self.observers {
            if is_removed.load(Ordering::Relaxed) || catch_unwind(AssertUnwindSafe(|| call(&**observer))).is_ok() {
                continue;
            }
            if !is_removed.swap(true, Ordering::Relaxed) {
                tracing::error!(observer = name, "an observer panicked and is removed until the worker restarts");
                self.removed.with_label_values(&[name]).inc();
            }
        }
    }
}
