//! Checks that the commits of the worker's types are in their configured consumer groups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use kafleet_broker::{BrokerClient, Partition};
use kafleet_config::Names;
use kafleet_fleet::control::settings::read_control;
use kafleet_fleet::control::{self, ControlWatch, GroupRecords, MisplacedCommits};
use kafleet_handlers::{Registry, TypeRegistration};

use super::SharedResources;
use super::error::WorkerError;

/// Maximum time to read records of groups on the control topic.
const RECORDED_DEADLINE: Duration = Duration::from_secs(30);
/// Number of groups whose commits are read at a time.
const MAX_CONCURRENT_READS: usize = 16;

/// Rejects shared groups that are named like a type.
pub(super) fn check_names(names: &Names, registry: &Registry) -> Result<(), WorkerError> {
    match names.groups().shared().find(|group| registry.get(group).is_some()) {
        Some(group) => Err(WorkerError::GroupNamedLikeType(group.to_owned())),
        None => Ok(()),
    }
}

/// Checks the group of each type, and records it on the control topic if the type has never been consumed.
///
/// # Errors
/// The commits of a type are in another group, or are being moved: starting without them would repeat or skip tasks.
pub(super) async fn check_groups(
    shared: &SharedResources,
    types: &[(Arc<str>, TypeRegistration)],
) -> Result<(), WorkerError> {
    let names = &shared.setup.topology.names;
    let misplaced = misplaced(shared.control.state().groups(), names, types);
    if misplaced.is_empty() {
        return Ok(());
    }
    // The followed state may be older than what other workers have recorded meanwhile.
    let settings = read_control(&shared.setup.broker.client(), names).await.map_err(WorkerError::Settings)?;
    let mut unrecorded = BTreeMap::new();
    for task_type in misplaced.into_keys() {
        match settings.groups.check(task_type, names.group_name(task_type)) {
            Ok(()) => {}
            Err(error @ MisplacedCommits::OtherGroup { .. }) if !settings.is_type_consumed(task_type) => {
                unrecorded.insert(task_type.to_owned(), error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    let types_of = |unrecorded: &BTreeMap<String, MisplacedCommits>| unrecorded.keys().cloned().collect::<Vec<_>>();
    if let Some(task_type) = find_committed(shared, &settings.groups, types_of(&unrecorded)).await? {
        return Err(unrecorded.remove(&task_type).map_or(WorkerError::GroupNotRecorded, Into::into));
    }
    if unrecorded.is_empty() {
        wait_for_groups(&shared.control, names, types).await;
    } else {
        record_groups(shared, types_of(&unrecorded)).await?;
    }
    // Another worker may have recorded another group at the same time: the last record counts.
    first_misplaced(&shared.control, names, types).map_or(Ok(()), |error| Err(error.into()))
}

/// Returns a type that has commits in its recorded group, such as those of `kafleet offsets init`.
async fn find_committed(
    shared: &SharedResources,
    groups: &GroupRecords,
    types: Vec<String>,
) -> Result<Option<String>, WorkerError> {
    if types.is_empty() {
        return Ok(None);
    }
    let names = &shared.setup.topology.names;
    let client = shared.setup.broker.client();
    let topics = client.topics(&names.tasks("")).await.map_err(WorkerError::Commits)?;
    let counts: BTreeMap<String, u32> = topics.into_iter().map(|info| (info.name, info.partitions)).collect();
    let mut reads = Vec::new();
    for task_type in types {
        let topic = names.tasks(&task_type);
        let count = counts.get(&topic).copied().unwrap_or_default() as i32;
        let partitions = (0..count).map(|index| Partition::new(topic.as_str(), index)).collect();
        let group = names.group_id(&task_type, groups.group_of(&task_type));
        reads.push(has_commits(client.clone(), group, partitions, task_type));
    }
    let committed: Vec<Option<String>> = stream::iter(reads).buffered(MAX_CONCURRENT_READS).try_collect().await?;
    Ok(committed.into_iter().flatten().next())
}

/// Returns the type if its group has commits of these partitions.
async fn has_commits(
    client: BrokerClient,
    group: String,
    partitions: Vec<Partition>,
    task_type: String,
) -> Result<Option<String>, WorkerError> {
    let committed = client.group_offsets(&group, partitions).await.map_err(WorkerError::Commits)?;
    Ok(committed.iter().any(Option::is_some).then_some(task_type))
}

/// Records the configured groups of types, and waits until the records are read back.
async fn record_groups(shared: &SharedResources, types: Vec<String>) -> Result<(), WorkerError> {
    let names = &shared.setup.topology.names;
    let mut recording = Vec::new();
    for task_type in &types {
        let group = names.group_name(task_type);
        recording.push(control::record_group(shared.events.producer(), names, task_type, group));
    }
    let mut last = None;
    for recorded in join_all(recording).await {
        last = last.max(Some(recorded.map_err(WorkerError::GroupRecord)?.offset));
    }
    let Some(offset) = last else { return Ok(()) };
    let reached = tokio::time::timeout(RECORDED_DEADLINE, shared.control.wait_for_offset(offset)).await;
    reached.map_err(|_| WorkerError::GroupNotRecorded)
}

/// Waits until the followed state names the configured groups.
async fn wait_for_groups(control: &ControlWatch, names: &Names, types: &[(Arc<str>, TypeRegistration)]) {
    let mut changes = control.changes();
    let agree = async { while first_misplaced(control, names, types).is_some() && changes.changed().await.is_ok() {} };
    let _ = tokio::time::timeout(RECORDED_DEADLINE, agree).await;
}

/// Returns as soon as the control topic names another group for one of the types. A move that has only begun is refused
/// by Kafka while this worker is a member of the group.
pub(super) async fn until_moved(
    control: Arc<ControlWatch>,
    names: Names,
    types: Vec<(Arc<str>, TypeRegistration)>,
) -> WorkerError {
    let mut changes = control.changes();
    let is_moved = |error: &MisplacedCommits| matches!(error, MisplacedCommits::OtherGroup { .. });
    loop {
        if let Some(error) = misplaced(control.state().groups(), &names, &types).into_values().find(is_moved) {
            return error.into();
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn first_misplaced(
    control: &ControlWatch,
    names: &Names,
    types: &[(Arc<str>, TypeRegistration)],
) -> Option<MisplacedCommits> {
    misplaced(control.state().groups(), names, types).into_values().next()
}

/// Types whose commits are in another group than the configured one, or are being moved.
fn misplaced<'a>(
    groups: &GroupRecords,
    names: &Names,
    types: &'a [(Arc<str>, TypeRegistration)],
) -> BTreeMap<&'a str, MisplacedCommits> {
    let all = types.iter().map(|(task_type, _)| &**task_type);
    all.filter_map(|task_type| Some((task_type, groups.check(task_type, names.group_name(task_type)).err()?))).collect()
}
