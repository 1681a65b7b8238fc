//! Checks made before a rebuild writes anything.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Broker, BrokerError, Partition, Watermarks};
use kafleet_model::event::Event;
use kafleet_model::projection::FOLD_VERSION;
use kafleet_model::record::TaskRecord;
use kafleet_model::task::id::TaskId;
use kafleet_model::units::time::time_text;
use kafleet_runtime::now_ms;
use kafleet_store::{Checkpoint, Entry, Index, Reservation, Stage, Store, StoreError};

use super::{PartitionRange, Rebuild, RebuildError, RebuildPlan};

/// Maximum number of incomplete trees that are counted.
const MAX_PARTIAL: usize = 10_000;
/// Number of offsets searched for an event next to a position, because some hold none.
const SEARCHED_OFFSETS: i64 = 64;
/// Tolerated difference between the clocks of brokers.
const CLOCK_SLACK_MS: i64 = 3_600_000;

impl From<StoreError> for RebuildError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::Emptied(_) => Self::Unavailable(error.to_string()),
            _ => Self::Unsuitable(error.to_string()),
        }
    }
}

impl From<BrokerError> for RebuildError {
    fn from(error: BrokerError) -> Self {
        if error.is_transient() { Self::Unavailable(error.to_string()) } else { Self::Unsuitable(error.to_string()) }
    }
}

/// State of both stores and of the log.
struct Preflight<'a> {
    setup: &'a Rebuild,
    source: Vec<Option<Checkpoint>>,
    copy: Vec<Option<Checkpoint>>,
    ends: Vec<Watermarks>,
}

/// Checks the stores and the log, and plans the rebuild. Writes only a temporary reservation.
pub async fn preflight(setup: &Rebuild) -> Result<RebuildPlan, RebuildError> {
    let tracker = &setup.tracker;
    if is_same(&*setup.source, &*tracker.store).await? {
        return unsuitable(
            "this is the store that serves now",
            "name another Redis, or another database of this one, as the target",
        );
    }
    let all: Vec<u32> = tracker.topology.partitions().collect();
    let ends = ends(setup, &all).await?;
    let (source, copy) = (setup.source.checkpoints(&all).await?, tracker.store.checkpoints(&all).await?);
    let preflight = Preflight { setup, source, copy, ends };
    preflight.check_versions()?;
    preflight.check_owner().await?;
    preflight.check_fleet().await?;
    let partial_trees = preflight.check_log().await?;
    Ok(preflight.plan(partial_trees))
}

fn unsuitable<T>(reason: impl std::fmt::Display, hint: &str) -> Result<T, RebuildError> {
    Err(RebuildError::Unsuitable(format!("{reason}\n\nhint: {hint}")))
}

/// Detects one store under two addresses: a reservation in one is visible in the other.
async fn is_same(source: &dyn Store, copy: &dyn Store) -> Result<bool, RebuildError> {
    let name = format!("rebuild-{}", uuid::Uuid::now_v7().simple());
    let id = TaskId::parse(&name).map_err(|error| RebuildError::Unsuitable(error.to_string()))?;
    let reservation = |hash: &str| Reservation { hash: hash.to_owned(), stage: Stage::InDoubt };
    let (in_copy, in_source) = (reservation("copy"), reservation("source"));
    copy.reserve(0, &id, 1, &in_copy).await?;
    let existing = source.reserve(0, &id, 1, &in_source).await;
    copy.replace_reservation(0, &id, 1, &in_copy, None).await?;
    let same = existing?.is_some_and(|existing| existing == in_copy);
    if !same {
        source.replace_reservation(0, &id, 1, &in_source, None).await?;
    }
    Ok(same)
}

async fn ends(setup: &Rebuild, partitions: &[u32]) -> Result<Vec<Watermarks>, RebuildError> {
    let (broker, events) = (setup.tracker.broker.client(), Arc::<str>::from(setup.tracker.topology.names.events()));
    let mut ends = Vec::with_capacity(partitions.len());
    for number in partitions {
        ends.push(broker.watermarks(&Partition::new(events.clone(), *number as i32)).await?);
    }
    Ok(ends)
}

