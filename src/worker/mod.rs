//! The worker: task topics in, attempts in slots, events out. It never touches the store.
//!
//! The data's path: [`lane`] polls one type's topic on a thread of its own and keeps each partition's [`share`];
//! [`intake`] makes work of records; [`dispatch`] gives it to slots, where an [`attempt`] runs; [`settle`] publishes what
//! it spawned; [`report`] writes what happened; [`dead_letter`] keeps what cannot be done. A [`tag`] goes with each input and
//! comes back when its last word is acknowledged.

mod attempt;
pub mod child;
mod completions;
mod consumer;
mod dead_letter;
mod decode;
mod dispatch;
mod events;
mod heartbeat;
mod log_throttle;
mod memory_budget;
mod result_batch;
mod type_metrics;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot, watch};

use crate::broker::shared_producer::SharedProducer;
use crate::broker::{Broker, BrokerError, ConsumerSpec};
use crate::config::{Isolation, Names, WorkerConfig};
use crate::control::{self, ControlState, ControlWatch};
use crate::handlers::{Registered, Registry};
use crate::publish::Publisher;
use crate::runtime::{self, Health, Shutdown, now_ms};
use crate::telemetry::Metrics;
use child::{ChildPool, Reentry};
use completions::{Completions, MAX_LANES};
use consumer::{ConsumerDeps, PollLoopMetrics, StartOffsets, TypeConsumer};
use decode::Decoder;
use dispatch::{Command, Dispatcher, DispatcherDeps};
use events::{Deliveries, EventWriter};
use heartbeat::HeartbeatSender;
use memory_budget::MemoryBudget;
use type_metrics::TypeMetrics;

/// Batches between a lane and its dispatcher.
const BATCHES: usize = 4;
/// How long a dispatcher may take to end when its lane has left, beside the grace of its attempts.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long the last events may take to be acknowledged at the end.
const FLUSH_DEADLINE: Duration = Duration::from_secs(10);

/// What a worker needs.
pub struct WorkerSetup {
    pub broker: Arc<dyn Broker>,
    pub registry: Registry,
    /// The types to work on; empty: all registered.
    pub types: Vec<String>,
    pub config: WorkerConfig,
    pub names: Names,
    pub events_partitions: u32,
    pub metrics: Metrics,
    pub health: Health,
    /// How attempts get processes of their own. None: they do not, and types that ask for it are refused.
    pub reentry: Option<Reentry>,
}

