//! Positions compared with the log: committed offsets of workers, and checkpoints of trackers.
//!
//! Both the positions and the ends of a log advance while they are read. A position is therefore read before the
//! watermarks and once more after them: one that was beyond the end even before the end was read, or below the start
//! even after the start was read, is outside the log for certain. A busy fleet never looks like that.

use std::collections::BTreeSet;
use std::sync::Arc;

use kafleet_broker::{BrokerClient, BrokerError, Partition, TopicInfo, Watermarks};
use kafleet_config::{Config, Names};
use kafleet_fleet::control::settings::{FleetSettings, read_control};
use kafleet_handlers::Registry;
use kafleet_store::{Checkpoint, Store, StoreError};

use super::Diagnosis;
use crate::cli::offsets::misplaced_commits;
use crate::cli::setup::Setup;

/// Number of unprojected events above which a warning is given.
const LAG_EVENTS: i64 = 100_000;

/// Partitions of the events topic.
pub(super) struct EventsLog {
    pub client: BrokerClient,
    pub partitions: Vec<Partition>,
}

impl EventsLog {
    pub(super) fn new(client: BrokerClient, setup: &Setup) -> Self {
        let topic: Arc<str> = setup.names.events().into();
        let indexes = (0..).take(setup.config.topics.events_partitions as usize);
        Self { client, partitions: indexes.map(|index| Partition::new(topic.clone(), index)).collect() }
    }

    /// Watermarks of all partitions; `None` if one cannot be read.
    pub(super) async fn watermarks(&self) -> Option<Vec<Watermarks>> {
        let mut watermarks = Vec::with_capacity(self.partitions.len());
        for partition in &self.partitions {
            watermarks.push(self.client.watermarks(partition).await.ok()?);
        }
        Some(watermarks)
    }
}

/// A position that was read before and after the watermarks of its partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedPosition {
    pub before: i64,
    pub watermarks: Watermarks,
    pub after: i64,
}

impl ObservedPosition {
    fn is_beyond_the_end(&self) -> bool {
        self.before > self.watermarks.high
    }

    fn is_below_the_start(&self) -> bool {
        self.after < self.watermarks.low
    }
}

/// Reports committed offsets that Kafka has dropped or that lie outside the log. Missing topics have a finding already.
pub(super) async fn check_commits(
    client: &BrokerClient,
    config: &Config,
    registry: &Registry,
    present: &[TopicInfo],
) -> Result<Vec<Diagnosis>, BrokerError> {
    let names = Names::of(config);
    let Ok(control) = read_control(client, &names).await else { return Ok(Vec::new()) };
    let mut diagnoses = Vec::new();
    let types = config.types.keys().cloned().chain(registry.types().map(|(name, _)| name.to_string()));
    for task_type in types.collect::<BTreeSet<_>>() {
        let misplaced = misplaced_commits(&names, &control, &task_type);
        diagnoses
            .extend(misplaced.map(|(message, hint)| Diagnosis::error(format!("type {task_type}"), message).hint(hint)));
        let topic = names.tasks(&task_type);
        if present.iter().any(|info| info.name == topic) {
            diagnoses.extend(check_commits_of(client, &names, &control, &task_type).await?);
        }
    }
    Ok(diagnoses)
}

async fn check_commits_of(
    client: &BrokerClient,
    names: &Names,
    control: &FleetSettings,
    task_type: &str,
) -> Result<Vec<Diagnosis>, BrokerError> {
    let topic: Arc<str> = names.tasks(task_type).into();
    let numbers = control.consumed.iter().filter(|(name, _)| name == task_type).map(|(_, number)| *number);
    let partitions: Vec<Partition> = numbers.map(|number| Partition::new(topic.clone(), number)).collect();
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let group = names.group_id(task_type, control.group_of(task_type));
    let before = client.group_offsets(&group, partitions.clone()).await?;
    let mut watermarks = Vec::with_capacity(partitions.len());
    for partition in &partitions {
        watermarks.push(client.watermarks(partition).await?);
    }
    let after = client.group_offsets(&group, partitions.clone()).await?;
    let committed = before.iter().zip(&after);
    let observed = committed.zip(watermarks).map(|((before, after), watermarks)| {
        let (before, after) = (before.as_ref()?.offset, after.as_ref()?.offset);
        Some(ObservedPosition { before, watermarks, after })
    });
    let findings = partitions.iter().zip(observed);
    Ok(findings.filter_map(|(partition, observed)| check_commit(task_type, partition, observed)).collect())
}

/// `observed`: `None` if Kafka has dropped the committed offset.
pub(super) fn check_commit(
    task_type: &str,
    partition: &Partition,
    observed: Option<ObservedPosition>,
) -> Option<Diagnosis> {
    let target = format!("{task_type}/{}", partition.index);
    let choose = format!(
        "choose where to start with `kafleet offsets init {target} --at OFFSET|TIME`, or `--at earliest`, which runs \
         again what is in the log"
    );
    let (message, hint) = match observed {
        None => (
            "consumed before, but Kafka has dropped the committed offset: workers refuse the partition".to_owned(),
            choose,
        ),
        Some(observed) if observed.is_below_the_start() => {
            let removed = observed.watermarks.low - observed.after;
            let message = format!(
                "retention has removed {removed} offsets past the committed one: unfinished tasks among them are lost"
            );
            (message, format!("run `kafleet offsets init {target} --at earliest`"))
        }
        Some(observed) if observed.is_beyond_the_end() => {
            let (offset, end) = (observed.before, observed.watermarks.high);
            (format!("the committed offset is {offset}, but the log ends at {end}: was the topic recreated?"), choose)
        }
        Some(_) => return None,
    };
    Some(Diagnosis::error(partition.to_string(), message).hint(hint))
}

