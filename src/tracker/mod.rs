//! The tracker: folds the events topic into the store. The offset it trusts is the store's own fence.
//!
//! A [`reader`] thread polls the partitions that the group gives it and, through a bounded [`feed`], hands their events to
//! one [`folder`] per partition, which has a store connection of its own. Whatever goes wrong (a lost connection, another
//! owner, a store that lost writes), the folder reads the fence again and goes on from there. Beside each folder,
//! [`firing`] publishes what the fold has left to be done: timers that are due, and effects; [`schedules`], beside the
//! first partition's, what is due again and again, and [`leftovers`] takes back cancels that nobody needs. [`withdrawals`]
//! finds out when the workers are past what a cancel has ended. The [`observer`] announces tasks that their producers have not announced.

mod announcer;
pub mod consume;
pub mod outbox;
pub mod project;
pub mod rebuild;
mod schedules;
pub mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::oneshot;

use crate::broker::{Broker, ConsumerSpec, Partition};
use crate::config::{Names, TrackerConfig};
use crate::model::retention::Lifetimes;
use crate::model::units::duration::Millis;
use crate::runtime::{self, Health, Shutdown, blocking};
use crate::store::Store;
use crate::telemetry::Metrics;
use announcer::Announcer;
use consume::poll_loop::PollLoop;
use project::partition_task::PartitionTask;
use upkeep::ticker::TrackerShared;

/// Bytes of events that may lie prefetched in the client.
const PREFETCH_BYTES: usize = 16 << 20;
/// How long the observer may take to leave its group.
const LEAVE_DEADLINE: Duration = Duration::from_secs(8);
/// For reading the control topic: an open transaction of somebody else may hold it up.
const READ_DEADLINE: Duration = Duration::from_secs(60);
/// How often lag is measured.
const LAG_INTERVAL: Duration = Duration::from_secs(10);

/// What a tracker needs.
pub struct TrackerSetup {
    pub broker: Arc<dyn Broker>,
    pub store: Arc<dyn Store>,
    pub config: TrackerConfig,
    /// How long trees and their records are to last; the log is told where it says otherwise.
    pub lifetimes: Lifetimes,
    /// How long Kafka keeps tasks (`topics.task_retention`).
    pub task_retention: Millis,
    /// How often topics are checked (`topics.check_interval`).
    pub topic_check: Millis,
    pub names: Names,
    pub events_partitions: u32,
    pub metrics: Metrics,
    pub health: Health,
}

/// Tracks until told to stop.
pub async fn run(setup: TrackerSetup, shutdown: Shutdown) -> anyhow::Result<()> {
    let setup = Arc::new(setup);
    let spec = ConsumerSpec {
        group: Some(setup.names.tracker_group()),
        topics: vec![setup.names.events()],
        prefetch_bytes: PREFETCH_BYTES,
        ..ConsumerSpec::default()
    };
    let broker = setup.broker.clone();
    let consumer = blocking(move || broker.consumer(&spec)).await.map_err(anyhow::Error::msg)?;
    let consumer = consumer.context("the consumer of events cannot be opened")?;
    let (shared, folding) = (TrackerShared::open(&setup), setup.clone());
    let fold = move |post| drop(runtime::spawn(PartitionTask::new(folding.clone(), shared.clone(), post).run()));
    let reader = PollLoop::new(setup.clone(), consumer, shutdown.clone(), Box::new(fold));
    let end = runtime::thread("kafleet-tracker", reader.run()).context("a thread for the poll loop cannot be started")?;
    let observing = observe(&setup, &shutdown).await?;
    tracing::info!("tracker starts");
    let measuring = runtime::spawn(measure_lag(setup.clone()));
    let outcome = end.await.context("the tracker's poll loop ended without leaving its group");
    measuring.abort();
    shutdown.begin();
    if let Some(left) = observing {
        // It leaves its group; a process that does not wait for it leaves a gap until the session times out.
        let _ = tokio::time::timeout(LEAVE_DEADLINE, left).await;
    }
    outcome?.context("the consumer of events cannot go on")?;
    tracing::info!("tracker has stopped");
    Ok(())
}

/// Starts the observer on a thread of its own. The receiver hears when it has left its group.
async fn observe(setup: &Arc<TrackerSetup>, shutdown: &Shutdown) -> anyhow::Result<Option<oneshot::Receiver<()>>> {
    if !setup.config.observe {
        return Ok(None);
    }
    let (setup, shutdown) = (setup.clone(), shutdown.clone());
    let opened = blocking(move || Announcer::open(setup, shutdown)).await.map_err(anyhow::Error::msg)?;
    let observer = opened.context("the observer's producer cannot be opened")?;
    runtime::thread("kafleet-observer", observer.run()).context("a thread for the observer cannot be started").map(Some)
}

/// How far the store is behind the log, per partition. Whoever tracks measures all of them: it is the fleet's lag.
async fn measure_lag(setup: Arc<TrackerSetup>) {
    let topic: Arc<str> = setup.names.events().into();
    let partitions: Vec<u32> = (0..setup.events_partitions).collect();
    loop {
        tokio::time::sleep(LAG_INTERVAL).await;
        let Ok(fences) = setup.store.fences(&partitions).await else { continue };
        for (number, fence) in partitions.iter().zip(fences) {
            let (broker, partition) = (setup.broker.clone(), Partition::new(topic.clone(), *number as i32));
            let Ok(Ok(ends)) = blocking(move || broker.ends(&partition, Duration::from_secs(5))).await else { continue };
            let lag = ends.end - fence.map_or(ends.first, |fence| fence.offset);
            setup.metrics.lag.with_label_values(&[&*topic, &number.to_string()]).set(lag.max(0));
        }
    }
}
