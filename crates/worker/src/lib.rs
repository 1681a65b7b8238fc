//! The worker: runs the tasks of its types and publishes their events. It never accesses the store (Redis).
//!
//! In: records of task topics, the state of the control topic, and results of attempts. Out: events, children, dead
//! letters, heartbeats and committed offsets.
//!
//! Data path: [`consumer`] polls the topics of a consumer group on its own thread and tracks each assigned partition; a
//! group serves one type, or several that share it. [`decode`] turns records into inputs (tasks or invalid records).
//! [`dispatch`] assigns them to slots, in which an [`attempt`] runs; child tasks are published before the result of
//! their parent. [`events`] publishes events; [`dead_letter`] writes what cannot be processed to the dead-letter topic.
//! A [`completions::DeliveryTag`] travels with each input and returns to the consumer when Kafka has acknowledged the
//! input's terminal event.
//!
//! Invariant: an input is complete only when Kafka has acknowledged its terminal event, or its dead letter and event.
//! Offsets of other inputs are never committed. A crash at any point therefore repeats tasks and loses none.
//!
//! Read next: `docs/architecture/worker.md`, then [`consumer`] and [`dispatch`].

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod attempt;
pub mod child;
mod circuit;
mod completions;
mod consumer;
mod dead_letter;
mod declarations;
mod decode;
mod dispatch;
mod error;
mod events;
mod group_check;
mod group_start;
mod heartbeat;
mod key_check;
mod log_throttle;
mod memory_budget;
mod observers;
mod result_batch;
mod results;
mod spans;
mod type_metrics;
mod type_start;
mod unique;

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use child::OwnExecutable;
use completions::{Completions, MAX_TYPES};
use consumer::CommittedOffsets;
use dispatch::Command;
use error::WorkerError;
use events::{Deliveries, EventWriter, FailedDelivery};
use group_start::{ConsumerEnd, ConsumerGroup, GroupStart, groups_of};
use heartbeat::HeartbeatSender;
use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{Broker, BrokerError, Partition};
use kafleet_config::{Isolation, Names, TopicsConfig, Topology, WorkerConfig};
use kafleet_fleet::control::{self, ControlState, ControlWatch, PolicyUpdates};
use kafleet_fleet::publish::Publisher;
use kafleet_handlers::{Registry, TypeRegistration};
use kafleet_model::task::limits::TaskLimits;
use kafleet_model::units::duration::Millis;
use kafleet_runtime::{Health, Shutdown};
use kafleet_telemetry::{Metrics, Tracer};
use key_check::MisplacedKeys;
use memory_budget::MemoryBudget;

/// Maximum time for a dispatcher to end after its consumer, in addition to the grace period of its attempts.
const DISPATCHER_END_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum time for the last events to be acknowledged when the worker stops.
const FLUSH_DEADLINE: Duration = Duration::from_secs(10);
/// Interval at which the worker's gauges are updated; lag is measured every tenth time.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
const ROUNDS_PER_LAG: u64 = 10;
/// Deadline for reading the end offsets of all partitions when lag is measured.
const LAG_DEADLINE: Duration = Duration::from_secs(5);

/// Settings and resources of a worker.
pub struct WorkerSetup {
    pub broker: Arc<dyn Broker>,
    pub registry: Registry,
    /// Types to run; empty: all registered types.
    pub types: Vec<String>,
    pub config: WorkerConfig,
    pub topology: Topology,
    /// Longest time that a tree may stay open.
    pub max_tree_age: Millis,
    pub metrics: Metrics,
    pub health: Health,
    /// Policies that replace those of the types while the worker runs.
    pub policies: PolicyUpdates,
    /// `None`: nothing is traced.
    pub tracer: Option<Tracer>,
    /// Executable of child processes. `None`: the worker does not start with a type that has `isolation = "process"`.
    pub own_executable: Option<OwnExecutable>,
}

impl WorkerSetup {
    /// Worker for all registered types with the default configuration, without child processes and traces.
    pub fn new(broker: Arc<dyn Broker>, registry: Registry, topology: Topology, metrics: Metrics) -> Self {
        Self {
            broker,
            registry,
            types: Vec::new(),
            config: WorkerConfig::default(),
            topology,
            max_tree_age: TopicsConfig::default().max_tree_age,
            metrics,
            health: Health::default(),
            policies: PolicyUpdates::default(),
            tracer: None,
            own_executable: None,
        }
    }

    /// Limits of new tasks.
    fn limits(&self) -> TaskLimits {
        TaskLimits { max_tree_age: self.max_tree_age, max_params: self.config.max_params.as_usize() }
    }
}