/// Works until told to stop; returns when everything is drained and left.
pub async fn run(setup: WorkerSetup, shutdown: Shutdown) -> anyhow::Result<()> {
    let types = chosen_types(&setup)?;
    for (name, registered) in &types {
        registered.handler.prepare().map_err(|why| anyhow::anyhow!("type `{name}`: {why}"))?;
        if registered.policy.isolation == Isolation::Process {
            prepare_isolation(name, setup.reentry.as_ref())?;
        }
    }
    let worker = incarnation();
    let (control, started_ms) = (ControlWatch::new(ControlState::default()), now_ms());
    // Before anybody can say that it is done; and no type is ready before it has its partitions.
    setup.health.set(control::HEALTH_PART, format!("reading `{}`", setup.names.control()));
    types.iter().for_each(|(name, _)| setup.health.set(&consumer::health_part(name), consumer::NOT_JOINED));
    let _keeping = control::keep(control.clone(), setup.broker.clone(), &setup.names, Some(setup.health.clone()));
    if !read_orders(&control, &shutdown).await {
        setup.health.clear(control::HEALTH_PART);
        types.iter().for_each(|(name, _)| setup.health.clear(&consumer::health_part(name)));
        return Ok(());
    }
    let inboxes: Vec<Arc<Completions>> = types.iter().map(|_| Arc::default()).collect();
    let (deliveries, undelivered) = Deliveries::new(inboxes.clone());
    let link = setup.broker.client().shared_producer(Some(deliveries.clone())).await.context("the producer cannot be opened")?;
    let publisher = Publisher::new(link.clone(), setup.names.clone(), setup.events_partitions, &format!("kafleet/{worker}"));
    let events = EventWriter::new(link.clone(), publisher, worker.clone(), setup.health.clone());
    let resending = runtime::spawn(events.clone().resend(undelivered));
    tracing::info!(%worker, types = ?types.iter().map(|(name, _)| name).collect::<Vec<_>>(), "worker starts");
    // A quarter of the memory lies prefetched in the clients, half of it is held here; the rest is reports.
    let memory = MemoryBudget::new(types.len(), setup.config.memory_limit.as_usize() / 2);
    let places = StartOffsets::default();
    let measuring =
        runtime::spawn(measure(setup.broker.clone(), setup.metrics.clone(), places.clone(), memory.clone(), control.clone()));
    let (mut ends, mut dispatchers) = (Vec::new(), Vec::new());
    for (index, (task_type, registered)) in types.iter().enumerate() {
        let lane = StartOffset {
            setup: &setup,
            index,
            lanes: types.len(),
            task_type,
            registered,
            inbox: &inboxes[index],
            events: &events,
            memory: &memory,
            places: &places,
            control: &control,
        };
        let (commands, lane, dispatcher) = lane.start(&shutdown).await?;
        dispatchers.push((task_type.clone(), commands));
        ends.push((lane, dispatcher));
    }
    let (link_of_heart, names, metrics) = (link.clone(), setup.names.clone(), setup.metrics.clone());
    let heart = Arc::new(HeartbeatSender {
        worker: worker.clone(),
        link: link_of_heart,
        names,
        metrics,
        memory: memory.clone(),
        shutdown: shutdown.clone(),
        dispatchers,
        started_ms,
    });
    let beating = runtime::spawn(heart.clone().beat());
    let patience = Duration::from(setup.config.grace) + LAST_WORDS;
    let mut ends: FuturesUnordered<_> =
        ends.into_iter().map(|(lane, dispatcher)| ended(lane, dispatcher, patience, &shutdown)).collect();
    let (mut failed, mut unfinished) = (None, false);
    while let Some(end) = ends.next().await {
        match end {
            Ok(given_back) => unfinished |= given_back,
            Err(why) => {
                tracing::error!(%why, "one type has failed: the worker stops");
                shutdown.begin();
                (failed, unfinished) = (Some(why), true);
            }
        }
    }
    drop(ends);
    unfinished |= !flush(link).await;
    beating.abort();
    if !shutdown.abort.is_cancelled() {
        heart.stop(unfinished).await;
    }
    resending.abort();
    measuring.abort();
    tracing::info!(%worker, "worker has stopped");
    failed.map_or(Ok(()), Err)
}

/// Waits for the last acknowledgements; not for ever, should it not even be begun. False: some did not come.
async fn flush(link: Arc<SharedProducer>) -> bool {
    let flushed = tokio::time::timeout(FLUSH_DEADLINE + LAST_WORDS, link.flush(FLUSH_DEADLINE)).await;
    let flushed = flushed.unwrap_or_else(|_| Err(BrokerError::Unavailable("no thread is free for the flush".to_owned())));
    if let Err(error) = &flushed {
        tracing::warn!(%error, "not everything was acknowledged at the end: it will be repeated");
    }
    flushed.is_ok()
}

/// Early: the guard of child processes keeps the memory that the worker has at that time.
fn prepare_isolation(task_type: &str, reentry: Option<&Reentry>) -> anyhow::Result<()> {
    if reentry.is_none() {
        bail!(
            "type `{task_type}` has `isolation = \"process\"`, and this process cannot be started again as a child; \
             hint: run it through `kafleet::app().main()`"
        );
    }
    crate::handlers::reaper::start().context("no guard process for child processes could be started")
}

