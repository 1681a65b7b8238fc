//! Types that were declared before and are no longer, and the tasks that wait for them. No worker of this configuration
//! runs these tasks: the type was renamed, removed, or belongs to another configuration of the fleet.

use std::sync::Arc;

use kafleet_broker::{BrokerClient, BrokerError, Partition};
use kafleet_config::Names;
use kafleet_fleet::control::settings::{FleetSettings, read_control};

/// Remedy for a type that is gone.
pub(super) const HINT: &str = "if it was renamed, name it in `aliases` of the task with the new name";

/// Type that is gone, with its backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GoneType {
    pub name: String,
    /// Number of offsets of its topic past the committed ones: an estimate of its waiting tasks.
    pub waiting: u64,
}

/// Returns the backlogs of types that are gone. Types without a topic have none.
///
/// # Errors
/// Kafka does not answer.
pub(super) async fn with_backlogs(
    client: &BrokerClient,
    names: &Names,
    gone: Vec<String>,
) -> Result<Vec<GoneType>, BrokerError> {
    if gone.is_empty() {
        return Ok(Vec::new());
    }
    let Ok(control) = read_control(client, names).await else { return Ok(Vec::new()) };
    let present = client.topics(&names.topics()).await?;
    let mut types = Vec::new();
    for name in gone {
        let topic = names.tasks(&name);
        let partitions = present.iter().find(|info| info.name == topic).map_or(0, |info| info.partitions);
        let waiting = backlog(client, names, &control, &name, partitions).await?;
        types.push(GoneType { name, waiting });
    }
    Ok(types)
}

async fn backlog(
    client: &BrokerClient,
    names: &Names,
    control: &FleetSettings,
    task_type: &str,
    partitions: u32,
) -> Result<u64, BrokerError> {
    let topic: Arc<str> = names.tasks(task_type).into();
    let partitions: Vec<Partition> =
        (0..).take(partitions as usize).map(|index| Partition::new(topic.clone(), index)).collect();
    if partitions.is_empty() {
        return Ok(0);
    }
    let group = names.group_id(task_type, control.group_of(task_type));
    let committed = client.group_offsets(&group, partitions.clone()).await?;
    let mut waiting = 0;
    for (partition, committed) in partitions.iter().zip(committed) {
        let watermarks = client.watermarks(partition).await?;
        let from = committed.map_or(watermarks.low, |committed| committed.offset.max(watermarks.low));
        waiting += u64::try_from(watermarks.high - from).unwrap_or(0);
    }
    Ok(waiting)
}

impl GoneType {
    /// Message for people. Delayed tasks and retries wait at the tracker, and not in Kafka. `source` does not have the type: the configuration or the code.
    pub(super) fn message(&self, source: &str) -> String {
        let waiting = match self.waiting {
            0 => format!(
                "none of its tasks wait in its topic; `kafleet list 'type:{} is:open'` lists delayed ones and retries",
                self.name
            ),
            waiting => format!("about {waiting} of its tasks wait"),
        };
        format!("{source} does not have the type `{}`; {waiting}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_says_where_other_tasks_of_the_type_may_wait() {
        let gone = |waiting| GoneType { name: "old".to_owned(), waiting }.message("the new code");
        assert_eq!(gone(3), "the new code does not have the type `old`; about 3 of its tasks wait");
        assert!(gone(0).ends_with("in its topic; `kafleet list 'type:old is:open'` lists delayed ones and retries"));
    }
}