/// Resources that all types of a worker share.
struct SharedResources {
    setup: WorkerSetup,
    /// Number of types of this worker.
    types: usize,
    control: Arc<ControlWatch>,
    /// By type index.
    completions: Vec<Arc<Completions>>,
    events: EventWriter,
    memory: Arc<MemoryBudget>,
    offsets: CommittedOffsets,
    misplaced_keys: MisplacedKeys,
}

/// Runs a worker until `shutdown`, or until a type fails. Returns after the tasks have drained and the consumers have
/// left their groups.
pub async fn run(setup: WorkerSetup, shutdown: Shutdown) -> anyhow::Result<()> {
    setup.metrics.set_role("worker");
    let types = chosen_types(&setup)?;
    group_check::check_names(&setup.topology.names, &setup.registry)?;
    prepare_handlers(&types, setup.own_executable.as_ref())?;
    let groups = groups_of(&types, &setup.topology.names);
    let worker = incarnation();
    let type_names = types.iter().map(|(name, _)| name.to_string()).collect();
    let control = ControlWatch::new(ControlState::default().with_types_of(type_names));
    setup.policies.attach(control.clone());
    let started = Instant::now();
    // Not ready yet. The follower of the control topic clears the first reason; each group clears its own after its
    // first assignment, even an empty one.
    setup.health.set(control::HEALTH_PART, format!("reading the control topic `{}`", setup.topology.names.control()));
    groups.iter().for_each(|group| setup.health.set(&group.health_part(), consumer::NOT_JOINED));
    let names = setup.topology.names.clone();
    let _follower = control::follow_control(control.clone(), setup.broker.clone(), &names, Some(setup.health.clone()));
    if !wait_for_control(&control, &shutdown).await {
        setup.health.clear(control::HEALTH_PART);
        groups.iter().for_each(|group| setup.health.clear(&group.health_part()));
        return Ok(());
    }
    let (shared, undelivered) = SharedResources::open(setup, types.len(), worker.clone(), control.clone()).await?;
    let resending = kafleet_runtime::spawn(shared.events.clone().resend_all(undelivered));
    tracing::info!(%worker, types = ?types.iter().map(|(name, _)| name).collect::<Vec<_>>(), "worker is starting");
    group_check::check_groups(&shared, &types).await?;
    // Before the first task is judged by its times.
    let learning = control::learn_broker_time(shared.events.producer(), &shared.setup.topology.names);
    shutdown.drain.run_until_cancelled(learning).await;
    let comparing = kafleet_runtime::spawn(declarations::warn_of_differences(control.clone(), types.clone()));
    let moved = kafleet_runtime::spawn(stop_if_moved(control, names, types.clone(), shutdown.clone()));
    let measuring = kafleet_runtime::spawn(shared.measure());
    let (dispatchers, ends) = start_groups(&shared, &groups, &types, &shutdown).await?;
    let heartbeats = Arc::new(shared.heartbeat_sender(dispatchers, started, &shutdown));
    let beating = kafleet_runtime::spawn(heartbeats.clone().run());
    let patience = Duration::from(shared.setup.config.grace) + DISPATCHER_END_DEADLINE;
    let (mut failure, mut unfinished) = wait_for_types(ends, patience, &shutdown).await;
    unfinished |= !flush(shared.events.producer().clone()).await;
    beating.abort();
    if !shutdown.abort.is_cancelled() {
        heartbeats.publish_stopped(unfinished).await;
    }
    resending.abort();
    measuring.abort();
    comparing.abort();
    if moved.is_finished() {
        failure = failure.or(moved.await.ok());
    } else {
        moved.abort();
    }
    tracing::info!(%worker, "worker has stopped");
    Ok(failure.map_or(Ok(()), Err)?)
}

/// Sender of commands to the dispatcher of each type.
type Dispatchers = Vec<(Arc<str>, mpsc::UnboundedSender<Command>)>;
/// Futures that complete when a type's consumer and its dispatcher have ended.
type TypeEnds = Vec<(ConsumerEnd, tokio::task::JoinHandle<bool>)>;

async fn start_groups(
    shared: &SharedResources,
    groups: &[ConsumerGroup],
    types: &[(Arc<str>, TypeRegistration)],
    shutdown: &Shutdown,
) -> Result<(Dispatchers, TypeEnds), WorkerError> {
    let mut dispatchers = Vec::new();
    let mut ends = Vec::new();
    for group in groups {
        let (started, consumer_end) = GroupStart { shared, group, types }.start(shutdown).await?;
        for started_type in started {
            dispatchers.push((started_type.task_type, started_type.commands));
            ends.push((consumer_end.clone(), started_type.dispatcher));
        }
    }
    Ok((dispatchers, ends))
}

