//! Queued tasks whose records Kafka has removed before a worker took them: nobody would ever say a word of them.
//!
//! They are looked for only where there can be any: where the log of a task topic begins behind the place that its
//! workers have committed. Then all open trees of the partition are gone through once, some records at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::TrackerSetup;
use super::keeper::STEP;
use crate::broker::{BrokerError, Partition};
use crate::model::age::REMOVED;
use crate::model::event::{ErrorInfo, Event, Kind};
use crate::model::id::TaskId;
use crate::model::node::Node;
use crate::model::rollup::children_of;
use crate::model::state::State;
use crate::runtime::{blocking, now_ms};
use crate::store::{Entry, Index, Store};

const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// Where the log begins now, by type and partition, where records were removed that no worker has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps(BTreeMap<(Arc<str>, i32), i64>);

impl Gaps {
    pub async fn find(setup: &TrackerSetup) -> Result<Self, String> {
        let (broker, names) = (setup.broker.clone(), setup.names.clone());
        let find = blocking(move || {
            let mut gaps = BTreeMap::new();
            for topic in broker.topics(&names.tasks(""), CALL_DEADLINE)? {
                let Some(task_type) = names.type_of(&topic.name) else { continue };
                for index in 0..topic.partitions as i32 {
                    let at = Partition::new(topic.name.as_str(), index);
                    let first = broker.ends(&at, CALL_DEADLINE)?.first;
                    if first == 0 {
                        continue;
                    }
                    let group = names.group(task_type);
                    let committed = broker.group_offsets(&group, std::slice::from_ref(&at), CALL_DEADLINE)?.pop().flatten();
                    if committed.is_none_or(|committed| committed.offset < first) {
                        gaps.insert((task_type.into(), index), first);
                    }
                }
            }
            Ok(Self(gaps))
        });
        find.await?.map_err(|error: BrokerError| error.to_string())
    }

    /// Those that were not there, or not so wide.
    pub fn since(&self, earlier: &Self) -> Self {
        let new = self.0.iter().filter(|(at, first)| earlier.0.get(at).is_none_or(|known| known < first));
        Self(new.map(|(at, first)| (at.clone(), *first)).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn holds(&self, node: &Node) -> bool {
        let (Some(task_type), Some(position)) = (&node.task_type, node.position) else { return false };
        let first = self.0.get(&(task_type.clone(), position.partition));
        let waits = node.own == State::Queued && !node.is_to_be_published();
        waits && first.is_some_and(|first| position.offset < *first)
    }
}

/// A walk through the open trees of a partition.
pub struct Search {
    gaps: Gaps,
    /// Indexes being gone through, each with the entry looked at last.
    open: Vec<(Index, Option<Entry>)>,
    found: Vec<Arc<str>>,
}

impl Search {
    pub fn new(gaps: Gaps) -> Self {
        let open = if gaps.is_empty() { Vec::new() } else { vec![(Index::Roots, None)] };
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

fn removed(id: &TaskId, node: &Node) -> Event {
    let mut event = Event::new(Kind::Expired, id.clone(), node.run, now_ms());
    event.error = Some(Box::new(ErrorInfo::new("expired", REMOVED, node.attempt)));
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::outbox::{Act, Effect};
    use crate::model::task::Position;

    #[test]
    fn a_record_that_is_to_be_published_again_is_not_lost() {
        let gaps = Gaps(std::iter::once((("root".into(), 1), 10)).collect());
        let mut node = Node { own: State::Queued, task_type: Some("root".into()), ..Node::expected(2, 0) };
        let at = |partition, offset| Some(Position { partition, offset });
        let places = [None, at(0, 9), at(1, 9), at(1, 10)].map(|position| {
            node.position = position;
            gaps.holds(&node)
        });
        assert_eq!(places, [false, false, true, false]);
        (node.position, node.effects) = (at(1, 9), vec![Effect { cause: 7, what: Act::Publish { run: 2 } }]);
        assert!(!gaps.holds(&node), "it lies where the run before it did");
    }
}
