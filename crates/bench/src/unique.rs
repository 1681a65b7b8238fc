//! `bench unique`: asks for unique tasks at a steady rate on a number of keys. The log shows afterwards that no key ever had two
//! open tasks.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_broker::{Broker, ConsumerSpec, Partition, StartOffset};
use kafleet_fleet::publish::Publisher;
use kafleet_model::event::{Event, Kind};
use kafleet_model::json::RawJson;
use kafleet_model::task::id::TaskId;
use kafleet_model::task::{Policy, TaskSpec};
use kafleet_model::unique::UniqueRule;
use kafleet_model::unique::id::{ask_id, tag};
use kafleet_runtime::now_ms;
use kafleet_store::Store;
use rustc_hash::FxHashMap;

use super::fleet::{BenchFleet, SpentCosts, add_costs};
use super::latency::percentile;
use super::{BenchReport, BenchTopics, CALL_DEADLINE, EVENTS_PARTITIONS, NOOP, ROUND_DEADLINE, Services, load};

/// Time between two batches of asks.
const TICK: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, clap::Args)]
pub struct UniqueBench {
    /// Asks per second.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub rate: u32,
    /// Number of keys, asked for in turn.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub keys: u32,
    /// Duration of each round, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Linger of producers (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
}

/// Figures of one round.
struct UniqueRound {
    /// Asks per second that were acknowledged.
    rate: f64,
    /// Times from the ask to the start of tasks that started at once, in ms.
    starts: Vec<f64>,
    spent: SpentCosts,
}

pub async fn unique(bench: &UniqueBench, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [
        ("rate", format!("{} asks/s", bench.rate)),
        ("keys", bench.keys.to_string()),
        ("mode", "skip".to_owned()),
        ("partitions", bench.partitions.to_string()),
        ("events partitions", EVENTS_PARTITIONS.to_string()),
        ("linger", format!("{} ms", bench.linger)),
    ];
    let mut report = BenchReport::new("unique", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut rounds = Vec::new();
    for round in 1..=bench.rounds {
        eprintln!("round {round} of {}", bench.rounds);
        rounds.push(one_round(bench, &services.linger(bench.linger)).await?);
    }
    report.add("asks acknowledged", "1/s", rounds.iter().map(|round| round.rate).collect());
    for (label, permille) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
        let values = rounds.iter().map(|round| percentile(round.starts.clone(), permille));
        report.add(&format!("ask to start {label}"), "ms", values.collect());
    }
    let count = u64::from(bench.rate) * u64::from(bench.seconds);
    add_costs(&mut report, count, &rounds.into_iter().map(|round| round.spent).collect::<Vec<_>>());
    report.checked = true;
    Ok(report)
}

async fn one_round(bench: &UniqueBench, services: &Services) -> anyhow::Result<UniqueRound> {
    let mut fleet = BenchFleet::open(services, bench.partitions, 2_000).await?;
    let from = fleet.costs().await?;
    let begun = Instant::now();
    let count = ask_all(&fleet.publisher, bench).await?;
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    wait_until_free(&mut fleet, bench.keys).await?;
    let to = fleet.costs().await?;
    let starts = fleet.read_topics(read_starts)?;
    fleet.close().await?;
    Ok(UniqueRound { rate, starts, spent: SpentCosts { from, to } })
}

fn tag_of(key: u64) -> String {
    tag(NOOP, &format!("key-{key}"))
}

/// Publishes the asks in batches, as many requests at once do. Returns their number.
async fn ask_all(publisher: &Publisher, bench: &UniqueBench) -> anyhow::Result<u64> {
    let params = RawJson::parse(load::params().as_bytes())?;
    let begun = tokio::time::Instant::now();
    let per_tick = u64::from(bench.rate) * TICK.as_millis() as u64 / 1_000;
    let ticks = Duration::from_secs(bench.seconds.into()).as_millis() / TICK.as_millis();
    let mut calls = tokio::task::JoinSet::new();
    for tick in 0..ticks as u64 {
        tokio::time::sleep_until(begun + TICK * tick as u32).await;
        let mut tasks = Vec::with_capacity(per_tick as usize);
        for number in tick * per_tick..(tick + 1) * per_tick {
            let key = number % u64::from(bench.keys);
            let id = TaskId::parse(&ask_id(&tag_of(key), &number.to_string()))?;
            let mut task = TaskSpec::new(id, NOOP, params.clone());
            let unique = Some(UniqueRule::default().complete(format!("key-{key}"), None));
            task.set_policy(Policy { unique, ..Policy::default() });
            tasks.push(task);
        }
        let publisher = publisher.clone();
        calls.spawn(async move { publisher.publish_all(tasks, now_ms()).await });
    }
    while let Some(outcomes) = calls.join_next().await {
        for outcome in outcomes? {
            outcome?;
        }
    }
    Ok(ticks as u64 * per_tick)
}

