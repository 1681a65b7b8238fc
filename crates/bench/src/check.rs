//! Check at the end of a round: every task is in the store exactly once.

use anyhow::bail;
use kafleet_model::record::state::State;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::partition::events_partition_of;
use kafleet_store::Store;

/// Ids per read.
const CHUNK: usize = 1_000;

/// Checks that each task has succeeded exactly once and that the store counts `counted` tasks in total.
pub(super) async fn exactly_once(
    store: &dyn Store,
    partitions: u32,
    ids: impl Iterator<Item = anyhow::Result<TaskId>>,
    counted: u64,
) -> anyhow::Result<()> {
    let counts = store.counts(&(0..partitions).collect::<Vec<_>>()).await?;
    let all: u64 = counts.iter().map(|count| count.count).sum();
    if all != counted {
        bail!("the store counts {all} tasks, {counted} were published");
    }
    let mut waiting: Vec<Vec<TaskId>> = vec![Vec::new(); partitions as usize];
    for id in ids {
        let id = id?;
        let partition = events_partition_of(id.root(), partitions);
        waiting[partition as usize].push(id);
        if waiting[partition as usize].len() == CHUNK {
            succeeded(store, partition, &std::mem::take(&mut waiting[partition as usize])).await?;
        }
    }
    for (partition, ids) in (0..).zip(&waiting) {
        succeeded(store, partition, ids).await?;
    }
    Ok(())
}

async fn succeeded(store: &dyn Store, partition: u32, ids: &[TaskId]) -> anyhow::Result<()> {
    for (id, task) in ids.iter().zip(store.task_records(partition, ids).await?) {
        match task {
            Some(task) if task.state == State::Succeeded && task.history.duplicates == 0 => {}
            task => bail!("`{id}` has not succeeded exactly once: {task:?}"),
        }
    }
    Ok(())
}