/// Waits until a type's lane and then its dispatcher are at their end. True: some tasks that it has begun are left to
/// others. An error: one of them did not come to its end in order.
async fn ended(
    lane: oneshot::Receiver<()>,
    mut dispatcher: tokio::task::JoinHandle<bool>,
    patience: Duration,
    shutdown: &Shutdown,
) -> anyhow::Result<bool> {
    let left = lane.await;
    if shutdown.abort.is_cancelled() {
        dispatcher.abort();
        // It may be in the middle of something; after the worker's end it says nothing any more.
        let _ = tokio::time::timeout(LAST_WORDS, dispatcher).await;
        return Ok(true);
    }
    // What it still has to say counts no more: everything is given back.
    let unfinished = match tokio::time::timeout(patience, &mut dispatcher).await {
        Ok(done) => done.context("a dispatcher did not end well")?,
        Err(_) => {
            dispatcher.abort();
            true
        }
    };
    // A lane that panicked has dropped its end: its partitions go to others when its session ends.
    left.context("a poll loop ended without leaving its group")?;
    Ok(unfinished)
}

/// Waits until what people have told the fleet is known. False: told to stop before.
async fn read_orders(control: &ControlWatch, shutdown: &Shutdown) -> bool {
    tokio::select! {
        biased;
        () = control.whole() => true,
        () = shutdown.drain.cancelled() => false,
    }
}

/// Passes changes of the orders on to a dispatcher, for as long as it is there.
async fn forward(mut changes: watch::Receiver<u64>, commands: mpsc::UnboundedSender<Command>) {
    loop {
        tokio::select! {
            biased;
            changed = changes.changed() => if changed.is_err() || commands.send(Command::Heed).is_err() { return },
            () = commands.closed() => return,
        }
    }
}

/// What is held, every second, and how far each partition is behind its end, every ten.
async fn measure(
    broker: Arc<dyn Broker>,
    metrics: Metrics,
    places: StartOffsets,
    memory: Arc<MemoryBudget>,
    control: Arc<ControlWatch>,
) {
    for second in 0u64.. {
        tokio::time::sleep(Duration::from_secs(1)).await;
        metrics.held_bytes.with_label_values::<&str>(&[]).set(memory.held() as i64);
        metrics.control_cancels.with_label_values::<&str>(&[]).set(control.orders().cancels().len() as i64);
        if second % 10 != 0 {
            continue;
        }
        let now = places.lock().clone();
        for (partition, done) in now {
            let Ok(ends) = broker.client().with_deadline(Duration::from_secs(5)).watermarks(&partition).await else { continue };
            let label = partition.index.to_string();
            metrics.lag.with_label_values(&[&*partition.topic, &label]).set((ends.end - done).max(0));
        }
    }
}

fn chosen_types(setup: &WorkerSetup) -> anyhow::Result<Vec<(Arc<str>, Registered)>> {
    let known = || setup.registry.types().map(|(name, _)| name.to_string()).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = setup.types.iter().find(|name| setup.registry.get(name).is_none()) {
        bail!("there is no handler for the type `{unknown}`; known are: {}", known());
    }
    let chosen = |name: &str| setup.types.is_empty() || setup.types.iter().any(|wanted| wanted == name);
    let types: Vec<_> = setup
        .registry
        .types()
        .filter(|(name, _)| chosen(name))
        .map(|(name, registered)| (name.clone(), registered.clone()))
        .collect();
    match types.len() {
        0 => bail!("there is no task type to work on: register one, or add a `[types.<name>]` section"),
        number if number > MAX_LANES => {
            bail!("{number} task types in one worker: at most {MAX_LANES}; start more workers with `--types`")
        }
        _ => Ok(types),
    }
}

/// This process's name in events: the host, and what tells it from its predecessors.
fn incarnation() -> Arc<str> {
    let host: String = host().chars().filter(|c| c.is_ascii_graphic()).take(40).collect();
    let tail: String = std::iter::repeat_with(fastrand::alphanumeric).take(6).collect();
    format!("{host}-{}", tail.to_ascii_lowercase()).into()
}

fn host() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "worker".into())
}

