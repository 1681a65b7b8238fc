//! Checks that the commits of the worker's types are in their configured consumer groups.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::error::WorkerError;
use crate::config::Names;
use crate::control::settings::read_control;
use crate::control::{self, ControlState, ControlWatch};
use crate::handlers::{Registered, Registry};

/// Maximum time to read the worker's own records on the control topic.
const RECORDED_DEADLINE: Duration = Duration::from_secs(30);

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
/// The commits of a type are in another group: starting without them would repeat or skip tasks.
pub(super) async fn check_groups(shared: &Shared, types: &[(Arc<str>, Registered)]) -> Result<(), WorkerError> {
    let names = &shared.setup.names;
    let elsewhere: Vec<&str> = elsewhere(&shared.control.state(), names, types).collect();
    if elsewhere.is_empty() {
        return Ok(());
    }
    let client = shared.setup.broker.client();
    let settings = read_control(&client, names).await.map_err(WorkerError::Settings)?;
    let mut last = None;
    for task_type in elsewhere {
        if settings.is_type_consumed(task_type) {
            return Err(moved(&shared.control.state(), names, task_type));
        }
        let group = names.group_name(task_type);
        let recorded = control::record_group(shared.events.producer(), names, task_type, group).await;
        last = Some(recorded.map_err(WorkerError::GroupRecord)?.offset);
    }
    if let Some(offset) = last {
        // Another worker may have recorded another group at the same time: the last record counts.
        let reached = tokio::time::timeout(RECORDED_DEADLINE, shared.control.reached(offset)).await;
        reached.map_err(|_| WorkerError::GroupNotRecorded)?;
    }
    first_moved(&shared.control, names, types).map_or(Ok(()), Err)
}

/// Returns as soon as the control topic names another group for one of the types.
pub(super) async fn until_moved(
    control: Arc<ControlWatch>,
    names: Names,
    types: Vec<(Arc<str>, Registered)>,
) -> WorkerError {
    let mut changes = control.changes();
    loop {
        if let Some(error) = first_moved(&control, &names, &types) {
            return error;
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Error of the first type whose commits are in another group. Reads the state once: a second read while the first one
/// holds its lock could block for ever.
fn first_moved(control: &ControlWatch, names: &Names, types: &[(Arc<str>, Registered)]) -> Option<WorkerError> {
    let state = control.state();
    let found = elsewhere(&state, names, types).next()?;
    Some(moved(&state, names, found))
}

/// Types whose commits are in another group than the configured one.
fn elsewhere<'a>(
    state: &ControlState,
    names: &Names,
    types: &'a [(Arc<str>, Registered)],
) -> impl Iterator<Item = &'a str> {
    let all = types.iter().map(|(task_type, _)| &**task_type);
    all.filter(|task_type| state.group_of(task_type) != names.group_name(task_type))
}

fn moved(state: &ControlState, names: &Names, task_type: &str) -> WorkerError {
    let recorded = state.group_of(task_type).to_owned();
    let configured = names.group_name(task_type).to_owned();
    WorkerError::OtherGroup { task_type: task_type.into(), recorded, configured }
}
