//! `bench outbox`: an application commits rows to the outbox of a Postgres, and a relay publishes them. Beside it the same commits
//! without a relay.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kafleet_broker::{Broker, TopicChange, TopicSpec};
use kafleet_store::redis::Redis;

use super::child_role::ChildRole;
use super::latency::percentile;
use super::process::Process;
use super::unannounced::{Steps, lateness, wait_until_queued};
use super::{
    BenchReport, BenchTopics, CALL_DEADLINE, EVENTS_PARTITIONS, ROUND_DEADLINE, Services, blocking, mib, micros,
};

mod database;
mod published;
pub(super) mod relay;

use database::{Application, BenchDatabase, TICK};
use published::PublishedRows;

#[derive(Clone, Debug, clap::Args)]
pub struct OutboxBench {
    /// Rows of each round that are committed as fast as Postgres takes them.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    pub rows: u64,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Connections of the application.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub writers: u32,
    /// Rows in each of its transactions.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rows_per_commit: u32,
    /// Rows per second of the measurement of latency, in 100 transactions per second.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub rate: u32,
    /// Duration of the measurement of latency, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Partitions of the task topic.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Keep a transaction open during each round, which has inserted a row and lets Postgres clean up no deleted row.
    #[arg(long)]
    pub open_transaction: bool,
    /// Linger of producers (librdkafka's `linger.ms`), in milliseconds.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub linger: u32,
}

/// Figures of one round.
struct OutboxRound {
    /// Rows per second that were committed without a relay.
    plain: f64,
    /// Rows per second from the first commit until the task of the last row could be read.
    relayed: f64,
    /// Times from a commit until as many tasks were queued, in ms.
    queued: Vec<f64>,
    relay_cpu: Duration,
    relay_peak_bytes: u64,
    redis: String,
}

/// Services of a round.
struct OutboxFleet {
    topics: BenchTopics,
    relay: Process,
    /// Role of the tracker, which starts after the measurement of the rate.
    tracker: ChildRole,
    store: Redis,
}

/// Measures rate and latency of a relay between the Postgres at a URL and Kafka.
///
/// # Errors
/// Postgres, Kafka or Redis cannot be used, a process ends, or a row is not exactly one task.
pub async fn outbox(bench: &OutboxBench, services: &Services, postgres: &str) -> anyhow::Result<BenchReport> {
    let database = BenchDatabase::create(postgres).await.context("cannot use Postgres for the benchmark")?;
    let measured = all_rounds(bench, &services.linger(bench.linger), postgres, &database).await;
    database.drop_schema().await;
    measured
}

async fn all_rounds(
    bench: &OutboxBench,
    services: &Services,
    postgres: &str,
    database: &BenchDatabase,
) -> anyhow::Result<BenchReport> {
    let (version, fsync) = database.server().await?;
    let settings = [
        ("rows", bench.rows.to_string()),
        ("writers", bench.writers.to_string()),
        ("rows per commit", bench.rows_per_commit.to_string()),
        ("latency at", format!("{} rows/s for {} s", bench.rate, bench.seconds)),
        ("open transaction", if bench.open_transaction { "yes" } else { "no" }.to_owned()),
        ("partitions", bench.partitions.to_string()),
        ("params", "200 B".to_owned()),
        ("linger", format!("{} ms", bench.linger)),
        ("postgres", format!("{version} with fsync {fsync}")),
    ];
    let mut report = BenchReport::new("outbox", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut rounds = Vec::new();
    for round in 1..=bench.rounds {
        eprintln!("round {round} of {}", bench.rounds);
        rounds.push(one_round(bench, services, postgres, database).await?);
    }
    add_figures(&mut report, bench, &rounds);
    Ok(report)
}

fn add_figures(report: &mut BenchReport, bench: &OutboxBench, rounds: &[OutboxRound]) {
    let values = |of: &dyn Fn(&OutboxRound) -> f64| rounds.iter().map(of).collect::<Vec<_>>();
    report.add("committed and relayed", "rows/s", values(&|round| round.relayed));
    report.add("committed without a relay", "rows/s", values(&|round| round.plain));
    for (label, permille) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
        let name = format!("commit to queued {label}");
        report.add(&name, "ms", values(&|round| percentile(round.queued.clone(), permille)));
    }
    report.add("relay CPU", "µs/row", values(&|round| micros(round.relay_cpu, bench.rows)));
    report.add("relay peak memory", "MiB", values(&|round| mib(round.relay_peak_bytes)));
    let ratios = values(&|round| round.relayed / round.plain);
    report.ratio = Some(super::Figure::of("ratio", "", ratios).median);
    report.redis = rounds.last().map(|round| round.redis.clone());
    report.checked = true;
}

