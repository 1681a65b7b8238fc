//! Queued tasks whose records Kafka has removed before a worker took them: nobody would ever say a word of them.
//!
//! That a record is gone from the log does not say so: a worker may have fetched it before. A task is lost only when no
//! worker can have its record any more. Either the group's commit has passed it, while the task is still queued behind the
//! events that there were then: a worker reports how a task ended before it commits it, and passes what it was never
//! given. Or no live worker takes the type: who comes later finds no record.
//!
//! They are looked for only where there can be any: where a log has lost records that the group had not passed when it
//! was looked at before. Then all open trees of the partition are gone through once, some records at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::ticker::STEP;
use crate::broker::{Broker, BrokerError, Committed, Partition};
use crate::config::Names;
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::offsets::{Completed, Metadata};
use crate::model::record::TaskRecord;
use crate::model::record::rollup::children_of;
use crate::model::record::state::State;
use crate::model::retention::REMOVED;
use crate::model::task::id::TaskId;
use crate::runtime::{blocking, now_ms};
use crate::store::{Entry, Index, Store};
use crate::tracker::TrackerSetup;

const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// A type and a partition of its topic.
type LogPosition = (Arc<str>, i32);

/// The partitions of task topics whose logs have lost their beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps(BTreeMap<LogPosition, Gap>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Gap {
    /// Where the log begins now.
    first: i64,
    /// What the group has passed. None: it has committed nothing.
    passed: Option<Completed>,
    /// No live worker takes the type.
    abandoned: bool,
}

impl Gap {
    fn new(first: i64, end: i64, committed: Option<Committed>) -> Self {
        // A commit behind the end is of an earlier topic of that name.
        let committed = committed.filter(|committed| committed.offset <= end);
        let passed = committed.map(|committed| {
            let metadata = Metadata::decode(committed.offset, &committed.metadata);
            metadata.map_or_else(|| Completed::starting_at(committed.offset), |metadata| metadata.completed)
        });
        Self { first, passed, abandoned: false }
    }

    /// The record is gone, and no worker can have it.
    fn has_lost(&self, offset: i64) -> bool {
        offset < self.first && (self.abandoned || self.passed.as_ref().is_some_and(|passed| passed.is_done(offset)))
    }

    /// Below here it is known what became of every record, once what is lost has been looked for.
    fn settled(&self) -> i64 {
        let passed = self.passed.as_ref().map_or(0, Completed::watermark);
        if self.abandoned { passed.max(self.first) } else { passed }
    }
}

impl Gaps {
    pub async fn find(setup: &TrackerSetup) -> Result<Self, String> {
        let (broker, names) = (setup.broker.clone(), setup.names.clone());
        let find = blocking(move || {
            let mut gaps = BTreeMap::new();
            for topic in broker.topics(&names.tasks(""), CALL_DEADLINE)? {
                let Some(task_type) = names.type_of(&topic.name) else { continue };
                let all = (0..topic.partitions as i32).map(|index| Partition::new(topic.name.as_str(), index));
                for (index, gap) in gaps_of(&*broker, &names, task_type, all.collect())? {
                    gaps.insert((Arc::from(task_type), index), gap);
                }
            }
            Ok(Self(gaps))
        });
        find.await?.map_err(|error: BrokerError| error.to_string())
    }

    /// Notes which types live workers take. To be known after the logs have been looked at: a worker that comes later
    /// finds nothing of what is gone.
    pub fn note_workers(&mut self, taken: &BTreeSet<Arc<str>>) {
        self.0.iter_mut().for_each(|((task_type, _), gap)| gap.abandoned = !taken.contains(task_type));
    }
}

/// The logs of a type that have lost their beginning. Where a log begins is asked again behind the commit: what the group
/// has passed and the log still held then, a worker had.
fn gaps_of(broker: &dyn Broker, names: &Names, task_type: &str, mut all: Vec<Partition>) -> Result<Vec<(i32, Gap)>, BrokerError> {
    let mut begun = Vec::new();
    for partition in all.drain(..) {
        if broker.ends(&partition, CALL_DEADLINE)?.first > 0 {
            begun.push(partition);
        }
    }
    if begun.is_empty() {
        return Ok(Vec::new());
    }
    let committed = broker.group_offsets(&names.group(task_type), &begun, CALL_DEADLINE)?;
    let gap = |(partition, committed): (&Partition, Option<Committed>)| {
        let ends = broker.ends(partition, CALL_DEADLINE)?;
        Ok((partition.index, Gap::new(ends.first, ends.end, committed)))
    };
    begun.iter().zip(committed).map(gap).collect()
}

/// What a keeper has done about gaps so far.
#[derive(Default)]
pub struct Searched {
    /// Below here nothing is to be looked for any more.
    settled: BTreeMap<LogPosition, i64>,
    /// The gaps that were looked into last.
    last: Gaps,
}

impl Searched {
    /// Those of the gaps that may hold lost tasks and have not been looked into as they are.
    pub fn unsettled(&mut self, gaps: &Gaps) -> Gaps {
        let mut open = BTreeMap::new();
        for (place, gap) in &gaps.0 {
            let settled = self.settled.entry(place.clone()).or_default();
            if gap.first <= *settled {
                *settled = gap.settled().max(*settled);
            } else if self.last.0.get(place) != Some(gap) {
                open.insert(place.clone(), gap.clone());
            }
        }
        Gaps(open)
    }

