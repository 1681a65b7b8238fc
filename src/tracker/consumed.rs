//! Whether workers still have to know of a cancel: a task that was cancelled before a worker took it may lie in its topic
//! yet, and would run if it were taken up without that knowledge.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::TrackerSetup;
use crate::broker::{Broker, BrokerError, Partition};
use crate::model::event::Kind;
use crate::model::id::TaskId;
use crate::model::node::Node;
use crate::model::rollup::children_of;
use crate::model::state::State;
use crate::runtime::blocking;
use crate::store::{Entry, Index, StoreError};

const CALL_DEADLINE: Duration = Duration::from_secs(10);
const PAGE: usize = 500;
/// Records looked at in one go; its last page may go beyond, by less than one.
const STEP: usize = 10 * PAGE;

/// Where a topic ended when a cancelled tree had ended: what is cancelled lies before.
struct End {
    /// The group that reads it.
    group: String,
    partition: Partition,
    end: i64,
}

/// Whether the workers are past all that was ended in a tree and not taken by one of them.
pub enum Passed {
    Yes,
    No,
    /// The tree is large, and not looked through yet.
    Unknown,
}

enum Known {
    Types(Types),
    Ends(Vec<End>),
}

/// By task and effect.
#[derive(Default)]
pub struct Consumed(HashMap<(TaskId, String), Known>);

impl Consumed {
    pub async fn look(&mut self, setup: &Arc<TrackerSetup>, number: u32, id: &TaskId, effect: &str) -> Result<Passed, String> {
        let key = (id.clone(), effect.to_owned());
        let known = match self.0.remove(&key) {
            Some(known) => known,
            None => Known::Types(Types::from(setup, number, id).await?),
        };
        let ends = match known {
            Known::Ends(ends) => ends,
            Known::Types(mut types) => match types.step(setup, number).await? {
                true => ends_of(setup, types.found).await?,
                false => {
                    self.0.insert(key, Known::Types(types));
                    return Ok(Passed::Unknown);
                }
            },
        };
        let (left, looked) = look(setup, ends).await?;
        let all = left.is_empty();
        if !all {
            self.0.insert(key, Known::Ends(left));
        }
        looked.map_err(|error| error.to_string())?;
        Ok(if all { Passed::Yes } else { Passed::No })
    }

    pub fn forget_all_but(&mut self, ids: &HashSet<&TaskId>) {
        self.0.retain(|(id, _), _| ids.contains(id));
    }
}

/// The types of those in a tree that the tracker itself has ended.
#[derive(Default)]
struct Types {
    found: BTreeSet<Arc<str>>,
    /// Tasks whose children are looked at, each with the child looked at last.
    open: Vec<(TaskId, Option<Entry>)>,
}

impl Types {
    async fn from(setup: &Arc<TrackerSetup>, number: u32, top: &TaskId) -> Result<Self, String> {
        let mut types = Self::default();
        let node = setup.store.nodes(number, std::slice::from_ref(top)).await.map_err(told)?.pop().flatten();
        node.into_iter().for_each(|node| types.look(top.clone(), &node));
        Ok(types)
    }

    /// Looks at some more; true: at all of them.
    async fn step(&mut self, setup: &Arc<TrackerSetup>, number: u32) -> Result<bool, String> {
        let mut looked = 0;
        while looked < STEP
            && let Some((parent, after)) = self.open.pop()
        {
            let page = setup.store.page(number, &Index::Children(parent.clone()), after.as_ref(), PAGE).await.map_err(told)?;
            if page.len() == PAGE {
                self.open.push((parent, page.last().cloned()));
            }
            looked += page.len().max(1);
            let ids: Vec<TaskId> = page.into_iter().map(|entry| entry.id).collect();
            let nodes = setup.store.nodes(number, &ids).await.map_err(told)?;
            for (id, node) in ids.into_iter().zip(nodes) {
                node.into_iter().for_each(|node| self.look(id.clone(), &node));
            }
        }
        Ok(self.open.is_empty())
    }

    fn look(&mut self, id: TaskId, node: &Node) {
        let tree = children_of(&node.below).2;
        // What was cancelled has failed where something below it has. A later run no longer counts what an earlier one had.
        let ended = [State::Cancelled, State::Expired, State::Failed].iter().any(|state| tree.get(*state) > 0);
        if ended || (node.has_below && node.run > 1) {
            self.open.push((id, None));
        }
        let ends = |kind| matches!(kind, Kind::Cancelled | Kind::Expired);
        let by_tracker = node.history.iter().rev().find(|entry| ends(entry.kind) && !entry.ignored);
        if by_tracker.is_some_and(|entry| entry.worker.is_none()) && !node.is_external() {
            self.found.extend(node.task_type.clone());
        }
    }
}

fn told(error: StoreError) -> String {
    error.to_string()
}

async fn ends_of(setup: &Arc<TrackerSetup>, types: BTreeSet<Arc<str>>) -> Result<Vec<End>, String> {
    let (broker, names) = (setup.broker.clone(), setup.names.clone());
    let read = blocking(move || {
        let mut ends = Vec::new();
        for task_type in types {
            let topic = names.tasks(&task_type);
            let infos = broker.topics(&topic, CALL_DEADLINE)?;
            let count = infos.iter().find(|info| info.name == topic).map_or(0, |info| info.partitions);
            for index in 0..count {
                let partition = Partition::new(topic.as_str(), index as i32);
                let found = broker.ends(&partition, CALL_DEADLINE)?;
                if found.end > found.first {
                    ends.push(End { group: names.group(&task_type), partition, end: found.end });
                }
            }
        }
        Ok(ends)
    });
    read.await?.map_err(|error: BrokerError| error.to_string())
}

/// Those that the workers have not passed yet; all where that could not be seen.
async fn look(setup: &Arc<TrackerSetup>, ends: Vec<End>) -> Result<(Vec<End>, Result<(), BrokerError>), String> {
    let broker = setup.broker.clone();
    blocking(move || {
        let mut ends = ends;
        let looked = places_of(&*broker, &ends).map(|places| {
            let mut places = places.into_iter();
            ends.retain(|end| places.next().is_some_and(|place| place < end.end));
        });
        (ends, looked)
    })
    .await
}

/// How far each is consumed. A group is asked once: that takes a client of its own. A commit names the place behind the
/// last record: what no worker is given, such as the mark that ends a transaction or what was given up, is looked past.
fn places_of(broker: &dyn Broker, ends: &[End]) -> Result<Vec<i64>, BrokerError> {
    let mut groups: BTreeMap<&str, Vec<Partition>> = BTreeMap::new();
    ends.iter().for_each(|end| groups.entry(&end.group).or_default().push(end.partition.clone()));
    let mut committed = HashMap::new();
    for (group, partitions) in groups {
        let found = broker.group_offsets(group, &partitions, CALL_DEADLINE)?;
        committed.extend(partitions.into_iter().zip(found).map(|(partition, found)| ((group, partition), found)));
    }
    let place = |end: &End| match committed.get(&(end.group.as_str(), end.partition.clone())).and_then(Option::as_ref) {
        Some(committed) if committed.offset >= end.end => Ok(committed.offset),
        committed => {
            let from = committed.map_or(0, |committed| committed.offset);
            Ok(broker.look(&end.partition, from, CALL_DEADLINE)?.place)
        }
    };
    ends.iter().map(place).collect()
}