/// Waits until no key has an open or a kept task.
async fn wait_until_free(fleet: &mut BenchFleet, keys: u32) -> anyhow::Result<()> {
    let until = Instant::now() + ROUND_DEADLINE;
    let mut tags: FxHashMap<u32, Vec<String>> = FxHashMap::default();
    for tag in (0..u64::from(keys)).map(tag_of) {
        tags.entry(fleet.publisher.topology.partition_of_key(&tag)).or_default().push(tag);
    }
    loop {
        let mut open = 0;
        for (partition, tags) in &tags {
            let states = fleet.store.unique_keys(*partition, tags).await?;
            open += states.iter().flatten().filter(|key| !key.open.is_empty() || key.kept.is_some()).count();
        }
        if open == 0 {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("{open} keys have open tasks after {} s", ROUND_DEADLINE.as_secs());
        }
        fleet.check_processes()?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Follows the keys in the log. Returns the times from ask to start, in ms. Fails if two tasks of a key were open.
fn read_starts(topics: &BenchTopics) -> anyhow::Result<Vec<f64>> {
    let topic = topics.topology.names.events();
    let mut starts = Vec::new();
    for (partition, end) in topics.ends(&topic, EVENTS_PARTITIONS)? {
        let mut keys = KeyFollower::default();
        let mut failure = None;
        read_events(topics, &partition, end, &mut |event| {
            if let Err(error) = keys.follow(&event, &mut starts) {
                failure.get_or_insert(error);
            }
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
    }
    Ok(starts)
}

fn read_events(
    topics: &BenchTopics,
    partition: &Partition,
    end: i64,
    take: &mut dyn FnMut(Event),
) -> anyhow::Result<()> {
    let mut consumer = topics.broker.consumer(&ConsumerSpec::default())?;
    consumer.assign(&[(partition.clone(), StartOffset::Beginning)])?;
    let until = Instant::now() + CALL_DEADLINE + ROUND_DEADLINE;
    while consumer.positions()?.first().is_none_or(|(_, next)| *next < end) {
        if Instant::now() > until {
            bail!("{partition} could not be read up to {end}");
        }
        consumer.poll(5_000, Duration::from_millis(100), &mut |record| {
            if let Ok(event) = Event::decode(record.value.unwrap_or_default()) {
                take(event);
            }
        })?;
    }
    consumer.close(Duration::from_secs(5));
    Ok(())
}

/// Open tasks of the keys of a partition.
#[derive(Default)]
struct KeyFollower {
    open: FxHashMap<String, TaskId>,
    /// Times of the asks of tasks that have not started, epoch milliseconds.
    asked_ms: FxHashMap<TaskId, i64>,
}

impl KeyFollower {
    fn follow(&mut self, event: &Event, starts: &mut Vec<f64>) -> anyhow::Result<()> {
        let Some(tag) = event.id.tag() else { return Ok(()) };
        match event.kind() {
            Kind::Asked => drop(self.asked_ms.insert(event.id.clone(), event.at_ms)),
            Kind::Released => {
                if let Some(open) = self.open.insert(tag.to_owned(), event.id.clone()) {
                    bail!("`{}` was released while `{open}` was open", event.id);
                }
            }
            Kind::Succeeded => {
                let asked_ms = self.asked_ms.remove(&event.id).context("a task without an ask has succeeded")?;
                let started_ms = event.payload.started_at_ms().unwrap_or(event.at_ms);
                starts.push((started_ms - asked_ms) as f64);
                self.open.remove(tag);
            }
            _ => {}
        }
        Ok(())
    }
}
