//! Steady load: tasks of many types in turn at a constant rate, and the times from their submission to their start.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use kafleet_broker::{Broker, Consumer, ConsumerSpec, Partition, RecordRef, StartOffset};
use kafleet_model::event::{Event, Kind};
use rustc_hash::FxHashMap;

use super::TypesFleet;
use crate::EVENTS_PARTITIONS;
use crate::load::{self, Filler};

/// Maximum time until the last task has ended.
const DEADLINE: Duration = Duration::from_secs(120);

/// Times and repetitions of the tasks of a load.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedTasks {
    /// Time from submission to start, in ms.
    pub latencies: Vec<f64>,
    /// Attempts after the first one of a task.
    pub repeated: u64,
}

/// Reader of the events.
pub(super) struct Observer {
    consumer: Box<dyn Consumer>,
    /// Submission times of tasks that have not ended, by number; epoch milliseconds.
    open: FxHashMap<u64, f64>,
    observed: ObservedTasks,
}

impl Observer {
    /// Reads events from the current end on.
    pub(super) fn new(fleet: &TypesFleet) -> anyhow::Result<Self> {
        let topic = fleet.topics.topology.names.events();
        let mut consumer = fleet.topics.broker.consumer(&ConsumerSpec::default())?;
        let mut starts = Vec::new();
        for number in 0..EVENTS_PARTITIONS {
            let partition = Partition::new(topic.as_str(), number as i32);
            let end = fleet.topics.watermarks(&partition)?.high;
            starts.push((partition, StartOffset::At(end)));
        }
        consumer.assign(&starts)?;
        Ok(Self { consumer, open: FxHashMap::default(), observed: ObservedTasks::default() })
    }

    /// Publishes tasks of these types in turn, at the rate of the benchmark, until `ends` holds; returns once all have
    /// ended.
    pub(super) fn run(
        mut self,
        fleet: &mut TypesFleet,
        types: &[String],
        mut ends: impl FnMut(&TypesFleet, Duration) -> anyhow::Result<bool>,
    ) -> anyhow::Result<ObservedTasks> {
        let filler = Filler::new(&fleet.topics)?;
        let params = load::params();
        let begun = Instant::now();
        let mut sent = 0_u64;
        while !ends(fleet, begun.elapsed())? {
            let due = (begun.elapsed().as_secs_f64() * f64::from(fleet.bench.rate)) as u64;
            while sent < due {
                let numbers = fleet.take_numbers(1);
                let task_type = &types[usize::try_from(sent)? % types.len()];
                self.open.insert(numbers.start, now_ms());
                filler.tasks(&fleet.topics.topology.names, task_type, numbers, &params)?;
                sent += 1;
            }
            self.poll()?;
        }
        filler.end()?;
        let until = Instant::now() + DEADLINE;
        while !self.open.is_empty() {
            if Instant::now() > until {
                bail!("{} of {sent} tasks have not ended after {} s", self.open.len(), DEADLINE.as_secs());
            }
            self.poll()?;
        }
        Ok(self.observed)
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        let Self { consumer, open, observed } = self;
        consumer.poll(10_000, Duration::from_millis(1), &mut |record| apply_record(record, open, observed))?;
        Ok(())
    }
}

/// Applies an event of a task of the load; those of other tasks are not decoded.
fn apply_record(record: &RecordRef<'_>, open: &mut FxHashMap<u64, f64>, observed: &mut ObservedTasks) {
    let key = record.key.and_then(|key| std::str::from_utf8(key).ok());
    let Some(number) = key.and_then(|key| key.strip_prefix("bench-")?.parse::<u64>().ok()) else { return };
    let Some(sent_ms) = open.get(&number).copied() else { return };
    let Some(event) = record.value.and_then(|value| Event::decode(value).ok()) else { return };
    if event.kind() == Kind::Succeeded {
        open.remove(&number);
        observed.repeated += u64::from(event.attempt.saturating_sub(1));
        // In whole milliseconds of the same clock: half of one is added.
        observed.latencies.extend(event.payload.started_at_ms().map(|at| at as f64 + 0.5 - sent_ms));
    }
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3)
}
