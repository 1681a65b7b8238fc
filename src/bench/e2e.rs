//! `bench e2e`: the whole tracked path. Publish with tracking, work, fold into Redis, all at once on this machine.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::process::Process;
use super::role::Role;
use super::{Common, Ground, NOOP, ROUND_DEADLINE, Report, load};
use crate::broker::link::Link;
use crate::config::{Isolation, Order, WorkerConfig};
use crate::model::id::TaskId;
use crate::model::json::RawJson;
use crate::model::state::State;
use crate::publish::{NewTask, Publisher};
use crate::runtime::now_ms;
use crate::store::Store;
use crate::store::redis::{Redis, RedisOptions};

/// Tasks published by one call.
const CHUNK: u64 = 5_000;
const EVENTS_PARTITIONS: u32 = 4;

#[derive(Clone, Debug, clap::Args)]
pub struct E2e {
    #[command(flatten)]
    pub common: Common,
}

struct Round {
    rate: f64,
    publish_rate: f64,
    worker_cpu: Duration,
    tracker_cpu: Duration,
    publisher_cpu: Duration,
    tracker_peak: u64,
    worker_peak: u64,
}

pub async fn e2e(bench: &E2e, brokers: &str, redis: &str) -> anyhow::Result<Report> {
    let common = &bench.common;
    let settings = [
        ("tasks", common.tasks.to_string()),
        ("partitions", common.partitions.to_string()),
        ("events partitions", EVENTS_PARTITIONS.to_string()),
        ("slots", common.slots.to_string()),
        ("params", "200 B".into()),
        ("linger", "5 ms".into()),
    ];
    let mut report = Report::new("e2e", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut rounds = Vec::new();
    for round in 1..=common.rounds {
        eprintln!("round {round} of {}", common.rounds);
        rounds.push(one_round(&bench.common, brokers, redis).await?);
    }
    let micros = |cpu: Duration| cpu.as_secs_f64() * 1e6 / common.tasks as f64;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut add = |name, unit, value: &dyn Fn(&Round) -> f64| report.add(name, unit, rounds.iter().map(value).collect());
    add("tracked path", "tasks/s", &|round| round.rate);
    add("publish with tracking", "tasks/s", &|round| round.publish_rate);
    add("publisher CPU", "µs/task", &|round| micros(round.publisher_cpu));
    add("worker CPU", "µs/task", &|round| micros(round.worker_cpu));
    add("tracker CPU", "µs/task", &|round| micros(round.tracker_cpu));
    add("worker peak memory", "MiB", &|round| mib(round.worker_peak));
    add("tracker peak memory", "MiB", &|round| mib(round.tracker_peak));
    report.checked = true;
    Ok(report)
}

async fn one_round(common: &Common, brokers: &str, redis: &str) -> anyhow::Result<Round> {
    let (prepare, at, events) = (common.clone(), brokers.to_owned(), EVENTS_PARTITIONS);
    let ground = tokio::task::spawn_blocking(move || Ground::prepare(&prepare, &at, events)).await??;
    let prefix = ground.names.prefix.clone();
    let brokers = brokers.to_owned();
    let store = Redis::connect(RedisOptions { prefix: prefix.clone(), ..RedisOptions::new(redis.to_owned()) })?;
    let mut worker = Process::start(
        "worker",
        &Role::Worker {
            brokers: brokers.clone(),
            prefix: prefix.clone(),
            events_partitions: events,
            slots: common.slots,
            memory_limit: WorkerConfig::default().memory_limit.0,
            order: Order::None,
            isolation: Isolation::None,
        },
    )?;
    let role = Role::Tracker { brokers, redis: redis.to_owned(), prefix: prefix.clone(), events_partitions: events };
    let mut tracker = Process::start("tracker", &role)?;
    let broker = ground.broker.clone();
    let link = tokio::task::spawn_blocking(move || Link::open(broker, None)).await??;
    let publisher = Publisher::new(link, ground.names.clone(), events, "kafleet/bench");
    // Warm-up: everything is connected and has its partitions when one task is through.
    publish(&publisher, "warm", 0..1).await?;
    wait_for(&store, 1, &mut [&mut worker, &mut tracker]).await?;
    let (cpu, worker_cpu, tracker_cpu) = (own_cpu(), worker.cost().cpu, tracker.cost().cpu);
    let began = Instant::now();
    let mut next = 0;
    while next < common.tasks {
        let end = (next + CHUNK).min(common.tasks);
        publish(&publisher, "bench", next..end).await?;
        next = end;
    }
    let published = began.elapsed();
    wait_for(&store, common.tasks + 1, &mut [&mut worker, &mut tracker]).await?;
    let took = began.elapsed();
    let round = Round {
        rate: common.tasks as f64 / took.as_secs_f64(),
        publish_rate: common.tasks as f64 / published.as_secs_f64(),
        publisher_cpu: own_cpu().saturating_sub(cpu),
        worker_cpu: worker.cost().cpu.saturating_sub(worker_cpu),
        tracker_cpu: tracker.cost().cpu.saturating_sub(tracker_cpu),
        worker_peak: worker.cost().peak_bytes,
        tracker_peak: tracker.cost().peak_bytes,
    };
    check(&store, &publisher, common.tasks).await?;
    tokio::task::spawn_blocking(move || worker.stop().and(tracker.stop())).await??;
    Ok(round)
}

async fn publish(publisher: &Publisher, name: &str, numbers: std::ops::Range<u64>) -> anyhow::Result<()> {
    let params = RawJson::parse(load::params().as_bytes())?;
    let mut tasks = Vec::new();
    for n in numbers {
        let mut task = NewTask::new(NOOP, params.clone());
        task.id = Some(TaskId::parse(&format!("{name}-{n:012}"))?);
        tasks.push(task);
    }
    for outcome in publisher.publish_all(tasks, now_ms()).await {
        outcome?;
    }
    Ok(())
}

/// Waits until the store counts so many succeeded tasks.
async fn wait_for(store: &dyn Store, tasks: u64, processes: &mut [&mut Process]) -> anyhow::Result<()> {
    let partitions: Vec<u32> = (0..EVENTS_PARTITIONS).collect();
    let until = Instant::now() + ROUND_DEADLINE;
    loop {
        let counts = store.counts(&partitions).await?;
        let done: u64 = counts.iter().filter(|count| count.state == State::Succeeded).map(|count| count.count).sum();
        if done >= tasks {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("{done} of {tasks} tasks after {} s", ROUND_DEADLINE.as_secs());
        }
        for process in &mut *processes {
            process.check()?;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Every task is there, has succeeded, and did so once.
async fn check(store: &dyn Store, publisher: &Publisher, tasks: u64) -> anyhow::Result<()> {
    let counts = store.counts(&(0..EVENTS_PARTITIONS).collect::<Vec<_>>()).await?;
    let all: u64 = counts.iter().map(|count| count.count).sum();
    if all != tasks + 1 {
        bail!("{all} tasks are counted, {} were published", tasks + 1);
    }
    let mut ids: Vec<Vec<TaskId>> = vec![Vec::new(); EVENTS_PARTITIONS as usize];
    for n in 0..tasks {
        let id = TaskId::parse(&format!("bench-{n:012}"))?;
        ids[publisher.partition_of(&id) as usize].push(id);
    }
    for (partition, ids) in ids.into_iter().enumerate() {
        for chunk in ids.chunks(1_000) {
            let nodes = store.nodes(partition as u32, chunk).await?;
            for (id, node) in chunk.iter().zip(nodes) {
                match node {
                    Some(node) if node.state == State::Succeeded && node.duplicates == 0 => {}
                    node => bail!("`{id}` is not there exactly once: {node:?}"),
                }
            }
        }
    }
    Ok(())
}

fn own_cpu() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    let time = |time: nix::sys::time::TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1_000);
    usage.map_or(Duration::ZERO, |usage| time(usage.user_time()) + time(usage.system_time()))
}
