//! Consumption progress of workers in the task partitions of a type, measured once for all users within a tracker.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kafleet_broker::{Broker, BrokerError, Partition};
use kafleet_config::Names;
use kafleet_fleet::control::GroupRecords;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::recorded_groups::RecordedGroups;
use crate::setup::TrackerSetup;

/// Deadline of one call to Kafka.
const CALL_DEADLINE: Duration = Duration::from_secs(3);

/// Measured progress in a task partition.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredProgress {
    pub partition: Partition,
    /// End of the partition.
    pub end: i64,
    /// Next record for the workers: everything before it is committed or never delivered to consumers, such as
    /// transaction markers.
    pub consumed: i64,
    /// Committed offset of the group; 0 without a commit.
    committed: i64,
}

/// Non-empty partitions of a type's topic.
pub(crate) type WorkerProgress = Vec<MeasuredProgress>;

/// Result per requested type.
pub(crate) type Survey = BTreeMap<Arc<str>, Result<Arc<WorkerProgress>, BrokerError>>;

/// Latest measurement of each type and its start time.
type LatestProgress = HashMap<Arc<str>, (Instant, Arc<WorkerProgress>)>;

/// Measurements shared by the partitions of a tracker: their cost does not depend on the number of cancels.
pub(crate) struct Surveys {
    latest: Mutex<LatestProgress>,
    groups: Arc<RecordedGroups>,
}

impl Surveys {
    pub(crate) fn new(groups: Arc<RecordedGroups>) -> Self {
        Self { latest: Mutex::default(), groups }
    }

    /// Measures these types; measurements that began at `since` or later are reused.
    pub(crate) async fn survey(
        &self,
        setup: &TrackerSetup,
        types: BTreeSet<Arc<str>>,
        since: Instant,
    ) -> Result<Survey, BrokerError> {
        let mut latest = self.latest.lock().await;
        let is_fresh = |task_type: &Arc<str>| latest.get(task_type).is_some_and(|(begun, _)| *begun >= since);
        let (fresh, stale): (BTreeSet<_>, BTreeSet<_>) = types.into_iter().partition(is_fresh);
        let mut survey: Survey = fresh
            .into_iter()
            .filter_map(|name| latest.get(&name).map(|(_, progress)| (name, Ok(progress.clone()))))
            .collect();
        if !stale.is_empty() {
            let (broker, names, begun) = (setup.broker.client(), setup.topology.names.clone(), Instant::now());
            let queries: Vec<_> =
                stale.into_iter().map(|name| (latest.get(&name).map(|(_, progress)| progress.clone()), name)).collect();
            let groups = self.groups.get()?;
            let measure = move |broker: &dyn Broker, _| Ok(measure(broker, &names, &groups, queries));
            let measured = broker.call::<_, BrokerError>(measure).await?;
            let progress =
                measured.iter().filter_map(|(name, progress)| Some((name.clone(), (begun, progress.clone().ok()?))));
            latest.extend(progress);
            survey.extend(measured);
        }
        Ok(survey)
    }
}

fn measure(
    broker: &dyn Broker,
    names: &Names,
    groups: &GroupRecords,
    queries: Vec<(Option<Arc<WorkerProgress>>, Arc<str>)>,
) -> Survey {
    let counts = match broker.topics(&names.tasks(""), CALL_DEADLINE) {
        Ok(infos) => infos.into_iter().map(|info| (info.name, info.partitions)).collect::<HashMap<String, u32>>(),
        Err(error) => return queries.into_iter().map(|(_, name)| (name, Err(error.clone()))).collect(),
    };
    let (mut survey, mut away) = (Survey::new(), None);
    for (before, name) in queries {
        // After one timeout, skip the others: each would wait for its deadline too.
        let progress = match &away {
            Some(error) => Err(BrokerError::clone(error)),
            None => {
                let group = names.group_id(&name, groups.group_of(&name));
                measure_type(broker, names.tasks(&name).into(), &group, &counts, before.as_deref())
            }
        };
        away = progress.as_ref().err().filter(|error| error.is_transient()).cloned();
        survey.insert(name, progress.map(Arc::new));
    }
    survey
}

fn measure_type(
    broker: &dyn Broker,
    topic: Arc<str>,
    group: &str,
    counts: &HashMap<String, u32>,
    before: Option<&WorkerProgress>,
) -> Result<WorkerProgress, BrokerError> {
    let mut filled = Vec::new();
    for index in 0..counts.get(&*topic).copied().unwrap_or_default() {
        let partition = Partition::new(topic.clone(), index as i32);
        let ends = broker.watermarks(&partition, CALL_DEADLINE)?;
        filled.extend((ends.high > ends.low).then_some((partition, ends.high)));
    }
    let partitions: Vec<Partition> = filled.iter().map(|(partition, _)| partition.clone()).collect();
    let committed =
        if partitions.is_empty() { Vec::new() } else { broker.group_offsets(group, &partitions, CALL_DEADLINE)? };
    let all = filled.into_iter().zip(committed).map(|((partition, end), committed)| {
        let committed = committed.map_or(0, |committed| committed.offset);
        let earlier = before.and_then(|before| before.iter().find(|earlier| earlier.partition == partition));
        let consumed = match earlier {
            _ if committed >= end => committed,
            // The record found earlier is still there, or no record has been added.
            Some(earlier)
                if earlier.committed == committed && (earlier.consumed < earlier.end || earlier.end == end) =>
            {
                earlier.consumed
            }
            _ => broker.first_visible(&partition, committed, CALL_DEADLINE)?.offset.max(committed),
        };
        Ok(MeasuredProgress { partition, end, consumed, committed })
    });
    all.collect()
}