/// Stops the worker when the control topic records another consumer group for the committed offsets of one of its
/// types. Returns the reason.
async fn stop_if_moved(
    control: Arc<ControlWatch>,
    names: Names,
    types: Vec<(Arc<str>, TypeRegistration)>,
    shutdown: Shutdown,
) -> WorkerError {
    let error = group_check::until_moved(control, names, types).await;
    tracing::error!(%error, "the worker stops");
    shutdown.begin();
    error
}

impl SharedResources {
    async fn open(
        setup: WorkerSetup,
        types: usize,
        worker: Arc<str>,
        control: Arc<ControlWatch>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<FailedDelivery>), WorkerError> {
        let completions: Vec<Arc<Completions>> = (0..types).map(|_| Arc::default()).collect();
        let (deliveries, undelivered) = Deliveries::new(completions.clone());
        let producer = setup.broker.client().shared_producer(Some(deliveries)).await.map_err(WorkerError::Producer)?;
        let source = format!("kafleet/{worker}");
        let publisher = Publisher::new(producer.clone(), setup.topology.clone(), &source)
            .with_counter(&setup.metrics.tasks.submitted)
            .with_tracer(setup.tracer.as_ref());
        let events = EventWriter::new(producer, publisher, worker, setup.health.clone());
        // Of `memory_limit`, a quarter is for records prefetched by the Kafka clients, half for tasks in flight, the
        // rest for events.
        let memory = MemoryBudget::new(types, setup.config.memory_limit.as_usize() / 2);
        Ok((
            Self {
                setup,
                types,
                control,
                completions,
                events,
                memory,
                offsets: CommittedOffsets::default(),
                misplaced_keys: MisplacedKeys::default(),
            },
            undelivered,
        ))
    }

    /// Updates the gauges of memory, active cancels and consumer lag until the returned future is dropped.
    fn measure(&self) -> impl Future<Output = ()> + Send + use<> {
        let broker = self.setup.broker.clone();
        let metrics = self.setup.metrics.clone();
        let offsets = self.offsets.clone();
        let memory = self.memory.clone();
        let control = self.control.clone();
        async move {
            for round in 0u64.. {
                tokio::time::sleep(MEASURE_INTERVAL).await;
                metrics.worker.held_bytes.with_label_values::<&str>(&[]).set(memory.used() as i64);
                metrics
                    .worker
                    .control_cancels
                    .with_label_values::<&str>(&[])
                    .set(control.state().cancels().len() as i64);
                if round % ROUNDS_PER_LAG == 0 {
                    measure_lag(&broker, &metrics, &offsets).await;
                }
            }
        }
    }

    fn heartbeat_sender(&self, dispatchers: Dispatchers, started: Instant, shutdown: &Shutdown) -> HeartbeatSender {
        HeartbeatSender {
            worker: self.events.worker.clone(),
            producer: self.events.producer().clone(),
            names: self.setup.topology.names.clone(),
            metrics: self.setup.metrics.clone(),
            memory: self.memory.clone(),
            misplaced_keys: self.misplaced_keys.clone(),
            shutdown: shutdown.clone(),
            dispatchers,
            started,
        }
    }
}

async fn measure_lag(broker: &Arc<dyn Broker>, metrics: &Metrics, offsets: &CommittedOffsets) {
    let committed = offsets.lock().clone();
    let partitions: Vec<Partition> = committed.keys().cloned().collect();
    let client = broker.client().with_deadline(LAG_DEADLINE);
    let Ok(ends) = client.end_offsets(partitions).await else { return };
    for ((partition, offset), end) in committed.iter().zip(ends) {
        let Some(end) = end else { continue };
        let label = partition.index.to_string();
        metrics.lag.with_label_values(&[&*partition.topic, &label]).set((end - offset).max(0));
    }
}

/// Waits until Kafka has acknowledged the last events, up to a deadline. Returns false if some are missing.
async fn flush(producer: Arc<SharedProducer>) -> bool {
    let flushed = tokio::time::timeout(FLUSH_DEADLINE + DISPATCHER_END_DEADLINE, producer.flush(FLUSH_DEADLINE)).await;
    let flushed =
        flushed.unwrap_or_else(|_| Err(BrokerError::Unavailable("no thread is free for the flush".to_owned())));
    if let Err(error) = &flushed {
        tracing::warn!(%error, "some results were not acknowledged before the stop; their tasks will run again");
    }
    flushed.is_ok()
}