/// Everything that one lane is started with.
struct StartOffset<'a> {
    setup: &'a WorkerSetup,
    index: usize,
    lanes: usize,
    task_type: &'a Arc<str>,
    registered: &'a Registered,
    inbox: &'a Arc<Completions>,
    events: &'a EventWriter,
    memory: &'a Arc<MemoryBudget>,
    places: &'a StartOffsets,
    control: &'a Arc<ControlWatch>,
}

type Started = (mpsc::UnboundedSender<Command>, oneshot::Receiver<()>, tokio::task::JoinHandle<bool>);

impl StartOffset<'_> {
    /// Where attempts run that may not run here.
    fn cells(&self) -> Option<ChildPool> {
        let Registered { policy, handler, .. } = self.registered;
        let reentry = self.setup.reentry.as_ref()?;
        ChildPool::new(reentry, self.task_type, &**handler, policy.cells, &self.setup.metrics)
    }

    async fn start(&self, shutdown: &Shutdown) -> anyhow::Result<Started> {
        let setup = self.setup;
        let names = &setup.names;
        let memory_limit = setup.config.memory_limit.as_usize();
        let spec = ConsumerSpec {
            group: Some(names.group(self.task_type)),
            topics: vec![names.tasks(self.task_type)],
            prefetch_bytes: (memory_limit / 4 / self.lanes).max(1 << 20),
            ..ConsumerSpec::default()
        };
        let consumer = setup.broker.client().consumer(spec.clone()).await;
        let consumer = consumer.with_context(|| format!("the consumer of `{}` cannot be opened", self.task_type))?;
        let (work_out, work_in) = mpsc::channel(BATCHES);
        let (commands_out, commands_in) = mpsc::unbounded_channel();
        // From here on, so that no change is missed.
        let (changes, commands) = (self.control.changes(), commands_out.clone());
        let cells = self.cells();
        let dispatcher = Dispatcher::new(DispatcherDeps {
            task_type: self.task_type.clone(),
            registered: self.registered.clone(),
            state: setup.registry.state().clone(),
            config: setup.config.clone(),
            events: self.events.clone(),
            dead_letters: dead_letter::DeadLetterWriter {
                broker: setup.broker.clone(),
                events: self.events.clone(),
                health: setup.health.clone(),
            },
            inbox: self.inbox.clone(),
            work: work_in,
            commands: commands_in,
            cells,
            health: setup.health.clone(),
            meter: TypeMetrics::new(&setup.metrics, self.task_type),
            control: self.control.clone(),
        });
        let policy = &self.registered.policy;
        let lane = TypeConsumer::new(ConsumerDeps {
            index: self.index,
            task_type: self.task_type.clone(),
            names: names.clone(),
            broker: setup.broker.clone(),
            link: self.events.link().clone(),
            consumer,
            spec,
            intake: Decoder {
                task_type: self.task_type.clone(),
                order: policy.order,
                max_params: setup.config.max_params.as_usize(),
                memory: self.memory.clone(),
                lane: self.index,
                by_key: false,
            },
            inbox: self.inbox.clone(),
            work: work_out,
            commands: commands_out,
            memory: self.memory.clone(),
            policy: policy.clone(),
            control: self.control.clone(),
            drain_timeout: setup.config.drain_timeout.into(),
            commit_interval: setup.config.commit_interval.into(),
            shutdown: shutdown.clone(),
            health: setup.health.clone(),
            loop_time: loop_time(&setup.metrics, self.task_type),
            metrics: setup.metrics.clone(),
            places: self.places.clone(),
        });
        let end = runtime::thread(&format!("kafleet-{}", self.task_type), lane.run())
            .context("a thread for the poll loop cannot be started")?;
        runtime::spawn(forward(changes, commands.clone()));
        Ok((commands, end, runtime::spawn(dispatcher.run())))
    }
}

fn loop_time(metrics: &Metrics, task_type: &str) -> PollLoopMetrics {
    let part = |part| metrics.poll_loop.with_label_values(&[task_type, part]);
    PollLoopMetrics { poll: part("poll"), dispatch: part("dispatch"), commit: part("commit"), idle: part("idle") }
}