async fn one_round(
    bench: &OutboxBench,
    services: &Services,
    postgres: &str,
    database: &BenchDatabase,
) -> anyhow::Result<OutboxRound> {
    let plain = database.commit_all(0..bench.rows, bench).await?;
    database.truncate().await?;
    let mut fleet = OutboxFleet::start(bench, services, (postgres, &database.schema)).await?;
    let mut published = PublishedRows::read(&fleet.topics)?;
    // A first row shows that the relay works.
    database.connect().await?.commit(0..1).await?;
    published.wait(1, &mut fleet.relay).await?;
    let held = OpenTransaction::begin(bench, database).await?;
    let rows = held.next..held.next + bench.rows;
    let (before, begun) = (fleet.relay.cost().cpu, Instant::now());
    let (_, relayed) =
        tokio::try_join!(database.commit_all(rows.clone(), bench), published.wait(1 + bench.rows, &mut fleet.relay))?;
    let relayed = bench.rows as f64 / relayed.duration_since(begun).as_secs_f64();
    let relay_cpu = fleet.relay.cost().cpu.saturating_sub(before);
    let (queued, mut tracker) = fleet.latency(bench, database, rows.end, &held).await?;
    let last = rows.end + u64::from(bench.rate) * u64::from(bench.seconds);
    held.end().await?;
    published.wait(last, &mut fleet.relay).await?;
    tracker.check()?;
    tokio::task::block_in_place(|| published.check_end(last))?;
    let (relay_peak_bytes, redis) = (fleet.relay.cost().peak_bytes, fleet.store.usage().await?.version);
    fleet.stop(tracker).await?;
    Ok(OutboxRound { plain, relayed, queued, relay_cpu, relay_peak_bytes, redis })
}

/// Transaction that is open during a round, if the benchmark has one.
struct OpenTransaction {
    application: Option<Application>,
    /// Number of the next row.
    next: u64,
}

impl OpenTransaction {
    async fn begin(bench: &OutboxBench, database: &BenchDatabase) -> anyhow::Result<Self> {
        if !bench.open_transaction {
            return Ok(Self { application: None, next: 1 });
        }
        let application = database.connect().await?;
        application.begin_with(1).await?;
        Ok(Self { application: Some(application), next: 2 })
    }

    async fn end(&self) -> anyhow::Result<()> {
        match &self.application {
            Some(application) => application.end().await,
            None => Ok(()),
        }
    }
}

impl OutboxFleet {
    async fn start(bench: &OutboxBench, services: &Services, database: (&str, &str)) -> anyhow::Result<Self> {
        let (at, partitions) = (services.clone(), bench.partitions);
        let topics = blocking(move || {
            let topics = BenchTopics::prepare(&at, partitions, EVENTS_PARTITIONS)?;
            create_marker_topic(&topics)?;
            Ok(topics)
        })
        .await?;
        let prefix = topics.topology.names.prefix.clone();
        let store = services.redis(&prefix)?;
        let role = |prefix: String| ChildRole::OutboxRelay {
            services: services.clone(),
            prefix,
            events_partitions: EVENTS_PARTITIONS,
            postgres: database.0.to_owned(),
            schema: database.1.to_owned(),
        };
        let relay = Process::start("relay", &role(prefix.clone()))?;
        let tracker = ChildRole::Tracker { services: services.clone(), prefix, events_partitions: EVENTS_PARTITIONS };
        Ok(Self { topics, relay, tracker, store })
    }

    /// Starts a tracker, waits until it has projected the first rows, and measures commits at a steady rate.
    async fn latency(
        &mut self,
        bench: &OutboxBench,
        database: &BenchDatabase,
        first: u64,
        held: &OpenTransaction,
    ) -> anyhow::Result<(Vec<f64>, Process)> {
        let mut tracker = Process::start("tracker", &self.tracker)?;
        // The row of the open transaction is not published.
        let missing = u64::from(held.application.is_some());
        let count = u64::from(bench.rate) * u64::from(bench.seconds);
        let per_tick = (u64::from(bench.rate) * TICK.as_millis() as u64 / 1_000).max(1);
        let mut roles = [&mut tracker, &mut self.relay];
        wait_until_queued(&self.store, &mut roles, first - missing).await?;
        let (commits, seen) = tokio::join!(
            database.commit_steadily(first..first + count, per_tick),
            wait_until_queued(&self.store, &mut roles, first - missing + count)
        );
        let commits: Steps = commits?.into_iter().map(|(at, rows)| (at, rows - missing)).collect();
        Ok((lateness(&commits, &seen?), tracker))
    }

    async fn stop(self, tracker: Process) -> anyhow::Result<()> {
        let Self { topics, relay, store, .. } = self;
        blocking(move || {
            let stopped = relay.stop().and(tracker.stop());
            drop(topics);
            stopped
        })
        .await?;
        Ok(store.clear().await?)
    }
}

fn create_marker_topic(topics: &BenchTopics) -> anyhow::Result<()> {
    let config = vec![("cleanup.policy".into(), "compact".into())];
    let spec = TopicSpec { name: topics.topology.names.outbox(), partitions: 1, replication: None, config };
    for outcome in topics.broker.apply_topics(&[spec], CALL_DEADLINE)? {
        if let TopicChange::Failed(error) = outcome.change {
            bail!("cannot create topic `{}`: {error}", outcome.name);
        }
    }
    Ok(())
}