fn prepare_handlers(
    types: &[(Arc<str>, TypeRegistration)],
    own_executable: Option<&OwnExecutable>,
) -> Result<(), WorkerError> {
    for (name, registered) in types {
        let failure = |reason| WorkerError::Handler { task_type: name.clone(), reason };
        registered.handler.prepare().map_err(failure)?;
        if registered.policy.isolation == Isolation::Process {
            prepare_isolation(name, own_executable)?;
        }
    }
    Ok(())
}

/// Starts the guard, a process that kills child processes if the worker dies. Call this early: the guard is forked and
/// keeps a copy of the worker's memory as of the fork.
fn prepare_isolation(task_type: &Arc<str>, own_executable: Option<&OwnExecutable>) -> Result<(), WorkerError> {
    if own_executable.is_none() {
        return Err(WorkerError::NoReentry(task_type.clone()));
    }
    kafleet_handlers::process_guard::start().map_err(WorkerError::Guard)
}

/// Waits until all types have ended; a type that fails stops the worker. Returns the last failure, and whether other
/// workers have to finish tasks for which this worker has published events.
async fn wait_for_types(ends: TypeEnds, patience: Duration, shutdown: &Shutdown) -> (Option<WorkerError>, bool) {
    let mut ends: FuturesUnordered<_> =
        ends.into_iter().map(|(consumer, dispatcher)| type_end(consumer, dispatcher, patience, shutdown)).collect();
    let mut failure = None;
    let mut unfinished = false;
    while let Some(end) = ends.next().await {
        match end {
            Ok(left) => unfinished |= left,
            Err(error) => {
                tracing::error!(%error, "a type has failed; the worker stops");
                shutdown.begin();
                failure = Some(error);
                unfinished = true;
            }
        }
    }
    (failure, unfinished)
}

/// Waits until a type's consumer and then its dispatcher have ended. Returns whether other workers have to finish tasks
/// for which this worker has published events. Fails if either of the two has failed.
async fn type_end(
    consumer: ConsumerEnd,
    mut dispatcher: tokio::task::JoinHandle<bool>,
    patience: Duration,
    shutdown: &Shutdown,
) -> Result<bool, WorkerError> {
    let left_group = consumer.await;
    if shutdown.abort.is_cancelled() {
        dispatcher.abort();
        // Wait for the abort, which takes effect at the next await point: nothing may be published after the worker's end.
        let _ = tokio::time::timeout(DISPATCHER_END_DEADLINE, dispatcher).await;
        return Ok(true);
    }
    let unfinished = match tokio::time::timeout(patience, &mut dispatcher).await {
        Ok(unfinished) => unfinished.map_err(WorkerError::Dispatcher)?,
        // Ignore late results; the partitions have already been released.
        Err(_) => {
            dispatcher.abort();
            true
        }
    };
    // A consumer that panicked has not left its group: its partitions are reassigned when its session times out.
    left_group.map_err(WorkerError::PollLoop)?;
    Ok(unfinished)
}

/// Waits until the control topic has been read to its end. Returns false if the worker has to stop first.
async fn wait_for_control(control: &ControlWatch, shutdown: &Shutdown) -> bool {
    tokio::select! {
        biased;
        () = control.wait_until_read() => true,
        () = shutdown.drain.cancelled() => false,
    }
}

fn chosen_types(setup: &WorkerSetup) -> Result<Vec<(Arc<str>, TypeRegistration)>, WorkerError> {
    let registered = || setup.registry.types().map(|(name, _)| name.to_string()).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = setup.types.iter().find(|name| setup.registry.get(name).is_none()) {
        return Err(WorkerError::UnknownType { name: unknown.clone(), registered: registered() });
    }
    let is_chosen = |name: &str| setup.types.is_empty() || setup.types.iter().any(|chosen| chosen == name);
    let types: Vec<_> = setup
        .registry
        .types()
        .filter(|(name, _)| is_chosen(name))
        .map(|(name, registered)| (name.clone(), registered.clone()))
        .collect();
    match types.len() {
        0 => Err(WorkerError::NoTypes),
        number if number > MAX_TYPES => Err(WorkerError::TooManyTypes(number)),
        _ => Ok(types),
    }
}

/// Name of this process in events: the host name and a random suffix, unique to this start of the process.
fn incarnation() -> Arc<str> {
    let host: String = host().chars().filter(|c| c.is_ascii_graphic()).take(40).collect();
    let tail: String = std::iter::repeat_with(fastrand::alphanumeric).take(6).collect();
    format!("{host}-{}", tail.to_ascii_lowercase()).into()
}

/// Host name of this machine, or `worker` if it cannot be read.
pub fn host() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "worker".into())
}
