//! Load of the benchmarks: tasks with 200 bytes of params and the headers of a tracked publish.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_broker::kafka::baseline::RawProduce;
use kafleet_broker::shared_producer::SharedProducer;
use kafleet_broker::{
    Broker, BrokerError, ConsumerSpec, DeliverySink, Partition, Producer, ProducerRecord, RecordRef, StartOffset,
};
use kafleet_config::{Names, Topology};
use kafleet_fleet::publish::{Publisher, task_headers};
use kafleet_model::encode_error::EncodeError;
use kafleet_model::event::{AttemptFailure, Event, Kind, Payload, Success, submitted};
use kafleet_model::json::RawJson;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{Position, TaskSpec, header};
use kafleet_runtime::now_ms;

use super::{BenchTopics, CALL_DEADLINE, EVENTS_PARTITIONS, NOOP, Services, blocking};

/// `ce_source` of the benchmarks' tasks.
const SOURCE: &str = "kafleet/bench";
/// Worker id in the events of a log.
const WORKER: &str = "some-worker-abc123";

/// Position of the records of all tasks.
const POSITION: Position = Position { partition: 0, offset: 0 };

/// Params of every task: 200 bytes of JSON.
pub(super) fn params() -> String {
    let head = r#"{"order":4711,"customer":"c-1042","items":[{"sku":"A-1","n":2},{"sku":"B-7","n":1}],"note":""#;
    format!("{head}{}\"}}", "x".repeat(200 - head.len() - 2))
}

pub(super) fn id(n: u64) -> anyhow::Result<TaskId> {
    Ok(TaskId::parse(&format!("bench-{n:012}"))?)
}

/// Returns the n-th task of a load.
pub(super) fn task(n: u64) -> anyhow::Result<TaskSpec> {
    let task = TaskSpec::new(id(n)?, NOOP, RawJson::parse(params().as_bytes())?);
    Ok(TaskSpec { created_at_ms: now_ms(), announced: true, hash: Some("aaaaaaaaaaaa".into()), ..task })
}

#[derive(Default)]
struct Acks {
    done: AtomicU64,
    failed: AtomicU64,
}

