//! The benchmark's tasks: records with the headers of a tracked publish, about 200 bytes of params each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::{CALL_DEADLINE, Ground, NOOP};
use crate::broker::{Broker, BrokerError, ConsumerSpec, DeliverySink, Outgoing, Partition, RecordRef, Start};
use crate::model::event::{Event, Kind};
use crate::model::id::TaskId;
use crate::model::json::RawJson;
use crate::model::task::{Position, Task};
use crate::publish::task_headers;
use crate::runtime::now_ms;

/// The params of every task: 200 bytes of JSON.
pub fn params() -> String {
    let head = r#"{"order":4711,"customer":"c-1042","items":[{"sku":"A-1","n":2},{"sku":"B-7","n":1}],"note":""#;
    format!("{head}{}\"}}", "x".repeat(200 - head.len() - 2))
}

/// The n-th task of a load.
pub fn task(n: u64) -> anyhow::Result<Task> {
    Ok(Task {
        id: TaskId::parse(&format!("bench-{n:012}"))?,
        task_type: NOOP.into(),
        run: 1,
        attempts_used: 0,
        created_at_ms: now_ms(),
        position: Position { partition: 0, offset: 0 },
        asof: None,
        announced: true,
        hash: Some("aaaaaaaaaaaa".into()),
        policy: None,
        trace: None,
        params: RawJson::parse(params().as_bytes())?,
    })
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

/// Fills the task topic; returns when everything is acknowledged, with the time it took.
pub fn fill(ground: &Ground, tasks: u64) -> anyhow::Result<Duration> {
    let acks = Arc::new(Acks::default());
    let producer = ground.broker.producer(acks.clone())?;
    let (topic, params, model) = (ground.names.tasks(NOOP), params(), task(0)?);
    let began = Instant::now();
    for n in 0..tasks {
        let task = Task { id: TaskId::parse(&format!("bench-{n:012}"))?, ..model.clone() };
        let headers = task_headers(&task, "kafleet/bench");
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let key = Some(task.id.as_str().as_bytes());
        let record = Outgoing { topic: &topic, partition: None, key, value: Some(params.as_bytes()), headers: &headers };
        while let Err(error) = producer.send(&record, 0) {
            if !error.is_transient() {
                return Err(error).context("a task could not be produced");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    producer.flush(CALL_DEADLINE)?;
    match acks.failed.load(Ordering::Relaxed) {
        0 => Ok(began.elapsed()),
        failed => bail!("{failed} of {tasks} tasks were not acknowledged"),
    }
}

/// Bytes of the event that the worker writes for one of these tasks.
pub fn event_bytes() -> anyhow::Result<usize> {
    let mut event = Event::new(Kind::Succeeded, task(0)?.id, 1, now_ms());
    event.attempt = 1;
    event.worker = Some("some-worker-abc123".into());
    event.started_at_ms = Some(now_ms());
    event.task = Some(Box::new(crate::model::event::Announcement::of(&task(0)?)));
    event.output = Some(RawJson::null());
    let mut bytes = Vec::new();
    event.encode(&mut bytes);
    Ok(bytes.len())
}

/// Reads all events back: every task succeeded exactly once.
pub fn check_events(ground: &Ground, events_partitions: u32, tasks: u64) -> anyhow::Result<()> {
    let mut seen = vec![false; usize::try_from(tasks)?];
    let (mut doubled, mut other) = (0u64, 0u64);
    let topic: Arc<str> = ground.names.events().into();
    let mut consumer = ground.broker.consumer(&ConsumerSpec::default())?;
    let partitions: Vec<(Partition, Start)> =
        (0..events_partitions).map(|number| (Partition::new(topic.clone(), number as i32), Start::Beginning)).collect();
    consumer.assign(&partitions)?;
    let (mut left, until) = (ground.records(&topic, events_partitions)?, Instant::now() + Duration::from_secs(120));
    while left > 0 {
        if Instant::now() > until {
            bail!("the events could not be read back within 120 s: {left} are left");
        }
        consumer.poll(2_000, Duration::from_millis(100), &mut |record| {
            left = left.saturating_sub(1);
            let event = record.value.and_then(|value| Event::decode(value).ok());
            let number = event
                .filter(|event| event.kind == Kind::Succeeded)
                .and_then(|event| event.id.as_str().strip_prefix("bench-")?.parse::<usize>().ok());
            match number.and_then(|number| seen.get_mut(number)) {
                Some(true) => doubled += 1,
                Some(place) => *place = true,
                None => other += 1,
            }
        })?;
    }
    consumer.close(Duration::from_secs(5));
    let missing = seen.iter().filter(|seen| !**seen).count();
    if missing > 0 || doubled > 0 {
        bail!("of {tasks} tasks {missing} are missing and {doubled} succeeded twice ({other} other events)");
    }
    Ok(())
}
