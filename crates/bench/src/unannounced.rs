//! `bench unannounced`: tasks of producers that send no event. Measures the time from a record to its state `queued`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::bail;
use kafleet_broker::ProducerRecord;
use kafleet_model::record::state::State;
use kafleet_store::Store;
use kafleet_store::redis::Redis;

use super::child_role::ChildRole;
use super::fleet::partitions;
use super::latency::percentile;
use super::load::{self, Filler};
use super::process::Process;
use super::{BenchReport, BenchTopics, EVENTS_PARTITIONS, NOOP, ROUND_DEADLINE, Services, blocking};

/// Interval of publish bursts.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(10);
/// Interval of reads of the store's counts.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, clap::Args)]
pub struct UnannouncedBench {
    /// Tasks published per second.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub rate: u32,
    /// Duration in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
}

pub async fn unannounced(bench: &UnannouncedBench, services: &Services) -> anyhow::Result<BenchReport> {
    let settings = [
        ("published", format!("{}/s for {} s", bench.rate, bench.seconds)),
        ("events partitions", EVENTS_PARTITIONS.to_string()),
        ("params", "200 B".into()),
    ];
    let mut report = BenchReport::new("unannounced", settings.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let at = services.linger(5);
    let topics = blocking(move || BenchTopics::prepare(&at, EVENTS_PARTITIONS, EVENTS_PARTITIONS)).await?;
    let prefix = topics.topology.names.prefix.clone();
    let store = services.redis(&prefix)?;
    let tracker = ChildRole::Tracker { services: services.clone(), prefix, events_partitions: EVENTS_PARTITIONS };
    let mut tracker = Process::start("tracker", &tracker)?;
    // A first burst makes sure that the tracker is consuming.
    let warm = UnannouncedBench { rate: 100, seconds: 1 };
    let bench = bench.clone();
    let (topics, _) = publish(topics, &warm, 0).await?;
    wait_until_queued(&store, &mut [&mut tracker], u64::from(warm.rate)).await?;
    let before = u64::from(warm.rate);
    let all = before + u64::from(bench.rate) * u64::from(bench.seconds);
    let mut roles = [&mut tracker];
    let (published, seen) = tokio::join!(publish(topics, &bench, before), wait_until_queued(&store, &mut roles, all));
    let (topics, published) = published?;
    let seen = seen?;
    let late = lateness(&published, &seen);
    for (name, permille) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
        report.add(&format!("queued after, {name}"), "ms", vec![percentile(late.clone(), permille)]);
    }
    report.redis = Some(store.usage().await?.version);
    report.checked = true;
    blocking(move || {
        let stopped = tracker.stop();
        drop(topics);
        stopped
    })
    .await?;
    store.clear().await?;
    Ok(report)
}

/// Total number of tasks over time.
pub(super) type Steps = Vec<(Instant, u64)>;

/// Publishes records with only ids and params at an even rate.
async fn publish(topics: BenchTopics, bench: &UnannouncedBench, before: u64) -> anyhow::Result<(BenchTopics, Steps)> {
    let rate = u64::from(bench.rate);
    let count = u64::from(bench.rate) * u64::from(bench.seconds);
    blocking(move || {
        let filler = Filler::new(&topics)?;
        let topic = topics.topology.names.tasks(NOOP);
        let params = load::params();
        let started = Instant::now();
        let mut sent = 0;
        let mut steps = Steps::new();
        while sent < count {
            let due = (started.elapsed().as_millis() as u64 * rate / 1_000).min(count);
            for n in sent..due {
                let id = format!("unannounced-{:012}", before + n);
                let headers: [(&str, &[u8]); 1] = [("ce_id", id.as_bytes())];
                let key = Some(id.as_bytes());
                let value = Some(params.as_bytes());
                filler.send(&ProducerRecord { topic: &topic, partition: None, key, value, headers: &headers })?;
            }
            if due > sent {
                steps.push((Instant::now(), before + due));
            }
            sent = due;
            std::thread::sleep(PUBLISH_INTERVAL);
        }
        filler.end()?;
        Ok((topics, steps))
    })
    .await
}

/// Samples the number of queued tasks until it reaches `count`.
pub(super) async fn wait_until_queued(store: &Redis, roles: &mut [&mut Process], count: u64) -> anyhow::Result<Steps> {
    let mut steps = Steps::new();
    let until = Instant::now() + ROUND_DEADLINE;
    loop {
        let counts = store.counts(&partitions()).await?;
        let queued: u64 = counts.iter().filter(|count| count.state == State::Queued).map(|count| count.count).sum();
        if steps.last().is_none_or(|(_, last)| *last < queued) {
            steps.push((Instant::now(), queued));
        }
        if queued >= count {
            return Ok(steps);
        }
        for role in roles.iter_mut() {
            role.check()?;
        }
        if Instant::now() > until {
            bail!("{queued} of {count} tasks are visible after {} s", ROUND_DEADLINE.as_secs());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns for each published total the time in ms until as many tasks were queued.
pub(super) fn lateness(published: &Steps, seen: &Steps) -> Vec<f64> {
    let mut seen: VecDeque<_> = seen.iter().collect();
    let mut late = Vec::with_capacity(published.len());
    for (at, count) in published {
        while seen.front().is_some_and(|(_, wait_until_queued)| wait_until_queued < count) {
            seen.pop_front();
        }
        late.extend(seen.front().map(|(shown_at, _)| shown_at.saturating_duration_since(*at).as_secs_f64() * 1e3));
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_measured_per_published_total() {
        let started = Instant::now();
        let at = |ms: u64| started + Duration::from_millis(ms);
        let published = vec![(at(0), 10), (at(10), 20), (at(20), 30)];
        let seen = vec![(at(5), 12), (at(30), 25), (at(31), 30)];
        assert_eq!(lateness(&published, &seen), [5.0, 20.0, 11.0]);
    }
}