impl DeliverySink for Acks {
    fn delivered(&self, _: u64, outcome: Result<(i32, i64), (BrokerError, &RecordRef<'_>)>) {
        let counter = if outcome.is_ok() { &self.done } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Producer that counts unacknowledged records.
pub(super) struct Filler {
    acks: Arc<Acks>,
    producer: Arc<dyn Producer>,
}

impl Filler {
    pub(super) fn new(topics: &BenchTopics) -> anyhow::Result<Self> {
        let acks = Arc::new(Acks::default());
        Ok(Self { producer: topics.broker.producer(acks.clone())?, acks })
    }

    pub(super) fn send(&self, record: &ProducerRecord<'_>) -> anyhow::Result<()> {
        while let Err(error) = self.producer.send(record, 0) {
            if !error.is_transient() {
                return Err(error).context("cannot produce a record");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Sends the tasks with these numbers, all with the same params.
    pub(super) fn tasks(
        &self,
        names: &Names,
        task_type: &str,
        numbers: Range<u64>,
        params: &str,
    ) -> anyhow::Result<()> {
        let topic = names.tasks(task_type);
        let model = TaskSpec { task_type: task_type.into(), ..task(0)? };
        for n in numbers {
            let task = TaskSpec { id: id(n)?, ..model.clone() };
            let headers = task_headers(&task, SOURCE);
            let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            let key = Some(task.id.as_str().as_bytes());
            self.send(&ProducerRecord {
                topic: &topic,
                partition: None,
                key,
                value: Some(params.as_bytes()),
                headers: &headers,
            })?;
        }
        Ok(())
    }

    /// Returns when everything is acknowledged.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.producer.flush(CALL_DEADLINE)?;
        match self.acks.failed.load(Ordering::Relaxed) {
            0 => Ok(()),
            failed => bail!("{failed} records were not acknowledged"),
        }
    }
}

/// Fills the task topic and waits for all acknowledgements.
pub(super) fn fill(topics: &BenchTopics, tasks: u64) -> anyhow::Result<()> {
    let filler = Filler::new(topics)?;
    filler.tasks(&topics.topology.names, NOOP, 0..tasks, &params())?;
    filler.end()
}

/// Tree structure and events of the tasks of a log.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Shape {
    /// Number of roots; 0: every task is a root.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub roots: u64,
    /// Length of the chains of tasks below a root.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=32))]
    pub depth: u64,
    /// Failed attempts of each task before it succeeds.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub retries: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { roots: 0, depth: 1, retries: 0 }
    }
}

impl Shape {
    pub fn root(n: u64) -> anyhow::Result<TaskId> {
        Ok(TaskId::parse(&format!("bench-root-{n:06}"))?)
    }

    pub fn id(&self, n: u64) -> anyhow::Result<TaskId> {
        if self.roots == 0 {
            return id(n);
        }
        let root = Self::root(n % self.roots)?;
        let n = n / self.roots;
        let below = ":noop-1".repeat((n % self.depth) as usize);
        Ok(TaskId::parse(&format!("{root}:noop-{:012}{below}", n / self.depth))?)
    }

    /// Number of events per task.
    pub fn events(&self) -> u64 {
        2 + u64::from(self.retries)
    }
}

/// A log of finished tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventLog {
    pub tasks: u64,
    /// Number of tasks that are submitted before they succeed: the distance between the two events of a task.
    pub window: u64,
    pub shape: Shape,
}

impl EventLog {
    pub(super) fn events(&self) -> u64 {
        self.tasks * self.shape.events() + self.extra_events()
    }

    /// Events of roots that are not tasks of the load.
    pub(super) fn extra_events(&self) -> u64 {
        2 * self.shape.roots
    }

    /// Creates the topics and fills the events topic.
    pub(super) async fn prepare(self, services: &Services, task_partitions: u32) -> anyhow::Result<BenchTopics> {
        let services = services.clone();
        blocking(move || {
            let topics = BenchTopics::prepare(&services, task_partitions, EVENTS_PARTITIONS)?;
            self.fill(&topics)?;
            Ok(topics)
        })
        .await
    }

    /// Fills the events topic and waits for all acknowledgements.
    fn fill(&self, topics: &BenchTopics) -> anyhow::Result<()> {
        let topic = topics.topology.names.events();
        let mut writer = LogWriter { filler: Filler::new(topics)?, topic, topics, value: Vec::new() };
        let model = task(0)?;
        for n in 0..self.shape.roots {
            let root = TaskSpec { id: Shape::root(n)?, ..model.clone() };
            writer.submitted(&root)?;
            writer.succeeded(&root, 1)?;
        }
        let mut next = 0;
        while next < self.tasks {
            let end = (next + self.window).min(self.tasks);
            self.write_window(&mut writer, next..end, &model)?;
            next = end;
        }
        writer.filler.end()
    }

    /// Writes the events of the tasks with these numbers: first all `submitted`, at last all `succeeded`.
    fn write_window(&self, writer: &mut LogWriter<'_>, numbers: Range<u64>, model: &TaskSpec) -> anyhow::Result<()> {
        for n in numbers.clone() {
            writer.submitted(&TaskSpec { id: self.shape.id(n)?, ..model.clone() })?;
        }
        for attempt in 1..=self.shape.retries {
            for n in numbers.clone() {
                writer.retrying(&TaskSpec { id: self.shape.id(n)?, ..model.clone() }, attempt)?;
            }
        }
        for n in numbers {
            writer.succeeded(&TaskSpec { id: self.shape.id(n)?, ..model.clone() }, self.shape.retries + 1)?;
        }
        Ok(())
    }
}

struct LogWriter<'a> {
    filler: Filler,
    topic: String,
    topics: &'a BenchTopics,
    value: Vec<u8>,
}

impl LogWriter<'_> {
    fn submitted(&mut self, task: &TaskSpec) -> anyhow::Result<()> {
        self.value.clear();
        submitted(task, Some(POSITION), now_ms(), &mut self.value)?;
        self.write(task)
    }

    fn retrying(&mut self, task: &TaskSpec, attempt: u32) -> anyhow::Result<()> {
        let at_ms = now_ms();
        let mut failure = AttemptFailure::new("timeout", "the service did not answer within 30 s", attempt);
        failure.started_at_ms = Some(at_ms);
        let payload = Payload::Retrying { failure, due_ms: Some(at_ms + 1_000), record: None, waits: 0 };
        let mut event = Event::new(payload, task.id.clone(), task.run, at_ms);
        event.attempt = attempt;
        event.worker = Some(WORKER.into());
        self.value.clear();
        event.encode(&mut self.value)?;
        self.write(task)
    }

    fn succeeded(&mut self, task: &TaskSpec, attempt: u32) -> anyhow::Result<()> {
        self.value.clear();
        succeeded(task, attempt, &mut self.value)?;
        self.write(task)
    }

    fn write(&self, task: &TaskSpec) -> anyhow::Result<()> {
        let root = task.id.root().as_bytes();
        let partition = i32::try_from(self.topics.topology.partition_of(&task.id)).ok();
        let value = Some(self.value.as_slice());
        self.filler.send(&ProducerRecord { topic: &self.topic, partition, key: Some(root), value, headers: &[] })
    }
}

/// Encodes the event that a worker writes for a succeeded task.
fn succeeded(task: &TaskSpec, attempt: u32, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let output = RawJson::null();
    let at_ms = now_ms();
    Success { task, position: POSITION, attempt, worker: WORKER, at_ms, started_at_ms: at_ms, output: &output }
        .encode(out)
}

/// Publishes tasks with tracking, as an API does.
pub(super) async fn publish_tracked(
    services: &Services,
    prefix: &str,
    events_partitions: u32,
    tasks: u64,
) -> anyhow::Result<()> {
    let producer = SharedProducer::open(Arc::new(services.kafka()?), None)?;
    let publisher = Publisher::new(producer, Topology::new(Names::new(prefix), events_partitions), SOURCE);
    let mut next = 0;
    while next < tasks {
        let end = (next + TASKS_PER_CALL).min(tasks);
        publish(&publisher, "bench", next..end).await?;
        next = end;
    }
    Ok(())
}

