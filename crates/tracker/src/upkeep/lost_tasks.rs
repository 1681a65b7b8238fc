//! Tasks whose records Kafka removed, and which no worker holds, so that no worker will ever report them: queued tasks,
//! and tasks at a worker that has stopped sending heartbeats.
//!
//! The removal of a record alone proves nothing, because a worker may have fetched it before. A task is lost only if
//! no worker can hold its record: either the group's commit has passed the record while the task is still open
//! after all events up to that time (workers report the end of a task before they commit it, and commit past removed
//! records), or no live worker takes the type, since workers that start later cannot find the record.
//!
//! The search runs only if a log has lost records that the group had not passed at the last check, and after a worker
//! has stopped sending heartbeats. It then visits all open trees of the partition once, in bounded steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Broker, BrokerError, CommittedOffset, Partition};
use kafleet_model::event::{AttemptFailure, Event, Payload};
use kafleet_model::offsets::{CompletedOffsets, Metadata};
use kafleet_model::record::TaskRecord;
use kafleet_model::record::rollup::children_of;
use kafleet_model::record::state::State;
use kafleet_model::retention::REMOVED;
use kafleet_model::task::id::TaskId;
use kafleet_runtime::now_ms;
use kafleet_store::{Entry, Index, Store, StoreError};

use super::ticker::STEP_RECORDS;
use crate::recorded_groups::RecordedGroups;
use crate::setup::TrackerSetup;

const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// States of tasks that may be lost.
const SEARCHED_STATES: [State; 5] = [State::Queued, State::Running, State::Warning, State::Retrying, State::Scheduled];

/// Type and partition of a task topic.
type TopicPartition = (Arc<str>, i32);

/// Partitions of task topics whose logs have lost their beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps(BTreeMap<TopicPartition, Gap>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Gap {
    /// Start of the log.
    first: i64,
    /// Offsets that the group has completed; `None` without a commit.
    passed: Option<CompletedOffsets>,
    /// No live worker takes the type.
    abandoned: bool,
}

impl Gap {
    fn new(first: i64, end: i64, committed: Option<CommittedOffset>) -> Self {
        // A commit beyond the end belongs to a deleted topic of the same name.
        let committed = committed.filter(|committed| committed.offset <= end);
        let passed = committed.map(|committed| {
            let metadata = Metadata::decode(committed.offset, &committed.metadata);
            metadata.map_or_else(|| CompletedOffsets::starting_at(committed.offset), |metadata| metadata.completed)
        });
        Self { first, passed, abandoned: false }
    }

    /// Returns true if the record was removed and no worker can hold it.
    fn has_lost(&self, offset: i64) -> bool {
        offset < self.first && (self.abandoned || self.passed.as_ref().is_some_and(|passed| passed.is_done(offset)))
    }

    /// Offset below which the outcome of every record is known once the search is done.
    fn settled_offset(&self) -> i64 {
        let passed = self.passed.as_ref().map_or(0, CompletedOffsets::watermark);
        if self.abandoned { passed.max(self.first) } else { passed }
    }
}

impl Gaps {
    pub(crate) async fn find(setup: &TrackerSetup, groups: &RecordedGroups) -> Result<Self, BrokerError> {
        let names = setup.topology.names.clone();
        let groups = groups.get()?;
        let find = move |broker: &dyn Broker, _| {
            let mut gaps = BTreeMap::new();
            for topic in broker.topics(&names.tasks(""), CALL_DEADLINE)? {
                let Some(task_type) = names.type_of(&topic.name) else { continue };
                let all = (0..topic.partitions as i32).map(|index| Partition::new(topic.name.as_str(), index));
                let group = names.group_id(task_type, groups.group_of(task_type));
                for (index, gap) in gaps_of(broker, &group, all.collect())? {
                    gaps.insert((Arc::from(task_type), index), gap);
                }
            }
            Ok(Self(gaps))
        };
        setup.broker.client().call(find).await
    }

    /// Records the types that live workers take. Must be called after the logs were read: a worker that starts later
    /// cannot find removed records.
    pub(crate) fn set_live_types(&mut self, live_types: &BTreeSet<Arc<str>>) {
        self.0.iter_mut().for_each(|((task_type, _), gap)| gap.abandoned = !live_types.contains(task_type));
    }
}