/// Checkpoints and the log, read in an order that makes a difference certain. `None`: the log cannot be read.
pub(super) async fn observe_progress(
    store: &dyn Store,
    log: &EventsLog,
) -> Result<Option<Vec<Option<ObservedPosition>>>, StoreError> {
    let numbers: Vec<u32> = (0..).take(log.partitions.len()).collect();
    let before = store.checkpoints(&numbers).await?;
    let Some(watermarks) = log.watermarks().await else { return Ok(None) };
    let after = store.checkpoints(&numbers).await?;
    Ok(Some(observed_progress(&before, &watermarks, &after)))
}

/// `None` for a partition that was not projected yet, or was emptied meanwhile.
fn observed_progress(
    before: &[Option<Checkpoint>],
    watermarks: &[Watermarks],
    after: &[Option<Checkpoint>],
) -> Vec<Option<ObservedPosition>> {
    let read = before.iter().zip(after).zip(watermarks);
    read.map(|((before, after), watermarks)| {
        let (before, after) = match (before, after) {
            (None, None) => (watermarks.low, watermarks.low),
            (before, after) => (before.as_ref()?.offset, after.as_ref()?.offset),
        };
        Some(ObservedPosition { before, watermarks: *watermarks, after })
    })
    .collect()
}

/// Reports the trackers' lag, and checkpoints outside the log.
pub(super) fn check_progress(observed: &[Option<ObservedPosition>]) -> Vec<Diagnosis> {
    let mut diagnoses = Vec::new();
    let mut behind = 0;
    for (index, observed) in observed.iter().enumerate() {
        let Some(observed) = observed else { continue };
        behind += (observed.watermarks.high - observed.before).max(0);
        if observed.is_beyond_the_end() || observed.is_below_the_start() {
            let offset = if observed.is_beyond_the_end() { observed.before } else { observed.after };
            let Watermarks { low, high } = observed.watermarks;
            let message = format!("the checkpoint in Redis is {offset}, but the log holds {low} to {high}");
            let hint = "check that `[redis]` and the prefix are those of this fleet; if the events topic was recreated, \
                        or retention has removed events, let the trackers project into another, empty database";
            diagnoses.push(Diagnosis::error(format!("events/{index}"), message).hint(hint));
        }
    }
    diagnoses.push(lag_finding(behind));
    diagnoses
}

fn lag_finding(behind: i64) -> Diagnosis {
    let message = format!("{behind} events not yet projected");
    if behind > LAG_EVENTS {
        return Diagnosis::warning("projection", message).hint("run more trackers, or check their logs");
    }
    Diagnosis::ok("projection", message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cli::doctor::Verdict;

    #[test]
    fn committed_offsets_outside_the_log_are_reported() {
        let partition = Partition::new("kafleet.tasks.echo", 3);
        let watermarks = Watermarks { low: 10, high: 20 };
        for (committed, expected) in [
            (None, Some("dropped the committed offset")),
            (Some(4), Some("removed 6 offsets past the committed one")),
            (Some(21), Some("the log ends at 20")),
            (Some(10), None),
            (Some(20), None),
        ] {
            let observed = committed.map(|offset| ObservedPosition { before: offset, watermarks, after: offset });
            let finding = check_commit("echo", &partition, observed);
            assert_eq!(finding.is_some(), expected.is_some(), "{committed:?}");
            if let (Some(finding), Some(expected)) = (finding, expected) {
                assert!(finding.message.contains(expected), "{finding:?}");
                assert!(finding.hint.is_some_and(|hint| hint.contains("kafleet offsets init echo/3 --at")));
            }
        }
    }

    #[test]
    fn lag_and_checkpoints_outside_the_log_are_reported() {
        let checkpoint = |offset| Some(Checkpoint { offset, version: 1, ..Checkpoint::default() });
        let watermarks = |first, end| Watermarks { low: first, high: end };
        let check = |at: &[Option<Checkpoint>], ends: &[Watermarks]| check_progress(&observed_progress(at, ends, at));
        let healthy = check(&[checkpoint(7), None], &[watermarks(0, 10), watermarks(0, 5)]);
        assert_eq!(healthy, [Diagnosis::ok("projection", "8 events not yet projected")]);
        let foreign = check(&[checkpoint(700), checkpoint(1)], &[watermarks(0, 10), watermarks(5, 9)]);
        let errors: Vec<&str> = foreign
            .iter()
            .filter(|diagnosis| diagnosis.verdict == Verdict::Error)
            .map(|diagnosis| diagnosis.subject.as_str())
            .collect();
        assert_eq!(errors, ["events/0", "events/1"]);
        assert_eq!(check(&[checkpoint(0)], &[watermarks(0, 200_000)])[0].verdict, Verdict::Warning);
    }

    proptest! {
        /// At each moment the position is inside the log; it and both ends advance between any two reads.
        #[test]
        fn busy_healthy_fleet_has_no_errors(
            low in 0_i64..100, steps in prop::collection::vec((0_i64..500, 0_i64..500, 0_i64..500), 3),
        ) {
            let (mut low, mut position, mut high) = (low, low, low);
            let mut advance = |step: &(i64, i64, i64)| {
                high += step.0;
                position = (position + step.1).min(high);
                low = (low + step.2).min(position);
                (low, position, high)
            };
            let (_, before, _) = advance(&steps[0]);
            let (low, _, high) = advance(&steps[1]);
            let (_, after, _) = advance(&steps[2]);
            let observed = ObservedPosition { before, watermarks: Watermarks { low, high }, after };
            prop_assert!(check_progress(&[Some(observed)]).iter().all(|diagnosis| diagnosis.verdict != Verdict::Error));
            prop_assert_eq!(check_commit("echo", &Partition::new("t", 0), Some(observed)), None);
        }
    }
}
