//! Aggregates of one series that may still change.

use std::sync::Arc;

use super::aggregate::{Aggregate, AggregateKey, Level};
use super::errors::ErrorSummary;
use super::{Observation, Pending};

/// Levels to which closed minutes are added.
const UPPER: [Level; 3] = [Level::TenMinutes, Level::Hour, Level::Day];

/// An aggregate or the errors of an hour, and whether it differs from the store.
#[derive(Debug, Default)]
struct SeriesSlot<T> {
    number: i64,
    value: T,
    changed: bool,
}

impl<T: Default> SeriesSlot<T> {
    /// Begins the slot of `number`; returns the previous one if it had another number.
    fn begin(&mut self, number: i64) -> Option<Self> {
        (self.number != number).then(|| std::mem::replace(self, Self { number, ..Self::default() }))
    }
}

/// Open aggregates of one series.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: Arc<str>,
    /// Day under which the series is listed, if known.
    pub(super) listed: Option<i64>,
    /// The open minute; `None` while nothing has been counted in it.
    minute: Option<Aggregate>,
    minute_changed: bool,
    upper: [SeriesSlot<Aggregate>; UPPER.len()],
    errors: SeriesSlot<ErrorSummary>,
}

impl Series {
    pub(super) fn new(name: Arc<str>) -> Self {
        let (upper, errors) = Default::default();
        Self { name, listed: None, minute: None, minute_changed: false, upper, errors }
    }

    /// Loads a stored aggregate.
    pub(super) fn load(&mut self, key: AggregateKey, aggregate: Aggregate) {
        match UPPER.iter().position(|level| *level == key.level) {
            Some(index) => self.upper[index] = SeriesSlot { number: key.number, value: aggregate, changed: false },
            None => self.minute = Some(aggregate),
        }
    }

    pub(super) fn load_errors(&mut self, hour: i64, errors: ErrorSummary) {
        self.errors = SeriesSlot { number: hour, value: errors, changed: false };
    }

    /// Aggregate of the open minute, to be changed.
    pub(super) fn open_aggregate(&mut self) -> &mut Aggregate {
        self.minute_changed = true;
        self.minute.get_or_insert_default()
    }

    pub(super) fn count(&mut self, observation: &Observation) {
        let aggregate = self.open_aggregate();
        aggregate.opened += u64::from(observation.opened);
        aggregate.retried += u64::from(observation.retried);
        aggregate.duplicates += u64::from(observation.duplicates);
        if let Some(state) = observation.ended {
            aggregate.count_end(state);
        }
        if let Some(wait_ms) = observation.wait_ms {
            aggregate.wait.record(wait_ms);
        }
        if let Some(attempt) = &observation.attempt {
            aggregate.busy_ms = aggregate.busy_ms.saturating_add(attempt.took_ms);
            if observation.succeeded {
                aggregate.run.record(attempt.took_ms);
            }
        }
    }

    pub(super) fn count_errors(&mut self, observation: Observation, hour: i64) {
        if self.errors.number != hour {
            // Written when the minute was closed, and it never changes again.
            self.errors = SeriesSlot { number: hour, ..SeriesSlot::default() };
        }
        let errors = &mut self.errors;
        for (fingerprint, text, ended_ms) in observation.errors {
            errors.value.record(fingerprint, &text, ended_ms);
            errors.changed = true;
        }
        if let Some(attempt) = observation.attempt.filter(|attempt| errors.value.is_slow(attempt.took_ms)) {
            errors.value.record_attempt(attempt);
            errors.changed = true;
        }
    }

    /// Adds the closed minute to the aggregates above it.
    pub(super) fn close(&mut self, minute: i64, pending: &mut Pending) {
        self.take_errors(pending);
        let Some(aggregate) = self.minute.take() else { return };
        for (level, slot) in UPPER.into_iter().zip(&mut self.upper) {
            let number = AggregateKey::of_minute(level, minute).number;
            if let Some(closed) = slot.begin(number).filter(|closed| closed.changed) {
                let key = AggregateKey { level, number: closed.number };
                pending.aggregates.push((self.name.clone(), key, Some(closed.value)));
            }
            slot.value.merge(&aggregate);
            slot.changed = true;
        }
        if std::mem::take(&mut self.minute_changed) {
            pending.aggregates.push((
                self.name.clone(),
                AggregateKey::of_minute(Level::Minute, minute),
                Some(aggregate),
            ));
        }
    }

    /// Adds the aggregates that differ from the store.
    pub(super) fn take_changes(&mut self, minute: i64, pending: &mut Pending) {
        if let Some(aggregate) = self.minute.as_ref().filter(|_| std::mem::take(&mut self.minute_changed)) {
            pending.aggregates.push((
                self.name.clone(),
                AggregateKey::of_minute(Level::Minute, minute),
                Some(aggregate.clone()),
            ));
        }
        for (level, slot) in UPPER.into_iter().zip(&mut self.upper) {
            if std::mem::take(&mut slot.changed) {
                let key = AggregateKey { level, number: slot.number };
                pending.aggregates.push((self.name.clone(), key, Some(slot.value.clone())));
            }
        }
        self.take_errors(pending);
    }

    fn take_errors(&mut self, pending: &mut Pending) {
        if std::mem::take(&mut self.errors.changed) {
            pending.errors.push((self.name.clone(), self.errors.number, Some(self.errors.value.clone())));
        }
    }
}