/// Finds the partitions of a type with this group whose logs have lost their beginning. The start of the log is read
/// again after the commit: records that the group had passed by then and the log still contained were received by a
/// worker.
fn gaps_of(broker: &dyn Broker, group: &str, mut all: Vec<Partition>) -> Result<Vec<(i32, Gap)>, BrokerError> {
    let mut begun = Vec::new();
    for partition in all.drain(..) {
        if broker.watermarks(&partition, CALL_DEADLINE)?.low > 0 {
            begun.push(partition);
        }
    }
    if begun.is_empty() {
        return Ok(Vec::new());
    }
    let committed = broker.group_offsets(group, &begun, CALL_DEADLINE)?;
    let gap = |(partition, committed): (&Partition, Option<CommittedOffset>)| {
        let ends = broker.watermarks(partition, CALL_DEADLINE)?;
        Ok((partition.index, Gap::new(ends.low, ends.high, committed)))
    };
    begun.iter().zip(committed).map(gap).collect()
}

/// Searches completed by the upkeep of a partition.
#[derive(Default)]
pub(crate) struct CompletedSearches {
    /// Offsets below which no further search is needed.
    settled: BTreeMap<TopicPartition, i64>,
    /// Gaps of the last search.
    last: Gaps,
}

impl CompletedSearches {
    /// Returns the gaps that may contain lost tasks and have changed since the last search.
    pub(crate) fn unsettled(&mut self, gaps: &Gaps) -> Gaps {
        let mut pending = BTreeMap::new();
        for (position, gap) in &gaps.0 {
            let settled = self.settled.entry(position.clone()).or_default();
            if gap.first <= *settled {
                *settled = gap.settled_offset().max(*settled);
            } else if self.last.0.get(position) != Some(gap) {
                pending.insert(position.clone(), gap.clone());
            }
        }
        Gaps(pending)
    }

    /// Forgets all searches, because the tasks of a silent worker may be lost in gaps that were searched before.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Records a completed search.
    pub(crate) fn record_search(&mut self, gaps: Gaps) {
        for (position, gap) in gaps.0 {
            let settled = self.settled.entry(position.clone()).or_default();
            *settled = gap.settled_offset().max(*settled);
            self.last.0.insert(position, gap);
        }
    }
}

impl Gaps {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn contains_lost(&self, task: &TaskRecord) -> bool {
        let (Some(task_type), Some(position)) = (&task.task_type, task.definition.position) else { return false };
        let gap = self.0.get(&(task_type.clone(), position.partition));
        let waits = task.own == State::Queued && !task.is_to_be_published();
        // A silent worker reports nothing more, and any other one reports a state before it runs the task again.
        let is_abandoned = task.silent && !task.own.is_terminal();
        (waits || is_abandoned) && gap.is_some_and(|gap| gap.has_lost(position.offset))
    }
}

/// A search through the open trees of a partition.
pub(crate) struct LostTaskSearch {
    gaps: Gaps,
    /// Indexes to visit, with the last visited entry.
    pending: Vec<(Index, Option<Entry>)>,
    lost_types: Vec<Arc<str>>,
}

impl LostTaskSearch {
    pub(crate) fn new(gaps: Gaps) -> Self {
        let pending = if gaps.is_empty() { Vec::new() } else { vec![(Index::Ages, None)] };
        Self { gaps, pending, lost_types: Vec::new() }
    }

    /// Visits the next page and returns events for lost tasks; `None` at the end.
    pub(crate) async fn step(&mut self, store: &dyn Store, number: u32) -> Result<Option<Vec<Event>>, StoreError> {
        let Some((index, after)) = self.pending.pop() else { return Ok(None) };
        let page = store.page(number, &index, after.as_ref(), STEP_RECORDS).await?;
        if page.len() == STEP_RECORDS {
            self.pending.push((index, page.last().cloned()));
        }
        let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
        let tasks = store.task_records(number, &ids).await?;
        let mut events = Vec::new();
        for (id, task) in ids.into_iter().zip(tasks).filter_map(|(id, task)| Some((id, task?))) {
            if self.gaps.contains_lost(&task) {
                events.push(removed_event(&id, &task));
                self.lost_types.extend(task.task_type.clone());
            }
            let (_, _, tree) = children_of(&task.tree.below);
            if SEARCHED_STATES.iter().any(|state| tree.get(*state) > 0) {
                self.pending.push((Index::Children(id), None));
            }
        }
        Ok(Some(events))
    }