/// Tasks per publish call.
const TASKS_PER_CALL: u64 = 20_000;

/// Id of the n-th task of this name.
pub(super) fn name_of(name: &str, n: u64) -> String {
    format!("{name}-{n:012}")
}

/// Publishes tasks in one call and waits for their acknowledgements.
pub(super) async fn publish(publisher: &Publisher, name: &str, numbers: Range<u64>) -> anyhow::Result<()> {
    let params = RawJson::parse(params().as_bytes())?;
    let mut tasks = Vec::new();
    for n in numbers {
        tasks.push(TaskSpec::new(TaskId::parse(&name_of(name, n))?, NOOP, params.clone()));
    }
    for outcome in publisher.publish_all(tasks, now_ms()).await {
        outcome?;
    }
    Ok(())
}

/// Produces the records of a tracked publish as fast as the client accepts them.
pub(super) fn raw_produce(services: &Services, prefix: &str, records: u64, events: bool) -> anyhow::Result<()> {
    let names = Names::new(prefix);
    let model = task(0)?;
    let params = params();
    let headers = task_headers(&model, SOURCE).into_iter().filter(|(name, _)| *name != header::ID);
    let headers: Vec<(String, String)> = headers.map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
    let mut event = Vec::new();
    submitted(&model, Some(POSITION), now_ms(), &mut event)?;
    let tasks = names.tasks(NOOP);
    let topic = names.events();
    let raw = RawProduce {
        tasks: &tasks,
        headers: &headers,
        id_header: header::ID,
        value: params.as_bytes(),
        events: events.then_some((topic.as_str(), event.as_slice())),
        records,
    };
    Ok(services.kafka()?.raw_produce(&raw)?)
}

/// Size of the event that a worker writes for a succeeded task.
pub(super) fn event_bytes() -> anyhow::Result<usize> {
    let mut bytes = Vec::new();
    succeeded(&task(0)?, 1, &mut bytes)?;
    Ok(bytes.len())
}

/// Checks that every task is on the task topic once and has one `submitted` event.
pub(super) fn check_published(topics: &BenchTopics, tasks: u64) -> anyhow::Result<()> {
    let records = topics.records(&topics.topology.names.tasks(NOOP), topics.partitions)?;
    if records != tasks {
        bail!("{records} records for {tasks} tasks");
    }
    check_events_of(topics, topics.topology.events_partitions, tasks, Kind::Submitted)
}

/// Reads all events back and checks that every task succeeded exactly once.
pub(super) fn check_events(topics: &BenchTopics, events_partitions: u32, tasks: u64) -> anyhow::Result<()> {
    check_events_of(topics, events_partitions, tasks, Kind::Succeeded)
}

fn check_events_of(topics: &BenchTopics, events_partitions: u32, tasks: u64, kind: Kind) -> anyhow::Result<()> {
    let mut seen = vec![false; usize::try_from(tasks)?];
    let mut doubled = 0u64;
    let mut other = 0u64;
    read_events(topics, events_partitions, |event| {
        let number = event
            .filter(|event| event.kind() == kind)
            .and_then(|event| event.id.as_str().strip_prefix("bench-")?.parse::<usize>().ok());
        match number.and_then(|number| seen.get_mut(number)) {
            Some(true) => doubled += 1,
            Some(is_seen) => *is_seen = true,
            None => other += 1,
        }
    })?;
    let missing = seen.iter().filter(|seen| !**seen).count();
    if missing > 0 || doubled > 0 {
        bail!("of {tasks} tasks {missing} are missing and {doubled} are duplicated ({other} other events)");
    }
    Ok(())
}

/// Reads all events. `None`: a record that is no event.
pub(super) fn read_events(
    topics: &BenchTopics,
    events_partitions: u32,
    mut each: impl FnMut(Option<Event>),
) -> anyhow::Result<()> {
    let topic: Arc<str> = topics.topology.names.events().into();
    let mut consumer = topics.broker.consumer(&ConsumerSpec::default())?;
    let partitions: Vec<(Partition, StartOffset)> = (0..events_partitions)
        .map(|number| (Partition::new(topic.clone(), number as i32), StartOffset::Beginning))
        .collect();
    consumer.assign(&partitions)?;
    // Counted by positions: the last offsets may be those of transaction markers.
    let ends = topics.ends(&topic, events_partitions)?;
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let positions = consumer.positions()?;
        let is_read = |(partition, end): &(Partition, i64)| {
            *end == 0 || positions.iter().any(|(listed, position)| listed == partition && position >= end)
        };
        if ends.iter().all(is_read) {
            break;
        }
        if Instant::now() > until {
            bail!("the events could not be read back within 120 s: {positions:?} of {ends:?}");
        }
        consumer.poll(2_000, Duration::from_millis(100), &mut |record| {
            each(record.value.and_then(|value| Event::decode(value).ok()));
        })?;
    }
    consumer.close(Duration::from_secs(5));
    Ok(())
}