impl Preflight<'_> {
    fn check_versions(&self) -> Result<(), RebuildError> {
        let version = |checkpoints: &[Option<Checkpoint>], wrong: fn(u32) -> bool| {
            checkpoints.iter().flatten().map(|checkpoint| checkpoint.version).find(|version| wrong(*version))
        };
        if let Some(newer) = version(&self.source, |version| version > FOLD_VERSION) {
            let reason = format!("the source has fold version {newer} and this build has {FOLD_VERSION}");
            return unsuitable(reason, "use the build that the trackers run, or a newer one");
        }
        if let Some(other) = version(&self.copy, |version| version != FOLD_VERSION) {
            let reason = format!("the target store has fold version {other} and this build has {FOLD_VERSION}");
            return unsuitable(reason, "continue with the build that started the rebuild, or empty the store");
        }
        Ok(())
    }

    /// Checks that existing partitions belong to a rebuild.
    async fn check_owner(&self) -> Result<(), RebuildError> {
        let trackers = self.copy.iter().flatten().filter(|checkpoint| checkpoint.rebuild == 0).count();
        let rebuilds = self.copy.iter().flatten().filter(|checkpoint| checkpoint.rebuild > 0).count();
        if trackers > 0 && rebuilds == 0 {
            let reason =
                format!("trackers project into this store: they own {trackers} of {} partitions", self.copy.len());
            return unsuitable(reason, "name an empty store; a store maintained by trackers needs no rebuild");
        }
        let store = &self.setup.tracker.store;
        for (number, checkpoint) in (0..).zip(&self.copy) {
            if checkpoint.is_none() && !store.page(number, &Index::Roots, None, 1).await?.is_empty() {
                let reason = format!("the store has records of partition {number} but no checkpoint");
                return unsuitable(reason, "empty the store");
            }
        }
        Ok(())
    }

    /// Checks that the state of an earlier rebuild belongs to this log.
    async fn check_fleet(&self) -> Result<(), RebuildError> {
        const HINT: &str = "name an empty store, or the one in which a rebuild of this fleet was started";
        let beyond = self.setup.tracker.topology.events_partitions;
        if self.setup.tracker.store.checkpoints(&[beyond]).await?.pop().flatten().is_some() {
            let reason = format!(
                "the store belongs to another fleet: it has a partition {beyond}, this fleet has 0 to {}",
                beyond - 1
            );
            return unsuitable(reason, HINT);
        }
        for (number, (checkpoint, ends)) in self.copy.iter().zip(&self.ends).enumerate() {
            let Some(checkpoint) = checkpoint else { continue };
            if checkpoint.offset < ends.low || checkpoint.offset > ends.high {
                let (first, end) = (ends.low, ends.high);
                let reason = format!(
                    "the store belongs to another fleet, or the log was truncated: partition {number} is projected up to offset {}, the log holds {first} to {end}",
                    checkpoint.offset
                );
                return unsuitable(reason, HINT);
            }
            if let Some(time_ms) = self.time_before(number, *checkpoint, *ends).await?
                && (time_ms > checkpoint.log_time_ms || checkpoint.log_time_ms - time_ms > CLOCK_SLACK_MS)
            {
                let (log, store) = (time_text(time_ms), time_text(checkpoint.log_time_ms));
                let reason = format!(
                    "the store belongs to another fleet: partition {number} is projected up to offset {} with log time {store}, but this log has {log} there",
                    checkpoint.offset
                );
                return unsuitable(reason, HINT);
            }
        }
        Ok(())
    }

    /// Append time of the event before a checkpoint.
    async fn time_before(
        &self,
        number: usize,
        checkpoint: Checkpoint,
        ends: Watermarks,
    ) -> Result<Option<i64>, RebuildError> {
        let from = ends.low.max(checkpoint.offset - SEARCHED_OFFSETS);
        self.find((from..checkpoint.offset).rev(), number).await
    }

    /// Append time of the first event at these offsets.
    async fn find(
        &self,
        offsets: impl Iterator<Item = i64> + Send + 'static,
        number: usize,
    ) -> Result<Option<i64>, RebuildError> {
        let setup = &self.setup.tracker;
        let partition = Partition::new(setup.topology.names.events(), number as i32);
        Ok(setup.broker.client().call(move |broker, _| find(broker, &partition, offsets)).await?)
    }

    /// Counts trees of the source that began before the start of the log.
    async fn check_log(&self) -> Result<u64, RebuildError> {
        let (mut count, mut message) = (0, Vec::new());
        for (number, ends) in self.ends.iter().enumerate() {
            if ends.low == 0 {
                continue;
            }
            let until = ends.high.min(ends.low + SEARCHED_OFFSETS);
            let begins_ms = self.find(ends.low..until, number).await?.unwrap_or_else(now_ms);
            let mut older = self.older(number as u32, begins_ms).await?;
            if self.copy[number].is_some() {
                // Continued from an earlier rebuild: skip trees that it has folded completely.
                older = self.missing(number as u32, older).await?;
                count += older.len() as u64;
                continue;
            }
            if let Some(oldest) = older.last() {
                let more = if older.len() >= MAX_PARTIAL { " or more" } else { "" };
                message.push(format!(
                    "partition {number} begins at offset {} ({}), and {}{more} trees in the source began earlier, such as `{}`",
                    ends.low,
                    time_text(begins_ms),
                    older.len(),
                    oldest.id
                ));
                count += older.len() as u64;
            }
        }
        if message.is_empty() || self.setup.partial {
            return Ok(count);
        }
        unsuitable(
            format!("retention has removed the beginning of the log: {}", message.join("; ")),
            "those trees would be missing or incomplete; `--partial` projects the rest of the log anyway",
        )
    }

    async fn older(&self, number: u32, than_ms: i64) -> Result<Vec<Entry>, RebuildError> {
        let Ok(lowest) = TaskId::parse("-") else { return Ok(Vec::new()) };
        let time_step = Entry { seen_ms: than_ms, id: lowest };
        Ok(self.setup.source.page(number, &Index::Roots, Some(&time_step), MAX_PARTIAL).await?)
    }

    /// Returns those trees whose beginning is unknown to the copy.
    async fn missing(&self, number: u32, trees: Vec<Entry>) -> Result<Vec<Entry>, RebuildError> {
        let ids: Vec<TaskId> = trees.iter().map(|entry| entry.id.clone()).collect();
        let tasks = self.setup.tracker.store.task_records(number, &ids).await?;
        let is_missing = |task: &Option<TaskRecord>| task.as_ref().is_none_or(|task| task.task_type.is_none());
        Ok(trees.into_iter().zip(tasks).filter(|(_, task)| is_missing(task)).map(|(entry, _)| entry).collect())
    }

    fn plan(self, partial_trees: u64) -> RebuildPlan {
        let checkpoints = (0..).zip(&self.copy).zip(&self.ends);
        let (mut partitions, mut taken) = (Vec::new(), BTreeSet::new());
        for ((number, checkpoint), ends) in checkpoints {
            match checkpoint {
                Some(checkpoint) if checkpoint.rebuild == 0 => drop(taken.insert(number)),
                _ => {
                    let from = checkpoint.map_or(ends.low, |checkpoint| checkpoint.offset);
                    partitions.push(PartitionRange { number, from, end: ends.high });
                }
            }
        }
        let last = self.copy.iter().flatten().map(|checkpoint| checkpoint.rebuild).max().unwrap_or(0);
        RebuildPlan {
            number: last.saturating_add(1),
            partitions,
            taken,
            resumed: last > 0,
            incomparable: self.incomparable(partial_trees),
            partial_trees,
        }
    }

    fn incomparable(&self, partial_trees: u64) -> Option<String> {
        let older =
            self.source.iter().flatten().map(|checkpoint| checkpoint.version).find(|version| *version < FOLD_VERSION);
        if let Some(older) = older {
            return Some(format!("the source has fold version {older}, the copy has {FOLD_VERSION}"));
        }
        (partial_trees > 0).then(|| format!("the log has lost the beginning of {partial_trees} trees in the source"))
    }
}

fn find(
    broker: &dyn Broker,
    partition: &Partition,
    offsets: impl Iterator<Item = i64>,
) -> Result<Option<i64>, BrokerError> {
    for offset in offsets {
        let record = broker.read_at(partition, offset, Duration::from_secs(5))?;
        let event = record.filter(|record| Event::decode(record.value.as_deref().unwrap_or_default()).is_ok());
        if let Some(record) = event {
            return Ok(Some(record.timestamp_ms));
        }
    }
    Ok(None)
}
