//! The tracker: projects the events topic into the store. Its position is the store's own checkpoint, not the group's
//! committed offsets.
//!
//! A poll loop ([`consume`]) reads the assigned partitions and passes their events in bounded batches to one task per
//! partition ([`project`]), which has a store connection of its own. After any error (a lost connection, another owner,
//! a store that lost writes) the task reads the checkpoint again and resumes from there. Beside each task, [`outbox`]
//! publishes due timers and effects, and [`upkeep`] adds ticks, lost tasks and the withdrawal of cancels. The owner of
//! the first partition also runs [`schedules`]. The [`announcer`] announces tasks that their producers have not
//! announced.
//!
//! Invariant: every write to the store names the checkpoint from which it starts, and every transaction to Kafka has a
//! transactional id of its partition. A tracker that has lost a partition without noticing is therefore fenced off in
//! both; otherwise events would be counted twice, and tasks released twice.
//!
//! Read next: `project/partition_task.rs` (one partition), `outbox/relay.rs`.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod adaptive;
mod announcer;
pub mod consume;
mod error;
pub mod outbox;
pub mod project;
pub mod rebuild;
mod recorded_groups;
mod schedules;
pub mod setup;
pub mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use announcer::Announcer;
use consume::poll_loop::PollLoop;
use error::TrackerStopped;
use kafleet_broker::{Consumer, ConsumerSpec, Partition};
use kafleet_fleet::control;
use kafleet_runtime::Shutdown;
use project::partition_task::PartitionTask;
pub use setup::TrackerSetup;
use upkeep::ticker::TrackerShared;

/// Maximum bytes of events prefetched by the client.
const PREFETCH_BYTES: usize = 16 << 20;
/// Time after which the partitions of a killed tracker are projected by others. Shorter than Kafka's default of 45 s: nothing
/// is projected meanwhile, and a tracker that is only slow is fenced off by the store.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline for the announcer to leave its group.
const ANNOUNCER_DEADLINE: Duration = Duration::from_secs(8);
/// Interval of lag measurements.
const LAG_INTERVAL: Duration = Duration::from_secs(10);

/// Runs the tracker until shutdown.
pub async fn run(setup: TrackerSetup, shutdown: Shutdown) -> anyhow::Result<()> {
    setup.metrics.set_role("tracker");
    let setup = Arc::new(setup);
    let consumer = open_consumer(&setup).await?;
    let (shared, task_setup) = (TrackerShared::open(&setup), setup.clone());
    if kafleet_runtime::follows_broker_clock()
        && let Ok(producer) = shared.producer(&setup).await
    {
        shutdown.drain.run_until_cancelled(control::learn_broker_time(producer, &setup.topology.names)).await;
    }
    let spawn =
        move |post| drop(kafleet_runtime::spawn(PartitionTask::new(task_setup.clone(), shared.clone(), post).run()));
    let reader = PollLoop::new(setup.clone(), consumer, shutdown.clone(), Box::new(spawn));
    let end = kafleet_runtime::thread("kafleet-tracker", reader.run()).map_err(TrackerStopped::PollThread)?;
    let announcing = start_announcer(&setup, &shutdown).await?;
    tracing::info!("tracker starts");
    let measuring = kafleet_runtime::spawn(measure_lag(setup.clone()));
    let outcome = end.await.map_err(TrackerStopped::PollLoop);
    measuring.abort();
    shutdown.begin();
    if let Some(left) = announcing {
        // Leaving the group avoids a pause until its session times out.
        let _ = tokio::time::timeout(ANNOUNCER_DEADLINE, left).await;
    }
    outcome?.map_err(TrackerStopped::ConsumerFailed)?;
    tracing::info!("tracker has stopped");
    Ok(())
}

async fn open_consumer(setup: &TrackerSetup) -> Result<Box<dyn Consumer>, TrackerStopped> {
    let spec = ConsumerSpec {
        group: Some(setup.topology.names.tracker_group()),
        topics: vec![setup.topology.names.events()],
        prefetch_bytes: PREFETCH_BYTES,
        session_timeout: Some(SESSION_TIMEOUT),
        ..ConsumerSpec::default()
    };
    setup.broker.client().consumer(spec).await.map_err(TrackerStopped::Consumer)
}

/// Starts the announcer on a thread of its own. The receiver resolves when it has left its group.
async fn start_announcer(
    setup: &Arc<TrackerSetup>,
    shutdown: &Shutdown,
) -> Result<Option<oneshot::Receiver<()>>, TrackerStopped> {
    if !setup.config.observe {
        return Ok(None);
    }
    let (setup, shutdown) = (setup.clone(), shutdown.clone());
    let broker = setup.broker.client();
    let announcer =
        broker.call(move |_, _| Announcer::open(setup, shutdown)).await.map_err(TrackerStopped::AnnouncerProducer)?;
    kafleet_runtime::thread("kafleet-announcer", announcer.run()).map_err(TrackerStopped::AnnouncerThread).map(Some)
}

/// Waits. Returns true, at once, if the token is cancelled meanwhile.
async fn is_stopped_within(wait: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        biased;
        () = stop.cancelled() => true,
        () = tokio::time::sleep(wait) => false,
    }
}

/// Measures how far the store is behind the log, per partition. Every tracker measures all partitions of the fleet.
async fn measure_lag(setup: Arc<TrackerSetup>) {
    let topic: Arc<str> = setup.topology.names.events().into();
    let partitions: Vec<u32> = setup.topology.partitions().collect();
    let mut checkpoints = None;
    loop {
        tokio::time::sleep(LAG_INTERVAL).await;
        // While the store does not answer, the lag grows from its last known state.
        checkpoints = setup.store.checkpoints(&partitions).await.ok().or(checkpoints);
        for (number, checkpoint) in partitions.iter().zip(checkpoints.iter().flatten()) {
            let partition = Partition::new(topic.clone(), *number as i32);
            let broker = setup.broker.client().with_deadline(Duration::from_secs(5));
            let Ok(ends) = broker.watermarks(&partition).await else { continue };
            let lag = ends.high - checkpoint.map_or(ends.low, |checkpoint| checkpoint.offset);
            setup.metrics.lag.with_label_values(&[&*topic, &number.to_string()]).set(lag.max(0));
        }
    }
}