    /// Types of the tasks found since the last call.
    pub(crate) fn take_lost_types(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.lost_types)
    }
}

fn removed_event(id: &TaskId, task: &TaskRecord) -> Event {
    let failure = AttemptFailure::new("expired", REMOVED, task.attempt);
    Event::new(Payload::Expired(failure), id.clone(), task.run, now_ms())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_model::outbox::{Effect, EffectKind};
    use kafleet_model::task::Position;

    fn gaps(gap: Gap) -> Gaps {
        Gaps(std::iter::once((("root".into(), 1), gap)).collect())
    }

    fn committed(offset: i64, metadata: &str) -> Option<CommittedOffset> {
        Some(CommittedOffset { offset, metadata: metadata.to_owned() })
    }

    #[test]
    fn record_is_lost_only_when_no_worker_can_have_it() {
        let lost = |gap: &Gap| (0..14).filter(|offset| gap.has_lost(*offset)).collect::<Vec<_>>();
        let first_ten: Vec<i64> = (0..10).collect();
        assert_eq!(lost(&Gap::new(10, 20, None)), [0; 0], "without a commit the fate of records is unknown");
        assert_eq!(lost(&Gap { abandoned: true, ..Gap::new(10, 20, None) }), first_ten);
        // Completed above the committed offset: 7, 12 and 13.
        for metadata in ["kf1 open 100 0 r:AwEEAg", "kf2 open 0 16 r:AAEDAQ r:AwEEAg"] {
            let some = Gap::new(10, 20, committed(4, metadata));
            assert_eq!(lost(&some), [0, 1, 2, 3, 7], "{metadata}");
            assert_eq!(lost(&Gap { abandoned: true, ..some }), first_ten);
        }
        assert_eq!(lost(&Gap::new(10, 20, committed(12, "?"))), first_ten);
        assert_eq!(lost(&Gap::new(10, 20, committed(21, "-"))), [0; 0], "the commit belongs to an earlier topic");
    }

    #[test]
    fn gaps_are_searched_when_they_may_hold_something_new() {
        let mut searched = CompletedSearches::default();
        let mut step = |first, passed| {
            let pending = searched.unsettled(&gaps(Gap::new(first, 100, committed(passed, "?"))));
            let is_searched = !pending.is_empty();
            searched.record_search(pending);
            is_searched
        };
        assert!(step(5, 20), "the first gap is always searched");
        assert!(!step(5, 30) && !step(25, 40), "removed records were received by a worker");
        assert!(step(50, 45), "records above the commit were removed");
        assert!(!step(50, 45), "the gap has not changed");
        assert!(step(50, 47) && step(50, 60) && !step(50, 60) && !step(60, 70));
    }

    #[test]
    fn task_at_a_worker_is_lost_only_if_the_worker_is_silent() {
        let gaps = gaps(Gap { abandoned: true, ..Gap::new(10, 20, None) });
        let mut task = TaskRecord { task_type: Some("root".into()), ..TaskRecord::expected(2, 0) };
        task.definition.position = Some(Position { partition: 1, offset: 9 });
        for own in [State::Running, State::Warning, State::Retrying, State::Scheduled] {
            task.own = own;
            for silent in [false, true] {
                task.silent = silent;
                assert_eq!(gaps.contains_lost(&task), silent, "{own}");
            }
        }
        task.own = State::Succeeded;
        assert!(!gaps.contains_lost(&task), "the task has ended");
    }

    #[test]
    fn task_with_pending_republish_is_not_lost() {
        let gaps = gaps(Gap { abandoned: true, ..Gap::new(10, 20, None) });
        let mut task = TaskRecord { own: State::Queued, task_type: Some("root".into()), ..TaskRecord::expected(2, 0) };
        let at = |partition, offset| Some(Position { partition, offset });
        let positions = [None, at(0, 9), at(1, 9), at(1, 10)].map(|position| {
            task.definition.position = position;
            gaps.contains_lost(&task)
        });
        assert_eq!(positions, [false, false, true, false]);
        (task.definition.position, task.effects) =
            (at(1, 9), vec![Effect { cause: 7, kind: EffectKind::Publish { run: 2 } }]);
        assert!(!gaps.contains_lost(&task), "its position is that of the previous run");
    }
}