    /// These have been looked into.
    pub fn note(&mut self, gaps: Gaps) {
        for (place, gap) in gaps.0 {
            let settled = self.settled.entry(place.clone()).or_default();
            *settled = gap.settled().max(*settled);
            self.last.0.insert(place, gap);
        }
    }
}

impl Gaps {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn holds(&self, node: &TaskRecord) -> bool {
        let (Some(task_type), Some(position)) = (&node.task_type, node.position) else { return false };
        let gap = self.0.get(&(task_type.clone(), position.partition));
        let waits = node.own == State::Queued && !node.is_to_be_published();
        waits && gap.is_some_and(|gap| gap.has_lost(position.offset))
    }
}

/// A walk through the open trees of a partition.
pub struct LostTaskSearch {
    gaps: Gaps,
    /// Indexes being gone through, each with the entry looked at last.
    open: Vec<(Index, Option<Entry>)>,
    found: Vec<Arc<str>>,
}

impl LostTaskSearch {
    pub fn new(gaps: Gaps) -> Self {
        let open = if gaps.is_empty() { Vec::new() } else { vec![(Index::Ages, None)] };
        Self { gaps, open, found: Vec::new() }
    }

    /// Events for the tasks that the next step has found; None at the end.
    pub async fn step(&mut self, store: &dyn Store, number: u32) -> Result<Option<Vec<Event>>, String> {
        let Some((index, after)) = self.open.pop() else { return Ok(None) };
        let page = store.page(number, &index, after.as_ref(), STEP).await.map_err(|error| error.to_string())?;
        if page.len() == STEP {
            self.open.push((index, page.last().cloned()));
        }
        let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
        let nodes = store.nodes(number, &ids).await.map_err(|error| error.to_string())?;
        let mut events = Vec::new();
        for (id, node) in ids.into_iter().zip(nodes).filter_map(|(id, node)| Some((id, node?))) {
            if self.gaps.holds(&node) {
                events.push(removed(&id, &node));
                self.found.extend(node.task_type.clone());
            }
            if children_of(&node.below).2.get(State::Queued) > 0 {
                self.open.push((Index::Children(id), None));
            }
        }
        Ok(Some(events))
    }

    /// The types of those found since the last call.
    pub fn take_found(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.found)
    }
}

fn removed(id: &TaskId, node: &TaskRecord) -> Event {
    let mut event = Event::new(Kind::Expired, id.clone(), node.run, now_ms());
    event.error = Some(Box::new(ErrorInfo::new("expired", REMOVED, node.attempt)));
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::outbox::{Effect, EffectKind};
    use crate::model::task::Position;

    fn gaps(gap: Gap) -> Gaps {
        Gaps(std::iter::once((("root".into(), 1), gap)).collect())
    }

    fn committed(offset: i64, metadata: &str) -> Option<Committed> {
        Some(Committed { offset, metadata: metadata.to_owned() })
    }

    #[test]
    fn record_is_lost_only_when_no_worker_can_have_it() {
        let lost = |gap: &Gap| (0..14).filter(|offset| gap.has_lost(*offset)).collect::<Vec<_>>();
        let first_ten: Vec<i64> = (0..10).collect();
        assert_eq!(lost(&Gap::new(10, 20, None)), [0; 0], "nothing is known of who has taken it");
        assert_eq!(lost(&Gap { abandoned: true, ..Gap::new(10, 20, None) }), first_ten);
        // Done above the offset: 7, 12 and 13.
        let some = Gap::new(10, 20, committed(4, "kf1 open 100 0 r:AwEEAg"));
        assert_eq!(lost(&some), [0, 1, 2, 3, 7]);
        assert_eq!(lost(&Gap { abandoned: true, ..some }), first_ten);
        assert_eq!(lost(&Gap::new(10, 20, committed(12, "?"))), first_ten);
        assert_eq!(lost(&Gap::new(10, 20, committed(21, "-"))), [0; 0], "the commit is of an earlier topic");
    }

    #[test]
    fn gaps_are_searched_when_they_may_hold_something_new() {
        let mut searched = Searched::default();
        let mut step = |first, passed| {
            let open = searched.unsettled(&gaps(Gap::new(first, 100, committed(passed, "?"))));
            let is_searched = !open.is_empty();
            searched.note(open);
            is_searched
        };
        assert!(step(5, 20), "whatever there was before");
        assert!(!step(5, 30) && !step(25, 40), "what is gone now, a worker had before");
        assert!(step(50, 45), "what lies above was not passed before it was gone");
        assert!(!step(50, 45), "nothing is known that was not known before");
        assert!(step(50, 47) && step(50, 60) && !step(50, 60) && !step(60, 70));
    }

    #[test]
    fn a_record_that_is_to_be_published_again_is_not_lost() {
        let gaps = gaps(Gap { abandoned: true, ..Gap::new(10, 20, None) });
        let mut node = TaskRecord { own: State::Queued, task_type: Some("root".into()), ..TaskRecord::expected(2, 0) };
        let at = |partition, offset| Some(Position { partition, offset });
        let places = [None, at(0, 9), at(1, 9), at(1, 10)].map(|position| {
            node.position = position;
            gaps.holds(&node)
        });
        assert_eq!(places, [false, false, true, false]);
        (node.position, node.effects) = (at(1, 9), vec![Effect { cause: 7, what: EffectKind::Publish { run: 2 } }]);
        assert!(!gaps.holds(&node), "it lies where the run before it did");
    }
}
