//! Whether workers still have to know of a cancel: a task that was cancelled before a worker took it may lie in its topic
//! yet, and would run if it were taken up without that knowledge. So would one that a worker has ended and not committed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::TrackerSetup;
use crate::broker::{Broker, BrokerError, Committed, Partition};
use crate::model::event::Kind;
use crate::model::id::TaskId;
use crate::model::node::Node;
use crate::model::rollup::children_of;
use crate::model::state::State;
use crate::runtime::blocking;
use crate::store::{Entry, Index, StoreError};

/// Of one call. What is due waits meanwhile, so it is short.
const CALL_DEADLINE: Duration = Duration::from_secs(3);
/// What a group has committed is asked once for all that is looked at in such a time: asking takes a client of its own, and
/// whoever was past something stays past it.
const FRESH: Duration = Duration::from_secs(1);
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

/// Whether the workers are past all that was ended in a tree.
pub enum Passed {
    Yes,
    No,
    /// The tree is large, and not looked through yet.
    Unknown,
    /// Kafka did not say; why.
    Unseen(BrokerError),
}

enum Known {
    Types(Types),
    Ends(Vec<End>),
}

/// By group, when that was asked.
type Commits = HashMap<String, (Instant, HashMap<Partition, Option<Committed>>)>;

#[derive(Default)]
pub struct Consumed {
    /// By task and effect.
    known: HashMap<(TaskId, String), Known>,
    commits: Commits,
}

impl Consumed {
    pub async fn look(&mut self, setup: &Arc<TrackerSetup>, number: u32, id: &TaskId, effect: &str) -> Result<Passed, String> {
        let key = (id.clone(), effect.to_owned());
        let known = match self.known.remove(&key) {
            Some(known) => known,
            None => Known::Types(Types::from(setup, number, id).await?),
        };
        let ends = match known {
            Known::Ends(ends) => ends,
            Known::Types(mut types) => match types.step(setup, number).await? {
                true => match ends_of(setup, types.found.clone()).await? {
                    Ok(ends) => ends,
                    Err(error) => return Ok(self.unseen(key, Known::Types(types), error)),
                },
                false => {
                    self.known.insert(key, Known::Types(types));
                    return Ok(Passed::Unknown);
                }
            },
        };
        let (left, looked) = self.left(setup, ends).await?;
        if let Err(error) = looked {
            return Ok(self.unseen(key, Known::Ends(left), error));
        }
        if left.is_empty() {
            return Ok(Passed::Yes);
        }
        self.known.insert(key, Known::Ends(left));
        Ok(Passed::No)
    }

    /// What is known stays so, unless the topic is another one, or none, by now.
    fn unseen(&mut self, key: (TaskId, String), known: Known, error: BrokerError) -> Passed {
        if error.is_transient() {
            self.known.insert(key, known);
        }
        Passed::Unseen(error)
    }

    /// Those that the workers have not passed yet; all where that could not be seen.
    async fn left(&mut self, setup: &Arc<TrackerSetup>, ends: Vec<End>) -> Result<(Vec<End>, Result<(), BrokerError>), String> {
        let (broker, mut commits) = (setup.broker.clone(), std::mem::take(&mut self.commits));
        let looking = blocking(move || {
            let mut ends = ends;
            commits.retain(|_, (asked, _)| asked.elapsed() < FRESH);
            let looked = places_of(&*broker, &mut commits, &ends).map(|places| {
                let mut places = places.into_iter();
                ends.retain(|end| places.next().is_some_and(|place| place < end.end));
            });
            (ends, looked, commits)
        });
        let (left, looked, commits) = looking.await?;
        self.commits = commits;
        Ok((left, looked))
    }

    pub fn forget_all_but(&mut self, ids: &HashSet<&TaskId>) {
        self.known.retain(|(id, _), _| ids.contains(id));
    }
}

/// The types of those in a tree that a cancel has ended.
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
        // Also one that its worker has ended: that may lose its partition before it has committed so much.
        if node.history.iter().any(|entry| ends(entry.kind) && !entry.ignored) && !node.is_external() {
            self.found.extend(node.task_type.clone());
        }
    }
}

fn told(error: StoreError) -> String {
    error.to_string()
}

async fn ends_of(setup: &Arc<TrackerSetup>, types: BTreeSet<Arc<str>>) -> Result<Result<Vec<End>, BrokerError>, String> {
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
    read.await
}

/// How far each is consumed. A commit names the place behind the last record: what no worker is given, such as the mark
/// that ends a transaction or what was given up, is looked past.
fn places_of(broker: &dyn Broker, commits: &mut Commits, ends: &[End]) -> Result<Vec<i64>, BrokerError> {
    let mut groups: BTreeMap<&str, Vec<Partition>> = BTreeMap::new();
    ends.iter().for_each(|end| groups.entry(&end.group).or_default().push(end.partition.clone()));
    for (group, partitions) in groups {
        let known = commits.get(group);
        if known.is_some_and(|(_, known)| partitions.iter().all(|partition| known.contains_key(partition))) {
            continue;
        }
        let found = broker.group_offsets(group, &partitions, CALL_DEADLINE)?;
        commits.insert(group.to_owned(), (Instant::now(), partitions.into_iter().zip(found).collect()));
    }
    let committed = |end: &End| commits.get(&end.group)?.1.get(&end.partition)?.clone();
    let place = |end: &End| match committed(end) {
        Some(committed) if committed.offset >= end.end => Ok(committed.offset),
        committed => {
            let from = committed.map_or(0, |committed| committed.offset);
            Ok(broker.look(&end.partition, from, CALL_DEADLINE)?.place)
        }
    };
    ends.iter().map(place).collect()
}
